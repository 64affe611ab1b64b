"""Rows of files: lines, tables, passages, and messages on those that are broken."""

import json
import logging
import re

import pytest
from etils import epath
from made_up_tasks import load

from gpt1_jax.tasks import rows
from gpt1_jax.tasks.paper_tasks import TASKS
from gpt1_jax.tasks.task import FileLayout


def read(path, table=None, **more):
    """The columns of all records of a file, by default in the format of its name."""
    path = epath.Path(path)
    table = table or FileLayout("", format=path.suffix[1:])
    return [record.columns for record in rows.read_table(path, table, **more)]


# --- JSON lines -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"sentence": "Cut', "is not JSON"),
        ('["a", 1]', r"\['a', 1\], not a JSON object"),
        ('{"sentence": "", "label": 1}', "is empty"),
        ('{"text": "Good.", "label": 1}', "no column 'sentence'"),
        ('{"sentence": "Good.", "label": 2}', "label 2 is neither one of"),
        ('{"sentence": "Good."}', "no label"),
        (b'{"sentence": "caf\xe9"}', "byte 0xe9 is not UTF-8"),
        (r'{"sentence": "Good.\ud800", "label": 1}', r"'\\ud800' in .* is half of a"),
        (r'{"sentence": "A.", "idx": "\udfff", "label": 1}', "is half of a char"),
        (r'{"\ud800": 0, "sentence": "A.", "label": 1}', "is half of a character"),
        ('{"a": ' * 30000, "nested too deeply"),
        ("[" * 100_000 + "]" * 100_000, "nested too deeply"),
        ('{"sentence": "A.", "label": ' + "9" * 5000 + "}", "number is too long: Exc"),
        (
            '{"sentence": "A.", "label": ' + "9" * 400 + "}",
            "label 9+.*9 is neither one of",
        ),
        ('{"sentence": "A.", "label": 1e999}', "label inf is neither one of"),
        ('{"sentence": "A.", "label": NaN}', "label nan is neither one of"),
        (
            '{"label": 1, "sentence": ' + "[" * 500 + "]" * 500 + "}",
            r"holds \[.*\], not text",
        ),
        ('{"sentence": "A.", "idx": [1], "label": 1}', r"the id \[1\] is neither text"),
    ],
)
def test_jsonl_broken_line_is_named(write, tmp_path, line, message):
    good = b'\xef\xbb\xbf{"sentence": "Good.", "label": 1}\r\n\n'
    line = line if isinstance(line, bytes) else line.encode()
    path = write("sst2/train.jsonl", good + line + b"\n")
    with pytest.raises(ValueError, match=message) as raised:
        load(TASKS["sst2"], "train", "jsonl", tmp_path)
    assert str(raised.value).startswith(f"{path}:3: ")


def test_jsonl_line_separators_inside_a_text_end_no_line(write, tmp_path):
    text = "one\u2028two\x85three\x0bfour"
    row = json.dumps({"sentence": text, "label": 1}, ensure_ascii=False)
    write("sst2/dev.jsonl", row)
    assert load(TASKS["sst2"], "dev", "jsonl", tmp_path)[0].text == (text,)


def test_jsonl_escaped_pairs_are_characters(write, tmp_path):
    write("sst2/dev.jsonl", r'{"sentence": "\ud83d\ude42\u00e9", "label": 1}')
    assert load(TASKS["sst2"], "dev", "jsonl", tmp_path)[0].text == ("🙂é",)


@pytest.mark.parametrize(
    "score", ["9" * 400, "1e999", "-Infinity", "[" * 300 + "]" * 300]
)
def test_jsonl_score_beyond_all_bounds_is_named(write, tmp_path, score):
    row = f'{{"sentence1": "A.", "sentence2": "B.", "label": {score}}}'
    path = write("stsb/train.jsonl", row)
    with pytest.raises(ValueError, match=r"score .* is not a number from") as raised:
        load(TASKS["stsb"], "train", "jsonl", tmp_path)
    assert str(raised.value).startswith(f"{path}:1: ")
    assert len(str(raised.value)) < 300


# --- the files as distributed ---------------------------------------------------

QQP = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"


def test_official_short_rows_of_qqp_are_left_out_for_training(write, tmp_path, caplog):
    rows = (
        QQP
        + "1\t2\t3\tWhy?\tHow?\t0\n4\t5\t6\tWhy this\nline?\tHow?\t1\n"
        + ("7\t8\t9\t\tWho?\t1\n")
    )
    path = write("QQP/train.tsv", rows)
    with caplog.at_level(logging.WARNING):
        examples = load(TASKS["qqp"], "train", "official", tmp_path)
    assert [e.text for e in examples] == [("Why?", "How?"), ("", "Who?")]
    assert caplog.messages == [
        f"2 rows with too few columns are left out; the first is {path}:3."
    ]
    write("QQP/dev.tsv", rows)
    with pytest.raises(ValueError, match=r"dev\.tsv:3: the row has 4 columns, .* 6"):
        load(TASKS["qqp"], "dev", "official", tmp_path)


