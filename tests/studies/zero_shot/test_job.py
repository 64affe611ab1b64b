"""The zero-shot job, and what the engine of all scored studies does for its user."""

import dataclasses
import json
import os
import random
import shutil
import signal

import pytest
from broken_copies import edit_metadata
from etils import epath
from tiny_tasks import read_lines, write_task

from gpt1_jax.data.sentencepiece_tokenizer import SentencePieceTokenizer
from gpt1_jax.errors import UserError
from gpt1_jax.inference.scoring import Scorer
from gpt1_jax.parallel import devices
from gpt1_jax.runs import lock
from gpt1_jax.runs.checkpoint_files import saved_steps
from gpt1_jax.runs.open import open_run
from gpt1_jax.runs.signals import Stopped, StopSignal
from gpt1_jax.studies import engine as step_scores
from gpt1_jax.studies.zero_shot import scores as scores_module

TASKS = "cola+sst2+dpr"


@pytest.fixture(scope="module")
def data_dir(made_once):
    """Made-up examples of two tasks, and of DPR to train on."""

    def make(folder):
        for task in ("cola", "sst2"):
            write_task(folder, task, train=12, dev=6)
        write_task(folder, "dpr", train=4, dev=0)

    return made_once("zero-shot-tasks", make)


@pytest.fixture(scope="module")
def other(pretrained, made_once):
    """A run with a tokenizer of its own, saved at 4, 8 and 12; 4 kept.

    Its parameters are those of `pretrained`, where texts are other tokens.
    """

    def make(folder):
        shutil.copytree(pretrained, folder)
        rng = random.Random(1)
        words = ["".join(rng.choices("abcdefghij", k=5)) for _ in range(800)]
        tokenizer = SentencePieceTokenizer.train([" ".join(words)], 512)
        shutil.rmtree(folder / "tokenizer")
        tokenizer.save(epath.Path(folder / "tokenizer"))
        shutil.copytree(folder / "checkpoints/8", folder / "checkpoints/4")
        for step in (4, 8, 12):
            more = {"milestone": {"amount": 4, "unit": "steps"}} if step == 4 else {}
            changes = {"tokenizer": tokenizer.digest, **more}
            edit_metadata(folder, step, lambda values, c=changes: values.update(c))

    return made_once("zero-shot-other", make)


@pytest.fixture
def ask(run_job, data_dir):
    """A function from values to what the job prints; its folder is `to`."""

    def run(tasks=TASKS, **values):
        data = {"data__source": "jsonl", "data__dir": str(data_dir)}
        return run_job("zero_shot", tasks, **{**data, **values})

    return run


@pytest.fixture
def scored(monkeypatch):
    """The number of pairs of each call of the scorer."""
    calls = []
    call = Scorer.__call__

    def counting(self, params, pairs):
        calls.append(len(pairs))
        return call(self, params, pairs)

    monkeypatch.setattr(Scorer, "__call__", counting)
    return calls


def stop_after(patch, count):
    """Makes the job believe that a signal came while a task was scored."""
    asked = iter(range(count))
    patch.setattr(StopSignal, "received", lambda self: next(asked, None) is None)


def results(tmp_path, folder="out"):
    return json.loads((tmp_path / folder / "results.json").read_text())


def checkpoints(tmp_path, folder="out"):
    """Those of the only run."""
    (run,) = results(tmp_path, folder)["runs"]
    return run["checkpoints"]


