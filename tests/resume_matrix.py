"""Runs saved on some devices and resumed on others, in each mesh mode.

    PYTHONPATH=. python tests/resume_matrix.py

resumes what was saved in each place and mode in each other, and prints how far losses
and parameters end up from those of an uninterrupted run on one device. The tests try a
few of these.
"""

import itertools
import shutil
import tempfile
from pathlib import Path

import numpy as np
from joined import together
from tiny_run import (
    as_flags,
    metrics_without_times,
    run_program,
    saved_state,
    tiny_overrides,
    write_texts,
)

PLACES = {  # processes, and devices of each
    "1 device": (1, 1),
    "2 processes": (2, 4),
    "8 devices": (1, 8),
}
MODES = {
    "replicated": {},
    "full": {"mesh.sharding": "full"},
}
CELLS = [  # all that there are: one device has nothing to split
    (place, mode)
    for place, mode in itertools.product(PLACES, MODES)
    if place != "1 device" or mode == "replicated"
]
SAVED, END = 8, 12  # steps


def train(folder, cell, overrides):
    """Takes a tiny run to its end in a place and mode; returns what it printed."""
    place, mode = cell
    processes, devices = PLACES[place]
    flags = as_flags({**overrides, **MODES[mode], "optimizer.eps": 1e-4})

    def start(variables):
        return run_program(
            "--config=configs/pretrain.py:quickstart",
            f"--workdir={folder}",
            *flags,
            env={"JAX_NUM_CPU_DEVICES": str(devices), "NPROC": "16", **variables},
        )

    results = together(start, processes)
    if any(code for code, _ in results):
        raise RuntimeError(f"{cell}: {results}")
    return results[0][1]


def resume(saved, folder, cell, overrides):
    """Copies a run as it was at step `SAVED` and takes it to its end."""
    shutil.copytree(saved, folder)
    shutil.rmtree(folder / f"checkpoints/{END}")
    output = train(folder, cell, overrides)
    if f"Resuming from the checkpoint of step {SAVED}." not in output:
        raise RuntimeError(output)


def distance(one, other):
    """How far two runs are from each other: losses, and arrays at the end."""
    losses, arrays = zip(*map(_outcome, (one, other)), strict=True)
    return tuple(
        max(np.abs(a[key] - b[key]).max() for key in a.keys() | b.keys())
        for a, b in (losses, arrays)
    )


def _outcome(folder):
    """Losses by step and name, and the final state."""
    losses = {
        (record["step"], name): record[name]
        for record in metrics_without_times(folder)
        for name in ("loss", "valid_loss")
        if name in record
    }
    return losses, saved_state(folder, END)


def main():
    """Prints the whole matrix."""
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        write_texts(base)
        overrides = tiny_overrides(base)
        overrides["train.compilation_cache_dir"] = str(base / "xla")
        train(base / "alone", CELLS[0], overrides)
        print("saved on | resumed on | largest difference of a loss | of an array")
        for number, saved in enumerate(CELLS):
            train(base / str(number), saved, overrides)
            for cell in CELLS:
                folder = base / "resumed"
                resume(base / str(number), folder, cell, overrides)
                loss, array = distance(base / "alone", folder)
                print(
                    *map(", ".join, (saved, cell)),
                    f"{loss:.1e}",
                    f"{array:.1e}",
                    sep=" | ",
                    flush=True,
                )
                shutil.rmtree(folder)


if __name__ == "__main__":
    main()
