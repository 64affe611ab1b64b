"""How each task is put to a language model, from its records to what is scored."""

import dataclasses

import pytest
from made_up_tasks import load
from made_up_tokenizer import Characters, shown
from tiny_tasks import rows, write_lines, write_task

from gpt1_jax.errors import MissingData
from gpt1_jax.studies.answers import encode_answers
from gpt1_jax.studies.zero_shot.tasks import (
    ALL,
    BEST_BEFORE,
    CHANCE,
    ZERO_SHOT,
    read_labelled,
    select_zero_shot_tasks,
)
from gpt1_jax.tasks.paper_tasks import TASKS
from gpt1_jax.tasks.task import Record

TOKENIZER = Characters()
COPA, DPR, WSC273 = (ZERO_SHOT[name].task for name in ("copa", "dpr", "wsc273"))

# A row of each task, and the texts of its answers: what is read | what is scored.
WORDING = {
    "cola": (
        {"sentence": "They sang.", "label": 1},
        ["\n|They sang. "],
    ),
    "sst2": (
        {"sentence": "a fine film . ", "label": 1},
        ["\na fine film . very |negative ", "\na fine film . very |positive "],
    ),
    "race": (
        {
            "article": "Ann ran.\n\nBob sat.",
            "question": "Who ran?",
            "options": ["Ann.", "Bob.", "both", "none"],
            "answer": "A",
        },
        [
            f"\nAnn ran. \nBob sat. \nWho ran? |{answer} "
            for answer in ("Ann.", "Bob.", "both", "none")
        ],
    ),
    "dpr": (
        {
            "sentence": "Ann hit Bob, so he hid.",
            "pronoun": "he",
            "candidates": ["Ann", "Bob"],
            "label": 1,
        },
        ["\nAnn hit Bob, so Ann |hid. ", "\nAnn hit Bob, so Bob |hid. "],
    ),
    "story_cloze": (
        {"context": "Ann ran. She fell.", "endings": ["It hurt.", "It rains."],
         "label": 0},
        ["\nAnn ran. She fell. |It hurt. ", "\nAnn ran. She fell. |It rains. "],
    ),
    "copa": (
        {"premise": "Ann fell.", "question": "cause", "choice1": "Bob pushed her.",
         "choice2": "It hurt.", "label": 0},
        ["\nAnn fell because |Bob pushed her. ", "\nAnn fell because |It hurt. "],
    ),
    "wsc273": (
        {"text": "Ann hit Bob: it hurt him.", "pronoun_start": 21, "pronoun_end": 24,
         "option1": "Ann", "option2": "Bob", "label": 1},
        ["\nAnn hit Bob: it hurt Ann|. ", "\nAnn hit Bob: it hurt Bob|. "],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ZERO_SHOT)
def test_the_wording_of_each_task(name):
    columns, wanted = WORDING[name]
    given, record = ZERO_SHOT[name], Record(columns, "here")
    example = given.task.check_record(record, needs_label=True)
    encoded = encode_answers(given, "dev", [example], TOKENIZER, 100)
    assert shown(encoded) == wanted and encoded.num_answers == [len(wanted)]


def test_an_effect_follows_so_and_the_tasks_of_fine_tuning_are_as_they_were():
    record = Record({**WORDING["copa"][0], "question": "effect"}, "here")
    assert COPA.check_record(record, needs_label=True).text == ("Ann fell", "so")
    inputs = TASKS["copa"].inputs
    assert inputs.wording["question"]["cause"].startswith("What")
    assert TASKS["story_cloze"].published.dev_split
    assert not ZERO_SHOT["story_cloze"].task.published.dev_split
    assert not ZERO_SHOT["sst2"].mean  # the words as a whole
    assert set(ZERO_SHOT) == set(BEST_BEFORE) == set(CHANCE) == set(WORDING)


def test_tasks_are_selected_by_name_and_split():
    assert select_zero_shot_tasks([ALL]) == list(ZERO_SHOT.values())
    first, second = select_zero_shot_tasks(["copa:train", "sst2", "copa:dev"])
    assert (first, second) == (ZERO_SHOT["copa"], ZERO_SHOT["sst2"])  # the last counts
    (train,) = select_zero_shot_tasks(["copa:train"])
    assert train == dataclasses.replace(first, splits=("train",))


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("sst3", "no zero-shot task 'sst3'; there are cola, sst2, race, dpr, story_"),
        ("all", "'all' alone"),
        ("sst2:valid", "'valid' is none of the splits train, dev, test"),
        ("sst2:", "'' is none"),
    ],
)
def test_unknown_tasks_and_splits_are_refused(name, problem):
    with pytest.raises(ValueError, match=problem):
        select_zero_shot_tasks(["cola", name])


