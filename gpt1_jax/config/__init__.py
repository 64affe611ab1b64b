"""Typed, frozen views of a job's configuration, checked before any work.

A file in `configs/` builds a `ml_collections.ConfigDict`; the command line
overrides individual values; `load` turns the result into the frozen dataclass of its
job, and `saved.load_saved` does the same with the file in a run folder. A key that is
left out has its default. One that must be given or is unknown, or a value that cannot
work, raises a `UserError` that names the key, the value and a way out.
"""

import difflib
import importlib
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from gpt1_jax.config.checks import default_values, keys_of, make_section, require
from gpt1_jax.config.flat import flatten, rename_keys, unflatten
from gpt1_jax.config.sections import JobConfig, ModelConfig
from gpt1_jax.errors import UserError, find_named
from gpt1_jax.formats import FORMAT, VERSION

if TYPE_CHECKING:
    import ml_collections


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


# By name: the folder in studies/ and the class of its configuration, which are imported
# on demand. A study is a folder, a file in configs/ and a line here.
STUDIES: Mapping[str, str] = {
    "zero_shot": "zero_shot:ZeroShotConfig",
    "minimal_pairs": "zero_shot:MinimalPairsConfig",
    "interventions": "interventions:InterventionsConfig",
    "babylm": "babylm:BabyLMConfig",
    "surprisal": "words:SurprisalConfig",
    "reading_times": "reading_times:ReadingTimesConfig",
    "features": "words:FeaturesConfig",
    "explore": "explore:ExploreConfig",
    "batches": "batches:BatchesConfig",
    "verify": "verify:VerifyConfig",
}


def _study(named: str) -> Job:
    folder, config = named.split(":")
    module = f"gpt1_jax.studies.{folder}"
    return Job(f"{module}.config:{config}", f"{module}.job")


JOBS: Mapping[str, Job] = {
    **{
        name: Job(
            f"gpt1_jax.config.{name}:{name.capitalize()}Config", f"gpt1_jax.jobs.{name}"
        )
        for name in ("pretrain", "finetune", "predict", "generate", "convert", "report")
    },
    **{name: _study(named) for name, named in STUDIES.items()},
}


def find_job(name: Any, *, may_import: bool = False) -> Job:
    """Finds a job by name: one of `JOBS`, or a module outside the package.

    Such a module has `Config`, its configuration's class, and `run(config, workdir)`.

    Args:
      name: the job's name, of any type.
      may_import: whether the module may be imported, as the user names it. Otherwise it
        must have been.

    Raises:
      UserError: if there is no such job.
    """
    if isinstance(name, str) and name in JOBS:
        return JOBS[name]
    module = _import(name) if may_import else sys.modules.get(str(name))
    config, run = (getattr(module, each, None) for each in ("Config", "run"))
    is_job = isinstance(config, type) and issubclass(config, JobConfig)
    require(
        is_job and callable(run),
        f"config.job={name!r:.80} is not known; choose one of {', '.join(JOBS)}, or "
        "name a module with Config, a class derived from JobConfig, and run(config, "
        "workdir). The command that names it looks in the current folder and in "
        "PYTHONPATH; what only a run folder names is not imported.",
    )
    taken = {FORMAT, VERSION}.intersection(key.name for key in keys_of(config))
    require(
        not taken,
        f"{name}.Config has the key {' and '.join(sorted(taken))}, which says the "
        "format of a run folder in its config.json; give it another name.",
    )
    return Job(f"{name}:Config", str(name))


def _import(name: Any) -> ModuleType | None:
    """A module; None if there is none of this name."""
    if not (isinstance(name, str) and all(map(str.isidentifier, name.split(".")))):
        return None
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if f"{name}.".startswith(f"{error.name}."):
            return None
        raise  # the module exists, but imports one that does not


def default_config(
    job: str, preset: str = "", presets: Sequence[str] = ()
) -> "ml_collections.ConfigDict":
    """The defaults of a job's keys, for its file in `configs/` to change and lock.

    Keys without a default are missing (`checks`); the file sets them.

    Args:
      job: one of `JOBS`, or a module outside the package, which is imported.
      preset: the preset that is asked for.
      presets: those that the file has; any, if there are none.

    Raises:
      UserError: if there is no such preset.
    """
    import ml_collections  # which takes time that most who read a folder need not

    if presets and preset not in presets:
        near = difflib.get_close_matches(preset, presets, 1)
        raise UserError(
            f"configs/{job}.py has no preset {preset!r}; choose one of "
            f"{', '.join(presets)}." + (f" Did you mean {near[0]}?" if near else "")
        )
    values = default_values(find_job(job, may_import=True).config_class())
    given = {"job": job, "preset": preset}
    return ml_collections.ConfigDict(unflatten({**values, **given}))


def load(values: Mapping[str, Any]) -> Any:
    """Checks and freezes a configuration given by the user.

    Keys that 1.0 called otherwise may have their old names. A job that is not in `JOBS`
    is a module outside the package, which is imported.

    Args:
      values: the mapping built by a file in `configs/`, with overrides applied.

    Returns:
      The frozen configuration of the job that it names.

    Raises:
      UserError: naming the first key that is unknown, missing or impossible.
    """
    find_job(values.get("job"), may_import=True)
    return load_flat(rename_keys(flatten(values)))


def load_flat(flat: Mapping[str, Any]) -> Any:
    """Like `load`, of flat values, and imports nothing that they name.

    Raises:
      UserError: also if the job is neither one of `JOBS` nor loaded already imported.
    """
    cls = find_job(flat.get("job")).config_class()
    return make_section("", cls, unflatten({**default_values(cls), **flat}))


__all__ = [
    "JOBS",
    "STUDIES",
    "Job",
    "ModelConfig",
    "default_config",
    "find_job",
    "load",
    "load_flat",
]
