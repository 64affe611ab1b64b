"""From documents to token shards on disk, made once and found again.

A prepared corpus is a folder of token shards named by a fingerprint of its sources
and tokenizer. It is written under a temporary name and renamed when whole, so a
folder that exists is complete; one that has been damaged since is made again.
"""

import collections
import concurrent.futures
import contextlib
import dataclasses
import errno
import hashlib
import json
import multiprocessing
import os
import shutil
import signal
import threading
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpt1_jax.config import DataConfig, TokenizerConfig
from gpt1_jax.config.sections import default_cache_dir
from gpt1_jax.data import tokenizers
from gpt1_jax.data.builtin import builtin_documents
from gpt1_jax.data.documents import (
    Block,
    Document,
    check_readable,
    hold_out,
    is_near,
    shared_texts,
    text_documents,
)
from gpt1_jax.data.files import check_writable, exclusive, locate, whole_folder
from gpt1_jax.data.progress import Progress, say
from gpt1_jax.data.sentencepiece_tokenizer import SentencePieceTokenizer
from gpt1_jax.data.shards import (
    Corpus,
    DamagedCorpus,
    ShardWriter,
    cut_validation,
    load,
    token_dtype,
    write_record,
)
from gpt1_jax.data.text import clean
from gpt1_jax.data.tfds import shared_rows, tfds_documents
from gpt1_jax.errors import UserError

FORMAT = 1  # of the shards and of `clean`; raise it when either changes
TOKENIZER_FORMAT = 2  # of training; 2 keeps all of ASCII and falls back to bytes
_INLINE_BYTES = 1 << 20  # smaller corpora are not worth starting processes for


