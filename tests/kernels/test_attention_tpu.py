"""The kernels for TPUs, interpreted: their numbers, their masks, and where they run."""

import functools
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpt1_jax.kernels.attention_tpu import attention, refusal
from gpt1_jax.ops.attention import (
    MASK_NDIM,
    causal_attention,
    plain_causal_attention,
)
from gpt1_jax.ops.dropout import Noise, keep_mask, site_words, step_noise
from gpt1_jax.parallel.exchange import rows_by_device
from gpt1_jax.parallel.mesh import batch_sharding, make_mesh

SITE = 3
FORMS = {
    form.__name__: form
    for form in (attention, plain_causal_attention, causal_attention)
}


def random_parts(shape, dtype="float32", seed=0):
    """Query, key, value, and the gradient of the output."""
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape).astype(jnp.dtype(dtype)) for _ in range(4)]


def rows_on_later_pages(num_seqs):
    """Noise of rows that do not follow one another, some beyond the first 2^32."""
    rows = np.arange(num_seqs, dtype=np.uint32) * np.uint32(0x9E3779B1)
    return Noise(step_noise(0, np.int32(3), num_seqs).key, rows ^ np.uint32(5))


@functools.partial(jax.jit, static_argnames=("form", "rate"))
def output_and_gradients(parts, noise, form, rate):
    def attend(*qkv):
        return FORMS[form](*qkv, rate, noise, SITE)

    output, backward = jax.vjp(attend, *parts[:3])
    return output, *backward(parts[3])


def assert_close(actual, expected, tolerance):
    """As close as `tolerance`, times the largest number where it exceeds one."""
    for one, other in zip(actual, expected, strict=True):
        largest = max(1.0, float(np.abs(other).max()))
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance * largest)


@pytest.mark.parametrize(
    ("shape", "rate"),
    [
        ((2, 1, 2, 128), 0.0),
        ((2, 40, 8, 32), 0.3),  # fewer tokens than a block
        ((2, 40, 2, 128), 0.0),
        ((1, 129, 8, 64), 0.1),  # two heads in a vector, and two such vectors
        ((1, 300, 8, 96), 0.1),  # four heads in three vectors
        ((1, 512, 2, 128), 0.1),
    ],
)
def test_kernel_equals_the_plain_form(shape, rate):
    """Output and gradients, with masks of rows from anywhere.

    float32: both sum the same products, in another order.
    """
    assert not refusal(shape, jnp.dtype("float32"))
    parts, noise = random_parts(shape), rows_on_later_pages(shape[0])
    kernel, plain = (
        output_and_gradients(parts, noise, form, rate)
        for form in ("attention", "plain_causal_attention")
    )
    assert_close(kernel, plain, 4e-6)


def test_kernel_in_bfloat16_is_as_exact_as_the_blocked_form():
    """Both round operands of products, once; neither rounds a sum."""
    rounded = random_parts((1, 129, 8, 64), "bfloat16")
    exact = [part.astype(np.float32) for part in rounded]
    noise, rate = rows_on_later_pages(1), 0.1
    reference = output_and_gradients(exact, noise, "plain_causal_attention", rate)
    errors = {}
    for form in ("attention", "causal_attention"):
        results = output_and_gradients(rounded, noise, form, rate)
        assert all(result.dtype == jnp.bfloat16 for result in results)
        errors[form] = [
            np.abs(np.asarray(result, np.float32) - expected).mean()
            for result, expected in zip(results, reference, strict=True)
        ]
    kernel, blocked = errors.values()
    assert all(error > 0 for error in kernel)
    for ours, theirs in zip(kernel, blocked, strict=True):
        assert ours < 1.1 * theirs


def test_kernel_survives_huge_scores():
    parts = [100 * part for part in random_parts((1, 512, 2, 128))]
    results = output_and_gradients(parts, rows_on_later_pages(1), "attention", 0.1)
    assert all(np.isfinite(result).all() for result in results)


@pytest.mark.parametrize(
    ("seq_len", "num_heads", "head_dim"), [(128, 2, 128), (200, 4, 64)]
)
def test_masks_of_both_kernels_are_those_of_keep_mask(seq_len, num_heads, head_dim):
    """Each element, read from products with the columns of a unit matrix.

    Queries and keys are zero, so the probabilities of query t are 1 / (t + 1).
    """
    shape, rate = (2, seq_len, num_heads, head_dim), 0.4
    noise = rows_on_later_pages(2)
    probs_shape = num_heads, seq_len, seq_len

    @jax.jit
    def mask_of(noise):
        words = site_words(noise, SITE)
        return keep_mask(words, noise.rows, probs_shape, rate, None, MASK_NDIM)

    expected = np.asarray(mask_of(noise)) & np.tril(np.ones((seq_len, seq_len), bool))
    zeros, unit = np.zeros(shape, np.float32), np.eye(seq_len, dtype=np.float32)
    forward, backward = np.zeros_like(expected), np.zeros_like(expected)
    for start in range(0, seq_len, head_dim):
        part = unit[:, start : start + head_dim]
        width = part.shape[1]
        part = np.pad(part, ((0, 0), (0, head_dim - width)))
        part = np.broadcast_to(part[:, None], shape)
        parts = [zeros, zeros, part, part]
        results = output_and_gradients(parts, noise, "attention", rate)
        output, d_value = (np.asarray(results[i]).swapaxes(1, 2) != 0 for i in (0, 3))
        forward[..., start : start + width] = output[..., :width]
        backward[..., start : start + width, :] = d_value[..., :width].swapaxes(2, 3)
    np.testing.assert_array_equal(forward, expected)
    np.testing.assert_array_equal(backward, expected)


