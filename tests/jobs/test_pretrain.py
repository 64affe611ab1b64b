"""The job of pre-training, from text to a run folder."""

import dataclasses
import json
import os
import shutil
import warnings

import numpy as np
import pytest
from etils import epath
from tiny_run import (
    assert_same_run,
    job_config,
    metrics_without_times,
    poison,
    saved_state,
    stopped_after,
)

from gpt1_jax.errors import UserError
from gpt1_jax.jobs import pretrain
from gpt1_jax.model import costs
from gpt1_jax.parallel import devices
from gpt1_jax.runs import resume
from gpt1_jax.runs.checkpoint_files import read_metadata, saved_steps
from gpt1_jax.runs.checkpoints import read_params
from gpt1_jax.runs.milestones import Milestone, saved_milestones
from gpt1_jax.runs.pretrained import read_pretrained
from gpt1_jax.runs.records import read_metrics
from gpt1_jax.runs.resume import tree_digest
from gpt1_jax.training import fit

DAY = 86_400


@pytest.fixture
def whole_run(tiny_config, made_once):
    """The folder of a finished run of 12 steps; tests that change it copy it."""
    return made_once("whole", lambda folder: pretrain.run(tiny_config(), str(folder)))


@pytest.mark.parametrize(
    ("preset", "seconds", "said"),
    [
        ("quickstart", 2.5 * 3600, "Takes: about 2 hours here, 17% of it validation."),
        ("paper", 124 * DAY, "about 124 days here, 17% of it validation. configs/pret"),
    ],
)
def test_a_long_run_says_how_long_it_takes(
    tiny_config, tmp_path, monkeypatch, preset, seconds, said
):
    """Of 12 steps of 128 tokens, each is validated on 76: 12 * 76 / 3 to 12 * 128."""
    config = dataclasses.replace(tiny_config(eval__every_steps=1), preset=preset)
    run, corpus, _ = pretrain.prepare_run(config, epath.Path(tmp_path), None)
    model = config.model.with_vocab_size(512)
    held_out = dataclasses.replace(corpus.valid, tokens=76)
    corpus = dataclasses.replace(corpus, valid=held_out)

    def takes(own_steps=12):
        return pretrain._how_long(config, run, model, corpus, own_steps)

    assert takes() == ""
    flops = 12 * (128 + 76 / 3) * costs.train_flops_per_token(model, 16)
    monkeypatch.setattr(fit, "_SHORT", 0)
    monkeypatch.setattr(devices, "likely_flops", lambda: flops / seconds)
    assert said in takes()
    half = takes(own_steps=6)
    assert "about 62 days" in half or "about 75 minutes" in half
    monkeypatch.setattr(pretrain, "saved_steps", lambda folder: [6])
    assert takes() == half


def test_a_finished_run_changes_nothing_and_one_that_is_only_evaluated_says_so(
    tiny_config, whole_run, tmp_path, capsys
):
    """The latter as after a kill between the last save and its evaluation."""
    folder = shutil.copytree(whole_run, tmp_path / "run")
    nothing = f"Nothing to do: the run in {folder} had finished at step 12."
    pretrain.run(tiny_config(), str(folder))
    out = capsys.readouterr().out
    assert nothing in out and "Done" not in out
    assert_same_run(whole_run, folder, 12)
    (folder / "checkpoints" / "12" / "score.json").unlink()
    records = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    kept = [each for each in records if json.loads(each)["step"] < 12]
    (folder / "metrics.jsonl").write_text("".join(kept))
    for said in ("Done: evaluated step 12, the last, in", nothing):
        pretrain.run(tiny_config(), str(folder))
        assert said in capsys.readouterr().out


@pytest.mark.parametrize(("dtype", "said"), [("float32", 1), ("bfloat16", 0)])
def test_a_new_run_on_a_cpu_with_bfloat16_is_told(
    tiny_config, tmp_path, monkeypatch, capsys, dtype, said
):
    monkeypatch.setattr(pretrain, "fit", lambda run: (0, run.num_steps))
    monkeypatch.setattr(devices, "_CPU_FILE", tmp_path / "cpuinfo")
    devices._CPU_FILE.write_text("processor\t: 0\nflags\t\t: fpu avx2 avx512_bf16\n")
    config = tiny_config(model__dtype=dtype)
    for times in (said, 0):  # the second time, the run has begun
        pretrain.run(config, str(tmp_path / "run"))
        out = capsys.readouterr().out
        assert out.count("--config.model.dtype=bfloat16") == times
        monkeypatch.setattr(pretrain, "saved_steps", lambda folder: [1])


