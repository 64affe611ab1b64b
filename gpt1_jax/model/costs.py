"""The costs of a model: parameters, memory and floating-point operations."""

import jax
import jax.numpy as jnp

from gpt1_jax.config import ModelConfig


def num_params(model: ModelConfig) -> int:
    """The number of parameters.

    At the paper's size and vocabulary the Transformer has 116,534,784 and the LSTM
    55,737,600.
    """
    d, f, u = model.embed_dim, model.mlp_dim, model.lstm_units
    if model.kind == "lstm":
        lstm, projection = 4 * u * (d + u + 1), (u + 1) * d
        return model.vocab_size * d + lstm + projection
    attention = 4 * d * d + 4 * d
    mlp = 2 * d * f + f + d
    layer_norms = 4 * d
    embeddings = (model.vocab_size + model.max_seq_len) * d
    return embeddings + model.num_layers * (attention + mlp + layer_norms)


def describe_model(model: ModelConfig) -> str:
    """The model in a line: "12 layers, 768 wide, 116,534,784 parameters"."""
    return f"{model.layers}, {model.embed_dim} wide, {num_params(model):,} parameters"


def num_logits(model: ModelConfig) -> int:
    """How many logits of a sequence exist at a time: [T or `loss_chunk`, V]."""
    t = model.max_seq_len
    return min(model.loss_chunk or t, t) * model.vocab_size


def forward_bytes(model: ModelConfig) -> int:
    """A lower bound on the memory that one more token takes in a forward pass.

    Counts its id and, in `dtype`, the arrays of one layer that exist at the same time:
    the state [.., D] and the MLP's units [.., F], or an LSTM's gates [.., 4 U].
    """
    inner = 4 * model.lstm_units if model.kind == "lstm" else model.mlp_dim
    return 4 + (model.embed_dim + inner) * jnp.dtype(model.dtype).itemsize


def train_activation_bytes(model: ModelConfig) -> int:
    """Rough memory for training on one sequence, besides the train state.

    Counts the arrays that the backward pass keeps, and `num_logits`: 3 of float32 on a
    CPU, 2 of `dtype` elsewhere. Of a Transformer these are 16 arrays [T, D] per layer
    (of one layer with `remat`), and 2 of scores [H, T, T] per layer with plain
    attention: 5.5e8 bytes at the paper's size in float32 on a CPU, 2.3e8 in bfloat16 on
    an accelerator; the compilers' own figures are 5.6e8 and, for an H100, 1.8e8. Of an
    LSTM they are embeddings, gates with their gradients, and states: 3.2e8 bytes,
    where a CPU compiler's figure is 1.3e8.
    """
    t, d, u = model.max_seq_len, model.embed_dim, model.lstm_units
    itemsize = jnp.dtype(model.dtype).itemsize
    per_logit = 3 * 4 if jax.default_backend() == "cpu" else 2 * itemsize
    logits = num_logits(model) * per_logit
    if model.kind == "lstm":
        return logits + t * ((4 * d + 15 * u) * itemsize + 4 * u)
    layer = 16 * t * d * itemsize
    if model.attention_form == "plain":
        layer += 2 * model.num_heads * t * t * 4
    return logits + (1 if model.remat else model.num_layers) * layer


def train_flops_per_token(model: ModelConfig, seq_len: int) -> float:
    """Floating-point operations to train on one token; a multiply-add counts as 2.

    The matrix products of the layers, of attention over the full square and of the
    logits, times 3 for forward and backward: 7.53e8 at the paper's size, and 3.34e8
    for the LSTM.
    """
    d, f, u = model.embed_dim, model.mlp_dim, model.lstm_units
    logits = 2 * d * model.vocab_size
    if model.kind == "lstm":
        return 3.0 * (2 * (4 * u * (d + u) + u * d) + logits)
    block = 2 * (4 * d * d + 2 * d * f) + 4 * seq_len * d
    return 3.0 * (model.num_layers * block + logits)
