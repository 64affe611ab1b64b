"""The state that training starts from: from scratch, from a run, for a task."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from etils import epath

from gpt1_jax.config import (
    BEST,
    DEFAULT,
    NEWEST,
    FinetuneConfig,
    ModelConfig,
    PretrainConfig,
)
from gpt1_jax.config.finetune import Variants, check_kind
from gpt1_jax.config.saved import load_saved
from gpt1_jax.config.sections import ModelOptions, ModelSection
from gpt1_jax.data.tokenizers import NUM_SPECIAL_TOKENS
from gpt1_jax.errors import UserError
from gpt1_jax.model import heads
from gpt1_jax.model.heads import Head
from gpt1_jax.model.language_model import Params, init_params
from gpt1_jax.runs.checkpoint_files import newest_digests, saved_steps
from gpt1_jax.runs.checkpoints import read_state
from gpt1_jax.runs.console import say
from gpt1_jax.runs.folder import CONFIG_FILE
from gpt1_jax.runs.open import (
    TrainedRun,
    default_step,
    open_run,
    say_what_is_read,
)
from gpt1_jax.runs.resume import tree_digest
from gpt1_jax.training.optimizer import Optimizer, make_optimizer
from gpt1_jax.training.state import TrainState, init_state

_WEIGHTS_ALONE = (
    "leave out --config.init_optimizer=True to start from its weights alone."
)


class Source(NamedTuple):
    """The run that another one starts from."""

    run: TrainedRun  # its language model: without head and special tokens
    state: TrainState | None  # numpy, if the optimizer is taken over

    @property
    def digest(self) -> str:
        """The content digest of what is taken over."""
        return tree_digest(self.run.params if self.state is None else self.state)


def resolve_pretraining(
    config: PretrainConfig, folder: epath.Path
) -> tuple[PretrainConfig, Source | None]:
    """Writes sizes and step of the run to start from into the configuration.

    A run that resumes no longer needs the other one: its own folder holds sizes,
    tokenizer and state. Only if another place is named for it is it opened, to see that
    it is the same.

    Args:
      config: the run's configuration.
      folder: the run's folder.

    Returns:
      The configuration, and the run to start from; None if there is none or if this
      run resumes.

    Raises:
      FileNotFoundError: if `config.init_from` is no run, or lacks the step.
      ValueError: if it is damaged or cannot be continued like this, or the folder holds
        a run that started from something else.
    """
    if not config.init_from:
        return config, None
    if not saved_steps(folder):
        source = _open(config)
        model = source.run.model
        step = resolve_step(config.step, source.run)
        config = dataclasses.replace(config, step=step)
        return _with_sizes(config, model, model.vocab_size), source
    saved = load_saved(folder / CONFIG_FILE)
    if not (isinstance(saved, PretrainConfig) and saved.init_from):
        raise UserError(
            f"{folder} already holds a run, which did not start from "
            f"config.init_from={config.init_from!r}; name another --workdir for the "
            "new one."
        )
    if config.step == DEFAULT and saved.step in (NEWEST, BEST):
        config = dataclasses.replace(config, step=saved.step)
    origin = newest_digests(folder).get("origin")
    place = (config.init_from, config.step)
    moved = origin and place != (saved.init_from, saved.step)
    if moved and _open(config).digest != origin:
        raise UserError(
            f"config.init_from={config.init_from!r} holds other parameters than the "
            f"run in {folder} started from, {saved.init_from!r}; name that one, "
            "wherever it is now, or another --workdir for a new run."
        )
    return _with_sizes(config, saved.model, saved.tokenizer.vocab_size), None


def _with_sizes(
    config: PretrainConfig, model: ModelSection, vocab_size: int
) -> PretrainConfig:
    return dataclasses.replace(
        config,
        model=config.model.with_sizes(model),
        tokenizer=dataclasses.replace(config.tokenizer, vocab_size=vocab_size),
    )


def _open(config: PretrainConfig) -> Source:
    """Opens the run to start from, and refuses what cannot be continued."""
    opened = open_run(config.init_from, config.step)
    say_what_is_read(opened)
    run = _language_model(opened)
    if not config.init_optimizer:
        return Source(run, None)
    _check_optimizer(config, opened)
    state = _read_state(config, run)
    source = Source(run._replace(params=state.params), state)
    if config.train.num_steps:
        check_end(source, config.train.num_steps)
    return source


def _language_model(run: TrainedRun) -> TrainedRun:
    """A run without what fine-tuning added: head and special tokens."""
    vocab_size = run.tokenizer.vocab_size
    params = dict(run.language_model)
    params["wte"] = params["wte"][:vocab_size]
    model = dataclasses.replace(run.model, vocab_size=vocab_size)
    return run._replace(model=model, params=params)


def _check_optimizer(config: PretrainConfig, run: TrainedRun) -> None:
    """Refuses a run whose optimizer cannot be taken over."""
    if isinstance(run.config, FinetuneConfig):
        raise UserError(
            f"{run.folder} is a fine-tuned run, whose optimizer belongs to its task; "
            + _WEIGHTS_ALONE
        )
    theirs = getattr(run.config, "optimizer", None)  # a converted model has none
    if theirs and theirs.name != config.optimizer.name:
        raise UserError(
            f"{run.folder} was trained with config.optimizer.name={theirs.name!r}, "
            f"not {config.optimizer.name!r}, whose moments are others; use the same "
            f"one, or {_WEIGHTS_ALONE}"
        )


def _read_state(config: PretrainConfig, run: TrainedRun) -> TrainState:
    """The whole state of an opened run, as numpy arrays."""
    # The shapes are the same whatever the schedule.
    constant = dataclasses.replace(config.optimizer, schedule="constant")
    shapes = state_shapes(run.model, make_optimizer(constant, num_steps=1))
    try:
        return read_state(run.folder, run.step, shapes)
    except ValueError as error:
        raise UserError(
            f"{run.folder} holds weights, but no moments with which the optimizer "
            f"could go on; {_WEIGHTS_ALONE} ({error})"
        ) from error


def check_end(source: Source | None, num_steps: int) -> None:
    """Refuses a run that takes over an optimizer and would end where that stands.

    Raises:
      ValueError: naming both steps.
    """
    if source is None or source.state is None:
        return
    run = source.run
    if num_steps <= run.step:
        raise UserError(
            f"The run ends at step {num_steps:,}, but with config.init_optimizer=True "
            f"it goes on from step {run.step:,} of {run.folder}, so there is nothing "
            f"to do; raise config.train.num_steps above {run.step}."
        )


def state_shapes(model: ModelConfig, optimizer: Optimizer) -> TrainState:
    """Shapes and dtypes of a train state."""
    return jax.eval_shape(
        lambda: init_state(init_params(model, jax.random.key(0)), optimizer)
    )


def make_init(
    config: PretrainConfig, model: ModelConfig, optimizer: Optimizer
) -> Callable[[Any], TrainState]:
    """Makes the function from `init_arguments` to the state before the first step.

    Without `config.init_from` that is a fresh state. With it, the parameters are the
    other run's; moments and counters are fresh, or the other run's too, so that the
    schedule and the data go on after its step.
    """

    def init(start: Any) -> TrainState:
        if config.init_optimizer:
            return start
        params = start if config.init_from else init_params(model, start)
        return init_state(params, optimizer)

    return init


def init_arguments(config: PretrainConfig, source: Source | None) -> tuple[Any]:
    """What `make_init`'s function takes: a key, parameters or a whole state."""
    if not config.init_from:
        return (jax.random.key(config.seed),)
    source = source or _open(config)  # if all that a run had saved is gone
    return (source.run.params if source.state is None else source.state,)


