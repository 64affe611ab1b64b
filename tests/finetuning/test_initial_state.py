"""What fine-tuning starts from: a pre-trained model, all of it or some layers."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from gpt1_jax.finetuning import initial_state
from gpt1_jax.finetuning.heads import Head
from gpt1_jax.model import language_model

HEAD = Head(num_outputs=40, per_choice=False, dropout=0.1, extract_token=96)
VOCAB_SIZE = 94  # without the three special tokens

LAYERS = (2, 1, None)


@functools.partial(jax.jit, static_argnums=(0, 1))  # as a run
def transfer(model, numbers, pretrained, key):
    """The parameters to start from, by the number of layers; one program makes all."""
    return {
        str(number): initial_state.transfer_params(model, HEAD, pretrained, number, key)
        for number in numbers
    }


@pytest.fixture(scope="module")
def model(tiny_model_config):
    """A decoder of two layers, wide enough for statistics."""
    return tiny_model_config(
        vocab_size=VOCAB_SIZE + 3, num_layers=2, embed_dim=256, mlp_dim=32
    )


def made_up_params(model, vocab_size=VOCAB_SIZE):
    """Parameters of pre-training, numpy, none of them where a fresh one would be."""
    smaller = dataclasses.replace(model, vocab_size=vocab_size)
    shapes = jax.eval_shape(
        lambda: language_model.init_params(smaller, jax.random.key(0))
    )
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda p: rng.normal(0.5, 1, p.shape).astype(p.dtype), shapes)


@pytest.fixture(scope="module")
def pretrained_params(model):
    return made_up_params(model)


@pytest.fixture(scope="module")
def starts(model, pretrained_params):
    """`starts(seed)`: parameters by the number of layers, numpy."""

    @functools.cache
    def make(seed):
        key = jax.random.key(seed)
        return jax.device_get(transfer(model, LAYERS, pretrained_params, key))

    return make


def assert_copied(ours, theirs):
    """Bit for bit."""
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


def assert_fresh(params):
    """As initialised: kernels N(0, 0.02^2), gains 1, biases 0."""
    for path, leaf in jax.tree.leaves_with_path(params):
        kind = path[-1].key
        if kind in ("bias", "scale"):
            np.testing.assert_array_equal(leaf, float(kind == "scale"))
        else:
            assert float(leaf.std()) == pytest.approx(0.02, rel=0.1)
            assert abs(float(leaf.mean())) < 3e-3


@pytest.mark.parametrize("layers", LAYERS)
def test_start_params_copy_embeddings_and_the_first_layers(
    starts, pretrained_params, layers
):
    start = starts(0)[str(layers)]
    decoder = start["transformer"]
    assert_fresh({"specials": decoder["wte"][VOCAB_SIZE:], "head": start["head"]})
    words = {"wte": decoder["wte"][:VOCAB_SIZE], "wpe": decoder["wpe"]}
    if layers is None:
        assert_fresh(words)
    else:
        assert_copied(words, {name: pretrained_params[name] for name in words})
    for number in range(2):
        name = f"h_{number}"
        if number < (layers or 0):
            assert_copied(decoder[name], pretrained_params[name])
        else:
            assert_fresh(decoder[name])


def test_start_params_of_an_lstm(tiny_model_config):
    """It has a layer, and no positions; here all are copied, or embeddings alone."""
    model = tiny_model_config(kind="lstm", embed_dim=256)
    pretrained = made_up_params(model, VOCAB_SIZE)
    found = transfer(model, (1, 0), pretrained, jax.random.key(0))
    for layers, start in jax.device_get(found).items():
        decoder = start["transformer"]
        assert decoder.keys() == {"wte", "h_0"}
        assert_fresh({"specials": decoder["wte"][VOCAB_SIZE:], "head": start["head"]})
        assert_copied(decoder["wte"][:VOCAB_SIZE], pretrained["wte"])
        if layers == "1":
            assert_copied(decoder["h_0"], pretrained["h_0"])
        else:
            kernel = decoder["h_0"]["lstm"]["c_hidden"]["kernel"]
            assert float(kernel.std()) == pytest.approx(24**-0.5, rel=0.1)


def test_key_draws_all_that_is_not_copied(model, pretrained_params, starts):
    again = transfer(model, LAYERS, pretrained_params, jax.random.key(0))
    assert_copied(jax.device_get(again), starts(0))

    def fresh(seed):
        start = starts(seed)["1"]
        decoder = start["transformer"]
        kernels = decoder["h_1"]["mlp"]["c_fc"]["kernel"], start["head"]["kernel"]
        return decoder["wte"][VOCAB_SIZE:], *kernels

    for one, other in zip(fresh(0), fresh(1), strict=True):
        assert float(np.abs(one - other).max()) > 0.02


@pytest.mark.parametrize(
    ("transfer_layers", "number"),
    [("all", 2), ("none", None), ("0", 0), ("1", 1), ("2", 2)],
)
def test_num_transferred_counts_layers(model, transfer_layers, number):
    assert initial_state.num_transferred(transfer_layers, model.depth) == number
