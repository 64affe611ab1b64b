"""What training starts from: from scratch, from a run, for a task."""

import dataclasses
import re
import shutil
from unittest import mock

import jax
import numpy as np
import pytest
from etils import epath
from tiny_run import (
    job_config,
    listing,
    metrics_without_times,
    saved_state,
    stopped_after,
    tiny_overrides,
)

from gpt1_jax.config.sections import CheckpointConfig
from gpt1_jax.data.tokenizers import load_tokenizer
from gpt1_jax.errors import UserError
from gpt1_jax.jobs import pretrain
from gpt1_jax.runs.checkpoint_files import (
    NoCheckpoint,
    delete_checkpoint,
    saved_steps,
)
from gpt1_jax.runs.checkpoints import Checkpoints
from gpt1_jax.runs.open import open_run
from gpt1_jax.runs.records import read_metrics
from gpt1_jax.runs.signals import Stopped
from gpt1_jax.training import fit, initial_state


@pytest.fixture(scope="session")
def from_run(corpus_dir, pretrained):
    """A function from overrides to a configuration that starts from `pretrained`."""
    usual = {**tiny_overrides(corpus_dir), "init_from": str(pretrained)}
    return lambda **more: job_config("pretrain", "quickstart", **{**usual, **more})


def afresh_values(folder):
    """The overrides of the run in that folder; its text is beside it."""
    return {
        "data__train": str(folder.with_name("new.txt")),
        "model__num_layers": 3,  # no size but those of its source counts
        "model__resid_dropout": 0.3,
        "tokenizer__vocab_size": 100,
        "train__num_steps": 4,
        "optimizer__name": "sgd",
        "log__every_steps": 1,
    }


@pytest.fixture(scope="session")
def afresh(from_run, made_once):
    """A run of four steps from `pretrained`, with SGD, on text with other words."""

    def make(folder):
        lines = "\n".join(f"bad cafe {n % 7} face the deed." for n in range(600))
        folder.with_name("new.txt").write_text(lines)
        pretrain.run(from_run(**afresh_values(folder)), str(folder))

    return made_once("afresh", make)


def state_before_the_first_step(monkeypatch, config, folder):
    """What `fit` would begin with, as a flat dict of numpy arrays."""
    states = []

    def begin(run):
        checkpoints = Checkpoints(
            run.folder, run.config.checkpoint, run.evaluation.best
        )
        states.append(fit._first_state(run, checkpoints))
        checkpoints.close()
        raise Stopped("far enough")

    with monkeypatch.context() as patch:
        patch.setattr(pretrain, "fit", begin)
        with pytest.raises(Stopped):
            pretrain.run(config, str(folder))
    leaves = jax.tree_util.tree_leaves_with_path(states[0])
    return {jax.tree_util.keystr(p, simple=True): np.asarray(x) for p, x in leaves}


def saved(folder, step):
    """The same of a checkpoint."""
    state = saved_state(folder, step)
    return {re.sub(r"[\[\]']", "", name): value for name, value in state.items()}


def test_weights_go_along_bit_for_bit_and_nothing_else(
    from_run, pretrained, weights_alone, tmp_path, monkeypatch
):
    """From a run whose other files stay as they are, or from weights alone."""
    before = listing(pretrained)
    for number, (origin, step) in enumerate([(pretrained, 8), (weights_alone, 0)]):
        config = from_run(init_from=str(origin), step=str(step))
        folder = tmp_path / str(number)
        state = state_before_the_first_step(monkeypatch, config, folder)
        source = saved(pretrained, step or 12)
        assert state.keys() == source.keys()
        for name, value in state.items():
            fresh = 0 if not name.startswith("params") else source[name]
            np.testing.assert_array_equal(value, fresh, err_msg=name)
    assert listing(pretrained) == before


