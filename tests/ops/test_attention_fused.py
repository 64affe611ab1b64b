"""Which form computes attention where."""

import warnings
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from made_up_batches import needs_tensor_axis

from gpt1_jax.ops import attention_gpu, attention_tpu
from gpt1_jax.ops.attention import causal_attention
from gpt1_jax.ops.attention_fused import fused_causal_attention
from gpt1_jax.ops.dropout import step_noise
from gpt1_jax.parallel.mesh import batch_sharding, make_mesh, rows_by_device


def attend(shape=(2, 9, 4, 64)):
    query, key, value = jax.random.normal(jax.random.key(0), (3, *shape))
    noise = step_noise(0, jnp.int32(3), len(query))
    arguments = query, key, value, 0.1, noise, 5
    return fused_causal_attention(*arguments), causal_attention(*arguments)


@pytest.mark.parametrize(
    ("backend", "shape", "why"),
    [
        ("cpu", (2, 9, 4, 64), "there are none for a CPU"),
        ("tpu", (2, 9, 3, 64), "and there are 3"),
        ("gpu", (2, 9, 4, 256), "heads of 256 dimensions"),
    ],
)
def test_where_there_is_no_kernel_blocks_compute_it(monkeypatch, backend, shape, why):
    """And a warning says why."""
    device = SimpleNamespace(compute_capability="9.0", device_kind="H100")
    monkeypatch.setattr(jax, "local_devices", lambda: [device])
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    with pytest.warns(UserWarning, match=f"attention without kernels: .*{why}"):
        fused, blocked = attend(shape)
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


@needs_tensor_axis
def test_heads_that_devices_share_are_computed_in_blocks(monkeypatch):
    """The compiler would have to split the kernels, and cannot."""
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    mesh = make_mesh(tensor_parallelism=2)

    def on_device(_, x):
        return fused_causal_attention(x, x, x, 0.0, None, 0)

    x = jax.device_put(jnp.ones((8, 20, 2, 128)), batch_sharding(mesh))
    with pytest.warns(UserWarning, match="devices that share the heads"):
        jax.jit(rows_by_device(mesh, on_device)).lower(jnp.zeros(1), x)
