"""What every job does with the outputs that its user names."""

import os
import re

import pytest
from tiny_run import job_config

from gpt1_jax import config as config_lib
from gpt1_jax.data import files

TEXT = {"init_from": "no/run", "text": "a"}


@pytest.mark.parametrize(
    ("job", "values"),
    [
        ("features", {"init_from": "no/run", "input": "a.txt", "output": "OUT.npz"}),
        ("generate", {"init_from": "no/run", "prompt": "a", "output": "OUT.jsonl"}),
        ("predict", {**TEXT, "output": "OUT.csv"}),
        ("surprisal", {**TEXT, "figure": "OUT.png"}),
        ("zero_shot", {"init_from": "no/run"}),
        ("explore", {"runs": "no/run", "output": "OUT.html"}),
        ("convert", {"init_from": "no/run"}),
        ("report", {"runs": "no/run"}),
    ],
    ids=str,
)
def test_an_output_that_cannot_be_written_is_refused_before_any_work(
    tmp_path, job, values
):
    (tmp_path / "file").touch()
    output = str(tmp_path / "file" / "out")
    values = {key: value.replace("OUT", output) for key, value in values.items()}
    config = job_config(job, **values)
    run = config_lib.JOBS[job].import_module().run
    with pytest.raises(OSError, match=r"written .Not a directory.; name another"):
        run(config, output if config.writes_folder else "")


@pytest.mark.parametrize(
    ("job", "values", "begin"),
    [
        ("generate", {"prompt": "abc"}, '{"prompt": "abc", '),
        ("predict", {"text": "bcd aaaa efg"}, '{"id": "0", '),
        ("surprisal", {"text": "abcd efg"}, "step,line,"),
    ],
    ids=str,
)
def test_a_device_takes_the_output(
    pretrained, finetuned, capsys, tmp_path, job, values, begin
):
    """As /dev/stdout does, of which nothing but the table may be read."""
    with open(tmp_path / "out", "wb") as file:
        values = {**values, "output": f"/dev/fd/{file.fileno()}"}
        values["init_from"] = str(finetuned if job == "predict" else pretrained)
        config_lib.JOBS[job].import_module().run(job_config(job, **values), "")
    assert (tmp_path / "out").read_text().startswith(begin)
    assert "bits" not in capsys.readouterr().out


@pytest.mark.parametrize("job", ["generate", "predict"])
def test_the_input_is_not_replaced(tmp_path, job):
    path = tmp_path / "lines.jsonl"
    path.write_text('{"prompt": "abc", "mine": 1}\n')
    values = {"init_from": "no/run", "input": str(path), "output": str(path)}
    run = config_lib.JOBS[job].import_module().run
    with pytest.raises(FileExistsError, match=r"would replace .*, which is"):
        run(job_config(job, **values), "")
    assert "mine" in path.read_text()


def test_a_file_in_shared_memory_is_no_device():
    path = f"/dev/shm/{os.getpid()}.csv"
    assert not files.is_stream(path) and files.is_stream("/dev/stdout")


@pytest.mark.parametrize(
    ("job", "values", "makes", "refused"),
    [
        ("convert", {"target": "openai"}, "params_shapes.json", "README.md"),
        ("convert", {"target": "huggingface"}, "model.safetensors", "config.json"),
        ("report", {}, "report.html", "metrics.jsonl"),
    ],
    ids=str,
)
def test_files_beside_the_results_hinder_no_job(
    pretrained, tmp_path, job, values, makes, refused
):
    """Unless the job would overwrite one."""
    source = "runs" if job == "report" else "init_from"
    config = job_config(job, **values, **{source: str(pretrained)})
    run = config_lib.JOBS[job].import_module().run
    neighbours = ("log.txt", "slurm-1.out", ".DS_Store", ".gitignore", "lost+found/a")
    for folder in ("used", "out"):
        for name in (*neighbours, *([refused] if folder == "used" else [])):
            (tmp_path / folder / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / folder / name).write_text("mine")
    with pytest.raises(FileExistsError, match=re.escape(refused)):
        run(config, str(tmp_path / "used"))
    run(config, str(tmp_path / "out"))
    assert (tmp_path / "out" / makes).exists()
    for name in neighbours:
        assert (tmp_path / "out" / name).read_text() == "mine"
