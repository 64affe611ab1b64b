"""The program as its user runs it: a process of its own, signals and all."""

import errno
import functools
import os
import platform
import re
import resource
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from etils import epath
from joined import OURS, together
from tiny_run import as_flags, assert_same_run, run_program, saved_state, signal_at
from tiny_tasks import finetune_config, tiny_finetune_overrides, write_task

from gpt1_jax import main, program
from gpt1_jax.data.files import CannotWrite
from gpt1_jax.errors import UserError
from gpt1_jax.jobs import finetune
from gpt1_jax.parallel.processes import EXIT_AGAIN
from gpt1_jax.runs import lock
from gpt1_jax.runs.checkpoint_files import saved_steps

# A program whose batches stop coming, as from a disk that hangs.
STUCK = """
import time
from gpt1_jax import program
from gpt1_jax.data import windows

def wait_for_the_disk(self, step, read=windows.TrainWindows.__getitem__):
    time.sleep(600 * (step == 150))
    return read(self, step)

windows.TrainWindows.__getitem__ = wait_for_the_disk
program.run()
"""
# A program that kills itself right before a change on disk: the first event of
# Python's audit hooks with a path that holds a text.
KILLED_BEFORE = """
import os, signal, sys
from gpt1_jax import program

def kill(event, arguments):
    if event == {event!r} and {text!r} in str(arguments[0]):
        os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(kill)
program.run()
"""
# A program that gets two signals in the middle of its first save.
STOPPED_TWICE = """
import os, signal, sys, time
from gpt1_jax import program

sent = []

def stop(event, arguments):
    if event == "os.mkdir" and "orbax-checkpoint-tmp" in str(arguments[0]) and not sent:
        sent.append(True)
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.2)

sys.addaudithook(stop)
program.run()
"""
# Long enough for a signal to come before the end.
LONG = {"train.num_steps": 300, "checkpoint.every_steps": 50, "eval.every_steps": 150}


def in_two_processes(run, codes=(0, 0), flags=(), **second):
    """Outputs of `run` twice at once; `flags` and `second` are for the second."""

    def start(variables):
        if variables["JAX_PROCESS_ID"] == "1":
            return run("--distributed=on", *flags, env=variables, **second)
        return run("--distributed=on", env=variables)

    results = together(start)
    assert [code for code, _ in results] == list(codes), results
    return [output for _, output in results]


@pytest.mark.slow
def test_variables_of_other_packages_change_nothing(run_main, tmp_path):
    """In the folder named by job and preset; samples that cannot be shown are escaped.

    The same command again says that there is nothing to do.
    """
    env = {"JAX_ENABLE_X64": "1", "MPLBACKEND": "none", "PYTHONWARNINGS": "error"}
    env |= {"PYTHONIOENCODING": "ascii", "JAX_DEFAULT_PRNG_IMPL": "rbg"}
    env |= {"JAX_NUMPY_DTYPE_PROMOTION": "strict", "JAX_THREEFRY_PARTITIONABLE": "0"}
    env |= {"JAX_NUMPY_RANK_PROMOTION": "raise", "JAX_TRANSFER_GUARD": "disallow"}
    # LaTeX, which need not be there, and fonts as for slides.
    (tmp_path / "matplotlibrc").write_text("text.usetex: True\nfont.size: 30\n")
    flags = ["--config.eval.sample_prompt=漢é", "--config.eval.sample_tokens=4"]
    code, output = run_main(*flags, cwd=tmp_path, env=env)
    assert code == 0 and "\n  | \\u6f22\\xe9" in output, output
    assert "arning" not in output
    folder = tmp_path / "runs/pretrain/quickstart"
    state = saved_state(folder, 12).values()
    assert {leaf.dtype.name for leaf in state} == {"float32", "int32"}

    code, plain = run_main(*flags, f"--workdir={tmp_path}/run")
    assert code == 0, plain
    assert_same_run(tmp_path / "run", folder, 12)
    pictures = (each / "plots/loss.png" for each in (tmp_path / "run", folder))
    assert len({picture.read_bytes() for picture in pictures}) == 1

    code, output = run_main(*flags, cwd=tmp_path)
    assert code == 0 and "Resuming from the checkpoint of step 12" in output, output
    assert f"Nothing to do: the run in {folder} had finished at step 12." in output
    assert output.splitlines()[-1].startswith("Time: ")


