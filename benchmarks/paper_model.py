"""The paper's model as benchmarks train it: flags for its sizes, settings, tokens."""

import argparse
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import count

VOCAB_SIZE = 40478
HEAD_DIM = 64
MLP_RATIO = 4  # mlp_dim / embed_dim
LSTM_RATIO = 2048 / 768  # lstm_units / embed_dim


def add_sizes(parser: argparse.ArgumentParser) -> None:
    """Adds --batch, --seq_len, --layers, --embed_dim and --vocab_size."""
    parser.add_argument("--batch", type=count, default=2, help="sequences")
    parser.add_argument("--seq_len", type=count, default=512, help="tokens a sequence")
    parser.add_argument("--layers", type=count, default=12)
    text = f"a multiple of {HEAD_DIM}, the size of a head"
    parser.add_argument("--embed_dim", type=_whole_heads, default=768, help=text)
    parser.add_argument("--vocab_size", type=count, default=VOCAB_SIZE)


def _whole_heads(text: str) -> int:
    if count(text) % HEAD_DIM:
        raise argparse.ArgumentTypeError(f"{text} must be a multiple of {HEAD_DIM}")
    return int(text)


def load_config(name: str, *argument: str) -> Any:
    """The `ConfigDict` of `configs/NAME.py`, or of `configs/NAME.py:ARGUMENT`."""
    path = Path(__file__).parent.parent / "configs" / f"{name}.py"
    return runpy.run_path(str(path))["get_config"](*argument)


def pretrain_config(
    flags: argparse.Namespace, dtype: str, kind: str = "transformer"
) -> Any:
    """`configs/pretrain.py` with these sizes and a constant learning rate."""
    from gpt1_jax.config import load

    config = load_config("pretrain", "paper")
    config.model.update(
        kind=kind,
        num_layers=flags.layers,
        num_heads=flags.embed_dim // HEAD_DIM,
        embed_dim=flags.embed_dim,
        mlp_dim=MLP_RATIO * flags.embed_dim,
        lstm_units=round(LSTM_RATIO * flags.embed_dim),
        max_seq_len=flags.seq_len,
        dtype=dtype,
    )
    config.tokenizer.vocab_size = flags.vocab_size
    config.train.batch_size = flags.batch
    config.train.update(num_epochs=0.0, num_steps=1_000_000)
    config.optimizer.update(schedule="constant", warmup_steps=0)
    return load(config.to_dict())


def token_probabilities(vocab_size: int) -> np.ndarray:
    """[V] probability of each token id, by Zipf's law."""
    weights = 1.0 / np.arange(1, vocab_size + 1)
    return weights / weights.sum()


def draw_batches(flags: argparse.Namespace) -> Iterator[np.ndarray]:
    """Endless [B, T] token ids, the same at every call."""
    generator, shape = np.random.default_rng(0), (flags.batch, flags.seq_len)
    zipf = token_probabilities(flags.vocab_size)
    while True:
        yield generator.choice(flags.vocab_size, shape, p=zipf).astype(np.int32)
