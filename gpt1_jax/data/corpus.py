"""Turns named texts into token shards on disk, once, and finds them again.

A prepared corpus is a folder, named by a digest of its tokenizer and of the names and
stamps of its texts. It is written under a temporary name and renamed once it is
complete, so any folder with its final name is complete. A folder that was damaged later
is made again. A first run reads each text twice: first to compute its content
digest and to train the tokenizer, then to tokenise it. Later runs read none.
"""

import collections
import contextlib
import functools
import itertools
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from gpt1_jax.config.sections import DataConfig, TokenizerConfig, default_cache_dir
from gpt1_jax.data.encoder import Block, encode_blocks
from gpt1_jax.data.files import (
    check_writable,
    explained_writing,
    is_remote,
    json_digest,
    locate,
    remove_partial,
    whole_folder,
)
from gpt1_jax.data.named_texts import (
    HeldOut,
    NamedText,
    hold_out,
    is_near,
    shared_texts,
)
from gpt1_jax.data.owner import exclusive
from gpt1_jax.data.progress import Bar, show_line
from gpt1_jax.data.sentencepiece_tokenizer import SentencePieceTokenizer
from gpt1_jax.data.shards import Corpus, CorpusWriter, open_corpus, token_dtype
from gpt1_jax.data.text import clean
from gpt1_jax.data.tokenizers import Tokenizer, load_tokenizer
from gpt1_jax.errors import UserError, find_named
from gpt1_jax.formats import CORPUS, TOKENIZER

# Raise these when the same text would yield another tokenizer or other tokens: they are
# part of the cache's keys. File formats are in `gpt1_jax.formats`.
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
    is_main: bool = True,
) -> tuple[Corpus, Tokenizer]:
    """Finds or makes the tokenizer and the token shards of a corpus.

    Args:
      data: sources, split and cache folder.
      tokenizer: which tokenizer, and its size if it is to be trained.
      own_tokenizer: the saved tokenizer of a run that resumes, used instead.
      progress: whether to show progress.
      is_main: whether this process makes what a cache in a bucket lacks; in a run of
        several processes the others wait for one.

    Returns:
      The corpus and its tokenizer.

    Raises:
      FileNotFoundError, ValueError: saying what is wrong with the sources or the
        tokenizer, before any long work.
      CannotWrite: if the cache folder cannot be written, before it; or if its disk is
        full.
    """
    tell = show_line if progress else lambda text: None
    named = locate(data.cache_dir or default_cache_dir())
    cache = Path(default_cache_dir() if is_remote(named) else named)
    another = "--config.data.cache_dir=DIR names another folder for the cache."
    with explained_writing(cache, another):
        check_writable(cache)
        cached: Cached = functools.partial(_cached, cache, tell)
        if is_remote(named):
            shared = find_named(_SHARED, str(named), "name a local folder")
            cached = functools.partial(
                shared, cached, named, cache, is_main, tell, progress
            )
        with exclusive(cache, tell):  # where the built-in text is collected
            train, valid = find_texts(data, cache, tell)
        texts = _Texts(data, train, valid)
        place = _find_tokenizer(tokenizer, own_tokenizer, texts, cache, cached, tell)
        encoder = load_tokenizer(place)
        key = _cache_key(CORPUS.number, _CLEANING, encoder.digest, *texts.identity)
        make = functools.partial(_write_corpus, texts, encoder, place, progress)
        corpus = cached(cache / "corpora" / key, open_corpus, make)
    for warning in corpus.warnings:
        tell(f"WARNING: {warning}")
    return corpus, encoder


class _Texts:
    """The texts of a corpus, and which of them are for validation.

    Args:
      data: the section that names them.
      train: those for training.
      valid: those for validation; if none, some of the others are held out.

    Attributes:
      data: the section.
      identity: what tokens and split depend on; known before anything is read.
    """

    def __init__(
        self, data: DataConfig, train: list[NamedText], valid: list[NamedText]
    ):
        self.data, self._train, self._valid = data, train, valid
        names = ([(each.name, each.stamp) for each in part] for part in (train, valid))
        self.identity = [*names, 0 if valid else data.valid_fraction]
        self._is_divided = bool(valid) or any(each.divides for each in train)

    def divide(self, room: int = 0) -> tuple[list[NamedText], list[NamedText]]:
        """The texts for training and, unless they divide themselves, validation.

        Args:
          room: as of `hold_out`, which may read them.
        """
        if not self._is_divided:
            fraction = self.data.valid_fraction
            self._train, self._valid = hold_out(self._train, fraction, room)
            self._is_divided = True
        return self._train, self._valid


def _cached(
    cache: Path,
    tell: Say,
    folder: Path,
    read: Callable[[Path], T],
    make: Callable[[Path], None],
) -> T:
    """The contents of a folder of the cache, made first if missing or damaged."""
    with exclusive(cache, tell):
        remove_partial(folder.parent, folder.name, older_than=0)  # of killed processes
        if folder.exists():
            try:
                return read(folder)
            except (ValueError, FileNotFoundError) as error:
                show_line(f"{error} Making it again.")
                shutil.rmtree(folder)
        make(folder)
        return read(folder)


_SHARED = "gpt1_jax.data.shared_cache:cached"  # one host makes it for all


def _cache_key(*parts: object) -> str:
    return json_digest(parts)[:16]


# --- where text comes from ----------------------------------------------------