@pytest.mark.slow
def test_a_run_survives_signals_and_kills_at_the_worst_moments(run_main, tmp_path):
    """One run, stopped again and again, and each time started by the same command."""
    whole, folder = tmp_path / "whole", tmp_path / "stopped"
    checkpoints, damaged = folder / "checkpoints", folder / "damaged_checkpoints"
    run_long = functools.partial(run_main, *as_flags(LONG), env={"XLA_FLAGS": ""})
    code, output = run_long(f"--workdir={whole}")
    assert code == 0, output
    run_long = functools.partial(run_long, f"--workdir={folder}")

    def killed(event, text, says_damaged=False):
        program = ("-c", KILLED_BEFORE.format(event=event, text=text))
        code, output = run_long(program=program)
        assert code == -signal.SIGKILL, output
        assert ("is damaged" in output) == says_damaged
        return sorted(path.name for path in checkpoints.iterdir())

    # A save is whole, but for its name; a score was written, but for its name.
    assert any("tmp" in name for name in killed("os.rename", "orbax-checkpoint-tmp"))
    assert killed("os.rename", "score.json") == ["100", "150"]
    # A deletion begins; goes on; is finished at the next start, and killed again.
    assert killed("os.rename", "checkpoints/100") == ["100", "150", "200"]
    left = killed("os.remove", "manifest.ocdbt")
    assert "100" not in left and any("tmp" in name for name in left)
    # The records are cut down to the step that the run resumes from.
    killed("os.rename", "metrics.jsonl")
    assert not damaged.exists()
    # A damaged checkpoint is being moved out of the way.
    newest = saved_steps(epath.Path(folder))[-1]
    (checkpoints / str(newest) / "state" / "_METADATA").write_text("{")
    killed("os.rename", str(checkpoints / str(newest)), says_damaged=True)
    says = f"checkpoint of step {newest} is damaged"
    for number in (signal.SIGUSR1, signal.SIGINT):  # the first as SLURM sends it
        code, output = run_long(meanwhile=signal_at("/300", number))
        assert code == EXIT_AGAIN and says in output, output
        assert "Run the same command again to resume" in output
        stopped = saved_steps(epath.Path(folder))[-1]
        says = f"Resuming from the checkpoint of step {stopped}."
    code, output = run_long()
    assert code == 0 and says in output, output
    assert [path.name for path in damaged.iterdir()] == [f"{newest}-0"]
    assert_same_run(whole, folder, 300)
    kept = {path.name for path in (whole / "checkpoints").iterdir()}
    assert {path.name for path in checkpoints.iterdir()} == kept


@pytest.mark.slow
def test_a_second_signal_in_the_middle_of_a_save_ends_it_with_one_line(
    run_main, tmp_path
):
    """Nobody listens to the run that follows, which ends well."""
    program = ("-c", STOPPED_TWICE)
    code, output = run_main(f"--workdir={tmp_path}", program=program)
    assert code == 1, output
    stopping, _, after = output.partition("gpt1_jax: stopping after this step, then")
    assert "gpt1_jax: interrupted without saving. Run the same" in after
    assert "Traceback" not in stopping + after
    code, output = run_main(f"--workdir={tmp_path}", redirected="| head -n 1")
    assert code == 0, output
    assert saved_steps(epath.Path(tmp_path))[-1] == 12


def test_a_signal_while_the_program_compiles_ends_it(run_main, tmp_path):
    def stop(process, line):
        if line.startswith("Run: "):
            time.sleep(0.5)
            process.send_signal(signal.SIGTERM)

    code, output = run_main(
        f"--workdir={tmp_path / 'run'}",
        f"--config.train.compilation_cache_dir={tmp_path / 'xla'}",
        meanwhile=stop,
        env={"XLA_FLAGS": ""},  # for longer
    )
    # JAX's garbage collection must not raise: then it ends before the first step.
    lost = "_xla_gc_callback" in output
    assert code == (EXIT_AGAIN if lost else 1), output
    assert ("step 0 is saved" if lost else "gpt1_jax: interrupted") in output


