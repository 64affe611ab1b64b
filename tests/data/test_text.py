"""Which names are not of plain text, what `clean` takes out, what is escaped."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpt1_jax.data.text import clean, printable, refuse_other_name
from gpt1_jax.errors import UserError


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


@settings(max_examples=200)
@given(text=st.text(st.sampled_from("ab \n\r\t\x00\x0b\x85\u00a0\u00ad\u2028\ufeff")))
@example(text="a \u00ad b")
def test_clean_text_is_clean(text):
    cleaned = clean(text)
    assert clean(cleaned) == cleaned
    assert "  " not in cleaned
    assert set(cleaned) <= set("ab \n")
    assert all(line == line.strip() != "" for line in cleaned.split("\n") if cleaned)


@pytest.mark.parametrize(
    ("name", "ending"),
    [
        ("train.00000-of-00001.JSON.GZ", ".json.gz"),
        *(("a.csv", ".csv"), ("a.pdf.zst", ".pdf.zst"), ("a.tar.gz", ".tar.gz")),
        *(("train.bin", ".bin"), ("a.docx", ".docx"), ("a.tgz", ".tgz")),
        *((name, "") for name in ("a.txt", "a.txt.gz", "a.md", "json", "a.json.txt")),
    ],
)
def test_a_name_says_that_a_file_is_not_plain_text(name, ending):
    if not ending:
        refuse_other_name(name)
        return
    message = rf"^{name} ends in {ending}, not plain text\. Save its text as a \.txt"
    with pytest.raises(UserError, match=message):
        refuse_other_name(name)


def test_control_characters_are_escaped_for_a_terminal():
    text = "naïve\tcell\n\x1b[31mred\x07\r\x7f\x9b0m \ud800 \u200b“”😀"
    assert printable(text) == (
        "naïve\tcell\n\\x1b[31mred\\x07\\r\\x7f\\x9b0m \\ud800 \u200b“”😀"
    )
