"""The pieces of a training step in JAX: this package's and obvious alternatives.

Each function takes the flags of `pieces.py` and returns its variants as `Case`s. Inputs
are arguments of the compiled program, so that XLA does not compute with them
beforehand; outputs are returned with the gradients, so that it does not leave out the
forward pass.
"""

import argparse
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.harness import Case
from benchmarks.paper_model import pretrain_config
from benchmarks.peers.pieces import (
    GRADIENT,
    attention_arrays,
    dense_arrays,
    dropout_arrays,
    loss_arrays,
)
from gpt1_jax.kernels.attention import fused_causal_attention
from gpt1_jax.model import language_model
from gpt1_jax.model.execution import ATTN_OUTPUT, ATTN_PROBS
from gpt1_jax.ops.attention import causal_attention, plain_causal_attention
from gpt1_jax.ops.dropout import Noise, dropout, step_noise
from gpt1_jax.ops.losses import next_token_loss, plain_next_token_nll
from gpt1_jax.ops.products import dense, plain_dense
from gpt1_jax.training.optimizer import make_optimizer
from gpt1_jax.training.state import apply_gradients, init_state


def dropout_cases(flags: argparse.Namespace, name: str) -> dict[str, Case]:
    """Dropout by a counter hash and by Threefry; `name` as in `dropout_arrays`."""
    x, gradient = (_array(part, flags.dtype) for part in dropout_arrays(flags, name))
    noise = step_noise(0, jnp.int32(0), flags.batch)

    def hashed(x: jax.Array, noise: Noise) -> jax.Array:
        return dropout(x, flags.dropout, noise, ATTN_PROBS)

    def threefry(x: jax.Array, noise: Noise) -> jax.Array:
        keep = jax.random.bernoulli(noise.key, 1.0 - flags.dropout, x.shape)
        return jnp.where(keep, x / (1.0 - flags.dropout), jnp.zeros_like(x))

    variants = {"jax_hash": hashed, "jax_threefry": threefry}
    return {
        name: _forward_backward(drop, (x,), gradient, noise)
        for name, drop in variants.items()
    }


def attention_cases(flags: argparse.Namespace) -> dict[str, Case]:
    """Attention with dropout: blocked, by the formula and, on accelerators, fused."""
    variants = {"jax_blocked": causal_attention, "jax_plain": plain_causal_attention}
    if jax.default_backend() != "cpu":
        variants["jax_fused"] = fused_causal_attention
    return {name: attention_case(flags, form) for name, form in variants.items()}


def attention_case(flags: argparse.Namespace, attend: Callable[..., jax.Array]) -> Case:
    """`attend`, a form of `causal_attention`, with dropout."""
    *qkv, gradient = (_array(x, flags.dtype) for x in attention_arrays(flags))
    noise = step_noise(0, jnp.int32(0), flags.batch)

    def with_dropout(
        query: jax.Array, key: jax.Array, value: jax.Array, noise: Noise
    ) -> jax.Array:
        return attend(query, key, value, flags.dropout, noise, ATTN_PROBS)

    return _forward_backward(with_dropout, tuple(qkv), gradient, noise)


def residual_norm_case(
    flags: argparse.Namespace, form: Callable[..., jax.Array]
) -> Case:
    """A form of `residual_layer_norm`, with dropout."""
    x, gradient = (_array(a, flags.dtype) for a in dropout_arrays(flags, "hidden"))
    noise, gain = step_noise(0, jnp.int32(0), flags.batch), jnp.ones(x.shape[-1])
    arrays = x, gradient, 0 * gain, gain, 0 * gain

    def with_dropout(*arguments: Any) -> jax.Array:
        *arrays, noise = arguments
        return form(*arrays, flags.dropout, noise, ATTN_OUTPUT)

    return _forward_backward(with_dropout, arrays, gradient, noise)


