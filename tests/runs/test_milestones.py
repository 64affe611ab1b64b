"""From amounts of text to steps, and what is said of them."""

import shutil

import pytest
from etils import epath

from gpt1_jax.config import NEWEST
from gpt1_jax.data.files import write_json
from gpt1_jax.data.shards import Split
from gpt1_jax.runs.milestones import (
    Target,
    TextRead,
    announce_milestones,
    find_steps,
    place_milestones,
    read_milestone,
    saved_milestones,
)

# 200 tokens a step, and three words in four tokens: 150 words a step.
TEXT = TextRead(200, Split(1, tokens=4000, words=3000, bytes=20_000, shards=(4000,)))


def words(*amounts):
    return tuple(Target(amount, "words") for amount in amounts)


def steps(*amounts):
    return tuple(Target(amount, "steps") for amount in amounts)


def tokens(*amounts):
    return tuple(Target(amount, "tokens") for amount in amounts)


def save(folder, metadata):
    """What is read of saved steps: what was saved beside their states."""
    for step, values in metadata.items():
        place = folder / "checkpoints" / str(step) / "metadata"
        place.mkdir(parents=True)
        write_json(epath.Path(place) / "metadata", values)


@pytest.mark.parametrize(
    ("target", "step"),
    [
        (Target(150, "words"), 1),
        (Target(1, "words"), 1),  # nearest to step 0, which is not saved
        (Target(1500, "words"), 10),
        (Target(1574, "words"), 10),
        (Target(1575, "words"), 11),  # half way: the later
        (Target(1500, "tokens"), 8),  # 7.5
        (Target(2000, "tokens"), 10),
        (Target(7, "steps"), 7),
    ],
)
def test_a_target_has_the_step_that_is_nearest(target, step):
    assert TEXT.nearest_step(target) == step


def test_a_step_knows_the_tokens_and_words_read():
    assert TEXT.after(0) == {"tokens": 0, "words": 0}
    assert TEXT.after(7) == {"tokens": 1400, "words": 1050}
    uneven = TextRead(100, Split(1, tokens=3, words=2, bytes=9, shards=(3,)))
    assert uneven.after(1) == {"tokens": 100, "words": 67}
    wordless = TextRead(100, Split(1, tokens=10, words=0, bytes=9, shards=(10,)))
    assert wordless.nearest_step(Target(20, "words")) == 2


def test_targets_are_placed_and_the_end_is_the_end():
    kept = place_milestones(words(300, 1500, 3000, 4000, 5000), TEXT, num_steps=20)
    assert kept.targets == dict(zip((2, 10, 20), words(300, 1500, 3000), strict=True))
    assert kept.beyond == words(4000, 5000)
    assert place_milestones((), TEXT, 20).targets == {}
    assert place_milestones(words(9000), TEXT, 20).targets == {}


def test_the_end_stands_for_a_target_that_it_nearly_reaches():
    """20 steps read 3,000 words: 95% of 3,157, but not of 3,158."""
    assert place_milestones(words(3157, 6000), TEXT, 20).targets == {
        20: Target(3157, "words")
    }
    assert place_milestones(words(3158), TEXT, 20).targets == {}
    taken = place_milestones(words(3000, 3100), TEXT, 20)
    assert taken.targets == {20: Target(3000, "words")}
    assert taken.beyond == words(3100)


def test_the_end_stands_for_no_other_number_of_steps():
    kept = place_milestones(steps(5, 20, 21), TEXT, num_steps=20)
    assert kept.targets == dict(zip((5, 20), steps(5, 20), strict=True))
    assert place_milestones(steps(21), TEXT, num_steps=20).targets == {}


def test_two_targets_on_one_step_are_refused():
    with pytest.raises(ValueError) as error:
        place_milestones(words(300, 1440, 1500), TEXT, num_steps=20)
    message = str(error.value)
    assert "milestone_words: 1.44k words and 1.5k words both fall on step 10" in message
    assert "a step reads 150 words" in message and "batch_size" in message


def test_beyond_the_end_no_two_targets_meet():
    kept = place_milestones(words(300, 3300, 3301), TEXT, num_steps=20)
    assert kept.beyond == words(3300, 3301)


def test_a_checkpoint_says_what_was_read_and_why_it_is_kept():
    kept = place_milestones(words(300), TEXT, 20)
    metadata = kept.metadata(2)
    assert metadata["text_read"] == {"tokens": 400, "words": 300}
    assert read_milestone(metadata) == Target(300, "words")
    assert read_milestone(kept.metadata(3)) is None
    assert kept.metadata(3)["text_read"] == {"tokens": 600, "words": 450}


