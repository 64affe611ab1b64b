"""A task of the user's own, as `config.custom` describes it.

Its examples are read by `gpt1_jax.tasks.examples`, from the files of `config.data`.
"""

import contextlib
import dataclasses
import math
import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gpt1_jax.config.finetune import (
    CUSTOM_TASK,
    CustomTaskConfig,
    FinetuneConfig,
    TaskDataConfig,
)
from gpt1_jax.data.files import is_stream, locate
from gpt1_jax.data.records import parse_number, require_column
from gpt1_jax.errors import UserError
from gpt1_jax.tasks.batches import EncodedExamples
from gpt1_jax.tasks.examples import read_own_file
from gpt1_jax.tasks.metrics import fitting_metrics
from gpt1_jax.tasks.task import (
    Example,
    Inputs,
    Record,
    Target,
    Task,
    is_blank,
    label_key,
    label_name,
    split_labels,
)

_BETWEEN_TEXTS = "|||"  # in a template
_FORMATTER = string.Formatter()
_OF_ONE_LABEL = ("classification", "similarity")  # a row, which no choice is
_BALANCED = "balanced"  # of `custom.class_weights`
_UNEVEN = 5  # times as many examples of one label as of another
_FEW = 10  # examples of a label
_MOST_NAMED = 50  # labels in a line
_MOST_SCORES = 1000  # outputs of a head that learns scores as soft labels


def custom_task(config: FinetuneConfig) -> Task:
    """The task that `config.custom` describes, once its labels are known.

    Raises:
      UserError: naming the key that does not fit the head.
    """
    custom = config.custom
    _check_columns(custom)
    _check_labels(custom, config.head.score_loss)
    _check_class_weights(custom)
    formats, columns = _read_template(custom)
    scored, several = _has_scores(custom), custom.head == "multilabel"
    transform: str = custom.head
    if custom.head in ("classification", "multilabel"):
        transform = "single" if len(formats or columns) == 1 else "pair"
    positive = 1
    if custom.positive:
        positive = custom.labels.index(custom.positive.strip())
    first = "pearson" if scored else "micro_f1" if several else "accuracy"
    return Task(
        name=CUSTOM_TASK,
        title=custom.name or "Custom",
        inputs=Inputs(
            transform=transform,
            text=columns,
            choices=custom.choices,
            formats=formats,
            may_be_empty="some" if len(columns) > 1 else "none",
        ),
        target=Target(
            labels=() if scored else custom.labels,
            column=custom.label.strip(),
            score_range=custom.score_range if scored else None,
            score_loss=config.head.score_loss,
            numbers_are_names=True,
            multilabel=several,
            positive=positive,
        ),
        metrics=custom.metrics or (first,),
    )


def fill_in_labels(config: FinetuneConfig) -> FinetuneConfig:
    """The configuration with the labels of its task, by default the training file's.

    Of two labels, one is the positive class: by default the one with fewer rows there,
    or the second of equally many.

    Raises:
      UserError: if there is no training file, or it holds no labels.
    """
    custom = config.custom
    _check_columns(custom)  # before a file is read
    if _has_scores(custom):
        return config
    labels = custom.labels or (custom.choices if len(custom.choices) > 1 else ())
    path, positive = config.data.train, custom.positive
    counts: Mapping[str, _Count] = {}
    if not labels:
        counts = _count_labels(custom, config.data.paths())
        labels = _infer_labels(counts, custom, path)
    if len(labels) == 2 and not positive and custom.head in _OF_ONE_LABEL:
        file = locate(path)
        # A pipe is read only once, and labels that are named need no file.
        if not counts and path and file.exists() and not is_stream(file):
            counts = _count_labels(custom, config.data.paths())
        if counts:
            positive = _rarer(labels, counts)
    custom = dataclasses.replace(custom, labels=labels, positive=positive)
    return dataclasses.replace(config, custom=custom)


def class_weights(
    custom: CustomTaskConfig, train: Sequence[Example]
) -> np.ndarray | None:
    """How much an example of each label weighs in the loss.

    Args:
      custom: the task, with its labels, as `custom_task` accepts it.
      train: the training examples, all with a label.

    Returns:
      [K] float32, or None if all weigh alike. "balanced" is N / (K * count) for a label
      of `count` of N examples with K different labels, as in scikit-learn.
    """
    if not custom.class_weights:
        return None
    if custom.class_weights != (_BALANCED,):
        return np.asarray(custom.class_weights, np.float32)
    labels = np.asarray([example.label for example in train])
    counts = np.bincount(labels, minlength=len(custom.labels))
    weights = len(labels) / (np.count_nonzero(counts) * np.maximum(counts, 1))
    return weights.astype(np.float32)


