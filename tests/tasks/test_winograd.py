"""Pronouns and what stands around them, from every source."""

import pytest
from made_up_tasks import load, prepare_dataset
from tiny_tasks import rows, write_lines

from gpt1_jax.tasks.examples import MissingData
from gpt1_jax.tasks.winograd import WINOGRAD

DPR, WSC273 = WINOGRAD["dpr"], WINOGRAD["wsc273"]


def dpr(sentence, pronoun, candidates=("The bee", "the flower"), label=1):
    row = {"sentence": sentence, "pronoun": pronoun, "candidates": list(candidates)}
    return {**row, "label": label}


def read(tmp_path, task, *made):
    write_lines(tmp_path / task.name / "test.jsonl", made)
    return load(task, "test", "jsonl", tmp_path)


@pytest.mark.parametrize(
    ("sentence", "pronoun", "before", "after"),
    [
        # whole words only, whatever their case
        ("The bee hit the flower. It bit.", "it", "The bee hit the flower. ", " bit."),
        ("It bit the bee; it was it.", "it", "It bit the bee; ", " was it."),
        ("The bee and the flower saw him.", "him", "The bee and the flower saw ", "."),
        # before both candidates, where it is not found behind them
        ("Since it hid, the bee bit the flower.", "it", "Since ", " hid, the bee bit"
         " the flower."),
    ],
)  # fmt: skip
def test_the_first_pronoun_after_the_candidates_is_meant(
    tmp_path, sentence, pronoun, before, after
):
    (example,) = read(tmp_path, DPR, dpr(sentence, pronoun))
    assert example.text == (before, after)
    assert example.choices == ("The bee", "the flower") and example.label == 1


def test_a_pronoun_within_a_candidate_is_not_meant(tmp_path):
    row = dpr("Tom met his dad; his arm hurt.", "his", ("Tom", "his dad"))
    assert read(tmp_path, DPR, row)[0].text == ("Tom met his dad; ", " arm hurt.")


def test_wsc273_says_where_its_pronoun_is(tmp_path):
    text = "It did not fit in it as it was big."
    row = {"text": text, "pronoun_start": 24, "pronoun_end": 26, "pronoun_text": "it"}
    row |= {"option1": "the box", "option2": "the bag", "label": 0, "idx": 7}
    (example,) = read(tmp_path, WSC273, row)
    assert example.text == ("It did not fit in it as ", " was big.")
    assert (example.choices, example.id) == (("the box", "the bag"), "7")


@pytest.mark.parametrize("as_list", [True, False])
def test_any_number_of_candidates(tmp_path, as_list):
    """As in PDP-60 and WSC-285."""

    def row(*names):
        options = {f"option{k}": name for k, name in enumerate(names, 1)}
        text = {"text": "As it bit.", "pronoun_start": 3, "pronoun_end": 5}
        return {**text, **({"options": list(names)} if as_list else options)}

    made = ({**row("A", "B", "C"), "label": 2}, {**row("A", "B"), "label": "second"})
    examples = read(tmp_path, WSC273, *made)
    assert [example.choices for example in examples] == [("A", "B", "C"), ("A", "B")]
    assert [example.label for example in examples] == [2, 1]


@pytest.mark.parametrize("task", [DPR, WSC273], ids=["dpr", "wsc273"])
def test_examples_are_the_same_from_tfds(task, tmp_path):
    made = rows(task.name, 6, seed=0)
    wanted = read(tmp_path, task, *made)
    if task is DPR:
        made = [{k: v for k, v in row.items() if k != "idx"} for row in made]
    else:
        more = {"option1_normalized": "a", "option2_normalized": "b"}
        made = [{**row, **more} for row in made]
    name = task.tfds["test"][""].partition(":")[0]
    parts = {split: made for split in task.tfds}
    prepare_dataset(name, parts, tmp_path / "tfds")
    found = load(task, "test", "tfds", tmp_path / "tfds")
    assert sorted(each.text + each.choices for each in found) == sorted(
        each.text + each.choices for each in wanted
    )
    assert sorted(each.label for each in found) == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize(
    ("task", "row", "problem"),
    [
        (DPR, dpr("The bee bit.", "it"), "pronoun 'it' is not a word of 'The bee bit"),
        (DPR, dpr("The bee bit.", ""), "pronoun '' is not a word"),
        (DPR, dpr("The bee bit it.", 3), "hold texts, not 'The bee bit it.' and 3"),
        (DPR, dpr("It bit.", "it", candidates=("a",)), "list of 2 to 10 texts"),
        (DPR, dpr("It bit.", "it", label=2), "label 2 is none of the example's 2 ch"),
        (DPR, {"text": "It bit."}, "'sentence' or 'pronoun'; .* has sentence, pronoun"),
        (
            WSC273,
            {"text": "It bit.", "pronoun_start": 6, "pronoun_end": 9},
            "hold 6 and 9, not the place of a pronoun in 'It bit.'",
        ),
        (
            WSC273,
            {"text": "It bit.", "pronoun_start": 0},
            "no column 'pronoun_end'; an example has text, pronoun_start, pronoun_end, "
            "option1 and option2 .* and label",
        ),
        (
            WSC273,
            {"text": "It bit.", "pronoun_start": 0, "pronoun_end": 2, "option1": "a"},
            r"column 'options' holds \['a'\], not a list of 2 to 10 texts",
        ),
    ],
)
def test_rows_without_their_pronoun_are_refused_by_file_and_line(
    tmp_path, task, row, problem
):
    with pytest.raises(ValueError, match=rf"test\.jsonl:1: .*{problem}"):
        read(tmp_path, task, row)


def test_the_official_files_are_not_read(tmp_path):
    with pytest.raises(MissingData, match="source 'official' has no test split"):
        load(DPR, "test", "official", tmp_path)
