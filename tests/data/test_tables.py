"""Rows are written one by one; files appear whole or not at all."""

import csv
import io
import json
import math
import sys
import tracemalloc

import numpy as np
import pytest
from etils import epath

from gpt1_jax.data.records import read_rows
from gpt1_jax.data.tables import (
    check_library,
    check_own_table,
    format_table,
    open_arrays,
    open_table,
    write_own_table,
)
from gpt1_jax.errors import UserError

KINDS = {"number": int, "value": float}
ROWS = [
    {"word": 'a "b", c', "number": 1, "value": 0.1234567, "parts": ("x", "y")},
    {"word": "é\n\td", "number": 2, "value": math.nan, "parts": ()},
    {"word": "long " * 9, "number": 3, "value": 2, "parts": ("z",)},
]


def write(path):
    with open_table(path, KINDS, {"about": "é"}) as table:
        table.append(ROWS[:2])
        table.append(ROWS[2:])
    return path


def test_tables_of_text_have_a_header_and_empty_cells_for_nan(tmp_path):
    """A TSV has no quotes, and a space for a tab or a line end."""
    csv_bytes = write(tmp_path / "a.csv").read_bytes()
    assert list(csv.reader(io.StringIO(csv_bytes.decode(), newline=""))) == [
        ["word", "number", "value", "parts"],
        ['a "b", c', "1", "0.123457", "x y"],
        ["é\n\td", "2", "", ""],
        ["long " * 9, "3", "2", "z"],
    ]
    assert b"\r" not in csv_bytes
    assert write(tmp_path / "a.tsv").read_text("utf-8").split("\n") == [
        "word\tnumber\tvalue\tparts",
        'a "b", c\t1\t0.123457\tx y',
        "é  d\t2\t\t",
        "long " * 9 + "\t3\t2\tz",
        "",
    ]
    rows = [{"a": "x\ry", "b": "1"}, {"a": "x\r\ny\n", "b": "2"}]
    text = format_table(rows, ".csv")
    read = list(csv.reader(io.StringIO(text, newline="")))
    assert read == [["a", "b"], *(list(row.values()) for row in rows)]
    assert text.startswith("a,b\n") and text.endswith(",2\n")


def test_npz_has_an_array_for_each_column(tmp_path):
    attributes, arrays = read_file(write(tmp_path / "a.npz"))
    assert attributes == {"about": "é"}
    assert arrays["word"] == [row["word"] for row in ROWS]
    assert arrays["parts"] == ["x y", "", "z"]
    assert arrays["number"].tolist() == [1, 2, 3]
    np.testing.assert_array_equal(arrays["value"], [0.1234567, math.nan, 2.0])


ATTRIBUTES = {"step": 3, "model": "runs/é", "layers": [1, 2]}
WORDS = ["a", "“é\0", "", "long " * 20, "tab\tand\nline"]


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
        attributes = json.loads(str(arrays.pop("attributes")))
    else:
        import h5py

        with h5py.File(path) as file:
            attributes = {
                name: np.asarray(v).tolist() for name, v in file.attrs.items()
            }
            arrays = {
                name: data.asstr()[:] if data.dtype == object else data[:]
                for name, data in file.items()
            }
    return attributes, {
        name: array.tolist() if array.dtype.kind in "UO" else array
        for name, array in arrays.items()
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
    assert arrays.pop("word") == [word.replace("\0", "\ufffd") for word in WORDS]
    assert set(arrays) == {"states", "line", "maps"}
    for name, expected in (("states", states), ("maps", maps), ("line", np.arange(5))):
        np.testing.assert_array_equal(arrays[name], expected)
        assert arrays[name].dtype == expected.dtype
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_what_is_interrupted_leaves_nothing_and_harms_nothing(path):
    table = path.with_name("a.csv")
    for each in (path, table):
        each.write_text("older")
    with pytest.raises(OSError), open_arrays(path, ATTRIBUTES) as file:
        file.append("states", np.ones((2, 2)))
        raise OSError
    with pytest.raises(KeyboardInterrupt), open_table(table, KINDS, {}) as file:
        file.append(ROWS)
        raise KeyboardInterrupt
    found = {entry.name: entry.read_text() for entry in path.parent.iterdir()}
    assert found == {table.name: "older", path.name: "older"}


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
    few, many = peak(100), peak(300)
    assert path.stat().st_size > 300 * rows.nbytes
    assert many < few + 10 * rows.nbytes


def test_without_h5py_there_is_another_format(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    check_library(tmp_path / "out.npz")
    with pytest.raises(ImportError, match=r"'gpt1_jax\[hdf5\]', or write an .npz"):
        check_library(tmp_path / "out.h5")


OWN = {
    "text, too": ['a "b"\n=c', "naïve \u2028", ""],
    "number": [-3, 1 << 40, None],
    "share": np.array([0.1, -1e-9, math.nan]),
    "flag": [True, None, False],
    "tags": [["x", "=y"], [], None],
    "labels": [("a", "b"), (), ("c",)],
}
AS_READ = [
    {**{k: v[n] for k, v in OWN.items()}, "labels": list(OWN["labels"][n])}
    for n in range(3)
]
AS_READ[2]["share"] = None


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_an_own_table_keeps_values_as_they_were_read(tmp_path, suffix):
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    path = epath.Path(tmp_path) / "made" / f"a{suffix}"
    check_own_table(path, OWN, suffix)
    write_own_table(path, OWN, suffix)
    assert [cells for _, cells in read_rows(path)] == AS_READ


def test_an_own_table_of_text_has_empty_cells_and_labels_with_bars(tmp_path):
    path = epath.Path(tmp_path) / "a.csv"
    write_own_table(path, OWN, ".csv")
    with open(path, newline="") as file:
        assert list(csv.reader(file)) == [
            list(OWN),
            ['a "b"\n=c', "-3", "0.1", "True", '["x", "=y"]', "a|b"],
            ["naïve \u2028", str(1 << 40), "-1e-09", "", "[]", ""],
            ["", "", "", "False", "", "c"],
        ]
    write_own_table(path.with_suffix(".tsv"), {"a\tb": ['"x\ty\n'], "c": [3]}, ".tsv")
    assert path.with_suffix(".tsv").read_text() == 'a b\tc\n"x y \t3\n'


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
def test_no_cell_of_an_own_table_is_a_formula(tmp_path, suffix):
    formulas = ["=1+1", "+49 30", "-x", "@sum(A1)", "\t=1", "\r=1", "-", "-1_0"]
    plain = ["-5", "+3.5", "-1e-3", " =1", "a=b", "'=1"]
    path = epath.Path(tmp_path) / f"a{suffix}"
    write_own_table(path, {"=name": [*formulas, *plain], "b": [-2] * 14}, suffix)
    with open(path, newline="") as file:
        header, *rows = csv.reader(file, delimiter="," if suffix == ".csv" else "\t")
    expected = [*(f"'{each}" for each in formulas), *plain]
    if suffix == ".tsv":  # which has no tabs and line ends in a cell
        expected = [" ".join(each.splitlines()).replace("\t", " ") for each in expected]
    assert header == ["'=name", "b"]
    assert rows == [[each, "-2"] for each in expected]


def test_a_parquet_file_of_mixed_values_is_refused_before_it_is_written(tmp_path):
    pytest.importorskip("pyarrow")
    path, columns = epath.Path(tmp_path) / "a.parquet", {"a": ["x", 1], "b": [1, 2]}
    with pytest.raises(UserError, match=r"a.parquet cannot hold .* 'a', .* a .jsonl"):
        check_own_table(path, columns, ".parquet")
    check_own_table(path, columns, ".jsonl")
