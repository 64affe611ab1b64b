"""Lowers this package's programs for devices that may not be there; runs none."""

import argparse
import copy
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, SingleDeviceSharding

from benchmarks.paper_model import load_config, pretrain_config
from gpt1_jax.config import ModelConfig
from gpt1_jax.config.pretrain import PretrainConfig
from gpt1_jax.config.sections import AUTO, DEFAULT_SAMPLING
from gpt1_jax.finetuning import heads
from gpt1_jax.finetuning.heads import Head
from gpt1_jax.finetuning.steps import Batch, make_finetune_step
from gpt1_jax.inference import decoding
from gpt1_jax.kernels.choice import array_shape, find_kernels
from gpt1_jax.model import costs, language_model
from gpt1_jax.parallel.mesh import check_batch_size, make_mesh
from gpt1_jax.runs.forms import KERNELS, USUAL
from gpt1_jax.training.initial_state import pretrain_state_shapes
from gpt1_jax.training.memory import accumulation_steps
from gpt1_jax.training.optimizer import make_optimizer
from gpt1_jax.training.state import TrainState, init_state
from gpt1_jax.training.steps import Step, jit_step, make_pretrain_step

_NUM_SPECIALS = 3
_SEED = jax.ShapeDtypeStruct((), jnp.uint32)


class LoweredProgram(NamedTuple):
    """A program of ours, lowered for some devices."""

    lowered: jax.stages.Lowered
    devices: int  # that it runs on
    batch: int  # sequences, over all of them
    parts: int  # that a batch is computed in, one after another
    flops: float  # of one run by `gpt1_jax.model.costs`, over all devices


def pretrain(
    flags: argparse.Namespace,
    devices: Sequence[Any],
    sharding: str = "replicated",
) -> LoweredProgram:
    """The step of `gpt1_jax.jobs.pretrain`, as `config.mesh` splits it."""
    config, model = _configured(flags, batch=64, devices=len(devices))
    mesh = make_mesh(sharding, devices)
    batch_size = config.train.batch_size
    check_batch_size("batch", batch_size, mesh)
    optimizer = make_optimizer(config.optimizer, config.train.num_steps)
    parts = accumulation_steps(config.train, config.optimizer, model, mesh)
    step = make_pretrain_step(model, optimizer, parts, mesh)
    tokens = _int32(batch_size, flags.seq_len)
    lowered = _lowered(step, mesh, pretrain_state_shapes(model, optimizer), tokens)
    return LoweredProgram(
        lowered, mesh.size, batch_size, parts, _flops(model, tokens.size)
    )


def finetune(
    flags: argparse.Namespace,
    devices: Sequence[Any],
    examples: int = 32,
    choices: int = 1,
) -> LoweredProgram:
    """The step of `gpt1_jax.jobs.finetune`, on texts that leave no padding.

    With several choices, as in RACE, an example is as many texts.
    """
    config, model = _configured(flags, batch=examples, devices=len(devices))
    model = dataclasses.replace(model, vocab_size=model.vocab_size + _NUM_SPECIALS)
    task = load_config("finetune", "sst2")
    head = Head(
        num_outputs=max(2, choices),
        per_choice=choices > 1,
        dropout=task.head.dropout,
        extract_token=model.vocab_size - 1,
    )
    mesh = make_mesh(task.mesh.sharding, devices)
    batch_size = config.train.batch_size
    check_batch_size("batch", batch_size, mesh)
    optimizer = make_optimizer(config.optimizer, config.train.num_steps)
    parts = accumulation_steps(config.train, config.optimizer, model, mesh, choices)

    def fresh() -> Any:
        params = heads.init_params(model, head, jax.random.key(0))
        return init_state(params, optimizer)

    groups = mesh.size * parts
    batch = Batch(
        tokens=_int32(batch_size, choices, flags.seq_len),
        lengths=_int32(batch_size, choices),
        targets=jax.ShapeDtypeStruct((batch_size, head.num_outputs), jnp.float32),
        real_indices=_int32(groups, batch_size // groups * choices * flags.seq_len),
    )
    aux_lm_weight = task.head.aux_lm_weight
    step = make_finetune_step(model, head, optimizer, aux_lm_weight, parts, mesh)
    lowered = _lowered(step, mesh, jax.eval_shape(fresh), batch)
    flops = _flops(model, batch.tokens.size)
    return LoweredProgram(lowered, mesh.size, batch_size, parts, flops)


def decode(flags: argparse.Namespace, devices: Sequence[Any]) -> LoweredProgram:
    """The loop that draws tokens, with the largest cache, on one device."""
    config, model = _configured(flags, batch=8, devices=1)
    rows, room = config.train.batch_size, flags.seq_len
    sampling = dataclasses.replace(DEFAULT_SAMPLING, max_new_tokens=room)
    decoder = decoding.Decoder(model, flags.vocab_size, sampling, rows)
    sharding = SingleDeviceSharding(devices[0])

    def fresh() -> Any:
        params = language_model.init_params(model, jax.random.key(0))
        start = decoding._start(model, rows, room // 2, room, 0)
        return decoding.prepare(model, params), start

    def placed(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    params, state = jax.tree.map(placed, jax.eval_shape(fresh))
    how = decoder._model, flags.vocab_size, not sampling.do_sample, decoder._top_k
    arguments = params, state, decoder._filters, _int32(rows), _int32()
    traced = decoding._draw_tokens.trace(*how, *arguments)
    flops = _flops(model, rows) / 3  # forward only; of one token for each row
    return LoweredProgram(traced.lower(), 1, rows, 1, flops)


PROGRAMS: dict[str, Callable[[argparse.Namespace, Sequence[Any]], LoweredProgram]] = {
    "pretrain-replicated": pretrain,
    "pretrain-full": functools.partial(pretrain, sharding="full"),
    "finetune": finetune,
    "finetune-race": functools.partial(finetune, examples=8, choices=4),
    "decode": decode,
}


def _configured(
    flags: argparse.Namespace, batch: int, devices: int
) -> tuple[PretrainConfig, ModelConfig]:
    """The paper's configuration in bfloat16, with at least a sequence per device."""
    flags = copy.copy(flags)
    flags.batch = flags.batch or max(batch, devices)
    config = pretrain_config(flags, "bfloat16")
    jax.config.update("jax_default_matmul_precision", config.train.matmul_precision)
    model = config.model.with_vocab_size(flags.vocab_size)
    ways = ("layer_loop", "attention_form", "layer_norm_form")
    chosen = {way: getattr(flags, way) for way in ways}
    return config, with_kernels(dataclasses.replace(model, **chosen))


def with_kernels(model: ModelConfig) -> ModelConfig:
    """The model with our kernels, where the target has some and "auto" leaves it open.

    A run takes them too if they are right on the chip and known to be faster there.
    """
    found: dict[str, Any] = {}
    for name, usual in USUAL.items():
        if getattr(model, f"{name}_form") == AUTO:
            shape = array_shape(name, model, model.max_seq_len)
            kernels, _ = find_kernels(name, shape, model.dtype)
            found[f"{name}_form"] = KERNELS if kernels else usual
    return dataclasses.replace(model, **found)


def _lowered(
    step: Step, mesh: Mesh, state: TrainState, batch: Any
) -> jax.stages.Lowered:
    return jit_step(step, mesh, state).trace(state, batch, _SEED).lower()


def _int32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def _flops(model: ModelConfig, num_tokens: int) -> float:
    return num_tokens * costs.train_flops_per_token(model, model.max_seq_len)
