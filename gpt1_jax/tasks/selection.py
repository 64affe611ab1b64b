"""Which tasks a configuration names."""

import dataclasses
from collections.abc import Mapping

from gpt1_jax.config import FinetuneConfig
from gpt1_jax.config.task_sections import CUSTOM_TASK
from gpt1_jax.tasks.sources import own_records
from gpt1_jax.tasks.table import TASKS
from gpt1_jax.tasks.task import Task

ALL = "all"


def select_tasks(config: FinetuneConfig) -> tuple[list[Task], FinetuneConfig]:
    """The tasks named, and the configuration with all that was inferred.

    Raises:
      ValueError: if there is no such task, with the list.
    """
    if config.tasks == (CUSTOM_TASK,):
        config = _with_labels(config)
        return [custom_task(config)], config
    if config.tasks == (ALL,):
        return list(TASKS.values()), config
    unknown = [name for name in config.tasks if name not in TASKS]
    if unknown:
        raise ValueError(
            f"There is no task {', '.join(map(repr, unknown))}; there are "
            f"{', '.join(TASKS)}, {ALL!r} and {CUSTOM_TASK!r}."
        )
    return [TASKS[name] for name in dict.fromkeys(config.tasks)], config


def find_task(config: FinetuneConfig) -> Task:
    """The task of a finished run."""
    name = config.tasks[0]
    return custom_task(config) if name == CUSTOM_TASK else TASKS[name]


def custom_task(config: FinetuneConfig) -> Task:
    """The task that `config.custom` describes.

    Raises:
      ValueError: naming the key that does not fit the head.
    """
    custom = config.custom
    scored = custom.score_range[0] < custom.score_range[1]
    choosing = custom.head == "multiple_choice"
    columns = {"classification": (1, 2), "similarity": (2,), "multiple_choice": (1, 2)}
    if custom.head not in columns:
        raise ValueError(
            "A task of your own needs --config.custom.head: classification, similarity "
            "or multiple_choice."
        )
    if len(custom.text) not in columns[custom.head]:
        allowed = " or ".join(map(str, columns[custom.head]))
        raise ValueError(
            f"config.custom.text={custom.text} names {len(custom.text)} columns; the "
            f"head {custom.head!r} takes {allowed}."
        )
    if bool(custom.choices) != choosing:
        raise ValueError(
            f"config.custom.choices={custom.choices} does not go with the head "
            f"{custom.head!r}: a multiple choice has columns of choices, others have "
            "none."
        )
    transform = custom.head
    if custom.head == "classification":
        transform = "single" if len(custom.text) == 1 else "pair"
    return Task(
        name=CUSTOM_TASK,
        title="Custom",
        transform=transform,
        text=custom.text,
        choices=custom.choices,
        label=custom.label,
        labels=() if scored else custom.labels,
        score_range=custom.score_range if scored else None,
        metrics=custom.metrics or (("pearson",) if scored else ("accuracy",)),
    )


def _with_labels(config: FinetuneConfig) -> FinetuneConfig:
    """The configuration with its labels: as given, or as the training file has them."""
    custom = config.custom
    if custom.labels or custom.score_range[0] < custom.score_range[1]:
        return config
    if len(custom.choices) > 1:
        labels = custom.choices
    else:
        labels = _values(config.data.paths(), custom.label)
    custom = dataclasses.replace(custom, labels=labels)
    return dataclasses.replace(config, custom=custom)


def _values(paths: Mapping[str, str], column: str) -> tuple[str, ...]:
    """The different values in a column of the training file, sorted."""
    records = own_records("train", paths)
    values = {str(r.columns[column]) for r in records if column in r.columns}
    if not values:
        raise ValueError(
            f"{paths['train']} has no column {column!r} to take labels from; name it "
            "with --config.custom.label."
        )
    return tuple(sorted(values))
