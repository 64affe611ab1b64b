"""The zero-shot job, as its user runs it."""

import dataclasses
import json
import os
import random
import re
import shutil
import signal

import pytest
from broken_copies import edit_metadata
from etils import epath
from tiny_run import load_config
from tiny_tasks import read_lines, write_task

from gpt1_jax import config as config_lib
from gpt1_jax.data import progress
from gpt1_jax.data.sentencepiece_tokenizer import SentencePieceTokenizer
from gpt1_jax.errors import MissingData, UserError
from gpt1_jax.inference.scoring import Scorer
from gpt1_jax.parallel import devices
from gpt1_jax.runs import lock
from gpt1_jax.runs.checkpoint_files import saved_steps
from gpt1_jax.runs.open import open_run
from gpt1_jax.runs.signals import Stopped, StopSignal
from gpt1_jax.studies import engine as step_scores
from gpt1_jax.studies.zero_shot import job as zero_shot
from gpt1_jax.studies.zero_shot import scores as scores_module
from gpt1_jax.tasks import uncertainty

TASKS = "cola+sst2+dpr"


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch):
    """Standard errors of CoLA take a second each, and are tested with the metrics."""
    monkeypatch.setattr(uncertainty, "_RESAMPLES", 10)


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
def ask(pretrained, data_dir, corpus_dir, tmp_path, capsys):
    """A function from values to what the job prints and writes."""

    def run(tasks=TASKS, folder=pretrained, to="out", **values):
        overrides = {
            "init_from": str(folder),
            "data.source": "jsonl",
            "data.dir": str(data_dir),
            "compilation_cache_dir": str(corpus_dir / "xla"),
            **values,
        }
        config = load_config(tasks, file="zero_shot", **overrides)
        zero_shot.run(config_lib.load(config.to_dict()), str(tmp_path / to))
        return capsys.readouterr().out

    return run


@pytest.fixture
def scored(monkeypatch):
    """Counts the pairs of each call of the scorer."""
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


def checkpoints(tmp_path):
    """Those of the only run."""
    (run,) = results(tmp_path)["runs"]
    return run["checkpoints"]


def contents(folder):
    """All files below a folder but pictures, which hold no more than the rest."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in files
        if path.suffix != ".png"
    }


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
        assert [
            each["log_probs"][0] < each["log_probs"][1] for each in predictions
        ] == [each["prediction"] == "positive" for each in predictions]
        piece = json.loads((tmp_path / "out/scores" / f"{name}.json").read_text())
        assert piece["scores"].items() <= sst2.items()
    assert found["config"]["step"] == "all" and "jax" in found["versions"]
    table = (tmp_path / "out" / "results.md").read_text()
    assert table in out and f"step {steps[0]:,}" in table
    assert (tmp_path / "out" / "plots" / "zero_shot.png").exists()
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert written == {".lock", "config.json", "predictions", "scores", "plots"} | {
        "results.json",
        "results.md",
    }


def test_each_step_is_scored_with_its_own_parameters(ask, tmp_path):
    ask(tasks="cola", step="all")
    together = checkpoints(tmp_path)
    assert together[0]["tasks"] != together[1]["tasks"]
    for checkpoint in together:
        step = str(checkpoint["step"])
        ask(tasks="cola", step=step, to=step)
        (run,) = results(tmp_path, step)["runs"]
        assert run["checkpoints"] == [checkpoint]


def test_the_newest_step_of_a_baseline_is_its_own(ask, other, tmp_path):
    """Though its number is that of the run's."""
    ask(tasks="cola", baseline_init_from=str(other))
    ask(tasks="cola", folder=other, to="alone")
    both, (alone,) = (results(tmp_path, name)["runs"] for name in ("out", "alone"))
    assert both[1]["checkpoints"] == alone["checkpoints"]
    assert both[0]["checkpoints"][0]["step"] == alone["checkpoints"][0]["step"] == 12
    assert both[0]["checkpoints"] != alone["checkpoints"]


def test_the_model_computes_in_the_type_that_is_asked_for(ask, tmp_path):
    found = []
    for dtype in ("", "float32", "bfloat16"):
        ask(tasks="cola", dtype=dtype, to=f"in-{dtype}")
        (run,) = results(tmp_path, f"in-{dtype}")["runs"]
        found.append(run["checkpoints"][0]["tasks"]["cola"]["threshold"])
    assert found[0] == found[1] != found[2]


def test_the_seed_is_of_the_bootstrapped_errors_alone(ask, tmp_path):
    found = []
    for seed in (0, 1):
        ask(tasks="cola", seed=seed, to=f"seed-{seed}")
        (run,) = results(tmp_path, f"seed-{seed}")["runs"]
        found.append(run["checkpoints"][0]["tasks"]["cola"])
    errors = [scores.pop("auc_standard_error") for scores in found]
    for scores in found:
        for key in ("standard_error", "relative_standard_error"):
            del scores[key]
    assert errors[0] != errors[1] and found[0] == found[1]


