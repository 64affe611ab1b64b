"""The plans of the kernels for GPUs: how they cut attention into tiles."""

import numpy as np
import pytest
from forms import assert_near, noise_on_later_pages, with_gradients

from gpt1_jax.kernels import attention_gpu
from gpt1_jax.kernels.attention_gpu_kernels import Plan, Tiles
from gpt1_jax.ops.attention import plain_causal_attention


@pytest.mark.parametrize(
    "plan",
    [
        Plan(Tiles(128, 64, 4, 2), Tiles(128, 128, 4, 1), Tiles(16, 64, 4, 2)),
        Plan(Tiles(64, 64, 4, 1), Tiles(128, 64, 8, 2), Tiles(64, 128, 8, 3)),
    ],
    ids=["large", "small"],
)
def test_any_plan_computes_the_same(plan, monkeypatch):
    """Several blocks on the diagonal, and several before it."""
    monkeypatch.setattr(attention_gpu, "PLAN", plan)
    rng = np.random.default_rng(0)
    *qkv, weights = rng.normal(size=(4, 1, 130, 2, 8)).astype(np.float32)
    noise = noise_on_later_pages(1)
    actual, expected = (
        with_gradients(lambda *x, form=form: form(*x, 0.2, noise, 5), weights, *qkv)
        for form in (attention_gpu.attention, plain_causal_attention)
    )
    assert_near(actual, expected, 1e-5)
