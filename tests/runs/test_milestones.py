"""From amounts of text to steps, and what is said of them."""

import shutil

import pytest
from etils import epath

from gpt1_jax.data.files import write_json
from gpt1_jax.data.shards import SplitCounts
from gpt1_jax.runs.milestones import (
    Milestone,
    announce_milestones,
    read_milestone,
    saved_milestones,
    schedule_milestones,
)

# 200 tokens a step, and three words in four tokens: 150 words a step.
TRAIN = SplitCounts(1, tokens=4000, words=3000, bytes=20_000)


def place(unit, *amounts, tokens_per_step=200, train=TRAIN, num_steps=20):
    return schedule_milestones(unit, amounts, tokens_per_step, train, num_steps)


def milestones(unit, *amounts):
    return tuple(Milestone(amount, unit) for amount in amounts)


def save(folder, metadata):
    """What is read of saved steps: what was saved beside their states."""
    for step, values in metadata.items():
        place = folder / "checkpoints" / str(step) / "metadata"
        place.mkdir(parents=True)
        write_json(epath.Path(place) / "metadata", values)


@pytest.mark.parametrize(
    ("amount", "unit", "step"),
    [
        (150, "words", 1),
        (0, "words", 0),  # the state before the first update
        (1, "words", 1),  # nearest to step 0, at which nothing was read
        (1500, "words", 10),
        (1574, "words", 10),
        (1575, "words", 11),  # half way: the later
        (1500, "tokens", 8),  # 7.5
        (2000, "tokens", 10),
        (7, "steps", 7),
    ],
)
def test_a_milestone_has_the_step_that_is_nearest(amount, unit, step):
    assert place(unit, amount).by_step == {step: Milestone(amount, unit)}


def test_a_step_knows_the_tokens_and_words_read():
    placed = place("steps")
    assert placed.metadata(0)["text_read"] == {"tokens": 0, "words": 0}
    assert placed.metadata(7)["text_read"] == {"tokens": 1400, "words": 1050}
    counts = SplitCounts(1, tokens=3, words=2, bytes=9)
    uneven = place("steps", tokens_per_step=100, train=counts)
    assert uneven.metadata(1)["text_read"] == {"tokens": 100, "words": 67}
    counts = SplitCounts(1, tokens=10, words=0, bytes=9)
    wordless = place("words", 20, tokens_per_step=100, train=counts)
    assert list(wordless.by_step) == [2]


def test_milestones_are_placed_and_the_end_is_the_end():
    placed = place("words", 300, 1500, 3000, 4000, 5000)
    expected = zip((2, 10, 20), milestones("words", 300, 1500, 3000), strict=True)
    assert placed.by_step == dict(expected)
    assert placed.beyond == milestones("words", 4000, 5000)
    assert place("words").by_step == {}
    assert place("words", 9000).by_step == {}


def test_the_end_stands_for_a_milestone_that_it_nearly_reaches():
    """20 steps read 3,000 words: 95% of 3,157, but not of 3,158."""
    assert place("words", 3157, 6000).by_step == {20: Milestone(3157, "words")}
    assert place("words", 3158).by_step == {}
    taken = place("words", 3000, 3100)
    assert taken.by_step == {20: Milestone(3000, "words")}
    assert taken.beyond == milestones("words", 3100)


def test_the_end_stands_for_no_other_number_of_steps():
    placed = place("steps", 5, 20, 21)
    expected = zip((5, 20), milestones("steps", 5, 20), strict=True)
    assert placed.by_step == dict(expected)
    assert place("steps", 21).by_step == {}


def test_two_milestones_on_one_step_are_refused():
    with pytest.raises(ValueError) as error:
        place("words", 300, 1440, 1500)
    message = str(error.value)
    assert "milestone_words: 1.44k words and 1.5k words both fall on step 10" in message
    assert "a step reads 150 words" in message and "batch_size" in message


def test_beyond_the_end_no_two_milestones_meet():
    placed = place("words", 300, 3300, 3301)
    assert placed.beyond == milestones("words", 3300, 3301)


