"""The trained tokenizer: no character lost, newlines, training."""

import re
import string
import unicodedata

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpt1_jax.data.sentencepiece_tokenizer import SentencePieceTokenizer
from gpt1_jax.data.tokenizers import load_tokenizer
from gpt1_jax.errors import UserError

few = settings(max_examples=60)


def test_sentencepiece_keeps_newlines_and_folds_case(sentencepiece_tokenizer):
    encode, newline = sentencepiece_tokenizer.encode, sentencepiece_tokenizer.newline_id
    (fox,), (dog,) = encode("fox"), encode("dog")
    assert encode("\n\nfox\ndog\n") == [newline, newline, fox, newline, dog, newline]
    assert encode("") == []
    assert encode("The QUICK Fox") == encode("the quick fox")
    assert sentencepiece_tokenizer.lowercase
    assert sentencepiece_tokenizer.cased("The") == "the"
    # The boundary is a suffix, as GPT-1's `</w>`: a prefix of a word is no word.
    (the,) = encode("the")
    assert encode("dog the") == [dog, the] and the not in encode("theories")
    assert sentencepiece_tokenizer.decode([the, the]) == "the the"
    for symbol in string.printable[:94].lower():  # in characters, not bytes
        assert len(encode(symbol)) <= 2  # the symbol and the word's end


def test_sentencepiece_keeps_capitals_if_told_to(make_text, tmp_path):
    lines = make_text(400).replace("the", "The").split("\n")
    SentencePieceTokenizer.train(lines, 400, lowercase=False).save(tmp_path / "cased")
    tokenizer = load_tokenizer(tmp_path / "cased")
    assert not tokenizer.lowercase
    text = "The fox, the DOG, Élan"
    assert tokenizer.decode(tokenizer.encode(text)) == text == tokenizer.cased(text)
    (the,) = tokenizer.encode("The")
    assert the not in tokenizer.encode("the")


PRINTABLE_ASCII = "".join(map(chr, range(32, 127)))


@pytest.mark.parametrize(
    "text",
    [
        PRINTABLE_ASCII.strip(),
        "".join(sorted(PRINTABLE_ASCII, reverse=True)).strip(),
        "the 日本 fox, café naïve 🙂🙂 a\u0301 ½",
        "<0x41> and <unk>",
        "日本\n語\n\nquick 語",
    ],
)
def test_sentencepiece_loses_no_character(sentencepiece_tokenizer, text):
    """The tokenizer has seen the letters a to z and the newline, nothing else."""
    ids = sentencepiece_tokenizer.encode(text)
    assert 0 not in ids
    expected = unicodedata.normalize("NFKC", text.lower())
    assert sentencepiece_tokenizer.decode(ids) == expected


@few
@given(text=st.text())
@example(text="\u2581 \ufffd\u00ad\x00 \r\n\u2028 İSTANBUL ﬁ ẞ")
def test_sentencepiece_decode_gives_any_normalized_text_back(
    sentencepiece_tokenizer, text
):
    """That is, what SentencePiece's normaliser alone makes of its lines."""
    tokenizer = sentencepiece_tokenizer
    ids = tokenizer.encode(text)
    assert 0 not in ids
    lines = (tokenizer._processor.normalize(line) for line in text.split("\n"))
    normalized = (line.replace("\u2581", " ").rstrip(" ") for line in lines)
    assert tokenizer.decode(ids) == "\n".join(normalized)


@few
@given(first=st.text(), second=st.text())
@example(first="", second="")
@example(first="the \n", second="\n\n fox ")
def test_sentencepiece_text_may_be_cut_at_line_ends(
    sentencepiece_tokenizer, first, second
):
    encode = sentencepiece_tokenizer.encode
    newline = sentencepiece_tokenizer.newline_id
    assert encode(f"{first}\n{second}") == [*encode(first), newline, *encode(second)]


def test_sentencepiece_trained_twice_has_the_same_digest(
    sentencepiece_tokenizer, make_text
):
    lines = make_text(4000).splitlines()
    digest = sentencepiece_tokenizer.digest
    assert SentencePieceTokenizer.train(iter(lines), 480).digest == digest
    assert SentencePieceTokenizer.train(iter(lines), 479).digest != digest


@pytest.mark.parametrize(
    ("lines", "vocab_size", "text", "tokens"),
    [
        (["the quick wizards " * 2500 + "zebra crossing " * 40], 360, "zebra", 1),
        (["日本語の文" * 1500], 345, "日本語の文", 5),
    ],
)
def test_sentencepiece_learns_from_long_lines(lines, vocab_size, text, tokens):
    """SentencePiece drops lines of more than 4,192 bytes unless they are cut."""
    ids = SentencePieceTokenizer.train(lines, vocab_size).encode(text)
    assert 0 not in ids and len(ids) <= tokens


@pytest.mark.parametrize(
    ("wrong", "step", "message"),
    [(9999, 1, "at most {} entries"), (200, -1, "already take {} entries")],
)
def test_sentencepiece_vocabulary_that_does_not_fit_names_one_that_does(
    make_text, wrong, step, message
):
    lines = make_text(300).splitlines()
    with pytest.raises(UserError, match=rf"tokenizer\.vocab_size={wrong} ") as e:
        SentencePieceTokenizer.train(lines, wrong)
    named = int(re.search(r"--config\.tokenizer\.vocab_size=(\d+)", str(e.value))[1])
    assert SentencePieceTokenizer.train(lines, named).vocab_size == named
    with pytest.raises(UserError, match=message.format(named)):
        SentencePieceTokenizer.train(lines, named + step)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("book.txt is bad")])
def test_sentencepiece_errors_of_the_text_pass_through_training(error):
    """They must not come out as a failure of SentencePiece. No text is refused."""

    def lines():
        yield "the quick brown fox"
        raise error

    with pytest.raises(type(error)) as raised:
        SentencePieceTokenizer.train(lines(), 340)
    assert raised.value is error
    with pytest.raises(UserError, match="no text to train a tokenizer"):
        SentencePieceTokenizer.train(["", "  ", "\t"], 400)
