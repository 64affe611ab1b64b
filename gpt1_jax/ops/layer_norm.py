"""LayerNorm over the last axis."""

import functools

import jax
import jax.numpy as jnp

from gpt1_jax.ops.dropout import Noise, dropout
from gpt1_jax.ops.products import in_order, wait_to_recompute

EPSILON = 1e-5  # released code; Flax's own default is 1e-6
# `residual_layer_norm` for `config.model.layer_norm_form="fused"`, imported on demand.
FUSED = "gpt1_jax.kernels.layer_norm:fused_residual_layer_norm"


def plain_layer_norm(
    x: jax.Array, scale: jax.Array, bias: jax.Array, dtype: jnp.dtype
) -> jax.Array:
    """The formula of `layer_norm`; its autodiff keeps the normalised input."""
    x = x.astype(jnp.float32)
    deviation = jnp.sqrt(x.var(-1, keepdims=True) + EPSILON)
    normed = (x - x.mean(-1, keepdims=True)) / deviation
    return (normed * scale + bias).astype(dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def layer_norm(
    x: jax.Array, scale: jax.Array, bias: jax.Array, dtype: jnp.dtype
) -> jax.Array:
    """(x - mean) / sqrt(variance + 1e-5) * scale + bias, with the biased variance.

    Computed in float32. The normalised input is not kept: the backward pass recomputes
    it.

    Args:
      x: [..., D] floats.
      scale, bias: [D] float32.
      dtype: dtype of the result.

    Returns:
      [..., D].
    """
    return _layer_norm_fwd(x, scale, bias, dtype)[0]


def _layer_norm_fwd(x, scale, bias, dtype):
    x = in_order(x)
    mean = x.astype(jnp.float32).mean(-1, keepdims=True)
    variance = jnp.square(x - mean).mean(-1, keepdims=True)
    inverse = jax.lax.rsqrt(variance + EPSILON)
    normed = (x - mean) * inverse
    return (normed * scale + bias).astype(dtype), (x, mean, inverse, scale)


def _layer_norm_bwd(dtype, residuals, grad):
    del dtype  # the gradient has this dtype
    (x, mean, inverse, scale), grad = wait_to_recompute(residuals, grad)
    grad, normed = grad.astype(jnp.float32), (x - mean) * inverse
    rows, scaled = tuple(range(x.ndim - 1)), grad * scale
    along = (scaled * normed).mean(-1, keepdims=True)
    dx = inverse * (scaled - scaled.mean(-1, keepdims=True) - normed * along)
    dx = in_order(dx.astype(x.dtype))
    return dx, (grad * normed).sum(rows), grad.sum(rows)


layer_norm.defvjp(_layer_norm_fwd, _layer_norm_bwd)


def residual_layer_norm(
    x: jax.Array,
    branch: jax.Array,
    branch_bias: jax.Array,
    scale: jax.Array,
    bias: jax.Array,
    rate: float,
    noise: Noise | None,
    site: int | jax.Array,
    rows: jax.Array | None = None,
) -> jax.Array:
    """LayerNorm(x + dropout(branch + its bias)).

    Args:
      x, branch: [..., D], of the same dtype.
      branch_bias, scale, bias: [D] float32.
      rate, noise, site, rows: as for `dropout`.

    Returns:
      An array like `x`.
    """
    added = (branch + branch_bias).astype(x.dtype)
    added = dropout(added, rate, noise, site, rows=rows)
    return layer_norm(x + added, scale, bias, x.dtype)
