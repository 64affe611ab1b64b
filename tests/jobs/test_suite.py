"""Many runs: tasks, seeds, starts, tasks of the user's own, and the table."""

import json
import math
import re
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from etils import epath
from tiny_run import job_config
from tiny_tasks import custom_config, finetune_config, read_lines, rows, write_lines

from gpt1_jax.errors import UserError
from gpt1_jax.finetuning import suite
from gpt1_jax.finetuning.results import kept_run
from gpt1_jax.jobs import finetune, predict
from gpt1_jax.runs import lock
from gpt1_jax.runs.folder import write_config
from gpt1_jax.runs.open import open_run
from gpt1_jax.runs.records import read_metrics
from gpt1_jax.tasks.metrics import METRICS, Metric
from gpt1_jax.tasks.paper_tasks import select_tasks

ONE_EPOCH = {"train__num_epochs": 1.0, "eval__first_epoch_steps": ()}
SEVERAL = {"seeds": (0, 1), **ONE_EPOCH}
FOLDERS = {"pretrained-seed0", "pretrained-seed1"}


@pytest.fixture(scope="module")
def several(finetune_base, made_once):
    """SST-2 and RTE with two seeds, and WNLI, which has no data."""
    config = finetune_config("sst2+wnli+rte", finetune_base, **SEVERAL)
    return made_once("several", lambda folder: finetune.run(config, str(folder)))


def result_of(folder):
    return json.loads((folder / "results.json").read_text())


def test_each_run_of_a_suite_is_owned_while_it_trains(
    finetune_base, tmp_path, monkeypatch
):
    """And the suite's folder is not: other commands train other runs in it."""

    class Trained(Exception):
        pass

    def fit(run):
        assert run.folder.name == "pretrained-seed0"
        with pytest.raises(lock.FolderInUse, match="in use"), lock.owned(run.folder):
            pass
        with lock.owned(epath.Path(tmp_path / "run")):
            pass
        raise Trained

    monkeypatch.setattr(finetune, "fit", fit)
    config = finetune_config("sst2", finetune_base, **SEVERAL)
    with pytest.raises(Trained):
        finetune.run(config, str(tmp_path / "run"))


def test_each_run_has_a_folder_and_all_have_a_table(several):
    assert {p.name for p in several.iterdir() if p.is_dir()} == {"sst2", "rte"}
    everything = json.loads((several / "all_results.json").read_text())
    for task in ("sst2", "rte"):
        assert {p.name for p in (several / task).iterdir()} == FOLDERS
        for seed in (0, 1):
            result = result_of(several / task / f"pretrained-seed{seed}")
            assert (result["task"], result["seed"]) == (task, seed)
            assert everything[task]["pretrained"][seed] == result
    table = (several / "results.md").read_text()
    assert "| SST-2 | accuracy | 12 |" in table and "| RTE | accuracy | 12 |" in table
    assert "wnli/train.jsonl does not exist" in table.partition("Skipped:\n")[2]
    records = (read_metrics(several / "sst2" / f / "metrics.jsonl") for f in FOLDERS)
    one, other = (record[0]["loss"] for record in records)
    assert one != other  # each seed has its own weights
    assert (several / "glue.zip").exists() and not list(several.rglob("checkpoints"))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (rows("rte", 7, 0), "RTE: The training split holds 7 examples, fewer than one"),
        ([{"sentence1": "a", "sentence2": "b"}], "rte/train.jsonl:1: .* has no label"),
    ],
)
def test_a_later_task_that_cannot_be_trained_on_is_refused_first(
    finetune_base, tmp_path, carried_out, lines, message
):
    shutil.copytree(finetune_base["data.dir"], tmp_path / "tasks")
    write_lines(tmp_path / "tasks" / "rte" / "train.jsonl", lines)
    base = {**finetune_base, "data.dir": str(tmp_path / "tasks")}
    with pytest.raises(UserError, match=message):
        finetune.run(finetune_config("sst2+wnli+rte", base), str(tmp_path / "run"))
    assert carried_out == []


