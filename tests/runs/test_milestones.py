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
        (1574, "words", 10),
        (1575, "words", 11),  # half way: the later
        (1500, "tokens", 8),  # 7.5
        (7, "steps", 7),
    ],
)
def test_a_milestone_has_the_step_that_is_nearest(amount, unit, step):
    assert place(unit, amount).by_step == {step: Milestone(amount, unit)}


@pytest.mark.parametrize(
    ("unit", "amounts", "placed", "beyond"),
    [
        ("words", (300, 1500, 3000, 4000, 5000), {2: 300, 10: 1500, 20: 3000}, 2),
        # 20 steps read 3,000 words: 95% of 3,157, but not of 3,158.
        ("words", (3157, 6000), {20: 3157}, 1),
        ("words", (3158,), {}, 1),
        ("words", (3000, 3100), {20: 3000}, 1),  # the end is taken
        ("words", (300, 3300, 3301), {2: 300}, 2),  # beyond it no two meet
        ("steps", (21,), {}, 1),  # the end is no other number of steps
    ],
)
def test_the_end_stands_for_a_milestone_nearly_reached(unit, amounts, placed, beyond):
    found = place(unit, *amounts)
    expected = {step: Milestone(amount, unit) for step, amount in placed.items()}
    assert found.by_step == expected
    last = amounts[len(amounts) - beyond :]
    assert found.beyond == tuple(Milestone(amount, unit) for amount in last)


def test_a_step_knows_the_tokens_and_words_read_and_why_it_is_kept():
    placed = place("steps", 7)
    assert placed.metadata(0) == {"text_read": {"tokens": 0, "words": 0}}
    metadata = placed.metadata(7)
    assert metadata["text_read"] == {"tokens": 1400, "words": 1050}
    assert read_milestone(metadata) == Milestone(7, "steps")
    assert placed.train_size == {"tokens": 4000, "words": 3000}
    counts = SplitCounts(1, tokens=3, words=2, bytes=9)
    uneven = place("steps", tokens_per_step=100, train=counts)
    assert uneven.metadata(1)["text_read"] == {"tokens": 100, "words": 67}
    counts = SplitCounts(1, tokens=10, words=0, bytes=9)
    wordless = place("words", 20, tokens_per_step=100, train=counts)
    assert list(wordless.by_step) == [2]


def test_two_milestones_on_one_step_are_refused():
    both = "milestone_words: 1.44k words and 1.5k words both fall on step 10"
    with pytest.raises(ValueError, match=f"{both}, .* reads 150 words.*batch_size"):
        place("words", 300, 1440, 1500)


def test_the_milestones_of_a_folder_are_those_that_say_so(tmp_path):
    placed = place("tokens", 400, 2000)
    save(tmp_path, {step: placed.metadata(step) for step in (2, 5, 10)} | {1: {}})
    found = saved_milestones(epath.Path(tmp_path))
    assert found == {2: Milestone(400, "tokens"), 10: Milestone(2000, "tokens")}


@pytest.mark.parametrize(
    "value",
    [
        *("../x", {"amount": "1", "unit": "words"}, {"amount": -1, "unit": "words"}),
        {"amount": 1, "unit": "../x"},
    ],
)
def test_what_is_no_amount_of_text_is_refused(tmp_path, value):
    """It would name a folder."""
    save(tmp_path, {3: {"milestone": value}})
    with pytest.raises(ValueError, match=r"says milestone=.*, which is no amount"):
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
    announce_milestones(place("steps", 21), folder, 0, 10**6)
    said = "Not kept: 21 steps; the whole run has 20.\n"
    assert capsys.readouterr().out == said


def test_a_disk_without_room_for_all_is_refused_before(tmp_path, monkeypatch):
    usage = shutil._ntuple_diskusage(10**9, 10**9, 3 * 10**6)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    three, four = place("words", 300, 600, 900), place("words", 300, 600, 900, 1200)
    announce_milestones(three, epath.Path(tmp_path), 0, 10**6)
    with pytest.raises(OSError, match=r"full: keeping 4 checkpoints .* needs 4\.0 MB"):
        announce_milestones(four, epath.Path(tmp_path), 0, 10**6)


@pytest.mark.parametrize(
    ("amount", "short"),
    [(999, "999"), (1000, "1k"), (20_500, "20.5k"), (10**9, "1000M")],
)
def test_a_short_name_says_the_amount_exactly(amount, short):
    """The revisions of exports have the names of BabyLM."""
    words, tokens = Milestone(amount, "words"), Milestone(amount, "tokens")
    assert words.short == short and str(words) == f"{short} words"
    assert words.revision == f"chck_{short}"
    assert tokens.revision == f"chck_{short}_tokens"
