"""Models on the Hub by name: the real client against a small server."""

import concurrent.futures
import json
import os
import shutil
import time

import huggingface_hub
import pytest
import tokenizers
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
from gpt1_jax.runs.open import open_run

NAME = "people/gpt"


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
def as_copies(monkeypatch):
    """Conversion is a copy: its own tests are elsewhere, and it takes seconds."""

    def copy(snapshot, target, named):
        del named
        shutil.copytree(snapshot, target)

    monkeypatch.setattr(hub, "_convert", copy)


def refusal(address, as_run=True):
    with pytest.raises(UserError) as caught:
        addresses.resolve_model(address, "config.init_from", as_run)
    message = str(caught.value)
    assert "\n" not in message and "config.init_from" in message
    return message


def test_a_model_is_read_by_name_and_then_without_the_hub(
    server, pretrained, tmp_path, capfd
):
    (server.models[NAME]["main"] / "README.md").write_text("not needed")
    (server.models[NAME]["main"] / "pytorch_model.bin").write_bytes(b"not needed")
    ours = open_run(str(pretrained))
    model = gpt1_jax.load(f"hf://{NAME}")
    assert_same_params(model.params, ours.params)
    commit = commit_of(server.models[NAME]["main"])
    folder = tmp_path / "cache" / "gpt1_jax" / "hub" / "people--gpt" / commit
    said = capfd.readouterr().out
    assert f"hf://{NAME} is commit {commit[:12]}, converted to {folder}." in said
    fetched = [each for each in server.requests if each.startswith("GET /people")]
    assert not [each for each in fetched if "README" in each or ".bin" in each]
    server.requests.clear()
    assert addresses.resolve_model(f"hf://{NAME}@main") == os.fspath(folder)
    assert server.requests == [f"GET /api/models/{NAME}/revision/main"]
    server.shutdown()
    server.server_close()
    assert gpt1_jax.load(f"hf://{NAME}").encode("a") == model.encode("a")
    assert "); people/gpt is read as commit" in (capfd.readouterr().out)


@pytest.mark.slow
def test_a_command_reads_a_model_by_name(server):
    flags = ("--config=configs/generate.py", f"--config.init_from=hf://{NAME}")
    code, printed = run_program(
        *flags, "--config.prompt=it", "--config.sampling.max_new_tokens=2"
    )
    assert code == 0 and "converted to" in printed, printed


@pytest.mark.slow
def test_processes_of_a_run_fetch_a_model_by_name(server, finetune_base, tmp_path):
    """Each into a cache of its own, as on hosts without a common disk."""
    flags = as_flags({**finetune_base, "init_from": f"hf://{NAME}"})
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

    def copy(snapshot, target, named):
        made.append(named)
        time.sleep(0.5)
        shutil.copytree(snapshot, target)

    monkeypatch.setattr(hub, "_convert", copy)
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        found = list(pool.map(addresses.resolve_model, [f"hf://{NAME}"] * 3))
    assert len(set(found)) == len(made) == 1


def test_a_file_of_a_model_is_not_the_model(server, as_copies):
    """Fetched when the Hub answered, for the tokenizer alone."""
    hub.fetch_tokenizer(f"hf://{NAME}")
    server.shutdown()
    server.server_close()
    assert "config.json was not downloaded before" in refusal(f"hf://{NAME}")


def test_a_branch_that_moved_is_said(server, as_copies, capfd):
    first = addresses.resolve_model(f"hf://{NAME}")
    (server.models[NAME]["main"] / "vocab.json").write_text("{}")
    capfd.readouterr()
    second = addresses.resolve_model(f"hf://{NAME}")
    assert first != second
    old, new = (os.path.basename(folder) for folder in (first, second))
    said = capfd.readouterr().out
    assert (
        f"{NAME} has moved since it was last read here: main was commit {old}" in said
    )
    assert f"hf://{NAME} is commit {new[:12]}, converted to" in said
    assert addresses.resolve_model(f"hf://{NAME}@{old}") == first


def test_only_the_main_process_says_what_is_done(server, as_copies, monkeypatch, capfd):
    monkeypatch.setattr("jax.process_index", lambda: 1)
    addresses.resolve_model(f"hf://{NAME}")
    server.broken = True
    addresses.resolve_model(f"hf://{NAME}")
    assert not capfd.readouterr().out


@pytest.mark.parametrize("beside", ["whole", "parts"])
def test_of_several_kinds_of_weights_one_is_fetched(server, as_copies, beside):
    """As transformers does, a whole file before its parts, safetensors before .bin."""
    folder = server.models[NAME]["main"]
    names = ["model.safetensors.index.json", "pytorch_model.bin"]
    names += [f"model-0000{part}-of-00002.safetensors" for part in (1, 2)]
    for name in names:
        (folder / name).write_text("{}")
    if beside == "parts":
        (folder / "model.safetensors").unlink()
    found = os.listdir(addresses.resolve_model(f"hf://{NAME}", as_run=False))
    assert "model.safetensors.index.json" in found and "pytorch_model.bin" not in found
    assert (names[-1] in found) == (beside == "parts")


