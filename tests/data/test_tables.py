"""Tables are written row by row, whole or not at all."""

import csv
import json
import math

import numpy as np
import pytest

from gpt1_jax.data.tables import open_table

KINDS = {"number": int, "value": float}
ROWS = [
    {"word": 'a "b", c', "number": 1, "value": 0.1234567, "parts": ("x", "y")},
    {"word": "é\nd", "number": 2, "value": math.nan, "parts": ()},
    {"word": "long " * 9, "number": 3, "value": 2, "parts": ("z",)},
]


def write(path):
    with open_table(path, KINDS, {"about": "é"}) as table:
        table.append(ROWS[:2])
        table.append(ROWS[2:])


def test_csv_has_a_header_and_empty_cells_for_nan(tmp_path):
    write(tmp_path / "a.csv")
    with (tmp_path / "a.csv").open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["word", "number", "value", "parts"]
    assert rows == [
        ['a "b", c', "1", "0.123457", "x y"],
        ["é\nd", "2", "", ""],
        ["long " * 9, "3", "2", "z"],
    ]
    assert b"\r" not in (tmp_path / "a.csv").read_bytes()


def test_npz_has_an_array_for_each_column(tmp_path):
    write(tmp_path / "a.npz")
    with np.load(tmp_path / "a.npz") as file:
        assert file["word"].tolist() == [row["word"] for row in ROWS]
        assert file["parts"].tolist() == ["x y", "", "z"]
        assert file["number"].tolist() == [1, 2, 3]
        np.testing.assert_array_equal(file["value"], [0.1234567, math.nan, 2.0])
        assert json.loads(str(file["attributes"])) == {"about": "é"}


@pytest.mark.parametrize("suffix", [".csv", ".npz"])
def test_a_table_that_fails_leaves_the_old_one(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    path.write_text("old")
    with pytest.raises(RuntimeError), open_table(path, KINDS, {}) as table:
        table.append(ROWS)
        raise RuntimeError
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_tsv_has_no_quotes_and_a_space_for_a_tab_or_a_line_end(tmp_path):
    write(tmp_path / "a.tsv")
    rows = [{"word": '"a\tb', "number": 4, "value": 1.0, "parts": ()}]
    with open_table(tmp_path / "b.tsv", KINDS, {}) as table:
        table.append(rows)
    lines = (tmp_path / "a.tsv").read_text("utf-8").split("\n")
    assert lines == [
        "word\tnumber\tvalue\tparts",
        'a "b", c\t1\t0.123457\tx y',
        "é d\t2\t\t",
        "long " * 9 + "\t3\t2\tz",
        "",
    ]
    assert (tmp_path / "b.tsv").read_text().splitlines()[1] == '"a b\t4\t1.000000\t'
