"""Which form computes attention where."""

import warnings
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from gpt1_jax.kernels import attention_gpu, attention_tpu
from gpt1_jax.kernels.attention import fused_causal_attention
from gpt1_jax.ops.attention import causal_attention
from gpt1_jax.ops.dropout import step_noise


def attend():
    rng = np.random.default_rng(0)
    parts = rng.normal(size=(3, 2, 9, 4, 64)).astype(np.float32)
    noise = step_noise(0, np.int32(3), 2)

    @jax.jit
    def both(query, key, value, noise):
        arguments = query, key, value, 0.1, noise, 5
        return fused_causal_attention(*arguments), causal_attention(*arguments)

    return both(*parts, noise)


def test_where_there_is_no_kernel_blocks_compute_it():
    """And a warning says why."""
    with pytest.warns(UserWarning, match="Attention without kernels: there are none"):
        fused, blocked = attend()
    np.testing.assert_array_equal(fused, blocked)


@pytest.mark.parametrize(
    ("backend", "kernels"), [("tpu", attention_tpu), ("gpu", attention_gpu)]
)
def test_kernels_are_those_of_the_accelerator(monkeypatch, backend, kernels):
    device = SimpleNamespace(compute_capability="9.0", device_kind="H100")
    monkeypatch.setattr(jax, "local_devices", lambda: [device])
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    called, attention = [], kernels.attention
    monkeypatch.setattr(
        kernels, "attention", lambda *x: called.append(len(x)) or attention(*x)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fused, blocked = attend()
    assert called == [6]
    np.testing.assert_allclose(fused, blocked, atol=4e-6)
