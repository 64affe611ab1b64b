"""Records a run as it goes: metrics, sessions, trackers, the progress bar.

`metrics.jsonl` holds the metrics. `sessions.json` holds one entry for each program that
trained in the run folder. It is written at the end, and whenever training pauses for a
checkpoint or an evaluation, so that a program that is killed has recorded all but its
last steps.
"""

import contextlib
import datetime
import errno
import functools
import importlib.metadata
import os
import platform
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import jax
from etils import epath

import gpt1_jax
from gpt1_jax.config.pretrain import PretrainConfig
from gpt1_jax.config.saved import parse_json, read_json
from gpt1_jax.config.sections import LogConfig
from gpt1_jax.data.files import (
    append_to,
    create,
    explained_writing,
    files_below,
    format_json,
    is_remote,
    temporary_folder,
    write_json,
    write_whole,
)
from gpt1_jax.data.progress import Bar
from gpt1_jax.errors import UserError, find_named
from gpt1_jax.parallel import devices
from gpt1_jax.parallel.processes import is_main_process
from gpt1_jax.runs.console import say
from gpt1_jax.runs.folder import check_room
from gpt1_jax.runs.forms import Forms, are_forms
from gpt1_jax.runs.lock import check_owned
from gpt1_jax.runs.wall_time import PROGRAM, Chrono

METRICS_FILE = "metrics.jsonl"
SESSIONS_FILE = "sessions.json"
# The keys of its records that depend on the clock.
TIME_KEYS = ("step_seconds", "tokens_per_second", "examples_per_second", "mfu")
# The parts of a loss, and their names in a line.
_LOSSES = {"clf_loss": "task", "lm_loss": "language model"}
_ROOM = 1 << 20  # bytes that must be free on the disk to begin
_PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy")
_ENDLESS = 1e12  # seconds; more is damage

# The classes of trackers, by the keys of `config.log` that switch them on. The keys are
# also the names of their folders in the run folder.
TRACKERS = {
    "tensorboard": "gpt1_jax.runs.tensorboard:TensorBoard",
    "wandb": "gpt1_jax.runs.wandb:Wandb",
}


class Tracker(Protocol):
    """Shows the records of a run elsewhere; made with the run's and its own folder."""

    def __init__(self, run_folder: epath.Path, folder: Path): ...

    def add(self, record: Mapping[str, Any]) -> None:
        """Shows a record: a step, and its metrics by name or a generated text."""

    def close(self) -> None:
        """Writes buffered records and closes."""


class Throughput(NamedTuple):
    """The data that a training step processes."""

    unit: str  # "tokens" or "examples"
    units_per_step: int
    mfu_per_rate: float | None = None  # FLOPs utilisation at one unit/s, if known


