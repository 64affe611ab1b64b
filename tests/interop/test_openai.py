"""OpenAI's folder: there and back, the released shapes, and every damaged file."""

import io
import json
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
    flat = names.flatten_params(params).items()
    held = names.unflatten_params({n: np.array(a, order=order) for n, a in flat})
    openai.write_shards(epath.Path(tmp_path), Sizes.of(model), held)
    sizes, back = openai.read_shards(epath.Path(tmp_path))
    assert sizes == Sizes.of(model)
    assert_same_params(back, params)


def test_the_vector_begins_with_positions_then_tokens(folder, params):
    shards = [np.load(folder / f"params_{n}.npy") for n in range(10)]
    vector, (rows, width) = np.concatenate(shards), params["wpe"].shape
    np.testing.assert_array_equal(
        vector[: rows * width].reshape(rows, width), params["wpe"]
    )
    tokens = vector[rows * width :][: params["wte"].size]
    np.testing.assert_array_equal(tokens, params["wte"].ravel())
    assert len({len(shard) for shard in shards}) <= 2


def test_the_released_shapes_are_read(tmp_path):
    """Random numbers of another type, cut at other places than ours."""
    table = names.tensors(Sizes(**PAPER))
    shapes = [list(tensor.openai_shape) for tensor in table]
    (tmp_path / "params_shapes.json").write_text(json.dumps(shapes))
    drawn = np.random.default_rng(0).standard_normal(1_000_003, np.float32)
    vector = np.resize(drawn.astype(np.float16), 116_534_784)
    for number, shard in enumerate(np.split(vector, range(7, 70, 7))):
        np.save(tmp_path / f"params_{number}.npy", shard)
    sizes, params = openai.read_shards(epath.Path(tmp_path))
    assert sizes == Sizes(**PAPER)
    layer = 31_480_320 + 7_087_872 * 11
    assert params["wpe"][0, 0] == vector[0] and params["wte"][0, 0] == vector[393_216]
    fc = params["h_11"]["mlp"]["c_fc"]["kernel"]
    assert fc.shape == (768, 3072) and fc[0, 0] == vector[layer + 2_363_904]
    assert params["h_11"]["ln_2"]["bias"][-1] == vector[-1]
    assert {a.dtype.name for a in names.flatten_params(params).values()} == {"float32"}


def test_without_the_number_of_heads_they_are_64_wide(tmp_path, tiny_model_config):
    model = tiny_model_config(embed_dim=128, num_heads=4)
    folder = epath.Path(tmp_path)
    openai.write_shards(folder, Sizes.of(model), drawn_params(model))
    assert openai.read_shards(folder)[0].num_heads == 4
    (tmp_path / "gpt1_jax.json").unlink()
    assert openai.read_shards(folder)[0].num_heads == 2


@pytest.mark.parametrize(
    "change",
    [
        lambda shapes: shapes[:-1],
        lambda shapes: shapes[:2],
        lambda shapes: [],
        lambda shapes: {},
        lambda shapes: 5,
        lambda shapes: [[-1]],
        lambda shapes: [[True, shapes[0][1]], *shapes[1:]],
        lambda shapes: [["16", "32"], *shapes[1:]],
        lambda shapes: [[16], *shapes[1:]],
        lambda shapes: [*shapes[:3], [95], *shapes[4:]],
        lambda shapes: [shapes[0], [-97, 32], *shapes[2:]],
        "[",
        "[" * 100_000,
        "\x00",
    ],
)
def test_other_shapes_are_refused(folder, change):
    path = folder / "params_shapes.json"
    text = change
    if callable(change):
        text = json.dumps(change(json.loads(path.read_text())))
    path.write_text(text)
    with pytest.raises(UserError, match=r"params_shapes.json does not list GPT-1's"):
        openai.read_shards(folder)


def test_shards_of_another_size_are_refused(folder):
    path = folder / "params_shapes.json"
    first, _, *others = json.loads(path.read_text())
    path.write_text(json.dumps([first, [98, 32], *others]))
    with pytest.raises(UserError, match=r"hold [\d,]+ numbers; params_shapes.json lis"):
        openai.read_shards(folder)


@pytest.mark.parametrize("heads", [0, 3, "2", None])
def test_heads_that_do_not_divide_the_width_are_refused(folder, heads):
    (folder / "gpt1_jax.json").write_text(json.dumps({"num_heads": heads}))
    with pytest.raises(ValueError, match=r"gpt1_jax.json names num_heads="):
        openai.read_shards(folder)


def test_an_unknown_number_of_heads_is_refused(folder):
    (folder / "gpt1_jax.json").unlink()
    with pytest.raises(ValueError, match=r"does not say how many heads.*width 32"):
        openai.read_shards(folder)


@pytest.mark.parametrize("name", ["params_shapes.json", "params_3.npy"])
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"lacks {name}"):
        openai.read_shards(folder)


def with_impossible_sizes(content):
    file = io.BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": (10**30,)}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue()


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
        (
            lambda content: content.replace(b"'shape': (", b"'shape': ((", 1),
            "is not an array of numbers",
        ),
        (lambda content: b"\x00" * 500, "is not an array of numbers"),
        (with_impossible_sizes, "is not an array of numbers"),
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
