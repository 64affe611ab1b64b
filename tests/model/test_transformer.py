"""Structure, initial statistics and behaviour of the decoder."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpt1_jax.model import attention, layers, transformer
from gpt1_jax.model.dropout import EMBED_POSITION_SITE, Noise, step_noise
from gpt1_jax.model.transformer import apply, count_params, init_params, logits
from gpt1_jax.training.losses import next_token_nll
from gpt1_jax.training.optimizer import decay_mask

PAPER = dict(
    vocab_size=40478,
    num_layers=12,
    num_heads=12,
    embed_dim=768,
    mlp_dim=3072,
    max_seq_len=512,
)
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
WAYS_TO_RUN = [
    dict(layer_loop="scan"),
    dict(remat=True),
    dict(layer_loop="scan", remat=True),
]


def flat_params(params):
    """{"h_0/attn/c_attn/kernel": array, ...}"""
    return {
        "/".join(key.key for key in path): leaf
        for path, leaf in jax.tree.leaves_with_path(params)
    }


def perturbed(params, seed=0):
    """Gains of 1 +- 0.1 and biases of 0.02: at 1 and 0 mistakes hide."""
    key = jax.random.key(seed)

    def perturb(path, leaf):
        name = path[-1].key
        noise = jax.random.normal(
            jax.random.fold_in(key, hash_of("/".join(k.key for k in path))), leaf.shape
        )
        return leaf + {"scale": 0.1, "bias": 0.02}.get(name, 0.0) * noise

    return jax.tree.map_with_path(perturb, params)


def hash_of(name):
    return sum(ord(letter) * 31**i for i, letter in enumerate(name)) % 2**31


@pytest.fixture(scope="module")
def tiny_params(tiny_model_config):
    config = tiny_model_config()
    return jax.jit(lambda: perturbed(init_params(config, jax.random.key(0))))()


def random_tokens(shape=(4, 16), vocab_size=97, seed=0):
    return jnp.asarray(np.random.default_rng(seed).integers(0, vocab_size, shape))


@functools.partial(jax.jit, static_argnums=0)
def hidden_states(config, params, tokens, noise=None):
    return apply(config, params, tokens, noise).hidden


@functools.partial(jax.jit, static_argnums=0)
def all_logits(config, params, tokens, noise=None):
    return logits(config, apply(config, params, tokens, noise))


def mean_loss(config, params, tokens, noise=None):
    """Mean over the predicted tokens, nats."""
    output = apply(config, params, tokens, noise)
    dtype = jnp.dtype(config.dtype)
    nll = next_token_nll(output.hidden, output.unembedding, tokens, dtype)
    return nll[:, :-1].mean()


loss_and_gradient = jax.jit(jax.value_and_grad(mean_loss, argnums=1), static_argnums=0)
jitted_init = jax.jit(init_params, static_argnums=0)


# Structure


@pytest.mark.parametrize("ways", [{}, *WAYS_TO_RUN], ids=str)
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


def test_params_at_paper_size_number_116534784(tiny_model_config):
    config = tiny_model_config(**PAPER)
    params = jax.eval_shape(lambda: init_params(config, jax.random.key(0)))
    assert count_params(params) == 116_534_784
    assert count_params(params["h_0"]) == 7_087_872
    sizes = {True: 0, False: 0}
    decayed = jax.tree.leaves(decay_mask(params))
    for leaf, decays in zip(jax.tree.leaves(params), decayed, strict=True):
        sizes[decays] += leaf.size
    assert sizes == {True: 116_414_976, False: 119_808}


def test_params_do_not_depend_on_how_layers_run(tiny_model_config):
    key = jax.random.key(3)
    expected = jitted_init(tiny_model_config(), key)
    for ways in WAYS_TO_RUN:
        actual = jitted_init(tiny_model_config(**ways), key)
        jax.tree.map(np.testing.assert_array_equal, actual, expected)


def test_train_flops_per_token_at_paper_size(tiny_model_config):
    config = tiny_model_config(**PAPER)
    assert transformer.train_flops_per_token(config, 512) == 752_753_664


# Initialisation (sec. 4.1)


def test_init_params_has_the_papers_statistics(tiny_model_config):
    """N(0, 0.02^2), no scaling by depth or fan-in; biases 0, gains 1."""
    config = tiny_model_config(num_layers=3, embed_dim=64, mlp_dim=256)
    for name, leaf in flat_params(jitted_init(config, jax.random.key(0))).items():
        values = np.asarray(leaf)
        if name.endswith("scale"):
            assert (values == 1).all(), name
        elif name.endswith("bias"):
            assert (values == 0).all(), name
        else:
            sigmas = 5 / np.sqrt(2 * values.size)
            assert values.std() == pytest.approx(0.02, rel=sigmas), name
            assert abs(values.mean()) < 5 * 0.02 / np.sqrt(values.size), name


def test_init_params_draws_every_matrix_anew(tiny_model_config):
    params = jitted_init(tiny_model_config(num_layers=3), jax.random.key(0))
    matrices = {n: x for n, x in flat_params(params).items() if x.ndim == 2}
    firsts = {name: np.asarray(x).ravel()[:400] for name, x in matrices.items()}
    for a, first in firsts.items():
        for b, other in firsts.items():
            if a < b:
                assert abs(np.corrcoef(first, other)[0, 1]) < 0.25, (a, b)


def test_init_params_is_a_function_of_the_key(tiny_model_config):
    config = tiny_model_config()
    first, again = (jitted_init(config, jax.random.key(1)) for _ in range(2))
    jax.tree.map(np.testing.assert_array_equal, first, again)
    other = jitted_init(config, jax.random.key(2))
    assert (first["wte"] != other["wte"]).all()
    assert (
        first["h_1"]["mlp"]["c_fc"]["kernel"] != first["h_0"]["mlp"]["c_fc"]["kernel"]
    ).all()


def test_initial_loss_is_just_above_ln_vocab(tiny_model_config):
    """Logits of variance 0.02^2 D add half of it to ln V."""
    config = tiny_model_config(vocab_size=2000, embed_dim=128, mlp_dim=512)
    params = jitted_init(config, jax.random.key(0))
    tokens = random_tokens((64, 16), 2000)
    expected = math.log(2000) + 0.02**2 * 128 / 2
    loss = float(jax.jit(mean_loss, static_argnums=0)(config, params, tokens))
    sampling = 0.02 * np.sqrt(128) / np.sqrt(64 * 15)
    assert expected - 4 * sampling < loss < expected + 4 * sampling + 0.02


@pytest.mark.slow
def test_initial_loss_at_paper_size(tiny_model_config):
    """ln 40478 = 10.609, plus 0.154 for the spread of the tied logits, and a little."""
    config = tiny_model_config(**PAPER)
    params = jitted_init(config, jax.random.key(0))
    tokens = random_tokens((4, 64), 40478)
    output = jax.jit(apply, static_argnums=0)(config, params, tokens)
    scores = logits(config, output)
    nll = next_token_nll(*output, tokens, jnp.dtype("float32"))
    assert 10.70 < float(nll[:, :-1].mean()) < 10.85
    assert float(output.hidden.std()) == pytest.approx(1.0, abs=1e-3)
    assert float(scores.std()) == pytest.approx(0.555, abs=0.01)


# Causality


@pytest.mark.parametrize("layer_loop", ["unrolled", "scan"])
def test_hidden_states_do_not_see_the_future_by_gradient(
    tiny_model_config, tiny_params, layer_loop
):
    """d hidden[:, t] / d position vector s is exactly zero if and only if s > t."""
    config = tiny_model_config(layer_loop=layer_loop)
    tokens, noise = random_tokens((2, 16)), step_noise(0, jnp.int32(0), 2)
    weights = jax.random.normal(jax.random.key(0), (2, 32))

    @jax.jit
    def gradients(wpe):
        def score(wpe, t):
            hidden = apply(config, {**tiny_params, "wpe": wpe}, tokens, noise).hidden
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


def test_transformer_refuses_too_long_sequences(tiny_model_config, tiny_params):
    with pytest.raises(ValueError, match=r"17 positions .* max_seq_len=16"):
        apply(tiny_model_config(), tiny_params, random_tokens((1, 17)))


# Equivalences


@pytest.mark.parametrize("ways", WAYS_TO_RUN, ids=str)
def test_ways_to_run_the_layers_agree(tiny_model_config, tiny_params, ways):
    """Loss, hidden states and every gradient, dropout masks included."""
    tokens, noise = random_tokens(), step_noise(5, jnp.int32(17), 4)
    results = []
    for config in (tiny_model_config(), tiny_model_config(**ways)):
        hidden = hidden_states(config, tiny_params, tokens, noise)
        loss, gradient = loss_and_gradient(config, tiny_params, tokens, noise)
        results.append((hidden, float(loss), flat_params(gradient)))
    (hidden, loss, gradient), (other_hidden, other_loss, other_gradient) = results
    clean = hidden_states(tiny_model_config(), tiny_params, tokens)
    assert np.abs(clean - hidden).max() > 0.1, "dropout is off"
    np.testing.assert_allclose(other_hidden, hidden, atol=1e-5, rtol=0)
    assert other_loss == pytest.approx(loss, abs=1e-6)
    for name, leaf in gradient.items():
        tolerance = min(1e-5, 1e-4 * np.abs(leaf).max())
        assert np.abs(leaf - other_gradient[name]).max() < tolerance, name


@pytest.mark.parametrize("embed_dropout_on", ["sum", "lookups", "matrix"])
def test_hidden_states_of_part_of_a_batch_are_those_of_the_whole(
    tiny_model_config, tiny_params, embed_dropout_on
):
    """Gradient accumulation and data parallelism draw the masks of the whole batch."""
    config = tiny_model_config(embed_dropout_on=embed_dropout_on)
    tokens, noise = random_tokens(), step_noise(1, jnp.int32(2), 4)
    whole = hidden_states(config, tiny_params, tokens, noise)
    part = hidden_states(
        config, tiny_params, tokens[2:], Noise(noise.key, noise.rows[2:])
    )
    np.testing.assert_allclose(part, whole[2:], atol=1e-5)
    wrong = hidden_states(config, tiny_params, tokens[2:], step_noise(1, 2, 2))
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


def test_threefry_dropout_runs_and_differentiates(tiny_model_config, tiny_params):
    tokens, noise = random_tokens(), step_noise(0, jnp.int32(0), 4)
    for ways in ({}, dict(layer_loop="scan", remat=True)):
        config = tiny_model_config(dropout_impl="threefry", **ways)
        loss, gradient = loss_and_gradient(config, tiny_params, tokens, noise)
        if not ways:
            expected, expected_gradient = loss, gradient
        assert float(loss) == pytest.approx(float(expected), abs=1e-5)
        jax.tree.map(
            functools.partial(np.testing.assert_allclose, atol=1e-5),
            gradient,
            expected_gradient,
        )


def test_loss_gradient_equals_finite_differences(tiny_model_config, tiny_params):
    """Along a random direction, dropout on: forward and backward share masks."""
    config = tiny_model_config()
    tokens, noise = random_tokens(), step_noise(0, jnp.int32(0), 4)
    leaves, tree = jax.tree.flatten(tiny_params)
    keys = jax.random.split(jax.random.key(7), len(leaves))
    direction = jax.tree.unflatten(
        tree,
        [jax.random.normal(k, x.shape) for k, x in zip(keys, leaves, strict=True)],
    )
    _, gradient = loss_and_gradient(config, tiny_params, tokens, noise)
    slope = sum(
        float(jnp.vdot(g, d))
        for g, d in zip(
            jax.tree.leaves(gradient), jax.tree.leaves(direction), strict=True
        )
    )
    step = 1e-3
    up, down = (
        float(
            loss_and_gradient(
                config,
                jax.tree.map(lambda p, d: p + sign * step * d, tiny_params, direction),  # noqa: B023
                tokens,
                noise,
            )[0]
        )
        for sign in (1, -1)
    )
    assert (up - down) / (2 * step) == pytest.approx(slope, rel=5e-3)


# Softmax rows and embedding dropout


@pytest.mark.parametrize("embed_dropout_on", ["sum", "lookups", "matrix"])
def test_softmax_rows_are_tokens_then_positions(
    tiny_model_config, tiny_params, embed_dropout_on
):
    tokens = random_tokens((2, 5))
    for softmax_rows, rows in [("tokens", 97), ("tokens+positions", 97 + 16)]:
        config = tiny_model_config(
            softmax_rows=softmax_rows, embed_dropout_on=embed_dropout_on
        )
        output = apply(config, tiny_params, tokens)
        assert output.hidden.shape == (2, 5, 32)
        assert output.unembedding.shape == (rows, 32)
        assert logits(config, output).shape == (2, 5, rows)
        np.testing.assert_array_equal(output.unembedding[:97], tiny_params["wte"])
        np.testing.assert_array_equal(
            output.unembedding[97:], tiny_params["wpe"][: rows - 97]
        )


def embedded(monkeypatch, config, params, tokens, noise):
    """h_0, the input of the first block, and the matrix of the softmax."""
    monkeypatch.setattr(transformer, "_run_layers", lambda cfg, block, ps, x, *_: x)
    output = apply(config, params, tokens, noise)
    return np.asarray(output.hidden), np.asarray(output.unembedding)


def test_embedding_is_the_sum_of_token_and_position_vector(
    monkeypatch, tiny_model_config, tiny_params
):
    tokens = random_tokens((2, 9))
    h_0, _ = embedded(monkeypatch, tiny_model_config(), tiny_params, tokens, None)
    wte, wpe = np.asarray(tiny_params["wte"]), np.asarray(tiny_params["wpe"])
    np.testing.assert_allclose(h_0, wte[tokens] + wpe[np.arange(9)], rtol=1e-6)


def constant_embeddings(tiny_params):
    """Token entries are 1 and position entries 2: sums tell what was dropped."""
    ones = jnp.ones_like
    return {
        **tiny_params,
        "wte": ones(tiny_params["wte"]),
        "wpe": 2 * ones(tiny_params["wpe"]),
    }


def test_embedding_dropout_on_sum_drops_token_and_position_together(
    monkeypatch, tiny_model_config, tiny_params
):
    config = tiny_model_config(embed_dropout=0.5, embed_dropout_on="sum")
    params, noise = constant_embeddings(tiny_params), step_noise(0, jnp.int32(0), 4)
    tokens = jnp.full((4, 16), 7)
    h_0, unembedding = embedded(monkeypatch, config, params, tokens, noise)
    assert set(np.unique(h_0)) == {0.0, 6.0}
    assert len({row.tobytes() for row in h_0.reshape(-1, 32)}) == 64
    np.testing.assert_array_equal(unembedding, params["wte"])


def test_embedding_dropout_on_lookups_drops_the_two_vectors_apart(
    monkeypatch, tiny_model_config, tiny_params
):
    config = tiny_model_config(embed_dropout=0.5, embed_dropout_on="lookups")
    params, noise = constant_embeddings(tiny_params), step_noise(0, jnp.int32(0), 4)
    tokens = jnp.full((4, 16), 7)
    h_0, unembedding = embedded(monkeypatch, config, params, tokens, noise)
    values, counts = np.unique(h_0, return_counts=True)
    assert values.tolist() == [0.0, 2.0, 4.0, 6.0]
    # Four equally likely outcomes: the two masks are independent of each other.
    assert np.abs(counts - h_0.size / 4).max() < 4 * np.sqrt(h_0.size * 3 / 16)
    assert len({row.tobytes() for row in (h_0 >= 4).reshape(-1, 32)}) == 64
    assert len({row.tobytes() for row in (h_0 % 4 == 2).reshape(-1, 32)}) == 64
    np.testing.assert_array_equal(unembedding, params["wte"])


@pytest.mark.parametrize("impl", ["hash", "threefry"])
def test_embedding_dropout_on_matrix_is_shared_by_lookup_and_softmax(
    monkeypatch, tiny_model_config, tiny_params, impl
):
    """A (row, dim) is dropped at every occurrence and in the logits (released code)."""
    config = tiny_model_config(
        embed_dropout=0.5,
        embed_dropout_on="matrix",
        softmax_rows="tokens+positions",
        dropout_impl=impl,
    )
    params, noise = constant_embeddings(tiny_params), step_noise(0, jnp.int32(0), 4)
    tokens = random_tokens((4, 12)).at[:, 3].set(7).at[1, 5].set(7)
    h_0, unembedding = embedded(monkeypatch, config, params, tokens, noise)
    assert set(np.unique(unembedding[:97])) == {0.0, 2.0}
    assert set(np.unique(unembedding[97:])) == {0.0, 4.0}
    dropped = (unembedding == 0).mean(-1)
    assert 0.4 < dropped.mean() < 0.6
    assert len({row.tobytes() for row in unembedding != 0}) == 97 + 16
    expected = unembedding[tokens] + unembedding[97 + np.arange(12)]
    np.testing.assert_array_equal(h_0, expected)


def test_embedding_dropout_on_matrix_stays_in_the_gradient(
    tiny_model_config, tiny_params
):
    """Dropped entries of the tied matrix get no gradient, kept ones do."""
    config = tiny_model_config(embed_dropout=0.5, embed_dropout_on="matrix")
    tokens, noise = random_tokens(), step_noise(0, jnp.int32(0), 4)
    _, gradient = loss_and_gradient(config, tiny_params, tokens, noise)
    kept = np.asarray(apply(config, tiny_params, tokens, noise).unembedding) != 0
    np.testing.assert_array_equal(np.asarray(gradient["wte"]) != 0, kept)


# Dropout sites (sec. 4.1: residual, embedding and attention dropout)


def record_dropout(monkeypatch, config, tokens):
    """[(site, rate, shape)] of one forward pass at abstract values."""
    calls = []

    def spy(x, rate, noise, site, **kwargs):
        if noise is not None:  # Flax also shapes the parameters, without noise
            calls.append((site, rate, x.shape))
        return x

    monkeypatch.setattr(transformer, "dropout", spy)
    monkeypatch.setattr(attention, "dropout", spy)
    params = jax.eval_shape(lambda: init_params(config, jax.random.key(0)))
    noise = step_noise(0, jnp.int32(0), tokens.shape[0])
    jax.eval_shape(lambda p: apply(config, p, tokens, noise), params)
    return calls


def test_dropout_sites_at_paper_depth_are_37_distinct_ones(
    monkeypatch, tiny_model_config
):
    config = tiny_model_config(
        num_layers=12,
        embed_dropout=0.2,
        attn_dropout=0.3,
        resid_dropout=0.4,
        attention_impl="plain",  # goes through `dropout` as the others do
    )
    calls = record_dropout(monkeypatch, config, random_tokens((4, 8)))
    assert len(calls) == 37
    assert sorted(site for site, _, _ in calls) == list(range(37))
    assert calls[0] == (0, 0.2, (4, 8, 32))
    for layer in range(12):
        attn, attn_out, mlp_out = calls[1 + 3 * layer : 4 + 3 * layer]
        assert attn == (3 * layer + 1, 0.3, (4, 2, 8, 8))
        assert attn_out == (3 * layer + 2, 0.4, (4, 8, 32))
        assert mlp_out == (3 * layer + 3, 0.4, (4, 8, 32))


@pytest.mark.parametrize(
    ("embed_dropout_on", "expected"),
    [
        ("sum", [(0, (4, 8, 32))]),
        ("lookups", [(0, (4, 8, 32)), (EMBED_POSITION_SITE, (4, 8, 32))]),
        ("matrix", [(0, (97, 32)), (0, (16, 32))]),
    ],
)
def test_embedding_dropout_sites(
    monkeypatch, tiny_model_config, embed_dropout_on, expected
):
    config = tiny_model_config(
        embed_dropout_on=embed_dropout_on, attention_impl="plain"
    )
    calls = record_dropout(monkeypatch, config, random_tokens((4, 8)))
    assert len(calls) == len(expected) + 3 * config.num_layers
    assert [(site, shape) for site, _, shape in calls[: len(expected)]] == expected
    assert EMBED_POSITION_SITE > 3 * 10**6, "no block reaches it"


# bfloat16


def equations(jaxpr):
    """Every equation of a jaxpr and of those inside it."""
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            for item in value if isinstance(value, (tuple, list)) else [value]:
                inner = getattr(item, "jaxpr", item)
                if hasattr(inner, "eqns"):
                    yield from equations(inner)


@pytest.mark.parametrize("attention_impl", ["blocked", "plain"])
def test_bfloat16_multiplies_in_bfloat16_and_normalises_in_float32(
    tiny_model_config, tiny_params, attention_impl
):
    config = tiny_model_config(dtype="bfloat16", attention_impl=attention_impl)
    tokens, noise = random_tokens(), step_noise(0, jnp.int32(0), 4)

    def forward(params):
        return logits(config, apply(config, params, tokens, noise))

    seen = {}
    for equation in equations(jax.make_jaxpr(forward)(tiny_params).jaxpr):
        name = equation.primitive.name
        inputs = tuple(str(v.aval.dtype) for v in equation.invars)
        outputs = tuple(str(v.aval.dtype) for v in equation.outvars)
        seen.setdefault(name, set()).add((inputs, outputs))
    # An accelerator's products write bfloat16, a CPU's float32.
    assert {inputs for inputs, _ in seen["dot_general"]} == {("bfloat16", "bfloat16")}
    for name in ("exp", "rsqrt", "tanh", "reduce_sum", "reduce_max"):
        assert seen[name] == {(("float32",), ("float32",))}, name


def test_bfloat16_keeps_the_residual_stream_in_bfloat16(
    monkeypatch, tiny_model_config, tiny_params
):
    """What a dense layer reads needs no rounding; float32 would double its memory."""
    read, matmul = [], layers.matmul

    def spy(x, kernel, dtype):
        read.append(x.dtype)
        return matmul(x, kernel, dtype)

    monkeypatch.setattr(layers, "matmul", spy)
    config, noise = tiny_model_config(dtype="bfloat16"), step_noise(0, jnp.int32(0), 4)
    jax.eval_shape(lambda p: apply(config, p, random_tokens(), noise), tiny_params)
    assert len(read) >= 4 * config.num_layers
    assert set(read) == {jnp.dtype("bfloat16")}


def test_bfloat16_stays_close_to_float32(tiny_model_config, tiny_params):
    tokens, noise = random_tokens(), step_noise(0, jnp.int32(0), 4)
    results = {}
    for dtype in ("float32", "bfloat16"):
        config = tiny_model_config(dtype=dtype)
        output = jax.jit(apply, static_argnums=0)(config, tiny_params, tokens, noise)
        assert output.hidden.dtype == dtype
        scores = logits(config, output)
        loss, gradient = loss_and_gradient(config, tiny_params, tokens, noise)
        results[dtype] = np.asarray(scores), float(loss), gradient
        assert scores.dtype == loss.dtype == jnp.float32
        assert {g.dtype for g in jax.tree.leaves(gradient)} == {jnp.dtype("float32")}
    (exact, exact_loss, exact_gradient), (rough, rough_loss, rough_gradient) = (
        results.values()
    )
    assert 1e-4 < np.linalg.norm(rough - exact) / np.linalg.norm(exact) < 0.02
    assert rough_loss == pytest.approx(exact_loss, rel=2e-3)
    for name, leaf in flat_params(exact_gradient).items():
        error = np.linalg.norm(flat_params(rough_gradient)[name] - leaf)
        assert error < 0.05 * np.linalg.norm(leaf), name


# Invariances


def test_heads_may_be_permuted_with_their_output_rows(tiny_model_config, tiny_params):
    """Heads are contiguous blocks of channels in each third of c_attn."""
    config, tokens = tiny_model_config(), random_tokens()
    blocks = np.roll(np.arange(32), 16)  # two heads of 16 channels change places
    thirds = np.concatenate([blocks, 32 + blocks, 64 + blocks])
    attn = tiny_params["h_0"]["attn"]
    permuted = {
        "c_attn": {
            "kernel": attn["c_attn"]["kernel"][:, thirds],
            "bias": attn["c_attn"]["bias"][thirds],
        },
        "c_proj": {
            "kernel": attn["c_proj"]["kernel"][blocks],
            "bias": attn["c_proj"]["bias"],
        },
    }
    params = {**tiny_params, "h_0": {**tiny_params["h_0"], "attn": permuted}}
    expected = all_logits(config, tiny_params, tokens)
    actual = all_logits(config, params, tokens)
    np.testing.assert_allclose(actual, expected, atol=2e-6, rtol=0)


def test_last_layer_norm_is_the_last_operation(tiny_model_config, tiny_params):
    """No LayerNorm follows ln_2 of the last block: its gain and bias show as such."""
    config, tokens = tiny_model_config(), random_tokens()
    last = {
        **tiny_params["h_1"],
        "ln_2": {"scale": jnp.zeros(32), "bias": jnp.arange(32.0)},
    }
    hidden = hidden_states(config, {**tiny_params, "h_1": last}, tokens)
    np.testing.assert_array_equal(
        hidden, np.broadcast_to(np.arange(32.0), hidden.shape)
    )
