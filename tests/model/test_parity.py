"""The same numbers as Hugging Face's PyTorch model, and mistakes that would not be.

`transformers`' OpenAIGPTLMHeadModel is an independent port of the released code.
LayerNorm gains and all biases are perturbed: at 1 and 0 several mistakes hide.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import PAPER
from torch_models import (
    TOLERANCE,
    largest_difference,
    paths_and_leaves,
    perturbed_params,
    torch,
    torch_model,
    torch_names,
)

from gpt1_jax.config import ModelConfig
from gpt1_jax.model import language_model, transformer
from gpt1_jax.model.language_model import apply
from gpt1_jax.model.layers import LayerNorm
from gpt1_jax.ops import attention, products
from gpt1_jax.ops import layer_norm as layer_norm_lib
from gpt1_jax.ops.layer_norm import EPSILON, plain_layer_norm

REDUCED = dict(
    vocab_size=211,
    num_layers=2,
    num_heads=4,
    embed_dim=64,
    mlp_dim=256,
    max_seq_len=128,
)


def random_tokens(config, shape):
    return np.random.default_rng(1).integers(0, config.vocab_size, shape)


def our_logits(config, params, tokens):
    """Traced anew at each call, so that a patched model is seen."""

    def forward(params):
        output = language_model.apply(config, params, tokens)
        return language_model.logits(config, output)

    return jax.jit(forward)(params)


def torch_logits(model, tokens):
    with torch.no_grad():
        return model(torch.tensor(tokens)).logits.numpy()


def assert_same_loss_and_gradients(config, params, model, tokens):
    """The mean next-token loss, in nats, and its gradient to every parameter."""

    def mean_loss(params):
        output = apply(config, params, jnp.asarray(tokens))
        nll = language_model.next_token_nll(config, output, jnp.asarray(tokens))
        return nll[:, :-1].mean()

    our_loss, our_gradients = jax.jit(jax.value_and_grad(mean_loss))(params)
    scores = model(torch.tensor(tokens)).logits
    loss = torch.nn.functional.cross_entropy(
        scores[:, :-1].flatten(0, 1), torch.tensor(tokens)[:, 1:].flatten()
    )
    loss.backward()
    assert float(our_loss) == pytest.approx(loss.item(), abs=2e-6)
    theirs, names = dict(model.named_parameters()), torch_names(config.num_layers)
    for path, ours in paths_and_leaves(our_gradients):
        their_gradient = theirs[names[path]].grad.numpy()
        assert ours.shape == their_gradient.shape
        scale = np.abs(their_gradient).max()
        assert largest_difference(ours, their_gradient) < 1e-5 * scale, path


@pytest.fixture(scope="module")
def reduced(tiny_model_config):
    """(config, our params, their model, tokens, their logits)"""
    config = tiny_model_config(**REDUCED)
    params = perturbed_params(config, kernel_scale=5.0)
    model = torch_model(config, params)
    tokens = random_tokens(config, (2, 128))
    return config, params, model, tokens, torch_logits(model, tokens)


@pytest.mark.parametrize("ways", [{}, dict(layer_loop="scan")], ids=str)
def test_logits_equal_the_torch_model(reduced, tiny_model_config, ways):
    _, params, _, tokens, expected = reduced
    config = tiny_model_config(**REDUCED, **ways)
    actual = our_logits(config, params, tokens)
    assert actual.shape == (2, 128, 211)
    assert largest_difference(actual, expected) < TOLERANCE


def test_gradients_equal_the_torch_model(reduced):
    config, params, model, tokens, _ = reduced
    assert_same_loss_and_gradients(config, params, model, tokens)


def test_hidden_states_equal_the_torch_model(reduced):
    config, params, model, tokens, _ = reduced
    with torch.no_grad():
        theirs = model.transformer(torch.tensor(tokens)).last_hidden_state.numpy()
    actual = jax.jit(lambda p: apply(config, p, tokens).hidden)(params)
    assert largest_difference(actual, theirs) < TOLERANCE


@pytest.mark.slow
def test_paper_size_equals_the_torch_model(tiny_model_config):
    """116,534,784 parameters: logits, loss and every gradient."""
    config = tiny_model_config(**PAPER)
    params = perturbed_params(config, kernel_scale=1.0)
    model = torch_model(config, params)
    tokens = random_tokens(config, (2, 128))
    actual = our_logits(config, params, tokens)
    assert float(actual.std()) == pytest.approx(0.555, abs=0.01)
    assert largest_difference(actual, torch_logits(model, tokens)) < TOLERANCE
    assert_same_loss_and_gradients(config, params, model, tokens)


# Mistakes: what takes the place of a part of the model, and must show.


def other_layer_norm(unbiased=False, epsilon_outside=False):
    """LayerNorm with the sample variance, or with epsilon outside the root."""

    def layer_norm(x, scale, bias, dtype):
        variance = jnp.var(x, -1, keepdims=True, ddof=int(unbiased))
        if epsilon_outside:
            deviation = jnp.sqrt(variance) + EPSILON
        else:
            deviation = jnp.sqrt(variance + EPSILON)
        return (x - x.mean(-1, keepdims=True)) / deviation * scale + bias

    return layer_norm


def without_gain(x):
    """LayerNorm with gain 1 and bias 0, as a converted checkpoint would start."""
    ones, zeros = jnp.ones(x.shape[-1]), jnp.zeros(x.shape[-1])
    return plain_layer_norm(x, ones, zeros, x.dtype)


class OtherBlock(nn.Module):
    """Blocks wired as other transformers are."""

    config: ModelConfig
    wiring: str

    @nn.compact
    def __call__(self, x, layer, how):
        attention = transformer.Attention(self.config, name="attn")
        feed_forward = transformer.MLP(self.config, name="mlp")

        def attn(x):
            return attention(x, layer, how)

        def mlp(x):
            return feed_forward(x, layer, how)

        def norm(name):
            weights = LayerNorm(self.config.embed_dim, name=name)()
            return lambda x: layer_norm_lib.layer_norm(x, *weights, jnp.float32)

        ln_1, ln_2 = norm("ln_1"), norm("ln_2")
        if self.wiring == "pre":  # GPT-2
            x = x + attn(ln_1(x))
            return x + mlp(ln_2(x))
        if self.wiring == "swapped_norms":
            n = ln_2(x + attn(x))
            return ln_1(n + mlp(n))
        attended = attn(x)
        n = ln_1(attended if self.wiring == "no_residual" else x + attended)
        return ln_2(n + mlp(n))


def blocks(wiring):
    return lambda config, parent: OtherBlock(config, wiring, parent=None)


def attention_of(change, back=lambda out: out):
    """The attention of other queries, keys and values."""
    attend = attention.causal_attention
    return lambda *qkv_and_rest: back(
        attend(*change(*qkv_and_rest[:3]), *qkv_and_rest[3:])
    )


def sees_one_token_ahead(query, key, value, *rest):
    scores = jnp.einsum("nthk,nshk->nhts", query, key) / query.shape[-1] ** 0.5
    visible = jnp.tril(jnp.ones(scores.shape[-2:], bool), 1)
    probs = jax.nn.softmax(jnp.where(visible, scores, -1e9))
    return jnp.einsum("nhts,nshk->nthk", probs, value)


def interleave(x):
    """Channel i belongs to head i % H instead of head i // K."""
    return x.reshape(*x.shape[:2], x.shape[3], x.shape[2]).swapaxes(2, 3)


