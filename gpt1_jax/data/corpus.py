"""Turns documents into token shards on disk, once, and finds them again.

A prepared corpus is a folder, named by a digest of its tokenizer and of the names and
stamps of its documents. It is written under a temporary name and renamed when whole, so
a folder that exists is complete; one that has been damaged since is made again. A first
run reads each document twice: once for its content digest, on which pass the tokenizer
is trained too, and once to tokenise it. Later runs read none.
"""

import collections
import concurrent.futures
import functools
import itertools
import multiprocessing
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from gpt1_jax.config.sections import DataConfig, TokenizerConfig, default_cache_dir
from gpt1_jax.data.documents import Document, hold_out, shared_texts
from gpt1_jax.data.files import (
    check_writable,
    exclusive,
    explained_writing,
    is_remote,
    json_digest,
    locate,
    remove_partial,
    whole_folder,
)
from gpt1_jax.data.progress import Bar, show_line
from gpt1_jax.data.sentencepiece_tokenizer import SentencePieceTokenizer
from gpt1_jax.data.shards import Corpus, CorpusWriter, open_corpus, token_dtype
from gpt1_jax.data.text import clean
from gpt1_jax.data.tokenizers import Tokenizer, load_tokenizer
from gpt1_jax.errors import UserError, find_named
from gpt1_jax.formats import CORPUS, TOKENIZER

# Raise these when a text would yield another tokenizer, or other tokens: the cache's
# keys contain them. File formats are in `gpt1_jax.formats`.
_TRAINING, _CLEANING = 1, 1
Say = Callable[[str], None]  # shows, or notes, a line
Place = str | os.PathLike[str]
T = TypeVar("T")
# Makes a folder of the cache: takes the folder, and functions that read and make it.
Cached = Callable[[Path, Callable[[Path], T], Callable[[Path], None]], T]


def prepare_corpus(
    data: DataConfig,
    tokenizer: TokenizerConfig,
    *,
    own_tokenizer: Place | None = None,
    progress: bool = True,
) -> tuple[Corpus, Tokenizer]:
    """Finds or makes the tokenizer and the token shards of a corpus.

    Args:
      data: sources, split and cache folder.
      tokenizer: which tokenizer, and its size if it is to be trained.
      own_tokenizer: the saved tokenizer of a run that resumes, used instead.
      progress: whether to show progress.

    Returns:
      The corpus and its tokenizer.

    Raises:
      FileNotFoundError, ValueError, PermissionError: saying what is wrong with the
        sources, the tokenizer or the cache folder, before any long work.
      OSError: if the disk of the cache folder is full.
    """
    tell = show_line if progress else lambda text: None
    named = locate(data.cache_dir or default_cache_dir())
    cache, cached = Path(named), _cached
    if is_remote(named):
        shared = find_named(_SHARED, str(named), "name a local folder")
        cache = Path(default_cache_dir())
        cached = functools.partial(shared, _cached, named, cache, progress)
    another = ", or name another folder with --config.data.cache_dir=DIR"
    with explained_writing(cache, another):
        check_writable(cache)
        with exclusive(cache, tell):
            train, valid = find_documents(data, cache, tell)
            if not valid:
                train, valid = hold_out(train, data.valid_fraction)
            place = _find_tokenizer(
                tokenizer, own_tokenizer, train, valid, cache, cached, tell
            )
            encoder = load_tokenizer(place)
            key = _cache_key(
                CORPUS.number, _CLEANING, encoder.digest, _identity(train), "valid",
                data.valid_fraction, _identity(valid),
            )  # fmt: skip
            make = functools.partial(
                _write_corpus, data, train, valid, encoder, place, progress
            )
            corpus = cached(cache / "corpora" / key, open_corpus, make)
    for warning in corpus.warnings:
        tell(f"WARNING: {warning}")
    return corpus, encoder


def _cached(folder: Path, read: Callable[[Path], T], make: Callable[[Path], None]) -> T:
    """What is in a folder of the cache; made first if it is missing or damaged."""
    if folder.exists():
        try:
            return read(folder)
        except (ValueError, FileNotFoundError) as error:
            show_line(f"{error} Making it again.")
            shutil.rmtree(folder)
    remove_partial(folder.parent, folder.name, older_than=0)  # of killed processes
    make(folder)
    return read(folder)


_SHARED = "gpt1_jax.data.shared_cache:cached"  # one host makes it for all


def _cache_key(*parts: object) -> str:
    return json_digest(parts)[:16]


