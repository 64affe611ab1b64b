"""The model of the paper: the only room that imports Flax.

The letters of shapes are those of `gpt1_jax.ops`.
"""
