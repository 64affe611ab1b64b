"""The state before the first step of pre-training: from scratch or from another run.

The run that something starts from (`config.init_from`) is called its origin.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
from etils import epath

from gpt1_jax.config import ModelConfig
from gpt1_jax.config.checks import BEST, DEFAULT, NEWEST
from gpt1_jax.config.pretrain import PretrainConfig
from gpt1_jax.config.saved import load_saved
from gpt1_jax.config.sections import ModelSection
from gpt1_jax.errors import UserError
from gpt1_jax.model.language_model import init_params
from gpt1_jax.runs.checkpoint_files import NoCheckpoint, newest_metadata, saved_steps
from gpt1_jax.runs.checkpoints import read_state
from gpt1_jax.runs.folder import CONFIG_FILE
from gpt1_jax.runs.open import TrainedRun, open_run, say_what_is_read
from gpt1_jax.runs.resume import saved_digests, tree_digest
from gpt1_jax.training.optimizer import Optimizer, make_optimizer
from gpt1_jax.training.state import TrainState, init_state

_WEIGHTS_ALONE = (
    "leave out --config.init_optimizer=True to start from its weights alone."
)


class PretrainOrigin(NamedTuple):
    """The run that a pre-training run starts from."""

    run: TrainedRun  # its language model: without head and special tokens
    state: TrainState | None  # numpy; None if the optimizer starts anew

    @property
    def first_step(self) -> int:
        """The step at which the new run begins."""
        return 0 if self.state is None else self.run.step

    @property
    def start(self) -> Any:
        """The parameters or the state that the new run takes over."""
        return self.run.params if self.state is None else self.state

    @property
    def digest(self) -> str:
        """The content digest of what the new run takes over."""
        return tree_digest(self.start)


def resolve_origin(
    config: PretrainConfig, folder: epath.Path
) -> tuple[PretrainConfig, PretrainOrigin | None]:
    """Writes the sizes and the step of the origin into a configuration.

    A run that resumes no longer needs its origin: its own folder holds sizes, tokenizer
    and state. The origin is opened only if it is named by another path than before, to
    check that it is the same.

    Returns:
      The configuration, and the origin, None without one or if the run resumes.

    Raises:
      FileNotFoundError: if `config.init_from` is no run, or lacks the step.
      ValueError: if it is damaged or cannot be continued like this, or the folder holds
        a run that started from another origin.
    """
    if not config.init_from:
        return config, None
    if not saved_steps(folder):
        origin = _open_origin(config)
        model, step = origin.run.model, resolve_step(config.step, origin.run)
        config = dataclasses.replace(config, step=step)
        return _with_sizes(config, model, model.vocab_size), origin
    saved = load_saved(folder / CONFIG_FILE)
    if not (isinstance(saved, PretrainConfig) and saved.init_from):
        raise UserError(
            f"{folder} already holds a run, which did not start from "
            f"config.init_from={config.init_from!r}; name another --workdir for the "
            "new one."
        )
    if config.step == DEFAULT and saved.step in (NEWEST, BEST):
        config = dataclasses.replace(config, step=saved.step)
    digest = saved_digests(newest_metadata(folder)).get("origin")
    place = (config.init_from, config.step)
    moved = digest and place != (saved.init_from, saved.step)
    if moved and _open_origin(config).digest != digest:
        raise UserError(
            f"config.init_from={config.init_from!r} holds other parameters than the "
            f"run in {folder} started from, {saved.init_from!r}; name that one, "
            "wherever it is now, or another --workdir for a new run."
        )
    return _with_sizes(config, saved.model, saved.tokenizer.vocab_size), None


def resolve_step(step: str, origin: TrainedRun) -> str:
    """`config.step`, with the default resolved for the origin."""
    return origin.config.default_step if step == DEFAULT else step


def _with_sizes(
    config: PretrainConfig, model: ModelSection, vocab_size: int
) -> PretrainConfig:
    return dataclasses.replace(
        config,
        model=config.model.with_sizes(model),
        tokenizer=dataclasses.replace(config.tokenizer, vocab_size=vocab_size),
    )


def _open_origin(config: PretrainConfig) -> PretrainOrigin:
    """Opens the run to start from, and refuses one that cannot be continued."""
    opened = open_run(config.init_from, config.step)
    say_what_is_read(opened)
    run = _language_model(opened)
    if not config.init_optimizer:
        return PretrainOrigin(run, None)
    _check_optimizer(config, opened)
    try:
        state = _read_state(config, run)
    except NoCheckpoint:
        if config.step.isdecimal():
            raise
        return _open_origin(config)  # deleted meanwhile: another is newest or best
    origin = PretrainOrigin(run._replace(params=state.params), state)
    if config.train.num_steps:
        check_end(origin, config.train.num_steps)
    return origin


def _language_model(run: TrainedRun) -> TrainedRun:
    """A run without the head and special tokens that fine-tuning added."""
    vocab_size = run.tokenizer.vocab_size
    params = dict(run.language_model)
    params["wte"] = params["wte"][:vocab_size]
    model = dataclasses.replace(run.model, vocab_size=vocab_size)
    return run._replace(model=model, params=params)


def _check_optimizer(config: PretrainConfig, origin: TrainedRun) -> None:
    """Refuses a run whose optimizer cannot be taken over."""
    if origin.config.adds_head:
        raise UserError(
            f"{origin.folder} is a fine-tuned run, whose optimizer belongs to its "
            f"task; {_WEIGHTS_ALONE}"
        )
    theirs = getattr(origin.config, "optimizer", None)  # a converted model has none
    for key in ("name", "arguments"):
        if theirs and getattr(theirs, key) != getattr(config.optimizer, key):
            raise UserError(
                f"{origin.folder} was trained with config.optimizer.{key}="
                f"{getattr(theirs, key)!r}, not {getattr(config.optimizer, key)!r}, "
                f"whose state differs; use the same, or {_WEIGHTS_ALONE}"
            )


def _read_state(config: PretrainConfig, run: TrainedRun) -> TrainState:
    """The whole state of an opened run, as numpy arrays."""
    shapes = pretrain_state_shapes(run.model, make_optimizer(config.optimizer, None))
    try:
        return read_state(run.folder, run.step, shapes)
    except ValueError as error:
        raise UserError(
            f"{run.folder} holds weights, but no state from which the optimizer could "
            f"continue; {_WEIGHTS_ALONE} ({error})"
        ) from error


def check_end(origin: PretrainOrigin | None, num_steps: int) -> None:
    """Refuses a run that takes over an optimizer and ends no later than its origin.

    Raises:
      ValueError: naming both steps.
    """
    if origin and num_steps <= (step := origin.first_step):
        raise UserError(
            f"The run ends at step {num_steps:,}, but with config.init_optimizer=True "
            f"it goes on from step {step:,} of {origin.run.folder}, so there is "
            f"nothing to do; raise config.train.num_steps above {step}."
        )


def describe_origin(origin: PretrainOrigin, num_steps: int) -> str:
    """A line that describes where the run starts from."""
    run = origin.run
    start = f"Start: step {run.step:,} of {run.folder}, with its tokenizer, sizes and"
    if origin.state is None:
        return f"{start} weights; the optimizer is new"
    return f"{start} optimizer; {num_steps - run.step:,} steps to go"


def pretrain_state_shapes(model: ModelConfig, optimizer: Optimizer) -> TrainState:
    """Shapes and dtypes of a pre-training state."""
    return jax.eval_shape(
        lambda: init_state(init_params(model, jax.random.key(0)), optimizer)
    )


def init_pretrain_state(
    config: PretrainConfig,
    model: ModelConfig,
    optimizer: Optimizer,
    origin: PretrainOrigin | None,
    sharding: TrainState,
) -> TrainState:
    """Makes the state before the first step of pre-training.

    Without `config.init_from` that is a fresh state. With it, the parameters are the
    origin's; optimizer and counters are fresh, or with `config.init_optimizer` the
    origin's too, so that schedule and data go on after its step.

    Args:
      origin: as `resolve_origin` returned it.
      sharding: the sharding of each array of the state.
    """

    def init(start: Any) -> TrainState:  # a key, parameters or a whole state
        if config.init_optimizer:
            return start
        params = start if config.init_from else init_params(model, start)
        return init_state(params, optimizer)

    start: Any = jax.random.key(config.seed)
    if config.init_from:
        start = (origin or _open_origin(config)).start  # if it lost all checkpoints
    return jax.jit(init, out_shardings=sharding)(start)
