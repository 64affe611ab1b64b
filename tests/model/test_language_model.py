"""The decoder as a function: parameters, causality, equivalences, losses."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from optax import softmax_cross_entropy_with_integer_labels as cross_entropy
from tiny_models import (
    PAPER,
    WAYS_TO_RUN,
    all_logits,
    flat_params,
    forward,
    hidden_states,
    observe,
    random_tokens,
)

from gpt1_jax.inference.cache import decode, init_cache
from gpt1_jax.model import language_model
from gpt1_jax.model.execution import Execution
from gpt1_jax.model.language_model import Output, apply, init_params
from gpt1_jax.ops import attention, losses
from gpt1_jax.ops.dropout import Noise, step_noise

LAYER_SHAPES = {  # at the paper's size, sec. 4.1
    "attn/c_attn/kernel": (768, 2304),
    "attn/c_attn/bias": (2304,),
    "attn/c_proj/kernel": (768, 768),
    "attn/c_proj/bias": (768,),
    "ln_1/scale": (768,),
    "ln_1/bias": (768,),
    "mlp/c_fc/kernel": (768, 3072),
    "mlp/c_fc/bias": (3072,),
    "mlp/c_proj/kernel": (3072, 768),
    "mlp/c_proj/bias": (768,),
    "ln_2/scale": (768,),
    "ln_2/bias": (768,),
}


def test_params_at_paper_size_are_the_golden_tree(paper_params):
    expected = {"wte": (40478, 768), "wpe": (512, 768)}
    for layer in range(12):
        expected |= {f"h_{layer}/{name}": LAYER_SHAPES[name] for name in LAYER_SHAPES}
    flat = flat_params(paper_params)
    assert {name: leaf.shape for name, leaf in flat.items()} == expected
    assert {leaf.dtype for leaf in flat.values()} == {jnp.dtype("float32")}
    assert type(paper_params) is dict
    assert type(paper_params["h_0"]["attn"]["c_attn"]) is dict


@pytest.fixture(scope="module")
def initial(tiny_model_config):
    """The initial parameters of two layers, by name."""
    config = tiny_model_config(embed_dim=64, mlp_dim=256)
    params = flat_params(init_params(config, jax.random.key(0)))
    return {name: np.asarray(leaf) for name, leaf in params.items()}


def test_init_params_has_the_papers_statistics(initial):
    """N(0, 0.02^2), no scaling by depth or fan-in; biases 0, gains 1."""
    for name, values in initial.items():
        if name.endswith("scale"):
            assert (values == 1).all(), name
        elif name.endswith("bias"):
            assert (values == 0).all(), name
        else:
            sigmas = 5 / np.sqrt(2 * values.size)
            assert values.std() == pytest.approx(0.02, rel=sigmas), name
            assert abs(values.mean()) < 5 * 0.02 / np.sqrt(values.size), name


def test_init_params_draws_every_matrix_anew(initial):
    firsts = [x.ravel()[:400] for x in initial.values() if x.ndim == 2]
    assert np.abs(np.corrcoef(firsts) - np.eye(len(firsts))).max() < 0.25


@pytest.mark.slow
def test_initial_loss_at_paper_size(tiny_model_config):
    """ln 40478 = 10.609, plus 0.154 for the spread of the tied logits, and a little."""
    config = tiny_model_config(**PAPER, layer_loop="scan")
    # 117 million numbers: of the generators, rbg is the fastest to compile and run.
    params = init_params(config, jax.random.key(0, impl="rbg"))
    tokens = random_tokens((4, 64), 40478)
    hidden, scores = forward(config, params, tokens)
    loss = cross_entropy(scores[:, :-1], tokens[:, 1:]).mean()
    assert 10.70 < float(loss) < 10.85
    assert float(hidden.std()) == pytest.approx(1.0, abs=1e-3)
    assert float(scores.std()) == pytest.approx(0.555, abs=0.01)


def test_hidden_states_do_not_see_the_future_by_gradient(tiny, one_layer):
    """d hidden[:, t] / d position vector s is exactly zero if and only if s > t."""
    config = tiny()
    tokens, noise = random_tokens((2, 16)), step_noise(0, jnp.int32(0), 2)
    weights = np.random.default_rng(0).normal(size=(2, 32)).astype(np.float32)

    @jax.jit
    def gradients(wpe):
        def score(wpe, t):
            params = {**one_layer, "wpe": wpe}
            hidden = apply(config, params, tokens, Execution(config, noise)).hidden
            return jnp.sum(jnp.take(hidden, t, axis=1) * weights)

        return jax.lax.map(lambda t: jax.grad(score)(wpe, t), jnp.arange(16))

    reached = np.abs(gradients(one_layer["wpe"])).max(-1) > 0  # [t, s]
    np.testing.assert_array_equal(reached, np.tril(np.ones((16, 16), bool)))


def test_logits_see_all_of_the_past(either):
    """And neither the future nor other sequences."""
    (config, params), tokens = either, np.asarray(random_tokens())
    first, later, others = (tokens.copy() for _ in range(3))
    first[:, 0] = (first[:, 0] + 1) % 97
    later[:, 9:] = others[1:] = 0
    given = tokens, first, later, others
    before, *after = (np.asarray(all_logits(config, params, x)) for x in given)
    assert np.abs(before - after[0]).max(-1).min() > 1e-6
    np.testing.assert_array_equal(before[:, :9], after[1][:, :9])
    np.testing.assert_array_equal(before[0], after[2][0])


def test_too_long_sequences_are_refused(either):
    with pytest.raises(ValueError, match=r"17 positions .* max_seq_len=16"):
        apply(*either, random_tokens((1, 17)))


def test_a_rule_that_shows_later_tokens_is_refused(
    monkeypatch, tiny_model_config, tiny_params
):
    monkeypatch.setattr(attention, "may_attend", lambda q, k: k <= q + 1)
    with pytest.raises(ValueError, match=r"may_attend lets .* a later one"):
        apply(tiny_model_config(), tiny_params, random_tokens((1, 4)))


def test_the_rule_is_causal_until_it_is_changed(monkeypatch):
    assert attention.is_causal(64)
    monkeypatch.setattr(attention, "may_attend", lambda q, k: (k <= q) & (q - k < 32))
    assert attention.is_causal(32)
    assert not attention.is_causal(33)
    window = jnp.abs  # also where the rule calls JAX, within a jitted function
    monkeypatch.setattr(attention, "may_attend", lambda q, k: (k <= q) & window(q) >= 0)
    assert jax.jit(lambda: attention.is_causal(8))() is not None


@pytest.mark.parametrize("ways", WAYS_TO_RUN[2:], ids=str)
def test_ways_to_run_the_layers_agree(tiny_model_config, tiny_params, ways):
    """Loss, hidden states and every gradient, dropout masks included."""
    tokens, noise = random_tokens(), step_noise(5, jnp.int32(17), 4)
    one, other = (
        jax.device_get(observe(config, tiny_params, tokens, noise))
        for config in (tiny_model_config(), tiny_model_config(**ways))
    )
    clean = hidden_states(tiny_model_config(), tiny_params, tokens)
    assert np.abs(clean - one.hidden).max() > 0.1, "dropout is off"
    np.testing.assert_allclose(other.hidden, one.hidden, atol=1e-5, rtol=0)
    assert float(other.loss) == pytest.approx(float(one.loss), abs=1e-6)
    gradient = flat_params(other.gradient)
    for name, leaf in flat_params(one.gradient).items():
        tolerance = min(1e-5, 1e-4 * np.abs(leaf).max())
        assert np.abs(leaf - gradient[name]).max() < tolerance, name


@pytest.mark.parametrize("embed_dropout_on", ["lookups", "matrix"])
def test_hidden_states_of_part_of_a_batch_are_those_of_the_whole(
    tiny, one_layer, embed_dropout_on
):
    """Gradient accumulation and data parallelism draw the masks of the whole batch."""
    config = tiny(embed_dropout_on=embed_dropout_on)
    tokens, noise = np.asarray(random_tokens()), step_noise(1, np.int32(2), 4)
    whole = hidden_states(config, one_layer, tokens, noise)
    of_part = Noise(noise.key, np.asarray(noise.rows)[2:])
    part = hidden_states(config, one_layer, tokens[2:], of_part)
    np.testing.assert_allclose(part, whole[2:], atol=1e-5)
    wrong = hidden_states(config, one_layer, tokens[2:], step_noise(1, 2, 2))
    assert np.abs(wrong - whole[2:]).max() > 0.1


def test_bfloat16_stays_close_to_float32(either):
    (config, params), tokens = either, random_tokens()
    exact, rough = (
        jax.device_get(observe(each, params, tokens, step_noise(0, np.int32(0), 4)))
        for each in (config, dataclasses.replace(config, dtype="bfloat16"))
    )
    assert (exact.hidden.dtype, rough.hidden.dtype) == ("float32", "bfloat16")
    results = jax.tree.leaves([rough.logits, rough.loss, rough.gradient])
    assert {x.dtype for x in results} == {np.dtype("float32")}
    error = np.linalg.norm(rough.logits - exact.logits) / np.linalg.norm(exact.logits)
    assert 1e-4 < error < 0.02
    assert float(rough.loss) == pytest.approx(float(exact.loss), rel=2e-3)
    gradient = flat_params(rough.gradient)
    for name, leaf in flat_params(exact.gradient).items():
        error = np.linalg.norm(gradient[name] - leaf)
        assert error < 0.05 * np.linalg.norm(leaf), name


def test_reading_on_from_a_cache_gives_the_same_logits(either):
    """Also behind padding, which makes more places than the context has."""
    (config, params), tokens = either, random_tokens()
    expected = all_logits(config, params, tokens)
    padding = np.array([0, 3, 2, 0], np.int32)
    padded = np.zeros((4, 19), np.int32)
    for row, first, real in zip(padded, padding, tokens, strict=True):
        row[first : first + 16] = real

    @jax.jit
    def read_on(params, part, cache):
        output, cache = decode(config, params, part, cache)
        return language_model.logits(config, output), cache

    cache = jax.jit(lambda padding: init_cache(config, padding, size=19))(padding)
    found = []
    for part in np.split(padded, [1, 9, 10, 11], axis=1):
        logits, cache = read_on(params, part, cache)
        found.append(logits)
    assert cache.taken == 19
    for row, first, real in zip(np.hstack(found), padding, expected, strict=True):
        np.testing.assert_allclose(row[first : first + 16], real, atol=1e-5)


@pytest.mark.parametrize("function", ["next_token_nll", "next_token_loss"])
def test_losses_are_those_of_the_output_in_the_models_dtype(
    tiny_model_config, one_layer, function
):
    """`dtype` and `loss_chunk` reach the functions of arrays."""
    model = tiny_model_config(dtype="bfloat16", loss_chunk=5)
    tokens, rng = random_tokens(), np.random.default_rng(0)
    hidden = rng.normal(size=(4, 16, 32)).astype(np.float32)
    weights = rng.random(tokens.shape).astype(np.float32)
    given = (tokens, weights) if function == "next_token_loss" else (tokens,)

    def compute(output):
        return getattr(language_model, function)(model, output, *given)

    output = Output(hidden, one_layer["wte"])
    plain = jax.jit(losses.plain_next_token_nll, static_argnums=3)
    expected = np.asarray(plain(*output, tokens, jnp.dtype("bfloat16")))
    if function == "next_token_loss":
        expected = (weights * expected).sum()
    found = jax.jit(compute)(output)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    assert f"f32[{4 * 5},97]" in str(jax.make_jaxpr(compute)(output)), "a chunk's"


def test_next_token_nll_is_minus_the_log_probability_of_the_logits(
    tiny_model_config, tiny_params
):
    model, tokens = tiny_model_config(), random_tokens()
    hidden, scores = forward(model, tiny_params, tokens)
    scores = np.asarray(scores, np.float64)[:, :-1]
    labels = np.take_along_axis(scores, np.asarray(tokens)[:, 1:, None], -1)[..., 0]
    expected = np.logaddexp.reduce(scores, -1) - labels
    compute = jax.jit(language_model.next_token_nll, static_argnums=0)
    nll = compute(model, Output(hidden, tiny_params["wte"]), tokens)
    np.testing.assert_allclose(nll[:, :-1], expected, atol=2e-6)
