"""Parameters, operations and memory of a model at the paper's size."""

import dataclasses

import jax
import pytest
from tiny_models import PAPER, count_params, flat_params

from gpt1_jax.model.costs import (
    forward_bytes,
    num_logits,
    num_params,
    train_activation_bytes,
    train_flops_per_token,
)
from gpt1_jax.model.language_model import init_params
from gpt1_jax.training.optimizer import decay_mask


def test_params_at_paper_size_number_116534784(tiny_model_config, paper_params):
    config = tiny_model_config(**PAPER)
    assert train_flops_per_token(config, 512) == 752_753_664
    assert count_params(paper_params) == num_params(config) == 116_534_784
    assert count_params(paper_params["h_0"]) == 7_087_872
    sizes = {True: 0, False: 0}
    decayed = jax.tree.leaves(decay_mask(paper_params))
    for leaf, decays in zip(jax.tree.leaves(paper_params), decayed, strict=True):
        sizes[decays] += leaf.size
    assert sizes == {True: 116_414_976, False: 119_808}


@pytest.mark.parametrize(
    ("ways", "expected"),
    [
        (dict(), 12 * 16 * 512 * 768 * 4 + 3 * 512 * 40478 * 4),
        (dict(dtype="bfloat16"), 12 * 16 * 512 * 768 * 2 + 3 * 512 * 40478 * 4),
        (dict(remat=True, loss_chunk=128), 16 * 512 * 768 * 4 + 3 * 128 * 40478 * 4),
        (
            dict(attention_form="plain"),
            12 * (16 * 512 * 768 + 2 * 12 * 512**2) * 4 + 3 * 512 * 40478 * 4,
        ),
    ],
    ids=str,
)
def test_train_activation_bytes_at_paper_size(tiny_model_config, ways, expected):
    model = tiny_model_config(**PAPER, **ways)
    assert train_activation_bytes(model) == expected


def test_accelerators_keep_logits_in_the_dtype_of_products(
    tiny_model_config, monkeypatch
):
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    model = tiny_model_config(**PAPER, dtype="bfloat16")
    layers, logits = 12 * 16 * 512 * 768 * 2, 2 * 512 * 40478 * 2
    assert train_activation_bytes(model) == layers + logits


@pytest.fixture(scope="module")
def lstm(tiny_model_config):
    return tiny_model_config(**PAPER, kind="lstm", lstm_units=2048)


def test_params_of_the_lstm_at_paper_size_number_55737600(lstm):
    params = jax.eval_shape(lambda: init_params(lstm, jax.random.key(0)))
    assert count_params(params) == num_params(lstm) == 55_737_600
    decayed = flat_params(decay_mask(params))
    kernels = (f"h_0/lstm/{name}/kernel" for name in ("c_input", "c_hidden", "c_proj"))
    assert {name for name, decays in decayed.items() if decays} == {"wte", *kernels}
    # Each matrix is used once a token, whatever the context.
    weights = 768 * 8192 + 2048 * 8192 + 2048 * 768 + 768 * 40478
    for seq_len in (16, 512):
        assert train_flops_per_token(lstm, seq_len) == 3 * 2 * weights


def test_activation_bytes_of_the_lstm_do_not_depend_on_the_transformers_sizes(lstm):
    """The gates, what goes into them and their gradients are most of them."""
    gates, logits = 3 * 512 * 8192 * 4, 3 * 512 * 40478 * 4
    found = train_activation_bytes(lstm)
    assert gates + logits < found < 1.6 * gates + logits
    other = dataclasses.replace(lstm, num_layers=99, mlp_dim=1, remat=True)
    assert train_activation_bytes(other) == found
    assert forward_bytes(other) == forward_bytes(lstm) == 4 + 4 * (768 + 4 * 2048)
    assert num_logits(other) == num_logits(lstm) == 512 * 40478
