"""Folders of Hugging Face's openai-gpt models: config.json and the weights.

A part of a model for which transformers has no place is refused by name: another width
of the MLP, a pair read in both orders. Its class for classification has no bias, so a
head's bias is worked into the weights.

Weights are read from safetensors, which hold nothing but arrays, or from .bin files
where torch is installed. A .bin file is a pickle; torch's `weights_only` reader builds
arrays from it and refuses everything else.
"""

import io
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy
from etils import epath

from gpt1_jax.config import ModelConfig
from gpt1_jax.config.saved import read_json
from gpt1_jax.data.files import write_json, write_whole
from gpt1_jax.data.text import refuse_lfs_pointer
from gpt1_jax.data.tokenizers import NUM_SPECIAL_TOKENS
from gpt1_jax.errors import MissingPackage, UserError
from gpt1_jax.interop import names
from gpt1_jax.interop.names import Sizes
from gpt1_jax.model.language_model import Params
from gpt1_jax.ops.layer_norm import EPSILON

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
BIN_FILE = "pytorch_model.bin"
BIN_INDEX_FILE = "pytorch_model.bin.index.json"
# Weights in one file, or the list of their parts; the first that is there is read.
KINDS = ((WEIGHTS_FILE, INDEX_FILE), (BIN_FILE, BIN_INDEX_FILE))

MODEL_TYPE = "openai-gpt"
LANGUAGE_MODEL = "OpenAIGPTLMHeadModel"
CLASSIFIER = "OpenAIGPTForSequenceClassification"
CHOICES_MODEL = "OpenAIGPTDoubleHeadsModel"

_PREFIX = "transformer."
_TOKENS = "tokens_embed.weight"
_TIED = "lm_head.weight"  # the token embedding again
_HEADS = ("score.", "multiple_choice_head.")  # how the names of fine-tuned heads begin
# Before names in models that torch.compile, DataParallel and others wrap.
_WRAPPERS = re.compile(r"(^|(?<=\.))(_orig_mod|module|_fsdp_wrapped_module)\.")
# The ends of names before 2019: OpenAI's, and those of the first layer norms.
_OLD_ENDS = {
    **dict.fromkeys(("w", "g", "gamma"), "weight"),
    **dict.fromkeys(("b", "beta"), "bias"),
}
_LARGEST_ERROR = 1e-4  # of logits, due to rounding
_SIZES = {
    "vocab_size": "vocab_size",
    "num_layers": "n_layer",
    "num_heads": "n_head",
    "embed_dim": "n_embd",
    "max_seq_len": "n_positions",
}
_FIXED = {
    "model_type": MODEL_TYPE,
    "afn": "gelu",  # their name for the tanh form, which is ours
    "layer_norm_epsilon": EPSILON,
}
_PUBLISHED = {  # the other keys of the published config.json
    "n_special": 0,
    "initializer_range": 0.02,
    "predict_special_tokens": True,
    "summary_type": "cls_index",
    "summary_use_proj": True,
    "summary_activation": None,
    "summary_proj_to_labels": True,
    "summary_first_dropout": 0.1,
    "dtype": "float32",
}
# Masks and positions, which old files hold beside the parameters.
_BUFFERS = (".attn.bias", ".attn.b", ".attn.masked_bias", "position_ids")
_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": jnp.bfloat16}


class FinetunedHead(NamedTuple):
    """The linear layer of a fine-tuned model, and its meaning in the task."""

    kernel: np.ndarray  # [D, K]; of choices [D, 1]
    bias: np.ndarray
    transform: str  # the task's, as in `gpt1_jax.tasks.task`
    labels: tuple[str, ...]  # of the outputs; empty if the only one is a score
    multilabel: bool = False  # whether a text may have several of them, or none


