"""What the tests of the data room share: made-up text, tokenizers, settings."""

import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from gpt1_jax.config.sections import DataConfig, TokenizerConfig
from gpt1_jax.data import encoder
from gpt1_jax.data.corpus import prepare_corpus
from gpt1_jax.data.tokenizers import Tokenizer


@pytest.fixture(scope="session")
def tokenizer_dir(sentencepiece_tokenizer, tmp_path_factory) -> Path:
    """A folder with a saved SentencePiece tokenizer."""
    directory = tmp_path_factory.mktemp("tokenizer")
    sentencepiece_tokenizer.save(directory)
    return directory


@pytest.fixture(scope="session")
def byte_level(make_text) -> tokenizers.Tokenizer:
    """A byte-level tokenizer of the `tokenizers` library with 300 entries."""
    rules = tokenizers.Tokenizer(models.BPE())
    rules.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    rules.decoder = decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()
    what = dict(initial_alphabet=letters, special_tokens=["<|endoftext|>"])
    trainer = trainers.BpeTrainer(vocab_size=300, show_progress=False, **what)
    rules.train_from_iterator([make_text(4000)], trainer)
    return rules


@pytest.fixture
def data_config(tmp_path) -> Callable[..., DataConfig]:
    """`data_config(**overrides)`: text files, one process, a cache in tmp_path."""
    values = {"source": "text", "train": str(tmp_path / "books"), "valid": ""}
    values |= {"valid_fraction": 0.1, "text_field": "text", "skip_empty": False}
    values |= {"document_separator": "", "tfds_feature": "text", "tfds_data_dir": ""}
    values |= {"cache_dir": str(tmp_path / "cache"), "num_workers": 1}
    return lambda **overrides: DataConfig(**{**values, **overrides})


@pytest.fixture
def tokenizer_config() -> Callable[..., TokenizerConfig]:
    """`tokenizer_config(**overrides)`: SentencePiece, trained on the corpus.

    Of its entries, 256 are bytes and 70 are characters and the newline.
    """
    values = {"kind": "sentencepiece", "vocab_size": 480, "lowercase": True}
    values |= {"path": "", "train_megabytes": 1.0}
    return lambda **overrides: TokenizerConfig(**{**values, **overrides})


@pytest.fixture
def standard_input(monkeypatch) -> Callable[..., None]:
    """`standard_input(data)`: what comes from there, `at_once` bytes at a time."""

    def give(data: bytes, at_once: int = io.DEFAULT_BUFFER_SIZE) -> None:
        buffer = io.BufferedReader(io.BytesIO(data), at_once)
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=buffer))

    return give


@pytest.fixture
def prepare(data_config, tokenizer_config, tokenizer_dir) -> Callable[..., tuple]:
    """`prepare(tokenizer, **data)`: a corpus and its tokenizer.

    `tokenizer` overrides values of `tokenizer_config`, which trains one. By default it
    is the saved one. With `own_tokenizer` and `progress` as of `prepare_corpus`.
    """
    saved = {"path": str(tokenizer_dir)}

    def make(tokenizer=saved, own_tokenizer=None, progress=False, **data):
        how = {"own_tokenizer": own_tokenizer, "progress": progress}
        return prepare_corpus(data_config(**data), tokenizer_config(**tokenizer), **how)

    return make


@pytest.fixture
def processes(monkeypatch) -> list[subprocess.Popen]:
    """Makes any text worth processes; those that are started."""
    started, start = [], subprocess.Popen

    def note(*arguments, **options):
        started.append(start(*arguments, **options))
        return started[-1]

    monkeypatch.setattr(encoder.subprocess, "Popen", note)
    monkeypatch.setattr(Tokenizer, "seconds_to_load", 0.0)
    return started