def loss_cases(flags: argparse.Namespace) -> dict[str, Case]:
    """Mean nats: `next_token_loss` at once and in chunks, and logits kept whole."""
    dtype = jnp.dtype(flags.dtype)
    states, matrix, tokens = loss_arrays(flags)
    hidden, unembedding = _array(states, flags.dtype), jnp.asarray(matrix)
    shape = flags.batch, flags.seq_len
    weights = jnp.full(shape, 1 / (flags.batch * (flags.seq_len - 1)), jnp.float32)

    def ours(chunk: int) -> Callable[..., jax.Array]:
        return lambda hidden, unembedding, tokens, weights: next_token_loss(
            hidden, unembedding, tokens, weights, dtype, chunk
        )

    def naive(
        hidden: jax.Array, unembedding: jax.Array, tokens: jax.Array, weights: jax.Array
    ) -> jax.Array:
        nll = plain_next_token_nll(hidden, unembedding, tokens, dtype)
        return (weights * nll).sum()

    variants = {"jax_chunk_0": ours(0), "jax_chunk_128": ours(128), "jax_naive": naive}
    arrays, one = (hidden, unembedding), jnp.float32(1)
    return {
        name: _forward_backward(loss, arrays, one, jnp.asarray(tokens), weights)
        for name, loss in variants.items()
    }


def dense_cases(flags: argparse.Namespace) -> dict[str, Case]:
    """The first layer of the MLP: `dense`, and its formula under autodiff."""
    dtype = jnp.dtype(flags.dtype)
    x, kernel, gradient = dense_arrays(flags)
    bias = jnp.zeros(kernel.shape[1])
    arrays = _array(x, flags.dtype), jnp.asarray(kernel)

    def case(layer: Callable[..., jax.Array]) -> Case:
        def run(x: jax.Array, kernel: jax.Array) -> jax.Array:
            return layer(x, kernel, bias, dtype)

        return _forward_backward(run, arrays, _array(gradient, flags.dtype))

    return {"jax_dense": case(dense), "jax_autodiff": case(plain_dense)}


def optimizer_cases(flags: argparse.Namespace) -> dict[str, Case]:
    """Clipping and one update of all parameters, in place, as a training step does."""
    config = pretrain_config(flags, flags.dtype)
    optimizer = make_optimizer(config.optimizer, config.train.num_steps)
    model = config.model.with_vocab_size(flags.vocab_size)

    def fresh() -> Any:
        return init_state(
            language_model.init_params(model, jax.random.key(0)), optimizer
        )

    def update(state: Any, gradients: Any) -> Any:
        return apply_gradients(state, gradients, jnp.float32(1), optimizer)[0]

    state = jax.jit(fresh)()
    gradients = jax.tree.map(lambda p: jnp.full_like(p, GRADIENT), state.params)
    compiled = jax.jit(update, donate_argnums=0).lower(state, gradients).compile()

    def run() -> Any:
        nonlocal state
        state = compiled(state, gradients)
        return state

    return {"jax_apply_gradients": _case(run, compiled)}


def _array(x: Any, dtype: str) -> jax.Array:
    return jnp.asarray(x, dtype)


def _forward_backward(
    function: Callable[..., jax.Array],
    arrays: tuple[jax.Array, ...],
    gradient: jax.Array,
    *rest: Any,
) -> Case:
    """Value and gradients by `arrays`; `gradient` is that of the function's output."""

    def both(arrays: Any, gradient: jax.Array, *rest: Any) -> Any:
        value, pull = jax.vjp(lambda *xs: function(*xs, *rest), *arrays)
        return value, pull(gradient)

    compiled = jax.jit(both).lower(arrays, gradient, *rest).compile()
    return _case(lambda: compiled(arrays, gradient, *rest), compiled)


def _case(run: Callable[[], Any], compiled: jax.stages.Compiled) -> Case:
    memory = compiled.memory_analysis()
    return Case(
        run=run,
        wait=jax.block_until_ready,
        device=jax.devices()[0].device_kind,
        temporary_bytes=memory.temp_size_in_bytes if memory else None,
    )
