"""What devices of a known kind can do, and what a CPU has."""

import os
from types import SimpleNamespace

import jax
import pytest

from gpt1_jax.parallel.devices import memory_bytes, peak_flops


def devices_of(monkeypatch, number, **attributes):
    devices = [SimpleNamespace(**attributes)] * number
    for name in ("devices", "local_devices"):
        monkeypatch.setattr(jax, name, lambda: devices)
    for name in ("device_count", "local_device_count"):
        monkeypatch.setattr(jax, name, lambda: number)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("TPU v4", 275e12),
        ("TPU v5 lite", 197e12),
        ("TPU v5p", 459e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
    ],
)
def test_peak_flops_is_that_of_the_longest_matching_name(monkeypatch, kind, expected):
    devices_of(monkeypatch, 4, device_kind=kind)
    assert peak_flops() == 4 * expected


def test_peak_flops_of_an_unknown_device_is_none(monkeypatch):
    assert peak_flops() is None  # a CPU
    devices_of(monkeypatch, 1, device_kind="Abacus")
    assert peak_flops() is None


def test_memory_bytes_is_the_limit_of_an_accelerator(monkeypatch):
    stats = {"bytes_limit": 80 * 2**30, "bytes_in_use": 5}
    devices_of(monkeypatch, 2, memory_stats=lambda: stats)
    assert memory_bytes() == 80 * 2**30


def test_memory_bytes_of_a_cpu_is_its_share_of_the_machine():
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert memory_bytes() == machine // 8
