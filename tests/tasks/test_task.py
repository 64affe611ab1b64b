"""What `Task.check_record` makes of a record, and what it refuses."""

import json
import math

import pytest

from gpt1_jax.errors import UserError
from gpt1_jax.tasks.paper_tasks import TASKS
from gpt1_jax.tasks.task import Record

PAIR = {"premise": "A dog runs.", "hypothesis": "An animal moves.", "label": 0}
CHOICE = {
    "premise": "The glass fell.",
    "question": "effect",
    "choice1": "It broke.",
    "choice2": "It sang.",
    "label": 1,
}
RACE = {
    "article": "Ann has a red hat.",
    "question": "Ann's hat is _ .",
    "options": ["red", "blue", "old", "new"],
    "answer": "A",
    "example_id": "high/7.txt",
}
STORY = {"context": "It rained.", "endings": ["We got wet.", "We flew."], "label": 0}


STSB = {"sentence1": "One.", "sentence2": "Two."}


def example(name, columns, needs_label=True, subset=""):
    record = Record(columns, "file.tsv:3", subset)
    return TASKS[name].check_record(record, needs_label=needs_label)


def without(columns, name):
    return {key: value for key, value in columns.items() if key != name}


@pytest.mark.parametrize(
    ("label", "number"),
    [(0, 0), (2, 2), (" 1", 1), ("neutral", 1), (2.0, 2), ("2.0", 2), (True, 1)],
)
def test_label_is_a_number_or_a_name(label, number):
    assert example("snli", {**PAIR, "label": label}).label == number


def test_label_name_comes_before_the_number():
    assert example("story_cloze", {**STORY, "label": "1"}).label == 0
    assert example("story_cloze", {**STORY, "label": 1}).label == 1


@pytest.mark.parametrize("label", [3, -2, "maybe", "0.5", [1], "Neutral", math.inf])
def test_label_out_of_range_is_refused(label):
    with pytest.raises(
        ValueError, match=r"file\.tsv:3: label .* is neither one of"
    ) as raised:
        example("snli", {**PAIR, "label": label})
    assert repr(label) in str(raised.value)
    assert "'contradiction'" in str(raised.value)
    assert "0 to 2" in str(raised.value)


@pytest.mark.parametrize("label", [None, "", "-", "hidden", -1, math.nan])
def test_withheld_label_is_none(label):
    columns = {"sentence": "It is fine.", "label": label}
    assert example("sst2", columns, needs_label=False).label is None
    assert example("sst2", without(columns, "label"), needs_label=False).label is None
    with pytest.raises(ValueError, match=r"file\.tsv:3: .* no label .* 'label'"):
        example("sst2", columns)


@pytest.mark.parametrize("needs_label", [True, False])
def test_label_without_agreement_drops_the_snli_example(needs_label):
    for label in (-1, "-"):
        assert example("snli", {**PAIR, "label": label}, needs_label) is None


@pytest.mark.parametrize(("value", "score"), [(0, 0.0), ("3.800", 3.8), (5.0, 5.0)])
def test_score_is_a_number(value, score):
    label = example("stsb", {**STSB, "label": value}).label
    assert label == score
    assert isinstance(label, float)
    withheld = {**STSB, "label": -1.0}
    assert example("stsb", withheld, needs_label=False).label is None


@pytest.mark.parametrize(
    "value",
    [
        *(5.1, -0.5, "nan", math.inf, True, 10**400),
        json.loads("[" * 300 + "]" * 300),
    ],
    ids=lambda value: f"{value!r:.20}",
)
def test_score_out_of_range_is_refused(value):
    with pytest.raises(ValueError, match=r"file\.tsv:3: score .* from 0\.0 to 5") as no:
        example("stsb", {**STSB, "label": value})
    assert len(str(no.value)) < 300


def test_id_comes_from_the_first_id_column():
    assert example("snli", {**PAIR, "idx": 3, "id": "a", "index": 5}).id == "3"
    assert example("snli", {**PAIR, "idx": None}).id == ""
    with pytest.raises(UserError, match=r"file\.tsv:3: the id \[1\] is neither text"):
        example("snli", {**PAIR, "idx": [1]})


def test_texts_and_choices_are_in_the_order_of_the_task():
    made = example("copa", {**CHOICE, "idx": 12})
    assert made.text == ("The glass fell.", "What happened as a result?")
    assert made.choices == ("It broke.", "It sang.")
    assert (made.label, made.id, made.where) == (1, "12", "file.tsv:3")
    assert example("copa", {**CHOICE, "question": "Why?"}).text[1] == "Why?"
    assert example("snli", PAIR).choices == ()
    empty = {"question1": "", "question2": "Why?", "label": 0}
    assert example("qqp", empty).text == ("", "Why?"), "where the task says so"


def test_missing_column_is_named_beside_the_others():
    message = "file.tsv:3: .* no column 'choice2'.* premise, question, choice1, label"
    with pytest.raises(ValueError, match=message):
        example("copa", without(CHOICE, "choice2"))


BASES = {"snli": PAIR, "copa": CHOICE, "race": RACE, "story_cloze": STORY}


@pytest.mark.parametrize(
    ("name", "column", "value", "problem"),
    [
        ("snli", "premise", " \n", "the text .*'premise' is empty"),
        ("copa", "choice1", "\u00ad\x00\ufeff", "the text .*'choice1' is empty"),
        ("story_cloze", "endings", ["Wet.", ""], "the text .*'endings' is empty"),
        ("snli", "premise", None, "column 'premise' holds None, not text"),
        ("copa", "choice1", b"bytes", "column 'choice1' holds b'bytes', not"),
        ("race", "options", "blue", "column 'options' .*, not a list of 4 texts"),
        ("race", "options", ["red"], "column 'options' .*, not a list of 4 texts"),
        ("race", "options", [*"abcde"], "column 'options' .*, not a list of 4 texts"),
    ],
)
def test_what_is_no_text_is_refused(name, column, value, problem):
    with pytest.raises(UserError, match=f"file.tsv:3: {problem}"):
        example(name, {**BASES[name], column: value})


@pytest.mark.parametrize(
    ("example_id", "subset"),
    [
        ("high/7.txt", "high"),
        ("middle/7.txt", "middle"),
        ("high7.txt", "high"),  # as RACE itself and TFDS write it
        ("7.txt", ""),
    ],
)
def test_subset_is_the_first_part_of_its_column(example_id, subset):
    assert example("race", {**RACE, "example_id": example_id}).subset == subset


def test_subset_of_the_record_comes_first():
    assert example("race", RACE, subset="middle").subset == "middle"
    assert example("mnli", PAIR).subset == ""
