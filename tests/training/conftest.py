"""A tiny corpus and a tiny pre-training run, in this process or one of its own."""

import os
import random
import subprocess
import sys

import pytest
from tiny_run import ROOT, load_config, tiny_overrides

from gpt1_jax import config as config_lib


@pytest.fixture(scope="session")
def corpus_dir(tmp_path_factory):
    """A folder of ten texts of made-up sentences, and a cache beside it."""
    base = tmp_path_factory.mktemp("corpus")
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghij", k=rng.randint(2, 7))) for _ in range(80)]
    (base / "texts").mkdir()
    for number in range(10):
        lines = (" ".join(rng.choices(words, k=12)) + "." for _ in range(60))
        (base / "texts" / f"{number}.txt").write_text("\n".join(lines))
    return base


@pytest.fixture
def tiny_config(corpus_dir):
    """A function from overrides to the frozen configuration of a tiny run."""

    def make(**overrides):
        config = load_config(**{**tiny_overrides(corpus_dir), **overrides})
        return config_lib.from_config_dict(config.to_dict())

    return make


@pytest.fixture
def run_main(corpus_dir):
    """Runs `python -m gpt1_jax.main` on the tiny run in a process of its own.

    `before` is Python code run first, in the same process; `signal_at` sends a signal
    once the output holds a text.
    """

    def run(workdir, *flags, before="", env=None, signal_at=None, preset="quickstart"):
        code = f"{before}\nimport sys\nfrom gpt1_jax import main\nmain.run()"
        tiny = {f"--config.{k}={v}" for k, v in tiny_overrides(corpus_dir).items()}
        command = [
            sys.executable, "-c", code, f"--config=configs/pretrain.py:{preset}",
            f"--workdir={workdir}", *sorted(tiny), *flags,
        ]  # fmt: skip
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        lines = []
        for line in process.stdout:
            lines.append(line)
            if signal_at and signal_at[0] in line:
                process.send_signal(signal_at[1])
                signal_at = None
        process.wait()
        process.stdout.close()
        return process.returncode, "".join(lines)

    return run
