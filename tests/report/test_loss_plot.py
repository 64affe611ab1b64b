"""The plot of losses."""

from etils import epath

from gpt1_jax.report import loss_plot
from gpt1_jax.report.loss_plot import plot_loss
from gpt1_jax.runs.records import METRICS_FILE


def test_a_loss_that_is_no_number_is_not_the_best(tmp_path, monkeypatch):
    losses = ((1, "NaN"), (2, "3.0"), (3, "4.0"))
    lines = (f'{{"step": {step}, "valid_loss": {loss}}}' for step, loss in losses)
    (tmp_path / METRICS_FILE).write_text("\n".join(lines) + "\n")
    drawn = []
    monkeypatch.setattr(loss_plot, "save_figure", lambda draw, *_: drawn.append(draw()))
    plot_loss(epath.Path(tmp_path), "loss", "nats")
    title = drawn[0].axes[0].get_title()
    assert title.startswith("best validation loss 3.000 nats at step 2; last 4.000")
