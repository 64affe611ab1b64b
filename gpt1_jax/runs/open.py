"""Opens a run, ours or a converted one, at one or several of its saved steps."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import jax
from etils import epath

from gpt1_jax.config import ModelConfig
from gpt1_jax.config.checks import BEST, DEFAULT, NEWEST, DType, check_step
from gpt1_jax.data.tokenizers import Tokenizer
from gpt1_jax.errors import UserError
from gpt1_jax.model.language_model import Params, init_params
from gpt1_jax.parallel.devices import check_jax
from gpt1_jax.runs.checkpoint_files import first_difference, is_saved, read_scores
from gpt1_jax.runs.checkpoints import read_params
from gpt1_jax.runs.console import say
from gpt1_jax.runs.folder import CONFIG_FILE, locate_run
from gpt1_jax.runs.run_folder import RunFolder, find_runs


class TrainedRun(NamedTuple):
    """A run opened at one of its saved steps."""

    folder: epath.Path
    config: Any  # the frozen configuration of its job
    tokenizer: Tokenizer
    model: ModelConfig
    step: int
    why: str  # the reason for this step, as in "step 8, the newest"
    params: Params  # numpy
    metadata: Mapping[str, Any] = {}  # saved beside the parameters
    digest: str = ""  # digest of the checkpoint's manifest

    @property
    def language_model(self) -> Params:
        """The parameters without the head that fine-tuning adds."""
        return self.params.get("transformer", self.params)

    def model_in(self, dtype: Literal["", DType]) -> ModelConfig:
        """The model that computes in a dtype; "" keeps the run's own."""
        return dataclasses.replace(self.model, dtype=dtype or self.model.dtype)


_MOST_NAMED = 5  # runs below a folder that is none


def open_run(workdir: str, step: int | str = DEFAULT) -> TrainedRun:
    """Reads the configuration, tokenizer and parameters of a run; changes nothing.

    Args:
      workdir: the run folder, local or gs://, from this version or an earlier one.
      step: the number of a saved step, `NEWEST`, `BEST` by the run's own metric, or
        `DEFAULT`, the default of its job (`JobConfig.default_step`).

    Raises:
      FileNotFoundError: if there is no run, or no checkpoint of that step
        (`NoCheckpoint`).
      ValueError: if a file is damaged, the folder is of another format, or
        configuration, tokenizer and parameters do not belong together, or JAX is too
        old.
    """
    check_jax()
    check_step("step", str(step))
    folder = locate_run(workdir)
    if not (folder / CONFIG_FILE).exists():
        raise _no_run(folder)
    found = RunFolder(folder)
    config, tokenizer = found.config, found.tokenizer
    if step == DEFAULT:
        step = config.default_step
    saved = read_params(folder, step)
    digest = str(saved.metadata.get("tokenizer"))
    if digest != tokenizer.digest:
        raise UserError(
            f"The tokenizer in {folder / 'tokenizer'} is not the one its checkpoint of "
            f"step {saved.step} was trained with (content digests "
            f"{tokenizer.digest[:12]} and {digest[:12]}); put the original one back."
        )
    run = TrainedRun(
        folder=folder,
        config=config,
        tokenizer=tokenizer,
        model=found.model_with(tokenizer.vocab_size),
        why=_why(folder, step, saved.step),
        **saved._asdict(),
    )
    check_sizes(run)
    return run


def _no_run(folder: epath.Path) -> FileNotFoundError:
    """The error for a folder that holds no run; names runs below it."""
    runs = find_runs(folder)
    below = [str(run.folder) for run in [each for each in runs if each.saved] or runs]
    named = ", ".join(below[:_MOST_NAMED]) + ", .." * (len(below) > _MOST_NAMED)
    hint = "Name the --workdir of a run, for example runs/pretrain/quickstart."
    if below:
        hint = f"Name one below it: {named}."
    why = f"it has no {CONFIG_FILE}" if folder.exists() else "it does not exist"
    return FileNotFoundError(f"{folder} is not a run folder: {why}. {hint}")


def _why(folder: epath.Path, asked: int | str, step: int) -> str:
    if asked == NEWEST:
        return "the newest"
    if asked != BEST:
        return "as asked for"
    for best in read_scores(folder, step):
        return f"the best by {best.metric.replace('valid_', 'validation ')}"
    if not is_saved(folder / "checkpoints" / str(step)):  # deleted after it was read
        return "the best"
    return "the newest, as none was scored"


def say_what_is_read(run: TrainedRun, which: str = "") -> None:
    """Says which step or steps of a run a job reads, and why.

    Args:
      which: names several steps, if it is not the one that is open.
    """
    which = which or f"step {run.step:,}, {run.why},"
    say(f"Reading {which} of {run.folder}.", beside_output=True)


def check_sizes(run: TrainedRun) -> None:
    """Refuses parameters whose names or shapes are not those of the model.

    Raises:
      UserError: naming the first that is not.
    """
    # Tracing a layer takes time. If the model has more layers than were saved, one that
    # is missing is enough to tell.
    num_layers = min(run.model.num_layers, len(run.language_model) + 1)
    model = dataclasses.replace(run.model, num_layers=num_layers)
    expected = jax.eval_shape(lambda: init_params(model, jax.random.key(0)))
    if wrong := first_difference(run.language_model, expected):
        raise UserError(
            f"The checkpoint in {run.folder} holds {wrong}, as its tokenizer and "
            "configuration require. They do not belong together."
        )
