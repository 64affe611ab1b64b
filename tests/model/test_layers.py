"""Dense layer and LayerNorm: their parameters, and that they apply them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.errors import ScopeParamShapeError

from gpt1_jax.model.layers import Dense, LayerNorm
from gpt1_jax.ops.products import Transposed


def test_dense_is_x_times_kernel_plus_bias():
    rng = np.random.default_rng(0)
    x, kernel, bias = (
        rng.normal(size=shape).astype(np.float32) for shape in [(2, 3, 5), (5, 7), (7,)]
    )
    params = {"params": {"kernel": kernel, "bias": bias}}
    actual = Dense(7, jnp.float32).apply(params, x)
    np.testing.assert_allclose(actual, x @ kernel + bias, rtol=1e-6, atol=1e-6)


def test_dense_takes_a_transposed_kernel_and_no_other_shape():
    x, kernel, bias = jnp.ones((2, 5)), jnp.arange(35.0).reshape(5, 7), jnp.ones(7)
    dense = Dense(7, jnp.float32)
    expected = dense.apply({"params": {"kernel": kernel, "bias": bias}}, x)
    stored = {"kernel": Transposed(kernel.T), "bias": bias}
    np.testing.assert_allclose(dense.apply({"params": stored}, x), expected, rtol=1e-6)
    wider = {"kernel": jnp.ones((5, 8)), "bias": jnp.ones(8)}
    with pytest.raises(ScopeParamShapeError, match="kernel"):
        dense.apply({"params": wider}, x)


def test_dense_init_is_normal_with_zero_bias():
    params = Dense(512, jnp.float32).init(jax.random.key(0), jnp.zeros((1, 256)))
    kernel, bias = (np.asarray(params["params"][name]) for name in ("kernel", "bias"))
    assert kernel.shape == (256, 512)
    assert abs(kernel.mean()) < 5 * 0.02 / np.sqrt(kernel.size)
    assert kernel.std() == pytest.approx(0.02, rel=5 / np.sqrt(2 * kernel.size))
    assert np.abs(kernel).max() > 4 * 0.02, "truncated at two standard deviations"
    assert not bias.any()


def test_layer_norm_applies_its_gain_and_bias():
    x = jnp.array([[1.0, 2.0, 3.0, 6.0]])
    bias = np.array([-0.5, -1.0, 2.0, 3.0], np.float32)
    params = {"params": {"scale": jnp.full(4, 2.0), "bias": bias}}
    actual = LayerNorm(jnp.float32).apply(params, x)
    normed = (np.asarray(x) - 3.0) / np.sqrt(3.5 + 1e-5)  # mean 3, variance 14 / 4
    np.testing.assert_allclose(actual, 2 * normed + bias, rtol=1e-6)


def test_layer_norm_init_is_gain_one_and_bias_zero():
    params = LayerNorm(jnp.float32).init(jax.random.key(0), jnp.zeros((1, 5)))["params"]
    np.testing.assert_array_equal(params["scale"], np.ones(5))
    np.testing.assert_array_equal(params["bias"], np.zeros(5))


def test_layer_norm_of_bfloat16_is_computed_in_float32():
    x = jax.random.normal(jax.random.key(0), (16, 64), jnp.bfloat16)
    layer = LayerNorm(jnp.dtype("bfloat16"))
    params = layer.init(jax.random.key(1), x)
    actual = layer.apply(params, x)
    exact = np.asarray(x, np.float64)
    exact = (exact - exact.mean(-1, keepdims=True)) / np.sqrt(
        exact.var(-1, keepdims=True) + 1e-5
    )
    assert actual.dtype == jnp.bfloat16
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(params))
    rounded = np.asarray(jnp.asarray(exact, jnp.float32).astype(jnp.bfloat16))
    # The only rounding is that of the result: nearly all of it agrees to the bit.
    assert np.mean(np.asarray(actual) == rounded) > 0.995
