"""Files for the GLUE leaderboard and for people."""

import csv
import io
import json
import logging
import math
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
from etils import epath
from tiny_tasks import changed

from gpt1_jax.finetuning.submission import (
    write_glue,
    write_glue_zip,
    write_predictions,
)
from gpt1_jax.tasks.paper_tasks import TASKS
from gpt1_jax.tasks.task import Example


def example(number=0, *, label=None, subset="", id=None):
    name = str(number) if id is None else id
    where = f"test.tsv:{number + 2}"
    return Example(("a text",), (), label, name, subset, where, number)


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
    written = write_glue(folder, TASKS[task], examples, np.array([1, 0, 1]))
    assert written == [folder / file]
    expected = f"index\tprediction\n0\t{names[1]}\n1\t{names[0]}\n2\t{names[1]}\n"
    assert (folder / file).read_bytes() == expected.encode()


def test_mnli_makes_a_file_for_each_subset(folder):
    examples = [
        example(0, subset="mismatched"),
        example(0, subset="matched"),
        example(1, subset="matched"),
    ]
    write_glue(folder, TASKS["mnli"], examples, np.array([0, 1, 2]))
    assert {path.name for path in folder.iterdir()} == {"MNLI-m.tsv", "MNLI-mm.tsv"}
    matched = "index\tprediction\n0\tneutral\n1\tcontradiction\n"
    assert (folder / "MNLI-m.tsv").read_text() == matched
    assert (folder / "MNLI-mm.tsv").read_text() == "index\tprediction\n0\tentailment\n"


def test_stsb_scores_are_cut_and_have_three_decimals(folder):
    examples = [example(i) for i in range(4)]
    predictions = np.array([-0.2, 2.34567, 5.0, 6.0], np.float32)
    write_glue(folder, TASKS["stsb"], examples, predictions)
    text = (folder / "STS-B.tsv").read_text()
    assert text == "index\tprediction\n0\t0.000\n1\t2.346\n2\t5.000\n3\t5.000\n"


def test_glue_lines_are_in_order_of_the_index(folder):
    examples = [example(10), example(9), example(0)]
    write_glue(folder, TASKS["cola"], examples, [1, 0, 0])
    assert (folder / "CoLA.tsv").read_text() == "index\tprediction\n0\t0\n9\t0\n10\t1\n"


@pytest.mark.parametrize("odd", ["", "x7", "-1", "1.0", "²"])
def test_glue_index_is_the_position_if_ids_are_not_numbers(folder, odd):
    examples = [example(id="5"), example(id=odd)]
    write_glue(folder, TASKS["cola"], examples, [1, 0])
    assert (folder / "CoLA.tsv").read_text() == "index\tprediction\n0\t1\n1\t0\n"


def test_glue_refuses_an_index_that_comes_twice(folder):
    with pytest.raises(ValueError, match=r"test.tsv:5: the index 3 is already that of"):
        write_glue(folder, TASKS["rte"], [example(3), example(3)], [0, 1])
    assert not folder.exists()


def test_glue_refuses_other_tasks(folder):
    with pytest.raises(ValueError, match="RACE is not a task of the GLUE leaderboard"):
        write_glue(folder, TASKS["race"], [example()], [0])


def test_glue_refuses_other_subsets(folder):
    with pytest.raises(ValueError, match="GLUE has no subset '' of MNLI"):
        write_glue(folder, TASKS["mnli"], [example()], [0])


@pytest.mark.parametrize("predictions", [[], [0, 1], [[0]]])
def test_lengths_that_differ_are_refused(folder, predictions):
    with pytest.raises(ValueError, match=r"predictions of shape .* for 1 examples"):
        write_glue(folder, TASKS["cola"], [example()], predictions)
    with pytest.raises(ValueError, match=r"predictions of shape .* for 1 examples"):
        write_predictions(folder / "dev.jsonl", TASKS["cola"], [example()], predictions)


