"""The state before the first step: from scratch, from another run, or for a task.

The run that something starts from (`config.init_from`) is called its origin.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from etils import epath

from gpt1_jax.config import BEST, DEFAULT, NEWEST, ModelConfig
from gpt1_jax.config.finetune import FinetuneConfig, Variants, check_kind
from gpt1_jax.config.pretrain import PretrainConfig
from gpt1_jax.config.saved import load_saved
from gpt1_jax.config.sections import ModelOptions, ModelSection
from gpt1_jax.data.tokenizers import NUM_SPECIAL_TOKENS
from gpt1_jax.errors import UserError
from gpt1_jax.model import heads
from gpt1_jax.model.heads import Head
from gpt1_jax.model.language_model import Params, init_params
from gpt1_jax.runs.checkpoint_files import NoCheckpoint, newest_digests, saved_steps
from gpt1_jax.runs.checkpoints import read_state
from gpt1_jax.runs.console import say
from gpt1_jax.runs.folder import CONFIG_FILE
from gpt1_jax.runs.open import TrainedRun, default_step, open_run, say_what_is_read
from gpt1_jax.runs.resume import tree_digest
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
    def digest(self) -> str:
        """The content digest of what the new run takes over."""
        return tree_digest(self.run.params if self.state is None else self.state)


def resolve_origin(
    config: PretrainConfig, folder: epath.Path
) -> tuple[PretrainConfig, PretrainOrigin | None]:
    """Writes the sizes and the step of the origin into a configuration.

    A run that resumes no longer needs its origin: its own folder holds sizes, tokenizer
    and state. The origin is opened only if it is named by another path than before, to
    check that it is the same.

    Args:
      config: the run's configuration.
      folder: the run's folder.

    Returns:
      The configuration, and the origin; None if there is none or if the run resumes.

    Raises:
      FileNotFoundError: if `config.init_from` is no run, or lacks the step.
      ValueError: if it is damaged or cannot be continued like this, or the folder holds
        a run that started from something else.
    """
    if not config.init_from:
        return config, None
    if not saved_steps(folder):
        origin = _open_origin(config)
        model = origin.run.model
        step = resolve_step(config.step, origin.run)
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
    digest = newest_digests(folder).get("origin")
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
    """`config.step`, with the default replaced by what it means for the origin."""
    return default_step(origin.config) if step == DEFAULT else step


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
    """A run without what fine-tuning added: head and special tokens."""
    vocab_size = run.tokenizer.vocab_size
    params = dict(run.language_model)
    params["wte"] = params["wte"][:vocab_size]
    model = dataclasses.replace(run.model, vocab_size=vocab_size)
    return run._replace(model=model, params=params)


def _check_optimizer(config: PretrainConfig, origin: TrainedRun) -> None:
    """Refuses a run whose optimizer cannot be taken over."""
    if isinstance(origin.config, FinetuneConfig):
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
                f"whose state is another; use the same, or {_WEIGHTS_ALONE}"
            )


def _read_state(config: PretrainConfig, run: TrainedRun) -> TrainState:
    """The whole state of an opened run, as numpy arrays."""
    shapes = pretrain_state_shapes(run.model, make_optimizer(config.optimizer, None))
    try:
        return read_state(run.folder, run.step, shapes)
    except ValueError as error:
        raise UserError(
            f"{run.folder} holds weights, but no state with which the optimizer could "
            f"go on; {_WEIGHTS_ALONE} ({error})"
        ) from error


def check_end(origin: PretrainOrigin | None, num_steps: int) -> None:
    """Refuses a run that takes over an optimizer and ends no later than its origin.

    Raises:
      ValueError: naming both steps.
    """
    if origin is not None and num_steps <= origin.first_step:
        step = origin.first_step
        raise UserError(
            f"The run ends at step {num_steps:,}, but with config.init_optimizer=True "
            f"it goes on from step {step:,} of {origin.run.folder}, so there is "
            f"nothing to do; raise config.train.num_steps above {step}."
        )


def describe_origin(origin: PretrainOrigin, num_steps: int) -> str:
    """A line on what the run starts from."""
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
      config: the run's configuration.
      model: the model to train.
      optimizer: its optimizer.
      origin: the run to start from, as `resolve_origin` returned it.
      sharding: of each array of the state.
    """

    def init(start: Any) -> TrainState:  # a key, parameters or a whole state
        if config.init_optimizer:
            return start
        params = start if config.init_from else init_params(model, start)
        return init_state(params, optimizer)

    if not config.init_from:
        start: Any = jax.random.key(config.seed)
    else:
        origin = origin or _open_origin(config)  # if the run lost all that it had saved
        start = origin.run.params if origin.state is None else origin.state
    return jax.jit(init, out_shardings=sharding)(start)


