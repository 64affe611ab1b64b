"""The script that checks and times the fused kernels, on kernels interpreted."""

import json

import fused_attention
import pytest

TINY = ("--toy", "--batch=1", "--seq_len=70", "--embed_dim=64", "--calls=1")


@pytest.mark.slow
def test_script_finds_the_kernels_right_and_times_plans(run_script, tmp_path):
    output = tmp_path / "fused.json"
    run_script("fused_attention.py", *TINY, "--rounds=1", f"--output={output}")
    results = json.loads(output.read_text())["results"]
    assert results["right"]
    assert set(results["masks"].values()) == {0}
    assert len(results["times"]) == 4
    assert all(row["ms"] > 0 for row in results["times"])


def test_script_says_why_it_refuses_a_cpu(monkeypatch):
    monkeypatch.setattr(fused_attention.harness, "use_first_gpu", lambda: None)
    with pytest.raises(SystemExit, match="not here: there is no GPU"):
        fused_attention.main([])
