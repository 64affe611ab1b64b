"""Functions of arrays: no Flax, no configuration.

Code written for speed stands beside the plain formula that it must equal.

Shape letters in the comments, docstrings and einsums of the whole package: B batch,
C choices or orderings of an example, N sequences (B, or B C), T position (S where a
second one is needed), D embed, H heads, K head dim, F mlp, L layers, V vocabulary,
U units of an LSTM. Without padding, tokens are [S, R]: S groups of R slots.
"""
