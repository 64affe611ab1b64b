"""Where kernels run, and how those for GPUs do."""

import importlib.util
import re
import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas

from gpt1_jax.kernels import attention_gpu, attention_tpu, layer_norm_gpu, pallas_gpu


@pytest.mark.parametrize(
    ("capability", "reason"),
    [
        ("7.5", r"8\.0 \(A100\) or newer, and device has 7\.5"),
        (None, "for NVIDIA GPUs, and this is a device"),
        ("8.0", "^$"),
        ("10.0", "^$"),
    ],
)
def test_refusal_says_what_is_in_the_way(capability, reason, monkeypatch):
    device = SimpleNamespace(compute_capability=capability, device_kind="device")
    monkeypatch.setattr(jax, "local_devices", lambda: [device])
    for refused in (
        pallas_gpu.refusal(),
        attention_gpu.refusal((1, 2, 2, 64), "float32"),
        layer_norm_gpu.refusal((2, 768), "float32"),
    ):
        assert re.search(reason, refused)


@pytest.mark.parametrize(
    ("module", "shape", "dtype", "reason"),
    [
        (attention_gpu, (1, 2, 2, 128), "float32", "^$"),
        (attention_gpu, (1, 2, 2, 129), "float32", "129 dimensions in float32 are too"),
        (layer_norm_gpu, (2, 32), "float32", "^$"),
        (layer_norm_gpu, (2, 1600), "float32", "half of 1600 is not a few times a pow"),
        (layer_norm_gpu, (2, 16), "float32", "half of 16"),
        (attention_tpu, (64, 512, 12, 64), "float32", "^$"),
        (attention_tpu, (64, 1024, 16, 64), "bfloat16", "^$"),
        (attention_tpu, (1, 9, 2, 64), "float32", "vectors by 4, and there are 2"),
        (attention_tpu, (1, 1025, 2, 128), "float32", "1025 tokens do not fit"),
        (attention_tpu, (64, 1024, 32, 128), "bfloat16", "1024 tokens do not fit"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(module, shape, dtype, reason, monkeypatch):
    device = SimpleNamespace(compute_capability="9.0", device_kind="device")
    monkeypatch.setattr(jax, "local_devices", lambda: [device])
    assert re.search(reason, module.refusal(shape, jnp.dtype(dtype)))


def test_a_jax_without_triton_is_refused_not_an_error(monkeypatch):
    """The module is imported anew where Pallas has no such backend."""
    monkeypatch.delattr(pallas, "triton", raising=False)
    monkeypatch.setitem(sys.modules, "jax.experimental.pallas.triton", None)
    spec = importlib.util.spec_from_file_location("anew", pallas_gpu.__file__)
    anew = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(anew)
    assert anew.refusal().endswith("no Triton backend of Pallas any more")
