"""Both tokenizers: ids, newlines, round trips and what they say of bad input."""

import hashlib
import io
import itertools
import json
import os
import re
import sys
import unicodedata
from pathlib import Path

import pytest
import sentencepiece
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gpt1_jax.data import tokenizers
from gpt1_jax.data.corpus import clean
from gpt1_jax.data.tokenizers import (
    GPT1Tokenizer,
    SentencePieceTokenizer,
    standardize_text,
)

few = settings(
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

# --- the released tokenizer ---------------------------------------------------

OPENAI_IDS = [  # made by the released text_utils.py (ftfy 6.3.1, spaCy 3.8)
    ("the president is", "481 4735 544"),
    ("Hello, world!", "3570 240 1276 267"),
    (
        "I don't think it's very good...",
        "249 587 538 825 507 535 963 870 749",
    ),
    (
        "He said: “It’s a state–of–the–art — really?!”",
        "487 603 271 244 507 535 246 2720 260 498 260 481 260 2212 260 976 257 267 244",
    ),
    ("line one\n\n  line two", "1584 566 40477 1584 867"),
    ("$100 & 50% (approx.)", "289 11477 296 8393 297 276 1791 272 239 275"),
    ("naïve café ﬁnance", "24213 13550 21042"),
    (
        "1,234.5 kg/m² don't",
        "277 240 38907 26124 284 27 268 278 20 0 587 538",
    ),
    (
        "U.K. vs. U.S.A. Mr. Smith's",
        "25896 12041 34176 25896 14 10311 1682 4920 535",
    ),
    ("日本", "0 0"),
    ("John   went home.\nMary left.", "2476 1040 1163 239 40477 2846 999 239"),
]


@pytest.fixture(scope="module")
def openai_tokenizer() -> GPT1Tokenizer:
    pytest.importorskip("spacy")
    directory = os.environ.get("GPT1_OPENAI_BPE")
    if not directory:
        pytest.skip("GPT1_OPENAI_BPE does not name OpenAI's model/ folder")
    return tokenizers.load(directory)


@pytest.mark.parametrize(("text", "ids"), OPENAI_IDS)
def test_openai_tokenizer_ids_equal_the_released(openai_tokenizer, text, ids):
    assert openai_tokenizer.encode(text) == [int(i) for i in ids.split()]


def test_openai_tokenizer_vocabulary(openai_tokenizer):
    assert openai_tokenizer.vocab_size == 40478
    assert openai_tokenizer.newline_id == 40477
    assert openai_tokenizer.decode([3570, 240, 40477, 1276]) == "hello ,\nworld"


LETTERS = "abcdehilnorstuw.,'"
MERGES = [
    ("l", "o"),
    ("a", "a"),
    ("lo", "w</w>"),
    ("a", "b"),
    ("b", "c</w>"),
    ("e", "r</w>"),
    ("aa", "a"),
    ("b", "c"),
    ("n", "'"),
    ("n'", "t</w>"),
    ("d", "o</w>"),
    ("ab", "ab</w>"),
    ("a", "b</w>"),
]


def openai_vocabulary(merges: list[tuple[str, str]]) -> dict[str, int]:
    """Ids in OpenAI's order: unknown, characters, word ends, merges, newline."""
    symbols = ["<unk>", *LETTERS, *(c + "</w>" for c in LETTERS)]
    symbols += [left + right for left, right in merges]
    return {symbol: index for index, symbol in enumerate([*symbols, "\n</w>"])}


def write_openai_files(directory: Path, merges: list[tuple[str, str]]) -> None:
    directory.mkdir(exist_ok=True)
    vocabulary = json.dumps(openai_vocabulary(merges))
    (directory / "encoder_bpe_40000.json").write_text(vocabulary)
    lines = ["#version: 0.2", *(f"{left} {right}" for left, right in merges)]
    (directory / "vocab_40000.bpe").write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def small_gpt1(tmp_path_factory) -> GPT1Tokenizer:
    pytest.importorskip("spacy")
    directory = tmp_path_factory.mktemp("gpt1")
    write_openai_files(directory, MERGES)
    return tokenizers.load(directory)


def merged_by_hand(word: str) -> list[str]:
    """Byte-pair encoding as the released code does it, a pair at a time."""
    parts = [*word[:-1], word[-1] + "</w>"]
    while True:
        pairs = [pair for pair in itertools.pairwise(parts) if pair in MERGES]
        if not pairs:
            return parts
        best = min(pairs, key=MERGES.index)
        merged, i = [], 0
        while i < len(parts):
            width = 2 if tuple(parts[i : i + 2]) == best else 1
            merged.append("".join(parts[i : i + width]))
            i += width
        parts = merged


@pytest.mark.parametrize(
    ("word", "parts"),
    [
        ("low", "low</w>"),
        ("lower", "lo w er</w>"),  # "low</w>" ends a word, "low" does not exist
        ("abc", "ab c</w>"),  # a+b comes before b+c</w>
        ("bc", "bc</w>"),
        ("aaaa", "aaa a</w>"),  # a a a a</w>, left to right
        ("aaaaa", "aa aa a</w>"),
        ("a", "a</w>"),
        ("ABC", "ab c</w>"),
    ],
)
def test_gpt1_merges_follow_their_order(small_gpt1, word, parts):
    vocabulary = openai_vocabulary(MERGES)
    assert small_gpt1.encode(word) == [vocabulary[part] for part in parts.split()]


@few
@given(word=st.text("abclow", min_size=1, max_size=12))
@example(word="abab")
def test_gpt1_word_equals_merging_by_hand(small_gpt1, word):
    vocabulary = openai_vocabulary(MERGES)
    assert small_gpt1.encode(word) == [vocabulary[p] for p in merged_by_hand(word)]


def test_gpt1_splits_words_as_spacy_before_lower_casing(small_gpt1):
    vocabulary = openai_vocabulary(MERGES)
    parts = "do</w> n't</w> lo s t</w> ,</w> lo w er</w> .</w>"
    expected = [vocabulary[part] for part in parts.split()]
    assert small_gpt1.encode("Don't lost, LOWER.") == expected


def test_gpt1_unknown_symbols_are_id_0_each(small_gpt1):
    vocabulary = openai_vocabulary(MERGES)
    assert small_gpt1.encode("日本") == [0, 0]
    assert small_gpt1.encode("loz") == [vocabulary["lo"], 0]
    assert small_gpt1.encode("zlow") == [0, vocabulary["low</w>"]]


@pytest.mark.parametrize("between", ["\n", "\n\n", " \n", "\n  ", "\t\n \n\t", "\r\n"])
def test_gpt1_white_space_around_newlines_is_one_newline(small_gpt1, between):
    low = openai_vocabulary(MERGES)["low</w>"]
    ids = small_gpt1.encode(f"low{between}low")
    assert ids == [low, small_gpt1.newline_id, low]


lines_of_words = st.lists(
    st.lists(st.text("abclow", min_size=1, max_size=6), min_size=1, max_size=4).map(
        " ".join
    ),
    min_size=1,
    max_size=4,
).map("\n".join)


@few
@given(first=lines_of_words, second=lines_of_words)
def test_gpt1_text_may_be_cut_at_line_ends(small_gpt1, first, second):
    joined = small_gpt1.encode(f"{first}\n{second}")
    parts = [
        *small_gpt1.encode(first),
        small_gpt1.newline_id,
        *small_gpt1.encode(second),
    ]
    assert joined == parts
    assert small_gpt1.decode(joined) == f"{first}\n{second}"


def test_gpt1_decode_keeps_newlines_and_spaces(small_gpt1):
    low, newline = openai_vocabulary(MERGES)["low</w>"], small_gpt1.newline_id
    assert small_gpt1.decode([low, newline, newline, low]) == "low\n\nlow"
    assert small_gpt1.decode([newline, low, low, newline]) == "\nlow low\n"
    assert small_gpt1.decode([]) == ""


def test_gpt1_save_and_load_keep_ids_and_fingerprint(small_gpt1, tmp_path):
    small_gpt1.save(tmp_path / "saved")
    loaded = tokenizers.load(tmp_path / "saved")
    assert isinstance(loaded, GPT1Tokenizer)
    assert loaded.fingerprint == small_gpt1.fingerprint
    assert loaded.vocab_size == small_gpt1.vocab_size == len(openai_vocabulary(MERGES))
    assert loaded.encode("Low,\nlower 日") == small_gpt1.encode("Low,\nlower 日")


def test_gpt1_order_of_merges_changes_ids_and_fingerprint(small_gpt1, tmp_path):
    write_openai_files(tmp_path, MERGES)
    merges = [MERGES[4], *MERGES[:4], *MERGES[5:]]  # b+c</w> before a+b
    lines = ["#version: 0.2", *(f"{left} {right}" for left, right in merges), ""]
    (tmp_path / "vocab_40000.bpe").write_text("\n".join(lines))
    other = tokenizers.load(tmp_path)
    vocabulary = openai_vocabulary(MERGES)
    assert other.encode("abc") == [vocabulary["a"], vocabulary["bc</w>"]]
    assert other.fingerprint != small_gpt1.fingerprint


@pytest.mark.parametrize("lacking", ["encoder_bpe_40000.json", "vocab_40000.bpe"])
def test_gpt1_lacking_file_is_named(tmp_path, lacking):
    write_openai_files(tmp_path, MERGES)
    (tmp_path / lacking).unlink()
    with pytest.raises(FileNotFoundError, match=re.escape(lacking)) as raised:
        tokenizers.load(tmp_path)
    assert str(tmp_path) in str(raised.value)


def test_gpt1_ids_with_a_gap_are_refused(tmp_path):
    pytest.importorskip("spacy")
    write_openai_files(tmp_path, MERGES)
    vocabulary = openai_vocabulary(MERGES)
    vocabulary["\n</w>"] += 1
    (tmp_path / "encoder_bpe_40000.json").write_text(json.dumps(vocabulary))
    with pytest.raises(ValueError, match="ids are not"):
        tokenizers.load(tmp_path)


def test_gpt1_without_spacy_says_what_to_install(tmp_path, monkeypatch):
    write_openai_files(tmp_path, MERGES)
    monkeypatch.setitem(sys.modules, "spacy", None)
    with pytest.raises(ImportError, match=r"pip install 'gpt1_jax\[openai\]'"):
        tokenizers.load(tmp_path)


@pytest.mark.parametrize(
    ("text", "standard"),
    [
        (r"a\b", r"a\b"),  # the released pattern escapes the plus, not the backslash
        (r"a\\b+c", r"a\\b + c"),
        ("a—b–c―d…e´f", "a - b - c - d...e'f"),
        ("wait--what?!", "wait -- what ? !"),
        ("(a[b]{c}|d_e/f*g~h)", "( a [ b ] { c } | d _ e / f * g ~ h )"),
        ('say "a;b,c"', 'say " a ; b , c "'),
        ("a.b:c'd&e%f$g#h@i<j>k=l", "a.b:c'd&e%f$g#h@i<j>k=l"),
        ("one \t two", "one two"),
        ("  one\n\n \n two\n", "one \n two"),
        ("one,\ntwo", "one , \n two"),
        ("", ""),
    ],
)
def test_standardize_text_equals_the_released(text, standard):
    assert standardize_text(text) == standard


# --- SentencePiece ------------------------------------------------------------


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
    without = SentencePieceTokenizer(older_model(lines, 180))
    tokenizer = SentencePieceTokenizer.train(lines, 180 + 256 + 42)
    assert len(tokenizer.encode(make_text(500))) == len(without.encode(make_text(500)))


def older_model(lines: list[str], vocab_size: int) -> bytes:
    """A model as earlier versions trained it: without bytes or required symbols."""
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


def test_sentencepiece_of_an_earlier_version_still_loads(tmp_path, make_text):
    model = older_model(make_text(4000).splitlines(), 180)
    (tmp_path / "sentencepiece.model").write_bytes(model)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    pieces = [processor.id_to_piece(i) for i in range(180)]
    fingerprint = hashlib.sha256("\0".join(["sentencepiece", *pieces]).encode())
    description = {
        "kind": "sentencepiece",
        "vocab_size": 180,
        "fingerprint": fingerprint.hexdigest(),
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(description, indent=2))
    tokenizer = tokenizers.load(tmp_path)
    assert tokenizer.fingerprint == fingerprint.hexdigest()
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


def test_sentencepiece_save_and_load_keep_ids_and_fingerprint(
    sentencepiece_tokenizer, tokenizer_dir, make_text
):
    loaded = tokenizers.load(tokenizer_dir)
    assert isinstance(loaded, SentencePieceTokenizer)
    assert loaded.fingerprint == sentencepiece_tokenizer.fingerprint
    assert loaded.vocab_size == sentencepiece_tokenizer.vocab_size == 480
    text = make_text(200, "other")
    assert loaded.encode(text) == sentencepiece_tokenizer.encode(text)


def test_sentencepiece_trained_twice_has_the_same_fingerprint(
    sentencepiece_tokenizer, make_text
):
    lines = make_text(4000).splitlines()
    again = SentencePieceTokenizer.train(iter(lines), 480)
    assert again.fingerprint == sentencepiece_tokenizer.fingerprint
    other = SentencePieceTokenizer.train(iter(lines), 479)
    assert other.fingerprint != sentencepiece_tokenizer.fingerprint


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


def test_sentencepiece_model_without_newline_is_refused(tmp_path, make_text):
    text = tmp_path / "text.txt"
    text.write_text(make_text(1000))
    sentencepiece.SentencePieceTrainer.train(
        input=str(text),
        model_prefix=str(tmp_path / "foreign"),
        vocab_size=60,
        minloglevel=2,
    )
    with pytest.raises(ValueError, match="no newline piece"):
        SentencePieceTokenizer((tmp_path / "foreign.model").read_bytes())


# --- load ---------------------------------------------------------------------


def test_load_missing_folder_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="no tokenizer folder"):
        tokenizers.load(tmp_path / "nowhere")


def test_load_unknown_kind_is_refused(tmp_path):
    (tmp_path / "tokenizer.json").write_text('{"kind": "bert"}')
    with pytest.raises(ValueError, match=r"'bert'.*sentencepiece, gpt1"):
        tokenizers.load(tmp_path)


def test_load_lacking_sentencepiece_model_is_named(tmp_path):
    (tmp_path / "tokenizer.json").write_text('{"kind": "sentencepiece"}')
    with pytest.raises(FileNotFoundError, match=r"sentencepiece\.model"):
        tokenizers.load(tmp_path)
