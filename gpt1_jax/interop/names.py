"""One table of parameter names and shapes in all formats."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from flax import traverse_util

from gpt1_jax.config import ModelConfig
from gpt1_jax.model.language_model import Params


class Sizes(NamedTuple):
    """The sizes of a Transformer, as `ModelConfig` names them."""

    vocab_size: int
    num_layers: int
    num_heads: int
    embed_dim: int
    mlp_dim: int
    max_seq_len: int

    @classmethod
    def of(cls, model: ModelConfig) -> "Sizes":
        """The sizes in a configuration."""
        return cls(*(getattr(model, name) for name in cls._fields))

    def section(self) -> dict[str, Any]:
        """The sizes as keys of `config.model`, where an LSTM's units are ignored."""
        sizes = self._asdict()
        del sizes["vocab_size"]  # the tokenizer decides it
        return {**sizes, "kind": "transformer", "lstm_units": 2048}


class Tensor(NamedTuple):
    """One parameter: its name in each format, and its shape."""

    name: str  # ours: "h_0/attn/c_attn/kernel"
    hugging_face: str  # "h.0.attn.c_attn.weight", without "transformer."
    shape: tuple[int, ...]

    @property
    def openai_shape(self) -> tuple[int, ...]:
        """The shape in params_shapes.json, where kernels have a leading 1."""
        return (1, *self.shape) if self.name.endswith("/kernel") else self.shape


def tensors(sizes: Sizes) -> list[Tensor]:
    """All parameters of a model, in the order of OpenAI's shards.

    Positions come first there, then tokens, then twelve tensors for each layer.
    Kernels are [in, out] in all three formats.
    """
    width, mlp = sizes.embed_dim, sizes.mlp_dim
    table = [
        Tensor("wpe", "positions_embed.weight", (sizes.max_seq_len, width)),
        Tensor("wte", "tokens_embed.weight", (sizes.vocab_size, width)),
    ]
    modules: dict[str, tuple[int, ...]] = {
        "attn/c_attn": (width, 3 * width),
        "attn/c_proj": (width, width),
        "ln_1": (width,),
        "mlp/c_fc": (width, mlp),
        "mlp/c_proj": (mlp, width),
        "ln_2": (width,),
    }
    for layer in range(sizes.num_layers):
        for module, shape in modules.items():
            ours = f"h_{layer}/{module}"
            theirs = f"h.{layer}.{module}".replace("/", ".")
            kind = "kernel" if len(shape) == 2 else "scale"
            table += [
                Tensor(f"{ours}/{kind}", f"{theirs}.weight", shape),
                Tensor(f"{ours}/bias", f"{theirs}.bias", shape[-1:]),
            ]
    return table


def flatten_params(params: Params) -> dict[str, np.ndarray]:
    """`{"h_0/attn/c_attn/kernel": array, ...}`"""
    flat = traverse_util.flatten_dict(params, sep="/")
    return {name: np.asarray(array) for name, array in flat.items()}


def unflatten_params(flat: Mapping[str, Any]) -> Params:
    """The inverse of `flatten_params`."""
    params: Params = traverse_util.unflatten_dict(dict(flat), sep="/")
    return params
