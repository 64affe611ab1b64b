"""Typed, frozen views of a job's configuration, checked before any work.

A file in `configs/` builds a `ml_collections.ConfigDict`; the command line
overrides individual values; `load` turns the result into the frozen dataclass of its
job, and `saved.load_saved` does the same with the file in a run folder. A key that is
left out has its default. One that must be given or is unknown, or a value that cannot
work, raises a `UserError` that names the key, the value and a way out.
"""

import dataclasses
import difflib
import importlib
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import ml_collections

from gpt1_jax.config.checks import default_values, make_section, require
from gpt1_jax.config.flat import flatten, rename_keys, unflatten
from gpt1_jax.config.sections import JobConfig, ModelConfig
from gpt1_jax.errors import UserError, find_named
from gpt1_jax.formats import FORMAT, VERSION


class Job(NamedTuple):
    """Names the modules of a job."""

    config: str  # MODULE:CLASS of its configuration
    module: str  # the module with `run(config, workdir)`

    def config_class(self) -> type[JobConfig]:
        """Imports the class of the job's configuration."""
        return find_named(self.config, "config.job")

    def import_module(self) -> ModuleType:
        """Imports the module that does the job: `run(config, workdir)`."""
        return find_named(self.module, "config.job")


# By name; a job's modules are imported on demand. A study is a folder in
# studies/, a file in configs/ and a line here.
STUDIES: Mapping[str, str] = {
    "zero_shot": "ZeroShotConfig",
    "minimal_pairs": "MinimalPairsConfig",
    "interventions": "InterventionsConfig",
    "babylm": "BabyLMConfig",
    "surprisal": "SurprisalConfig",
    "reading_times": "ReadingTimesConfig",
    "features": "FeaturesConfig",
    "explore": "ExploreConfig",
    "batches": "BatchesConfig",
    "verify": "VerifyConfig",
}
_CONFIGS: Mapping[str, str] = {
    "pretrain": "PretrainConfig",
    "finetune": "FinetuneConfig",
    "predict": "PredictConfig",
    "generate": "GenerateConfig",
    "convert": "ConvertConfig",
    "report": "ReportConfig",
}
JOBS: Mapping[str, Job] = {
    **{
        name: Job(f"gpt1_jax.config.{name}:{config}", f"gpt1_jax.jobs.{name}")
        for name, config in _CONFIGS.items()
    },
    **{
        name: Job(
            f"gpt1_jax.studies.{name}.config:{config}", f"gpt1_jax.studies.{name}.job"
        )
        for name, config in STUDIES.items()
    },
}
_outside: dict[str, Job] = {}  # jobs of other packages that were loaded, by name


def find_job(name: Any) -> Job:
    """Finds a job by name: one of `JOBS`, or one that `load` has loaded.

    Raises:
      UserError: if there is no such job.
    """
    jobs = {**JOBS, **_outside}
    require(
        isinstance(name, str) and name in jobs,
        f"config.job={name!r:.80} is not known here; the program's own jobs are "
        f"{', '.join(JOBS)}, and any other is known to the command that does it.",
    )
    return jobs[name]


def default_config(
    job: str, preset: str = "", presets: Sequence[str] = ()
) -> ml_collections.ConfigDict:
    """The defaults of a job's keys, for its file in `configs/` to change and lock.

    Keys without a default are missing (`checks`); the file sets them.

    Args:
      job: one of `JOBS`, or a module outside the package, which is imported.
      preset: the preset that is asked for.
      presets: those that the file has; any, if there are none.

    Raises:
      UserError: if there is no such preset.
    """
    if presets and preset not in presets:
        near = difflib.get_close_matches(preset, presets, 1)
        raise UserError(
            f"configs/{job}.py has no preset {preset!r}; choose one of "
            f"{', '.join(presets)}." + (f" Did you mean {near[0]}?" if near else "")
        )
    know_job(job)
    values = default_values(find_job(job).config_class())
    given = {"job": job, "preset": preset}
    return ml_collections.ConfigDict(unflatten({**values, **given}))


def load(values: Mapping[str, Any]) -> Any:
    """Checks and freezes a configuration given by the user.

    Keys that 1.0 called otherwise may have their old names. A job that is not in `JOBS`
    is a module outside the package, which is imported. It
    has `Config`, its configuration's class, and `run(config, workdir)`.

    Args:
      values: the mapping built by a file in `configs/`, with overrides applied.

    Returns:
      The frozen configuration of the job that it names.

    Raises:
      UserError: naming the first key that is unknown, missing or impossible.
    """
    know_job(values.get("job", ""))
    return load_flat(rename_keys(flatten(values)))


def know_job(name: Any) -> None:
    """Imports a job that the user names, unless it is one of `JOBS`.

    Raises:
      UserError: if it is not a job.
    """
    if not (isinstance(name, str) and name in JOBS):
        require(
            _is_job(name),
            f"config.job={name!r:.80} is not known; choose one of {', '.join(JOBS)}, "
            "or name a module with Config, a class derived from JobConfig, and "
            "run(config, workdir). python -m gpt1_jax.main finds modules in the "
            "current folder and in PYTHONPATH.",
        )
        job = Job(f"{name}:Config", name)
        keys = {field.name for field in dataclasses.fields(job.config_class())}
        require(
            not (taken := keys & {FORMAT, VERSION}),
            f"{name}.Config has the key {' and '.join(sorted(taken))}, which says the "
            "format of a run folder in its config.json; give it another name.",
        )
        _outside[name] = job


def load_flat(flat: Mapping[str, Any]) -> Any:
    """Like `load`, of flat values, and imports nothing that they name.

    Raises:
      UserError: also if the job is neither one of `JOBS` nor loaded already.
    """
    cls = find_job(flat.get("job", "")).config_class()
    return make_section("", cls, unflatten({**default_values(cls), **flat}))


def _is_job(name: Any) -> bool:
    """Imports a module and returns whether it is a job."""
    if not (isinstance(name, str) and all(map(str.isidentifier, name.split(".")))):
        return False
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if f"{name}.".startswith(f"{error.name}."):
            return False
        raise  # the module exists, but imports one that does not
    config, run = (getattr(module, each, None) for each in ("Config", "run"))
    return isinstance(config, type) and issubclass(config, JobConfig) and callable(run)


__all__ = [
    "JOBS",
    "STUDIES",
    "Job",
    "ModelConfig",
    "default_config",
    "find_job",
    "know_job",
    "load",
    "load_flat",
]