# The sources that `config.data.source` names. Each function takes the configuration of
# the data, the cache folder, and a function that shows a line to the user. It returns
# the texts for training and, if they are named separately, for validation. It
# refuses what does not exist, and text that is named for both.
SOURCES = {
    "text": "gpt1_jax.data.named_texts:find_text",  # files of text or of records
    "builtin": "gpt1_jax.data.builtin:find_text",  # the documentation on this machine
    "tfds": "gpt1_jax.data.tfds:find_text",  # a TensorFlow Datasets corpus
    "tokens": "gpt1_jax.data.token_files:find_tokens",  # made by other programs
}


def find_texts(
    config: DataConfig, cache_dir: Path, say: Say
) -> tuple[list[NamedText], list[NamedText]]:
    """Finds the texts for training and, if named separately, for validation.

    A text is one file, one module's docstrings, or a range of a dataset's rows.

    Args:
      config: the source, which is one of `SOURCES`, and its input.
      cache_dir: where the built-in documentation is collected.
      say: shows a line to the user.

    Raises:
      FileNotFoundError, ValueError: if they do not exist, or a text is named for
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
    texts: _Texts,
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
        train, valid = texts.divide(room=int(config.train_megabytes * 1e6))
        for each in valid:  # before long work
            each.read_digest()
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
        config.lowercase, *texts.identity,
    )  # fmt: skip
    folder = cache / "tokenizers" / key
    cached(folder, load_tokenizer, make)
    return folder


def _training_lines(texts: Sequence[NamedText], megabytes: float) -> Iterator[str]:
    """Lines of texts in a fixed random order, up to `megabytes`.

    Every text is read to its end, even beyond `megabytes`, unless it has been read
    before. So an unreadable one is found before training begins, and all content
    digests are known.
    """
    left = megabytes * 1e6
    for index in np.random.default_rng(0).permutation(len(texts)):
        if left <= 0 and texts[index].is_read():
            continue
        for block in texts[index].blocks():
            if left > 0 and not isinstance(block, HeldOut):
                text = clean(block)
                left -= len(text)
                yield from text.split("\n")


# --- tokens -------------------------------------------------------------------


def _write_corpus(
    texts: _Texts,
    tokenizer: Tokenizer,
    tokenizer_dir: Place,
    progress: bool,
    folder: Path,
) -> None:
    """Writes the token ids of both splits and their record.

    If there are no texts for validation, the end of the text is held out.
    """
    data, (train, valid) = texts.data, texts.divide()
    for each in (*valid, *train):
        each.check(tokenizer)
    length = sum(each.length for each in (*train, *valid))
    tokens: collections.Counter[str] = collections.Counter()
    blocks = itertools.chain(_blocks(train, "train"), _blocks(valid, "valid"))
    workers = data.num_workers or os.cpu_count() or 1
    with (
        whole_folder(folder) as partial,
        contextlib.closing(encode_blocks(blocks, tokenizer_dir, workers)) as found,
        Bar("tokenise", length, "B", active=progress, unit_scale=True) as bar,
    ):
        dtype = token_dtype(tokenizer.vocab_size)
        writer = CorpusWriter(Path(partial), tokenizer.digest, dtype)
        for block, encoded in found:
            writer.add(block.split, *encoded)
            tokens[block.name] += len(encoded.ids) * (block.split == "train")
            bar.update(min(block.size, length - bar.n))  # blocks may gain a line end
        num_valid = sum(each.count for each in valid)
        num_valid += sum(each.held_out for each in train)
        is_cut = not writer.counts("valid").tokens
        if is_cut:
            if data.valid:
                raise UserError(
                    f"config.data.valid={data.valid!r} holds no text; name one that "
                    "does."
                )
            writer.hold_out_tail(data.valid_fraction, tokenizer.decode_text)
            num_valid = 1
        shares = writer.counts("train").tokens, writer.counts("valid").tokens
        writer.finish(
            {"train": sum(each.count for each in train), "valid": num_valid},
            {each.name: each.read_digest() for each in (*train, *valid)},
            {each.name: tokens[each.name] for each in train},
            list(_warnings(data, train, valid, shares, is_cut)),
        )


def _blocks(texts: Sequence[NamedText], split: str) -> Iterator[Block]:
    for text in texts:
        for block in text.blocks():
            if isinstance(block, str):
                size = len(block.encode())
                to = "valid" if isinstance(block, HeldOut) else split
                yield Block(text.name, to, str(block), size)
            else:  # ids of a token file
                yield Block(text.name, split, block, len(block))


def _warnings(
    data: DataConfig,
    train: Sequence[NamedText],
    valid: Sequence[NamedText],
    tokens: tuple[int, int],
    is_cut: bool,
) -> Iterator[str]:
    """Warnings about the split, shown whenever it is used."""
    if shared := shared_texts(train, valid):
        name, trained = shared[0]
        yield (
            f"{len(shared)} of {len(valid)} validation documents are trained on too, "
            f"so the validation loss is too low: {name} holds the text of {trained}. "
            "Leave out one of each pair."
        )
    total, wanted = sum(tokens), data.valid_fraction
    if not (data.valid or is_near(tokens[1] / total, wanted)):
        yield (
            f"{tokens[1]:,} of {total:,} tokens ({tokens[1] / total:.2%}) are held out "
            f"for validation, not config.data.valid_fraction={wanted}: whole documents "
            "are held out, and their sizes differ. Name validation text with "
            "--config.data.valid=PATHS."
        )
    if is_cut and (len(train) > 1 or train[0].divides):
        yield (
            f"Whole documents cannot make up config.data.valid_fraction={wanted} of "
            "the text; the end of the text is held out instead."
        )
