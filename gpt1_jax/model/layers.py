"""Dense layer, LayerNorm and GELU, as Flax Linen modules and functions."""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.experimental.custom_partitioning import custom_partitioning
from jax.experimental.layout import Layout, with_layout_constraint

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
    return product("...i,io->...o", x, kernel.astype(dtype))


def _matmul_fwd(x, kernel, dtype):
    return _matmul(x, kernel, dtype), (x, kernel)


def _matmul_bwd(dtype, residuals, grad):
    (x, kernel), grad = _now(residuals, grad)
    grad = grad.astype(dtype)
    dx = product("...o,io->...i", grad, kernel.astype(dtype)).astype(dtype)
    rows, outputs = (a.reshape(-1, a.shape[-1]) for a in (x, grad))
    return dx, transposed_product(rows, outputs)


_matmul.defvjp(_matmul_fwd, _matmul_bwd)


def product(equation: str, left: jax.Array, right: jax.Array) -> jax.Array:
    """An einsum with float32 sums; float32, perhaps rounded to the operands' dtype."""

    def unrounded(left: jax.Array, right: jax.Array) -> jax.Array:
        return jnp.einsum(equation, left, right, preferred_element_type=jnp.float32)

    def rounded(left: jax.Array, right: jax.Array) -> jax.Array:
        return jnp.einsum(equation, left, right).astype(jnp.float32)

    # An accelerator need not write float32 to memory; XLA's CPU backend has fast
    # bfloat16 products with float32 results only.
    return jax.lax.platform_dependent(left, right, cpu=unrounded, default=rounded)


def transposed_product(left: jax.Array, right: jax.Array) -> jax.Array:
    """left^T right: [..., N, I] x [..., N, O] -> [..., I, O] float32."""

    def copied(left: jax.Array, right: jax.Array) -> jax.Array:
        left = row_major(left.swapaxes(-1, -2))
        return jnp.einsum(
            "...in,...no->...io", left, right, preferred_element_type=jnp.float32
        )

    def direct(left: jax.Array, right: jax.Array) -> jax.Array:
        return jnp.einsum(
            "...ni,...no->...io", left, right, preferred_element_type=jnp.float32
        )

    # XLA's CPU backend is slow where the rows of both operands are summed over: a
    # transposed copy pays, except for single float32 matrices.
    if left.ndim == 2 and left.dtype == jnp.float32:
        return direct(left, right)
    return jax.lax.platform_dependent(left, right, cpu=copied, default=direct)


def row_major(x: jax.Array) -> jax.Array:
    """`x` as it is numbered: a transposed array that is transposed in memory too.

    On a CPU, where products are faster so; elsewhere XLA chooses the layout.
    """
    return jax.lax.platform_dependent(x, cpu=_row_major, default=lambda x: x)


@custom_partitioning
def _row_major(x: jax.Array) -> jax.Array:
    return with_layout_constraint(x, Layout(tuple(range(x.ndim))))


def _partition(mesh: jax.sharding.Mesh, arguments: Any, result: Any) -> Any:
    """Each device lays out its own part; XLA alone would gather all on every one."""
    del result
    sharding = arguments[0].sharding
    return mesh, _row_major.fun, sharding, (sharding,)


_row_major.def_partition(partition=_partition, sharding_rule="... -> ...")


class LayerNorm(nn.Module):
    """LayerNorm over the last axis in float32: biased variance, epsilon 1e-5."""

    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],))
        bias = self.param("bias", nn.initializers.zeros, (x.shape[-1],))
        return _layer_norm(x, scale, bias).astype(self.dtype)


@jax.custom_vjp
def _layer_norm(x: jax.Array, scale: jax.Array, bias: jax.Array) -> jax.Array:
    return _layer_norm_fwd(x, scale, bias)[0]


def _layer_norm_fwd(x, scale, bias):
    mean = x.astype(jnp.float32).mean(-1, keepdims=True)
    variance = jnp.square(x - mean).mean(-1, keepdims=True)
    inverse = jax.lax.rsqrt(variance + LAYER_NORM_EPSILON)
    return (x - mean) * inverse * scale + bias, (x, mean, inverse, scale)


def _layer_norm_bwd(residuals, grad):
    """Forms the normalised input again: it is not kept."""
    (x, mean, inverse, scale), grad = _now(residuals, grad)
    normed = (x - mean) * inverse
    rows, scaled = tuple(range(x.ndim - 1)), grad * scale
    along = (scaled * normed).mean(-1, keepdims=True)
    dx = inverse * (scaled - scaled.mean(-1, keepdims=True) - normed * along)
    return dx.astype(x.dtype), (grad * normed).sum(rows), grad.sum(rows)


_layer_norm.defvjp(_layer_norm_fwd, _layer_norm_bwd)


@jax.custom_vjp
def gelu(x: jax.Array) -> jax.Array:
    """GELU in its tanh form, as released; the erf form differs by up to 4.7e-4."""
    return _gelu(x.astype(jnp.float32)).astype(x.dtype)


def _gelu(x: jax.Array) -> jax.Array:
    return jax.nn.gelu(x, approximate=True)


def _gelu_fwd(x):
    return gelu(x), x


def _gelu_bwd(x, grad):
    """Of autodiff's intermediate results none is kept, only the input."""
    x, grad = _now(x, grad)
    _, derivative = jax.jvp(_gelu, (x.astype(jnp.float32),), (jnp.ones(x.shape),))
    return ((grad * derivative).astype(x.dtype),)


gelu.defvjp(_gelu_fwd, _gelu_bwd)


def _now(residuals: Any, grad: jax.Array) -> tuple[Any, jax.Array]:
    """Asks XLA not to compute from residuals before the gradient is there.

    Otherwise it does so in the forward pass already, and keeps the results.
    """
    return jax.lax.optimization_barrier((residuals, grad))