DENSE, EMBED, LOGITS = products.dense, transformer.embed, language_model.logits
GELU, BLOCK = (transformer, "gelu"), (transformer, "Block")
NORM, ATTEND = (layer_norm_lib, "layer_norm"), (attention, "causal_attention")
MISTAKES = {
    "erf_gelu": (*GELU, lambda x: jax.nn.gelu(x, approximate=False)),
    "layer_norm_epsilon_1e_6": (layer_norm_lib, "EPSILON", 1e-6),
    "unbiased_variance": (*NORM, other_layer_norm(unbiased=True)),
    "epsilon_outside_the_root": (*NORM, other_layer_norm(epsilon_outside=True)),
    "extra_final_layer_norm": (
        *(language_model, "logits"),
        lambda model, output: LOGITS(
            model, output._replace(hidden=without_gain(output.hidden))
        ),
    ),
    "layer_norms_before": (*BLOCK, blocks("pre")),
    "swapped_norms": (*BLOCK, blocks("swapped_norms")),
    "no_residual": (*BLOCK, blocks("no_residual")),
    "no_score_scale": (
        *ATTEND,
        attention_of(lambda q, k, v: (q * q.shape[-1] ** 0.5, k, v)),
    ),
    "swapped_key_and_value": (*ATTEND, attention_of(lambda q, k, v: (q, v, k))),
    "swapped_query_and_key": (*ATTEND, attention_of(lambda q, k, v: (k, q, v))),
    "interleaved_heads": (
        *ATTEND,
        attention_of(
            lambda *qkv: map(interleave, qkv),
            lambda out: out.swapaxes(2, 3).reshape(out.shape),
        ),
    ),
    "mask_sees_one_token_ahead": (*ATTEND, sees_one_token_ahead),
    "positions_from_one": (
        *(transformer, "embed"),
        lambda wte, wpe, *rest: EMBED(wte, jnp.roll(wpe, -1, axis=0), *rest),
    ),
    "layer_norm_on_embeddings": (
        *(transformer, "embed"),
        lambda *arguments: without_gain(EMBED(*arguments)),
    ),
    "no_biases": (
        *(products, "dense"),
        lambda x, kernel, bias, *rest: DENSE(x, kernel, 0 * bias, *rest),
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_logits_show_each_mistake(reduced, monkeypatch, mistake):
    """Patched in, the mistake moves the logits beyond the tolerance, by far."""
    config, params, _, tokens, expected = reduced
    monkeypatch.setattr(*MISTAKES[mistake])
    difference = largest_difference(our_logits(config, params, tokens), expected)
    assert difference > 10 * TOLERANCE


def test_mistakes_patched_back_to_the_truth_do_not_show(reduced, monkeypatch):
    """The patches themselves change nothing: only the mistakes in them do."""
    config, params, _, tokens, expected = reduced
    monkeypatch.setattr(*ATTEND, attention_of(lambda *qkv: qkv))
    monkeypatch.setattr(*NORM, other_layer_norm())
    monkeypatch.setattr(*BLOCK, blocks("released"))
    monkeypatch.setattr(*GELU, lambda x: jax.nn.gelu(x, approximate=True))
    actual = our_logits(config, params, tokens)
    assert largest_difference(actual, expected) < TOLERANCE
