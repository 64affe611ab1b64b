"""Which runs are read for a report, and which folders are refused."""

import json
import math

import pytest
from made_up_runs import (
    write_finished,
    write_json,
    write_pretrained,
    write_zero_shot,
    zero_shot_scores,
)

from gpt1_jax.errors import UserError
from gpt1_jax.report.runs import read_runs


@pytest.fixture
def runs(tmp_path):
    """A folder with one run of each kind, and other things beside them."""
    root = tmp_path / "runs"
    write_pretrained(root / "pretrain" / "small")
    write_finished(root / "finetune" / "sst2" / "pretrained-seed0")
    write_zero_shot(root / "zero_shot" / "all")
    write_json(root / "ngram" / "results.json", {"orders": [1, 2]})
    write_json(root / "exported" / "config.json", {"model_type": "openai-gpt"})
    return root


def counts(*places):
    found = read_runs([str(place) for place in places])
    return len(found.pretrained), len(found.finetuned), len(found.zero_shot)


def test_runs_of_each_kind_are_found_at_any_depth(runs):
    assert counts(runs) == (1, 1, 1)
    assert counts(runs / "pretrain") == (1, 0, 0)
    assert counts(runs / "finetune" / "sst2") == (0, 1, 0)
    assert counts(runs / "zero_shot" / "all") == (0, 0, 1)


def test_a_run_counts_once_however_often_it_is_named(runs):
    assert counts(runs, runs / "pretrain", f"{runs}/../runs/pretrain/small") == (
        1,
        1,
        1,
    )


def test_an_unfinished_run_has_no_scores_yet(runs):
    (runs / "finetune" / "sst2" / "pretrained-seed0" / "results.json").unlink()
    assert counts(runs) == (1, 0, 1)


def test_folders_without_a_run_are_refused_by_name(runs, tmp_path):
    with pytest.raises(FileNotFoundError, match="none, which is no folder"):
        read_runs([str(tmp_path / "none")])
    with pytest.raises(FileNotFoundError, match="ngram holds neither"):
        read_runs([str(runs / "pretrain"), str(runs / "ngram")])
    with pytest.raises(FileNotFoundError, match=r"config\.json, which is no folder"):
        read_runs([str(runs / "pretrain" / "small" / "config.json")])


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("finetune/sst2/pretrained-seed0/results.json", "{"),
        ("finetune/sst2/pretrained-seed0/results.json", "{}"),
        ("finetune/sst2/pretrained-seed0/results.json", '{"dev": {"n": 3}}'),
        ("finetune/sst2/pretrained-seed0/config.json", "[]"),
        ("zero_shot/all/results.json", '{"config": {"job": "zero_shot"}}'),
        ("zero_shot/all/results.json", "not JSON"),
        ("pretrain/small/metrics.jsonl", "a\nb\n"),
    ],
)
def test_damaged_files_are_named(runs, name, content):
    (runs / name).write_text(content)
    with pytest.raises(ValueError, match=name.replace(".", r"\.")):
        read_runs([str(runs)])


@pytest.mark.parametrize(
    "checkpoints",
    [
        [],
        [{"step": 1}],
        [{"step": 1, "tasks": {}}],
        [{"step": 1, "tasks": {"sst3": {}}}],
        [{"step": "a", "tasks": {"sst2": zero_shot_scores("sst2", 0.5)}}],
        [{"step": 1, "tasks": {"sst2": {"n": 3}}}],
        [{"step": -1, "tasks": {"sst2": zero_shot_scores("sst2", 0.5)}}],
        *(
            [{"step": 1, "tasks": {"sst2": zero_shot_scores("sst2", 0.5) | changed}}]
            for changed in (
                {"relative": math.inf},
                {"relative": 10**400},
                {"relative_standard_error": "<b>"},
                {"relative_standard_error": -0.5},
            )
        ),
    ],
    ids=str,
)
def test_damaged_zero_shot_scores_are_named(tmp_path, checkpoints):
    run = {"init_from": "a", "kind": "transformer", "checkpoints": checkpoints}
    write_zero_shot(tmp_path / "z", runs=[run])
    with pytest.raises(ValueError, match=r"z.results\.json holds no zero-shot scores"):
        read_runs([str(tmp_path)])


def test_a_zero_shot_run_without_a_name_is_refused(tmp_path):
    scores = [{"step": 1, "tasks": {"sst2": zero_shot_scores("sst2", 0.5)}}]
    for name in ({"init_from": 1e308, "kind": "lstm"}, {"init_from": "a", "kind": 3}):
        write_zero_shot(tmp_path / "z", runs=[{**name, "checkpoints": scores}])
        with pytest.raises(UserError, match=r"z.results\.json holds no zero-shot"):
            read_runs([str(tmp_path)])


def test_zero_shot_folders_of_one_run_open(tmp_path):
    """Those of before there was a second run, the baseline."""
    folder = write_zero_shot(tmp_path / "z")
    result = json.loads((folder / "results.json").read_text())
    result["checkpoints"] = result.pop("runs")[0]["checkpoints"]
    write_json(folder / "results.json", result)
    (evaluation,) = read_runs([str(folder)]).zero_shot
    assert evaluation.origins == ["runs/pretrain/small"]
    assert set(evaluation.scores["run"]) == {"small"}
    assert list(evaluation.scores["step"]) == [1000, 2000]


def test_texts_of_zero_shot_results_are_escaped(tmp_path):
    scores = {**zero_shot_scores("sst2", 0.5), "split": "<b>"}
    checkpoint = {"step": 1, "tasks": {"sst2": scores}}
    run = {"init_from": "![a](b)", "kind": "transformer", "checkpoints": [checkpoint]}
    write_zero_shot(tmp_path / "z", runs=[run])
    (evaluation,) = read_runs([str(tmp_path)]).zero_shot
    assert evaluation.origins == [r"\!\[a\](b)"]
    assert list(evaluation.scores["split"]) == [r"\<b\>"]
