"""GELU against known numbers."""

import functools

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


def test_gelu_differs_from_the_erf_form_by_its_known_maximum():
    x = np.linspace(-5, 5, 20001, dtype=np.float32)
    other = functools.partial(jax.nn.gelu, approximate=False)
    difference = np.abs(jax.jit(lambda x: gelu(x) - other(x))(x))
    assert difference.max() == pytest.approx(4.732e-4, abs=1e-6)
    assert abs(float(x[difference.argmax()])) == pytest.approx(2.699, abs=0.02)
