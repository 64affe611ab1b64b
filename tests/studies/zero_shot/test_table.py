"""The table of zero-shot scores, and what they are relative to."""

import pytest
from gpt1_jax.studies.zero_shot.table import (
    describe_zero_shot,
    relative_score,
    zero_shot_metric,
    zero_shot_scores,
    zero_shot_table,
)

from gpt1_jax.report.paper import PAPER
from gpt1_jax.studies.zero_shot.tasks import BEST_BEFORE, CHANCE, ZERO_SHOT


def scored(task, score, error=0.01, **more):
    scores = {"split": "dev", "n": 1234, zero_shot_metric(task): score}
    scores |= {"standard_error": error, **more}
    return {**scores, **relative_score(task, scores)}


def zero_shot_runs(*kinds_and_folders):
    """Runs with the same scores."""
    given = kinds_and_folders or (("transformer", "runs/a"),)
    return [
        {"init_from": folder, "kind": kind, "checkpoints": checkpoints()}
        for kind, folder in given
    ]


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


def zero_shot_text(runs):
    return zero_shot_table(zero_shot_scores(runs))


def test_the_table_has_a_column_for_each_step():
    header, _, cola, auc, sst2, *_ = zero_shot_text(zero_shot_runs()).split("\n")
    cells = [[c.strip() for c in r.split("|")[1:-1]] for r in (header, cola, auc, sst2)]
    assert cells[0][6:8] == ["step 1,000", "step 7,000"]
    assert cells[1] == [
        "CoLA", "matthews", "dev", "1,234", "0.0", "35.0", "1.0 ± 1.0", "7.0 ± 1.0",
        "7.0", "20.0",
    ]  # fmt: skip
    assert cells[2][1:2] + cells[2][4:] == [
        "auc", "50.0", "-", "55.0 ± 2.0", "55.0 ± 2.0", "2.5", "-",
    ]  # fmt: skip
    assert cells[3][-2:] == ["0.0", "0.0"]


def test_a_score_without_an_error_is_not_measured_in_errors():
    tasks = {"sst2": scored("sst2", 1.0, error=0.0)}
    checkpoint = {"step": 5, "tasks": tasks}
    table = zero_shot_text([{**zero_shot_runs()[0], "checkpoints": [checkpoint]}])
    assert "| 100.0 ± 0.0 | - | 115.7 |" in table


def test_curves_are_the_relative_scores():
    table = zero_shot_scores(zero_shot_runs()).dropna()  # without the AUC
    assert set(table["run"]) == {"a"} and not table["is_baseline"].any()
    (_, first), (_, second) = table.groupby("task")
    assert (list(first["task"]), list(first["step"])) == (["CoLA"] * 2, [1000, 7000])
    assert list(first["relative"]) == pytest.approx([0.01 / 0.35, 0.07 / 0.35])
    assert list(second["relative"]) == pytest.approx([0, 0])
    errors = list(second["relative_standard_error"])
    assert errors == pytest.approx([0.01 / 0.432] * 2)


def test_a_line_names_the_task_and_its_chance():
    scores = {"accuracy": 0.6, "standard_error": 0.01, "n": 1234, "split": "dev"}
    line = describe_zero_shot("sst2", scores)
    shown = " ".join(line.split())
    assert shown == "SST-2 accuracy 60.0 ± 1.0, chance 50 (1,234 of dev)"


def test_of_two_runs_the_second_is_the_baseline():
    two = zero_shot_runs(("transformer", "runs/a"), ("lstm", "runs/b"))
    two[1]["checkpoints"] = [{**checkpoints()[0], "step": 3}]
    table = zero_shot_scores(two)
    of_runs = table.groupby(["run", "is_baseline"], sort=False)
    steps = {key: list(own["step"].unique()) for key, own in of_runs}
    assert steps == {("a (Transformer)", False): [1000, 7000], ("b (LSTM)", True): [3]}
    assert {tuple(own["task"].unique()) for _, own in of_runs} == {("CoLA", "SST-2")}


def test_two_runs_have_a_table_each_and_one_note():
    two = zero_shot_text(zero_shot_runs(("transformer", "a"), ("lstm", "b")))
    one = zero_shot_text(zero_shot_runs())
    table, note = one.strip().split("\n\n")
    assert two.strip().split("\n\n") == [
        "**a (Transformer)** (solid)", table, "**b (LSTM)** (dashed)", table, note,
    ]  # fmt: skip
