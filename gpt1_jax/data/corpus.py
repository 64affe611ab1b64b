"""Turns documents into token shards on disk, once, and finds them again.

A prepared corpus is a folder of token shards, named by a digest of its tokenizer and of
the names and stamps of its documents. It is written under a temporary name and renamed
when whole, so a folder that exists is complete; one that has been damaged since is made
again. A first run reads each document twice: once for its content digest, on which pass
the tokenizer is trained too, and once to tokenise it. Later runs read none.
"""

import collections
import concurrent.futures
import contextlib
import functools
import multiprocessing
import os
import shutil
import signal
import threading
import time
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpt1_jax.config.sections import DataConfig, TokenizerConfig, default_cache_dir
from gpt1_jax.data.documents import Document, hold_out, is_near, shared_texts
from gpt1_jax.data.files import (
    FULL,
    check_writable,
    exclusive,
    is_remote,
    json_digest,
    locate,
    whole_folder,
)
from gpt1_jax.data.progress import Bar, show_line
from gpt1_jax.data.sentencepiece_tokenizer import SentencePieceTokenizer
from gpt1_jax.data.shards import (
    Corpus,
    DamagedCorpus,
    ShardWriter,
    cut_validation,
    open_corpus,
    token_dtype,
    write_record,
)
from gpt1_jax.data.text import clean
from gpt1_jax.data.tokenizers import Tokenizer, load_tokenizer
from gpt1_jax.errors import UserError, find_named
from gpt1_jax.formats import CORPUS, TOKENIZER

# Raise these when a text would yield another tokenizer, or other tokens: the cache's
# keys contain them. File formats are in `gpt1_jax.formats`.
_TRAINING, _CLEANING = 1, 1
Say = Callable[[str], None]  # shows, or notes, a line
_Encoded = tuple[np.ndarray, int, int]  # ids, words, bytes of cleaned UTF-8 text
Encode = Callable[[Iterable[str], Bar], Iterator[_Encoded]]
# Around the making of a folder of the cache: in a bucket, one host makes it for all.
Share = Callable[[Path], contextlib.AbstractContextManager]
_SHARED = "gpt1_jax.data.shared_cache:open_shared"


def prepare_corpus(
    data: DataConfig,
    tokenizer: TokenizerConfig,
    *,
    own_tokenizer: str | os.PathLike[str] | None = None,
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
    cache, share = Path(named), contextlib.nullcontext
    if is_remote(named):
        open_shared = find_named(_SHARED, str(named), "name a local folder")
        cache, share = open_shared(named, tell, progress)
    _check_writable(cache)
    with _full_disk_explained(cache), exclusive(cache, tell) as doing:
        doing("looking for documents")
        train, valid = find_documents(data, cache, tell)
        if not valid:
            train, valid = hold_out(train, data.valid_fraction)
        encoder, encoder_dir = _find_tokenizer(
            tokenizer, own_tokenizer, train, valid, cache, share, tell, doing
        )
        corpus = _find_corpus(
            data, train, valid, encoder, encoder_dir, cache, share, progress, doing
        )
    for warning in corpus.warnings:
        tell(f"WARNING: {warning}")
    return corpus, encoder


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
    own: str | os.PathLike[str] | None,
    train: Sequence[Document],
    valid: Sequence[Document],
    cache: Path,
    share: Share,
    tell: Say,
    doing: Say,
) -> tuple[Tokenizer, str | os.PathLike[str]]:
    """The run's own tokenizer, the configured one, or one trained on these documents.

    Returns:
      The tokenizer and the folder it is saved in.
    """
    if own:
        return load_tokenizer(own), own
    if config.path:
        directory = Path(locate(config.path, local=True))
        tokenizer = load_tokenizer(directory)
        if tokenizer.kind != config.kind:
            raise UserError(
                f"config.tokenizer.path={config.path!r} holds a {tokenizer.kind} "
                f"tokenizer, but config.tokenizer.kind={config.kind!r}."
            )
        if tokenizer.lowercase != config.lowercase:
            raise UserError(
                f"config.tokenizer.path={config.path!r} holds a tokenizer with "
                f"lowercase={tokenizer.lowercase}; set --config.tokenizer.lowercase="
                f"{tokenizer.lowercase}."
            )
        return tokenizer, directory
    directory = cache / "tokenizers" / _cache_key(
        TOKENIZER.number, _TRAINING, config.vocab_size, config.train_megabytes,
        *([d.name, d.stamp] for d in train), *([] if config.lowercase else ["cased"]),
    )  # fmt: skip
    with share(directory):
        if directory.exists():
            try:
                return load_tokenizer(directory), directory
            except (ValueError, FileNotFoundError):
                show_line(f"The cached {directory} is damaged; training it again.")
                shutil.rmtree(directory)
        doing("reading the corpus")
        for document in valid:
            document.read_digest()
        doing(f"training a tokenizer of {config.vocab_size:,} entries")
        case = (
            "in lower case, as the paper's; --config.tokenizer.lowercase=False keeps "
            "capitals"
            if config.lowercase
            else "with capitals"
        )
        tell(f"Training a tokenizer of {config.vocab_size:,} entries, {case}.")
        lines = _training_lines(train, config.train_megabytes)
        size, lowercase = config.vocab_size, config.lowercase
        SentencePieceTokenizer.train(lines, size, lowercase).save(directory)
        return load_tokenizer(directory), directory


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


