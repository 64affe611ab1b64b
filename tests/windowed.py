"""What a copied package computes, in every form, where `may_attend` was changed.

Run in the copy by test_attention_rule.py; prints differences as JSON.
"""

import dataclasses
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
from tiny_models import KIND, WAYS, made_up_params

import gpt1_jax
from gpt1_jax.config import ModelConfig
from gpt1_jax.config.sections import DEFAULT_SAMPLING
from gpt1_jax.data.words import ReadingWindow
from gpt1_jax.finetuning.unpad import BandShapes, Unpadded, make_unpadding, pad
from gpt1_jax.inference.decoding import Continuation, Decoder, prepare
from gpt1_jax.inference.scoring import Scorer
from gpt1_jax.model import language_model
from gpt1_jax.model.execution import Execution
from gpt1_jax.ops.dropout import step_noise
from gpt1_jax.tasks.batches import lengths_by_group, real_indices

SIZES = dict(
    vocab_size=97,
    num_layers=2,
    num_heads=4,
    embed_dim=32,
    mlp_dim=64,
    max_seq_len=192,  # more than a block of positions
)
MODEL = ModelConfig(**KIND, **WAYS, **SIZES)
RNG = np.random.default_rng(0)


def large(params):
    """Kernels large enough for attention to be sharp."""
    return jax.tree.map_with_path(
        lambda path, x: x * (12 if path[-1].key == "kernel" else 3), params
    )


PARAMS = jax.tree.map(
    jnp.asarray, large(made_up_params(language_model.init_params, MODEL))
)
TOKENS = jnp.asarray(RNG.integers(0, 97, (3, 192)))


@jax.jit
def log_probs(tokens):
    """[N, T, V], each token's successor given all before it, by the formula."""
    plain = dataclasses.replace(MODEL, attention_form="plain")
    output = language_model.apply(plain, PARAMS, tokens)
    return jax.nn.log_softmax(language_model.logits(plain, output))


def of_continuation(ids, first):
    """The log-probabilities of ids[first:], each given all before it."""
    padded = np.zeros((1, 192), int)
    padded[0, : len(ids)] = ids
    found = np.asarray(log_probs(padded))[0]
    return [found[place - 1, ids[place]] for place in range(first, len(ids))]


def blocked():
    """The default form: a loss and its gradients, as shares of the largest."""

    def loss(params, form):
        model = dataclasses.replace(MODEL, attention_form=form)
        how = Execution(model, step_noise(0, jnp.int32(0), 3))
        hidden = language_model.apply(model, params, TOKENS, how).hidden
        return (hidden * jnp.cos(jnp.arange(hidden.size).reshape(hidden.shape))).sum()

    gradients = jax.jit(jax.value_and_grad(loss), static_argnums=1)
    (one, plain), (other, auto) = (gradients(PARAMS, f) for f in ("plain", "auto"))
    scaled = jax.tree.map(
        lambda x, y: float(abs(x - y).max() / (1 + abs(x).max())), plain, auto
    )
    differences = *jax.tree.leaves(scaled), float(one - other) / (1 + float(abs(one)))
    return max(map(abs, differences))


def sampled(batch_size):
    """Tokens drawn with a cache; of 16 rows or more it lies in lanes."""
    sampling = dataclasses.replace(DEFAULT_SAMPLING, max_new_tokens=90)
    decoder = Decoder(MODEL, 97, sampling, batch_size)
    rows = [
        Continuation("", RNG.integers(0, 97, length).tolist(), seed)
        for seed, length in enumerate([40, 45, 50])
    ]
    for _ in decoder(prepare(MODEL, PARAMS), rows):
        pass
    differences = [
        np.abs(row.log_probs - np.array(of_continuation([*row.ids, *row.tokens], n)))
        for row, n in zip(rows, [40, 45, 50], strict=True)
    ]
    assert [len(row.tokens) for row in rows] == [90] * 3
    return max(each.max() for each in differences)


def scored(context_len, tail_len):
    """Windows that share their beginning."""
    context = RNG.integers(0, 97, context_len).tolist()
    windows = [
        ReadingWindow([*context, *RNG.integers(0, 97, tail_len).tolist()], context_len)
        for _ in range(4)
    ]
    scores = Scorer(MODEL, 97)(PARAMS, windows)
    return max(
        np.abs(found.log_probs - of_continuation(window.ids, context_len)).max()
        for found, window in zip(scores, windows, strict=True)
    )


def unpadded(bands):
    """Sequences of a batch without their padding."""
    lengths = np.array([[192], [70], [130]])
    groups = lengths_by_group(lengths, 1, parts=1)
    indices = jnp.asarray(real_indices(groups, 192, groups.sum()))
    unpadding = make_unpadding(indices, jnp.asarray(lengths[:, 0]), 192, bands)
    noise = step_noise(0, jnp.int32(0), 3)

    @jax.jit
    def both(params):
        how = Unpadded(MODEL, noise, unpadding)
        hidden = language_model.apply(MODEL, params, TOKENS, how).hidden
        whole = language_model.apply(MODEL, params, TOKENS, Execution(MODEL, noise))
        real = jnp.arange(192) < jnp.asarray(lengths)
        return jnp.abs(jnp.where(real[..., None], pad(hidden, unpadding) - whole[0], 0))

    return float(both(PARAMS).max())


json.dump(
    {
        "package": gpt1_jax.__file__,
        "formula": np.asarray(log_probs(TOKENS))[0, 100, :5].tolist(),
        "gradients of the default form": blocked(),
        "sampled, in rows": float(sampled(1)),
        "sampled, in lanes": float(sampled(16)),
        "scored in a tree": float(scored(45, 12)),
        "scored after a shared context": float(scored(60, 40)),
        "scored in rows": float(scored(8, 70)),
        "without padding": unpadded(None),
        "in bands": unpadded(BandShapes(((1, 192), (2, 136)))),
    },
    sys.stdout,
)
