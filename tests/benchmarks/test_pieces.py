"""Variants of a piece compute the same, and the script measures and reports them."""

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


@pytest.mark.slow
def test_the_script_reports_every_variant(run_script):
    names = ["dropout", "loss", "optimizer"]
    chosen = (f"--pieces={','.join(names)}", "--dtype=bfloat16")
    few = ("--rounds=1", "--calls=2")
    printed, record = run_script("peers.pieces", *TINY, *chosen, *few)
    assert list(record["results"]) == names
    assert record["settings"]["dtype"] == "bfloat16"
    lines = printed.splitlines()[2:]
    assert len(lines) == sum(map(len, record["results"].values()))
    for variants in record["results"].values():
        assert any(name.startswith("torch") for name in variants) == HAS_TORCH
        for name, result in variants.items():
            assert len(result["seconds"]) == 2
            assert 0 < result["min_seconds"] <= result["median_seconds"]
            assert (result["temporary_bytes"] is None) == name.startswith("torch")
