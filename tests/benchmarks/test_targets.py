"""Machines to compile for: who stands in for them, and what they need."""

from types import SimpleNamespace

import jax
import pytest

from benchmarks.compiler import targets
from benchmarks.compiler.targets import TARGETS
from gpt1_jax.parallel import devices


def test_the_package_is_told_the_targets_backend_and_memory():
    here = jax.default_backend(), devices.memory_bytes()
    with targets.in_place_of(TARGETS["v6e-8"]):
        assert jax.default_backend() == "tpu"
        assert devices.memory_bytes() == 32 * 10**9
    assert (jax.default_backend(), devices.memory_bytes()) == here


@pytest.mark.parametrize("name", [n for n, t in TARGETS.items() if t.chip])
def test_rates_of_products_are_those_of_the_package(monkeypatch, name):
    kinds = {"v5e": "TPU v5 lite", "v6e": "TPU v6 lite", "v5p": "TPU v5"}
    kind = kinds.get(name[:3], f"NVIDIA {name[:4].upper()}")
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(device_kind=kind)])
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    assert TARGETS[name].chip.flops_per_second == devices.peak_flops()