@pytest.mark.usefixtures("real_figures")
def test_a_run_learns_and_writes_its_folder(tiny_config, tmp_path, capsys, monkeypatch):
    """The step is compiled once."""
    steps, jit_step = [], pretrain.jit_step

    def noted(*given):
        steps.append(jit_step(*given))
        return steps[-1]

    monkeypatch.setattr(pretrain, "jit_step", noted)
    config = tiny_config(
        train__num_steps=60,
        optimizer__learning_rate=1e-2,
        eval__every_steps=20,
        eval__sample_tokens=4,
        checkpoint__every_steps=20,
        log__tensorboard=True,
    )
    pretrain.run(config, str(tmp_path))
    assert [step._cache_size() for step in steps] == [1]
    records = read_metrics(tmp_path / "metrics.jsonl")
    valid = [r["valid_loss"] for r in records if "valid_loss" in r]
    assert len(valid) == 3 and valid[-1] < np.log(512) - 0.3
    steps = [r["step"] for r in records if "loss" in r]
    assert steps == list(range(2, 61, 2))
    for name in ("config.json", "tokenizer/tokenizer.json", "plots/loss.png"):
        assert (tmp_path / name).exists()
    assert any((tmp_path / "tensorboard").iterdir())
    out = capsys.readouterr().out
    assert "Done: 60 steps" in out and "validation loss" in out and "  | " in out


def test_resumed_equals_uninterrupted_bit_for_bit(
    tiny_config, whole_run, tmp_path, corpus_dir
):
    """Stopped twice: at a step that is evaluated, and long after it.

    With the same text elsewhere and of another time, as after a second download or on
    a new host; other bytes are another text.
    """
    first = shutil.copytree(corpus_dir / "texts", tmp_path / "first" / "texts")
    second = shutil.copytree(corpus_dir / "texts", tmp_path / "second" / "texts")
    folder = tmp_path / "run"

    def run(texts):
        pretrain.run(tiny_config(data__train=str(texts)), str(folder))

    with stopped_after(4):
        run(first)
    for path in second.iterdir():
        os.utime(path, (1, 1))
    changed = min(second.iterdir())
    text = changed.read_text()
    changed.write_text(text[::-1])
    with pytest.raises(UserError, match=f"{changed.name} holds other text"):
        run(second)
    changed.write_text(text)
    with stopped_after(11):
        run(second)
    assert read_metrics(folder / "metrics.jsonl")[-1]["step"] <= 11
    run(second)
    assert_same_run(whole_run, folder, 12)


def test_a_run_without_a_lower_loss_ends_early_whether_or_not_it_was_stopped(
    tiny_config, whole_run, tmp_path, monkeypatch, capsys
):
    """Here the loss is lowest at step 4 of 12, and every second step is evaluated."""
    config = tiny_config(eval__every_steps=2, eval__patience=2)
    make_evaluation = pretrain._evaluation

    def made_up(*arguments):
        evaluate = make_evaluation(*arguments)
        return lambda params, step, stopped: {
            **evaluate(params, step, stopped),
            "valid_loss": 1.0 + abs(step - 4),
        }

    monkeypatch.setattr(pretrain, "_evaluation", made_up)
    folder = tmp_path / "run"
    for last_step in (3, 8):
        with stopped_after(last_step):
            pretrain.run(config, str(folder))
    for said in ("Done: evaluated step 8, the last, in", "Nothing to do: the run in"):
        pretrain.run(config, str(folder))
        out = capsys.readouterr().out
        assert said in out and "Ending early, at step 8 of 12" in out
    assert saved_steps(epath.Path(folder)) == [4, 6, 8]  # the best and the latest
    run = read_pretrained(epath.Path(folder))
    assert run.ended_early and not read_pretrained(epath.Path(whole_run)).ended_early
    # As long as ever for the optimizer: without patience, it is the whole run.
    monkeypatch.setattr(pretrain, "_evaluation", make_evaluation)
    pretrain.run(tiny_config(), str(folder))
    np.testing.assert_equal(saved_state(folder, 12), saved_state(whole_run, 12))