def contents(folder):
    """All files below a folder but pictures, which hold no more than the rest."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in files
        if path.suffix != ".png"
    }


@pytest.mark.usefixtures("real_figures")
def test_all_kept_checkpoints_are_scored(ask, pretrained, tmp_path):
    out = ask(step="all")
    found, steps = results(tmp_path), saved_steps(epath.Path(pretrained))
    (run,) = found["runs"]
    assert (run["init_from"], run["kind"]) == (str(pretrained), "transformer")
    assert [each["step"] for each in run["checkpoints"]] == steps and steps[1:]
    for checkpoint in run["checkpoints"]:
        cola, sst2, dpr = (checkpoint["tasks"][t] for t in TASKS.split("+"))
        assert cola.keys() >= {"matthews", "accuracy", "auc", "threshold", "relative"}
        assert sst2.keys() >= {"accuracy", "standard_error", "chance", "best_before"}
        assert (dpr["split"], dpr["n"]) == ("train", 4)
        name = f"run/{checkpoint['step']}/sst2"
        predictions = read_lines(tmp_path / "out/predictions" / f"{name}.jsonl")
        right = [each["prediction"] == each["label"] for each in predictions]
        assert sum(right) / 6 == pytest.approx(sst2["accuracy"])
        for each in predictions:
            negative, positive = each["log_probs"]
            assert (each["prediction"] == "positive") == (negative < positive)
        piece = json.loads((tmp_path / "out/scores" / f"{name}.json").read_text())
        assert piece["scores"].items() <= sst2.items()
    assert found["config"]["step"] == "all" and "jax" in found["versions"]
    table = (tmp_path / "out" / "results.md").read_text()
    assert table in out and f"step {steps[0]:,}" in table
    picture = (tmp_path / "out" / "plots" / "zero_shot.png").read_bytes()
    assert picture.startswith(b"\x89PNG")


def test_the_type_is_of_the_model_and_the_seed_of_bootstrapped_errors(ask, tmp_path):
    def ask_cola(to, **values):
        ask("cola", to=to, **values)
        return checkpoints(tmp_path, to)[0]["tasks"]["cola"]

    own, exact = ask_cola("own"), ask_cola("exact", dtype="float32")
    rough, other = ask_cola("rough", dtype="bfloat16"), ask_cola("other", seed=1)
    assert own == exact and own["threshold"] != rough["threshold"]
    differing = {key for key in own if own[key] != other[key]}
    assert "auc_standard_error" in differing
    assert all(key.endswith("standard_error") for key in differing)


def test_a_baseline_is_scored_beside_the_run(ask, pretrained, other, tmp_path):
    """Each as if it were alone, though texts become other tokens for it.

    A task without data is left out of both, which is said once.
    """
    out = ask(f"{TASKS}+copa", step="all", baseline_init_from=str(other))
    assert out.count("Skipping COPA: There is no dev data of COPA") == 1
    runs = results(tmp_path)["runs"]
    assert [run["init_from"] for run in runs] == [str(pretrained), str(other)]
    steps = [[each["step"] for each in run["checkpoints"]] for run in runs]
    assert steps == [[8, 12], [4, 8, 12]]
    assert "run       step       8  cola" in out and "baseline  step       4" in out
    table = (tmp_path / "out/results.md").read_text()
    header = table.splitlines()[0]
    assert header.count("folder, step 8") == 2 and header.count("step 12 |") == 2
    for run, folder in zip(runs, (pretrained, other), strict=True):
        of_folder = {"init_from": str(folder), "to": folder.parent.name}
        ask(step="all", **of_folder)
        assert checkpoints(tmp_path, folder.parent.name) == run["checkpoints"]
    kept = {"init_from": str(other), "step": "milestones", "batch_tokens": 64}
    ask("sst2", to="milestones", **kept)
    found = {
        each["step"]: each["tasks"] for each in checkpoints(tmp_path, "milestones")
    }
    whole = {each["step"]: each["tasks"] for each in runs[1]["checkpoints"]}
    assert found == {n: {"sst2": whole[n]["sst2"]} for n in (4, 12)}  # and the newest
    run = open_run(str(pretrained))  # which reads otherwise with another context
    shorter = run._replace(model=dataclasses.replace(run.model, max_seq_len=36))
    assert step_scores.read_alike(run, run) and not step_scores.read_alike(run, shorter)


def test_resumed_equals_uninterrupted_bit_for_bit(
    ask, other, tmp_path, monkeypatch, scored
):
    """Stopped between pieces of one step, of two steps and of two runs."""
    both = {"tasks": "cola+dpr", "step": "all", "baseline_init_from": str(other)}
    ask(to="whole", **both)
    pairs = scored.copy()
    scored.clear()
    for count in (1, 1, 2):
        with monkeypatch.context() as patch:
            stop_after(patch, count)
            with pytest.raises(Stopped, match="of 10 scores are saved"):
                ask(**both)
        assert not (tmp_path / "out/results.json").exists()
    out = ask(**both)
    assert "4 of 10 scores are at hand" in out and scored == pairs
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_only_what_is_new_is_scored_and_opened(
    ask, pretrained, tmp_path, monkeypatch, scored
):
    opened = []

    def opening(folder, step):
        opened.append(step)
        return open_run(folder, step)

    monkeypatch.setattr("gpt1_jax.runs.saved_steps.open_run", opening)
    run = shutil.copytree(pretrained, tmp_path / "run")
    later = (run / "checkpoints/12").rename(tmp_path / "later")
    ask(init_from=str(run), step="all")
    assert opened == [8] and len(scored) == 3
    later.rename(run / "checkpoints/12")
    out = ask(init_from=str(run), step="all")
    assert opened == [8, 8, 12] and len(scored) == 6
    assert [each["step"] for each in checkpoints(tmp_path)] == [8, 12]
    before = contents(tmp_path / "out")
    again = ask(init_from=str(run), step="all")
    assert opened == [8, 8, 12, 8] and "Nothing to do: 6 of 6 scores" in again
    assert contents(tmp_path / "out") == before
    assert out.splitlines()[-1] == again.splitlines()[-1]


def test_ctrl_c_is_honoured_after_the_piece_at_hand(ask, tmp_path, monkeypatch, scored):
    score = scores_module.score_answers

    def signalled(answers, *arguments):
        if answers.task.task.name == "sst2":
            os.kill(os.getpid(), signal.SIGINT)
        return score(answers, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(scores_module, "score_answers", signalled)
        with pytest.raises(Stopped, match="2 of 3 scores are saved"):
            ask()
    left = {path.name for path in (tmp_path / "out/scores/run/12").iterdir()}
    assert left == {"cola.json", "sst2.json"}
    assert not (tmp_path / "out/run.lock").exists()
    ask()
    assert len(scored) == 3


def test_so_many_tokens_as_no_memory_holds_are_refused_before_any_score(
    ask, tmp_path, monkeypatch, scored
):
    ask("sst2", batch_tokens=10**12)  # no more than the task has
    monkeypatch.setattr(devices, "memory_bytes", lambda: 10_000)
    scored.clear()
    with pytest.raises(UserError, match=r"config\.batch_tokens=1000000000000 takes"):
        ask("cola", to="more", batch_tokens=10**12)
    assert scored == [] and not (tmp_path / "more").exists()


def test_the_language_model_of_a_fine_tuned_run_is_asked(ask, finetuned, tmp_path):
    out = ask("sst2", init_from=str(finetuned))
    assert "is fine-tuned; its language model answers" in out
    assert checkpoints(tmp_path)[0]["tasks"]["sst2"]["n"] == 6


def test_folders_of_something_else_or_in_use_are_left_alone(ask, pretrained, tmp_path):
    ask("sst2")
    shutil.copytree(pretrained, tmp_path / "trained")
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "results.md").write_text("a")
    before = contents(tmp_path)
    with pytest.raises(UserError, match=r"configuration: config.seed is 1, saved 0"):
        ask("sst2", seed=1)
    with pytest.raises(UserError, match="job 'pretrain', not 'zero_shot'"):
        ask(to="trained")
    with pytest.raises(FileExistsError, match=r"holds results\.md, and nothing"):
        ask(to="used")
    with (
        lock.owned(epath.Path(tmp_path / "out")),
        pytest.raises(lock.FolderInUse, match="is in use by this same process"),
    ):
        ask("sst2")
    assert contents(tmp_path) == before


def test_another_process_may_have_begun_meanwhile(ask, tmp_path, monkeypatch):
    """With another configuration, while this one read its data."""

    def begin_another(*arguments):
        monkeypatch.undo()
        ask(tasks="sst2", seed=1)

    monkeypatch.setattr(step_scores.devices, "configure", begin_another)
    with pytest.raises(ValueError, match=r"config.seed is 0, saved 1"):
        ask(tasks="sst2")
    assert results(tmp_path)["config"]["seed"] == 1


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"init_from": "no/run"}, r"no/run is not a run folder"),
        ({"step": "7"}, r"no checkpoint of step 7"),
        ({"tasks": "sst3"}, r"no zero-shot task 'sst3'"),
        ({"tasks": "copa+race"}, r"of any of the tasks"),
        # of a baseline; the run itself has what is asked for
        ({"baseline_init_from": "no/run"}, r"no/run is not a run folder"),
        ({"init_from": "other", "step": "milestones"}, r"holds no milestone .*8, 12\]"),
        ({"init_from": "other", "step": "4"}, r"no checkpoint of step 4; .* \[8, 12\]"),
    ],
    ids=str,
)
def test_missing_runs_steps_and_data_are_named(
    ask, pretrained, other, tmp_path, values, message
):
    if values.get("init_from") == "other":
        both = {"init_from": str(other), "baseline_init_from": str(pretrained)}
        values = {**values, **both}
    with pytest.raises((UserError, FileNotFoundError), match=message) as error:
        ask(**values)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()
