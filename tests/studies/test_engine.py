"""Scores of steps are kept one by one: any score, of any examples, of any run."""

import json
import re
from typing import NamedTuple

import numpy as np
import pytest
from etils import epath

from gpt1_jax.errors import UserError
from gpt1_jax.report.studies import Study
from gpt1_jax.runs import lock
from gpt1_jax.runs import saved_steps as steps_module
from gpt1_jax.runs.checkpoint_files import NoCheckpoint
from gpt1_jax.runs.open import TrainedRun
from gpt1_jax.studies.engine import KeptScores, ScoredRun


class Numbers(NamedTuple):
    """Examples whose score is their sum and the step."""

    values: tuple[int, ...]

    def content_digest(self):
        return str(self.values)


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """A run saved at steps 2 and 4, and a baseline saved at step 3."""
    made = []
    for name, steps in (("run", [2, 4]), ("baseline", [3])):
        folder = epath.Path(tmp_path / name)
        for step in steps:
            (folder / f"checkpoints/{step}").mkdir(parents=True)
            (folder / f"checkpoints/{step}/manifest.json").write_text(f"{name} {step}")
        params = {"step": np.asarray(steps[0])}
        opened = TrainedRun(folder, None, None, None, steps[0], "as asked for", params)
        tasks = {"few": Numbers((1, 2)), "many": Numbers((3, 4, 5))}
        made.append(ScoredRun(name, str(folder), opened, steps, tasks))

    def open_run(folder, step):
        return made[0].opened._replace(step=step, params={"step": np.asarray(step)})

    monkeypatch.setattr("gpt1_jax.runs.saved_steps.open_run", open_run)
    return made


def score(config, examples, scorer, params):
    """By a scorer that is the run's folder."""
    predictions = [{"values": examples.values, "by": scorer}]
    return {"sum": sum(examples.values) + int(params["step"])}, predictions


def rows(task, scores):
    yield {"score": scores["sum"], "error": 0.5}


def score_all(folder, runs, most=99, by=score):
    """Scores what is missing, but at most so many; whether all is scored."""
    left = iter(range(most))
    scores = KeptScores(epath.Path(folder), runs, Study("sums", by, rows, str))
    with lock.owned(epath.Path(folder)):
        done = scores.score_missing(
            None, lambda run: run.folder.name, lambda: next(left, None) is None
        )
    return done, scores


@pytest.mark.parametrize("stops", [[], [3, 1, 1]])
def test_every_task_is_scored_at_every_step_however_often_it_stops(
    runs, tmp_path, capsys, stops
):
    kept = 0
    for most in stops:
        done, scores = score_all(tmp_path / "out", runs, most)
        kept += most
        assert not done and (scores.num_kept, scores.total) == (kept, 6)
    done, scores = score_all(tmp_path / "out", runs)
    assert done and scores.num_kept == 6
    assert scores.of_run(runs[0]) == [
        {"step": step, "tasks": {"few": {"sum": 3 + step}, "many": {"sum": 12 + step}}}
        for step in (2, 4)
    ]
    (baseline,) = scores.of_run(runs[1])
    assert baseline == {"step": 3, "tasks": {"few": {"sum": 6}, "many": {"sum": 15}}}
    out = capsys.readouterr().out
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "run step 4 many 16.00 ± 0.50" in lines
    assert lines.count("baseline step 3 few 6.00 ± 0.50") == 1
    written = [{"values": [3, 4, 5], "by": "run"}]
    assert scores.predictions(runs[0], 4, "many") == written


def contents(folder):
    """All files below a folder."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder): path.read_bytes() for path in files}


def test_scores_of_something_else_are_refused(runs, tmp_path):
    score_all(tmp_path / "out", runs)
    before = contents(tmp_path / "out")
    other = {**runs[0].tasks, "few": Numbers((7,))}
    changed = ScoredRun("run", "", runs[0].opened, [2], other)
    said = r"run/2/few\.json holds .* set of examples .* delete it"
    with pytest.raises(UserError, match=said):
        score_all(tmp_path / "out", [changed])
    (runs[0].opened.folder / "checkpoints/4/manifest.json").write_text("another")
    with pytest.raises(UserError, match=r"run/4/few\.json holds .* another checkpoint"):
        score_all(tmp_path / "out", runs)
    assert contents(tmp_path / "out") == before


def test_an_interrupt_loses_the_score_at_hand_only(runs, tmp_path):
    scored = []

    def interrupted(config, examples, scorer, params):
        if len(scored) == 3:
            raise KeyboardInterrupt
        scored.append(examples)
        return score(config, examples, scorer, params)

    with pytest.raises(KeyboardInterrupt):
        score_all(tmp_path / "out", runs, by=interrupted)
    done, scores = score_all(tmp_path / "out", runs, most=3)
    assert done and scores.num_kept == 6


@pytest.mark.parametrize(
    "what", ["a score", "half a score", "predictions", "lost predictions"]
)
def test_a_kept_score_that_was_changed_is_computed_again(runs, tmp_path, capsys, what):
    _, scores = score_all(tmp_path / "out", runs)
    before = contents(tmp_path / "out")
    score_file = tmp_path / "out/scores/run/2/few.json"
    predictions = tmp_path / "out/predictions/run/2/few.jsonl"
    file, said = predictions, "is missing, changed or damaged; the same command"
    if what == "a score":
        file, record = score_file, json.loads(score_file.read_text())
        file.write_text(json.dumps({**record, "scores": {"sum": 6}}))
    elif what == "half a score":
        file, said = score_file, "cannot be read"
        file.write_text("{")
    elif what == "predictions":
        file.write_text("{}")
    else:
        file.unlink()
    said = rf"{re.escape(file.name)} {said}"
    with pytest.raises(UserError, match=said):
        scores.of_run(runs[0])
    done, _ = score_all(tmp_path / "out", runs)
    assert re.search(rf"WARNING: .*{said}", capsys.readouterr().out)
    assert done and contents(tmp_path / "out") == before


@pytest.mark.parametrize("at", ["listed", "opened", "scored"])
def test_a_step_that_the_training_deletes_is_left_out(
    runs, tmp_path, capsys, monkeypatch, at
):
    """Unless it was open: what was scored before it was deleted is kept."""
    checkpoint = runs[0].opened.folder / "checkpoints/4"
    opened = steps_module.open_run

    def open_deleted(folder, step):
        if step == 4 and at != "scored":
            raise NoCheckpoint("no step 4")
        return opened(folder, step)

    def score_and_delete(config, examples, scorer, params):
        if params["step"] == 4 and checkpoint.exists():
            checkpoint.rmtree()
        return score(config, examples, scorer, params)

    if at == "listed":
        score_all(tmp_path / "out", runs)
        checkpoint.rmtree()
    monkeypatch.setattr(steps_module, "open_run", open_deleted)
    done, scores = score_all(tmp_path / "out", runs, by=score_and_delete)
    steps = [each["step"] for each in scores.of_run(runs[0])]
    assert done and steps == ([2, 4] if at == "scored" else [2])
    assert scores.num_kept == scores.total == (6 if at == "scored" else 4)
    said = "Step 4 of" in "".join(capsys.readouterr())
    assert said == (at != "scored")
    if at == "scored":
        kept = json.loads((tmp_path / "out/scores/run/4/many.json").read_text())
        assert kept["checkpoint"]
