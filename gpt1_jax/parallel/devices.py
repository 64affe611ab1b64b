"""What the devices can hold and how fast they are."""

import os
from collections.abc import Iterable, Iterator
from typing import Any

import jax

# Peak dense bfloat16 rate of one JAX device, FLOP/s, from the vendors' data sheets.
# The longest name that `device_kind` starts with counts.
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
    """Memory of one device; on a CPU its share of the machine's."""
    device = jax.local_devices()[0]
    stats = device.memory_stats() or {}
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return stats.get("bytes_limit", machine // jax.local_device_count())


def peak_flops() -> float | None:
    """Peak bfloat16 FLOP/s of all devices; None if their kind is not known."""
    kind = jax.devices()[0].device_kind
    known = [name for name in _PEAK_FLOPS if kind.startswith(name)]
    if not known:
        return None
    return _PEAK_FLOPS[max(known, key=len)] * jax.device_count()


def configure(matmul_precision: str, compilation_cache_dir: str) -> None:
    """Sets the precision of products, and where compiled programs are kept.

    Args:
      matmul_precision: "default", "high" or "highest".
      compilation_cache_dir: the folder.
    """
    jax.config.update("jax_default_matmul_precision", matmul_precision)
    jax.config.update("jax_compilation_cache_dir", compilation_cache_dir)
    # `ops.products.row_major` names its partitioning by an address in memory, new in
    # every process; no program that calls it would ever be found again.
    jax.config.update("jax_remove_custom_partitioning_ptr_from_cache_key", True)


def fetched_late(outputs: Iterable[Any]) -> Iterator[Any]:
    """Outputs of a jitted function on the host, each once the next is under way.

    So the devices need not wait for the host between two calls.

    Args:
      outputs: trees of arrays, computed as they are asked for.
    """
    pending: list[Any] = []
    for output in outputs:
        pending.append(output)
        if len(pending) > 1:
            yield jax.device_get(pending.pop(0))
    for output in pending:
        yield jax.device_get(output)
