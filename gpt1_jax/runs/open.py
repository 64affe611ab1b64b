"""Opens a run, ours or a converted one, at one or several of its saved steps."""

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
from etils import epath

from gpt1_jax.config import ModelConfig
from gpt1_jax.config.checks import (
    ALL,
    BEST,
    DEFAULT,
    MILESTONES,
    NEWEST,
    DType,
    check_step,
)
from gpt1_jax.data.tokenizers import Tokenizer
from gpt1_jax.errors import UserError
from gpt1_jax.model.language_model import Params, init_params
from gpt1_jax.parallel.devices import check_jax
from gpt1_jax.runs.checkpoint_files import (
    NoCheckpoint,
    first_difference,
    is_saved,
    read_scores,
)
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


_NAME_A_RUN = "Name the --workdir of a run, for example runs/pretrain/quickstart."
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
            f"{tokenizer.digest[:12]} and {digest[:12]}); put the original "
            "one back."
        )
    run = TrainedRun(
        folder,
        config,
        tokenizer,
        found.model_with(tokenizer.vocab_size),
        saved.step,
        _why(folder, step, saved.step),
        saved.params,
        saved.metadata,
        saved.digest,
    )
    check_sizes(run)
    return run


def _no_run(folder: epath.Path) -> FileNotFoundError:
    """The error for a folder that is none of a run; names runs below it."""
    runs = find_runs(folder)
    below = [str(run.folder) for run in [each for each in runs if each.saved] or runs]
    named = ", ".join(below[:_MOST_NAMED]) + ", .." * (len(below) > _MOST_NAMED)
    hint = f"Name one below it: {named}." if below else _NAME_A_RUN
    lacks = f"it has no {CONFIG_FILE}"
    why = lacks if folder.exists() else "it does not exist"
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
      run: the run, opened.
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
    most = len(run.language_model) + 1
    num_layers = min(run.model.num_layers, most)
    model = dataclasses.replace(run.model, num_layers=num_layers)
    expected = jax.eval_shape(lambda: init_params(model, jax.random.key(0)))
    if wrong := first_difference(run.language_model, expected):
        raise UserError(
            f"The checkpoint in {run.folder} holds {wrong}, as its tokenizer and "
            "configuration require. They do not belong together."
        )


def open_steps(init_from: str, step: str) -> tuple[TrainedRun, list[int]]:
    """Opens a run at the first of the configured steps, and says which they are.

    Args:
      init_from: the run folder.
      step: the configured step, which may mean several: see `RunFolder.find_steps`.

    Returns:
      The run at the first step, and the numbers of all steps.

    Raises:
      FileNotFoundError, UserError: as `RunFolder.find_steps` and `open_run`.
    """
    folder = locate_run(init_from)
    steps = RunFolder(folder).find_steps(step)
    first = next(_open_each(folder, steps[:-1]), None) or open_run(init_from, steps[-1])
    if len(steps) > 1:
        steps = steps[steps.index(first.step) :]
    which = ""
    if several := {ALL: "all saved steps", MILESTONES: "the milestones"}.get(step):
        which = f"{several} ({', '.join(f'{each:,}' for each in steps)})"
    say_what_is_read(first, which)
    return first, [first.step, *map(int, steps[1:])]


def each_step(first: TrainedRun, steps: Sequence[int]) -> Iterator[TrainedRun]:
    """The run at each step in turn; only the first is open from the beginning.

    A step that the training deletes meanwhile is left out, with a line that says so.
    """
    for step in steps:
        yield from [first] if step == first.step else _open_each(first.folder, [step])


def _open_each(folder: epath.Path, steps: Sequence[int | str]) -> Iterator[TrainedRun]:
    for step in steps:
        try:
            opened = open_run(os.fspath(folder), step)
        except NoCheckpoint:
            say(
                f"Step {step} of {folder} was deleted meanwhile, and is left out.",
                beside_output=True,
            )
        else:
            yield opened
