"""The script that checks and times the fused kernels, on kernels interpreted."""

import pytest


@pytest.mark.slow
def test_script_finds_the_kernels_right_and_times_plans(run_script):
    flags = ("--toy", "--batch=1", "--seq_len=70", "--embed_dim=64")
    few = ("--calls=1", "--rounds=1")
    _, record = run_script("on_accelerator.fused_kernels", *flags, *few)
    results = record["results"]
    # There are none for a CPU, so a run of its own would use none.
    assert results["chosen"]["attention"]["form"] == "blocked"
    for kernels in ("attention", "layer_norm"):
        assert results[kernels]["right"]
        assert set(results[kernels]["masks"].values()) == {0}
    assert len(results["times"]) == 10
    assert all(row["ms"] > 0 for row in results["times"])
