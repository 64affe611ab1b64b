"""Scores of tasks that a model was not trained on (sec. 5; Figure 2, right)."""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gpt1_jax.config import ZeroShotDataConfig
from gpt1_jax.data.tokenizers import Tokenizer
from gpt1_jax.inference.scoring import Pair, Scorer
from gpt1_jax.model.language_model import Params
from gpt1_jax.tasks import metrics
from gpt1_jax.tasks.loading import some
from gpt1_jax.tasks.task import Example
from gpt1_jax.tasks.uncertainty import (
    auc,
    best_threshold,
    bootstrap_error,
    standard_error,
)
from gpt1_jax.tasks.zero_shot import Question, ZeroShot, read
from gpt1_jax.tasks.zero_shot_pairs import EncodedAnswers, encode_answers


class Asked(NamedTuple):
    """Examples, and their answers as the model reads them."""

    split: str
    examples: list[Example]
    encoded: EncodedAnswers

    @property
    def labels(self) -> np.ndarray:
        """[N] label numbers."""
        return np.asarray([example.label for example in self.examples])


class Prepared(NamedTuple):
    """A task with all that does not depend on the parameters."""

    way: ZeroShot
    asked: Asked
    threshold_on: Asked | None  # where to choose the threshold, if there is one


class Outcome(NamedTuple):
    """How a model did on a task."""

    predictions: np.ndarray  # [N] label numbers
    scores: dict[str, Any]  # see `evaluate`


def prepare(
    question: Question,
    data: ZeroShotDataConfig,
    tokenizer: Tokenizer,
    max_seq_len: int,
) -> Prepared:
    """Reads and encodes the examples of a task.

    Raises:
      MissingData: if there is none.
      ValueError: naming the example that cannot be used.
    """
    way = question.way

    def ask(splits: tuple[str, ...]) -> Asked:
        split, examples = read(Question(way, splits), data.source, data.dir)
        examples = some(examples, data.max_examples)
        encoded = encode_answers(way, examples, tokenizer, max_seq_len)
        return Asked(split, examples, encoded)

    threshold_on = ask((way.threshold_split,)) if way.threshold_split else None
    return Prepared(way, ask(question.splits), threshold_on)


def evaluate(
    tasks: Sequence[Prepared], score: Scorer, params: Params, seed: int
) -> list[Outcome]:
    """Answers the examples of tasks and scores the answers.

    All are read in one go, so that tasks share what is compiled.

    Args:
      tasks: one or more.
      score: the model.
      params: its parameters.
      seed: of the resamples from which standard errors are estimated.

    Returns:
      An outcome for each task. Its scores are what `gpt1_jax.tasks.metrics.evaluate`
      returns, with "standard_error" of the task's first metric, "split" and "num_cut",
      the examples that were cut. With a threshold there are "threshold", in nats, "auc"
      and "auc_standard_error" too.
    """
    asked = [each for task in tasks for each in (task.threshold_on, task.asked) if each]
    pairs = [Pair(*answer) for each in asked for answer in each.encoded.answers]
    log_probs = iter([each.log_probs for each in score(params, pairs)])

    def values(task: Prepared, part: Asked) -> np.ndarray:
        count = len(part.encoded.answers)
        some = list(itertools.islice(log_probs, count))
        return part.encoded.compare(some, mean=task.way.mean)

    return [
        _outcome(
            task,
            values(task, task.threshold_on) if task.threshold_on else None,
            values(task, task.asked),
            seed,
        )
        for task in tasks
    ]


def _outcome(
    task: Prepared, train: np.ndarray | None, values: np.ndarray, seed: int
) -> Outcome:
    """Predictions and scores from [N, A] log-probabilities, in nats."""
    definition, labels = task.way.task, task.asked.labels
    more: dict[str, Any] = {}
    if task.threshold_on is None or train is None:
        predictions = values.argmax(axis=1)
    else:
        threshold = best_threshold(train[:, 0], task.threshold_on.labels)
        predictions = (values[:, 0] >= threshold).astype(np.int64)
        more["threshold"] = threshold
        more["auc"] = auc(values[:, 0], labels)
        more["auc_standard_error"] = bootstrap_error(auc, values[:, 0], labels, seed)
    subsets = [example.subset for example in task.asked.examples]
    found = metrics.evaluate(definition, predictions, labels.tolist(), subsets)
    error = standard_error(definition.metrics[0], predictions, labels, seed)
    scores = {
        "split": task.asked.split,
        **found,
        "standard_error": error,
        **more,
        "num_cut": task.asked.encoded.num_cut,
    }
    return Outcome(predictions, scores)
