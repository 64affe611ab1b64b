"""Forms of one function, compared: their values, their gradients, their errors."""

import functools

import jax
import numpy as np

from gpt1_jax.ops import products
from gpt1_jax.ops.dropout import Noise, step_noise


@functools.partial(jax.jit, static_argnums=0)
def with_gradients(function, weights, *arguments):
    """A function's value, and by each argument the gradient of its weighted sum."""
    value, pullback = jax.vjp(function, *arguments)
    return value, *pullback(weights.astype(value.dtype))


def kept(function, *arguments):
    """The shapes of the arrays that a function keeps for its backward pass."""
    backward = jax.eval_shape(lambda *given: jax.vjp(function, *given)[1], *arguments)
    return jax.tree.leaves(backward)


def assert_near(actual, expected, tolerance, scaled=True):
    """As near as `tolerance`; if scaled, times the largest number where it exceeds one.

    Arrays may be bfloat16.
    """
    for ours, theirs in zip(actual, expected, strict=True):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        ours, theirs = (np.asarray(x, np.float32) for x in (ours, theirs))
        largest = max(1.0, float(np.abs(theirs).max())) if scaled else 1.0
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance * largest)


def mean_errors(actual, exact):
    """The mean error of each array, which may be bfloat16."""
    pairs = zip(actual, exact, strict=True)
    return [np.abs(np.asarray(ours, np.float32) - x).mean() for ours, x in pairs]


def noise_on_later_pages(num_seqs):
    """That of rows that do not follow one another, some beyond the first 2^32."""
    rows = np.arange(num_seqs, dtype=np.uint32) * np.uint32(0x9E3779B1)
    return Noise(step_noise(0, np.int32(3), num_seqs).key, rows ^ np.uint32(5))


def take_branches_of(platform, monkeypatch):
    """Programs traced from here on are those of another platform, computed here."""

    def branch_of(*arrays, default, **others):
        return others.get(platform, default)(*arrays)

    monkeypatch.setattr(jax.lax, "platform_dependent", branch_of)
    monkeypatch.setattr(products, "product", products.product.__wrapped__)
