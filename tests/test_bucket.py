"""Runs whose folder and text are on Google Cloud Storage: a bucket on this machine."""

import signal

import bucket
import pytest
from joined import together
from tiny_run import as_flags, assert_same_run, run_program, signal_at, tiny_overrides

pytest.importorskip("gcsfs")
pytestmark = pytest.mark.slow
# "get", "put" or "rm", and their arguments.
TOOL = """
import fsspec, sys
getattr(fsspec.filesystem("gs"), sys.argv[1])(*sys.argv[2:], recursive=True)
"""
# A program that notes in its cache folder that it has tokenised.
NOTING = """
import os, pathlib
from gpt1_jax import program
from gpt1_jax.data import corpus

def note(*arguments, write=corpus._write_corpus):
    pathlib.Path(os.environ["XDG_CACHE_HOME"], "tokenised").touch()
    write(*arguments)

corpus._write_corpus = note
program.run()
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
    flags = as_flags({"init_from": folder, "prompt": "abc"})
    code, output = run_program("--config=configs/generate.py", *flags, env=variables)
    assert code == 0, output


def test_a_pod_prepares_its_corpus_once(run_main, variables, tmp_path):
    """Two joined processes, each with a disk of its own."""

    def start(joining):
        host = tmp_path / joining["JAX_PROCESS_ID"]
        return run_main(
            "--distributed=on",
            f"--workdir={tmp_path / 'pod'}",
            f"--config.data.cache_dir=gs://{bucket.NAME}/cache",
            env={**variables, **joining, "XDG_CACHE_HOME": str(host)},
            program=("-c", NOTING),
        )

    results = together(start)
    assert [code for code, _ in results] == [0, 0], results
    assert len(list(tmp_path.glob("*/tokenised"))) == 1
    shards = [
        {path.name: path.read_bytes() for path in folder.iterdir()}
        for folder in tmp_path.glob("[01]/gpt1_jax/corpora/*")
    ]
    assert len(shards) == 2 and shards[0] == shards[1]
