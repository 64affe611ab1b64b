import json
import math

import numpy as np
import pytest
from etils import epath

from gpt1_jax.evaluation.submission import GLUE_FILES, write_glue, write_predictions
from gpt1_jax.tasks.table import TASKS
from gpt1_jax.tasks.task import Example


def example(number=0, *, label=None, subset="", id=None):
    name = str(number) if id is None else id
    return Example(("a text",), (), label, name, subset, f"test.tsv:{number + 2}")


@pytest.fixture
def folder(tmp_path):
    return epath.Path(tmp_path) / "run" / "glue"


@pytest.mark.parametrize(
    ("task", "file", "names"),
    [
        ("cola", "CoLA.tsv", "01"),
        ("sst2", "SST-2.tsv", "01"),
        ("mrpc", "MRPC.tsv", "01"),
        ("qqp", "QQP.tsv", "01"),
        ("wnli", "WNLI.tsv", "01"),
        ("qnli", "QNLI.tsv", ["entailment", "not_entailment"]),
        ("rte", "RTE.tsv", ["entailment", "not_entailment"]),
    ],
)
def test_glue_file_has_the_leaderboards_name_and_labels(folder, task, file, names):
    examples = [example(0), example(1), example(2)]
    written = write_glue(folder, TASKS[task], np.array([1, 0, 1]), examples)
    assert written == [folder / file]
    expected = f"index\tprediction\n0\t{names[1]}\n1\t{names[0]}\n2\t{names[1]}\n"
    assert (folder / file).read_bytes() == expected.encode()


def test_wnli_entailment_is_one():
    # Its data has numbers only, where 1 means that the second sentence follows.
    assert TASKS["wnli"].labels[1] == "entailment"


def test_mnli_makes_a_file_for_each_subset(folder):
    examples = [
        example(0, subset="mismatched"),
        example(0, subset="matched"),
        example(1, subset="matched"),
    ]
    write_glue(folder, TASKS["mnli"], np.array([0, 1, 2]), examples)
    assert {path.name for path in folder.iterdir()} == {"MNLI-m.tsv", "MNLI-mm.tsv"}
    matched = "index\tprediction\n0\tneutral\n1\tcontradiction\n"
    assert (folder / "MNLI-m.tsv").read_text() == matched
    assert (folder / "MNLI-mm.tsv").read_text() == "index\tprediction\n0\tentailment\n"


def test_stsb_scores_are_cut_and_have_three_decimals(folder):
    examples = [example(i) for i in range(4)]
    predictions = np.array([-0.2, 2.34567, 5.0, 6.0], np.float32)
    write_glue(folder, TASKS["stsb"], predictions, examples)
    text = (folder / "STS-B.tsv").read_text()
    assert text == "index\tprediction\n0\t0.000\n1\t2.346\n2\t5.000\n3\t5.000\n"


def test_glue_lines_are_in_order_of_the_index(folder):
    examples = [example(10), example(9), example(0)]
    write_glue(folder, TASKS["cola"], [1, 0, 0], examples)
    assert (folder / "CoLA.tsv").read_text() == "index\tprediction\n0\t0\n9\t0\n10\t1\n"


@pytest.mark.parametrize("odd", ["", "x7", "-1", "1.0", "²"])
def test_glue_index_is_the_position_where_ids_are_no_numbers(folder, odd):
    examples = [example(id="5"), example(id=odd)]
    write_glue(folder, TASKS["cola"], [1, 0], examples)
    assert (folder / "CoLA.tsv").read_text() == "index\tprediction\n0\t1\n1\t0\n"


def test_glue_refuses_an_index_that_comes_twice(folder):
    with pytest.raises(ValueError, match=r"test.tsv:5: the index 3 is also that of"):
        write_glue(folder, TASKS["rte"], [0, 1], [example(3), example(3)])
    assert list(folder.iterdir()) == []


def test_glue_refuses_other_tasks(folder):
    with pytest.raises(ValueError, match="RACE is no task of the GLUE leaderboard"):
        write_glue(folder, TASKS["race"], [0], [example()])


def test_glue_refuses_other_subsets(folder):
    with pytest.raises(ValueError, match="GLUE has no subset '' of MNLI"):
        write_glue(folder, TASKS["mnli"], [0], [example()])


