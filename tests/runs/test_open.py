import contextlib
import json
import shutil
from random import Random
from unittest import mock

import jax
import numpy as np
import pytest
from etils import epath
from tiny_run import saved_state

from gpt1_jax.config.checks import ALL, BEST, NEWEST
from gpt1_jax.config.finetune import FinetuneConfig
from gpt1_jax.config.pretrain import PretrainConfig
from gpt1_jax.data.files import sha256
from gpt1_jax.errors import UserError
from gpt1_jax.runs import checkpoints
from gpt1_jax.runs.checkpoint_files import (
    NoCheckpoint,
    read_metadata,
    saved_steps,
    write_manifest,
    write_metadata,
)
from gpt1_jax.runs.open import open_run, say_what_is_read
from gpt1_jax.runs.saved_steps import each_step, open_steps


def test_a_run_is_all_that_was_saved(pretrained, finetuned, capsys):
    """After fine-tuning with the special tokens, too."""
    run, _ = open_steps(str(pretrained), "12")
    assert "Reading step 12, as asked for, of" in capsys.readouterr().err
    assert isinstance(run.config, PretrainConfig) and run.step == 12
    assert run.model.vocab_size == run.tokenizer.vocab_size
    assert run.model.max_seq_len == 40
    saved = saved_state(pretrained, 12)
    for path, leaf in jax.tree_util.tree_leaves_with_path(run.params):
        name = "['params']" + jax.tree_util.keystr(path)
        np.testing.assert_array_equal(leaf, saved[name])
    tuned = open_run(str(finetuned), BEST)
    assert isinstance(tuned.config, FinetuneConfig)
    size = tuned.tokenizer.vocab_size + 3
    assert tuned.model.vocab_size == size == len(tuned.params["transformer"]["wte"])


def test_a_folder_without_a_run_is_refused_and_runs_below_it_are_named(tmp_path):
    def refused(folder, says):
        with pytest.raises(FileNotFoundError, match=says):
            open_run(str(folder))

    refused(tmp_path, "is not a run folder: it has no config.json.*runs/pretrain")
    refused(tmp_path / "nowhere", "it does not exist")
    for name in ("b/pretrain/small", "a"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.json").touch()
    refused(tmp_path, f"Name one below it: {tmp_path}/a, {tmp_path}/b/pretrain/small")
    (saved := tmp_path / "a" / "checkpoints" / "3").mkdir(parents=True)
    (saved / "manifest.json").touch()
    refused(tmp_path, rf"Name one below it: {tmp_path}/a\.$")


def test_a_longest_example_that_the_model_cannot_read_is_refused(finetuned, tmp_path):
    folder = shutil.copytree(finetuned, tmp_path / "run")
    config = json.loads((folder / "config.json").read_text())
    config["data"]["max_seq_len"] = 10**12
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"max_seq_len=1000000000000, but its model re"):
        open_run(str(folder), BEST)


def test_files_that_do_not_belong_together_are_refused(copied):
    checkpoint = epath.Path(copied / "checkpoints/12")
    config = json.loads((copied / "config.json").read_text())
    config["model"]["mlp_dim"] = 128
    (copied / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"\(64,\), not \(128,\).*belong together"):
        open_run(str(copied))
    metadata = read_metadata(epath.Path(copied), 12)
    write_metadata(checkpoint, {**metadata, "tokenizer": "0" * 64})
    write_manifest(checkpoint)
    with pytest.raises(UserError, match=r"and 000000000000\); put the original one ba"):
        open_run(str(copied))


OTHERS = (None, True, -1, 10**12, 10**400, 0.5, "", "x", "\0", [], [[1]], {}, {"a": {}})


def mutated(value, random):
    """A copy of a JSON value with one part of it removed or of another kind."""
    value = json.loads(json.dumps(value))
    place = value
    while True:
        keys = list(place if isinstance(place, dict) else range(len(place)))
        key = random.choice(keys)
        inner = place[key]
        if not (isinstance(inner, dict | list) and inner and random.random() < 0.8):
            break
        place = inner
    if random.random() < 0.2:
        del place[key]
    else:
        place[key] = random.choice(OTHERS)
    return value


