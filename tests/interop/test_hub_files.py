"""Files of datasets on the Hub: the real client against a small server."""

import re
import sys
from pathlib import Path

import huggingface_hub
import pytest
from hub_server import commit_of, serve_hub, use_hub
from huggingface_hub import constants
from tiny_run import load_config

from gpt1_jax import addresses
from gpt1_jax import config as config_lib
from gpt1_jax.data.named_texts import texts_in_files
from gpt1_jax.errors import MissingPackage, UserError
from gpt1_jax.interop.hub_files import fetch_files, fetch_tasks
from gpt1_jax.tasks.paper_tasks import TASKS

NAME = "people/letters"
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


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("data/a.parquet", FILES[1:2]),
        ("data/*.parquet", FILES[1:3]),
        ("data/[ab]*", FILES[1:3]),
        ("data", FILES[1:]),
        ("data/**/*.parquet", FILES[1:]),
        ("**/c.*", FILES[3:]),
    ],
)
def test_only_the_files_of_a_pattern_are_downloaded(server, pattern, found):
    path = fetch_files(f"hf://datasets/{NAME}/{pattern}")
    commit = commit_of(server.datasets[NAME]["main"])
    assert path.endswith(f"/snapshots/{commit}/{pattern}")
    asked = [each for each in server.requests if each.startswith("GET /datasets")]
    assert sorted(each.rpartition(f"{commit}/")[2] for each in asked) == sorted(found)
    server.requests.clear()
    assert fetch_files(f"hf://datasets/{NAME}/{pattern}") == path
    assert server.requests == [f"GET /api/datasets/{NAME}/revision/main"]


def test_what_was_downloaded_is_read_without_the_hub(server, capfd):
    address = f"hf://datasets/{NAME}/data/*.parquet"
    path = fetch_files(address)
    server.shutdown()
    server.server_close()
    assert fetch_files(address) == path
    assert f"); {NAME} is read as commit" in capfd.readouterr().out
    with pytest.raises(UserError, match=r"data/more/c.parquet was not downloaded"):
        fetch_files(f"hf://datasets/{NAME}/data/**")
    with pytest.raises(UserError, match=r"none of the files that were downloaded bef"):
        fetch_files(f"hf://datasets/{NAME}/none")


def test_a_branch_that_moved_is_said(server, capfd):
    address = f"hf://datasets/{NAME}/data/a.parquet"
    before = commit_of(server.datasets[NAME]["main"])
    first = fetch_files(address)
    (server.datasets[NAME]["main"] / "data" / "a.parquet").write_text("new")
    assert fetch_files(address) != first
    said = capfd.readouterr().out
    assert f"{NAME} has moved since it was last read here: main was commit" in said
    assert fetch_files(f"hf://datasets/{NAME}@{before}/data/a.parquet") == first


def test_a_branch_of_any_name_is_read(server):
    server.datasets[NAME]["revisions"] = server.datasets[NAME]["main"]
    for revision in ("main", "revisions"):
        path = fetch_files(f"hf://datasets/{NAME}@{revision}/data/a.parquet")
        assert path.endswith("data/a.parquet")


@pytest.mark.parametrize("status", [401, 403, 404, 429, 500, 503])
def test_what_is_here_is_read_whatever_the_hub_answers(server, status, capfd):
    address = f"hf://datasets/{NAME}/data/*.parquet"
    path = fetch_files(address)
    server.answers["/api/"] = status
    assert fetch_files(address) == path
    said = capfd.readouterr().out
    line = rf"The Hub cannot be asked \(.*{status} .*\); {NAME} is read as commit"
    assert re.search(line, said)
    with pytest.raises(UserError, match=f"{status} .*c.parquet was not downloaded"):
        fetch_files(f"hf://datasets/{NAME}/data/**")


