"""Causal attention by the kernels for the accelerator at hand, if there are any."""

import math
import warnings
from collections.abc import Callable
from types import ModuleType

import jax
import jax.numpy as jnp

from gpt1_jax.ops.attention import causal_attention
from gpt1_jax.ops.dropout import Noise

Attend = Callable[..., jax.Array]


def fused_causal_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    dropout_rate: float,
    noise: Noise | None,
    site: int | jax.Array,
) -> jax.Array:
    """`causal_attention`, with nothing of size [T, T] in an accelerator's memory.

    Output, gradients and dropout masks are those of `causal_attention`, up to rounding.
    Where there is no kernel, this is `causal_attention`, and says why.

    For arguments and result see `causal_attention`.
    """
    why, attend = _kernels(query.shape, query.dtype)
    if why:
        warnings.warn(f"attention without kernels: {why}", stacklevel=2)
    return attend(query, key, value, dropout_rate, noise, site)


def _kernels(shape: tuple[int, ...], dtype: jnp.dtype) -> tuple[str, Attend]:
    """Why there are none, and what computes attention for arrays [N, T, H, K]."""
    mesh, backend = jax.sharding.get_abstract_mesh(), jax.default_backend()
    manual = jax.sharding.AxisType.Manual
    axes = zip(mesh.axis_sizes, mesh.axis_types, strict=True)
    if math.prod(size for size, kind in axes if kind != manual) > 1:
        why = "the compiler cannot split them between devices that share the heads"
        return why, causal_attention
    # Imported where they are used: Pallas takes a second.
    kernels: ModuleType
    if backend == "tpu":
        from gpt1_jax.ops import attention_tpu

        kernels = attention_tpu
    elif backend == "gpu":
        from gpt1_jax.ops import attention_gpu

        kernels = attention_gpu
    else:
        return f"there are none for a {backend.upper()}", causal_attention
    why = kernels.refusal(shape, dtype)
    return why, causal_attention if why else kernels.attention