def prepare(
    data: DataConfig,
    tokenizer: TokenizerConfig,
    *,
    own_tokenizer: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> tuple[Corpus, tokenizers.Tokenizer]:
    """Finds or makes the tokenizer and the token shards of a corpus.

    Args:
      data: sources, split and cache folder.
      tokenizer: which tokenizer, and its size if it is to be trained.
      own_tokenizer: the saved tokenizer of a run that resumes, used instead.
      progress: whether to show what is being done.

    Returns:
      The corpus and its tokenizer.

    Raises:
      FileNotFoundError, ValueError, PermissionError: saying what is wrong with the
        sources, the tokenizer or the cache folder, before any long work.
      OSError: if the disk of the cache folder is full.
    """
    tell = say if progress else _say_nothing
    cache = Path(locate(data.cache_dir or default_cache_dir(), local=True))
    _check_writable(cache)
    with _full_disk_explained(cache), exclusive(cache, tell) as doing:
        doing("looking for documents")
        train, valid = find_documents(data, cache, tell)
        if not valid:
            train, valid = hold_out(train, data.valid_fraction, data.valid_split)
        texts = _Texts(train, valid, data.valid_fraction)
        work = _Work(data, progress, tell, doing)
        encoder, directory = _find_tokenizer(
            tokenizer, own_tokenizer, texts, cache, work
        )
        corpus = _find_corpus(texts, encoder, directory, cache, work)
    for warning in corpus.warnings:
        tell(f"WARNING: {warning}")
    return corpus, encoder


def _say_nothing(text: str) -> None:
    del text


@dataclasses.dataclass(frozen=True)
class _Work:
    """How the work is done and reported."""

    data: DataConfig
    progress: bool
    tell: Callable[[str], None]  # shows a line to this process's user
    doing: Callable[[str], None]  # notes, for those who wait, what is being done


class _Texts:
    """The documents of both splits."""

    def __init__(
        self, train: Sequence[Document], valid: Sequence[Document], fraction: float
    ):
        self.train, self.valid, self.valid_fraction = train, valid, fraction
        self._digests: dict[str, str] | None = None

    @property
    def num_bytes(self) -> int:
        return sum(document.num_bytes for document in (*self.train, *self.valid))

    def read_once(self) -> dict[str, str]:
        """Digests of the texts; a ValueError names the first that cannot be read."""
        if self._digests is None:
            self._digests = check_readable([*self.train, *self.valid])
        return self._digests


# --- where text comes from ----------------------------------------------------

# The documentation on this machine (`builtin`), files of plain text or JSON lines
# (`text`), or a TensorFlow Datasets corpus (`tfds`). A document is one file, one
# module's docstrings, or a range of a dataset's rows.

_TRAIN, _VALID = "config.data.train", "config.data.valid"


def find_documents(
    config: DataConfig, cache_dir: Path, say: Callable[[str], None]
) -> tuple[list[Document], list[Document]]:
    """The documents for training and, if named separately, for validation.

    Args:
      config: the sources.
      cache_dir: where the built-in documentation is collected.
      say: shows a line to the user.

    Raises:
      FileNotFoundError, ValueError: if they do not exist, or a document is named for
        both.
    """
    if config.source == "builtin":
        return builtin_documents(cache_dir, say), []

    def read(value: str, key: str) -> list[Document]:
        if config.source == "text":
            return text_documents(value, key, config.jsonl_field)
        feature, data_dir = config.tfds_feature, config.tfds_data_dir
        return tfds_documents(value, feature, data_dir, key, say) if value else []

    train, valid = read(config.train, _TRAIN), read(config.valid, _VALID)
    if config.source == "text":
        _refuse_shared(train, valid)
    elif valid:
        shared = shared_rows(config.train, config.valid, config.tfds_data_dir)
        if shared:
            raise UserError(
                f"{_TRAIN}={config.train!r} and {_VALID}={config.valid!r} have "
                f"{shared:,} rows in common; the validation loss would be that of text "
                "trained on. Name splits that share none, such as train[:98%] and "
                "train[98%:]."
            )
    return train, valid


def _refuse_shared(train: Sequence[Document], valid: Sequence[Document]) -> None:
    """Refuses documents that are named for both splits, by whatever path."""
    trained = {_identity(document) for document in train}
    for document in valid:
        if _identity(document) in trained:
            raise UserError(
                f"{document.name} is named by {_TRAIN} and by {_VALID}; the validation "
                f"loss would be that of text trained on. Leave it out of one of them, "
                f"or leave {_VALID} empty to hold out a part of the text."
            )


def _identity(document: Document) -> str:
    is_file = os.path.exists(document.name)
    return os.path.realpath(document.name) if is_file else document.name


# --- tokenizer ----------------------------------------------------------------


def _find_tokenizer(
    config: TokenizerConfig,
    own: str | os.PathLike[str] | None,
    texts: _Texts,
    cache: Path,
    work: _Work,
) -> tuple[tokenizers.Tokenizer, str | os.PathLike[str]]:
    """The run's own tokenizer, the configured one, or one trained on these documents.

    Returns:
      The tokenizer and the folder it is saved in.
    """
    if own:
        return tokenizers.load(own), own
    if config.path:
        directory = Path(locate(config.path, local=True))
        tokenizer = tokenizers.load(directory)
        if tokenizer.kind != config.kind:
            raise UserError(
                f"config.tokenizer.path={config.path!r} holds a {tokenizer.kind} "
                f"tokenizer, but config.tokenizer.kind={config.kind!r}."
            )
        return tokenizer, directory
    directory = cache / "tokenizers" / _fingerprint(
        TOKENIZER_FORMAT, config.vocab_size, config.train_megabytes,
        *([d.name, d.stamp] for d in texts.train),
    )  # fmt: skip
    if directory.exists():
        try:
            return tokenizers.load(directory), directory
        except (ValueError, FileNotFoundError):
            say(f"The tokenizer cached in {directory} is damaged; training it again.")
            shutil.rmtree(directory)
    work.doing("reading the corpus")
    texts.read_once()
    work.doing(f"training a tokenizer of {config.vocab_size:,} entries")
    work.tell(f"Training a tokenizer of {config.vocab_size:,} entries.")
    lines = _training_lines(texts.train, config.train_megabytes)
    SentencePieceTokenizer.train(lines, config.vocab_size).save(directory)
    return tokenizers.load(directory), directory


def _training_lines(documents: Sequence[Document], megabytes: float) -> Iterator[str]:
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


# --- token shards -------------------------------------------------------------


def _find_corpus(
    texts: _Texts,
    tokenizer: tokenizers.Tokenizer,
    tokenizer_dir: str | os.PathLike[str],
    cache: Path,
    work: _Work,
) -> Corpus:
    """Opens the prepared corpus, making it first if it is missing or damaged."""

    def fingerprint(stamp: Callable[[Document], str]) -> str:
        return _fingerprint(
            FORMAT, tokenizer.fingerprint, *([d.name, stamp(d)] for d in texts.train),
            "valid", texts.valid_fraction, *([d.name, stamp(d)] for d in texts.valid),
        )  # fmt: skip

    directory = cache / "corpora" / fingerprint(lambda d: d.stamp)
    older = fingerprint(lambda d: d.older_stamp or d.stamp)
    if directory.exists():
        try:
            return dataclasses.replace(load(directory), fingerprint=older)
        except DamagedCorpus as error:
            say(f"{error.problem}; making the damaged corpus again.")
            shutil.rmtree(directory)
    work.doing("reading the corpus")
    texts.read_once()
    work.doing(f"tokenising {texts.num_bytes / 1e6:,.1f} MB of text")
    with whole_folder(directory) as partial:
        _write_corpus(partial, texts, tokenizer, tokenizer_dir, work)
    return dataclasses.replace(load(directory), fingerprint=older)


def _write_corpus(
    directory: Path,
    texts: _Texts,
    tokenizer: tokenizers.Tokenizer,
    tokenizer_dir: str | os.PathLike[str],
    work: _Work,
) -> None:
    """Writes the shards of both splits and their record."""
    dtype = token_dtype(tokenizer.vocab_size)
    record: dict[str, Any] = {
        "tokenizer_fingerprint": tokenizer.fingerprint,
        "dtype": dtype.str,
    }
    workers = work.data.num_workers or os.cpu_count() or 1
    if texts.num_bytes < _INLINE_BYTES:
        workers = 1
    with (
        Progress(texts.num_bytes, work.progress) as progress,
        Encoders(tokenizer_dir, workers) as encoders,
    ):
        for name, documents in (("train", texts.train), ("valid", texts.valid)):
            writer = ShardWriter(directory, name, dtype)
            for encoded in encoders.map(_blocks(documents), progress):
                writer.add(encoded.ids, encoded.words, encoded.bytes)
            record[name] = writer.close(len(documents))
    if not texts.valid:
        cut_validation(directory, record, dtype, texts.valid_fraction)
    digests = texts.read_once()
    record["digests"] = {
        document.name: digests.get(document.name, "")
        for document in (*texts.train, *texts.valid)
    }
    record["warnings"] = list(_warnings(texts, record, work.data))
    write_record(directory, record)


def _blocks(documents: Sequence[Document]) -> Iterator[Block]:
    for document in documents:
        yield from document.blocks()


def _warnings(texts: _Texts, record: dict[str, Any], data: DataConfig) -> Iterator[str]:
    """What the user should know about the split whenever it is used."""
    shared = shared_texts(texts.train, texts.valid, texts.read_once())
    if shared:
        name, trained = shared[0]
        yield (
            f"{len(shared)} of {len(texts.valid)} validation documents are trained on "
            f"too, so the validation loss is too low: {name} holds the text of "
            f"{trained}. Leave out one of each pair."
        )
    held, total = (record[name]["tokens"] for name in ("valid", "train"))
    share, wanted = held / (total + held), data.valid_fraction
    if not data.valid and not is_near(share, wanted):
        yield (
            f"{held:,} of {held + total:,} tokens ({share:.2%}) are held out for "
            f"validation, not config.data.valid_fraction={wanted}: whole documents are "
            "held out, and their sizes differ. Name validation text with "
            "--config.data.valid=PATHS, or set --config.data.valid_split=size."
        )
    if not texts.valid and len(texts.train) > 1:
        yield (
            f"No whole documents make up config.data.valid_fraction={wanted} of the "
            "text; the end of the last ones is held out instead."
        )


# --- blocks of text to token ids, on several processes ------------------------

_GRACE_SECONDS = 1.0


@dataclasses.dataclass(frozen=True)
class Encoded:
    """A block of text as the corpus holds it."""

    ids: np.ndarray  # [tokens] uint32
    words: int
    bytes: int  # of cleaned UTF-8 text


class Encoders:
    """Encodes blocks in order, a bounded number of them ahead.

    Args:
      tokenizer_dir: the saved tokenizer, which each process loads.
      workers: number of processes; with one, this process does the work.
    """

    def __init__(self, tokenizer_dir: str | os.PathLike[str], workers: int):
        self._workers = workers
        self._pool: concurrent.futures.Executor | None = None
        if workers > 1:
            self._pool = concurrent.futures.ProcessPoolExecutor(
                workers,
                mp_context=multiprocessing.get_context("spawn"),
                initializer=_start_worker,
                initargs=(os.fspath(tokenizer_dir),),
            )
        else:
            _start_worker(tokenizer_dir)

    def __enter__(self) -> "Encoders":
        return self

    def __exit__(self, *exception: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def map(self, blocks: Iterable[Block], progress: Progress) -> Iterator[Encoded]:
        """The encoded blocks in the order of `blocks`.

        Raises:
          ChildProcessError: if a process ends before its work is done.
        """
        try:
            yield from self._map(blocks, progress)
        except concurrent.futures.BrokenExecutor as error:
            raise ChildProcessError(
                "A tokenising process died, perhaps for lack of memory; use "
                f"fewer than {self._workers} with --config.data.num_workers=N."
            ) from error

    def _map(self, blocks: Iterable[Block], progress: Progress) -> Iterator[Encoded]:
        if self._pool is None:
            for block in blocks:
                yield _encode(block)
                progress.update(len(block.text))
            return
        pending: collections.deque = collections.deque()
        for block in blocks:
            pending.append((self._pool.submit(_encode, block), len(block.text)))
            while len(pending) > 4 * self._workers or (
                pending and pending[0][0].done()
            ):
                future, size = pending.popleft()
                yield future.result()
                progress.update(size)
        for future, size in pending:
            yield future.result()
            progress.update(size)


_tokenizer: tokenizers.Tokenizer | None = None  # of this worker process


def _start_worker(tokenizer_dir: str | os.PathLike[str]) -> None:
    global _tokenizer
    parent = multiprocessing.parent_process()
    if parent is not None:
        # Signals are the parent's to handle; a worker ends when the parent does. The
        # pool itself ends its workers by SIGTERM when one of them has died.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, _end_late)
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    _tokenizer = tokenizers.load(tokenizer_dir)


def _end_late(number: int, frame: types.FrameType | None) -> None:
    """Ends this process, but not before its parent has handled the same signal."""
    del number, frame
    threading.Timer(_GRACE_SECONDS, os._exit, [1]).start()


def _end_with(parent: "multiprocessing.process.BaseProcess") -> None:
    """Ends this process when its parent is gone: it would wait for work for ever."""
    parent.join()
    os._exit(1)


def _encode(block: Block) -> Encoded:
    """Cleans and encodes one block; each line's newline is a token."""
    text = clean(block.text)
    if not text or _tokenizer is None:
        return Encoded(np.zeros(0, np.uint32), 0, 0)
    ids = _tokenizer.encode(text)
    if block.ends_line:
        ids.append(_tokenizer.newline_id)
    size = len(text.encode()) + block.ends_line
    return Encoded(np.asarray(ids, np.uint32), len(text.split()), size)


# --- the cache folder ---------------------------------------------------------


def _fingerprint(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


@contextlib.contextmanager
def _full_disk_explained(cache: Path) -> Iterator[None]:
    """Names the folder and the room needed, which the system's error does not."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise OSError(
            f"The disk of the cache folder {cache} is full ({error.strerror}); text "
            "takes about as much room there as in its files. Make room, or name "
            "another folder with --config.data.cache_dir=DIR."
        ) from error


def _check_writable(cache: Path) -> None:
    try:
        check_writable(cache)
    except OSError as error:
        raise PermissionError(
            f"The cache folder {cache} cannot be written ({error.strerror}); name "
            "another with --config.data.cache_dir=DIR."
        ) from error
