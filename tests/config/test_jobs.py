"""A job is a file of configs/, one of jobs/, and a line of the registry."""

import dataclasses
import importlib
import inspect
from pathlib import Path

import pytest
from tiny_run import ROOT, load_config

from gpt1_jax import config as config_lib
from gpt1_jax.config import JOBS

FIRST = {
    "finetune": {"init_from": "run"},
    "predict": {"init_from": "run", "text": "a"},
    "generate": {"init_from": "run"},
    "convert": {"init_from": "run"},
    "features": {"init_from": "run", "input": "a.txt", "output": "a.npz"},
    "surprisal": {"init_from": "run", "text": "a"},
    "zero_shot": {"init_from": "run"},
}


def stems(folder: Path) -> set[str]:
    return {path.stem for path in folder.glob("*.py")} - {"__init__"}


def test_configs_jobs_and_the_registry_are_one_set():
    assert stems(ROOT / "configs") == set(JOBS) == stems(ROOT / "gpt1_jax" / "jobs")


@pytest.mark.parametrize("job", JOBS)
def test_every_job_runs_a_configuration_in_a_folder(job):
    run = importlib.import_module(f"gpt1_jax.jobs.{job}").run
    assert list(inspect.signature(run).parameters) == ["config", "workdir"]
    values = load_config("", file=job, **FIRST.get(job, {}))
    config = config_lib.load(values.to_dict())
    assert type(config) is JOBS[job] and config.job == job
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.preset = "other"


def test_an_unknown_job_is_refused_with_the_list():
    with pytest.raises(ValueError, match=r"config.job='bake' .*pretrain, finetune"):
        config_lib.load({"job": "bake"})
