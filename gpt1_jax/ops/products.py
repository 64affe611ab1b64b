"""Matrix products with float32 sums, in the form that suits the platform."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint


def einsum(equation: str, left: jax.Array, right: jax.Array) -> jax.Array:
    """`jnp.einsum` with float32 sums and result."""
    if jax.__version_info__ < (0, 9) and jax.default_backend() == "cpu":
        # XLA's CPU backend had no such product of bfloat16; the casts are exact.
        left, right = left.astype(jnp.float32), right.astype(jnp.float32)
    return jnp.einsum(equation, left, right, preferred_element_type=jnp.float32)


def plain_matmul(x: jax.Array, kernel: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """The formula of `matmul`; its autodiff multiplies float32 gradients."""
    return einsum("...i,io->...o", x.astype(dtype), kernel.astype(dtype))


Activation = Callable[[jax.Array], jax.Array]  # element-wise


def plain_dense(
    x: jax.Array,
    kernel: jax.Array,
    bias: jax.Array,
    dtype: jnp.dtype,
    activation: Activation | None = None,
) -> jax.Array:
    """The formula of `dense`; its autodiff multiplies and keeps float32 gradients."""
    affine = (plain_matmul(x, kernel, dtype) + bias).astype(dtype)
    return affine if activation is None else _activated(affine, activation)


class Transposed(NamedTuple):
    """A kernel [I, O], stored as [O, I]: a CPU multiplies few vectors by it faster."""

    rows: jax.Array


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def dense(
    x: jax.Array,
    kernel: jax.Array | Transposed,
    bias: jax.Array,
    dtype: jnp.dtype,
    activation: Activation | None = None,
) -> jax.Array:
    """x W + b, or an activation of it: [..., I] x [I, O] -> [..., O] of `dtype`.

    The product is `matmul`'s. Its sum with b is float32, and so is the activation,
    whose input is the sum rounded to `dtype`; only this input is kept for the backward
    pass. That stores one array of gradients, in `dtype`; autodiff would store a float32
    one.
    """
    return _dense_fwd(x, kernel, bias, dtype, activation)[0]


def _dense_fwd(x, kernel, bias, dtype, activation):
    product = matmul(x, kernel, dtype)
    # A GPU's library adds a bias of the result's dtype to the product's float32 sums.
    affine = on_gpu(
        lambda: product.astype(dtype) + bias.astype(dtype),
        lambda: (product + bias).astype(dtype),
    )
    if activation is None:
        return affine, (x, kernel)
    return _activated(affine, activation), (x, kernel, affine)


def _dense_bwd(dtype, activation, residuals, grad):
    x, kernel, *of_activation = residuals
    if activation is not None:
        (affine,), grad = wait_to_recompute(of_activation, grad)
        with jax.named_scope(activation.__name__):
            affine = affine.astype(jnp.float32)
            _, derivative = jax.jvp(activation, (affine,), (jnp.ones_like(affine),))
            grad = (grad * derivative).astype(dtype)
    x, kernel, stored = _wait_for_product(x, kernel, grad)
    gradients = _product_gradients(dtype, x, kernel, stored)
    # A TPU sums the gradient as it computes it. A GPU would store it a second time.
    summed = jax.lax.platform_dependent(tpu=lambda: grad, default=lambda: stored)
    return *gradients, summed.reshape(-1, grad.shape[-1]).sum(0, jnp.float32)


dense.defvjp(_dense_fwd, _dense_bwd)


def _activated(affine: jax.Array, activation: Activation) -> jax.Array:
    with jax.named_scope(activation.__name__):
        return activation(affine.astype(jnp.float32)).astype(affine.dtype)


def on_gpu(there: Callable[[], Any], elsewhere: Callable[[], Any]) -> Any:
    """Calls one function on a GPU, another elsewhere."""
    return jax.lax.platform_dependent(cuda=there, rocm=there, default=elsewhere)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def matmul(x: jax.Array, kernel: jax.Array | Transposed, dtype: jnp.dtype) -> jax.Array:
    """[..., I] x [I, O] -> [..., O] float32, with operands rounded to `dtype`.

    The backward pass rounds its operands too, including the incoming gradient;
    autodiff would multiply in float32. Sums and the kernel's gradient are float32.
    A transposed kernel has no backward pass.
    """
    if isinstance(kernel, Transposed):
        rows = kernel.rows.astype(dtype)
        return product("...i,oi->...o", x.astype(dtype), rows)
    return product("...i,io->...o", x.astype(dtype), kernel.astype(dtype))


def _matmul_fwd(x, kernel, dtype):
    return matmul(x, kernel, dtype), (x, kernel)


def _matmul_bwd(dtype, residuals, grad):
    x, kernel = residuals
    # Rounded before the barrier, so the rounded array is stored.
    waited = _wait_for_product(x, kernel, grad.astype(dtype))
    return _product_gradients(dtype, *waited)


matmul.defvjp(_matmul_fwd, _matmul_bwd)


def _wait_for_product(
    x: jax.Array, kernel: jax.Array, grad: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """`wait_for_gradient`, except that a GPU may keep the kernel once it is rounded.

    That takes 2 bytes a parameter, and otherwise a kernel to round it again.
    """
    (x, waited), grad = wait_for_gradient((x, kernel), grad)
    return x, on_gpu(lambda: kernel, lambda: waited), grad


def _product_gradients(
    dtype: jnp.dtype, x: jax.Array, kernel: jax.Array, grad: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Gradients of a product's two operands, from that of its result."""
    dx = product("...o,io->...i", grad, kernel.astype(dtype)).astype(dtype)
    rows, outputs = (a.reshape(-1, a.shape[-1]) for a in (x.astype(dtype), grad))
    return dx.astype(x.dtype), transposed_product(rows, outputs)


