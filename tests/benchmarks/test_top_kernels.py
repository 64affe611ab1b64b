"""A trace of a step, added up kernel by kernel."""

from types import SimpleNamespace

import jax

from benchmarks.on_accelerator import top_kernels


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
