"""The decoder as a function: parameters, causality, equivalences, losses."""

import dataclasses
import functools
import math

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
from gpt1_jax.model import interventions, language_model
from gpt1_jax.model.execution import Execution
from gpt1_jax.model.language_model import Output, apply, init_params
from gpt1_jax.ops import losses
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


# Parameters (sec. 4.1)


@pytest.mark.parametrize("ways", [{}, *WAYS_TO_RUN[2:]], ids=str)
def test_params_at_paper_size_are_the_golden_tree(tiny_model_config, ways):
    config = tiny_model_config(**PAPER, **ways)
    params = jax.eval_shape(lambda: init_params(config, jax.random.key(0)))
    expected = {"wte": (40478, 768), "wpe": (512, 768)}
    for layer in range(12):
        for name, shape in LAYER_SHAPES.items():
            expected[f"h_{layer}/{name}"] = shape
    flat = flat_params(params)
    assert {name: leaf.shape for name, leaf in flat.items()} == expected
    assert {leaf.dtype for leaf in flat.values()} == {jnp.dtype("float32")}
    assert type(params) is dict
    assert type(params["h_0"]["attn"]["c_attn"]) is dict


def test_params_do_not_depend_on_how_layers_run(tiny_model_config):
    key = jax.random.key(3)
    expected = init_params(tiny_model_config(), key)
    for ways in WAYS_TO_RUN[2:]:
        actual = init_params(tiny_model_config(**ways), key)
        jax.tree.map(np.testing.assert_array_equal, actual, expected)


@pytest.fixture(scope="module")
def initial(tiny_model_config):
    """The initial parameters of three layers, by name."""
    config = tiny_model_config(num_layers=3, embed_dim=64, mlp_dim=256)
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
    firsts = {n: x.ravel()[:400] for n, x in initial.items() if x.ndim == 2}
    for a, first in firsts.items():
        for b, other in firsts.items():
            if a < b:
                assert abs(np.corrcoef(first, other)[0, 1]) < 0.25, (a, b)


def test_init_params_is_a_function_of_the_key(tiny_model_config):
    config = tiny_model_config()
    first, again = (init_params(config, jax.random.key(1)) for _ in range(2))
    jax.tree.map(np.testing.assert_array_equal, first, again)
    other = init_params(config, jax.random.key(2))
    assert (first["wte"] != other["wte"]).all()
    assert (
        first["h_1"]["mlp"]["c_fc"]["kernel"] != first["h_0"]["mlp"]["c_fc"]["kernel"]
    ).all()


@functools.partial(jax.jit, static_argnums=0)
def observe_loss(config, params, tokens):
    scores = language_model.logits(config, apply(config, params, tokens))
    return cross_entropy(scores[:, :-1], tokens[:, 1:]).mean()


def test_initial_loss_is_just_above_ln_vocab(tiny_model_config):
    """Logits of variance 0.02^2 D add half of it to ln V."""
    config = tiny_model_config(
        num_layers=1, vocab_size=2000, embed_dim=128, mlp_dim=512
    )
    params = init_params(config, jax.random.key(0))
    tokens = random_tokens((64, 16), 2000)
    expected = math.log(2000) + 0.02**2 * 128 / 2
    loss = float(observe_loss(config, params, tokens))
    sampling = 0.02 * np.sqrt(128) / np.sqrt(64 * 15)
    assert expected - 4 * sampling < loss < expected + 4 * sampling + 0.02


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


# Causality


def test_hidden_states_do_not_see_the_future_by_gradient(
    tiny_model_config, tiny_params
):
    """d hidden[:, t] / d position vector s is exactly zero if and only if s > t."""
    config = tiny_model_config()
    tokens, noise = random_tokens((2, 16)), step_noise(0, jnp.int32(0), 2)
    weights = np.random.default_rng(0).normal(size=(2, 32)).astype(np.float32)

    @jax.jit
    def gradients(wpe):
        def score(wpe, t):
            params = {**tiny_params, "wpe": wpe}
            hidden = apply(config, params, tokens, Execution(config, noise)).hidden
            return jnp.sum(jnp.take(hidden, t, axis=1) * weights)

        return jax.lax.map(lambda t: jax.grad(score)(wpe, t), jnp.arange(16))

    reached = np.abs(gradients(tiny_params["wpe"])).max(-1) > 0  # [t, s]
    np.testing.assert_array_equal(reached, np.tril(np.ones((16, 16), bool)))


def test_logits_do_not_see_the_future_by_changed_tokens(tiny_model_config, tiny_params):
    config, tokens = tiny_model_config(), random_tokens()
    changed = tokens.at[:, 9:].set((tokens[:, 9:] + 1) % 97)
    before = all_logits(config, tiny_params, tokens)
    after = all_logits(config, tiny_params, changed)
    np.testing.assert_array_equal(before[:, :9], after[:, :9])
    assert np.abs(before[:, 9:] - after[:, 9:]).max(-1).min() > 1e-3


