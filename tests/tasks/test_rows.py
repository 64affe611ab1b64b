"""Rows of files: lines, tables, JSON, RACE's passages."""

import json
import re

import pytest
from etils import epath

from gpt1_jax.tasks import rows
from gpt1_jax.tasks.task import Table


@pytest.fixture
def write(tmp_path):
    """`write(content, name)` makes a file; returns its path."""

    def make(content, name="a.jsonl"):
        path = epath.Path(tmp_path) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return make


def read(path, table=None, **more):
    """The columns of all records of a file, by default in the format of its name."""
    table = table or Table("", format=path.suffix[1:])
    return [record.columns for record in rows.read_table(path, table, **more)]


# --- lines ----------------------------------------------------------------------


def test_only_newlines_end_a_line():
    file = ["\ufeffone\u2028two\x85\n".encode(), b"three\x0bfour\r\n", b"five"]
    lines = ["one\u2028two\x85\n", "three\x0bfour\r\n", "five"]
    assert list(rows.text_lines(file, "a")) == lines


@pytest.mark.parametrize("suffix", rows.FORMATS)
def test_line_that_is_not_utf8_is_named(write, suffix):
    path = write(b"one\ntwo\ncaf\xe9\n", f"a{suffix}")
    with pytest.raises(ValueError, match=r"byte 0xe9 is not UTF-8 .* iconv") as raised:
        list(rows.text_lines([b"one\n", b"two\n", b"caf\xe9\n"], str(path)))
    assert str(raised.value).startswith(f"{path}:3: ")
    with pytest.raises(ValueError):
        read(path)


# --- JSON lines -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"a": "Cut', "is not JSON"),
        ('["a", 1]', r"\['a', 1\], not a JSON object"),
        ("[" * 300 + "]" * 300, "not a JSON object"),
        (r'{"a": "Good.\ud800"}', r"'\\ud800' in 'Good.*' is half of a character"),
        (r'{"a": ["b", {"c": "\udfff"}]}', "is half of a character"),
        (r'{"\ud800": 0}', "is half of a character"),
        ('{"a": ' * 30_000, "nested too deeply"),
        ("[" * 100_000 + "]" * 100_000, "nested too deeply"),
        ('{"a": ' + "9" * 5000 + "}", "number is too long: Exceeds the limit"),
    ],
    ids=range(9),
)
def test_json_line_that_cannot_be_read_is_named(write, line, message):
    path = write(b'\xef\xbb\xbf{"a": 1}\r\n\n' + line.encode() + b"\n")
    with pytest.raises(ValueError, match=message) as raised:
        read(path)
    assert str(raised.value).startswith(f"{path}:3: ")
    assert len(str(raised.value)) < 400


def test_escaped_pairs_of_surrogates_are_characters(write):
    assert read(write(r'{"a": "\ud83d\ude42\u00e9"}')) == [{"a": "🙂é"}]


# --- tables ---------------------------------------------------------------------


def test_columns_are_renamed_joined_and_listed(write):
    path = write("w,x,y,z\n1,2,3,4\n", "a.csv")
    columns = {"one": "z", "joined": ("w", "x"), "listed": ["x", "y"]}
    made = read(path, Table("", columns, "csv"))
    assert made == [{"one": "4", "joined": "1 2", "listed": ["2", "3"]}]


def test_columns_without_a_header_have_positions(write):
    path = write("1\t2\n3\t4\n", "a.tsv")
    assert read(path, Table("", {"b": 1})) == [{"b": "2"}, {"b": "4"}]


def test_column_may_be_missing_if_it_is_optional(write):
    path, table = write("a\n1\n", "a.tsv"), Table("", {"x": "a", "y": "b"})
    assert read(path, table, optional="y") == [{"x": "1"}]
    with pytest.raises(
        ValueError, match=r"a.tsv:2: there is no column 'b'; .* are a\."
    ):
        read(path, table)


def test_two_columns_of_one_name_are_refused_in_a_users_file(write):
    path = write("a,b,a\n1,2,3\n", "a.csv")
    with pytest.raises(ValueError, match=r"a.csv:1: two columns are named 'a'"):
        read(path)
    assert read(path, Table("", {"x": "b"}, "csv")) == [{"x": "2"}]


def test_files_are_found_by_pattern(write):
    folder = write("", "b 2.csv").parent
    write("", "b 1.csv")
    assert [path.name for path in rows.find(folder, "b*.csv")] == ["b 1.csv", "b 2.csv"]
    assert rows.find(folder, "b 1.csv") == [folder / "b 1.csv"]
    assert rows.find(folder, "c.csv") == rows.find(folder / "none", "*") == []


# --- passages -------------------------------------------------------------------


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
    ],
)
def test_passage_that_is_broken_is_named(write, changes, message):
    write(json.dumps(passage()), "high/1.txt")
    path = write(json.dumps(passage(**changes)), "high/2.txt")
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))}{message}"):
        read(path.parent, Table("", format="race"))


def test_questions_of_a_passage_are_rows(write):
    both = passage(
        questions=["One?", "Two?"], options=[["a"], ["b"]], answers=["A", "B"]
    )
    path = write(json.dumps(both), "high/1.txt")
    records = rows.read_table(path.parent, Table("", format="race"), subset="high")
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
