"""Tokens, states and attention maps equal those of transformers' PyTorch model."""

import numpy as np
import pytest
from tiny_models import sampling_config
from torch_models import perturbed_params, torch, torch_model

from gpt1_jax.data.words import ReadingWindow
from gpt1_jax.inference.decoding import Continuation, Decoder
from gpt1_jax.inference.features import Reader
from gpt1_jax.inference.forward import forward_ids
from gpt1_jax.model import interventions


@pytest.fixture(scope="module")
def both(tiny_model_config):
    """Our configuration and parameters, and their model.

    Large positions: otherwise a model of random weights repeats itself.
    """
    config = tiny_model_config(
        vocab_size=211, embed_dim=64, mlp_dim=256, max_seq_len=128
    )
    params = perturbed_params(config, kernel_scale=4.0)
    params = {**params, "wpe": 20 * params["wpe"]}
    return config, params, torch_model(config, params)


def test_greedy_tokens_equal_those_of_transformers(both):
    """With a penalty; without one, see the greedy tokens of test_decoding."""
    (config, params, model), penalty = both, 1.3
    sampling = sampling_config(
        do_sample=False, max_new_tokens=30, repetition_penalty=penalty
    )
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 211, length).tolist() for length in (1, 20, 40)]
    ours = [Continuation("", prompt, seed=0) for prompt in prompts]
    for _ in Decoder(config, 211, sampling, batch_size=4)(params, ours):
        pass
    for prompt, tokens in zip(prompts, (each.tokens for each in ours), strict=True):
        theirs = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            do_sample=False,
            max_new_tokens=30,
            repetition_penalty=penalty,
            pad_token_id=0,
        )
        assert tokens == theirs[0, len(prompt) :].tolist()
    assert all(len(set(each.tokens)) > 10 for each in ours)


@pytest.fixture(scope="module")
def theirs(both):
    """What their model says of each text."""
    _, _, model = both
    rng, found = np.random.default_rng(1), []
    for length in (1, 7, 40, 41, 128):
        ids = rng.integers(0, 211, length).tolist()
        with torch.no_grad():
            how = {"output_hidden_states": True, "output_attentions": True}
            found.append((ids, model(torch.tensor([ids]), **how)))
    return found


@pytest.mark.parametrize(
    ("layers", "mean"), [((0, 1, 2), False), ((2, 0), True)], ids=str
)
def test_hidden_states_equal_those_of_transformers(both, theirs, layers, mean):
    """The state of the last token of a span, or the mean over all of them."""
    config, params, _ = both
    windows, expected = [], []
    for ids, output in theirs:
        for stop in {1, len(ids) // 2 or 1, len(ids)}:
            spans = [(0, stop), (stop - 1, stop), (stop // 3, stop)]
            windows.append(ReadingWindow(ids, 0, spans=spans))
            states = np.concatenate(output.hidden_states)[list(layers)]
            of_spans = [states[:, first:stop] for first, stop in spans]
            expected.append([x.mean(1) if mean else x[:, -1] for x in of_spans])
    found = list(Reader(config, params, layers, mean, batch_tokens=256)(windows))
    assert [window for window, _ in found] == windows
    for (_, states), own in zip(found, expected, strict=True):
        np.testing.assert_allclose(states, np.stack(own, axis=1), atol=1e-5)


def test_attention_equals_theirs(both, theirs):
    config, params, _ = both
    for ids, output in theirs[:3]:
        found = forward_ids(config, params, {"the text": ids}, [interventions.MAPS])
        ours = np.concatenate([*found.recorded.values()])
        np.testing.assert_allclose(ours, np.concatenate(output.attentions), atol=1e-5)
