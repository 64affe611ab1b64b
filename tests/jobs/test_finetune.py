"""One fine-tuned run, from a pre-trained folder to predictions."""

import dataclasses
import json
import os
import re
import shutil
import signal

import numpy as np
import pytest
from etils import epath
from tiny_run import (
    assert_same_run,
    listing,
    metrics_without_times,
    saved_state,
    stopped_after,
)
from tiny_tasks import (
    finetune_config,
    read_lines,
    rows,
    write_lines,
)

from gpt1_jax.config.checks import BEST
from gpt1_jax.data.tokenizers import load_tokenizer
from gpt1_jax.errors import UserError
from gpt1_jax.finetuning.predictor import Predictor
from gpt1_jax.jobs import finetune
from gpt1_jax.parallel import devices
from gpt1_jax.runs.checkpoints import read_params
from gpt1_jax.runs.records import SESSIONS_FILE, read_metrics, read_sessions
from gpt1_jax.runs.signals import Stopped
from gpt1_jax.tasks.paper_tasks import TASKS
from gpt1_jax.training import fit

START = {"init_from": "runs/pretrain/tiny"}
ONE_EPOCH = {"train__num_epochs": 1.0, "eval__first_epoch_steps": ()}
FILES = ("results.json", "predictions/dev.jsonl", "predictions/test.jsonl")


@pytest.fixture
def start(finetune_base, tmp_path):
    """Runs SST-2 in a folder with overrides; by default in one of its own."""

    def run(folder=tmp_path / "run", **overrides):
        finetune.run(finetune_config("sst2", finetune_base, **overrides), str(folder))
        return folder

    return run


def measured(folder):
    """`valid_accuracy` by step."""
    records = read_metrics(folder / "metrics.jsonl")
    return {r["step"]: r["valid_accuracy"] for r in records if "valid_accuracy" in r}


def steps_saved(folder):
    return sorted(int(path.name) for path in (folder / "checkpoints").iterdir())


def test_a_run_writes_its_folder(finetuned, pretrained):
    config = json.loads((finetuned / "config.json").read_text())
    sizes = json.loads((pretrained / "config.json").read_text())["model"]
    for name in ("num_layers", "num_heads", "embed_dim", "mlp_dim", "max_seq_len"):
        assert config["model"][name] == sizes[name]
    assert load_tokenizer(finetuned / "tokenizer").digest == (
        load_tokenizer(pretrained / "tokenizer").digest
    )
    for name in (*FILES, "metrics.jsonl", "plots/loss.png", "results.md"):
        assert (finetuned / name).stat().st_size, name
    records = [r for r in read_metrics(finetuned / "metrics.jsonl") if "loss" in r]
    assert [record["step"] for record in records] == list(range(1, 13))
    for record in records:
        parts = record["clf_loss"] + 0.5 * record["lm_loss"]
        assert record["loss"] == pytest.approx(parts, rel=1e-6)
    assert "SST-2" in (finetuned / "results.md").read_text()


def test_evaluations_are_at_the_epochs_ends_and_early_in_the_first(finetuned):
    assert list(measured(finetuned)) == [2, 4, 8, 12]


def test_the_first_metric_ranks_and_early_evaluations_end_with_the_epoch(
    start, finetune_base, tmp_path, monkeypatch
):
    runs = []

    def stop(run):
        runs.append(run)
        raise Stopped("far enough")

    monkeypatch.setattr(finetune, "fit", stop)
    task = dataclasses.replace(TASKS["sst2"], metrics=("matthews", "accuracy"))
    monkeypatch.setattr(finetune, "select_tasks", lambda config: ([task], config))
    with pytest.raises(Stopped):
        start(eval__first_epoch_steps=(1, 2, 4, 5, 100), eval__patience=2)
    evaluation = runs[0].evaluation
    assert evaluation.best == ("valid_matthews", True)
    assert evaluation.every == 4 and evaluation.also == (1, 2) and evaluation.saves
    assert evaluation.patience == 2


