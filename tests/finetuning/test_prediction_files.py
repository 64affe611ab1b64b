"""Files of predictions, and the columns that they add to a table."""

import json
import math

import numpy as np
import pytest
from etils import epath
from made_up_tasks import example_to_predict as example
from tiny_tasks import changed

from gpt1_jax.finetuning.prediction_files import (
    check_added,
    prediction_columns,
    prediction_rows,
    table_suffix,
    text_columns,
    write_predictions,
)
from gpt1_jax.tasks.paper_tasks import TASKS
from gpt1_jax.tasks.task import Example


@pytest.fixture
def folder(tmp_path):
    return epath.Path(tmp_path) / "run" / "predictions"


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_predictions_of_labels_are_names_with_probabilities(folder):
    examples = [
        example(0, label=2, subset="matched"),
        example(1, subset="mismatched", id="ü"),
        example(2, label=0, subset="matched", id=""),
    ]
    shares = [[0.5, 0.25, 0.25], [0.0, 0.0, 1.0], [0.25, 0.5, 0.25]]
    path = folder / "dev.jsonl"
    task, probabilities = TASKS["mnli"], np.array(shares, np.float32)
    write_predictions(path, task, examples, [0, 2, 1], probabilities)
    names = ("entailment", "neutral", "contradiction")
    expected = [
        {"id": "0", "subset": "matched", "prediction": names[0], "label": names[2]},
        {"id": "ü", "subset": "mismatched", "prediction": names[2]},
        {"id": "2", "subset": "matched", "prediction": names[1], "label": names[0]},
    ]
    for line, own in zip(expected, shares, strict=True):
        line["probabilities"] = dict(zip(names, own, strict=True))
    assert lines(path) == expected


def test_predictions_of_scores_are_numbers_as_they_are(folder):
    path = folder / "dev.jsonl"
    examples = [example(0, label=0.0), example(1)]
    write_predictions(path, TASKS["stsb"], examples, np.array([5.5, 1.0]))
    assert lines(path) == [
        {"id": "0", "subset": "", "prediction": 5.5, "label": 0.0},
        {"id": "1", "subset": "", "prediction": 1.0},
    ]


@pytest.mark.parametrize(
    ("task", "predictions", "probabilities", "message"),
    [
        ("cola", [0, 0], [[0.5]], r"probabilities are of shape \(1, 1\), not \(2, 2\)"),
        ("cola", [0], None, r"predictions are of shape \(1,\), not \(2,\)"),
        ("cola", [0, 0], [[math.nan, 1], [1, 0]], "tsv:2: .*nan is not finite"),
        ("stsb", [1.0, math.inf], None, "tsv:3: of the predictions, inf is not finite"),
    ],
)
def test_odd_numbers_are_refused(folder, task, predictions, probabilities, message):
    path, examples = folder / "dev.jsonl", [example(0), example(1)]
    shares = probabilities and np.array(probabilities)
    with pytest.raises(ValueError, match=message):
        write_predictions(path, TASKS[task], examples, predictions, shares)
    assert not path.exists()


COPA = Example(("It rained.", "Why?"), ("wet", "dry"), 1, "c1", "", "a.jsonl:1")
RACE = Example(("A story.", "Who?"), (*"abcd",), None, "", "high", "a.jsonl:1")


@pytest.mark.parametrize(
    ("made", "name", "columns"),
    [
        (COPA, "copa", ("premise", "question", "choice1", "choice2")),
        (RACE, "race", ("article", "question", *"ABCD")),
    ],
    ids=["copa", "race"],
)
def test_predictions_may_repeat_the_texts(folder, made, name, columns):
    """In lines or in columns."""
    path, task = folder / "a.jsonl", TASKS[name]
    write_predictions(path, task, [made], [0], with_text=True)
    (line,) = lines(path)
    texts = dict(zip(columns, [*made.text, *made.choices], strict=True))
    assert line["text"] == texts
    assert line["prediction"] == task.target.labels[0]
    found = text_columns(task, [made._replace(number=n) for n in (0, 1)])
    assert found == {"id": ["0", "1"]} | {key: [t, t] for key, t in texts.items()}


SEVERAL = changed(TASKS["cola"], "target", multilabel=True, labels=("a", "b", "c"))


def test_several_labels_are_a_list_of_names(folder):
    """Or none; in a column they are a tuple."""
    examples = [example(0, label=(0, 2)), example(1, label=())]
    predictions = np.array([[True, False, True], [False, False, False]])
    probabilities = np.array([[0.9, 0.1, 0.75], [0.25, 0.5, 0.25]])
    path = folder / "dev.jsonl"
    write_predictions(path, SEVERAL, examples, predictions, probabilities)
    one, other = lines(path)
    assert one["prediction"] == one["label"] == ["a", "c"]
    assert one["probabilities"] == {"a": 0.9, "b": 0.1, "c": 0.75}
    assert other["prediction"] == other["label"] == []
    found = prediction_columns(SEVERAL, 2, examples, predictions, probabilities)
    assert found["prediction"] == [("a", "c"), ()]
    with pytest.raises(ValueError, match=r"are of shape \(2,\), not \(2, 3\)"):
        write_predictions(path, SEVERAL, examples, [0, 1])


def test_a_column_that_predictions_add_is_refused():
    with pytest.raises(ValueError, match=r"a.csv: .* column 'P\(acceptable\)' alr"):
        check_added(["text", "P(acceptable)"], TASKS["cola"], "a.csv")
    check_added(["text", "label", "P(other)", 3], TASKS["cola"], "a.csv")


def test_the_suffix_names_the_format_of_a_table(folder):
    with pytest.raises(ValueError, match=r"predictions are written as .jsonl, .tsv, "):
        table_suffix(folder / "a")
    assert table_suffix(folder / "A.CSV") == ".csv"


def test_log_probabilities_of_missing_answers_are_left_out():
    log_probs = np.array([[-1.5, -2.0], [-3.0, -np.inf]])
    examples = [example(), example()]
    rows = prediction_rows(TASKS["cola"], examples, [0, 0], log_probs=log_probs)
    assert [row["log_probs"] for row in rows] == [[-1.5, -2.0], [-3.0]]
