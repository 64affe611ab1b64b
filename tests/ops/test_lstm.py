"""The recurrence and its own backward pass; see also model/test_parity_lstm."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from forms import assert_near, with_gradients

from gpt1_jax.ops.lstm import lstm, plain_lstm, zero_state

N, T, U = 3, 7, 6
FLOAT32 = jnp.dtype("float32")


def arrays(seed=0, seq_len=T):
    """The gates' inputs, the recurrent matrix and a gradient of the outputs."""
    rng = np.random.default_rng(seed)
    shapes = (N, seq_len, 4 * U), (U, 4 * U), (N, seq_len, U)
    return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


def plain(inputs, recurrent, dtype):
    return plain_lstm(inputs, recurrent, zero_state(len(inputs), U, dtype))[0]


def gradients_of(function, inputs, recurrent, grad, dtype=FLOAT32):
    form = functools.partial(function, dtype=dtype)
    return with_gradients(form, grad, inputs, recurrent)


@pytest.mark.parametrize("seq_len", [1, T])
def test_the_fast_form_is_the_plain_one(seq_len):
    fast, expected = (gradients_of(f, *arrays(1, seq_len)) for f in (lstm, plain))
    assert_near(fast, expected, 1e-5, scaled=False)


def test_bfloat16_rounds_products_and_not_the_cell():
    """Close to float32, as is the plain form; and the cell state keeps its digits."""
    given = arrays(2, seq_len=40)
    exact = jax.device_get(gradients_of(lstm, *given))
    for function in (lstm, plain):
        rough = gradients_of(function, *given, jnp.dtype("bfloat16"))
        assert [x.dtype for x in rough] == ["bfloat16", "float32", "float32"]
        for one, other in zip(rough, exact, strict=True):
            error = np.linalg.norm(np.asarray(one, np.float32) - other)
            assert 1e-4 < error / np.linalg.norm(other) < 0.03
    # A forget gate of 1 and an input of a thousandth: bfloat16 would stop at 0.25.
    inputs = np.zeros((1, 400, 4), np.float32)
    inputs[..., :] = 30, 30, np.arctanh(1e-3), 30
    start = zero_state(1, 1, jnp.dtype("bfloat16"))
    _, state = jax.jit(plain_lstm)(inputs, np.zeros((1, 4), np.float32), start)
    assert state.cell.dtype == jnp.float32
    assert float(state.cell[0, 0]) == pytest.approx(0.4, rel=1e-4)


def test_the_backward_scan_multiplies_once_a_position():
    """The gradient of the matrix is one product after it, not a sum kept in it."""
    given = arrays(7)
    jaxpr = jax.make_jaxpr(lambda *x: gradients_of(lstm, *x))(*given)
    (call,) = jaxpr.eqns
    forward, backward = (
        eqn.params["jaxpr"].jaxpr
        for eqn in call.params["jaxpr"].eqns
        if eqn.primitive.name == "scan"
    )
    for scan in (forward, backward):
        assert str(scan).count("dot_general") in (1, 2)  # one for each platform
        assert [v.aval.shape for v in scan.invars].count((U, 4 * U)) <= 1


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="a matter of CPUs")
def test_no_stack_of_positions_is_rewritten_at_each_one():
    """In bfloat16 XLA would convert all of it, to update a slice in float32."""
    given = (*arrays(), jnp.dtype("bfloat16"))
    program = jax.jit(gradients_of, static_argnums=(0, 4)).lower(lstm, *given)
    update = r"= (\w+)\[([\d,]+)\]\S* dynamic-update-slice"
    updates = re.findall(update, program.compile().as_text())
    hidden, gates = f"{T},{N},{U}", f"{T},{N},{4 * U}"
    assert set(updates) == {("u16", hidden), ("u16", gates), ("f32", hidden)}
