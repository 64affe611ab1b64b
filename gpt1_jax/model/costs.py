"""What a model costs: parameters, memory and floating-point operations."""

import jax
import jax.numpy as jnp

from gpt1_jax.config import ModelConfig
from gpt1_jax.model.language_model import Params

_COMPONENTS = {
    "wte": "token embedding, also the output",
    "wpe": "position embedding",
    "attn": "attention",
    "mlp": "MLP",
    "ln_1": "LayerNorm",
    "ln_2": "LayerNorm",
    "head": "head",
}


def num_params(model: ModelConfig) -> int:
    """Number of parameters: 116,534,784 at the paper's size and vocabulary."""
    d, f = model.embed_dim, model.mlp_dim
    attention = 4 * d * d + 4 * d
    mlp = 2 * d * f + f + d
    layer_norms = 4 * d
    embeddings = (model.vocab_size + model.max_seq_len) * d
    return embeddings + model.num_layers * (attention + mlp + layer_norms)


def component_sizes(params: Params) -> dict[str, int]:
    """Parameters of each kind, summed over the layers; no kind without any.

    Args:
      params: a language model's or a fine-tuned model's.
    """
    sizes = dict.fromkeys(_COMPONENTS.values(), 0)
    for path, leaf in jax.tree.leaves_with_path(params):
        (kind,) = (key.key for key in path if key.key in _COMPONENTS)
        sizes[_COMPONENTS[kind]] += leaf.size
    return {name: size for name, size in sizes.items() if size}


def train_state_bytes(model: ModelConfig) -> int:
    """Memory of parameters, gradients and Adam's two moments, all float32."""
    return 4 * 4 * num_params(model)


def eval_activation_bytes(model: ModelConfig) -> int:
    """Rough memory to evaluate one sequence: its logits and two layers' arrays."""
    t = model.max_seq_len
    logits = (model.loss_chunk or t) * model.vocab_size * 4
    return logits + 4 * t * (model.embed_dim + model.mlp_dim)


def train_activation_bytes(model: ModelConfig) -> int:
    """Rough memory for training on one sequence, besides that of the parameters.

    Counts what the backward pass keeps: 16 arrays [T, D] per layer (of one layer with
    `remat`), 2 of scores [H, T, T] per layer with plain attention, and 3 of logits
    [T or `loss_chunk`, V]. This is 5.5e8 bytes at the paper's size in float32; the CPU
    compiler's own figure is 4.9e8.
    """
    t, d = model.max_seq_len, model.embed_dim
    layer = 16 * t * d * jnp.dtype(model.dtype).itemsize
    if model.attention_impl == "plain":
        layer += 2 * model.num_heads * t * t * 4
    layers = layer if model.remat else model.num_layers * layer
    return layers + 3 * (model.loss_chunk or t) * model.vocab_size * 4


def train_flops_per_token(model: ModelConfig, seq_len: int) -> float:
    """Floating-point operations to train on one token; a multiply-add counts as 2.

    The matrix products of the blocks, of attention over the full square and of the
    logits, times 3 for forward and backward: 7.53e8 at the paper's size.
    """
    d, f = model.embed_dim, model.mlp_dim
    block = 2 * (4 * d * d + 2 * d * f) + 4 * seq_len * d
    return 3.0 * (model.num_layers * block + 2 * d * model.vocab_size)