def read_model(folder: epath.Path) -> tuple[Sizes, Params, list[str]]:
    """Reads the language model of an openai-gpt folder.

    Files of old versions, of compiled or wrapped models, of several parts, and of
    fine-tuned models are read too; heads are left out.

    Returns:
      The sizes, the parameters, and what was left out, a sentence each.

    Raises:
      FileNotFoundError: if a file is missing.
      ImportError: if the weights need torch, and it is not installed.
      ValueError: if it is another kind of model, or if names or shapes do not fit
        config.json.
    """
    sizes = _read_sizes(folder / CONFIG_FILE)
    arrays = read_arrays(folder)
    held = {_base_name(name): array for name, array in arrays.items()}
    if len(held) < len(arrays):
        raise UserError(
            f"The weights in {folder} hold parameters twice, with and without "
            f"{_PREFIX!r} before their names; it is unclear which are meant."
        )
    left_out = []
    if heads := sorted(name for name in held if name.startswith(_HEADS)):
        left_out.append(f"The fine-tuned head is left out: {', '.join(heads)}.")
        held = {name: array for name, array in held.items() if name not in heads}
    if all((folder / name).exists() for name in (WEIGHTS_FILE, INDEX_FILE)):
        left_out.append(
            f"The parts in {INDEX_FILE} are left out: as transformers does, "
            f"{WEIGHTS_FILE} beside it is read."
        )
    if _TIED in held:  # the only name of the two that some files hold
        tied = held.pop(_TIED)
        if not np.array_equal(held.setdefault(_TOKENS, tied), tied):
            raise UserError(
                f"{folder}: {_TIED} differs from the token embedding; GPT-1 has one "
                "matrix for both."
            )
    # config.json may claim any number of layers; look for no more than there can be.
    likely = sizes._replace(num_layers=min(sizes.num_layers, len(held) + 1))
    table = names.tensors(likely)
    _check_names(folder, {tensor.hugging_face for tensor in table}, set(held))
    for tensor in table:
        found = held[tensor.hugging_face].shape
        if found != tensor.shape:
            raise UserError(
                f"{folder}: {tensor.hugging_face} has the shape {found}; "
                f"{CONFIG_FILE} requires {tensor.shape}."
            )
    flat = {tensor.name: held[tensor.hugging_face] for tensor in table}
    return sizes, names.unflatten_params(flat), left_out


def write_model(
    folder: epath.Path,
    model: ModelConfig,
    params: Params,
    head: FinetunedHead | None = None,
) -> str:
    """Writes config.json and model.safetensors into an existing folder.

    Returns:
      The class of transformers that computes what the model does.

    Raises:
      ValueError: if no class does; names the part that has no place. Nothing is
        written then.
    """
    if model.mlp_dim != 4 * model.embed_dim:
        raise UserError(
            f"config.model.mlp_dim={model.mlp_dim} has no place in transformers' "
            f"{MODEL_TYPE}, whose MLP is 4 * embed_dim={4 * model.embed_dim} wide; "
            "OpenAI's format holds it (configs/convert.py:openai)."
        )
    architecture = LANGUAGE_MODEL
    head_arrays: dict[str, np.ndarray] = {}
    settings: dict[str, Any] = {}
    if head:
        last_norm = params[f"h_{model.num_layers - 1}"]["ln_2"]
        architecture, head_arrays, settings = _place_of(head, last_norm, model)
    config = {
        **_FIXED,
        "architectures": [architecture],
        **{theirs: getattr(model, ours) for ours, theirs in _SIZES.items()},
        "n_ctx": model.max_seq_len,
        "attn_pdrop": model.attn_dropout,
        "embd_pdrop": model.embed_dropout,
        "resid_pdrop": model.resid_dropout,
        **_PUBLISHED,
        **settings,
    }
    write_json(folder / CONFIG_FILE, config)
    flat = names.flatten_params(params)
    arrays = {
        _PREFIX + tensor.hugging_face: flat[tensor.name]
        for tensor in names.tensors(Sizes.of(model))
    }
    write_arrays(folder, {**arrays, **head_arrays})
    return architecture


