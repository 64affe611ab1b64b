"""Scores are those of the plain formula, however pairs share contexts and batches."""

import jax
import numpy as np
import pytest
from tiny_models import KIND, PAPER, WAYS, all_logits, perturbed

from gpt1_jax.config import ModelConfig
from gpt1_jax.inference import scoring
from gpt1_jax.inference.scoring import Pair, Scorer
from gpt1_jax.model import language_model

VOCAB_SIZE = 97
SIZES = dict(num_layers=2, num_heads=2, embed_dim=16, mlp_dim=32, max_seq_len=96)


@pytest.fixture(scope="module", params=["transformer", "lstm"])
def model(request):
    special = VOCAB_SIZE + 3  # as a fine-tuned model has
    chosen = {"vocab_size": special, "kind": request.param}
    return ModelConfig(**{**PAPER, **KIND, **WAYS, **SIZES, **chosen})


@pytest.fixture(scope="module")
def params(model):
    """Far from uniform; but a large recurrent matrix would make rounding grow."""
    params = perturbed(language_model.init_params(model, jax.random.key(0)))
    return jax.tree.map_with_path(
        lambda path, leaf: leaf if "c_hidden" in str(path) else 4 * leaf, params
    )


def plain(model, params, pair):
    """Log-probabilities, ranks and entropies from all logits of one sequence."""
    ids = np.array([*pair.context, *pair.continuation])
    padded = np.zeros((1, model.max_seq_len), np.int32)  # so that one program does
    padded[0, : len(ids)] = ids
    scores = np.asarray(all_logits(model, params, padded))[0, :, :VOCAB_SIZE]
    scores = scores[len(pair.context) - 1 : len(ids) - 1].astype(np.float64)
    log_probs = scores - np.log(np.exp(scores).sum(-1, keepdims=True))
    chosen = log_probs[np.arange(len(scores)), ids[len(pair.context) :]]
    ranks = (scores > scores[np.arange(len(scores)), pair.continuation][:, None]).sum(1)
    return chosen, 1 + ranks, -(np.exp(log_probs) * log_probs).sum(-1)


def pairs(*lengths, seed=0):
    """Random pairs with contexts and continuations of these lengths."""
    rng = np.random.default_rng(seed)
    return [
        Pair(*(rng.integers(0, VOCAB_SIZE, length).tolist() for length in both))
        for both in lengths
    ]


def check(model, params, given, scorer=None):
    found = (scorer or Scorer(model, VOCAB_SIZE))(params, given)
    for pair, scores in zip(given, found, strict=True):
        log_probs, ranks, entropies = plain(model, params, pair)
        np.testing.assert_allclose(scores.log_probs, log_probs, atol=2e-5)
        np.testing.assert_array_equal(scores.ranks, ranks)
        np.testing.assert_allclose(scores.entropies, entropies, atol=2e-5)


def test_scores_are_those_of_the_plain_formula(model, params):
    check(model, params, pairs((1, 5), (3, 1), (40, 2), (1, 95), (9, 0), (2, 5)))


def test_contexts_are_shared(model, params, monkeypatch):
    long, other = (pair.context for pair in pairs((60, 0), (45, 0)))
    continuations = [each.continuation for each in pairs(*[(1, n) for n in (3, 9, 1)])]
    given = [Pair(c, each) for each in continuations for c in (long, other, long[:40])]
    read = []
    plainly = scoring._read

    def counted(model, params, contexts, tokens):
        read.append((None if contexts is None else contexts.tokens.shape, tokens.shape))
        return plainly(model, params, contexts, tokens)

    monkeypatch.setattr(scoring, "_read", counted)
    jax.clear_caches()
    check(model, params, given)
    # Of three contexts of up to 59 tokens, each read once, and one to fill up; the last
    # token of a context is read with the rows.
    assert read == [((4, 64), (12, 12))]


def test_many_continuations_share_in_parts(model, params):
    (context, _), *_ = pairs((40, 0))
    check(model, params, [Pair(context, [token]) for token in range(19)])


def test_few_programs_serve_many_lengths(model, params):
    scorer = Scorer(model, VOCAB_SIZE, batch_tokens=64)
    scoring._score_tokens.clear_cache()
    for seed in range(3):
        lengths = np.random.default_rng(seed).integers(1, 20, (40, 2)).tolist()
        scorer(params, pairs(*lengths, seed=seed))
    assert scoring._score_tokens._cache_size() <= 12


def test_few_of_a_size_join_others_and_many_do_not(model, params, monkeypatch):
    read = []
    plainly = scoring._score_tokens

    def counted(model, vocab_size, params, contexts, tokens, where):
        read.append(tokens.shape)
        return plainly(model, vocab_size, params, contexts, tokens, where)

    monkeypatch.setattr(scoring, "_score_tokens", counted)
    scorer = Scorer(model, VOCAB_SIZE, batch_tokens=64)
    given = pairs(*[(3, 5)] * 9, (1, 10), (1, 13), *[(2, 30)] * 2)
    check(model, params, given, scorer)
    assert read == [(8, 8), (8, 8), (2, 32), (2, 32)]


@pytest.mark.parametrize("lengths", [(0, 3), (90, 7)])
def test_pairs_that_cannot_be_read_are_refused(model, params, lengths):
    with pytest.raises(ValueError, match=rf"{lengths[0]} tokens .*{lengths[1]}.* 96"):
        Scorer(model, VOCAB_SIZE)(params, pairs(lengths))
