"""The plan of a suite, and what of it is done."""

import json

import pytest
from etils import epath
from tiny_tasks import custom_config, finetune_config

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


@pytest.mark.parametrize(("saved", "number"), [("", 1), ("a", 0)])
def test_f1_keeps_the_label_that_a_run_was_begun_with(tmp_path, saved, number):
    """Up to version 1.0 the last one, which was not named."""
    config = custom_config(
        {"init_from": "run"},
        {"train": "t.csv", "dev": "d.csv"},
        custom__head="classification",
        custom__text=("text",),
        custom__labels=("a", "b"),
        custom__metrics=("f1",),
        custom__positive="a",
    )
    values = {**RUN_FOLDER.stamp(), **config.to_dict()}
    del values["custom"]["positive"]
    values["custom"] |= {"positive": saved} if saved else {}
    (tmp_path / "config.json").write_text(json.dumps(values))
    task = find_task(config)
    (run,) = suite.plan_runs({"": config}, [task], (0,), epath.Path(tmp_path))
    assert (run.config.custom.positive, run.task.target.positive) == (saved, number)


def test_the_best_run_of_each_task_is_the_first_with_the_best_score(monkeypatch):
    plan = planned_for("rte+sst2", (0, 1, 2))
    scores = (0.5, 0.7, 0.7, 0.9, 0.1, 0.2)
    results = [(p, {"dev": {"accuracy": s}}) for p, s in zip(plan, scores, strict=True)]
    assert suite.best_runs(results) == [plan[1], plan[3]]
    lowest = METRICS["accuracy"]._replace(highest_is_best=False)
    monkeypatch.setitem(METRICS, "accuracy", lowest)
    assert suite.best_runs(results) == [plan[0], plan[4]]
