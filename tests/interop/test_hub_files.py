"""Files of datasets on the Hub: the real client against a small server.

Models are found, fetched and checked by the same means: `test_hub.py` has the rest.
"""

import re
import sys
from pathlib import Path

import pytest
from hub_server import commit_of, serve_hub, use_hub
from tiny_run import load_config

from gpt1_jax import addresses
from gpt1_jax import config as config_lib
from gpt1_jax.data.named_texts import texts_in_files
from gpt1_jax.errors import MissingPackage, UserError
from gpt1_jax.interop.hub_files import fetch_files, fetch_tasks
from gpt1_jax.tasks.paper_tasks import TASKS

NAME = "people/letters"
HERE = f"hf://datasets/{NAME}"
FILES = ("README.md", "data/a.parquet", "data/b.parquet", "data/more/c.parquet")
CONVERTED = "refs/convert/parquet"


def publish(folder, names=FILES):
    """A repository with files that hold their names."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return folder


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A Hub with one dataset, and a machine that has read nothing yet."""
    with serve_hub(tmp_path / "pushed") as server:
        server.datasets[NAME] = {"main": publish(tmp_path / "published")}
        use_hub(server, tmp_path, monkeypatch)
        yield server


@pytest.fixture
def published(server):
    """The folder of the dataset."""
    return server.datasets[NAME]["main"]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("data/a.parquet", FILES[1:2]),
        ("data", FILES[1:]),
        ("data/**/*.parquet", FILES[1:]),
    ],
)
def test_only_the_files_of_a_pattern_are_downloaded(server, published, pattern, found):
    path, commit = fetch_files(f"{HERE}/{pattern}"), commit_of(published)
    assert path.endswith(f"/snapshots/{commit}/{pattern}")
    asked = [each for each in server.requests if each.startswith("GET /datasets")]
    assert sorted(each.rpartition(f"{commit}/")[2] for each in asked) == sorted(found)
    server.requests.clear()
    assert fetch_files(f"{HERE}/{pattern}") == path
    assert server.requests == [f"GET /api/datasets/{NAME}/revision/main"]


@pytest.mark.parametrize("answer", [401, 429, 503])
def test_what_is_here_is_read_whatever_the_hub_answers(server, answer, capfd):
    path = fetch_files(f"{HERE}/data/*.parquet")
    server.answers["/api/"] = answer
    assert fetch_files(f"{HERE}/data/*.parquet") == path
    line = rf"The Hub cannot be asked \(.*{answer} .*\); {NAME} is read as commit"
    assert re.search(line, capfd.readouterr().out)
    with pytest.raises(UserError, match=f"{answer} .*c.parquet was not downloaded"):
        fetch_files(f"{HERE}/data/**")
    with pytest.raises(UserError, match=r"none of the files that were downloaded bef"):
        fetch_files(f"{HERE}/none")


def test_a_branch_that_moved_is_said(published, capfd):
    before, first = commit_of(published), fetch_files(f"{HERE}/data/a.parquet")
    (published / "data" / "a.parquet").write_text("new")
    assert fetch_files(f"{HERE}/data/a.parquet") != first
    said = capfd.readouterr().out
    moved = f"{NAME} has moved since it was last read here: main was commit {before}"
    assert moved in said
    assert fetch_files(f"{HERE}@{before}/data/a.parquet") == first


@pytest.mark.parametrize("name", ["data/a.parquet", "data/a.bin"])
def test_what_is_damaged_on_its_way_or_in_the_cache_is_fetched_again(
    server, published, name
):
    publish(published, [name])
    sound, server.spoil = server.spoil, lambda _, content: content[:-1] + b"!"
    with pytest.raises(UserError, match=rf"{name} did not arrive as the Hub lists it"):
        fetch_files(f"{HERE}/{name}")
    server.spoil = sound
    path = Path(fetch_files(f"{HERE}/{name}"))
    assert path.read_text() == name
    path.write_text(name.replace("a", "b"))
    assert Path(fetch_files(f"{HERE}/{name}")).read_text() == name
    path.write_text(name.replace("a", "b"))
    server.broken = True
    if name.endswith(".bin"):  # which the cache keeps by its SHA-256
        with pytest.raises(UserError, match=r"data/a.bin is damaged; run the same com"):
            fetch_files(f"{HERE}/{name}")


