"""The minimal-pairs job, as its user runs it; what it shares with others is theirs."""

import json
import random

import numpy as np
import pytest
from hub_server import serve_hub, use_hub
from made_up_tasks import write_hub_file
from tiny_run import load_config
from tiny_tasks import read_lines, write_lines

import gpt1_jax
from gpt1_jax import config as config_lib
from gpt1_jax.errors import MissingData, UserError
from gpt1_jax.report.study_scores import long_table
from gpt1_jax.runs.signals import Stopped, StopSignal
from gpt1_jax.studies import engine as step_scores
from gpt1_jax.studies.pairs import select_pairs
from gpt1_jax.studies.zero_shot import job as zero_shot
from gpt1_jax.studies.zero_shot.pairs import STUDY

TERMS = ("ellipsis", "anaphor_agreement")


def sentence(rng):
    """Words as in the texts that the tiny runs are trained on."""
    words = ("".join(rng.choices("abcdefghij", k=rng.randint(2, 7))) for _ in range(5))
    return " ".join(words)


@pytest.fixture(scope="module")
def blimp(made_once):
    """Twelve made-up pairs of each paradigm of two terms; three are equal tokens."""

    def make(folder):
        rng = random.Random(0)
        data = config_lib.load(
            load_config(
                "+".join(TERMS), file="minimal_pairs", init_from="run"
            ).to_dict()
        ).data
        for task in select_pairs(TERMS, data):
            for name in task.task.published.files["test"]:
                rows = [
                    {
                        "sentence_good": (good := sentence(rng)),
                        "sentence_bad": f"{good} " if k == 3 else sentence(rng),
                        "pairID": str(k),
                    }
                    for k in range(12)
                ]
                write_lines(folder / f"{name}.jsonl", rows)

    return made_once("blimp", make)


@pytest.fixture
def score(pretrained, blimp, corpus_dir, tmp_path, capsys):
    """A function from values to what the job prints and writes."""

    def run(tasks="ellipsis+anaphor_agreement", folder=pretrained, to="out", **values):
        overrides = {
            "init_from": str(folder),
            "data.source": "official",
            "data.dir": str(blimp),
            "compilation_cache_dir": str(corpus_dir / "xla"),
            **values,
        }
        config = load_config(tasks, file="minimal_pairs", **overrides)
        zero_shot.run(config_lib.load(config.to_dict()), str(tmp_path / to))
        return capsys.readouterr().out

    return run


def results(folder):
    return json.loads((folder / "results.json").read_text())


def test_scores_are_those_of_the_notebook_model(score, pretrained, blimp, tmp_path):
    """Sentence by sentence, after a newline; a tie is half a point."""
    out = score()
    assert "4 items with sentences of equal tokens, which tie: " in out
    assert "ellipsis_n_bar_1 3" in out
    model = gpt1_jax.load(str(pretrained))
    (run,) = results(tmp_path / "out")["runs"]
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
                assert (line["log_probs"][0] == line["log_probs"][1]) == tie
                points.append(0.5 if tie else float(good > bad))
                assert line["prediction"] == ("good" if good >= bad or tie else "bad")
            assert paradigm == {
                "n": 12,
                "accuracy": pytest.approx(np.mean(points)),
                "standard_error": pytest.approx(np.std(points) / 12**0.5),
                "ties": 1,
            }


def test_tables_and_figures_are_written(score, pretrained_lstm, tmp_path):
    out = score(baseline_init_from=str(pretrained_lstm), step="all")
    table = (tmp_path / "out/results.md").read_text()
    assert table in out
    header, _, *lines = (line.split(" | ") for line in table.splitlines()[:5])
    assert header[:7] == [
        *("| term", "paradigms", "pairs"),
        *(
            "pretrained/folder (Transformer), step 8",
            "pretrained/folder (Transformer), step 12",
            "lstm/folder (LSTM), step 8",
            "lstm/folder (LSTM), step 12",
        ),
    ]
    assert [line[0] for line in lines] == [
        *("| all paradigms", "| anaphor_agreement", "| ellipsis"),
    ]
    assert lines[0][1:3] == ["4", "48"]
    # The published means of two paradigms of ellipsis: 23.4 and 50.4, ..
    assert lines[2][-5:] == ["36.9", "67.6", "77.2", "89.3", "85.0 |"]
    assert "| field |" in table and "| ellipsis_n_bar_1 | 12 |" in table
    assert (tmp_path / "out/plots/minimal_pairs.png").stat().st_size > 20_000
    score(to="one-step")
    assert (tmp_path / "one-step/plots/minimal_pairs.png").stat().st_size > 10_000


def test_names_of_runs_and_of_paradigms_are_escaped_once():
    """Also those of tasks and paradigms, which are the user's own."""
    values = {"n": 3, "accuracy": 0.5, "standard_error": 0.1, "ties": 0}
    tasks = {"<b>": {"n": 3, "paradigms": {"<i>": values}}}
    checkpoints = [{"step": 8, "tasks": tasks}]
    runs = [
        {"init_from": name, "kind": "lstm", "checkpoints": checkpoints}
        for name in ("a_b&c<i>x", "other")
    ]
    table = STUDY.table(long_table(runs, STUDY.rows), None)
    assert r"| a_b\&c\<i\>x, step 8 | other, step 8 |" in table
    assert r"| \<b\> | 1 | 3 |" in table and r"| \<i\> | 3 |" in table


