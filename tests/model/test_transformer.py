"""The Transformer's parts: embedding, dropout sites, dtypes, heads, LayerNorms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import all_logits, hidden_states, observe, random_tokens

from gpt1_jax.model import embedding, layers, transformer
from gpt1_jax.model.context import Context
from gpt1_jax.model.embedding import embed
from gpt1_jax.model.language_model import apply, init_params, logits
from gpt1_jax.model.sites import EMBED_POSITION_SITE
from gpt1_jax.ops import attention
from gpt1_jax.ops.dropout import step_noise

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


def embedded(config, params, tokens, noise):
    """h_0, the input of the first block, and the matrix of the softmax."""
    embeddings = params["wte"], params["wpe"]
    return map(np.asarray, embed(config, *embeddings, tokens, Context(noise)))


def test_embedding_is_the_sum_of_token_and_position_vector(
    tiny_model_config, tiny_params
):
    tokens = random_tokens((2, 9))
    h_0, _ = embedded(tiny_model_config(), tiny_params, tokens, None)
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
    tiny_model_config, tiny_params
):
    config = tiny_model_config(embed_dropout=0.5, embed_dropout_on="sum")
    params, noise = constant_embeddings(tiny_params), step_noise(0, jnp.int32(0), 4)
    tokens = jnp.full((4, 16), 7)
    h_0, unembedding = embedded(config, params, tokens, noise)
    assert set(np.unique(h_0)) == {0.0, 6.0}
    assert len({row.tobytes() for row in h_0.reshape(-1, 32)}) == 64
    np.testing.assert_array_equal(unembedding, params["wte"])


def test_embedding_dropout_on_lookups_drops_the_two_vectors_apart(
    tiny_model_config, tiny_params
):
    config = tiny_model_config(embed_dropout=0.5, embed_dropout_on="lookups")
    params, noise = constant_embeddings(tiny_params), step_noise(0, jnp.int32(0), 4)
    tokens = jnp.full((4, 16), 7)
    h_0, unembedding = embedded(config, params, tokens, noise)
    values, counts = np.unique(h_0, return_counts=True)
    assert values.tolist() == [0.0, 2.0, 4.0, 6.0]
    # Four equally likely outcomes: the two masks are independent of each other.
    assert np.abs(counts - h_0.size / 4).max() < 4 * np.sqrt(h_0.size * 3 / 16)
    assert len({row.tobytes() for row in (h_0 >= 4).reshape(-1, 32)}) == 64
    assert len({row.tobytes() for row in (h_0 % 4 == 2).reshape(-1, 32)}) == 64
    np.testing.assert_array_equal(unembedding, params["wte"])


def test_embedding_dropout_on_matrix_is_shared_by_lookup_and_softmax(
    tiny_model_config, tiny_params
):
    """A (row, dim) is dropped at every occurrence and in the logits (released code)."""
    config = tiny_model_config(
        embed_dropout=0.5,
        embed_dropout_on="matrix",
        softmax_rows="tokens+positions",
    )
    params, noise = constant_embeddings(tiny_params), step_noise(0, jnp.int32(0), 4)
    tokens = random_tokens((4, 12)).at[:, 3].set(7).at[1, 5].set(7)
    h_0, unembedding = embedded(config, params, tokens, noise)
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
    gradient = observe(config, tiny_params, tokens, noise).gradient
    _, unembedding = embedded(config, tiny_params, tokens, noise)
    np.testing.assert_array_equal(np.asarray(gradient["wte"]) != 0, unembedding != 0)


def record_dropout(monkeypatch, config, tokens):
    """[(site, rate, shape)] of one forward pass at abstract values."""
    calls = []

    def spy(x, rate, noise, site, **kwargs):
        if noise is not None:  # Flax also shapes the parameters, without noise
            calls.append((site, rate, x.shape))
        return x

    monkeypatch.setattr(embedding, "dropout", spy)
    monkeypatch.setattr(transformer, "dropout", spy)
    monkeypatch.setattr(attention, "dropout", spy)
    params = jax.eval_shape(lambda: init_params(config, jax.random.key(0)))
    noise = step_noise(0, jnp.int32(0), tokens.shape[0])
    jax.eval_shape(lambda p: apply(config, p, tokens, Context(noise)), params)
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
        return logits(config, apply(config, params, tokens, Context(noise)))

    seen = {}
    for equation in equations(jax.make_jaxpr(forward)(tiny_params).jaxpr):
        name = equation.primitive.name
        inputs = tuple(str(v.aval.dtype) for v in equation.invars)
        outputs = tuple(str(v.aval.dtype) for v in equation.outvars)
        seen.setdefault(name, set()).add((inputs, outputs))
    # An accelerator's products write bfloat16, a CPU's float32; before JAX 0.9 a CPU's
    # also take float32 copies.
    products = {("bfloat16", "bfloat16")}
    if jax.__version_info__ < (0, 9):
        products.add(("float32", "float32"))
    assert {inputs for inputs, _ in seen["dot_general"]} == products
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
    config, tokens = tiny_model_config(dtype="bfloat16"), random_tokens()
    context = Context(step_noise(0, jnp.int32(0), 4))
    jax.eval_shape(lambda p: apply(config, p, tokens, context), tiny_params)
    assert len(read) >= 4 * config.num_layers
    assert set(read) == {jnp.dtype("bfloat16")}


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
