"""Hugging Face folders: there and back, as transformers reads them, and bad ones."""

import io
import json
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from etils import epath
from other_formats import Harm, assert_same_params
from safetensors.numpy import save
from tiny_models import all_logits, drawn_params, random_tokens

from gpt1_jax.errors import UserError
from gpt1_jax.interop import hugging_face
from gpt1_jax.interop.hugging_face import FinetunedHead, read_arrays, write_arrays
from gpt1_jax.interop.names import Sizes

TOLERANCE = 1e-5  # of logits, float32
TOKENS = "transformer.tokens_embed.weight"


@pytest.fixture(scope="module")
def model(tiny_model_config):
    return tiny_model_config()


@pytest.fixture(scope="module")
def params(model):
    return drawn_params(model)


@pytest.fixture
def folder(model, params, tmp_path):
    folder = epath.Path(tmp_path)
    hugging_face.write_model(folder, model, params)
    return folder


@pytest.fixture
def transformers():
    pytest.importorskip("torch")
    return pytest.importorskip("transformers")


def their_model(cls, folder):
    """Loaded with nothing missing, nothing unexpected."""
    model, info = cls.from_pretrained(str(folder), output_loading_info=True)
    assert not any(info.values()), info
    return model.eval()


def change(folder, arrays=lambda arrays: arrays, **config):
    """Changes arrays and keys of config.json; None takes a key away."""
    path = folder / "config.json"
    values = {**json.loads(path.read_text()), **config}
    kept = {key: value for key, value in values.items() if value is not None}
    path.write_text(json.dumps(kept))
    path = folder / "model.safetensors"
    held = {k: v.copy() for k, v in safetensors.numpy.load(path.read_bytes()).items()}
    path.write_bytes(save(arrays(held)))


def only_the_output_matrix(held):
    """The arrays as safetensors.torch.save_model writes them."""
    tokens = held.pop(TOKENS)
    return {**held, "lm_head.weight": tokens}


def as_in_old_files(held):
    """The names of the base model, beside masks and positions."""
    bare = {name.removeprefix("transformer."): a for name, a in held.items()}
    mask = np.tril(np.ones((1, 1, 16, 16), np.uint8))
    return {**bare, "h.0.attn.bias": mask, "position_ids": np.arange(16)}


def with_the_output_matrix(held, more=0):
    return {**held, "lm_head.weight": held[TOKENS] + more}


def renamed(*changes):
    def rename(held):
        for pattern, now in changes:
            held = {re.sub(pattern, now, name): array for name, array in held.items()}
        return held

    return {"arrays": rename}


OLD_CONFIG = {"n_positions": None, "layer_norm_epsilon": None, "afn": None}
AS_WRITTEN = {
    "now": {},
    "tied": {"arrays": only_the_output_matrix},
    "both": {"arrays": with_the_output_matrix},
    "old": {"arrays": as_in_old_files, **OLD_CONFIG},
    "wrapped": renamed((r"\.h\.", "._orig_mod.h.module."), ("^", "module._orig_mod.")),
    "first norms": renamed(
        (r"(ln_\d\.)weight", r"\1gamma"), (r"(ln_\d\.)bias", r"\1beta")
    ),
    "OpenAI's": renamed(
        (r"(ln_\d\.)weight", r"\1g"),
        (r"(c_\w+\.)weight", r"\1w"),
        (r"((ln_\d|c_\w+)\.)bias", r"\1b"),
    ),
}


@pytest.mark.parametrize("changed", AS_WRITTEN.values(), ids=AS_WRITTEN)
def test_names_of_old_wrapped_and_other_models_are_read(folder, model, params, changed):
    change(folder, **changed)
    sizes, back, left_out = hugging_face.read_model(folder)
    assert (sizes, left_out) == (Sizes.of(model), [])
    assert_same_params(back, params)


def test_transformers_computes_the_same_logits(transformers, folder, model, params):
    import torch

    theirs = their_model(transformers.AutoModelForCausalLM, folder)
    tokens = random_tokens()
    with torch.no_grad():
        found = theirs(torch.tensor(np.asarray(tokens))).logits.numpy()
    ours = np.asarray(all_logits(model, params, tokens))
    np.testing.assert_allclose(ours, found, atol=TOLERANCE)
    assert ours.std() > 0.05


@pytest.mark.parametrize(
    ("name", "head", "options"),
    [
        ("OpenAIGPTModel", "", {}),
        ("OpenAIGPTLMHeadModel", "", {"max_shard_size": "20KB"}),
        ("OpenAIGPTDoubleHeadsModel", "multiple_choice_head.summary.bias, mul.*t", {}),
        ("OpenAIGPTForSequenceClassification", "score.weight", {}),
    ],
)
def test_each_class_of_transformers_is_read(
    transformers, folder, model, params, tmp_path, name, head, options
):
    """Loaded from our export, its head new, and saved again; a head is left out."""
    theirs = getattr(transformers, name).from_pretrained(str(folder))
    saved = epath.Path(tmp_path / "saved")
    theirs.save_pretrained(saved, **options)
    assert (saved / "model.safetensors.index.json").exists() == bool(options)
    sizes, back, left_out = hugging_face.read_model(saved)
    assert sizes == Sizes.of(model)
    assert_same_params(back, params)
    said = rf"The fine-tuned head is left out: {head}\." if head else ""
    assert re.fullmatch(said, "".join(left_out))


