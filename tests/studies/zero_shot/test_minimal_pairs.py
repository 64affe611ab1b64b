"""The minimal-pairs job, as its user runs it; what it shares with others is theirs."""

import json
import random

import numpy as np
import pytest
from babylm_data import WORDS
from hub_server import serve_hub, use_hub
from made_up_tasks import write_hub_file
from tiny_tasks import read_lines, write_lines

import gpt1_jax
from gpt1_jax.errors import MissingData
from gpt1_jax.studies import engine as step_scores

TERMS = "ellipsis+anaphor_agreement"
PARADIGMS = (  # all of theirs
    *("ellipsis_n_bar_1", "ellipsis_n_bar_2"),
    *("anaphor_gender_agreement", "anaphor_number_agreement"),
)


def phrase(rng, length):
    return " ".join(rng.choices(WORDS, k=length))


@pytest.fixture(scope="module")
def blimp(made_once):
    """Twelve made-up pairs of each paradigm of two terms; three are equal tokens."""

    def make(folder):
        rng = random.Random(0)
        for name in PARADIGMS:
            goods = [phrase(rng, 5) for _ in range(12)]
            rows = [
                {
                    "sentence_good": good,
                    "sentence_bad": f"{good} " if k == 3 else phrase(rng, 5),
                    "pairID": str(k),
                }
                for k, good in enumerate(goods)
            ]
            write_lines(folder / f"{name}.jsonl", rows)

    return made_once("blimp", make)


@pytest.fixture
def score(run_job, blimp):
    """A function from values to what the job prints; its folder is `to`."""

    def run(tasks=TERMS, **values):
        data = {"data__source": "official", "data__dir": str(blimp)}
        return run_job("minimal_pairs", tasks, **{**data, **values})

    return run


def test_scores_are_those_of_the_notebook_model(score, pretrained, blimp, tmp_path):
    """Sentence by sentence, after a newline; a tie is half a point."""
    out = score()
    assert "4 items with sentences of equal tokens, which tie: " in out
    assert "ellipsis_n_bar_1 3" in out
    model = gpt1_jax.load(str(pretrained))
    (run,) = json.loads((tmp_path / "out/results.json").read_text())["runs"]
    (checkpoint,) = run["checkpoints"]
    assert list(checkpoint["tasks"]) == ["anaphor_agreement", "ellipsis"]
    for term, found in checkpoint["tasks"].items():
        lines = read_lines(tmp_path / f"out/predictions/run/12/{term}.jsonl")
        assert found["n"] == len(lines) == 24 and len(found["equal"]) == 2
        for name, paradigm in found["paradigms"].items():
            points = []
            own = [line for line in lines if line["subset"] == name]
            for row, line in zip(read_lines(blimp / f"{name}.jsonl"), own, strict=True):
                sentences = row["sentence_good"], row["sentence_bad"]
                good, bad = (float(model.log_probs(each).sum()) for each in sentences)
                assert line["id"] == row["pairID"]
                np.testing.assert_allclose(line["log_probs"], (good, bad), atol=1e-4)
                tie = row["pairID"] == "3"
                points.append(0.5 if tie else float(good > bad))
                assert line["prediction"] == ("good" if good >= bad or tie else "bad")
            assert paradigm == {
                "n": 12,
                "accuracy": pytest.approx(np.mean(points)),
                "standard_error": pytest.approx(np.std(points) / 12**0.5),
                "ties": 1,
            }


@pytest.mark.usefixtures("real_figures")
def test_tables_and_figures_are_written(score, pretrained_lstm, tmp_path):
    out = score(baseline_init_from=str(pretrained_lstm), step="all")
    table = (tmp_path / "out/results.md").read_text()
    assert table in out
    header, _, *lines = table.splitlines()[:5]
    names = "pretrained/folder (Transformer)", "lstm/folder (LSTM)"
    columns = " | ".join(f"{name}, step {step}" for name in names for step in (8, 12))
    assert header.startswith(f"| term | paradigms | pairs | {columns} | ")
    assert lines[0].startswith("| all paradigms | 4 | 48 | ")
    assert lines[1].startswith("| anaphor_agreement | 2 | 24 | ")
    # The published means of two paradigms of ellipsis: 23.4 and 50.4, ..
    assert lines[2].startswith("| ellipsis | 2 | 24 | ")
    assert lines[2].endswith(" | 36.9 | 67.6 | 77.2 | 89.3 | 85.0 |")
    assert "| field |" in table and "| ellipsis_n_bar_1 | 12 |" in table
    assert (tmp_path / "out/plots/minimal_pairs.png").stat().st_size > 20_000


