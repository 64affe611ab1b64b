"""Trials of forms, with made-up kernels: right ones, and wrong in one way each."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpt1_jax.kernels import attention_gpu, layer_norm_gpu
from gpt1_jax.kernels.trials import (
    Refused,
    Trial,
    attention_form,
    attention_function,
    layer_norm_form,
    layer_norm_function,
)
from gpt1_jax.ops.attention import causal_attention
from gpt1_jax.ops.layer_norm import residual_layer_norm

RATE = 0.1


@functools.cache
def trial(name="attention", dtype="float32", training=True):
    """Trials are kept, so that the usual form and the formula are compiled once."""
    functions = {
        "attention": attention_function(3, 20, 2, 8),
        "layer_norm": layer_norm_function(3, 6, 32),
    }
    return Trial(functions[name], jnp.dtype(dtype), RATE, training)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def with_gradient_scaled(x, factor):
    return x


with_gradient_scaled.defvjp(
    lambda x, factor: (x, None), lambda factor, _, grad: (grad * factor,)
)


def scaled(query, *rest):
    return causal_attention(query * 1.01, *rest)


def with_wrong_gradient(query, *rest):
    return causal_attention(with_gradient_scaled(query, 1.01), *rest)


def with_other_masks(query, key, value, rate, noise, site):
    return causal_attention(query, key, value, rate, noise, site + 1)


def without_dropout(query, key, value, rate, noise, site):
    return causal_attention(query, key, value, rate, None, site)


def dropped_a_key_too_many(query, key, value, rate, noise, site):
    """One key of one head, in the last sequence only."""
    kept = jnp.ones_like(value).at[-1, 3, 1].set(0)
    return causal_attention(query, key, value * kept, rate, noise, site)


def not_a_number(query, *rest):
    return causal_attention(query, *rest) * jnp.nan


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_right_form_passes(dtype):
    form = attention_form(causal_attention)
    trial(dtype=dtype).check(form)
    assert max(trial(dtype=dtype).errors(form).values()) <= 1


@pytest.mark.parametrize(
    ("attend", "why"),
    [
        (scaled, "the output has .* times the error"),
        (with_wrong_gradient, "gradient 1 has .* times the error"),
        (with_other_masks, "dropout masks are wrong in"),
        (without_dropout, "dropout masks are wrong in"),
        (dropped_a_key_too_many, "dropout masks are wrong in"),
        (not_a_number, "the output has nan times the error|masks are wrong"),
    ],
)
def test_a_wrong_form_is_refused(attend, why):
    with pytest.raises(Refused, match=why):
        trial().check(attention_form(attend))


def test_a_form_that_gives_two_results_is_refused(monkeypatch):
    form, results = attention_form(causal_attention), iter(range(9))
    monkeypatch.setattr(
        trial(), "_results", lambda form: [np.array([next(results)])], raising=True
    )
    with pytest.raises(Refused, match="two results"):
        trial().check(form)


def test_what_only_scores_needs_no_masks_and_no_gradients():
    scoring = trial(training=False)
    scoring.check(attention_form(with_other_masks))
    assert list(scoring.errors(attention_form(with_wrong_gradient))) == ["the output"]
    with pytest.raises(Refused, match="the output"):
        scoring.check(attention_form(scaled))


def norm_with_other_masks(x, branch, scale, bias):
    return residual_layer_norm(x, branch._replace(site=2), scale, bias)


def norm_without_bias(x, branch, scale, bias):
    return residual_layer_norm(x, branch, scale, 0 * bias)


def norm_with_wrong_gradient(x, branch, scale, bias):
    return residual_layer_norm(x, branch, with_gradient_scaled(scale, 0.9), bias)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_right_layer_norm_passes(dtype):
    trial("layer_norm", dtype).check(layer_norm_form(residual_layer_norm))


@pytest.mark.parametrize(
    ("norm", "why"),
    [
        (norm_without_bias, "the output has"),
        (norm_with_wrong_gradient, "gradient 4 has"),
        (norm_with_other_masks, "dropout masks are wrong in"),
    ],
)
def test_a_wrong_layer_norm_is_refused(norm, why):
    with pytest.raises(Refused, match=why):
        trial("layer_norm").check(layer_norm_form(norm))


def test_the_time_is_that_of_each_form():
    def slow(query, *rest):
        def again(_, query):
            return query + 0 * causal_attention(query, *rest)

        return causal_attention(jax.lax.fori_loop(0, 30, again, query), *rest)

    usual, other = trial(training=False).seconds(attention_form(slow))
    assert 0 < 2 * usual < other


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_our_kernels_pass(dtype):
    """Interpreted, with heads that do and do not share their hashes."""
    for num_heads in (2, 3):
        function = attention_function(2, 33, num_heads, 16)
        form = attention_form(attention_gpu.attention)
        Trial(function, jnp.dtype(dtype), RATE, training=True).check(form)
    form = layer_norm_form(layer_norm_gpu.residual_layer_norm)
    trial("layer_norm", dtype).check(form)
