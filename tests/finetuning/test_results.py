"""Finished fine-tuned runs, read back from their folders."""

import copy
import dataclasses
import shutil

import numpy as np
import pytest
from etils import epath
from made_up_runs import finished_result, write_finished

from gpt1_jax.errors import UserError
from gpt1_jax.finetuning.prediction_files import write_predictions
from gpt1_jax.finetuning.results import predictions_file, read_errors, read_finished
from gpt1_jax.tasks.metrics import METRICS, Metric
from gpt1_jax.tasks.task import Example, Inputs, Target, Task

RESULT = finished_result("sst2", 0.5)


@pytest.mark.parametrize(
    ("kind", "named", "layers", "whole"),
    [
        ("transformer", "all", 3, True),
        ("transformer", "3", 3, True),
        ("transformer", "0", 0, False),
        ("transformer", "none", -1, False),
        ("lstm", "all", 1, True),
    ],
)
def test_a_run_says_how_much_was_transferred(finetuned, kind, named, layers, whole):
    run = read_finished(epath.Path(finetuned))
    model = dataclasses.replace(run.config.model, kind=kind, num_layers=3)
    config = dataclasses.replace(run.config, model=model, transfer_layers=named)
    run = run._replace(config=config)
    assert (run.kind, run.layers_transferred, run.is_whole) == (kind, layers, whole)


def test_what_is_no_finished_fine_tuned_run_is_none(pretrained, tmp_path):
    assert read_finished(epath.Path(tmp_path / "nothing")) is None
    assert read_finished(epath.Path(pretrained)) is None
    began = epath.Path(write_finished(tmp_path / "began"))
    (began / "results.json").unlink()
    assert read_finished(began) is None
    other = shutil.copytree(pretrained, tmp_path / "other")
    (other / "results.json").write_text("{}")  # as zero-shot evaluation writes them
    assert read_finished(epath.Path(other)) is None
    (other / "config.json").unlink()
    assert read_finished(epath.Path(other)) is None


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("dev", None),
        ("dev", {"n": 40}),
        ("dev/n", "40"),
        ("majority/accuracy", "0.5"),
        ("dev/subsets", []),
        ("dev/subsets", {"matched": {"n": 3}}),
        ("test", [1]),
        ("origin_step", None),
        ("content_digests", ["a"]),
    ],
)
def test_scores_of_another_kind_are_named(tmp_path, place, value):
    results = copy.deepcopy(RESULT)
    *section, key = place.split("/")
    (results[section[0]] if section else results)[key] = value
    folder = write_finished(tmp_path / "run", result=results)
    with pytest.raises(UserError, match=r"run/results\.json holds .*damaged"):
        read_finished(epath.Path(folder))


@pytest.mark.parametrize(
    "change",
    [
        {"dev": {**RESULT["dev"], "mse": -1e9}},
        {"dev": {**RESULT["dev"], "spearman": None}},
        {"test": {"n": 9, "scores": None}},  # a split without labels
    ],
)
def test_scores_of_a_metrics_own_range_or_none_are_read(tmp_path, monkeypatch, change):
    monkeypatch.setitem(METRICS, "mse", Metric(lambda p, y: 1.0))
    folder = write_finished(tmp_path / "run", result=RESULT | change)
    assert read_finished(epath.Path(folder)).result == RESULT | change


def custom(**target):
    return Task("custom", "Custom", Inputs("single", ("text",)), Target(**target))


def numbered(labels):
    """Examples with these labels."""
    return [
        Example((f"text {n}",), (), label, "", "", "", n)
        for n, label in enumerate(labels)
    ]


def test_errors_begin_with_the_most_confident(tmp_path):
    folder = epath.Path(tmp_path)
    task = custom(labels=("a", "b", "c"))
    assert read_errors(folder, "dev", task) == []
    labels = [(0, 1), (0, 0), (2, 1), (1, None)]  # predicted, true
    examples = numbered([true for _, true in labels])
    shares = np.array([[0.5, 0.3, 0.2], [1, 0, 0], [0, 0.1, 0.9], [0, 1, 0]])
    answers, file = [each for each, _ in labels], predictions_file(folder, "dev")
    write_predictions(file, task, examples, answers, shares, with_text=True)
    found = read_errors(folder, "dev", task)
    keys = ("label", "prediction", "confidence")
    assert [(row["text"]["text"], *map(row.get, keys)) for row in found] == [
        ("text 2", "b", "c", 0.9),
        ("text 0", "b", "a", 0.5),
    ]
    file.write_text('{"label": "a"}')
    with pytest.raises(UserError, match=r"holds no prediction at .*damaged"):
        read_errors(folder, "dev", task)


def test_errors_of_several_labels_are_as_sure_as_the_surest_wrong_answer(tmp_path):
    task = custom(labels=("a", "b"), multilabel=True)
    folder = epath.Path(tmp_path)
    examples, answers = numbered([(1,), (), ()]), [[1, 0], [0, 0], [1, 0]]
    shares = np.array([[0.7, 0.1], [0.1, 0.1], [0.95, 0]])
    file = predictions_file(folder, "test")
    write_predictions(file, task, examples, np.array(answers), shares)
    found = read_errors(folder, "test", task)
    assert [(row["id"], row["confidence"]) for row in found] == [
        ("2", 0.95),
        ("0", 0.9),
    ]


def test_errors_of_scores_begin_with_the_farthest_off(tmp_path):
    task = custom(score_range=(0.0, 5.0))
    examples = numbered([1.0, 2.0, 5.0])
    folder = epath.Path(tmp_path)
    write_predictions(predictions_file(folder, "dev"), task, examples, [1.5, 2.0, 3.0])
    found = read_errors(folder, "dev", task)
    assert [(row["id"], row["confidence"]) for row in found] == [("2", 2.0), ("0", 0.5)]