def resolve_finetuning(config: FinetuneConfig, origin: TrainedRun) -> FinetuneConfig:
    """Writes the sizes and the step of the pre-trained model into a configuration.

    Raises:
      ValueError: if the origin was itself fine-tuned, or its model has too few layers
        or positions for the configuration.
    """
    if isinstance(origin.config, FinetuneConfig):
        raise UserError(
            f"{origin.folder} is a run of the job {origin.config.job!r}; fine-tuning "
            "starts from a pre-trained or converted one."
        )
    model = config.model.with_sizes(origin.model)
    longest = model.max_seq_len
    if config.data.max_seq_len > longest:
        raise UserError(
            f"config.data.max_seq_len={config.data.max_seq_len}, but the pre-trained "
            f"model takes {longest} tokens at most; lower it, or leave it at 0."
        )
    num_transferred(config.transfer_layers, model.depth)
    step = resolve_step(config.step, origin)
    return dataclasses.replace(config, model=model, step=step)


def open_origins(
    variants: Variants, first: TrainedRun
) -> tuple[Variants, Mapping[str, TrainedRun]]:
    """Opens the origin of each variant, each once.

    Args:
      variants: configurations by name.
      first: the origin of the first variant, which is open already.

    Returns:
      The variants, resolved, and the origins by `config.init_from`.

    Raises:
      ValueError: as `resolve_finetuning`, or if a variant's model is not of the kind
        that the comparison is about.
    """
    origins: dict[str, TrainedRun] = {}
    resolved: dict[str, FinetuneConfig] = {}
    for name, variant in variants.items():
        if not origins:
            origins[variant.init_from] = first
        elif variant.init_from not in origins:
            opened = open_run(variant.init_from, variant.step)
            say_what_is_read(opened)
            if opened.tokenizer.digest != first.tokenizer.digest:
                say(
                    f"{name} starts from {opened.folder}, whose tokenizer is not that "
                    f"of {first.folder}; each model keeps its own."
                )
            origins[variant.init_from] = opened
        origin = origins[variant.init_from]
        check_kind(name, variant, origin.model.kind)
        resolved[name] = resolve_finetuning(variant, origin)
    return resolved, origins


def finetuned_model(origin: TrainedRun, options: ModelOptions) -> ModelConfig:
    """The language model of a fine-tuned run: the origin's, with three more tokens.

    Args:
      origin: the run to start from.
      options: everything that is not a size: dropout, dtype, implementations.
    """
    vocab_size = origin.model.vocab_size + NUM_SPECIAL_TOKENS
    return options.with_sizes(origin.model).with_vocab_size(vocab_size)


def num_transferred(transfer_layers: str, num_layers: int) -> int | None:
    """`config.transfer_layers` in the form that `transfer_params` takes.

    Raises:
      ValueError: if the model has fewer layers.
    """
    if transfer_layers == "none":
        return None
    number = num_layers if transfer_layers == "all" else int(transfer_layers)
    if number > num_layers:
        raise UserError(
            f"config.transfer_layers={transfer_layers}, but the pre-trained model has "
            f"{num_layers} layers."
        )
    return number


def transfer_params(
    model: ModelConfig,
    head: Head,
    pretrained: Params,
    transfer_layers: int | None,
    key: jax.Array,
) -> Params:
    """Parameters to start fine-tuning from (sec. 3.2; n_transfer of the released code).

    Args:
      model: configuration of the fine-tuned language model.
      head: the task's head.
      pretrained: parameters of the pre-trained language model.
      transfer_layers: how many layers, from the first, to copy along with the
        embeddings; 0 copies only the embeddings, None nothing.
      key: random key for everything not copied, including the special tokens and the
        head.
    """
    params = heads.init_params(model, head, key)
    if transfer_layers is None:
        return params
    left_out = {f"h_{layer}" for layer in range(transfer_layers, model.depth)}
    copied = {name: x for name, x in pretrained.items() if name not in left_out}
    copied = jax.tree.map(jnp.asarray, copied)
    specials = params["transformer"]["wte"][-NUM_SPECIAL_TOKENS:]
    copied["wte"] = jnp.concatenate([copied["wte"], specials])
    return {**params, "transformer": {**params["transformer"], **copied}}


def finetune_state_shapes(
    model: ModelConfig, head: Head, optimizer: Optimizer
) -> TrainState:
    """Shapes and dtypes of a fine-tuning state."""
    return jax.eval_shape(
        lambda: init_state(heads.init_params(model, head, jax.random.key(0)), optimizer)
    )


def init_finetune_state(
    model: ModelConfig,
    head: Head,
    optimizer: Optimizer,
    pretrained: Params,
    transfer_layers: int | None,
    seed: int,
    sharding: TrainState,
) -> TrainState:
    """Makes the state before the first step of fine-tuning.

    Args:
      model, head, pretrained, transfer_layers: as for `transfer_params`.
      optimizer: the run's optimizer.
      seed: of the parameters that are drawn.
      sharding: of each array of the state.
    """

    def init(key: jax.Array, pretrained: Params) -> TrainState:
        params = transfer_params(model, head, pretrained, transfer_layers, key)
        return init_state(params, optimizer)

    return jax.jit(init, out_shardings=sharding)(jax.random.key(seed), pretrained)
