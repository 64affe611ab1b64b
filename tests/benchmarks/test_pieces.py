"""Variants of a piece compute the same."""

import importlib.util

import jax
import numpy as np
import pytest

from benchmarks.peers import pieces

TINY = ("--batch=2", "--seq_len=16", "--embed_dim=128", "--vocab_size=97", "--layers=1")
HAS_TORCH = importlib.util.find_spec("torch") is not None
MODULES = ["benchmarks.peers.jax_pieces", "benchmarks.peers.torch_pieces"]


def arrays_of(outputs):
    """Value and gradients as flat lists of NumPy arrays."""
    return [
        np.asarray(x.detach() if hasattr(x, "detach") else x)
        for x in jax.tree.leaves(outputs)
    ]


@pytest.mark.skipif(not HAS_TORCH, reason="needs PyTorch")
@pytest.mark.parametrize("piece", ["attention", "loss", "dense"])
def test_variants_give_the_same_value_and_gradients(piece):
    flags = pieces.parse([*TINY, "--dropout=0"])
    cases = pieces.make_cases(piece, flags, MODULES)
    outputs = {name: arrays_of(case.run()) for name, case in cases.items()}
    expected = outputs.pop("torch_explicit" if piece == "attention" else "torch")
    assert len(outputs) >= 2
    for name, found in outputs.items():
        for ours, theirs in zip(found, expected, strict=True):
            if ours.shape != theirs.shape:  # a kernel, which PyTorch has transposed
                theirs = theirs.T
            np.testing.assert_allclose(ours, theirs, atol=1e-5, err_msg=name)
