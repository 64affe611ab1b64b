"""An LSTM layer (Hochreiter & Schmidhuber 1997, Gers et al. 2000).

    i, f, o = sigmoid(x_t W + h_{t-1} R + b), g = tanh(x_t W + h_{t-1} R + b)
    c_t = f c_{t-1} + i g,  h_t = o tanh(c_t)

Each gate has its own columns, in the order i, f, g, o (PyTorch's). There are no
peepholes. `x W + b` is one product for all positions, computed before the recurrence.
Units are U in shapes.

`plain_lstm` is the formula; `lstm` equals it from a zero state, with its own backward
pass.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gpt1_jax.ops.products import (
    Transposed,
    matmul,
    product,
    transposed_product,
    wait_for_gradient,
)


class State(NamedTuple):
    """The state that the recurrence carries from one position to the next."""

    hidden: jax.Array  # [N, U] in the operands' dtype: h_t
    cell: jax.Array  # [N, U] float32: c_t


def zero_state(num_rows: int, num_units: int, dtype: jnp.dtype) -> State:
    """The state before the first token."""
    shape = (num_rows, num_units)
    return State(jnp.zeros(shape, dtype), jnp.zeros(shape, jnp.float32))


def plain_lstm(
    inputs: jax.Array,
    recurrent: jax.Array | Transposed,
    state: State,
    padding: jax.Array | None = None,
) -> tuple[jax.Array, State]:
    """The formula, from any state; its autodiff keeps and sums more than necessary.

    Args:
      inputs: [N, T, 4 U], `x W + b` at each position.
      recurrent: [U, 4 U] floats, R; rounded to the state's dtype.
      state: the state before the first position.
      padding: [N] int32, how many leading positions leave the state unchanged.

    Returns:
      h_1 to h_T, [N, T, U] in the state's dtype, and the state after them.
    """
    dtype, seq_len = state.hidden.dtype, inputs.shape[1]
    real = None if padding is None else jnp.arange(seq_len)[:, None] >= padding

    def step(state: State, now: tuple[jax.Array, Any]) -> tuple[State, jax.Array]:
        gate_inputs, is_real = now
        products = matmul(state.hidden, recurrent, dtype)
        after = _next_state(_gates(gate_inputs, products), state.cell, dtype)
        if is_real is not None:
            after = jax.tree.map(
                lambda new, old: jnp.where(is_real[:, None], new, old), after, state
            )
        return after, after.hidden

    state, outputs = jax.lax.scan(step, state, (inputs.swapaxes(0, 1), real))
    return outputs.swapaxes(0, 1), state


def lstm(inputs: jax.Array, recurrent: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """h_1 to h_T from a zero state.

    The backward scan computes only the gates' gradients. The gradient of R is one
    product over all positions afterwards; autodiff would update it in memory at each.

    Args:
      inputs: [N, T, 4 U], `x W + b` at each position.
      recurrent: [U, 4 U] float32, R.
      dtype: dtype of the products' operands and of the gates kept for the backward
        pass; the cell state and all sums are float32.

    Returns:
      [N, T, U] of the given dtype.
    """
    return _lstm(inputs.swapaxes(0, 1), recurrent, dtype).swapaxes(0, 1)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _lstm(inputs: jax.Array, recurrent: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """`lstm`, with positions first: [T, N, 4 U] to [T, N, U]."""
    return _lstm_fwd(inputs, recurrent, dtype)[0]


def _lstm_fwd(inputs, recurrent, dtype):
    rounded = recurrent.astype(dtype)

    def step(state: State, gate_inputs: jax.Array) -> tuple[State, Any]:
        products = product("NU,UG->NG", state.hidden, rounded)
        gates = _gates(gate_inputs, products)
        after = _next_state(gates, state.cell, dtype)
        kept = jnp.concatenate(gates, axis=-1).astype(dtype)
        return after, (_as_bits(after.hidden), (_as_bits(kept), state.cell))

    start = zero_state(inputs.shape[1], len(recurrent), dtype)
    last, (outputs, kept) = jax.lax.scan(step, start, inputs)
    outputs = _from_bits(outputs, dtype)
    as_inputs = jnp.zeros((), inputs.dtype)
    return outputs, (recurrent, outputs, kept, last.cell, as_inputs)


def _lstm_bwd(dtype, residuals, grad):
    """From the last position to the first; `grad` is [T, N, U].

    With the gradients of h and c: do = dh tanh(c), dc += dh o (1 - tanh(c)^2),
    di = dc g, df = dc c', dg = dc i and dc' = dc f, where c' is the cell before.
    """
    residuals, grad = wait_for_gradient(residuals, grad)
    recurrent, outputs, kept, last_cell, as_inputs = residuals
    rounded = recurrent.astype(dtype)

    def step(carry: Any, now: Any) -> tuple[Any, jax.Array]:
        from_next, d_cell, cell = carry
        d_output, (gates, cell_before) = now
        gates = _from_bits(gates, dtype).astype(jnp.float32)
        i, f, g, o = jnp.split(gates, 4, axis=-1)
        d_hidden = d_output.astype(jnp.float32) + from_next
        tanh_cell = jnp.tanh(cell)
        d_cell = d_cell + d_hidden * o * (1 - tanh_cell**2)
        d_gates = (
            d_cell * g * i * (1 - i),
            d_cell * cell_before * f * (1 - f),
            d_cell * i * (1 - g**2),
            d_hidden * tanh_cell * o * (1 - o),
        )
        d_inputs = jnp.concatenate(d_gates, axis=-1).astype(dtype)
        to_before = product("NG,UG->NU", d_inputs, rounded)
        return (to_before, d_cell * f, cell_before), _as_bits(d_inputs)

    zeros = jnp.zeros_like(last_cell)
    start = zeros, zeros, last_cell
    _, d_inputs = jax.lax.scan(step, start, (grad, kept), reverse=True)
    d_inputs = _from_bits(d_inputs, dtype)
    # The first position's h is zero and contributes nothing.
    rows, columns = (x.reshape(-1, x.shape[-1]) for x in (outputs[:-1], d_inputs[1:]))
    return d_inputs.astype(as_inputs.dtype), transposed_product(rows, columns)


_lstm.defvjp(_lstm_fwd, _lstm_bwd)


def _as_bits(x: jax.Array) -> jax.Array:
    """Reinterprets bfloat16 as uint16; leaves float32 as it is.

    XLA's CPU backend cannot update a slice in bfloat16: to stack one position of a scan
    it would convert the whole stack to float32 and back.
    """
    return jax.lax.bitcast_convert_type(x, jnp.uint16) if x.dtype == "bfloat16" else x


def _from_bits(x: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """The inverse of `_as_bits`, for that dtype."""
    return jax.lax.bitcast_convert_type(x, dtype) if x.dtype == "uint16" else x


def _gates(inputs: jax.Array, products: jax.Array) -> tuple[jax.Array, ...]:
    """i, f, g and o, each [N, U] float32."""
    i, f, g, o = jnp.split(inputs.astype(jnp.float32) + products, 4, axis=-1)
    return jax.nn.sigmoid(i), jax.nn.sigmoid(f), jnp.tanh(g), jax.nn.sigmoid(o)


def _next_state(
    gates: tuple[jax.Array, ...], cell: jax.Array, dtype: jnp.dtype
) -> State:
    i, f, g, o = gates
    cell = f * cell + i * g
    return State((o * jnp.tanh(cell)).astype(dtype), cell)
