"""The script that checks and times the fused kernels, on kernels interpreted."""

from types import SimpleNamespace

import pytest

from benchmarks.on_accelerator import fused_kernels


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


def test_a_check_without_a_number_finds_the_kernels_wrong(monkeypatch):
    from gpt1_jax.kernels import check

    found = SimpleNamespace(
        wrong_masks=lambda form: 0,
        errors=lambda form: {"the output": 0.5, "gradient 1": float("nan")},
    )
    monkeypatch.setattr(check, "AttentionCheck", lambda *_, **options: found)
    kernels = fused_kernels.kernels_for("tpu")
    monkeypatch.setattr(kernels.attention, "refusal", lambda shape, dtype: "")
    kinds = [kind for _, kind in fused_kernels.checked(kernels, toy=False)]
    assert len(kinds) == len(fused_kernels.CHECKED), "after each check"
    assert not any(kind["right"] for kind in kinds)
