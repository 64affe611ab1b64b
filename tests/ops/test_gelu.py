"""GELU against known numbers."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpt1_jax.ops.gelu import gelu


@pytest.mark.parametrize(
    ("x", "expected"),
    [(1.0, 0.8411920), (-1.0, -0.1588080), (2.0, 1.9545977), (-3.0, -0.0036374)],
)
def test_gelu_values_are_those_of_the_tanh_form(x, expected):
    assert float(gelu(jnp.float32(x))) == pytest.approx(expected, abs=1.5e-7)


def test_gelu_of_a_gpu_is_the_tanh_form_and_its_derivative(monkeypatch):
    """Its branch, taken here, against float64; both have the ends of the tanh form."""
    monkeypatch.setattr(jax.lax, "platform_dependent", lambda cuda, **_: cuda())
    x = np.append(np.linspace(-12, 12, 9601), [-1e18, -1e9, 1e9, 1e18])
    inputs = jnp.asarray(x, jnp.float32)
    found = jax.jvp(gelu, (inputs,), (jnp.ones_like(inputs),))
    u = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    slope = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x**2)
    gate = 1 / (1 + np.exp(-2 * np.maximum(u, -340)))
    expected = x * gate, gate + 2 * x * gate * (1 - gate) * slope
    for actual, exact in zip(found, expected, strict=True):
        np.testing.assert_allclose(actual, exact, rtol=4e-6, atol=2e-7)
    np.testing.assert_array_equal(found[0], gelu(inputs))


def test_gelu_of_a_gpu_has_second_derivatives(monkeypatch):
    """Also where e^(-2 u) is infinite; those of the tanh form, to rounding."""
    x = np.float32([-100.0, -12.0, -10.1, -3.0, 0.0, 0.7, 12.0])
    other = functools.partial(jax.nn.gelu, approximate=True)
    expected = jax.jit(jax.vmap(jax.grad(jax.grad(other))))(x)
    monkeypatch.setattr(jax.lax, "platform_dependent", lambda cuda, **_: cuda())
    for inner, outer in ((jax.grad, jax.grad), (jax.grad, jax.jacfwd)):
        actual = jax.jit(jax.vmap(outer(inner(gelu))))(x)
        np.testing.assert_allclose(actual, expected, atol=2e-6)
