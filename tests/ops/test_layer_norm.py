"""LayerNorm against NumPy, and against the plain formula."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from forms import assert_near, kept, with_gradients

from gpt1_jax.ops import layer_norm as layer_norm_module
from gpt1_jax.ops.dropout import dropout, step_noise

FLOAT32 = jnp.dtype("float32")


FORMS = layer_norm, plain_layer_norm = [
    functools.partial(jax.jit(form, static_argnames="dtype"), dtype=FLOAT32)
    for form in (layer_norm_module.layer_norm, layer_norm_module.plain_layer_norm)
]
BOTH_FORMS = pytest.mark.parametrize("form", FORMS, ids=["fast", "plain"])


def numpy_layer_norm(x, scale, bias):
    x = np.asarray(x, np.float64)
    centred = x - x.mean(-1, keepdims=True)
    variance = (centred**2).sum(-1, keepdims=True) / x.shape[-1]
    return centred / np.sqrt(variance + 1e-5) * scale + bias


@BOTH_FORMS
@pytest.mark.parametrize("spread", [1e-3, 50.0])
def test_layer_norm_equals_numpy_for_small_and_large_variance(spread, form):
    rng = np.random.default_rng(0)
    x = (spread * rng.normal(size=(4, 5, 32))).astype(np.float32)
    scale, bias = rng.normal(size=(2, 32)).astype(np.float32)
    expected = numpy_layer_norm(x, scale, bias)
    np.testing.assert_allclose(form(x, scale, bias), expected, rtol=1e-5, atol=3e-6)


@BOTH_FORMS
def test_layer_norm_survives_a_mean_far_above_the_spread(form):
    """E[x^2] - E[x]^2, Flax's default, errs by 7e-3 here."""
    x = 3 + 0.028 * np.random.default_rng(0).normal(size=(64, 768))
    x = x.astype(np.float32)
    actual = form(x, np.ones(768, np.float32), np.zeros(768, np.float32))
    np.testing.assert_allclose(actual, numpy_layer_norm(x, 1, 0), atol=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_layer_norm_equals_the_plain_form(dtype):
    """The value and the gradients by all three arguments."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, 5, 32)).astype(jnp.dtype(dtype))
    scale, bias = rng.normal(size=(2, 32)).astype(np.float32)
    weights = rng.normal(size=x.shape).astype(np.float32)
    found, plain = (with_gradients(form, weights, x, scale, bias) for form in FORMS)
    of_x = 1e-5 if dtype == "float32" else 2**-5
    for at, tolerance in enumerate((2e-6, of_x, 1e-5, 1e-5)):
        pair = found[at : at + 1], plain[at : at + 1]
        assert_near(*pair, tolerance, scaled=False)


def test_layer_norm_waits_for_a_gradient_of_its_own_dtype():
    """Waited for in float32, a gradient of bfloat16 would be stored twice as large."""
    x, ones = jnp.ones((8, 16), jnp.bfloat16), jnp.ones(16)
    value, vjp = jax.vjp(lambda x: layer_norm(x, ones, ones, dtype=x.dtype), x)
    assert value.dtype == jnp.bfloat16
    text = jax.jit(vjp).lower(value).as_text()
    [barrier] = re.findall(r"optimization_barrier .*", text)
    assert re.findall(r"tensor<8x16x(\w+)>", barrier) == ["bf16", "bf16"]


def test_layer_norm_does_not_keep_the_normalised_input():
    """Of the size of its input, only the input is kept."""
    x, ones = jnp.ones((8, 16)), jnp.ones(16)
    ours, plain = (
        [leaf.shape for leaf in kept(form, x, ones, ones)].count(x.shape)
        for form in FORMS
    )
    assert ours == 1 < plain


def test_residual_layer_norm_is_that_of_the_sum_with_the_branch():
    """Dropout acts on the branch's output and bias, not on the residual stream."""
    rng = np.random.default_rng(0)
    x, output = rng.normal(size=(2, 3, 5, 32)).astype(np.float32)
    branch_bias, scale, bias = rng.normal(size=(3, 32)).astype(np.float32)
    noise = step_noise(0, np.int32(3), len(x))

    @jax.jit
    def normed_and_dropped(noise):
        arrays = x, output, branch_bias, scale, bias
        normed = layer_norm_module.residual_layer_norm(*arrays, 0.1, noise, 5)
        return normed, dropout(output + branch_bias, 0.1, noise, 5)

    normed, dropped = normed_and_dropped(noise)
    np.testing.assert_allclose(
        normed, numpy_layer_norm(x + dropped, scale, bias), atol=5e-6
    )
