"""How each task is put to a language model: the words that are read and scored."""

import pytest
from made_up_tokenizer import Characters
from tiny_tasks import rows, write_lines, write_task

from gpt1_jax.report.paper import ZERO_SHOT as REFERENCES
from gpt1_jax.tasks.examples import MissingData
from gpt1_jax.tasks.paper_tasks import TASKS
from gpt1_jax.tasks.task import Record
from gpt1_jax.tasks.zero_shot import ALL, ZERO_SHOT, Question, read, select
from gpt1_jax.tasks.zero_shot_pairs import encode_answers

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
    way = ZERO_SHOT[name]
    example = way.task.example(Record(columns, "here"), needs_label=True)
    encoded = encode_answers(way, [example], Characters(), 100)
    decode = Characters().decode
    texts = ["|".join(map(decode, answer)) for answer in encoded.answers]
    assert texts == wanted and encoded.num_answers == [len(wanted)]


def test_an_effect_follows_so():
    row = {**WORDING["copa"][0], "question": "effect"}
    example = ZERO_SHOT["copa"].task.example(Record(row, "here"), needs_label=True)
    assert example.text == ("Ann fell", "so")


def test_copa_keeps_what_is_wrong_for_the_reader_to_refuse():
    row = {**WORDING["copa"][0], "premise": 3}
    with pytest.raises(ValueError, match="column 'premise' holds 3, not text"):
        ZERO_SHOT["copa"].task.example(Record(row, "here"), needs_label=True)


def test_each_task_has_a_way_to_be_scored_and_what_to_compare_with():
    assert set(ZERO_SHOT) == set(REFERENCES) == set(WORDING)
    for way in ZERO_SHOT.values():
        labels = len(way.task.labels)
        assert len(way.answers) in (0, labels)
        assert bool(way.threshold_split) != bool(way.answers or way.task.choices)
        assert "{answer}" in way.context + way.scored or way.threshold_split
    assert not ZERO_SHOT["sst2"].mean  # the words as a whole
    assert TASKS["copa"].text == ("premise", "question")  # the table is as it was
    assert TASKS["copa"].wording["question"]["cause"].startswith("What")
    assert (
        TASKS["story_cloze"].dev_split and not ZERO_SHOT["story_cloze"].task.dev_split
    )


# --- which tasks, which splits --------------------------------------------------------


def test_tasks_are_selected_by_name_and_split():
    assert [q.way for q in select([ALL])] == list(ZERO_SHOT.values())
    first, second = select(["copa:train", "sst2", "copa:dev"])
    assert first == Question(ZERO_SHOT["copa"], ("dev",))  # the last one counts
    assert second == Question(ZERO_SHOT["sst2"], ("dev",))


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
        select(["cola", name])


def test_the_first_split_with_data_is_read(tmp_path):
    (question,) = select(["dpr"])
    with pytest.raises(MissingData, match=r"test data of DPR: .*test\.jsonl"):
        read(question, "jsonl", str(tmp_path))
    write_task(tmp_path, "dpr", train=3, dev=0)
    split, examples = read(question, "jsonl", str(tmp_path))
    assert (split, len(examples)) == ("train", 3)
    write_lines(tmp_path / "dpr" / "test.jsonl", rows("dpr", 2, seed=0))
    assert read(question, "jsonl", str(tmp_path))[0] == "test"


def test_withheld_labels_are_refused(tmp_path):
    write_task(tmp_path, "sst2", test=3)
    (question,) = select(["sst2:test"])
    with pytest.raises(ValueError, match=r"test\.jsonl:1: .*such as sst2:dev"):
        read(question, "jsonl", str(tmp_path))
