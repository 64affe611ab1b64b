"""From a pre-trained run to the parameters that fine-tuning starts from."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from gpt1_jax.config import DEFAULT, FinetuneConfig, ModelConfig
from gpt1_jax.config.finetune import Variants, check_kind
from gpt1_jax.config.sections import SIZES, make_model_config
from gpt1_jax.data.tokenizers import NUM_SPECIAL_TOKENS
from gpt1_jax.errors import UserError
from gpt1_jax.model import heads
from gpt1_jax.model.heads import Head
from gpt1_jax.model.language_model import Params
from gpt1_jax.runs.console import say
from gpt1_jax.runs.trained_run import (
    TrainedRun,
    default_step,
    open_run,
    say_what_is_read,
)


def resolve(config: FinetuneConfig, source: TrainedRun) -> FinetuneConfig:
    """The configuration with sizes and step of the pre-trained model written out.

    Raises:
      ValueError: if the run was itself fine-tuned, or its model has too few layers or
        positions for the configuration.
    """
    resolved = finetuned_model(source, config.model)
    model = dataclasses.asdict(resolved)
    del model["vocab_size"]  # set by the tokenizer and special tokens
    longest = model["max_seq_len"]
    if config.data.max_seq_len > longest:
        raise UserError(
            f"config.data.max_seq_len={config.data.max_seq_len}, but the pre-trained "
            f"model takes {longest} tokens at most; lower it, or leave it at 0."
        )
    num_transferred(config.transfer_layers, resolved.depth)
    return dataclasses.replace(
        config, model=model, init_step=resolve_step(config.init_step, source)
    )


def resolve_step(init_step: str, source: TrainedRun) -> str:
    """`config.init_step`, the default replaced by what that is for a run."""
    return default_step(source.config) if init_step == DEFAULT else init_step


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
                opened = open_run(start, variant.init_step)
                say_what_is_read(opened)
            sources[start] = opened
            if opened.tokenizer.fingerprint != source.tokenizer.fingerprint:
                say(
                    f"{name} starts from {opened.folder}, whose tokenizer is not that "
                    f"of {source.folder}; each model keeps its own."
                )
        check_kind(name, variant, sources[start].model.kind)
        resolved[name] = resolve(variant, sources[start])
    return resolved, sources


def finetuned_model(source: TrainedRun, overrides: Mapping[str, Any]) -> ModelConfig:
    """The language model of a fine-tuned run: the source's sizes, three more tokens.

    Args:
      source: the run to start from.
      overrides: everything that is not a size: dropout, dtype, implementations.

    Raises:
      ValueError: if the run was itself fine-tuned.
    """
    if isinstance(source.config, FinetuneConfig):
        raise UserError(
            f"{source.folder} is a run of the job {source.config.job!r}; fine-tuning "
            "starts from a pre-trained or converted one."
        )
    sizes = {name: getattr(source.model, name) for name in SIZES}
    vocab_size = source.model.vocab_size + NUM_SPECIAL_TOKENS
    return make_model_config({**overrides, **sizes, "vocab_size": vocab_size})


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
