"""Models on the Hub by name: the real client against a small server."""

import concurrent.futures
import json
import os
import re
import shutil
import time
from pathlib import Path

import huggingface_hub
import pytest
import tokenizers
from etils import epath
from hub_server import commit_of, serve_hub, use_hub
from huggingface_hub import constants
from joined import together
from other_formats import assert_same_params
from tiny_run import as_flags, load_config, run_program

import gpt1_jax
from gpt1_jax import addresses
from gpt1_jax import config as config_lib
from gpt1_jax.data.tokenizers import load_tokenizer
from gpt1_jax.errors import UserError
from gpt1_jax.interop import foreign, hub
from gpt1_jax.jobs import convert
from gpt1_jax.runs.checkpoint_files import check_files
from gpt1_jax.runs.open import open_run

NAME = "people/gpt"
HERE = f"hf://{NAME}"


@pytest.fixture(scope="module")
def exported(pretrained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported") / "model"
    config = load_config("huggingface", "convert", init_from=str(pretrained))
    convert.run(config_lib.load(config.to_dict()), str(folder))
    return folder


@pytest.fixture
def server(exported, tmp_path, monkeypatch):
    """A Hub with one model, and a machine that has read nothing yet."""
    folder = tmp_path / "published"
    shutil.copytree(exported, folder)
    with serve_hub(tmp_path / "pushed") as server:
        server.models[NAME] = {"main": folder}
        use_hub(server, tmp_path, monkeypatch)
        yield server


@pytest.fixture
def published(server):
    """The folder of the model."""
    return server.models[NAME]["main"]


@pytest.fixture
def as_copies(monkeypatch):
    """Conversion is a copy: its own tests are elsewhere, and it takes seconds."""

    def copy(snapshot, target, named):
        del named
        shutil.copytree(snapshot, target)

    monkeypatch.setattr(hub, "_convert", copy)


def refusal(address):
    with pytest.raises(UserError) as caught:
        addresses.resolve_model(address, "config.init_from")
    message = str(caught.value)
    assert "\n" not in message and "config.init_from" in message
    return message


def test_a_model_is_read_by_name_and_then_without_the_hub(
    server, published, pretrained, tmp_path, capfd
):
    for name in ("README.md", "pytorch_model.bin"):
        (published / name).write_text("not needed")
    model = gpt1_jax.load(HERE)
    assert_same_params(model.params, open_run(str(pretrained)).params)
    commit = commit_of(published)
    folder = tmp_path / "cache" / "gpt1_jax" / "hub" / "people--gpt" / commit
    said = capfd.readouterr().out
    assert f"{HERE} is commit {commit[:12]}, converted to {folder}." in said
    fetched = [each for each in server.requests if each.startswith("GET /people")]
    assert not [each for each in fetched if "README" in each or ".bin" in each]
    server.requests.clear()
    assert addresses.resolve_model(f"{HERE}@main") == os.fspath(folder)
    assert server.requests == [f"GET /api/models/{NAME}/revision/main"]
    server.stop()
    assert gpt1_jax.load(HERE).encode("a") == model.encode("a")
    assert "); people/gpt is read as commit" in (capfd.readouterr().out)


@pytest.mark.slow
def test_processes_of_a_run_fetch_a_model_by_name(server, finetune_base, tmp_path):
    """Each into a cache of its own, as on hosts without a common disk."""
    flags = as_flags({**finetune_base, "init_from": HERE})
    command = ("--config=configs/finetune.py:sst2", *flags, "--distributed=on")

    def start(variables):
        cache = str(tmp_path / variables["JAX_PROCESS_ID"])
        workdir = f"--workdir={tmp_path / 'run'}"
        env = {**variables, "XDG_CACHE_HOME": cache}
        return run_program(*command, workdir, env=env)

    (code, said), (other_code, said_by_other) = together(start)
    assert code == other_code == 0, said + said_by_other
    assert said.count("converted to") == 1 and "converted to" not in said_by_other
    found = (tmp_path / "run").glob("**/results.json")
    assert len(list(found)) == 1


def test_processes_that_start_together_convert_once(server, tmp_path, monkeypatch):
    made = []

    def slowly(snapshot, target, named):
        made.append(named)
        time.sleep(0.5)
        shutil.copytree(snapshot, target)

    monkeypatch.setattr(hub, "_convert", slowly)
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        found = list(pool.map(addresses.resolve_model, [HERE] * 3))
    assert len(set(found)) == len(made) == 1


@pytest.mark.parametrize("beside", ["whole", "parts"])
def test_of_several_kinds_of_weights_one_is_fetched(published, as_copies, beside):
    """As transformers does, a whole file before its parts, safetensors before .bin."""
    names = ["model.safetensors.index.json", "pytorch_model.bin"]
    names += [f"model-0000{part}-of-00002.safetensors" for part in (1, 2)]
    for name in names:
        (published / name).write_text("{}")
    if beside == "parts":
        (published / "model.safetensors").unlink()
    found = os.listdir(addresses.resolve_model(HERE, as_run=False))
    assert "model.safetensors.index.json" in found and "pytorch_model.bin" not in found
    assert (names[-1] in found) == (beside == "parts")


def test_a_repository_without_such_a_model_is_refused(published, as_copies, tmp_path):
    text = (published / "config.json").read_text()
    other = {**json.loads(text), "model_type": "gpt2"}
    (published / "config.json").write_text(json.dumps(other))
    assert "a model of the type 'gpt2'; only GPT-1's" in refusal(HERE)
    (published / "config.json").write_text(text)
    (published / "model.safetensors").rename(published / "model.gguf")
    assert "holds no model that can be read: it has none of" in refusal(HERE)
    assert not [p for p in (tmp_path / "cache").rglob("*") if p.name == "config.json"]


@pytest.mark.parametrize("joined", [False, True])
def test_a_damaged_model_is_refused_and_nothing_is_kept(
    published, tmp_path, monkeypatch, joined
):
    """One of several processes converts in another, whose error is the same."""
    monkeypatch.setattr(foreign, "is_joined", lambda: joined)
    (published / "model.safetensors").write_bytes(b"cut")
    assert "cannot be read: " in (said := refusal(HERE))
    assert "model.safetensors is damaged" in said
    kept = tmp_path / "cache" / "gpt1_jax" / "hub" / "people--gpt"
    assert {path.name for path in kept.iterdir()} == {".lock"}


def test_a_model_in_the_cache_of_the_hub_is_read_offline(
    server, published, as_copies, monkeypatch, capfd
):
    """As `hf download` leaves it; not if only its tokenizer was fetched."""
    hub.fetch_tokenizer(HERE)
    commit = commit_of(published)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "config.json was not downloaded before" in refusal(HERE)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    huggingface_hub.snapshot_download(NAME)
    server.stop()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert addresses.resolve_model(HERE).endswith(f"people--gpt/{commit}")
    said = capfd.readouterr().out
    assert f"); {NAME} is read as commit {commit[:12]}" in said
    assert "offline mode is enabled" in said


def test_models_are_found_in_every_place_of_a_configuration(
    server, as_copies, tmp_path, monkeypatch
):
    """What is no name of the Hub stays as it is."""
    place = addresses.resolve_model(HERE)

    def resolved(file, **overrides):
        config = load_config(None, file, **overrides)
        return addresses.resolve(config_lib.load(config.to_dict()))

    suite = dict(suite__compare="ablations", suite__lstm_init_from=HERE)
    tuned = resolved("finetune", init_from=HERE, data__dir=HERE, **suite)
    assert tuned.init_from == tuned.suite.lstm_init_from == place
    assert tuned.data.dir == HERE  # no model
    report = resolved("report", runs=f"{HERE}, {HERE}@main,there")
    assert report.folders == (place, place, "there")
    assert "snapshots" in resolved("convert", init_from=HERE).init_from
    assert resolved("report", runs="a, b").runs == "a, b"  # as it was
    monkeypatch.chdir(tmp_path)
    (tmp_path / "people" / "gpt").mkdir(parents=True)
    for place in (NAME, "runs/a/b", "gs://a/b", "/runs/a", "~/a", "runs "):
        assert addresses.resolve_model(place) == place


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("hf://people", "must be hf://ORG/NAME or hf://ORG/NAME@REVISION."),
        (f"{HERE}@../more", "must be hf://ORG/NAME or"),
        ("hf://my..people/gpt", "is no name of the Hub"),
        ("hf://people/none", "is no model that you may read: people/none does not"),
        (f"{HERE}@none", f"{NAME} has no revision 'none'. Without @REVISION"),
        ("hf://people/odd", "fetched: Bad request: No such flavour."),
        ("hf://people/away", "the Hub does not answer .* or name a folder"),
        (NAME, "Hub, write hf://people/gpt."),
    ],
)
def test_what_cannot_be_fetched_is_one_line(
    server, as_copies, tmp_path, monkeypatch, address, message
):
    """What datasets share is in `test_hub_files.py`."""
    monkeypatch.chdir(tmp_path)
    server.answers["/people/odd"] = (400, {"error": "No such flavour."})
    server.answers["/people/away"] = 503
    assert re.search(message, refusal(address))


