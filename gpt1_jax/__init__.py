"""GPT-1 (Radford et al. 2018) in JAX and Flax.

    import gpt1_jax
    model = gpt1_jax.load("runs/pretrain/quickstart")
    model.generate("it was a")

Nothing heavy is imported before it is used.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpt1_jax.trained_model import TrainedModel

__version__ = "1.0.0"


def load(folder: str, step: "int | str" = "default") -> "TrainedModel":
    """Loads the model of a run folder: pre-trained, fine-tuned or converted.

    Args:
      folder: the run folder, local or gs://.
      step: "newest", "best" (by validation loss, or the task's metric), the number of
        a saved step, or "default": a fine-tuned run's best, any other run's newest.

    Raises:
      FileNotFoundError: if there is no run, or no checkpoint of that step.
      ValueError: if a file is damaged, or `step` is not a valid value.
    """
    from gpt1_jax import trained_model

    return trained_model.load(folder, step)
