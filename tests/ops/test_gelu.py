"""GELU against known numbers, and against the plain formula."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpt1_jax.ops.gelu import gelu, plain_gelu


@pytest.mark.parametrize(
    ("x", "expected"),
    [(1.0, 0.8411920), (-1.0, -0.1588080), (2.0, 1.9545977), (-3.0, -0.0036374)],
)
@pytest.mark.parametrize("form", [gelu, plain_gelu])
def test_gelu_values_are_those_of_the_tanh_form(x, expected, form):
    assert float(form(jnp.float32(x))) == pytest.approx(expected, abs=1.5e-7)


def test_gelu_differs_from_the_erf_form_by_its_known_maximum():
    x = jnp.linspace(-5, 5, 20001)
    difference = jnp.abs(gelu(x) - jax.nn.gelu(x, approximate=False))
    assert float(difference.max()) == pytest.approx(4.732e-4, abs=1e-6)
    assert abs(float(x[difference.argmax()])) == pytest.approx(2.699, abs=0.02)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gelu_equals_the_plain_form(dtype):
    x = jnp.linspace(-6, 6, 1001).astype(dtype)
    (value, vjp), (plain, plain_vjp) = (jax.vjp(f, x) for f in (gelu, plain_gelu))
    np.testing.assert_array_equal(value, plain)
    gradient, plain_gradient = vjp(jnp.cos(x))[0], plain_vjp(jnp.cos(x))[0]
    assert gradient.dtype == value.dtype == dtype
    tolerance = 1e-6 if dtype == "float32" else 2**-7
    np.testing.assert_allclose(
        np.asarray(gradient, np.float32),
        np.asarray(plain_gradient, np.float32),
        atol=tolerance,
    )


def test_gelu_keeps_only_its_input():
    x = jnp.ones((8, 16))
    assert [leaf.shape for leaf in jax.tree.leaves(jax.vjp(gelu, x)[1])] == [x.shape]
    assert len(jax.tree.leaves(jax.vjp(plain_gelu, x)[1])) > 1