def test_predictions_can_be_joined_with_the_items(run_own_pairs, run_job, tmp_path):
    """By the number of the row, though they are sorted by paradigm and drawn.

    No scores are published of the user's own pairs, which may be moved.
    """
    rng = random.Random(2)
    rows = [
        {"options": [phrase(rng, 5) for _ in range(2 + n % 2)], "kind": "ba"[n % 2]}
        for n in range(12)
    ]
    how = {"data__sentences": ("options",), "data__paradigm": "kind"}
    how["data__max_pairs"] = 4
    run_own_pairs("minimal_pairs", rows, **how)
    found = read_lines(tmp_path / "out/predictions/run/12/pairs.jsonl")
    assert [each["subset"] for each in found] == ["a"] * 4 + ["b"] * 4
    for each in found:
        row = rows[int(each["id"])]
        names = ("first", "second", "third")
        texts = dict(zip(names, row["options"], strict=False))
        assert each["text"] == {"context": "", **texts}
        assert row["kind"] == each["subset"] and each["prediction"] in texts
        assert len(each["log_probs"]) == len(texts)
    assert "GPT-2" not in (tmp_path / "out/results.md").read_text()
    (tmp_path / "moved").mkdir()
    moved = (tmp_path / "pairs.jsonl").rename(tmp_path / "moved/pairs.jsonl")
    how |= {"data__source": "files", "data__files": str(moved)}
    said = run_job("minimal_pairs", "custom", **how)
    assert "Nothing to do: 1 of 1 scores are at hand" in said


def test_paradigms_of_one_name_in_two_files_are_told_apart(run_job, tmp_path):
    row = {"sentence_good": "ab cd", "sentence_bad": "cd ab", "kind": "same"}
    for name in ("one", "two"):
        write_lines(tmp_path / f"{name}.jsonl", [row])
    files = f"{tmp_path}/one.jsonl,{tmp_path}/two.jsonl"
    own = {"data__files": files, "data__source": "files", "data__paradigm": "kind"}
    run_job("minimal_pairs", "custom", **own)
    table = (tmp_path / "out/results.md").read_text()
    assert "\n| same (one) | 1 |" in table and "\n| same (two) | 1 |" in table


def test_missing_files_are_refused_before_any_work(score, tmp_path, monkeypatch):
    """Of pairs no term is left out, unlike a zero-shot task."""
    monkeypatch.setattr(step_scores.devices, "configure", pytest.fail)
    with pytest.raises(MissingData, match=r"adjunct_island\.jsonl does not exist"):
        score("ellipsis+island_effects")
    assert not (tmp_path / "out").exists()


def test_pairs_are_read_from_the_hub(score, blimp, tmp_path, monkeypatch):
    """The same pairs as in the files of BLiMP's repository, downloaded together."""
    for path in blimp.glob("*.jsonl"):
        rows = [{**row, "pair_id": int(row.pop("pairID"))} for row in read_lines(path)]
        address = f"nyu-mll/blimp/{path.stem}/train-*.parquet"
        write_hub_file(address, rows, tmp_path / "data")
    of_hub = {"data__source": "hub", "data__dir": ""}
    with serve_hub(tmp_path / "pushed") as server:
        use_hub(server, tmp_path, monkeypatch)
        folder = tmp_path / "data" / "nyu-mll" / "blimp"
        server.datasets["nyu-mll/blimp"] = {"main": folder}
        score(to="of-hub", **of_hub)
        score(to="files")
        for name in ("anaphor_agreement", "ellipsis"):
            file = f"predictions/run/12/{name}.jsonl"
            expected = (tmp_path / "files" / file).read_text()
            assert (tmp_path / "of-hub" / file).read_text() == expected
        missing = r"BLiMP at 'hf://.*/adjunct_island/train"
        with pytest.raises(MissingData, match=missing):
            score("island_effects", to="none", **of_hub)
    assert not (tmp_path / "none").exists()