def test_noise_or_rate_missing_is_without_dropout():
    parts, some = random_parts((2, 40, 2, 128)), rows_on_later_pages(2)
    expected = output_and_gradients(parts, some, "plain_causal_attention", 0.0)
    for rate, noise in ((0.5, None), (0.0, some)):
        actual = output_and_gradients(parts, noise, "attention", rate)
        assert_close(actual, expected, 4e-6)


@pytest.mark.parametrize(
    ("shape", "dtype", "why"),
    [
        ((64, 512, 12, 64), "float32", ""),
        ((64, 1024, 16, 64), "bfloat16", ""),
        ((2, 9, 3, 64), "float32", "heads of 64 fill the chip's vectors by 4"),
        ((1, 9, 2, 64), "float32", "and there are 2"),
        ((1, 1025, 2, 128), "float32", "1025 tokens do not fit"),
        ((64, 1024, 32, 128), "bfloat16", "1024 tokens do not fit"),
    ],
)
def test_sizes_without_a_kernel_are_refused(shape, dtype, why):
    """Heads that fill no vectors in pairs, and sequences too large for the chip."""
    refused = refusal(shape, jnp.dtype(dtype))
    assert why in refused if why else not refused


def test_kernel_keeps_no_square_array_for_the_backward_pass():
    kept = {}
    for seq_len in (128, 256):
        parts, noise = random_parts((1, seq_len, 2, 128)), rows_on_later_pages(1)

        def attend(*qkv, noise=noise):
            return attention(*qkv, 0.1, noise, SITE)

        backward = jax.eval_shape(
            lambda *qkv, attend=attend: jax.vjp(attend, *qkv)[1], *parts[:3]
        )
        kept[seq_len] = sum(leaf.size for leaf in jax.tree.leaves(backward))
    assert kept[256] <= 2 * kept[128]


# --- on several devices -------------------------------------------------------


def test_kernel_computes_each_devices_rows():
    mesh = make_mesh()
    parts, noise = random_parts((8, 20, 2, 128)), rows_on_later_pages(8)

    def on_device(key, rows, *parts):
        assert not refusal(parts[0].shape, parts[0].dtype)
        noise = Noise(jax.random.wrap_key_data(key), rows)
        return output_and_gradients(parts, noise, "attention", 0.1)

    key = jax.random.key_data(noise.key)
    sharded = jax.device_put((noise.rows, *parts), batch_sharding(mesh))
    actual = jax.jit(rows_by_device(mesh, on_device))(key, *sharded)
    assert not actual[0].is_fully_replicated
    expected = output_and_gradients(parts, noise, "plain_causal_attention", 0.1)
    assert_close(actual, expected, 4e-6)


# --- for a TPU ----------------------------------------------------------------


def test_kernels_are_lowered_for_a_tpu():
    """Operations that Pallas does not know on a TPU are found without its compiler."""
    parts = random_parts((2, 300, 4, 64), "bfloat16")
    traced = output_and_gradients.trace(parts, rows_on_later_pages(2), "attention", 0.1)
    text = traced.lower(lowering_platforms=("tpu",)).as_text()
    assert text.count("@tpu_custom_call") == 2
    assert "exponential" not in text, "no softmax outside of the kernels"


COMPILE = """
from benchmarks.compiler.targets import TARGETS, devices_of, in_place_of, prepare

target = TARGETS["v5e-1"]
prepare(target)
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from gpt1_jax.kernels.attention_tpu import attention
from gpt1_jax.ops.dropout import Noise


def gradients(qkv, seed, rows):
    def attend(qkv):
        parts = (x.reshape(2, 300, 4, 64) for x in jnp.split(qkv, 3, axis=-1))
        noise = Noise(jax.random.key(seed), rows)
        return attention(*parts, 0.1, noise, 3).astype("float32").sum()

    return jax.grad(attend)(qkv)


mesh = Mesh(np.array(devices_of(target)), "x")
whole = NamedSharding(mesh, PartitionSpec())
shapes = ((2, 300, 768), "bfloat16"), ((), "int32"), ((2,), "uint32")
arguments = (jax.ShapeDtypeStruct(*shape, sharding=whole) for shape in shapes)
with in_place_of(target):
    lowered = jax.jit(gradients).trace(*arguments).lower(lowering_platforms=("tpu",))
text = lowered.compile().as_text()
print(text.count('custom_call_target="tpu_custom_call"'))
"""


@pytest.mark.slow
def test_kernels_compile_for_a_tpu():
    if not importlib.util.find_spec("libtpu"):
        pytest.skip("libtpu is not installed: pip install -e '.[aot]'")
    root = Path(__file__).parents[2]
    process = subprocess.run(
        [sys.executable, "-c", COMPILE],
        env={**os.environ, "PYTHONPATH": str(root), "XLA_FLAGS": ""},
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout.split() == ["2"]