# 128 a step: 0, 3, 5 and 7, and beyond the end
MILESTONES = {"checkpoint__milestone_tokens": (0, 384, 640, 896, 1664, 1920)}


def test_checkpoints_are_kept_for_good_and_training_stays_the_same(
    tiny_config, whole_run, tmp_path, capsys
):
    """Also across a stop at a step to keep; with the latest two and the best.

    Each milestone is evaluated, and its parameters have a content digest.
    """
    config = tiny_config(**MILESTONES, checkpoint__keep_best=0)
    with stopped_after(5):
        pretrain.run(config, str(tmp_path))
    pretrain.run(config, str(tmp_path))
    np.testing.assert_equal(saved_state(tmp_path, 12), saved_state(whole_run, 12))
    records = metrics_without_times(tmp_path)
    without = [each for each in records if each["step"] not in (0, 3, 5, 7)]
    assert without == metrics_without_times(whole_run)
    folder = epath.Path(tmp_path)
    assert saved_steps(folder) == [0, 3, 5, 7, 8, 12]
    kept = {step: target.amount for step, target in saved_milestones(folder).items()}
    assert kept == {0: 0, 3: 384, 5: 640, 7: 896}
    assert {r["step"] for r in records if "valid_loss" in r} == {*kept, 4, 8, 12}
    for step in saved_steps(folder):
        saved = read_params(folder, step)
        assert saved.metadata["params_digest"] == tree_digest(saved.params)
    assert read_metadata(folder, 12)["text_read"]["tokens"] == 12 * 128
    said = capsys.readouterr().out
    assert "Not kept: 1.664k to 1.92k tokens; the whole run reads 1,536." in said
    assert "Keeping for good: 1 checkpoint at 896 tokens, 0.1 MB." in said


def test_ways_to_compute_and_what_is_kept_may_change_on_resume(
    tiny_config, tmp_path, capsys
):
    """The form of attention, as folders of before 24 November 2026 name it, too."""
    with stopped_after(3), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # there are no kernels for a CPU
        config = tiny_config(model__attention_form="fused", **MILESTONES)
        pretrain.run(config, str(tmp_path))
    others = {"model__remat": True, "model__layer_loop": "scan"}
    others["checkpoint__milestone_tokens"] = (256, 640)
    pretrain.run(tiny_config(**others), str(tmp_path))
    assert "Not kept: 256 tokens, passed by step 3." in capsys.readouterr().out
    assert saved_steps(epath.Path(tmp_path)) == [0, 3, 5, 8, 12]


def test_a_run_that_goes_on_counts_the_text_of_both(
    tiny_config, whole_run, tmp_path, capsys
):
    config = tiny_config(
        init_from=str(whole_run),
        step="8",
        init_optimizer=True,
        checkpoint__milestone_tokens=(0, 896, 11 * 128),
    )
    pretrain.run(config, str(tmp_path))
    said = capsys.readouterr().out
    assert "Not kept: 0 to 896 tokens, passed by step 8." in said
    kept = saved_milestones(epath.Path(tmp_path))
    assert kept == {11: Milestone(11 * 128, "tokens")}


def test_seeds_differ_and_are_not_mixed(tiny_config, whole_run, tmp_path, monkeypatch):
    """The other seed in a folder with a relative name, which serves as well."""
    monkeypatch.chdir(tmp_path)
    with stopped_after(2):
        pretrain.run(tiny_config(seed=1), "runs/other")
    folder = tmp_path / "runs/other"
    before = shutil.copytree(folder, tmp_path / "before")
    one, other = (read_metrics(f / "metrics.jsonl")[0] for f in (whole_run, folder))
    assert one["step"] == other["step"] and one["loss"] != other["loss"]
    with pytest.raises(ValueError, match=r"config\.seed is 0, saved 1"):
        pretrain.run(tiny_config(), str(folder))
    assert_same_run(before, folder, 2)


def test_processes_with_different_text_are_refused(tiny_config, tmp_path, monkeypatch):
    def gather(text):
        others = json.loads(text)
        others |= {name: "other" for name in others if name == "the prepared text"}
        return [text, json.dumps(others)]

    monkeypatch.setattr(resume, "gather", gather)
    with pytest.raises(ValueError, match=r"the prepared text is 'other' on process 1"):
        pretrain.run(tiny_config(), str(tmp_path))
    assert not (tmp_path / "metrics.jsonl").exists()