def describe(source: Source, num_steps: int) -> str:
    """A line on what the run starts from."""
    run = source.run
    start = f"Start: step {run.step:,} of {run.folder}, with its tokenizer, sizes and"
    if source.state is None:
        return f"{start} weights; the optimizer is new"
    return f"{start} optimizer; {num_steps - run.step:,} steps to go"


def resolve_finetuning(config: FinetuneConfig, source: TrainedRun) -> FinetuneConfig:
    """The configuration with sizes and step of the pre-trained model written out.

    Raises:
      ValueError: if the run was itself fine-tuned, or its model has too few layers or
        positions for the configuration.
    """
    _refuse_finetuned(source)
    model = config.model.with_sizes(source.model)
    longest = model.max_seq_len
    if config.data.max_seq_len > longest:
        raise UserError(
            f"config.data.max_seq_len={config.data.max_seq_len}, but the pre-trained "
            f"model takes {longest} tokens at most; lower it, or leave it at 0."
        )
    num_transferred(config.transfer_layers, model.depth)
    return dataclasses.replace(
        config, model=model, step=resolve_step(config.step, source)
    )


def resolve_step(step: str, source: TrainedRun) -> str:
    """`config.step`, the default replaced by what that is for a run."""
    return default_step(source.config) if step == DEFAULT else step


def open_sources(
    variants: Variants, source: TrainedRun
) -> tuple[Variants, Mapping[str, TrainedRun]]:
    """The run that each variant starts from, opened once.

    Args:
      variants: configurations by name; the first starts from `source`.
      source: a run that is open already.

    Returns:
      The variants, resolved, and the runs by `config.init_from`.

    Raises:
      ValueError: as `resolve`, or if a variant's model is not of the kind that the
        comparison is about.
    """
    sources: dict[str, TrainedRun] = {}
    resolved: dict[str, FinetuneConfig] = {}
    for name, variant in variants.items():
        start = variant.init_from
        if start not in sources:
            opened = source
            if sources:
                opened = open_run(start, variant.step)
                say_what_is_read(opened)
            sources[start] = opened
            if opened.tokenizer.fingerprint != source.tokenizer.fingerprint:
                say(
                    f"{name} starts from {opened.folder}, whose tokenizer is not that "
                    f"of {source.folder}; each model keeps its own."
                )
        check_kind(name, variant, sources[start].model.kind)
        resolved[name] = resolve_finetuning(variant, sources[start])
    return resolved, sources


def finetuned_model(source: TrainedRun, options: ModelOptions) -> ModelConfig:
    """The language model of a fine-tuned run: the source's sizes, three more tokens.

    Args:
      source: the run to start from.
      options: everything that is not a size: dropout, dtype, implementations.
    """
    vocab_size = source.model.vocab_size + NUM_SPECIAL_TOKENS
    return options.with_sizes(source.model).with_vocab_size(vocab_size)


def _refuse_finetuned(source: TrainedRun) -> None:
    if isinstance(source.config, FinetuneConfig):
        raise UserError(
            f"{source.folder} is a run of the job {source.config.job!r}; fine-tuning "
            "starts from a pre-trained or converted one."
        )


def num_transferred(transfer_layers: str, num_layers: int) -> int | None:
    """`config.transfer_layers` in the form that `start_params` takes.

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


def start_params(
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
