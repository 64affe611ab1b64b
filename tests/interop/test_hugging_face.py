"""Hugging Face folders: there and back, as transformers reads them, and bad ones."""

import dataclasses
import functools
import json
import re
import struct

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from etils import epath
from other_formats import Harm, assert_same_params
from tiny_models import all_logits, drawn_params, random_tokens

from gpt1_jax.errors import UserError
from gpt1_jax.finetuning import heads
from gpt1_jax.finetuning.heads import Head
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
    path.write_bytes(safetensors.numpy.save(arrays(held)))


def only_the_output_matrix(held):
    """The arrays as safetensors.torch.save_model writes them."""
    tokens = held.pop(TOKENS)
    return {**held, "lm_head.weight": tokens}


# --- there and back -----------------------------------------------------------------


def test_there_and_back_is_bit_identical(folder, model, params):
    sizes, back, left_out = hugging_face.read_model(folder)
    assert sizes == Sizes.of(model)
    assert_same_params(back, params)
    assert not left_out


def as_in_old_files(held):
    """The names of the base model, beside masks and positions."""
    bare = {name.removeprefix("transformer."): a for name, a in held.items()}
    mask = np.tril(np.ones((1, 1, 16, 16), np.uint8))
    return {**bare, "h.0.attn.bias": mask, "position_ids": np.arange(16)}


def with_the_output_matrix(held, more=0):
    return {**held, "lm_head.weight": held[TOKENS] + more}


def renamed(pattern, name):
    return lambda held: {re.sub(pattern, name, k): a for k, a in held.items()}


@pytest.mark.parametrize(
    "arrays",
    [
        only_the_output_matrix,
        with_the_output_matrix,
        as_in_old_files,
        renamed("^", "_orig_mod."),
        renamed("^", "module._orig_mod."),
        renamed(r"transformer\.h\.", "transformer._orig_mod.h.module."),
        renamed(r"(ln_\d)\.weight", r"\1.gamma"),
        renamed(r"(ln_\d)\.bias", r"\1.beta"),
        renamed(r"(ln_\d)\.weight", r"\1.g"),
        renamed(r"(ln_\d|c_\w+)\.bias", r"\1.b"),
        renamed(r"(c_\w+)\.weight", r"\1.w"),
    ],
)
def test_names_of_old_wrapped_and_other_models_are_read(folder, params, arrays):
    change(folder, arrays)
    assert_same_params(hugging_face.read_model(folder)[1], params)


@pytest.mark.parametrize(
    ("num_outputs", "transform", "names"),
    [
        (2, "single", "score.weight"),
        (1, "multiple_choice", "multiple_choice_head.summary.bias, mul.*weight"),
    ],
)
def test_a_fine_tuned_head_is_left_out_and_named(
    model, params, tmp_path, num_outputs, transform, names
):
    head = made_up_head(model, num_outputs, transform, ("no", "yes"), bias=0.0)
    hugging_face.write_model(epath.Path(tmp_path), model, params, head)
    if transform == "multiple_choice":  # as transformers 5.24 saves it
        change(epath.Path(tmp_path), only_the_output_matrix)
    sizes, back, (left_out,) = hugging_face.read_model(epath.Path(tmp_path))
    assert sizes == Sizes.of(model)
    assert_same_params(back, params)
    assert re.fullmatch(rf"The fine-tuned head is left out: {names}\.", left_out)


def test_an_old_configuration_names_positions_n_ctx(folder, model):
    change(folder, n_positions=None, layer_norm_epsilon=None, afn=None)
    assert hugging_face.read_model(folder)[0] == Sizes.of(model)


# --- as transformers reads and writes them ------------------------------------------


@pytest.mark.parametrize("softmax_rows", ["tokens", "tokens+positions"])
def test_transformers_computes_the_same_logits(
    transformers, folder, model, params, softmax_rows
):
    import torch

    theirs = their_model(transformers.AutoModelForCausalLM, folder)
    tokens = random_tokens()
    model = dataclasses.replace(model, softmax_rows=softmax_rows)
    ours = np.asarray(all_logits(model, params, tokens))
    with torch.no_grad():
        found = theirs(torch.tensor(np.asarray(tokens))).logits.numpy()
    np.testing.assert_allclose(ours[..., : model.vocab_size], found, atol=TOLERANCE)
    assert ours.std() > 0.05


