"""The section on the model; `configs/pretrain.py` documents every key."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from gpt1_jax.config.sections import (
    DTYPES,
    newer,
    not_negative,
    one_of,
    positive,
    require,
)

KIND_NAMES = {"transformer": "Transformer", "lstm": "LSTM"}  # in texts
SIZES = (  # what a run takes over from the one it starts from
    "kind",
    "num_layers",
    "num_heads",
    "embed_dim",
    "mlp_dim",
    "lstm_units",
    "max_seq_len",
)
_LARGEST = 2**31 - 1  # index of an array


def depth(model: Mapping[str, Any]) -> int:
    """The number of layers that a model's section describes: 1 of an LSTM."""
    return 1 if model["kind"] == "lstm" else model["num_layers"]


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """The Transformer decoder (sec. 4.1), or the LSTM in its place (sec. 5).

    `vocab_size` is not a key of `config.model`: the tokenizer decides it. An LSTM has
    no use for the sizes and implementations of layers that only the Transformer has.
    """

    vocab_size: int
    kind: str = dataclasses.field(metadata=newer("transformer"))
    num_layers: int
    num_heads: int
    embed_dim: int
    mlp_dim: int
    lstm_units: int = dataclasses.field(metadata=newer(2048))
    max_seq_len: int
    embed_dropout: float
    attn_dropout: float
    resid_dropout: float
    embed_dropout_on: str
    attention_impl: str
    layer_norm_impl: str = dataclasses.field(metadata=newer("plain"))
    softmax_rows: str
    loss_chunk: int
    dtype: str
    layer_loop: str
    remat: bool

    @property
    def depth(self) -> int:
        """The number of layers: L of the Transformer, 1 of the LSTM."""
        return depth(vars(self))

    @property
    def main_size(self) -> str:
        """The key that, with `embed_dim`, decides how large the model is."""
        return "lstm_units" if self.kind == "lstm" else "num_layers"

    @property
    def layers(self) -> str:
        """The layers in words."""
        if self.kind == "lstm":
            return f"LSTM layer of {self.lstm_units:,} units"
        return f"{self.num_layers} layers"

    def __post_init__(self):
        one_of("model.kind", self.kind, tuple(KIND_NAMES))
        for name in SIZES[1:]:
            require(
                getattr(self, name) <= _LARGEST,
                f"config.model.{name}={getattr(self, name)} must be at most "
                f"{_LARGEST:,}, as no array has a larger index.",
            )
        positive("model", self, "embed_dim")
        if self.kind == "lstm":
            self._check_lstm()
        else:
            self._check_transformer()
        require(
            self.max_seq_len >= 2,
            f"config.model.max_seq_len={self.max_seq_len} must be at least 2: a "
            "sequence needs a token to predict and one to predict it from.",
        )
        for name in ("embed_dropout", "attn_dropout", "resid_dropout"):
            rate = getattr(self, name)
            require(
                0.0 <= rate < 1.0,
                f"config.model.{name}={rate} must lie in [0, 1); the paper uses 0.1.",
            )
        one_of(
            "model.embed_dropout_on",
            self.embed_dropout_on,
            ("sum", "matrix", "lookups"),
        )
        not_negative("model", self, "loss_chunk")
        one_of(
            "model.attention_impl", self.attention_impl, ("blocked", "fused", "plain")
        )
        one_of("model.layer_norm_impl", self.layer_norm_impl, ("fused", "plain"))
        one_of("model.softmax_rows", self.softmax_rows, ("tokens", "tokens+positions"))
        one_of("model.dtype", self.dtype, DTYPES)
        one_of("model.layer_loop", self.layer_loop, ("unrolled", "scan"))

    def _check_transformer(self) -> None:
        positive("model", self, "num_layers", "num_heads", "mlp_dim")
        require(
            self.embed_dim % self.num_heads == 0,
            f"config.model.embed_dim={self.embed_dim} must be a multiple of "
            f"config.model.num_heads={self.num_heads}; use "
            f"--config.model.embed_dim={-(-self.embed_dim // self.num_heads)}"
            f"*{self.num_heads}="
            f"{-(-self.embed_dim // self.num_heads) * self.num_heads}.",
        )

    def _check_lstm(self) -> None:
        positive("model", self, "lstm_units")
        require(
            self.softmax_rows == "tokens",
            f"config.model.softmax_rows={self.softmax_rows!r} scores positions, and "
            "config.model.kind='lstm' has no position embeddings; use "
            "--config.model.softmax_rows=tokens.",
        )
