"""Small models, and what tests of a model compute with them."""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gpt1_jax.config.sections import DEFAULT_SAMPLING, OptimizerConfig
from gpt1_jax.model import execution, language_model
from gpt1_jax.model.execution import Execution
from gpt1_jax.model.language_model import apply, logits
from gpt1_jax.ops.dropout import step_noise

PAPER = dict(  # sec. 4.1
    vocab_size=40478,
    num_layers=12,
    num_heads=12,
    embed_dim=768,
    mlp_dim=3072,
    max_seq_len=512,
)
KIND = dict(kind="transformer", lstm_units=24)
WAYS = dict(  # of running a model; its parameters do not depend on them
    embed_dropout=0.1,
    attn_dropout=0.1,
    resid_dropout=0.1,
    embed_dropout_on="sum",
    attention_form="blocked",
    layer_norm_form="plain",
    softmax_rows="tokens",
    loss_chunk=0,
    dtype="float32",
    layer_loop="unrolled",
    remat=False,
)
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
        name = "/".join(k.key for k in path)
        number = sum(ord(letter) * 31**i for i, letter in enumerate(name)) % 2**31
        noise = jax.random.normal(jax.random.fold_in(key, number), leaf.shape)
        return leaf + {"scale": 0.1, "bias": 0.02}.get(path[-1].key, 0.0) * noise

    return jax.tree.map_with_path(perturb, params)


def made_up_params(init, config, *more, seed=1, spread=0):
    """As `init(config, *more, key)` draws them, from NumPy: nothing is compiled.

    Matrices N(0, 0.02^2), an LSTM's as large as the square root of their inputs; gains
    1 and biases 0, or with `spread=1` as those of `perturbed`.
    """
    shapes = jax.eval_shape(
        lambda key: init(usual(config), *more, key), jax.random.key(0)
    )
    rng = np.random.default_rng(seed)

    def draw(path, leaf):
        name = path[-1].key
        size = {"scale": 0.1 * spread, "bias": 0.02 * spread}.get(name, 0.02)
        if any(key.key == "lstm" for key in path) and name not in ("scale", "bias"):
            size = leaf.shape[0] ** -0.5
        drawn = (name == "scale") + size * rng.standard_normal(leaf.shape)
        return drawn.astype(np.float32)

    return jax.tree.map_with_path(draw, shapes)


def drawn_params(config, seed=0):
    """As large as `perturbed` ones of a language model; nothing is compiled."""
    init = language_model.init_params
    return made_up_params(init, config, seed=seed, spread=1)


# An LSTM, with sizes that no Transformer has: they do not matter.
LSTM = {"kind": "lstm", "num_layers": 3, "num_heads": 5, "mlp_dim": 7}


def with_moving_gates(params):
    """An LSTM's matrices, large enough for the gates to open and shut."""
    return jax.tree.map_with_path(
        lambda path, leaf: leaf * {"kernel": 2, "wte": 5}.get(path[-1].key, 1),
        perturbed(params),
    )


def random_tokens(shape=(4, 16), vocab_size=97, seed=0):
    return jnp.asarray(np.random.default_rng(seed).integers(0, vocab_size, shape))


class Observed(NamedTuple):
    """What a model computes for some tokens, and the gradient of its loss."""

    hidden: jax.Array
    logits: jax.Array
    loss: jax.Array  # mean over the predicted tokens, nats
    gradient: Any


@functools.partial(jax.jit, static_argnums=0)
def forward(config, params, tokens, noise=None):
    """Hidden states and logits."""
    output = apply(config, params, tokens, Execution(config, noise))
    return output.hidden, logits(config, output)


def hidden_states(config, params, tokens, noise=None):
    return forward(config, params, tokens, noise)[0]


def all_logits(config, params, tokens, noise=None):
    return forward(config, params, tokens, noise)[1]


@functools.partial(jax.jit, static_argnums=0)
def observe(config, params, tokens, noise=None):
    """All in one program: compiling is what takes the time."""

    def mean_loss(params):
        output = apply(config, params, tokens, Execution(config, noise))
        nll = language_model.next_token_nll(config, output, tokens)
        return nll[:, :-1].mean(), (output.hidden, logits(config, output))

    gradients = jax.value_and_grad(mean_loss, has_aux=True)
    (loss, observed), gradient = gradients(params)
    return Observed(*observed, loss, gradient)


def usual(config):
    """The model run as usual: so one program makes the parameters for all ways."""
    return dataclasses.replace(config, **WAYS)


def layers_as_usual(config):
    """The same training, masks included, with layers and the loss computed as usual."""
    ways = ("attention_form", "layer_loop", "remat", "loss_chunk")
    return dataclasses.replace(config, **{way: WAYS[way] for way in ways})


def count_params(params):
    """Number of parameters in a tree of arrays or of their shapes."""
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def sampling_config(**values):
    """Samples eight tokens from the whole vocabulary, unless told otherwise."""
    usual = dict(max_new_tokens=8, do_sample=True, top_k=0)
    return dataclasses.replace(DEFAULT_SAMPLING, **{**usual, **values})


def optimizer_config(**values):
    """The optimizer of pre-training (sec. 4.1; opt.py), unless told otherwise."""
    usual = dict(
        name="released_adam",
        arguments="",
        learning_rate=2.5e-4,
        b1=0.9,
        b2=0.999,
        eps=1e-8,
        weight_decay=0.01,
        clip_norm=1.0,
        schedule="cosine",
        warmup_steps=2000,
        warmup_fraction=0.0,
        final_fraction=0.0,
    )
    return OptimizerConfig(**{**usual, **values})


def record_dropout(monkeypatch, config, tokens):
    """[(site, rate, shape)] of one forward pass at abstract values."""
    calls = []

    def spy(x, rate, noise, site, **kwargs):
        if noise is not None:  # Flax also shapes the parameters, without noise
            calls.append((site, rate, x.shape))
        return x

    monkeypatch.setattr(execution, "dropout", spy)
    one_layer, key = dataclasses.replace(config, num_layers=1), jax.random.key(0)
    params = jax.eval_shape(lambda: language_model.init_params(one_layer, key))
    params |= {f"h_{layer}": params["h_0"] for layer in range(config.depth)}
    how = Execution(config, step_noise(0, jnp.int32(0), tokens.shape[0]))
    jax.eval_shape(lambda p: apply(config, p, tokens, how), params)
    return calls
