"""The fused kernels, interpreted on a CPU, against the functions they combine."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from collectives import collectives
from forms import assert_near, kept, mean_errors, noise_on_later_pages, with_gradients

from gpt1_jax.kernels.layer_norm_gpu import residual_layer_norm
from gpt1_jax.ops.dropout import Noise, dropout
from gpt1_jax.ops.layer_norm import plain_layer_norm
from gpt1_jax.parallel.exchange import rows_by_device
from gpt1_jax.parallel.mesh import batch_sharding, make_mesh, replicated

SITE = 5


def separate(x, branch, branch_bias, scale, bias, rate, noise, site, rows):
    added = (branch + branch_bias).astype(x.dtype)
    added = dropout(added, rate, noise, site, rows=rows)
    return plain_layer_norm(x + added, scale, bias, x.dtype)


@functools.partial(jax.jit, static_argnums=(0, 2))
def output_and_gradients(form, arrays, rate, noise, weights, rows=None):
    """Of input, branch, its bias, scale and bias; a program for each shape and rate."""
    return with_gradients(
        lambda *given: form(*given, rate, noise, SITE, rows), weights, *arrays
    )


fused, plain = (
    functools.partial(output_and_gradients, form)
    for form in (residual_layer_norm, separate)
)


def random_arrays(*shape, dtype=jnp.float32):
    rng = np.random.default_rng(0)
    x, branch, weights = (rng.normal(size=shape).astype(dtype) for _ in range(3))
    vectors = rng.normal(size=(3, shape[-1])).astype(np.float32)
    return (x, branch, *vectors), weights


@pytest.mark.parametrize(
    ("shape", "rate"),
    [
        ((5, 128), 0.0),
        ((3, 70, 32), 0.5),  # not a multiple of what a program computes
        ((2, 3, 768), 0.1),  # the paper's width, three pieces in each half
        ((2, 3, 4096), 0.1),  # one vector at a time
    ],
    ids=str,
)
def test_kernels_equal_the_functions_they_combine(shape, rate):
    """Output and gradients, each element masked alike; for rows from anywhere.

    float32 sums in another order differ by some 1e-7.
    """
    arrays, weights = random_arrays(*shape)
    noise = noise_on_later_pages(shape[0])
    expected, actual = (form(arrays, rate, noise, weights) for form in (plain, fused))
    assert_near(actual, expected, 3e-6)


def test_kernels_in_bfloat16_are_as_exact_as_what_they_combine():
    arrays, weights = random_arrays(2, 3, 768, dtype=jnp.bfloat16)
    as_float32 = tuple(a.astype(np.float32) for a in arrays)
    exact = plain(as_float32, 0.1, noise_on_later_pages(2), weights.astype(np.float32))
    theirs, ours = (
        mean_errors(form(arrays, 0.1, noise_on_later_pages(2), weights), exact)
        for form in (plain, fused)
    )
    assert all(np.array(ours) <= 1.1 * np.array(theirs))
    assert min(ours[:3]) > 0, "rounded to bfloat16"


def test_packed_tokens_have_the_masks_of_their_rows():
    arrays, weights = random_arrays(4, 6, 32)
    rows = np.arange(24, dtype=np.uint32)[::-1].reshape(4, 6)
    noise = noise_on_later_pages(4)
    expected, actual = (
        form(arrays, 0.2, noise, weights, rows) for form in (plain, fused)
    )
    assert_near(actual, expected, 3e-5, scaled=False)


def test_without_noise_nothing_is_dropped():
    arrays, weights = random_arrays(5, 128)
    expected = fused(arrays, 0.0, noise_on_later_pages(5), weights)
    for theirs, ours in zip(expected, fused(arrays, 0.5, None, weights), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_sums_far_from_zero_keep_their_digits():
    """The variance is not the difference of two large numbers."""
    (x, branch, *vectors), weights = random_arrays(2, 3, 768)
    arrays = 100 + np.float32(0.03) * x, np.float32(0.03) * branch, *vectors
    noise = noise_on_later_pages(2)
    expected, actual = (form(arrays, 0.1, noise, weights)[0] for form in (plain, fused))
    np.testing.assert_allclose(actual, expected, atol=2e-3)


def test_of_large_arrays_only_the_sum_is_kept():
    (arrays, _), noise = random_arrays(8, 64, 32), noise_on_later_pages(8)
    found = kept(lambda *given: residual_layer_norm(*given, 0.1, noise, SITE), *arrays)
    assert [x.shape for x in found if x.size >= arrays[0].size] == [(512, 32)]


def test_each_device_computes_its_own_sequences():
    """Over 8 devices as over one."""
    arrays, weights = random_arrays(16, 6, 32)
    noise = noise_on_later_pages(16)
    expected = plain(arrays, 0.1, noise, weights)[:3]
    mesh = make_mesh()
    rows, whole = batch_sharding(mesh), replicated(mesh)

    def both(key, rows, x, branch, weights):
        given = x, branch, *arrays[2:]
        return fused(given, 0.1, Noise(key, rows), weights)[:3]

    shardings = {"in_shardings": (whole, *[rows] * 4), "out_shardings": rows}
    split = jax.jit(rows_by_device(mesh, both), **shardings)
    arguments = *noise, *arrays[:2], weights
    compiled = split.lower(*arguments).compile()
    assert not collectives(compiled), "devices exchange nothing"
    assert_near(compiled(*arguments), expected, 3e-6)
