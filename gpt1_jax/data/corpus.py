"""From documents to token shards on disk, made once and found again.

A prepared corpus is a folder of token shards named by a fingerprint of its sources
and tokenizer. It is written under a temporary name and renamed when whole, so a
folder that exists is complete.
"""

import collections
import concurrent.futures
import contextlib
import dataclasses
import fcntl
import hashlib
import json
import multiprocessing
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import tqdm

from gpt1_jax.config import DataConfig, TokenizerConfig, default_cache_dir
from gpt1_jax.data import sources, tokenizers
from gpt1_jax.data.shards import (
    Corpus,
    ShardWriter,
    cut_validation,
    load,
    token_dtype,
)
from gpt1_jax.data.sources import Document

FORMAT = 1  # of the shards and of `clean`; raise it when either changes
TOKENIZER_FORMAT = 2  # of training; 2 keeps all of ASCII and falls back to bytes
_INLINE_BYTES = 1 << 20  # smaller corpora are not worth starting processes for


def prepare(
    data: DataConfig, tokenizer: TokenizerConfig, *, progress: bool = True
) -> tuple[Corpus, tokenizers.Tokenizer]:
    """Finds or makes the tokenizer and the token shards of a corpus.

    Args:
      data: sources, split and cache folder.
      tokenizer: which tokenizer, and its size if it is to be trained.
      progress: whether to show a progress bar.

    Returns:
      The corpus and its tokenizer.

    Raises:
      FileNotFoundError, ValueError, PermissionError: what is wrong with the sources,
        the tokenizer or the cache folder, before any long work.
    """
    cache = Path(data.cache_dir or default_cache_dir()).expanduser()
    _check_writable(cache)
    with _lock(cache):
        train, valid = _split(data, *sources.find_documents(data, cache))
        checked = _ReadCheck([*train, *valid])
        encoder, directory = _find_tokenizer(tokenizer, train, cache, checked)
        corpus_dir = cache / "corpora" / _fingerprint(
            FORMAT, encoder.fingerprint, *([d.name, d.stamp] for d in train),
            "valid", data.valid_fraction, *([d.name, d.stamp] for d in valid),
        )  # fmt: skip
        if not corpus_dir.exists():
            checked.run()
            with _temporary(corpus_dir) as partial:
                _write_corpus(partial, train, valid, encoder, directory, data, progress)
        return load(corpus_dir), encoder


def clean(text: str) -> str:
    """Lines without surrounding or repeated spaces, control characters, blank lines."""
    text = _INVISIBLE.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))
    text = _CONTROL.sub(" ", text)
    lines = (" ".join(line.split()) for line in text.split("\n"))
    return "\n".join(line for line in lines if line)


_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")
_INVISIBLE = re.compile(r"[\ufeff\u00ad]")  # byte order mark, soft hyphen


# --- documents and their split ------------------------------------------------


def _split(
    data: DataConfig, train: list[Document], valid: list[Document]
) -> tuple[list[Document], list[Document]]:
    """Takes `valid_fraction` of the documents, chosen by their names, for validation.

    A corpus of a single document has no validation documents: its last tokens are
    cut off once it is tokenised.
    """
    if valid or len(train) == 1:
        return train, valid

    def position(document: Document) -> str:
        return hashlib.sha256(Path(document.name).name.encode()).hexdigest()

    number = min(max(1, round(data.valid_fraction * len(train))), len(train) - 1)
    chosen = {d.name for d in sorted(train, key=position)[:number]}
    return (
        [d for d in train if d.name not in chosen],
        [d for d in train if d.name in chosen],
    )


class _ReadCheck:
    """The check that all documents can be read, done at most once."""

    def __init__(self, documents: Sequence[Document]):
        self._documents = documents

    def run(self) -> None:
        """Raises a ValueError naming the first document that cannot be read."""
        documents, self._documents = self._documents, ()
        sources.check_readable(documents)


# --- tokenizer ----------------------------------------------------------------


def _find_tokenizer(
    config: TokenizerConfig, train: list[Document], cache: Path, checked: _ReadCheck
) -> tuple[tokenizers.Tokenizer, Path]:
    """Loads the configured tokenizer, or the one trained on these documents."""
    if config.path:
        directory = Path(config.path).expanduser()
        tokenizer = tokenizers.load(directory)
        if tokenizer.kind != config.kind:
            raise ValueError(
                f"config.tokenizer.path={config.path!r} holds a {tokenizer.kind} "
                f"tokenizer, but config.tokenizer.kind={config.kind!r}."
            )
        return tokenizer, directory
    directory = cache / "tokenizers" / _fingerprint(
        TOKENIZER_FORMAT, config.vocab_size, config.train_megabytes,
        *([d.name, d.stamp] for d in train),
    )  # fmt: skip
    if not directory.exists():
        checked.run()
        tqdm.tqdm.write(f"Training a tokenizer of {config.vocab_size:,} entries.")
        lines = _training_lines(train, config.train_megabytes)
        tokenizer = tokenizers.SentencePieceTokenizer.train(lines, config.vocab_size)
        with _temporary(directory) as partial:
            tokenizer.save(partial)
    return tokenizers.load(directory), directory


