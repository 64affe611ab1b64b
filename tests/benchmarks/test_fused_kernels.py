"""The script that checks and times the fused kernels, on kernels interpreted."""

import functools
import json

import pytest

from benchmarks import harness
from benchmarks.on_accelerator import fused_kernels

TINY = ("--toy", "--batch=1", "--seq_len=70", "--embed_dim=64", "--calls=1")


@pytest.mark.slow
def test_script_finds_the_kernels_right_and_times_plans(run_script, tmp_path):
    output = tmp_path / "fused.json"
    run_script(
        "on_accelerator.fused_kernels", *TINY, "--rounds=1", f"--output={output}"
    )
    results = json.loads(output.read_text())["results"]
    # There are none for a CPU, so a run of its own would use none.
    assert results["chosen"]["attention"]["form"] == "blocked"
    for kernels in ("attention", "layer_norm"):
        assert results[kernels]["right"]
        assert set(results[kernels]["masks"].values()) == {0}
    assert len(results["times"]) == 10
    assert all(row["ms"] > 0 for row in results["times"])


def test_script_says_why_it_refuses_a_cpu(monkeypatch):
    monkeypatch.setattr(fused_kernels.harness, "use_first_gpu", lambda: None)
    with pytest.raises(SystemExit, match="not here: they are for NVIDIA GPUs"):
        fused_kernels.main([])


def test_a_plan_is_timed_before_the_next_is_compiled():
    order, rows = [], []

    def case(name):
        def make():
            if name == "refused":
                raise ValueError("too large\nfor it")
            order.append(f"make {name}")
            run = functools.partial(order.append, name)
            return harness.Case(run, lambda outputs: None, "a GPU", None)

        return make

    flags = fused_kernels.parse(["--calls=1", "--rounds=1"])
    cases = {name: case(name) for name in ("one", "refused", "two")}
    fused_kernels.in_turns(cases, flags, lambda row: rows.append(dict(row)))
    assert order == ["make one", "one", "one", "make two", "two", "two", "one", "two"]
    assert [row["case"] for row in rows] == ["one", "refused", "two"]
    assert rows[1]["error"] == "ValueError: too large" and rows[0]["ms"] > 0


def test_a_check_without_a_number_finds_the_kernels_wrong(monkeypatch):
    from gpt1_jax.kernels import check

    class NoNumber:
        def __init__(self, *arguments, **options):
            pass

        def wrong_masks(self, form):
            return 0

        def errors(self, form):
            return {"the output": 0.5, "gradient 1": float("nan")}

    monkeypatch.setattr(check, "AttentionCheck", NoNumber)
    kernels = fused_kernels.kernels_for("tpu")
    monkeypatch.setattr(kernels.attention, "refusal", lambda shape, dtype: "")
    found = list(fused_kernels.checked(kernels, toy=False))
    assert len(found) == len(fused_kernels.CHECKED), "after each check"
    assert not any(kind["right"] for _, kind in found)


@pytest.mark.slow
def test_a_tpus_kernels_are_checked_where_they_fit(monkeypatch):
    kernels = fused_kernels.kernels_for("tpu")
    fit = [
        shape
        for shape in fused_kernels.CHECKED
        if not kernels.attention.refusal(shape, "bfloat16")
    ]
    assert fit == [(2, 512, 12, 64)]
    shapes = ((2, 100, 3, 64), (1, 128, 4, 64))  # of which the second fits
    monkeypatch.setattr(fused_kernels, "CHECKED", shapes)
    found = dict(fused_kernels.checked(kernels, toy=False))
    assert list(found) == ["attention"], "it has none for LayerNorm"
    assert found["attention"]["right"]
    assert list(found["attention"]["masks"]) == ["(1, 128, 4, 64)"]
    assert list(found["attention"]["errors"]) == ["(1, 128, 4, 64)"]
