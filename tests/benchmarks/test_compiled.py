"""The script compiles our programs for machines that are not there."""

import importlib.util
import re

import pytest

TINY = ("--layers=1", "--embed_dim=64", "--vocab_size=97", "--seq_len=32")
CASES = "--cases=pretrain-replicated,decode"


@pytest.mark.slow
def test_the_script_describes_programs_for_virtual_devices(run_script, tmp_path):
    programs = tmp_path / "hlo"
    flags = ("--target=cpu-8", *TINY, CASES, f"--hlo={programs}")
    printed, record = run_script("compiler.compiled", *flags)
    pretrain, decode = record["results"].values()
    assert (pretrain["devices"], pretrain["batch"]) == (8, 64)
    assert (decode["devices"], decode["collectives"]) == (1, [])
    gradients = sum(c["bytes"] * c["times"] for c in pretrain["collectives"])
    num_params = 97 * 64 + 32 * 64 + 12 * 64**2 + 13 * 64
    assert 4 * num_params <= gradients < 4 * num_params + 100, "and a few sums"
    assert pretrain["memory_bytes"]["alias"] > 3 * 4 * num_params, "donated"
    assert "\n| pretrain-replicated | 64 | " in printed
    assert len(list(programs.iterdir())) == 2
    kinds = pretrain["kinds"]
    assert kinds["loss products"]["flops"] == 3 * 8 * 32 * 2 * 97 * 64, "of a device"
    flops = sum(sums["flops"] for sums in kinds.values())
    model_flops = pretrain["model_flops_per_device"]
    assert flops == pytest.approx(model_flops, rel=0.02), "and the scores once more"
    assert {"LayerNorm", "GELU", "dense products", "optimizer"} <= set(kinds)
    assert kinds["optimizer"]["bytes"] > 5 * 4 * num_params
    assert kinds["optimizer"]["estimated_seconds"] is None
    lines = {kernel["line"] for kernel in pretrain["largest_kernels"]}
    assert any(re.fullmatch(r"training/optimizer.py:\d+", line) for line in lines)
    assert "\npretrain-replicated: 0.0 GB moved" in printed


@pytest.mark.slow
def test_the_script_compiles_for_a_tpu(run_script):
    if not importlib.util.find_spec("libtpu"):
        pytest.skip("libtpu is not installed: pip install -e '.[aot]'")
    flags = ("--target=v5e-1", *TINY, CASES, "--batch=2")
    _, record = run_script("compiler.compiled", *flags)
    for result in record["results"].values():
        assert result["device"] == "TPU v5 lite" and result["fits"]
        assert result["memory_bytes"]["generated_code"] > 0
        assert result["collectives"] == []
        kinds = result["kinds"].values()
        assert sum(sums["bytes"] for sums in kinds) > 0
        estimated = sum(sums["estimated_seconds"] or 0 for sums in kinds)
        assert 0 < estimated < 1
