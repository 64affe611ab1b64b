"""Words keep their places; windows hold each word once, after its context."""

import os

import hypothesis
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up_tokenizer import Numbers, small_gpt1_tokenizer

from gpt1_jax.data import tokenizers
from gpt1_jax.data.sentencepiece_tokenizer import SentencePieceTokenizer
from gpt1_jax.data.words import (
    Context,
    Word,
    punctuation_apart,
    sentence_starts,
    split_words,
    windows,
)
from gpt1_jax.errors import UserError

NEWLINE = Numbers.newline_id
LINES = "the old house stood there\nnobody's house , it was said.\nthe end"


class Spelled(Numbers):
    """Reads the word "3.1.4" as three tokens."""

    def encode(self, text):
        return [int(part) for part in text.split(".")]


def words(text):
    return list(split_words(Spelled(), text))


def context(**values):
    return Context(**{"max_seq_len": 6, "newline_id": NEWLINE, "overlap": 2, **values})


def read(text, **values):
    """(context ids, {word: ids}) of each window."""
    return [
        (
            window.ids[: window.num_context],
            {
                span.word.text: window.ids[span.first : span.stop]
                for span in window.spans
            },
        )
        for window in windows(words(text), context(**values))
    ]


def test_words_are_what_white_space_separates():
    text = "\n  1\t2.3 \n\n4\u00a05\n"
    found = words(text)
    assert [word.text for word in found] == ["1", "2.3", "4", "5"]
    assert [text[word.start : word.end] for word in found] == ["1", "2.3", "4", "5"]
    assert [word.line for word in found] == [1, 1, 3, 3]
    assert [word.ids for word in found] == [(1,), (2, 3), (4,), (5,)]
    assert words(" \n ") == []
    text = "1\r2\r\n3\n4"
    assert [word.line for word in words(text)] == [0, 1, 2, 3]
    assert [text[word.start : word.end] for word in words(text)] == list("1234")


@pytest.fixture(scope="module")
def sentencepiece():
    return SentencePieceTokenizer.train([LINES] * 20, vocab_size=340)


@hypothesis.settings(deadline=None)
@hypothesis.given(st.lists(st.sampled_from([*LINES.split(), "Zoë", "x-1"]), max_size=9))
def test_the_tokens_of_words_are_those_of_their_line(sentencepiece, chosen):
    line = " ".join(chosen)
    found = [token for w in split_words(sentencepiece, line) for token in w.ids]
    assert found == sentencepiece.encode(line)


def test_a_text_that_fits_is_one_window_after_a_newline():
    assert read("1 2.3\n\n4") == [([0], {"1": [1], "2.3": [2, 3], "4": [4]})]
    window = next(windows(words("1 2.3\n\n4"), context()))
    assert window.ids == [0, 1, 2, 3, 0, 4]


def test_full_windows_overlap():
    assert read("1 2 3 4 5 6 7 8 9") == [
        ([0], {"1": [1], "2": [2], "3": [3], "4": [4], "5": [5]}),
        ([4, 5], {"6": [6], "7": [7], "8": [8], "9": [9]}),
    ]


def test_a_long_word_leaves_less_room_for_the_overlap():
    found = read("1 2 3 4 5 6.7.8.9", overlap=4)
    assert found[1] == ([4, 5], {"6.7.8.9": [6, 7, 8, 9]})


def test_lines_may_be_texts():
    assert read("1 2\n3", across_lines=False) == [
        ([0], {"1": [1], "2": [2]}),
        ([0], {"3": [3]}),
    ]


def test_the_first_word_may_be_context():
    assert read("1.2 3\n4", after_newline=False) == [
        ([1, 2], {"1.2": [1, 2], "3": [3], "4": [4]})
    ]


