"""What the tests of the data room share: made-up text, tokenizers, settings."""

import hashlib
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gpt1_jax.config.sections import DataConfig, TokenizerConfig
from gpt1_jax.data.sentencepiece_tokenizer import SentencePieceTokenizer

WORDS = re.findall(
    r"\w+",
    """the quick brown fox jumps over a lazy dog while seven wizards mix their
black potions in boxes of jade and quartz by night she said nothing walked home and
never looked back again for every river has two banks""",
)

VOCAB_SIZE = 480  # of which 256 are bytes and 70 are characters and the newline


@pytest.fixture(scope="session")
def make_text() -> Callable[..., str]:
    """`make_text(words, name="", words_in_line=9)`: prose of known words, in lines."""

    def make(words: int, name: str = "", words_in_line: int = 9) -> str:
        seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4])
        chosen = np.random.default_rng(seed).choice(WORDS, words)
        starts = range(0, words, words_in_line)
        return "\n".join(" ".join(chosen[i : i + words_in_line]) for i in starts) + "\n"

    return make


@pytest.fixture(scope="session")
def sentencepiece_tokenizer(make_text) -> SentencePieceTokenizer:
    return SentencePieceTokenizer.train(make_text(4000).splitlines(), VOCAB_SIZE)


@pytest.fixture(scope="session")
def tokenizer_dir(sentencepiece_tokenizer, tmp_path_factory) -> Path:
    """A folder with a saved SentencePiece tokenizer."""
    directory = tmp_path_factory.mktemp("tokenizer")
    sentencepiece_tokenizer.save(directory)
    return directory


@pytest.fixture
def data_config(tmp_path) -> Callable[..., DataConfig]:
    """`data_config(**overrides)`: text files, one process, a cache in tmp_path."""

    def make(**overrides) -> DataConfig:
        values = dict(
            source="text",
            train=str(tmp_path / "books"),
            valid="",
            valid_fraction=0.1,
            valid_split="size",
            jsonl_field="text",
            tfds_feature="text",
            tfds_data_dir="",
            cache_dir=str(tmp_path / "cache"),
            num_workers=1,
        )
        return DataConfig(**{**values, **overrides})

    return make


@pytest.fixture
def tokenizer_config() -> Callable[..., TokenizerConfig]:
    """`tokenizer_config(**overrides)`: SentencePiece, trained on the corpus."""

    def make(**overrides) -> TokenizerConfig:
        values = dict(
            kind="sentencepiece", vocab_size=VOCAB_SIZE, path="", train_megabytes=1.0
        )
        return TokenizerConfig(**{**values, **overrides})

    return make
