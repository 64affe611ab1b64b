"""Opens a run folder, ours or a converted one: model, tokenizer and parameters."""

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
from etils import epath

from gpt1_jax.config import ALL, BEST, DEFAULT, MILESTONES, NEWEST, ModelConfig
from gpt1_jax.config.checks import DType, check_step
from gpt1_jax.config.finetune import FinetuneConfig
from gpt1_jax.config.saved import load_saved
from gpt1_jax.config.sections import CheckpointConfig, JobConfig
from gpt1_jax.data.files import whole_folder
from gpt1_jax.data.tokenizers import NUM_SPECIAL_TOKENS, Tokenizer, load_tokenizer
from gpt1_jax.errors import UserError
from gpt1_jax.model.language_model import Params, init_params
from gpt1_jax.runs import folder as run_folder
from gpt1_jax.runs.checkpoint_files import (
    NoCheckpoint,
    first_difference,
    is_saved,
    read_scores,
)
from gpt1_jax.runs.checkpoints import Checkpoints, read_params, refuse_name
from gpt1_jax.runs.console import say
from gpt1_jax.runs.outputs import refuse_used
from gpt1_jax.runs.resume import Identity
from gpt1_jax.runs.steps import find_steps


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
    digest: str = ""  # of the checkpoint

    @property
    def language_model(self) -> Params:
        """The parameters without the head that fine-tuning adds."""
        return self.params.get("transformer", self.params)

    def model_in(self, dtype: Literal["", DType]) -> ModelConfig:
        """The model that computes in a dtype; "" keeps the run's own."""
        return dataclasses.replace(self.model, dtype=dtype or self.model.dtype)


def open_run(workdir: str, step: int | str = DEFAULT) -> TrainedRun:
    """Reads the configuration, tokenizer and parameters of a run; changes nothing.

    Args:
      workdir: the run folder, local or gs://, from this version or an older one.
      step: the number of a saved step, `NEWEST`, `BEST` by the run's own metric, or
        `DEFAULT`: see `default_step`.

    Raises:
      FileNotFoundError: if there is no run, or no checkpoint of that step
        (`NoCheckpoint`).
      ValueError: if a file is damaged, or configuration, tokenizer and parameters do
        not belong together.
    """
    check_step("step", str(step))
    folder = run_folder.locate_run(workdir)
    config_file = folder / run_folder.CONFIG_FILE
    if not config_file.exists():
        raise FileNotFoundError(
            f"{folder} is not a run folder: it has no {run_folder.CONFIG_FILE}. Name "
            "the --workdir of a run, for example runs/pretrain/quickstart."
        )
    config = load_saved(config_file)
    tokenizer = load_tokenizer(folder / "tokenizer")
    if step == DEFAULT:
        step = default_step(config)
    saved = read_params(folder, step)
    digest = str(saved.metadata.get("tokenizer"))
    if digest != tokenizer.digest:
        raise UserError(
            f"The tokenizer in {folder / 'tokenizer'} is not the one its checkpoint of "
            f"step {saved.step} was trained with (content digests "
            f"{tokenizer.digest[:12]} and {digest[:12]}); put the original "
            "one back."
        )
    model = _model(config, tokenizer.vocab_size)
    why = _why(folder, step, saved.step)
    run = TrainedRun(
        folder,
        config,
        tokenizer,
        model,
        saved.step,
        why,
        saved.params,
        saved.metadata,
        saved.digest,
    )
    check_sizes(run)
    return run


def open_steps(init_from: str, step: str) -> tuple[TrainedRun, list[int]]:
    """Opens a run at the first of the configured steps, and says which they are.

    Args:
      init_from: the run folder.
      step: the configured step, which may mean several: see `find_steps`.

    Returns:
      The run at the first step, and the numbers of all steps.

    Raises:
      FileNotFoundError, UserError: as `find_steps` and `open_run`.
    """
    folder = run_folder.locate_run(init_from)
    steps = find_steps(folder, step)
    first = next(_open_each(folder, steps[:-1]), None) or open_run(init_from, steps[-1])
    if len(steps) > 1:
        steps = steps[steps.index(first.step) :]
    say_what_is_read(first, step, steps)
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


def default_step(config: JobConfig) -> str:
    """The step that stands for a run: a fine-tuned run's best, any other's newest.

    The results of a fine-tuned run are those of its best step.
    """
    return BEST if isinstance(config, FinetuneConfig) else NEWEST


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


def say_what_is_read(
    run: TrainedRun, asked: str = "", steps: Sequence[int | str] = ()
) -> None:
    """Says which step or steps of a run a job reads, and why.

    Args:
      run: the run, opened.
      asked: the configured step; if it is `ALL` or `MILESTONES`, several are read.
      steps: the steps that these are.
    """
    which = f"step {run.step:,}, {run.why},"
    several = {ALL: "all saved steps", MILESTONES: "the milestones"}
    if asked in several:
        which = f"{several[asked]} ({', '.join(f'{step:,}' for step in steps)})"
    say(f"Reading {which} of {run.folder}.", beside_output=True)


def save_params(
    workdir: str, params: Params, tokenizer: Tokenizer, config: JobConfig, step: int = 0
) -> None:
    """Makes a run folder that `open_run` and every job accept.

    A folder that cannot be made whole is not made at all.

    Args:
      workdir: the folder to make, local or gs://.
      params: the parameters, named as in the job of the configuration.
      tokenizer: their tokenizer.
      config: the resolved configuration, with the model's sizes.
      step: the step to save them as.

    Raises:
      FileExistsError: if the folder exists and is not empty; it is left as it is.
      OSError: if the disk has no room.
    """
    target = run_folder.locate_run(workdir)
    refuse_used(target)
    refuse_name(target, to_save=True)
    identity = Identity(config.to_dict(), tokenizer.digest)
    with whole_folder(target) as folder:
        run_folder.write_config_and_tokenizer(folder, config, tokenizer)
        checkpoints = Checkpoints(folder, CheckpointConfig(1, 2, 0))
        try:
            checkpoints.save(step, {"params": params}, identity.metadata(step))
        finally:
            checkpoints.close()


def _model(config: Any, vocab_size: int) -> ModelConfig:
    """The model of a run; a fine-tuned one also has the special tokens."""
    if isinstance(config, FinetuneConfig):
        vocab_size += NUM_SPECIAL_TOKENS
    return config.model.with_vocab_size(vocab_size)


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
    longest = run.model.max_seq_len
    if isinstance(run.config, FinetuneConfig) and run.config.data.max_seq_len > longest:
        raise UserError(
            f"{run.folder / run_folder.CONFIG_FILE} says data.max_seq_len="
            f"{run.config.data.max_seq_len}, but its model reads {longest} tokens at "
            "most. It is damaged or was not written by this program."
        )
