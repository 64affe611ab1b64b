"""The same numbers as Hugging Face's PyTorch model, and mistakes that would not be.

`transformers`' OpenAIGPTLMHeadModel is an independent port of the released code.
LayerNorm gains and all biases are perturbed: at 1 and 0 several mistakes hide.
"""

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

from gpt1_jax.model import language_model, transformer
from gpt1_jax.model.execution import Execution
from gpt1_jax.model.language_model import apply
from gpt1_jax.ops import attention
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


def other_layer_norm(ddof=0, inside=EPSILON, outside=0.0):
    def layer_norm(x, scale, bias, dtype):
        variance = jnp.var(x, -1, keepdims=True, ddof=ddof)
        deviation = jnp.sqrt(variance + inside) + outside
        return (x - x.mean(-1, keepdims=True)) / deviation * scale + bias

    return layer_norm


def normed_again(model, output):
    ones = jnp.ones(output.hidden.shape[-1])
    hidden = plain_layer_norm(output.hidden, ones, 0 * ones, model.dtype)
    return LOGITS(model, output._replace(hidden=hidden))


EMBED, LOGITS = transformer.embed, language_model.logits
ATTEND, ADD_AND_NORM = attention.causal_attention, Execution.add_and_norm
PLACES = {
    "gelu": (transformer, "gelu"),
    "norm": (layer_norm_lib, "layer_norm"),
    "attention": (attention, "causal_attention"),
    "sum": (Execution, "add_and_norm"),
    "embedding": (transformer, "embed"),
    "logits": (language_model, "logits"),
}
MISTAKES = {
    "gelu by erf": lambda x: jax.nn.gelu(x, approximate=False),
    "norm with epsilon 1e-6": other_layer_norm(inside=1e-6),
    "norm by the unbiased variance": other_layer_norm(ddof=1),
    "norm with epsilon outside the root": other_layer_norm(0, 0.0, EPSILON),
    "sum without residual": lambda how, h, *rest: ADD_AND_NORM(how, 0 * h, *rest),
    "sum behind the norm": lambda how, h, *rest: h + ADD_AND_NORM(how, 0 * h, *rest),
    "attention unscaled": lambda q, *rest: ATTEND(q * q.shape[-1] ** 0.5, *rest),
    "attention of keys": lambda q, k, *rest: ATTEND(k, q, *rest),
    "embedding from position one": lambda wte, wpe, *rest: EMBED(
        wte, jnp.roll(wpe, -1, axis=0), *rest
    ),
    "logits of a norm more": normed_again,
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_logits_show_each_mistake(reduced, monkeypatch, mistake):
    """Patched in, the mistake moves the logits beyond the tolerance, by far."""
    config, params, _, tokens, expected = reduced
    monkeypatch.setattr(*PLACES[mistake.split()[0]], MISTAKES[mistake])
    difference = largest_difference(our_logits(config, params, tokens), expected)
    assert difference > 10 * TOLERANCE


def test_mistakes_patched_back_to_the_truth_do_not_show(reduced, monkeypatch):
    """The patches themselves change nothing: only the mistakes in them do."""
    config, params, _, tokens, expected = reduced
    monkeypatch.setattr(*PLACES["attention"], lambda *given: ATTEND(*given))
    monkeypatch.setattr(*PLACES["norm"], other_layer_norm())
    monkeypatch.setattr(*PLACES["sum"], lambda *given: ADD_AND_NORM(*given))
    monkeypatch.setattr(*PLACES["gelu"], lambda x: jax.nn.gelu(x, approximate=True))
    actual = our_logits(config, params, tokens)
    assert largest_difference(actual, expected) < TOLERANCE
