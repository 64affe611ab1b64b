"""A prepared corpus on disk: its format, its writer and its reader.

A prepared corpus is a folder: `train.bin` and `valid.bin` hold the token ids of all
documents one after another, little-endian uint16 (uint32 for vocabularies over 65,533),
and `corpus.json` says its format, counts them and holds their checksums. Each checksum
is that of a shard, a part of a file; format 1 kept every shard in a file of its own.
"""

import collections
import dataclasses
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gpt1_jax.data.files import append_to, json_digest, sha256, write_json
from gpt1_jax.data.tokenizers import NUM_SPECIAL_TOKENS
from gpt1_jax.errors import UserError
from gpt1_jax.formats import CORPUS

SHARD_TOKENS = 1 << 26  # a corpus of another number would have another digest
CHECK_SECONDS = 5.0  # how long opening a corpus waits for its checksums
_SPLITS = ("train", "valid")
_MOVED = 1 << 20  # tokens at a time
_RECORD_FILE = "corpus.json"


class DamagedCorpus(UserError):
    """A file of a prepared corpus is not as it was written."""

    def __init__(self, path: Path, how: str):
        super().__init__(
            f"{path} {how}: the prepared corpus is damaged. Remove {path.parent}, and "
            "the next run makes it again."
        )


@dataclasses.dataclass(frozen=True)
class SplitCounts:
    """The counts of one split of a prepared corpus."""

    documents: int
    tokens: int
    words: int  # separated by white space, before tokenisation
    bytes: int  # of cleaned UTF-8 text


@dataclasses.dataclass(frozen=True)
class Corpus:
    """A prepared corpus: where it is and how much it holds.

    Attributes:
      directory: its folder.
      tokenizer_digest: the content digest of the tokenizer.
      dtype: dtype of its token ids.
      train: counts of the training split.
      valid: counts of the validation split.
      warnings: about its text, shown whenever it is opened.
      documents: the content digests of its documents by name.
      document_tokens: how many tokens each document became in the training split, by
        name, in its order.
      checksums: the SHA-256 of its shards, by name.
      verification: compares the shards with them.
    """

    directory: Path
    tokenizer_digest: str
    dtype: str
    train: SplitCounts
    valid: SplitCounts
    warnings: Sequence[str]
    documents: Mapping[str, str] = dataclasses.field(repr=False)
    document_tokens: Mapping[str, int] = dataclasses.field(repr=False)
    checksums: Mapping[str, str] = dataclasses.field(repr=False)
    verification: "Verification" = dataclasses.field(compare=False, repr=False)

    @property
    def digest(self) -> str:
        """The content digest of its tokens."""
        return json_digest(self.checksums)


def open_corpus(directory: Path) -> Corpus:
    """Opens a prepared corpus and checks it.

    Sizes are checked first; then threads compare the shards with their checksums.
    Opening waits at most 5 seconds for them, enough for a few gigabytes. The rest of a
    larger corpus is checked while training runs, and once damage is found, every read
    raises.

    Raises:
      DamagedCorpus: naming the file that is not as it was written.
      UserError: if the corpus is of another format.
    """
    path = directory / _RECORD_FILE
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        checksum = record.pop("sha256", None)
    except (OSError, ValueError, AttributeError, TypeError, RecursionError) as error:
        raise DamagedCorpus(path, f"cannot be read ({error})") from error
    if checksum != json_digest(record):
        raise DamagedCorpus(path, "differs from its checksum")
    CORPUS.check(record, directory)
    values = {name: record[name] for name in record.keys() - CORPUS.stamp().keys()}
    counts = {name: SplitCounts(**record[name]) for name in _SPLITS}
    checksums, dtype = [], np.dtype(record["dtype"])
    for name, split in counts.items():
        file, wanted = split_path(directory, name), split.tokens * dtype.itemsize
        if not file.exists() or file.stat().st_size != wanted:
            raise DamagedCorpus(file, f"does not hold {wanted} bytes")
        for shard in _shards(directory, name, split, dtype):
            checksums.append((shard, record["checksums"].get(shard.name)))
    verification = Verification(checksums)
    corpus = Corpus(directory, verification=verification, **{**values, **counts})
    corpus.verification.wait(CHECK_SECONDS)
    return corpus