def test_a_job_that_only_prints_says_that_it_could_not(pretrained):
    flags = in_job("generate.py", "prompt=abc", f"init_from={pretrained}")
    for command in (flags, ["--help"]):
        code, output = run_program(*command, redirected="> /dev/full")
        (line,) = (line for line in output.splitlines() if "error" in line)
        assert code == 1 and line == (
            "gpt1_jax: error: standard output cannot be written (No space left on "
            "device); write to a file, as with --config.output=FILE."
        )


JOINED = dict(zip(OURS, ("localhost:1234", "2", "0"), strict=True))


@pytest.mark.parametrize(
    ("env", "problem"),
    [
        ({"JAX_PLATFORMS": "abc"}, "initialize backend 'abc'.*JAX_PLATFORMS=cpu"),
        ({"JAX_PLATFORMS": "cuda"}, "finds no device to compute on.*='cuda'. Name a"),
        ({"JAX_NUM_CPU_DEVICES": "many"}, "JAX does not start: .*jax_num_cpu_devices"),
        (JOINED, "predict runs in one process, but a launcher has started 2; start"),
    ],
    ids=["backend", "no device", "number", "launcher"],
)
def test_a_variable_that_cannot_be_followed_takes_one_line(env, problem, tmp_path):
    flags = in_job("pretrain.py:quickstart", f"--workdir={tmp_path / 'run'}")
    if env == JOINED:
        flags = in_job("predict.py", "init_from=x", "text=y")
    code, output = run_program(*flags, env=env)
    assert code == 1 and not (tmp_path / "run").exists()
    first, _ = output.splitlines()
    assert first.startswith("gpt1_jax: error: ") and re.search(problem, first)


def test_processes_with_different_values_refuse_before_any_work(run_main, tmp_path):
    run = functools.partial(run_main, f"--workdir={tmp_path / 'run'}")
    for output in in_two_processes(run, (1, 1), flags=["--config.seed=3"]):
        assert "gpt1_jax: error: The processes of this run differ: " in output
        assert "config.seed is 3 on process 1, 0 on process 0" in output
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_what_happens_to_one_of_two_processes_ends_both(run_main, tmp_path):
    """SIGTERM, SIGKILL, no more batches; each run resumes from the one before."""
    limits = {"initialization_seconds": 60, "heartbeat_seconds": 30}
    limits |= {"shutdown_seconds": 30, "stuck_minutes": 0.25}
    overrides = LONG | {f"distributed.{key}": each for key, each in limits.items()}
    run = functools.partial(run_main, f"--workdir={tmp_path}", *as_flags(overrides))
    metrics, checkpoints = tmp_path / "metrics.jsonl", tmp_path / "checkpoints"

    def signal_once(happened, number):
        """For `beside`: sends a signal once something is on disk."""

        def beside(process):
            while not happened():
                time.sleep(0.02)
                if process.poll() is not None:
                    return
            process.send_signal(number)

        return beside

    def ten_steps():
        return metrics.exists() and '"step": 10,' in metrics.read_text()

    def newest():
        names = (path.name for path in checkpoints.iterdir())
        return max(int(name) for name in names if name.isdigit())

    outputs = in_two_processes(
        run, (EXIT_AGAIN, EXIT_AGAIN), beside=signal_once(ten_steps, signal.SIGTERM)
    )
    assert "stopped by a signal; step " in outputs[0] and "Time: " in outputs[0]
    assert "gpt1_jax" not in outputs[1]
    stopped = newest()
    assert 10 <= stopped < 100

    saved = (checkpoints / "100").exists
    outputs = in_two_processes(
        run, (EXIT_AGAIN, -signal.SIGKILL), beside=signal_once(saved, signal.SIGKILL)
    )
    assert f"Resuming from the checkpoint of step {stopped}." in outputs[0]
    assert "gpt1_jax: another process of this run has ended" in outputs[0]

    killed = newest()
    assert 100 <= killed <= 150
    outputs = in_two_processes(run, (EXIT_AGAIN, EXIT_AGAIN), program=("-c", STUCK))
    assert f"Resuming from the checkpoint of step {killed}." in outputs[0]
    for output in outputs:
        assert "stuck: no step, evaluation batch or save" in output
    assert "in wait_for_the_disk" in outputs[1]


