"""What the figures of minimal pairs show."""

import numpy as np
import pandas as pd
from drawn import png
from gpt1_jax.studies.minimal_pairs.figure import pairs_over_steps


def test_pairs_over_steps_show_step_0_of_milestones():
    rows = [
        (run, run == "LSTM", step, group, 0.5 + 0.1 * number, 0.01)
        for run, steps in (("Transformer", [0, 1, 10]), ("LSTM", [0]))
        for group in ("binding", "ellipsis")
        for number, step in enumerate(steps)
    ]
    columns = ["run", "is_baseline", "step", "group", "accuracy", "standard_error"]
    figure = pairs_over_steps(pd.DataFrame(rows, columns=columns), {})
    assert png(figure).startswith(b"\x89PNG")
    for axes in figure.axes[:2]:
        [curve] = axes.containers  # the baseline is a level
        assert list(curve.lines[0].get_xdata()) == [0, 1, 10]
        np.testing.assert_allclose(list(curve.lines[0].get_ydata()), [50, 60, 70])
        assert axes.get_xlim()[0] <= 0