def describe_class_weights(custom: CustomTaskConfig, train: Sequence[Example]) -> str:
    """A line on the weights of labels, or on labels that may need some; "" if none."""
    if (weights := class_weights(custom, train)) is not None:
        each = zip(custom.labels, weights, strict=True)
        return f"Class weights: {', '.join(f'{name!r} {w:.4g}' for name, w in each)}."
    if custom.head not in _OF_ONE_LABEL or not custom.labels:
        return ""
    found, counts = np.unique([each.label for each in train], return_counts=True)
    most, least = counts.argmax(), counts.argmin()
    if counts[most] <= _UNEVEN * counts[least]:
        return ""
    common, rare = (custom.labels[found[each]] for each in (most, least))
    return (
        f"{counts[most]:,} training examples are {common!r} and {counts[least]:,} "
        f"{rare!r}; --config.custom.class_weights=balanced gives each label the same "
        "weight in the loss."
    )


def describe_rows(
    task: Task, data: TaskDataConfig, splits: Mapping[str, EncodedExamples]
) -> list[str]:
    """Lines on the labels of the user's own task, and on rows that are held out.

    Args:
      task: the task.
      data: where its examples come from.
      splits: the splits "train" and "dev".
    """
    lines, names = [], task.target.labels
    train, dev = splits["train"].targets, splits["dev"].targets
    if data.holds_out:
        fold = f" (fold {data.fold} of {data.folds})" if data.fold else ""
        lines.append(
            f"Held out of {data.train} as the dev split{fold}: {len(dev):,} rows, "
            "chosen by text and label, the same for every seed and order of rows."
        )
    if not names:
        return lines
    of_each = (split.sum(axis=0, dtype=int) for split in (train, dev))
    counts = [*zip(names, *of_each, strict=True)]
    said = _first_of([f"{name!r} {n:,} + {of_dev:,}" for name, n, of_dev in counts])
    about = ""
    if len(names) == 2 and not task.inputs.choices:
        positive = names[task.target.positive]
        about = f" F1 is of {positive!r} (--config.custom.positive)."
    if task.target.multilabel:
        without, of_dev = (np.sum(~each.any(axis=1)) for each in (train, dev))
        about = f" Without any: {without:,} + {of_dev:,}."
    lines.append(f"Labels, training + dev: {said}.{about}")
    if few := [f"{name!r} {n}" for name, n, _ in counts if n < _FEW]:
        lines.append(
            f"WARNING: labels with fewer than {_FEW} training examples, which is too "
            f"few to learn or to score: {_first_of(few)}."
        )
    lines += [
        f"WARNING: the labels {first!r} and {other!r} differ only in case, blanks or "
        "kind; if they mean the same, write them alike."
        for first, other in _alike(names, lambda name: label_key("".join(name.split())))
    ]
    return lines


def _first_of(parts: Sequence[str], most: int = _MOST_NAMED) -> str:
    """The parts in one line; of many, the first."""
    more = f" and {len(parts) - most:,} more" if len(parts) > most else ""
    return ", ".join(parts[:most]) + more


def _alike(labels: Iterable[str], key: Callable[[str], str]) -> list[tuple[str, str]]:
    """The pairs of labels with one key: the first that has it, and each other."""
    firsts: dict[str, str] = {}
    pairs = [(firsts.setdefault(key(label), label), label) for label in labels]
    return [(first, label) for first, label in pairs if first != label]


def _has_scores(custom: CustomTaskConfig) -> bool:
    return custom.score_range[0] < custom.score_range[1]


