"""Dense layer, LayerNorm and GELU against numbers and NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpt1_jax.model.layers import Dense, LayerNorm, gelu, matmul


@pytest.mark.parametrize(
    ("x", "expected"),
    [(1.0, 0.8411920), (-1.0, -0.1588080), (2.0, 1.9545977), (-3.0, -0.0036374)],
)
def test_gelu_values_are_those_of_the_tanh_form(x, expected):
    assert float(gelu(jnp.float32(x))) == pytest.approx(expected, abs=1.5e-7)


def test_gelu_differs_from_the_erf_form_by_its_known_maximum():
    x = jnp.linspace(-5, 5, 20001)
    difference = jnp.abs(gelu(x) - jax.nn.gelu(x, approximate=False))
    assert float(difference.max()) == pytest.approx(4.732e-4, abs=1e-6)
    assert abs(float(x[difference.argmax()])) == pytest.approx(2.699, abs=0.02)


def numpy_layer_norm(x, scale, bias):
    x = np.asarray(x, np.float64)
    centred = x - x.mean(-1, keepdims=True)
    variance = (centred**2).sum(-1, keepdims=True) / x.shape[-1]
    return centred / np.sqrt(variance + 1e-5) * scale + bias


@pytest.mark.parametrize("spread", [1e-3, 0.028, 1.0, 50.0])
def test_layer_norm_equals_numpy_for_small_and_large_variance(spread):
    rng = np.random.default_rng(0)
    x = (spread * rng.normal(size=(4, 5, 32))).astype(np.float32)
    scale, bias = rng.normal(size=(2, 32)).astype(np.float32)
    params = {"params": {"scale": scale, "bias": bias}}
    actual = LayerNorm(jnp.float32).apply(params, x)
    np.testing.assert_allclose(
        actual, numpy_layer_norm(x, scale, bias), rtol=1e-5, atol=3e-6
    )


def test_layer_norm_survives_a_mean_far_above_the_spread():
    """E[x^2] - E[x]^2, Flax's default, errs by 7e-3 here."""
    x = 3 + 0.028 * np.random.default_rng(0).normal(size=(64, 768))
    x = x.astype(np.float32)
    layer = LayerNorm(jnp.float32)
    actual = layer.apply(layer.init(jax.random.key(0), x), x)
    np.testing.assert_allclose(actual, numpy_layer_norm(x, 1, 0), atol=1e-4)


def test_layer_norm_of_a_constant_is_its_bias():
    params = {"params": {"scale": jnp.full(8, 2.0), "bias": jnp.arange(8.0)}}
    actual = LayerNorm(jnp.float32).apply(params, jnp.full((3, 8), 7.0))
    np.testing.assert_array_equal(actual, np.tile(np.arange(8.0), (3, 1)))


def test_layer_norm_of_bfloat16_is_computed_in_float32():
    x = jax.random.normal(jax.random.key(0), (16, 64), jnp.bfloat16)
    layer = LayerNorm(jnp.dtype("bfloat16"))
    params = layer.init(jax.random.key(1), x)
    actual = layer.apply(params, x)
    expected = numpy_layer_norm(np.asarray(x, np.float64), 1, 0)
    assert actual.dtype == jnp.bfloat16
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(params))
    rounded = np.asarray(jnp.asarray(expected, jnp.float32).astype(jnp.bfloat16))
    # The only rounding is that of the result: nearly all of it agrees to the bit.
    assert np.mean(np.asarray(actual) == rounded) > 0.995


def test_dense_is_x_times_kernel_plus_bias():
    rng = np.random.default_rng(0)
    x, kernel, bias = (
        rng.normal(size=shape).astype(np.float32) for shape in [(2, 3, 5), (5, 7), (7,)]
    )
    params = {"params": {"kernel": kernel, "bias": bias}}
    actual = Dense(7, jnp.float32).apply(params, x)
    np.testing.assert_allclose(actual, x @ kernel + bias, rtol=1e-6, atol=1e-6)


def test_dense_init_is_normal_with_zero_bias():
    params = Dense(512, jnp.float32).init(jax.random.key(0), jnp.zeros((1, 256)))
    kernel, bias = (np.asarray(params["params"][name]) for name in ("kernel", "bias"))
    assert kernel.shape == (256, 512)
    assert abs(kernel.mean()) < 5 * 0.02 / np.sqrt(kernel.size)
    assert kernel.std() == pytest.approx(0.02, rel=5 / np.sqrt(2 * kernel.size))
    assert np.abs(kernel).max() > 4 * 0.02, "truncated at two standard deviations"
    assert not bias.any()


def test_matmul_of_bfloat16_sums_in_float32():
    ones = jnp.ones((1, 257))
    product = matmul(ones, ones.T, jnp.dtype("bfloat16"))
    assert product.dtype == jnp.float32
    assert product.item() == 257.0  # bfloat16 has 256 and 258


def test_matmul_rounds_its_operands_to_the_dtype():
    one_and_a_bit = jnp.full((1, 1), 1 + 2**-10)
    exact = matmul(one_and_a_bit, jnp.ones((1, 1)), jnp.dtype("float32"))
    rounded = matmul(one_and_a_bit, jnp.ones((1, 1)), jnp.dtype("bfloat16"))
    assert (exact.item(), rounded.item()) == (1 + 2**-10, 1.0)


def test_matmul_in_bfloat16_rounds_operands_but_sums_in_float32():
    x = jax.random.normal(jax.random.key(0), (4, 50, 32))
    kernel = jax.random.normal(jax.random.key(1), (32, 24))
    weight = jax.random.normal(jax.random.key(2), (4, 50, 24))

    def loss(x, kernel):
        return (matmul(x, kernel, jnp.bfloat16) * weight).sum()

    def rounded(a):
        return np.asarray(a.astype(jnp.bfloat16), np.float64)

    dx, dkernel = jax.grad(loss, (0, 1))(x, kernel)
    assert dx.dtype == dkernel.dtype == jnp.float32
    expected = np.einsum("bti,bto->io", rounded(x), rounded(weight))
    np.testing.assert_allclose(dkernel, expected, atol=1e-4)  # unrounded sums
    expected = np.einsum("bto,io->bti", rounded(weight), rounded(kernel))
    np.testing.assert_allclose(dx, expected, atol=0.1)
