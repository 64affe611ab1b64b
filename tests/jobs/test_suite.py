"""Many runs: tasks, seeds, starts, tasks of the user's own, and the table."""

import json
import math
import re
import shutil
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from etils import epath
from tiny_run import as_flags, load_config, run_program
from tiny_tasks import finetune_config, read_lines, rows, write_lines

from gpt1_jax import config as config_lib
from gpt1_jax.errors import UserError
from gpt1_jax.finetuning import suite
from gpt1_jax.finetuning.results import kept_run, read_finished
from gpt1_jax.jobs import finetune, predict
from gpt1_jax.report.comparisons import COMPARISONS
from gpt1_jax.report.tables import score_table
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


@pytest.fixture
def count_runs(monkeypatch):
    """The folders of the runs that are trained, by their last two parts."""
    seen = []
    fit = finetune.fit

    def counted(run):
        seen.append("/".join(str(run.folder).split("/")[-2:]))
        fit(run)

    monkeypatch.setattr(finetune, "fit", counted)
    return seen


def result_of(folder):
    return json.loads((folder / "results.json").read_text())


def test_each_run_of_a_suite_is_owned_while_it_trains(
    finetune_base, tmp_path, monkeypatch
):
    class Trained(Exception):
        pass

    def fit(run):
        assert run.folder.name == "pretrained-seed0"
        with pytest.raises(lock.FolderInUse, match="in use"), lock.owned(run.folder):
            pass
        raise Trained

    monkeypatch.setattr(finetune, "fit", fit)
    config = finetune_config("sst2", finetune_base, **SEVERAL)
    with pytest.raises(Trained):
        finetune.run(config, str(tmp_path / "run"))


def test_all_processes_read_the_step_that_the_main_one_finds_best(monkeypatch):
    """It has written the scores, which others may not see yet."""
    monkeypatch.setattr(finetune, "best_step", lambda folder: 20)
    monkeypatch.setattr(finetune, "saved_steps", lambda folder: [20, 30])
    for is_main, sent in (True, "20"), (False, ""):
        told = []

        def gather(text, told=told):
            told.append(text)
            return ["30", text]

        monkeypatch.setattr(finetune, "is_main_process", lambda it=is_main: it)
        monkeypatch.setattr(finetune, "gather", gather)
        assert finetune._best_step(epath.Path("run")) == 30
        assert told == [sent]


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
    scores = [run["dev"]["accuracy"] for run in everything["sst2"]["pretrained"]]
    low, high = (f"{100 * score:.1f}" for score in sorted(scores))
    assert f"({low} to {high})" in table


def test_a_task_without_data_is_skipped_and_named(
    several, capsys, finetune_base, tmp_path
):
    folder = shutil.copytree(several, tmp_path / "runs")
    table = (folder / "results.md").read_text()
    assert "WNLI: " in table.partition("Skipped:")[2]
    assert "wnli/train.jsonl does not exist" in table
    finetune.run(
        finetune_config("sst2+wnli+rte", finetune_base, **SEVERAL), str(folder)
    )
    assert "Skipping WNLI: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (rows("rte", 7, 0), "RTE: The training split holds 7 examples, fewer than one"),
        (
            [{"sentence1": "a", "sentence2": "b"}],
            "rte/train.jsonl:1: the example has no label",
        ),
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


def test_seeds_make_different_runs(several):
    one, other = (
        (several / "sst2" / name / "metrics.jsonl").read_text() for name in FOLDERS
    )
    assert (
        json.loads(one.splitlines()[0])["loss"]
        != (json.loads(other.splitlines()[0])["loss"])
    )