SPOILED = {  # the first two as if the process had been killed
    "a part": lambda run: [shutil.rmtree(run), (run / "tokenizer").mkdir(parents=True)],
    "a file": lambda run: [shutil.rmtree(run), run.touch()],
    "no manifest": lambda run: (run / "manifest.json").unlink(),
    "cut": lambda run: os.truncate(run / "model.safetensors", 9),
}


@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED)
def test_a_conversion_that_is_not_whole_is_made_again(
    server, published, as_copies, spoil
):
    """Without the Hub, too: what was fetched is enough."""
    run = Path(addresses.resolve_model(HERE))
    sound = {path.name: path.read_bytes() for path in run.glob("*.*")}
    server.stop()
    for address in (HERE, f"{HERE}@{commit_of(published)}"):
        spoil(run)
        (run.parent / f".{run.name}.{16 * '0'}.partial").mkdir()
        assert addresses.resolve_model(address) == os.fspath(run)
        check_files(epath.Path(run))
        assert {path.name: path.read_bytes() for path in run.glob("*.*")} == sound
        left_over = {path.name for path in run.parent.iterdir()}
        assert left_over <= {run.name, ".lock", ".lock.json"}


@pytest.fixture
def bert(server, tmp_path):
    """The folder of another model's repository, people/bert, with a tokenizer."""
    folder = tmp_path / "bert"
    folder.mkdir()
    rules = tokenizers.Tokenizer(tokenizers.models.BPE({"\n": 0, "a": 1}, []))
    rules.save(str(folder / "tokenizer.json"))
    for name in ("config.json", "model.safetensors"):
        (folder / name).write_text("not needed")
    server.models["people/bert"] = {"main": folder}
    return folder


