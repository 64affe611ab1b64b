"""Helpers of the tests that fine-tune: the configuration, and made-up batches."""

import importlib.util

import numpy as np
from tiny_run import ROOT

from gpt1_jax import config as config_lib
from gpt1_jax.config import FinetuneConfig, ModelConfig
from gpt1_jax.data.batching import Batch


def finetune_config(tasks: str = "sst2", **overrides) -> FinetuneConfig:
    """The configuration of configs/finetune.py with `section__key` overrides."""
    path = ROOT / "configs" / "finetune.py"
    spec = importlib.util.spec_from_file_location("finetune_config", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    config = module.get_config(tasks)
    values = {"init_from": "runs/pretrain/tiny", **overrides}
    config.update_from_flattened_dict(
        {key.replace("__", "."): value for key, value in values.items()}
    )
    return config_lib.from_config_dict(config.to_dict())


def made_up_batch(
    model: ModelConfig, shape: tuple[int, int, int], num_outputs: int, seed: int = 0
) -> Batch:
    """[B, C, T] sequences of 4 to T tokens, and one of `num_outputs` classes each.

    Words are numbers from 1 on, so that only padding is 0; start, delimiter and
    extract token are the last three.
    """
    rng = np.random.default_rng(seed)
    start, delimiter, extract = range(model.vocab_size - 3, model.vocab_size)
    tokens = np.zeros(shape, np.int32)
    lengths = rng.integers(4, shape[2] + 1, shape[:2]).astype(np.int32)
    for place in np.ndindex(*shape[:2]):
        end = lengths[place]
        tokens[place][:end] = rng.integers(1, start, end)
        tokens[place][[0, end // 2, end - 1]] = start, delimiter, extract
    classes = rng.integers(0, num_outputs, shape[0])
    return Batch(tokens, lengths, np.eye(num_outputs, dtype=np.float32)[classes])
