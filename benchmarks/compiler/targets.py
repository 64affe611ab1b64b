"""Machines that programs can be compiled for: topologies of TPUs and GPUs."""

import contextlib
import importlib.util
import math
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

_GPU_DESCRIPTIONS = Path(__file__).parent


class Chip(NamedTuple):
    """The memory and rates of a device, by its data sheet."""

    memory_bytes: int
    bytes_per_second: float  # to and from that memory
    flops_per_second: float  # of dense bfloat16 products
    network_bytes_per_second: float  # to other devices; of TPUs an assumption
    cycles_per_second: float | None = None  # a TPU's, at which it reaches that rate
    multiprocessors: int = 0  # of a GPU
    clock: float = 0.0  # of a GPU, the highest


_V5E = Chip(16 * 10**9, 819e9, 197e12, 100e9, 1.5e9)
_V6E = Chip(32 * 10**9, 1640e9, 918e12, 100e9, 1.75e9)
_V5P = Chip(95 * 10**9, 2765e9, 459e12, 100e9, 1.75e9)
_H100 = Chip(80 * 10**9, 3350e9, 989e12, 450e9, None, 132, 1.98e9)
_H200 = _H100._replace(memory_bytes=141 * 10**9, bytes_per_second=4800e9)


class Target(NamedTuple):
    """A machine, by the name that its compiler gives it."""

    compiler: str  # "libtpu", "cuda" or "cpu"
    topology: str  # chips along each axis of their network
    chip: Chip | None  # None: nothing is compared with it
    meaning: str
    options: Mapping[str, Any] = {}

    @property
    def num_chips(self) -> int:
        sizes = self.topology.rpartition(":")[2].split("x")
        return math.prod(int(size) for size in sizes)


# Google names TPUs by chips from v5e on, but v5p by TensorCores, two a chip; for JAX
# both cores of a v5p chip are one device.
_WITH_MEGACORE = {"chip_config_name": "megachip_tccontrol"}  # as on Cloud TPU hosts
_ALONE = {"chips_per_host_bounds": (1, 1, 1)}
_AS_H200 = {  # what differs from the description of an H100
    "memory_bandwidth": 4_800_000_000_000,
    "device_memory_size": 150_754_820_096,
    "name": '"NVIDIA H200"',
    "device_description_str": '"NVIDIA H200"',
}
TARGETS = {
    "v5e-1": Target("libtpu", "v5e:1x1", _V5E, "1 chip", _ALONE),
    "v5e-16": Target("libtpu", "v5e:4x4", _V5E, "16 chips, 4 hosts"),
    "v5e-256": Target("libtpu", "v5e:16x16", _V5E, "256 chips, a whole pod"),
    "v6e-1": Target("libtpu", "v6e:1x1", _V6E, "1 chip", {**_WITH_MEGACORE, **_ALONE}),
    "v6e-8": Target("libtpu", "v6e:2x4", _V6E, "8 chips", _WITH_MEGACORE),
    "v5p-8": Target(
        "libtpu", "v5p:2x2x1", _V5P, "8 cores: 4 chips, 1 host", _WITH_MEGACORE
    ),
    "h100-1": Target("cuda", "1x1x1", _H100, "1 x H100 SXM"),
    "h200-1": Target("cuda", "1x1x1", _H200, "1 x H200 SXM", _AS_H200),
    "h100x8": Target("cuda", "1x1x8", _H100, "8 x H100 SXM, 1 host"),
    "cpu-8": Target("cpu", "8", None, "8 virtual devices: to try this script"),
}
_NEEDS = {  # any of these modules, and how to install the first
    "libtpu": (("libtpu",), "pip install -e '.[aot]'"),
    "cuda": (
        ("jax_cuda13_plugin", "jax_cuda12_plugin"),
        "pip install --no-deps jax-cuda13-plugin==JAX jax-cuda13-pjrt==JAX "
        "nvidia-cuda-nvcc nvidia-cuda-nvdisasm nvidia-nvvm nvidia-nvjitlink "
        "nvidia-cuda-runtime, where JAX is the version of jax",
    ),
}
_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "JAX_ENABLE_COMPILATION_CACHE": "false",
    # libtpu asks nobody who it is, and takes no chip that may be there.
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


def prepare(target: Target) -> None:
    """Sets this process up before it imports JAX; exits if the compiler is missing."""
    modules, install = _NEEDS.get(target.compiler, (("jax",), ""))
    if not any(map(importlib.util.find_spec, modules)):
        package = " or ".join(modules)
        sys.exit(f"compiled.py: {target.meaning} needs {package}: {install}")
    os.environ.update(_ENVIRONMENT)
    if target.compiler == "cpu":
        import jax

        jax.config.update("jax_num_cpu_devices", int(target.topology))


def devices_of(target: Target) -> list[Any]:
    """The target's devices, which can be compiled for but hold no arrays."""
    import jax
    from jax.experimental import topologies

    if target.compiler == "cpu":
        return jax.devices()
    if target.compiler == "libtpu":
        found = topologies.get_topology_desc(
            target.topology, platform="tpu", **target.options
        )
        return found.devices
    description = (_GPU_DESCRIPTIONS / "h100_sxm.txtpb").read_text()
    for key, value in target.options.items():
        description = re.sub(rf"\b{key}: .*", f"{key}: {value}", description)
    found = topologies.get_topology_desc(
        "gpu", platform="cuda", target_config=description, topology=target.topology
    )
    return found.devices


@contextlib.contextmanager
def in_place_of(target: Target) -> Iterator[None]:
    """Makes the package believe that it runs on the target."""
    import jax

    from gpt1_jax.parallel import devices

    if target.chip is None:
        yield
        return
    memory = target.chip.memory_bytes
    backend = {"libtpu": "tpu", "cuda": "gpu"}[target.compiler]
    with (
        mock.patch.object(jax, "local_devices", lambda **_: devices_of(target)),
        mock.patch.object(jax, "default_backend", lambda: backend),
        mock.patch.object(devices, "memory_bytes", lambda: memory),
        _lowering_for(target),
    ):
        yield


def _lowering_for(target: Target) -> contextlib.AbstractContextManager[Any]:
    """Names the GPU that Pallas lowers kernels for: since JAX 0.12 it asks."""
    from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh

    can_be_told = "platform" in AbstractDevice.__dataclass_fields__  # not in JAX 0.9
    if target.compiler != "cuda" or not can_be_told:
        return contextlib.nullcontext()
    device = devices_of(target)[0]
    abstract = AbstractDevice(device.device_kind, None, device.platform)
    return use_abstract_mesh(AbstractMesh((), (), abstract_device=abstract))
