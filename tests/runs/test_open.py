import contextlib
import json
import os
import shutil
import subprocess
import sys
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
from gpt1_jax.formats import RUN_FOLDER
from gpt1_jax.runs import checkpoints
from gpt1_jax.runs.checkpoint_files import (
    NoCheckpoint,
    saved_steps,
)
from gpt1_jax.runs.open import open_run, say_what_is_read
from gpt1_jax.runs.saved_steps import each_step, open_steps


def test_a_pre_trained_run_is_all_that_was_saved(pretrained):
    run = open_run(str(pretrained))
    assert isinstance(run.config, PretrainConfig) and run.step == 12
    assert run.model.vocab_size == run.tokenizer.vocab_size
    assert run.model.max_seq_len == 40
    saved = saved_state(pretrained, 12)
    for path, leaf in jax.tree_util.tree_leaves_with_path(run.params):
        name = "['params']" + jax.tree_util.keystr(path)
        np.testing.assert_array_equal(leaf, saved[name])


def test_a_fine_tuned_run_has_the_special_tokens_too(finetuned):
    run = open_run(str(finetuned), BEST)
    assert isinstance(run.config, FinetuneConfig)
    assert run.model.vocab_size == run.tokenizer.vocab_size + 3
    assert run.params["transformer"]["wte"].shape[0] == run.model.vocab_size


def test_a_folder_above_runs_is_refused_with_their_names(tmp_path):
    with pytest.raises(FileNotFoundError, match="it does not exist"):
        open_run(str(tmp_path / "nowhere"))
    for name in ("b/pretrain/small", "a"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.json").touch()
    found = f"{tmp_path}/a, {tmp_path}/b/pretrain/small"
    with pytest.raises(FileNotFoundError, match=f"Name one below it: {found}"):
        open_run(str(tmp_path))
    (saved := tmp_path / "a" / "checkpoints" / "3").mkdir(parents=True)
    (saved / "manifest.json").touch()
    with pytest.raises(FileNotFoundError, match=f"Name one below it: {tmp_path}/a\\.$"):
        open_run(str(tmp_path))


def test_a_folder_may_be_moved(copied, tmp_path):
    copied.rename(tmp_path / "elsewhere")
    assert open_run(str(tmp_path / "elsewhere")).step == 12


def test_nothing_is_read_or_written_where_a_strangers_folder_says(copied, tmp_path):
    """Least of all compiled programs, which would be executed."""
    config = json.loads((copied / "config.json").read_text())
    planted = tmp_path / "planted"
    config["train"]["compilation_cache_dir"] = str(planted)
    config["data"]["cache_dir"] = str(planted)
    (copied / "config.json").write_text(json.dumps(config))
    run = open_run(str(copied))
    assert run.config.train.compilation_cache_dir == ""
    assert run.config.data.cache_dir == ""


PREDICT = json.dumps({**RUN_FOLDER.stamp(), "job": "predict"})


@pytest.mark.parametrize("text", ["[]", "null", "{}", PREDICT, "{"])
def test_another_configuration_file_is_one_error(copied, text):
    (copied / "config.json").write_text(text)
    with pytest.raises(ValueError, match=r"config\.json"):
        open_run(str(copied))


def test_a_longest_example_that_the_model_cannot_read_is_refused(finetuned, tmp_path):
    folder = shutil.copytree(finetuned, tmp_path / "run")
    config = json.loads((folder / "config.json").read_text())
    config["data"]["max_seq_len"] = 10**12
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"max_seq_len=1000000000000, but its model re"):
        open_run(str(folder), BEST)


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


def test_what_is_no_run_folder_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"is not a run folder.*runs/pretrain"):
        open_run(str(tmp_path))


# --- which step ---------------------------------------------------------------------


def test_the_default_is_the_step_that_was_scored(past_its_best, pretrained):
    first, *_, last = saved_steps(epath.Path(past_its_best))
    asked = {"default": first, "best": first, "newest": last, str(last): last}
    assert {step: open_run(str(past_its_best), step).step for step in asked} == asked
    assert open_run(str(past_its_best)).step == first
    assert open_run(str(pretrained)).step == 12


@pytest.mark.parametrize("step", ["", "last", "-1", "1.5", "1,200", "\u00b2", -1])
def test_another_step_is_refused_with_the_way_out(pretrained, step):
    with pytest.raises(UserError, match="must be default, newest, best or the number"):
        open_run(str(pretrained), step)


def test_what_is_read_is_said_beside_the_output(past_its_best, capsys):
    def said(folder, step):
        say_what_is_read(open_run(str(folder), step))
        out, err = capsys.readouterr()
        assert not out
        return err

    first, *_, last = saved_steps(epath.Path(past_its_best))
    end = f"of {past_its_best}.\n"
    best = f"Reading step {first}, the best by validation accuracy, {end}"
    assert said(past_its_best, "default") == best
    assert said(past_its_best, "newest") == f"Reading step {last}, the newest, {end}"
    assert said(past_its_best, first) == f"Reading step {first}, as asked for, {end}"


@pytest.mark.parametrize(
    ("asked", "gone", "next_one"), [(NEWEST, 12, 8), (BEST, 8, 12)]
)
def test_the_next_is_read_if_the_training_deletes_a_step(
    deleting, asked, gone, next_one
):
    run = open_run(deleting(gone), asked)
    assert (run.step, run.metadata["data"]) == (next_one, {"next_index": next_one})
    assert run.why == {NEWEST: "the newest", BEST: "the best by validation loss"}[asked]


def test_a_numbered_step_that_the_training_deletes_is_said_to_be_deleted(deleting):
    with pytest.raises(
        NoCheckpoint, match=r"no checkpoint of step 8.*keeps the newest"
    ):
        open_run(deleting(8), 8)


@pytest.mark.parametrize(
    ("error", "match"),
    [
        (KeyError("state"), r"orbax .* cannot read .*8 \(KeyError: 'state'\), though "),
        (MemoryError(), "^$"),
        (OSError(5, "Input/output error"), "Input/output"),
    ],
)
def test_what_keeps_a_checkpoint_from_being_read_is_said(
    copied, monkeypatch, error, match
):
    monkeypatch.setattr(checkpoints, "_restore", mock.Mock(side_effect=error))
    with pytest.raises((UserError, MemoryError, OSError), match=match):
        open_run(str(copied), 8)


def test_a_device_that_is_not_there_is_not_laid_to_the_checkpoint(copied):
    code = "import sys, gpt1_jax; gpt1_jax.load(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", code, str(copied)],
        env={**os.environ, "JAX_PLATFORMS": "none"},
        capture_output=True,
        text=True,
    )
    (line,) = done.stderr.splitlines()[-1:]
    assert "no device to compute on, with JAX_PLATFORMS='none'" in line
    assert "orbax" not in line


@pytest.mark.parametrize("gone", [[], [4], [8], [12], [4, 12]])
def test_steps_that_the_training_deletes_are_left_out(deleting, capsys, gone):
    first, steps = open_steps(deleting(*gone), ALL)
    assert [run.step for run in each_step(first, steps)] == [
        step for step in (4, 8, 12) if step not in gone
    ]
    said = "".join(capsys.readouterr())
    assert said.count("was deleted meanwhile, and is left out") == len(gone)


def test_the_steps_that_are_read_are_said_beside_the_output(pretrained, capsys):
    open_steps(str(pretrained), ALL)
    out, err = capsys.readouterr()
    assert not out
    assert err == f"Reading all saved steps (8, 12) of {pretrained}.\n"
    open_steps(str(pretrained), "8")
    assert "Reading step 8, as asked for, of" in capsys.readouterr().err