def _read_template(
    custom: CustomTaskConfig,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The format strings of `custom.template`, and the columns of the text.

    Without a template there are no format strings; the columns are `custom.text`.

    Raises:
      UserError: if a brace has no partner, or something else than a column stands in
        braces.
    """
    if not custom.template:
        return (), custom.text
    key = f"config.custom.template={custom.template!r}"
    if custom.text:
        raise UserError(
            f"{key} does not go with config.custom.text={custom.text}: a template "
            "names its columns in braces; leave one of the two empty."
        )
    formats = tuple(each.strip() for each in custom.template.split(_BETWEEN_TEXTS))
    columns: dict[str, None] = {}
    for each in formats:
        try:
            fields = [field for field in _FORMATTER.parse(each) if field[1] is not None]
            if not fields or any(
                not name or set(name) & set("[]{}.") or spec or conversion
                for _, name, spec, conversion in fields
            ):
                raise ValueError(
                    "each text needs a column in braces, by its name alone"
                )
        except ValueError as error:
            raise UserError(
                f"{key} cannot be read ({error}). Write columns in braces, a pair as "
                "FIRST ||| SECOND, as in '{title} by {author} ||| {review}', and "
                "double any other brace."
            ) from error
        columns |= dict.fromkeys(name for _, name, *_ in fields if name)
    return formats, tuple(columns)


def _check_columns(custom: CustomTaskConfig) -> None:
    """Refuses texts and choices that do not go with the head."""
    formats, columns = _read_template(custom)
    texts = formats or columns
    allowed_numbers = {
        "classification": (1, 2),
        "multilabel": (1, 2),
        "similarity": (2,),
        "multiple_choice": (1, 2),
    }
    if custom.head not in allowed_numbers:
        raise UserError(
            "A task of your own needs --config.custom.head: classification, "
            "multilabel, similarity or multiple_choice."
        )
    if len(texts) not in allowed_numbers[custom.head]:
        allowed = " or ".join(map(str, allowed_numbers[custom.head]))
        given = f"text={custom.text} names {len(texts)} columns"
        if custom.template:
            given = f"template={custom.template!r} makes {len(texts)} texts"
        raise UserError(
            f"config.custom.{given}; the head {custom.head!r} takes {allowed}. Of more "
            "columns, make one text by --config.custom.template='{A} {B}', or two by "
            "'{A} {B} ||| {C}'."
        )
    if custom.label.strip() in columns:
        raise UserError(
            f"config.custom.label={custom.label!r} is also a column of the text, which "
            "would give the answer away; leave it out there."
        )
    if bool(custom.choices) != (custom.head == "multiple_choice"):
        raise UserError(
            f"config.custom.choices={custom.choices} does not go with the head "
            f"{custom.head!r}: a multiple choice needs columns of choices, others take "
            "none."
        )


def _check_labels(custom: CustomTaskConfig, score_loss: str) -> None:
    positive = custom.positive
    if positive and (len(custom.labels) != 2 or custom.head not in _OF_ONE_LABEL):
        raise UserError(
            f"config.custom.positive={positive!r} is for a classification "
            "or similarity of two labels, one of which F1 is about; leave it empty."
        )
    if positive and positive.strip() not in custom.labels:
        raise UserError(
            f"config.custom.positive={positive!r} is none of the labels "
            f"{' and '.join(map(repr, custom.labels))}; name one of them."
        )
    if _has_scores(custom):
        if custom.calibrate:
            raise UserError(
                "config.custom.calibrate=True is for the probabilities of labels, but "
                f"config.custom.score_range={custom.score_range} makes the labels "
                "scores; leave it out."
            )
        if custom.head in ("multiple_choice", "multilabel"):
            raise UserError(
                f"config.custom.score_range={custom.score_range} does not go with the "
                f"head {custom.head!r}, whose labels are "
                f"{'its choices' if custom.choices else 'names'}."
            )
        low, high = custom.score_range
        if score_loss == "soft_labels" and high - low > _MOST_SCORES:
            raise UserError(
                f"config.custom.score_range={custom.score_range} makes an output for "
                f"each of over {_MOST_SCORES:,} whole numbers; set "
                "--config.head.score_loss=regression."
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


def _check_class_weights(custom: CustomTaskConfig) -> None:
    weights, labels = custom.class_weights, custom.labels
    if not weights:
        return
    key = f"config.custom.class_weights={','.join(weights)!r}"
    scored = _has_scores(custom)
    if scored or custom.head not in _OF_ONE_LABEL:
        what = "scores" if scored else f"the head {custom.head!r}"
        raise UserError(
            f"{key} does not go with {what}: weights are for examples that have one of "
            "several labels; leave it empty."
        )
    if weights == (_BALANCED,):
        return
    wrong = [each for each in weights if not parse_number(each) > 0]
    if wrong or len(weights) != len(labels):
        problem = f"has {len(weights)} weights"
        if wrong:
            problem = f"has {wrong[0]!r}, which is not a number above 0"
        raise UserError(
            f"{key} {problem}; give 'balanced', or a number above 0 for each of the "
            f"{len(labels)} labels in their order: {', '.join(map(repr, labels))}."
        )


def check_metrics(task: Task) -> None:
    """Refuses metrics that do not suit the labels of the user's own task.

    Only before training: version 1.0 took more of them, and its runs stay usable.

    Raises:
      UserError: naming the first, and those that do.
    """
    fitting = fitting_metrics(task)
    if unfit := [name for name in task.metrics if name not in fitting]:
        kind = f"{len(task.target.labels)} labels" if task.target.labels else "scores"
        if task.target.multilabel:
            kind = "any number of labels an example"
        raise UserError(
            f"config.custom.metrics={task.metrics}: {unfit[0]!r} is not a metric for "
            f"a task with {kind}; those are {', '.join(fitting)}."
        )


class _Count(NamedTuple):
    """The rows of the training file that have a label, and where the first is."""

    rows: int
    where: str


def _count_labels(
    custom: CustomTaskConfig, paths: Mapping[str, str]
) -> dict[str, _Count]:
    """The different labels in the training file, by name."""
    column, counts = custom.label.strip(), dict[str, _Count]()
    for record in read_own_file("train", paths):
        cell = record.columns.get(column)
        labels = None if is_blank(cell) else [cell]
        if custom.head == "multilabel":
            labels = split_labels(cell, record.where)
        for name in dict.fromkeys(label_name(x, record.where) for x in labels or ()):
            rows, where = counts.get(name, (0, record.where))
            counts[name] = _Count(rows + 1, where)
    return counts


def _infer_labels(
    counts: Mapping[str, _Count], custom: CustomTaskConfig, path: str
) -> tuple[str, ...]:
    """The labels of the training file, sorted."""
    column = custom.label.strip()
    if not counts:
        records = list(read_own_file("train", {"train": path}))
        for record in records:
            require_column(record.columns, column, record.where)
        if not records:
            raise UserError(f"{path} has no rows.")
        raise UserError(
            f"{path} has no labels in its column {column!r}; name another with "
            "--config.custom.label."
        )
    if alike := [
        f"{counts[other].where}: label {other!a} looks like {first!a} of "
        f"{counts[first].where}"
        for first, other in _alike(counts, label_key)
    ]:
        raise UserError(
            f"{_first_of(alike, 3)}, written in another way (case, Unicode form or "
            "number). Spell each label in one way; if these are different labels, "
            "list all in --config.custom.labels."
        )
    if fractions := sorted(filter(_is_fraction, counts)):
        raise UserError(
            f"Column {column!r} of {path} holds numbers such as "
            f"{fractions[0]}. If they are scores, set --config.custom.score_range="
            "LOWEST,HIGHEST; if they name labels, list all labels in "
            "--config.custom.labels."
        )
    if len(counts) == 1:
        ((name, count),) = counts.items()
        raise UserError(
            f"Column {column!r} of {path} holds only the label {name!r} (rows: "
            f"{count.rows:,}), but there must be at least two labels; add rows with "
            "another, or name another column with --config.custom.label."
        )
    if all(re.fullmatch("-?[0-9]+", label) for label in counts):
        return tuple(sorted(counts, key=lambda label: (int(label), label)))
    return tuple(sorted(counts))


def _rarer(labels: Sequence[str], counts: Mapping[str, _Count]) -> str:
    """Of two labels, that of fewer rows; the second if they have equally many."""
    target, numbers = Target(tuple(labels), numbers_are_names=True), Counter[Any]()
    for name, count in counts.items():
        with contextlib.suppress(UserError):  # an unknown label, which is named later
            number = target.read(Record({target.column: name}, count.where))
            numbers[number] += count.rows
    return labels[0] if numbers[0] < numbers[1] else labels[1]


def _is_fraction(label: str) -> bool:
    """Whether a label is a number such as 3.8, which is hardly a name."""
    number = parse_number(label)
    return not math.isnan(number) and not number.is_integer()
