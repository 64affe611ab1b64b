"""Jobs are found by name: the program's own, and modules outside of it."""

import dataclasses
import inspect
import json
import sys
from pathlib import Path

import pytest
from tiny_run import ROOT, load_config, run_program

from gpt1_jax import config as config_lib
from gpt1_jax.config import JOBS, STUDIES, load, usage
from gpt1_jax.config.saved import load_saved
from gpt1_jax.errors import UserError
from gpt1_jax.formats import RUN_FOLDER

FIRST = {
    "finetune": {"init_from": "run"},
    "predict": {"init_from": "run", "text": "a"},
    "generate": {"init_from": "run"},
    "convert": {"init_from": "run"},
    "features": {"init_from": "run", "input": "a.txt", "output": "a.npz"},
    "surprisal": {"init_from": "run", "text": "a"},
    "zero_shot": {"init_from": "run"},
    "minimal_pairs": {"init_from": "run"},
    "interventions": {"init_from": "run"},
    "babylm": {"init_from": "run", "data.dir": "evaluation_data"},
    "verify": {"runs": "runs/suite"},
    "reading_times": {"init_from": "run", "data.times": "times.csv"},
    "batches": {"init_from": "run", "steps": (1,)},
    "explore": {"runs": "runs/pretrain/small"},
}


STUDIES_FOLDER = ROOT / "gpt1_jax" / "studies"


def stems(folder: Path) -> set[str]:
    return {path.stem for path in folder.glob("*.py")} - {"__init__"}


def test_configs_jobs_and_the_registry_are_one_set():
    jobs = stems(ROOT / "gpt1_jax" / "jobs")
    folders = {path.parent.name for path in STUDIES_FOLDER.glob("*/job.py")}
    assert folders == {named.partition(":")[0] for named in STUDIES.values()}
    assert stems(ROOT / "configs") == set(JOBS) == jobs | set(STUDIES)


@pytest.mark.parametrize("job", JOBS)
def test_every_job_runs_a_configuration_in_a_folder(job):
    run = JOBS[job].import_module().run
    assert list(inspect.signature(run).parameters) == ["config", "workdir"]
    values = load_config("", file=job, **FIRST.get(job, {}))
    config = load(values.to_dict())
    assert type(config) is JOBS[job].config_class() and config.job == job
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.preset = "other"


MODULE = """
import dataclasses

from etils import epath

from gpt1_jax.config.checks import Free, LocalFile, Positive
from gpt1_jax.config.sections import JobConfig
from gpt1_jax.runs import folder as run_folder
from gpt1_jax.runs.console import say
from gpt1_jax.runs.resume import begin_run


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(JobConfig):
    input: LocalFile = "" # to read
    longest: Positive[int] = 4
    width: Free[Positive[int]]


def run(config, workdir):
    folder = run_folder.locate_run(workdir)
    config = begin_run(folder, config)
    run_folder.write_config(folder, config)
    lengths = [len(word) for word in epath.Path(config.input).read_text().split()]
    (folder / "scores" / "lengths").mkdir(parents=True, exist_ok=True)
    say(f"Lengths: {[min(n, config.longest) for n in lengths]} in {workdir}.")
"""
CONFIG = """
'''Counts the letters of words.'''

from gpt1_jax.config import default_config


def get_config(preset="few"):
    config = default_config("word_lengths", preset, ("few", "many"))
    config.width = 80  # a key without a default
    return config.lock()
"""


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """A folder from which Python imports, with a job; it is forgotten afterwards."""
    (tmp_path / "word_lengths.py").write_text(MODULE)
    (tmp_path / "my_config.py").write_text(CONFIG)
    (tmp_path / "words.txt").write_text("a word counts")
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if not name.startswith("gpt1_jax"):
            del sys.modules[name]


VALUES = {"preset": "few", "input": "words.txt", "longest": 4, "width": 80}


def test_a_module_outside_the_package_is_a_job(lab):
    (lab / "my_lab").mkdir()
    (lab / "my_lab" / "lengths.py").write_text(MODULE)
    for name in ("word_lengths", "my_lab.lengths"):
        config = load({"job": name, **VALUES})
        assert config.longest == 4
        assert config.default_workdir == f"runs/{name}/few"
        job = config_lib.find_job(name)
        assert job.config_class() is type(config)
        assert job.import_module().Config is type(config)
    with pytest.raises(UserError, match=r"config.longest=0 must be positive"):
        load({"job": "word_lengths", **VALUES, "longest": 0})
    (lab / "needs.py").write_text("import no_such_package")
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        load({"job": "needs", **VALUES})


@pytest.mark.parametrize(
    "name",
    [
        *("word_length", "json", "my_lab.lengths", "word_lengths.run"),
        *("", "../word_lengths", 3, ["pretrain"]),
        *("without_run", "without_config", "with_another_config"),
    ],
)
def test_what_is_no_job_is_refused_in_one_line_with_the_way_out(lab, name):
    text = MODULE
    (lab / "without_run.py").write_text(text.replace("def run", "def walk"))
    (lab / "without_config.py").write_text(text.replace("class Config", "class C"))
    (lab / "with_another_config.py").write_text("Config = dict\ndef run(c, w): pass")
    with pytest.raises(UserError) as error:
        load({"job": name, **VALUES})
    (line,) = str(error.value).splitlines()
    assert line.startswith(f"config.job={name!r} is not known; choose one of pretrain")
    assert "Config" in line and "run(config, workdir)" in line


def test_a_key_that_says_the_format_of_folders_is_refused(lab):
    text = MODULE.replace("    longest:", "    format: str\n    longest:")
    (lab / "with_format.py").write_text(text)
    with pytest.raises(UserError, match=r"with_format\.Config has the key format, wh"):
        load({"job": "with_format", **VALUES, "format": "csv"})


def test_a_strangers_folder_imports_nothing(lab):
    (lab / "planted.py").write_text("raise SystemExit('imported')")
    folder = lab / "run"
    folder.mkdir()
    for name in ("planted", "word_lengths"):
        written = {**RUN_FOLDER.stamp(), "job": name, **VALUES}
        (folder / "config.json").write_text(json.dumps(written))
        with pytest.raises(UserError, match=f"config.job='{name}' is not known"):
            load_saved(folder / "config.json")
        assert name not in sys.modules
    config = load({"job": "word_lengths", **VALUES})
    assert load_saved(folder / "config.json") == config


def test_a_job_of_ones_own_runs_from_the_command_line_and_resumes(lab, monkeypatch):
    """With the values of its configuration, but for those that are free."""
    file = "--config=my_config.py:few"
    code, output = run_program(file, "--config.input=words.txt", cwd=lab)
    assert code == 0, output
    assert "Lengths: [1, 4, 4] in runs/word_lengths/few." in output
    saved = json.loads((lab / "runs/word_lengths/few/config.json").read_text())
    assert saved == {**RUN_FOLDER.stamp(), "job": "word_lengths", **VALUES}
    monkeypatch.chdir(lab)
    shown = usage.describe_usage(["main", file, "--help"])
    assert "  --config.input=''\n      to read\n" in shown

    def run(**changes):
        config = load({"job": "word_lengths", **VALUES, **changes})
        module = config_lib.find_job("word_lengths").import_module()
        module.run(config, "runs/word_lengths/few")

    run(width=7)
    with pytest.raises(UserError, match=r"config\.longest is 3, saved 4\."):
        run(longest=3)
