"""Which form computes LayerNorm of a residual sum where."""

import warnings
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from gpt1_jax.kernels import layer_norm_gpu
from gpt1_jax.kernels.layer_norm import fused_residual_layer_norm
from gpt1_jax.ops.dropout import dropout, step_noise
from gpt1_jax.ops.layer_norm import plain_layer_norm


def normed():
    rng = np.random.default_rng(0)
    x, output = rng.normal(size=(2, 3, 5, 32)).astype(np.float32)
    branch_bias, scale, bias = rng.normal(size=(3, 32)).astype(np.float32)

    @jax.jit
    def both(noise):
        where = 0.1, noise, 5
        expected = x + dropout(output + branch_bias, *where)
        expected = plain_layer_norm(expected, scale, bias, x.dtype)
        arrays = x, output, branch_bias, scale, bias
        return fused_residual_layer_norm(*arrays, *where), expected

    return both(step_noise(0, np.int32(3), len(x)))


def test_where_there_is_no_kernel_the_functions_it_combines_compute_it():
    """And a warning says why."""
    with pytest.warns(UserWarning, match="LayerNorm without kernels: there are none"):
        np.testing.assert_allclose(*normed(), atol=2e-6)


def test_a_gpu_has_kernels(monkeypatch):
    device = SimpleNamespace(compute_capability="9.0", device_kind="H100")
    monkeypatch.setattr(jax, "local_devices", lambda: [device])
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    called, ours = [], layer_norm_gpu.residual_layer_norm
    monkeypatch.setattr(
        layer_norm_gpu, "residual_layer_norm", lambda *x: called.append(1) or ours(*x)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_allclose(*normed(), atol=2e-6)
    assert called == [1]
