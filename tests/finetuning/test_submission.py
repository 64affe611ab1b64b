"""Files for the GLUE leaderboard."""

import logging
import zipfile

import numpy as np
import pytest
from etils import epath
from made_up_tasks import example_to_predict as example

from gpt1_jax.errors import UserError
from gpt1_jax.finetuning.prediction_files import write_predictions
from gpt1_jax.finetuning.submission import write_glue, write_glue_zip
from gpt1_jax.tasks.paper_tasks import TASKS


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
    """In the order of the index, which is a number."""
    examples = [example(10), example(9), example(0)]
    written = write_glue(folder.parent, TASKS[task], examples, np.array([1, 0, 0]))
    assert written == [folder / file]
    expected = f"index\tprediction\n0\t{names[0]}\n9\t{names[0]}\n10\t{names[1]}\n"
    assert (folder / file).read_bytes() == expected.encode()


@pytest.mark.parametrize(
    ("subset", "name"),
    [("matched", "MNLI-m"), ("mismatched", "MNLI-mm"), ("ax", "AX")],
)
def test_mnli_makes_a_file_for_each_subset(folder, subset, name):
    """And labels GLUE's diagnostic set."""
    other = "ax" if subset == "matched" else "matched"
    rows = ((0, other), (0, subset), (1, subset))
    examples = [example(number, subset=each) for number, each in rows]
    write_glue(folder.parent, TASKS["mnli"], examples, np.array([0, 1, 2]))
    assert len(list(folder.iterdir())) == 2
    expected = "index\tprediction\n0\tneutral\n1\tcontradiction\n"
    assert (folder / f"{name}.tsv").read_text() == expected


def test_stsb_scores_are_cut_and_have_three_decimals(folder):
    examples = [example(i) for i in range(4)]
    predictions = np.array([-0.2, 2.34567, 5.0, 6.0], np.float32)
    write_glue(folder.parent, TASKS["stsb"], examples, predictions)
    text = (folder / "STS-B.tsv").read_text()
    assert text == "index\tprediction\n0\t0.000\n1\t2.346\n2\t5.000\n3\t5.000\n"


@pytest.mark.parametrize("odd", ["", "-1", "²"])
def test_glue_index_is_the_position_if_ids_are_not_numbers(folder, odd):
    examples = [example(id="5"), example(id=odd)]
    write_glue(folder.parent, TASKS["cola"], examples, [1, 0])
    assert (folder / "CoLA.tsv").read_text() == "index\tprediction\n0\t1\n1\t0\n"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mnli", r"GLUE has no subset '' of MNLI; it has \['matched', .*\]\."),
        ("race", r"GLUE has no subset '' of RACE; it has none\."),
        ("rte", "test.tsv:5: the index 3 is already that of"),
    ],
)
def test_glue_refuses_other_tasks_and_subsets_and_an_index_twice(folder, name, message):
    with pytest.raises(ValueError, match=message):
        write_glue(folder.parent, TASKS[name], [example(3), example(3)], [0, 1])
    assert not folder.exists()


@pytest.mark.parametrize(("count", "warned"), [(145, True), (146, False)])
def test_glue_file_that_is_too_short_is_warned_of(folder, caplog, count, warned):
    examples = [example(i) for i in range(count)]
    with caplog.at_level(logging.WARNING):
        write_glue(folder.parent, TASKS["wnli"], examples, [0] * count)
    message = f"{folder}/WNLI.tsv holds 145 predictions, and the leaderboard wants"
    assert [m.startswith(message) for m in caplog.messages] == [True] * warned
    assert (folder / "WNLI.tsv").read_text().count("\n") == count + 1


def write_run(folder, task, examples, values):
    """What a fine-tuned run writes of its test split; returns its folder."""
    write_predictions(
        folder / "predictions" / "test.jsonl", TASKS[task], examples, values
    )
    write_glue(folder, TASKS[task], examples, values)
    return folder


@pytest.fixture
def runs(tmp_path):
    """The folders of runs on two tasks, WNLI's whole."""
    folder = epath.Path(tmp_path)
    rows = [example(i) for i in range(146)]
    write_run(folder / "wnli", "wnli", rows, [0] * 146)
    write_run(folder / "cola", "cola", [example()], [1])
    return [folder / "cola", folder / "none", folder / "wnli"]