class Records:
    """Writes the records of one run on the main process; does nothing on others.

    `metrics.jsonl` holds one JSON object per line: `{"step": .., "loss": ..}` for
    training, `{"step": .., "valid_loss": ..}` for validation, `{"step": ..,
    "sample": ..}` for generated text. A resumed run drops the lines after the step
    it resumes from, so steps never go back, and gives each tracker the lines that are
    left.

    Args:
      workdir: the run folder, local or gs://; a remote one gets copies whenever
        training pauses, and at the end.
      first_step: the step the run continues from.
      num_steps: the step it ends at.
      throughput: the data that a step processes.
      trackers: which of `TRACKERS` get the records too.
      text: tokens and words of the training text, for `sessions.json`; empty where
        they are not counted.
      forms: the forms of attention and LayerNorm, for `sessions.json`.

    Raises:
      ValueError: if an existing file of records holds something else.
      OSError: if the disk has no room.
      MissingPackage: if a tracker is not installed.
    """

    def __init__(
        self,
        workdir: epath.Path,
        first_step: int,
        num_steps: int,
        throughput: Throughput,
        trackers: Sequence[str],
        text: Mapping[str, int],
        forms: Forms,
    ):
        self._active = is_main_process()
        self._throughput = throughput
        self._chrono = Chrono()
        self._trackers: list[Tracker] = []
        if not self._active:
            return
        classes = {name: find_tracker(name) for name in trackers}
        self._remote = workdir if is_remote(workdir) else None
        self._local = Path(workdir)
        with contextlib.ExitStack() as copies:  # which vanish if anything fails
            if self._remote:
                self._local = copies.enter_context(_copied(workdir))
            self._path = self._local / METRICS_FILE
            check_room(epath.Path(self._local), _ROOM, METRICS_FILE)
            sessions = self._local / SESSIONS_FILE
            self._session = Session(sessions, first_step, text, forms)
            kept = [r for r in read_metrics(self._path) if r["step"] <= first_step]
            lines = (format_json(record) + "\n" for record in kept)
            write_whole(self._path, "".join(lines))
            self._file = append_to(self._path, buffering=0)
            for name, make in classes.items():
                tracker = make(workdir, self._local / name)
                for record in kept:
                    tracker.add(record)
                self._trackers.append(tracker)
            self._copies = copies.pop_all()
        self._bar = Bar(
            "train",
            num_steps,
            "step",
            initial=first_step,
            dynamic_ncols=True,
            leave=None,  # stays on the screen unless another bar is above it
        )

    @property
    def step_seconds(self) -> float | None:
        """Seconds of a step, since the last record; None if unknown."""
        return self._chrono.step_seconds

    def step_done(self, step: int) -> None:
        """Notes that a step has finished."""
        self._chrono.step_done(step)
        if self._active:
            self._session.last_step = step
            if self.step_seconds is None:
                self._bar.begin_at(step)  # how long it took says nothing of the others
            self._bar.seconds_each = self.step_seconds
            self._bar.update(step - self._bar.n)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Leaves the block out of step times; afterwards all files are up to date."""
        with self._chrono.paused():
            yield
            if self._active:
                self._publish()
                self._bar.unpause()

    def train(self, step: int, metrics: Mapping[str, float]) -> None:
        """Records training metrics, with the speed since the last record."""
        record: dict[str, Any] = {"step": step, **metrics, **self._speed()}
        self.write(record)
        if not self._active:
            return
        unit = self._throughput.unit
        rate = record.get(f"{unit}_per_second")
        shown = {"loss": f"{metrics['loss']:.3f}"}
        if rate is not None:
            shown[f"{unit}/s"] = f"{rate:,.0f}"
        if not self._bar.in_lines:
            self._bar.set_postfix(shown)
            return
        self._bar.said()
        speed = "" if rate is None else f"  {rate:,.0f} {unit}/s"
        held = [name for name in _LOSSES if name in metrics]
        parts = ", ".join(f"{_LOSSES[name]} {metrics[name]:.4f}" for name in held)
        of = f" ({parts})" if parts else ""
        say(
            f"step {step:>6}/{self._bar.total}  loss {metrics['loss']:.4f}{of}  "
            f"lr {metrics['learning_rate']:.2e}{speed}"
        )

    def _speed(self) -> dict[str, float]:
        """The speed of the steps since the last record."""
        seconds = self._chrono.lap()
        if seconds is None:
            return {}
        unit, units_per_step, mfu_per_rate = self._throughput
        rate = units_per_step / seconds
        mfu = {} if mfu_per_rate is None else {"mfu": rate * mfu_per_rate}
        return {"step_seconds": seconds, f"{unit}_per_second": rate, **mfu}

    def write(self, record: Mapping[str, Any]) -> None:
        """Appends one record to `metrics.jsonl` and to the trackers."""
        if not self._active:
            return
        line = (format_json(record) + "\n").encode()
        with explained_writing(self._path):
            if self._file.write(line) < len(line):  # the disk has filled up
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        for tracker in self._trackers:
            tracker.add(record)

    def scores(self, name: str) -> dict[int, float]:
        """A recorded metric by step; nothing on other processes."""
        return by_step(read_metrics(self._path), name) if self._active else {}

    def _publish(self) -> None:
        """Writes this session's times; copies all records to a remote run folder."""
        check_owned()
        self._session.write()
        if self._remote is not None:
            for path in files_below(self._local):
                target = self._remote / path.relative_to(self._local).as_posix()
                write_whole(target, path.read_bytes())

    def close(self) -> None:
        """Flushes and closes everything."""
        if self._active:
            with self._copies:
                self._bar.close()
                self._file.close()
                for tracker in self._trackers:
                    tracker.close()
                self._publish()


def trackers_in_use(log: LogConfig) -> list[str]:
    return [name for name in TRACKERS if getattr(log, name)]


def find_tracker(name: str) -> type[Tracker]:
    """The class of a tracker; MissingPackage if it is not installed."""
    key = f"config.log.{name}"
    return find_named(TRACKERS[name], f"{key}=True", f"add --{key}=False")


