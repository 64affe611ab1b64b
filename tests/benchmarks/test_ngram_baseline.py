"""The n-gram baseline against a slow implementation of its definition."""

from collections import Counter

import numpy as np
import pytest
from etils import epath

from benchmarks.experiments import ngram_baseline
from gpt1_jax.data.shards import open_corpus
from gpt1_jax.runs.checkpoints import read_params
from gpt1_jax.runs.records import METRICS_FILE, read_metrics
from gpt1_jax.runs.resume import saved_digests

_VOCAB_SIZE, _MAX_ORDER = 13, 5


def _random_tokens(length, seed):
    """Skewed ids below 12: the entry 12 of the vocabulary never occurs."""
    weights = 1.0 / np.arange(1, 13)
    rng = np.random.default_rng(seed)
    return rng.choice(12, length, p=weights / weights.sum()).astype("<u2")


class _SlowKneserNey:
    """Modified Kneser-Ney from dictionaries of tuples."""

    def __init__(self, tokens, order):
        tokens = [int(t) for t in tokens]
        self._counts = {}
        for n in range(1, order + 1):
            if n == order:
                grams = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
            else:  # distinct (n+1)-grams, without their first token
                longer = {tuple(tokens[i : i + n + 1]) for i in range(len(tokens) - n)}
                grams = [gram[1:] for gram in longer]
            self._counts[n] = Counter(grams)
        self._discounts = {n: self._discount(c) for n, c in self._counts.items()}

    @staticmethod
    def _discount(counts):
        n1, n2, n3, n4 = (list(counts.values()).count(k) for k in (1, 2, 3, 4))
        if not (n1 and n2 and n3 and n4):
            return 0.0, 0.5, 1.0, 1.5
        y = n1 / (n1 + 2 * n2)
        d = 1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3
        return (0.0, *(d if min(d) >= 0 else (0.5, 1.0, 1.5)))

    def probability(self, history, token):
        n = len(history) + 1
        lower = self.probability(history[1:], token) if history else 1 / _VOCAB_SIZE
        follow = [self._counts[n][(*history, v)] for v in range(_VOCAB_SIZE)]
        if not sum(follow):
            return lower
        discounts = [self._discounts[n][min(count, 3)] for count in follow]
        kept = follow[token] - discounts[token]
        return (kept + sum(discounts) * lower) / sum(follow)


def _slow_probabilities(train, valid):
    valid = [int(t) for t in valid]
    rows = []
    for order in range(1, _MAX_ORDER + 1):
        model = _SlowKneserNey(train, order)
        rows.append([])
        for i, token in enumerate(valid):
            history = tuple(valid[max(0, i - order + 1) : i])
            rows[-1].append(model.probability(history, token))
    return np.array(rows)


@pytest.mark.parametrize("length", [60, 1500])
def test_probabilities_equal_slow_implementation(length):
    train, valid = _random_tokens(length, 0), _random_tokens(300, 1)
    valid[7] = 12  # never seen in training
    levels = ngram_baseline.count_ngrams(train, _VOCAB_SIZE, _MAX_ORDER)
    found = ngram_baseline.probabilities(levels, valid, _VOCAB_SIZE)
    np.testing.assert_allclose(found, _slow_probabilities(train, valid), rtol=1e-12)


def test_ids_stay_exact_with_a_large_vocabulary():
    vocab_size = 40_478
    tokens = np.random.default_rng(0).integers(0, vocab_size, 80_000).astype("<u2")
    levels = ngram_baseline.count_ngrams(tokens, vocab_size, _MAX_ORDER)
    assert levels[-1].ids[-1] > 2**31
    found = np.zeros((1, 0), np.int64)
    for level in levels:  # ids back to tokens
        last = level.ids % vocab_size
        found = np.column_stack([found[level.ids // vocab_size], last])
    windows = np.lib.stride_tricks.sliding_window_view(tokens, _MAX_ORDER)
    np.testing.assert_array_equal(found, np.unique(windows, axis=0))


def test_runs_are_scored_on_the_same_tokens(pretrained, corpus_dir):
    trained_on = saved_digests(read_params(epath.Path(pretrained)).metadata)["text"]
    (corpus,) = (
        folder
        for folder in (corpus_dir / "cache" / "corpora").iterdir()
        if open_corpus(folder).digest == trained_on
    )
    result = ngram_baseline.evaluate(corpus, 2, 512, [str(pretrained)])
    records = read_metrics(epath.Path(pretrained) / METRICS_FILE)
    last = [record for record in records if "valid_loss" in record][-1]
    (row,) = result["runs"]
    assert row["run"] == str(pretrained)
    assert row["nats_per_token"] == pytest.approx(last["valid_loss"], abs=1e-5)
    assert row["bits_per_word"] == pytest.approx(last["valid_bits_per_word"], abs=1e-4)
