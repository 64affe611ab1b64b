"""From documents to token shards on disk, made once and found again.

A prepared corpus is a folder of token shards named by a fingerprint of its sources
and tokenizer. It is written under a temporary name and renamed when whole, so a
folder that exists is complete; one that has been damaged since is made again.
"""

import contextlib
import dataclasses
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpt1_jax.config import DataConfig, TokenizerConfig
from gpt1_jax.config.sections import default_cache_dir
from gpt1_jax.data import locks, sources, tokenizers
from gpt1_jax.data.documents import Block, Document, check_readable
from gpt1_jax.data.encoding import Encoders
from gpt1_jax.data.files import check_writable, locate, whole_folder
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
from gpt1_jax.data.splits import hold_out, is_near, shared_texts
from gpt1_jax.data.text import clean
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
    with _full_disk_explained(cache), locks.exclusive(cache, tell) as doing:
        doing("looking for documents")
        train, valid = sources.find_documents(data, cache, tell)
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