def test_a_pattern_is_warned_of_if_only_some_files_are_known(
    server, monkeypatch, capfd
):
    """As after `hf download` of single files, or with a client of 2025."""
    huggingface_hub.hf_hub_download(NAME, "data/a.parquet", repo_type="dataset")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    fetch_files(f"hf://datasets/{NAME}/data/a.parquet")
    assert "WARNING" not in capfd.readouterr().out
    fetch_files(f"hf://datasets/{NAME}/data/*.parquet")
    assert "may name more than the 1 files that are here" in capfd.readouterr().out


def change_a_byte(name, content):
    """A file with one bit turned on its way."""
    return bytes([content[0] ^ 1]) + content[1:] if name == "a.parquet" else content


def cut_in_half(name, content):
    return content[: len(content) // 2]


@pytest.mark.parametrize("spoil", [change_a_byte, cut_in_half])
def test_what_is_damaged_on_its_way_is_refused_and_fetched_again(server, spoil):
    address, sound = f"hf://datasets/{NAME}/data/a.parquet", server.spoil
    server.spoil = spoil
    with pytest.raises(UserError, match=r"a\.parquet did not arrive as the Hub lists"):
        fetch_files(address)
    server.spoil = sound
    with open(fetch_files(address)) as file:
        assert file.read() == "data/a.parquet"


@pytest.mark.parametrize("name", ["data/a.parquet", "data/a.bin"])
def test_what_was_damaged_in_the_cache_is_fetched_again(server, name):
    publish(server.datasets[NAME]["main"], [name])
    address = f"hf://datasets/{NAME}/{name}"
    path = fetch_files(address)
    with open(path, "w") as file:
        file.write("data/b" + name.removeprefix("data/a"))
    with open(fetch_files(address)) as file:
        assert file.read() == name
    with open(path, "w") as file:
        file.write("data/b" + name.removeprefix("data/a"))
    server.broken = True
    if name.endswith(".bin"):  # which the cache keeps by its SHA-256
        with pytest.raises(UserError, match=r"data/a.bin is damaged; run the same com"):
            fetch_files(address)


def test_a_file_of_ones_own_in_the_cache_is_not_removed(server, tmp_path):
    address = f"hf://datasets/{NAME}/data/a.parquet"
    path = Path(fetch_files(address))
    mine = tmp_path / "mine.parquet"
    mine.write_text("mine")
    path.unlink()
    path.symlink_to(mine)
    assert Path(fetch_files(address)).read_text() == "data/a.parquet"
    assert mine.read_text() == "mine"


@pytest.mark.parametrize(
    "name",
    ["../evil", "data/../../evil", "/evil", "data\\evil", "data/\0", "data/", 5, None],
)
def test_a_listing_with_an_odd_name_is_one_line(server, name):
    def add(values):
        values["siblings"].append({"rfilename": name, "size": 5, "blobId": "0" * 40})
        return values

    server.misstate = add
    with pytest.raises(
        UserError, match=r"a file with the name .* HF_ENDPOINT"
    ) as caught:
        fetch_files(f"hf://datasets/{NAME}/data/*.parquet")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("sha", ["../../../evil", "/tmp/evil", "", None, 5, "abc"])
def test_a_commit_that_is_none_is_no_path(server, tmp_path, sha):
    server.misstate = lambda values: {**values, "sha": sha}
    with pytest.raises(UserError, match=r"names the commit .* HF_ENDPOINT") as caught:
        fetch_files(f"hf://datasets/{NAME}/data/*.parquet")
    assert "\n" not in str(caught.value)
    assert not [path for path in tmp_path.rglob("*evil*")]
    assert not (tmp_path / "hub").exists()


def test_a_download_that_breaks_goes_on(server):
    content = "text" * 5000
    (server.datasets[NAME]["main"] / "data" / "a.parquet").write_text(content)
    server.cut = 1000
    with open(fetch_files(f"hf://datasets/{NAME}/data/a.parquet")) as file:
        assert file.read() == content


def test_a_branch_of_the_hub_itself_is_a_revision(server, tmp_path):
    converted = publish(tmp_path / "converted", ("default/train/0000.parquet",))
    server.datasets[NAME][CONVERTED] = converted
    path = fetch_files(f"hf://datasets/{NAME}@{CONVERTED}/default/train/*.parquet")
    assert path.endswith(f"/{commit_of(converted)}/default/train/*.parquet")


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("hf://datasets/people", r"must be hf://datasets/ORG/NAME/FILES or"),
        (f"hf://datasets/{NAME}", "must be .* such as data/"),
        ("hf://datasets/people/none/a", "people/none does not exist on the Hub, or it"),
        (f"hf://datasets/{NAME}@../a", "must be hf://datasets/ORG/NAME/FILES or"),
        (f"hf://datasets/{NAME}@none/a", f"{NAME} has no revision 'none'"),
        (f"hf://datasets/{NAME}/a", "names none of its 4 files: README.md, data/a.par"),
        (f"hf://datasets/{NAME}/data/../README.md", "names none of its 4 files"),
        ("hf://datasets/people/private/a", "or it is private; then set HF_TOKEN"),
        ("hf://datasets/people/gated/a", "for those who accept its terms: do so"),
        ("hf://datasets/people/code/a", f"never run, @{CONVERTED} may have its data"),
    ],
)
def test_what_cannot_be_fetched_is_one_line(server, tmp_path, address, message):
    for name in ("private", "gated"):
        server.datasets[f"people/{name}"] = server.datasets[NAME]
        getattr(server, name).add(f"people/{name}")
    code = publish(tmp_path / "code", ("code.py", "README.md"))
    server.datasets["people/code"] = {"main": code}
    with pytest.raises(UserError, match=message) as caught:
        fetch_files(address, "config.data.train")
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"config.data.train={address!r} ")


