"""The trained tokenizer: no character lost, newlines, training, other models."""

import io
import json
import os
import re
import unicodedata
from pathlib import Path

import pytest
import sentencepiece
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gpt1_jax.data.sentencepiece_tokenizer import SentencePieceTokenizer
from gpt1_jax.data.text import clean
from gpt1_jax.data.tokenizers import load_tokenizer

few = settings(
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def pieces_of(tokenizer: SentencePieceTokenizer, text: str) -> list[str]:
    return [tokenizer.decode([i]) for i in tokenizer.encode(text)]


def test_sentencepiece_keeps_the_newline_as_one_token(sentencepiece_tokenizer):
    tokenizer = sentencepiece_tokenizer
    fox, dog, newline = (
        *tokenizer.encode("fox"),
        *tokenizer.encode("dog"),
        tokenizer.newline_id,
    )
    assert tokenizer.encode("fox\ndog") == [fox, newline, dog]
    assert tokenizer.encode("\n\nfox\n") == [newline, newline, fox, newline]
    assert tokenizer.encode("") == []


def test_sentencepiece_folds_case(sentencepiece_tokenizer):
    encode = sentencepiece_tokenizer.encode
    assert encode("The QUICK Fox") == encode("the quick fox")
    assert sentencepiece_tokenizer.lowercase
    assert sentencepiece_tokenizer.cased("The") == "the"


def test_sentencepiece_keeps_capitals_if_told_to(make_text, tmp_path):
    lines = make_text(400).replace("the", "The").split("\n")
    SentencePieceTokenizer.train(lines, 400, lowercase=False).save(tmp_path / "cased")
    tokenizer = load_tokenizer(tmp_path / "cased")
    assert not tokenizer.lowercase
    text = "The fox, the DOG, Élan"
    assert tokenizer.decode(tokenizer.encode(text)) == text == tokenizer.cased(text)
    (the,) = tokenizer.encode("The")
    assert the not in tokenizer.encode("the")


def test_sentencepiece_word_is_the_same_token_at_a_line_end(sentencepiece_tokenizer):
    the, dog = sentencepiece_tokenizer.encode("the dog")
    assert sentencepiece_tokenizer.encode("dog the") == [dog, the]
    assert sentencepiece_tokenizer.encode("dog") == [dog]


def test_sentencepiece_words_end_with_a_marker(sentencepiece_tokenizer):
    """The boundary is a suffix, as GPT-1's `</w>`: a prefix of a word is no word."""
    (the,) = sentencepiece_tokenizer.encode("the")
    assert the not in sentencepiece_tokenizer.encode("theories")
    assert sentencepiece_tokenizer.decode([the, the]) == "the the"


PRINTABLE_ASCII = "".join(map(chr, range(32, 127)))


@pytest.mark.parametrize(
    "text",
    [
        PRINTABLE_ASCII.strip(),
        "sales rose 2.1% to $3.4 million (from 1,999) in 'q3' [sic]",
        "".join(sorted(PRINTABLE_ASCII, reverse=True)).strip(),
        *PRINTABLE_ASCII.strip(),
        "the 日本 fox, café naïve 🙂🙂 a\u0301 ½",
        "<0x41> and <unk>",
        "日",
        "日本\n語\n\nquick 語",
    ],
)
def test_sentencepiece_loses_no_character(sentencepiece_tokenizer, text):
    """The tokenizer has seen the letters a to z and the newline, nothing else."""
    ids = sentencepiece_tokenizer.encode(text)
    assert 0 not in ids
    expected = unicodedata.normalize("NFKC", text.lower())
    assert sentencepiece_tokenizer.decode(ids) == expected


def test_sentencepiece_spells_ascii_in_characters_not_bytes(sentencepiece_tokenizer):
    tokenizer = sentencepiece_tokenizer
    for symbol in "".join(PRINTABLE_ASCII.lower().split()):
        assert len(tokenizer.encode(symbol)) <= 2  # the symbol and the word's end


@few
@given(text=st.text())
@example(text="\u2581 \ufffd\u00ad\x00 \r\n\u2028 İSTANBUL ﬁ ẞ")
def test_sentencepiece_decode_gives_any_normalized_text_back(
    sentencepiece_tokenizer, text
):
    tokenizer = sentencepiece_tokenizer
    ids = tokenizer.encode(text)
    assert 0 not in ids
    assert tokenizer.decode(ids) == normalized(tokenizer, text)


def normalized(tokenizer: SentencePieceTokenizer, text: str) -> str:
    """What SentencePiece's normaliser alone makes of the lines of a text."""
    lines = (tokenizer._processor.normalize(line) for line in text.split("\n"))
    return "\n".join(line.replace("\u2581", " ").rstrip(" ") for line in lines)


def test_sentencepiece_bytes_cost_known_text_nothing(make_text):
    """With 256 entries more, known text is cut as it was without the bytes."""
    lines = make_text(4000).splitlines()
    without = SentencePieceTokenizer(model_without_bytes(lines, 180))
    tokenizer = SentencePieceTokenizer.train(lines, 180 + 256 + 42)
    assert len(tokenizer.encode(make_text(500))) == len(without.encode(make_text(500)))


def model_without_bytes(lines: list[str], vocab_size: int) -> bytes:
    """A model trained elsewhere, without bytes or required symbols."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        model_type="bpe",
        vocab_size=vocab_size,
        unk_id=0,
        bos_id=-1,
        eos_id=-1,
        pad_id=-1,
        treat_whitespace_as_suffix=True,
        normalization_rule_name="nmt_nfkc_cf",
        user_defined_symbols=["\n"],
        minloglevel=2,
    )
    return model.getvalue()


def test_a_model_without_bytes_makes_rare_characters_unknown(tmp_path, make_text):
    model = model_without_bytes(make_text(4000).splitlines(), 180)
    SentencePieceTokenizer(model).save(tmp_path / "saved")
    tokenizer = load_tokenizer(tmp_path / "saved")
    text = "the quick brown fox\njumps"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    ids = tokenizer.encode("the 日 fox")
    assert ids[1] == 0
    assert ids.count(0) == 1


@pytest.mark.skipif(
    not os.environ.get("GPT1_TASK_DATA"),
    reason="GPT1_TASK_DATA names no folder of tasks as JSON lines",
)
def test_sentencepiece_loses_nothing_of_the_tasks(sentencepiece_tokenizer):
    """GPT1_TASK_DATA holds TASK/SPLIT.jsonl; every string of every example."""
    tokenizer = sentencepiece_tokenizer
    files = sorted(Path(os.environ["GPT1_TASK_DATA"]).rglob("*.jsonl"))
    assert files
    for file in files:
        for line in file.read_text(encoding="utf-8").split("\n"):
            text = clean("\n".join(strings(json.loads(line or "{}"))))
            ids = tokenizer.encode(text)
            assert 0 not in ids, f"{file}: {text}"
            assert tokenizer.decode(ids) == normalized(tokenizer, text), file


def strings(value) -> list[str]:
    """All strings in a JSON value."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [text for each in value for text in strings(each)]
    return [value] if isinstance(value, str) else []


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


@few
@given(
    text=st.lists(
        st.lists(
            st.text("abcdefghijklmnopqrstuvwxyz", min_size=1, max_size=9),
            max_size=5,
        ).map(" ".join),
        max_size=5,
    ).map("\n".join)
)
def test_sentencepiece_decode_gives_clean_text_back(sentencepiece_tokenizer, text):
    tokenizer = sentencepiece_tokenizer
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_sentencepiece_save_and_load_keep_ids_and_digest(
    sentencepiece_tokenizer, tokenizer_dir, make_text
):
    loaded = load_tokenizer(tokenizer_dir)
    assert isinstance(loaded, SentencePieceTokenizer)
    assert loaded.digest == sentencepiece_tokenizer.digest
    assert loaded.vocab_size == sentencepiece_tokenizer.vocab_size == 480
    text = make_text(200, "other")
    assert loaded.encode(text) == sentencepiece_tokenizer.encode(text)


def test_sentencepiece_trained_twice_has_the_same_digest(
    sentencepiece_tokenizer, make_text
):
    lines = make_text(4000).splitlines()
    again = SentencePieceTokenizer.train(iter(lines), 480)
    assert again.digest == sentencepiece_tokenizer.digest
    other = SentencePieceTokenizer.train(iter(lines), 479)
    assert other.digest != sentencepiece_tokenizer.digest


def test_sentencepiece_learns_from_a_corpus_of_one_long_line(make_text):
    """SentencePiece drops lines of more than 4,192 bytes unless they are cut."""
    line = make_text(9000).replace("\n", " ") + "zebra crossing " * 40
    assert len(line) > 45_000
    tokenizer = SentencePieceTokenizer.train([line], 520)
    assert len(tokenizer.encode("zebra crossing")) == 2
    assert len(tokenizer.encode("the quick wizards")) == 3


def test_sentencepiece_learns_from_long_lines_among_short_ones(make_text):
    long = "ünïque " * 1000
    assert len(long.encode()) > 4192
    tokenizer = SentencePieceTokenizer.train([*make_text(4000).split("\n"), long], 520)
    assert pieces_of(tokenizer, "ünïque") == ["ünïque"]


def test_sentencepiece_learns_from_long_lines_without_spaces():
    line = "日本語の文" * 1500
    tokenizer = SentencePieceTokenizer.train([line], 340)
    assert 0 not in tokenizer.encode("日本語の文日本")


def test_sentencepiece_too_large_vocabulary_names_the_largest(make_text):
    lines = make_text(300).splitlines()
    with pytest.raises(ValueError, match=r"config\.tokenizer\.vocab_size=9999") as e:
        SentencePieceTokenizer.train(lines, 9999)
    largest = int(re.search(r"--config\.tokenizer\.vocab_size=(\d+)", str(e.value))[1])
    assert SentencePieceTokenizer.train(lines, largest).vocab_size == largest
    with pytest.raises(ValueError, match=f"at most {largest} entries"):
        SentencePieceTokenizer.train(lines, largest + 1)


@pytest.mark.parametrize("lines", [[], ["", ""], ["  ", "\t"]])
def test_sentencepiece_empty_corpus_is_refused(lines):
    with pytest.raises(ValueError, match="no text to train a tokenizer"):
        SentencePieceTokenizer.train(lines, 400)


def test_sentencepiece_too_small_vocabulary_names_the_smallest(make_text):
    lines = make_text(300).splitlines()
    with pytest.raises(ValueError, match=r"vocab_size=200 is too small.*256") as e:
        SentencePieceTokenizer.train(lines, 200)
    smallest = int(re.search(r"--config\.tokenizer\.vocab_size=(\d+)", str(e.value))[1])
    assert SentencePieceTokenizer.train(lines, smallest).vocab_size == smallest
    with pytest.raises(ValueError, match=f"already take {smallest} entries"):
        SentencePieceTokenizer.train(lines, smallest - 1)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError("book.txt is bad")])
def test_sentencepiece_errors_of_the_text_pass_through_training(error):
    """They must not come out as a failure of SentencePiece."""

    def lines():
        yield "the quick brown fox"
        raise error

    kind = error if isinstance(error, type) else type(error)
    with pytest.raises(kind) as raised:
        SentencePieceTokenizer.train(lines(), 340)
    assert "SentencePiece" not in str(raised.value)
