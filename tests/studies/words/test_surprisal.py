"""The surprisal job, as its user runs it."""

import csv
import functools
import io
import json

import numpy as np
import pytest
from tiny_tasks import write_lines

import gpt1_jax
from gpt1_jax.data.words import POSITION, SURPRISAL
from gpt1_jax.errors import UserError
from gpt1_jax.studies.words import job

TEXT = "The abcd of efgh. And a!\n\nhij bcd ghi"
COLUMNS = ["step", *POSITION, *SURPRISAL]


@pytest.fixture
def ask(run_job):
    """A function from values to what the job prints."""
    return functools.partial(run_job, "surprisal")


def rows_of(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def numbers(rows, name="nats"):
    return np.array([float(row[name]) for row in rows])


@pytest.fixture
def table(ask, tmp_path):
    """A function from values to the rows of the table that the job writes."""

    def run(**values):
        ask(output=str(tmp_path / "out.csv"), **values)
        return rows_of(tmp_path / "out.csv")

    return run


def test_a_text_is_a_table_on_standard_output(ask, pretrained):
    lines = ask(text=TEXT).splitlines()
    rows = list(csv.DictReader(io.StringIO("\n".join(lines)), delimiter="\t"))
    assert list(rows[0]) == COLUMNS
    assert [row["word"] for row in rows] == TEXT.split()
    expected = gpt1_jax.load(str(pretrained)).surprisal(TEXT)
    assert {row["step"] for row in rows} == {"12"}
    for row, each in zip(rows, expected, strict=True):
        assert row["tokens"].split() == list(each.tokens)
        assert TEXT[int(row["start"]) : int(row["end"])] == each.word
        assert float(row["bits"]) == pytest.approx(each.bits, abs=1e-5)
        for name in ("line", "sentence", "position", "num_tokens", "rank"):
            assert row[name] == str(getattr(each, name)), name


def test_a_file_becomes_a_file_of_either_format(ask, tmp_path):
    (tmp_path / "a.txt").write_text(TEXT)
    text_file = str(tmp_path / "a.txt")
    plain, arrays = tmp_path / "new" / "a.csv", tmp_path / "a.npz"
    out = ask(input=text_file, output=str(plain))
    assert "step 12: 9 words of " in out and f"Wrote {plain}" in out
    mean = numbers(rows_of(plain), "bits").mean()
    assert f"{mean:.3f} bits per word" in out
    ask(input=text_file, output=str(arrays))
    with np.load(arrays) as file:
        assert [name for name in file if name != "attributes"] == COLUMNS
        assert file["word"].tolist() == TEXT.split()
        np.testing.assert_allclose(file["nats"], numbers(rows_of(plain)), atol=1e-6)
        about = json.loads(str(file["attributes"]))
    assert about["context"] == "line" and "init_from" in about


def test_what_is_read_before_a_word_and_its_punctuation_are_chosen(table):
    def last(**reading):
        return table(text="of, abcd\nhij!", **reading)[-1]

    alone = last()
    assert alone["word"] == "hij!" and last(punctuation="apart")["word"] == "!"
    assert last(context="text")["nats"] != alone["nats"]
    assert last(first_word="unscored")["nats"] == ""


def test_given_words_come_back_row_for_row(ask, table, tmp_path, pretrained):
    given = [
        {"item": str(item), "w": word, "RT": f"{200 + number}"}
        for item, text in enumerate(["the abcd of", "efgh and", "the abcd"])
        for number, word in enumerate(text.split())
    ]
    given[3]["w"] = "  efgh\u200b hij "  # two words in a cell
    path = write_lines(tmp_path / "a.jsonl", given)
    how = dict(input=str(path), words_column="w", text_column="item")
    rows = table(**how)
    assert list(rows[0]) == ["step", "item", "w", "RT", *SURPRISAL]
    assert [{key: row[key] for key in given[0]} for row in rows] == given
    model = gpt1_jax.load(str(pretrained))
    expected = [
        each.nats for each in model.surprisal("the abcd of\nefgh hij and\nthe abcd")
    ]
    expected[3:5] = [expected[3] + expected[4]]
    np.testing.assert_allclose(numbers(rows), expected, atol=1e-5)
    ask(output=str(tmp_path / "out.npz"), **how)
    with np.load(tmp_path / "out.npz") as file:
        assert file["RT"].tolist() == [row["RT"] for row in given]


def test_the_users_own_columns_stay_as_they_were(table, ask, tmp_path):
    row = {"w": "abcd", "small": 1.5e-8, "none": None, "note": "x\ty\rz", "list": ["é"]}
    how = {"input": str(write_lines(tmp_path / "a.jsonl", [row, row]))}
    how["words_column"] = "w"
    found, _ = table(**how)
    own = {name: found[name] for name in row}
    assert own == {**row, "small": "1.5e-08", "none": "", "list": '["é"]'}
    header, *rows = ask(**how).splitlines()  # printed, a row is one line
    assert [each.count("\t") for each in rows] == [header.count("\t")] * 2
    assert rows[0].split("\t")[4] == "x y z"


@pytest.mark.usefixtures("real_figures")
def test_all_steps_are_each_step_in_turn(ask, table, tmp_path):
    picture, output = tmp_path / "new" / "all.png", tmp_path / "all.csv"
    out = ask(text=TEXT, step="all", output=str(output), figure=str(picture))
    assert "step 8: 9 words" in out and "step 12: 9 words" in out
    assert picture.read_bytes().startswith(b"\x89PNG")
    before, after = (table(text=TEXT, step=step) for step in ("8", "12"))
    assert rows_of(output) == before + after
    assert (numbers(before) != numbers(after)).all()


def test_a_picture_has_its_words_in_a_table_and_replaces_nothing(
    ask, tmp_path, monkeypatch
):
    """Those numbers would have the name of the table, or of the words."""
    monkeypatch.chdir(tmp_path)
    ask(text="It was\na dog", figure="a.svg")
    header, *rows = (tmp_path / "a.csv").read_text().splitlines()
    assert header == "step,item,word,bits,mean"
    drawn = [row.split(",")[1:3] for row in rows]
    assert drawn == [["1", "It"], ["1", "was"], ["2", "a"], ["2", "dog"]]
    ask(text="It was", figure="a.svg", output="a.csv")
    assert (tmp_path / "a.csv").read_text().startswith("step,line,sentence,")
    (tmp_path / "words.csv").write_text("word\nIt\n")
    given = {"input": "words.csv", "words_column": "word"}
    for key, name in ("figure", "words.pdf"), ("output", "./words.csv"):
        with pytest.raises(FileExistsError, match=r"would replace words\.csv, which"):
            ask(**given, **{key: name})
    assert (tmp_path / "words.csv").read_text() == "word\nIt\n"


W = {"words_column": "w"}


@pytest.mark.parametrize(
    ("name", "content", "values", "message"),
    [
        # found before the model is loaded
        ("a.txt", " \n\n", {}, "a.txt holds no word"),
        ("a.csv", "w\nx\n", {}, "--config.words_column=NAME"),
        ("a.csv", "w,b\nx,1\n,2\n", W, "a.csv:3: .* holds '', not a"),
        ("a.csv", "w,bits\nx,1\n", W, "column 'bits' already, .* rename"),
        ("a.csv", "w,attributes\nx,1\n", {**W, "output": "a.npz"}, "'attributes' alr"),
        # by its tokenizer
        ("a.txt", f"ok\nok {'ab' * 60}", {}, "a.txt:2: the word 'abab.* reads 40 at"),
        ("a.csv", "w\nthe\n\u200b\n", W, "a.csv:3: nothing is left of '.u2"),
    ],
)
def test_bad_text_is_refused_and_nothing_harmed(
    ask, tmp_path, monkeypatch, name, content, values, message
):
    (tmp_path / name).write_text(content)
    output = tmp_path / "out.csv"
    output.write_text("old")
    monkeypatch.chdir(tmp_path)
    if "the word" not in message and "left" not in message:
        monkeypatch.setattr(job, "open_steps", None)  # which would be called
    with pytest.raises(UserError, match=message):
        ask(input=name, **{"output": "out.csv", **values})
    assert output.read_text() == "old"
    assert {path.name for path in tmp_path.iterdir()} == {name, "out.csv"}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"step": "9"}, "no checkpoint of step 9"),
        ({"init_from": "no/run", "step": "all"}, "no/run is not a run folder"),
        ({"overlap": 40}, "overlap=40 .* 40 tokens; .* 1 to 39"),
        ({"first_word": "unscored", "figure": "b.png"}, "No word has a surprisal"),
    ],
    ids=str,
)
def test_bad_values_are_refused(ask, tmp_path, monkeypatch, values, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        ask(text="a", **values)
    assert not [*tmp_path.iterdir()]
