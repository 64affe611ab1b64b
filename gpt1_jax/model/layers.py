"""Dense layer and LayerNorm as Flax modules."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.typing import Initializer

from gpt1_jax.ops.layer_norm import layer_norm
from gpt1_jax.ops.products import Transposed, dense


class Dense(nn.Module):
    """An affine map of the last axis: x W + b ("conv1d" of the released code).

    Operands are rounded to `dtype`, sums are float32. Initially W [in, out] is
    N(0, 0.02^2) and b = 0 (sec. 4.1), unless it says otherwise.
    """

    features: int
    dtype: jnp.dtype
    kernel_init: Initializer = nn.initializers.normal(0.02)
    bias_init: Initializer = nn.initializers.zeros

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        kernel = self.get_variable("params", "kernel")
        if not isinstance(kernel, Transposed):  # which has another shape for `param`
            shape = x.shape[-1], self.features
            kernel = self.param("kernel", self.kernel_init, shape)
        bias = self.param("bias", self.bias_init, (self.features,))
        return dense(x, kernel, bias, self.dtype)


class LayerNorm(nn.Module):
    """LayerNorm over the last axis, computed in float32; initially gain 1, bias 0."""

    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],))
        bias = self.param("bias", nn.initializers.zeros, (x.shape[-1],))
        return layer_norm(x, scale, bias, self.dtype)
