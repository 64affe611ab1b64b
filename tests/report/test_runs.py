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


def read(*places):
    return read_runs([str(place) for place in places], {})


def counts(*places):
    found = read(*places)
    evaluations = sum(map(len, found.studies.values()))
    return len(found.pretrained), len(found.finetuned), evaluations


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


def test_a_run_counts_once_if_a_link_leads_to_it(runs, tmp_path):
    (tmp_path / "linked").symlink_to(runs)
    (runs / "pretrain" / "latest").symlink_to("small")
    assert counts(runs, tmp_path / "linked") == (1, 1, 1)
    assert counts(tmp_path / "linked", runs) == (1, 1, 1)
    (found,) = read(runs, tmp_path / "linked").pretrained
    assert found.folder.is_relative_to(runs)


def test_an_unfinished_run_has_no_scores_yet(runs):
    (runs / "finetune" / "sst2" / "pretrained-seed0" / "results.json").unlink()
    assert counts(runs) == (1, 0, 1)


def test_folders_without_a_run_are_refused_by_name(runs, tmp_path):
    with pytest.raises(FileNotFoundError, match="none, which is no folder"):
        read(tmp_path / "none")
    with pytest.raises(FileNotFoundError, match="ngram holds neither"):
        read(runs / "pretrain", runs / "ngram")
    with pytest.raises(
        FileNotFoundError, match=r"exported holds .* but config\.json: "
    ):
        read(runs / "exported")
    with pytest.raises(FileNotFoundError, match=r"config\.json, which is no folder"):
        read(runs / "pretrain" / "small" / "config.json")


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("config.json", {"job": "interventions"}, "but a job 'interventions' without"),
        ("surprisal.csv", [], "but surprisal.csv: a report shows scores, not tables"),
        ("results.json", {"config": {"job": "x"}}, "of the job 'x', which is unknown"),
    ],
)
def test_a_folder_of_something_else_says_what_it_is(tmp_path, file, content, said):
    write_json(tmp_path / "other" / file, content)
    with pytest.raises(FileNotFoundError, match=f"nor the scores of a study.*{said}"):
        read(tmp_path / "other")


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
        read(runs)
