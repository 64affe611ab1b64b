"""GPT-1 (Radford et al. 2018) in JAX and Flax.

    import gpt1_jax
    config = gpt1_jax.defaults("pretrain:quickstart")
    config.seed = 1
    model = gpt1_jax.pretrain(config).model
    model.generate("it was a")

Nothing heavy is imported before it is used.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ml_collections

    from gpt1_jax.scripting import RunResult
    from gpt1_jax.trained_model import TrainedModel

__version__ = "1.0.0"


def load(folder: str, step: "int | str" = "default") -> "TrainedModel":
    """Loads the model of a run folder: pre-trained, fine-tuned or converted.

    Args:
      folder: the run folder, local or gs://, or a model on the Hugging Face Hub,
        hf://ORG/NAME[@REVISION].
      step: "newest", "best" (by validation loss, or the task's metric), the number of
        a saved step, or "default": a fine-tuned run's best, any other run's newest.

    Raises:
      FileNotFoundError: if there is no run, or no checkpoint of that step.
      ValueError: if a file is damaged, or `step` is not a valid value.
    """
    from gpt1_jax import trained_model

    return trained_model.load(folder, step)


def defaults(job: str) -> "ml_collections.ConfigDict":
    """The configuration of a job, to change and to run.

    Args:
      job: a file of configs/ and one of its presets: "pretrain:small",
        "finetune:custom", "finetune".

    Raises:
      ValueError: if there is no such job or preset.
    """
    from gpt1_jax import scripting

    return scripting.defaults(job)


def pretrain(config: "ml_collections.ConfigDict", folder: str = "") -> "RunResult":
    """Pre-trains, or continues the run that is in the folder; as the command does.

    Args:
      config: from `defaults("pretrain:..")`.
      folder: the run folder; by default runs/pretrain/PRESET.

    Returns:
      The finished run: its folder, its scores, its model.

    Raises:
      ValueError, OSError: as the command, if something cannot be used.
      gpt1_jax.runs.signals.Stopped: after a signal, once the state is saved.
      FloatingPointError: if training has diverged.
    """
    from gpt1_jax import scripting

    return scripting.pretrain(config, folder)


def finetune(config: "ml_collections.ConfigDict", folder: str = "") -> "RunResult":
    """Fine-tunes, or continues the run that is in the folder; as the command does.

    Args:
      config: from `defaults("finetune:..")`.
      folder: the run folder; by default runs/finetune/TASK.

    Returns:
      As `pretrain`; of several tasks or seeds, the scores of all.

    Raises:
      As `pretrain`.
    """
    from gpt1_jax import scripting

    return scripting.finetune(config, folder)
