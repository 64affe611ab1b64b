"""GPT-1's own tokenizer: the released ids, merges, newlines, bad files."""

import itertools
import json
import os
import random
import re
import string
import sys
import time
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpt1_jax.data import gpt1_tokenizer
from gpt1_jax.data.gpt1_tokenizer import GPT1Tokenizer, standardize_text
from gpt1_jax.data.tokenizers import load_tokenizer
from gpt1_jax.errors import UserError

few = settings(max_examples=60)

OPENAI_IDS = [  # made by the released text_utils.py (ftfy 6.3.1, spaCy 3.8)
    ("the president is", "481 4735 544"),
    ("Hello, world!", "3570 240 1276 267"),
    ("I don't think it's very good...", "249 587 538 825 507 535 963 870 749"),
    (
        "He said: “It’s a state–of–the–art — really?!”",
        "487 603 271 244 507 535 246 2720 260 498 260 481 260 2212 260 976 257 267 244",
    ),
    ("line one\n\n  line two", "1584 566 40477 1584 867"),
    ("$100 & 50% (approx.)", "289 11477 296 8393 297 276 1791 272 239 275"),
    ("naïve café ﬁnance", "24213 13550 21042"),
    ("1,234.5 kg/m² don't", "277 240 38907 26124 284 27 268 278 20 0 587 538"),
    ("U.K. vs. U.S.A. Mr. Smith's", "25896 12041 34176 25896 14 10311 1682 4920 535"),
    ("日本", "0 0"),
    ("John   went home.\nMary left.", "2476 1040 1163 239 40477 2846 999 239"),
]


@pytest.fixture(scope="module")
def openai_tokenizer() -> GPT1Tokenizer:
    pytest.importorskip("spacy")
    directory = os.environ.get("GPT1_OPENAI_BPE")
    if not directory:
        pytest.skip("GPT1_OPENAI_BPE does not name OpenAI's model/ folder")
    return load_tokenizer(directory)


@pytest.mark.parametrize(("text", "ids"), OPENAI_IDS)
def test_openai_tokenizer_ids_equal_the_released(openai_tokenizer, text, ids):
    assert openai_tokenizer.encode(text) == [int(i) for i in ids.split()]


def test_openai_tokenizer_vocabulary(openai_tokenizer):
    assert openai_tokenizer.vocab_size == 40478
    assert openai_tokenizer.newline_id == 40477
    assert openai_tokenizer.decode([3570, 240, 40477, 1276]) == "hello ,\nworld"


LETTERS = "abcdehilnorstuw.,'"
MERGES = [
    *(("l", "o"), ("a", "a"), ("lo", "w</w>"), ("a", "b"), ("b", "c</w>")),
    *(("e", "r</w>"), ("aa", "a"), ("b", "c"), ("n", "'"), ("n'", "t</w>")),
    *(("d", "o</w>"), ("ab", "ab</w>"), ("a", "b</w>")),
]


def openai_vocabulary(merges=MERGES, letters=LETTERS) -> dict[str, int]:
    """Ids in OpenAI's order: unknown, characters, word ends, merges, newline."""
    symbols = ["<unk>", *letters, *(c + "</w>" for c in letters)]
    symbols += [left + right for left, right in merges]
    return {symbol: index for index, symbol in enumerate([*symbols, "\n</w>"])}


def ids_of(parts: str) -> list[int]:
    """The ids of entries with spaces between them, in the small vocabulary."""
    return [openai_vocabulary()[part] for part in parts.split()]


def write_openai_files(directory: Path, merges=MERGES, **other_ids: int) -> None:
    """The released files: ids as of `MERGES`, and merges in an order."""
    directory.mkdir(exist_ok=True)
    vocabulary = openai_vocabulary() | other_ids
    (directory / "encoder_bpe_40000.json").write_text(json.dumps(vocabulary))
    lines = ["#version: 0.2", *(f"{left} {right}" for left, right in merges)]
    (directory / "vocab_40000.bpe").write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def small_gpt1(tmp_path_factory) -> GPT1Tokenizer:
    pytest.importorskip("spacy")
    directory = tmp_path_factory.mktemp("gpt1")
    write_openai_files(directory)
    return load_tokenizer(directory)


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
        ("ABC", "ab c</w>"),  # a+b comes before b+c</w>
        ("aaaa", "aaa a</w>"),  # a a a a</w>, left to right
        ("aaaaa", "aa aa a</w>"),
        ("a", "a</w>"),
    ],
)
def test_gpt1_merges_follow_their_order(small_gpt1, word, parts):
    assert small_gpt1.encode(word) == ids_of(parts)


