"""The report job, as its user runs it."""

import shutil
import subprocess
import sys
import zipfile

import pytest
from made_up_runs import write_one_of_each
from tiny_run import ROOT, job_config, run_program

from gpt1_jax.errors import UserError
from gpt1_jax.jobs import report


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder with one made-up run of each kind."""
    return write_one_of_each(tmp_path_factory.mktemp("runs"))


def make(workdir, runs, **values):
    report.run(job_config("report", runs=str(runs), **values), str(workdir))
    return {p.name: p.read_bytes() for p in workdir.rglob("*") if p.is_file()}


def test_a_report_on_runs_of_the_program(pretrained, finetuned, tmp_path, capsys):
    files = make(tmp_path / "out", f"{pretrained},{finetuned}", title="Ours")
    names = {"report.html", "report.md", "pretraining.png", "pretraining.csv"}
    assert files.keys() == names
    assert f"Report: {tmp_path / 'out' / 'report.html'}" in capsys.readouterr().out
    markdown = files["report.md"].decode()
    assert markdown.startswith("# Ours\n")
    assert "8 x cpu" in markdown and "| SST-2 | accuracy | 12 |" in markdown
    assert "12 updates of 8 sequences (320 tokens), seed 0" in markdown


WITHOUT_DEVICES = """
import jax, runpy
jax.config.update("jax_platforms", "none")
runpy.run_module("gpt1_jax.main", run_name="__main__", alter_sys=True)
"""


def test_no_device_is_asked(runs, tmp_path):
    flags = (f"--config.runs={runs}", f"--workdir={tmp_path / 'out'}")
    program = ("-c", WITHOUT_DEVICES)
    code, output = run_program("--config=configs/report.py", *flags, program=program)
    assert code == 0 and "Report: " in output and "Time: " not in output


def test_bad_input_takes_one_line_and_leaves_nothing(runs, tmp_path):
    shutil.copytree(runs, tmp_path / "runs")
    (tmp_path / "runs" / "finetune" / "sst2" / "results.json").write_text("{")
    for given, part in (
        (tmp_path / "runs", "sst2/results.json cannot be read as JSON"),
        (tmp_path / "none", "none, which is no folder"),
    ):
        with pytest.raises((UserError, OSError), match=part) as error:
            make(tmp_path / "out", given)
        assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_wheel_holds_templates_and_configurations(tmp_path):
    """Built from a copy: what an earlier build left in a checkout would be in it.

    Without isolation, which would fetch setuptools: tests need no network.
    """
    copy = tmp_path / "copy"
    shutil.copytree(ROOT / "gpt1_jax", copy / "gpt1_jax")
    for name in ("setup.cfg", "pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, copy)
    build = [sys.executable, "-W", "ignore", "-m", "build", "--wheel", "--no-isolation"]
    subprocess.run(
        [*build, f"--outdir={tmp_path}", str(copy)], check=True, capture_output=True
    )
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    for folder in ("report/templates", "studies/explore/templates", "configs"):
        files = (ROOT / "gpt1_jax" / folder).iterdir()
        assert sorted(path.name for path in files if path.is_file()) == sorted(
            name.split("/")[-1] for name in names if f"gpt1_jax/{folder}/" in name
        )
