"""What ends a line, what is not UTF-8, what `clean` takes out, what is escaped."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpt1_jax.data.text import clean, printable, refuse_utf16, split_lines


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


def test_three_line_ends_and_no_other_break():
    text = "one\r\n\rtwo\u2028still\x0btwo\n\n\r\nlast"
    lines = ["one\r\n", "\r", "two\u2028still\x0btwo\n", "\n", "\r\n", "last"]
    assert list(split_lines(text)) == lines
    assert list(split_lines("")) == []


@pytest.mark.parametrize(
    ("encoding", "advice"),
    [
        ("utf-16", "iconv -f utf-16 -t utf-8"),
        ("utf-16-be", "iconv -f utf-16be -t utf-8"),
        ("utf-16-le", "iconv -f utf-16le -t utf-8"),
        ("utf-32", "iconv -f utf-32 -t utf-8"),
    ],
)
def test_utf16_is_told_from_latin1(encoding, advice):
    with pytest.raises(ValueError, match=f"^a.txt is UTF-.*, not UTF-8.*{advice}"):
        refuse_utf16("fox, \u2018fed\u2019\n".encode(encoding), "a.txt")
    for text in ("", "a", "\x00\x00\x00\x00", "\ufefffox", "fox\x00"):
        refuse_utf16(text.encode(), "a.txt")


def test_control_characters_are_escaped_for_a_terminal():
    text = "naïve\tcell\n\x1b[31mred\x07\r\x7f\x9b0m \ud800 \u200b“”😀"
    assert printable(text) == (
        "naïve\tcell\n\\x1b[31mred\\x07\\r\\x7f\\x9b0m \\ud800 \u200b“”😀"
    )
