"""How tests of studies run a job on the tiny pre-trained run."""

import pytest
from tiny_run import job_config
from tiny_tasks import write_lines

from gpt1_jax import config as config_lib
from gpt1_jax.tasks import uncertainty


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch):
    """Standard errors of CoLA take a second each, and are tested with the metrics."""
    monkeypatch.setattr(uncertainty, "_RESAMPLES", 10)


@pytest.fixture
def run_job(pretrained, corpus_dir, tmp_path, capsys):
    """`run_job(file, preset, to="out", **values)`: what the job of a file prints.

    The run is `pretrained`, and the folder `to` is the job's, if it writes one.
    """

    def run(file, preset="", to="out", **values):
        given = {"init_from": str(pretrained), **values}
        given["compilation_cache_dir"] = str(corpus_dir / "xla")
        config = job_config(file, preset, **given)
        job = config_lib.JOBS[config.job].import_module()
        job.run(config, str(tmp_path / to) if config.writes_folder else "")
        return capsys.readouterr().out

    return run


@pytest.fixture
def run_own_pairs(run_job, tmp_path):
    """`run_own_pairs(file, rows, **values)`: the same on the user's own pairs."""

    def run(file, rows, **values):
        path = write_lines(tmp_path / "pairs.jsonl", rows)
        files = {"data__source": "files", "data__files": str(path), **values}
        return run_job(file, "custom", **files)

    return run