def test_a_baseline_is_scored_beside_the_run(ask, pretrained, other, tmp_path):
    """Each as if it were alone, though texts become other tokens for it."""
    out = ask(step="all", baseline_init_from=str(other))
    runs = results(tmp_path)["runs"]
    assert [run["init_from"] for run in runs] == [str(pretrained), str(other)]
    steps = [[each["step"] for each in run["checkpoints"]] for run in runs]
    assert steps == [[8, 12], [4, 8, 12]]
    assert "run       step       8  cola" in out and "baseline  step       4" in out
    assert (tmp_path / "out/scores/baseline/4/dpr.json").exists()
    table = (tmp_path / "out/results.md").read_text()
    header = table.splitlines()[0]
    assert header.count("folder, step 8") == 2 and header.count("step 12 |") == 2
    for run, folder in zip(runs, (pretrained, other), strict=True):
        ask(step="all", folder=folder, to=folder.parent.name)
        (alone,) = results(tmp_path, folder.parent.name)["runs"]
        assert alone["checkpoints"] == run["checkpoints"]


def test_names_of_folders_are_escaped_in_the_table_and_not_in_the_figure(
    ask, pretrained, other, tmp_path, monkeypatch
):
    drawn = []
    monkeypatch.setattr(
        step_scores, "save_figure", lambda draw, *to: drawn.append(draw()) or to[0]
    )
    folder = tmp_path / "a_b&c<i>x"
    folder.symlink_to(pretrained)
    out = ask(tasks="sst2", folder=folder, baseline_init_from=str(other))
    table = (tmp_path / "out/results.md").read_text()
    assert r"| a_b\&c\<i\>x, step 12 |" in table and table in out
    (run, _) = results(tmp_path)["runs"]
    assert run["init_from"] == str(folder)
    ((legend,),) = (figure.legends for figure in drawn)
    assert legend.get_texts()[0].get_text() == "a_b&c<i>x, step 12"


def test_milestones_and_the_newest_step_may_be_asked_for(ask, other, tmp_path):
    ask(folder=other, tasks="sst2", step="milestones")
    assert [each["step"] for each in checkpoints(tmp_path)] == [4, 12]


def test_what_is_missing_is_said_once_for_both_runs(ask, other, tmp_path):
    out = ask(tasks="sst2+copa", baseline_init_from=str(other))
    assert out.count("Skipping COPA") == 1
    for run in results(tmp_path)["runs"]:
        assert list(run["checkpoints"][0]["tasks"]) == ["sst2"]


def test_runs_read_alike_with_the_same_tokenizer_and_context(pretrained, other):
    run, another = open_run(str(pretrained)), open_run(str(other))
    assert step_scores.read_alike(run, run._replace(params={}, step=3))
    shorter = dataclasses.replace(run.model, max_seq_len=36)
    for changed in (
        run._replace(tokenizer=another.tokenizer),
        run._replace(model=shorter),
    ):
        assert not step_scores.read_alike(run, changed)


# --- task by task -----------------------------------------------------------------


def test_resumed_equals_uninterrupted_bit_for_bit(ask, other, tmp_path, monkeypatch):
    """Stopped between pieces of one step, of two steps and of two runs."""
    both = {"tasks": "cola+dpr", "step": "all", "baseline_init_from": str(other)}
    ask(to="whole", **both)
    for count in (1, 1, 2):
        with monkeypatch.context() as patch:
            stop_after(patch, count)
            with pytest.raises(Stopped, match="of 10 scores are saved"):
                ask(**both)
        assert not (tmp_path / "out/results.json").exists()
    out = ask(**both)
    assert "4 of 10 scores are at hand" in out
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_finished_pieces_are_not_repeated(ask, tmp_path, monkeypatch, scored):
    ask(step="all", to="whole")
    pairs = scored.copy()
    assert len(pairs) == 6
    scored.clear()
    with monkeypatch.context() as patch:
        stop_after(patch, 4)
        with pytest.raises(Stopped, match=r"stopped by a signal; 4 of 6 scores"):
            ask(step="all")
    assert scored == pairs[:4]
    ask(step="all")
    assert scored == pairs


def test_each_step_is_opened_once_and_none_without_need(ask, tmp_path, monkeypatch):
    opened = []

    def opening(folder, step):
        opened.append(step)
        return open_run(folder, step)

    monkeypatch.setattr("gpt1_jax.runs.saved_steps.open_run", opening)
    out = ask(step="all")
    assert opened == [8, 12]
    before = contents(tmp_path / "out")
    again = ask(step="all")
    assert opened == [8, 12, 8] and "6 of 6 scores are at hand" in again
    assert contents(tmp_path / "out") == before
    assert out.splitlines()[-1] == again.splitlines()[-1]


