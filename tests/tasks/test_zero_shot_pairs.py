"""Answers as tokens: where the scored ones begin, and what is cut."""

import dataclasses

import numpy as np
import pytest
from made_up_tokenizer import Characters

from gpt1_jax.tasks.task import Example
from gpt1_jax.tasks.zero_shot import ZERO_SHOT
from gpt1_jax.tasks.zero_shot_pairs import EncodedAnswers, encode_answers

TOKENIZER = Characters()


def example(*text, choices=()):
    return Example(text, choices, 0, "", "", "file:3")


def encode(name, *examples, longest=100, tokenizer=TOKENIZER):
    return encode_answers(ZERO_SHOT[name], examples, tokenizer, longest)


def texts(encoded):
    return ["|".join(map(TOKENIZER.decode, answer)) for answer in encoded.answers]


def test_words_are_spelled_as_in_the_whole_line():
    """Before a period the last letter of a word does not end it."""
    found = encode("dpr", example("so ", ".", choices=("ab", "c")))
    first, second = found.answers
    assert first.context == [10, ord("s"), ord("o") + 128, ord("a"), ord("b")]
    assert second.context == [10, ord("s"), ord("o") + 128, ord("c")]
    assert first.continuation == second.continuation == [ord(".") + 128]


def test_a_token_across_the_border_counts_as_read():
    class Merging(Characters):
        def encode(self, text):
            return super().encode(text.replace("b.x", "z"))

    found = encode(
        "dpr", example("", ".x ok", choices=("ab", "c")), tokenizer=Merging()
    )
    assert texts(found) == ["\naz |ok ", "\nc|.x ok "]


def test_a_long_passage_loses_its_end():
    given = example("one two\nthree", "why?", choices=("a", "bb", "c", "d"))
    whole = encode("race", given)
    assert (whole.num_cut, len(whole.answers[1].context)) == (0, 18)
    assert texts(encode("race", given, longest=20)) == texts(whole)
    found = encode("race", given, example("a", "b", choices=("c",) * 4), longest=17)
    assert found.num_cut == 1
    assert texts(found)[:2] == ["\none two \nth\nwhy? |a ", "\none two \nth\nwhy? |bb "]
    without = encode("race", given, longest=8)  # no passage, and no newline after it
    assert texts(without)[1] == "\nwhy? |bb "


def test_without_a_passage_the_context_loses_its_beginning():
    given = example("one two three", choices=("a", "bb"))
    found = encode("story_cloze", given, longest=8)
    assert texts(found) == ["\nthree |a ", "\nthree |bb "] and found.num_cut == 1


@pytest.mark.parametrize(
    ("name", "given", "longest", "problem"),
    [
        (
            "race",
            example("one", "why?", choices=("a", "bbb", "c", "d")),
            7,
            "7 tokens of question and answer, which",
        ),
        ("cola", example("three words here"), 14, "14 tokens of the scored text"),
        ("dpr", example("a ", "", choices=("b", "c")), 14, "nothing to score"),
    ],
)
def test_what_stays_whole_has_to_fit(name, given, longest, problem):
    with pytest.raises(ValueError, match=f"file:3: .*{problem}"):
        encode(name, given, longest=longest)


def test_each_text_is_encoded_once():
    calls = []

    class Counting(Characters):
        def encode(self, text):
            calls.append(text)
            return super().encode(text)

    questions = [
        example("the same", f"what {k}?", choices=("yes", "no", "a", "b"))
        for k in range(3)
    ]
    encode("race", *questions, tokenizer=Counting())
    assert calls.count("the same") == calls.count("yes") == 1


def test_answers_are_compared_by_mean_or_sum():
    encoded = EncodedAnswers([], [2, 2], 0)
    log_probs = [np.float32([-1, -3]), np.float32([-3]), np.float32([0]), np.ones(2)]
    np.testing.assert_array_equal(
        encoded.compare(log_probs, mean=True), [[-2, -3], [0, 1]]
    )
    np.testing.assert_array_equal(
        encoded.compare(log_probs, mean=False), [[-4, -3], [0, 2]]
    )
    fewer = EncodedAnswers([], [1, 3], 0)
    np.testing.assert_array_equal(
        fewer.compare(log_probs, mean=False), [[-4, -np.inf, -np.inf], [-3, 0, 2]]
    )


def test_texts_are_cleaned_as_the_corpus_is():
    given = dataclasses.replace(ZERO_SHOT["cola"], scored="{sentence}")
    found = encode_answers(given, [example("  a\tb  ")], TOKENIZER, 10)
    assert texts(found) == ["\n|a b "]
