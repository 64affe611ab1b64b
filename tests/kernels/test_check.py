"""Checks of kernels, with made-up ones: right, and wrong in one way each."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpt1_jax.kernels import attention_gpu, layer_norm_gpu
from gpt1_jax.kernels.check import AttentionCheck, LayerNormCheck
from gpt1_jax.ops.attention import causal_attention
from gpt1_jax.ops.dropout import num_hashes
from gpt1_jax.ops.layer_norm import residual_layer_norm

RATE = 0.1
HEADS_AND_PROBS = 2, 20, 20  # of `attention`


@functools.cache
def attention(dtype="float32", training=True):
    """Checks are kept, so that the usual form and the formula are compiled once."""
    return AttentionCheck((3, 20, 2, 8), dtype, RATE, training)


@functools.cache
def layer_norm(dtype="float32"):
    return LayerNormCheck((3, 6, 32), dtype, RATE, training=True)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def with_gradient_scaled(x, factor):
    return x


with_gradient_scaled.defvjp(
    lambda x, factor: (x, None), lambda factor, _, grad: (grad * factor,)
)


def with_wrong_gradient(query, *rest):
    return causal_attention(with_gradient_scaled(query, 1.01), *rest)


def with_other_masks(*arguments):
    *arrays, site = arguments
    return causal_attention(*arrays, site + 1)


def dropped_in_the_gradient(query, key, value, *rest):
    """The backward pass of the values has masks of another site."""
    wrong = with_other_masks(query, key, value, *rest)
    right = causal_attention(query, key, jax.lax.stop_gradient(value), *rest)
    return right + wrong - jax.lax.stop_gradient(wrong)


def with_rows_of_the_first_page(*arguments):
    """Its key is the same on all pages of counters: see `row_counters`."""
    *arrays, noise, site = arguments
    rows = noise.rows % np.uint32(2**32 // num_hashes(HEADS_AND_PROBS))
    return causal_attention(*arrays, noise._replace(rows=rows), site)


def with_a_wrong_last_sequence(*arguments):
    return causal_attention(*arguments).at[-1].multiply(1.01)


def norm_with_other_masks(*arguments):
    *arrays, site = arguments
    return residual_layer_norm(*arrays, site + 1)


def norm_with_wrong_gradient(*arguments):
    *arrays, scale, bias, rate, noise, site = arguments
    scale = with_gradient_scaled(scale, 0.9)
    return residual_layer_norm(*arrays, scale, bias, rate, noise, site)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_right_form_passes(dtype):
    assert attention(dtype).why_not(causal_attention) == ""
    assert max(attention(dtype).errors(causal_attention).values()) <= 1
    assert layer_norm(dtype).why_not(residual_layer_norm) == ""


MASKS = "dropout masks are wrong in"
INEXACT = "has .* times the error"


@pytest.mark.parametrize(
    ("check", "form", "why"),
    [
        (attention, with_wrong_gradient, f"gradient 1 {INEXACT}"),
        (attention, with_other_masks, MASKS),
        (attention, dropped_in_the_gradient, MASKS),
        (attention, with_rows_of_the_first_page, MASKS),
        (attention, with_a_wrong_last_sequence, f"the output {INEXACT}"),
        (
            attention,
            lambda *given: jnp.nan * causal_attention(*given),
            "nan times|masks",
        ),
        (layer_norm, norm_with_wrong_gradient, f"gradient 4 {INEXACT}"),
        (layer_norm, norm_with_other_masks, MASKS),
    ],
)
def test_a_wrong_form_is_refused(check, form, why):
    assert re.search(why, check().why_not(form))


def test_a_form_that_gives_two_results_is_refused():
    added = iter([0.0, 1e-6])  # to one element, run by run

    def unsteady(*arguments):
        more = jax.pure_callback(
            lambda: np.float32(next(added)), jax.ShapeDtypeStruct((), jnp.float32)
        )
        return causal_attention(*arguments).at[0, 0, 0, 0].add(more)

    why = attention(training=False).why_not(unsteady)
    assert why == "it gave two results for the same input"


def test_what_only_scores_needs_no_masks_and_no_gradients():
    scoring = attention(training=False)
    assert scoring.why_not(with_other_masks) == ""
    assert list(scoring.errors(with_wrong_gradient)) == ["the output"]
    assert re.search("the output", scoring.why_not(with_a_wrong_last_sequence))


@pytest.mark.slow
def test_our_kernels_pass():
    made = AttentionCheck((2, 33, 3, 16), "bfloat16", RATE, training=True)
    assert made.why_not(attention_gpu.attention) == ""
    assert layer_norm("bfloat16").why_not(layer_norm_gpu.residual_layer_norm) == ""