def test_each_word_may_have_a_few_before_it():
    assert read("1 2.3 4\n5 6", num_words=2) == [
        ([0], {"1": [1]}),
        ([0, 1], {"2.3": [2, 3]}),
        ([0, 1, 2, 3], {"4": [4]}),
        ([2, 3, 4, 0], {"5": [5]}),
        ([4, 0, 5], {"6": [6]}),
    ]
    # In the middle of a text, the newline before the first word that is read is not.
    assert read("1\n2 3", num_words=1)[1:] == [
        ([0, 1, 0], {"2": [2]}),
        ([2], {"3": [3]}),
    ]
    cut = read("1.2.3 4.5.6 7.8", num_words=2)
    assert cut[-1] == ([3, 4, 5, 6], {"7.8": [7, 8]})


def test_a_word_longer_than_the_context_is_refused_by_name():
    with pytest.raises(ValueError, match=r"line 2: .* '1\.2\.3\.4\.5' has 5 .* 6 at"):
        read("1\n1.2.3.4.5")


def in_parts(given):
    """Words whose tokens are a part each, as if punctuation came apart from them."""
    for word in given:
        start = word.start
        for token in word.ids:
            text = f"{token}." if start + 2 <= word.end else str(token)
            part = Word(text, start, start + len(text), word.line, (token,))
            start = part.end
            yield part


def test_a_word_in_parts_is_longer_than_the_context_too():
    parts = list(in_parts(words("1\n1.2.3.4.5")))
    with pytest.raises(UserError, match=r"line 2: .* '1\.2\.3\.4\.5' has 5 .* 6 at"):
        list(windows(parts, context()))


@pytest.mark.parametrize("overlap", [0, 6])
def test_an_overlap_leaves_room_for_words(overlap):
    with pytest.raises(ValueError, match=rf"overlap={overlap} .* 1 to 5"):
        context(overlap=overlap)


numbers = st.lists(st.integers(1, 9), min_size=1, max_size=4)
texts = st.lists(st.lists(numbers, min_size=1, max_size=6), max_size=4)


@hypothesis.settings(deadline=None)
@hypothesis.given(
    texts, st.integers(1, 5), st.integers(0, 3), st.booleans(), st.booleans()
)
def test_each_word_has_one_span(text, overlap, num_words, across_lines, after_newline):
    lines = [[".".join(map(str, word)) for word in line] for line in text]
    given = words("\n".join(" ".join(line) for line in lines))
    how = dict(num_words=num_words, across_lines=across_lines)
    found = list(
        windows(given, context(overlap=overlap, after_newline=after_newline, **how))
    )
    assert [span.word for window in found for span in window.spans] == given
    for window in found:
        assert 1 <= len(window.ids) <= 6
        for span in window.spans:
            assert tuple(window.ids[span.first : span.stop]) == span.word.ids
    parts = list(windows(in_parts(given), context(overlap=overlap, **how)))
    whole = list(windows(given, context(overlap=overlap, **how)))
    assert [(w.ids, w.num_context) for w in parts] == [
        (w.ids, w.num_context) for w in whole
    ], "what is read depends on how words come apart"
    for one, other in zip(parts, whole, strict=True):
        tokens = [t for span in one.spans for t in one.ids[span.first : span.stop]]
        assert tokens == [t for span in other.spans for t in span.word.ids]


# --- punctuation apart from words ---------------------------------------------

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
def prose_tokenizer():
    lines = ["the old house stood there. nobody's house, it was said."]
    return SentencePieceTokenizer.train(lines * 20, vocab_size=340)


@pytest.fixture(scope="module", params=["sentencepiece", "gpt1", "released"])
def tokenizer(request, prose_tokenizer):
    if request.param == "sentencepiece":
        return prose_tokenizer
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
def test_the_parts_of_any_word_are_the_word(prose_tokenizer, text):
    for word in split_words(prose_tokenizer, text):
        found = list(punctuation_apart(prose_tokenizer, word))
        assert "".join(part.text for part in found) == word.text
        assert [i for part in found for i in part.ids] == list(word.ids)
        assert [part.start for part in found[1:]] == [p.end for p in found[:-1]]


# --- sentences of English prose, and of whatever else a line may hold ---------


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
