"""What a run writes for people: metrics, TensorBoard, progress, samples, plots."""

import json
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tqdm
from etils import epath

METRICS_FILE = "metrics.jsonl"


class Records:
    """Metrics of one run, on the process that writes; a silent double elsewhere.

    `metrics.jsonl` holds one JSON object a line: `{"step": .., "loss": ..}` for
    training, `{"step": .., "valid_loss": ..}` for validation, `{"step": ..,
    "sample": ..}` for generated text. A resumed run drops the lines after the step
    it resumes from, so steps only ever grow.

    Args:
      workdir: the run folder, local or gs://; a remote one gets copies whenever
        `publish` is called.
      first_step: the step the run goes on from.
      num_steps: the step it ends at.
      unit: what a step works through, "tokens" or "examples".
      units_per_step: to turn step times into a speed.
      mfu_per_rate: model FLOPs utilisation for each unit/s; None where the
        devices' peak is not known, and then none is recorded.
      tensorboard: whether to write TensorBoard events.
      active: whether this process writes.
    """

    def __init__(
        self,
        workdir: epath.Path,
        first_step: int,
        num_steps: int,
        *,
        unit: str,
        units_per_step: int,
        mfu_per_rate: float | None,
        tensorboard: bool,
        active: bool,
    ):
        self._active = active
        self._unit, self._units_per_step = unit, units_per_step
        self._mfu_per_rate = mfu_per_rate
        self._clock: tuple[int, float] | None = None
        self._writer = None
        if not active:
            return
        self._remote = workdir if "://" in str(workdir) else None
        self._local = _local_folder(workdir) if self._remote else Path(workdir)
        self._path = self._local / METRICS_FILE
        _drop_after(self._path, first_step)
        self._file = self._path.open("a", encoding="utf-8")
        if tensorboard:
            import tensorboardX  # loads PyTorch where that is installed: 1 s, 0.1 GB

            self._writer = tensorboardX.SummaryWriter(
                str(self._local / "tensorboard"), purge_step=first_step + 1
            )
        self._bar = tqdm.tqdm(
            total=num_steps,
            initial=first_step,
            unit="step",
            desc="train",
            disable=None,  # off where standard error is no terminal
            dynamic_ncols=True,
        )

    def step_done(self, step: int) -> None:
        """Notes that a step has finished; the first one only starts the clock."""
        if self._clock is None:
            self._clock = (step, time.perf_counter())
        if self._active:
            self._bar.update(step - self._bar.n)

    def pause_clock(self) -> None:
        """Leaves what happens until the next finished step out of the step time."""
        self._clock = None

    def train(self, step: int, metrics: Mapping[str, float]) -> None:
        """Records training metrics, with the speed since the last record."""
        record: dict[str, Any] = {"step": step, **metrics}
        if self._clock is not None and step > self._clock[0]:
            seconds = (time.perf_counter() - self._clock[1]) / (step - self._clock[0])
            record["step_seconds"] = seconds
            record[f"{self._unit}_per_second"] = rate = self._units_per_step / seconds
            if self._mfu_per_rate is not None:
                record["mfu"] = rate * self._mfu_per_rate
        self._clock = (step, time.perf_counter())
        self.write(record)
        if not self._active:
            return
        shown = {"loss": f"{metrics['loss']:.3f}"}
        speed = ""
        if f"{self._unit}_per_second" in record:
            shown[f"{self._unit}/s"] = f"{record[f'{self._unit}_per_second']:,.0f}"
            speed = f"  {shown[f'{self._unit}/s']} {self._unit}/s"
        self._bar.set_postfix(shown)
        if self._bar.disable:
            self.say(
                f"step {step:>6}/{self._bar.total}  loss {metrics['loss']:.4f}  "
                f"lr {metrics['learning_rate']:.2e}{speed}"
            )

    def write(self, record: Mapping[str, Any]) -> None:
        """Appends one line to `metrics.jsonl` and the same to TensorBoard."""
        if not self._active:
            return
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()
        if self._writer is None:
            return
        step = record["step"]
        for name, value in record.items():
            if isinstance(value, str):
                self._writer.add_text(name, value, step)
            elif name != "step":
                self._writer.add_scalar(name, value, step)

    def say(self, text: str) -> None:
        """Shows text, on the process that writes."""
        if self._active:
            say(text)

    def recorded(self, name: str, step: int) -> bool:
        """Whether `metrics.jsonl` holds a metric of a step."""
        if not self._active:
            return True
        return any(r["step"] == step and name in r for r in read_metrics(self._path))

    def plot(self, train: str = "loss", unit: str = "nats per token") -> str:
        """Draws the loss curve of a training metric; returns where it is."""
        if not self._active:
            return ""
        picture = plot_loss(self._local, train, unit)
        self.publish()
        return str(picture)

    def publish(self) -> None:
        """Copies the records to a remote run folder; does nothing for a local one."""
        if not self._active or self._remote is None:
            return
        if self._writer is not None:
            self._writer.flush()
        for path in self._local.rglob("*"):
            if path.is_file():
                target = self._remote / path.relative_to(self._local).as_posix()
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(path.read_bytes())

    def close(self) -> None:
        """Flushes and closes everything."""
        if self._active:
            self._bar.close()
            self._file.close()
            if self._writer is not None:
                self._writer.close()
            self.publish()


def say(text: str) -> None:
    """Shows text without breaking a progress bar."""
    tqdm.tqdm.write(text, file=sys.stdout)
    sys.stdout.flush()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The records of a metrics file; a line cut off by a crash is left out."""
    if not path.exists():
        return []
    records = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            records.append(json.loads(line))
        except ValueError:
            continue
    return records


def _local_folder(remote: epath.Path) -> Path:
    """A local folder for the records of a remote run, holding its metrics so far."""
    local = Path(tempfile.mkdtemp(prefix="gpt1_jax-records-"))
    if (remote / METRICS_FILE).exists():
        (local / METRICS_FILE).write_bytes((remote / METRICS_FILE).read_bytes())
    return local


def _drop_after(path: Path, step: int) -> None:
    """Rewrites a metrics file with the records up to `step`."""
    if not path.exists():
        return
    kept = [r for r in read_metrics(path) if r["step"] <= step]
    partial = path.with_suffix(".partial")
    partial.write_text("".join(json.dumps(r) + "\n" for r in kept), encoding="utf-8")
    partial.rename(path)


def plot_loss(workdir: Path, train: str, unit: str) -> Path:
    """Draws training and validation loss over steps from `metrics.jsonl`.

    Args:
      workdir: the run folder.
      train: the training metric to draw beside `valid_loss`.
      unit: of both.

    Returns:
      The path of the picture, `plots/loss.png`.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    records = read_metrics(workdir / METRICS_FILE)
    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for name, label, style in (
        (train, "training", {"color": "tab:blue", "linewidth": 1.0, "alpha": 0.6}),
        ("valid_loss", "validation", {"color": "tab:orange", "marker": "o"}),
    ):
        points = [(r["step"], r[name]) for r in records if name in r]
        if points:
            axes.plot(*zip(*points, strict=True), label=label, **style)
    last = [r for r in records if "valid_loss" in r]
    if last:
        axes.set_title(
            f"validation loss {last[-1]['valid_loss']:.3f} {unit} at step "
            f"{last[-1]['step']:,}",
            fontsize=10,
        )
    axes.set(xlabel="step", ylabel=f"loss, {unit}")
    axes.grid(alpha=0.3)
    axes.legend()
    path = workdir / "plots" / "loss.png"
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path
