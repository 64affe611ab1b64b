"""Helpers of the tests that train: configurations, and comparison of runs."""

import configparser
import contextlib
import functools
import json
import os
import random
import runpy
import subprocess
import sys
import threading
from pathlib import Path

import forked
import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

from gpt1_jax import config as config_lib
from gpt1_jax.config.flat import flatten
from gpt1_jax.runs.records import TIME_KEYS
from gpt1_jax.runs.signals import Stopped, StopSignal
from gpt1_jax.training import steps

ROOT = Path(__file__).parents[1]

# Settings of JAX that somebody's own process may have, none of them the default.
SETTINGS = {
    "jax_enable_x64": True,
    "jax_numpy_dtype_promotion": "strict",
    "jax_numpy_rank_promotion": "raise",
    "jax_transfer_guard": "disallow",
    "jax_default_prng_impl": "rbg",
    "jax_threefry_partitionable": False,
}


def setup_cfg():
    """The package's metadata."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    return setup


def write_texts(folder):
    """Ten texts of made-up sentences in a new folder, the same each time."""
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghij", k=rng.randint(2, 7))) for _ in range(80)]
    (folder / "texts").mkdir(parents=True)
    for number in range(10):
        lines = (" ".join(rng.choices(words, k=12)) + "." for _ in range(60))
        (folder / "texts" / f"{number}.txt").write_text("\n".join(lines))


def tiny_overrides(corpus_dir):
    """Overrides of the quickstart preset: one small layer, 12 steps."""
    texts, cache = (str(corpus_dir / name) for name in ("texts", "cache"))
    xla = jax.config.jax_compilation_cache_dir or ""
    sizes = dict(num_layers=1, num_heads=2, embed_dim=16, max_seq_len=16)
    return flatten(
        {
            # Four times as wide inside: transformers knows no other.
            "model": {**sizes, "mlp_dim": 64},
            "tokenizer": dict(vocab_size=512),
            "data": dict(source="text", train=texts, cache_dir=cache),
            "train": dict(num_steps=12, batch_size=8, compilation_cache_dir=xla),
            "optimizer": dict(warmup_steps=2),
            # Sampling is a program of its own.
            "eval": dict(every_steps=4, batch_size=8, sample_tokens=0),
            "checkpoint": dict(every_steps=4, milestone_steps=()),
            # TensorBoard loads PyTorch where that is installed.
            "log": dict(every_steps=2, tensorboard=False),
        }
    )


def longer_overrides(corpus_dir):
    """The tiny run with a context of 40 tokens and a sample, as of `pretrained`."""
    longer = {"model.max_seq_len": 40, "eval.sample_tokens": 4}
    return {**tiny_overrides(corpus_dir), **longer}


def longer_config(corpus_dir, **overrides):
    """The frozen configuration of that run."""
    longer = {**longer_overrides(corpus_dir), **overrides}
    return job_config("pretrain", "quickstart", **longer)


@functools.cache
def _module(file):
    return runpy.run_path(str(ROOT / "configs" / f"{file}.py"))


def load_config(preset="quickstart", file="pretrain", **overrides):
    """The ConfigDict of configs/FILE.py with `section__key` overrides."""
    config = _module(file)["get_config"](*[preset] * bool(preset))
    config.update_from_flattened_dict(
        {key.replace("__", "."): value for key, value in overrides.items()}
    )
    return config


PROGRAM = ("-m", "gpt1_jax.main")


def run_program(
    *flags,
    cwd=ROOT,
    env=None,
    stdin="",
    stderr=subprocess.STDOUT,
    meanwhile=None,
    beside=None,
    program=PROGRAM,
    redirected="",
):
    """Runs `python -m gpt1_jax.main`, or another `program`, in a process of its own.

    Args:
      flags: of the command line.
      env: further environment variables.
      stdin: what standard input holds.
      stderr: where standard error goes, as `subprocess` has it.
      meanwhile: called with the process and each line that it prints.
      beside: called with the process in a thread of its own.
      redirected: where its standard streams go, as the shell has it.

    Returns the exit status, and standard output and error together.
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **(env or {})}
    command = [*program, *flags]
    if (stdin, stderr, redirected) == ("", subprocess.STDOUT, ""):
        process = forked.start(command, cwd, environment)
    else:
        shell = ["bash", "-o", "pipefail", "-c", f'"$0" "$@" {redirected}']
        process = subprocess.Popen(
            [*shell * bool(redirected), sys.executable, *command],
            cwd=cwd,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
        process.stdin.write(stdin)
        process.stdin.close()
    if beside:
        threading.Thread(target=beside, args=(process,), daemon=True).start()
    with process:
        lines = []
        for line in process.stdout:
            lines.append(line)
            if meanwhile:
                meanwhile(process, line)
    return process.returncode, "".join(lines)


def signal_at(text, number):
    """For `meanwhile`: sends a signal once, at the first line that holds a text."""
    sent = []

    def meanwhile(process, line):
        if text in line and not sent:
            sent.append(number)
            process.send_signal(number)

    return meanwhile


def job_config(job, preset="", **overrides):
    """The frozen configuration of a job."""
    return config_lib.load(load_config(preset, file=job, **overrides).to_dict())


def as_flags(overrides):
    """Overrides as the command line takes them."""
    return sorted(f"--config.{key}={value}" for key, value in overrides.items())


def saved_state(workdir, step):
    """All arrays of a checkpoint as a flat dict of numpy arrays."""
    path = Path(workdir) / f"checkpoints/{step}/state"
    reader = ocp.PyTreeCheckpointer()
    as_numpy = jax.tree.map(
        lambda _: ocp.RestoreArgs(restore_type=np.ndarray),
        reader.metadata(path).item_metadata.tree,
    )
    tree = reader.restore(path, ocp.args.PyTreeRestore(restore_args=as_numpy))
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}


