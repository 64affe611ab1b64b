"""What zero-shot scores are relative to, and how they are shown."""

import pytest

from gpt1_jax.report.paper import PAPER
from gpt1_jax.report.study_scores import long_table
from gpt1_jax.studies.zero_shot.scores import STUDY, relative_score
from gpt1_jax.studies.zero_shot.tasks import BEST_BEFORE, CHANCE, ZERO_SHOT


def scored(task, score, error=0.01, **more):
    scores = {"split": "dev", "n": 1234, ZERO_SHOT[task].task.metrics[0]: score}
    return {**scores, "standard_error": error, **more}


def checkpoints():
    separation = {"auc": 0.55, "auc_standard_error": 0.02}
    return [
        {
            "step": step,
            "tasks": {
                "cola": scored("cola", step / 1e5, **separation),
                "sst2": scored("sst2", 0.5),
            },
        }
        for step in (1000, 7000)
    ]


def scores():
    run = {"init_from": "runs/a", "kind": "transformer", "checkpoints": checkpoints()}
    return long_table([run], STUDY.rows)


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


def test_the_tables_have_scores_and_relative_scores_at_each_step():
    text = STUDY.table(scores(), None)
    header, _, *first = text.split("\n\n")[0].splitlines()
    assert header == (
        "| task | metric | split | best before | n | chance | step 1,000 | step 7,000 |"
    )
    assert first == [
        "| CoLA | matthews | dev | 35.0 | 1,234 | 0.0 | 1.0 ± 1.0 | 7.0 ± 1.0 |",
        "| CoLA | auc | dev | - | 1,234 | 50.0 | 55.0 ± 2.0 | 55.0 ± 2.0 |",
        "| SST-2 | accuracy | dev | 93.2 | 1,234 | 50.0 | 50.0 ± 1.0 | 50.0 ± 1.0 |",
    ]
    *_, cola, sst2 = text.split("\n\n")[2].splitlines()
    assert cola == "| CoLA | 2.9 ± 2.9 | 20.0 ± 2.9 |"
    assert sst2 == "| SST-2 | 0.0 ± 2.3 | 0.0 ± 2.3 |"
    assert text.count("All values are x 100") == 1


def test_curves_are_the_relative_scores():
    (axes,) = STUDY.figure(scores()).axes
    first, second = (each.lines[0].get_ydata() for each in axes.containers)
    assert list(first) == pytest.approx([0.01 / 0.35, 0.07 / 0.35])
    assert list(second) == pytest.approx([0, 0])
