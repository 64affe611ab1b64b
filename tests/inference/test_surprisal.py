"""Surprisal: exact by the chain rule, whatever the windows."""

import dataclasses
import math
import unicodedata

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up_tokenizer import Numbers
from tiny_models import all_logits, drawn_params
from tiny_run import job_config

import gpt1_jax
from gpt1_jax.config.reading import DEFAULT_WORDS
from gpt1_jax.data.words import lines_of, split_words
from gpt1_jax.errors import UserError
from gpt1_jax.inference import surprisal
from gpt1_jax.inference.surprisal import score_words
from gpt1_jax.jobs import convert

VOCAB_SIZE = 12
SIZES = dict(vocab_size=VOCAB_SIZE, embed_dim=16, mlp_dim=32, max_seq_len=24)
NEWLINE = Numbers.newline_id


class Dotted(Numbers):
    """Reads the word "3.1.4" as three tokens, and "-" as none."""

    vocab_size = VOCAB_SIZE

    def encode(self, text):
        return [int(part) for part in text.split(".") if part != "-"]


@pytest.fixture(scope="module")
def model(tiny_model_config):
    return tiny_model_config(**SIZES)


@pytest.fixture(scope="module")
def params(model):
    return jax.tree.map(lambda leaf: 4 * leaf, drawn_params(model))  # far from uniform


@pytest.fixture(scope="module")
def score(model, params):
    """`score(text, **reading)`: the surprisal of its words."""

    def run(text, **reading):
        words = split_words(Dotted(), lines_of(text, "a.txt"))
        reading = dataclasses.replace(DEFAULT_WORDS, **reading)
        return list(score_words(model, params, Dotted(), [words], reading))

    return run


@pytest.fixture(scope="module")
def by_hand(model, params):
    """`by_hand(ids)`: log-probabilities [T, V] of each next token, float64."""

    def run(ids):
        padded = np.zeros((1, model.max_seq_len), np.int32)
        padded[0, : len(ids)] = ids
        scores = np.asarray(all_logits(model, params, padded))[0].astype(np.float64)
        return scores - np.log(np.exp(scores).sum(-1, keepdims=True))

    return run


def nats(found):
    return [each.nats for each in found]


# --- exactness ------------------------------------------------------------------


def test_a_word_is_the_chain_rule_over_its_tokens(score, by_hand):
    found = score("3 1.4.1 5")
    after = by_hand([NEWLINE, 3, 1, 4, 1, 5])
    expected = [
        -after[0, 3],
        -after[1, 1] - after[2, 4] - after[3, 1],
        -after[4, 5],
    ]
    np.testing.assert_allclose(nats(found), expected, atol=1e-5)
    bits = [each.bits for each in found]
    np.testing.assert_allclose(bits, np.array(expected) / math.log(2), atol=1e-5)
    assert [each.tokens for each in found] == [("3",), ("1", "4", "1"), ("5",)]
    assert [each.num_tokens for each in found] == [1, 3, 1]
    first = after[[0, 1, 4], [3, 1, 5]]
    ranks = 1 + (after[[0, 1, 4]] > first[:, None]).sum(-1)
    assert [each.rank for each in found] == ranks.tolist()
    entropies = -(np.exp(after) * after).sum(-1)[[0, 1, 4]]
    np.testing.assert_allclose([e.entropy_nats for e in found], entropies, atol=1e-5)


