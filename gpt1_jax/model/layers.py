"""Dense layer, LayerNorm and GELU, as Flax Linen modules and functions."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp

LAYER_NORM_EPSILON = 1e-5  # released code; Flax's own default is 1e-6


class Dense(nn.Module):
    """An affine map of the last axis: x W + b ("conv1d" of the released code).

    Operands are cast to `dtype`, products are summed in float32. W ~ N(0, 0.02^2)
    of shape [in, out], b = 0 (sec. 4.1).
    """

    features: int
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        kernel = self.param(
            "kernel", nn.initializers.normal(0.02), (x.shape[-1], self.features)
        )
        bias = self.param("bias", nn.initializers.zeros, (self.features,))
        return (matmul(x, kernel, self.dtype) + bias).astype(self.dtype)


def matmul(x: jax.Array, kernel: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """[..., I] x [I, O] -> [..., O] float32, with operands rounded to `dtype`.

    The backward pass rounds its operands too, the incoming gradient among them: left
    to autodiff, it would multiply in float32. Sums, and the kernel's gradient, are
    float32 throughout.
    """
    return _matmul(x.astype(dtype), kernel, dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _matmul(x: jax.Array, kernel: jax.Array, dtype: jnp.dtype) -> jax.Array:
    return _float32_product("...i,io->...o", x, kernel.astype(dtype))


def _matmul_fwd(x, kernel, dtype):
    rounded = kernel.astype(dtype)
    return _float32_product("...i,io->...o", x, rounded), (x, rounded)


def _matmul_bwd(dtype, residuals, grad):
    x, kernel = residuals
    grad = grad.astype(dtype)
    dx = _float32_product("...o,io->...i", grad, kernel).astype(dtype)
    rows, outputs = x.reshape(-1, x.shape[-1]), grad.reshape(-1, grad.shape[-1])
    return dx, _float32_product("ni,no->io", rows, outputs)


_matmul.defvjp(_matmul_fwd, _matmul_bwd)


def _float32_product(equation: str, *operands: jax.Array) -> jax.Array:
    return jnp.einsum(equation, *operands, preferred_element_type=jnp.float32)


class LayerNorm(nn.Module):
    """LayerNorm over the last axis in float32: biased variance, epsilon 1e-5."""

    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],))
        bias = self.param("bias", nn.initializers.zeros, (x.shape[-1],))
        x = x.astype(jnp.float32)
        centred = x - x.mean(-1, keepdims=True)
        variance = jnp.square(centred).mean(-1, keepdims=True)
        normed = centred * jax.lax.rsqrt(variance + LAYER_NORM_EPSILON)
        return (normed * scale + bias).astype(self.dtype)


def gelu(x: jax.Array) -> jax.Array:
    """GELU in its tanh form, as released; the erf form differs by up to 4.7e-4."""
    return jax.nn.gelu(x, approximate=True)
