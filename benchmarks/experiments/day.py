"""One training in the background of everything, whatever stops it.

    python -m benchmarks.experiments.day start --folder=DIR --train=FILES --valid=FILES
    python -m benchmarks.experiments.day stop --folder=DIR
    python -m benchmarks.experiments.day table --folder=DIR
    python -m benchmarks.experiments.day figure --folder=DIR --scores=DIR \
        --seconds=2.1,1.9 --output=day.png

`start` trains `configs/pretrain.py:day`, and once that has finished its LSTM, at the
lowest priority and on one core, or on those of `--cores=0-1`, and returns. A run that
was stopped or killed goes on from its newest checkpoint; one whose folder was lost
begins again. `stop` asks the run under way to save and end, as SIGTERM does, and waits
until it has. Both append to `DIR/log.jsonl`: when, on which cores, at which step,
tokens a second, why it ended. `table` prints it. Further flags of `start` are the
program's: `--config.seed=1`. `figure` draws validation loss, and BLiMP from what
`minimal_pairs` found at milestones, over core-hours: from the core-seconds of an update
on an idle machine, since what the runs took includes waiting for others.
"""

import argparse
import datetime
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from etils import epath

from benchmarks import harness
from gpt1_jax.config.report import KIND_NAMES
from gpt1_jax.config.saved import read_json
from gpt1_jax.data.owner import LOCK_FILE, Held, system_lock
from gpt1_jax.report.plots import GUIDE, new_figure
from gpt1_jax.runs import lock
from gpt1_jax.runs.checkpoint_files import saved_steps
from gpt1_jax.runs.folder import CONFIG_FILE
from gpt1_jax.runs.records import (
    METRICS_FILE,
    SESSIONS_FILE,
    read_metrics,
    read_sessions,
)

ROOT = Path(__file__).resolve().parents[2]
RUNS = {
    "transformer": (),
    # Half of the Transformer's hours, by the speeds in benchmarks/LOG.md.
    "lstm": ("--config.model.kind=lstm", "--config.train.num_steps=12000"),
}
LEAST_HOURS = 1 / 120  # drawn


class Log:
    """`DIR/log.jsonl`: a line for each start and each end of a run."""

    def __init__(self, folder: Path):
        self._path = folder / "log.jsonl"
        self.entries = harness.read_records(self._path)

    def append(self, run: Path, event: str, **values: Any) -> None:
        """Writes an entry and prints it."""
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        entry = {"time": now, "run": run.name, "event": event, **values}
        harness.add_record(self._path, entry)
        self.entries.append(entry)
        print(", ".join(f"{name} {value}" for name, value in entry.items()))

    def last(self, run: Path) -> dict[str, Any]:
        """The newest entry about a run; empty if there is none."""
        return next((e for e in reversed(self.entries) if e["run"] == run.name), {})

    def note_end(self, run: Path, why: str) -> None:
        """Appends how a run ended that is no longer trained, or that it is lost.

        Args:
          run: the run.
          why: why it ended, unless it has finished.
        """
        last = self.last(run)
        if last and last["event"] != "lost" and not run.exists():
            self.append(run, "lost", why="its folder is gone")
        elif last.get("event") == "start":
            step = newest_step(run)
            why = "finished" if step == num_steps(run) else why
            steps = step - last["step"]
            # A run that saved nothing left the record of the session before.
            reached = speed(run) if steps else {}
            self.append(run, "end", step=step, steps=steps, **reached, why=why)


def newest_step(run: Path) -> int:
    """The newest step that is saved; 0 if none is."""
    return max(saved_steps(epath.Path(run)), default=0)


def num_steps(run: Path) -> int:
    """The length of a run; -1 if it has not begun."""
    path = epath.Path(run / CONFIG_FILE)
    return read_json(path)["train"]["num_steps"] if path.exists() else -1


def speed(run: Path) -> dict[str, int]:
    """Tokens a second of the run's last session, up to its newest save."""
    if not (sessions := read_sessions(run / SESSIONS_FILE)):
        return {}
    steps = sessions[-1]["last_step"] - sessions[-1]["first_step"]
    if not (seconds := sessions[-1]["seconds"].get("training", 0)):
        return {}
    config = read_json(epath.Path(run / CONFIG_FILE))
    tokens = steps * config["train"]["batch_size"] * config["model"]["max_seq_len"]
    return {"tokens_per_second": round(tokens / seconds)}


def why_ended(printed: Path) -> str:
    """The error that a run's output ends with; "killed" if it ends otherwise."""
    last = (
        printed.read_text(errors="replace").splitlines()[-2:]
        if printed.exists()
        else []
    )
    errors = [line for line in last if "gpt1_jax: error: " in line]
    return errors[-1].partition("error: ")[2] if errors else "killed"


def trained_by(run: Path) -> int:
    """The process on this machine that trains a run; 0 if none does."""
    if not owner_of(run):
        return 0
    try:
        with system_lock(run / LOCK_FILE):
            return 0
    except Held:
        return owner_of(run)


def owner_of(run: Path) -> int:
    """The process that a run's `run.lock` names, dead or alive; 0 if there is none."""
    try:
        return json.loads((run / lock.LOCK_FILE).read_text())["pid"]
    except FileNotFoundError:
        return 0