@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "tokenizer/tokenizer.json",
        "checkpoints/12/_CHECKPOINT_METADATA",
        "checkpoints/12/manifest.json",
        "checkpoints/12/score.json",
        "checkpoints/12/metadata/metadata",
        "checkpoints/12/state/_METADATA",
        "checkpoints/12/state/_sharding",
        "checkpoints/12/state/array_metadatas/process_0",
    ],
)
def test_a_strangers_folder_opens_or_is_refused_in_one_line(copied, name):
    """Whatever kinds of values its files hold, whose manifest agrees with them."""
    file, manifest = copied / name, copied / "checkpoints/12/manifest.json"
    sound, checksums = file.read_text(), json.loads(manifest.read_text())
    random = Random(0)
    for _ in range(6):
        file.write_text(json.dumps(mutated(json.loads(sound), random)))
        if name in (f"checkpoints/12/{listed}" for listed in checksums):
            listed = name.removeprefix("checkpoints/12/")
            now = {**checksums, listed: sha256(file)}
            manifest.write_text(json.dumps(now))
        for step in (NEWEST, BEST):
            with contextlib.suppress(UserError, OSError):
                open_run(str(copied), step)


def test_the_default_is_the_step_that_was_scored(past_its_best, pretrained, capsys):
    """Which step is read, and why, is said beside the output."""
    first, *_, last = saved_steps(epath.Path(past_its_best))
    best = f"{first}, the best by validation accuracy"
    said = {"default": best, "best": best, "newest": f"{last}, the newest"}
    said[str(last)] = f"{last}, as asked for"
    for step, why in said.items():
        run = open_run(str(past_its_best), step)
        say_what_is_read(run)
        expected = ("", f"Reading step {why}, of {past_its_best}.\n")
        assert capsys.readouterr() == expected
        assert run.step == int(why.partition(",")[0])
    assert open_run(str(pretrained)).step == 12


@pytest.mark.parametrize("step", ["", "-1", "\u00b2", -1])
def test_another_step_is_refused_with_the_way_out(pretrained, step):
    with pytest.raises(UserError, match="must be default, newest, best or the number"):
        open_run(str(pretrained), step)


@pytest.mark.parametrize(
    ("asked", "gone", "found", "why"),
    [(NEWEST, 12, 8, "the newest"), (BEST, 8, 12, "the best by validation loss")],
)
def test_the_next_is_read_if_a_step_is_deleted(deleting, asked, gone, found, why):
    run = open_run(deleting(gone), asked)
    assert (run.step, run.why) == (found, why)
    assert run.metadata["data"] == {"next_index": found}


def test_a_numbered_step_that_the_training_deletes_is_said_to_be_deleted(deleting):
    with pytest.raises(NoCheckpoint, match=r"no checkpoint of step 8.*keeps the new"):
        open_run(deleting(8), 8)


@pytest.mark.parametrize(
    ("error", "match"),
    [
        (KeyError("state"), r"orbax .* cannot read .*8 \(KeyError: 'state'\), though "),
        (MemoryError(), "^$"),
        (OSError(5, "Input/output error"), "Input/output"),
    ],
)
def test_why_a_checkpoint_cannot_be_read_is_said(copied, monkeypatch, error, match):
    monkeypatch.setattr(checkpoints, "_restore", mock.Mock(side_effect=error))
    with pytest.raises((UserError, MemoryError, OSError), match=match):
        open_run(str(copied), 8)


@pytest.mark.parametrize(
    ("gone", "said"),
    [([], "4, 8, 12"), ([8], "4, 8, 12"), ([4, 12], "8, 12")],
)
def test_steps_that_the_training_deletes_are_left_out(deleting, capsys, gone, said):
    """They are said beside the output, the first once it is open."""
    folder = deleting(*gone)
    first, steps = open_steps(folder, ALL)
    found = [run.step for run in each_step(first, steps)]
    assert found == [step for step in (4, 8, 12) if step not in gone]
    out, err = capsys.readouterr()
    assert not out and err.count("was deleted meanwhile, and is left out") == len(gone)
    assert f"Reading all saved steps ({said}) of {folder}.\n" in err
