"""Rows are read and written one by one; files appear whole or not at all."""

import csv
import io
import json
import math
import sys
import tracemalloc

import numpy as np
import pytest

from gpt1_jax.data.records import (
    read_input,
    read_number,
    read_rows,
    require_column,
    split_lines,
)
from gpt1_jax.data.tables import (
    check_library,
    format_table,
    open_arrays,
    open_table,
)
from gpt1_jax.errors import UserError

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


# --- rows that are read -------------------------------------------------------


def rows(data, format_name, **options):
    return list(read_rows(io.BytesIO(data), "a", format_name, **options))


@pytest.mark.parametrize(
    ("format_name", "data"),
    [
        ("csv", b'x,y\r\n\r\n1,"a\nb"\r\n2,c\n'),
        ("tsv", b"x\ty\n\n1\ta b\n\n2\tc"),
        ("json", b'\n\n{"x": "1", "y": "a b"}\n  \n{"x": "2", "y": "c"}'),
        ("json", b'\n\n{"x": "1", "y": "a b"}\n  \n{"x": "2", "y": "c"}'),
    ],
)
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_rows_have_their_line_and_cells_by_column(format_name, data, mark):
    (where, one), (last, two) = rows(mark + data, format_name)
    assert (one["x"], one["y"].split()) == ("1", ["a", "b"])
    assert two == {"x": "2", "y": "c"}
    assert (where, last) == ("a:3", "a:5")


def test_rows_of_a_json_list_have_their_place_in_it():
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
        *("1_000", "٣٤", "２", "1,5", "1e", "0x1F", "inf", "1e999", "1 0", "1\n2"),
        *(math.inf, 10**400, True, [1], {}),
        "1" * 100_000 + "x",
    ],
    ids=lambda cell: f"{cell!r:.20}",
)
def test_what_is_no_plain_number_is_named(cell):
    with pytest.raises(UserError, match=r"a:1: column 'x' holds .*, not a number such"):
        read_number({"x": cell}, "x", "a:1")


def test_rows_of_a_table_without_a_header_are_numbered():
    assert rows(b"1\t2\n", "tsv", header=False) == [("a:1", {0: "1", 1: "2"})]


@pytest.mark.parametrize(
    ("format_name", "data", "message"),
    [
        ("csv", b'x\n"a', "a:2: this is not CSV: unexpected end of data"),
        ("csv", b'x\n"a" b\n', "a:2: this is not CSV: "),
        ("csv", b"x\ncaf\xe9\n", "a:2: byte 0xe9 is not UTF-8"),
        (
            "csv",
            b"item;word;rt\n1;the;310,5\n",
            "a:2: the row has 2 .* has 1. .* by semicolons: save it with commas",
        ),
        (
            "csv",
            b'"x";"y"\n1;2\n',
            "a:1: this is not CSV.* separated by semicolons: sa",
        ),
        (
            "csv",
            b'"x"\t"y"\n',
            "a:1: this is not CSV.* separated by tabs: end its name",
        ),
        ("csv", b'x,"y" z\n', "a:1: this is not CSV: [^.]*\\.$"),
        ("tsv", b"x\ty\n1\n", "a:2: the row has 1 columns, and the first line has 2"),
        ("tsv", b"x\n1\t2\n", "a:2: the row has 2 columns, and the first line has 1"),
        ("tsv", b"x\tx\n", "a:1: two columns are named 'x'"),
        ("json", "{}".encode("utf-16"), "a is UTF-16 text, not UTF-8"),
        ("json", "{}".encode("utf-16-be"), "a is UTF-16BE text, not UTF-8"),
        ("json", b"{}\n{", "a:2: this is not JSON"),
        ("json", b"\n[{},\n{", "a, object 2 of the list: this is not JSON"),
        ("json", b'{}\n{"a": ["\\udc00"]}', "a:2: '.udc00' in .* half of a character"),
    ],
)
def test_rows_that_cannot_be_read_are_named(format_name, data, message):
    with pytest.raises(UserError, match=f"^{message}"):
        rows(data, format_name)


