"""The plan of a suite, and what of it is done."""

import dataclasses
import json

import pytest
from etils import epath
from tiny_tasks import finetune_config

from gpt1_jax.config.finetune import suite_variants
from gpt1_jax.finetuning import suite
from gpt1_jax.formats import RUN_FOLDER
from gpt1_jax.tasks.metrics import METRICS
from gpt1_jax.tasks.paper_tasks import TASKS, find_task

FOLDER = epath.Path("/runs")


def planned_for(tasks="sst2", seeds=(0,), num_layers=1, **overrides):
    config = finetune_config(tasks, {"init_from": "run"}, **overrides)
    found = [TASKS[name] for name in config.tasks]
    return suite.plan_runs(suite_variants(config, num_layers), found, seeds, FOLDER)


def names(plan):
    return [str(planned.folder.relative_to(FOLDER)) for planned in plan]


def result(score=0.5, train_examples=9, **more):
    return {"dev": {"accuracy": score}, "train_examples": train_examples, **more}


def test_runs_go_by_task_variant_and_seed_each_in_its_folder():
    plan = planned_for("rte+sst2", (3, 1, 3), suite__compare="scratch")
    starts = ("pretrained-seed3", "pretrained-seed1", "scratch-seed3", "scratch-seed1")
    assert names(plan) == [f"{t}/{s}" for t in ("rte", "sst2") for s in starts]
    for planned in plan:
        assert planned.config.tasks == (planned.task.name,)
        assert planned.folder.name == f"{planned.variant}-seed{planned.config.seeds[0]}"
        layers = {"pretrained": "all", "scratch": "none"}[planned.variant]
        assert planned.config.transfer_layers == layers
    (alone,) = planned_for()
    assert alone.folder == FOLDER


def own_config(**values):
    return finetune_config(
        "custom",
        {"init_from": "run"},
        data__source="files",
        data__train="t.csv",
        **values,
    )


def test_each_fold_is_a_run_of_each_variant_and_seed():
    config = own_config(data__folds=2)
    own_task = dataclasses.replace(TASKS["sst2"], name="custom")

    def plan(seeds=(0, 1), **changed):
        own = dataclasses.replace(config.data, **changed)
        variants = {"pretrained": dataclasses.replace(config, data=own)}
        return suite.plan_runs(variants, [own_task], seeds, FOLDER)

    folders = [f"custom/pretrained-fold{n}-seed{s}" for n in (1, 2) for s in (0, 1)]
    assert names(plan()) == folders
    assert [each.config.data.fold for each in plan()] == [1, 1, 2, 2]
    assert {each.variant for each in plan()} == {"pretrained"}
    assert names(plan(fold=2)) == folders[2:]
    (only,) = plan(fold=2, seeds=(0,))
    assert only.folder == FOLDER and only.config.data.fold == 2


@pytest.mark.parametrize(("saved", "number"), [("", 1), ("a", 0)])
def test_f1_keeps_the_label_that_a_run_was_begun_with(tmp_path, saved, number):
    """Up to version 1.0 the last one, which was not named."""
    config = own_config(
        data__dev="d.csv",
        custom__head="classification",
        custom__text=("text",),
        custom__labels=("a", "b"),
        custom__metrics=("f1",),
        custom__positive="a",
    )
    values = config.to_dict()
    del values["custom"]["positive"]
    values["custom"] |= {"positive": saved} if saved else {}
    stamped = json.dumps({**RUN_FOLDER.stamp(), **values})
    (tmp_path / "config.json").write_text(stamped)
    task = find_task(config)
    (run,) = suite.plan_runs({"": config}, [task], (0,), epath.Path(tmp_path))
    assert (run.config.custom.positive, run.task.target.positive) == (saved, number)


def test_results_are_collected_by_task_and_variant():
    first, second, third = planned_for("rte", (0, 1), suite__compare="scratch")[:3]
    results = [(first, result(1)), (second, result(2)), (third, result(3))]
    assert suite.by_task(results) == {
        "rte": {"pretrained": [result(1), result(2)], "scratch": [result(3)]}
    }


def test_the_best_run_of_each_task_is_the_first_with_the_best_score(monkeypatch):
    plan = planned_for("rte+sst2", (0, 1, 2))
    scores = (0.5, 0.7, 0.7, 0.9, 0.1, 0.2)
    results = [(p, result(s)) for p, s in zip(plan, scores, strict=True)]
    assert suite.best_runs(results) == [plan[1], plan[3]]
    lowest = METRICS["accuracy"]._replace(highest_is_best=False)
    monkeypatch.setitem(METRICS, "accuracy", lowest)
    assert suite.best_runs(results) == [plan[0], plan[4]]


@pytest.mark.parametrize(
    ("size", "train_examples", "repeated"),
    [
        (64, 64, "lambda0.5-all"),
        (63, 64, None),
        (0, 64, None),
    ],
)
def test_a_run_on_as_many_examples_as_there_are_repeats_the_run_on_all(
    size, train_examples, repeated
):
    plan = planned_for(
        suite__compare="aux_lm_weight",
        suite__train_sizes=(0, size or 5),
        suite__aux_lm_weights=(0, 0.5),
    )
    both, last = plan[:2], plan[3] if size else plan[1]
    results = [(p, result(train_examples=train_examples)) for p in both]
    found = suite.find_repeated(last, results)
    assert (found and found.variant) == repeated
    assert suite.find_repeated(last, results[:1]) is None  # another lambda