class Shard(NamedTuple):
    """A part of a file: its name as format 1 had it, the file, first byte and bytes."""

    name: str
    path: Path
    start: int
    size: int

    def checksum(self) -> str:
        """Its SHA-256."""
        return sha256(self.path, self.start, self.size)


def _shards(
    directory: Path, split: str, counts: SplitCounts, dtype: np.dtype
) -> Iterator[Shard]:
    """The shards of a split's file."""
    path = split_path(directory, split)
    for index, first in enumerate(range(0, counts.tokens, SHARD_TOKENS)):
        number = min(SHARD_TOKENS, counts.tokens - first)
        start, size = first * dtype.itemsize, number * dtype.itemsize
        yield Shard(f"{split}-{index:05d}.bin", path, start, size)


class Verification:
    """Compares shards with their SHA-256 on background threads."""

    def __init__(self, checksums: Sequence[tuple[Shard, str | None]]):
        self._left = collections.deque(checksums)
        self._damage: DamagedCorpus | None = None
        number = min(len(checksums), 8, os.cpu_count() or 1)
        self._threads = [
            threading.Thread(target=self._run, daemon=True) for _ in range(number)
        ]
        for thread in self._threads:
            thread.start()

    def wait(self, seconds: float) -> None:
        """Waits until all is compared or time runs out; raises any damage found."""
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self.check()

    def check(self) -> None:
        """Raises a DamagedCorpus if damage has been found by now."""
        if self._damage is not None:
            raise self._damage

    def _run(self) -> None:
        while self._damage is None:
            try:
                shard, checksum = self._left.popleft()
            except IndexError:
                return
            how = "differs from its checksum"
            try:
                if shard.checksum() == checksum:
                    continue
            except OSError as error:
                how = f"cannot be read ({error.strerror})"
            self._damage = DamagedCorpus(shard.path, how)


def split_path(directory: Path, split: str) -> Path:
    """The file of one split."""
    return directory / f"{split}.bin"


def token_dtype(vocab_size: int) -> np.dtype:
    """The smallest dtype for a vocabulary and the special tokens of fine-tuning."""
    return np.dtype("<u4" if vocab_size + NUM_SPECIAL_TOKENS > 2**16 else "<u2")