def test_predictions_that_are_not_finite_are_refused(folder):
    examples = [example(0), example(1)]
    with pytest.raises(ValueError, match=r"test.tsv:3: the prediction nan"):
        write_glue(folder, TASKS["stsb"], examples, [1.0, math.nan])
    with pytest.raises(ValueError, match=r"test.tsv:2: the prediction inf"):
        write_predictions(
            folder / "dev.jsonl", TASKS["stsb"], examples, [math.inf, 1.0]
        )


def test_diagnostic_set_is_written_by_a_model_of_mnli(folder):
    examples = [example(1, subset="ax"), example(0, subset="ax")]
    assert write_glue(folder, TASKS["mnli"], examples, [0, 2]) == [folder / "AX.tsv"]
    expected = "index\tprediction\n0\tcontradiction\n1\tentailment\n"
    assert (folder / "AX.tsv").read_text() == expected


@pytest.mark.parametrize(("count", "warned"), [(145, True), (146, False)])
def test_glue_file_that_is_too_short_is_warned_of(folder, caplog, count, warned):
    examples = [example(i) for i in range(count)]
    with caplog.at_level(logging.WARNING):
        write_glue(folder, TASKS["wnli"], examples, [0] * count)
    message = f"{folder}/WNLI.tsv holds 145 predictions, and the leaderboard wants"
    assert [m.startswith(message) for m in caplog.messages] == [True] * warned
    assert (folder / "WNLI.tsv").read_text().count("\n") == count + 1


# --- the zip --------------------------------------------------------------------


@pytest.fixture
def glue_folders(folder):
    """Folders of two tasks, WNLI's whole."""
    rows = [example(i) for i in range(146)]
    write_glue(folder / "wnli", TASKS["wnli"], rows, [0] * 146)
    write_glue(folder / "cola", TASKS["cola"], [example()], [1])
    (folder / "cola" / "dev.jsonl").write_text("{}")
    return [folder / "cola", folder / "none", folder / "wnli"]


def test_zip_holds_the_files_of_all_folders(glue_folders, folder, caplog):
    path = folder / "made" / "glue.zip"
    with caplog.at_level(logging.WARNING):
        write_glue_zip(glue_folders, path)
    with zipfile.ZipFile(path) as archive:
        assert archive.namelist() == ["CoLA.tsv", "WNLI.tsv"]
        assert archive.testzip() is None
        content = (folder / "wnli" / "WNLI.tsv").read_bytes()
        assert archive.read("WNLI.tsv") == content
    short, missing = caplog.messages
    assert "CoLA.tsv holds 1 predictions" in short and "all 1063" in short
    assert "MNLI-m.tsv, MNLI-mm.tsv, AX.tsv" in missing and "all 11" in missing
    assert "WNLI" not in missing
    assert [p.name for p in path.parent.iterdir()] == ["glue.zip"]


def test_zip_of_the_same_files_is_the_same(glue_folders, folder):
    write_glue_zip(glue_folders, folder / "one.zip")
    write_glue_zip(reversed(glue_folders), folder / "other.zip")
    assert (folder / "one.zip").read_bytes() == (folder / "other.zip").read_bytes()
    with zipfile.ZipFile(folder / "one.zip") as archive:
        assert {entry.date_time[0] for entry in archive.infolist()} == {1980}


def test_zip_of_nothing_or_of_two_runs_is_refused(glue_folders, folder):
    with pytest.raises(ValueError, match=r"no GLUE files to pack into .*glue.zip"):
        write_glue_zip(glue_folders[1:2], folder / "glue.zip")
    write_glue(folder / "again", TASKS["cola"], [example()], [1])
    with pytest.raises(ValueError, match=r"cola/CoLA.tsv and .*again/CoLA.tsv are"):
        write_glue_zip([*glue_folders, folder / "again"], folder / "glue.zip")
    assert not (folder / "glue.zip").exists()