def test_official_further_columns_are_let_be(write, tmp_path):
    write("SST-2/dev.tsv", "sentence\tlabel\nGood.\t1\tmore\n")
    assert load(TASKS["sst2"], "dev", "official", tmp_path)[0].text == ("Good.",)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("SST-2/train.tsv", "text\tlabel\nGood.\t1\n", "2: .*'sentence'; .* text, lab"),
        ("SST-2/train.tsv", "sentence\tgrade\nGood.\t1\n", "2: .* no column 'label'"),
        ("SST-2/train.tsv", "sentence\tlabel\nGood.\t2\n", "2: label '2' is neither"),
        ("SST-2/train.tsv", "sentence\tlabel\n\t1\n", "2: the text .* is empty"),
        ("CoLA/train.tsv", "gj04\t1\n", "1: there is no column 3; .* 0, 1"),
        ("CoLA/train.tsv", "gj\t1\t\tGood.\ngj\t1\n", "2: the row has 2 columns, .* 4"),
    ],
)
def test_official_broken_table_is_named(write, tmp_path, file, content, message):
    path = write(file, content)
    task = TASKS[{"S": "sst2", "C": "cola"}[file[0]]]
    with pytest.raises(ValueError, match=f"^{re.escape(path)}:{message}"):
        load(task, "train", "official", tmp_path)


def passage(**changes):
    values = {
        "article": "Ann has a hat.",
        "questions": ["Ann has _ ."],
        "options": [["a hat", "a dog", "a cat", "a car"]],
        "answers": ["A"],
        "id": "high1.txt",
    }
    return {key: v for key, v in {**values, **changes}.items() if v is not None}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"article": None}, ":1: there is no column 'article'"),
        ({"answers": []}, ":1: the passage has 1 questions, 1 .* and 0 answers"),
        ({"answers": "A"}, ":1: the passage holds 'A', not a list"),
        ({"answers": ["E"]}, ":1, question 1: label 'E' is neither one of"),
        ({"options": [["a hat"]]}, ":1, question 1: .*not a list of 4"),
    ],
)
def test_official_broken_passage_is_named(write, tmp_path, changes, message):
    write("RACE/dev/middle/1.txt", json.dumps(passage()))
    path = write("RACE/dev/high/2.txt", json.dumps(passage(**changes)))
    with pytest.raises(ValueError, match=f"^{re.escape(path)}{message}"):
        load(TASKS["race"], "dev", "official", tmp_path)


def test_questions_of_a_passage_are_rows(write):
    both = passage(
        questions=["One?", "Two?"], options=[["a"], ["b"]], answers=["A", "B"]
    )
    path = epath.Path(write("high/1.txt", json.dumps(both)))
    records = rows.read_table(path.parent, FileLayout("", format="race"), subset="high")
    assert [tuple(record) for record in records] == [
        (
            {
                "article": "Ann has a hat.",
                "example_id": "high1.txt",
                "question": f"{name}?",
                "options": [option],
                "answer": answer,
            },
            f"{path}:1, question {number}",
            "high",
        )
        for number, name, option, answer in ((1, "One", "a", "A"), (2, "Two", "b", "B"))
    ]


# --- tables ---------------------------------------------------------------------


def test_columns_are_renamed_joined_and_listed(write):
    path = write("a.csv", "w,x,y,z\n1,2,3,4\n")
    columns = {"one": "z", "joined": ("w", "x"), "listed": ["x", "y"]}
    made = read(path, FileLayout("", columns, "csv"))
    assert made == [{"one": "4", "joined": "1 2", "listed": ["2", "3"]}]


def test_columns_without_a_header_have_positions(write):
    path = write("a.tsv", "1\t2\n3\t4\n")
    assert read(path, FileLayout("", {"b": 1})) == [{"b": "2"}, {"b": "4"}]


def test_column_may_be_missing_if_it_is_optional(write):
    path, table = write("a.tsv", "a\n1\n"), FileLayout("", {"x": "a", "y": "b"})
    assert read(path, table, optional="y") == [{"x": "1"}]
    with pytest.raises(
        ValueError, match=r"a.tsv:2: there is no column 'b'; .* are a\."
    ):
        read(path, table)


def test_two_columns_of_one_name_are_refused_in_a_users_file(write):
    path = write("a.csv", "a,b,a\n1,2,3\n")
    with pytest.raises(ValueError, match=r"a.csv:1: two columns are named 'a'"):
        read(path)
    assert read(path, FileLayout("", {"x": "b"}, "csv")) == [{"x": "2"}]


def test_files_are_found_by_pattern(write):
    folder = epath.Path(write("b 2.csv", "")).parent
    write("b 1.csv", "")
    assert [path.name for path in rows.find(folder, "b*.csv")] == ["b 1.csv", "b 2.csv"]
    assert rows.find(folder, "b 1.csv") == [folder / "b 1.csv"]
    assert rows.find(folder, "c.csv") == rows.find(folder / "none", "*") == []