class CorpusWriter:
    """Writes a prepared corpus: the ids of both splits, then the record."""

    def __init__(self, directory: Path, tokenizer_digest: str, dtype: np.dtype):
        self._directory, self._dtype = directory, dtype
        self._tokenizer_digest = tokenizer_digest
        nothing = np.zeros(3, np.int64)  # tokens, words and bytes of each text added
        self._added = {split: [nothing] for split in _SPLITS}
        for split in _SPLITS:
            append_to(split_path(directory, split)).close()

    def add(self, split: str, ids: np.ndarray, words: int, num_bytes: int) -> None:
        """Appends the ids of some text to a split, and counts it."""
        self._append(split, ids)
        self._added[split].append(np.array([len(ids), words, num_bytes]))

    def _append(self, split: str, ids: np.ndarray) -> None:
        with append_to(split_path(self._directory, split)) as file:
            file.write(ids.astype(self._dtype).data)

    def counts(self, split: str, documents: int = 0) -> SplitCounts:
        """The counts of what has been written, given the number of documents."""
        tokens, words, num_bytes = np.sum(self._added[split], axis=0).tolist()
        return SplitCounts(documents, tokens, words, num_bytes)

    def hold_out_tail(
        self, fraction: float, decode: Callable[[Sequence[int]], str]
    ) -> None:
        """Moves the last fraction of the training tokens to validation.

        Whole texts were counted when they were added. If the cut lies within a text,
        its ids are decoded to count the beginning; a word belongs to the side where it
        begins.

        Args:
          fraction: of all tokens.
          decode: the text of ids.

        Raises:
          UserError: if there are fewer than two tokens.
        """
        total = self.counts("train").tokens
        if total < 2:
            raise UserError(
                f"The text holds {total} tokens; that is too few to train on."
            )
        kept = total - min(max(1, round(fraction * total)), total - 1)
        path = split_path(self._directory, "train")
        tokens = np.memmap(path, self._dtype, mode="r")
        added = np.array(self._added["train"])
        whole = int(np.searchsorted(added[:, 0].cumsum(), kept, side="right"))
        head = added[:whole].sum(axis=0)
        if (begun := kept - head[0]) > 0:
            ids = tokens[head[0] : head[0] + added[whole, 0]]
            head += _count_beginning(added[whole], ids, begun, decode)
        self._added = {"train": [head], "valid": [added.sum(axis=0) - head]}
        for start in range(kept, total, _MOVED):
            self._append("valid", tokens[start : start + _MOVED])
        del tokens
        os.truncate(path, kept * self._dtype.itemsize)

    def finish(
        self,
        num_documents: Mapping[str, int],
        documents: Mapping[str, str],
        document_tokens: Mapping[str, int],
        warnings: Sequence[str],
    ) -> None:
        """Writes `corpus.json`, with the checksums of the shards and of itself.

        Args:
          num_documents: of each split.
          documents, document_tokens, warnings: as in `Corpus`.
        """
        counts = {split: self.counts(split, num_documents[split]) for split in _SPLITS}
        record = {
            **CORPUS.stamp(),
            "tokenizer_digest": self._tokenizer_digest,
            "dtype": self._dtype.str,
            "documents": dict(documents),
            "document_tokens": dict(document_tokens),
            "warnings": list(warnings),
            "checksums": {
                shard.name: shard.checksum()
                for split in _SPLITS
                for shard in _shards(self._directory, split, counts[split], self._dtype)
            },
            **{split: dataclasses.asdict(counts[split]) for split in _SPLITS},
        }
        record["sha256"] = json_digest(record)
        write_json(self._directory / _RECORD_FILE, record)


def _count_beginning(
    counts: np.ndarray,
    ids: np.ndarray,
    tokens: int,
    decode: Callable[[Sequence[int]], str],
) -> np.ndarray:
    """Tokens, words and bytes of the first tokens of a text.

    Words and bytes are estimated: they are taken to be the same share of the text's as
    in its decoded ids. That is exact unless the tokenizer changes more of a text than
    its case.
    """
    head, whole = decode(ids[:tokens].tolist()), decode(ids.tolist())
    words = len(head.split()) / max(1, len(whole.split()))
    num_bytes = len(head.encode()) / max(1, len(whole.encode()))
    return np.array([tokens, round(counts[1] * words), round(counts[2] * num_bytes)])


class TokenReader:
    """Random access to the tokens of one split, without holding them in memory.

    Args:
      corpus: the corpus.
      split: "train" or "valid".
    """

    def __init__(self, corpus: Corpus, split: str):
        self._verification = corpus.verification
        path, counts = split_path(corpus.directory, split), getattr(corpus, split)
        self._tokens = np.zeros(0, corpus.dtype)
        if counts.tokens:  # else there is nothing to map
            self._tokens = np.memmap(path, corpus.dtype, mode="r")

    def __len__(self) -> int:
        return len(self._tokens)

    def read(self, start: int, length: int) -> np.ndarray:
        """[length] tokens from position `start`; fewer at the end.

        Raises:
          DamagedCorpus: once a file is known to differ from its checksum.
        """
        self._verification.check()
        return np.asarray(self._tokens[start : start + length])