def listing(folder):
    """When each file below a folder was written, to show that none was touched."""
    files = (path for path in Path(folder).rglob("*") if path.is_file())
    return {path: path.stat().st_mtime_ns for path in files}


def metrics_without_times(workdir):
    """The records of a run, less what depends on the clock."""
    lines = (Path(workdir) / "metrics.jsonl").read_text().splitlines()
    return [
        {k: v for k, v in json.loads(line).items() if k not in TIME_KEYS}
        for line in lines
    ]


def assert_same_run(left, right, step):
    """Both runs hold the same state at a step, bit for bit, and the same records."""
    one, other = saved_state(left, step), saved_state(right, step)
    jax.tree.map(np.testing.assert_array_equal, one, other)
    assert metrics_without_times(left) == metrics_without_times(right)


def stop_after(monkeypatch, last_step):
    """Makes the loop believe that a signal came during `last_step`."""

    def ask(self, step):
        self.requested = step == last_step

    monkeypatch.setattr(StopSignal, "ask", ask)


@contextlib.contextmanager
def stopped_after(last_step):
    """Around a run: it ends as by a signal that came during `last_step`."""
    with pytest.MonkeyPatch.context() as patch:
        stop_after(patch, last_step)
        with pytest.raises(Stopped, match=f"step {last_step} is saved"):
            yield


def poison(monkeypatch, bad_steps, bad_losses=None):
    """Makes the gradients of the given steps NaN, and the losses of these or others."""
    update = steps.update
    bad_losses = bad_steps if bad_losses is None else bad_losses

    def poisoned(state, batch, noise, gradients, optimizer):
        def factor(steps):
            return jnp.where(jnp.isin(state.step, jnp.asarray(steps)), jnp.nan, 1.0)

        bad, lost = factor(bad_steps), factor(bad_losses)

        def bad_gradients(*arguments):
            (value, losses), grads = gradients(*arguments)
            return (value * lost, losses), jax.tree.map(lambda x: x * bad, grads)

        return update(state, batch, noise, bad_gradients, optimizer)

    monkeypatch.setattr(steps, "update", poisoned)


@contextlib.contextmanager
def set_globally(settings):
    """Settings of the whole process, as the environment or a script makes them."""
    with contextlib.ExitStack() as stack:
        for name, value in settings.items():
            stack.callback(jax.config.update, name, jax.config.values[name])
            jax.config.update(name, value)
        yield
