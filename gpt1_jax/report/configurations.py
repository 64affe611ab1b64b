"""The configurations of a report's runs: what differs from the files in `configs/`."""

from collections.abc import Mapping, Sequence
from typing import Any

from gpt1_jax.config import JobConfig, flatten
from gpt1_jax.config.usage import defaults
from gpt1_jax.report.document import counted, escaped
from gpt1_jax.report.tables import markdown
from gpt1_jax.runs.finished import Finished

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
    return f"`configs/` file: {escaped(preset)}\n\n{_table(differences(config))}"


def several(finished: Sequence[Finished]) -> str:
    """The differences of fine-tuned runs, those that are alike together."""
    groups: dict[str, list[Finished]] = {}
    for run in finished:
        values = differences(run.config)
        kept = {key: values[key] for key in values.keys() - _NAMED_APART}
        groups.setdefault(_table(dict(sorted(kept.items()))), []).append(run)
    parts = []
    for table, runs in groups.items():
        by_task: dict[str, list[int]] = {}
        for run in runs:
            by_task.setdefault(run.config.tasks[0], []).append(run.config.seeds[0])
        named = "; ".join(
            f"{escaped(task)} (seeds {', '.join(map(str, sorted(set(seeds))))})"
            for task, seeds in by_task.items()
        )
        parts += [f"{counted(len(runs), 'run')}: {named}", table]
    return "\n\n".join(parts)


def _table(values: Mapping[str, Any]) -> str:
    if not values:
        return "All values are those of the file."
    body = [[escaped(key), escaped(_shown(value))] for key, value in values.items()]
    return markdown(["key", "value"], body, num_texts=2)


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "()"
    return repr(value) if value == "" else str(value)
