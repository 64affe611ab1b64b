"""`clean`: what it takes out of text."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpt1_jax.data.text import clean


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("  two   words \t here ", "two words here"),
        ("one\r\ntwo\rthree\n\n \nfour\n", "one\ntwo\nthree\nfour"),
        ("a\x00b\x0cc\x7fd\x85e", "a b c d e"),
        ("non\u00a0breaking\u2003space", "non breaking space"),
        ("line\u2028separator", "line separator"),
        ("\ufeffmark and soft\u00adhyphen", "mark and softhyphen"),
        ("Case, “quotes” and naïve stay.", "Case, “quotes” and naïve stay."),
        (" \n\t\n", ""),
        ("", ""),
    ],
)
def test_clean_leaves_words_and_lines(text, cleaned):
    assert clean(text) == cleaned


@settings(deadline=None, max_examples=200)
@given(text=st.text(st.sampled_from("ab \n\r\t\x00\x0b\x85\u00a0\u00ad\u2028\ufeff")))
@example(text="a \u00ad b")
def test_clean_text_is_clean(text):
    cleaned = clean(text)
    assert clean(cleaned) == cleaned
    assert "  " not in cleaned
    assert set(cleaned) <= set("ab \n")
    assert all(line == line.strip() != "" for line in cleaned.split("\n") if cleaned)
