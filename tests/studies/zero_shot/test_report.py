"""Zero-shot evaluations in a report."""

import pytest
from drawn import texts
from made_up_runs import write_zero_shot, zero_shot_scores

from gpt1_jax.errors import UserError
from gpt1_jax.report.plots import Picture
from gpt1_jax.report.runs import read_runs
from gpt1_jax.report.sections import make_report
from gpt1_jax.studies.zero_shot.scores import STUDY


def read(folder):
    return read_runs([str(folder)], {})


def evaluations(folder):
    return read(folder).studies[STUDY]


def section_of(folder):
    sections = make_report(read(folder), "A title", "23 November 2026").sections
    return next(each for each in sections if each.title.startswith("Zero-shot"))


def text_of(section):
    return "\n\n".join(b for b in section.blocks if isinstance(b, str))


def pictures(section):
    return [block.name for block in section.blocks if isinstance(block, Picture)]


def evaluated(init_from="a", kind="transformer", step=1, **scores):
    """A run of results.json, scored at one step."""
    tasks = {"sst2": {**zero_shot_scores("sst2", 0.5), **scores}}
    checkpoints = [{"step": step, "tasks": tasks}]
    return {"init_from": init_from, "kind": kind, "checkpoints": checkpoints}


@pytest.mark.parametrize(
    "run",
    [
        {**evaluated(), "checkpoints": []},
        {**evaluated(), "checkpoints": [{"step": 1}]},
        {**evaluated(), "checkpoints": [{"step": 1, "tasks": {}}]},
        {**evaluated(), "checkpoints": [{"step": 1, "tasks": {"sst3": {}}}]},
        {**evaluated(), "checkpoints": [{"step": 1, "tasks": {"sst2": {"n": 3}}}]},
        evaluated(step="a"),
        evaluated(step=-1),
        evaluated(accuracy="<b>"),
        evaluated(init_from=1e308),
    ],
    ids=str,
)
def test_damaged_zero_shot_scores_are_named(tmp_path, run):
    write_zero_shot(tmp_path / "z", runs=[run])
    with pytest.raises(UserError, match=r"z.results\.json holds no zero-shot scores"):
        evaluations(tmp_path)


def test_texts_of_results_are_escaped_in_tables_and_as_they_are_in_figures(tmp_path):
    names = ("runs/a_b&c<i>x", "![a](b)")
    runs = [evaluated(name, split="<b>") for name in names]
    write_zero_shot(tmp_path / "z", runs=runs)
    (evaluation,) = evaluations(tmp_path)
    assert evaluation.origins == [r"runs/a_b\&c\<i\>x", r"\!\[a\](b)"]
    section = section_of(tmp_path)
    assert r"| a_b\&c\<i\>x, step 1 | \!\[a\](b), step 1 |" in text_of(section)
    assert r"| \<b\> |" in text_of(section)
    (picture,) = (b for b in section.blocks if isinstance(b, Picture))
    (legend,) = picture.draw().legends
    assert texts(legend.get_texts()) == ["a_b&c<i>x, step 1", "![a](b), step 1"]


def test_each_zero_shot_evaluation_has_its_figure_and_table(tmp_path):
    write_zero_shot(tmp_path / "a")
    write_zero_shot(tmp_path / "b", scores=(0.6,))
    section = section_of(tmp_path)
    assert pictures(section) == ["zero_shot", "zero_shot_2"]
    text = text_of(section)
    assert "50.0 ± 1.0 | 75.0 ± 1.0 |" in text and "60.0 ± 1.0 |" in text
    for name in "ab":  # two of one run are told apart by their folders
        assert f"### Of runs/pretrain/small, in {tmp_path / name}\n" in f"{text}\n"


def test_runs_of_one_evaluation_are_both_named(tmp_path):
    runs = [evaluated("gpt"), evaluated("lstm", "lstm")]
    write_zero_shot(tmp_path / "a", runs=runs)
    assert "### Of gpt and lstm" in text_of(section_of(tmp_path))
