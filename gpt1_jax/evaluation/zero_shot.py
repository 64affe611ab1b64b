"""Scores of tasks that a model was not trained on (sec. 5; Figure 2, right)."""

import dataclasses
import hashlib
from typing import Any, NamedTuple

import numpy as np

from gpt1_jax.config.analyses import ZeroShotDataConfig
from gpt1_jax.data.tokenizers import Tokenizer
from gpt1_jax.data.words import ReadingWindow
from gpt1_jax.inference.scoring import Scorer
from gpt1_jax.model.language_model import Params
from gpt1_jax.tasks.batches import draw_examples
from gpt1_jax.tasks.metrics import (
    auc,
    best_threshold,
    bootstrap_error,
    score_predictions,
    standard_error,
)
from gpt1_jax.tasks.task import Example
from gpt1_jax.tasks.zero_shot import (
    EncodedAnswers,
    Question,
    ZeroShot,
    encode_answers,
    read,
)


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
    fingerprint: str  # tells these examples, read by this tokenizer, from any others

    @property
    def windows(self) -> list[ReadingWindow]:
        """All that is scored: first what the threshold is chosen on."""
        parts = [part for part in (self.threshold_on, self.asked) if part]
        return [answer for part in parts for answer in part.encoded.answers]


class Outcome(NamedTuple):
    """How a model did on a task."""

    predictions: np.ndarray  # [N] label numbers
    log_probs: np.ndarray  # [N, A] of the answers, nats: means or sums as compared
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
        examples = draw_examples(examples, data.max_examples)
        encoded = encode_answers(way, examples, tokenizer, max_seq_len)
        return Asked(split, examples, encoded)

    threshold_on = ask((way.threshold_split,)) if way.threshold_split else None
    asked = ask(question.splits)
    return Prepared(way, asked, threshold_on, _fingerprint(asked, threshold_on))


def _fingerprint(*parts: Asked | None) -> str:
    """The SHA-256, in hexadecimal, of labels and of the answers' token ids."""
    digest = hashlib.sha256()
    for part in parts:
        if part is not None:
            digest.update(f"{part.split} {part.labels.tolist()}".encode())
            if len(set(part.encoded.num_answers)) > 1:
                digest.update(f"{part.encoded.num_answers}".encode())
            for ids, num_context, *_ in part.encoded.answers:
                context, scored = ids[:num_context], ids[num_context:]
                ids = [len(context), *context, len(scored), *scored]
                digest.update(np.asarray(ids, np.int32).tobytes())
    return digest.hexdigest()


def evaluate(task: Prepared, score: Scorer, params: Params, seed: int) -> Outcome:
    """Answers the examples of a task and scores the answers.

    Args:
      task: the task and its examples.
      score: the model.
      params: its parameters.
      seed: of the resamples from which standard errors are estimated.

    Returns:
      Predictions, log-probabilities and scores. Scores are what `score_predictions` of
      `gpt1_jax.tasks.metrics` returns, with "standard_error" of the task's
      first metric, "split" and "num_cut", the examples that were cut, and "chance", the
      accuracy of a random choice, if examples may differ in the number of their
      choices. With a threshold there are "threshold", in nats, "auc" and
      "auc_standard_error" too.
    """
    log_probs = [each.log_probs for each in score(params, task.windows)]
    count = len(log_probs) - len(task.asked.encoded.answers)
    values = task.asked.encoded.compare(log_probs[count:], mean=task.way.mean)
    if task.threshold_on is None:
        return _outcome(task, None, values, seed)
    train = task.threshold_on.encoded.compare(log_probs[:count], mean=task.way.mean)
    return _outcome(task, train, values, seed)


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
    num_answers = task.asked.encoded.num_answers
    if definition.fewer_choices:
        labels_at_hand = definition.labels[: max(num_answers)]
        definition = dataclasses.replace(definition, labels=labels_at_hand)
        more["chance"] = float(np.mean(1 / np.asarray(num_answers)))
    found = score_predictions(definition, task.asked.examples, predictions)
    error = standard_error(definition.metrics[0], predictions, labels, seed)
    scores = {
        "split": task.asked.split,
        **found,
        "standard_error": error,
        **more,
        "num_cut": task.asked.encoded.num_cut,
    }
    return Outcome(predictions, values, scores)
