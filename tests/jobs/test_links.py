"""Links and files that a user has put into a run folder: every job works with them."""

import contextlib
import os
import shutil
from pathlib import Path

import pytest
from tiny_run import assert_same_run, load_config, tiny_overrides
from tiny_tasks import finetune_config

from gpt1_jax import config as config_lib
from gpt1_jax.errors import UserError
from gpt1_jax.jobs import finetune, pretrain

NOTES = (
    *(".DS_Store", "notes.txt", "checkpoints/notes.txt", "checkpoints/old/notes.txt"),
    *("checkpoints/12/notes.txt", "checkpoints/12/state/.DS_Store", "tokenizer/a.txt"),
)


@pytest.fixture
def scratch(tmp_path):
    """A folder, on another disk if there is one."""
    shm = Path(f"/dev/shm/gpt1_jax-test-{os.getpid()}")
    folder = shm if shm.parent.is_dir() else tmp_path / "scratch"
    folder.mkdir()
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def make_linked(tmp_path, scratch):
    """`make_linked(run)`: a copy whose large folders are links, with notes in it."""

    def make(run):
        folder = tmp_path / "linked"
        shutil.copytree(run, folder)
        for name in ("checkpoints", "plots", "metrics.jsonl"):
            if (folder / name).exists():
                shutil.move(folder / name, scratch / name)
                (folder / name).symlink_to(scratch / name)
        (folder / "latest").symlink_to("checkpoints/12")
        (folder / "old").symlink_to("checkpoints/4")  # which is no more
        (folder / "up").symlink_to("..")
        (folder / "checkpoints" / "latest").symlink_to("12")
        for name in NOTES:
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text("mine")
        return folder

    return make


def run_job(job, workdir="", **values):
    config = config_lib.load(load_config("", file=job, **values).to_dict())
    config_lib.JOBS[job].import_module().run(config, str(workdir))


@pytest.mark.parametrize(
    ("job", "values", "writes"),
    [
        ("generate", {"prompt": "abc", "output": "OUT.jsonl"}, "OUT.jsonl"),
        ("surprisal", {"text": "abc def", "output": "OUT.csv"}, "OUT.csv"),
        ("batches", {"steps": (1,), "output": "OUT.jsonl"}, "OUT.jsonl"),
        ("explore", {"runs": "RUN", "output": "OUT.html"}, "OUT.html"),
        ("verify", {"runs": "RUN", "output": "OUT.json"}, "OUT.json"),
        ("verify", {"runs": "RUN", "losses": 1}, ""),
        ("report", {"runs": "RUN"}, "report.md"),
        ("convert", {"target": "openai", "step": "best"}, "params_shapes.json"),
        ("convert", {"target": "huggingface", "step": "all"}, "trajectory.json"),
    ],
    ids=str,
)
def test_jobs_read_a_run_with_links_and_notes(
    pretrained, make_linked, tmp_path, job, values, writes
):
    run, out = make_linked(pretrained), tmp_path / "out"
    places = {"RUN": run, "OUT": out / "OUT"}
    for name, place in places.items():
        values = {
            key: value.replace(name, str(place)) if isinstance(value, str) else value
            for key, value in values.items()
        }
    if "runs" not in values:
        values["init_from"] = str(run)
    run_job(job, out if job in ("report", "convert") else "", **values)
    assert not writes or (out / writes).exists()
    assert all((run / name).read_text() == "mine" for name in NOTES)


def test_training_goes_on_through_links(pretrained, make_linked, scratch, corpus_dir):
    """Files that are linked become copies, so that nothing behind them changes."""
    folder = make_linked(pretrained)
    shutil.rmtree(scratch / "checkpoints" / "12")
    before = (scratch / "metrics.jsonl").read_bytes()
    longer = {"model.max_seq_len": 40, "eval.sample_tokens": 4}
    config = load_config(**{**tiny_overrides(corpus_dir), **longer})
    pretrain.run(config_lib.load(config.to_dict()), str(folder))
    assert_same_run(pretrained, folder, 12)
    assert (folder / "checkpoints").is_symlink() and (folder / "plots").is_symlink()
    assert (scratch / "checkpoints" / "12" / "manifest.json").exists()
    assert (scratch / "metrics.jsonl").read_bytes() == before
    assert (folder / "checkpoints" / "notes.txt").read_text() == "mine"


def test_an_export_beside_notes_is_verified(pretrained, tmp_path):
    (tmp_path / "out" / "lost+found").mkdir(parents=True)
    for name in ("slurm-1.out", ".DS_Store", "notes.txt"):
        (tmp_path / "out" / name).write_text("mine")
    values = {"target": "huggingface", "init_from": str(pretrained)}
    run_job("convert", tmp_path / "out", **values)
    run_job("verify", runs=str(tmp_path / "out"))
    run_job("convert", tmp_path / "out" / "several", **values, step="all")
    (tmp_path / "out" / "several" / "notes").mkdir()
    run_job("verify", runs=str(tmp_path / "out" / "several"))


@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "sessions.json",
        "tokenizer",
        "plots/loss.png",
        "damaged_checkpoints",
        "checkpoints/8",
        "checkpoints/12.orbax-checkpoint-tmp",
        "checkpoints/999",
    ],
)
def test_what_is_behind_a_planted_link_stays(pretrained, corpus_dir, tmp_path, name):
    """The run goes on, or is refused."""
    folder = shutil.copytree(pretrained, tmp_path / "run")
    shutil.rmtree(folder / "checkpoints" / "12")
    victim = tmp_path / "victim"
    (victim / "folder").mkdir(parents=True)
    (victim / "folder" / "keep").write_text("precious")
    planted = folder / name
    if planted.is_dir():
        shutil.rmtree(planted)
    planted.unlink(missing_ok=True)
    is_file = name.endswith((".json", ".png"))
    planted.symlink_to(victim / "folder" / "keep" if is_file else victim / "folder")
    longer = {"model.max_seq_len": 40, "eval.sample_tokens": 4}
    config = load_config(**{**tiny_overrides(corpus_dir), **longer})
    with contextlib.suppress(UserError, OSError):
        pretrain.run(config_lib.load(config.to_dict()), str(folder))
    assert [path.name for path in (victim / "folder").iterdir()] == ["keep"]
    assert (victim / "folder" / "keep").read_text() == "precious"


def test_a_damaged_checkpoint_behind_a_link_is_set_aside(
    pretrained, make_linked, corpus_dir, capsys
):
    folder = make_linked(pretrained)
    (folder / "checkpoints" / "12" / "state" / "_METADATA").write_text("{")
    longer = {"model.max_seq_len": 40, "eval.sample_tokens": 4}
    config = load_config(**{**tiny_overrides(corpus_dir), **longer})
    pretrain.run(config_lib.load(config.to_dict()), str(folder))
    assert "step 12 is damaged" in capsys.readouterr().out
    assert_same_run(pretrained, folder, 12)


def test_a_model_is_fine_tuned_from_a_run_with_links(
    pretrained, make_linked, finetune_base, tmp_path
):
    origin = make_linked(pretrained)
    config = finetune_config("sst2", {**finetune_base, "init_from": str(origin)})
    (tmp_path / "out").mkdir()
    (tmp_path / "elsewhere").mkdir()
    for name in ("checkpoints", "plots"):
        (tmp_path / "out" / name).symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "notes.txt").write_text("mine")
    finetune.run(config, str(tmp_path / "out"))
    assert (tmp_path / "out" / "results.json").exists()
    assert (tmp_path / "elsewhere" / "notes.txt").read_text() == "mine"
