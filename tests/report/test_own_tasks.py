"""What is shown of runs on tasks of one's own."""

import numpy as np
import pytest
from drawn import drawn_axes, texts
from etils import epath
from made_up_runs import finished_result, write_finished

from gpt1_jax.finetuning.prediction_files import write_predictions
from gpt1_jax.finetuning.results import predictions_file, read_finished
from gpt1_jax.report import figures
from gpt1_jax.report.own_tasks import confusion_rows, own_results, reliability_rows
from gpt1_jax.tasks.metrics import with_all_metrics
from gpt1_jax.tasks.paper_tasks import find_task
from gpt1_jax.tasks.task import Example
from gpt1_jax.tasks.uncertainty import score_in_full

TICKETS = ("abuse", "billing", "hardware")


def scored(folder, answers, shares, predicted, split="dev"):
    """A finished run with predictions and scores of examples with these labels."""
    run = read_finished(epath.Path(folder))
    task = with_all_metrics(find_task(run.config))
    examples = [
        Example((f"ticket {n}",), (), true, "", "", "", n)
        for n, true in enumerate(answers)
    ]
    path = predictions_file(run.folder, split)
    write_predictions(path, task, examples, predicted, shares, with_text=True)
    scores = score_in_full(task, examples, predicted, shares)
    return run._replace(result={**run.result, split: scores})


@pytest.fixture
def finished(tmp_path):
    """Makes a finished run on a task of one's own, whose dev examples are given.

    They are true and predicted labels, by number, and how sure the model was.
    """

    def make(answers, labels=TICKETS, rows=64, seed=0, split="dev", more=(), **values):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        overrides = {"custom__name": "tickets", "custom__labels": labels, **values}
        result = finished_result("custom", 0.5, train_examples=rows, **dict(more))
        write_finished(folder, "custom", seed=seed, result=result, **overrides)
        shares = np.zeros((len(answers), len(labels)))
        for row, (_, predicted, sure) in zip(shares, answers, strict=True):
            row[:] = (1 - sure) / (len(labels) - 1)
            row[predicted] = sure
        true = [label for label, *_ in answers]
        return scored(folder, true, shares, shares.argmax(axis=1), split)

    return make


# 8 of hardware, all right; 6 of billing, one right; 2 of abuse, none right.
RARE = [*[(2, 2, 0.9)] * 8, (1, 1, 0.6), *[(1, 2, 0.7)] * 5, (0, 2, 0.95), (0, 1, 0.5)]


def test_a_label_that_is_hardly_predicted_is_named(finished):
    text = own_results([finished(RARE)])
    assert "| billing | 6 | 2 | 50.0 (" in text
    assert "Almost never predicted" not in text  # 2 of 6, and too few of abuse
    never = [*[(2, 2, 0.9)] * 8, *[(1, 2, 0.7)] * 5]
    expected = "**Almost never predicted:** billing (0 predictions, 5 have it)."
    hint = "With --config.custom.class_weights=balanced, rare labels weigh more."
    assert f"{expected} {hint}" in own_results([finished(never)])
    weighted = finished(never, custom__class_weights=("balanced",))
    text = own_results([weighted])
    assert expected in text and hint not in text


def test_the_most_confident_errors_are_shown_with_their_texts(finished):
    run = finished(RARE)
    _, rows = own_results([run]).split("The most confident of 7 errors:")
    assert rows.strip().splitlines()[2:4] == [
        "| 14 | abuse | hardware | ticket 14 | 0.950 |",
        "| 9 | billing | hardware | ticket 9 | 0.700 |",
    ]
    predictions_file(run.folder, "dev").unlink()
    assert "errors" not in own_results([run])
    many = finished([(0, 2, 0.8)] * 30)
    _, rows = own_results([many]).split("The most confident of 30 errors:")
    assert rows.count("ticket") == 20


def test_labels_and_errors_are_of_the_best_run(finished):
    runs = [finished(RARE[:-1]), finished(RARE[:-2], seed=1)]
    runs.append(finished(RARE, rows=9, data__max_train_examples=9))
    text = own_results(runs)
    assert text.count("**tickets") == 1
    assert "**tickets, 64 rows, dev split, seed 1, the best run on dev**" in text
    rows = [row for row in confusion_rows(runs) if row["predicted"] == "hardware"]
    assert [row["n"] for row in rows] == [1, 5, 8, 0, 5, 8]
    text = own_results([runs[0], finished(RARE, custom__class_weights=("balanced",))])
    assert "| tickets, class_weights balanced | pre-trained |" in text


def test_labels_and_errors_are_of_the_test_split_if_it_has_labels(finished):
    text = own_results([finished(RARE, split="test")])
    assert "**tickets, test split, seed 0**" in text
    assert "Expected calibration error: 0.2" in text and "before" not in text
    more = {"test": {"n": 3, "scores": None}, "uncalibrated_error": {"dev": 0.5}}
    text = own_results([finished(RARE, more=more)])
    assert "**tickets, dev split, seed 0**" in text
    assert "(0.500 before calibration)" in text


def test_several_labels_an_example_are_shown_by_label(tmp_path):
    several = {"custom__head": "multilabel", "custom__labels": TICKETS}
    write_finished(tmp_path, "custom", **several)
    shares = np.array([[0.8, 0.1, 0.3], [0.1, 0.9, 0.1], [0.2, 0.1, 0.1]])
    run = scored(tmp_path, [(0, 2), (1,), ()], shares, shares >= 0.5)
    text = own_results([run])
    assert "| hardware | 1 | 0 | - | 0.0 (" in text
    assert "| 0 | abuse, hardware | abuse | ticket 0 | 0.700 |" in text
    assert "accuracy counts examples whose labels are all right" in text
    assert not confusion_rows([run]) and reliability_rows([run])


def test_a_confusion_matrix_is_drawn_as_it_is_written(finished):
    labels = ("a$b$", "_" * 40, "c")
    rows = confusion_rows([finished(RARE, labels)])
    first = {"task": "tickets", "split": "dev", "true": "a$b$", "predicted": "a$b$"}
    assert rows[0] == {**first, "n": 0} and len(rows) == 9
    (axes,) = drawn_axes(figures.confusion_matrices(rows))
    assert axes.get_title() == "tickets, dev"
    assert texts(axes.texts) == list("011015008")
    shares = axes.images[0].get_array()
    assert shares[1, 2] == pytest.approx(5 / 6) and shares[2, 2] == 1
    assert texts(axes.get_yticklabels()) == ["a$b$", "_" * 20, "c"]


def test_reliability_is_the_accuracy_by_how_sure_the_model_was(finished):
    rows = reliability_rows([finished(RARE)])
    assert [row["n"] for row in rows] == [1, 1, 5, 9]
    assert [row["accuracy"] for row in rows] == pytest.approx([0, 1, 0, 8 / 9])