def test_logits_see_all_of_the_past(tiny_model_config, tiny_params):
    config, tokens = tiny_model_config(), random_tokens()
    changed = tokens.at[:, 0].set((tokens[:, 0] + 1) % 97)
    before = all_logits(config, tiny_params, tokens)
    after = all_logits(config, tiny_params, changed)
    assert np.abs(before - after).max(-1).min() > 1e-6


@pytest.mark.parametrize("dropout", [False, True])
def test_padding_changes_nothing_before_it(tiny_model_config, tiny_params, dropout):
    """Whatever the pads are; and (without dropout) however many they are."""
    config, tokens = tiny_model_config(), random_tokens()
    noise = step_noise(0, jnp.int32(0), 4) if dropout else None
    padded = tokens.at[:, 10:].set(0)
    full = all_logits(config, tiny_params, tokens, noise)
    np.testing.assert_array_equal(
        all_logits(config, tiny_params, padded, noise)[:, :10], full[:, :10]
    )
    if not dropout:
        short = all_logits(config, tiny_params, tokens[:, :10])
        np.testing.assert_allclose(short, full[:, :10], atol=2e-6, rtol=0)


def test_sequences_of_a_batch_do_not_see_each_other(tiny_model_config, tiny_params):
    config, tokens = tiny_model_config(), random_tokens()
    changed = tokens.at[1:].set(0)
    np.testing.assert_array_equal(
        all_logits(config, tiny_params, tokens)[0],
        all_logits(config, tiny_params, changed)[0],
    )


def test_too_long_sequences_are_refused(tiny_model_config, tiny_params):
    with pytest.raises(ValueError, match=r"17 positions .* max_seq_len=16"):
        apply(tiny_model_config(), tiny_params, random_tokens((1, 17)))


# Equivalences


@pytest.mark.parametrize("ways", WAYS_TO_RUN[2:], ids=str)
def test_ways_to_run_the_layers_agree(tiny_model_config, tiny_params, ways):
    """Loss, hidden states and every gradient, dropout masks included."""
    tokens, noise = random_tokens(), step_noise(5, jnp.int32(17), 4)
    one, other = (
        observe(config, tiny_params, tokens, noise)
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


@pytest.mark.parametrize("embed_dropout_on", ["sum", "lookups", "matrix"])
def test_hidden_states_of_part_of_a_batch_are_those_of_the_whole(
    tiny, one_layer, embed_dropout_on
):
    """Gradient accumulation and data parallelism draw the masks of the whole batch."""
    config = tiny(embed_dropout_on=embed_dropout_on)
    tokens, noise = random_tokens(), step_noise(1, jnp.int32(2), 4)
    whole = hidden_states(config, one_layer, tokens, noise)
    part = hidden_states(
        config, one_layer, tokens[2:], Noise(noise.key, noise.rows[2:])
    )
    np.testing.assert_allclose(part, whole[2:], atol=1e-5)
    wrong = hidden_states(config, one_layer, tokens[2:], step_noise(1, 2, 2))
    assert np.abs(wrong - whole[2:]).max() > 0.1


def test_noise_changes_with_the_step_and_repeats_with_it(
    tiny_model_config, tiny_params
):
    config, tokens = tiny_model_config(), random_tokens()
    first, again, later = (
        hidden_states(config, tiny_params, tokens, step_noise(0, jnp.int32(step), 4))
        for step in (3, 3, 4)
    )
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - later).max() > 0.1


def test_zero_rates_equal_no_noise(tiny_model_config, tiny_params):
    rates = dict(embed_dropout=0.0, attn_dropout=0.0, resid_dropout=0.0)
    config, tokens = tiny_model_config(**rates), random_tokens()
    np.testing.assert_array_equal(
        hidden_states(config, tiny_params, tokens, step_noise(0, jnp.int32(0), 4)),
        hidden_states(config, tiny_params, tokens),
    )


def test_loss_gradient_equals_finite_differences(tiny_model_config, tiny_params):
    """Along a random direction, dropout on: forward and backward share masks."""
    config = tiny_model_config()
    tokens, noise = random_tokens(), step_noise(0, jnp.int32(0), 4)
    step = 1e-3

    rng = np.random.default_rng(7)
    direction = jax.tree.map(
        lambda p: rng.normal(size=p.shape).astype(p.dtype), tiny_params
    )
    gradient = observe(config, tiny_params, tokens, noise).gradient
    slope = sum(
        float(np.vdot(g, d))
        for g, d in zip(
            jax.tree.leaves(gradient), jax.tree.leaves(direction), strict=True
        )
    )

    def loss_at(distance):
        params = jax.tree.map(lambda p, d: p + distance * d, tiny_params, direction)
        return float(observe(config, params, tokens, noise).loss)

    difference = loss_at(step) - loss_at(-step)
    assert difference / (2 * step) == pytest.approx(slope, rel=5e-3)