def test_only_runs_without_results_are_run(
    several, finetune_base, tmp_path, count_runs, monkeypatch, capsys
):
    folder = tmp_path / "runs"
    shutil.copytree(several, folder)
    config = finetune_config("sst2+wnli+rte", finetune_base, **SEVERAL)
    table = (folder / "results.md").read_text()
    with monkeypatch.context() as patch:
        patch.setattr(finetune, "load_task", lambda *a: pytest.fail("it was read"))
        finetune.run(config, str(folder))
    assert count_runs == []
    assert f"Nothing to do: all 4 runs in {folder} had" in capsys.readouterr().out
    again = folder / "rte" / "pretrained-seed1"
    (again / "results.json").unlink()
    finetune.run(config, str(folder))
    assert count_runs == ["rte/pretrained-seed1"]
    assert result_of(again) == result_of(several / "rte" / "pretrained-seed1")
    assert (folder / "results.md").read_text() == table


def test_commands_with_other_seeds_or_tasks_share_a_folder_and_its_table(
    several, finetune_base, tmp_path, carried_out
):
    folder = shutil.copytree(several, tmp_path / "runs")
    other = finetune_config("sst2", finetune_base, **SEVERAL, head__dropout=0.2)
    finetune.run(other, str(tmp_path / "other"))
    strange = tmp_path / "other" / "sst2" / "pretrained-seed0"  # not of this suite
    shutil.move(strange, folder / "sst2" / "pretrained-seed7")
    of_another_origin = folder / "sst2" / "pretrained-seed8"
    shutil.copytree(folder / "sst2" / "pretrained-seed0", of_another_origin)
    result = result_of(of_another_origin)
    result["content_digests"]["origin"] = 64 * "0"
    (of_another_origin / "results.json").write_text(json.dumps(result))
    carried_out.clear()
    more = {**SEVERAL, "seeds": (3, 2)}
    finetune.run(finetune_config("sst2", finetune_base, **more), str(folder))
    assert carried_out == ["sst2/pretrained-seed3", "sst2/pretrained-seed2"]
    everything = json.loads((folder / "all_results.json").read_text())
    places = [("sst2", seed) for seed in range(4)] + [("rte", seed) for seed in (0, 1)]
    assert everything == {
        task: {
            "pretrained": [
                result_of(folder / each / f"pretrained-seed{seed}")
                for each, seed in places
                if each == task
            ]
        }
        for task in ("sst2", "rte")
    }
    table = (folder / "results.md").read_text()
    assert "| SST-2 | accuracy | 12 |" in table and "| RTE | accuracy | 12 |" in table


@pytest.mark.slow
def test_two_commands_train_the_halves_of_a_suite_at_once(finetune_base, tmp_path):
    """As the jobs of an array: each with two of the seeds, into one folder."""
    flags = {**finetune_base, "train.num_epochs": 1.0, "eval.first_epoch_steps": ()}
    command = (
        "--config=configs/finetune.py:sst2+rte",
        f"--workdir={tmp_path / 'run'}",
        *as_flags(flags),
    )
    env = {"JAX_NUM_CPU_DEVICES": "8"}
    with ThreadPoolExecutor() as pool:
        halves = [
            pool.submit(run_program, *command, f"--config.seeds={seeds}", env=env)
            for seeds in ("0,1", "2,3")
        ]
    for half in halves:
        code, printed = half.result()
        assert code == 0, printed
    everything = json.loads((tmp_path / "run" / "all_results.json").read_text())
    for task in ("sst2", "rte"):
        found = everything[task]["pretrained"]
        assert [result["seed"] for result in found] == [0, 1, 2, 3]
    code, printed = run_program(*command, "--config.seeds=0,1,2,3", env=env)
    assert code == 0 and "Nothing to do: all 8 runs" in printed
    assert json.loads((tmp_path / "run" / "all_results.json").read_text()) == everything
    assert not list((tmp_path / "run").rglob("checkpoints"))


