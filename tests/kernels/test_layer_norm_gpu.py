"""The fused kernels, interpreted on a CPU, against the functions they combine."""

import functools
import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from collectives import collectives

from gpt1_jax.kernels import pallas_gpu
from gpt1_jax.kernels.layer_norm_gpu import refusal, residual_layer_norm
from gpt1_jax.ops.dropout import Noise, dropout, keep_mask, site_words
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
    """Of input, branch, its bias, scale and bias."""

    def compute(*arrays):
        return form(*arrays, rate, noise, SITE, rows)

    output, backward = jax.vjp(compute, *arrays)
    return output, *backward(weights.astype(output.dtype))


fused, plain = (
    functools.partial(output_and_gradients, form)
    for form in (residual_layer_norm, separate)
)


def random_arrays(*shape, dtype=jnp.float32):
    rng = np.random.default_rng(0)
    x, branch, weights = (rng.normal(size=shape).astype(dtype) for _ in range(3))
    vectors = rng.normal(size=(3, shape[-1])).astype(np.float32)
    return (x, branch, *vectors), weights


def noise_of(*rows):
    return Noise(jax.random.key(3), np.array(rows, np.uint32))


@pytest.mark.parametrize(
    ("shape", "rate"),
    [
        ((5, 128), 0.0),
        ((2, 64, 96), 0.1),  # three pieces in each half
        ((3, 70, 32), 0.5),  # not a multiple of what a program computes
        ((2, 3, 768), 0.1),  # the paper's width
        ((2, 3, 4096), 0.1),  # one vector at a time
    ],
    ids=str,
)
def test_kernels_equal_the_functions_they_combine(shape, rate):
    """Output and gradients; float32 sums in another order differ by some 1e-7."""
    arrays, weights = random_arrays(*shape)
    noise = noise_of(*range(shape[0]))
    expected, actual = (form(arrays, rate, noise, weights) for form in (plain, fused))
    for theirs, ours in zip(expected, actual, strict=True):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        highest = float(np.abs(theirs).max())
        np.testing.assert_allclose(ours, theirs, atol=3e-6 * max(1, highest))


def test_kernels_in_bfloat16_are_as_exact_as_what_they_combine():
    arrays, weights = random_arrays(2, 64, 96, dtype=jnp.bfloat16)
    as_float32 = tuple(a.astype(np.float32) for a in arrays)
    exact = plain(as_float32, 0.1, noise_of(0, 1), weights.astype(np.float32))
    errors = []
    for form in (plain, fused):
        actual = form(arrays, 0.1, noise_of(0, 1), weights)
        pairs = zip(actual, exact, strict=True)
        errors.append([np.abs(np.asarray(x, np.float32) - y).mean() for x, y in pairs])
    for theirs, ours in zip(*errors, strict=True):
        assert ours <= 1.1 * theirs
    assert min(errors[1][:3]) > 0, "rounded to bfloat16"


TOKEN_ROWS = np.arange(9, 44, dtype=np.uint32).reshape(5, 7)


@pytest.mark.parametrize(
    ("dim", "rows"), [(32, None), (96, None), (32, TOKEN_ROWS)], ids=str
)
def test_mask_is_that_of_keep_mask_bit_for_bit(dim, rows):
    """In both passes, for any rows, of sequences and of single tokens."""
    rate, seq_len = 0.3, 7
    rows_per_page = 2**32 // (seq_len * dim // 2)
    noise = noise_of(0, 7, rows_per_page - 1, rows_per_page, 3 * rows_per_page + 11)
    (_, _, *vectors), weights = random_arrays(5, seq_len, dim)
    zeros, ones = 0 * weights, 0 * weights + 1
    vectors = vectors[0] * 0, vectors[1] * 0 + 1, vectors[2]
    results = fused((zeros, ones, *vectors), rate, noise, weights, rows)
    output, _, d_branch, *_ = map(np.asarray, results)
    shown = noise.rows if rows is None else rows

    @jax.jit
    def keep_of(noise):
        words = site_words(noise, SITE)
        return keep_mask(words, shown, weights.shape[shown.ndim :], rate)

    keep = np.asarray(keep_of(noise))
    above = (output - vectors[2]) > 0  # kept elements lie above their vector's mean
    np.testing.assert_array_equal(above, keep)
    np.testing.assert_array_equal(d_branch != 0, keep)


