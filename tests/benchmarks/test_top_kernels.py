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
    def line(name, *events):
        return SimpleNamespace(
            name=name,
            events=[
                SimpleNamespace(name=n, duration_ns=ns, start_ns=4e6)
                for n, ns in events
            ],
        )

    planes = [
        SimpleNamespace(
            name="/device:GPU:0",
            lines=[line("Stream #1", ("gemm", 2e6), ("gemm", 3e6)), line("Steps")],
        ),
        SimpleNamespace(
            name="/device:TPU:0",
            lines=[line("XLA Ops", ("fusion", 1e6)), line("XLA Modules", ("all", 9e6))],
        ),
        SimpleNamespace(name="/device:GPU:1", lines=[line("Stream #1", ("gemm", 2e6))]),
        SimpleNamespace(name="/host:CPU", lines=[line("python", ("call", 9e6))]),
    ]
    data = SimpleNamespace(from_file=lambda path: SimpleNamespace(planes=planes))
    monkeypatch.setattr(jax.profiler, "ProfileData", data, raising=False)
    (tmp_path / "one.xplane.pb").touch()
    found = list(top_kernels.kernels(str(tmp_path)))
    times = [("gemm", 2e-3), ("gemm", 3e-3), ("fusion", 1e-3)]
    assert found == [(*each, 4e-3) for each in times]


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
