"""Flags that scripts share: the sizes of what is measured, and kinds of values."""

import argparse
from collections.abc import Callable, Collection

from recipe import HEAD_DIM, VOCAB_SIZE


def add_sizes(parser: argparse.ArgumentParser) -> None:
    """--batch, --seq_len, --layers, --embed_dim and --vocab_size; the paper's sizes."""
    parser.add_argument("--batch", type=count, default=2, help="sequences")
    parser.add_argument("--seq_len", type=count, default=512, help="tokens a sequence")
    parser.add_argument("--layers", type=count, default=12)
    text = f"a multiple of {HEAD_DIM}, the size of a head"
    parser.add_argument("--embed_dim", type=_heads_of_64, default=768, help=text)
    parser.add_argument("--vocab_size", type=count, default=VOCAB_SIZE)


def add_calls(parser: argparse.ArgumentParser) -> None:
    """--calls, --rounds, --dtype and --dropout, to time parts of a step."""
    parser.add_argument("--calls", type=count, default=3, help="timed calls a turn")
    parser.add_argument("--rounds", type=count, default=5, help="turns of each variant")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--dropout", type=float, default=0.1, help="its rate")


def count(text: str) -> int:
    """A number of things, at least 1."""
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} must be at least 1")
    return int(text)


def _heads_of_64(text: str) -> int:
    if count(text) % HEAD_DIM:
        raise argparse.ArgumentTypeError(f"{text} must be a multiple of {HEAD_DIM}")
    return int(text)


def some_of(names: Collection[str]) -> Callable[[str], list[str]]:
    """A comma list of these names."""

    def read(text: str) -> list[str]:
        chosen = list(dict.fromkeys(text.split(",")))
        unknown = sorted(set(chosen) - set(names))
        if unknown:
            raise argparse.ArgumentTypeError(
                f"no {unknown}; choose from {', '.join(names)}"
            )
        return chosen

    return read