# Inlined, so the program is the same; but equal products are traced once.
@functools.partial(jax.jit, static_argnums=0, inline=True)
def product(equation: str, left: jax.Array, right: jax.Array) -> jax.Array:
    """An einsum with float32 sums.

    Returns:
      float32; on an accelerator the values are first rounded to the operands' dtype.
    """
    # Rounding saves an accelerator from writing float32 to memory. XLA's CPU backend
    # has fast bfloat16 products only with float32 results.
    return jax.lax.platform_dependent(
        cpu=lambda: einsum(equation, left, right),
        default=lambda: jnp.einsum(equation, left, right).astype(jnp.float32),
    )


@functools.partial(jax.jit, inline=True)
def transposed_product(left: jax.Array, right: jax.Array) -> jax.Array:
    """left^T right: [..., N, I] x [..., N, O] -> [..., I, O] float32."""

    def copied(left: jax.Array, right: jax.Array) -> jax.Array:
        left = row_major(left.swapaxes(-1, -2))
        return einsum("...in,...no->...io", left, right)

    def narrower_copied() -> jax.Array:
        if left.shape[-1] <= right.shape[-1]:
            return copied(left, right)
        # The barrier keeps XLA from swapping the operands back.
        result = jax.lax.optimization_barrier(copied(right, left))
        return row_major(result.swapaxes(-1, -2))

    # XLA's CPU backend is slow when it sums over the rows of both operands.
    return jax.lax.platform_dependent(
        cpu=narrower_copied,
        default=lambda: einsum("...ni,...no->...io", left, right),
    )


def compiler_options(platform: str) -> dict[str, bool | str]:
    """Options for a program with large products on a platform, "gpu" or another.

    On a GPU a library multiplies, which adds a bias or another array to its sums; the
    compiler's own kernels for products leave both to kernels of their own.
    """
    options: dict[str, bool | str] = {"xla_gpu_enable_triton_gemm": False}
    if platform != "gpu":
        return {}
    try:
        jax.jit(jnp.negative).lower(0.0).compile(compiler_options=options)
    except jax.errors.JaxRuntimeError:  # this compiler has no such option
        return {}
    return options


def row_major(x: jax.Array) -> jax.Array:
    """`x`, stored in the order of its axes: a transpose becomes a copy.

    Only on a CPU, where products of such arrays are faster; elsewhere XLA chooses.
    """
    return jax.lax.platform_dependent(cpu=lambda: _row_major(x), default=lambda: x)


def in_order(x: jax.Array) -> jax.Array:
    """`x`, stored in the order of its axes on a GPU.

    Otherwise XLA may store the batch last, and transpose between layers.
    """
    return on_gpu(lambda: _row_major(x), lambda: x)


def _row_major(x: jax.Array) -> jax.Array:
    # Not for arrays that XLA splits over devices: it would gather them.
    return with_layout_constraint(x, Layout(tuple(range(x.ndim))))


def wait_for_gradient(residuals: Any, grad: jax.Array) -> tuple[Any, jax.Array]:
    """Both arguments, unchanged; XLA can use neither before it has the gradient.

    Without this barrier XLA computes from the residuals in the forward pass and keeps
    the results until the backward pass.
    """
    return jax.lax.optimization_barrier((residuals, grad))


def wait_to_recompute(residuals: Any, grad: jax.Array) -> tuple[Any, jax.Array]:
    """Like `wait_for_gradient`, for an element-wise function of the gradient.

    A TPU fuses it into the product that gives the gradient, and stores neither.
    There the barrier only keeps XLA from reusing results of the forward pass.
    """
    return jax.lax.platform_dependent(
        tpu=lambda: (jax.lax.optimization_barrier(residuals), grad),
        default=lambda: wait_for_gradient(residuals, grad),
    )
