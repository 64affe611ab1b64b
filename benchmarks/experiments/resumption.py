"""Whether a run resumed from a checkpoint ends as if it had never stopped.

    python -m benchmarks.experiments.resumption [--texts=FILES] [--half=20]
        [--output=FILE]

Trains the model of the quickstart, then resumes from its first checkpoint in a second
process. Records and saved arrays must be equal bit for bit. On a GPU XLA is asked for
deterministic operations; otherwise it sums gradients in any order.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from etils import epath

from benchmarks import harness
from benchmarks.harness import count
from gpt1_jax.runs.checkpoints import read_params
from gpt1_jax.runs.records import METRICS_FILE, TIME_KEYS, read_metrics

ROOT = Path(__file__).resolve().parents[2]
_FLAGS = "--xla_gpu_deterministic_ops=true"


def train(workdir: Path, flags: argparse.Namespace) -> None:
    """Trains from the newest checkpoint in `workdir` to the last step."""
    values: dict[str, Any] = {
        "train.num_steps": 2 * flags.half,
        "optimizer.warmup_steps": flags.half // 2,
        "eval.every_steps": flags.half,
        "eval.max_batches": 1,
        "checkpoint.every_steps": flags.half,
        "log.every_steps": 1,
        "log.tensorboard": False,
        "model.dtype": "bfloat16",
    }
    if flags.texts:
        values.update({"data.source": "text", "data.train": flags.texts})
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    xla = f"{os.environ.get('XLA_FLAGS', '')} {_FLAGS}"
    command = [
        *(sys.executable, "-m", "gpt1_jax.main"),
        f"--config={ROOT / 'configs' / 'pretrain.py'}:quickstart",
        f"--workdir={workdir}",
        *(f"--config.{name}={value}" for name, value in values.items()),
    ]
    subprocess.run(
        harness.ending_with_parent(command),
        check=True,
        env={**os.environ, "PYTHONPATH": path, "XLA_FLAGS": xla.strip()},
    )


def records(workdir: Path) -> list[dict[str, Any]]:
    """The records of a run, without values that depend on the clock."""
    return [
        {name: value for name, value in record.items() if name not in TIME_KEYS}
        for record in read_metrics(workdir / METRICS_FILE)
    ]


def differences(left: Path, right: Path, step: int) -> dict[str, int]:
    """How many records and parameter arrays of two runs differ."""
    pairs = zip(records(left), records(right), strict=True)
    one, other = (read_params(epath.Path(run), step).params for run in (left, right))
    equal = jax.tree.map(np.array_equal, one, other)
    return {
        "records": sum(ours != theirs for ours, theirs in pairs),
        "arrays": sum(not same for same in jax.tree.leaves(equal)),
    }


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--texts", help="to train on; without, the documentation here")
    parser.add_argument("--half", type=count, default=20, help="steps before and after")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> None:
    """Trains twice and compares; exits 1 if anything differs."""
    flags = parse(arguments)
    record = harness.describe("experiments.resumption", arguments)
    with tempfile.TemporaryDirectory() as folder:
        whole, resumed = Path(folder) / "whole", Path(folder) / "resumed"
        train(whole, flags)
        shutil.copytree(whole, resumed)
        shutil.rmtree(resumed / "checkpoints" / str(2 * flags.half))
        train(resumed, flags)
        found = differences(whole, resumed, 2 * flags.half)
    print(f"Not equal: {found['records']} records, {found['arrays']} arrays.")
    if flags.output:
        harness.write_json(flags.output, record, flags, found)
    if any(found.values()):
        sys.exit("resumption.py: the resumed run differs from the whole one")


if __name__ == "__main__":
    main(sys.argv[1:])
