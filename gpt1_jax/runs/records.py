"""Records a run as it goes: metrics, sessions, trackers, the progress bar.

`sessions.json` holds one entry for each program that trained in the run folder. It is
written with every checkpoint and evaluation, so that a program that is killed has
recorded all but its last steps.
"""

import contextlib
import datetime
import functools
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import time
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
from gpt1_jax.runs.wall_time import PROGRAM

METRICS_FILE = "metrics.jsonl"
# The keys of its records that depend on the clock.
TIME_KEYS = ("step_seconds", "tokens_per_second", "examples_per_second", "mfu")
# The parts of a loss, and their names in a line.
_LOSSES = {"clf_loss": "task", "lm_loss": "language model"}
_ROOM = 1 << 20  # bytes that must be free on the disk to write a record
_HALF = re.compile(r"\\u[dD][89a-fA-F]")  # perhaps of a whole surrogate pair

# The classes of trackers, by the keys of `config.log` that switch them on. The keys are
# also the names of their folders in the run folder.
TRACKERS = {
    "tensorboard": "gpt1_jax.runs.tensorboard:TensorBoard",
    "wandb": "gpt1_jax.report.wandb:Wandb",
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
    left. `sessions.json` is brought up to date by `publish`, with the digest of
    `metrics.jsonl`; if that no longer matches, a resumed run says so.

    Attributes:
      step_seconds: of a step, since the last record; None if unknown.

    Args:
      workdir: the run folder, local or gs://; a remote one gets copies whenever
        `publish` is called.
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
        self.step_seconds: float | None = None
        self._throughput = throughput
        self._clock: tuple[int, float] | None = None
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
            kept = self._drop_after(first_step, workdir)
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

    def _drop_after(self, step: int, workdir: epath.Path) -> list[dict[str, Any]]:
        """Drops the records after `step` from `metrics.jsonl`; returns the others.

        Says if the file is not as the last session wrote it.
        """
        there = self._path.exists()
        found = self._path.read_bytes() if there else b""
        records = [each for each in read_metrics(self._path) if each["step"] <= step]
        kept = "".join(format_json(each) + "\n" for each in records).encode()
        written = self._session.metrics_before
        if not _begins_as(found, written):
            state = f"is not as {SESSIONS_FILE} says that it was written"
            say(
                f"WARNING: {workdir / METRICS_FILE} "
                f"{state if there else 'is missing'}. The run goes on; its states and "
                "its best step are not affected, but its records are."
            )
        if not _begins_as(kept, written):
            # Before the file is cut, so that a kill never leaves one that seems
            # damaged: what is written fits the file before and after.
            common = kept if found.startswith(kept) else b""
            self._session.write(_part(len(common), hashlib.sha256(common)))
            if self._remote:
                _copy(self._local / SESSIONS_FILE, self._remote / SESSIONS_FILE)
        if there:
            write_whole(self._path, kept)
        self._bytes, self._digest = len(kept), hashlib.sha256(kept)
        return records

    def step_done(self, step: int) -> None:
        """Notes that a step has finished; the first one only starts the clock."""
        if self._clock is None:
            self._clock = (step, time.perf_counter())
            if self._active:
                self._bar.said()  # how long it took does not tell how long others do
        if self._active:
            self._session.last_step = step
            self.step_seconds = self._speed(step).get("step_seconds")
            self._bar.seconds_each = self.step_seconds
            self._bar.update(step - self._bar.n)

    def pause_clock(self) -> None:
        """Leaves out the time until the next finished step from step times."""
        self._clock = None
        if self._active:
            self._bar.unpause()

    def train(self, step: int, metrics: Mapping[str, float]) -> None:
        """Records training metrics, with the speed since the last record."""
        record: dict[str, Any] = {"step": step, **metrics, **self._speed(step)}
        self._clock = (step, time.perf_counter())
        self.write(record)
        if not self._active:
            return
        unit = self._throughput.unit
        rate = record.get(f"{unit}_per_second")
        shown = {"loss": f"{metrics['loss']:.3f}"}
        if rate is not None:
            shown[f"{unit}/s"] = f"{rate:,.0f}"
        if self._bar.in_lines:
            self._bar.said()
            speed = "" if rate is None else f"  {rate:,.0f} {unit}/s"
            parts = [
                f"{shown} {metrics[name]:.4f}"
                for name, shown in _LOSSES.items()
                if name in metrics
            ]
            of = f" ({', '.join(parts)})" if parts else ""
            say(
                f"step {step:>6}/{self._bar.total}  loss {metrics['loss']:.4f}{of}  "
                f"lr {metrics['learning_rate']:.2e}{speed}"
            )
        else:
            self._bar.set_postfix(shown)

    def _speed(self, step: int) -> dict[str, float]:
        if self._clock is None or step <= self._clock[0]:
            return {}
        seconds = (time.perf_counter() - self._clock[1]) / (step - self._clock[0])
        unit, units_per_step, mfu_per_rate = self._throughput
        rate = units_per_step / seconds
        speed = {"step_seconds": seconds, f"{unit}_per_second": rate}
        if mfu_per_rate is not None:
            speed["mfu"] = rate * mfu_per_rate
        return speed

    def write(self, record: Mapping[str, Any]) -> None:
        """Appends one record to `metrics.jsonl` and to the trackers."""
        if not self._active:
            return
        check_room(epath.Path(self._local), _ROOM, METRICS_FILE)
        with explained_writing(self._path):
            line = (format_json(record) + "\n").encode()
            written = self._file.write(line)  # less on a disk that fills up
        self._bytes += written
        self._digest.update(line[:written])
        for tracker in self._trackers:
            tracker.add(record)

    def recorded(self, name: str, step: int) -> bool:
        """Whether `metrics.jsonl` holds a metric for a step."""
        if not self._active:
            return True
        return any(r["step"] == step and name in r for r in read_metrics(self._path))

    def publish(self) -> None:
        """Writes this session's times; copies all records to a remote run folder."""
        if not self._active:
            return
        check_owned()
        self._session.write(_part(self._bytes, self._digest))
        if self._remote is None:
            return
        # The digest comes after the records, of which it may name fewer but not more.
        files = files_below(self._local)
        for path in sorted(files, key=lambda path: path.name == SESSIONS_FILE):
            _copy(path, self._remote / path.relative_to(self._local).as_posix())

    def close(self) -> None:
        """Flushes and closes everything."""
        if self._active:
            with self._copies:
                self._bar.close()
                self._file.close()
                for tracker in self._trackers:
                    tracker.close()
                self.publish()


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
            if _HALF.search(line):
                record = _without_halves(record)
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


def _without_halves(record: Any) -> Any:
    """JSON with U+FFFD for each half of a surrogate pair, which no file takes."""
    text = json.dumps(record, ensure_ascii=False).encode("utf-16", "surrogatepass")
    return json.loads(text.decode("utf-16", errors="replace"))


@contextlib.contextmanager
def _copied(remote: epath.Path) -> Iterator[Path]:
    """A local folder with copies of a remote run's records so far."""
    with temporary_folder() as local:
        for name in (METRICS_FILE, SESSIONS_FILE):
            if (remote / name).exists():
                create(local / name, (remote / name).read_bytes())
        yield local


def _copy(path: epath.PathLike, target: epath.Path) -> None:
    write_whole(target, epath.Path(path).read_bytes())


def _part(size: int, digest: Any) -> dict[str, Any]:
    """The first bytes of `metrics.jsonl`, as `sessions.json` names them."""
    return {"bytes": size, "sha256": digest.hexdigest()}


def _begins_as(content: bytes, part: Mapping[str, Any] | None) -> bool:
    """Whether a file begins with a `_part`; yes if none is known."""
    if part is None:
        return True
    begin = content[: part["bytes"]]
    digest = hashlib.sha256(begin).hexdigest()
    return len(begin) == part["bytes"] and digest == part["sha256"]


SESSIONS_FILE = "sessions.json"
_ENDLESS = 1e12  # seconds; more is damage
_PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy")


class Session:
    """The work of this program on a run, as an entry of `sessions.json`.

    Time counts from the start of the program, or from the end of the session before
    it in the same program, as in a suite.

    Args:
      path: the local `sessions.json`.
      first_step: the step that the run continues from.
      text: tokens and words of the training text; empty where they are not counted.
      forms: the forms of attention and LayerNorm.

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
        # What the last session wrote of `metrics.jsonl`; unknown before it wrote any.
        self.metrics_before: Mapping[str, Any] | None = (
            self._before[-1].get("metrics") if self._before else None
        )
        self._seconds: Counter[str] = Counter()
        self._began = datetime.datetime.now(datetime.UTC)
        self._text, self._forms = dict(text), dict(forms)
        self._first_step = self.last_step = first_step

    def write(self, metrics: Mapping[str, Any] | None = None) -> None:
        """Writes the file, with the work done so far.

        Args:
          metrics: size and digest of `metrics.jsonl`, or of its beginning.
        """
        self._seconds.update(PROGRAM.lap())
        session = {
            "began": self._began.isoformat(timespec="seconds"),
            "first_step": self._first_step,
            "last_step": self.last_step,
            "devices": devices.describe_devices(),
            "processes": jax.process_count(),
            "host": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
            "versions": dict(package_versions()),
            "text": self._text,
            "forms": self._forms,
            "seconds": dict(self._seconds),
        }
        if metrics is not None:
            session["metrics"] = metrics
        # A full disk is reported by the save that fails; this file is written again.
        with contextlib.suppress(OSError):
            write_json(self._path, {"sessions": [*self._before, session]})


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

    Args:
      config: the run's configuration.
      sessions: the run's sessions, from `read_sessions`; none if it has not begun.
    """
    return sessions[0]["first_step"] if config.init_optimizer and sessions else 0


def _is_session(value: Any) -> bool:
    match value:
        case {
            "began": str(),
            "first_step": int(),
            "last_step": int(),
            "devices": str(),
            "host": str(),
            "versions": dict(),
            "text": dict(),
            "seconds": dict(seconds),
            **others,
        }:
            return (
                are_forms(others.get("forms", {}))
                and ("metrics" not in others or _is_part(others["metrics"]))
                and all(
                    isinstance(each, int | float) and 0 <= each < _ENDLESS
                    for each in seconds.values()
                )
            )
    return False


def _is_part(value: Any) -> bool:
    match value:
        case {"bytes": int(size), "sha256": str()}:
            return size >= 0
    return False
