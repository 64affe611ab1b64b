"""Arrays in safetensors and .bin files: types, parts, damage and pickles."""

import json
import struct

import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from etils import epath
from other_formats import Harm

from gpt1_jax.interop import weight_files


@pytest.fixture
def folder(tmp_path):
    return epath.Path(tmp_path)


@pytest.fixture
def arrays():
    rng = np.random.default_rng(0)
    return {
        name: rng.normal(size=shape).astype(np.float32)
        for name, shape in (("a.weight", (3, 4)), ("b.bias", (5,)))
    }


def assert_same(found, arrays):
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert found[name].dtype == np.float32
        np.testing.assert_array_equal(found[name], array)


def test_arrays_come_back(folder, arrays):
    weight_files.write(folder, arrays)
    assert_same(weight_files.read(folder), arrays)


def test_what_is_not_contiguous_comes_back(folder, arrays):
    turned = {name: np.asfortranarray(array) for name, array in arrays.items()}
    turned["c"] = np.arange(12.0, dtype=np.float32).reshape(3, 4).T
    weight_files.write(folder, turned)
    assert_same(weight_files.read(folder), turned)


def test_the_file_is_marked_for_pytorch(folder, arrays):
    weight_files.write(folder, arrays)
    with safetensors.safe_open(folder / "model.safetensors", "numpy") as file:
        assert file.metadata() == {"format": "pt"}


@pytest.mark.parametrize("dtype", [np.float16, np.float64, jnp.bfloat16])
def test_other_float_types_become_float32(folder, arrays, dtype):
    rounded = {name: array.astype(dtype) for name, array in arrays.items()}
    safetensors.numpy.save_file(rounded, folder / "model.safetensors")
    expected = {name: array.astype(np.float32) for name, array in rounded.items()}
    assert_same(weight_files.read(folder), expected)


def test_buffers_are_left_out(folder, arrays):
    buffers = {
        "h.0.attn.bias": np.tril(np.ones((1, 1, 4, 4), np.uint8)),
        "transformer.position_ids": np.arange(4),
    }
    safetensors.numpy.save_file({**arrays, **buffers}, folder / "model.safetensors")
    assert_same(weight_files.read(folder), arrays)


def split_in_parts(folder, arrays):
    weight_map = {}
    for number, (name, array) in enumerate(arrays.items()):
        weight_map[name] = f"model-{number}.safetensors"
        safetensors.numpy.save_file({name: array}, folder / weight_map[name])
    index = json.dumps({"metadata": {}, "weight_map": weight_map})
    (folder / "model.safetensors.index.json").write_text(index)


def test_parts_are_put_together(folder, arrays):
    split_in_parts(folder, arrays)
    assert_same(weight_files.read(folder), arrays)


def test_a_missing_part_is_named(folder, arrays):
    split_in_parts(folder, arrays)
    (folder / "model-1.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"lacks model-1.safetensors"):
        weight_files.read(folder)


@pytest.mark.parametrize("index", [{}, {"weight_map": []}, {"weight_map": {"a": 1}}])
def test_an_index_without_files_is_refused(folder, index):
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match=r"has no weight_map"):
        weight_files.read(folder)


def test_an_index_may_not_lead_elsewhere(folder):
    index = {"weight_map": {"a": "../secret.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match=r"lies in another folder"):
        weight_files.read(folder)


def test_no_weights_at_all_are_refused(folder):
    with pytest.raises(
        FileNotFoundError, match=r"holds no weights: .*model.safetensor"
    ):
        weight_files.read(folder)


@pytest.mark.parametrize(
    "spoil",
    [lambda c: b"", lambda c: c[:20], lambda c: c[:-3], lambda c: b"\xff" * len(c)],
    ids=["empty", "header", "data", "garbage"],
)
def test_a_truncated_file_is_one_line(folder, arrays, spoil):
    weight_files.write(folder, arrays)
    path = folder / "model.safetensors"
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(ValueError, match=r"model.safetensors is damaged") as caught:
        weight_files.read(folder)
    assert "\n" not in str(caught.value)


def test_whole_numbers_are_refused_by_name(folder):
    safetensors.numpy.save_file({"a": np.arange(3)}, folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"a holds I64, not floating-point"):
        weight_files.read(folder)


def test_a_header_that_promises_too_much_is_refused(folder):
    header = json.dumps(
        {"a": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}
    ).encode()
    content = struct.pack("<Q", len(header)) + header
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match=r"is damaged"):
        weight_files.read(folder)


# --- .bin -----------------------------------------------------------------------


def test_a_bin_file_is_read(folder, arrays):
    torch = pytest.importorskip("torch")
    tensors = {name: torch.tensor(array) for name, array in arrays.items()}
    buffers = {"h.0.attn.bias": torch.ones(1, 1, 4, 4).bool()}
    torch.save({**tensors, **buffers}, folder / "pytorch_model.bin")
    assert_same(weight_files.read(folder), arrays)


def test_a_bin_file_executes_nothing(folder, tmp_path):
    torch = pytest.importorskip("torch")
    for harmful in ({"a": Harm(tmp_path / "harmed")}, Harm(tmp_path / "harmed")):
        for new_format in (True, False):
            torch.save(
                harmful,
                folder / "pytorch_model.bin",
                _use_new_zipfile_serialization=new_format,
            )
            with pytest.raises(ValueError, match=r"holds more than weights") as caught:
                weight_files.read(folder)
            assert "\n" not in str(caught.value)
    assert not (tmp_path / "harmed").exists()


@pytest.mark.parametrize(
    ("held", "message"),
    [
        ([1], r"holds list, not weights by name"),
        ({"a": 1}, r"a holds int, not floating"),
        ({1: 2}, r"1 holds int, not floating"),
    ],
    ids=str,
)
def test_a_bin_file_of_something_else_is_refused(folder, held, message):
    torch = pytest.importorskip("torch")
    torch.save(held, folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match=message):
        weight_files.read(folder)


def test_a_bin_file_of_whole_numbers_is_refused(folder):
    torch = pytest.importorskip("torch")
    torch.save({"a": torch.arange(3)}, folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"a holds torch.int64"):
        weight_files.read(folder)


def test_without_torch_a_bin_file_is_refused(folder, monkeypatch):
    (folder / "pytorch_model.bin").write_bytes(b"")
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(ImportError, match=r"install torch .*model.safetensors"):
        weight_files.read(folder)