def _find_corpus(
    data: DataConfig,
    train: Sequence[Document],
    valid: Sequence[Document],
    tokenizer: Tokenizer,
    tokenizer_dir: str | os.PathLike[str],
    cache: Path,
    share: Share,
    progress: bool,
    doing: Say,
) -> Corpus:
    """Opens the prepared corpus, making it first if it is missing or damaged."""
    directory = cache / "corpora" / _cache_key(
        CORPUS.number, _CLEANING, tokenizer.digest, *([d.name, d.stamp] for d in train),
        "valid", data.valid_fraction, *([d.name, d.stamp] for d in valid),
    )  # fmt: skip
    with share(directory):
        if directory.exists():
            try:
                return open_corpus(directory)
            except DamagedCorpus as error:
                show_line(f"{error.problem}; making the damaged corpus again.")
                shutil.rmtree(directory)
        doing("reading the corpus")
        for document in (*train, *valid):
            document.check(tokenizer)
        num_bytes = sum(document.num_bytes for document in (*train, *valid))
        doing(f"tokenising {num_bytes / 1e6:,.1f} MB of text")
        workers = data.num_workers or os.cpu_count() or 1
        with (
            whole_folder(directory) as partial,
            Bar("tokenise", num_bytes, "B", active=progress, unit_scale=True) as bar,
            start_encoders(tokenizer_dir, workers) as encode,
        ):
            _write_corpus(Path(partial), data, train, valid, tokenizer, encode, bar)
        return open_corpus(directory)


def _write_corpus(
    directory: Path,
    data: DataConfig,
    train: Sequence[Document],
    valid: Sequence[Document],
    tokenizer: Tokenizer,
    encode: Encode,
    progress: Bar,
) -> None:
    """Writes the shards of both splits and their record."""
    dtype = token_dtype(tokenizer.vocab_size)
    counts = []
    document_tokens: collections.Counter[str] = collections.Counter()
    for name, documents in (("train", train), ("valid", valid)):
        writer = ShardWriter(directory, name, dtype)
        names: collections.deque[str] = collections.deque()  # of the blocks under way
        encoded = encode(_named_blocks(documents, names), progress)
        for ids, words, num_bytes in encoded:
            writer.add(ids, words, num_bytes)
            document_tokens[names.popleft()] += len(ids)
        counts.append(writer.counts(sum(each.count for each in documents)))
    in_train, in_valid = counts
    if is_cut := not in_valid.tokens:
        if data.valid:
            raise UserError(
                f"config.data.valid={data.valid!r} holds no text; name one that does."
            )
        in_train, in_valid = cut_validation(
            directory, in_train, dtype, data.valid_fraction
        )
    write_record(
        directory,
        tokenizer.digest,
        dtype,
        in_train,
        in_valid,
        {document.name: document.read_digest() for document in (*train, *valid)},
        {document.name: document_tokens[document.name] for document in train},
        list(_warnings(data, train, valid, in_train.tokens, in_valid.tokens, is_cut)),
    )


def _named_blocks(
    documents: Iterable[Document], names: collections.deque[str]
) -> Iterator[str]:
    """Yields the blocks of documents; appends each block's document to `names`."""
    for document in documents:
        for block in document.blocks():
            names.append(document.name)
            yield block


def _warnings(
    data: DataConfig,
    train: Sequence[Document],
    valid: Sequence[Document],
    train_tokens: int,
    valid_tokens: int,
    is_cut: bool,
) -> Iterator[str]:
    """Warnings about the split, shown whenever it is used."""
    shared = shared_texts(train, valid)
    if shared:
        name, trained = shared[0]
        yield (
            f"{len(shared)} of {len(valid)} validation documents are trained on too, "
            f"so the validation loss is too low: {name} holds the text of {trained}. "
            "Leave out one of each pair."
        )
    total = train_tokens + valid_tokens
    share, wanted = valid_tokens / total, data.valid_fraction
    if not data.valid and not is_near(share, wanted):
        yield (
            f"{valid_tokens:,} of {total:,} tokens ({share:.2%}) are held out for "
            f"validation, not config.data.valid_fraction={wanted}: whole documents are "
            "held out, and their sizes differ. Name validation text with "
            "--config.data.valid=PATHS."
        )
    if is_cut and (valid or len(train) > 1):
        yield (
            f"Whole documents cannot make up config.data.valid_fraction={wanted} of "
            "the text; the end of the text is held out instead."
        )


