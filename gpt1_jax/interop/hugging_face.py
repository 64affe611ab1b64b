"""Folders of Hugging Face's openai-gpt models: config.json and the weights.

What transformers cannot hold is refused by name: another width of the MLP, pairs in
both orders. The bias of classes, for which it has no place, is put into their weights.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from gpt1_jax.config import ModelConfig
from gpt1_jax.config.saved import read_json
from gpt1_jax.data.files import write_json
from gpt1_jax.errors import UserError
from gpt1_jax.interop import names, weight_files
from gpt1_jax.interop.names import Sizes, Weights
from gpt1_jax.model.language_model import Params
from gpt1_jax.ops.layer_norm import EPSILON

CONFIG_FILE = "config.json"
MODEL_TYPE = "openai-gpt"
CLASSIFIER = "OpenAIGPTForSequenceClassification"

_PREFIX = "transformer."
_TIED = "lm_head.weight"  # the token embedding again
_LARGEST_ERROR = 1e-4  # of logits, by rounding
_PAD = 0  # any id but the extract token, which has to be the last that is not padding
_SIZES = {
    "vocab_size": "vocab_size",
    "num_layers": "n_layer",
    "num_heads": "n_head",
    "embed_dim": "n_embd",
    "max_seq_len": "n_positions",
}
_FIXED = {
    "model_type": MODEL_TYPE,
    "afn": "gelu",
    "layer_norm_epsilon": EPSILON,
    "tie_word_embeddings": True,
}


class FinetunedHead(NamedTuple):
    """The linear layer of a fine-tuned model, and what its task does with it."""

    kernel: np.ndarray  # [D, K]; of choices [D, 1]
    bias: np.ndarray
    transform: str  # the task's, as in `gpt1_jax.tasks.task`
    labels: tuple[str, ...]  # empty if they are scores


class Target(NamedTuple):
    """The class of transformers that holds a model, and what it has beside GPT."""

    architecture: str
    arrays: Mapping[str, np.ndarray]
    settings: Mapping[str, Any]  # further keys of config.json


def read(folder: epath.Path) -> Weights:
    """Reads a pre-trained openai-gpt model.

    Raises:
      FileNotFoundError: if a file is missing.
      ImportError: if the weights need torch, and it is not installed.
      ValueError: if it is another kind of model, or names or shapes are not those that
        config.json implies.
    """
    sizes = _read_sizes(folder / CONFIG_FILE)
    held = _without_tied(folder, _without_prefix(folder, weight_files.read(folder)))
    # However many layers config.json claims, no more are looked for than can be there.
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
    return Weights(sizes, names.unflatten(flat))


def write(folder: epath.Path, model: ModelConfig, params: Params, to: Target) -> None:
    """Writes config.json and model.safetensors into an existing folder.

    Args:
      folder: where to.
      model: the configuration of the language model.
      params: its parameters.
      to: what `find_target` returned for it.
    """
    write_json(folder / CONFIG_FILE, {**_settings(model, to), **to.settings})
    flat = names.flatten(params)
    arrays = {
        _PREFIX + tensor.hugging_face: flat[tensor.name]
        for tensor in names.tensors(Sizes.of(model))
    }
    weight_files.write(folder, {**arrays, **to.arrays})


def find_target(
    model: ModelConfig, params: Params, head: FinetunedHead | None
) -> Target:
    """The class of transformers that computes what a model does.

    Args:
      model: the configuration of the language model.
      params: its parameters.
      head: of a fine-tuned model.

    Raises:
      ValueError: if none does; names the part that has no place.
    """
    if model.mlp_dim != 4 * model.embed_dim:
        raise UserError(
            f"config.model.mlp_dim={model.mlp_dim} has no place in transformers' "
            f"{MODEL_TYPE}, whose MLP is 4 * embed_dim={4 * model.embed_dim} wide; "
            "OpenAI's format holds it (configs/convert.py:openai)."
        )
    if head is None:
        return Target("OpenAIGPTLMHeadModel", {}, {})
    if head.transform == "multiple_choice":
        return Target(
            "OpenAIGPTDoubleHeadsModel",
            {
                "multiple_choice_head.summary.weight": head.kernel.T,
                "multiple_choice_head.summary.bias": head.bias,
            },
            {"num_labels": 1},
        )
    last_norm = params[f"h_{model.num_layers - 1}"]["ln_2"]
    return _classifier(head, last_norm)


def _classifier(head: FinetunedHead, last_norm: Params) -> Target:
    """One text or pair, read once: `score.weight` at the last token, without bias."""
    if head.transform == "similarity":
        raise UserError(
            "This model adds up its states for both orders of a pair; transformers' "
            f"{CLASSIFIER} reads one sequence. It has no place there."
        )
    labels = head.labels or tuple(f"LABEL_{i}" for i in range(head.kernel.shape[1]))
    settings = {
        "id2label": {str(number): label for number, label in enumerate(labels)},
        "label2id": {label: number for number, label in enumerate(labels)},
        "pad_token_id": _PAD,
    }
    kernel = _with_bias_inside(head, last_norm)
    return Target(CLASSIFIER, {"score.weight": kernel.T}, settings)


def _with_bias_inside(head: FinetunedHead, last_norm: Params) -> np.ndarray:
    """[D, K], weights that do to the states what `head` does with its bias.

    A layer norm makes states x = gain * z + shift of a z that sums up to 0. So the sum
    of x / gain is c = sum(shift / gain), always: weights of bias / (c * gain) add the
    bias.
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
        shown = np.array2string(head.bias, precision=4)
        raise UserError(
            f"The bias of the fine-tuned head, {shown}, has no place in transformers' "
            f"{CLASSIFIER}, and its weights cannot stand in for it: the last layer "
            f"norm's biases nearly cancel out ({constant:.1g})."
        )
    return kernel.astype(np.float32)