def test_a_file_of_ones_own_in_the_cache_is_not_removed(server, tmp_path):
    path = Path(fetch_files(f"{HERE}/data/a.parquet"))
    mine = tmp_path / "mine.parquet"
    mine.write_text("mine")
    path.unlink()
    path.symlink_to(mine)
    assert Path(fetch_files(f"{HERE}/data/a.parquet")).read_text() == "data/a.parquet"
    assert mine.read_text() == "mine"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *[("name", name) for name in ("../evil", "/evil", "data\\evil", "data/\0", 5)],
        *[("commit", commit) for commit in ("../../../evil", "/tmp/evil", "", None)],
    ],
)
def test_an_answer_that_cannot_be_is_one_line_and_no_path(server, tmp_path, key, value):
    def misstate(values):
        if key == "commit":
            return {**values, "sha": value}
        added = {"rfilename": value, "size": 5, "blobId": "0" * 40}
        return {**values, "siblings": [*values["siblings"], added]}

    server.misstate = misstate
    pattern = rf"names (a file with )?the {key} .* HF_ENDPOINT"
    with pytest.raises(UserError, match=pattern) as caught:
        fetch_files(f"{HERE}/data/*.parquet")
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.rglob("*evil*")) and not (tmp_path / "hub").exists()


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("hf://datasets/people", r"must be hf://datasets/ORG/NAME/FILES or"),
        (HERE, "must be .* such as data/"),
        (f"{HERE}@../a", "must be hf://datasets/ORG/NAME/FILES or"),
        (f"{HERE}/data/../README.md", "names none of its 4 files: README.md, data/a.p"),
        ("hf://datasets/people/private/a", "or it is private; then set HF_TOKEN"),
        ("hf://datasets/people/gated/a", "for those who accept its terms: do so"),
        ("hf://datasets/people/code/a", f"never run, @{CONVERTED} may have its data"),
        ("hf://datasets/people/away/a", "the Hub does not answer .* a local file"),
    ],
)
def test_what_cannot_be_fetched_is_one_line(server, tmp_path, address, message):
    for name in ("private", "gated"):
        server.datasets[f"people/{name}"] = server.datasets[NAME]
        getattr(server, name).add(f"people/{name}")
    code = publish(tmp_path / "code", ("code.py", "README.md"))
    server.datasets["people/code"] = {"main": code}
    server.answers["/people/away"] = 503
    with pytest.raises(UserError, match=message) as caught:
        fetch_files(address, "config.data.train")
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"config.data.train={address!r} ")


def test_what_reads_parquet_is_asked_for_before_it_is_downloaded(server, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "gpt1_jax.data.parquet", raising=False)
    with pytest.raises(MissingPackage, match=r"pip install 'gpt1_jax\[text\]'"):
        fetch_files(f"{HERE}/data")
    with pytest.raises(MissingPackage):
        fetch_tasks([TASKS["sst2"]])
    assert not [each for each in server.requests if each.startswith("GET /datasets")]


def test_training_text_may_be_files_of_a_dataset(published, tmp_path):
    (published / "stories, long.txt").write_text("Once.")
    (tmp_path / "mine.txt").write_text("Here.")

    def resolved(named):
        values = {"data.source": "text", "data.train": named}
        config = addresses.resolve(config_lib.load(load_config(**values).to_dict()))
        return config.data.train

    named = resolved(f"{HERE}/*.txt,{tmp_path / 'mine.txt'}")
    texts = texts_in_files(named, "config.data.train", "text")
    assert sorted("".join(each.chunks()) for each in texts) == ["Here.", "Once."]
    with pytest.raises(UserError, match=rf"config\.data\.train='{HERE}"):
        resolved(f"{HERE}/*.md5")