def test_steps_that_are_new_are_added(ask, pretrained, tmp_path, scored):
    run = shutil.copytree(pretrained, tmp_path / "run")
    (run / "checkpoints/12").rename(tmp_path / "later")
    ask(folder=run, step="all")
    assert [each["step"] for each in checkpoints(tmp_path)] == [8] and len(scored) == 3
    (tmp_path / "later").rename(run / "checkpoints/12")
    ask(folder=run, step="all")
    assert [each["step"] for each in checkpoints(tmp_path)] == [8, 12]
    assert len(scored) == 6


def test_an_interrupt_within_a_piece_loses_that_piece_only(
    ask, tmp_path, monkeypatch, scored
):
    score = scores_module.score_answers

    def interrupted(answers, *arguments):
        if answers.task.task.name == "dpr":
            raise KeyboardInterrupt
        return score(answers, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(scores_module, "score_answers", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ask()
    left = {path.name for path in (tmp_path / "out/scores/run/12").iterdir()}
    assert left == {"cola.json", "sst2.json"} and len(scored) == 2
    ask()
    assert len(scored) == 3


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


def test_the_bar_counts_pieces_and_what_is_at_hand(ask, monkeypatch):
    bars = []

    class Shown(progress.Bar):
        def __init__(self, *arguments, **values):
            super().__init__(*arguments, **values)
            bars.append(self)

    monkeypatch.setattr(step_scores, "Bar", Shown)
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        with pytest.raises(Stopped):
            ask()
    ask()
    totals = [(bar.total, bar.initial, bar.n) for bar in bars]
    assert totals == [(3, 0, 2), (3, 2, 3)]


def test_what_does_not_change_scores_may_change(ask, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        stop_after(patch, 1)
        with pytest.raises(Stopped):
            ask()
    batch_tokens, scorer = [], step_scores.Scorer

    def recording(*arguments):
        batch_tokens.append(arguments[-1])
        return scorer(*arguments)

    monkeypatch.setattr(step_scores, "Scorer", recording)
    ask(batch_tokens=64, compilation_cache_dir=str(tmp_path / "xla"))
    assert len(checkpoints(tmp_path)[0]["tasks"]) == 3 and set(batch_tokens) == {64}


def test_scores_do_not_depend_on_the_batch_or_on_other_tasks(ask, tmp_path):
    ask(step="best")
    first = checkpoints(tmp_path)[0]
    (tmp_path / "out").rename(tmp_path / "before")
    ask(tasks="sst2", step=str(first["step"]), batch_tokens=64)
    second = checkpoints(tmp_path)[0]
    assert second["tasks"]["sst2"] == first["tasks"]["sst2"]


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
    out = ask(folder=finetuned, tasks="sst2")
    assert "is fine-tuned; its language model answers" in out
    assert checkpoints(tmp_path)[0]["tasks"]["sst2"]["n"] == 6


def test_tasks_without_data_are_left_out_and_named(ask, tmp_path):
    out = ask(tasks="sst2+copa")
    assert "Skipping COPA: There is no dev data of COPA" in out
    assert list(checkpoints(tmp_path)[0]["tasks"]) == ["sst2"]


def test_cut_texts_are_counted(ask, tmp_path, pretrained):
    write_task(tmp_path, "race", train=0, dev=2)
    path = tmp_path / "race" / "dev.jsonl"
    path.write_text(
        path.read_text().replace('"article": "', '"article": "' + "a " * 40)
    )
    out = ask(tasks="race", **{"data.dir": str(tmp_path)})
    assert "RACE: 2 examples of 2 longer than 40 tokens: cut." in out
    assert checkpoints(tmp_path)[0]["tasks"]["race"]["num_cut"] == 2


# --- what is refused ------------------------------------------------------------------


def test_a_used_folder_is_left_alone(ask, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "results.md").write_text("a")
    with pytest.raises(FileExistsError, match=r"holds results\.md, and nothing"):
        ask()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["results.md"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"seed": 1}, r"another configuration: config.seed is 1, saved 0"),
        ({"step": "all"}, r"config.step is 'all', saved 'default'"),
        ({"dtype": "bfloat16"}, r"config.dtype is 'bfloat16', saved ''"),
        ({"data.max_examples": 3}, r"config.data.max_examples is 3, saved 0"),
        ({"baseline_init_from": "b"}, r"config.baseline_init_from is 'b', saved ''"),
    ],
    ids=str,
)
def test_another_configuration_is_refused(
    ask, tmp_path, monkeypatch, overrides, message
):
    with monkeypatch.context() as patch:
        stop_after(patch, 1)
        with pytest.raises(Stopped):
            ask()
    before = contents(tmp_path / "out")
    with pytest.raises(ValueError, match=message):
        ask(**overrides)
    assert contents(tmp_path / "out") == before


