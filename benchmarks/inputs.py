"""Arrays that the variants of one piece share, float32 and the same at every call."""

import argparse
import math

import numpy as np
from recipe import HEAD_DIM, MLP_RATIO, draw_batches

GRADIENT = 1e-4  # of every parameter; its norm is 1.08 at the paper's size


def dropout(flags: argparse.Namespace, name: str) -> list[np.ndarray]:
    """The input and the output's gradient: "hidden" [N, T, D], "probs" [N, H, T, T]."""
    n, t = flags.batch, flags.seq_len
    heads = flags.embed_dim // HEAD_DIM
    shape = (n, t, flags.embed_dim) if name == "hidden" else (n, heads, t, t)
    return _normal(shape, shape)


def attention(flags: argparse.Namespace) -> list[np.ndarray]:
    """Query, key, value and the output's gradient, [N, T, H, K]."""
    heads = flags.embed_dim // HEAD_DIM
    shape = (flags.batch, flags.seq_len, heads, HEAD_DIM)
    return _normal(*[shape] * 4)


def loss(flags: argparse.Namespace) -> list[np.ndarray]:
    """Hidden states [N, T, D], softmax rows [V, D] and int32 tokens [N, T]."""
    d = flags.embed_dim
    hidden, rows = _normal((flags.batch, flags.seq_len, d), (flags.vocab_size, d))
    return [hidden, rows / np.float32(math.sqrt(d)), next(draw_batches(flags))]


def dense(flags: argparse.Namespace) -> list[np.ndarray]:
    """States [N, T, D], kernel [D, F] and the output's gradient [N, T, F]."""
    rows, d = (flags.batch, flags.seq_len), flags.embed_dim
    x, kernel, gradient = _normal(
        (*rows, d), (d, MLP_RATIO * d), (*rows, MLP_RATIO * d)
    )
    return [x, kernel / np.float32(math.sqrt(d)), gradient]


def _normal(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    return [generator.standard_normal(shape, np.float32) for shape in shapes]
