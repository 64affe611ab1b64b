"""The parts of a training step in JAX: this package's and the obvious alternative.

Each function takes the flags of `pieces.py` and returns its variants as `Case`s. Inputs
are arguments of the compiled program, lest XLA computes with them beforehand; outputs
are returned along with the gradients, lest it leaves out the forward pass.
"""

import argparse
from collections.abc import Callable
from typing import Any

import inputs
import jax
import jax.numpy as jnp
import optax
from harness import Case
from recipe import pretrain_config

from gpt1_jax.model import layers, transformer
from gpt1_jax.model.attention import causal_attention
from gpt1_jax.model.dropout import ATTN_PROBS, Noise, dropout, step_noise
from gpt1_jax.training import losses
from gpt1_jax.training.optimizer import make_optimizer
from gpt1_jax.training.state import apply_gradients, init_state


def dropout_cases(flags: argparse.Namespace, name: str) -> dict[str, Case]:
    """Dropout of the array `name` of `inputs`, by a counter hash or Threefry."""
    x, gradient = (_array(part, flags.dtype) for part in inputs.dropout(flags, name))
    noise = step_noise(0, jnp.int32(0), flags.batch)

    def case(impl: str) -> Case:
        def drop(x: jax.Array, noise: Noise) -> jax.Array:
            return dropout(x, flags.dropout, noise, ATTN_PROBS, impl=impl)

        return _forward_backward(drop, (x,), gradient, noise)

    return {f"jax_{impl}": case(impl) for impl in ("hash", "threefry")}


def attention_cases(flags: argparse.Namespace) -> dict[str, Case]:
    """`causal_attention` with dropout, blocked and as the formula has it."""
    *qkv, gradient = (_array(x, flags.dtype) for x in inputs.attention(flags))
    noise = step_noise(0, jnp.int32(0), flags.batch)

    def case(impl: str) -> Case:
        def attend(
            query: jax.Array, key: jax.Array, value: jax.Array, noise: Noise
        ) -> jax.Array:
            return causal_attention(
                query,
                key,
                value,
                dropout_rate=flags.dropout,
                noise=noise,
                site=ATTN_PROBS,
                dropout_impl="hash",
                impl=impl,
            )

        return _forward_backward(attend, tuple(qkv), gradient, noise)

    return {f"jax_{impl}": case(impl) for impl in ("blocked", "plain")}


def loss_cases(flags: argparse.Namespace) -> dict[str, Case]:
    """Mean nats: `next_token_loss` at once and in chunks, and logits kept whole."""
    dtype = jnp.dtype(flags.dtype)
    states, matrix, tokens = inputs.loss(flags)
    hidden, unembedding = _array(states, flags.dtype), jnp.asarray(matrix)
    shape = flags.batch, flags.seq_len
    weights = jnp.full(shape, 1 / (flags.batch * (flags.seq_len - 1)), jnp.float32)

    def ours(chunk: int) -> Callable[..., jax.Array]:
        return lambda hidden, unembedding, tokens, weights: losses.next_token_loss(
            hidden, unembedding, tokens, weights, dtype, chunk
        )

    def naive(
        hidden: jax.Array, unembedding: jax.Array, tokens: jax.Array, _: jax.Array
    ) -> jax.Array:
        logits = _dot(hidden[:, :-1], unembedding.T, dtype)  # [N, T - 1, V]
        nll = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
        return nll.mean()

    variants = {"jax_chunk_0": ours(0), "jax_chunk_128": ours(128), "jax_naive": naive}
    arrays, one = (hidden, unembedding), jnp.float32(1)
    return {
        name: _forward_backward(loss, arrays, one, jnp.asarray(tokens), weights)
        for name, loss in variants.items()
    }


def dense_cases(flags: argparse.Namespace) -> dict[str, Case]:
    """The first product of the MLP: `layers.matmul`, and autodiff of `jnp.dot`."""
    dtype = jnp.dtype(flags.dtype)
    x, kernel, gradient = inputs.dense(flags)
    arrays = _array(x, flags.dtype), jnp.asarray(kernel)

    def case(multiply: Callable[..., jax.Array]) -> Case:
        def dense(x: jax.Array, kernel: jax.Array) -> jax.Array:
            return multiply(x, kernel, dtype).astype(dtype)

        return _forward_backward(dense, arrays, _array(gradient, flags.dtype))

    return {"jax_matmul": case(layers.matmul), "jax_autodiff": case(_dot)}


def optimizer_cases(flags: argparse.Namespace) -> dict[str, Case]:
    """Clipping and one update of all parameters, in place, as a training step does."""
    config = pretrain_config(flags, flags.dtype)
    optimizer = make_optimizer(config.optimizer, config.train.num_steps)
    model = config.model_config(flags.vocab_size)

    def fresh() -> Any:
        return init_state(transformer.init_params(model, jax.random.key(0)), optimizer)

    def update(state: Any, gradients: Any) -> Any:
        return apply_gradients(state, gradients, jnp.float32(1), optimizer)[0]

    state = jax.jit(fresh)()
    gradients = jax.tree.map(lambda p: jnp.full_like(p, inputs.GRADIENT), state.params)
    compiled = jax.jit(update, donate_argnums=0).lower(state, gradients).compile()

    def run() -> Any:
        nonlocal state
        state = compiled(state, gradients)
        return state

    return {"jax_apply_gradients": _case(run, compiled)}


def _array(x: Any, dtype: str) -> jax.Array:
    return jnp.asarray(x, dtype)


def _dot(x: jax.Array, kernel: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """`layers.matmul` with the backward pass of autodiff."""
    return jnp.dot(
        x.astype(dtype), kernel.astype(dtype), preferred_element_type=jnp.float32
    )


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
