"""Zero-shot evaluations in a report."""

import pytest
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
        [{"step": 1, "tasks": {"sst2": {"accuracy": "<b>"}}}],
    ],
    ids=str,
)
def test_damaged_zero_shot_scores_are_named(tmp_path, checkpoints):
    run = {"init_from": "a", "kind": "transformer", "checkpoints": checkpoints}
    write_zero_shot(tmp_path / "z", runs=[run])
    with pytest.raises(ValueError, match=r"z.results\.json holds no zero-shot scores"):
        evaluations(tmp_path)


def test_a_zero_shot_run_without_a_name_is_refused(tmp_path):
    scores = [{"step": 1, "tasks": {"sst2": zero_shot_scores("sst2", 0.5)}}]
    run = {"init_from": 1e308, "kind": "lstm", "checkpoints": scores}
    write_zero_shot(tmp_path / "z", runs=[run])
    with pytest.raises(UserError, match=r"z.results\.json holds no zero-shot"):
        evaluations(tmp_path)


def test_texts_of_zero_shot_results_are_escaped(tmp_path):
    scores = {**zero_shot_scores("sst2", 0.5), "split": "<b>"}
    checkpoint = {"step": 1, "tasks": {"sst2": scores}}
    run = {"init_from": "![a](b)", "kind": "transformer", "checkpoints": [checkpoint]}
    write_zero_shot(tmp_path / "z", runs=[run])
    (evaluation,) = evaluations(tmp_path)
    assert evaluation.origins == [r"\!\[a\](b)"]
    assert r"| \<b\> |" in text_of(section_of(tmp_path))


def test_a_figure_shows_the_name_of_a_run_as_it_is_and_the_table_escapes_it(tmp_path):
    checkpoint = {"step": 1, "tasks": {"sst2": zero_shot_scores("sst2", 0.5)}}
    names = ("runs/a_b&c<i>x", "runs/_own")
    runs = [
        {"init_from": name, "kind": "transformer", "checkpoints": [checkpoint]}
        for name in names
    ]
    write_zero_shot(tmp_path / "z", runs=runs)
    section = section_of(tmp_path)
    assert r"| a_b\&c\<i\>x, step 1 | \_own, step 1 |" in text_of(section)
    (picture,) = (b for b in section.blocks if isinstance(b, Picture))
    (legend,) = picture.draw().legends
    assert [t.get_text() for t in legend.get_texts()] == [
        "a_b&c<i>x, step 1",
        "_own, step 1",
    ]


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
    tasks = {"sst2": zero_shot_scores("sst2", 0.5)}
    runs = [
        {"init_from": name, "kind": kind, "checkpoints": [{"step": 1, "tasks": tasks}]}
        for name, kind in (("gpt", "transformer"), ("lstm", "lstm"))
    ]
    write_zero_shot(tmp_path / "a", runs=runs)
    text = text_of(section_of(tmp_path))
    assert "### Of gpt and lstm" in text