def test_nonfinite_updates_are_skipped_and_too_many_stop_the_run_before_harm(
    tiny_config, tmp_path, monkeypatch
):
    """The last ones have a finite loss."""
    poison(monkeypatch, [5, 6, *range(9, 100)], bad_losses=[5, 6])
    config = tiny_config(train__max_nonfinite_steps=3, log__every_steps=1)
    message = (
        r"3 updates in a row up to step 12 were not finite "
        r"\(gradient norm nan, at a loss [67]\.\d+\)"
    )
    with pytest.raises(FloatingPointError, match=message):
        pretrain.run(config, str(tmp_path))
    records = read_metrics(tmp_path / "metrics.jsonl")
    records = {r["step"]: r for r in records if "loss" in r}
    assert np.isnan(records[6]["loss"]) and np.isnan(records[7]["loss"])
    assert [records[s]["nonfinite_in_row"] for s in (5, 6, 7, 8)] == [0, 1, 2, 0]
    assert records[9]["nonfinite_steps"] == 2
    assert np.isfinite(records[9]["loss"])
    # the schedule waits: update 6 of the schedule is done at step 8
    assert records[8]["learning_rate"] == records[6]["learning_rate"]
    kept = sorted(int(p.name) for p in (tmp_path / "checkpoints").iterdir())
    assert kept == [4, 8]
    assert all(np.isfinite(leaf).all() for leaf in saved_state(tmp_path, 8).values())


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"train__batch_size": 12}, r"train.batch_size=12 .* 8 devices.*=16"),
        ({"train__batch_size": 8 * 10**12}, r"batch_size=8000000000000 takes .*GB"),
        ({"eval__patience": 2}, r"eval.patience=2 needs .* run has 2\. Evaluate more"),
        ({"eval__sample_tokens": 10**12}, r"sample_tokens=1000000000000 takes .*GB"),
        ({"model__max_seq_len": 100_000}, r"train split holds .* at least 199999"),
        (
            {"eval__sample_prompt": "abc " * 40, "eval__sample_tokens": 1},
            "sample_prompt takes .* no room",
        ),
        ({"data__train": "no/such/*.txt"}, r"config.data.train: 'no/such/\*.txt'"),
        ({"tokenizer__vocab_size": 9000}, r"vocab_size=9000 is too large"),
    ],
)
def test_bad_input_is_refused_before_any_step(
    tiny_config, tmp_path, monkeypatch, overrides, message
):
    monkeypatch.setattr(pretrain, "fit", lambda run: pytest.fail("it started"))
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        pretrain.run(tiny_config(**overrides), str(tmp_path))
    assert not (tmp_path / "metrics.jsonl").exists()


def test_the_paper_preset_warns_of_the_builtin_corpus(tmp_path, monkeypatch, capsys):
    def stop(*args, **kwargs):
        raise ValueError("far enough")

    monkeypatch.setattr(pretrain, "prepare_corpus", stop)
    with pytest.raises(ValueError, match="far enough"):
        pretrain.run(job_config("pretrain", "paper"), str(tmp_path))
    out = capsys.readouterr().out
    assert "WARNING" in out and "--config.data.source=text" in out


def test_other_options_train_and_resume_bit_for_bit(tiny_config, tmp_path):
    """Any optimizer, with a part of its state on each of 8 devices; one is profiled."""
    config = tiny_config(
        train__num_steps=4,
        eval__max_batches=1,
        mesh__sharding="full",
        model__dtype="bfloat16",
        model__softmax_rows="tokens+positions",
        optimizer__name="adafactor",
        optimizer__arguments="min_dim_size_to_factor=8",
        log__profile_first_step=4,
        log__profile_steps=1,
    )
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    pretrain.run(config, str(whole))
    losses = [r["loss"] for r in metrics_without_times(whole) if "loss" in r]
    assert len(losses) == 2 and all(abs(loss - np.log(512)) < 0.3 for loss in losses)
    assert len(list((whole / "profile").rglob("*.xplane.pb"))) == 1
    with stopped_after(2):
        pretrain.run(config, str(parts))
    pretrain.run(config, str(parts))
    np.testing.assert_equal(saved_state(parts, 4), saved_state(whole, 4))