def test_going_on_equals_the_uninterrupted_run_bit_for_bit(
    from_run, pretrained, tmp_path, capsys
):
    """Stopped and resumed, although its source has been deleted meanwhile."""
    source = shutil.copytree(pretrained, tmp_path / "source")
    continued = {"init_optimizer": True, "step": "8", "eval__sample_tokens": 4}
    config = from_run(init_from=str(source), **continued)
    folder = tmp_path / "run"
    with stopped_after(10):
        pretrain.run(config, str(folder))
    out = capsys.readouterr().out
    (tokens,) = re.findall(r"Corpus: ([\d,]+) training", out)
    epochs = 4 * 320 / int(tokens.replace(",", ""))
    line = f"Run: 12 steps of 320 tokens, 4 of them in this run ({epochs:.2f} epochs)"
    assert line in out
    assert f"Start: step 8 of {source}" in out and "4 steps to go" in out
    assert "Resuming" not in out
    shutil.rmtree(source)
    pretrain.run(config, str(folder))
    assert "12 steps of 320 tokens, 4 of them in this run (" in capsys.readouterr().out
    np.testing.assert_equal(saved_state(folder, 12), saved_state(pretrained, 12))
    rest = [r for r in metrics_without_times(pretrained) if r["step"] > 8]
    found = metrics_without_times(folder)
    assert [r for r in found if r["step"] > 8] == rest
    assert [r["step"] for r in found if r["step"] <= 8] == [8]  # its validation loss
    with pytest.raises(ValueError, match=r"init_optimizer is False, saved True"):
        pretrain.run(dataclasses.replace(config, init_optimizer=False), str(folder))
    for path in (folder / "checkpoints").iterdir():
        path.rename(path.with_name(f"{path.name}.orbax-checkpoint-tmp"))  # killed
    with pytest.raises(FileNotFoundError, match="source is not a run folder"):
        pretrain.run(config, str(folder))


def test_the_schedule_goes_on_at_the_sources_step_and_ends_at_num_steps(
    from_run, afresh, tmp_path
):
    """The released cosine over 16 steps, from step 12; and its own warm-up without."""
    peak = from_run().optimizer.learning_rate

    def rates(folder):
        records = read_metrics(folder / "metrics.jsonl")
        return {r["step"]: r["learning_rate"] for r in records if "loss" in r}

    def cosine(first, last):
        steps = range(first, last)
        return {t + 1: peak * (1 + np.cos(np.pi * t / last)) / 2 for t in steps}

    config = from_run(init_optimizer=True, train__num_steps=16, log__every_steps=1)
    pretrain.run(config, str(tmp_path))
    assert rates(tmp_path) == pytest.approx(cosine(12, 16), rel=1e-4)
    warmup = {1: 0.0, 2: peak / 2, 3: peak}
    assert rates(afresh) == pytest.approx({**warmup, **cosine(3, 4)}, rel=1e-4)


def test_sizes_and_tokenizer_are_the_sources_on_any_text(pretrained, afresh):
    source, run = open_run(str(pretrained)), open_run(str(afresh))
    assert run.model == dataclasses.replace(source.model, resid_dropout=0.3)
    assert run.config.tokenizer.vocab_size == source.tokenizer.vocab_size
    assert run.tokenizer.digest == source.tokenizer.digest


def test_another_origin_is_refused(from_run, afresh, pretrained, tmp_path):
    folder = str(shutil.copytree(afresh, tmp_path / "run"))
    elsewhere = str(shutil.copytree(pretrained, tmp_path / "elsewhere"))
    moved = from_run(**afresh_values(afresh), init_from=elsewhere)
    pretrain.run(moved, folder)
    with pytest.raises(UserError, match="elsewhere' holds other parameters than the"):
        pretrain.run(dataclasses.replace(moved, step="8"), folder)


def test_a_tokenizer_of_a_run_that_never_began_is_replaced(
    tiny_config, from_run, pretrained, tmp_path, monkeypatch
):
    monkeypatch.setattr(pretrain, "fit", mock.Mock(side_effect=Stopped("early")))
    other = tiny_config(tokenizer__vocab_size=400, model__max_seq_len=40)
    for config in (other, from_run()):
        with pytest.raises(Stopped):
            pretrain.run(config, str(tmp_path))
    ours, theirs = (
        load_tokenizer(each / "tokenizer") for each in (tmp_path, pretrained)
    )
    assert ours.digest == theirs.digest


def test_a_fine_tuned_run_gives_its_transformer(
    from_run, finetuned, tmp_path, monkeypatch
):
    config = from_run(init_from=str(finetuned))
    state = state_before_the_first_step(monkeypatch, config, tmp_path)
    source = open_run(str(finetuned)).params["transformer"]
    np.testing.assert_array_equal(state["paramswte"], source["wte"][:-3])
    kernel = source["h_0"]["attn"]["c_attn"]["kernel"]
    np.testing.assert_array_equal(state["paramsh_0attnc_attnkernel"], kernel)


