"""Features and attention maps equal those of transformers' PyTorch model."""

import numpy as np
import pytest
from torch_models import perturbed_params, torch, torch_model

from gpt1_jax.data.words import ReadingWindow
from gpt1_jax.inference.features import Reader
from gpt1_jax.inference.forward import forward_ids
from gpt1_jax.model import interventions


@pytest.fixture(scope="module")
def both(tiny_model_config):
    """Our configuration and parameters, and their model."""
    config = tiny_model_config(
        vocab_size=211, embed_dim=64, mlp_dim=256, max_seq_len=128
    )
    params = perturbed_params(config, kernel_scale=4.0)
    params = {**params, "wpe": 20 * params["wpe"]}
    return config, params, torch_model(config, params)


def texts():
    rng = np.random.default_rng(1)
    return [rng.integers(0, 211, length).tolist() for length in (1, 7, 40, 41, 128)]


def of_theirs(model, ids, what):
    with torch.no_grad():
        output = model(torch.tensor([ids]), **{f"output_{what}": True})
    return [array[0].numpy() for array in output[what]]


@pytest.mark.parametrize("mean", [False, True])
def test_states_of_every_layer_equal_theirs(both, mean):
    config, params, model = both
    spans = [
        [(0, len(ids))] if mean else [(i, i + 1) for i in range(len(ids))]
        for ids in texts()
    ]
    windows = (
        ReadingWindow(ids, 0, spans=each)
        for ids, each in zip(texts(), spans, strict=True)
    )
    ours = Reader(config, params, (0, 1, 2), mean)(windows)
    for ids, (_, states) in zip(texts(), ours, strict=True):
        theirs = np.stack(of_theirs(model, ids, "hidden_states"))
        expected = theirs.mean(axis=1, keepdims=True) if mean else theirs
        np.testing.assert_allclose(states, expected, atol=1e-5)


def test_attention_equals_theirs(both):
    config, params, model = both
    for ids in texts()[:3]:
        theirs = np.stack(of_theirs(model, ids, "attentions"))
        found = forward_ids(config, params, {"the text": ids}, [interventions.MAPS])
        ours = np.concatenate([*found.recorded.values()])
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
