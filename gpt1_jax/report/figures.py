"""Pictures for people; the only file that imports matplotlib."""

import io

from etils import epath

from gpt1_jax.runs.records import METRICS_FILE, read_metrics


def plot_loss(folder: epath.Path, train: str, unit: str) -> epath.Path:
    """Draws training and validation loss over steps from `metrics.jsonl`.

    Args:
      folder: the run folder, local or gs://.
      train: the training metric to draw beside `valid_loss`.
      unit: the unit of both.

    Returns:
      The path of the picture, `plots/loss.png`.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    records = read_metrics(folder / METRICS_FILE)
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
    picture = io.BytesIO()
    figure.savefig(picture, dpi=120, format="png")
    plt.close(figure)
    path = folder / "plots" / "loss.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(picture.getvalue())
    return path
