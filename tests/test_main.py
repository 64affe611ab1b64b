"""The program as its user runs it: a process of its own, signals and all."""

import concurrent.futures
import functools
import os
import signal
import socket

import numpy as np
import pytest
from etils import epath
from tiny_run import as_flags, assert_same_run, run_program, saved_state
from tiny_tasks import tiny_finetune_overrides, write_task

from gpt1_jax.runs import lock
from gpt1_jax.tasks.table import TASKS
from gpt1_jax.training.signals import EXIT_STOPPED

SLOW_STEPS = """
import time
from gpt1_jax.training import loop
read = loop._read
loop._read = lambda *a: (time.sleep(0.2), read(*a))
"""

KILLED_IN_SAVE = """
import os, signal
from gpt1_jax.runs.checkpoints import Checkpoints
write = Checkpoints._write_manifest
def die(self):
    if self._saving == {step}:
        os.kill(os.getpid(), signal.SIGKILL)
    write(self)
Checkpoints._write_manifest = die
"""


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    """A folder for the uninterrupted run, shared by the tests that compare."""
    return tmp_path_factory.mktemp("whole")


def uninterrupted(run_main, folder):
    if not (folder / "plots").exists():
        code, output = run_main(folder)
        assert code == 0, output
    return folder


def in_two_processes(run):
    """`run(*flags, env=..)` twice at once, joined by gloo: codes and outputs."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]

    def start(index):
        env = {
            "JAX_COORDINATOR_ADDRESS": f"localhost:{port}",
            "JAX_NUM_PROCESSES": "2",
            "JAX_PROCESS_ID": str(index),
        }
        return run("--distributed=on", env=env)

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        results = list(pool.map(start, range(2)))
    assert [code for code, _ in results] == [0, 0], results
    return [output for _, output in results]


def assert_close_states(one, two):
    """Arrays of two checkpoints, by name, to rounding."""
    assert one.keys() == two.keys()
    for name, value in one.items():
        np.testing.assert_allclose(two[name], value, atol=1e-6, err_msg=name)


def test_a_run_shows_what_it_does(run_main, whole_run):
    uninterrupted(run_main, whole_run)
    code, output = run_main(whole_run)
    assert code == 0, output
    assert "Resuming from the checkpoint of step 12" in output
    assert "Done: 12 steps" in output


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_exits_with_the_documented_code(
    run_main, whole_run, tmp_path, number
):
    uninterrupted(run_main, whole_run)
    code, output = run_main(
        tmp_path, before=SLOW_STEPS, signal_at=("step      6/12", number)
    )
    assert code == EXIT_STOPPED, output
    assert "Run the same command again to go on" in output
    stopped_at = max(int(p.name) for p in (tmp_path / "checkpoints").iterdir())
    assert 6 <= stopped_at < 12
    code, output = run_main(tmp_path)
    assert code == 0, output
    assert f"Resuming from the checkpoint of step {stopped_at}" in output
    assert_same_run(whole_run, tmp_path, 12)


@pytest.mark.slow
@pytest.mark.parametrize("step", [4, 8])
def test_kill_in_the_middle_of_a_save_loses_only_that_save(
    run_main, whole_run, tmp_path, step
):
    uninterrupted(run_main, whole_run)
    code, output = run_main(tmp_path, before=KILLED_IN_SAVE.format(step=step))
    assert code == -signal.SIGKILL, output
    code, output = run_main(tmp_path)
    assert code == 0, output
    resumed = f"Resuming from the checkpoint of step {step - 4}"
    assert (resumed in output) == (step > 4)
    assert_same_run(whole_run, tmp_path, 12)


@pytest.mark.slow
def test_two_processes_train_as_one_does(run_main, whole_run, tmp_path):
    """One device in each."""
    uninterrupted(run_main, whole_run)
    outputs = in_two_processes(functools.partial(run_main, tmp_path))
    assert "2 x cpu" in outputs[0] and "step" not in outputs[1]
    assert_close_states(saved_state(whole_run, 12), saved_state(tmp_path, 12))


@pytest.mark.slow
@pytest.mark.parametrize("task", ["rte", "copa"])
def test_two_processes_fine_tune_as_one_does(pretrained, corpus_dir, tmp_path, task):
    """With dropout; one host has longer texts than the other."""
    base = tiny_finetune_overrides(pretrained, tmp_path / "data", corpus_dir / "xla")
    write_task(tmp_path / "data", task, train=32, dev=12, test=10, labelled_test=True)
    # Biases of keys and of choices have no gradient but rounding, and Adam divides a
    # gradient by its size: not by less than this.
    flags = as_flags({**base, "eval.first_epoch_steps": "()", "optimizer.eps": 1e-4})
    config = f"--config=configs/finetune.py:{task}"
    alone, joined = (tmp_path / name for name in ("alone", "joined"))
    code, output = run_program(config, f"--workdir={alone}", *flags)
    assert code == 0, output
    run = functools.partial(run_program, config, f"--workdir={joined}", *flags)
    outputs = in_two_processes(run)
    assert "step" in outputs[0] and "step" not in outputs[1]
    assert_close_states(*(saved_state(folder, 12) for folder in (alone, joined)))
    results = [(folder / "results.json").read_text() for folder in (alone, joined)]
    assert results[0] == results[1]


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        (["--config.model.num_heads=3"], ["embed_dim=16", "num_heads=3"]),
        (["--config.data.train=no/such.txt"], ["no/such.txt", "names no file"]),
        (["--config.train.num_epochs=1"], ["num_epochs=1.0", "num_steps=12"]),
        (["--config.model.depth=3"], ["depth"]),
        (["--config.model.num_layers=many"], ["num_layers", "many"]),
        (["stray"], ["unexpected arguments ['stray']"]),
    ],
)
def test_bad_input_takes_one_clear_line(run_main, tmp_path, flags, parts):
    code, output = run_main(tmp_path / "run", *flags)
    assert code not in (0, EXIT_STOPPED), output
    for part in parts:
        assert part in output
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_unknown_presets_are_refused_with_the_list(run_main, tmp_path):
    code, output = run_main(tmp_path, preset="huge")
    assert code != 0 and "paper, paper_1m, small, quickstart" in output


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        (
            ["--config=configs/finetune.py:sst2+sst3", "--config.init_from={start}"],
            ["no task 'sst3'", *TASKS, "'all'", "'custom'"],
        ),
        (["--config=configs/finetune.py:sst2"], ["--config.init_from=runs/pretrain"]),
        (["--config=configs/predict.py"], ["--config.init_from=runs/finetune/TASK"]),
        (
            ["--config=configs/predict.py", "--config.init_from={start}"],
            ["config.text='' and config.input=''"],
        ),
    ],
    ids=["unknown task", "no start", "no model", "no text"],
)
def test_bad_input_of_fine_tuning_takes_one_line(pretrained, tmp_path, flags, parts):
    flags = [flag.format(start=pretrained) for flag in flags]
    code, output = run_program(*flags, f"--workdir={tmp_path / 'run'}")
    assert code not in (0, EXIT_STOPPED)
    first, second = output.splitlines()
    assert first.startswith("gpt1_jax: error: ") and "--verbosity=1" in second
    for part in parts:
        assert part in first
    assert not (tmp_path / "run").exists()


def test_overrides_reach_the_runs(pretrained, corpus_dir, tmp_path):
    """Tuples on the command line, and what is shown: nothing but what was done."""
    base = tiny_finetune_overrides(pretrained, tmp_path / "data", corpus_dir / "xla")
    write_task(tmp_path / "data", "sst2", train=16, dev=8)
    code, output = run_program(
        "--config=configs/finetune.py:sst2+rte",
        f"--workdir={tmp_path / 'run'}",
        *as_flags({**base, "eval.first_epoch_steps": "()", "train.num_steps": 2}),
        "--config.train.num_epochs=0",
        "--config.seeds=(3,5)",
    )
    assert code == 0, output
    names = sorted(path.name for path in (tmp_path / "run" / "sst2").iterdir())
    assert names == ["pretrained-seed3", "pretrained-seed5"]
    known = ("step ", "SST-2, seed ", "16 training", "Skipping RTE: ", "| ", "- RTE: ")
    known += ("Results: ", "Run folder: ")
    unknown = [x for x in output.splitlines() if x and not x.startswith(known)]
    assert len(unknown) == 2 and unknown[0].startswith("Ours is measured"), unknown
    assert unknown[1] == "Skipped:"


SHOWS_ITS_FOLDER = """
from gpt1_jax.jobs import pretrain
pretrain.run = lambda config, workdir: print("in", workdir)
"""


def test_the_default_run_folder_is_named_by_job_and_preset():
    flag = "--config=configs/pretrain.py:quickstart"
    assert run_program(flag, before=SHOWS_ITS_FOLDER) == (
        0,
        "in runs/pretrain/quickstart\n",
    )


def test_a_second_process_in_the_same_folder_is_refused(run_main, tmp_path):
    with lock.owned(epath.Path(tmp_path)):
        code, output = run_main(tmp_path)
    assert code == 1
    assert f"is in use by process {os.getpid()}" in output
    assert "Traceback" not in output


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--config=configs/pretrain.py", "--config.model.num_layer=3"], "num_layers?"),
        (["--config=configs/pretrain.py:huge"], "paper, paper_1m, small, quickstart"),
        (["--config=configs/no.py"], "there is no such file"),
        ([], "name a job with --config=configs/NAME.py"),
    ],
    ids=str,
)
def test_wrong_flags_print_one_line(flags, line):
    code, output = run_program(*flags)
    assert code == 1
    assert line in output.splitlines()[0] and "Traceback" not in output


def test_help_is_for_people():
    code, output = run_program("--help")
    assert code == 0 and "configs/finetune.py" in output
