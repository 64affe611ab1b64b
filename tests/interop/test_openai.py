"""OpenAI's folder: there and back, the released shapes, and every damaged file."""

import io
import json
import math
import pickle

import numpy as np
import pytest
from etils import epath
from other_formats import Harm, assert_same_params
from tiny_models import PAPER, drawn_params

from gpt1_jax.errors import UserError
from gpt1_jax.interop import names, openai
from gpt1_jax.interop.names import Sizes


@pytest.fixture(scope="module")
def model(tiny_model_config):
    return tiny_model_config(embed_dim=32, mlp_dim=48)


@pytest.fixture(scope="module")
def params(model):
    return drawn_params(model)


@pytest.fixture
def folder(model, params, tmp_path):
    openai.write_shards(epath.Path(tmp_path), Sizes.of(model), params)
    return epath.Path(tmp_path)


@pytest.mark.parametrize("order", ["C", "F"])
def test_there_and_back_is_bit_identical(tmp_path, model, params, order):
    """The vector begins with positions, then tokens."""
    flat, folder = names.flatten_params(params).items(), epath.Path(tmp_path)
    held = names.unflatten_params({n: np.array(a, order=order) for n, a in flat})
    openai.write_shards(folder, Sizes.of(model), held)
    sizes, back = openai.read_shards(folder)
    assert sizes == Sizes.of(model)
    assert_same_params(back, params)
    shards = [np.load(folder / f"params_{n}.npy") for n in range(10)]
    first = np.concatenate([params[name].ravel() for name in ("wpe", "wte")])
    np.testing.assert_array_equal(np.concatenate(shards)[: first.size], first)
    assert len({len(shard) for shard in shards}) <= 2


def test_the_order_is_that_of_the_released_shards():
    table = names.tensors(Sizes(**PAPER))
    assert [tensor.name for tensor in table[:2]] == ["wpe", "wte"]
    modules = ("attn/c_attn", "attn/c_proj", "ln_1", "mlp/c_fc", "mlp/c_proj", "ln_2")
    in_layer = [
        f"h_0/{module}/{each}"
        for module in modules
        for each in ("scale" if module.startswith("ln") else "kernel", "bias")
    ]
    assert [tensor.name for tensor in table[2:14]] == in_layer
    assert len(table) == 146 and table[-1].name == "h_11/ln_2/bias"
    assert sum(math.prod(tensor.shape) for tensor in table) == 116_534_784
    shapes = [(512, 768), (40478, 768), (1, 768, 2304), (2304,)]
    assert [tensor.openai_shape for tensor in table[:4]] == shapes


def test_the_released_shapes_are_read(tmp_path):
    """Of two of the layers. Numbers of another type, cut at other places than ours."""
    released = Sizes(**PAPER)._replace(num_layers=2)
    shapes = [list(tensor.openai_shape) for tensor in names.tensors(released)]
    (tmp_path / "params_shapes.json").write_text(json.dumps(shapes))
    drawn = np.random.default_rng(0).standard_normal(1_000_003, np.float32)
    layer = 31_480_320 + 7_087_872
    vector = np.resize(drawn.astype(np.float16), layer + 7_087_872)
    for number, shard in enumerate(np.split(vector, range(7, 70, 7))):
        np.save(tmp_path / f"params_{number}.npy", shard)
    sizes, params = openai.read_shards(epath.Path(tmp_path))
    assert sizes == released
    assert params["wpe"][0, 0] == vector[0] and params["wte"][0, 0] == vector[393_216]
    fc = params["h_1"]["mlp"]["c_fc"]["kernel"]
    assert fc.shape == (768, 3072) and fc[0, 0] == vector[layer + 2_363_904]
    assert params["h_1"]["ln_2"]["bias"][-1] == vector[-1]
    assert {a.dtype.name for a in names.flatten_params(params).values()} == {"float32"}


def test_without_the_number_of_heads_they_are_64_wide(tmp_path, tiny_model_config):
    model = tiny_model_config(embed_dim=128, num_heads=4)
    folder = epath.Path(tmp_path)
    openai.write_shards(folder, Sizes.of(model), drawn_params(model))
    (tmp_path / "gpt1_jax.json").unlink()
    assert openai.read_shards(folder)[0].num_heads == 2


@pytest.mark.parametrize(
    "change",
    [
        lambda shapes: json.dumps(shapes[:-1]),
        lambda shapes: "{}",
        lambda shapes: json.dumps([[True, shapes[0][1]], *shapes[1:]]),
        lambda shapes: json.dumps([*shapes[:3], [95], *shapes[4:]]),
        lambda shapes: json.dumps([shapes[0], [-97, 32], *shapes[2:]]),
        lambda shapes: "[" * 100_000,
    ],
)
def test_other_shapes_are_refused(folder, change):
    path = folder / "params_shapes.json"
    path.write_text(change(json.loads(path.read_text())))
    with pytest.raises(UserError, match=r"params_shapes.json does not list GPT-1's"):
        openai.read_shards(folder)


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("gpt1_jax.json", "does not say how many heads.*width 32"),
        ("params_shapes.json", "lacks params_shapes.json"),
        ("params_3.npy", "lacks params_3.npy"),
    ],
)
def test_a_missing_file_is_named(folder, missing, message):
    (folder / missing).unlink()
    with pytest.raises((UserError, FileNotFoundError), match=message):
        openai.read_shards(folder)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("gpt1_jax.json", lambda _: {"num_heads": 3}, "names num_heads=3, which does"),
        ("gpt1_jax.json", lambda _: {"num_heads": "2"}, "names num_heads='2'"),
        (
            "params_shapes.json",
            lambda shapes: [shapes[0], [98, 32], *shapes[2:]],
            r"hold [\d,]+ numbers; params_shapes.json lists",
        ),
    ],
)
def test_numbers_that_do_not_fit_are_refused(folder, name, change, message):
    held = json.loads((folder / name).read_text())
    (folder / name).write_text(json.dumps(change(held)))
    with pytest.raises(UserError, match=message):
        openai.read_shards(folder)


def saved(array):
    file = io.BytesIO()
    np.save(file, array)
    return lambda content: file.getvalue()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda content: b"", "is not an array of numbers"),
        (lambda content: content[:-3], "is not an array of numbers"),
        (lambda content: b"PK\x03\x04" + content, "is not an array of numbers"),
        (lambda content: content.replace(b": (", b": ((", 1), "is not an array of num"),
        (saved(np.arange(3)), "holds int64 numbers of"),
        (saved(np.ones((2, 2))), "holds float64 numbers of"),
    ],
)
def test_a_damaged_shard_is_named(folder, spoil, message):
    path = folder / "params_3.npy"
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(UserError, match=rf"params_3\.npy {message}") as caught:
        openai.read_shards(folder)
    assert "\n" not in str(caught.value)


def test_a_git_lfs_pointer_is_called_that(folder, lfs_pointer):
    (folder / "params_3.npy").write_bytes(lfs_pointer)
    with pytest.raises(UserError, match=r"params_3.npy is a Git LFS pointer, .*pull"):
        openai.read_shards(folder)


def test_no_pickle_is_opened(folder, tmp_path):
    harm = Harm(tmp_path / "harmed")
    path = folder / "params_3.npy"
    for write in (
        lambda: np.save(path, np.array([harm], dtype=object), allow_pickle=True),
        lambda: path.write_bytes(pickle.dumps(harm)),
    ):
        write()
        with pytest.raises(ValueError, match=r"params_3.npy .* was executed") as caught:
            openai.read_shards(folder)
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "harmed").exists()
