"""Predictions of fine-tuned runs for BabyLM."""

import json

import numpy as np
import pytest
from etils import epath
from made_up_runs import finished_result, write_finished, write_pretrained
from made_up_tasks import write_babylm
from tiny_tasks import (
    finetune_config,
    read_lines,
    rows,
    tiny_finetune_overrides,
    write_lines,
)

from gpt1_jax.errors import UserError
from gpt1_jax.jobs import finetune
from gpt1_jax.studies.babylm import finetuned
from gpt1_jax.studies.babylm.finetuned import read_babylm_predictions
from gpt1_jax.tasks.paper_tasks import TASKS

NAMES = ("entailment", "not_entailment")
NUMBERS = [1, 0, 0, 1, 1]


def write_babylm_run(folder, task="rte", numbers=NUMBERS, **overrides):
    """A finished run on BabyLM's data, with its predictions."""
    given = {"data__dir": "data", "tasks": (task,), **overrides}
    result = finished_result(task, 0.5)
    result["dev"]["n"] = len(NUMBERS)
    write_finished(folder, "babylm", result=result, **given)
    lines = [{"id": "9", "prediction": NAMES[number]} for number in numbers]
    write_lines(folder / "predictions" / "dev.jsonl", lines)
    return epath.Path(folder)


def test_predictions_of_a_run_and_of_all_below_a_folder(tmp_path, caplog, monkeypatch):
    one = write_babylm_run(tmp_path / "runs/babylm/rte/pretrained-seed42")
    assert read_babylm_predictions(one) == {"rte": NUMBERS}
    assert "holds 5 predictions, and BabyLM wants all 139" in caplog.text
    caplog.clear()
    monkeypatch.setattr(finetuned, "BABYLM_SIZES", {"rte": 5, "mnli": 5})
    other = tmp_path / "runs/babylm/mnli/pretrained-seed42"
    write_babylm_run(other, "mnli", numbers=[])
    lines = [{"prediction": name} for name in ("contradiction", *["neutral"] * 4)]
    write_lines(other / "predictions" / "dev.jsonl", lines)
    found = read_babylm_predictions(epath.Path(tmp_path / "runs"))
    assert found == {"mnli": [2, 1, 1, 1, 1], "rte": NUMBERS}
    assert read_babylm_predictions(epath.Path(other), one) == found
    assert not caplog.text  # they are whole now


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"data__source": "jsonl"}, "run on 'rte' from the source 'jsonl'; a sub"),
        ({"task": "sst2"}, "run on 'sst2' from the source 'babylm'; a"),
        ({"data__drop_long": True}, "drop_long=True, which leaves out dev"),
        ({"numbers": NUMBERS[:4]}, "holds 4 predictions for 5 examples; it is damaged"),
    ],
)
def test_runs_that_cannot_be_submitted_are_refused(tmp_path, overrides, message):
    with pytest.raises(UserError, match=message):
        read_babylm_predictions(write_babylm_run(tmp_path, **overrides))


def test_unfinished_and_repeated_runs_cannot_be_submitted(tmp_path):
    first = write_babylm_run(tmp_path / "rte/pretrained-seed42")
    second = write_babylm_run(tmp_path / "rte/pretrained-seed43", seeds=(43,))
    with pytest.raises(UserError, match=r"seed42 and .*seed43 are both runs on 'rte'"):
        read_babylm_predictions(first, second)
    (second / "results.json").unlink()
    with pytest.raises(UserError, match=r"seed43 has not finished; run its command"):
        read_babylm_predictions(epath.Path(tmp_path))
    write_pretrained(tmp_path / "pretrained")
    with pytest.raises(UserError, match=r"holds no fine-tuned run; make one .*babylm"):
        read_babylm_predictions(epath.Path(tmp_path / "pretrained"))


def test_babylm_tasks_are_fine_tuned_and_their_predictions_read_back(
    pretrained, tmp_path, caplog
):
    made = {task: rows(task, 13, seed=1) for task in ("boolq", "multirc")}
    for task, dev in made.items():
        for split, given in (("train", rows(task, 32, seed=0)), ("dev", dev)):
            write_babylm(TASKS[task], split, given, tmp_path / "data")
    base = tiny_finetune_overrides(pretrained, tmp_path / "data")
    for key in ("data.source", "optimizer.learning_rate", "eval.first_epoch_steps"):
        del base[key]
    few = {"train__num_epochs": 3.0, "optimizer__learning_rate": 0.03}
    folder = epath.Path(tmp_path / "runs")
    finetune.run(finetune_config("babylm_long", base, **few), str(folder))
    found = read_babylm_predictions(folder)
    assert list(found) == ["boolq", "multirc"]
    for task, numbers in found.items():
        of_run = folder / task / "pretrained-seed42"
        lines = read_lines(of_run / "predictions/dev.jsonl")
        labels = [row["label"] for row in made[task]]  # in the order of the file
        assert [line["label"] for line in lines] == [str(bool(n)) for n in labels]
        assert [line["prediction"] for line in lines] == [str(bool(n)) for n in numbers]
        result = json.loads((of_run / "results.json").read_text())
        right = np.mean(np.equal(numbers, labels))
        assert result["dev"]["accuracy"] == pytest.approx(right)
        assert "test" not in result
    assert set(found["boolq"]) == {0, 1}, "it does not tell examples apart"
    assert "13 predictions, and BabyLM wants all 1635" in caplog.text
    table = (folder / "results.md").read_text()
    assert "| boolq | accuracy | 13 |" in table and "GPT-1 paper" not in table