def test_a_download_that_breaks_goes_on(server, as_copies):
    server.cut = 1000
    folder = addresses.resolve_model(f"hf://{NAME}", as_run=False)
    published = server.models[NAME]["main"] / "model.safetensors"
    with open(os.path.join(folder, "model.safetensors"), "rb") as file:
        assert file.read() == published.read_bytes()


def test_what_cannot_be_fetched_is_one_line(server, as_copies):
    for address, message in (
        ("hf://people", "must be hf://ORG/NAME or hf://ORG/NAME@REVISION."),
        ("hf://people/gpt/more", "must be hf://ORG/NAME or"),
        (f"hf://{NAME}@../more", "must be hf://ORG/NAME or"),
        ("hf://my..people/gpt", "is no name of the Hub"),
        ("hf://people/none", "people/none does not exist on the Hub, or it is private"),
        (f"hf://{NAME}@none", f"{NAME} has no revision 'none'. Without @REVISION"),
    ):
        assert message in refusal(address)
    server.gated.add(NAME)
    assert "for those who accept its terms" in refusal(f"hf://{NAME}")
    server.gated.clear()
    server.private.add(NAME)
    assert "does not exist on the Hub, or it is private" in refusal(f"hf://{NAME}")
    server.private.clear()
    server.answers["/api/"] = (400, {"error": "No such flavour."})
    assert "fetched: Bad request: No such flavour." in refusal(f"hf://{NAME}")
    server.broken = True
    assert "cannot be fetched: the Hub does not answer" in refusal(f"hf://{NAME}")


def test_a_repository_without_such_a_model_is_refused(server, as_copies, tmp_path):
    folder = server.models[NAME]["main"]
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "gpt2"}))
    assert "a model of the type 'gpt2'; only GPT-1's" in refusal(f"hf://{NAME}")
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").rename(folder / "model.gguf")
    assert "holds no model that can be read: it has none of" in refusal(f"hf://{NAME}")
    assert not [p for p in (tmp_path / "cache").rglob("*") if p.name == "config.json"]


@pytest.mark.parametrize("joined", [False, True])
def test_a_damaged_model_is_refused_and_nothing_is_kept(
    server, tmp_path, monkeypatch, joined
):
    """One of several processes converts in another, whose error is the same."""
    monkeypatch.setattr(foreign, "is_joined", lambda: joined)
    (server.models[NAME]["main"] / "model.safetensors").write_bytes(b"cut")
    assert "cannot be read: " in (said := refusal(f"hf://{NAME}"))
    assert "model.safetensors is damaged" in said
    kept = tmp_path / "cache" / "gpt1_jax" / "hub" / "people--gpt"
    assert {path.name for path in kept.iterdir()} == {".lock"}


@pytest.mark.parametrize("by", ["name", "commit"])
def test_a_model_in_the_cache_of_the_hub_is_read_offline(
    server, as_copies, by, monkeypatch, capfd
):
    """As `hf download` leaves it, perhaps on another machine of a cluster."""
    huggingface_hub.snapshot_download(NAME)
    commit = commit_of(server.models[NAME]["main"])
    server.shutdown()
    server.server_close()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    address = f"hf://{NAME}" + f"@{commit}" * (by == "commit")
    assert addresses.resolve_model(address).endswith(f"people--gpt/{commit}")
    said = capfd.readouterr().out
    assert f"); {NAME} is read as commit {commit[:12]}" in said
    assert "offline mode is enabled" in said


@pytest.mark.parametrize("status", [401, 403, 404, 429, 503])
def test_a_model_that_is_here_is_read_whatever_the_hub_answers(
    server, as_copies, status, capfd
):
    folder = addresses.resolve_model(f"hf://{NAME}")
    server.answers["/api/"] = status
    assert addresses.resolve_model(f"hf://{NAME}") == folder
    assert f"{NAME} is read as commit" in capfd.readouterr().out


def test_weights_with_a_changed_byte_are_refused_and_fetched_again(
    server, pretrained, tmp_path
):
    sound = server.spoil

    def change_a_byte(name, content):
        if not name.endswith(".safetensors"):
            return content
        half = len(content) // 2
        return content[:half] + bytes([content[half] ^ 1]) + content[half + 1 :]

    server.spoil = change_a_byte
    assert "model.safetensors did not arrive as the Hub lists" in refusal(
        f"hf://{NAME}"
    )
    assert not (tmp_path / "cache" / "gpt1_jax" / "hub").exists()
    server.spoil = sound
    model = gpt1_jax.load(f"hf://{NAME}")
    assert_same_params(model.params, open_run(str(pretrained)).params)


