"""GELU in the tanh form of the released code."""

import jax


def gelu(x: jax.Array) -> jax.Array:
    """x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))).

    The erf form differs by up to 4.7e-4.
    """
    return jax.nn.gelu(x, approximate=True)
