"""The Transformer with kernels in the place of the formulas."""

import warnings
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import hidden_states, made_up_params, perturbed, random_tokens

from gpt1_jax.model.execution import Execution
from gpt1_jax.model.language_model import apply, init_params, logits
from gpt1_jax.ops.dropout import step_noise


@pytest.fixture
def tiny_params(tiny_model_config):
    config = tiny_model_config()
    return jax.jit(lambda: perturbed(init_params(config, jax.random.key(0))))()


@pytest.mark.slow
def test_kernels_change_no_loss_and_no_gradient(
    monkeypatch, tiny_model_config, tiny_params
):
    """Those for a GPU, interpreted: logits and gradients are the plain forms'."""
    tokens, noise = random_tokens(), step_noise(0, jnp.int32(0), 4)

    def results(**how):
        config = tiny_model_config(**how)

        def loss(params):
            output = apply(config, params, tokens, Execution(config, noise))
            return jnp.square(logits(config, output)).mean()

        return jax.value_and_grad(loss)(tiny_params)

    expected = results()
    device = SimpleNamespace(compute_capability="9.0", device_kind="H100")
    monkeypatch.setattr(jax, "local_devices", lambda: [device])
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of kernels that are not there
        actual = results(attention_form="fused", layer_norm_form="fused")
    pairs = zip(jax.tree.leaves(expected), jax.tree.leaves(actual), strict=True)
    for theirs, ours in pairs:
        np.testing.assert_allclose(ours, theirs, atol=2e-6, rtol=1e-5)


def test_without_kernels_the_same_is_computed(tiny):
    """On a CPU, with a warning."""
    tokens, noise = random_tokens(), step_noise(0, np.int32(0), 4)
    params = made_up_params(init_params, tiny())
    expected = hidden_states(tiny(), params, tokens, noise)
    with pytest.warns(UserWarning, match="LayerNorm without kernels"):
        actual = hidden_states(tiny(layer_norm_form="fused"), params, tokens, noise)
    np.testing.assert_allclose(actual, expected, atol=2e-6)