def test_the_first_split_with_data_is_read(tmp_path):
    (task,) = select_zero_shot_tasks(["dpr"])
    with pytest.raises(MissingData, match=r"test data of DPR: .*test\.jsonl"):
        read_labelled(task, task.splits, "jsonl", str(tmp_path))
    write_task(tmp_path, "dpr", train=3, dev=0)
    split, examples = read_labelled(task, task.splits, "jsonl", str(tmp_path))
    assert (split, len(examples)) == ("train", 3)
    write_lines(tmp_path / "dpr" / "test.jsonl", rows("dpr", 2, seed=0))
    assert read_labelled(task, task.splits, "jsonl", str(tmp_path))[0] == "test"
    withheld = rows("sst2", 3, seed=0, labelled=False)
    write_lines(tmp_path / "sst2" / "test.jsonl", withheld)
    with pytest.raises(ValueError, match=r"test\.jsonl:1: .*such as sst2:dev"):
        read_labelled(ZERO_SHOT["sst2"], ["test"], "jsonl", str(tmp_path))


def dpr(sentence, pronoun, candidates=("The bee", "the flower"), label=1):
    row = {"sentence": sentence, "pronoun": pronoun, "candidates": list(candidates)}
    return {**row, "label": label}


def read_test(tmp_path, task, *made):
    write_lines(tmp_path / task.name / "test.jsonl", made)
    return load(task, "test", "jsonl", tmp_path)


THE_BEE = "The bee", "the flower"


@pytest.mark.parametrize(
    ("candidates", "pronoun", "before", "after"),
    [
        # whole words only, whatever their case
        (THE_BEE, "it", "The bee hit the flower. ", " bit."),
        (THE_BEE, "him", "The bee and the flower saw ", "."),
        # before both candidates, where it is not found behind them
        (THE_BEE, "it", "Since ", " hid, the bee bit the flower."),
        (("Tom", "his dad"), "his", "Tom met his dad; ", " arm hurt."),
    ],
)
def test_the_first_pronoun_after_the_candidates_is_meant(
    tmp_path, candidates, pronoun, before, after
):
    sentence = f"{before}{pronoun}{after}".replace(". it", ". It")
    (example,) = read_test(tmp_path, DPR, dpr(sentence, pronoun, candidates))
    assert example.text == (before, after)
    assert example.choices == candidates and example.label == 1


@pytest.mark.parametrize("as_list", [True, False])
def test_wsc273_says_where_its_pronoun_is_and_may_have_any_candidates(
    tmp_path, as_list
):
    """As in PDP-60 and WSC-285."""

    def row(*names, **more):
        options = {f"option{k}": name for k, name in enumerate(names, 1)}
        text = {"text": "Did it fit in it as it was big?", "pronoun_text": "it"}
        text |= {"pronoun_start": 20, "pronoun_end": 22, **more}
        return {**text, **({"options": list(names)} if as_list else options)}

    made = row("A", "B", "C", label=2, idx=7), row("A", "B", label="second", idx=8)
    first, second = read_test(tmp_path, WSC273, *made)
    assert first.text == second.text == ("Did it fit in it as ", " was big?")
    assert (first.choices, first.label, first.id) == (("A", "B", "C"), 2, "7")
    assert (second.choices, second.label, second.id) == (("A", "B"), 1, "8")


PLACE = {"text": "It bit.", "pronoun_start": 0}


@pytest.mark.parametrize(
    ("task", "row", "problem"),
    [
        (COPA, {**WORDING["copa"][0], "premise": [3]}, r"'premise' holds \[3\], not t"),
        (DPR, dpr("The bee bit.", "it"), "pronoun 'it' is not a word of 'The bee bit"),
        (DPR, dpr("The bee bit it.", 3), "hold texts, not 'The bee bit it.' and 3"),
        (DPR, dpr("It bit.", "it", candidates=("a",)), "list of 2 to 10 texts"),
        (DPR, dpr("It bit.", "it", label=2), "label 2 is none of the example's 2 ch"),
        (DPR, {"text": "It bit."}, "'sentence' or 'pronoun'; .* has sentence, pronoun"),
        (WSC273, PLACE, "no column 'pronoun_end'; an example has text, pronoun_start,"),
        (WSC273, {**PLACE, "pronoun_end": 9}, "hold 0 and 9, not the place of a pron"),
        (
            WSC273,
            {**PLACE, "pronoun_end": 2, "option1": "a"},
            r"column 'options' holds \['a'\], not a list of 2 to 10 texts",
        ),
    ],
)
def test_rows_that_cannot_be_put_to_a_model_are_refused_by_file_and_line(
    tmp_path, task, row, problem
):
    with pytest.raises(ValueError, match=rf"test\.jsonl:1: .*{problem}"):
        read_test(tmp_path, task, row)
