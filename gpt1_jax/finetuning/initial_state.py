"""The state before the first step of fine-tuning, from the run it starts from.

That run (`config.init_from`) is called its origin.
"""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from gpt1_jax.config import ModelConfig
from gpt1_jax.config.finetune import FinetuneConfig, Variants, check_kind
from gpt1_jax.config.sections import ModelOptions
from gpt1_jax.data.tokenizers import NUM_SPECIAL_TOKENS
from gpt1_jax.errors import UserError
from gpt1_jax.finetuning import heads
from gpt1_jax.finetuning.heads import Head
from gpt1_jax.model.language_model import Params
from gpt1_jax.runs.console import say
from gpt1_jax.runs.open import TrainedRun, open_run, say_what_is_read
from gpt1_jax.training.initial_state import resolve_step
from gpt1_jax.training.optimizer import Optimizer
from gpt1_jax.training.state import TrainState, init_state


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
    origins = {next(iter(variants.values())).init_from: first}
    resolved: dict[str, FinetuneConfig] = {}
    for name, variant in variants.items():
        if variant.init_from not in origins:
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
            f"{num_layers} layer{'s' * (num_layers != 1)}."
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
      seed: seed of the randomly drawn parameters.
      sharding: the sharding of each array of the state.
    """

    def init(key: jax.Array, pretrained: Params) -> TrainState:
        params = transfer_params(model, head, pretrained, transfer_layers, key)
        return init_state(params, optimizer)

    return jax.jit(init, out_shardings=sharding)(jax.random.key(seed), pretrained)
