"""Weights & Biases as a tracker of a run's records.

A failure there never ends a training: one line reports it, and training goes on. All
records are in `metrics.jsonl` in any case.
"""

import contextlib
import html
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from etils import epath

from gpt1_jax.config.saved import read_json
from gpt1_jax.data.files import (
    files_below,
    is_remote,
    make_folder,
    temporary_folder,
    write_json,
    write_whole,
)
from gpt1_jax.errors import find_named, from_extra
from gpt1_jax.runs.console import say
from gpt1_jax.runs.folder import CONFIG_FILE, has_begun
from gpt1_jax.runs.lock import LOCK_FILE
from gpt1_jax.runs.signals import Stopped

with from_extra("wandb", "config.log.wandb=True", "add --config.log.wandb=False"):
    import wandb

FOLDER = "wandb"  # in the run folder
NOTE_FILE = "run.json"  # in that folder
_PROJECT = "gpt1_jax"
_SECONDS = 30  # to wait for the server at the start and at the end of a run
_PLOT = "gpt1_jax.report.loss_plot:plot_loss"
# The training loss and its unit, for the plot.
_LOSSES = {
    "pretrain": ("loss", "nats per token"),
    "finetune": ("clf_loss", "nats per example"),
}


class Wandb:
    """Sends the records of a run to Weights & Biases, or records them offline.

    A run folder has one run there. Its id is kept in `wandb/run.json` with the newest
    step sent: steps cannot be taken back there, and a resumed training repeats the same
    values, so earlier steps are not sent again. A training that begins anew in its
    folder is a new run.

    Args:
      run_folder: the run folder, local or gs://.
      folder: the local folder `wandb/` to write to.
    """

    def __init__(self, run_folder: epath.Path, folder: Path):
        self._folder = folder
        self._shown = run_folder / FOLDER  # as the user knows it
        self._run: Any = None
        with _guarded(self._shown, self):
            config = read_json(run_folder / CONFIG_FILE)
            note = _read_note(run_folder) if has_begun(run_folder) else {}
            sent = note.get("sent", {})  # by metric, as 1.0 had it
            self._step = note.get("step", max(sent.values(), default=0))
            self._job = config["job"]
            suite = _suite(run_folder)
            self._run = _start(
                folder,
                self._shown,
                note.get("id"),
                config=config,
                name="/".join(run_folder.parts[-2:]) if suite else run_folder.name,
                group=suite.name if suite else None,
                job_type=self._job,
            )

    def add(self, record: Mapping[str, Any]) -> None:
        """Sends a record: numbers as metrics, a text as HTML."""
        step = record["step"]
        if self._run is None or step < self._step:
            return
        with _guarded(self._shown, self):
            shown = dict(record)
            for name, value in record.items():
                if isinstance(value, str):  # for a table wandb would wait
                    shown[name] = wandb.Html(f"<pre>{html.escape(value)}</pre>")
            self._run.log(shown, step=step)
            self._step = step
            note = {"id": self._run.id, "step": step}
            write_json(self._folder / NOTE_FILE, note)

    def close(self) -> None:
        """Sends the loss plot of a run that has ended, and everything not yet sent."""
        error = sys.exc_info()[1]  # what ends the training early
        if self._run is None:
            return
        with _guarded(self._shown, self):
            if error is None:
                plot_loss, loss = find_named(_PLOT, "that"), _LOSSES[self._job]
                path = os.fspath(self._folder / "loss.png")
                if plot_loss(epath.Path(self._folder.parent), *loss, figure=path):
                    self._run.log({"loss_plot": wandb.Image(path)}, step=self._step)
            elif isinstance(error, Stopped):
                self._run.mark_preempting()
            _finish(self._run, exit_code=0 if error is None else 1)

    @staticmethod
    def log_results(folder: epath.Path, scores: Any) -> None:
        """Sends the scores of a suite, a `pandas.DataFrame`, in a run of their own.

        The folder of the suite may be local or gs://.
        """
        with _guarded(folder / FOLDER), contextlib.ExitStack() as stack:
            local = Path(folder)
            if is_remote(folder):
                local = stack.enter_context(temporary_folder())
            run = _start(
                local / FOLDER,
                folder / FOLDER,
                _read_note(folder).get("id"),
                name=folder.name,
                group=folder.name,
                job_type="results",
            )
            if run is None:
                return
            run.log({"results": wandb.Table(dataframe=scores.astype(object))})
            write_json(local / FOLDER / NOTE_FILE, {"id": run.id})
            _finish(run, exit_code=0)
            if is_remote(folder):
                for path in files_below(local):
                    copy = folder / path.relative_to(local).as_posix()
                    write_whole(copy, path.read_bytes())


