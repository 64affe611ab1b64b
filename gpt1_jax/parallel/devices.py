"""The memory, speed and settings of the devices."""

import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from gpt1_jax.errors import UserError

# Peak dense bfloat16 rate of one JAX device, FLOP/s, from the vendors' data sheets.
# The longest of the names that `device_kind` starts with applies.
_PEAK_FLOPS = {
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5e": 197e12,
    "TPU v5": 459e12,
    "TPU v6 lite": 918e12,
    "TPU v6e": 918e12,
    "NVIDIA A100": 312e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA H100 NVL": 835e12,
    "NVIDIA H100": 989e12,
    "NVIDIA H200 NVL": 835e12,
    "NVIDIA H200": 989e12,
    "NVIDIA GH200": 989e12,
    "NVIDIA B200": 2250e12,
    "NVIDIA L4": 121e12,
    "NVIDIA L40": 181e12,
    "NVIDIA L40S": 362e12,
}


# Before it, a step that donates its state computes other losses and updates on a CPU,
# unless its arrays are very small (0.7.2, 0.8.0 and 0.8.1 were tried).
OLDEST_JAX = (0, 8, 2)


# Linux lists the units of a CPU here, and those that multiply bfloat16 by these names.
_CPU_FILE = Path("/proc/cpuinfo")
_BFLOAT16_UNITS = {"avx512_bf16", "amx_bf16"}
# Linux lists the control groups of a process and their limits here.
_GROUPS_FILE = Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")


def memory_bytes() -> int:
    """Bytes of memory that this process may use on the device with the least.

    On a CPU, a device's share of the host's memory.
    """
    stats = [device.memory_stats() or {} for device in jax.local_devices()]
    limits = [each["bytes_limit"] for each in stats if "bytes_limit" in each]
    return min(limits or [host_memory_bytes() // jax.local_device_count()])


def host_memory_bytes() -> int:
    """Bytes of memory of the machine, or of its container if that may use less."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *_group_limits()])


def _group_limits() -> Iterator[int]:
    """The memory limits of this process's control groups and of those around them.

    A container may show its own group at the top instead of below its path.
    """
    try:
        lines = _GROUPS_FILE.read_text().splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:  # version 2
            tops, name = [_GROUPS, _GROUPS / "unified"], "memory.max"
        elif "memory" in controllers.split(","):  # version 1
            tops, name = [_GROUPS / "memory"], "memory.limit_in_bytes"
        else:
            continue
        group = Path(path.lstrip("/"))
        for top in tops:
            for each in (group, *group.parents):
                try:
                    limit = (top / each / name).read_text().strip()
                except OSError:  # such as for the group of the whole machine
                    continue
                if limit.isdecimal():  # not "max"
                    yield int(limit)


def require_memory(
    setting: str, num_bytes: float, way_out: str, *, on_host: bool = False
) -> None:
    """Refuses a size whose arrays do not fit into memory, before any is made.

    Args:
      setting: the key and its value, such as "config.batch_size=1000000".
      num_bytes: the memory that is needed at one time; a lower bound, so that nothing
        that would run is refused.
      way_out: the end of the message, a sentence.
      on_host: whether the host holds the arrays instead of a device.

    Raises:
      ValueError: naming the setting, the memory it needs and the memory there is.
    """
    room = host_memory_bytes() if on_host else memory_bytes()
    if num_bytes > room:
        where = "the host" if on_host else "a device"
        least = min(num_bytes, 10**18)  # an int may be too large for a float
        raise UserError(
            f"{setting} takes at least {least / 1e9:,.1f} GB of memory; {where} has "
            f"{room / 1e9:,.1f} GB. {way_out}"
        )


def check_platform() -> None:
    """Refuses to continue without a device; to be called after processes have joined.

    Raises:
      UserError: naming the platform asked for, and why JAX cannot use it.
    """
    try:
        jax.devices()
    except (RuntimeError, AssertionError) as error:  # the latter has no message
        reason = f": {error}" if str(error) else ""
        raise UserError(
            "JAX finds no device to compute on, with JAX_PLATFORMS="
            f"{os.environ.get('JAX_PLATFORMS', '')!r}{reason}. Name an available "
            "platform, such as JAX_PLATFORMS=cpu, or unset the variable."
        ) from error


def describe_devices() -> str:
    """All devices of the run: "8 x NVIDIA H100 80GB HBM3"."""
    return f"{jax.device_count()} x {jax.devices()[0].device_kind}"


def multiply_bfloat16_on_cpu() -> bool:
    """Whether the devices are a CPU with units for bfloat16."""
    if jax.default_backend() != "cpu":
        return False
    try:
        return bool(_BFLOAT16_UNITS & set(_CPU_FILE.read_text().split()))
    except OSError:  # not Linux
        return False


def peak_flops() -> float | None:
    """Peak bfloat16 FLOP/s of all devices; None if their kind is unknown."""
    kind = jax.devices()[0].device_kind
    known = [name for name in _PEAK_FLOPS if kind.startswith(name)]
    if not known:
        return None
    return _PEAK_FLOPS[max(known, key=len)] * jax.device_count()


def likely_flops() -> float | None:
    """FLOP/s that training reaches on all devices, to a factor of about two.

    Four tenths of the peak. A CPU has no known one: six tenths of what a product of
    float32 matrices reaches now. None on other unknown devices.
    """
    if jax.default_backend() != "cpu":
        peak = peak_flops()
        return peak and 0.4 * peak
    matrix = jnp.ones((1024, 1024), jnp.float32)
    product, seconds = jax.jit(jnp.matmul), []
    for _ in range(3):  # the first compiles
        began = time.perf_counter()
        product(matrix, matrix).block_until_ready()
        seconds.append(time.perf_counter() - began)
    return 0.6 * 2 * 1024**3 / min(seconds)


def configure(matmul_precision: str, compilation_cache_dir: str) -> None:
    """Sets the numerical precision and the folder of compiled programs.

    Args:
      matmul_precision: precision of matrix products: "default", "high" or "highest".
      compilation_cache_dir: the folder of compiled programs.

    Raises:
      UserError: if JAX is too old.
    """
    check_jax()
    if jax.config.values["jax_default_matmul_precision"] != matmul_precision:
        jax.config.update("jax_default_matmul_precision", matmul_precision)
    jax.config.update("jax_compilation_cache_dir", compilation_cache_dir)


def check_jax() -> None:
    """Refuses a JAX that computes wrongly.

    Raises:
      UserError: if it is older than `OLDEST_JAX`.
    """
    if jax.__version_info__ < OLDEST_JAX:
        raise UserError(
            f"JAX {jax.__version__} computes wrong numbers on a CPU; upgrade it to "
            f"{'.'.join(map(str, OLDEST_JAX))} or newer."
        )


def fetched_late(outputs: Iterable[Any]) -> Iterator[Any]:
    """Copies outputs of a jitted function to the host, each once the next is under way.

    Thus the devices need not wait for the host between calls.

    Args:
      outputs: trees of arrays, computed on demand.
    """
    pending: list[Any] = []
    for output in outputs:
        pending.append(output)
        if len(pending) > 1:
            yield jax.device_get(pending.pop(0))
    for output in pending:
        yield jax.device_get(output)