def _settings(model: ModelConfig, to: Target) -> dict[str, Any]:
    """The keys of the published config.json."""
    return {
        "model_type": MODEL_TYPE,
        "architectures": [to.architecture],
        **{theirs: getattr(model, ours) for ours, theirs in _SIZES.items()},
        "n_ctx": model.max_seq_len,
        "n_special": 0,
        "afn": "gelu",  # their name for the tanh form, which is ours
        "attn_pdrop": model.attn_dropout,
        "embd_pdrop": model.embed_dropout,
        "resid_pdrop": model.resid_dropout,
        "initializer_range": 0.02,
        "layer_norm_epsilon": EPSILON,
        "predict_special_tokens": True,
        "summary_type": "cls_index",
        "summary_use_proj": True,
        "summary_activation": None,
        "summary_proj_to_labels": True,
        "summary_first_dropout": 0.1,
        "dtype": "float32",
    }


def _read_sizes(path: epath.Path) -> Sizes:
    config = read_json(path)
    config.setdefault("model_type", None)  # the others have these values by default
    for key, value in _FIXED.items():
        if config.get(key, value) != value:
            raise UserError(
                f"{path}: {key} is {config[key]!r}; GPT-1 has {value!r}, and nothing "
                "else can be read."
            )
    config.setdefault("n_positions", config.get("n_ctx"))
    found = {ours: config.get(theirs) for ours, theirs in _SIZES.items()}
    for ours, value in found.items():
        if type(value) is not int or value < 1:
            raise UserError(
                f"{path}: {_SIZES[ours]} is {value!r}, not a positive number."
            )
    sizes = {ours: int(value or 0) for ours, value in found.items()}
    width, heads = sizes["embed_dim"], sizes["num_heads"]
    if width % heads:
        raise UserError(f"{path}: n_embd={width} is no multiple of n_head={heads}.")
    return Sizes(**sizes, mlp_dim=4 * sizes["embed_dim"])


def _without_prefix(
    folder: epath.Path, held: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Names as in the base model, which has no "transformer."."""
    bare = {name.removeprefix(_PREFIX): array for name, array in held.items()}
    if len(bare) < len(held):
        raise UserError(
            f"The weights in {folder} hold parameters twice, with and without "
            f"{_PREFIX!r} before their names; it is unclear which are meant."
        )
    return bare


def _without_tied(
    folder: epath.Path, held: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Leaves out the output matrix, if it is the token embedding."""
    tokens, output = held.get("tokens_embed.weight"), held.get(_TIED)
    if output is None or tokens is None:
        return held
    if not np.array_equal(tokens, output):
        raise UserError(
            f"{folder}: {_TIED} differs from the token embedding; GPT-1 has one matrix "
            "for both."
        )
    return {name: array for name, array in held.items() if name != _TIED}


def _check_names(folder: epath.Path, expected: set[str], found: set[str]) -> None:
    for problem, keys in (
        ("lack", sorted(expected - found)),
        ("have the unknown", sorted(found - expected)),
    ):
        if keys:
            more = f" and {len(keys) - 5} more" if len(keys) > 5 else ""
            raise UserError(
                f"The weights in {folder} {problem} {', '.join(keys[:5])}{more}; only "
                "a whole language model without a fine-tuned head, of the sizes in "
                f"{CONFIG_FILE}, can be read."
            )