def test_the_kept_steps_of_a_folder_are_those_that_say_so(tmp_path):
    kept = place_milestones(tokens(400, 2000), TEXT, 20)
    steps = {step: kept.metadata(step) for step in (2, 5, 10)}
    save(tmp_path, {**steps, 1: {}})  # of an older version
    found = saved_milestones(epath.Path(tmp_path))
    assert found == dict(zip((2, 10), tokens(400, 2000), strict=True))


@pytest.mark.parametrize("make", [words, tokens, steps])
def test_what_is_saved_of_a_target_is_read_back(make):
    (target,) = make(4)
    assert read_milestone({"kept_at": target._asdict()}) == target


def test_all_steps_or_those_kept_may_be_meant(tmp_path):
    folder = epath.Path(tmp_path)
    assert find_steps(folder, "all") == find_steps(folder, "milestones") == [NEWEST]
    kept = place_milestones(steps(4, 10), TEXT, 20)
    save(tmp_path, {step: kept.metadata(step) for step in (10, 4, 9)})
    assert find_steps(folder, "all") == [4, 9, 10]
    assert find_steps(folder, "milestones") == [4, 10]
    assert find_steps(folder, "best") == ["best"] and find_steps(folder, "10") == ["10"]


def test_a_run_that_kept_no_step_is_refused_by_name(tmp_path):
    save(tmp_path, {3: {}, 12: {}})
    with pytest.raises(FileNotFoundError) as error:
        find_steps(epath.Path(tmp_path), "milestones")
    assert str(error.value).startswith(f"{tmp_path} holds no checkpoint that was kept")
    assert "milestone_steps; its saved steps are [3, 12]" in str(error.value)


@pytest.mark.parametrize(
    "value",
    [
        "../x",
        7,
        {"amount": "1", "unit": "words"},
        {"amount": 0, "unit": "words"},
        {"amount": 1, "unit": "../x"},
        {"amount": 1},
    ],
)
def test_what_is_no_amount_of_text_is_refused(tmp_path, value):
    """It would name a folder."""
    save(tmp_path, {3: {"kept_at": value}})
    with pytest.raises(
        ValueError, match=r"says kept_at=.*, which is no amount of words"
    ):
        saved_milestones(epath.Path(tmp_path))


def test_a_run_says_what_it_will_keep(tmp_path, capsys):
    kept = place_milestones(words(150, 300, 1500, 3000, 6000, 9000), TEXT, 20)
    folder = epath.Path(tmp_path)
    announce_milestones(kept, folder, 0, 10**6)
    assert capsys.readouterr().out == (
        "Not kept: 6k to 9k words; the whole run reads 3,000.\n"
        "Keeping for good: 4 checkpoints at 150 to 3k words, 4.0 MB.\n"
    )
    save(tmp_path, {1: kept.metadata(1), 2: {}, 10: {}})
    announce_milestones(kept, folder, 10, 10**6)
    assert capsys.readouterr().out.splitlines()[1:] == [
        "Not kept: 300 to 1.5k words, which step 10 is past.",
        "Keeping for good: 1 checkpoint at 3k words, 1.0 MB.",
    ]
    announce_milestones(place_milestones((), TEXT, 20), folder, 0, 10**6)
    assert capsys.readouterr().out == ""
    announce_milestones(place_milestones(steps(21), TEXT, 20), folder, 0, 10**6)
    said = "Not kept: 21 steps; the whole run has 20.\n"
    assert capsys.readouterr().out == said


def test_a_disk_without_room_for_all_is_refused_before(tmp_path, monkeypatch):
    usage = shutil._ntuple_diskusage(10**9, 10**9, 3 * 10**6)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    folder = epath.Path(tmp_path)
    announce_milestones(
        place_milestones(words(300, 600, 900), TEXT, 20), folder, 0, 10**6
    )
    with pytest.raises(OSError, match=r"full: keeping 4 checkpoints .* needs 4\.0 MB"):
        four = place_milestones(words(300, 600, 900, 1200), TEXT, 20)
        announce_milestones(four, folder, 0, 10**6)


def test_the_size_of_the_training_text_is_known():
    assert TEXT.train_size == {"tokens": 4000, "words": 3000}


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
    target = Target(amount, "words")
    assert target.short == short and str(target) == f"{short} words"