@pytest.mark.slow
def test_two_processes_fine_tune_as_one_does(pretrained, tmp_path):
    """With dropout; one host has longer texts than the other, the one has several."""
    base = tiny_finetune_overrides(pretrained, tmp_path / "data")
    for task in ("rte", "copa"):
        write_task(tmp_path / "data", task, test=10, labelled_test=True)
    # Biases of keys and choices have no gradient but rounding, which Adam would scale.
    base |= {"eval.first_epoch_steps": (), "optimizer.eps": 1e-4}
    base |= {"suite.keep_checkpoints": True}
    alone, joined = (tmp_path / name for name in ("alone", "joined"))
    finetune.run(finetune_config("rte+copa", base), str(alone))
    config = "--config=configs/finetune.py:rte+copa"
    run = functools.partial(run_program, config, f"--workdir={joined}", *as_flags(base))
    outputs = in_two_processes(run)
    assert "step" in outputs[0] and "loss" not in outputs[1]
    for task in ("rte", "copa"):
        folders = [folder / task / "pretrained-seed0" for folder in (alone, joined)]
        one, two = (saved_state(folder, 12) for folder in folders)
        jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-6), one, two)
        one, two = ((folder / "results.json").read_text() for folder in folders)
        assert one == two


def in_job(name, *flags):
    """A command; `flags` are of the configuration, unless they begin with dashes."""
    flags = [each if each[0] == "-" else f"--config.{each}" for each in flags]
    return [f"--config=configs/{name}", *flags]


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        # The flags cannot be parsed.
        ([], "name a job with --config=configs/NAME.py"),
        (in_job("nope.py"), "there is no such file. The program has configs/"),
        (in_job("pretrain.py:huge"), "choose one of paper, paper_1m, .*babylm, small"),
        (in_job("convert.py:nope", "--help"), "no preset 'nope'; choose one of run"),
        (in_job("pretrain.py", "model.num_layer=3"), r"num_layers\?"),
        (in_job("pretrain.py", "model.num_layers=many"), "num_layers.*many"),
        ([*in_job("pretrain.py"), "stray"], "unexpected 'stray'; a preset follows a c"),
        # A value is impossible.
        (in_job("pretrain.py", "model.num_heads=5"), "embed_dim=768.*num_heads=5"),
        (in_job("finetune.py:sst2"), "--config.init_from=runs/pretrain"),
        (in_job("finetune.py:sst2+sst3", "init_from=a"), "no task 'sst3'.*sst2.*'all'"),
        # A place cannot be used.
        (
            in_job("pretrain.py", "--workdir=a\udcff"),
            r"error: --workdir: '\\udcff' in 'a\\udcff' is half of a character",
        ),
        (in_job("pretrain.py", "--workdir=hf://a/b"), "--workdir='hf://a/b' cannot be"),
        (
            in_job("generate.py", "init_from=a", "prompt=a", "--workdir=a"),
            "--workdir='a', but the job generate write",
        ),
    ],
    ids=str,
)
def test_what_cannot_be_done_takes_one_line_before_any_work(tmp_path, flags, problem):
    code, output = run_program(*flags, cwd=tmp_path)
    first, *more = output.splitlines()
    assert code == 1 and first.startswith("gpt1_jax: error: ")
    assert re.search(problem, first) and "Traceback" not in output
    assert len(more) < 2 or not flags  # which shows the jobs
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_overrides_reach_the_runs(pretrained, tmp_path):
    """Tuples on the command line, too."""
    base = tiny_finetune_overrides(pretrained, tmp_path / "data")
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
    assert "Skipping RTE: " in output


def test_a_second_process_in_the_same_folder_is_refused(run_main, tmp_path):
    with lock.owned(epath.Path(tmp_path)):
        code, output = run_main(f"--workdir={tmp_path}")
    first, second = output.splitlines()
    assert code == 1 and first.startswith("gpt1_jax: error: ")
    assert f"is in use by process {os.getpid()}" in first and "--verbosity=1" in second


@pytest.mark.slow
@pytest.mark.parametrize("module", ["absl.app", "flax"])
def test_ctrl_c_during_imports_takes_one_line(run_main, tmp_path, module):
    def interrupt(process, line):
        if line.endswith(f" {module}\n"):
            process.send_signal(signal.SIGINT)

    program = ("-X", "importtime", "-m", "gpt1_jax.main")
    folder = tmp_path / "run"
    code, output = run_main(f"--workdir={folder}", meanwhile=interrupt, program=program)
    said = [x for x in output.splitlines() if not x.startswith("import time:")]
    assert (code, said) == (1, ["gpt1_jax: interrupted."])
    assert not folder.exists()