def test_a_cell_of_csv_may_be_long(monkeypatch):
    """The library's own limit is 131,072 characters, and it holds for other code."""
    limit, text = csv.field_size_limit(), "a, " * 100_000
    assert rows(f'x,y\n"{text}",1\n'.encode(), "csv") == [
        ("a:2", {"x": text, "y": "1"})
    ]
    assert csv.field_size_limit() == limit
    csv.field_size_limit(1000)  # as of a quote not closed
    with pytest.raises(
        UserError, match=r"^a:2: this is not CSV: field larger than .*1000"
    ):
        rows(b'x\n"' + b"a" * 2000, "csv")
    assert csv.field_size_limit() == limit


@pytest.mark.parametrize(
    ("columns", "hint"),
    [
        (
            ["item;word;rt"],
            "semicolons: save it with commas, and its numbers with points",
        ),
        (["item\tword"], r"tabs: end its name in \.tsv"),
        (["item,word"], r"commas: end its name in \.csv"),
        (["item"], r"the columns are item\.$"),
        (["item;x", "b"], r"the columns are item;x, b\.$"),
        ([], r"the columns are \.$"),
    ],
)
def test_a_missing_column_may_be_among_those_of_another_separator(columns, hint):
    with pytest.raises(UserError, match=f"^a:2: there is no column 'word'.*{hint}"):
        require_column(dict.fromkeys(columns, "1"), "word", "a:2")


@pytest.mark.parametrize(
    ("cell", "hint"),
    [
        ("310,5", r" Write decimals with a point, and write no comma\."),
        ("1,000", r" Write decimals with a point, and write no comma\."),
        ("a,5", ""),
    ],
)
def test_a_decimal_comma_is_named(cell, hint):
    with pytest.raises(
        UserError, match=f"^a:2: .* '{cell}', not a number .*2\\.5\\.{hint}$"
    ):
        read_number({"rt": cell}, "rt", "a:2")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json.gz", b"\x1f\x8b", "is JSON, not plain text"),
        ("a.parquet", b"PAR1\x15", "is a Parquet file"),
        ("a.html", b"<p>One</p>", "is HTML or XML"),
        ("a.txt", b'{"text": "one"}\n{"text": "two"}\n', "is JSON, not plain text"),
        ("a.txt", b"PK\x03\x04\n", "is a zip archive, not plain text. Unpack it"),
        ("a", b"\x03\0\x07\0\x01\0", "holds binary data"),
        ("a.csv", b"PAR1\x15\n", "is a Parquet file"),
    ],
)
def test_what_is_given_to_a_model_is_text_or_rows(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=f"{name} {message}") as raised:
        list(read_input(str(tmp_path / name), "prompt"))
    assert "\n" not in str(raised.value) and "iconv" not in str(raised.value)


def test_a_published_table_may_have_more_cells_or_fewer(caplog):
    data = b"x\ty\tx\n1\t2\t3\t4\n5\n6\t7\n"
    options = dict(as_published=True, skip_short=True)
    assert rows(data, "tsv", **options) == [("a:2", {"x": "3", "y": "2"})]
    assert caplog.messages == [
        "2 rows with too few columns are left out; the first is a:3."
    ]


def test_three_line_ends_and_no_other_break():
    text = "one\r\n\rtwo\u2028still\x0btwo\n\n\r\nlast"
    lines = ["one\r\n", "\r", "two\u2028still\x0btwo\n", "\n", "\r\n", "last"]
    assert list(split_lines(text)) == lines
    assert list(split_lines("")) == []


