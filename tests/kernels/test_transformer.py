"""The Transformer with kernels in the place of the formulas."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest
from tiny_models import drawn_params, hidden_states, observe, random_tokens

from gpt1_jax.kernels import attention_gpu, layer_norm_gpu
from gpt1_jax.ops.dropout import step_noise


@pytest.mark.slow
def test_kernels_change_no_loss_and_no_gradient(monkeypatch, tiny):
    """Those for a GPU, interpreted: logits and gradients are the plain forms'."""
    tokens, noise = random_tokens(), step_noise(0, np.int32(0), 4)
    params = drawn_params(tiny())
    expected = observe(tiny(), params, tokens, noise)
    device = SimpleNamespace(compute_capability="9.0", device_kind="H100")
    monkeypatch.setattr(jax, "local_devices", lambda: [device])
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    called = set()

    def noted(kernel):
        return lambda *given: called.add(kernel) or kernel(*given)

    ours = attention_gpu.attention, layer_norm_gpu.residual_layer_norm
    monkeypatch.setattr(attention_gpu, "attention", noted(ours[0]))
    monkeypatch.setattr(layer_norm_gpu, "residual_layer_norm", noted(ours[1]))
    fused = tiny(attention_form="fused", layer_norm_form="fused")
    actual = observe(fused, params, tokens, noise)
    assert called == {*ours}
    pairs = zip(jax.tree.leaves(expected), jax.tree.leaves(actual), strict=True)
    for theirs, ours in pairs:
        np.testing.assert_allclose(ours, theirs, atol=2e-6, rtol=1e-5)


def test_without_kernels_the_same_is_computed(tiny):
    """On a CPU, with a warning for each function."""
    tokens, noise = random_tokens(), step_noise(0, np.int32(0), 4)
    params = drawn_params(tiny())
    expected = hidden_states(tiny(), params, tokens, noise)
    fused = tiny(attention_form="fused", layer_norm_form="fused")
    with (
        pytest.warns(UserWarning, match="^Attention without kernels: there are none"),
        pytest.warns(UserWarning, match="^LayerNorm without kernels: there are none"),
    ):
        actual = hidden_states(fused, params, tokens, noise)
    np.testing.assert_allclose(actual, expected, atol=2e-6)