def test_zip_holds_the_files_of_all_runs(runs, folder, caplog):
    """The same files make the same zip."""
    path = folder / "made" / "glue.zip"
    with caplog.at_level(logging.WARNING):
        write_glue_zip(runs, path)
    with zipfile.ZipFile(path) as archive:
        assert archive.namelist() == ["CoLA.tsv", "WNLI.tsv"]
        content = (runs[2] / "glue" / "WNLI.tsv").read_bytes()
        assert archive.read("WNLI.tsv") == content
        assert {entry.date_time[0] for entry in archive.infolist()} == {1980}
    short, missing = caplog.messages
    assert "CoLA.tsv holds 1 predictions" in short and "all 1063" in short
    assert "MNLI-m.tsv, MNLI-mm.tsv, AX.tsv" in missing and "all 11" in missing
    assert "WNLI" not in missing
    assert [p.name for p in path.parent.iterdir()] == ["glue.zip"]
    write_glue_zip(reversed(runs), folder / "other.zip")
    assert path.read_bytes() == (folder / "other.zip").read_bytes()


def test_zip_of_nothing_or_of_two_runs_is_refused(runs, folder):
    with pytest.raises(ValueError, match=r"no GLUE files to pack into .*glue.zip"):
        write_glue_zip(runs[1:2], folder / "glue.zip")
    again = write_run(folder / "again", "cola", [example()], [1])
    with pytest.raises(ValueError, match=r"cola and .*again both hold .* CoLA.tsv"):
        write_glue_zip([*runs, again], folder / "glue.zip")
    assert not (folder / "glue.zip").exists()


@pytest.mark.parametrize("ids", [["2", "0", "1"], ["", "", ""]])
def test_zip_holds_a_file_of_each_subset_and_of_scores(tmp_path, ids):
    """Whatever the order of the examples, and whether they have ids or not."""
    folder = epath.Path(tmp_path)
    examples = [
        example(start + number, id=id, subset=subset)
        for start, subset in ((0, "matched"), (3, "mismatched"))
        for number, id in enumerate(ids)
    ]
    mnli = write_run(folder / "mnli", "mnli", examples, np.array([0, 1, 2, 2, 1, 1]))
    scores = np.array([-0.25, 2.3456789, 5.5], np.float32)
    rows = [example(number, id=id) for number, id in enumerate(ids)]
    stsb = write_run(folder / "stsb", "stsb", rows, scores)
    write_glue_zip([mnli, stsb], folder / "glue.zip")
    with zipfile.ZipFile(folder / "glue.zip") as archive:
        assert archive.namelist() == ["MNLI-m.tsv", "MNLI-mm.tsv", "STS-B.tsv"]
        assert b"2.346" in archive.read("STS-B.tsv")


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("glue/WNLI.tsv", b"145\t0\n", b""),
        ("glue/WNLI.tsv", b"\n3\t0", b"\n3\t1"),
        ("glue/WNLI.tsv", b"\n3\t0", b"\n3\t\xff"),
        ("predictions/test.jsonl", b'"not_', b'"'),
    ],
    ids=["cut", "another label", "no text", "another prediction"],
)
def test_a_file_that_was_changed_since_is_not_packed(runs, folder, file, old, new):
    path = runs[2] / file
    content = path.read_bytes()
    path.write_bytes(content.replace(old, new, 1))
    message = r"wnli/glue/WNLI.tsv and .*test.jsonl do not hold the same .* remove .*"
    with pytest.raises(UserError, match=message):
        write_glue_zip(runs, folder / "glue.zip")
    assert not (folder / "glue.zip").exists()
    path.write_bytes(content)
    write_glue_zip(runs, folder / "glue.zip")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"test.jsonl does not exist; remove .*results.json and run"),
        ('{"prediction": "yes"}\n', r"holds no label of WNLI at .*test.jsonl:1"),
    ],
)
def test_a_run_without_its_predictions_is_not_packed(runs, folder, content, message):
    path = runs[2] / "predictions" / "test.jsonl"
    path.write_text(content) if content else path.unlink()
    with pytest.raises(UserError, match=message):
        write_glue_zip(runs, folder / "glue.zip")