def _training_lines(documents: list[Document], megabytes: float) -> Iterator[str]:
    """Lines of documents in a fixed random order, up to `megabytes`."""
    left = megabytes * 1e6
    order = np.random.default_rng(0).permutation(len(documents))
    for index in order:
        for block in documents[index].blocks():
            if left <= 0:
                return
            text = clean(block.text)
            left -= len(text)
            yield from text.split("\n")


# --- tokenisation -------------------------------------------------------------


def _write_corpus(
    directory: Path,
    train: list[Document],
    valid: list[Document],
    tokenizer: tokenizers.Tokenizer,
    tokenizer_dir: Path,
    data: DataConfig,
    progress: bool,
) -> None:
    """Writes the shards of both splits and `corpus.json`."""
    dtype = token_dtype(tokenizer.vocab_size)
    record: dict = {
        "tokenizer_fingerprint": tokenizer.fingerprint,
        "dtype": dtype.str,
    }
    total = sum(d.num_bytes for d in (*train, *valid))
    workers = data.num_workers or os.cpu_count() or 1
    if total < _INLINE_BYTES:
        workers = 1
    with (
        tqdm.tqdm(
            total=total,
            unit="B",
            unit_scale=True,
            desc="tokenise",
            disable=None if progress else True,
        ) as bar,
        _Encoders(tokenizer_dir, workers) as encoders,
    ):
        for name, documents in (("train", train), ("valid", valid)):
            writer = ShardWriter(directory, name, dtype)
            for encoded in encoders.map(_pieces(documents), bar):
                writer.add(encoded.ids, encoded.words, encoded.bytes)
            record[name] = writer.close(len(documents))
    if not valid:
        cut_validation(directory, record, dtype, data.valid_fraction)
    (directory / "corpus.json").write_text(json.dumps(record, indent=2))


def _pieces(documents: Iterable[Document]) -> Iterator[tuple[str, bool]]:
    """Blocks of all documents in order, each with whether a newline follows it."""
    for document in documents:
        for block in document.blocks():
            yield block.text, block.ends_line


@dataclasses.dataclass(frozen=True)
class _Encoded:
    ids: np.ndarray  # [tokens] uint32
    words: int
    bytes: int


_tokenizer: tokenizers.Tokenizer | None = None  # of this worker process


def _start_worker(tokenizer_dir: Path) -> None:
    global _tokenizer
    if multiprocessing.parent_process() is not None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    _tokenizer = tokenizers.load(tokenizer_dir)


def _encode(text: str, ends_line: bool) -> _Encoded:
    """Cleans and encodes one block; each line's newline is a token."""
    text = clean(text)
    if not text or _tokenizer is None:
        return _Encoded(np.zeros(0, np.uint32), 0, 0)
    ids = _tokenizer.encode(text)
    if ends_line:
        ids.append(_tokenizer.newline_id)
    size = len(text.encode()) + ends_line
    return _Encoded(np.asarray(ids, np.uint32), len(text.split()), size)


class _Encoders:
    """Encodes blocks on `workers` processes, in order, a bounded number ahead."""

    def __init__(self, tokenizer_dir: Path, workers: int):
        self._workers = workers
        self._pool: concurrent.futures.Executor | None = None
        if workers > 1:
            self._pool = concurrent.futures.ProcessPoolExecutor(
                workers,
                mp_context=multiprocessing.get_context("spawn"),
                initializer=_start_worker,
                initargs=(tokenizer_dir,),
            )
        else:
            _start_worker(tokenizer_dir)

    def __enter__(self) -> "_Encoders":
        return self

    def __exit__(self, *exception: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def map(
        self, pieces: Iterator[tuple[str, bool]], bar: tqdm.tqdm
    ) -> Iterator[_Encoded]:
        """The encoded blocks in the order of `pieces`."""
        if self._pool is None:
            for text, ends_line in pieces:
                yield _encode(text, ends_line)
                bar.update(len(text))
            return
        pending: collections.deque = collections.deque()
        for text, ends_line in pieces:
            future = self._pool.submit(_encode, text, ends_line)
            pending.append((future, len(text)))
            while len(pending) > 4 * self._workers or (
                pending and pending[0][0].done()
            ):
                future, size = pending.popleft()
                yield future.result()
                bar.update(size)
        for future, size in pending:
            yield future.result()
            bar.update(size)


# --- the cache folder ---------------------------------------------------------


def _fingerprint(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def _check_writable(cache: Path) -> None:
    try:
        cache.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=cache).close()
    except OSError as error:
        raise PermissionError(
            f"The cache folder {cache} cannot be written ({error.strerror}); name "
            "another with --config.data.cache_dir=DIR."
        ) from error


@contextlib.contextmanager
def _lock(cache: Path) -> Iterator[None]:
    """Lets one process of a machine prepare while the others wait for its result."""
    with (cache / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _temporary(directory: Path) -> Iterator[Path]:
    """A folder that takes the name `directory` once it is whole, or vanishes."""
    partial = directory.with_name(directory.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)  # left by a process that was killed
    partial.mkdir(parents=True)
    try:
        yield partial
        partial.rename(directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
