"""What devices of a known kind can do, and what a CPU has."""

import os
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.compilation_cache import compilation_cache
from tiny_run import setup_cfg

import gpt1_jax
from gpt1_jax.errors import UserError
from gpt1_jax.ops.products import row_major
from gpt1_jax.parallel import devices as devices_lib
from gpt1_jax.parallel.devices import (
    configure,
    describe_devices,
    host_memory_bytes,
    memory_bytes,
    peak_flops,
    require_memory,
)


def devices_of(monkeypatch, number, **attributes):
    devices = [SimpleNamespace(**attributes)] * number
    for name in ("devices", "local_devices"):
        monkeypatch.setattr(jax, name, lambda: devices)
    for name in ("device_count", "local_device_count"):
        monkeypatch.setattr(jax, name, lambda: number)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        *(("NVIDIA A100-SXM4-80GB", 312e12), ("NVIDIA H200 NVL", 835e12)),
        *(("NVIDIA L4", 121e12), ("NVIDIA L40", 181e12), ("NVIDIA L40S", 362e12)),
        *(("NVIDIA H100 PCIe", 756e12), ("NVIDIA H100 80GB HBM3", 989e12)),
    ],
)
def test_peak_flops_is_that_of_the_longest_matching_name(monkeypatch, kind, expected):
    assert describe_devices() == "8 x cpu"
    devices_of(monkeypatch, 4, device_kind=kind)
    assert peak_flops() == 4 * expected
    assert describe_devices() == f"4 x {kind}"


def test_the_likely_rate_is_a_part_of_the_peak_or_measured(monkeypatch):
    assert 1e8 < devices_lib.likely_flops() < 1e14  # a CPU's
    assert peak_flops() is None
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    devices_of(monkeypatch, 2, device_kind="NVIDIA H100")
    assert devices_lib.likely_flops() == pytest.approx(0.4 * 2 * 989e12)
    devices_of(monkeypatch, 1, device_kind="Abacus")
    assert peak_flops() is devices_lib.likely_flops() is None


def test_memory_bytes_is_that_of_the_device_with_the_least(monkeypatch):
    """As where another program uses one of two GPUs."""
    devices = [
        SimpleNamespace(memory_stats=lambda limit=limit: {"bytes_limit": limit})
        for limit in (80, 3)
    ]
    monkeypatch.setattr(jax, "local_devices", lambda: devices)
    assert memory_bytes() == 3


MACHINE = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.fixture
def groups(monkeypatch, tmp_path):
    """Makes up this process's control groups and the limits of some."""

    def make(listed, limits):
        (tmp_path / "cgroup").write_text(listed)
        for name, limit in limits.items():
            path = tmp_path / "groups" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{limit}\n")

    monkeypatch.setattr(devices_lib, "_GROUPS_FILE", tmp_path / "cgroup")
    monkeypatch.setattr(devices_lib, "_GROUPS", tmp_path / "groups")
    return make


@pytest.mark.parametrize(
    ("listed", "limits", "expected"),
    [
        ("0::/\n", {"memory.max": 3000}, 3000),
        ("0::/\n", {"memory.max": "max"}, MACHINE),
        ("0::/a/b\n", {"a/b/memory.max": "max", "a/memory.max": 3000}, 3000),
        # The group's path is the host's, and the container sees its own at the top.
        ("0::/docker/1f\n", {"memory.max": 3000}, 3000),
        ("4:cpu,memory:/a\n", {"memory/a/memory.limit_in_bytes": 3000}, 3000),
        ("4:memory:/\n", {"memory/memory.limit_in_bytes": 2**63 - 4096}, MACHINE),
        # Both versions at once; memory may be limited by either.
        ("4:cpu:/a\n0::/a\n", {"unified/a/memory.max": 3000}, 3000),
    ],
)
def test_a_container_has_what_its_groups_may_use(groups, listed, limits, expected):
    """And a device of its CPU a share of that."""
    groups(listed, limits)
    assert host_memory_bytes() == expected
    assert memory_bytes() == expected // 8


def test_what_no_memory_holds_is_refused_in_one_line(groups):
    groups("0::/\n", {"memory.max": 8 * 10**9})
    setting = "config.batch_size=9"
    require_memory(setting, 10**9, "Lower it.")
    require_memory(setting, 8 * 10**9, "Lower it.", on_host=True)
    says = rf"^{setting} takes at least 2\.0 GB of memory; a device has 1\.0 GB\. Low"
    with pytest.raises(UserError, match=says):
        require_memory(setting, 2 * 10**9, "Lower it.")
    with pytest.raises(UserError, match=r"the host has 8\.0 GB"):
        require_memory(setting, 10**400, "Lower it.", on_host=True)


@pytest.fixture
def cache_of_its_own():
    """Puts the settings of the cache and of the precision back after a test."""
    names = (
        "jax_compilation_cache_dir",
        "jax_default_matmul_precision",
        "jax_persistent_cache_min_compile_time_secs",
    )
    before = {name: jax.config.values[name] for name in names}
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    compilation_cache.reset_cache()
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


def test_configure_keeps_programs_where_the_next_process_finds_them(
    cache_of_its_own, tmp_path
):
    configure("default", str(tmp_path))
    for _ in range(2):  # traced and compiled anew

        def swapped_rows(x):
            return row_major(x.swapaxes(1, 2))

        jax.jit(swapped_rows)(jnp.ones((8, 2, 3)))
    programs = [path.name for path in tmp_path.glob("jit_swapped_rows*-cache")]
    assert len(programs) == 1, programs


def test_a_jax_that_is_too_old_is_refused(monkeypatch, tmp_path):
    oldest = ".".join(map(str, devices_lib.OLDEST_JAX))
    assert f"jax>={oldest}" in setup_cfg()["options"]["install_requires"].split()
    monkeypatch.setattr(jax, "__version_info__", (0, 8, 1))
    monkeypatch.setattr(jax, "__version__", "0.8.1")
    calls = (lambda: configure("default", str(tmp_path))), lambda: gpt1_jax.load("run")
    for call in calls:
        with pytest.raises(UserError, match=r"^JAX 0\.8\.1 .* upgrade it to 0\.8\.2"):
            call()
