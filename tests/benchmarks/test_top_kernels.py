"""A trace of a step, added up kernel by kernel."""

from types import SimpleNamespace

import jax
import pytest

from benchmarks.on_accelerator import top_kernels

TINY = ("--layers=1", "--embed_dim=64", "--vocab_size=97", "--seq_len=16", "--batch=2")


@pytest.mark.slow
def test_the_operations_of_a_step_are_counted(run_script):
    printed, record = run_script("on_accelerator.top_kernels", *TINY, "--steps=2")
    assert record["results"]["device"] == "cpu"
    kernels = record["results"]["kernels"]
    assert not any("::" in name for name in kernels)
    fused = [name for name in kernels if "fusion" in name]
    assert fused and all(kernels[name]["seconds"] > 0 for name in fused)
    assert "| ms a step | of all | calls a step | kernel |" in printed


def test_a_kernel_is_counted_on_its_device_and_not_in_summaries(monkeypatch, tmp_path):
    planes = {}
    for plane, line, name in (
        ("/device:GPU:0", "Stream #1", "gemm"),
        ("/device:GPU:0", "Steps", "0"),
        ("/device:TPU:0", "XLA Ops", "fusion"),
        ("/device:TPU:0", "XLA Modules", "all"),
        ("/device:GPU:1", "Stream #1", "another device's"),
        ("/host:CPU", "python", "call"),
    ):
        event = SimpleNamespace(name=name, duration_ns=2e6, start_ns=4e6)
        lines = planes.setdefault(plane, SimpleNamespace(name=plane, lines=[])).lines
        lines.append(SimpleNamespace(name=line, events=[event]))
    trace = SimpleNamespace(planes=planes.values())
    data = SimpleNamespace(from_file=lambda path: trace)
    monkeypatch.setattr(jax.profiler, "ProfileData", data, raising=False)
    (tmp_path / "one.xplane.pb").touch()
    found = list(top_kernels.kernels(str(tmp_path)))
    assert found == [("gemm", 2e-3, 4e-3), ("fusion", 2e-3, 4e-3)]


def test_parts_and_waits_make_up_the_time_of_a_step():
    names = "nvjet_sm90_tst", "attention_query_kernel", "layer_norm_forward", "loop_add"
    ran = [
        top_kernels.Kernel(name, seconds, start)
        for name, seconds, start in zip(
            names, (4, 3, 2, 1), (10, 15, 18, 29), strict=True
        )
    ]
    found = top_kernels.parts(ran, steps=2)
    assert list(found.values()) == [2, 1.5, 1, 0.5, 5]
    assert list(found)[-2:] == ["the rest", "between kernels"]
