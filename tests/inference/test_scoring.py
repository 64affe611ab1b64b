"""Scores are those of the plain formula, however windows share contexts and batches."""

import jax
import numpy as np
import pytest
from tiny_models import all_logits, drawn_params

from gpt1_jax.data.words import ReadingWindow
from gpt1_jax.errors import UserError
from gpt1_jax.inference import scoring
from gpt1_jax.inference.scoring import Scorer

VOCAB_SIZE = 97
SIZES = dict(embed_dim=16, mlp_dim=32, max_seq_len=96)


@pytest.fixture(scope="module", params=["transformer", "lstm"])
def model(request, tiny_model_config):
    special = VOCAB_SIZE + 3  # as a fine-tuned model has
    return tiny_model_config(kind=request.param, vocab_size=special, **SIZES)


@pytest.fixture(scope="module")
def params(model):
    """Far from uniform; but a large recurrent matrix would make rounding grow."""
    return jax.tree.map_with_path(
        lambda path, leaf: leaf if "c_hidden" in str(path) else 4 * leaf,
        drawn_params(model),
    )


def plain(model, params, window):
    """Log-probabilities, ranks and entropies from all logits of one sequence."""
    ids, first = np.array(window.ids), window.num_context
    padded = np.zeros((1, model.max_seq_len), np.int32)  # so that one program does
    padded[0, : len(ids) - 1] = ids[:-1]
    scores = np.asarray(all_logits(model, params, padded))[0, :, :VOCAB_SIZE]
    scores = scores[first - 1 : len(ids) - 1].astype(np.float64)
    log_probs = scores - np.log(np.exp(scores).sum(-1, keepdims=True))
    rows = np.arange(len(scores))
    ranks = (scores > scores[rows, ids[first:]][:, None]).sum(1)
    entropies = -(np.exp(log_probs) * log_probs).sum(-1)
    return log_probs[rows, ids[first:]], 1 + ranks, entropies


def windows(*lengths, seed=0):
    """Random windows with contexts and continuations of these lengths."""
    rng = np.random.default_rng(seed)
    return [
        ReadingWindow(rng.integers(0, VOCAB_SIZE, sum(both)).tolist(), both[0])
        for both in lengths
    ]


def check(model, params, given, scorer=None):
    found = (scorer or Scorer(model, VOCAB_SIZE, ranks_and_entropies=True))(
        params, given
    )
    for window, scores in zip(given, found, strict=True):
        log_probs, ranks, entropies = plain(model, params, window)
        np.testing.assert_allclose(scores.log_probs, log_probs, atol=2e-5)
        if not scorer:
            np.testing.assert_array_equal(scores.ranks, ranks)
            likeliest = scores.log_probs == scores.highest
            np.testing.assert_array_equal(likeliest, ranks == 1)
            np.testing.assert_allclose(scores.entropies, entropies, atol=2e-5)
        else:
            assert not len(scores.ranks) and not len(scores.entropies)


@pytest.fixture
def batches(monkeypatch):
    """What is computed together: inputs, and how many chunks of rows of logits."""
    noted = []
    plainly = scoring._score_tokens

    def note(*arguments):
        *_, inputs, _, _, num_chunks = arguments
        noted.append((inputs, int(num_chunks)))
        return plainly(*arguments)

    note.clear_cache = plainly.clear_cache
    monkeypatch.setattr(scoring, "_score_tokens", note)
    return noted


def test_scores_are_those_of_the_plain_formula(model, params):
    """Those of many continuations, which share their context in parts, too."""
    (context,) = windows((40, 0))
    many = [ReadingWindow([*context.ids, token], 40) for token in range(19)]
    given = windows((1, 5), (3, 1), (40, 2), (1, 95), (9, 0), (2, 5))
    check(model, params, [*given, *many])


def test_scores_that_are_not_finite_are_refused(model, params):
    broken = jax.tree.map(lambda leaf: np.full_like(leaf, np.nan), params)
    with pytest.raises(UserError, match="log-probabilities that are not finite"):
        Scorer(model, VOCAB_SIZE)(broken, windows((3, 4)))


@pytest.mark.parametrize("lengths", [(0, 3), (90, 8)])
def test_windows_that_cannot_be_read_at_once_are_refused(model, params, lengths):
    with pytest.raises(UserError, match=rf"{lengths[0]} tokens .*{lengths[1]}.* 96"):
        list(Scorer(model, VOCAB_SIZE).as_computed(params, windows(lengths)))