def test_a_folder_in_use_is_left_alone(ask, tmp_path):
    ask(tasks="sst2")
    with (
        lock.owned(epath.Path(tmp_path / "out")),
        pytest.raises(lock.FolderInUse, match="is in use by this same process"),
    ):
        ask(tasks="sst2")


def test_another_process_may_have_begun_meanwhile(ask, tmp_path, monkeypatch):
    """With another configuration, while this one read its data."""

    def begin_another(*arguments):
        monkeypatch.undo()
        ask(tasks="sst2", seed=1)

    monkeypatch.setattr(step_scores.devices, "configure", begin_another)
    with pytest.raises(ValueError, match=r"config.seed is 0, saved 1"):
        ask(tasks="sst2")
    assert results(tmp_path)["config"]["seed"] == 1


def test_a_folder_of_another_job_is_refused(ask, pretrained, tmp_path):
    folder = shutil.copytree(pretrained, tmp_path / "out")
    before = contents(folder)
    with pytest.raises(ValueError, match="job 'pretrain', not 'zero_shot'"):
        ask()
    assert contents(folder) == before


def test_scores_of_other_checkpoints_or_examples_are_refused(
    ask, pretrained, data_dir, tmp_path
):
    run = shutil.copytree(pretrained, tmp_path / "run")
    data = shutil.copytree(data_dir, tmp_path / "data")
    asked = {"folder": run, "tasks": "sst2", "data.dir": str(data)}
    ask(**asked)
    before = contents(tmp_path / "out")
    path = data / "sst2" / "dev.jsonl"
    text = path.read_text()
    path.write_text(text.replace("jjjj", "aaaa"))
    piece = r"scores/run/12/sst2\.json holds scores of another set of examples"
    with pytest.raises(ValueError, match=rf"{piece}.*delete it") as error:
        ask(**asked)
    path.write_text(text)
    manifest = run / "checkpoints/12/manifest.json"
    manifest.write_text(manifest.read_text() + "\n")
    with pytest.raises(ValueError, match=r"sst2\.json holds scores of another check"):
        ask(**asked)
    assert contents(tmp_path / "out") == before and "\n" not in str(error.value)


def test_a_damaged_piece_is_named_and_made_again(ask, tmp_path):
    ask(tasks="sst2")
    before = contents(tmp_path / "out")
    (tmp_path / "out/scores/run/12/sst2.json").write_text("{")
    said = ask(tasks="sst2")
    assert re.search(r"WARNING: .*scores/run/12/sst2\.json cannot be read", said)
    assert contents(tmp_path / "out") == before


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"baseline_init_from": "no/run"}, r"no/run is not a run folder"),
        ({"baseline_init_from": "no/run", "step": "all"}, r"no/run is not a run"),
        (
            {"step": "milestones"},
            r"holds no milestone .*\[8, 12\]",
        ),
        ({"step": "4"}, r"no checkpoint of step 4; it has \[8, 12\]"),
    ],
    ids=str,
)
def test_a_baseline_that_cannot_be_asked_is_named(
    ask, pretrained, other, tmp_path, values, message
):
    """The run itself has what is asked for."""
    values = {"baseline_init_from": str(pretrained), **values}
    with pytest.raises(FileNotFoundError, match=message):
        ask(folder=other, **values)
    assert not (tmp_path / "out").exists()


def test_missing_runs_steps_and_data_are_named(ask, tmp_path):
    with pytest.raises(FileNotFoundError, match="is not a run folder"):
        ask(folder=tmp_path / "none")
    with pytest.raises(FileNotFoundError, match="is not a run folder"):
        ask(folder=tmp_path / "none", step="all")
    with pytest.raises(FileNotFoundError, match="step 7"):
        ask(step="7")
    with pytest.raises(ValueError, match="must be default, newest, best, all"):
        ask(step="last")
    with pytest.raises(MissingData, match=r"copa.dev\.jsonl does not exist"):
        ask(tasks="copa")
    with pytest.raises(MissingData, match=r"of any of the tasks"):
        ask(tasks="copa+race")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        (
            {"tasks": "sst3"},
            ["no zero-shot task 'sst3'", "cola, sst2, race", "'all' alone"],
        ),
        (
            {"tasks": "sst2", "data.dir": "nowhere"},
            ["no dev data of SST-2", "nowhere"],
        ),
    ],
    ids=["unknown task", "no data"],
)
def test_bad_input_takes_one_line(ask, tmp_path, values, parts):
    with pytest.raises((UserError, MissingData)) as error:
        ask(**values)
    assert "\n" not in str(error.value)
    for part in parts:
        assert part in str(error.value)
    assert not (tmp_path / "out").exists()
