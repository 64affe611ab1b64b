"""Zero-shot scores beside chance and the best before."""

import pytest

from gpt1_jax.report import zero_shot
from gpt1_jax.report.paper import PAPER
from gpt1_jax.report.paper import ZERO_SHOT as REFERENCES
from gpt1_jax.tasks.zero_shot import ZERO_SHOT


def scored(task, score, error=0.01, **more):
    scores = {"split": "dev", "n": 1234, zero_shot.metric_of(task): score}
    scores |= {"standard_error": error, **more}
    return {**scores, **zero_shot.against(task, scores)}


def runs(*kinds_and_folders):
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
    found = zero_shot.against("race", {"accuracy": 0.53, "standard_error": 0.01})
    assert found["chance"] == 0.25 and found["best_before"] == pytest.approx(0.533)
    assert found["relative"] == pytest.approx(0.28 / 0.283)
    assert found["relative_standard_error"] == pytest.approx(0.01 / 0.283)


def test_chance_is_that_of_the_labels():
    for name, way in ZERO_SHOT.items():
        chance, best = REFERENCES[name]
        # The published Winograd schemas have two candidates; others may have more.
        expected = 100 / (2 if way.task.fewer_choices else len(way.task.labels))
        assert chance == (0 if way.task.metrics[0] == "matthews" else expected) < best


def test_the_best_before_is_below_the_fine_tuned_model():
    """But on SST-2, where the paper's model is not the best."""
    for name in ("cola", "race", "story_cloze", "copa"):
        assert REFERENCES[name].best < PAPER[name][-1].gpt1
    assert REFERENCES["sst2"].best > PAPER["sst2"][0].gpt1


def test_the_table_has_a_column_for_each_step():
    header, _, cola, auc, sst2, *_ = zero_shot.results_table(runs()).split("\n")
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
    table = zero_shot.results_table([{**runs()[0], "checkpoints": [checkpoint]}])
    assert "| 100.0 ± 0.0 | - | 115.7 |" in table


def test_curves_are_the_relative_scores():
    first, second = zero_shot.curves(runs())
    assert (first.title, first.steps) == ("CoLA", [1000, 7000])
    assert (first.run, first.is_baseline) == ("Transformer", False)
    assert first.scores == pytest.approx([0.01 / 0.35, 0.07 / 0.35])
    assert second.scores == pytest.approx([0, 0])
    assert second.standard_errors == pytest.approx([0.01 / 0.432] * 2)


def test_a_line_names_the_task_and_its_chance():
    scores = {"accuracy": 0.6, "standard_error": 0.01, "n": 1234, "split": "dev"}
    line = zero_shot.describe("sst2", scores)
    shown = " ".join(line.split())
    assert shown == "SST-2 accuracy 60.0 ± 1.0, chance 50 (1,234 of dev)"


def test_of_two_runs_the_second_is_the_baseline():
    two = runs(("transformer", "runs/a"), ("lstm", "runs/b"))
    two[1]["checkpoints"] = [{**checkpoints()[0], "step": 3}]
    told = [(each.title, each.run, each.is_baseline) for each in zero_shot.curves(two)]
    assert told == [
        ("CoLA", "Transformer", False),
        ("SST-2", "Transformer", False),
        ("CoLA", "LSTM", True),
        ("SST-2", "LSTM", True),
    ]
    assert [each.steps for each in zero_shot.curves(two)[1:3]] == [[1000, 7000], [3]]


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ((("transformer", "runs/a"), ("lstm", "runs/a/b")), ["Transformer", "LSTM"]),
        ((("lstm", "runs/a"), ("rnn", "runs/b")), ["LSTM", "rnn"]),
        ((("lstm", "runs/a"), ("lstm", "gs://x/b/")), ["a", "b"]),
        ((("lstm", "x/a"), ("lstm", "y/a")), ["x/a", "y/a"]),
    ],
)
def test_runs_are_told_apart_by_kind_or_else_by_folder(given, names):
    found = zero_shot.curves(runs(*given))
    assert list(dict.fromkeys(each.run for each in found)) == names


def test_two_runs_have_a_table_each_and_one_note():
    two = zero_shot.results_table(runs(("transformer", "a"), ("lstm", "b")))
    one = zero_shot.results_table(runs())
    table, note = one.strip().split("\n\n")
    assert two.strip().split("\n\n") == [
        "**Transformer** (solid)", table, "**LSTM** (dashed)", table, note,
    ]  # fmt: skip
