"""The fused kernels, interpreted on a CPU, against the formula."""

import functools
import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from collectives import collectives

from gpt1_jax.kernels import attention_gpu
from gpt1_jax.kernels.attention_gpu import attention
from gpt1_jax.ops.attention import plain_causal_attention
from gpt1_jax.ops.dropout import Noise, step_noise
from gpt1_jax.parallel.exchange import rows_by_device
from gpt1_jax.parallel.mesh import batch_sharding, make_mesh, replicated

SITE = 5


@functools.partial(jax.jit, static_argnums=(0, 2))
def outputs_and_gradients(form, parts, rate, noise, weights):
    """[N, T, H, K] each: the output, and the gradients of its weighted sum."""
    output, backward = jax.vjp(lambda *p: form(*p, rate, noise, SITE), *parts)
    return output, *backward(weights.astype(output.dtype))


fused, plain = (
    functools.partial(outputs_and_gradients, form)
    for form in (attention, plain_causal_attention)
)


def random_arrays(shape, dtype=jnp.float32):
    rng = np.random.default_rng(0)
    *parts, weights = (rng.normal(size=shape).astype(dtype) for _ in range(4))
    return parts, weights


def noise_of(*rows):
    return Noise(step_noise(0, np.int32(3), 1).key, np.array(rows, np.uint32))


SEVERAL_BLOCKS = 1, 130, 2, 8


@pytest.mark.parametrize(
    ("shape", "rate"),
    [
        ((2, 1, 2, 8), 0.1),  # a single token
        ((1, 7, 1, 4), 0.0),  # less than a block
        ((1, 65, 3, 24), 0.5),  # K between powers of two, heads that share no hashes
        ((2, 512, 2, 8), 0.1),  # the paper's length: whole blocks
        (SEVERAL_BLOCKS, 0.1),  # the last of them not full
    ],
    ids=str,
)
def test_fused_form_equals_the_plain_one(shape, rate):
    """Output and gradients; float32 sums in another order differ by some 1e-7."""
    parts, weights = random_arrays(shape)
    noise = noise_of(*range(shape[0]))
    expected, actual = (form(parts, rate, noise, weights) for form in (plain, fused))
    for theirs, ours in zip(expected, actual, strict=True):
        assert ours.shape == shape
        highest = float(np.abs(theirs).max())
        np.testing.assert_allclose(ours, theirs, atol=2e-6 * max(1, highest))


@pytest.mark.skipif(
    jax.__version_info__ < (0, 9), reason="a CPU then had no such bfloat16 product"
)
def test_fused_form_in_bfloat16_is_as_exact_as_the_plain_one():
    """Both round probabilities and their gradients to bfloat16, in their own order."""
    parts, weights = random_arrays(SEVERAL_BLOCKS, jnp.bfloat16)
    noise = noise_of(0)
    as_float32 = [x.astype(np.float32) for x in (*parts, weights)]
    exact = plain(as_float32[:3], 0.1, noise, as_float32[3])
    errors = []
    for form in (plain, fused):
        actual = form(parts, 0.1, noise, weights)
        assert {x.dtype for x in actual} == {jnp.dtype(jnp.bfloat16)}
        pairs = zip(actual, exact, strict=True)
        errors.append([np.abs(np.asarray(x, np.float32) - y).mean() for x, y in pairs])
    for theirs, ours in zip(*errors, strict=True):
        assert 0 < ours < 1.2 * theirs


def test_later_keys_are_ignored():
    """Bit for bit, within a block and beyond it."""
    (query, key, value), weights = random_arrays(SEVERAL_BLOCKS)
    later = np.arange(130)[:, None, None] > 70
    changed = [np.where(later, np.float32(9), x) for x in (key, value)]
    one, other = (
        np.asarray(fused([query, *parts], 0.1, noise_of(0), weights)[0])
        for parts in ((key, value), changed)
    )
    np.testing.assert_array_equal(one[:, :71], other[:, :71])
    assert not np.array_equal(one[:, 71:], other[:, 71:])


def test_huge_scores_stay_finite():
    parts, weights = random_arrays(SEVERAL_BLOCKS)
    for x in fused([1000 * part for part in parts], 0.1, noise_of(0), weights):
        assert np.isfinite(x).all()


def test_without_noise_nothing_is_dropped():
    parts, weights = random_arrays((1, 7, 1, 4))
    expected = fused(parts, 0.0, noise_of(0), weights)
    for theirs, ours in zip(expected, fused(parts, 0.5, None, weights), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_no_square_array_is_ever_made():
    """The largest array of both passes holds query, key and value.

    The mask takes a bit for each score.
    """
    shape = jax.ShapeDtypeStruct((2, 512, 2, 16), jnp.float32)

    def both(query, key, value, weights):
        parts = query, key, value
        return outputs_and_gradients(attention, parts, 0.1, noise_of(0, 1), weights)

    jaxpr = jax.make_jaxpr(both)(*[shape] * 4)
    arrays = [x.aval for eqn in equations(jaxpr.jaxpr) for x in eqn.outvars]
    num_bytes = [x.size * x.dtype.itemsize for x in arrays if x.dtype != jnp.uint8]
    assert max(num_bytes) == 3 * 4 * shape.size
    assert max(x.size for x in arrays if x.dtype == jnp.uint8) == 2 * 2 * 512**2 // 8


def equations(jaxpr):
    """All equations but those within kernels."""
    for eqn in jaxpr.eqns:
        yield eqn
        if eqn.primitive.name != "pallas_call":
            for inner in jax.tree.leaves(eqn.params, is_leaf=is_jaxpr):
                if is_jaxpr(inner):
                    yield from equations(getattr(inner, "jaxpr", inner))


def is_jaxpr(x):
    return hasattr(x, "jaxpr") or hasattr(x, "eqns")


def test_each_device_computes_its_own_sequences():
    """Over 8 devices as over one."""
    parts, weights = random_arrays((8, *SEVERAL_BLOCKS[1:]))
    noise = noise_of(*range(3, 11))
    one_by_one = [
        fused([x[n : n + 1] for x in parts], 0.1, noise_of(3 + n), weights[n : n + 1])
        for n in range(8)
    ]
    expected = map(np.concatenate, zip(*one_by_one, strict=True))
    mesh = make_mesh()
    rows, whole = batch_sharding(mesh), replicated(mesh)

    def both(key, rows, *arrays):
        *parts, weights = arrays
        form = attention
        return outputs_and_gradients(form, parts, 0.1, Noise(key, rows), weights)

    split = jax.jit(
        rows_by_device(mesh, both),
        in_shardings=(whole, *[rows] * 5),
        out_shardings=rows,
    )
    arguments = *noise, *parts, weights
    compiled = split.lower(*arguments).compile()
    assert not collectives(compiled), "devices exchange nothing"
    for theirs, ours in zip(expected, compiled(*arguments), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


@pytest.mark.parametrize(
    ("capability", "head_dim", "reason"),
    [
        ("7.5", 64, r"8\.0 \(A100\) or newer, and device has 7\.5"),
        ("10.0", 128, "^$"),
        ("10.0", 129, "heads of 129 dimensions in float32 are too large"),
    ],
)
def test_refusal_says_what_is_in_the_way(capability, head_dim, reason, monkeypatch):
    device = SimpleNamespace(compute_capability=capability, device_kind="device")
    monkeypatch.setattr(jax, "local_devices", lambda: [device])
    refused = attention_gpu.refusal((1, 2, 2, head_dim), jnp.dtype("float32"))
    assert re.search(reason, refused)
