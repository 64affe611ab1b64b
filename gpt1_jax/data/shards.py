"""Token shards on disk: the format of a prepared corpus, its writer and its reader.

A prepared corpus is a folder: `train-00000.bin`, ... and `valid-00000.bin`, ... hold
the token ids of all documents one after another, little-endian uint16 (uint32 for
vocabularies over 65,533), and `corpus.json` says its format, counts them and holds
their checksums.
"""

import collections
import dataclasses
import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpt1_jax.data.files import append_to, find_files, json_digest, sha256, write_json
from gpt1_jax.data.tokenizers import NUM_SPECIAL_TOKENS
from gpt1_jax.errors import UserError
from gpt1_jax.formats import CORPUS

SHARD_TOKENS = 1 << 26
CHECK_SECONDS = 5.0  # how long opening a corpus waits for its checksums
_RECORD_FILE = "corpus.json"


class DamagedCorpus(UserError):
    """A file of a prepared corpus is not as it was written.

    Args:
      path: the damaged file.
      how: what is wrong with it.
    """

    def __init__(self, path: Path, how: str):
        self.problem = f"{path} {how}"
        super().__init__(
            f"{self.problem}: the prepared corpus is damaged. Remove {path.parent}, "
            "and the next run makes it again."
        )


@dataclasses.dataclass(frozen=True)
class SplitCounts:
    """The counts of one split of a prepared corpus."""

    documents: int
    tokens: int
    words: int  # separated by white space, before tokenisation
    bytes: int  # of cleaned UTF-8 text
    shards: tuple[int, ...]  # tokens in each shard


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
      digest: the content digest of its tokens.
      documents: the content digests of its documents by name.
      document_tokens: how many tokens each training document became, by name, in the
        order of the split, whose end may have been held out.
      verification: compares its shards with their checksums.
    """

    directory: Path
    tokenizer_digest: str
    dtype: str
    train: SplitCounts
    valid: SplitCounts
    warnings: tuple[str, ...]
    digest: str = dataclasses.field(compare=False)
    documents: Mapping[str, str] = dataclasses.field(compare=False, repr=False)
    document_tokens: Mapping[str, int] = dataclasses.field(compare=False, repr=False)
    verification: "Verification" = dataclasses.field(compare=False, repr=False)


def open_corpus(directory: Path) -> Corpus:
    """Opens a prepared corpus and checks it.

    Sizes are checked first; then up to eight threads compare the shards with their
    checksums. Opening waits at most 5 seconds for them, enough for a few gigabytes. The
    rest of a larger corpus is checked while training runs, and once damage is found,
    every read raises.

    Args:
      directory: the corpus's folder.

    Raises:
      DamagedCorpus: naming the file that is not as it was written.
      UserError: if the corpus is of another format.
    """
    record = _read_record(directory)
    try:
        checksums = record["checksums"]
        train, valid = (
            SplitCounts(**{**record[name], "shards": tuple(record[name]["shards"])})
            for name in ("train", "valid")
        )
        itemsize = np.dtype(record["dtype"]).itemsize
        for name, counts in (("train", train), ("valid", valid)):
            for index, tokens in enumerate(counts.shards):
                _check_size(shard_path(directory, name, index), tokens * itemsize)
        corpus = Corpus(
            directory,
            record["tokenizer_digest"],
            record["dtype"],
            train,
            valid,
            warnings=tuple(record["warnings"]),
            digest=json_digest(checksums),
            documents=record["digests"],
            document_tokens=record["document_tokens"],
            verification=Verification({directory / n: c for n, c in checksums.items()}),
        )
    except (KeyError, TypeError, AttributeError) as error:
        path = directory / _RECORD_FILE
        raise DamagedCorpus(path, f"lacks what was written ({error})") from error
    corpus.verification.wait(CHECK_SECONDS)
    return corpus


def write_record(
    directory: Path,
    tokenizer_digest: str,
    dtype: np.dtype,
    train: SplitCounts,
    valid: SplitCounts,
    digests: Mapping[str, str],
    document_tokens: Mapping[str, int],
    warnings: Sequence[str],
) -> None:
    """Writes `corpus.json`, with the checksums of the shards and of itself.

    Args:
      directory: the folder of the shards.
      tokenizer_digest: the content digest of the tokenizer.
      dtype: dtype of the token ids.
      train: counts of the training split.
      valid: counts of the validation split.
      digests: the documents' content digests by name.
      document_tokens: as in `Corpus`.
      warnings: shown whenever the corpus is opened.
    """
    record = {
        **CORPUS.stamp(),
        "tokenizer_digest": tokenizer_digest,
        "dtype": dtype.str,
        "train": dataclasses.asdict(train),
        "valid": dataclasses.asdict(valid),
        "digests": dict(digests),
        "document_tokens": dict(document_tokens),
        "warnings": list(warnings),
        "checksums": {p.name: sha256(p) for p in find_files(directory, "*.bin")},
    }
    write_json(directory / _RECORD_FILE, {**record, "sha256": json_digest(record)})


def _read_record(directory: Path) -> dict[str, Any]:
    path = directory / _RECORD_FILE
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DamagedCorpus(path, "is missing") from error
    except (ValueError, RecursionError) as error:
        raise DamagedCorpus(path, f"cannot be read ({error})") from error
    if not isinstance(record, dict):
        raise DamagedCorpus(path, "is not a JSON object")
    if record.pop("sha256", None) != json_digest(record):
        raise DamagedCorpus(path, "differs from its checksum")
    CORPUS.check(record, directory)
    return record


def _check_size(path: Path, wanted: int) -> None:
    found = path.stat().st_size if path.exists() else 0
    if found != wanted:
        raise DamagedCorpus(path, f"holds {found} bytes, not {wanted}")


class Verification:
    """Compares files with their SHA-256 on background threads."""

    def __init__(self, checksums: Mapping[Path, str]):
        self._left = collections.deque(checksums.items())
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
                path, checksum = self._left.popleft()
            except IndexError:
                return
            try:
                if sha256(path) != checksum:
                    self._damage = DamagedCorpus(path, "differs from its checksum")
            except OSError as error:
                self._damage = DamagedCorpus(path, f"cannot be read ({error.strerror})")


def shard_path(directory: Path, split: str, index: int) -> Path:
    """The file of one shard."""
    return directory / f"{split}-{index:05d}.bin"


def token_dtype(vocab_size: int) -> np.dtype:
    """The smallest dtype for a vocabulary and the special tokens of fine-tuning."""
    return np.dtype("<u4" if vocab_size + NUM_SPECIAL_TOKENS > 2**16 else "<u2")


class ShardWriter:
    """Appends token ids to numbered shards of at most `SHARD_TOKENS`."""

    def __init__(self, directory: Path, split: str, dtype: np.dtype):
        self._directory, self._split, self._dtype = directory, split, dtype
        self._shards: list[int] = []
        self._words = self._bytes = 0

    def add(self, ids: np.ndarray, words: int, num_bytes: int) -> None:
        """Appends the ids of some text and counts its words and UTF-8 bytes."""
        ids = ids.astype(self._dtype)
        while len(ids):
            if not self._shards or self._shards[-1] == SHARD_TOKENS:
                self._shards.append(0)
            part = ids[: SHARD_TOKENS - self._shards[-1]]
            path = shard_path(self._directory, self._split, len(self._shards) - 1)
            with append_to(path) as file:
                file.write(part.tobytes())
            self._shards[-1] += len(part)
            ids = ids[len(part) :]
        self._words += words
        self._bytes += num_bytes

    def counts(self, documents: int) -> SplitCounts:
        """The counts of what has been written, given the number of documents."""
        return SplitCounts(
            documents, sum(self._shards), self._words, self._bytes, tuple(self._shards)
        )


def cut_validation(
    directory: Path, train: SplitCounts, dtype: np.dtype, fraction: float
) -> tuple[SplitCounts, SplitCounts]:
    """Moves the last `fraction` of the training tokens to validation.

    Words and bytes are divided in proportion to the tokens.

    Returns:
      The counts of both splits.

    Raises:
      UserError: if the text holds fewer than two tokens.
    """
    if train.tokens < 2:
        raise UserError(
            f"The text holds {train.tokens} tokens; that is too few to train on."
        )
    cut = min(max(1, round(fraction * train.tokens)), train.tokens - 1)
    share = cut / train.tokens
    words, num_bytes = round(train.words * share), round(train.bytes * share)
    writer, shards = ShardWriter(directory, "valid", dtype), []
    left = train.tokens - cut
    for index, tokens in enumerate(train.shards):
        kept = min(tokens, left)
        left -= kept
        path = shard_path(directory, "train", index)
        if kept < tokens:
            writer.add(np.fromfile(path, dtype, offset=kept * dtype.itemsize), 0, 0)
            os.truncate(path, kept * dtype.itemsize)
        if kept:
            shards.append(kept)
        else:
            path.unlink()
    writer.add(np.zeros(0, dtype), words, num_bytes)
    kept_counts = SplitCounts(
        train.documents,
        train.tokens - cut,
        train.words - words,
        train.bytes - num_bytes,
        tuple(shards),
    )
    return kept_counts, writer.counts(documents=1)


class TokenReader:
    """Random access to the tokens of one split, without holding them in memory.

    Args:
      corpus: the corpus.
      split: "train" or "valid".
    """

    def __init__(self, corpus: Corpus, split: str):
        counts: SplitCounts = getattr(corpus, split)
        self._dtype, self._verification = np.dtype(corpus.dtype), corpus.verification
        self._files = [
            os.open(shard_path(corpus.directory, split, index), os.O_RDONLY)
            for index in range(len(counts.shards))
        ]
        self._starts = np.cumsum([0, *counts.shards])  # first token of each shard

    def __len__(self) -> int:
        return int(self._starts[-1])

    def read(self, start: int, length: int) -> np.ndarray:
        """[length] tokens from position `start`; fewer at the end.

        Raises:
          DamagedCorpus: once a shard is known to differ from its checksum.
        """
        self._verification.check()
        parts = []
        end = min(start + length, len(self))
        while start < end:
            shard = int(np.searchsorted(self._starts, start, side="right")) - 1
            stop = min(end, int(self._starts[shard + 1]))
            size = self._dtype.itemsize
            offset = (start - int(self._starts[shard])) * size
            data = os.pread(self._files[shard], (stop - start) * size, offset)
            parts.append(np.frombuffer(data, self._dtype))
            start = stop
        return np.concatenate(parts) if parts else np.zeros(0, self._dtype)

    # At interpreter shutdown the module `os` may be gone before the reader.
    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        for file in getattr(self, "_files", ()):
            close(file)
