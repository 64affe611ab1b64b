"""The Transformer's parts: embedding, dropout sites, dtypes, heads, LayerNorms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import hidden_states, random_tokens, record_dropout

from gpt1_jax.model.execution import Execution
from gpt1_jax.model.language_model import apply, logits
from gpt1_jax.ops import products
from gpt1_jax.ops.dropout import step_noise


def test_dropout_sites_at_paper_depth_are_37_distinct_ones(
    monkeypatch, tiny_model_config
):
    config = tiny_model_config(
        num_layers=12,
        embed_dropout=0.2,
        attn_dropout=0.3,
        resid_dropout=0.4,
        attention_form="plain",  # goes through `dropout` as the others do
    )
    calls = record_dropout(monkeypatch, config, random_tokens((4, 8)))
    assert len(calls) == 37 and calls[0] == (0, 0.2, (4, 8, 32))
    for layer in range(12):
        attn, attn_out, mlp_out = calls[1 + 3 * layer : 4 + 3 * layer]
        assert attn == (3 * layer + 1, 0.3, (4, 2, 8, 8))
        assert attn_out == (3 * layer + 2, 0.4, (4, 8, 32))
        assert mlp_out == (3 * layer + 3, 0.4, (4, 8, 32))


def equations(jaxpr):
    """Every equation of a jaxpr and of those inside it."""
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            for item in value if isinstance(value, (tuple, list)) else [value]:
                inner = getattr(item, "jaxpr", item)
                if hasattr(inner, "eqns"):
                    yield from equations(inner)


@pytest.mark.parametrize("attention_form", ["blocked", "plain"])
def test_bfloat16_multiplies_in_bfloat16_and_normalises_in_float32(
    tiny_model_config, tiny_params, attention_form
):
    config = tiny_model_config(dtype="bfloat16", attention_form=attention_form)
    tokens, noise = random_tokens(), step_noise(0, jnp.int32(0), 4)

    def forward(params):
        return logits(config, apply(config, params, tokens, Execution(config, noise)))

    seen = {}
    for equation in equations(jax.make_jaxpr(forward)(tiny_params).jaxpr):
        name = equation.primitive.name
        inputs = tuple(str(v.aval.dtype) for v in equation.invars)
        outputs = tuple(str(v.aval.dtype) for v in equation.outvars)
        seen.setdefault(name, set()).add((inputs, outputs))
    # Before JAX 0.9 a CPU's products also take float32 copies.
    copies = {("float32",) * 2} if jax.__version_info__ < (0, 9) else set()
    read = {inputs for inputs, _ in seen["dot_general"]}
    assert read == {("bfloat16",) * 2} | copies
    for name in ("exp", "rsqrt", "tanh", "reduce_sum", "reduce_max"):
        assert seen[name] == {(("float32",), ("float32",))}, name


def test_bfloat16_keeps_the_residual_stream_in_bfloat16(
    monkeypatch, tiny_model_config, tiny_params
):
    """What a dense layer reads needs no rounding; float32 would double its memory."""
    read, dense = [], products.dense

    def spy(x, *rest):
        read.append(x.dtype)
        return dense(x, *rest)

    monkeypatch.setattr(products, "dense", spy)
    config, tokens = tiny_model_config(dtype="bfloat16"), random_tokens()
    how = Execution(config, step_noise(0, jnp.int32(0), 4))
    jax.eval_shape(lambda p: apply(config, p, tokens, how), tiny_params)
    assert len(read) >= 4 * config.num_layers
    assert set(read) == {jnp.dtype("bfloat16")}


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
