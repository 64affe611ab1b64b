"""A task of the user's own, as `config.custom` describes it.

Its examples are read by `gpt1_jax.tasks.examples`, from the files of `config.data`.
"""

import dataclasses
import math
from collections.abc import Mapping

from gpt1_jax.config.finetune import CUSTOM_TASK, CustomTaskConfig, FinetuneConfig
from gpt1_jax.data.tables import parse_number, require_column
from gpt1_jax.errors import UserError
from gpt1_jax.tasks.examples import read_own_file
from gpt1_jax.tasks.metrics import fitting_metrics
from gpt1_jax.tasks.task import BLANK_LABELS, Inputs, Target, Task, label_name


def custom_task(config: FinetuneConfig) -> Task:
    """The task that `config.custom` describes, once its labels are known.

    Raises:
      UserError: naming the key that does not fit the head.
    """
    custom = config.custom
    _check_columns(custom)
    _check_labels(custom)
    scored = _has_scores(custom)
    transform: str = custom.head
    if custom.head == "classification":
        transform = "single" if len(custom.text) == 1 else "pair"
    task = Task(
        name=CUSTOM_TASK,
        title=custom.name or "Custom",
        inputs=Inputs(transform=transform, text=custom.text, choices=custom.choices),
        target=Target(
            labels=() if scored else custom.labels,
            column=custom.label,
            score_range=custom.score_range if scored else None,
            score_loss=config.head.score_loss,
            numbers_are_names=True,
        ),
        metrics=custom.metrics or (("pearson",) if scored else ("accuracy",)),
    )
    _check_metrics(task)
    return task


def fill_in_labels(config: FinetuneConfig) -> FinetuneConfig:
    """The configuration with the labels of its task, by default the training file's.

    Raises:
      UserError: if there is no training file, or it holds no labels.
    """
    custom = config.custom
    if custom.labels or _has_scores(custom):
        return config
    if len(custom.choices) > 1:
        labels = custom.choices
    else:
        labels = _read_labels(config.data.paths(), custom.label)
    custom = dataclasses.replace(custom, labels=labels)
    return dataclasses.replace(config, custom=custom)


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
            f"head {custom.head!r} takes {allowed}. Of more, join some to one column "
            "of the files."
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
        kind = f"{len(task.target.labels)} labels" if task.target.labels else "scores"
        raise UserError(
            f"config.custom.metrics={task.metrics}: {unfit[0]!r} is not a metric for "
            f"a task with {kind}; those are {', '.join(fitting)}."
        )


def _read_labels(paths: Mapping[str, str], column: str) -> tuple[str, ...]:
    """The different labels in a column of the training file, sorted."""
    labels = {
        label_name(record.columns[column], record.where)
        for record in read_own_file("train", paths)
        if record.columns.get(column) not in BLANK_LABELS
    }
    if not labels:
        records = list(read_own_file("train", paths))
        for record in records:
            require_column(record.columns, column, record.where)
        if not records:
            raise UserError(f"{paths['train']} has no rows below its header.")
        raise UserError(
            f"{paths['train']} has no labels in its column {column!r}; name another "
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
    number = parse_number(label)
    return not math.isnan(number) and not number.is_integer()
