"""Punctuation comes apart from words where tokens allow it, and only there."""

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up_tokenizer import small_gpt1_tokenizer

from gpt1_jax.data import tokenizers
from gpt1_jax.data.punctuation import punctuation_apart
from gpt1_jax.data.sentencepiece_tokenizer import SentencePieceTokenizer
from gpt1_jax.data.words import split_words

PARTS = [
    ("word", ["word"]),
    ('"Word!"', ['"', "Word", '!"']),
    ("(don't),", ["(", "don't", "),"]),
    ("well-known.", ["well-known", "."]),
    ("dogs'", ["dogs", "'"]),
    ("'tis", ["'", "tis"]),
    ("...", ["..."]),
    ("--", ["--"]),
    ("$5", ["$5"]),
    ("5%", ["5", "%"]),
    ("‘Hello’", ["‘", "Hello", "’"]),
    ("“(Hello…”—", ["“(", "Hello", "…”—"]),
]


@pytest.fixture(scope="module")
def sentencepiece():
    lines = ["the old house stood there. nobody's house, it was said."]
    return SentencePieceTokenizer.train(lines * 20, vocab_size=340)


@pytest.fixture(scope="module", params=["sentencepiece", "gpt1", "released"])
def tokenizer(request, sentencepiece):
    if request.param == "sentencepiece":
        return sentencepiece
    if request.param == "gpt1":
        return small_gpt1_tokenizer()
    if not os.environ.get("GPT1_OPENAI_BPE"):
        pytest.skip("GPT1_OPENAI_BPE does not name OpenAI's model/ folder")
    return tokenizers.load(os.environ["GPT1_OPENAI_BPE"])


def parts(tokenizer, text):
    (word,) = split_words(tokenizer, text)
    found = list(punctuation_apart(tokenizer, word))
    assert [text[part.start : part.end] for part in found] == [p.text for p in found]
    assert [token for part in found for token in part.ids] == list(word.ids)
    return [part.text for part in found]


@pytest.mark.parametrize(("text", "expected"), PARTS, ids=lambda value: str(value))
def test_punctuation_at_the_ends_comes_apart(tokenizer, text, expected):
    assert parts(tokenizer, text) == expected


def test_it_stays_with_the_word_inside_one_token():
    tokenizer = small_gpt1_tokenizer()
    assert [tokenizer.decode([i]) for i in tokenizer.encode("Mr.")] == ["mr."]
    assert parts(tokenizer, "Mr.") == ["Mr."]
    assert parts(tokenizer, '("Mr."),') == ['("', "Mr.", '"),']


anything = st.text(
    st.characters(exclude_categories=["Z", "Cs", "Cc"]), min_size=1, max_size=8
)


@settings(deadline=None)
@given(anything | st.text(st.sampled_from("ab.,'\"—…“é"), min_size=1))
def test_the_parts_of_any_word_are_the_word(sentencepiece, text):
    for word in split_words(sentencepiece, text):
        found = list(punctuation_apart(sentencepiece, word))
        assert "".join(part.text for part in found) == word.text
        assert [i for part in found for i in part.ids] == list(word.ids)
        assert [part.start for part in found[1:]] == [p.end for p in found[:-1]]