def test_own_pairs_have_no_published_scores(score, tmp_path):
    rows = [{"options": ["ab cd", "cd", "ab"], "lead": "ef"}] * 2
    path = write_lines(tmp_path / "mine.jsonl", rows)
    own = {"data.files": str(path), "data.source": "files", "data.dir": ""}
    columns = {"data.sentences": ("options",), "data.context": "lead"}
    score("custom", **own, **columns)
    table = (tmp_path / "out/results.md").read_text()
    assert "GPT-2" not in table and "| mine | 1 | 2 |" in table
    (moved := tmp_path / "moved").mkdir()
    own["data.files"] = str(path.rename(moved / "mine.jsonl"))
    assert "Nothing to do: 1 of 1 scores are at hand" in score(
        "custom", **own, **columns
    )


def test_predictions_can_be_joined_with_the_items(score, tmp_path):
    """By the number of the row, though they are sorted by paradigm and drawn."""
    rng = random.Random(2)
    rows = [
        {"options": [sentence(rng) for _ in range(2 + n % 2)], "kind": "ba"[n % 2]}
        for n in range(12)
    ]
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n\n" for row in rows))
    own = {"data.files": str(path), "data.source": "files", "data.dir": ""}
    columns = {"data.sentences": ("options",), "data.paradigm": "kind"}
    score("custom", **own, **columns, **{"data.max_pairs": 4})
    (step,) = (tmp_path / "out/predictions/run").iterdir()
    found = read_lines(step / "mine.jsonl")
    assert [each["subset"] for each in found] == ["a"] * 4 + ["b"] * 4
    for each in found:
        row = rows[int(each["id"])]
        names = ("first", "second", "third")
        texts = dict(zip(names, row["options"], strict=False))
        assert each["text"] == {"context": "", **texts}
        assert row["kind"] == each["subset"] and each["prediction"] in texts
        assert len(each["log_probs"]) == len(texts)


def test_paradigms_of_one_name_in_two_files_are_told_apart(score, tmp_path):
    rng = random.Random(3)
    for name in ("one", "two"):
        rows = [
            {"sentence_good": sentence(rng), "sentence_bad": sentence(rng), "kind": k}
            for k in ("same", name)
        ]
        write_lines(tmp_path / f"{name}.jsonl", rows)
    files = f"{tmp_path}/one.jsonl,{tmp_path}/two.jsonl"
    own = {"data.files": files, "data.source": "files", "data.dir": ""}
    score("custom", **own, **{"data.paradigm": "kind"})
    table = (tmp_path / "out/results.md").read_text()
    for name in ("same (one)", "same (two)", "one", "two"):
        assert f"\n| {name} | 1 |" in table
    assert "sentences that tie share the point" in table


def test_long_items_are_counted(score, tmp_path):
    long = " ".join(["abcdefg"] * 60)
    row = {"sentence_good": long, "sentence_bad": f"{long} h"}
    path = write_lines(tmp_path / "long.jsonl", [row])
    own = {"data.files": str(path), "data.source": "files", "data.dir": ""}
    out = score("custom", **own)
    assert "long: 1 example of 1 longer than 40 tokens: read in windows" in out
    (run,) = results(tmp_path / "out")["runs"]
    assert run["checkpoints"][0]["tasks"]["long"]["num_long"] == 1


def test_resumed_equals_uninterrupted(score, tmp_path, monkeypatch):
    score(to="whole", step="all")
    with monkeypatch.context() as patch:
        asked = iter(range(3))
        patch.setattr(StopSignal, "received", lambda self: next(asked, None) is None)
        with pytest.raises(Stopped, match="3 of 4 scores are saved"):
            score(step="all")
    assert "3 of 4 scores are at hand" in score(step="all")
    for name in ("results.json", "results.md"):
        whole, resumed = (tmp_path / each / name for each in ("whole", "out"))
        assert whole.read_text() == resumed.read_text()


@pytest.mark.parametrize(
    ("tasks", "values", "problem"),
    [
        ("elipsis", {}, "no paradigm, term or field 'elipsis'"),
        ("ellipsis", {"step": "10"}, "has no checkpoint of step 10"),
        ("island_effects", {}, r"adjunct_island\.jsonl does not exist"),
        ("custom", {}, "does not go with config.data.source='official'"),
    ],
)
def test_bad_input_is_refused_before_any_work(
    score, tmp_path, monkeypatch, tasks, values, problem
):
    monkeypatch.setattr(step_scores.devices, "configure", pytest.fail)
    with pytest.raises((UserError, FileNotFoundError, ValueError), match=problem):
        score(tasks, **values)
    assert not (tmp_path / "out").exists()


def test_pairs_are_read_from_the_hub(score, blimp, tmp_path, monkeypatch):
    """The same pairs as in the files of BLiMP's repository, downloaded together."""
    for path in blimp.glob("*.jsonl"):
        rows = [{**row, "pair_id": int(row.pop("pairID"))} for row in read_lines(path)]
        address = f"nyu-mll/blimp/{path.stem}/train-*.parquet"
        write_hub_file(address, rows, tmp_path / "data")
    with serve_hub(tmp_path / "pushed") as server:
        use_hub(server, tmp_path, monkeypatch)
        folder = tmp_path / "data" / "nyu-mll" / "blimp"
        server.datasets["nyu-mll/blimp"] = {"main": folder}
        score(to="of-hub", **{"data.source": "hub", "data.dir": ""})
        score(to="files")
        runs = [results(tmp_path / each)["runs"] for each in ("of-hub", "files")]
        assert runs[0] == runs[1]
        predictions = "predictions/run/12/ellipsis.jsonl"
        read = [
            read_lines(tmp_path / each / predictions) for each in ("of-hub", "files")
        ]
        assert read[0] == read[1]
        with pytest.raises(
            MissingData, match=r"BLiMP at 'hf://.*/adjunct_island/train"
        ):
            score("island_effects", to="none", **{"data.source": "hub", "data.dir": ""})
    assert not (tmp_path / "none").exists()