@pytest.mark.parametrize(
    ("name", "heads", "options"),
    [
        ("OpenAIGPTModel", 0, {}),
        ("OpenAIGPTLMHeadModel", 0, {}),
        ("OpenAIGPTLMHeadModel", 0, {"max_shard_size": "20KB"}),
        ("OpenAIGPTDoubleHeadsModel", 1, {}),
        ("OpenAIGPTForSequenceClassification", 1, {}),
    ],
)
def test_each_class_of_transformers_is_read(
    transformers, folder, model, params, tmp_path, name, heads, options
):
    """Loaded from our export, its head new, and saved again."""
    theirs = getattr(transformers, name).from_pretrained(str(folder))
    saved = epath.Path(tmp_path / "saved")
    theirs.save_pretrained(saved, **options)
    assert (saved / "model.safetensors.index.json").exists() == bool(options)
    sizes, back, left_out = hugging_face.read_model(saved)
    assert (sizes, len(left_out)) == (Sizes.of(model), heads)
    assert_same_params(back, params)


# --- fine-tuned heads ---------------------------------------------------------------


def made_up_head(model, num_outputs, transform, labels=(), bias=1.0, several=False):
    rng = np.random.default_rng(1)
    kernel = 0.1 * rng.normal(size=(model.embed_dim, num_outputs))
    offset = bias * rng.normal(size=num_outputs)
    kernel, offset = kernel.astype(np.float32), offset.astype(np.float32)
    return FinetunedHead(kernel, offset, transform, labels, several)


def our_outputs(model, params, head, tokens):
    per_choice = head.transform == "multiple_choice"
    num_outputs = tokens.shape[1] if per_choice else head.kernel.shape[1]
    layer = {"kernel": head.kernel, "bias": head.bias}
    params = {"transformer": params, "head": layer}
    task = Head(num_outputs, per_choice, 0.0, extract_token=model.vocab_size - 1)
    apply = jax.jit(heads.apply, static_argnums=(0, 1))
    return np.asarray(apply(model, task, params, tokens)[0])


def tokens_and_lengths(model, shape):
    """Random sequences that end with the extract token and padding."""
    rng = np.random.default_rng(2)
    tokens = rng.integers(1, model.vocab_size - 3, (*shape, 16)).astype(np.int32)
    lengths = rng.integers(8, 17, shape)
    places = np.arange(16)
    tokens[places >= lengths[..., None]] = model.vocab_size - 3
    tokens[places == lengths[..., None] - 1] = model.vocab_size - 1
    return tokens, lengths


def test_choices_equal_transformers(transformers, model, params, tmp_path):
    import torch

    head = made_up_head(model, 1, "multiple_choice", ("choice1", "choice2"))
    hugging_face.write_model(epath.Path(tmp_path), model, params, head)
    theirs = their_model(transformers.OpenAIGPTDoubleHeadsModel, tmp_path)
    tokens, lengths = tokens_and_lengths(model, (4, 2))
    ends = torch.tensor(lengths - 1)
    with torch.no_grad():
        found = theirs(torch.tensor(tokens).long(), mc_token_ids=ends)
    ours = our_outputs(model, params, head, tokens)
    np.testing.assert_allclose(ours, found.mc_logits.numpy(), atol=TOLERANCE)


@pytest.mark.parametrize(
    ("transform", "labels", "bias", "kind"),
    [
        ("single", ("bad", "good", "?"), 0.1, None),
        ("pair", ("no", "yes"), 0.0, None),
        ("single", (), 0.1, "regression"),
        ("single", ("a", "b", "c"), 0.1, "multi_label_classification"),
    ],
)
def test_classes_equal_transformers(
    transformers, model, params, tmp_path, transform, labels, bias, kind
):
    """Their class has no bias; the weights stand in for it.

    Of several labels its loss, too, takes each output for a decision of its own.
    """
    import torch

    number, several = len(labels) or 1, kind == "multi_label_classification"
    head = made_up_head(model, number, transform, labels, bias, several)
    hugging_face.write_model(epath.Path(tmp_path), model, params, head)
    theirs = their_model(transformers.OpenAIGPTForSequenceClassification, tmp_path)
    assert tuple(theirs.config.id2label.values()) == (labels or ("LABEL_0",))
    assert theirs.config.problem_type == kind
    tokens, _ = tokens_and_lengths(model, (6, 1))
    given = np.random.default_rng(0).integers(0, 2, (6, number)).astype(np.float32)
    known = {"labels": torch.tensor(given)} if several else {}
    with torch.no_grad():
        found = theirs(torch.tensor(tokens[:, 0]).long(), **known)
    ours = our_outputs(model, params, head, tokens)
    np.testing.assert_allclose(ours, found.logits.numpy(), atol=TOLERANCE)
    if several:
        loss = heads.classification_loss(ours, given, True)
        assert float(loss) == pytest.approx(float(found.loss), rel=1e-4)