@few
@given(word=st.text("abclow", min_size=1, max_size=12))
@example(word="abab")
def test_gpt1_word_equals_merging_by_hand(small_gpt1, word):
    assert small_gpt1.encode(word) == ids_of(" ".join(merged_by_hand(word)))


def test_gpt1_splits_words_as_spacy_before_lower_casing(small_gpt1):
    expected = ids_of("do</w> n't</w> lo s t</w> ,</w> lo w er</w> .</w>")
    assert small_gpt1.encode("Don't lost, LOWER.") == expected


def test_gpt1_unknown_symbols_are_id_0_each(small_gpt1):
    assert small_gpt1.encode("日本") == [0, 0]
    assert small_gpt1.encode("loz") == [*ids_of("lo"), 0]
    assert small_gpt1.encode("zlow") == [0, *ids_of("low</w>")]


def test_gpt1_white_space_around_newlines_is_one_newline(small_gpt1):
    (low,), newline = ids_of("low</w>"), small_gpt1.newline_id
    ids = small_gpt1.encode("low\n\nlow \nlow\n  low\t\n \n\tlow\r\nlow")
    assert ids == [low, *[newline, low] * 5]
    assert small_gpt1.decode([newline, low, low, newline, newline]) == "\nlow low\n\n"


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
    encode, newline = small_gpt1.encode, small_gpt1.newline_id
    joined = encode(f"{first}\n{second}")
    assert joined == [*encode(first), newline, *encode(second)]
    assert small_gpt1.decode(joined) == f"{first}\n{second}"


def test_gpt1_save_and_load_keep_ids_and_digest(small_gpt1, tmp_path):
    small_gpt1.save(tmp_path / "saved")
    loaded = load_tokenizer(tmp_path / "saved")
    assert isinstance(loaded, GPT1Tokenizer)
    assert loaded.digest == small_gpt1.digest
    assert loaded.vocab_size == small_gpt1.vocab_size == len(openai_vocabulary())
    assert loaded.encode("Low,\nlower 日") == small_gpt1.encode("Low,\nlower 日")


def test_gpt1_order_of_merges_changes_ids_and_digest(small_gpt1, tmp_path):
    merges = [MERGES[4], *MERGES[:4], *MERGES[5:]]  # b+c</w> before a+b
    write_openai_files(tmp_path, merges)
    other = load_tokenizer(tmp_path)
    assert other.encode("abc") == ids_of("a bc</w>")
    assert other.digest != small_gpt1.digest


def test_gpt1_ids_with_a_gap_are_refused(tmp_path):
    pytest.importorskip("spacy")
    write_openai_files(tmp_path, low=1000)
    with pytest.raises(UserError, match="ids are not"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("lacking", ["encoder_bpe_40000.json", "vocab_40000.bpe"])
def test_gpt1_lacking_file_is_named(tmp_path, lacking):
    pytest.importorskip("spacy")
    write_openai_files(tmp_path)
    (tmp_path / lacking).unlink()
    with pytest.raises(FileNotFoundError, match=f"^{tmp_path} lacks {lacking}; "):
        load_tokenizer(tmp_path)


def test_gpt1_without_spacy_says_what_to_install(tmp_path, monkeypatch):
    write_openai_files(tmp_path)
    monkeypatch.setitem(sys.modules, "spacy", None)
    with pytest.raises(ImportError, match=r"pip install 'gpt1_jax\[openai\]'"):
        load_tokenizer(tmp_path)


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
        ("  one\n\n \n two \t 2\n", "one \n two 2"),
        ("one,\ntwo", "one , \n two"),
    ],
)
def test_standardize_text_equals_the_released(text, standard):
    assert standardize_text(text) == standard


def test_runs_of_white_space_take_linear_time():
    began = time.process_time()
    assert standardize_text("a" + " " * 100_000 + "b \n\t" * 2 + "c") == "a b \n b \n c"
    assert time.process_time() - began < 1


@pytest.fixture(scope="module")
def by_character() -> GPT1Tokenizer:
    """Has no merges: ids are characters, and the last one of a word is another."""
    pytest.importorskip("spacy")
    letters = "éèêñöüßœæçĳà‚„«»°²§£€日本°□╯┻━ಠ¬ツ¯😀"
    letters = sorted({*string.printable.strip().lower(), *letters})
    return GPT1Tokenizer(json.dumps(openai_vocabulary([], letters)), "#version: 0.2\n")


