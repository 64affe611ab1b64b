"""Runs whose folder and text are on Google Cloud Storage: a bucket on this machine."""

import signal

import bucket
import pytest
from tiny_run import as_flags, assert_same_run, run_program, signal_at, tiny_overrides

pytest.importorskip("gcsfs")
pytestmark = pytest.mark.slow
# "get", "put" or "rm", and their arguments.
TOOL = """
import fsspec, sys
getattr(fsspec.filesystem("gs"), sys.argv[1])(*sys.argv[2:], recursive=True)
"""


@pytest.fixture
def variables():
    """What sends a program to an empty bucket."""
    with bucket.serving() as variables:
        yield variables


def test_a_killed_run_on_gs_equals_one_on_disk(corpus_dir, variables, tmp_path):
    base = tiny_overrides(corpus_dir)
    program = "--config=configs/pretrain.py:quickstart"

    def tool(*arguments):
        program = ("-c", TOOL, *map(str, arguments))
        code, output = run_program(env=variables, program=program)
        assert code == 0, output

    def run(workdir, code=0, **more):
        flags = [program, f"--workdir={workdir}", *as_flags(base)]
        found, output = run_program(*flags, env=variables, **more)
        assert found == code, output
        return output

    run(tmp_path / "local")
    tool("put", corpus_dir / "texts", f"gs://{bucket.NAME}/texts")
    base["data.train"] = f"gs://{bucket.NAME}/texts"
    folder = f"gs://{bucket.NAME}/runs/a"
    for step in (4, 8):  # saved at that moment
        kill = signal_at(f"step      {step}/12", signal.SIGKILL)
        assert "damaged" not in run(folder, -signal.SIGKILL, meanwhile=kill)
        tool("rm", f"{folder}/run.lock")  # else the next waits for a minute
    base["data.train"] = str(corpus_dir / "texts")
    output = run(folder)
    assert "Resuming from the checkpoint of step " in output
    assert "damaged" not in output
    tool("get", folder, tmp_path / "copied")
    assert_same_run(tmp_path / "local", tmp_path / "copied", 12)
    code, output = run_program(
        "--config=configs/generate.py",
        f"--config.init_from={folder}",
        "--config.prompt=abc",
        env=variables,
    )
    assert code == 0, output
