"""Sentences of English prose, and of whatever else a line may hold."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt1_jax.data.sentences import sentence_starts


@pytest.mark.parametrize(
    "sentences",
    [
        ["Mr. A. B. Smith laughed. ", "At 5 p.m. he left. ", "It cost $3.50. ", "So?"],
        ["“Oh! It is late!” cried Dr. Jones. ", "“Come in.” ", "He did."],
        ['"You do not," he said. ', '"She does. I know."'],
        ["Wait . . . what? ", "He stopped... then went on."],
        ["the dogs' bones were old. ", "They didn't care."],
        ["no end"],
    ],
    ids=lambda sentences: sentences[0],
)
def test_sentences_of_prose(sentences):
    lengths = [0]
    for sentence in sentences[:-1]:
        lengths.append(lengths[-1] + len(sentence))
    assert sentence_starts("".join(sentences)) == lengths


def test_white_space_beyond_ascii_separates_words():
    """Left as it is, it makes sentencex 1.0.32 panic."""
    assert sentence_starts("A\u2028. B\u3000. So.") == sentence_starts("A . B . So.")


def test_a_blank_line_has_no_sentence():
    assert sentence_starts(" \t ") == sentence_starts("") == []


@settings(deadline=None, max_examples=200)
@given(
    st.text(st.sampled_from("aB.?! “”\"'é\u2028\u3000\xa0\x85\u200b😀"), max_size=30)
)
def test_any_text_has_starts_in_order_that_cover_its_words(text):
    starts = sentence_starts(text)
    assert starts == sorted(set(starts)) and all(0 <= s < len(text) for s in starts)
    assert not text[: starts[0] if starts else None].strip()
