"""Recorded and edited activations against hooks on transformers' PyTorch model.

For each name, `HOOKED` has the module of `OpenAIGPTLMHeadModel` whose input or output
the activation is.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from torch_models import (
    TOLERANCE,
    largest_difference,
    perturbed_params,
    torch,
    torch_model,
)

from gpt1_jax.model import interventions, language_model

LAYERS, HEADS, WIDTH, LENGTH = 2, 4, 64, 24


class Place(NamedTuple):
    """Where in the PyTorch model an activation is."""

    module: str
    is_input: bool = False
    part: int | None = None  # of q, k and v, which one array holds
    has_heads: bool = False  # in the array's last axis


HOOKED = {
    "embedding/tokens": Place("tokens_embed"),
    "embedding/positions": Place("positions_embed"),
    "embedding": Place("drop", is_input=True),
}
for _layer in range(LAYERS):
    HOOKED |= {
        f"h_{_layer}/{name}": place._replace(module=f"h.{_layer}.{place.module}")
        for name, place in {
            "attn/q": Place("attn.c_attn", part=0, has_heads=True),
            "attn/k": Place("attn.c_attn", part=1, has_heads=True),
            "attn/v": Place("attn.c_attn", part=2, has_heads=True),
            "attn/probs": Place("attn.attn_dropout", is_input=True),
            "attn/heads": Place("attn.c_proj", is_input=True, has_heads=True),
            "attn/out": Place("attn.c_proj"),
            "ln_1/out": Place("ln_1"),
            "mlp/hidden": Place("mlp.c_proj", is_input=True),
            "mlp/out": Place("mlp.c_proj"),
            "out": Place("ln_2"),
        }.items()
    }
MATRICES = {"wte": "tokens_embed", "wpe": "positions_embed"}


@pytest.fixture(scope="module")
def both(tiny_model_config):
    """(config, our params, their model, tokens)"""
    config = tiny_model_config(
        vocab_size=211,
        num_layers=LAYERS,
        num_heads=HEADS,
        embed_dim=WIDTH,
        mlp_dim=4 * WIDTH,
        max_seq_len=LENGTH,
    )
    params = perturbed_params(config, kernel_scale=5.0)
    for name in MATRICES:  # so that attention in the first layer is not uniform
        params[name] *= 5
    tokens = np.random.default_rng(1).integers(0, 211, (2, LENGTH))
    return config, params, torch_model(config, params), tokens


def hook(model, name, function):
    """Has a function replace an activation wherever the model computes it."""
    place = HOOKED[name]

    def change(array):
        parts = [array] if place.part is None else list(array.chunk(3, dim=-1))
        old = parts[place.part or 0]
        shape = (*old.shape[:-1], HEADS, -1) if place.has_heads else old.shape
        parts[place.part or 0] = function(old.view(shape)).reshape(old.shape)
        return torch.cat(parts, dim=-1)

    module = model.transformer.get_submodule(place.module)
    if place.is_input:
        return module.register_forward_pre_hook(lambda _, x: (change(x[0]), *x[1:]))
    return module.register_forward_hook(lambda _, __, output: change(output))


def test_recorded_arrays_are_those_of_hooks(both):
    config, params, model, tokens = both
    theirs = {
        name: model.transformer.get_submodule(module).weight.detach()
        for name, module in MATRICES.items()
    }

    def keep(name, array):
        theirs[name] = array.clone()
        return array

    hooks = [hook(model, name, functools.partial(keep, name)) for name in HOOKED]
    with torch.no_grad():
        model(torch.tensor(tokens))
    for each in hooks:
        each.remove()
    record = jax.jit(lambda p: interventions.forward(config, p, tokens, ["*"])[1])
    ours = record(params)
    assert set(ours) == set(theirs)
    for name, array in ours.items():
        their_array = np.broadcast_to(theirs[name].numpy(), array.shape)
        assert np.abs(their_array).max() > 0.05, name
        assert largest_difference(array, their_array) < TOLERANCE, name


# One of each name in a layer at random: each is edited.
NAMES = [name for name in (*MATRICES, *HOOKED) if not name.startswith("h_0")]


def edit(x):
    """Of arrays of JAX, and of tensors."""
    return 0.5 * x + 0.1


@functools.partial(jax.jit, static_argnums=0)
def edited_logits(config, params, tokens, number):
    """Those with an edit of one of the names, in one program for all."""
    edits = {
        name: lambda x, each=each: jnp.where(each == number, edit(x), x)
        for each, name in enumerate(NAMES)
    }
    output, _ = interventions.forward(config, params, tokens, edits=edits)
    return language_model.logits(config, output)


@pytest.mark.parametrize("name", NAMES)
def test_edits_are_those_of_hooks(both, name):
    config, params, model, tokens = both
    ours = edited_logits(config, params, tokens, NAMES.index(name))
    with torch.no_grad():
        clean = model(torch.tensor(tokens)).logits.numpy()
        if name in MATRICES:
            weight = model.transformer.get_submodule(MATRICES[name]).weight
            before = weight.clone()
            weight.copy_(edit(weight))
            theirs = model(torch.tensor(tokens)).logits.numpy()
            weight.copy_(before)
        else:
            with hook(model, name, edit):
                theirs = model(torch.tensor(tokens)).logits.numpy()
    assert largest_difference(theirs, clean) > 1e-3
    assert largest_difference(ours, theirs) < TOLERANCE
