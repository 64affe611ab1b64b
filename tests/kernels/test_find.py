"""Which kernels are chosen where."""

import warnings
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from gpt1_jax.kernels import attention_tpu, layer_norm_gpu
from gpt1_jax.kernels.find import kernels_here

MODULES = {"tpu": "attention_tpu", "gpu": "layer_norm_gpu"}


@pytest.mark.parametrize(
    ("backend", "sizes", "module"),
    [
        ("tpu", ((2, 9, 4, 64), jnp.dtype("float32")), attention_tpu),
        ("gpu", (768,), layer_norm_gpu),
    ],
)
def test_kernels_are_those_of_the_accelerator(monkeypatch, backend, sizes, module):
    device = SimpleNamespace(compute_capability="9.0", device_kind="H100")
    monkeypatch.setattr(jax, "local_devices", lambda: [device])
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert kernels_here("this", MODULES, *sizes) is module


@pytest.mark.parametrize(
    ("backend", "sizes", "why"),
    [
        ("cpu", (), "there are none for a CPU"),
        ("tpu", ((2, 9, 3, 64), jnp.dtype("float32")), "and there are 3"),
        ("gpu", (33,), "half of 33"),
    ],
)
def test_where_there_are_none_a_warning_says_why(monkeypatch, backend, sizes, why):
    device = SimpleNamespace(compute_capability="9.0", device_kind="H100")
    monkeypatch.setattr(jax, "local_devices", lambda: [device])
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    with pytest.warns(UserWarning, match=f"this without kernels: .*{why}"):
        assert kernels_here("this", MODULES, *sizes) is None
