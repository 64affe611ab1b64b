"""The comparison with BabyLM's pipeline: our side of it, without the pipeline."""

import pytest

import gpt1_jax
from benchmarks.experiments.babylm_pipeline import (
    Compared,
    Theirs,
    compare_sentences,
    our_scores,
    our_surprisals,
)

PAIR = ["the dog barks", "the dogs barks"]


def test_our_scores_are_the_sums_of_log_probs(pretrained):
    model = gpt1_jax.load(str(pretrained))
    items = [Theirs(PAIR, [" barks", "barks"], [], 0), Theirs(PAIR, PAIR, [], 0)]
    (after, cut), whole = our_scores(model, items)
    assert after == pytest.approx(model.log_probs(" barks", "the dog").sum())
    assert cut == pytest.approx(model.log_probs("barks", "the dogs ").sum())
    assert whole == pytest.approx([model.log_probs(text).sum() for text in PAIR])
    nats, tokens = our_surprisals(model, [("the dog", "barks"), ("", "the")])
    assert nats[0] == pytest.approx(-after, rel=1e-5)
    assert tokens[1] == len(model.tokenizer.encode("the"))


def test_other_choices_are_counted_but_not_those_of_ties():
    items = [
        Theirs(PAIR, PAIR, scores, scores.index(max(scores)))
        for scores in ([1.0, 2.0],) * 3
    ]
    ours = [[1.0, 2.5], [2.0, 1.0], [2.0, 2.0]]
    assert compare_sentences(items, ours) == Compared(3, 1.0, 1, 1)
