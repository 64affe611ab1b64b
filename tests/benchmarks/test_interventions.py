"""The script measures heads' effects, and ends with an error if they differ."""

import json

import pytest

TINY = ("--layers=2", "--heads=2", "--vocab_size=97", "--rounds=2")


@pytest.fixture
def script():
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from benchmarks.peers import interventions

    return interventions


def test_effects_are_those_of_hooks_and_compile_once(script, tmp_path, capsys):
    path = tmp_path / "results.json"
    script.main([*TINY, f"--output={path}"])
    found = json.loads(path.read_text())
    assert [*found["results"]] == ["gpt1_jax", "hooks", "hooks_batched"]
    for result in found["results"].values():
        assert len(result["seconds"]) == len(result["cpu_seconds"]) == 2
    ratio = found["results"]["gpt1_jax"]["speed_vs_best_torch"]
    assert f" {ratio:.2f} " in capsys.readouterr().out.splitlines()[2]
    agreement = found["agreement"]
    assert agreement["most_nats"] < 1e-5 and agreement["largest_effect"] > 1e-3
    assert agreement["programs"]["first"] > 0 == agreement["programs"]["later"]


def test_effects_that_differ_end_the_script_with_an_error(script, monkeypatch, capsys):
    def scaled(model, params, make=script.make_ours):
        find = make(model, params)
        return lambda pair: 1.1 * find(pair)

    monkeypatch.setattr(script, "make_ours", scaled)
    with pytest.raises(SystemExit) as ended:
        script.main([*TINY, "--rounds=1"])
    assert ended.value.code == 1
    assert "WARNING: effects differ by" in capsys.readouterr().err
