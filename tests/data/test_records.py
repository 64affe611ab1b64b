"""Rows of JSON, CSV and TSV: their cells, and files that are refused."""

import csv
import gzip
import json
import math
import tracemalloc
from datetime import date, datetime
from decimal import Decimal

import numpy as np
import pytest

from gpt1_jax.data import records, text_files
from gpt1_jax.data.records import (
    cell_text,
    read_input,
    read_number,
    read_rows,
    read_texts,
)
from gpt1_jax.errors import UserError


@pytest.fixture
def rows(write, monkeypatch, tmp_path):
    """`rows(data, format_name, **options)`: the rows of a file named `a`."""
    monkeypatch.chdir(tmp_path)

    def read(data, format_name, **options):
        write("a", data)
        return list(read_rows("a", format_name, **options))

    return read


@pytest.mark.parametrize(
    ("format_name", "data"),
    [
        ("csv", b'x, y \r\n\r\n1,"a\nb"\r\n2,c\n'),
        ("tsv", b"x\t y\n\n1\ta b\n\n2\tc"),
        ("json", b'\n\n{" x": "1", "y": "a b"}\n  \n{"x": "2", "y ": "c"}'),
    ],
)
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_rows_have_their_line_and_cells_by_column(rows, format_name, data, mark):
    """Names of columns have no blanks around them."""
    (where, one), (last, two) = rows(mark + data, format_name)
    assert (one["x"], one["y"].split()) == ("1", ["a", "b"])
    assert two == {"x": "2", "y": "c"}
    assert (where, last) == ("a:3", "a:5")


def test_rows_of_a_json_list_have_their_place_in_it(rows):
    assert rows(b'\xef\xbb\xbf\n[{"x": 1},\r\n\r\n{"x": [2]}\n]\n', "json") == [
        ("a, object 1 of the list", {"x": 1}),
        ("a, object 2 of the list", {"x": [2]}),
    ]


@pytest.mark.parametrize(
    ("cell", "number"),
    [
        *(("312", 312), (" -2.5 ", -2.5), ("+.5", 0.5), ("7.", 7), ("3e-05", 3e-5)),
        *((4, 4), (2.5, 2.5), (np.float32(0.5), 0.5)),
        *(("NA", None), ("", None), (None, None), (math.nan, None)),
    ],
)
def test_a_number_is_read_from_its_cell(cell, number):
    assert read_number({"x": cell}, "x", "a:1") == number


@pytest.mark.parametrize(
    "cell",
    [
        *("1_000", "٣٤", "1,5", "0x1F", "inf", "1e999", "1 0", "1\n2"),
        *(10**400, True, [1], "1" * 100_000 + "x"),
    ],
    ids=lambda cell: f"{cell!r:.20}",
)
def test_what_is_no_plain_number_is_named(cell):
    with pytest.raises(UserError, match=r"a:1: column 'x' holds .*, not a number such"):
        read_number({"x": cell}, "x", "a:1")


@pytest.mark.parametrize(
    ("format_name", "data", "message"),
    [
        ("csv", b'x\n"a', "a:2: this is not CSV: unexpected end of data"),
        ("csv", b"x\ncaf\xe9\n", "a:2: byte 0xe9 is not UTF-8"),
        ("csv", b"a;b\n1;310,5\n", "a:2: the row has 2 .* has 1. .* by semicolons: sa"),
        ("csv", b'"x";"y"\n1;2\n', "a:1: this is not CSV.* by semicolons: save"),
        ("csv", b'x,"y" z\n', "a:1: this is not CSV: [^.]*\\.$"),
        ("csv", b"x, x\n", "a:1: two columns are named 'x'"),
        ("tsv", b"x\ty\n1\n", "a:2: the row has 1 columns, and the first line has 2"),
        ("json", "{}".encode("utf-16"), "a is UTF-16 text, not UTF-8"),
        ("json", b"{}\n{", "a:2: this is not JSON"),
        ("json", b"\n[{},\n{", "a: this is not JSON: .*line 2 column 2"),
        ("json", b'[{}, "b"]', "a, object 2 of the list: this is 'b', not a JSON obj"),
        ("json", b"[" * 100_000, "a: this JSON is nested too deeply"),
        ("json", b'{" x": 1, "x": 2}', "a:1: two columns are named 'x'"),
        ("json", b'{}\n{"a": ["\\udc00"]}', "a:2: '.udc00' in .* half of a character"),
        ("", b"", "a ends in ''; rows are read from .jsonl, .ndjson"),
    ],
)
def test_rows_that_cannot_be_read_are_named(rows, format_name, data, message):
    with pytest.raises(UserError, match=f"^{message}"):
        rows(data, format_name)


def test_of_one_json_column_the_others_may_hold_anything(rows):
    """Titles of crawled text are often cut within a character."""
    data = rb'{"title": "\ud83d", "text": "a"}'
    ((_, cells),) = rows(data, "json", column="text")
    assert cells["text"] == "a"
    with pytest.raises(UserError, match=r"^a:1: .* half of a character"):
        rows(data, "json")


