"""The tasks of a configuration: the paper's, by name, or one of the user's own."""

import dataclasses
import math
from collections.abc import Mapping

from gpt1_jax.config import FinetuneConfig
from gpt1_jax.config.finetune import CUSTOM_TASK, CustomTaskConfig
from gpt1_jax.errors import UserError
from gpt1_jax.tasks.examples import read_own_file
from gpt1_jax.tasks.metrics import fitting_metrics
from gpt1_jax.tasks.paper_tasks import TASKS
from gpt1_jax.tasks.task import BLANK_LABELS, Task, label_name

ALL = "all"


def select_tasks(config: FinetuneConfig) -> tuple[list[Task], FinetuneConfig]:
    """The tasks to fine-tune on.

    Returns:
      The tasks that `config.tasks` names, and the configuration. If the labels of the
      user's own task are not given, it has those of the training file filled in.

    Raises:
      UserError: if there is no such task, or the user's own contradicts itself.
    """
    if config.tasks == (CUSTOM_TASK,):
        config = _fill_in_labels(config)
        return [custom_task(config)], config
    names = list(TASKS) if config.tasks == (ALL,) else list(dict.fromkeys(config.tasks))
    unknown = [name for name in names if name not in TASKS]
    if unknown:
        raise UserError(
            f"There is no task {', '.join(map(repr, unknown))}; there are "
            f"{', '.join(TASKS)}, or {ALL!r} or {CUSTOM_TASK!r} alone."
        )
    return [_published_task(name, config) for name in names], config


def find_task(config: FinetuneConfig) -> Task:
    """The task of a fine-tuned run.

    Raises:
      UserError: if its configuration names none.
    """
    name = config.tasks[0]
    if name == CUSTOM_TASK:
        return custom_task(config)
    if name not in TASKS:
        raise UserError(
            f"The run's configuration names the task {name!r:.40}; there are "
            f"{', '.join(TASKS)} and {CUSTOM_TASK}. Its folder is damaged, or another "
            "version has written it."
        )
    return _published_task(name, config)


def _published_task(name: str, config: FinetuneConfig) -> Task:
    """A task of the paper; the configuration says how it learns scores."""
    task = TASKS[name]
    if not task.score_range:
        return task
    return dataclasses.replace(task, score_loss=config.head.score_loss)


def custom_task(config: FinetuneConfig) -> Task:
    """The task that `config.custom` describes, once its labels are known.

    Raises:
      UserError: naming the key that does not fit the head.
    """
    custom = config.custom
    _check_columns(custom)
    _check_labels(custom)
    scored = _has_scores(custom)
    transform = custom.head
    if custom.head == "classification":
        transform = "single" if len(custom.text) == 1 else "pair"
    task = Task(
        name=CUSTOM_TASK,
        title="Custom",
        transform=transform,
        text=custom.text,
        choices=custom.choices,
        label=custom.label,
        labels=() if scored else custom.labels,
        score_range=custom.score_range if scored else None,
        score_loss=config.head.score_loss,
        metrics=custom.metrics or (("pearson",) if scored else ("accuracy",)),
        numbers_are_names=True,
    )
    _check_metrics(task)
    return task


def _has_scores(custom: CustomTaskConfig) -> bool:
    return custom.score_range[0] < custom.score_range[1]


def _check_columns(custom: CustomTaskConfig) -> None:
    columns = {"classification": (1, 2), "similarity": (2,), "multiple_choice": (1, 2)}
    if custom.head not in columns:
        raise UserError(
            "A task of your own needs --config.custom.head: classification, similarity "
            "or multiple_choice."
        )
    if len(custom.text) not in columns[custom.head]:
        allowed = " or ".join(map(str, columns[custom.head]))
        raise UserError(
            f"config.custom.text={custom.text} names {len(custom.text)} columns; the "
            f"head {custom.head!r} takes {allowed}."
        )
    if bool(custom.choices) != (custom.head == "multiple_choice"):
        raise UserError(
            f"config.custom.choices={custom.choices} does not go with the head "
            f"{custom.head!r}: a multiple choice needs columns of choices, others take "
            "none."
        )


def _check_labels(custom: CustomTaskConfig) -> None:
    if _has_scores(custom):
        if custom.choices:
            raise UserError(
                f"config.custom.score_range={custom.score_range} does not go with the "
                "head 'multiple_choice', whose labels are its choices."
            )
        return
    if len(custom.labels) < 2:
        raise UserError(
            f"config.custom.labels={custom.labels}: there must be at least two labels. "
            "If they are scores, set --config.custom.score_range=LOWEST,HIGHEST."
        )
    if len(custom.choices) > 1 and len(custom.labels) != len(custom.choices):
        raise UserError(
            f"config.custom.labels={custom.labels} must name each of the columns "
            f"config.custom.choices={custom.choices}."
        )


def _check_metrics(task: Task) -> None:
    fitting = fitting_metrics(task)
    if unfit := [name for name in task.metrics if name not in fitting]:
        kind = f"{len(task.labels)} labels" if task.labels else "scores"
        raise UserError(
            f"config.custom.metrics={task.metrics}: {unfit[0]!r} is not a metric for "
            f"a task with {kind}; those are {', '.join(fitting)}."
        )


def _fill_in_labels(config: FinetuneConfig) -> FinetuneConfig:
    """The configuration with its labels, by default those of the training file."""
    custom = config.custom
    if custom.labels or _has_scores(custom):
        return config
    if len(custom.choices) > 1:
        labels = custom.choices
    else:
        labels = _read_labels(config.data.paths(), custom.label)
    custom = dataclasses.replace(custom, labels=labels)
    return dataclasses.replace(config, custom=custom)


def _read_labels(paths: Mapping[str, str], column: str) -> tuple[str, ...]:
    """The different labels in a column of the training file, sorted."""
    labels = {
        label_name(record.columns[column], record.where)
        for record in read_own_file("train", paths)
        if record.columns.get(column) not in BLANK_LABELS
    }
    if not labels:
        raise UserError(
            f"{paths['train']} has no column {column!r} to take labels from; name it "
            "with --config.custom.label."
        )
    if fractions := sorted(filter(_is_fraction, labels)):
        raise UserError(
            f"Column {column!r} of {paths['train']} holds numbers such as "
            f"{fractions[0]}. If they are scores, set --config.custom.score_range="
            "LOWEST,HIGHEST; if they name labels, list all labels in "
            "--config.custom.labels."
        )
    return tuple(sorted(labels))


def _is_fraction(label: str) -> bool:
    """Whether a label is a number such as 3.8, which is hardly a name."""
    try:
        number = float(label)
    except ValueError:
        return False
    return math.isfinite(number) and not number.is_integer()
