"""LayerNorm of a residual sum, by kernels where the accelerator has them."""

import jax

from gpt1_jax.kernels.find import kernels_here
from gpt1_jax.ops.dropout import dropout
from gpt1_jax.ops.layer_norm import Branch, layer_norm

MODULES = {"gpu": "layer_norm_gpu"}


def fused_residual_layer_norm(
    x: jax.Array, branch: Branch, scale: jax.Array, bias: jax.Array
) -> jax.Array:
    """LayerNorm(x + dropout(output + its bias)), in one pass over memory each way.

    Without a kernel, this is `residual_layer_norm`, and a warning says why.

    Args:
      x: [..., D].
      branch: its output has the shape and dtype of `x`.
      scale, bias: [D] float32.

    Returns:
      An array like `x`.
    """
    kernels = kernels_here("LayerNorm", MODULES, x.shape[-1])
    norm = residual_layer_norm if kernels is None else kernels.residual_layer_norm
    return norm(x, branch, scale, bias)


def residual_layer_norm(
    x: jax.Array, branch: Branch, scale: jax.Array, bias: jax.Array
) -> jax.Array:
    """`fused_residual_layer_norm` without kernels: `dropout`, sum and `layer_norm`."""
    added = (branch.output + branch.bias).astype(x.dtype)
    where = branch.rate, branch.noise, branch.site
    added = dropout(added, *where, rows=branch.rows)
    return layer_norm(x + added, scale, bias, x.dtype)