def _identity(documents: Sequence[Document]) -> list[tuple[str, str]]:
    return [(document.name, document.stamp) for document in documents]


# --- where text comes from ----------------------------------------------------

# The sources that `config.data.source` names. Each function takes the configuration of
# the data, the cache folder, and a function that shows a line to the user. It returns
# the documents for training and, if they are named separately, for validation. It
# refuses what does not exist, and text that is named for both.
SOURCES = {
    "text": "gpt1_jax.data.documents:find_text",  # files of text or of records
    "builtin": "gpt1_jax.data.builtin:find_text",  # the documentation on this machine
    "tfds": "gpt1_jax.data.tfds:find_text",  # a TensorFlow Datasets corpus
    "tokens": "gpt1_jax.data.token_files:find_tokens",  # made by other programs
}


def find_documents(
    config: DataConfig, cache_dir: Path, say: Say
) -> tuple[list[Document], list[Document]]:
    """Finds the documents for training and, if named separately, for validation.

    A document is one file, one module's docstrings, or a range of a dataset's rows.

    Args:
      config: the source, which is one of `SOURCES`, and its input.
      cache_dir: where the built-in documentation is collected.
      say: shows a line to the user.

    Raises:
      FileNotFoundError, ValueError: if they do not exist, or a document is named for
        both.
    """
    find_text = find_named(
        SOURCES[config.source],
        f"config.data.source={config.source!r}",
        "read text files with --config.data.source=text --config.data.train=PATHS",
    )
    return find_text(config, cache_dir, say)


# --- tokenizer ----------------------------------------------------------------


def _find_tokenizer(
    config: TokenizerConfig,
    own: Place | None,
    train: Sequence[Document],
    valid: Sequence[Document],
    cache: Path,
    cached: Cached[Tokenizer],
    tell: Say,
) -> Place:
    """The folder of the run's own tokenizer, the configured or a trained one."""
    if own:
        return own
    if config.path:
        path = Path(locate(config.path, local=True))
        tokenizer = load_tokenizer(path)
        for name in ("kind", "lowercase"):
            if getattr(tokenizer, name) != getattr(config, name):
                value = getattr(tokenizer, name)
                raise UserError(
                    f"config.tokenizer.path={config.path!r} holds a {tokenizer.kind} "
                    f"tokenizer with {name}={value}, but config.tokenizer.{name}="
                    f"{getattr(config, name)!r}; set --config.tokenizer.{name}={value}."
                )
        return path

    def make(folder: Path) -> None:
        for document in valid:  # before long work
            document.read_digest()
        case = (
            "in lower case, as the paper's; --config.tokenizer.lowercase=False keeps "
            "capitals"
            if config.lowercase
            else "with capitals"
        )
        tell(f"Training a tokenizer of {config.vocab_size:,} entries, {case}.")
        lines = _training_lines(train, config.train_megabytes)
        size, lowercase = config.vocab_size, config.lowercase
        SentencePieceTokenizer.train(lines, size, lowercase).save(folder)

    key = _cache_key(
        TOKENIZER.number, _TRAINING, config.vocab_size, config.train_megabytes,
        _identity(train), config.lowercase,
    )  # fmt: skip
    folder = cache / "tokenizers" / key
    cached(folder, load_tokenizer, make)
    return folder


def _training_lines(documents: Sequence[Document], megabytes: float) -> Iterator[str]:
    """Lines of documents in a fixed random order, up to `megabytes`.

    Every document is read to its end, even beyond `megabytes`: so an unreadable one is
    found before the training begins, and all content digests are known.
    """
    left = megabytes * 1e6
    for index in np.random.default_rng(0).permutation(len(documents)):
        for block in documents[index].blocks():
            if left > 0:
                text = clean(block)
                left -= len(text)
                yield from text.split("\n")


# --- token shards -------------------------------------------------------------