def test_an_older_python_is_refused_in_one_line(monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 10, 13))
    with pytest.raises(SystemExit, match=r"error: Python 3\.11 or newer"):
        main.run()


_FAULTS = """
import resource
from gpt1_jax import main

main.keep_freed_memory()
import jax, jax.numpy as jnp

add, array = jax.jit(lambda x: x + 1), jnp.zeros(1 << 24)

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    add(array).block_until_ready()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

print(min(faults() for _ in range(20)))
"""
_HOLE = """
import ctypes, time
from gpt1_jax import main

main._KEPT_SECONDS = 0.2
main.keep_freed_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
block, above = libc.malloc(1 << 28), libc.malloc(100)
ctypes.memset(block, 1, 1 << 28)
libc.free(block)

def pages():
    return int(open("/proc/self/statm").read().split()[1])

before = pages()
while pages() > before - 60_000:
    time.sleep(0.1)
print(before)
"""


def printed_by(code):
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=60
    ).stdout


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_memory_that_is_freed_is_used_again_and_goes_back_if_it_stays_free():
    """A result has 16,384 pages of 4 KiB; a hole of 65,536 lies below what is used."""
    assert int(printed_by(_FAULTS)) < 4096
    assert int(printed_by(_HOLE)) > 65_536


@pytest.mark.parametrize(
    ("error", "way_out"),
    [
        (
            jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory.\nmore"),
            "Out of memory.: a device has run out of memory; lower the batch size",
        ),
        (MemoryError(), "no memory is left: allow this process more memory and thr"),
        (RuntimeError("can't start new thread"), "more memory and threads (ulimit -v"),
        (OSError(errno.EMFILE, "Too many open files"), "more files (ulimit -n 1024)"),
        (OSError(errno.ENOSPC, "No space", "a/b"), "'a/b': make room on its disk"),
        (CannotWrite("a/b is read-only; go elsewhere."), "a/b is read-only; go else"),
        (UserError("the way out"), "gpt1_jax: error: the way out"),
        (jax.errors.JaxRuntimeError("INTERNAL: RESOURCE_EXHAUSTED: not it"), None),
        (ValueError("shapes do not match"), None),
    ],
    ids=str,
)
def test_only_what_a_user_can_mend_takes_one_line_with_the_way_out(
    monkeypatch, capsys, error, way_out
):
    def fail(*arguments):
        raise error

    monkeypatch.setattr(program, "_warn_plainly", lambda: None)
    monkeypatch.setattr(program, "_check", fail)
    with pytest.raises(SystemExit if way_out else type(error)) as end:
        program.main(["gpt1_jax"])
    if way_out:
        assert end.value.code == 1
        line, hint = capsys.readouterr().err.splitlines()
        assert line.startswith("gpt1_jax: error: ") and way_out in line
        assert hint == "(--verbosity=1 shows the traceback)"


UNLIMITED = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("files", "space", "says"),
    [
        ((24, 24), UNLIMITED, "may open 24 files, and a job needs up to 64; allow"),
        ((64, 64), UNLIMITED, "it began"),
        ((24, 1024), UNLIMITED, "it began"),
        ((1024, 1024), 3 << 30, "3.2 GB of address space.*allow more with ulimit -v"),
    ],
)
def test_limits_of_the_shell_are_raised_or_refused(
    monkeypatch, capsys, files, space, says
):
    """With too little address space, orbax could wait for ever."""

    def begin():
        raise UserError("it began")

    limits = {resource.RLIMIT_NOFILE: files, resource.RLIMIT_AS: (space, space)}
    monkeypatch.setattr(resource, "getrlimit", limits.get)
    monkeypatch.setattr(resource, "setrlimit", limits.__setitem__)
    monkeypatch.setattr(program, "_warn_plainly", lambda: None)
    monkeypatch.setattr(program, "_check", begin)
    with pytest.raises(SystemExit):
        program.main(["gpt1_jax"])
    assert re.search(says, capsys.readouterr().err)
    assert limits[resource.RLIMIT_NOFILE] == (files[1], files[1])
