"""A step that is not finite changes nothing but the counters."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import optimizer_config

from gpt1_jax.training.optimizer import make_optimizer
from gpt1_jax.training.state import apply_gradients, init_state


@functools.cache
def make_run(name="released_adam"):
    """An optimizer and a state that has taken two good steps."""
    schedule = dict(learning_rate=0.1, schedule="linear", warmup_steps=0)
    config = optimizer_config(name=name, **schedule)
    optimizer = make_optimizer(config, 100)

    @jax.jit
    def step(state, grads, loss):
        return apply_gradients(state, grads, loss, optimizer)

    params = {"w": np.ones((2, 3), np.float32), "b": np.zeros(3, np.float32)}
    state = jax.jit(lambda params: init_state(params, optimizer))(params)
    for _ in range(2):
        state, _ = step(state, good_grads(), np.float32(1.0))
    return step, state, optimizer


def good_grads(last=0.2):
    """Of norm sqrt(6 * 0.04 + 5), unless the last of a matrix is told."""
    w = np.full((2, 3), 0.2, np.float32)
    w[1, 2] = last
    return {"w": w, "b": np.arange(3, dtype=np.float32)}


def counters(state):
    return tuple(
        int(x) for x in (state.step, state.nonfinite_steps, state.nonfinite_in_row)
    )


def assert_same(ours, theirs):
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


OPTIMIZERS = pytest.mark.parametrize("name", ["released_adam", "adafactor"])


@OPTIMIZERS
def test_apply_gradients_is_the_update_of_the_optimizer(name):
    step, state, optimizer = make_run(name)
    updates, opt_state = jax.jit(optimizer.update)(
        good_grads(), state.opt_state, state.params
    )
    after, metrics = step(state, good_grads(), np.float32(2.0))
    assert_same(after.opt_state, opt_state)
    for key, value in jax.device_get(updates).items():
        before = np.asarray(state.params[key])
        np.testing.assert_allclose(after.params[key], before + value, rtol=1e-6)
        assert np.abs(value).max() > 0
    assert counters(after) == (3, 0, 0)
    assert float(metrics["grad_norm"]) == pytest.approx(np.sqrt(6 * 0.04 + 5))


@OPTIMIZERS
@pytest.mark.parametrize(
    ("value", "loss"),
    [
        (0.2, jnp.inf),
        (jnp.nan, 1.0),
        (1e30, 1.0),  # finite, but its square is not
    ],
)
def test_apply_gradients_skips_what_is_not_finite(name, value, loss):
    step, before, _ = make_run(name)
    after, metrics = step(before, good_grads(value), np.float32(loss))
    assert_same(after.params, before.params)
    assert_same(after.opt_state, before.opt_state)  # the schedule's counter too
    assert counters(after) == (3, 1, 1)
    assert int(metrics["nonfinite_steps"]) == 1
    assert int(metrics["nonfinite_in_row"]) == 1
