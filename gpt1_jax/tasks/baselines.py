"""Scores that a fine-tuned model has to beat: one answer for all, a bag of words."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from etils import epy

from gpt1_jax.tasks.metrics import score_predictions
from gpt1_jax.tasks.task import Example, Task
from gpt1_jax.tasks.transforms import targets

with epy.lazy_imports():  # it takes a moment
    from scipy import special

_MOST_EXAMPLES = 50_000  # that a bag of words learns from: tens of seconds


def majority_baseline(
    task: Task, train: Sequence[Example], dev: Sequence[Example]
) -> dict[str, Any]:
    """Scores the same answer to every example, which a model has to beat.

    Args:
      task: as for `score_predictions`.
      train: training examples, all with labels. The most frequent one is the answer
        (the lowest in a tie), or the mean score if the task has no labels.
      dev: the examples to answer.

    Returns:
      The scores, as `score_predictions` returns them.

    Raises:
      UserError: as `score_predictions`.
    """
    labels = _labels(train)
    answer = np.bincount(labels).argmax() if task.target.labels else np.mean(labels)
    return score_predictions(task, dev, np.full(len(dev), answer))


def label_entropy(
    task: Task, examples: Sequence[Example], class_weights: np.ndarray | None = None
) -> float | None:
    """The loss of a model that knows only how frequent labels are, in nats an example.

    Args:
      task: the task.
      examples: their labels are counted; all have one.
      class_weights: [K], how much a label weighs in the loss; None: all alike.

    Returns:
      The entropy of the labels, the mean over them if an example may have several;
      None if the task has scores.
    """
    if not task.target.labels:
        return None
    if task.target.multilabel:
        shares = targets(task, [example.label for example in examples]).mean(axis=0)
        return float((special.entr(shares) + special.entr(1 - shares)).mean())
    labels = _labels(examples)
    weights = None if class_weights is None else class_weights[labels]
    counts = np.bincount(labels, weights)
    shares = counts / counts.sum()
    return float(-sum(share * np.log(share) for share in shares if share))


def bag_of_words_baseline(
    task: Task, train: Sequence[Example], dev: Sequence[Example]
) -> dict[str, Any] | None:
    """Scores a linear model of the words and pairs of words in a text.

    They are weighted by tf-idf; labels are learnt by logistic regression, scores by
    ridge regression, with scikit-learn's defaults.

    Args:
      task: as for `score_predictions`; it has no choices.
      train: training examples, all with labels; the first 50,000 are read.
      dev: the examples to answer.

    Returns:
      The scores, as `score_predictions` returns them; None for a multiple choice, or if
      the training examples hold no word or only one label.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression, Ridge

    train = train[:_MOST_EXAMPLES]
    labels = _labels(train)
    if task.inputs.choices or len(np.unique(labels)) < 2:
        return None
    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    try:
        inputs = words.fit_transform(map(_text, train))
    except ValueError:  # no word
        return None
    model = LogisticRegression(max_iter=1000) if task.target.labels else Ridge()
    model.fit(inputs, labels)
    return score_predictions(task, dev, model.predict(words.transform(map(_text, dev))))


def _text(example: Example) -> str:
    return " ".join(example.text)


def _labels(examples: Sequence[Example]) -> np.ndarray:
    return np.asarray([example.label for example in examples])