def test_the_best_state_is_kept_and_gives_the_results(finetuned):
    scores = measured(finetuned)
    assert len(set(scores.values())) > 1, "the task does not tell states apart"
    result = json.loads((finetuned / "results.json").read_text())
    best = min(step for step in scores if scores[step] == max(scores.values()))
    assert result["best_step"] == best < 12
    assert result["dev"]["accuracy"] == pytest.approx(scores[best], abs=1e-6)
    assert result["dev"]["accuracy"] > result["majority"]["accuracy"] == 0.5
    assert best in steps_saved(finetuned)
    assert read_params(epath.Path(finetuned), BEST).step == best
    lines = read_lines(finetuned / "predictions/dev.jsonl")
    right = sum(line["prediction"] == line["label"] for line in lines)
    assert right / len(lines) == pytest.approx(scores[best], abs=1e-6)


def test_resumed_equals_uninterrupted_bit_for_bit(
    start, finetuned, finetune_base, pretrained, tmp_path, monkeypatch
):
    """Stopped by signals in an evaluation, and by one after the last update.

    Twice in a row in the evaluation: the one that makes up for it is stopped as well.
    At the end with the same examples and origin elsewhere.
    """
    parts, seen = Predictor.parts, []

    def stopped(self, *arguments):
        seen.append(None)
        if len(seen) in (3, 4):  # of steps 2, 4, 8, and 8 again
            os.kill(os.getpid(), signal.SIGTERM)
        return parts(self, *arguments)

    data = shutil.copytree(finetune_base["data.dir"], tmp_path / "data")
    with monkeypatch.context() as patch:
        patch.setattr(Predictor, "parts", stopped)
        for _ in range(2):
            with pytest.raises(Stopped, match="step 8 is saved"):
                start(data__dir=str(data))
    with stopped_after(12):
        start(data__dir=str(data))
    moved = str(data.rename(tmp_path / "moved"))
    origin = str(shutil.copytree(pretrained, tmp_path / "origin"))
    folder = start(data__dir=moved, init_from=origin)
    assert_same_run(finetuned, folder, 12)
    for name in FILES[1:]:
        assert (finetuned / name).read_text() == (folder / name).read_text(), name


def test_a_long_run_says_how_long_it_takes(start, tmp_path, monkeypatch, capsys):
    """Of 12 steps of 8 examples, and 3 epochs with 12 dev examples each."""

    def stop(run):
        raise Stopped("far enough")

    monkeypatch.setattr(finetune, "fit", stop)
    monkeypatch.setattr(fit, "_SHORT", 0)
    monkeypatch.setattr(finetune, "train_flops_per_token", lambda model, seq_len: 30.0)
    monkeypatch.setattr(devices, "likely_flops", lambda: 1.0)
    hours = []
    for last_step in (0, 6):
        monkeypatch.setattr(finetune, "saved_steps", lambda _, last=last_step: [last])
        with pytest.raises(Stopped):
            start()
        takes = r"Takes: about (\d+) hours here, 11% of it validation\."
        hours += map(int, re.findall(takes, capsys.readouterr().out))
    whole, half = hours
    read = whole * 3600 / 30  # tokens
    assert 96 + 36 / 3 < read / 5 < 5 * (96 + 36 / 3)  # of words of one to five
    assert half == pytest.approx(whole / 2, abs=1)


def test_each_run_of_a_suite_resumes_with_its_own_forms(finetune_base, tmp_path):
    """Seed 1 was stopped where it had been told to use the formula."""
    folder = tmp_path / "suite"

    def run(*seeds, **overrides):
        few = {"seeds": seeds, **ONE_EPOCH, **overrides}
        finetune.run(finetune_config("sst2", finetune_base, **few), str(folder))

    def used(seed):
        path = folder / "sst2" / f"pretrained-seed{seed}" / SESSIONS_FILE
        return [each["forms"]["attention"]["form"] for each in read_sessions(path)]

    with stopped_after(2):
        run(1, 0, model__attention_form="plain")
    run(0, 1)
    assert used(0) == ["blocked"]
    assert used(1) == ["plain", "plain"]


