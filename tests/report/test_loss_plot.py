"""The plot of losses."""

from etils import epath

from gpt1_jax.report.loss_plot import plot_loss
from gpt1_jax.runs.records import METRICS_FILE


def test_plot_is_a_picture_even_without_validation(tmp_path):
    (tmp_path / METRICS_FILE).write_text('{"step": 1, "loss": 2.5}\n')
    path = plot_loss(epath.Path(tmp_path), "loss", "nats", guess=0.7)
    assert path == epath.Path(tmp_path) / "plots" / "loss.png"
    assert path.read_bytes().startswith(b"\x89PNG")
