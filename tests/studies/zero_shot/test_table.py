"""What zero-shot scores are relative to, and how they are shown."""

import pytest

from gpt1_jax.report.paper import PAPER
from gpt1_jax.report.study_scores import long_table
from gpt1_jax.studies.zero_shot.scores import STUDY, relative_score
from gpt1_jax.studies.zero_shot.tasks import BEST_BEFORE, CHANCE, ZERO_SHOT


def test_a_score_lies_between_chance_and_the_best_before():
    relative = relative_score("race", {"accuracy": 0.53, "standard_error": 0.01})
    assert relative["chance"] == 0.25 and relative["best_before"] == pytest.approx(
        0.533
    )
    assert relative["relative"] == pytest.approx(0.28 / 0.283)
    assert relative["relative_standard_error"] == pytest.approx(0.01 / 0.283)


def test_chance_is_that_of_the_labels():
    for name, way in ZERO_SHOT.items():
        chance = CHANCE[name]
        # The published Winograd schemas have two candidates; others may have more.
        expected = 100 / (
            2 if way.task.inputs.fewer_choices else len(way.task.target.labels)
        )
        assert chance == (0 if way.task.metrics[0] == "matthews" else expected)
        assert chance < BEST_BEFORE[name]


def test_the_best_before_is_below_the_fine_tuned_model():
    """But on SST-2, where the paper's model is not the best."""
    gpt1 = {line.task: line.gpt1 for line in PAPER}
    for name in ("cola", "race", "story_cloze", "copa"):
        assert BEST_BEFORE[name] < gpt1[name]
    assert BEST_BEFORE["sst2"] > gpt1["sst2"]


def test_tables_and_curves_have_the_scores_relative_ones_too():
    same = {"split": "dev", "n": 1234, "standard_error": 0.01}
    auc = {"auc": 0.55, "auc_standard_error": 0.02}
    checkpoints = [
        {
            "step": step,
            "tasks": {
                "cola": {**same, "matthews": step / 1e5, **auc},
                "sst2": {**same, "accuracy": 0.5},
            },
        }
        for step in (1000, 7000)
    ]
    run = {"init_from": "runs/a", "kind": "transformer", "checkpoints": checkpoints}
    found = long_table([run], STUDY.rows)
    text = STUDY.table(found, None)
    assert text.split("\n\n")[0].splitlines()[2:] == [
        "| CoLA | matthews | dev | 35.0 | 1,234 | 0.0 | 1.0 ± 1.0 | 7.0 ± 1.0 |",
        "| CoLA | auc | dev | - | 1,234 | 50.0 | 55.0 ± 2.0 | 55.0 ± 2.0 |",
        "| SST-2 | accuracy | dev | 93.2 | 1,234 | 50.0 | 50.0 ± 1.0 | 50.0 ± 1.0 |",
    ]
    assert text.split("\n\n")[2].splitlines()[2:] == [
        "| CoLA | 2.9 ± 2.9 | 20.0 ± 2.9 |",
        "| SST-2 | 0.0 ± 2.3 | 0.0 ± 2.3 |",
    ]
    (axes,) = STUDY.figure(found).axes
    first, second = (each.lines[0].get_ydata() for each in axes.containers)
    assert list(first) == pytest.approx([0.01 / 0.35, 0.07 / 0.35])
    assert list(second) == pytest.approx([0, 0])
