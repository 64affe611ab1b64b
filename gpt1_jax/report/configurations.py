"""The configurations of a report's runs: what differs from the files in `configs/`."""

from collections.abc import Mapping, Sequence
from typing import Any

from gpt1_jax.config import JobConfig
from gpt1_jax.config.saved import flatten
from gpt1_jax.config.usage import defaults
from gpt1_jax.report.markdown import escape, markdown_table
from gpt1_jax.runs.past_runs import Finished

_NAMED_APART = {"preset", "tasks", "seeds"}  # of fine-tuned runs


def differences(config: JobConfig) -> dict[str, Any]:
    """The values that differ from those of the job's file, by key.

    Args:
      config: a run's; its preset is that of the file, if the file still has it.
    """
    known = flatten(defaults(config.job, config.preset))
    return {
        key: value
        for key, value in flatten(config.to_dict()).items()
        if key in known and known[key] != value
    }


def one(config: JobConfig) -> str:
    """The differences of a run as a Markdown table."""
    preset = f"{config.job}.py:{config.preset}" if config.preset else config.job
    return f"`configs/` file: {escape(preset)}\n\n{_table(differences(config))}"


def several(finished: Sequence[Finished]) -> str:
    """What fine-tuned runs share of their differences, and a line a group of the rest.

    Runs of a group differ in the task and the seed alone.
    """
    own = [_apart_from_suite(differences(run.config)) for run in finished]
    keys = sorted({key for values in own for key in values})
    flat = [flatten(run.config.to_dict()) for run in finished]
    shared = [key for key in keys if all(v[key] == flat[0][key] for v in flat)]
    apart = [key for key in keys if key not in shared]
    groups: dict[tuple[str, ...], list[Finished]] = {}
    for run, values in zip(finished, flat, strict=True):
        shown = tuple(escape(_shown(values[key])) for key in apart)
        groups.setdefault(shown, []).append(run)
    body = [[_tasks_and_seeds(runs), *shown] for shown, runs in groups.items()]
    lines = markdown_table(["tasks (seeds)", *apart], body, text_columns=1 + len(apart))
    return f"{lines}\n\nAll of them:\n\n{_table({k: flat[0][k] for k in shared})}"


def _apart_from_suite(values: Mapping[str, Any]) -> dict[str, Any]:
    """Without what tells a suite which runs to make, and what names a run."""
    return {
        key: value
        for key, value in values.items()
        if key not in _NAMED_APART and not key.startswith("suite.")
    }


def _tasks_and_seeds(runs: Sequence[Finished]) -> str:
    seeds: dict[str, set[int]] = {}
    for run in runs:
        seeds.setdefault(run.config.tasks[0], set()).add(run.config.seeds[0])
    return "; ".join(
        f"{escape(task)} ({', '.join(map(str, sorted(of_task)))})"
        for task, of_task in seeds.items()
    )


def _table(values: Mapping[str, Any]) -> str:
    if not values:
        return "All values are those of the file."
    body = [[escape(key), escape(_shown(value))] for key, value in values.items()]
    return markdown_table(["key", "value"], body, text_columns=2)


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "()"
    return repr(value) if value == "" else str(value)
