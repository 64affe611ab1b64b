"""The prediction job: labels new text with a fine-tuned model."""

import collections
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gpt1_jax.config.predict import PredictConfig
from gpt1_jax.data.files import locate
from gpt1_jax.data.records import plain_lines, read_input
from gpt1_jax.data.tables import check_own_table, write_own_table
from gpt1_jax.data.text import brief
from gpt1_jax.data.text_files import split_lines
from gpt1_jax.errors import UserError
from gpt1_jax.finetuning.calibration import calibrated
from gpt1_jax.finetuning.prediction_files import (
    check_added,
    prediction_columns,
    table_suffix,
    text_columns,
    write_predictions,
)
from gpt1_jax.finetuning.predictor import predict_examples, task_of
from gpt1_jax.finetuning.results import kept_run
from gpt1_jax.parallel import devices
from gpt1_jax.runs.console import say
from gpt1_jax.runs.folder import RESULTS_FILE
from gpt1_jax.runs.open import open_run, say_what_is_read
from gpt1_jax.runs.outputs import check_output_file, say_wrote
from gpt1_jax.tasks.examples import check_new_examples
from gpt1_jax.tasks.metrics import (
    METRICS,
    as_booleans,
    describe_metric,
    score_predictions,
    true_labels,
)
from gpt1_jax.tasks.task import Example, Record, Task

_MOST_LABELS = 10  # whose recall is said


def run(config: PredictConfig, workdir: str) -> None:
    """Prints or writes the label and probabilities of each example.

    Scores them, too, if the file has labels.

    Args:
      config: the model and the text.
      workdir: must be empty; labels go to standard output or to `config.output`.

    Raises:
      FileNotFoundError, UserError: if there is no such run or file, a row does not hold
        the texts that the task needs, or the output cannot hold the columns.
    """
    config.check_workdir(workdir)
    output, suffix = locate(config.output), ""
    if config.output:
        suffix = table_suffix(output)
        check_output_file(output, "--config.output=FILE", config.input)
        check_own_table(output, {}, suffix)
    origin = open_run(kept_run(config.init_from), config.step)
    say_what_is_read(origin)
    origin = calibrated(origin)
    task, trained = task_of(origin), origin.config
    devices.configure(trained.train.matmul_precision, trained.train.compilation_cache)
    if not (origin.folder / RESULTS_FILE).exists():
        say(
            f"WARNING: the run in {origin.folder} is not finished; a better step may "
            "follow.",
            beside_output=True,
        )
    examples, columns = _read(config, task)
    table = columns
    if config.output:
        check_added(columns, task, f"config.input={config.input!r}")
        if not columns and suffix != ".jsonl":  # which keeps texts apart
            table = text_columns(task, examples)
        check_own_table(output, table, suffix)
    labelled = _read_labels(task, examples, columns.get(task.target.column, []))
    predictions, probabilities = predict_examples(
        origin, origin.params, task, examples, config.batch_size
    )
    num_rows = max(map(len, columns.values()), default=len(examples))
    added = prediction_columns(task, num_rows, examples, predictions, probabilities)
    if not config.output:
        for row in _printed(task, added, examples):
            say("\t".join(row))
    elif table:
        write_own_table(output, {**table, **added}, suffix)
        say_wrote(config.output)
    else:
        shares = probabilities if task.target.labels else None
        write_predictions(output, task, examples, predictions, shares, with_text=True)
        say_wrote(config.output)
    if labelled:
        _say_scores(task, labelled, predictions, probabilities)


def _read(
    config: PredictConfig, task: Task
) -> tuple[list[Example], dict[str, list[Any]]]:
    """The examples to label, and all columns of their rows; lines have none.

    A cell that a row lacks is None.
    """
    rows: list[tuple[str, str | dict[str, Any]]]
    if config.text:
        rows = [*plain_lines(split_lines(config.text), "config.text")]
        if not rows:
            raise UserError(f"config.text={config.text!r} holds no examples.")
    else:
        rows = [*read_input(config.input, "example")]
    cells = [row for _, row in rows if not isinstance(row, str)]
    names = dict.fromkeys(itertools.chain.from_iterable(cells))
    columns = {name: [row.get(name) for row in cells] for name in names}
    # A line of text, unlike a row, has no place for an empty prediction.
    examples = check_new_examples(task, rows, skip_empty=bool(columns))
    if not examples:
        raise UserError(
            f"No row of config.input={config.input!r} has text in "
            f"{', '.join(task.inputs.text)}."
        )
    return examples, columns


def _read_labels(
    task: Task, examples: Sequence[Example], cells: Sequence[Any]
) -> dict[int, Example]:
    """The examples whose rows have a label that the model knows, by their place.

    Names other labels in a warning.
    """
    found, unknown = {}, collections.Counter[str]()
    for place, example in enumerate(examples if cells else ()):
        value = cells[example.number]
        record = Record({task.target.column: value}, example.where)
        try:
            label = task.target.read(record)
        except UserError:
            unknown[brief(value)] += 1
        else:
            if label is not None:
                found[place] = example._replace(label=label)
    if unknown:
        named = ", ".join(f"{name} ({n:,})" for name, n in unknown.most_common(5))
        more = f" and {len(unknown) - 5:,} more" if len(unknown) > 5 else ""
        say(
            "WARNING: labels that the model does not know, in rows that are not "
            f"scored: {named}{more}.",
            beside_output=True,
        )
    # Where several labels are asked for, an empty column would say that none applies.
    is_empty = all(example.label == () for example in found.values())
    return {} if is_empty else found


def _say_scores(
    task: Task,
    labelled: Mapping[int, Example],
    predictions: np.ndarray,
    probabilities: np.ndarray,
) -> None:
    """Says the scores of the task, and the recall of each label in the file."""
    places, examples = list(labelled), list(labelled.values())
    predicted = predictions[places]
    scores = score_predictions(task, examples, predicted, probabilities[places])
    shown = "  ".join(
        f"{describe_metric(task, name)} {scores[name]:.4f}"
        for name in scores
        if name in METRICS
    )
    say(f"Scores of the {len(places):,} rows with labels: {shown}", beside_output=True)
    if labels := task.target.labels:
        has = as_booleans(true_labels(task, examples), len(labels))
        number = has.sum(axis=0)
        right = (has & as_booleans(predicted, len(labels))).sum(axis=0)
        there = sorted(np.flatnonzero(number), key=lambda k: right[k] / number[k])
        recall = [f"{labels[k]!r} {right[k]:,} of {number[k]:,}" for k in there]
        if len(recall) > _MOST_LABELS:
            recall = [*recall[:_MOST_LABELS], ".."]
        say(f"Recall, lowest first: {', '.join(recall)}", beside_output=True)


def _printed(
    task: Task, added: Mapping[str, Sequence[Any]], examples: Sequence[Example]
) -> Iterator[list[str]]:
    """Rows to print: the prediction, its probabilities and the text, or nothing."""
    labels = task.target.labels
    texts = {each.number: " ".join(" | ".join(each.text).split()) for each in examples}
    yield ["label" if labels else "score", *list(added)[1:], "text"]
    for number, (answer, *shares) in enumerate(zip(*added.values(), strict=True)):
        if number not in texts:
            yield [""] * (len(added) + 1)
            continue
        shown = "|".join(answer) if isinstance(answer, tuple) else answer
        shown = shown if labels else f"{answer:.3f}"
        yield [shown, *(f"{share:.4f}" for share in shares), texts[number]]
