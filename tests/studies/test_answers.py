"""How answers to examples become tokens, and how they are compared."""

import numpy as np
import pytest
from made_up_tokenizer import Characters, shown

from gpt1_jax.studies.answers import Answers, encode_answers
from gpt1_jax.studies.zero_shot.tasks import ZERO_SHOT
from gpt1_jax.tasks.task import Example

TOKENIZER = Characters()


def example(*text, choices=()):
    return Example(text, choices, 0, "", "", "file:3")


def encode(name, *examples, longest=100, tokenizer=TOKENIZER):
    return encode_answers(ZERO_SHOT[name], "dev", list(examples), tokenizer, longest)


def test_words_are_spelled_as_in_the_whole_line():
    """Before a period the last letter of a word does not end it; texts are cleaned."""
    found = encode("dpr", example("  so\t", ".", choices=("ab", "c")))
    assert shown(found) == ["\nso ab|. ", "\nso c|. "]
    so = [10, ord("s"), ord("o") + 128]
    assert found.windows[0].ids == [*so, ord("a"), ord("b"), ord(".") + 128]


def test_a_token_across_the_border_counts_as_read():
    class Merging(Characters):
        def encode(self, text):
            return super().encode(text.replace("b.x", "z"))

    found = encode(
        "dpr", example("", ".x ok", choices=("ab", "c")), tokenizer=Merging()
    )
    assert shown(found) == ["\naz |ok ", "\nc|.x ok "]


def test_a_long_passage_loses_its_end():
    given = example("one two\nthree", "why?", choices=("a", "bb", "c", "d"))
    whole = encode("race", given)
    assert (whole.num_long, whole.windows[1].num_context) == (0, 18)
    assert shown(encode("race", given, longest=20)) == shown(whole)
    found = encode("race", given, example("a", "b", choices=("c",) * 4), longest=17)
    assert found.num_long == 1
    begin = "\none two \nth\nwhy? |"
    assert shown(found)[:2] == [f"{begin}a ", f"{begin}bb "]
    without = encode("race", given, longest=8)  # no passage, and no newline after it
    assert shown(without)[1] == "\nwhy? |bb "


def test_without_a_passage_the_context_loses_its_beginning():
    given = example("one two three", choices=("a", "bb"))
    found = encode("story_cloze", given, longest=8)
    assert shown(found) == ["\nthree |a ", "\nthree |bb "] and found.num_long == 1


RACE = example("one", "why?", choices=("a", "bbb", "c", "d"))


@pytest.mark.parametrize(
    ("name", "given", "longest", "problem"),
    [
        ("race", RACE, 7, "7 tokens of question and answer, which"),
        ("cola", example("three words here"), 14, "14 tokens of the scored text"),
        ("dpr", example("a ", "", choices=("b", "c")), 14, "nothing to score"),
    ],
)
def test_what_stays_whole_has_to_fit(name, given, longest, problem):
    with pytest.raises(ValueError, match=f"file:3: .*{problem}"):
        encode(name, given, longest=longest)


def test_answers_are_compared_by_mean_or_sum():
    means, sums = (
        Answers(ZERO_SHOT[name], "dev", [], [], [2, 2], 0) for name in ("copa", "sst2")
    )
    log_probs = [np.float32([-1, -3]), np.float32([-3]), np.float32([0]), np.ones(2)]
    np.testing.assert_array_equal(means.compare(log_probs), [[-2, -3], [0, 1]])
    np.testing.assert_array_equal(sums.compare(log_probs), [[-4, -3], [0, 2]])
    fewer = sums._replace(num_answers=[1, 3])
    expected = [[-4, -np.inf, -np.inf], [-3, 0, 2]]
    np.testing.assert_array_equal(fewer.compare(log_probs), expected)
