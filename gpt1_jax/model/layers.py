"""The parameters of dense layers and LayerNorms, as Flax modules.

The modules hold parameters; an `Execution` computes with them.
"""

from typing import Any

import flax.linen as nn
import jax
from flax.typing import Initializer

NORMAL = nn.initializers.normal(0.02)  # sec. 4.1


def parameter(
    module: nn.Module, name: str, init: Initializer, shape: tuple[int, ...]
) -> Any:
    """A module's parameter: an array of this shape, or what is held in its place.

    A kernel may be held transposed, or an embedding split over devices, in a type of
    its own; `Module.param` would refuse its shape.
    """
    held = module.get_variable("params", name)
    is_array = held is None or hasattr(held, "shape")
    return module.param(name, init, shape) if is_array else held


class Dense(nn.Module):
    """W [in, out] and b [out] of x W + b ("conv1d" of the released code).

    W starts as N(0, 0.02^2) and b as 0 (sec. 4.1), unless initialisers are given.
    """

    inputs: int
    outputs: int
    kernel_init: Initializer = NORMAL
    bias_init: Initializer = nn.initializers.zeros

    @nn.compact
    def __call__(self) -> tuple[Any, jax.Array]:
        shape = self.inputs, self.outputs
        kernel = parameter(self, "kernel", self.kernel_init, shape)
        return kernel, self.param("bias", self.bias_init, (self.outputs,))


class LayerNorm(nn.Module):
    """The gain and the bias [D] of a LayerNorm, initially 1 and 0."""

    features: int

    @nn.compact
    def __call__(self) -> tuple[jax.Array, jax.Array]:
        shape = (self.features,)
        scale = self.param("scale", nn.initializers.ones, shape)
        return scale, self.param("bias", nn.initializers.zeros, shape)