def _start(folder: Path, shown: epath.Path, run_id: str | None, **about: Any) -> Any:
    """Starts or continues a run; None if Weights & Biases is switched off.

    What the user has set (`WANDB_MODE`, `WANDB_PROJECT`, ..) has priority.
    Without an API key, or if the server cannot be reached, the run is recorded offline:
    nothing ever asks for a key. Messages name the local `folder` as `shown`.
    """
    quiet: dict[str, Any] = {"silent": True, "console": "off", "symlink": False}
    users = wandb.setup(wandb.Settings(**quiet)).settings
    if users.mode == "disabled":
        return None
    make_folder(folder)
    quiet |= {"finish_timeout": _SECONDS, "finish_timeout_raises": True}
    if "WANDB_INIT_TIMEOUT" not in os.environ:
        quiet["init_timeout"] = _SECONDS
    for name in ("name", "group", "job_type"):
        about[name] = getattr(users, f"run_{name}") or about[name]

    def start(mode: Any) -> Any:
        run = wandb.init(
            project=users.project or _PROJECT,
            dir=os.environ.get("WANDB_DIR") or folder.parent,
            id=run_id,
            resume="allow",
            mode=mode,
            settings=wandb.Settings(**quiet),
            **about,
        )
        for path in Path(run.settings.log_dir).iterdir():
            if path.is_symlink():  # to a log outside of the folder, which may be moved
                path.unlink()
        return run

    why = ""
    if users.mode not in ("offline", "dryrun"):
        try:
            if wandb.login(prompt=False, verify=False):
                run = start(users.mode)
                say(f"Weights & Biases: {run.url}")
                return run
            why = "no API key (WANDB_API_KEY, or the command wandb login); "
        except Exception as error:
            why = f"{_line(error)}; "
    run = start("offline")
    outside = os.environ.get("WANDB_DIR")
    where = epath.Path(outside) / FOLDER if outside else shown
    say(f"Weights & Biases: {why}recorded offline. To send it: wandb sync {where}")
    return run


def _finish(run: Any, exit_code: int) -> None:
    """Ends a run, and wandb's process, which may still be writing its files."""
    run.finish(exit_code=exit_code)
    with contextlib.suppress(SystemExit):  # of that process
        wandb.teardown()


@contextlib.contextmanager
def _guarded(folder: epath.Path, tracker: Wandb | None = None) -> Iterator[None]:
    """Says what fails inside in one line, and switches the tracker off."""
    try:
        yield
    except Exception as error:
        if tracker:
            tracker._run = None
        # wandb's threads and its hook at exit would end with tracebacks.
        with contextlib.suppress(Exception, SystemExit):
            wandb.teardown(exit_code=1)
        say(
            f"WARNING: Weights & Biases: {_line(error)}; going on without it. Records "
            f"that it did not get are in {folder} (wandb sync --include-online) and "
            "in the run's own."
        )


def _line(error: Exception) -> str:
    """The beginning of an error's message."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].rstrip(".")


def _read_note(folder: epath.Path) -> dict[str, Any]:
    """The id of the folder's run and what was sent of it; empty if there is none."""
    path = folder / FOLDER / NOTE_FILE
    return dict(read_json(path)) if path.exists() else {}


def _suite(run_folder: epath.Path) -> epath.Path | None:
    """The folder of the suite that a run belongs to: the command owns that instead."""
    if (run_folder / LOCK_FILE).exists() or len(run_folder.parents) < 2:
        return None
    suite = run_folder.parents[1]
    return suite if (suite / LOCK_FILE).exists() else None