def test_only_runs_without_results_are_run(
    several, finetune_base, tmp_path, monkeypatch, capsys
):
    folder = shutil.copytree(several, tmp_path / "runs")
    config = finetune_config("sst2+wnli+rte", finetune_base, **SEVERAL)
    table = (folder / "results.md").read_text()
    with monkeypatch.context() as patch:
        patch.setattr(finetune, "load_task", lambda *a: pytest.fail("it was read"))
        finetune.run(config, str(folder))
    said = capsys.readouterr().out
    assert f"Nothing to do: all 4 runs in {folder} had" in said
    assert "Skipping WNLI: " in said and "Run folder: " not in said
    again = folder / "rte" / "pretrained-seed1"
    (again / "results.json").unlink()
    finetune.run(config, str(folder))
    said = capsys.readouterr().out
    assert said.count("Run folder: ") == said.count(f"Run folder: {again}\n") == 1
    assert result_of(again) == result_of(several / "rte" / "pretrained-seed1")
    assert (folder / "results.md").read_text() == table


def test_commands_with_other_seeds_or_tasks_share_a_folder_and_its_table(
    several, finetune_base, tmp_path, carried_out
):
    """Of other settings, or from another origin, are seeds 7 and 8."""
    folder = shutil.copytree(several, tmp_path / "runs")
    for seed, change in ((7, "head"), (8, "origin")):
        strange = folder / "sst2" / f"pretrained-seed{seed}"
        shutil.copytree(folder / "sst2" / "pretrained-seed0", strange)
        file = strange / ("config.json" if change == "head" else "results.json")
        values = json.loads(file.read_text())
        if change == "head":
            values["head"]["dropout"] = 0.2
        else:
            values["content_digests"]["origin"] = 64 * "0"
        file.write_text(json.dumps(values))
    more = {**SEVERAL, "seeds": (3, 2)}
    finetune.run(finetune_config("sst2", finetune_base, **more), str(folder))
    assert carried_out == ["sst2/pretrained-seed3", "sst2/pretrained-seed2"]
    everything = json.loads((folder / "all_results.json").read_text())
    assert everything == {
        task: {
            "pretrained": [
                result_of(folder / task / f"pretrained-seed{seed}") for seed in seeds
            ]
        }
        for task, seeds in (("sst2", range(4)), ("rte", (0, 1)))
    }


def test_a_suite_waits_for_another_command_that_writes_its_summary(
    several, finetune_base, tmp_path, monkeypatch
):
    arrived, write_summary = threading.Event(), finetune._write_summary

    def noted(*given):
        arrived.set()
        write_summary(*given)

    monkeypatch.setattr(finetune, "_write_summary", noted)
    folder = shutil.copytree(several, tmp_path / "runs")
    unfinished = folder / "sst2" / "pretrained-seed0" / ".plot.png.0.partial"
    config = finetune_config("sst2+rte", finetune_base, **SEVERAL)
    with ThreadPoolExecutor() as pool:
        with lock.owned(epath.Path(folder)):
            unfinished.write_text("of a run at work")
            waiting = pool.submit(finetune.run, config, str(folder))
            assert arrived.wait(60)
            time.sleep(0.5)
            assert not waiting.done()
        waiting.result()
    assert unfinished.exists()


@pytest.fixture
def begun(finetuned, tmp_path):
    """A copy of a run on SST-2, with its checkpoints, as the first of a suite."""
    first = shutil.copytree(finetuned, tmp_path / "run" / "sst2" / "pretrained-seed0")
    (first / "results.md").unlink()
    return first