ODD = """\
don't Don’t y'all I'd've p.m. 10p.m. U.S.A. (Mr. Ph.D. e.g. and/or w/o 'em ''Tis 'twas
cannot wont im. wed. 'im. foo''bar "'em-foo" a.B o:p 8-) D: :-) :'( <3 </3 (^_^) o.O
http://example.com/a_b?q=1&r=2 www.x.org, a@b.co.uk 😀 👩‍👩‍👧 ❤️ schÃ¶n â€œhi doâ€™t
Ã© âœ” Â£5 &amp; &lt;b&gt; &EACUTE; &hellip; &#x2019; &nbsp; &amp;amp; <p> < >
＆amp； ﬁlm ŉ Ａ ｶﾞ
“ ” ‘ ’ ‚ ‟ ʼ « — ― … ´ - -- .. ... , ; !! ?! "" ' '' ( )) [ } | _ __ / \\ ** + ~~ # $5
5% 10km 1,234.5 1/2 +1 é œ ŒA œ” é”s Âà ×² 30°C. naïve СССР ΟΔΥΣΣΕΥΣ İstanbul 日本 עברית
said, The low bar's e\u0301 \ufeff \u200b \xad \x07 \x1b[31m \x7f \x85 \x9f \ufffd"""
BLANKS = ["", "", "  ", "\r\n", *"  \n\t\xa0\u2028\u3000\x1c"]


def odd_lines(number: int, exceptions: list[str]) -> list[str]:
    """Lines of what ftfy repairs, what spaCy treats specially, and any characters."""
    pick, odd = random.Random(0), re.split("[ \n]", ODD)

    def piece() -> str:
        kind = pick.random()
        if kind < 0.5:
            return pick.choice(odd)
        if kind < 0.75:
            return pick.choice(exceptions)
        if kind < 0.85:  # an exception across white space
            text = pick.choice(exceptions)
            cut = pick.randrange(len(text) + 1)
            return f"{text[:cut]} {text[cut:]}"
        if kind < 0.95:
            return "".join(pick.choices("abcsX'’\".,:;-()/&<>39 é“”", k=5))
        return chr(pick.choice([pick.randrange(0xA0, 0x250), pick.randrange(0xD800)]))

    return [
        "".join(piece() + pick.choice(BLANKS) for _ in range(pick.randrange(1, 12)))
        for _ in range(number)
    ]


@pytest.mark.parametrize(
    "number", [500, pytest.param(10_000, marks=pytest.mark.slow)], ids=str
)
def test_gpt1_ids_of_odd_lines_equal_those_of_the_steps_one_by_one(
    by_character, number
):
    """And those of ordinary characters, and of all short words in three cases."""
    import spacy

    lines = odd_lines(number, sorted(spacy.blank("en").tokenizer.rules))
    pick, letters = random.Random(0), string.ascii_lowercase
    ordinary = [*string.printable[:95], *"‘’“”–—―…´"]
    any_order = "\n".join("".join(pick.choices(ordinary, k=40)) for _ in range(400))
    words = [*letters, *map("".join, itertools.product(letters, repeat=2))]
    cased = (each for word in words for each in (word, word.title(), word.upper()))
    for text in (*lines, "\n".join(lines), any_order, " ".join(cased)):
        assert by_character.encode(text) == by_character.encode_plainly(text), text


@few
@given(st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("ab.,'’ \n")))
def test_gpt1_ids_of_any_text_equal_those_of_the_steps_one_by_one(by_character, text):
    assert by_character.encode(text) == by_character.encode_plainly(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("''bar", "'' bar"),  # the last of spaCy's passes joins quotes
        ("low' ''bar", "low ' ' ' bar"),  # but not behind another quote
        ("low'\n''bar", "low ' \n '' bar"),
        ("=o’ s.O", "= o ' s . o"),
        ("8:o ) im'", "8 : o ) i m '"),
        ("wed. cannot Wont foo", "we d. can not wo nt foo"),
        ("&lt; <\n&lt;", "& lt ; < \n & lt ;"),  # text with tags keeps its entities
        ("&lt;\n< &lt;\n&lt;", "< \n < & lt ; \n & lt ;"),
        ("low\rbar\x85", "low \n bar ..."),
        ("“lo”\t‘lo’ –\x0c", "\" lo \" ' lo ' -"),
        ("ﬁlm voilÃ\xa0", "film voilà"),
    ],
)
def test_gpt1_splits_words_by_their_context(by_character, text, words):
    ids = by_character.encode(text)
    assert by_character.decode(ids) == re.sub(" ?\n ?", "\n", words)
    assert ids == by_character.encode_plainly(text)


def test_gpt1_forgets_chunks_before_they_take_much_memory(by_character, monkeypatch):
    monkeypatch.setattr(gpt1_tokenizer, "_MOST_CHARS", 300)
    for start in range(0, 300, 30):
        text = " ".join(f"w{number} 'em, ''x" for number in range(start, start + 30))
        assert by_character.encode(text) == by_character.encode_plainly(text)
    assert len(by_character._ids) < 100
