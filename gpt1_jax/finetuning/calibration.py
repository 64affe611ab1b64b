"""Calibrated probabilities: a temperature that divides the outputs of a head.

Guo et al. (2017), "On Calibration of Modern Neural Networks", sec. 4.2. It changes how
sure a model is of its labels, but not the labels.
"""

import numpy as np
from scipy import optimize

from gpt1_jax.config.finetune import FinetuneConfig
from gpt1_jax.finetuning.predictor import mean_loss
from gpt1_jax.finetuning.results import damaged_results, results_of_step
from gpt1_jax.runs.console import say
from gpt1_jax.runs.folder import RESULTS_FILE
from gpt1_jax.runs.open import TrainedRun

TEMPERATURE = "temperature"  # in results.json, of the step that it scores
_RANGE = (0.1, 10.0)  # where all labels are right, none is the lowest


def fit_temperature(
    logits: np.ndarray, targets: np.ndarray, multilabel: bool = False
) -> float:
    """The temperature from 0.1 to 10 with the lowest log loss.

    Args:
      logits: [N, K], the head's outputs for examples that it was not trained on.
      targets: [N, K], their labels, as `gpt1_jax.tasks.transforms.targets` makes them.
      multilabel: whether an example may have several of the labels, or none.
    """
    logits = logits.astype(np.float64)
    found = optimize.minimize_scalar(
        lambda log: mean_loss(logits / np.exp(log), targets, multilabel),
        bounds=np.log(_RANGE),
        method="bounded",
    )
    return float(np.exp(found.x))


def calibrated(run: TrainedRun) -> TrainedRun:
    """A run that was calibrated, with its head divided by the temperature.

    Any other run is returned as it is, and so are other steps than the one that the
    temperature was fitted to, with a line that says so.

    Raises:
      UserError: if its results are damaged.
    """
    if not isinstance(run.config, FinetuneConfig) or not run.config.custom.calibrate:
        return run
    results = results_of_step(run.folder, run.step)
    if results is None:
        say(
            f"The probabilities of step {run.step:,} are not calibrated; those of a "
            "finished run's best step are.",
            beside_output=True,
        )
        return run
    temperature = results.get(TEMPERATURE)
    if not (isinstance(temperature, float) and temperature > 0):
        file = run.folder / RESULTS_FILE
        raise damaged_results(file, f"a {TEMPERATURE!r} that is no number above 0")
    head = {name: array / temperature for name, array in run.params["head"].items()}
    return run._replace(params={**run.params, "head": head})