def test_a_cell_of_csv_may_be_long(rows, monkeypatch):
    """The library's own limit is 131,072 characters, and it holds for other code."""
    limit, text = csv.field_size_limit(), "a, " * 100_000
    found = rows(f'x,y\n"{text}",1\n'.encode(), "csv")
    assert found == [("a:2", {"x": text, "y": "1"})]
    assert csv.field_size_limit() == limit
    monkeypatch.setattr(records, "LONGEST_LINE", 1000)  # as of a quote not closed
    with pytest.raises(UserError, match=r"^a:2: this is not CSV: field larger .*1000"):
        rows(b'x\n"' + b"a" * 2000, "csv")
    assert csv.field_size_limit() == limit


@pytest.mark.parametrize("indent", [None, 2])
def test_standard_input_may_be_a_json_list(standard_input, indent):
    objects = [{"prompt": "one"}, {"prompt": "two"}]
    for data, rows in (
        (json.dumps(objects, indent=indent), objects),
        ("[1] is a footnote\n", ["[1] is a footnote"]),
    ):
        standard_input(data.encode())
        assert [row for _, row in read_input("-", "prompt")] == rows


def test_a_published_table_may_have_more_cells_or_fewer(rows, caplog):
    data = b"x\ty\tx\n1\t2\t3\t4\n5\n6\t7\n"
    found = rows(data, "tsv", as_published=True, skip_short=True)
    assert found == [("a:2", {"x": "3", "y": "2"})]
    left_out = "Left out 2 rows with too few columns; the first is a:3."
    assert caplog.messages == [left_out]
    assert rows(b"1\t2\n", "tsv", header=False) == [("a:1", {0: "1", 1: "2"})]


@pytest.mark.parametrize("format_name", ["csv", "tsv", "json"])
def test_memory_does_not_grow_with_the_rows(tmp_path, monkeypatch, format_name):
    monkeypatch.setattr(text_files, "_PIECE_BYTES", 1 << 12)
    line = b'{"x": "1"}\n' if format_name == "json" else b"one two three\n"

    def peak(count):
        (tmp_path / "a").write_bytes(gzip.compress(line * count))
        tracemalloc.start()
        assert sum(1 for _ in read_rows(tmp_path / "a", format_name)) >= count - 1
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    peak(10)
    assert peak(15_000) < peak(5000) + 50_000


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *(("a ", "a "), (3, "3"), (2.5, "2.5"), (True, "True"), (None, "")),
        *((Decimal("1.50"), "1.50"), (date(2018, 6, 11), "2018-06-11"), (math.nan, "")),
        (datetime(2018, 6, 11, 1, 2), "2018-06-11 01:02:00"),
    ],
)
def test_a_cell_is_its_text(value, text):
    assert cell_text(value, "x", "a:1") == text


def test_a_cell_that_is_no_text_is_named():
    with pytest.raises(UserError, match=r"^a:1: column 'x' holds b'a', not text"):
        cell_text(b"a", "x", "a:1")


def texts(write, rows, key="config.data.train", **options):
    path = write("a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    return "".join(read_texts(path, key, "text", **options))


def test_texts_may_be_numbers_and_many(write, monkeypatch):
    monkeypatch.setattr(records, "_PIECE_CHARACTERS", 10)
    rows = [{"text": value} for value in ("one", 2, "", 3.5, True)]
    assert texts(write, rows * 100) == "one\n2\n\n3.5\nTrue\n" * 100


def test_empty_texts_are_refused_or_passed_over(write, caplog):
    rows = [{"text": value} for value in ("one", None, " ", "two")]
    message = r"a\.jsonl:2: the field 'text' is empty.*skip_empty=True"
    with pytest.raises(UserError, match=message):
        texts(write, rows)
    records.warn_left_out.cache_clear()
    for _ in range(2):  # a corpus is read twice
        assert texts(write, rows, skip_empty=True) == "one\ntwo\n"
    (message,) = caplog.messages
    assert message.startswith("Left out 2 rows without text; the first is ")
    assert message.endswith("a.jsonl:2.")


TEXT_FIELD = "'body'; name the text's field with --config.data.text_field=NAME"


@pytest.mark.parametrize(
    ("row", "key", "message"),
    [
        ({"body": 1}, "config.data.train", f"no field 'text'; it has {TEXT_FIELD}"),
        ({}, "config.frequency", "no field 'text'; it has none; leave the file out"),
        ({"text": ["a"]}, "", r"column 'text' holds \['a'\], not text"),
    ],
)
def test_a_row_without_text_in_the_field_is_named(write, row, key, message):
    with pytest.raises(UserError, match=rf"a\.jsonl:2: .*{message}"):
        texts(write, [{"text": "fine"}, row], key)
