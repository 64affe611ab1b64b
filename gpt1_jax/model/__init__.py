"""The Transformer decoder: the only room that knows Flax.

Glossary of shapes, used in comments, docstrings and einsums of this package:
B batch, T position, D embed, H heads, K head dim, F mlp, L layers, V vocabulary,
N sequences (B, or B times the choices of an example).
"""