def test_a_bias_that_weights_cannot_stand_in_for_is_refused(model, params, tmp_path):
    head = made_up_head(model, 2, "single", ("no", "yes"))
    held, norm = params, params[f"h_{model.num_layers - 1}"]["ln_2"]
    for shift in (0.0, 1e-7):
        norm = {**norm, "bias": np.full(model.embed_dim, shift, np.float32)}
        params = {**held, f"h_{model.num_layers - 1}": {"ln_2": norm}}
        with pytest.raises(
            ValueError, match=r"bias of the fine-tuned head, \[.* cancel out \("
        ):
            hugging_face.write_model(epath.Path(tmp_path), model, params, head)


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


# --- what cannot be read ------------------------------------------------------------


def twice(held):
    return {**held, "tokens_embed.weight": held[TOKENS] + 1}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model_type": "gpt2"}, r"model_type is 'gpt2'; GPT-1 has 'openai-gpt'"),
        ({"model_type": None}, r"model_type is None"),
        ({"afn": "relu"}, r"afn is 'relu'; GPT-1 has 'gelu'"),
        ({"layer_norm_epsilon": 1e-6}, r"layer_norm_epsilon is 1e-06"),
        ({"tie_word_embeddings": False}, r"tie_word_embeddings is False"),
        ({"n_layer": "2"}, r"n_layer is '2', not a positive number"),
        ({"n_head": 0}, r"n_head is 0"),
        ({"n_head": 5}, r"n_embd=32 is no multiple of n_head=5"),
        ({"vocab_size": None}, r"vocab_size is None"),
        ({"n_layer": 3}, r"lack h.2.attn.c_attn.bias, .* and 7 more"),
        ({"n_layer": 10**12}, r"lack h.10.attn.c_attn.bias, .* more"),
        ({"n_layer": 1}, r"have the unknown h.1.attn.c_attn.bias"),
        ({"n_positions": 8}, r"positions_embed.weight has the shape \(16, 32\); conf"),
        ({"vocab_size": 98}, r"tokens_embed.weight has the shape \(97, 32\); .*98"),
        (
            {"arrays": functools.partial(with_the_output_matrix, more=1)},
            r"lm_head.weight differs from the token",
        ),
        ({"arrays": twice}, r"hold parameters twice"),
    ],
)
def test_another_model_is_refused(folder, changed, message):
    change(folder, **changed)
    with pytest.raises(ValueError, match=message) as caught:
        hugging_face.read_model(folder)
    assert "\n" not in str(caught.value)


# --- arrays in safetensors and .bin files: types, parts, damage and pickles ---


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


def save_safetensors(arrays, path):
    safetensors.numpy.save_file(arrays, path)


def save_bin(arrays, path):
    import torch

    torch.save({name: torch.tensor(array) for name, array in arrays.items()}, path)


def split_in_parts(empty, arrays, name="model.safetensors", save=save_safetensors):
    stem, _, suffix = name.partition(".")
    files = {each: f"{stem}-{number}.{suffix}" for number, each in enumerate(arrays)}
    for each, file in files.items():
        save({each: arrays[each]}, empty / file)
    index = json.dumps({"metadata": {}, "weight_map": files})
    (empty / f"{name}.index.json").write_text(index)


@pytest.mark.parametrize(
    ("name", "save"),
    [("model.safetensors", save_safetensors), ("pytorch_model.bin", save_bin)],
)
def test_parts_are_put_together(empty, arrays, name, save):
    if save is save_bin:
        pytest.importorskip("torch")
    split_in_parts(empty, arrays, name, save)
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


