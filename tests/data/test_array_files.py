"""Files of arrays: both formats hold the same, whole or not at all."""

import json
import sys
import tracemalloc

import numpy as np
import pytest

from gpt1_jax.data import array_files
from gpt1_jax.data.array_files import check_library, open_arrays

ATTRIBUTES = {"step": 3, "model": "runs/é", "layers": [1, 2]}
WORDS = ["a", "“é", "", "long " * 20, "tab\tand\nline"]


@pytest.fixture(params=[".npz", ".h5"])
def path(request, tmp_path):
    if request.param == ".h5":
        pytest.importorskip("h5py", reason="h5py is not installed")
    return tmp_path / f"out{request.param}"


def read(path):
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


@pytest.mark.parametrize("held_bytes", [1, 1 << 22])
def test_arrays_grow_and_are_read_back(path, monkeypatch, held_bytes):
    monkeypatch.setattr(array_files, "_HELD_BYTES", held_bytes)
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
    attributes, arrays = read(path)
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
    assert read(path)[1].keys() == {"words/second", "../words"}
    assert list(tmp_path.iterdir()) == [path]


def test_without_h5py_there_is_another_format(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    check_library(tmp_path / "out.npz")
    with pytest.raises(
        ImportError, match=r"h5py, which is not .* '\.\[hdf5\]'\. An .npz"
    ):
        check_library(tmp_path / "out.h5")
