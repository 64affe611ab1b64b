"""Recorded and edited activations against hooks on transformers' PyTorch model.

For each name, `HOOKED` has the module of `OpenAIGPTLMHeadModel` whose input or output
the activation is.
"""

import functools
from typing import NamedTuple

import jax
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
from gpt1_jax.model.interventions import add, keep_heads, replace, zero

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
WITH_HEADS = ("attn/q", "attn/k", "attn/v", "attn/probs", "attn/heads")
LAST_AXES = {
    **dict.fromkeys(WITH_HEADS, (WIDTH // HEADS,)),
    "attn/probs": (LENGTH, LENGTH),
    "mlp/hidden": (4 * WIDTH,),
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


def random_change(name, rng):
    """A random edit of an activation: its kind, ours, and theirs."""
    last = name.removeprefix("h_0/").removeprefix("h_1/")
    kinds = ["zero", "add", "replace"]
    kinds += ["positions"] * (name not in MATRICES)
    kinds += ["heads", "keep_heads"] * (last in WITH_HEADS)
    kind = str(rng.choice(kinds))
    if kind == "zero":
        return kind, zero(), torch.zeros_like
    if kind in ("add", "replace"):
        value = rng.normal(0, 0.5, LAST_AXES.get(last, (WIDTH,))).astype(np.float32)
        tensor = torch.tensor(value)
        if kind == "add":
            return kind, add(value), lambda x: x + tensor
        return kind, replace(value), lambda x: tensor.expand_as(x)
    count = LENGTH if kind == "positions" else HEADS
    chosen = rng.choice(count, rng.integers(1, count), replace=False).tolist()
    # [N, H, T, T] or [N, T, H, K]
    axis = 2 if (last == "attn/probs") == (kind == "positions") else 1
    if kind == "keep_heads":
        kept = [head for head in range(HEADS) if head not in chosen]
        return kind, keep_heads(kept), zeroed(axis, chosen)
    return kind, zero(**{kind: chosen}), zeroed(axis, chosen)


def zeroed(axis, chosen):
    """A function that returns an array without some of its places along an axis."""
    return lambda x: x.index_fill(axis, torch.tensor(chosen), 0.0)


# One of each name in a layer at random: each is edited.
_DRAW = np.random.default_rng(15)
CHANGES = {
    place: random_change(place, _DRAW)
    for place in (
        name.replace("h_0", f"h_{_DRAW.integers(LAYERS)}")
        for name in (*MATRICES, *HOOKED)
        if not name.startswith("h_1")
    )
}


def test_random_edits_are_of_all_kinds():
    kinds = {"zero", "add", "replace", "positions", "heads", "keep_heads"}
    assert len(CHANGES) == 15 and {kind for kind, *_ in CHANGES.values()} == kinds


@pytest.mark.parametrize("name", CHANGES)
def test_random_edits_are_those_of_hooks(both, name):
    _, edit, their_edit = CHANGES[name]
    config, params, model, tokens = both

    def our_logits(params, edit):
        edits = {name: edit}
        output, _ = interventions.forward(config, params, tokens, edits=edits)
        return language_model.logits(config, output)

    ours = jax.jit(our_logits)(params, edit)
    with torch.no_grad():
        clean = model(torch.tensor(tokens)).logits.numpy()
        if name in MATRICES:
            weight = model.transformer.get_submodule(MATRICES[name]).weight
            before = weight.clone()
            weight.copy_(their_edit(weight))
            theirs = model(torch.tensor(tokens)).logits.numpy()
            weight.copy_(before)
        else:
            with hook(model, name, their_edit):
                theirs = model(torch.tensor(tokens)).logits.numpy()
    assert largest_difference(theirs, clean) > 1e-3
    assert largest_difference(ours, theirs) < TOLERANCE
