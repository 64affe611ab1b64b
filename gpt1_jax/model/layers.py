"""Dense layer and LayerNorm as Flax modules."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.typing import Initializer

from gpt1_jax.errors import find_named
from gpt1_jax.ops.layer_norm import FUSED, Branch, layer_norm
from gpt1_jax.ops.products import Activation, Transposed, dense, matmul


class Dense(nn.Module):
    """An affine map of the last axis: x W + b ("conv1d" of the released code).

    Operands are rounded to `dtype`, sums are float32. W [in, out] starts as
    N(0, 0.02^2) and b as 0 (sec. 4.1), unless initialisers are given. An activation
    of x W + b is computed in float32.

    Without `add_bias`, returns x W and b, for a kernel that adds them.
    """

    features: int
    dtype: jnp.dtype
    kernel_init: Initializer = nn.initializers.normal(0.02)
    bias_init: Initializer = nn.initializers.zeros
    activation: Activation | None = None
    add_bias: bool = True

    @nn.compact
    def __call__(self, x: jax.Array) -> Any:
        kernel = self.get_variable("params", "kernel")
        if not isinstance(kernel, Transposed):  # `param` would refuse its shape
            shape = x.shape[-1], self.features
            kernel = self.param("kernel", self.kernel_init, shape)
        bias = self.param("bias", self.bias_init, (self.features,))
        if not self.add_bias:
            return matmul(x, kernel, self.dtype).astype(self.dtype), bias
        return dense(x, kernel, bias, self.dtype, self.activation)


class LayerNorm(nn.Module):
    """LayerNorm over the last axis, computed in float32; initially gain 1, bias 0.

    Given a branch, it normalises the residual sum: see `residual_layer_norm`.
    """

    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: jax.Array, branch: Branch | None = None) -> jax.Array:
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],))
        bias = self.param("bias", nn.initializers.zeros, (x.shape[-1],))
        if branch is not None:
            fused = find_named(FUSED, "config.model.layer_norm_form=fused", "use plain")
            return fused(x, branch, scale, bias)
        return layer_norm(x, scale, bias, self.dtype)