def test_contexts_are_shared(model, params, batches):
    long, other = (window.ids for window in windows((60, 0), (45, 0)))
    continuations = [each.ids[1:] for each in windows(*[(1, n) for n in (3, 9, 1)])]
    given = [
        ReadingWindow([*context, *each], len(context))
        for each in continuations
        for context in (long, other, long[:40])
    ]
    check(model, params, given)
    shapes = [inputs.tokens.shape for inputs, _ in batches]
    if model.kind == "transformer":  # 127 prefixes; and the longest window by itself
        assert shapes == [(128, 1), (1, 96)]
    else:
        # Of three contexts of up to 59 tokens, each read once, and one to fill up; the
        # last token of a context is read with the rows.
        assert batches[0][0].contexts.shape == (4, 64)
        assert shapes == [(12, 12)]


@pytest.mark.parametrize("model", ["transformer"], indirect=True)
@pytest.mark.parametrize("shared", [9, 50])
def test_a_prefix_is_read_once_wherever_sequences_part(model, params, batches, shared):
    """Most follow the path to a node in an earlier block."""
    rng = np.random.default_rng(0)
    beginnings = [rng.integers(0, VOCAB_SIZE, shared).tolist() for _ in range(2)]
    given = []
    for number in range(60):
        own = rng.integers(0, 3, 9).tolist()
        given.append(ReadingWindow([*beginnings[number % 2], *own], 1 + number % 8))
    check(model, params, given, Scorer(model, VOCAB_SIZE))

    read = {tuple(w.ids[:stop]) for w in given for stop in range(1, len(w.ids))}
    assert 2 * len(read) < sum(len(each.ids) - 1 for each in given)
    ((inputs, _),) = batches
    assert inputs.tokens.shape == (512, 1) and 256 < len(read) <= 512


def test_what_follows_the_same_tokens_is_scored_once(
    model, params, batches, monkeypatch
):
    """By an LSTM, log-probabilities alone."""
    monkeypatch.setattr(scoring, "_CHUNK", 1)
    scoring._score_tokens.clear_cache()
    given = [  # and of each, how many rows of logits it adds to those above
        (ReadingWindow([5, 6, 7, 8, 30, 31], 3), 3),
        (ReadingWindow([5, 6, 7, 8, 9, 10, 11], 3), 2),
        (ReadingWindow([5, 6, 7, 8, 9, 20], 3), 0),
        (ReadingWindow([5, 6, 7, 8, 30], 2), 1),  # scored from an earlier token on
        (ReadingWindow([40, 6, 7], 1), 2),
    ]
    sequences = [window for window, _ in given]
    alone = Scorer(model, VOCAB_SIZE) if model.kind == "lstm" else None
    check(model, params, sequences, alone)
    scoring._score_tokens.clear_cache()
    # With ranks, a row serves one token, and two of the prefixes have two.
    rows = sum(number for _, number in given) + (0 if alone else 2)
    assert [number for _, number in batches] == [rows]


def test_few_programs_serve_many_lengths(model, params, monkeypatch):
    shapes = set()

    def noted(*arguments):
        *_, inputs, where, targets, _ = arguments
        shapes.add(tuple(map(np.shape, jax.tree.leaves((inputs, where, targets)))))
        return (np.zeros(targets.shape, np.float32),) * 2

    monkeypatch.setattr(scoring, "_score_tokens", noted)
    scorer = Scorer(model, VOCAB_SIZE, batch_tokens=64)
    for seed in range(3):
        lengths = np.random.default_rng(seed).integers(1, 20, (40, 2)).tolist()
        scorer(params, windows(*lengths, seed=seed))
    assert 1 < len(shapes) <= 12


def test_a_window_longer_than_the_context_is_read_in_parts(model, params):
    """Each later part has half a context before the first token that it scores."""
    (long,), (context_only,) = windows((5, 200)), windows((120, 30))
    scorer = Scorer(model, VOCAB_SIZE, ranks_and_entropies=True)
    found = scorer(params, [long, *windows((1, 3)), context_only])
    assert [len(each.log_probs) for each in found] == [200, 3, 30]
    ids = long.ids  # 96 are read at a time, and one more is scored
    starts = [(0, 5, 97), (49, 97, 146), (98, 146, 195), (147, 195, 205)]
    for begin, first, stop in starts:
        part = ReadingWindow(ids[begin:stop], first - begin)
        expected, ranks, _ = plain(model, params, part)
        own = slice(first - 5, stop - 5)
        np.testing.assert_allclose(found[0].log_probs[own], expected, atol=2e-5)
        np.testing.assert_array_equal(found[0].ranks[own], ranks)
    part = ReadingWindow(context_only.ids[72:], 48)
    expected, *_ = plain(model, params, part)
    np.testing.assert_allclose(found[2].log_probs, expected, atol=2e-5)
