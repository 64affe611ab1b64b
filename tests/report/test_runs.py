"""Which runs are read for a report, and which folders are refused."""

import pytest
from made_up_runs import write_finished, write_json, write_pretrained, write_zero_shot

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
    found = read_runs(map(str, places), {})
    evaluations = sum(map(len, found.studies.values()))
    return len(found.pretrained), len(found.finetuned), evaluations


def test_runs_of_each_kind_are_found_at_any_depth(runs):
    assert counts(runs) == (1, 1, 1)
    assert counts(runs / "pretrain") == (1, 0, 0)
    assert counts(runs / "finetune" / "sst2") == (0, 1, 0)
    assert counts(runs / "zero_shot" / "all") == (0, 0, 1)
    (runs / "finetune" / "sst2" / "pretrained-seed0" / "results.json").unlink()
    assert counts(runs) == (1, 0, 1), "without scores yet"


def test_a_run_counts_once_however_often_it_is_named_or_linked(runs, tmp_path):
    again = (runs / "pretrain", f"{runs}/../runs/pretrain/small")
    assert counts(runs, *again) == (1, 1, 1)
    (tmp_path / "linked").symlink_to(runs)
    (runs / "pretrain" / "latest").symlink_to("small")
    assert counts(runs, tmp_path / "linked") == (1, 1, 1)
    assert counts(tmp_path / "linked", runs) == (1, 1, 1)
    (found,) = read_runs([str(runs), str(tmp_path / "linked")], {}).pretrained
    assert found.folder.is_relative_to(runs)


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("none", "none, which is no folder"),
        ("pretrain/small/config.json", r"config\.json, which is no folder"),
        ("ngram", "ngram holds neither"),
        ("exported", r"exported holds .* but config\.json: "),
        ("begun", "but a job 'interventions' without"),
        ("table", "but surprisal.csv: a report shows scores, not tables"),
        ("strange", "of the job 'x', which is unknown"),
    ],
)
def test_a_folder_without_a_run_is_refused_and_says_what_it_is(runs, place, said):
    write_json(runs / "begun" / "config.json", {"job": "interventions"})
    write_json(runs / "table" / "surprisal.csv", [])
    write_json(runs / "strange" / "results.json", {"config": {"job": "x"}})
    with pytest.raises(FileNotFoundError, match=said):
        counts(runs / "pretrain", runs / place)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("finetune/sst2/pretrained-seed0/results.json", "{"),
        ("finetune/sst2/pretrained-seed0/results.json", '{"dev": {"n": 3}}'),
        ("finetune/sst2/pretrained-seed0/config.json", "[]"),
        ("zero_shot/all/results.json", '{"config": {"job": "zero_shot"}}'),
        ("pretrain/small/metrics.jsonl", "a\nb\n"),
    ],
)
def test_damaged_files_are_named(runs, name, content):
    (runs / name).write_text(content)
    with pytest.raises(ValueError, match=name.replace(".", r"\.")):
        counts(runs)
