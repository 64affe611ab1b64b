"""The zero-shot job, as its user runs it."""

import json

import pytest
from etils import epath
from tiny_run import load_config, run_program
from tiny_tasks import read_lines, write_task

from gpt1_jax import config as config_lib
from gpt1_jax.jobs import zero_shot
from gpt1_jax.runs.saved_steps import saved_steps
from gpt1_jax.tasks.rows import MissingData

TASKS = "cola+sst2+dpr"


@pytest.fixture(scope="module")
def data_dir(made_once):
    """Made-up examples of two tasks, and of DPR to train on."""

    def make(folder):
        for task in ("cola", "sst2"):
            write_task(folder, task, train=12, dev=6)
        write_task(folder, "dpr", train=4, dev=0)

    return made_once("zero-shot-tasks", make)


@pytest.fixture
def ask(pretrained, data_dir, corpus_dir, tmp_path, capsys):
    """A function from values to what the job prints and writes."""

    def run(tasks=TASKS, folder=pretrained, **values):
        overrides = {
            "init_from": str(folder),
            "data.source": "jsonl",
            "data.dir": str(data_dir),
            "compilation_cache_dir": str(corpus_dir / "xla"),
            **values,
        }
        config = load_config(tasks, file="zero_shot", **overrides)
        zero_shot.run(config_lib.load(config.to_dict()), str(tmp_path / "out"))
        return capsys.readouterr().out

    return run


def results(tmp_path):
    return json.loads((tmp_path / "out" / "results.json").read_text())


def test_all_kept_checkpoints_are_scored(ask, pretrained, tmp_path):
    out = ask(step="all")
    found, steps = results(tmp_path), saved_steps(epath.Path(pretrained))
    assert [each["step"] for each in found["checkpoints"]] == steps and steps[1:]
    for checkpoint in found["checkpoints"]:
        cola, sst2, dpr = (checkpoint["tasks"][t] for t in TASKS.split("+"))
        assert cola.keys() >= {"matthews", "accuracy", "auc", "threshold", "relative"}
        assert sst2.keys() >= {"accuracy", "standard_error", "chance", "best_before"}
        assert (dpr["split"], dpr["n"]) == ("train", 4)
        name = f"predictions/{checkpoint['step']}/sst2.jsonl"
        predictions = read_lines(tmp_path / "out" / name)
        right = [each["prediction"] == each["label"] for each in predictions]
        assert sum(right) / 6 == pytest.approx(sst2["accuracy"])
    assert found["config"]["step"] == "all" and "jax" in found["versions"]
    table = (tmp_path / "out" / "results.md").read_text()
    assert table in out and f"step {steps[0]:,}" in table
    assert (tmp_path / "out" / "plots" / "zero_shot.png").exists()


def test_scores_do_not_depend_on_the_batch_or_on_other_tasks(ask, tmp_path):
    ask(step="best")
    first = results(tmp_path)["checkpoints"][0]
    (tmp_path / "out").rename(tmp_path / "before")
    ask(tasks="sst2", step=str(first["step"]), batch_tokens=64)
    second = results(tmp_path)["checkpoints"][0]
    assert second["tasks"]["sst2"] == first["tasks"]["sst2"]


def test_the_language_model_of_a_fine_tuned_run_is_asked(ask, finetuned, tmp_path):
    out = ask(folder=finetuned, tasks="sst2")
    assert "is fine-tuned; its language model answers" in out
    assert results(tmp_path)["checkpoints"][0]["tasks"]["sst2"]["n"] == 6


def test_tasks_without_data_are_left_out_and_named(ask, tmp_path):
    out = ask(tasks="sst2+copa")
    assert "Skipping COPA: There is no dev data of COPA" in out
    assert list(results(tmp_path)["checkpoints"][0]["tasks"]) == ["sst2"]


def test_cut_texts_are_counted(ask, tmp_path, pretrained):
    write_task(tmp_path, "race", train=0, dev=2)
    path = tmp_path / "race" / "dev.jsonl"
    path.write_text(
        path.read_text().replace('"article": "', '"article": "' + "a " * 40)
    )
    out = ask(tasks="race", **{"data.dir": str(tmp_path)})
    assert "RACE: 2 of 2 examples were cut to fit 40 tokens." in out
    assert results(tmp_path)["checkpoints"][0]["tasks"]["race"]["num_cut"] == 2


# --- what is refused ------------------------------------------------------------------


def test_a_used_folder_is_left_alone(ask, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "kept").write_text("a")
    with pytest.raises(FileExistsError, match="is not empty"):
        ask()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["kept"]


def test_missing_runs_steps_and_data_are_named(ask, tmp_path):
    with pytest.raises(FileNotFoundError, match="is not a run folder"):
        ask(folder=tmp_path / "none")
    with pytest.raises(FileNotFoundError, match="is not a run folder"):
        ask(folder=tmp_path / "none", step="all")
    with pytest.raises(FileNotFoundError, match="step 7"):
        ask(step="7")
    with pytest.raises(ValueError, match="must be newest, best or the number"):
        ask(step="last")
    with pytest.raises(MissingData, match=r"copa.dev\.jsonl does not exist"):
        ask(tasks="copa")
    with pytest.raises(MissingData, match=r"of any of the tasks"):
        ask(tasks="copa+race")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        ([":sst3"], ["no zero-shot task 'sst3'", "cola, sst2, race", "'all' alone"]),
        ([":sst2", "--config.data.dir=nowhere"], ["no dev data of SST-2", "nowhere"]),
    ],
    ids=["unknown task", "no data"],
)
def test_bad_input_takes_one_line(pretrained, tmp_path, flags, parts):
    preset, *more = flags
    source = [f"--config.init_from={pretrained}", "--config.data.source=jsonl"]
    more = more or ["--config.data.dir=any"]
    workdir = f"--workdir={tmp_path / 'out'}"
    config = f"--config=configs/zero_shot.py{preset}"
    code, output = run_program(config, *source, *more, workdir)
    assert code != 0 and "Traceback" not in output
    for part in parts:
        assert part in output
    assert not (tmp_path / "out").exists()
