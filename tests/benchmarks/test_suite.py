"""Tables and curves over the members of a suite."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.experiments import suite

SAVED = Path(__file__).parents[1] / "saved_runs" / "1.0.0"


def frame(values, **columns):
    import pandas as pd

    return pd.DataFrame({**columns, "score": values})


def test_kinds_are_compared_after_the_last_update():
    """The interval is Student's, computed by hand: t(0.975, 3) = 3.182446."""
    members = ["a", "b", "c", "d", "e"]
    kinds = ["transformer"] * 3 + ["lstm"] * 2
    last, first = [1.0, 2.0, 3.0, 8.0, 10.0], [0.0] * 5
    scores = frame(
        last + first,
        member=members * 2,
        kind=kinds * 2,
        measure="m",
        step=[9] * 5 + [0] * 5,
    )
    error = np.sqrt((2.0 + 2.0) / 3 * (1 / 3 + 1 / 2))
    low, high = (-7 + side * 3.182446 * error for side in (-1, 1))
    assert suite.compared(scores).splitlines()[-1] == (
        "| m | 2.00 (1.00 to 3.00) | 9.00 (8.00 to 10.00) | "
        f"-7.00 ({low:+.2f} to {high:+.2f}) | yes |"
    )
    one = scores[scores["member"] != "e"]
    assert suite.compared(one).endswith("| 8.00 (8.00 to 8.00) | - | - |")
    all_alike = scores.assign(score=49.0)
    assert suite.compared(all_alike).endswith("| 49.00 (49.00 to 49.00) | - | - |")


def test_spreads_of_two_seeds_are_told_apart():
    """By hand: sums of squares of a nested design, in numpy."""
    random = np.random.default_rng(0)
    kinds = {"a": "transformer", "b": "transformer", "c": "lstm", "d": "lstm"}
    values = random.normal(size=(4, 3)) + random.normal(0, 3, size=(4, 1))
    members = np.repeat(list(kinds), 3)
    table = frame(
        values.ravel(),
        member=members,
        kind=[kinds[each] for each in members],
        task="cola",
        seed=[0, 1, 2] * 4,
    )
    within = values.var(axis=1, ddof=1).mean()
    means = values.mean(axis=1).reshape(2, 2)
    between = 3 * means.var(axis=1, ddof=1).mean()
    cells = suite.spreads(table).splitlines()[-1].split(" | ")
    assert float(cells[3]) == pytest.approx(((between - within) / 3) ** 0.5, abs=0.006)
    assert float(cells[4]) == pytest.approx(within**0.5, abs=0.006)
    assert cells[5] == f"{between / within:.1f} (2, 8)"
    most = ((19.37099 * between / within - 1) / 3) ** 0.5  # F(0.95) of 8 and 2
    assert float(cells[6].removesuffix(" |")) == pytest.approx(most, abs=0.006)


@pytest.mark.usefixtures("real_figures")
def test_scores_of_past_runs_are_read_and_drawn(tmp_path, capsys):
    run, scored = (str(SAVED / name) for name in ("pretrain", "zero_shot"))
    suite.main([run, scored, f"--output={tmp_path}"])
    assert (
        "| zero-shot: SST-2 | 50.00 (50.00 to 50.00) | - |" in capsys.readouterr().out
    )
    assert "pretrain,transformer,zero-shot: SST-2,2,50.0000" in (
        (tmp_path / "scores.csv").read_text()
    )
    assert (tmp_path / "suite.png").stat().st_size > 10_000
