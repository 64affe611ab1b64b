"""Scores that a fine-tuned model has to beat: one answer for all, a bag of words."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from etils import epy

from gpt1_jax.tasks.metrics import as_booleans, score_predictions, true_labels
from gpt1_jax.tasks.task import Example, Task

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
        (the lowest in a tie), or the mean score if the task has no labels; of several
        labels an example, those that at least half of the examples have. Probabilities
        are how frequent labels are.
      dev: the examples to answer.

    Returns:
      The scores, as `score_predictions` returns them.

    Raises:
      UserError: as `score_predictions`.
    """
    labels = true_labels(task, train)
    if not task.target.labels:
        return score_predictions(task, dev, np.full(len(dev), labels.mean()))
    shares = as_booleans(labels, len(task.target.labels)).mean(axis=0)
    answer = shares >= 0.5 if task.target.multilabel else shares.argmax()
    answers = np.repeat(answer[None], len(dev), axis=0)
    probabilities = np.repeat(shares[None], len(dev), axis=0)
    return score_predictions(task, dev, answers, probabilities)


def label_entropy(
    task: Task, examples: Sequence[Example], class_weights: np.ndarray | None = None
) -> float | None:
    """The loss in nats per example of a model that knows only how frequent labels are.

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
    labels = as_booleans(true_labels(task, examples), len(task.target.labels))
    weights = None if class_weights is None else labels @ class_weights
    shares = np.average(labels, axis=0, weights=weights)
    if task.target.multilabel:  # the mean over labels of yes and no
        return float(special.entr([shares, 1 - shares]).sum() / len(shares))
    return float(special.entr(shares).sum())


def fit_bag_of_words(
    task: Task, train: Sequence[Example]
) -> Callable[[Sequence[Example]], dict[str, Any]] | None:
    """Fits a linear model of the words and pairs of words in a text.

    They are weighted by tf-idf; labels are learnt by logistic regression, scores by
    ridge regression, with scikit-learn's defaults.

    Args:
      task: as for `score_predictions`; it has no choices.
      train: training examples, all with labels; the first 50,000 are read.

    Returns:
      A function that answers examples and returns the scores, as `score_predictions`
      does; None for a multiple choice, or if the training examples hold no word or only
      one label.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.multiclass import OneVsRestClassifier

    train = train[:_MOST_EXAMPLES]
    labels, num_labels = true_labels(task, train), len(task.target.labels)
    if task.inputs.choices or (labels == labels[0]).all():
        return None
    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    try:
        inputs = words.fit_transform(map(_text, train))
    except ValueError:  # no word
        return None
    model = LogisticRegression(max_iter=1000) if num_labels else Ridge()
    if task.target.multilabel:
        model = OneVsRestClassifier(model)
    with warnings.catch_warnings():  # of labels that all or no examples have
        warnings.simplefilter("ignore", UserWarning)
        model.fit(inputs, labels)

    def score(examples: Sequence[Example]) -> dict[str, Any]:
        inputs = words.transform(map(_text, examples))
        predictions = model.predict(inputs)
        if not num_labels:
            return score_predictions(task, examples, predictions)
        probabilities = np.zeros((len(examples), num_labels))
        probabilities[:, model.classes_] = model.predict_proba(inputs)
        if task.target.multilabel:
            predictions = predictions.astype(bool)
        return score_predictions(task, examples, predictions, probabilities)

    return score


def _text(example: Example) -> str:
    return " ".join(example.text)