def _write_corpus(
    data: DataConfig,
    train: Sequence[Document],
    valid: Sequence[Document],
    tokenizer: Tokenizer,
    tokenizer_dir: Place,
    progress: bool,
    folder: Path,
) -> None:
    """Writes the token ids of both splits and their record.

    If there are no documents for validation, the end of the text is held out.
    """
    for document in (*valid, *train):
        document.check(tokenizer)
    num_bytes = sum(document.num_bytes for document in (*train, *valid))
    tokens: collections.Counter[str] = collections.Counter()
    blocks = itertools.chain(_blocks(train, "train"), _blocks(valid, "valid"))
    with (
        whole_folder(folder) as partial,
        Bar("tokenise", num_bytes, "B", active=progress, unit_scale=True) as bar,
    ):
        dtype = token_dtype(tokenizer.vocab_size)
        writer = CorpusWriter(Path(partial), tokenizer.digest, dtype)
        workers = data.num_workers or os.cpu_count() or 1
        for block in encode_blocks(blocks, tokenizer_dir, workers):
            writer.add(block.split, block.ids, block.words, block.num_bytes)
            tokens[block.document] += len(block.ids) * (block.split == "train")
            bar.update(block.size)
        if not valid:
            writer.hold_out_tail(data.valid_fraction)
        for split, counts in writer.counts.items():
            if not counts.tokens:
                raise UserError(
                    f"config.data.{split} holds no text, or too little to divide; name "
                    "more."
                )
        writer.finish(
            {"train": _count(train), "valid": _count(valid) or 1},
            {document.name: document.read_digest() for document in (*train, *valid)},
            {document.name: tokens[document.name] for document in train},
            list(_warnings(train, valid)),
        )


def _count(documents: Sequence[Document]) -> int:
    return sum(document.count for document in documents)


def _blocks(documents: Sequence[Document], split: str) -> Iterator["_Block"]:
    for document in documents:
        for text in document.blocks():
            size = getattr(text, "nbytes", len(text))
            yield _Block(document.name, split, text, size)


def _warnings(train: Sequence[Document], valid: Sequence[Document]) -> Iterator[str]:
    """Warnings about the split, shown whenever it is used."""
    if shared := shared_texts(train, valid):
        name, trained = shared[0]
        yield (
            f"{len(shared)} of {len(valid)} validation documents are trained on too, "
            f"so the validation loss is too low: {name} holds the text of {trained}. "
            "Leave out one of each pair."
        )
    if not valid and len(train) > 1:
        yield (
            "Whole documents cannot make up config.data.valid_fraction of the text; "
            "the end of the text is held out instead."
        )


# --- blocks of text to token ids, on several processes ------------------------


class _Block(NamedTuple):
    """A block of text, or ids of a token file; once encoded, its ids and counts."""

    document: str
    split: str
    text: Any
    size: int
    ids: np.ndarray = np.zeros(0, np.uint32)
    words: int = 0
    num_bytes: int = 0  # of cleaned UTF-8 text


def encode_blocks(
    blocks: Iterable[_Block], tokenizer_dir: Place, workers: int
) -> Iterator[_Block]:
    """Encodes blocks in order, here and, if it takes long, on several processes.

    Raises:
      ChildProcessError: if a process ends before its work is done.
    """
    encode = functools.partial(_encode, os.fspath(tokenizer_dir))
    tokenizer = _load_once(os.fspath(tokenizer_dir))
    blocks, began = iter(blocks), time.monotonic()
    for block in blocks:
        yield encode(block)
        if workers > 1 and time.monotonic() - began >= tokenizer.seconds_to_load:
            break
    else:
        return
    context = multiprocessing.get_context("spawn")
    pool = concurrent.futures.ProcessPoolExecutor(workers, context, _end_with_parent)
    pending: collections.deque[concurrent.futures.Future[_Block]] = collections.deque()
    try:
        for block in blocks:
            pending.append(pool.submit(encode, block))
            if len(pending) > 4 * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    except concurrent.futures.BrokenExecutor as error:
        raise ChildProcessError(
            "A tokenising process died, perhaps for lack of memory; use "
            f"fewer than {workers} with --config.data.num_workers=N."
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _end_with_parent() -> None:
    """Leaves interrupts to the parent; ends this process once the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def wait() -> None:
        multiprocessing.parent_process().join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


_load_once = functools.cache(load_tokenizer)


def _encode(tokenizer_dir: str, block: _Block) -> _Block:
    """Cleans and encodes one block; each line's newline is a token."""
    tokenizer = _load_once(tokenizer_dir)
    if isinstance(block.text, np.ndarray):  # of a token file
        text, ids = tokenizer.decode_text(block.text.tolist()), block.text
        return block._replace(
            text="", ids=ids, words=len(text.split()), num_bytes=len(text.encode())
        )
    text = clean(block.text)
    ids = tokenizer.encode(text) if text else []
    ends_line = bool(text) and block.text.endswith("\n")
    if ends_line:
        ids.append(tokenizer.newline_id)
    return block._replace(
        text="",
        ids=np.asarray(ids, np.uint32),
        words=len(text.split()),
        num_bytes=len(text.encode()) + ends_line,
    )
