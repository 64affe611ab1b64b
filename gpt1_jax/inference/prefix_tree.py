"""Sequences that begin with the same tokens, read as a tree: each prefix once.

Except for attention, a Transformer computes each token by itself, and nothing that it
computes for a token depends on later ones. So the sequences of a batch, in
lexicographic order, become a tree with a node for each different prefix, and only its
nodes are computed, without padding. Depth first, a node's descendants directly follow
it; so what a node attends to is in its own block of nodes, or on the path to the first
node of its block.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gpt1_jax.config import ModelConfig
from gpt1_jax.model.execution import Execution, Layer
from gpt1_jax.ops.attention import MASKED_SCORE, heads_first, may_attend
from gpt1_jax.ops.products import product

BLOCK = 32  # nodes whose attention is computed together, with the path before them


class PrefixTree(NamedTuple):
    """What each of R nodes follows: in blocks of R / S, depth first."""

    positions: jax.Array  # [R, 1] int32
    last: jax.Array  # [R] int32, the last node that follows each; itself if none does
    paths: jax.Array  # [S, P] int32, the nodes before each block's first; R if fewer


class InTree(Execution):
    """Reads the nodes of a tree: [N, T] is [R, 1].

    Args:
      model: as for `Execution`.
      tree: what each node follows.
    """

    def __init__(self, model: ModelConfig, tree: PrefixTree):
        super().__init__(model)
        self._tree = tree

    def positions(self, seq_len: int) -> jax.Array:
        return self._tree.positions

    def attend(
        self, query: jax.Array, key: jax.Array, value: jax.Array, layer: Layer
    ) -> jax.Array:
        """Attention of each node [R, 1, H, K] to itself and those that it follows."""
        tree, (num_nodes, _, num_heads, head_dim) = self._tree, query.shape
        nodes = jnp.arange(num_nodes).reshape(len(tree.paths), -1)  # [S, R / S]
        seen = jnp.concatenate([tree.paths, nodes], axis=1)  # [S, P + R / S]
        last = tree.last.at[seen].get(mode="fill", fill_value=-1)[:, None]
        follows = (seen[:, None] <= nodes[:, :, None]) & (nodes[:, :, None] <= last)
        positions = tree.positions[:, 0]
        key_positions = positions.at[seen].get(mode="fill", fill_value=0)
        follows &= may_attend(positions[nodes][:, :, None], key_positions[:, None])

        def with_path(x: jax.Array) -> jax.Array:
            """[R, 1, H, K] to [S, H, P + R / S, K]."""
            before = x[:, 0].at[tree.paths].get(mode="fill", fill_value=0)
            own = x.reshape(*nodes.shape, num_heads, head_dim)
            return heads_first(jnp.concatenate([before, own], axis=1))

        blocks = heads_first(query.reshape(*nodes.shape, num_heads, head_dim))
        scores = product("SHTK,SHUK->SHTU", blocks, with_path(key))
        scores = jnp.where(follows[:, None], scores / math.sqrt(head_dim), MASKED_SCORE)
        weights = jnp.exp(scores - scores.max(-1, keepdims=True))
        total = weights.sum(-1, keepdims=True)
        attended = product(
            "SHTU,SHUK->SHTK", weights.astype(value.dtype), with_path(value)
        )
        attended = heads_first(attended / total)
        return attended.reshape(query.shape).astype(value.dtype)


def common_length(ids: Sequence[int], others: Sequence[int]) -> int:
    """The number of tokens with which both begin."""
    pairs = zip(ids, others, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


class TreeBuilder:
    """Makes the tree of sequences that are added in lexicographic order."""

    def __init__(self) -> None:
        self._tokens: list[int] = []  # of each node
        self._positions: list[int] = []
        self._parents: list[int] = []  # -1 for first tokens
        self._ids: Sequence[int] = ()  # the sequence added last
        self._path: list[int] = []  # its nodes

    def __len__(self) -> int:
        """The number of nodes."""
        return len(self._tokens)

    def num_shared(self, ids: Sequence[int]) -> int:
        """How many of the first tokens of a sequence have a node."""
        return common_length(self._ids, ids)

    def add(self, ids: Sequence[int]) -> list[int]:
        """Adds a sequence; returns the node of each of its tokens."""
        path = self._path[: self.num_shared(ids)]
        for position in range(len(path), len(ids)):
            self._parents.append(path[-1] if path else -1)
            path.append(len(self._tokens))
            self._tokens.append(ids[position])
            self._positions.append(position)
        self._ids, self._path = ids, path
        return path

    def arrays(self, num_nodes: int) -> tuple[Any, PrefixTree]:
        """The tokens [R, 1] int32 and their tree, with R a multiple of `BLOCK`.

        Nodes that fill up to R stand alone.
        """
        nodes: Any = np.zeros((2, num_nodes, 1), np.int32)
        nodes[:, : len(self), 0] = self._tokens, self._positions
        last: Any = np.arange(num_nodes, dtype=np.int32)
        for node in reversed(range(len(self))):
            if (parent := self._parents[node]) >= 0:
                last[parent] = max(last[parent], last[node])
        paths = [self._before(start) for start in range(0, num_nodes, BLOCK)]
        width = -(-max(map(len, paths)) // BLOCK) * BLOCK  # few, so few programs
        padded: Any = np.full((len(paths), width), num_nodes, np.int32)
        for row, path in zip(padded, paths, strict=True):
            row[: len(path)] = path
        return nodes[0], PrefixTree(nodes[1], last, padded)

    def _before(self, node: int) -> list[int]:
        """The nodes that a node follows."""
        path = []
        while node < len(self) and (node := self._parents[node]) >= 0:
            path.append(node)
        return path