def _place_of(
    head: FinetunedHead, last_norm: Params, model: ModelConfig
) -> tuple[str, dict[str, np.ndarray], dict[str, Any]]:
    """The class that has a place for a head, its arrays and keys of config.json."""
    if head.transform == "multiple_choice":
        summary = "multiple_choice_head.summary"
        arrays = {f"{summary}.weight": head.kernel.T, f"{summary}.bias": head.bias}
        return CHOICES_MODEL, arrays, {"num_labels": 1}
    if head.transform == "similarity":
        raise UserError(
            "This model adds up its states for both orders of a pair; transformers' "
            f"{CLASSIFIER} reads one sequence. It has no place there."
        )
    labels = head.labels or tuple(f"LABEL_{i}" for i in range(head.kernel.shape[1]))
    settings: dict[str, Any] = {
        "id2label": {str(number): label for number, label in enumerate(labels)},
        "label2id": {label: number for number, label in enumerate(labels)},
        # Start: the class reads the last token that is not padding, which is extract.
        "pad_token_id": model.vocab_size - NUM_SPECIAL_TOKENS,
    }
    if not head.labels:  # else a pipeline turns a score into a probability
        settings["problem_type"] = "regression"
    if head.multilabel:
        settings["problem_type"] = "multi_label_classification"
    kernel = _with_bias_inside(head, last_norm)
    return CLASSIFIER, {"score.weight": kernel.T}, settings


def _with_bias_inside(head: FinetunedHead, last_norm: Params) -> np.ndarray:
    """Weights [D, K] that compute from the states what `head` does with its bias.

    The last layer norm makes states x = gain * z + shift, where z sums to 0. So the sum
    of x / gain is always c = sum(shift / gain), and adding bias / (c * gain) to the
    weights adds the bias to the outputs.
    """
    if not np.any(head.bias):
        return head.kernel
    gain, shift = (np.asarray(last_norm[key], np.float64) for key in ("scale", "bias"))
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = shift / gain
        constant = shares.sum()
        kernel = head.kernel + head.bias / (constant * gain[:, None])
        terms = np.abs(head.bias).max() * (1 + np.abs(shares)).sum() / abs(constant)
    if not terms * np.finfo(np.float32).eps < _LARGEST_ERROR:
        bias = np.array2string(head.bias, precision=4)
        raise UserError(
            f"The bias of the fine-tuned head, {bias}, has no place in transformers' "
            f"{CLASSIFIER}, and its weights cannot stand in for it: the last layer "
            f"norm's biases nearly cancel out ({constant:.1g})."
        )
    return kernel.astype(np.float32)


def _read_sizes(path: epath.Path) -> Sizes:
    config = read_json(path)
    config.setdefault("model_type", None)  # the others have these values by default
    for key, value in {**_FIXED, "tie_word_embeddings": True}.items():
        if config.get(key, value) != value:
            raise UserError(
                f"{path}: {key} is {config[key]!r}; GPT-1 has {value!r}, and nothing "
                "else can be read."
            )
    config.setdefault("n_positions", config.get("n_ctx"))
    sizes: dict[str, int] = {}
    for ours, theirs in _SIZES.items():
        value = config.get(theirs)
        if type(value) is not int or value < 1:
            raise UserError(f"{path}: {theirs} is {value!r}, not a positive number.")
        sizes[ours] = value
    width, heads = sizes["embed_dim"], sizes["num_heads"]
    if width % heads:
        raise UserError(f"{path}: n_embd={width} is no multiple of n_head={heads}.")
    return Sizes(**sizes, mlp_dim=4 * width)


def _base_name(name: str) -> str:
    """The name of today in the base model, of a name in any file of weights."""
    bare = _WRAPPERS.sub("", name).removeprefix(_PREFIX)
    stem, dot, end = bare.rpartition(".")
    return stem + dot + _OLD_ENDS.get(end, end)


def _check_names(folder: epath.Path, expected: set[str], found: set[str]) -> None:
    for problem, keys in (
        ("lack", sorted(expected - found)),
        ("have the unknown", sorted(found - expected)),
    ):
        if keys:
            more = f" and {len(keys) - 5} more" if len(keys) > 5 else ""
            raise UserError(
                f"The weights in {folder} {problem} {', '.join(keys[:5])}{more}; only "
                f"a whole language model of the sizes in {CONFIG_FILE} can be read."
            )