def test_a_hub_that_does_not_answer_is_one_line(server):
    server.broken = True
    with pytest.raises(UserError, match=r"the Hub does not answer .* a local file"):
        fetch_files(f"hf://datasets/{NAME}/data")


@pytest.mark.parametrize("pattern", ["data/a.parquet", "data"])
def test_what_reads_parquet_is_asked_for_before_it_is_downloaded(
    server, monkeypatch, pattern
):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "gpt1_jax.data.parquet", raising=False)
    with pytest.raises(MissingPackage, match=r"pip install 'gpt1_jax\[text\]'"):
        fetch_files(f"hf://datasets/{NAME}/{pattern}")
    with pytest.raises(MissingPackage):
        fetch_tasks([TASKS["sst2"]])
    assert not [each for each in server.requests if each.startswith("GET /datasets")]


def test_a_file_that_is_listed_and_not_sent_is_one_line(server, monkeypatch):
    folder = "huggingface_hub.snapshot_download"  # as of an old client that gives up
    monkeypatch.setattr(folder, lambda *names, **more: "")
    with pytest.raises(UserError, match=r"data/a\.parquet did not arrive as the Hub "):
        fetch_files(f"hf://datasets/{NAME}/data")


def test_training_text_may_be_files_of_a_dataset(server, tmp_path):
    (server.datasets[NAME]["main"] / "stories, long.txt").write_text("Once.")
    (tmp_path / "mine.txt").write_text("Here.")
    named = f"hf://datasets/{NAME}/*.txt,{tmp_path / 'mine.txt'}"
    values = {"data.source": "text", "data.train": named}
    config = addresses.resolve(config_lib.load(load_config(**values).to_dict()))
    texts = texts_in_files(config.data.train, "config.data.train", "text")
    assert sorted("".join(each.chunks()) for each in texts) == ["Here.", "Once."]
    values["data.train"] = f"hf://datasets/{NAME}/*.md5"
    with pytest.raises(
        UserError, match=r"config\.data\.train='hf://datasets/people/let"
    ):
        addresses.resolve(config_lib.load(load_config(**values).to_dict()))