@pytest.mark.parametrize("name", ["config.json", "manifest.json", "model.safetensors"])
@pytest.mark.parametrize("change", ["lost", "changed"])
def test_a_damaged_conversion_is_made_again(server, as_copies, tmp_path, name, change):
    folder = addresses.resolve_model(f"hf://{NAME}")
    file = tmp_path / folder / name
    content = file.read_bytes()
    if change == "lost":
        file.unlink()
    else:
        file.write_bytes(content[:-2])
    commit = commit_of(server.models[NAME]["main"])
    for address in (f"hf://{NAME}", f"hf://{NAME}@{commit}"):
        assert addresses.resolve_model(address) == folder
        assert file.read_bytes() == content


@pytest.mark.parametrize("left", ["part", "all but the manifest", "a file"])
def test_a_conversion_that_was_killed_is_made_again(
    server, tmp_path, monkeypatch, left
):
    """The user has never named its folder."""
    target = None

    def half(snapshot, folder, named):
        nonlocal target
        target = folder
        (folder.parent / f".{folder.name}.{16 * '0'}.partial").mkdir()
        if left == "a file":
            folder.touch()
        else:
            folder.mkdir()
            (folder / "tokenizer").mkdir()
        if left == "all but the manifest":
            (folder / "config.json").write_text("{}")
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(hub, "_convert", half)
        addresses.resolve_model(f"hf://{NAME}")
    server.shutdown()  # what was fetched is enough
    server.server_close()
    assert addresses.resolve_model(f"hf://{NAME}") == os.fspath(target)
    open_run(os.fspath(target))
    left_over = {path.name for path in target.parent.iterdir()}
    assert left_over <= {target.name, ".lock", ".lock.json"}


def test_models_are_found_in_every_place_of_a_configuration(server, as_copies):
    address = f"hf://{NAME}"
    place = addresses.resolve_model(address)

    def resolved(file, **overrides):
        config = load_config(None, file, **overrides)
        return addresses.resolve(config_lib.load(config.to_dict()))

    tuned = resolved(
        "finetune",
        init_from=address,
        data__dir=address,
        suite__compare="ablations",
        suite__lstm_init_from=address,
    )
    assert tuned.init_from == tuned.suite.lstm_init_from == place
    assert tuned.data.dir == address  # no model
    report = resolved("report", runs=f"{address}, {address}@main,there")
    assert report.folders == (place, place, "there")
    assert "snapshots" in resolved("convert", init_from=address).init_from
    assert resolved("report", runs="a, b").runs == "a, b"  # as it was


def test_a_tokenizer_is_fetched_alone_by_its_commit_and_then_without_the_hub(
    server, tmp_path, capfd
):
    folder = tmp_path / "bert"
    folder.mkdir()
    rules = tokenizers.Tokenizer(tokenizers.models.BPE({"\n": 0, "a": 1}, []))
    rules.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text('{"model_type": "bert"}')
    (folder / "model.safetensors").write_bytes(b"not needed")
    server.models["people/bert"] = {"main": folder}

    def resolved(address):
        config = load_config(
            "quickstart", tokenizer__kind="huggingface", tokenizer__path=address
        )
        return addresses.resolve(config_lib.load(config.to_dict())).tokenizer.path

    path = resolved("hf://people/bert")
    commit = commit_of(folder)
    assert path.endswith(f"{commit}/tokenizer.json")
    assert load_tokenizer(path).encode("a\na") == [1, 0, 1]
    assert resolved(f"hf://people/bert@{commit}") == path
    fetched = {each for each in server.requests if each.startswith("GET /people")}
    assert fetched == {f"GET /people/bert/resolve/{commit}/tokenizer.json"}
    for address, message in (
        ("hf://people", "must be hf://ORG/NAME or hf://ORG/NAME@REVISION."),
        ("hf://people/none", "people/none does not exist on the Hub, or it is private"),
        ("people/bert", "Hub, write hf://people/bert."),
    ):
        with pytest.raises(UserError, match=r"config\.tokenizer\.path=") as caught:
            resolved(address)
        assert message in str(caught.value)
    server.broken = True
    assert resolved("hf://people/bert") == path
    assert f"is read as commit {commit[:12]}" in capfd.readouterr().out
    server.broken = False
    (folder / "tokenizer.json").unlink()
    with pytest.raises(UserError, match=r"holds no tokenizer\.json.* has config\.json"):
        resolved("hf://people/bert")


def test_a_name_of_the_hub_without_its_scheme_gets_a_hint(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert refusal("people/gpt").endswith("Hub, write hf://people/gpt.")
    (tmp_path / "people").mkdir()
    assert addresses.resolve_model("people/gpt") == "people/gpt"
    for place in ("runs", "runs/a/b", "gs://a/b", "/runs/a", "~/a", "runs "):
        assert addresses.resolve_model(place) == place
