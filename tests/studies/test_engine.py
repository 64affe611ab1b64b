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


def test_every_task_is_scored_at_every_step_of_every_run(runs, tmp_path, capsys):
    done, scores = score_all(tmp_path / "out", runs, most=4)
    assert not done and (scores.num_kept, scores.total) == (4, 6)
    done, scores = score_all(tmp_path / "out", runs)
    assert done and scores.num_kept == 6
    assert scores.of_run(runs[0]) == [
        {"step": step, "tasks": {"few": {"sum": 3 + step}, "many": {"sum": 12 + step}}}
        for step in (2, 4)
    ]
    (baseline,) = scores.of_run(runs[1])
    assert baseline == {"step": 3, "tasks": {"few": {"sum": 6}, "many": {"sum": 15}}}
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
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


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("scores/run/2/few.json", {"scores": {"sum": 6}}, "is missing, changed or dam"),
        ("scores/run/2/few.json", "{", "cannot be read"),
        ("predictions/run/2/few.jsonl", "{}", "is missing, changed or damaged"),
        ("predictions/run/2/few.jsonl", None, "is missing, changed or damaged"),
    ],
)
def test_a_kept_score_that_was_changed_is_computed_again(
    runs, tmp_path, capsys, name, content, said
):
    _, scores = score_all(tmp_path / "out", runs)
    before = contents(tmp_path / "out")
    file = tmp_path / "out" / name
    if isinstance(content, dict):
        content = json.dumps({**json.loads(file.read_text()), **content})
    file.unlink()
    if content:
        file.write_text(content)
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
    assert ("Step 4 of" in "".join(capsys.readouterr())) == (at != "scored")