def test_a_suite_waits_for_another_command_that_writes_its_summary(
    several, finetune_base, tmp_path, capsys
):
    folder = shutil.copytree(several, tmp_path / "runs")
    unfinished = folder / "sst2" / "pretrained-seed0" / ".plot.png.0.partial"
    config = finetune_config("sst2+rte", finetune_base, **SEVERAL)
    with ThreadPoolExecutor() as pool:
        with lock.owned(epath.Path(folder)):
            unfinished.write_text("of a run at work")
            waiting = pool.submit(finetune.run, config, str(folder))
            time.sleep(2)
            assert not waiting.done()
        waiting.result()
    assert unfinished.exists()
    assert "Nothing to do: all 4 runs" in capsys.readouterr().out


def test_a_finished_suite_packs_no_file_for_glue_that_was_changed(
    several, finetune_base, tmp_path
):
    folder = shutil.copytree(several, tmp_path / "runs")
    config = finetune_config("sst2+wnli+rte", finetune_base, **SEVERAL)
    (folder / "glue.zip").unlink()
    finetune.run(config, str(folder))
    assert (folder / "glue.zip").read_bytes() == (several / "glue.zip").read_bytes()
    for file in folder.glob("sst2/*/glue/SST-2.tsv"):
        file.write_text(file.read_text()[:-4])
    with pytest.raises(UserError, match=r"SST-2.tsv and .*test.jsonl do not hold the"):
        finetune.run(config, str(folder))


def test_results_of_another_configuration_are_refused(several, finetune_base, tmp_path):
    folder = shutil.copytree(several, tmp_path / "runs")
    config = finetune_config("sst2", finetune_base, **SEVERAL, head__dropout=0.2)
    with pytest.raises(ValueError, match=r"config.head.dropout is 0.2, saved 0.1"):
        finetune.run(config, str(folder))


def test_checkpoints_of_several_runs_go_unless_kept(several, finetuned):
    assert not list(several.rglob("checkpoints"))
    assert (finetuned / "checkpoints").exists()


def begin_suite(finetuned, folder):
    """A copy of a run on SST-2, with its checkpoints, as the first of a suite."""
    first = folder / "sst2" / "pretrained-seed0"
    shutil.copytree(finetuned, first)
    (first / "results.md").unlink()
    return first


def test_checkpoints_that_a_kill_has_left_of_a_finished_run_go(
    finetuned, finetune_base, tmp_path, carried_out, monkeypatch
):
    config = finetune_config("sst2", finetune_base, seeds=(0, 1))
    first = begin_suite(finetuned, tmp_path)

    def killed(folder):
        folder.rename(folder.with_name(f"{folder.name}.orbax-checkpoint-tmp"))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(finetune, "delete_checkpoint", killed)
        finetune.run(config, str(tmp_path))
    assert list(first.glob("checkpoints/*/manifest.json"))
    finetune.run(config, str(tmp_path))
    assert carried_out == ["sst2/pretrained-seed1"]
    assert not list(tmp_path.rglob("checkpoints"))
    assert result_of(first) == result_of(finetuned)


