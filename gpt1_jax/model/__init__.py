"""The paper's model: the only subpackage that imports Flax.

Shape letters are those of `gpt1_jax.ops`.
"""
