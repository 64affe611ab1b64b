"""The long table of a study's scores, and the table and figure made from it."""

import math

import numpy as np
import pandas as pd
import pytest
from drawn import png, texts

from gpt1_jax.report.study_scores import (
    draw_scores,
    long_table,
    scores_table,
    shown,
    with_published,
)

TASKS = ("CoLA", "SST-2", "RACE")


def rows(task, scores):
    yield {"task": task, "n": 40, "score": 100 * scores["accuracy"], "error": 2.0}


def run(init_from, accuracies, kind="transformer", **more):
    """A run of a results.json: step -> accuracy of the task "a"."""
    checkpoints = [
        {"step": step, "tasks": {"a": {"accuracy": accuracy}}}
        for step, accuracy in accuracies.items()
    ]
    return {"init_from": init_from, "kind": kind, "checkpoints": checkpoints, **more}


def curves(steps):
    """Scores of each task: 0.1, 0.2, ... at the first step, rising by 0.01."""
    return pd.DataFrame(
        {
            "run": "Transformer",
            "set": "run",
            "is_baseline": False,
            "step": step,
            "at": f"step {step:,}",
            "task": task,
            "score": 0.1 * (k + 1) + 0.01 * n,
            "error": 0.05,
        }
        for k, task in enumerate(TASKS)
        for n, step in enumerate(steps)
    )


def drawn(scores):
    """The figure, of which there is a picture."""
    figure = draw_scores(scores, "task", "points")
    assert png(figure).startswith(b"\x89PNG")
    return figure


def legends(figure):
    return [texts(legend.get_texts()) for legend in figure.legends]


def test_the_long_table_has_a_row_for_each_score_of_each_step():
    table = long_table([run("runs/x", {8: 0.5, 1200: 0.75})], rows)
    same = {"run": "x", "set": "run", "is_baseline": False, "task": "a", "n": 40}
    assert table.to_dict("records") == [
        {**same, "step": 8, "at": "step 8", "score": 50.0, "error": 2.0},
        {**same, "step": 1200, "at": "step 1,200", "score": 75.0, "error": 2.0},
    ]
    assert scores_table(table, ["task", "n"]).splitlines() == [
        "| task | n | step 8 | step 1,200 |",
        "| --- | ---: | ---: | ---: |",
        "| a | 40 | 50.0 ± 2.0 | 75.0 ± 2.0 |",
    ]


def test_the_second_run_of_1_0_is_the_baseline_and_later_ones_are_named():
    old = [run("a", {1: 0.5}), run("b", {1: 0.5}, "lstm")]
    table = long_table(old, rows)
    assert list(table["is_baseline"]) == [False, True]
    assert list(table["run"]) == ["a (Transformer)", "b (LSTM)"]
    names = ("run", "run_2", "baseline", "baseline_2")
    new = [run("a", {1: 0.5}, name=name) for name in names]
    new[1]["checkpoints"][0]["revision"] = "chck_1M"
    table = long_table(new, rows)
    assert list(table["is_baseline"]) == [False, False, True, True]
    assert list(table["run"]) == list(names), "one folder, on several sets"
    assert list(table["at"]) == ["step 1", "chck_1M", "step 1", "step 1"]


def test_what_is_missing_is_a_dash_and_published_scores_have_no_step():
    """Names are escaped, once."""
    runs = [run("x&<i>", {8: 0.5, 9: 0.5}), run("y", {8: 0.25})]
    table = long_table(runs, rows)
    table.loc[2, "task"] = "<b>"
    published = [{"run": "GPT-2", "task": "a", "score": 99.4}]
    table = scores_table(with_published(table, published), ["task"])
    header, _, first, second = table.splitlines()
    ours = r"x\&\<i\>, step 8 | x\&\<i\>, step 9 | y, step 8"
    assert header == f"| task | {ours} | GPT-2 |"
    assert first == "| a | 50.0 ± 2.0 | 50.0 ± 2.0 | - | 99.4 |"
    assert second == r"| \<b\> | - | - | 25.0 ± 2.0 | - |"


@pytest.mark.parametrize("error", [0.0, math.nan])
def test_an_error_of_nothing_is_not_shown(error):
    assert shown(100, error) == "100.0"
    assert shown(99.26, 1.25) == "99.3 ± 1.2"
    assert shown(3.14159, 0.5, 3) == "3.142 ± 0.500"


def test_runs_that_differ_by_seed_are_their_mean_with_its_spread():
    """Each step and group that all of them have; a baseline is a run of its own."""
    runs = [
        run("s0", {8: 0.4, 9: 0.5}, name="run"),
        run("s1", {8: 0.6}, name="run_2"),
        run("lstm", {8: 0.3}, name="baseline"),
    ]
    table, note = scores_table(long_table(runs, rows), ["task"]).split("\n\n")
    header, _, line = table.splitlines()
    assert header == "| task | mean of s0, s1 (± SD), step 8 | lstm, step 8 |"
    assert note == "Scores: mean of s0, s1 (± SD). SD is that over runs."
    spread = 100 * np.std([0.4, 0.6], ddof=1)
    assert line == f"| a | 50.0 ± {spread:.1f} | 30.0 ± 2.0 |"


def test_each_group_has_a_curve_with_its_scores_and_errors():
    figure = drawn(curves([100, 1000, 10000]))
    (axes,) = figure.axes
    for number, container in enumerate(axes.containers):
        line, _, (bars,) = container.lines
        first = 0.1 * (number + 1)
        expected = [first, first + 0.01, first + 0.02]
        np.testing.assert_allclose(line.get_ydata().astype(float), expected)
        tops = [segment[:, 1] for segment in bars.get_segments()]
        np.testing.assert_allclose(tops[0], [first - 0.05, first + 0.05])
    assert axes.get_xscale() == "log" and not axes.get_xticks(minor=True).size
    assert texts(axes.get_xticklabels()) == ["100", "1,000", "10,000"]
    assert (figure.get_supxlabel(), figure.get_supylabel()) == ("updates", "points")
    assert legends(figure) == [list(TASKS)]


def test_one_step_is_a_row_of_points_for_each_group():
    figure = drawn(curves([3000]))
    (axes,) = figure.axes
    assert texts(axes.get_yticklabels()) == list(TASKS) and axes.yaxis_inverted()
    line, _, (bars,) = axes.containers[0].lines
    np.testing.assert_allclose(line.get_xdata().astype(float), [0.1, 0.2, 0.3])
    assert list(line.get_ydata()) == [0, 1, 2]
    np.testing.assert_allclose(bars.get_segments()[0][:, 0], [0.05, 0.15])
    assert legends(figure) == [["Transformer, step 3,000"]]


def test_step_0_has_its_place_before_the_others():
    (axes,) = drawn(curves([0, 1, 10, 100])).axes
    places = [axes.transData.transform((step, 0))[0] for step in (0, 1, 10, 100)]
    assert places == sorted(set(places)) and np.isfinite(places).all()