def resolved_tokenizer(address):
    values = {"tokenizer.kind": "huggingface", "tokenizer.path": address}
    config = config_lib.load(load_config(**values).to_dict())
    return addresses.resolve(config).tokenizer.path


def test_a_tokenizer_is_fetched_alone_by_its_commit_and_then_without_the_hub(
    server, bert, capfd
):
    path, commit = resolved_tokenizer("hf://people/bert"), commit_of(bert)
    assert path.endswith(f"{commit}/tokenizer.json")
    assert load_tokenizer(path).encode("a\na") == [1, 0, 1]
    assert resolved_tokenizer(f"hf://people/bert@{commit}") == path
    fetched = {each for each in server.requests if each.startswith("GET /people")}
    assert fetched == {f"GET /people/bert/resolve/{commit}/tokenizer.json"}
    server.broken = True
    assert resolved_tokenizer("hf://people/bert") == path
    assert f"is read as commit {commit[:12]}" in capfd.readouterr().out


def test_a_repository_without_a_tokenizer_is_refused(bert):
    (bert / "tokenizer.json").unlink()
    message = r"config\.tokenizer\.path=.* holds no tokenizer\.json.* has config\.json"
    with pytest.raises(UserError, match=message):
        resolved_tokenizer("hf://people/bert")