def made_up_head(model, num_outputs, transform, labels=(), bias=1.0):
    rng = np.random.default_rng(1)
    kernel = 0.1 * rng.normal(size=(model.embed_dim, num_outputs))
    offset = bias * rng.normal(size=num_outputs)
    kernel, offset = kernel.astype(np.float32), offset.astype(np.float32)
    return FinetunedHead(kernel, offset, transform, labels)


def test_weights_stand_in_for_the_bias_of_a_head(model, params, tmp_path):
    """For any states that the last LayerNorm makes; transformers' class has no bias."""
    head = made_up_head(model, 3, "single", ("bad", "good", "?"), bias=0.1)
    hugging_face.write_model(epath.Path(tmp_path), model, params, head)
    weights = read_arrays(epath.Path(tmp_path))["score.weight"]
    norm = params[f"h_{model.num_layers - 1}"]["ln_2"]
    normed = np.random.default_rng(2).normal(size=(50, model.embed_dim))
    normed -= normed.mean(-1, keepdims=True)
    states = norm["scale"] * normed + norm["bias"]
    expected = states @ head.kernel + head.bias
    np.testing.assert_allclose(states @ weights.T, expected, atol=TOLERANCE)


def test_transformers_takes_an_output_without_labels_for_a_score(
    transformers, model, params, tmp_path
):
    head = made_up_head(model, 1, "single", bias=0.0)
    hugging_face.write_model(epath.Path(tmp_path), model, params, head)
    theirs = their_model(transformers.OpenAIGPTForSequenceClassification, tmp_path)
    assert theirs.config.problem_type == "regression"
    np.testing.assert_array_equal(theirs.score.weight.detach(), head.kernel.T)


def test_a_bias_that_weights_cannot_stand_in_for_is_refused(model, params, tmp_path):
    head, last = made_up_head(model, 2, "single"), f"h_{model.num_layers - 1}"
    for shift in (0.0, 1e-7):
        bias = np.full(model.embed_dim, shift, np.float32)
        others = {**params, last: {"ln_2": {**params[last]["ln_2"], "bias": bias}}}
        with pytest.raises(ValueError, match=r"fine-tuned head, \[.* cancel out \("):
            hugging_face.write_model(epath.Path(tmp_path), model, others, head)


@pytest.mark.parametrize(
    ("sizes", "transform", "message"),
    [
        ({}, "similarity", r"both orders of a pair.*has no place"),
        ({"mlp_dim": 48}, "single", r"mlp_dim=48 has no place.*wide.*:openai"),
    ],
)
def test_what_transformers_has_no_place_for_is_refused(
    tiny_model_config, params, tmp_path, sizes, transform, message
):
    model = tiny_model_config(**sizes)
    head = made_up_head(model, 2, transform, ("no", "yes"), bias=0.0)
    with pytest.raises(ValueError, match=message):
        hugging_face.write_model(epath.Path(tmp_path), model, params, head)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model_type": "gpt2"}, r"model_type is 'gpt2'; GPT-1 has 'openai-gpt'"),
        ({"afn": "relu"}, r"afn is 'relu'; GPT-1 has 'gelu'"),
        ({"tie_word_embeddings": False}, r"tie_word_embeddings is False"),
        ({"n_layer": "2"}, r"n_layer is '2', not a positive number"),
        ({"n_head": 5}, r"n_embd=32 is no multiple of n_head=5"),
        ({"vocab_size": None}, r"vocab_size is None"),
        ({"n_layer": 10**12}, r"lack h.10.attn.c_attn.bias, .* and \d+ more"),
        ({"n_layer": 1}, r"have the unknown h.1.attn.c_attn.bias"),
        ({"n_positions": 8}, r"positions_embed.weight has the shape \(16, 32\); conf"),
        ({"arrays": lambda a: with_the_output_matrix(a, 1)}, r"lm_head.weight differs"),
        (
            {"arrays": lambda a: {**a, "tokens_embed.weight": a[TOKENS] + 1}},
            r"hold parameters twice",
        ),
    ],
)
def test_another_model_is_refused(folder, changed, message):
    change(folder, **changed)
    with pytest.raises(ValueError, match=message) as caught:
        hugging_face.read_model(folder)
    assert "\n" not in str(caught.value)


@pytest.fixture
def empty(tmp_path):
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


