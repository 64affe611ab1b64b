"""GPT-1's words by rules, beside those of ftfy and spaCy."""

import ftfy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from gpt1_jax.data.gpt1_tokenizer import standardize_text
from gpt1_jax.interop import hugging_face_words

spacy = pytest.importorskip("spacy")


@pytest.fixture(scope="module")
def words():
    """`words(text)`: by the rules."""
    normalizer = hugging_face_words.normalizer()
    pre_tokenizer: pre_tokenizers.PreTokenizer = hugging_face_words.pre_tokenizer()

    def cut(text: str) -> list[str]:
        normal = normalizer.normalize_str(text)
        return [word for word, _ in pre_tokenizer.pre_tokenize_str(normal)]

    return cut


@pytest.fixture(scope="module")
def released_words():
    """`released_words(text)`: by ftfy and spaCy."""
    split = spacy.blank("en").tokenizer

    def cut(text: str) -> list[str]:
        found = split(standardize_text(ftfy.fix_text(text)))
        cut = [word.text.lower() for word in found]
        return ["\n" if word.startswith("\n") else word for word in cut]

    return cut


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Don't!", "do n't !"),
        ("I can't've, cannot, I'm", "i ca n't 've , can not , i 'm"),
        ("Mr. Fox's dog. 'Tis St. Ann.", "mr. fox 's dog . ' tis st. ann ."),
        ("whats. well", "what s. well"),
        ("goin' y'all 'em o'clock", "goin' y' all 'em o'clock"),
        ("at 10p.m. or 5am", "at 10 p.m. or 5 am"),
        ("Well...maybe ...then", "well ... maybe ... then"),
        ("“It’s”—‘so’… f´f", "\" it 's \" - ' so ' ... f'f"),
        ("a--b (c) [d] x/y", "a -- b ( c ) [ d ] x / y"),
        (r"a\b U.S.A. A.", r"a\b u.s.a. a."),
        ("$5 50% £1.2", "$ 5 50 % £ 1.2"),
        ("ﬁne ÉTÉ Ete\u0301", "fine été eté"),
        ('""No!!""', '" " no ! ! " "'),
        ("--''Tis ''so'' ''em ‘’Well", "-- '' tis '' so '' ' 'em '' well"),
    ],
)
def test_words_are_cut_as_expected(words, released_words, text, expected):
    assert words(text) == released_words(text) == expected.split()


@pytest.mark.parametrize("text", ["a\n b", "a \r\n\n\tb\n", "\n\na\u2028b", "\n", " "])
def test_white_space_around_a_newline_is_one_word(words, released_words, text):
    assert words(text) == released_words(text)


PROSE = """the Fox don't we're it's Mr. U.S. said I'd I well who'd gonna 10 3.5 cannot
 never. 'so' then' “yes” ‘no’ (and) wait... —stop— Home!"""


@settings(deadline=None, max_examples=50)
@given(
    st.lists(
        st.sampled_from(PROSE.split(" ")),
        max_size=8,
    ).map(" ".join)
)
def test_words_of_prose_equal_the_released(words, released_words, text):
    assert words(text) == released_words(text)


@settings(deadline=None, max_examples=50)
@given(st.text() | st.text("ab.'\" -\n"))
def test_any_text_has_words(words, text):
    """Whatever the text, no rule fails, and none leaves a mark."""
    assert not any("\ue000" <= c <= "\ue002" for w in words(text) for c in w) or any(
        "\ue000" <= c <= "\ue002" for c in text
    )
