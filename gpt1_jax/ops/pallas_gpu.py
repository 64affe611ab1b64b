"""How our Pallas kernels run on NVIDIA GPUs, by its Triton backend, and in tests."""

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
    """How a kernel is run."""

    name: str
    grid: tuple[int, ...]
    num_warps: int
    num_stages: int  # tiles loaded ahead of their use, and one
    aliases: Mapping[int, int] = {}  # inputs whose memory an output takes
    untouched: int = 0  # bytes of inputs and outputs that it neither reads nor writes


def refusal() -> str:
    """Why this machine can run no such kernel; empty if it can."""
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
    """Runs a kernel, which a CPU interprets.

    Args:
      kernel: is given `interpret`, and a reference for each input and output.
      launch: how.
      inputs: arrays.
      outputs: what has the shapes and dtypes of the results.
      block_spec: what a program sees of an array like this one.
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
