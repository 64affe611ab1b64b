"""Greedy tokens and hidden states equal those of transformers' PyTorch model."""

import jax
import numpy as np
import pytest
from tiny_models import sampling_config
from torch_models import perturbed_params, torch, torch_model

from gpt1_jax.inference.decoding import Continuation, Decoder
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


@pytest.mark.parametrize("penalty", [1.0, 1.3])
def test_greedy_tokens_equal_those_of_transformers(both, penalty):
    config, params, model = both
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


def test_hidden_states_equal_those_of_transformers(both):
    config, params, model = both
    tokens = np.random.default_rng(1).integers(0, 211, (2, 40))
    hidden_states = jax.jit(interventions.hidden_states, static_argnums=0)
    ours = hidden_states(config, params, tokens)
    with torch.no_grad():
        theirs = model(torch.tensor(tokens), output_hidden_states=True).hidden_states
    assert len(ours) == len(theirs) == 3
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other.numpy(), atol=1e-5)
