"""What devices of a known kind can do, and what a CPU has."""

import os
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.compilation_cache import compilation_cache

from gpt1_jax.ops.products import row_major
from gpt1_jax.parallel.devices import configure, describe, memory_bytes, peak_flops
from gpt1_jax.parallel.mesh import batch_sharding, make_mesh


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


@pytest.fixture
def cache_of_its_own():
    """Puts the settings of the cache and of the precision back after a test."""
    names = (
        "jax_compilation_cache_dir",
        "jax_default_matmul_precision",
        "jax_persistent_cache_min_compile_time_secs",
        "jax_remove_custom_partitioning_ptr_from_cache_key",
    )
    before = {name: jax.config.values[name] for name in names}
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_remove_custom_partitioning_ptr_from_cache_key", False)
    compilation_cache.reset_cache()
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


def test_configure_keeps_programs_where_the_next_process_finds_them(
    cache_of_its_own, tmp_path
):
    configure("default", str(tmp_path))
    x = jax.device_put(jnp.ones((8, 2, 3)), batch_sharding(make_mesh()))
    for _ in range(2):  # traced and compiled anew

        def swapped_rows(x):
            return row_major(x.swapaxes(1, 2))

        jax.jit(swapped_rows)(x)
    programs = [path.name for path in tmp_path.glob("jit_swapped_rows*-cache")]
    assert len(programs) == 1, programs


def test_devices_are_described_by_number_and_kind():
    assert describe() == "8 x cpu"