def test_as_likely_as_transformers_says(pretrained, tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = job_config("convert", "huggingface", init_from=str(pretrained))
    convert.run(config, str(tmp_path / "exported"))
    theirs = transformers.OpenAIGPTLMHeadModel.from_pretrained(tmp_path / "exported")
    ours = gpt1_jax.load(str(pretrained))
    text = "the abcd of efgh and a hij bcd"
    ids = [ours.tokenizer.newline_id, *ours.tokenizer.encode(text)]
    with torch.no_grad():
        log_probs = theirs.eval()(torch.tensor([ids])).logits[0].log_softmax(-1)
    expected = -log_probs[range(len(ids) - 1), ids[1:]].double().numpy()
    found = ours.surprisal(text)
    begins = np.cumsum([0, *(each.num_tokens for each in found)])
    assert begins[-1] == len(ids) - 1
    of_words = np.add.reduceat(expected, begins[:-1])
    np.testing.assert_allclose(nats(found), of_words, atol=1e-4)


# Normalised, some characters hold a space: U+00B8, a spacing cedilla.
WORDS = st.text(st.characters(exclude_categories=["Z", "C"]), min_size=1).filter(
    lambda text: not any(map(str.isspace, unicodedata.normalize("NFKC", text)))
)


@given(WORDS, WORDS)
def test_no_word_begins_as_another_ends(sentencepiece_tokenizer, one, two):
    """So words of a SentencePiece tokenizer lose nothing at their border."""
    first, longer = map(sentencepiece_tokenizer.encode, (one, one + two))
    assert longer == first or longer[: len(first)] != first


# --- windows --------------------------------------------------------------------


def test_windows_of_a_longer_text_are_as_computed_by_hand(score, by_hand):
    text = " ".join(str(number % 11 + 1) for number in range(40))
    ids = [NEWLINE, *map(int, text.split())]
    expected = []
    first, scored = 0, 1
    while scored < len(ids):
        window = ids[first : first + 24]
        after = by_hand(window)
        for place in range(scored - first, len(window)):
            expected.append(-after[place - 1, window[place]])
        scored = first + len(window)
        first = scored - 7
    np.testing.assert_allclose(nats(score(text, overlap=7)), expected, atol=1e-5)
    assert nats(score(text)) == nats(score(text, overlap=12))


def test_lines_are_read_alone_or_as_one_text(score, by_hand):
    alone = nats(score("3 1\n4 1"))
    assert alone == nats(score("3 1")) + nats(score("4 1"))
    after = by_hand([NEWLINE, 3, 1, NEWLINE, 4, 1])
    expected = [-after[0, 3], -after[1, 1], -after[3, 4], -after[4, 1]]
    together = nats(score("3 1\n\n4 1", context="text"))
    np.testing.assert_allclose(together, expected, atol=1e-5)


@pytest.mark.parametrize("context_words", [0, 2])
def test_the_first_word_may_stay_unscored(score, by_hand, context_words):
    how = dict(first_word="unscored", context_words=context_words)
    first, second, third, fourth = score("3.1 4\n1 5", **how)
    for one in (first, third):
        values = (one.nats, one.bits, one.rank, one.entropy_nats)
        assert all(map(math.isnan, values))
    assert (first.tokens, first.num_tokens) == (("3", "1"), 2)
    expected = -by_hand([3, 1, 4])[1, 4], -by_hand([1, 5])[0, 5]
    np.testing.assert_allclose(nats([second, fourth]), expected, atol=1e-5)


@pytest.mark.parametrize("reading", [{}, {"first_word": "unscored"}], ids=str)
@pytest.mark.parametrize("text", ["-", "-\n3 4\n-"])
def test_a_word_without_tokens_is_refused(score, text, reading):
    with pytest.raises(UserError, match=r"a\.txt:1: nothing is left of '-' without"):
        score(text, **reading)


def test_words_are_read_as_they_are_needed(score, monkeypatch, model, params):
    monkeypatch.setattr(surprisal, "_CHUNK_TOKENS", 48)
    rng = np.random.default_rng(0)
    words = rng.integers(1, VOCAB_SIZE, (400, 2)).astype(str).tolist()
    text, taken = " ".join(map(".".join, words)), []

    def words():
        for word in split_words(Dotted(), lines_of(text, "a.txt")):
            taken.append(word)
            yield word

    found = score_words(model, params, Dotted(), [words()], DEFAULT_WORDS)
    first = next(found)
    assert len(taken) < 60
    np.testing.assert_allclose(nats([first, *found]), nats(score(text)), atol=1e-5)
    assert len(taken) == 400