def start(flags: argparse.Namespace) -> None:
    """Starts or resumes the first run that has not finished."""
    if any("train.num_epochs" in each for each in flags.program):
        raise SystemExit("day.py: give a run's length with --config.train.num_steps.")
    flags.folder.mkdir(parents=True, exist_ok=True)
    log = Log(flags.folder)
    for name, options in RUNS.items():
        run = flags.folder / name
        if process := trained_by(run):
            raise SystemExit(f"day.py: process {process} trains {run}.")
        log.note_end(run, why_ended(flags.folder / f"{name}.txt"))
        if newest_step(run) == num_steps(run):
            continue
        own = ("source=text", f"train={flags.train}", f"valid={flags.valid}")
        command = (
            *("nice", "-n", "19", "taskset", "--cpu-list", flags.cores),
            *(sys.executable, "-m", "gpt1_jax.main"),
            f"--config={ROOT / 'configs' / 'pretrain.py'}:day",
            f"--workdir={run}",
            *(f"--config.data.{each}" for each in own),
            *options,
            *flags.program,
        )
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        printed = flags.folder / f"{name}.txt"
        with printed.open("a") as output:
            training = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, "PYTHONPATH": path},
                start_new_session=True,
            )
        _lower_group(training.pid)
        begun = run / CONFIG_FILE  # written once the text is prepared
        while training.poll() is None and not (
            owner_of(run) == training.pid and begun.exists()
        ):
            time.sleep(0.2)
        if training.returncode:
            raise SystemExit(f"day.py: {run} did not begin; see {printed}.")
        step = newest_step(run)
        log.append(run, "start", step=step, cores=flags.cores, process=training.pid)
        return
    print("Both runs have finished.")


def _lower_group(process: int) -> None:
    """Gives a process group of its own the lowest priority, where Linux has groups.

    With automatic groups, `nice` only compares the processes of one session.
    """
    file = Path(f"/proc/{process}/autogroup")
    if file.exists():
        file.write_text("19")


def stop(flags: argparse.Namespace) -> None:
    """Has the run under way save and end, and waits until it has."""
    log = Log(flags.folder)
    for run in (flags.folder / name for name in RUNS):
        if process := trained_by(run):
            os.kill(process, signal.SIGTERM)
            while trained_by(run) == process:
                time.sleep(0.2)
            log.note_end(run, "SIGTERM")
            return
        log.note_end(run, why_ended(flags.folder / f"{run.name}.txt"))
    print("Nothing is trained there.")


def table(flags: argparse.Namespace) -> None:
    """Prints the log as Markdown, and each run's newest validation loss."""
    counts = ("step", "steps", "tokens_per_second")
    columns = ("time", "run", "event", "cores", *counts, "why")
    entries = Log(flags.folder).entries
    rows = [[str(entry.get(column, "-")) for column in columns] for entry in entries]
    print(harness.markdown([column.replace("_", " ") for column in columns], rows))
    for name in RUNS:
        path = flags.folder / name / METRICS_FILE
        records = read_metrics(path) if path.exists() else []
        if found := [record for record in records if "valid_loss" in record]:
            loss, step = found[-1]["valid_loss"], found[-1]["step"]
            print(f"{name}: validation loss {loss:.4f} nats a token at step {step:,}")


def figure(flags: argparse.Namespace) -> None:
    """Draws loss and BLiMP over core-hours."""
    from benchmarks.experiments import suite  # needs extras, which `start` does not

    # Of the same novels, on the first 98,304 tokens of the validation text as
    # `--config.eval.max_batches=12` has it; and published, of more text.
    n_gram = {suite.LOSS: 4.307, suite.ALL_PAIRS: 61.2}
    scores, _ = suite.read_all([flags.folder, flags.scores])
    drawn = new_figure(8, 3.4)
    panels = drawn.subplots(1, 2)
    for axes, measure in zip(panels, n_gram, strict=True):
        for (kind, name), seconds in zip(
            KIND_NAMES.items(), flags.seconds, strict=False
        ):
            own = scores[(scores["kind"] == kind) & (scores["measure"] == measure)]
            own = own.assign(hours=own["step"] * seconds / 3600).sort_values("hours")
            own = own[own["hours"] > LEAST_HOURS]
            if not own.empty:
                style = {"marker": "o", "markersize": 3, "label": name}
                axes.plot(own["hours"], own["score"], **style)
        guide = {"color": GUIDE, "linestyle": ":"}
        axes.axhline(n_gram[measure], label="5-gram model", **guide)
        axes.set(xscale="log", xlabel="core-hours", title=measure)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.grid(alpha=0.3)
    panels[0].legend()
    drawn.savefig(flags.output)


def main(arguments: Sequence[str]) -> None:
    """Starts, stops, shows or draws."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(required=True)
    for command in (start, stop, table, figure):
        own = commands.add_parser(command.__name__, help=command.__doc__)
        own.set_defaults(command=command)
        own.add_argument("--folder", type=Path, required=True, help="of log and runs")
        if command is start:
            own.add_argument("--train", required=True, help="text to train on")
            own.add_argument("--valid", required=True, help="text to validate on")
            own.add_argument("--cores", default="1", help="which, from 0: 1, or 0-1")
        if command is figure:
            text = "what minimal_pairs wrote, or a folder above"
            own.add_argument("--scores", type=Path, required=True, help=text)
            text = "core-seconds of an update, alone: the Transformer's, the LSTM's"
            own.add_argument("--seconds", type=_numbers, required=True, help=text)
            own.add_argument("--output", type=Path, required=True, help=".png file")
    flags, further = parser.parse_known_args(arguments)
    flags.program = further
    if flags.program and flags.command is not start:
        parser.error(f"only start has further flags: {' '.join(flags.program)}")
    flags.command(flags)


def _numbers(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


if __name__ == "__main__":
    main(sys.argv[1:])
