"""What every job does with the outputs that its user names."""

import os
import re

import pytest
from tiny_run import job_config

from gpt1_jax import config as config_lib
from gpt1_jax.data import files


def run_job(job, workdir="", **values):
    config = job_config(job, **values)
    config_lib.JOBS[job].import_module().run(config, str(workdir))


NO_RUN = {"init_from": "no/run"}


@pytest.mark.parametrize(
    ("job", "values"),
    [
        ("features", {**NO_RUN, "input": "a.txt", "output": "OUT.npz"}),
        ("generate", {**NO_RUN, "prompt": "a", "output": "OUT.jsonl"}),
        ("predict", {**NO_RUN, "text": "a", "output": "OUT.csv"}),
        ("surprisal", {**NO_RUN, "text": "a", "figure": "OUT.png"}),
        ("explore", {"runs": "no/run", "output": "OUT.html"}),
        ("zero_shot", NO_RUN),
        ("convert", NO_RUN),
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
    workdir = output if job in ("zero_shot", "convert", "report") else ""
    with pytest.raises(OSError, match=r"written .Not a directory.; name another"):
        run_job(job, workdir, **values)


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
    origin = str(finetuned if job == "predict" else pretrained)
    with open(tmp_path / "out", "wb") as file:
        output = f"/dev/fd/{file.fileno()}"
        run_job(job, init_from=origin, output=output, **values)
    assert (tmp_path / "out").read_text().startswith(begin)
    assert "bits" not in capsys.readouterr().out


@pytest.mark.parametrize("job", ["generate", "predict"])
def test_the_input_is_not_replaced(tmp_path, job):
    path = tmp_path / "lines.jsonl"
    path.write_text('{"prompt": "abc", "mine": 1}\n')
    with pytest.raises(FileExistsError, match=r"would replace .*, which is"):
        run_job(job, **NO_RUN, input=str(path), output=str(path))
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
    values = {**values, "runs" if job == "report" else "init_from": str(pretrained)}
    neighbours = ("log.txt", ".gitignore", "lost+found/a")
    for folder in ("used", "out"):
        for name in (*neighbours, *([refused] if folder == "used" else [])):
            (tmp_path / folder / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / folder / name).write_text("mine")
    with pytest.raises(FileExistsError, match=re.escape(refused)):
        run_job(job, tmp_path / "used", **values)
    run_job(job, tmp_path / "out", **values)
    assert (tmp_path / "out" / makes).exists()
    for name in neighbours:
        assert (tmp_path / "out" / name).read_text() == "mine"
