"""The job of reading times: the table, the regression, the files that it writes."""

import collections
import csv
import json
import math
import time

import numpy as np
import pandas as pd
import pytest
from tiny_tasks import write_lines

import gpt1_jax
from gpt1_jax.errors import UserError
from gpt1_jax.studies import engine as step_scores
from gpt1_jax.studies.reading_times.gain import reading_gain
from gpt1_jax.studies.reading_times.words import BEFORE, count_words, normal_word

STORIES = 4


@pytest.fixture
def table(corpus_dir, tmp_path):
    """Made-up reading times of four stories, from the texts that the runs read."""
    rng = np.random.default_rng(0)
    rows = []
    for story in range(STORIES):
        text = (corpus_dir / "texts" / f"{story}.txt").read_text().split()[:60]
        for position, word in enumerate(text, 1):
            time = 200 + 10 * len(word) + rng.normal(0, 20)
            rows.append([f"s{story}", position, word, f"{time:.1f}"])
    rows[70][3] = "NA"
    return write_table(tmp_path / "times.csv", rows)


def write_table(path, rows, header=("story", "position", "word", "time")):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def read_table(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def gain(run_job, table, tmp_path):
    """A function from values to the scores of the newest step, by the table."""

    def run(preset="custom", to="out", **values):
        given = {"data__times": str(table), "data__position": "position", **values}
        run_job("reading_times", preset, to, **given)
        found = json.loads((tmp_path / to / "results.json").read_text())
        return found["runs"][0]["checkpoints"][-1]["tasks"]["reading_times"]

    return run


def predictors_in(folder):
    """The table of predictors that the job writes."""
    return read_table(folder / "predictions/run/12/reading_times.csv")


def gain_of(surprisal):
    """The gain of a surprisal, where times depend on length and frequency alone."""
    rng = np.random.default_rng(1)
    table = pd.DataFrame({"story": np.repeat(["s0", "s1", "s2", "s3", "s4"], 80)})
    table["position"] = np.tile(np.arange(1, 81), 5)
    table["length"] = rng.integers(1, 12, 400).astype(float)
    table["log_frequency"] = rng.normal(size=400)
    expected = 250 + 8 * table["length"] - 12 * table["log_frequency"]
    table["time"] = expected + rng.normal(0, 30, 400)
    table["surprisal"] = surprisal(table["time"], rng.normal(size=400))
    for name in ("length", "log_frequency", "surprisal"):
        for back in range(1, BEFORE + 1):
            table[f"{name}_{back}"] = table.groupby("story")[name].shift(back)
    is_early = table["position"] <= BEFORE
    table["left_out"] = np.where(is_early, "without two words before", "")
    return table[~is_early], reading_gain(table.to_dict("records"), folds=5)


def test_the_gain_is_that_of_regressions_written_by_hand():
    table, found = gain_of(lambda time, noise: 0.02 * time + noise)
    base = ["length", "log_frequency", "position"]
    base += [f"{n}_{b}" for n in ("length", "log_frequency") for b in (1, 2)]
    more = [*base, "surprisal", "surprisal_1", "surprisal_2"]

    def log_densities(names, story):
        parts = (table[table["story"] != story], table[table["story"] == story])
        fitted, judged = (np.column_stack([p[names], np.ones(len(p))]) for p in parts)
        times, own = (part["time"].to_numpy() for part in parts)
        weights, *_ = np.linalg.lstsq(fitted, times)
        variance = np.mean((times - fitted @ weights) ** 2)
        errors = own - judged @ weights
        return -0.5 * np.log(2 * np.pi * variance) - errors**2 / (2 * variance)

    gains = [
        log_densities(more, story) - log_densities(base, story)
        for story in table["story"].unique()
    ]
    assert found["n"] == len(table) == 390
    assert found["gain"] == pytest.approx(np.concatenate(gains).mean(), rel=1e-9)
    means = [each.mean() for each in gains]
    assert list(found["by_story"].values()) == pytest.approx(means, rel=1e-9)
    spread = np.std(means, ddof=1) / math.sqrt(5)
    assert found["gain_error"] == pytest.approx(spread, rel=1e-9)
    assert found["gain"] > 0.05


def test_noise_gains_nothing_and_the_time_itself_says_all():
    _, noise = gain_of(lambda time, noise: noise)
    assert noise["gain"] < 0.005
    _, itself = gain_of(lambda time, noise: time)
    assert itself["r2_with"] > 0.99 > itself["r2_without"]
    assert itself["gain"] > 1


def test_two_stories_have_to_be_left():
    table, _ = gain_of(lambda time, noise: noise)
    rows = table[table["story"] == "s0"].to_dict("records")
    with pytest.raises(UserError, match=r"of 1 stories are left .* need two stories"):
        reading_gain(rows, folds=5)


@pytest.mark.usefixtures("real_figures")
def test_surprisal_is_that_of_the_words_in_their_stories(pretrained, gain, tmp_path):
    scores, rows = gain(), predictors_in(tmp_path / "out")
    model = gpt1_jax.load(str(pretrained))
    for story in range(STORIES):
        own = [row for row in rows if row["story"] == f"s{story}"]
        words = model.surprisal(" ".join(row["word"] for row in own))
        nats = [row["surprisal"] for row in own]
        expected = [word.nats for word in words]
        assert list(map(float, nats)) == pytest.approx(expected, abs=2e-5)
        assert [row["surprisal_1"] for row in own[1:]] == nats[:-1]
        assert own[0]["surprisal_1"] == own[1]["surprisal_2"] == ""
    assert scores["n"] == sum(not row["left_out"] for row in rows)
    assert rows[70]["left_out"] == "no time"
    table = (tmp_path / "out" / "results.md").read_text()
    gained, error = 1000 * scores["gain"], 1000 * scores["gain_error"]
    assert f"| gain x 1000 | {scores['n']} | {gained:.2f} ± {error:.2f} |" in table
    for name, key in (("without", "r2_without"), ("with surprisal", "r2_with")):
        assert f"| R² x 100, {name} | {scores['n']} | {100 * scores[key]:.2f}" in table
    assert (tmp_path / "out" / "plots" / "reading_times.png").stat().st_size > 5000


def test_rows_are_in_the_order_of_positions_and_null_is_no_time(gain, table, tmp_path):
    rows = read_table(table)
    rows[5]["time"] = "NA"
    with table.open("w", newline="") as file:
        whole = csv.DictWriter(file, rows[0].keys())
        whole.writeheader()
        whole.writerows(rows)
    before = gain()
    rows[5]["time"] = None
    np.random.default_rng(0).shuffle(rows)
    lines = write_lines(tmp_path / "times.jsonl", rows)
    after = gain(to="shuffled", data__times=str(lines))
    assert after["n"] == before["n"]
    assert after["gain"] == pytest.approx(before["gain"], abs=1e-9)


HEADER = ("item", "word", "length", "Subtlex_log10", "self_paced_reading_time")


def test_the_table_of_babylm_is_read(gain, corpus_dir, tmp_path):
    """Rows in any order, each word after its own text; sentences are the stories.

    As in the data, first words have no row, sentences begin alike, and a frequency may
    be missing.
    """
    rng = np.random.default_rng(3)
    rows, sentences = [], []
    for number in range(8):
        text = (corpus_dir / "texts" / f"{number}.txt").read_text().split()[:12]
        if number % 2:
            text[:4] = sentences[number - 1][:4]
        sentences.append(text)
        for at, word in enumerate(text[1:], 1):
            frequency = "" if (number, at) == (0, 7) else str(sum(map(ord, word)) % 17)
            cells = [len(word), frequency, f"{rng.normal(300, 30):.1f}"]
            rows.append([" ".join(text[:at]), word, *cells])
    rng.shuffle(rows)
    table = write_table(tmp_path / "reading_data.csv", rows, HEADER)
    own = {"data__times": str(table), "data__position": "", "exclude": ()}
    scores = gain("babylm", **own)
    assert scores["n"] == 8 * 9 - 3 and len(scores["by_story"]) == 8
    written = predictors_in(tmp_path / "out")
    assert collections.Counter(row["left_out"] for row in written) == {
        "": 8 * 9 - 3,
        "without two words before": 8 * 2,
        "unknown": 1,
        "after an unknown one": 2,
    }
    pairs = zip(rows, written, strict=True)
    at = {(*row[0].split(), row[1]): new for row, new in pairs}
    for text in sentences:
        for stop in range(3, len(text) + 1):
            row, before = at[tuple(text[:stop])], at[tuple(text[: stop - 1])]
            assert row["position"] == str(stop)
            for name in ("length", "log_frequency", "surprisal"):
                assert row[f"{name}_1"] == before[name]
                assert row[f"{name}_2"] == before[f"{name}_1"]


def test_texts_of_thousands_of_words_are_followed_in_linear_time(gain, tmp_path):
    text = [f"a{number}" for number in range(20_000)]
    rows = [[" ".join(text[: 19_000 + n]), f"b{n}", 3, "2", "300"] for n in range(20)]
    table = write_table(tmp_path / "long.csv", rows, HEADER)
    began = time.process_time()
    with pytest.raises(UserError, match=r"fewer than two stories with words"):
        gain("babylm", data__times=str(table), data__position="")
    assert time.process_time() - began < 10  # minutes if it is quadratic


def test_frequencies_are_counted_without_case_and_punctuation(tmp_path):
    (tmp_path / "a.txt").write_text("The dog, the DOG's “dog” — dog\n\n1900 the.\n")
    frequency = count_words(str(tmp_path / "a.txt"), "config.frequency_corpus")
    counts = {"dog": 3, "Dog!": 3, "the": 3, "dog's": 1, "cat": 0}  # of nine
    for word, count in counts.items():
        expected = pytest.approx(math.log10((count + 1) / 9 * 1e6))
        assert frequency(word) == (expected, count > 0)
    assert normal_word("“Don’t,”") == "don't"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"data__time": "rt"}, r"no column 'rt'; the columns are story, position, w"),
        ({"data__times": "none.csv"}, r"none\.csv"),
        ({"frequency_corpus": "none.txt"}, r"'none.txt' names no file"),
        ({"exclude": ("verbs",)}, r"config.exclude='verbs' is not known"),
        ({"folds": 1}, r"folds=1 must be at least 2"),
        ({"data__context": "story"}, r"leave config.data.text and config.data.pos"),
        (
            {"data__context": "word", "data__position": "", "data__text": ""},
            r"set config.data.story to the same column",
        ),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(gain, overrides, message):
    with pytest.raises((UserError, OSError), match=message):
        gain(**overrides)