def test_of_checkpoints_on_another_disk_the_users_folder_stays(
    finetuned, finetune_base, tmp_path, carried_out
):
    first = begin_suite(finetuned, tmp_path / "run")
    shutil.move(first / "checkpoints", tmp_path / "scratch")
    (tmp_path / "scratch" / "notes.txt").write_text("mine")
    (first / "checkpoints").symlink_to(tmp_path / "scratch")
    config = finetune_config("sst2", finetune_base, seeds=(0, 1))
    finetune.run(config, str(tmp_path / "run"))
    assert not (first / "checkpoints").is_symlink()
    assert [path.name for path in (tmp_path / "scratch").iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("why", ["made to keep them", "made by itself"])
def test_checkpoints_of_a_finished_run_stay_if_it_kept_them(
    finetuned, finetune_base, tmp_path, carried_out, why
):
    first = begin_suite(finetuned, tmp_path)
    if why == "made by itself":
        shutil.copy(finetuned / "results.md", first)
    else:
        values = json.loads((first / "config.json").read_text())
        values["suite"]["keep_checkpoints"] = True
        (first / "config.json").write_text(json.dumps(values))
    finetune.run(finetune_config("sst2", finetune_base, seeds=(0, 1)), str(tmp_path))
    assert carried_out == ["sst2/pretrained-seed1"]
    assert list(first.glob("checkpoints/*/manifest.json"))


def test_each_run_from_scratch_too(finetune_base, tmp_path, carried_out):
    config = finetune_config("sst2", finetune_base, suite__compare="scratch")
    finetune.run(config, str(tmp_path))
    assert carried_out == ["sst2/pretrained-seed0", "sst2/scratch-seed0"]
    everything = json.loads((tmp_path / "all_results.json").read_text())
    for start, layers in (("pretrained", "all"), ("scratch", "none")):
        folder = tmp_path / "sst2" / f"{start}-seed0"
        assert everything["sst2"][start] == [result_of(folder)]
        saved = json.loads((folder / "config.json").read_text())
        assert saved["transfer_layers"] == layers


def test_one_run_and_several_share_a_folder(
    finetuned, finetune_base, tmp_path, carried_out
):
    """As with the default folder, when seeds are added later."""
    folder = tmp_path / "run"
    shutil.copytree(finetuned, folder)
    alone = result_of(folder)
    finetune.run(finetune_config("sst2", finetune_base, seeds=(0, 1)), str(folder))
    assert carried_out == ["sst2/pretrained-seed0", "sst2/pretrained-seed1"]
    assert result_of(folder) == alone
    assert result_of(folder / "sst2" / "pretrained-seed0") != alone
    finetune.run(finetune_config("sst2", finetune_base), str(folder))
    assert len(carried_out) == 2
    assert f"| {100 * alone['dev']['accuracy']:.1f} |" in (
        (folder / "results.md").read_text()
    )


def test_a_single_task_without_data_is_an_error(finetune_base, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"WNLI.*wnli/train.jsonl does not"):
        finetune.run(finetune_config("wnli", finetune_base), str(tmp_path))
    assert not (tmp_path / "results.md").exists()


def test_a_task_that_is_not_there_is_refused_with_the_list(finetune_base, tmp_path):
    with pytest.raises(ValueError, match=r"no task 'sst3'; .*snli, mnli.*'custom'"):
        finetune.run(finetune_config("sst2+sst3", finetune_base), str(tmp_path))


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


# --- tasks of the user's own ------------------------------------------------------


def custom(base, paths, **overrides):
    files = {f"data__{split}": str(path) for split, path in paths.items()}
    base = {**base, "data.source": "files", "data.dir": ""}
    return finetune_config("custom", base, **{**ONE_EPOCH, **files, **overrides})


OWN_TASK = {
    "custom__head": "classification",
    "custom__text": ("sentence",),
    "custom__labels": ("bad", "good"),
}


def write_tsv(path, made):
    lines = ["\t".join(map(str, row.values())) for row in made]
    path.write_text("\n".join(["\t".join(made[0]), *lines]) + "\n")
    return path


def named(made):
    return [{**row, "label": ("bad", "good")[row["label"]]} for row in made]


def test_a_classification_of_ones_own_infers_its_labels(finetune_base, tmp_path):
    paths = {
        split: write_tsv(tmp_path / f"{split}.tsv", named(rows("sst2", 32, seed)))
        for seed, split in enumerate(("train", "dev"))
    }
    config = custom(
        finetune_base,
        paths,
        custom__head="classification",
        custom__text=("sentence",),
    )
    finetune.run(config, str(tmp_path / "run"))
    saved = json.loads((tmp_path / "run" / "config.json").read_text())
    assert saved["custom"]["labels"] == ["bad", "good"]
    lines = read_lines(tmp_path / "run" / "predictions" / "dev.jsonl")
    assert [line["label"] for line in lines] == ["bad", "good"] * 16
    assert {line["prediction"] for line in lines} <= {"bad", "good"}
    assert result_of(tmp_path / "run")["dev"]["n"] == 32
    table = (tmp_path / "run" / "results.md").read_text()
    assert "| custom | pre-trained | accuracy | " in table
    assert "**custom, dev split, seed 0**" in table
    assert "| true label | as bad |" in table
    finetune.run(config, str(tmp_path / "run"))  # finished: inferred alike


@pytest.mark.parametrize("data", [{"dev_fraction": 0.25}, {"folds": 4}])
def test_rows_held_out_are_the_same_for_every_seed(
    finetune_base, tmp_path, carried_out, capsys, data
):
    path = write_tsv(tmp_path / "train.tsv", named(rows("sst2", 32, 0)))
    held_out = {f"data__{key}": value for key, value in data.items()}
    seeds = (0, 1)
    config = custom(finetune_base, {"train": path}, **OWN_TASK, **held_out, seeds=seeds)
    finetune.run(config, str(tmp_path / "run"))
    said = capsys.readouterr().out
    dev = {
        path.parent.name: json.loads(path.read_text())["content_digests"][
            "dev examples"
        ]
        for path in (tmp_path / "run").glob("*/*/results.json")
    }
    parts = len(set(dev.values()))
    assert (parts, len(dev)) == (data.get("folds", 1), 2 * data.get("folds", 1))
    assert len({(name[:-1], digest) for name, digest in dev.items()}) == parts
    assert said.count(f"Held out of {path} as the dev split") == parts
    assert said.count("Labels, training + dev: 'bad' 12 + 4, 'good' 12 + 4.") == parts
    finetune.run(config, str(tmp_path / "run"))
    assert "Nothing to do: all" in capsys.readouterr().out


def write_uneven(folder, number, every):
    """Files of rows, half of them "good"; of the "bad" ones, one of `every` is left."""
    paths = {split: folder / f"{split}.jsonl" for split in ("train", "dev")}
    for seed, path in enumerate(paths.values()):
        made = named(rows("sst2", number, seed))
        rare = [row for row in made if row["label"] == "bad"][::every]
        even = [row for row in made if row["label"] == "good"]
        write_lines(path, rare + even)
    return paths


def test_class_weights_favour_a_label(finetune_base, tmp_path, capsys):
    """Of uneven labels, the rare one is predicted where it weighs enough."""
    paths = write_uneven(tmp_path, 96, every=6)
    predicted, said = {}, {}
    for weights in ((), ("1000", "1")):
        given = {**OWN_TASK, "custom__class_weights": weights}
        folder = tmp_path / f"run{len(weights)}"
        finetune.run(custom(finetune_base, paths, **given), str(folder))
        lines = read_lines(folder / "predictions" / "dev.jsonl")
        predicted[weights] = {line["prediction"] for line in lines}
        said[weights] = capsys.readouterr().out
    assert predicted == {(): {"good"}, ("1000", "1"): {"bad"}}
    suggestion = "48 training examples are 'good' and 8 'bad'; --config.custom.class_we"
    assert suggestion in said[()] and "Class weights" not in said[()]
    assert "Class weights: 'bad' 1000, 'good' 1." in said["1000", "1"]


def test_f1_keeps_the_label_that_a_run_was_begun_with(finetune_base, tmp_path, capsys):
    """Up to 1.0 the last one; a run cannot be asked for another."""
    paths = write_uneven(tmp_path, 48, every=3)
    given = {**OWN_TASK, "custom__metrics": ("f1",)}
    folder = tmp_path / "run"
    finetune.run(custom(finetune_base, paths, **given), str(folder))
    assert "| f1 of bad | dev |" in capsys.readouterr().out
    with pytest.raises(UserError, match=r"custom\.positive is 'good', saved 'bad'"):
        other = custom(finetune_base, paths, **given, custom__positive="good")
        finetune.run(other, str(folder))
    saved = json.loads((folder / "config.json").read_text())
    del saved["custom"]["positive"]
    (folder / "config.json").write_text(json.dumps(saved))
    finetune.run(custom(finetune_base, paths, **given), str(folder))
    said = capsys.readouterr().out
    assert "Nothing to do" in said and "| f1 of good | dev |" in said


def test_of_several_seeds_the_best_keeps_its_checkpoints(
    finetune_base, tmp_path, capsys
):
    """It has the name of the task, and labels new text."""
    paths = {
        split: write_tsv(tmp_path / f"{split}.tsv", named(rows("sst2", 32, seed)))
        for seed, split in enumerate(("train", "dev"))
    }
    config = custom(
        finetune_base,
        paths,
        custom__name="reviews-1",
        custom__head="classification",
        custom__text=("sentence",),
        seeds=(0, 1),
    )
    assert config.default_workdir == "runs/finetune/reviews-1"
    finetune.run(config, str(tmp_path / "run"))
    said = capsys.readouterr().out
    folders = sorted((tmp_path / "run").glob("*/*-seed?"))
    (kept,) = [each for each in folders if (each / "checkpoints").exists()]
    scores = {each: result_of(each)["dev"]["accuracy"] for each in folders}
    assert scores[kept] == max(scores.values())
    assert f"Checkpoints are deleted, but those of {kept}, unless" in said
    assert "| reviews-1 | pre-trained | accuracy | " in said
    assert open_run(str(kept)).step == result_of(kept)["best_step"]
    # Labels come from it, whether it or the folder of all is named.
    assert [kept_run(str(each)) for each in (kept, kept.parents[1])] == [str(kept)] * 2
    finetune.run(config, str(tmp_path / "run"))
    assert (kept / "checkpoints").exists()
    assert "Nothing to do: all 2 runs" in capsys.readouterr().out


def test_the_best_of_all_that_share_a_folder_keeps_its_checkpoints(tmp_path):
    """Also if another is equally good, and its checkpoints are gone."""
    path = write_tsv(tmp_path / "t.tsv", named(rows("sst2", 4, 0)))
    config = custom({"init_from": "run"}, {"train": path, "dev": "d.tsv"}, **OWN_TASK)
    (task,), config = select_tasks(config)
    plan = suite.plan_runs(
        {"pretrained": config}, [task], range(4), epath.Path(tmp_path)
    )
    scores = (0.7, 0.9, 0.9, 0.8)
    results = [(r, {"dev": {"accuracy": s}}) for r, s in zip(plan, scores, strict=True)]
    for run in plan:
        write_config(run.folder, run.config)
        if run != plan[1]:
            (run.folder / "checkpoints" / "4").mkdir(parents=True)
            (run.folder / "checkpoints" / "4" / "manifest.json").write_text("{}")
    finetune._delete_checkpoints(results)
    kept = [path.parent.name for path in tmp_path.rglob("checkpoints")]
    assert kept == ["pretrained-seed2"]
    finetune._delete_checkpoints(results[::-1])
    assert [path.parent.name for path in tmp_path.rglob("checkpoints")] == kept


def test_folds_are_runs_whose_scores_share_a_line(
    finetune_base, tmp_path, monkeypatch, carried_out
):
    """They can be divided among commands, as seeds can."""
    path = write_tsv(tmp_path / "train.tsv", named(rows("sst2", 30, 0)))
    folder = tmp_path / "run"
    for seed, folds in ((0, 1), (0, 0), (1, 0)):
        given = {"data__folds": 3, "data__fold": folds, "seeds": (seed, 5)}
        paths = {"train": path}
        finetune.run(custom(finetune_base, paths, **OWN_TASK, **given), str(folder))
    folders = [f"custom/pretrained-fold{n}-seed{s}" for n in (1, 2, 3) for s in (0, 5)]
    more = [f"custom/pretrained-fold{n}-seed1" for n in (1, 2, 3)]
    assert carried_out == [*folders, *more]
    (lines,) = json.loads((folder / "all_results.json").read_text())["custom"].values()
    assert len(lines) == 9
    table = (folder / "results.md").read_text()
    assert table.count("| custom | pre-trained |") == 1
    assert "| custom | pre-trained | accuracy | dev | 50.0 (50.0 to 50.0) |" in table
    assert "custom: 9 runs (3 folds, 3 seeds); each fold is scored on" in table


@pytest.mark.parametrize("name", ["../x", "a/b", "two words", ".hidden"])
def test_the_name_of_a_task_of_ones_own_may_be_a_folders(finetune_base, name):
    with pytest.raises(UserError, match=r"custom\.name=.* names a folder"):
        custom(finetune_base, {}, custom__name=name)


@pytest.fixture
def squares(monkeypatch):
    """A metric of any range, a sum of squares: the lowest is the best."""

    def squares(predictions, scores):
        return float(np.square(predictions - scores).sum())

    lowest_is_best = Metric(squares, lowest=0.0, highest_is_best=False)
    monkeypatch.setitem(METRICS, "squares", lowest_is_best)


def test_a_run_on_ones_own_labels_says_where_it_is_wrong(finetune_base, tmp_path):
    """Scores by label and with intervals, baselines of each split, texts, figures."""
    paths = {
        split: write_tsv(tmp_path / f"{split}.tsv", named(rows("sst2", 32, seed)))
        for seed, split in enumerate(("train", "dev", "test"))
    }
    config = custom(finetune_base, paths, **OWN_TASK, figure=".svg")
    finetune.run(config, str(tmp_path / "run"))
    result = result_of(tmp_path / "run")
    for split in ("dev", "test"):
        scores = result[split]
        fitting = {"accuracy", "f1", "macro_f1", "balanced_accuracy", "matthews"}
        assert scores["intervals"].keys() == {*fitting, "log_loss", "brier"}
        assert scores.keys() > scores["intervals"].keys()
        by_label = [row[k] for k, row in enumerate(scores["confusion"])]
        recalls = [label["recall"] for label in scores["labels"].values()]
        assert recalls == [right / 16 for right in by_label]
        assert 0 <= scores["calibration_error"] <= 1
    assert result["majority"]["log_loss"] == pytest.approx(math.log(2))
    assert result["test_baselines"]["bag_of_words"]["n"] == 32
    table = (tmp_path / "run" / "results.md").read_text()
    assert "| f1 of good | test | " in table
    wrong = [
        line
        for line in read_lines(tmp_path / "run" / "predictions" / "test.jsonl")
        if line["prediction"] != line["label"]
    ]
    first = max(wrong, key=lambda line: line["probabilities"][line["prediction"]])
    errors = table.partition(f"most confident of {len(wrong)} errors:")[2]
    assert f" | {first['text']['sentence']} | " in errors.splitlines()[4]
    plots = tmp_path / "run" / "plots"
    cells = (plots / "confusion.csv").read_text().splitlines()
    assert cells[:2] == [
        "task,split,true,predicted,n",
        f"custom,test,bad,bad,{result['test']['confusion'][0][0]}",
    ]
    assert len((plots / "reliability.csv").read_text().splitlines()) > 1
    assert all(
        (plots / f"{name}.svg").exists() for name in ("confusion", "reliability")
    )


@pytest.fixture
def similarity(finetune_base, made_once, squares):
    """`similarity(score_loss)`: a run on a task of scores, and its configuration."""

    def make(score_loss):
        made = made_once(f"examples_{score_loss}", write_examples)
        config = custom(
            finetune_base,
            {split: made / f"{split}.jsonl" for split in ("train", "dev", "test")},
            custom__head="similarity",
            custom__text=("sentence1", "sentence2"),
            custom__score_range=(0, 5),
            custom__metrics=("squares", "pearson"),
            head__score_loss=score_loss,
            eval__first_epoch_steps=(2,),
        )
        name = f"similarity_{score_loss}"
        return made_once(name, lambda folder: finetune.run(config, str(folder))), config

    def write_examples(folder):
        for seed, split in enumerate(("train", "dev", "test")):
            made = rows("stsb", 12 if split == "dev" else 32, seed)
            write_lines(folder / f"{split}.jsonl", made)

    return make


@pytest.mark.parametrize(
    "score_loss", ["soft_labels", pytest.param("regression", marks=pytest.mark.slow)]
)
def test_a_similarity_of_ones_own_has_scores(similarity, score_loss, capsys):
    run, _ = similarity(score_loss)
    result = result_of(run)
    assert -1 <= result["dev"]["pearson"] <= 1 and result["test"]["n"] == 32
    lines = read_lines(run / "predictions" / "test.jsonl")
    assert [line["label"] for line in lines] == [0.0, 5.0] * 16
    assert all(isinstance(line["prediction"], float) for line in lines)
    assert not any("probabilities" in line for line in lines)
    new = load_config("", file="predict", init_from=str(run), text="a\tb")
    capsys.readouterr()
    predict.run(config_lib.load(new.to_dict()), "")
    header, row = capsys.readouterr().out.splitlines()
    assert header == "score\ttext"
    assert re.fullmatch(r"-?\d+\.\d{3}\ta \| b", row)


def test_a_metric_of_any_range_takes_one_entry(similarity, tmp_path):
    """It ranks the states, and it is shown as it is."""
    made, config = similarity("soft_labels")
    run = shutil.copytree(made, tmp_path / "run")
    finetune.run(config, str(run))  # only reads the results back
    found = read_finished(epath.Path(run))
    records = read_metrics(run / "metrics.jsonl")
    values = {r["step"]: r["valid_squares"] for r in records if "valid_squares" in r}
    assert len(values) == 2 and min(values.values()) > 1.0
    best = min(values, key=values.get)
    assert found.result["best_step"] == best
    value = found.result["dev"]["squares"]
    assert value == pytest.approx(values[best], rel=1e-6)
    table = (run / "results.md").read_text()
    assert f"| custom | pre-trained | squares | dev | {value:.1f} (" in table
    assert "Average" not in table and "All values but squares are x 100" in table
    assert "Lower is better: squares." in table
    scores = score_table([found]).query("metric == 'squares'")
    scores = scores.assign(title="Custom", setting=0.5)
    (axes,) = COMPARISONS["aux_lm_weight"].draw(scores).axes
    assert axes.get_ylabel() == "squares"


def test_a_multiple_choice_of_ones_own(finetune_base, tmp_path):
    paths = {}
    for seed, split in enumerate(("train", "dev")):
        made = rows("copa", 16, seed)
        for row in made:
            row["options"] = [row.pop("choice1"), row.pop("choice2")]
            row["label"] = "AB"[row["label"]]
        paths[split] = write_lines(tmp_path / f"{split}.jsonl", made)
    config = custom(
        finetune_base,
        paths,
        custom__head="multiple_choice",
        custom__text=("premise",),
        custom__choices=("options",),
    )
    finetune.run(config, str(tmp_path / "run"))
    lines = read_lines(tmp_path / "run" / "predictions" / "dev.jsonl")
    assert [line["label"] for line in lines] == ["A", "B"] * 8
    assert list(lines[0]["probabilities"]) == ["A", "B"]


def test_a_task_of_ones_own_without_a_file_is_refused(finetune_base, tmp_path):
    train = write_lines(tmp_path / "train.jsonl", named(rows("sst2", 16, 0)))
    head = {"custom__head": "classification", "custom__text": ("sentence",)}
    with pytest.raises(FileNotFoundError, match=r"dev split; .*--config.data.dev=FILE"):
        finetune.run(
            custom(finetune_base, {"train": train}, **head), str(tmp_path / "r")
        )
    with pytest.raises(FileNotFoundError, match=r"no/such.jsonl does not exist"):
        paths = {"train": "no/such.jsonl", "dev": train}
        finetune.run(custom(finetune_base, paths, **head), str(tmp_path / "r"))
