"""GPT-1 (Radford et al. 2018) in JAX and Flax.

    import gpt1_jax
    config = gpt1_jax.defaults("pretrain:quickstart")
    config.seed = 1
    model = gpt1_jax.pretrain(config).model
    model.generate("it was a")

Nothing heavy is imported before it is used.
"""

import sys
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING

from gpt1_jax.errors import find_named

if TYPE_CHECKING:
    import ml_collections

    from gpt1_jax.scripting import RunResult
    from gpt1_jax.trained_model import TrainedModel

__version__ = "1.1.0"


class _NothingElse:
    """Ends the search for a module that the folder of this package does not have.

    Another checkout may be installed as editable. The finder that its installation
    adds would offer that one's module in place of what a copy lacks.
    """

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        """Refuses modules of this package, which a finder before this looked for."""
        if name.rpartition(".")[0] == __name__:
            raise ModuleNotFoundError(f"There is no {name} in {__path__[0]}", name=name)


if PathFinder in sys.meta_path:
    sys.meta_path.insert(sys.meta_path.index(PathFinder) + 1, _NothingElse)


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
    return find_named("gpt1_jax.trained_model:load", "gpt1_jax.load")(folder, step)


def defaults(job: str) -> "ml_collections.ConfigDict":
    """The configuration of a job, to change and to run.

    Args:
      job: a file of configs/ and one of its presets: "pretrain:small",
        "finetune:custom", "finetune".

    Raises:
      ValueError: if there is no such job or preset.
    """
    return find_named("gpt1_jax.scripting:defaults", "gpt1_jax.defaults")(job)


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
    return find_named("gpt1_jax.scripting:pretrain", "gpt1_jax.pretrain")(
        config, folder
    )


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
    return find_named("gpt1_jax.scripting:finetune", "gpt1_jax.finetune")(
        config, folder
    )
