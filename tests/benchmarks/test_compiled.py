"""The script compiles our programs for machines that are not there."""

import importlib.util
import re

import pytest

from benchmarks.compiler.compiled import table

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
    assert printed.splitlines()[2].startswith("| pretrain-replicated | 64 | ")
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


def test_the_table_sums_up_memory_and_collectives():
    memory = dict.fromkeys(("argument", "output", "alias"), 2 * 10**9)
    exchanged = (("all-reduce", 3, 10), ("all-reduce", 10, 1), ("all-gather", 1, 2))
    result = {
        "batch": 64,
        "accumulation_steps": 4,
        "compile_seconds": 61.7,
        "compile_cpu_seconds": 100.2,
        "model_flops_per_device": 2.47e13,
        "memory_bytes": {**memory, "temp": 5 * 10**9, "generated_code": 10**8},
        "total_bytes": 7_100_000_000,
        "fits": True,
        "collectives": [
            {"kind": kind, "bytes": megabytes * 10**6, "times": times}
            for kind, megabytes, times in exchanged
        ],
    }
    line = table({"pretrain": result}).splitlines()[2]
    assert line == (
        "| pretrain | 64 in 4 parts | 62 | 100 | 2.00 | 0.00 | 5.00 | 0.10 | 7.10 "
        "| yes | 24.7 | 2 all-gather: 2.0 MB; 11 all-reduce: 40.0 MB |"
    )