def test_checkpoints_that_a_kill_has_left_of_a_finished_run_go(
    begun, finetuned, finetune_base, tmp_path, carried_out, monkeypatch
):
    """Of those on another disk, the user's folder stays, and notes in it."""
    config = finetune_config("sst2", finetune_base, seeds=(0, 1))
    shutil.move(begun / "checkpoints", tmp_path / "scratch")
    (tmp_path / "scratch" / "notes.txt").write_text("mine")
    (begun / "checkpoints").symlink_to(tmp_path / "scratch")

    def killed(folder):
        folder.rename(folder.with_name(f"{folder.name}.orbax-checkpoint-tmp"))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(finetune, "delete_checkpoint", killed)
        finetune.run(config, str(tmp_path / "run"))
    assert list(begun.glob("checkpoints/*/manifest.json"))
    finetune.run(config, str(tmp_path / "run"))
    assert carried_out == ["sst2/pretrained-seed1"]
    assert not list((tmp_path / "run").rglob("checkpoints"))
    assert result_of(begun) == result_of(finetuned)
    assert (tmp_path / "scratch" / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("why", ["made to keep them", "made by itself"])
def test_checkpoints_of_a_finished_run_stay_if_it_kept_them(
    begun, finetune_base, tmp_path, carried_out, why
):
    if why == "made by itself":
        (begun / "results.md").touch()
    else:
        values = json.loads((begun / "config.json").read_text())
        values["suite"]["keep_checkpoints"] = True
        (begun / "config.json").write_text(json.dumps(values))
    config = finetune_config("sst2", finetune_base, seeds=(0, 1))
    finetune.run(config, str(tmp_path / "run"))
    assert carried_out == ["sst2/pretrained-seed1"]
    assert list(begun.glob("checkpoints/*/manifest.json"))


def test_one_run_and_several_share_a_folder(
    finetuned, finetune_base, tmp_path, carried_out
):
    """As with the default folder, when seeds are added later."""
    folder = shutil.copytree(finetuned, tmp_path / "run")
    alone = result_of(folder)
    finetune.run(finetune_config("sst2", finetune_base, seeds=(0, 1)), str(folder))
    assert carried_out == ["sst2/pretrained-seed0", "sst2/pretrained-seed1"]
    finetune.run(finetune_config("sst2", finetune_base), str(folder))
    assert len(carried_out) == 2 and result_of(folder) == alone
    score = f"| {100 * alone['dev']['accuracy']:.1f} |"
    assert score in (folder / "results.md").read_text()


def test_a_single_task_without_data_is_an_error(finetune_base, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"WNLI.*wnli/train.jsonl does not"):
        finetune.run(finetune_config("wnli", finetune_base), str(tmp_path))
    assert not (tmp_path / "results.md").exists()


def test_an_unlabelled_test_split_is_predicted_and_not_scored(finetuned):
    assert result_of(finetuned)["test"] == {"n": 10, "scores": None}
    lines = read_lines(finetuned / "predictions" / "test.jsonl")
    assert [line["id"] for line in lines] == [str(k) for k in range(10)]
    assert not any("label" in line for line in lines)
    submitted = (finetuned / "glue" / "SST-2.tsv").read_text().splitlines()
    assert submitted[0] == "index\tprediction"
    number = {"negative": "0", "positive": "1"}
    assert submitted[1:] == [f"{x['id']}\t{number[x['prediction']]}" for x in lines]


def test_a_labelled_test_split_is_scored(several):
    folder = several / "rte" / "pretrained-seed0"
    result = result_of(folder)
    lines = read_lines(folder / "predictions" / "test.jsonl")
    right = sum(line["prediction"] == line["label"] for line in lines)
    assert result["test"]["n"] == 10
    assert result["test"]["accuracy"] == pytest.approx(right / 10)


def custom(base, paths, **overrides):
    return custom_config(base, paths, **{**ONE_EPOCH, **overrides})


LABELS = ("bad", "good")
OWN_TASK = {
    "custom__head": "classification",
    "custom__text": ("sentence",),
    "custom__labels": LABELS,
}


def write_named(path, number, seed=0):
    """Rows of a task of two labels, in JSON lines."""
    made = rows("sst2", number, seed)
    return write_lines(path, [{**r, "label": LABELS[r["label"]]} for r in made])


def test_class_weights_favour_a_label(finetune_base, tmp_path, capsys):
    """Of uneven labels, the rare one is predicted where it weighs enough."""
    paths = {}
    for seed, split in enumerate(("train", "dev")):
        paths[split] = write_named(tmp_path / f"{split}.jsonl", 96, seed)
        made = read_lines(paths[split])
        write_lines(paths[split], made[1::2] + made[::12])
    predicted, said = {}, {}
    for weights in ((), ("1000", "1")):
        given = {**OWN_TASK, "custom__class_weights": weights}
        folder = tmp_path / f"run{len(weights)}"
        finetune.run(custom(finetune_base, paths, **given), str(folder))
        lines = read_lines(folder / "predictions" / "dev.jsonl")
        predicted[weights] = {line["prediction"] for line in lines}
        said[weights] = capsys.readouterr().out
    assert predicted == {(): {"good"}, ("1000", "1"): {"bad"}}
    assert "48 training examples are 'good' and 8 'bad'; --config.custom" in said[()]
    assert "Class weights: 'bad' 1000, 'good' 1." in said["1000", "1"]


def test_of_several_seeds_the_best_keeps_its_checkpoints(
    finetune_base, tmp_path, capsys
):
    """It has the name of the task and its labels, and labels new text."""
    paths = {
        split: write_named(tmp_path / f"{split}.jsonl", 32, seed)
        for seed, split in enumerate(("train", "dev"))
    }
    own = {"custom__name": "reviews-1", "custom__head": "classification"}
    own |= {"custom__text": ("sentence",), "seeds": (0, 1)}
    config = custom(finetune_base, paths, **own)
    assert config.default_workdir == "runs/finetune/reviews-1"
    finetune.run(config, str(tmp_path / "run"))
    said = capsys.readouterr().out
    folders = sorted((tmp_path / "run").glob("*/*-seed?"))
    (kept,) = [each for each in folders if (each / "checkpoints").exists()]
    saved = json.loads((kept / "config.json").read_text())
    assert saved["custom"]["labels"] == ["bad", "good"]  # as inferred
    scores = {each: result_of(each)["dev"]["accuracy"] for each in folders}
    assert scores[kept] == max(scores.values())
    assert f"Checkpoints are deleted, but those of {kept}, unless" in said
    assert "| reviews-1 | pre-trained | accuracy | " in said
    assert open_run(str(kept)).step == result_of(kept)["best_step"]
    # Labels come from it, whether it or the folder of all is named.
    assert [kept_run(str(each)) for each in (kept, kept.parents[1])] == [str(kept)] * 2


def test_the_best_of_all_that_share_a_folder_keeps_its_checkpoints(tmp_path):
    """Also if another is equally good, and its checkpoints are gone."""
    path = write_named(tmp_path / "train.jsonl", 4)
    config = custom({"init_from": "run"}, {"train": path, "dev": "d"}, **OWN_TASK)
    (task,), config = select_tasks(config)
    plan = suite.plan_runs({"": config}, [task], range(4), epath.Path(tmp_path))
    scores = (0.7, 0.9, 0.9, 0.8)
    results = [(r, {"dev": {"accuracy": s}}) for r, s in zip(plan, scores, strict=True)]
    for run in plan:
        write_config(run.folder, run.config)
        if run != plan[1]:
            (run.folder / "checkpoints" / "4").mkdir(parents=True)
            (run.folder / "checkpoints" / "4" / "manifest.json").write_text("{}")
    for each in (results, results[::-1]):
        finetune._delete_checkpoints(each)
        assert [path.parent for path in tmp_path.rglob("checkpoints")] == [
            tmp_path / "custom" / "-seed2"
        ]


def test_folds_are_runs_whose_scores_share_a_line(finetune_base, tmp_path, carried_out):
    """They can be divided among commands, as seeds can."""
    paths = {"train": write_named(tmp_path / "train.jsonl", 30)}
    folder = tmp_path / "run"
    for seed, folds in ((0, 1), (0, 0), (1, 0)):
        given = {"data__folds": 3, "data__fold": folds, "seeds": (seed, 5)}
        finetune.run(custom(finetune_base, paths, **OWN_TASK, **given), str(folder))
    folders = [f"custom/pretrained-fold{n}-seed{s}" for n in (1, 2, 3) for s in (0, 5)]
    more = [f"custom/pretrained-fold{n}-seed1" for n in (1, 2, 3)]
    assert carried_out == [*folders, *more]
    (lines,) = json.loads((folder / "all_results.json").read_text())["custom"].values()
    dev = {line["content_digests"]["dev examples"] for line in lines}
    assert (len(lines), len(dev)) == (9, 3)
    table = (folder / "results.md").read_text()
    assert table.count("| custom | pre-trained |") == 1
    assert "| custom | pre-trained | accuracy | dev | 50.0 (50.0 to 50.0) |" in table
    assert "custom: 9 runs (3 folds, 3 seeds); each fold is scored on" in table


def test_the_name_of_a_task_of_ones_own_may_be_a_folders(finetune_base):
    for name in ("../x", "a/b", "two words", ".hidden"):
        with pytest.raises(UserError, match=r"custom\.name=.* names a folder"):
            custom(finetune_base, {}, custom__name=name)


@pytest.mark.usefixtures("real_figures")
def test_a_run_on_ones_own_labels_says_where_it_is_wrong(finetune_base, tmp_path):
    """Scores by label and with intervals, baselines of each split, figures."""
    paths = {
        split: write_named(tmp_path / f"{split}.jsonl", 32, seed)
        for seed, split in enumerate(("train", "dev", "test"))
    }
    config = custom(finetune_base, paths, **OWN_TASK, figure=".svg")
    run = tmp_path / "run"
    finetune.run(config, str(run))
    result = result_of(run)
    for split in ("dev", "test"):
        scores = result[split]
        fitting = {"accuracy", "f1", "macro_f1", "balanced_accuracy", "matthews"}
        assert scores["intervals"].keys() == {*fitting, "log_loss", "brier"}
        by_label = [row[k] for k, row in enumerate(scores["confusion"])]
        recalls = [label["recall"] for label in scores["labels"].values()]
        assert recalls == [right / 16 for right in by_label]
    assert result["majority"]["log_loss"] == pytest.approx(math.log(2))
    assert result["test_baselines"]["bag_of_words"]["n"] == 32
    table = (run / "results.md").read_text()
    for part in ("| f1 of good | test | ", "**custom, test split, seed 0**"):
        assert part in table
    lines = read_lines(run / "predictions" / "test.jsonl")
    wrong = [line for line in lines if line["prediction"] != line["label"]]
    assert f"most confident of {len(wrong)} errors:" in table
    cells = (run / "plots" / "confusion.csv").read_text().splitlines()
    assert cells[1] == f"custom,test,bad,bad,{result['test']['confusion'][0][0]}"
    for name in ("confusion", "reliability"):
        assert (run / "plots" / f"{name}.svg").exists()


def test_a_similarity_of_ones_own_has_scores_of_any_range(
    finetune_base, tmp_path, monkeypatch, capsys
):
    """A sum of squares ranks the states, the lowest first, and is shown as it is."""

    def squares(predictions, scores):
        return float(np.square(predictions - scores).sum())

    lowest_is_best = Metric(squares, lowest=0.0, highest_is_best=False)
    monkeypatch.setitem(METRICS, "squares", lowest_is_best)
    paths = {
        split: write_lines(tmp_path / f"{split}.jsonl", rows("stsb", 32, seed))
        for seed, split in enumerate(("train", "dev"))
    }
    own = {
        "custom__head": "similarity",
        "custom__text": ("sentence1", "sentence2"),
        "custom__score_range": (0, 5),
        "custom__metrics": ("squares", "pearson"),
        "eval__first_epoch_steps": (2,),
    }
    run = tmp_path / "run"
    finetune.run(custom(finetune_base, paths, **own), str(run))
    result = result_of(run)
    records = read_metrics(run / "metrics.jsonl")
    values = {r["step"]: r["valid_squares"] for r in records if "valid_squares" in r}
    assert len(values) == 2 and result["best_step"] == min(values, key=values.get)
    value = result["dev"]["squares"]
    assert value == pytest.approx(min(values.values()), rel=1e-6) and value > 1.0
    table = (run / "results.md").read_text()
    assert f"| custom | pre-trained | squares | dev | {value:.1f} (" in table
    assert "Lower is better: squares." in table
    capsys.readouterr()
    predict.run(job_config("predict", init_from=str(run), text="a\tb"), "")
    header, row = capsys.readouterr().out.splitlines()
    assert header == "score\ttext"
    assert re.fullmatch(r"-?\d+\.\d{3}\ta \| b", row)
