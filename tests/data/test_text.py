"""What is not UTF-8 or not plain text, what `clean` takes out, what is escaped."""

import io
import json

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpt1_jax.data.text import (
    clean,
    printable,
    refuse_other_content,
    refuse_other_name,
)
from gpt1_jax.errors import UserError


def refuse_binary(data, name):
    refuse_other_content(data, name, may_be_json=True)


def refuse_json(parts, name):
    text = "".join(parts)
    refuse_other_content(text.encode(), name, may_be_json=False)
    return [text]


def encoding_hint(error, *, after_utf8):
    from gpt1_jax.data.records import read_pieces

    with pytest.raises(UserError) as raised:
        list(read_pieces(io.BufferedReader(io.BytesIO(error.object)), "a"))
    return str(raised.value)


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
        refuse_binary("fox, \u2018fed\u2019\n".encode(encoding), "a.txt")
    for text in ("", "a", "\ufefffox", "fox\x00", "\x1b[31mred\n"):
        refuse_binary(text.encode(), "a.txt")


# --- what is not plain text -----------------------------------------------------


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "list.json",
            r"is JSON, not plain text\. If each line .* in \.jsonl .*; .* \.txt",
        ),
        ("train.00000-of-00001.JSON.GZ", "is JSON"),
        ("a.csv", "is a table, .* to a .jsonl file with an object such as"),
        ("a.tsv.gz", "is a table"),
        ("a.parquet", "is a Parquet file"),
        ("page.html", r"is HTML or XML, .* Save its text as a \.txt file"),
        ("a.pdf", "is a PDF document"),
        ("train.bin", "is a file of numbers, .* the text that they were made from"),
        ("a.pdf.zst", "is a PDF document"),
        ("a.tar.gz", "is an archive"),
    ],
)
def test_a_name_says_that_a_file_is_not_plain_text(name, message):
    with pytest.raises(UserError, match=f"^{name} {message}") as raised:
        refuse_other_name(name)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "name", ["a.txt", "a.txt.gz", "a.md", "json", "a.json.txt", "-"]
)
def test_other_names_may_be_those_of_text(name):
    refuse_other_name(name)


def saved(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


TOKENS = np.random.default_rng(0).geometric(0.002, 2000)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"PAR1\x15\x04\x15\x9a", "is a Parquet file"),
        (b"PK\x03\x04\x14\0", "is a zip archive"),
        (b"%PDF-1.7\n", "is a PDF document"),
        (b"\xef\xbb\xbf<?xml version='1.0'?>", "is HTML or XML"),
        (b"\n<!DOCTYPE html>\n", "is HTML or XML"),
        (saved(np.ones(3)), "is a file of numbers"),
        *(
            (TOKENS.astype(dtype).tobytes(), "holds binary data, such as the numbers")
            for dtype in ("<u2", ">u2", "<i4", "<i8")
        ),
        ((TOKENS % 65).astype("<u2").tobytes(), "holds binary data"),
    ],
)
def test_the_first_bytes_tell_what_is_not_text(data, what):
    with pytest.raises(UserError, match=f"^a.txt {what}") as raised:
        refuse_binary(data, "a.txt")
    assert "iconv" not in str(raised.value)


LIST = [{"text": f"A text of {n} words."} for n in range(4000)]


@pytest.mark.parametrize("size", [10, 1 << 18], ids=["lines", "chunks"])
@pytest.mark.parametrize(
    "text",
    [
        json.dumps(LIST),
        json.dumps(LIST, indent=2),
        "".join(json.dumps(each) + "\n" for each in LIST),
        '\n\n{"text": "One."}\n',
        '["a", "b"]\n["c", "d"]',
        '{"text": "' + "a" * 100_000 + '"}',
    ],
    ids=["list", "indented", "lines", "one", "lists", "long"],
)
def test_json_is_not_plain_text(text, size):
    parts = (text[at : at + size] for at in range(0, len(text), size))
    with pytest.raises(UserError, match=r"^a.txt is JSON, not plain text\. .*\.jsonl"):
        list(refuse_json(parts, "a.txt"))


@pytest.mark.parametrize(
    "text",
    [
        "[Illustration]\n\nCHAPTER I.\n",
        "[1]\n[2]\n",
        '["Well," said she, "go."]\n',
        '{"Well," said she}\n',
        '{"an": "example"}\nThis is how JSON looks.\n',
        "[" * 100_000,
        "{" * 9 + "n",
        '"Hush," he said.',
        "[]\n",
        "",
        " \n",
        "[1, " + "9" * 5000 + "]",
    ],
)
@pytest.mark.parametrize("more", ["", "It was a dark night. " * 10_000])
def test_prose_may_begin_with_a_bracket_or_a_quotation_mark(text, more):
    text += more
    assert "".join(refuse_json(iter(text.splitlines(True)), "a.txt")) == text
    assert "".join(refuse_json([text], "a.txt")) == text


@pytest.mark.parametrize(
    ("data", "hint"),
    [
        (b"He didn\x92t see the dog\x92s house.", "iconv -f windows-1252 -t utf-8"),
        ("Un café noir.".encode("latin-1"), "iconv -f windows-1252 -t utf-8"),
        ("Был тёмный вечер.".encode("cp1251"), "iconv -f ENCODING -t utf-8"),
        ("これは日本語です。".encode("shift-jis"), "iconv -f ENCODING -t utf-8"),
        ("Un café noir.".encode() + b"\xff", "is UTF-8, so the file is damaged there"),
        (TOKENS.astype("<u2").tobytes() + b"\xff", "binary data, such as the numbers"),
        (np.random.default_rng(1).bytes(4000), "binary data"),
    ],
)
def test_the_hint_for_bytes_that_are_not_utf8_does_no_harm(data, hint):
    with pytest.raises(UnicodeDecodeError) as raised:
        data.decode()
    assert hint in encoding_hint(raised.value, after_utf8=False)
    assert (
        "damaged there" in encoding_hint(raised.value, after_utf8=True) or b"\0" in data
    )


def test_control_characters_are_escaped_for_a_terminal():
    text = "naïve\tcell\n\x1b[31mred\x07\r\x7f\x9b0m \ud800 \u200b“”😀"
    assert printable(text) == (
        "naïve\tcell\n\\x1b[31mred\\x07\\r\\x7f\\x9b0m \\ud800 \u200b“”😀"
    )