def test_it_starts_from_the_step_that_stands_for_a_run(
    from_run, afresh, past_its_best, pretrained, tmp_path
):
    """Which is kept as the best or the newest, for when the run resumes."""

    def resolved(config, folder=tmp_path / "new"):
        return initial_state.resolve_origin(config, epath.Path(folder))

    first = saved_steps(epath.Path(past_its_best))[0]
    for place, *expected in (
        (past_its_best, "best", first),
        (pretrained, "newest", 12),
    ):
        config, origin = resolved(from_run(init_from=str(place)))
        assert [config.step, origin.run.step] == expected
    for asked in ("default", "newest"):
        config, origin = resolved(from_run(**afresh_values(afresh), step=asked), afresh)
        assert (config.step, origin) == ("newest", None)
    alone = from_run(init_from="")
    assert resolved(alone) == (alone, None)


@pytest.fixture
def weights_alone(pretrained, tmp_path):
    """A run folder with parameters and nothing else, as a conversion leaves it."""
    folder = tmp_path / "weights"
    shutil.copytree(pretrained, folder, ignore=shutil.ignore_patterns("checkpoints"))
    run = open_run(str(pretrained))
    checkpoints = Checkpoints(epath.Path(folder), CheckpointConfig(1, 2, 0))
    record = {"tokenizer": run.tokenizer.digest}
    checkpoints.save(0, {"params": run.params}, record)
    checkpoints.close()
    return folder


@pytest.mark.parametrize("step", ["newest", "12"])
def test_the_next_state_is_taken_if_the_origin_deletes_one_meanwhile(
    from_run, pretrained, tmp_path, monkeypatch, step
):
    """Between its parameters and its optimizer; unless it was asked for by number."""
    origin = shutil.copytree(pretrained, tmp_path / "origin")
    read = initial_state.read_state

    def read_late(folder, *args):
        if (newest := folder / "checkpoints/12").exists():
            delete_checkpoint(newest)
        return read(folder, *args)

    monkeypatch.setattr(initial_state, "read_state", read_late)
    config = from_run(init_from=str(origin), init_optimizer=True, step=step)
    folder = epath.Path(tmp_path / "run")
    if step == "newest":
        assert initial_state.resolve_origin(config, folder)[1].run.step == 8
    else:
        with pytest.raises(NoCheckpoint, match="has no checkpoint of step 12"):
            initial_state.resolve_origin(config, folder)


GOES_ON = {"init_optimizer": True}


@pytest.mark.parametrize(
    ("origin", "overrides", "message"),
    [
        ("no/such/run", {}, "no/such/run is not a run folder"),
        ("pretrained", GOES_ON, r"ends at step 12, .* from step 12 .*above 12"),
        (
            "pretrained",
            {**GOES_ON, "train__num_steps": 13, "optimizer__name": "adamw"},
            r"optimizer.name='released_adam', not 'adamw'.*init_optimizer=True",
        ),
        ("pretrained", {"optimizer__name": "lyon"}, r"'lyon': optax .*has no such"),
        ("weights_alone", GOES_ON, r"weights.* no state .*init_optimizer=True"),
        ("finetuned", GOES_ON, "fine-tuned run, .* its weights alone"),
    ],
)
def test_what_cannot_be_continued_is_refused_before_the_corpus_is_read(
    from_run, request, tmp_path, monkeypatch, origin, overrides, message
):
    monkeypatch.setattr(
        pretrain, "prepare_corpus", lambda *_, **__: pytest.fail("it began")
    )
    if "/" not in origin:
        origin = str(request.getfixturevalue(origin))
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        pretrain.run(from_run(init_from=origin, **overrides), str(tmp_path / "run"))


def test_an_end_in_epochs_and_a_folder_of_another_run_are_refused(
    from_run, pretrained, tmp_path
):
    """Here that of its own source."""
    epochs = {"train__num_steps": 0, "train__num_epochs": 0.1}
    config = from_run(**GOES_ON, optimizer__warmup_steps=0, **epochs)
    with pytest.raises(UserError, match=r"ends at step \d+, .* nothing to do"):
        pretrain.run(config, str(tmp_path / "run"))
    source = shutil.copytree(pretrained, tmp_path / "source")
    before = listing(source)
    with pytest.raises(UserError, match=r"already holds a run.*another --workdir"):
        pretrain.run(from_run(init_from=str(source)), str(source))
    assert listing(source) == before