def test_a_finished_run_is_left_as_it_is(start, finetuned, tmp_path, capsys):
    """And is refused with another configuration or origin."""
    folder = shutil.copytree(finetuned, tmp_path / "run")
    before = listing(folder)
    start()
    after = listing(folder)
    best = json.loads((folder / "results.json").read_text())["best_step"]
    said = f"Nothing to do: the run in {folder} had finished; its best step is {best}."
    assert capsys.readouterr().out.endswith(f"{said}\n")
    changed = {path for path in after if after[path] != before.get(path)}
    assert changed == {folder / "results.md"}
    with pytest.raises(ValueError, match=r"config\.seeds is \(1,\), saved \(0,\)"):
        start(seeds=(1,))
    with pytest.raises(ValueError, match="The origin of this run is not what"):
        start(step="8")
    assert listing(folder) == after
    (folder / "results.json").unlink()
    shutil.rmtree(folder / "predictions")
    start()
    for name in FILES:
        assert (finetuned / name).read_text() == (folder / name).read_text(), name
    assert metrics_without_times(folder) == metrics_without_times(finetuned)


@pytest.mark.parametrize("version", ["1.0", "now"])
def test_examples_that_have_changed_since_a_run_finished_are_refused(
    finetuned, finetune_base, tmp_path, capsys, version
):
    folder = shutil.copytree(finetuned, tmp_path / "run")
    data = shutil.copytree(finetune_base["data.dir"], tmp_path / "data")
    if version == "1.0":  # which noted no digests of files
        results = json.loads((folder / "results.json").read_text())
        del results["file_digests"]
        (folder / "results.json").write_text(json.dumps(results))
    again = finetune_config("sst2", finetune_base, data__dir=str(data))
    finetune.run(again, str(folder))
    assert "Nothing to do" in capsys.readouterr().out
    before = listing(folder)
    for seed, split in enumerate(("train", "dev"), 7):
        write_lines(data / "sst2" / f"{split}.jsonl", rows("sst2", 16, seed))
    message = "The dev examples and the training .*are not what .*another --workdir"
    with pytest.raises(UserError, match=message):
        finetune.run(again, str(folder))
    assert listing(folder) == before
    shutil.rmtree(data)  # what is gone is not compared, and said so
    finetune.run(again, str(folder))
    out = capsys.readouterr().out
    assert "Cannot compare the data of SST-2: " in out and "Nothing to do" in out


def test_a_test_split_that_appears_once_a_run_has_finished_is_noticed(
    finetuned, finetune_base, tmp_path
):
    folder = shutil.copytree(finetuned, tmp_path / "run")
    results = json.loads((folder / "results.json").read_text())
    del results["content_digests"]["test examples"], results["file_digests"]["test"]
    (folder / "results.json").write_text(json.dumps(results))
    with pytest.raises(UserError, match="The test examples of this run are not what"):
        finetune.run(finetune_config("sst2", finetune_base), str(folder))