def test_bfloat16_stays_close_to_float32(tiny_model_config, tiny_params):
    tokens, noise = random_tokens(), step_noise(0, jnp.int32(0), 4)
    exact, rough = (
        observe(tiny_model_config(dtype=dtype), tiny_params, tokens, noise)
        for dtype in ("float32", "bfloat16")
    )
    assert (exact.hidden.dtype, rough.hidden.dtype) == ("float32", "bfloat16")
    for observed in (exact, rough):
        assert observed.logits.dtype == observed.loss.dtype == jnp.float32
        assert {g.dtype for g in jax.tree.leaves(observed.gradient)} == {
            jnp.dtype("float32")
        }
    error = np.linalg.norm(rough.logits - exact.logits) / np.linalg.norm(exact.logits)
    assert 1e-4 < error < 0.02
    assert float(rough.loss) == pytest.approx(float(exact.loss), rel=2e-3)
    gradient = flat_params(rough.gradient)
    for name, leaf in flat_params(exact.gradient).items():
        error = np.linalg.norm(gradient[name] - leaf)
        assert error < 0.05 * np.linalg.norm(leaf), name


# Losses


@pytest.mark.parametrize(
    ("dtype", "chunk"), [("float32", 0), ("float32", 5), ("bfloat16", 5)]
)
def test_losses_are_those_of_the_output_in_the_models_dtype(
    tiny_model_config, one_layer, dtype, chunk
):
    """`dtype` and `loss_chunk` reach the functions of arrays."""
    model = tiny_model_config(dtype=dtype, loss_chunk=chunk)
    tokens, rng = random_tokens(), np.random.default_rng(0)
    hidden = rng.normal(size=(4, 16, 32)).astype(np.float32)
    output = Output(hidden, one_layer["wte"])
    weights = rng.random(tokens.shape).astype(np.float32)

    @jax.jit
    def compute(output):
        return (
            language_model.next_token_nll(model, output, tokens),
            losses.plain_next_token_nll(*output, tokens, jnp.dtype(dtype)),
            language_model.next_token_loss(model, output, tokens, weights),
        )

    nll, expected, loss = compute(output)
    np.testing.assert_allclose(nll, expected, rtol=1e-6, atol=1e-6)
    assert float(loss) == pytest.approx(float((weights * expected).sum()), rel=1e-6)
    computation = jax.make_jaxpr(
        lambda output: language_model.next_token_nll(model, output, tokens)
    )(output)
    scores_of_a_chunk = f"f32[{4 * (chunk or 16)},97]"
    assert scores_of_a_chunk in str(computation)


def test_next_token_nll_is_minus_the_log_probability_of_the_logits(
    tiny_model_config, tiny_params
):
    model, tokens = tiny_model_config(), random_tokens()
    hidden, scores = forward(model, tiny_params, tokens)
    scores = np.asarray(scores, np.float64)[:, :-1]
    labels = np.take_along_axis(scores, np.asarray(tokens)[:, 1:, None], -1)[..., 0]
    expected = np.logaddexp.reduce(scores, -1) - labels
    output = Output(hidden, tiny_params["wte"])
    nll = jax.jit(language_model.next_token_nll, static_argnums=0)(
        model, output, tokens
    )
    np.testing.assert_allclose(nll[:, :-1], expected, atol=2e-6)


def test_reading_on_from_a_cache_gives_the_same_logits(tiny_model_config, tiny_params):
    """Also behind padding, which makes more places than the context has."""
    config, tokens = tiny_model_config(), random_tokens()
    expected = all_logits(config, tiny_params, tokens)
    padding = np.array([0, 3, 2, 0], np.int32)
    padded = np.zeros((4, 19), np.int32)
    for row, first, real in zip(padded, padding, tokens, strict=True):
        row[first : first + 16] = real
    read_on = jax.jit(decode, static_argnums=0)
    cache = init_cache(config, jnp.asarray(padding), size=19)
    found = []
    for part in jnp.split(padded, [6, 7, 8, 9], axis=1):
        output, cache = read_on(config, tiny_params, part, cache)
        found.append(language_model.logits(config, output))
    assert cache.taken == 19
    for row, first, real in zip(np.hstack(found), padding, expected, strict=True):
        np.testing.assert_allclose(row[first : first + 16], real, atol=1e-5)


def test_hidden_states_are_those_of_each_layer(tiny_model_config, tiny_params):
    config, tokens = tiny_model_config(), random_tokens()
    all_states = jax.jit(interventions.hidden_states, static_argnums=0)
    states = all_states(config, tiny_params, tokens)
    assert len(states) == 3
    for layers, state in enumerate(states[1:], 1):
        fewer = dataclasses.replace(config, num_layers=layers)
        expected = hidden_states(fewer, tiny_params, tokens)
        np.testing.assert_allclose(state, expected, atol=1e-5)


def test_attention_sums_to_one_over_the_past(tiny_model_config, tiny_params):
    config, tokens = tiny_model_config(dtype="bfloat16"), random_tokens()
    attention = jax.jit(interventions.attention, static_argnums=0)
    layers = attention(config, tiny_params, tokens)
    assert [layer.shape for layer in layers] == [(4, 2, 16, 16)] * 2
    for layer in layers:
        assert layer.dtype == jnp.float32
        np.testing.assert_allclose(layer.sum(-1), 1, atol=1e-5)
        np.testing.assert_array_equal(layer, np.tril(layer))
