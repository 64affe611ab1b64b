"""How models are computed: names of activations, dropout sites, who attends to whom."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import LSTM, made_up_params, random_tokens

from gpt1_jax.errors import UserError
from gpt1_jax.model import execution, language_model
from gpt1_jax.model.interventions import Intervention, forward
from gpt1_jax.model.language_model import apply, init_params
from gpt1_jax.ops import attention

PAGE = Path(__file__).parents[2] / "docs" / "interventions.md"
SIZES = dict(N=2, T=9, D=32, H=2, K=16, F=128, V=97, U=24, P=16)


def test_no_two_places_share_a_dropout_site():
    """Of 12 layers and the head that follows; an LSTM's layer has one place."""
    site = execution.block_site
    places = execution.ATTN_PROBS, execution.ATTN_OUTPUT, execution.MLP_OUTPUT
    numbers = [site(layer, place) for layer in range(13) for place in places]
    numbers += [execution.EMBED_SITE, execution.EMBED_POSITION_SITE]
    assert len(set(numbers)) == len(numbers)
    lstm = site(0, execution.LSTM_OUTPUT)
    assert execution.EMBED_SITE < lstm < site(1, execution.ATTN_PROBS)


def documented(kind):
    """{name: shape} of the table in docs/interventions.md, for two layers."""
    table = PAGE.read_text().partition("\n## Names\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([\w/]+)` \| \[(.+)\] \| (.+) \|", table, re.M)
    names = {}
    for cells in rows:
        if kind not in cells[2]:
            continue
        shape = tuple(
            SIZES[each] if each.isalpha() else 4 * SIZES["U"]
            for each in re.findall(r"4 U|\w", cells[1])
        )
        layers = ["0"] if kind == "LSTM" else ["0", "1"]
        for layer in layers if cells[0].startswith("h_i") else [""]:
            names[cells[0].replace("h_i", f"h_{layer}")] = shape
    return names


@pytest.mark.parametrize("kind", ["Transformer", "LSTM"])
def test_activations_are_those_of_the_list(tiny_model_config, kind):
    config = tiny_model_config(
        **(LSTM if kind == "LSTM" else dict(attention_form="plain"))
    )
    params = made_up_params(init_params, config)
    tokens = random_tokens((SIZES["N"], SIZES["T"]))
    how = Intervention(config, ["*"])
    jax.eval_shape(lambda p: apply(config, p, tokens, how), params)
    found = {name: x.shape for name, x in how.recorded.items()}
    assert found == documented(kind)


def test_recording_changes_nothing_and_gives_what_the_formula_has(
    tiny_model_config, tiny_params
):
    """Each activation from those before it, by NumPy."""
    config, tokens = tiny_model_config(), random_tokens((2, 9))

    @jax.jit
    def run(params):
        plain = tiny_model_config(attention_form="plain")
        found = forward(config, params, tokens, ["*"])[1]
        return found, apply(plain, params, tokens)

    found, output = jax.device_get(run(tiny_params))
    np.testing.assert_array_equal(found["h_1/out"], output.hidden)
    summed = found["embedding/tokens"] + found["embedding/positions"]
    np.testing.assert_array_equal(found["embedding"], summed)
    scores = np.einsum("nthk,nshk->nhts", found["h_0/attn/q"], found["h_0/attn/k"]) / 4
    scores = np.where(np.tri(9, dtype=bool), scores, -np.inf)
    probs = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    np.testing.assert_allclose(found["h_0/attn/probs"], probs, atol=1e-6)
    heads = np.einsum("nhts,nshk->nthk", probs, found["h_0/attn/v"])
    np.testing.assert_allclose(found["h_0/attn/heads"], heads, atol=1e-6)
    weights = tiny_params["h_0"]
    out = heads.reshape(2, 9, 32) @ weights["attn"]["c_proj"]["kernel"]
    out = out + weights["attn"]["c_proj"]["bias"]
    np.testing.assert_allclose(found["h_0/attn/out"], out, atol=1e-6)
    for branch, before, norm, after in (
        ("attn/out", "embedding", "ln_1", "h_0/ln_1/out"),
        ("mlp/out", "h_0/ln_1/out", "ln_2", "h_0/out"),
    ):
        summed = found[before] + found[f"h_0/{branch}"]
        deviation = np.sqrt(summed.var(-1, keepdims=True) + 1e-5)
        normed = (summed - summed.mean(-1, keepdims=True)) / deviation
        normed = normed * weights[norm]["scale"] + weights[norm]["bias"]
        np.testing.assert_allclose(found[after], normed, atol=1e-5)
    mlp = found["h_0/mlp/hidden"] @ weights["mlp"]["c_proj"]["kernel"]
    mlp = mlp + weights["mlp"]["c_proj"]["bias"]
    np.testing.assert_allclose(found["h_0/mlp/out"], mlp, atol=1e-5)


def test_a_name_that_no_activation_has_is_refused(tiny_model_config, tiny_params):
    config, tokens = tiny_model_config(), random_tokens((1, 4))
    with pytest.raises(
        UserError, match=r"no activation 'h_2/attn/heads'; near it are "
    ):
        forward(config, tiny_params, tokens, ["embedding", "h_2/attn/heads"])


# Who may attend to whom


def test_a_rule_that_shows_later_tokens_is_refused(
    monkeypatch, tiny_model_config, tiny_params
):
    config, tokens = tiny_model_config(), random_tokens((1, 4))
    monkeypatch.setattr(attention, "may_attend", lambda q, k: k <= q + 1)
    with pytest.raises(ValueError, match=r"may_attend lets .* a later one"):
        language_model.apply(config, tiny_params, tokens)


def test_the_rule_is_causal_until_it_is_changed(monkeypatch):
    assert attention.is_causal(64)
    monkeypatch.setattr(attention, "may_attend", lambda q, k: (k <= q) & (q - k < 32))
    assert attention.is_causal(32)
    assert not attention.is_causal(33)
    window = jnp.abs  # also where the rule calls JAX, within a jitted function
    monkeypatch.setattr(attention, "may_attend", lambda q, k: (k <= q) & window(q) >= 0)
    assert jax.jit(lambda: attention.is_causal(8))() is not None