# --- arrays in files ---


def read_arrays(folder: epath.Path) -> dict[str, np.ndarray]:
    """All parameters in a folder by name, as float32, without buffers.

    Raises:
      FileNotFoundError: if there are no weights, or a part is missing.
      ImportError: if there is only a .bin file, and torch is not installed.
      ValueError: if a file is damaged, or holds other things than float arrays.
    """
    for whole, index in KINDS:
        read = _read_bin if whole == BIN_FILE else _read_safetensors
        if (folder / whole).exists():
            return dict(read(folder / whole))
        if (folder / index).exists():
            parts = (read(folder / part) for part in _parts(folder / index))
            return {name: array for part in parts for name, array in part}
    raise FileNotFoundError(
        f"{folder} holds no weights: it has none of {WEIGHTS_FILE}, {INDEX_FILE}, "
        f"{BIN_FILE} and {BIN_INDEX_FILE}."
    )


def write_arrays(folder: epath.Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes model.safetensors, with the mark that transformers expects."""
    # Safetensors would save other arrays in the wrong order, without an error.
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    content = safetensors.numpy.save(contiguous, metadata={"format": "pt"})
    write_whole(folder / WEIGHTS_FILE, content)


def _parts(index: epath.Path) -> list[str]:
    """The files that an index names."""
    weight_map = read_json(index).get("weight_map")
    found = set(weight_map.values()) if isinstance(weight_map, dict) else set()
    if not found or not all(isinstance(name, str) and name for name in found):
        raise UserError(f"{index} has no weight_map of names to files.")
    for name in sorted(found):
        if epath.Path(name).name != name:
            raise UserError(f"{index} names {name!r}, which lies in another folder.")
        if not (index.parent / name).exists():
            raise FileNotFoundError(
                f"{index.parent} lacks {name}, a part of the model."
            )
    return sorted(found)


def _read_safetensors(path: epath.Path) -> Iterator[tuple[str, np.ndarray]]:
    content = path.read_bytes()
    refuse_lfs_pointer(content, str(path))
    try:
        entries = safetensors.deserialize(content)
    except safetensors.SafetensorError as error:
        raise UserError(
            f"{path} is damaged, perhaps cut short: {error}. Copy the file again."
        ) from error
    for name, entry in entries:
        if name.endswith(_BUFFERS):
            continue
        if entry["dtype"] not in _DTYPES:
            raise _not_floats(path, name, entry["dtype"])
        array = np.frombuffer(entry["data"], np.dtype(_DTYPES[entry["dtype"]]))
        yield name, array.astype(np.float32).reshape(entry["shape"])


def _read_bin(path: epath.Path) -> Iterator[tuple[str, np.ndarray]]:
    content = path.read_bytes()
    refuse_lfs_pointer(content, str(path))
    try:
        import torch
    except ImportError as error:
        raise MissingPackage(
            f"{path} is PyTorch's own format; install torch to read it, or save the "
            f"model as {WEIGHTS_FILE} with transformers' save_pretrained."
        ) from error
    try:
        held = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # pickle's, zip's and torch's own
        raise UserError(
            f"{path} is damaged, or holds more than weights ({type(error).__name__}). "
            "Nothing in it was executed; get the model as safetensors."
        ) from error
    if not isinstance(held, dict):
        raise UserError(f"{path} holds {type(held).__name__}, not weights by name.")
    for name, tensor in held.items():
        if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
            raise _not_floats(path, str(name), type(tensor).__name__)
        if name.endswith(_BUFFERS):
            continue
        if not tensor.is_floating_point():
            raise _not_floats(path, name, str(tensor.dtype))
        yield name, tensor.detach().float().numpy()


def _not_floats(path: epath.Path, name: str, found: str) -> UserError:
    return UserError(f"{path}: {name} holds {found}, not floating-point numbers.")
