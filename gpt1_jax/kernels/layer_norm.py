"""LayerNorm of a residual sum, by kernels where the accelerator has them."""

from typing import Any

import jax

from gpt1_jax.kernels.choice import kernels_here
from gpt1_jax.ops.layer_norm import residual_layer_norm


def fused_residual_layer_norm(x: jax.Array, *others: Any) -> jax.Array:
    """`residual_layer_norm`, in one pass over memory forward and one backward.

    Without a kernel, this is `residual_layer_norm`, and a warning says why.

    For arguments and result see `residual_layer_norm`.
    """
    kernels = kernels_here("layer_norm", x.shape, x.dtype)
    norm = residual_layer_norm if kernels is None else kernels
    return norm(x, *others)