def test_packed_tokens_have_the_masks_of_their_rows():
    (x, branch, *vectors), weights = random_arrays(4, 6, 32)
    rows = np.arange(24, dtype=np.uint32)[::-1].reshape(4, 6)
    arrays, noise = (x, branch, *vectors), noise_of(0, 1, 2, 3)
    expected, actual = (
        form(arrays, 0.2, noise, weights, rows) for form in (plain, fused)
    )
    for theirs, ours in zip(expected, actual, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=3e-5)


def test_without_noise_nothing_is_dropped():
    arrays, weights = random_arrays(5, 128)
    expected = fused(arrays, 0.0, noise_of(*range(5)), weights)
    for theirs, ours in zip(expected, fused(arrays, 0.5, None, weights), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_sums_far_from_zero_keep_their_digits():
    """The variance is not the difference of two large numbers."""
    (x, branch, *vectors), weights = random_arrays(2, 3, 768)
    arrays = 100 + np.float32(0.03) * x, np.float32(0.03) * branch, *vectors
    noise = noise_of(0, 1)
    expected, actual = (form(arrays, 0.1, noise, weights)[0] for form in (plain, fused))
    np.testing.assert_allclose(actual, expected, atol=2e-3)


def test_of_large_arrays_only_the_sum_is_kept():
    arrays, _ = random_arrays(8, 64, 32)

    def compute(*arrays):
        return residual_layer_norm(*arrays, 0.1, noise_of(*range(8)), SITE)

    backward = jax.eval_shape(lambda *given: jax.vjp(compute, *given)[1], *arrays)
    large = [x for x in jax.tree.leaves(backward) if x.size >= arrays[0].size]
    assert [x.shape for x in large] == [(512, 32)]


def test_each_device_computes_its_own_sequences():
    """Over 8 devices as over one."""
    arrays, weights = random_arrays(16, 64, 96)
    x, branch, *vectors = arrays
    noise = noise_of(*range(3, 19))
    expected = []
    for n in range(0, 16, 2):
        own = slice(n, n + 2)
        given = (x[own], branch[own], *vectors), 0.1, noise_of(3 + n, 4 + n)
        expected.append(fused(*given, weights[own])[:3])
    expected = map(np.concatenate, zip(*expected, strict=True))
    mesh = make_mesh()
    rows, whole = batch_sharding(mesh), replicated(mesh)

    def both(key, rows, x, branch, weights):
        given = x, branch, *arrays[2:]
        form = residual_layer_norm
        return output_and_gradients(form, given, 0.1, Noise(key, rows), weights)[:3]

    split = jax.jit(
        rows_by_device(mesh, both),
        in_shardings=(whole, *[rows] * 4),
        out_shardings=rows,
    )
    arguments = *noise, *arrays[:2], weights
    compiled = split.lower(*arguments).compile()
    assert not collectives(compiled), "devices exchange nothing"
    for theirs, ours in zip(expected, compiled(*arguments), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


@pytest.mark.parametrize(
    ("dim", "reason"),
    [
        (32, "^$"),
        (768, "^$"),
        (1600, "half of 1600 is not a few times a power of two"),
        (33, "half of 33"),
        (16, "half of 16"),
    ],
)
def test_refusal_names_vectors_that_do_not_fit(dim, reason, monkeypatch):
    device = SimpleNamespace(compute_capability="9.0", device_kind="device")
    monkeypatch.setattr(jax, "local_devices", lambda: [device])
    assert re.search(reason, refusal((2, dim), jnp.dtype("float32")))


def test_refusal_is_that_of_the_machine_first(monkeypatch):
    monkeypatch.setattr(pallas_gpu, "triton", None)
    assert refusal((2, 768), jnp.dtype("float32")).endswith(
        "no Triton backend of Pallas any more"
    )