# --- for people -----------------------------------------------------------------


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

    monkeypatch.setattr(Path, "replace", fails)
    with pytest.raises(OSError, match="no space"):
        write_predictions(path, TASKS["cola"], [example()], [1])
    monkeypatch.undo()
    assert path.read_text() == before
    write_predictions(path, TASKS["cola"], [example()], [1])
    assert [p.name for p in folder.iterdir()] == ["dev.jsonl"]


@pytest.mark.parametrize(
    ("probabilities", "message"),
    [([[0.5]], "shape"), ([0.5, 0.5], "shape"), ([[math.nan, 1.0]], "not a finite")],
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


COPA = Example(("It rained.", "Why?"), ("wet", "dry"), 1, "c1", "", "a.jsonl:1")
RACE = Example(("A story.", "Who?"), (*"abcd",), None, "", "high", "a.jsonl:1")


@pytest.mark.parametrize(
    ("made", "task", "text"),
    [
        (
            COPA,
            TASKS["copa"],
            {"premise": "It rained.", "question": "Why?"}
            | {"choice1": "wet", "choice2": "dry"},
        ),
        (
            RACE,
            TASKS["race"],
            {"article": "A story.", "question": "Who?"}
            | {"A": "a", "B": "b", "C": "c", "D": "d"},
        ),
    ],
    ids=["copa", "race"],
)
def test_predictions_may_repeat_the_texts(folder, made, task, text):
    path = folder / "a.jsonl"
    write_predictions(path, task, [made], [0], with_text=True)
    (line,) = lines(path)
    assert line["text"] == text
    assert line["prediction"] == task.target.labels[0]


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
def test_predictions_may_be_a_table(folder, suffix):
    path = folder / f"a{suffix}"
    made = [
        example(7, label=1)._replace(text=('a "text",\n\tand more',)),
        example(1, id="", subset="x"),
    ]
    probabilities = np.array([[0.25, 0.75], [1.0, 0.0]])
    write_predictions(path, TASKS["cola"], made, [1, 0], probabilities, with_text=True)
    if suffix == ".csv":
        rows = list(csv.reader(io.StringIO(path.read_text())))
        text = 'a "text",\n\tand more'
    else:  # no quotes, and no gaps within a text
        rows = [line.split("\t") for line in path.read_text().splitlines()]
        text = 'a "text",  and more'
    names = "id subset sentence prediction label P(unacceptable) P(acceptable)"
    yes, no = "acceptable", "unacceptable"
    assert rows == [
        names.split(),
        ["7", "", text, yes, yes, "0.25", "0.75"],
        ["1", "x", "a text", no, "", "1.0", "0.0"],
    ]


@pytest.mark.parametrize(
    "name", ["id", "subset", "prediction", "label", "P(acceptable)"]
)
def test_a_text_named_like_another_column_is_refused(folder, name):
    """Only in a table: JSON lines keep the texts apart."""
    task = changed(TASKS["cola"], "inputs", text=(name,))
    for suffix in (".csv", ".tsv"):
        with pytest.raises(ValueError, match=rf"two columns named '{re.escape(name)}'"):
            write_predictions(folder / f"a{suffix}", task, [COPA], [0], with_text=True)
        assert not (folder / f"a{suffix}").exists()
    path = folder / "a.jsonl"
    write_predictions(path, task, [example()], [0], with_text=True)
    assert lines(path)[0]["text"] == {name: "a text"}


@pytest.mark.parametrize("name", ["a.txt", "a", "a.xlsx"])
def test_predictions_in_other_formats_are_refused(folder, name):
    with pytest.raises(ValueError, match=r"predictions are written as .jsonl, .tsv, "):
        write_predictions(folder / name, TASKS["cola"], [example()], [0])
    assert not folder.exists()


def test_log_probabilities_of_missing_answers_are_left_out(folder):
    path, examples = folder / "dev.jsonl", [example(), example()]
    log_probs = np.array([[-1.5, -2.0], [-3.0, -np.inf]])
    write_predictions(path, TASKS["cola"], examples, [0, 0], log_probs=log_probs)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["log_probs"] for line in lines] == [[-1.5, -2.0], [-3.0]]
