"""The kernels of attention, interpreted on a CPU, against the formula."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from collectives import collectives
from forms import (
    assert_near,
    kept,
    mean_errors,
    noise_on_later_pages,
    with_gradients,
)

from gpt1_jax.kernels import attention_gpu, attention_tpu
from gpt1_jax.kernels.attention_gpu_kernels import Plan, Tiles
from gpt1_jax.ops.attention import causal_attention, plain_causal_attention
from gpt1_jax.ops.dropout import Noise
from gpt1_jax.parallel.exchange import rows_by_device
from gpt1_jax.parallel.mesh import batch_sharding, make_mesh, replicated

SITE = 5
KERNELS = {"gpu": attention_gpu.attention, "tpu": attention_tpu.attention}
TOLERANCE = {"gpu": 2e-6, "tpu": 4e-6}
BOTH_CHIPS = pytest.mark.parametrize("chip", KERNELS)
SEVERAL_BLOCKS = {"gpu": ((2, 160, 4, 8), 0.3), "tpu": ((1, 272, 8, 64), 0.1)}


def random_parts(shape, dtype="float32"):
    """Query, key, value, and the gradient of the output: [N, T, H, K] each."""
    rng = np.random.default_rng(0)
    return [rng.normal(size=shape).astype(jnp.dtype(dtype)) for _ in range(4)]


@functools.partial(jax.jit, static_argnums=(0, 2))
def output_and_gradients(form, parts, rate, noise):
    """One program for each form, shape and rate."""
    *qkv, weights = parts
    return with_gradients(lambda *x: form(*x, rate, noise, SITE), weights, *qkv)


@pytest.mark.parametrize(
    ("chip", "shape", "rate"),
    [
        ("gpu", (1, 65, 3, 24), 0.5),  # K between powers of two; heads share no hashes
        # The last block not full; counters of 32 keys alike but for their last bits
        ("gpu", *SEVERAL_BLOCKS["gpu"]),
        ("tpu", (2, 64, 2, 256), 0.3),  # two vectors a head; fewer tokens than a block
        # Two heads in a vector, and two such vectors; counters of 16 keys alike
        ("tpu", *SEVERAL_BLOCKS["tpu"]),
        # Four heads in three vectors; whole blocks, their keys' counters alike
        ("tpu", (1, 256, 8, 96), 0.3),
    ],
    ids=str,
)
def test_kernels_equal_the_plain_form(chip, shape, rate):
    """Output and gradients, each element masked alike; for rows from anywhere.

    float32: all sum the same products, in another order.
    """
    parts, noise = random_parts(shape), noise_on_later_pages(shape[0])
    actual, expected = (
        output_and_gradients(form, parts, rate, noise)
        for form in (KERNELS[chip], plain_causal_attention)
    )
    assert_near(actual, expected, TOLERANCE[chip])


@pytest.mark.parametrize(
    ("chip", "shape", "usual", "most"),
    [
        pytest.param(
            *("gpu", (2, 160, 4, 8), plain_causal_attention, 1.2),
            marks=pytest.mark.skipif(
                jax.__version_info__ < (0, 9),
                reason="a CPU then had no such bfloat16 product",
            ),
        ),
        ("tpu", (1, 129, 2, 128), causal_attention, 1.1),
    ],
    ids=["gpu", "tpu"],
)
def test_kernels_in_bfloat16_are_as_exact_as_other_forms(chip, shape, usual, most):
    """All round the operands of products, once; none rounds a sum."""
    rounded, noise = random_parts(shape, "bfloat16"), noise_on_later_pages(shape[0])
    in_float32 = [part.astype(np.float32) for part in rounded]
    exact = output_and_gradients(plain_causal_attention, in_float32, 0.3, noise)
    kernel, other = (
        mean_errors(output_and_gradients(form, rounded, 0.3, noise), exact)
        for form in (KERNELS[chip], usual)
    )
    for ours, theirs in zip(kernel, other, strict=True):
        assert 0 < ours < most * theirs


@BOTH_CHIPS
def test_kernels_survive_huge_scores(chip):
    shape, rate = SEVERAL_BLOCKS[chip]
    parts = [1000 * part for part in random_parts(shape)]
    noise = noise_on_later_pages(shape[0])
    for found in output_and_gradients(KERNELS[chip], parts, rate, noise):
        assert np.isfinite(found).all()


@pytest.mark.parametrize(
    ("chip", "rate"), [("gpu", 0.5), ("tpu", 0.0)], ids=["no noise", "no rate"]
)
def test_without_noise_or_a_rate_nothing_is_dropped(chip, rate):
    parts = random_parts((2, 40, 2, 128))
    noise = None if rate else noise_on_later_pages(2)
    expected = output_and_gradients(plain_causal_attention, parts, 0.0, None)
    found = output_and_gradients(KERNELS[chip], parts, rate, noise)
    assert_near(found, expected, TOLERANCE[chip])


def test_any_plan_of_a_gpu_computes_the_same(monkeypatch):
    """Whole blocks, several on the diagonal, and several before it."""
    tiles = Tiles(256, 128, 8, 2), Tiles(128, 64, 4, 1), Tiles(64, 128, 8, 3)
    monkeypatch.setattr(attention_gpu, "PLAN", Plan(*tiles))
    parts, noise = random_parts((1, 512, 2, 8)), noise_on_later_pages(1)

    def by_this_plan(*given):  # so that no other plan's program is taken
        return attention_gpu.attention(*given)

    actual, expected = (
        output_and_gradients(form, parts, 0.2, noise)
        for form in (by_this_plan, plain_causal_attention)
    )
    assert_near(actual, expected, 1e-5)


@BOTH_CHIPS
def test_kernels_keep_no_scores_for_the_backward_pass(chip):
    """A GPU's keep a bit of each, the mask."""
    sizes, bits = {}, {}
    for seq_len in (128, 256):
        *qkv, _ = random_parts((1, seq_len, 2, 128))
        leaves = kept(
            lambda *x: KERNELS[chip](*x, 0.1, noise_on_later_pages(1), SITE), *qkv
        )
        of_masks = [leaf.size for leaf in leaves if leaf.dtype == jnp.uint8]
        bits[seq_len] = 8 * sum(of_masks)
        sizes[seq_len] = sum(leaf.size for leaf in leaves) - sum(of_masks)
    assert sizes[256] <= 2 * sizes[128]
    assert bits[256] == {"gpu": 2 * 256**2, "tpu": 0}[chip]


@BOTH_CHIPS
def test_each_device_computes_its_own_sequences(chip):
    """Over 8 devices as over one."""
    parts, noise = random_parts((8, 20, 2, 128)), noise_on_later_pages(8)
    expected = output_and_gradients(plain_causal_attention, parts, 0.1, noise)
    mesh = make_mesh()
    rows, whole = batch_sharding(mesh), replicated(mesh)

    def on_device(key, rows, *parts):
        return output_and_gradients(KERNELS[chip], parts, 0.1, Noise(key, rows))

    shardings = {"in_shardings": (whole, *[rows] * 5), "out_shardings": rows}
    split = jax.jit(rows_by_device(mesh, on_device), **shardings)
    compiled = split.lower(*noise, *parts).compile()
    assert not collectives(compiled), "devices exchange nothing"
    assert_near(compiled(*noise, *parts), expected, TOLERANCE[chip])
