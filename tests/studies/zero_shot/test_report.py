"""Zero-shot evaluations in a report."""

import pytest
from made_up_runs import write_zero_shot, zero_shot_scores

from gpt1_jax.errors import UserError
from gpt1_jax.report.plots import Picture
from gpt1_jax.report.runs import read_runs
from gpt1_jax.report.sections import make_report


def evaluated(init_from="a", kind="transformer", step=1, **scores):
    """A run of results.json, scored at one step."""
    tasks = {"sst2": {**zero_shot_scores("sst2", 0.5), **scores}}
    checkpoints = [{"step": step, "tasks": tasks}]
    return {"init_from": init_from, "kind": kind, "checkpoints": checkpoints}


@pytest.mark.parametrize(
    "run",
    [
        {**evaluated(), "checkpoints": []},
        {**evaluated(), "checkpoints": [{"step": 1, "tasks": {"sst3": {}}}]},
        {**evaluated(), "checkpoints": [{"step": 1, "tasks": {"sst2": {"n": 3}}}]},
        evaluated(step="a"),
        evaluated(accuracy="<b>"),
        evaluated(init_from=1e308),
    ],
    ids=str,
)
def test_damaged_zero_shot_scores_are_named(tmp_path, run):
    write_zero_shot(tmp_path / "z", runs=[run])
    with pytest.raises(UserError, match=r"z.results\.json holds no zero-shot scores"):
        read_runs([str(tmp_path)], {})


def test_each_evaluation_has_its_figure_and_table(tmp_path):
    """Texts of results are escaped."""
    write_zero_shot(tmp_path / "a")
    write_zero_shot(tmp_path / "b", scores=(0.6,))
    names = ("runs/a_b&c<i>x", "![a](b)")
    runs = [evaluated(name, split="<b>") for name in names]
    write_zero_shot(tmp_path / "c", runs=runs)
    sections = make_report(read_runs([str(tmp_path)], {}), "", "").sections
    section = next(each for each in sections if each.title.startswith("Zero-shot"))
    text = "\n".join(each for each in section.blocks if isinstance(each, str))
    pictures = [each for each in section.blocks if isinstance(each, Picture)]
    assert [each.name for each in pictures[1:]] == ["zero_shot_2", "zero_shot_3"]
    assert "50.0 ± 1.0 | 75.0 ± 1.0 |" in text and "60.0 ± 1.0 |" in text
    for name in "ab":  # two of one run are told apart by their folders
        assert f"### Of runs/pretrain/small, in {tmp_path / name}\n" in text
    assert r"### Of runs/a_b\&c\<i\>x and \!\[a\](b)" in text
    assert r"| a_b\&c\<i\>x, step 1 | \!\[a\](b), step 1 |" in text
    assert r"| \<b\> |" in text
