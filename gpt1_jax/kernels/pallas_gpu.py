"""Runs our Pallas kernels: by Triton on NVIDIA GPUs, interpreted on CPUs."""

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
from jax.experimental import pallas as pl

try:
    from jax.experimental.pallas import triton
except ImportError:  # deprecated since JAX 0.11
    triton = None  # type: ignore[assignment]


class Launch(NamedTuple):
    """The launch of a kernel: its grid, warps and memory."""

    name: str
    grid: tuple[int, ...]
    num_warps: int
    num_stages: int  # 1 and the number of tiles loaded ahead of their use
    aliases: Mapping[int, int] = {}  # inputs, and the outputs that take their memory
    untouched: int = 0  # bytes of inputs and outputs that it neither reads nor writes


def refusal() -> str:
    """Why this machine cannot run such kernels; empty if it can."""
    if triton is None:
        return f"JAX {jax.__version__} has no Triton backend of Pallas any more"
    device = jax.local_devices()[0]
    capability = str(getattr(device, "compute_capability", ""))
    if not re.fullmatch(r"\d+\.\d+", capability):
        return f"they are for NVIDIA GPUs, and this is a {device.device_kind}"
    if float(capability) < 8.0:
        return (
            "they need an NVIDIA GPU of compute capability 8.0 (A100) or newer, and "
            f"{device.device_kind} has {capability}"
        )
    return ""


def run(
    kernel: Callable[..., None],
    launch: Launch,
    inputs: Sequence[jax.Array],
    outputs: Sequence[Any],
    block_spec: Callable[[Any], pl.BlockSpec],
) -> list[jax.Array]:
    """Runs a kernel: compiled on a GPU, interpreted on a CPU.

    Args:
      kernel: a function of `interpret` and of a reference for each input and output.
      launch: its grid, warps and memory.
      inputs: arrays.
      outputs: arrays, or anything with the shapes and dtypes of the results.
      block_spec: gives the part of an array that a program sees.
    """
    moved = sum(x.size * x.dtype.itemsize for x in (*inputs, *outputs))
    metadata = {"bytes_accessed": str(moved - launch.untouched)}

    def call(*inputs: jax.Array, interpret: bool) -> list[jax.Array]:
        params = None
        if not interpret:
            params = triton.CompilerParams(launch.num_warps, launch.num_stages)
        return pl.pallas_call(
            functools.partial(kernel, interpret),
            grid=launch.grid,
            in_specs=[block_spec(x) for x in inputs],
            out_specs=[block_spec(x) for x in outputs],
            out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in outputs],
            input_output_aliases=dict(launch.aliases),
            compiler_params=params,
            interpret=interpret,
            name=launch.name,
            metadata=metadata,
        )(*inputs)

    interpreted, compiled = (
        functools.partial(call, interpret=interpret) for interpret in (True, False)
    )
    return jax.lax.platform_dependent(*inputs, cpu=interpreted, default=compiled)
