"""The script measures heads' effects."""

import json

import pytest


def test_effects_are_those_of_hooks_and_compile_once(tmp_path, capsys):
    for package in ("torch", "transformers"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    from benchmarks.peers import interventions

    path = tmp_path / "results.json"
    sizes = ("--layers=2", "--heads=2", "--vocab_size=97", "--rounds=2")
    interventions.main([*sizes, f"--output={path}"])
    found = json.loads(path.read_text())
    assert [*found["results"]] == ["gpt1_jax", "hooks", "hooks_batched"]
    for result in found["results"].values():
        assert len(result["seconds"]) == len(result["cpu_seconds"]) == 2
    ratio = found["results"]["gpt1_jax"]["speed_vs_best_torch"]
    assert f" {ratio:.2f} " in capsys.readouterr().out.splitlines()[2]
    agreement = found["agreement"]
    assert agreement["most_nats"] < 1e-5 and agreement["largest_effect"] > 1e-3
    assert agreement["programs"]["first"] > 0 == agreement["programs"]["later"]