@pytest.mark.parametrize("layers", ["all", "none"])
def test_a_run_starts_from_the_step_and_layers_asked_for(
    start, pretrained, tmp_path, capsys, layers
):
    earliest, newest = steps_saved(pretrained)[0], steps_saved(pretrained)[-1]
    assert earliest < newest
    files = listing(pretrained)
    with stopped_after(1):  # an update of learning rate 0
        start(step=str(earliest), transfer_layers=layers)
    assert listing(pretrained) == files
    assert "\n32 training, 12 dev and 10 test examples; 12" in capsys.readouterr().out
    before, after = (
        saved_state(folder, step)
        for folder, step in ((pretrained, earliest), (tmp_path / "run", 1))
    )
    copies = set()
    for name, value in before.items():
        found = after.get(name.replace("['params']", "['params']['transformer']"))
        if "['params']" in name and np.array_equal(value, found[: len(value)]):
            copies.add(name.split("['")[2].rstrip("']"))
    copies -= {"h_0"} if layers == "none" else set()  # zeros and ones, like any other
    assert copies == {"all": {"wte", "wpe", "h_0"}, "none": set()}[layers]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"init_from": "no/such"}, "is not a run folder.*--workdir of a run"),
        ({"train__batch_size": 40}, "holds 32 examples, fewer than one batch.*=40"),
        ({"train__batch_size": 12}, r"train.batch_size=12 .* 8 devices.*=16"),
        ({"eval__patience": 3}, r"eval.patience=3 needs .* run has 3\. Evaluate more"),
        ({"data__max_seq_len": 41}, "max_seq_len=41, but .* takes 40 tokens"),
        ({"transfer_layers": "2"}, "transfer_layers=2, but .* has 1 layer"),
        ({"data__dir": "no/such"}, "no/such/sst2/train.jsonl does not exist"),
        ({"data__max_seq_len": 5}, "config.data.max_seq_len must be at least"),
        ({"data__dev": "d.csv"}, r"data.dev='d.csv' does not .*source='jsonl'"),
        ({"custom__text": ("a",)}, r"custom.text=\('a',\) .*tasks=\('sst2',\); leave"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused_before_any_step(
    start, tmp_path, monkeypatch, overrides, message
):
    monkeypatch.setattr(finetune, "fit", lambda run: pytest.fail("it began"))
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        start(**overrides)
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_a_batch_to_evaluate_that_cannot_fit_is_refused(start, tmp_path, monkeypatch):
    monkeypatch.setattr(finetune, "fit", lambda run: pytest.fail("it started"))
    monkeypatch.setattr(devices, "memory_bytes", lambda: 10_000)
    message = r"config\.eval\.batch_size=8000000000000 takes at least .*Lower it"
    with pytest.raises(UserError, match=message):
        start(eval__batch_size=8 * 10**12)
    assert not (tmp_path / "run" / "config.json").exists()


def test_count_steps_leaves_out_partial_batches_and_refuses_nothing_to_do():
    config = finetune_config("rte", START)
    assert finetune.count_steps(config, 2490) == 231
    assert finetune.count_steps(config, 32) == 3
    with pytest.raises(ValueError, match="holds 31 examples, fewer than one batch"):
        finetune.count_steps(config, 31)
    given = {"train__num_epochs": 0.0, "train__num_steps": 7}
    assert finetune.count_steps(finetune_config("rte", START, **given), 64) == 7
    short = finetune_config("rte", START, train__num_epochs=0.25)
    assert finetune.count_steps(short, 32 * 4) == 1
    with pytest.raises(ValueError, match=r"num_epochs=0\.25 at 3 updates"):
        finetune.count_steps(short, 32 * 3)
    warm = {"optimizer.warmup_steps": 6, "optimizer.warmup_fraction": 0.0}
    config = finetune_config("rte", START, **warm)
    assert finetune.count_steps(config, 32 * 3) == 9
    with pytest.raises(ValueError, match=r"has 6 updates .*warmup_steps=6; .*=0\."):
        finetune.count_steps(config, 32 * 2)
    endless = finetune_config("rte", START, train__num_epochs=2e9)
    with pytest.raises(ValueError, match=r"has 4,000,000,000 updates .*2,147,483,647"):
        finetune.count_steps(endless, 32 * 2)


def test_a_fine_tuned_run_is_no_start(start, finetuned):
    with pytest.raises(ValueError, match="job 'finetune'; fine-tuning starts from a"):
        start(init_from=str(finetuned))