def test_a_checkpoint_says_what_was_read_and_why_it_is_kept():
    placed = place("words", 300)
    metadata = placed.metadata(2)
    assert metadata["text_read"] == {"tokens": 400, "words": 300}
    assert read_milestone(metadata) == Milestone(300, "words")
    assert read_milestone(placed.metadata(3)) is None
    assert placed.metadata(3)["text_read"] == {"tokens": 600, "words": 450}


def test_the_milestones_of_a_folder_are_those_that_say_so(tmp_path):
    placed = place("tokens", 400, 2000)
    steps = {step: placed.metadata(step) for step in (2, 5, 10)}
    save(tmp_path, {**steps, 1: {}})
    found = saved_milestones(epath.Path(tmp_path))
    expected = zip((2, 10), milestones("tokens", 400, 2000), strict=True)
    assert found == dict(expected)


@pytest.mark.parametrize("unit", ["words", "tokens", "steps"])
def test_what_is_saved_of_a_milestone_is_read_back(unit):
    milestone = Milestone(4, unit)
    assert read_milestone({"milestone": milestone._asdict()}) == milestone


@pytest.mark.parametrize(
    "value",
    [
        "../x",
        7,
        {"amount": "1", "unit": "words"},
        {"amount": -1, "unit": "words"},
        {"amount": 1, "unit": "../x"},
        {"amount": 1},
    ],
)
def test_what_is_no_amount_of_text_is_refused(tmp_path, value):
    """It would name a folder."""
    save(tmp_path, {3: {"milestone": value}})
    with pytest.raises(
        ValueError, match=r"says milestone=.*, which is no amount of words"
    ):
        saved_milestones(epath.Path(tmp_path))


def test_a_run_says_what_it_will_keep(tmp_path, capsys):
    placed = place("words", 150, 300, 1500, 3000, 6000, 9000)
    folder = epath.Path(tmp_path)
    announce_milestones(place("steps", 0), folder, -1, 10**6)
    assert "Keeping for good: 1 checkpoint at 0 steps" in capsys.readouterr().out
    announce_milestones(placed, folder, -1, 10**6)
    assert capsys.readouterr().out == (
        "Not kept: 6k to 9k words; the whole run reads 3,000.\n"
        "Keeping for good: 4 checkpoints at 150 to 3k words, 4.0 MB.\n"
    )
    save(tmp_path, {1: placed.metadata(1), 2: {}, 10: {}})
    announce_milestones(placed, folder, 10, 10**6)
    assert capsys.readouterr().out.splitlines()[1:] == [
        "Not kept: 300 to 1.5k words, passed by step 10.",
        "Keeping for good: 1 checkpoint at 3k words, 1.0 MB.",
    ]
    announce_milestones(place("words"), folder, 0, 10**6)
    assert capsys.readouterr().out == ""
    announce_milestones(place("steps", 21), folder, 0, 10**6)
    said = "Not kept: 21 steps; the whole run has 20.\n"
    assert capsys.readouterr().out == said


def test_a_disk_without_room_for_all_is_refused_before(tmp_path, monkeypatch):
    usage = shutil._ntuple_diskusage(10**9, 10**9, 3 * 10**6)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    folder = epath.Path(tmp_path)
    announce_milestones(place("words", 300, 600, 900), folder, 0, 10**6)
    with pytest.raises(OSError, match=r"full: keeping 4 checkpoints .* needs 4\.0 MB"):
        four = place("words", 300, 600, 900, 1200)
        announce_milestones(four, folder, 0, 10**6)


def test_the_size_of_the_training_text_is_known():
    assert place("steps").train_size == {"tokens": 4000, "words": 3000}


@pytest.mark.parametrize(
    ("amount", "short"),
    [
        (7, "7"),
        (999, "999"),
        (1000, "1k"),
        (20_500, "20.5k"),
        (10**7, "10M"),
        (2_500_000, "2.5M"),
        (1_234_567, "1.234567M"),
        (10**9, "1000M"),
    ],
)
def test_a_short_name_says_the_amount_exactly(amount, short):
    milestone = Milestone(amount, "words")
    assert milestone.short == short and str(milestone) == f"{short} words"


@pytest.mark.parametrize(
    ("unit", "name"),
    [("words", "chck_2.5M"), ("tokens", "chck_2.5M_tokens")],
)
def test_exports_have_the_names_of_babylm(unit, name):
    assert Milestone(2_500_000, unit).revision == name