def test_arrays_of_any_order_come_back_from_a_file_for_pytorch(empty, arrays):
    turned = {name: np.asfortranarray(array) for name, array in arrays.items()}
    turned["c"] = np.arange(12.0, dtype=np.float32).reshape(3, 4).T
    write_arrays(empty, turned)
    assert_same(read_arrays(empty), turned)
    with safetensors.safe_open(empty / "model.safetensors", "numpy") as file:
        assert file.metadata() == {"format": "pt"}


@pytest.mark.parametrize("dtype", [np.float16, np.float64, jnp.bfloat16])
def test_other_float_types_become_float32(empty, arrays, dtype):
    rounded = {name: array.astype(dtype) for name, array in arrays.items()}
    safetensors.numpy.save_file(rounded, empty / "model.safetensors")
    expected = {name: array.astype(np.float32) for name, array in rounded.items()}
    assert_same(read_arrays(empty), expected)


def bin_of(held):
    """PyTorch's file, with arrays as tensors."""
    torch, file = pytest.importorskip("torch"), io.BytesIO()
    held = jax.tree.map(lambda x: torch.tensor(x) if np.ndim(x) else x, held)
    torch.save(held, file)
    return file.getvalue()


def split_in_parts(empty, arrays, name="model.safetensors", content=save):
    stem, _, suffix = name.partition(".")
    files = {each: f"{stem}-{number}.{suffix}" for number, each in enumerate(arrays)}
    for each, file in files.items():
        (empty / file).write_bytes(content({each: arrays[each]}))
    index = json.dumps({"metadata": {}, "weight_map": files})
    (empty / f"{name}.index.json").write_text(index)


@pytest.mark.parametrize(
    ("name", "content"), [("model.safetensors", save), ("pytorch_model.bin", bin_of)]
)
def test_parts_are_put_together(empty, arrays, name, content):
    split_in_parts(empty, arrays, name, content)
    assert_same(read_arrays(empty), arrays)


def test_a_whole_file_is_read_before_the_parts_beside_it(folder, params):
    """As transformers reads it; the reader says so."""
    split_in_parts(folder, {"another.weight": np.zeros(2, np.float32)})
    _, back, left_out = hugging_face.read_model(folder)
    assert_same_params(back, params)
    assert left_out == [
        "The parts in model.safetensors.index.json are left out: as transformers does, "
        "model.safetensors beside it is read."
    ]


INDEX = "model.safetensors.index.json"
SAFE, BIN = "model.safetensors", "pytorch_model.bin"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none", lambda: b"", r"holds no weights: .*model.safetensor"),
        (INDEX, lambda: b"{}", "has no weight_map"),
        (INDEX, lambda: b'{"weight_map": {"a": "../b"}}', "lies in another folder"),
        (INDEX, lambda: b'{"weight_map": {"a": "b"}}', "lacks b, a part"),
        (SAFE, lambda: b"", "model.safetensors is damaged"),
        (SAFE, lambda: save({"a": np.ones(9)})[:-3], "model.safetensors is damaged"),
        (SAFE, lambda: save({"a": np.arange(3)}), "a holds I64, not floating-point"),
        (BIN, lambda: bin_of([1]), "holds list, not weights by name"),
        (BIN, lambda: bin_of({"a": np.arange(3)}), "a holds torch.int64"),
    ],
)
def test_weights_that_cannot_be_read_are_refused(empty, name, content, message):
    (empty / name).write_bytes(content())
    with pytest.raises((UserError, FileNotFoundError), match=message) as caught:
        read_arrays(empty)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_a_git_lfs_pointer_is_called_that(empty, lfs_pointer, name):
    (empty / name).write_bytes(lfs_pointer)
    with pytest.raises(UserError, match=f"{name} is a Git LFS pointer, .* lfs pull"):
        read_arrays(empty)


def test_a_bin_file_of_trained_parameters_and_buffers_is_read(empty, arrays):
    torch = pytest.importorskip("torch")
    held = {n: torch.nn.Parameter(torch.tensor(a)) for n, a in arrays.items()}
    held["h.0.attn.bias"] = torch.ones(1, 1, 4, 4).bool()
    torch.save(held, empty / "pytorch_model.bin")
    assert_same(read_arrays(empty), arrays)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_bin_file_executes_nothing(empty, tmp_path, zipped):
    torch = pytest.importorskip("torch")
    harmful, file = {"a": Harm(tmp_path / "harmed")}, empty / "pytorch_model.bin"
    torch.save(harmful, file, _use_new_zipfile_serialization=zipped)
    with pytest.raises(ValueError, match=r"holds more than weights") as caught:
        read_arrays(empty)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "harmed").exists()


def test_without_torch_a_bin_file_is_refused(empty, monkeypatch):
    (empty / "pytorch_model.bin").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match=r"install torch .*model.safetensors"):
        read_arrays(empty)