class Many(io.RawIOBase):
    """A file of many equal lines."""

    def __init__(self, line, count):
        self.line, self.count = line, count

    def readable(self):
        return True

    def readinto(self, buffer):
        number = min(len(buffer) // len(self.line), self.count)
        data = self.line * number
        self.count -= number
        buffer[: len(data)] = data
        return len(data)


@pytest.mark.parametrize("format_name", ["csv", "tsv", "json"])
def test_memory_does_not_grow_with_the_rows(format_name):
    line = b'{"x": "1"}\n' if format_name == "json" else b"x\n"

    def peak(count):
        tracemalloc.start()
        given = io.BufferedReader(Many(line, count))
        assert sum(1 for _ in read_rows(given, "a", format_name)) >= count - 1
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    peak(10)
    assert peak(200_000) < peak(150_000) + 10_000


# --- files of arrays ----------------------------------------------------------

ATTRIBUTES = {"step": 3, "model": "runs/é", "layers": [1, 2]}
WORDS = ["a", "“é", "", "long " * 20, "tab\tand\nline"]


@pytest.fixture(params=[".npz", ".h5"])
def path(request, tmp_path):
    if request.param == ".h5":
        pytest.importorskip("h5py", reason="h5py is not installed")
    return tmp_path / f"out{request.param}"


def read_file(path):
    """The attributes and arrays of a file; texts as lists."""
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        return json.loads(str(arrays.pop("attributes"))), {
            name: array.tolist() if array.dtype.kind == "U" else array
            for name, array in arrays.items()
        }
    import h5py

    with h5py.File(path) as file:
        attributes = {
            name: value.tolist()
            if isinstance(value, np.ndarray | np.generic)
            else value
            for name, value in file.attrs.items()
        }
        return attributes, {
            name: data.asstr()[:].tolist() if data.dtype == object else data[:]
            for name, data in file.items()
        }


def test_arrays_grow_and_are_read_back(path):
    rng = np.random.default_rng(0)
    states = rng.random((5, 3)).astype(np.float16)
    maps = rng.random((2, 4, 4)).astype(np.float32)
    with open_arrays(path, ATTRIBUTES) as file:
        for part in (slice(0, 4), slice(4, 4), slice(4, 5)):
            file.append("states", states[part])
            file.append("line", np.arange(5, dtype=np.int64)[part])
            file.append("word", WORDS[part])
        file.append("maps", maps)
        assert not path.exists()
    attributes, arrays = read_file(path)
    assert attributes == ATTRIBUTES
    assert arrays.pop("word") == WORDS
    assert set(arrays) == {"states", "line", "maps"}
    for name, expected in (("states", states), ("maps", maps), ("line", np.arange(5))):
        np.testing.assert_array_equal(arrays[name], expected)
        assert arrays[name].dtype == expected.dtype
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_what_is_interrupted_leaves_nothing_and_harms_nothing(path, error):
    path.write_text("older")
    with pytest.raises(error), open_arrays(path, ATTRIBUTES) as file:
        file.append("states", np.ones((2, 2)))
        raise error
    assert path.read_text() == "older"
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_memory_does_not_grow_with_the_file(path):
    rows = np.ones((64, 256), np.float32)
    words = ["word"] * 64

    def peak(count):
        tracemalloc.start()
        with open_arrays(path, {}) as file:
            for _ in range(count):
                file.append("states", rows)
                file.append("word", words)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    peak(1)  # imports
    few, many = peak(100), peak(400)
    assert path.stat().st_size > 400 * rows.nbytes
    assert many < few + 10 * rows.nbytes


def test_an_array_may_have_any_name(tmp_path):
    path = tmp_path / "out.npz"
    with open_arrays(path, {}) as file:
        for name in ("words/second", "../words"):
            file.append(name, np.arange(2))
    assert read_file(path)[1].keys() == {"words/second", "../words"}
    assert list(tmp_path.iterdir()) == [path]


def test_without_h5py_there_is_another_format(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    check_library(tmp_path / "out.npz")
    with pytest.raises(ImportError, match=r"'gpt1_jax\[hdf5\]', or write an .npz"):
        check_library(tmp_path / "out.h5")


def test_a_cell_that_holds_a_line_end_is_quoted(tmp_path):
    rows = [{"a": "x\ry", "b": "1"}, {"a": "x\r\ny\n", "b": "2"}]
    text = format_table(rows, ".csv")
    assert list(csv.reader(io.StringIO(text, newline=""))) == [
        ["a", "b"],
        ["x\ry", "1"],
        ["x\r\ny\n", "2"],
    ]
    assert text.startswith("a,b\n") and text.endswith(",2\n")


@pytest.mark.parametrize("suffix", [".npz", ".h5"])
def test_texts_with_a_nul_are_kept(tmp_path, suffix):
    h5py = pytest.importorskip("h5py") if suffix == ".h5" else None
    path = tmp_path / f"a{suffix}"
    with open_arrays(path, {}) as arrays:
        arrays.append("words", ["c\0", "", "a longer one"])
    with h5py.File(path) if h5py else np.load(path) as file:
        found = file["words"].asstr()[:] if h5py else file["words"]
        assert list(found) == ["c\ufffd", "", "a longer one"]