def first_row(story="s0", position=1, word="a", time="250"):
    """From rows to the same with another first one."""
    return lambda rows: [[story, position, word, time], *rows[1:]]


def times(time):
    """From rows to those of two stories, with other times."""
    return lambda rows: [[*row[:3], time(row)] for row in rows[:120]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: [], r"holds no words, only the names"),
        (lambda rows: rows[:60], r"fewer than two stories"),
        (first_row(time="slow"), r":2: .*holds 'slow'"),
        (first_row(time="-5"), r":2: .*'-5', neither NA nor"),
        (first_row(time="1e300"), r"NA nor a number from 0"),
        (first_row(word=""), r":2: .* holds no word"),
        (first_row(position="1.5"), r":2: .*'1\.5', not the who"),
        (first_row(position=2), r"has two words at position 2"),
        (lambda rows: rows[:8] + rows[60:68], r"12 words of 2 stories .* 23 words at"),
        (lambda rows: rows[:70], r"other than 's0' have 8 words, and a model of 11"),
        (times(lambda row: "1e-300"), r"all times are the same or follow exactly"),
        (
            times(lambda row: str(200 + 10 * len(row[2]))),
            r"follow exactly from length, log_frequency, position, length_1",
        ),
        (
            times(lambda row: "250" if row[0] == "s1" else row[3]),
            r"In the stories other than 's0', all times are the same",
        ),
        (
            lambda rows: rows[:60] + [[*row[:2], "ab", row[3]] for row in rows[60:120]],
            r"In the stories other than 's0', length is 2 for all words",
        ),
    ],
)
def test_a_table_that_cannot_be_used_is_refused_before_any_work(
    gain, table, tmp_path, monkeypatch, change, message
):
    monkeypatch.setattr(step_scores.devices, "configure", pytest.fail)
    write_table(table, change([list(row.values()) for row in read_table(table)]))
    with pytest.raises(UserError, match=message):
        gain(exclude=())
    assert not (tmp_path / "out").exists()


def test_words_that_are_not_those_of_the_text_are_named(gain, table, tmp_path):
    whole = [list(row.values()) for row in read_table(table)]
    rows = [cells[:3] for cells in whole]
    other = [*rows[:5], [*rows[5][:2], "another"], *rows[6:]]
    header = ("story", "position", "word")
    text = write_table(tmp_path / "text.csv", rows, header)
    gain(data__text=str(text))
    write_table(text, other, header)
    with pytest.raises(UserError, match=r"times\.csv:7: .* has 'another' there"):
        gain(to="other", data__text=str(text))
    write_table(text, [*rows, ["s9", 1, "more"]], header)
    with pytest.raises(UserError, match=r"'more' is not in .*times\.csv"):
        gain(to="longer", data__text=str(text))
    write_table(table, [*whole, whole[0]])
    with pytest.raises(UserError, match=r":242: story 's0' begins again after another"):
        gain(to="again", data__position="")