@pytest.mark.parametrize("predictions", [[], [0, 1], [[0]]])
def test_lengths_that_differ_are_refused(folder, predictions):
    with pytest.raises(ValueError, match=r"predictions of shape .* for 1 examples"):
        write_glue(folder, TASKS["cola"], predictions, [example()])
    with pytest.raises(ValueError, match=r"predictions of shape .* for 1 examples"):
        write_predictions(folder / "dev.jsonl", TASKS["cola"], [example()], predictions)


def test_predictions_that_are_not_finite_are_refused(folder):
    examples = [example(0), example(1)]
    with pytest.raises(ValueError, match=r"test.tsv:3: the prediction nan"):
        write_glue(folder, TASKS["stsb"], [1.0, math.nan], examples)
    with pytest.raises(ValueError, match=r"test.tsv:2: the prediction inf"):
        write_predictions(
            folder / "dev.jsonl", TASKS["stsb"], examples, [math.inf, 1.0]
        )


def test_every_glue_task_is_known():
    assert set(GLUE_FILES) <= set(TASKS)
    for name, files in GLUE_FILES.items():
        assert set(TASKS[name].tfds["test"]) == set(files)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_predictions_of_labels_are_names_with_probabilities(folder):
    examples = [
        example(0, label=2, subset="matched"),
        example(1, subset="mismatched", id="ü"),
        example(2, label=0, subset="matched", id=""),
    ]
    probabilities = np.array(
        [[0.5, 0.25, 0.25], [0.0, 0.0, 1.0], [0.25, 0.5, 0.25]], np.float32
    )
    path = folder / "dev.jsonl"
    write_predictions(path, TASKS["mnli"], examples, [0, 2, 1], probabilities)
    assert lines(path) == [
        {
            "id": "0",
            "subset": "matched",
            "prediction": "entailment",
            "label": "contradiction",
            "probabilities": {
                "entailment": 0.5,
                "neutral": 0.25,
                "contradiction": 0.25,
            },
        },
        {
            "id": "ü",
            "subset": "mismatched",
            "prediction": "contradiction",
            "probabilities": {"entailment": 0, "neutral": 0, "contradiction": 1},
        },
        {
            "id": "2",
            "subset": "matched",
            "prediction": "neutral",
            "label": "entailment",
            "probabilities": {
                "entailment": 0.25,
                "neutral": 0.5,
                "contradiction": 0.25,
            },
        },
    ]


def test_predictions_of_scores_are_numbers_as_they_are(folder):
    path = folder / "dev.jsonl"
    examples = [example(0, label=0.0), example(1)]
    write_predictions(path, TASKS["stsb"], examples, np.array([5.5, 1.0]))
    assert lines(path) == [
        {"id": "0", "subset": "", "prediction": 5.5, "label": 0.0},
        {"id": "1", "subset": "", "prediction": 1.0},
    ]


def test_a_file_is_replaced_whole(folder, monkeypatch):
    path = folder / "dev.jsonl"
    write_predictions(path, TASKS["cola"], [example()], [0])
    before = path.read_text()

    def fails(self, target):
        raise OSError("no space")

    monkeypatch.setattr(type(path), "replace", fails)
    with pytest.raises(OSError, match="no space"):
        write_predictions(path, TASKS["cola"], [example()], [1])
    monkeypatch.undo()
    assert path.read_text() == before
    write_predictions(path, TASKS["cola"], [example()], [1])
    assert [p.name for p in folder.iterdir()] == ["dev.jsonl"]


@pytest.mark.parametrize(
    ("probabilities", "message"),
    [([[0.5]], "shape"), ([0.5, 0.5], "shape"), ([[math.nan, 1.0]], "no finite")],
)
def test_odd_probabilities_are_refused(folder, probabilities, message):
    path = folder / "dev.jsonl"
    with pytest.raises(ValueError, match=message):
        write_predictions(
            path, TASKS["cola"], [example()], [0], np.array(probabilities)
        )
    assert not path.exists()


def test_no_examples_make_no_lines(folder):
    assert write_glue(folder, TASKS["cola"], [], []) == []
    write_predictions(folder / "dev.jsonl", TASKS["cola"], [], [])
    assert (folder / "dev.jsonl").read_text() == ""