def a_part_is_missing(folder, arrays):
    split_in_parts(folder, arrays)
    (folder / "model-1.safetensors").unlink()


def a_header_promises_too_much(folder, arrays):
    sizes = {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}
    header = json.dumps({"a": sizes}).encode()
    content = struct.pack("<Q", len(header)) + header
    (folder / "model.safetensors").write_bytes(content)


def whole_numbers(folder, arrays):
    save_safetensors({"a": np.arange(3)}, folder / "model.safetensors")


def spoiled(spoil):
    def write(folder, arrays):
        content = safetensors.numpy.save(arrays)
        (folder / "model.safetensors").write_bytes(spoil(content))

    return write


def indexed(index):
    text, name = json.dumps(index), "model.safetensors.index.json"
    return lambda folder, arrays: (folder / name).write_text(text)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder, arrays: None, r"holds no weights: .*model.safetensor"),
        (a_part_is_missing, "lacks model-1.safetensors"),
        (indexed({}), "has no weight_map"),
        (indexed({"weight_map": []}), "has no weight_map"),
        (indexed({"weight_map": {"a": 1}}), "has no weight_map"),
        (indexed({"weight_map": {"a": "../b.safetensors"}}), "lies in another folder"),
        (spoiled(lambda c: b""), "model.safetensors is damaged"),
        (spoiled(lambda c: c[:20]), "model.safetensors is damaged"),
        (spoiled(lambda c: c[:-3]), "model.safetensors is damaged"),
        (spoiled(lambda c: b"\xff" * len(c)), "model.safetensors is damaged"),
        (a_header_promises_too_much, "model.safetensors is damaged"),
        (whole_numbers, "a holds I64, not floating-point"),
    ],
)
def test_weights_that_cannot_be_read_are_refused(empty, arrays, make, message):
    make(empty, arrays)
    with pytest.raises((UserError, FileNotFoundError), match=message) as caught:
        read_arrays(empty)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_a_git_lfs_pointer_is_called_that(empty, lfs_pointer, name):
    (empty / name).write_bytes(lfs_pointer)
    with pytest.raises(UserError, match=f"{name} is a Git LFS pointer, .* lfs pull"):
        read_arrays(empty)


# --- .bin -----------------------------------------------------------------------


def test_a_bin_file_is_read(empty, arrays):
    torch = pytest.importorskip("torch")
    tensors = {name: torch.tensor(array) for name, array in arrays.items()}
    buffers = {"h.0.attn.bias": torch.ones(1, 1, 4, 4).bool()}
    torch.save({**tensors, **buffers}, empty / "pytorch_model.bin")
    assert_same(read_arrays(empty), arrays)
    trained = {name: torch.nn.Parameter(tensor) for name, tensor in tensors.items()}
    torch.save(trained, empty / "pytorch_model.bin")
    assert_same(read_arrays(empty), arrays)


def test_a_bin_file_executes_nothing(empty, tmp_path):
    torch = pytest.importorskip("torch")
    for harmful in ({"a": Harm(tmp_path / "harmed")}, Harm(tmp_path / "harmed")):
        for new_format in (True, False):
            torch.save(
                harmful,
                empty / "pytorch_model.bin",
                _use_new_zipfile_serialization=new_format,
            )
            with pytest.raises(ValueError, match=r"holds more than weights") as caught:
                read_arrays(empty)
            assert "\n" not in str(caught.value)
    assert not (tmp_path / "harmed").exists()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda torch: [1], r"holds list, not weights by name"),
        (lambda torch: {"a": 1}, r"a holds int, not floating"),
        (lambda torch: {1: 2}, r"1 holds int, not floating"),
        (lambda torch: {"a": torch.arange(3)}, r"a holds torch.int64"),
    ],
)
def test_a_bin_file_of_something_else_is_refused(empty, make, message):
    torch = pytest.importorskip("torch")
    torch.save(make(torch), empty / "pytorch_model.bin")
    with pytest.raises(ValueError, match=message):
        read_arrays(empty)


def test_without_torch_a_bin_file_is_refused(empty, monkeypatch):
    (empty / "pytorch_model.bin").write_bytes(b"")
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(ImportError, match=r"install torch .*model.safetensors"):
        read_arrays(empty)
