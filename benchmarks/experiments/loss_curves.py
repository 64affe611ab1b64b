"""Whether the fast bfloat16 step learns as the plain float32 one does.

    python -m benchmarks.experiments.loss_curves --train='books/*.txt' --output=DIR

Pre-trains `configs/pretrain.py:small` three times on the same windows in the same
order with the same dropout masks: in float32 with plain attention (the reference), in
bfloat16 with the blocked attention, and in float32 from another seed, which shows how
far two runs lie apart by chance. Writes the runs, a table and a plot into the folder.
"""

import argparse
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks import harness
from benchmarks.harness import count
from benchmarks.paper_model import load_config

PLAIN = ("--config.model.dtype=float32", "--config.model.attention_form=plain")
RUNS = {
    "float32, plain attention": PLAIN,
    "bfloat16, blocked attention": (
        "--config.model.dtype=bfloat16",
        "--config.model.attention_form=blocked",
    ),
    "float32, another seed": (*PLAIN, "--config.seed=1"),
}
REFERENCE, FAST, OTHER_SEED = RUNS
LAST = 50  # steps whose mean loss is compared
STYLES = {FAST: "-", REFERENCE: "--", OTHER_SEED: ":"}


def train(folder: Path, overrides: Sequence[str], flags: argparse.Namespace) -> None:
    """One run of `steps` updates that logs each of them."""
    root = Path(__file__).resolve().parents[2]
    warmup = load_config("pretrain", "small").optimizer.warmup_steps
    command = [
        *(sys.executable, "-m", "gpt1_jax.main"),
        f"--config={root / 'configs' / 'pretrain.py'}:small",
        f"--workdir={folder}",
        "--config.data.source=text",
        f"--config.data.train={flags.train}",
        f"--config.train.num_steps={flags.steps}",
        f"--config.optimizer.warmup_steps={min(warmup, flags.steps - 1)}",
        "--config.log.every_steps=1",
        f"--config.eval.every_steps={flags.steps + 1}",
        "--config.model.layer_norm_form=plain",
        *overrides,
    ]
    subprocess.run(command, check=True)


def losses(folder: Path) -> list[float]:
    """Training loss of each step, nats per token."""
    from gpt1_jax.runs.records import METRICS_FILE, read_metrics

    return [r["loss"] for r in read_metrics(folder / METRICS_FILE) if "loss" in r]


def table(curves: Mapping[str, Sequence[float]]) -> str:
    """How far the losses of each run are from the reference."""
    reference = curves[REFERENCE]
    rows = []
    for name, curve in curves.items():
        apart = [abs(a - b) for a, b in zip(curve, reference, strict=True)]
        last = statistics.mean(curve[-LAST:])
        rows.append(
            [
                name,
                f"{curve[0]:.4f}",
                f"{last:.4f}",
                f"{last - statistics.mean(reference[-LAST:]):+.4f}",
                f"{statistics.mean(apart):.4f}",
                f"{max(apart):.4f}",
            ]
        )
    header = (
        "run",
        "first loss",
        f"mean of the last {LAST}",
        "against float32",
        "mean difference a step",
        "largest",
    )
    return harness.markdown(header, rows)


def plot(curves: Mapping[str, Sequence[float]], path: Path) -> None:
    """Draws the curves over each other."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for name, style in STYLES.items():
        axes.plot(curves[name], style, label=name, linewidth=1.2)
    axes.set(xlabel="step", ylabel="training loss, nats per token")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)


def main(arguments: Sequence[str]) -> None:
    """Trains, compares, plots."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--train", required=True, help="text files, as in the config")
    parser.add_argument("--steps", type=count, default=300)
    parser.add_argument("--output", type=Path, required=True, help="a new folder")
    flags = parser.parse_args(arguments)
    if flags.output.exists():
        parser.error(f"--output={flags.output} exists; name a new folder")
    curves = {}
    for number, (name, overrides) in enumerate(RUNS.items()):
        train(flags.output / str(number), overrides, flags)
        curves[name] = losses(flags.output / str(number))
    plot(curves, flags.output / "loss_curves.png")
    print(table(curves))


if __name__ == "__main__":
    main(sys.argv[1:])
