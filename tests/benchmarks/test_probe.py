"""The probe measures rates and compares updates; one that is off is a failure."""

import pytest

from benchmarks.on_accelerator import probe

SMALL = ("--size=32", "--tokens=8", "--megabytes=1")


@pytest.fixture(autouse=True)
def few_calls(monkeypatch):
    monkeypatch.setattr(probe, "_CALLS", 1)
    monkeypatch.setattr(probe, "_TURNS", 1)
    monkeypatch.setattr(probe, "_KERNELS", {"MLP, in": (16, 64)})


def test_a_rate_is_work_by_time(monkeypatch):
    monkeypatch.setattr(probe, "seconds_of", lambda *_: 0.5)
    assert probe.product_rates(100, 10)["product, 100 cubed"] == 4e6 / 1e12
    assert probe.product_rates(1, 10)["MLP, in, forward"] == 2 * 2 * 10 * 16 * 64 / 1e12
    assert probe.memory_rates(1)["copy, TB/s"] == pytest.approx(4e6 / 1e12)


def test_a_device_that_computes_something_else_is_a_failure(monkeypatch, tmp_path):
    found = {"loss": 0.1, "grad_norm": 0.0, "parameters": 0.0}
    monkeypatch.setattr(probe, "disagreement", lambda dtype: found)
    with pytest.raises(SystemExit, match=r"loss in float32: 1\.0e-01 apart"):
        probe.main([*SMALL, f"--output={tmp_path / 'probe.json'}"])
    assert (tmp_path / "probe.json").exists()