def read_metrics(path: epath.PathLike) -> list[dict[str, Any]]:
    """The records in a metrics file, without a last line that a crash cut off.

    Raises:
      ValueError: naming any other line that is not a record.
    """
    path = epath.Path(path)
    if not path.exists():
        return []
    records = []
    lines = path.read_bytes().decode("utf-8", errors="replace").split("\n")
    for number, line in enumerate(lines, 1):
        try:
            record = parse_json(line)
        except (ValueError, RecursionError):
            record = None
        if isinstance(record, dict) and isinstance(record.get("step"), int):
            records.append(record)
        elif number < len(lines):
            raise UserError(
                f"{path}:{number}: {line!r:.60} is not a run's record, a JSON object "
                'with an integer "step". Move the file away to start a new one.'
            )
    return records


def by_step(records: Sequence[Mapping[str, Any]], name: str) -> dict[int, Any]:
    """The values of a metric in the records that have it, by step."""
    return {record["step"]: record[name] for record in records if name in record}


@contextlib.contextmanager
def _copied(remote: epath.Path) -> Iterator[Path]:
    """A local folder with copies of a remote run's records so far."""
    with temporary_folder() as local:
        for name in (METRICS_FILE, SESSIONS_FILE):
            if (remote / name).exists():
                create(local / name, (remote / name).read_bytes())
        yield local


class Session:
    """The work of this program on a run, as an entry of `sessions.json`.

    Time counts from the start of the program, or from the end of the session before
    it in the same program, as in a suite.

    Args:
      path: the local `sessions.json`.
      first_step, text, forms: as for `Records`.

    Raises:
      ValueError: if the file that is there is damaged.
    """

    def __init__(
        self,
        path: epath.PathLike,
        first_step: int,
        text: Mapping[str, int],
        forms: Forms,
    ):
        self._path = path
        self._before = read_sessions(path)
        self._seconds: Counter[str] = Counter()
        self.last_step = first_step
        self._known = {
            "began": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "first_step": first_step,
            "devices": devices.describe_devices(),
            "processes": jax.process_count(),
            "host": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
            "versions": dict(package_versions()),
            "text": dict(text),
            "forms": dict(forms),
        }

    def write(self) -> None:
        """Writes the file, with the work done so far."""
        self._seconds.update(PROGRAM.lap())
        done = {"last_step": self.last_step, "seconds": dict(self._seconds)}
        # A full disk is reported by the save that fails; this file is written again.
        with contextlib.suppress(OSError):
            write_json(self._path, {"sessions": [*self._before, self._known | done]})


@functools.cache  # looking them up takes longer than writing a session
def package_versions() -> Mapping[str, str]:
    """Versions of Python, of this package and of the packages that it computes with."""
    return {
        "gpt1_jax": gpt1_jax.__version__,
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in _PACKAGES},
    }


def read_sessions(path: epath.PathLike) -> list[Mapping[str, Any]]:
    """The sessions in a file, the oldest first; none if there is no file.

    Raises:
      ValueError: if the file holds something else.
    """
    if not epath.Path(path).exists():
        return []
    sessions = read_json(path).get("sessions")
    if not (isinstance(sessions, list) and all(map(_is_session, sessions))):
        raise UserError(
            f"{path} holds no list of sessions; it is damaged or was not written by "
            "this program. Move it away to start a new one."
        )
    return sessions


def steps_taken_over(
    config: PretrainConfig, sessions: Sequence[Mapping[str, Any]]
) -> int:
    """How many of a run's updates its origin took, whose optimizer it took over.

    A run that has not begun has no sessions, and took none.
    """
    return sessions[0]["first_step"] if config.init_optimizer and sessions else 0


_SESSION_KINDS: Mapping[str, type] = {
    "began": str,
    "first_step": int,
    "last_step": int,
    "devices": str,
    "host": str,
    "versions": dict,
    "text": dict,
    "seconds": dict,
}


def _is_session(value: Any) -> bool:
    """Whether a value read from a file is an entry of `sessions.json`."""
    return (
        isinstance(value, dict)
        and all(isinstance(value.get(k), kind) for k, kind in _SESSION_KINDS.items())
        and are_forms(value.get("forms", {}))
        and all(
            isinstance(each, int | float) and 0 <= each < _ENDLESS
            for each in value["seconds"].values()
        )
    )
