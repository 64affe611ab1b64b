"""What the devices can hold and how fast they are."""

import os
from collections.abc import Iterable, Iterator
from typing import Any

import jax

# Peak dense bfloat16 rate of one JAX device, FLOP/s, from the vendors' data sheets.
# Of the names that `device_kind` starts with, the longest applies.
_PEAK_FLOPS = {
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5e": 197e12,
    "TPU v5": 459e12,
    "TPU v6 lite": 918e12,
    "TPU v6e": 918e12,
    "NVIDIA A100": 312e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA H100": 989e12,
    "NVIDIA H200": 989e12,
    "NVIDIA GH200": 989e12,
    "NVIDIA B200": 2250e12,
    "NVIDIA L4": 121e12,
}


def memory_bytes() -> int:
    """Memory of one device; on a CPU, its share of the machine's memory."""
    device = jax.local_devices()[0]
    stats = device.memory_stats() or {}
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return stats.get("bytes_limit", machine // jax.local_device_count())


def describe() -> str:
    """All devices of the run: "8 x NVIDIA H100 80GB HBM3"."""
    return f"{jax.device_count()} x {jax.devices()[0].device_kind}"


def peak_flops() -> float | None:
    """Peak bfloat16 FLOP/s of all devices; None if their kind is unknown."""
    kind = jax.devices()[0].device_kind
    known = [name for name in _PEAK_FLOPS if kind.startswith(name)]
    if not known:
        return None
    return _PEAK_FLOPS[max(known, key=len)] * jax.device_count()


def configure(matmul_precision: str, compilation_cache_dir: str) -> None:
    """Sets the precision of matrix products and where compiled programs are kept.

    Args:
      matmul_precision: "default", "high" or "highest".
      compilation_cache_dir: the folder.
    """
    jax.config.update("jax_default_matmul_precision", matmul_precision)
    jax.config.update("jax_compilation_cache_dir", compilation_cache_dir)
    # `ops.products.row_major` puts a memory address, new in every process, in the cache
    # key of every program that calls it; none of them would ever be found again.
    jax.config.update("jax_remove_custom_partitioning_ptr_from_cache_key", True)


def fetched_late(outputs: Iterable[Any]) -> Iterator[Any]:
    """Outputs of a jitted function on the host, each once the next is under way.

    This way the devices need not wait for the host between calls.

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