# --- blocks of text to token ids, on several processes ------------------------

_GRACE_SECONDS = 1.0


@contextlib.contextmanager
def start_encoders(
    tokenizer_dir: str | os.PathLike[str], workers: int
) -> Iterator[Encode]:
    """Encodes blocks of text here and, if that takes as long as they start, on others.

    Args:
      tokenizer_dir: the saved tokenizer, which each process loads.
      workers: number of processes; with one, this process does the work.

    Yields:
      A function of blocks and the progress to tell. It yields for each block, in order,
      its ids [tokens] uint32, its words and its bytes of cleaned UTF-8; and it raises a
      ChildProcessError if a process ends before its work is done.
    """
    tokenizer = _start_worker(tokenizer_dir)
    with contextlib.ExitStack() as stack:

        @functools.cache
        def pool() -> concurrent.futures.Executor:
            made = concurrent.futures.ProcessPoolExecutor(
                workers,
                mp_context=multiprocessing.get_context("spawn"),
                initializer=_start_worker,
                initargs=(os.fspath(tokenizer_dir),),
            )
            stack.callback(made.shutdown, cancel_futures=True)
            return made

        yield functools.partial(_encode_on, pool, workers, tokenizer.seconds_to_load)


def _encode_on(
    pool: Callable[[], concurrent.futures.Executor],
    workers: int,
    seconds_to_start: float,
    blocks: Iterable[str],
    progress: Bar,
) -> Iterator[_Encoded]:
    """Encodes here, and then on processes, a bounded number of blocks ahead."""
    blocks, began = iter(blocks), time.monotonic()
    for block in blocks:
        yield _encode(block)
        progress.update(len(block))
        if workers > 1 and time.monotonic() - began >= seconds_to_start:
            break
    pending: collections.deque = collections.deque()
    try:
        for block in blocks:
            pending.append((pool().submit(_encode, block), len(block)))
            while len(pending) > 4 * workers or (pending and pending[0][0].done()):
                future, size = pending.popleft()
                yield future.result()
                progress.update(size)
        for future, size in pending:
            yield future.result()
            progress.update(size)
    except concurrent.futures.BrokenExecutor as error:
        raise ChildProcessError(
            "A tokenising process died, perhaps for lack of memory; use "
            f"fewer than {workers} with --config.data.num_workers=N."
        ) from error


_tokenizer: Tokenizer | None = None  # of this process


def _start_worker(tokenizer_dir: str | os.PathLike[str]) -> Tokenizer:
    global _tokenizer
    parent = multiprocessing.parent_process()
    if parent is not None:
        # Signals are the parent's to handle; a worker ends when the parent does. The
        # pool itself ends its workers by SIGTERM when one of them has died.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, _end_late)
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    _tokenizer = load_tokenizer(tokenizer_dir)
    return _tokenizer


def _end_late(number: int, frame: types.FrameType | None) -> None:
    """Ends this process, but not before its parent has handled the same signal."""
    del number, frame
    threading.Timer(_GRACE_SECONDS, os._exit, [1]).start()


def _end_with(parent: "multiprocessing.process.BaseProcess") -> None:
    """Ends this process once its parent is gone; else it would wait forever."""
    parent.join()
    os._exit(1)


def _encode(block: Any) -> _Encoded:
    """Cleans and encodes one block; each line's newline is a token."""
    if not isinstance(block, str):  # ids of a token file
        return block.counted(_tokenizer)
    text = clean(block)
    if not text or _tokenizer is None:
        return np.zeros(0, np.uint32), 0, 0
    ids = _tokenizer.encode(text)
    ends_line = block.endswith("\n")
    if ends_line:
        ids.append(_tokenizer.newline_id)
    num_bytes = len(text.encode()) + ends_line
    return np.asarray(ids, np.uint32), len(text.split()), num_bytes


# --- the cache folder ---------------------------------------------------------


def _cache_key(*parts: object) -> str:
    return json_digest(parts)[:16]


@contextlib.contextmanager
def _full_disk_explained(cache: Path) -> Iterator[None]:
    """Names the folder and the room needed, which the system's error does not."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.errno not in FULL:
            raise
        raise OSError(
            f"The disk of the cache folder {cache} is full "
            f"({os.strerror(error.errno)}); text takes about as much room there as in "
            "its files. Make room, or name another folder with "
            "--config.data.cache_dir=DIR."
        ) from error


def _check_writable(cache: Path) -> None:
    try:
        check_writable(cache)
    except OSError as error:
        raise PermissionError(
            f"The cache folder {cache} cannot be written ({error.strerror}); name "
            "another with --config.data.cache_dir=DIR."
        ) from error
