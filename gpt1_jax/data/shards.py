"""Token shards on disk: what a prepared corpus is, how it is written and read.

A prepared corpus is a folder: `train-00000.bin`, ... and `valid-00000.bin`, ... hold
the token ids of all documents one after another, little-endian uint16 (uint32 for
vocabularies over 65,533), and `corpus.json` counts them.
"""

import dataclasses
import json
import os
from pathlib import Path

import numpy as np

SHARD_TOKENS = 1 << 26
_SPECIAL_TOKENS = 3  # start, delimiter, extract: room for them in the token dtype


@dataclasses.dataclass(frozen=True)
class Split:
    """Counts of one split of a prepared corpus."""

    documents: int
    tokens: int
    words: int  # separated by white space, before tokenisation
    bytes: int  # of cleaned UTF-8 text
    shards: tuple[int, ...]  # tokens in each shard


@dataclasses.dataclass(frozen=True)
class Corpus:
    """A prepared corpus: where it is and how much it holds."""

    directory: Path
    fingerprint: str
    tokenizer_fingerprint: str
    dtype: str
    train: Split
    valid: Split


def load(directory: Path) -> Corpus:
    """Opens a prepared corpus; missing or cut shards are a ValueError."""
    record = json.loads((directory / "corpus.json").read_text())
    splits = {}
    for name in ("train", "valid"):
        values = record.pop(name)
        splits[name] = Split(**{**values, "shards": tuple(values["shards"])})
        for index, tokens in enumerate(splits[name].shards):
            path = shard_path(directory, name, index)
            wanted = tokens * np.dtype(record["dtype"]).itemsize
            found = path.stat().st_size if path.exists() else 0
            if found != wanted:
                raise ValueError(
                    f"{path} holds {found} bytes, not {wanted}: the prepared corpus is "
                    f"damaged. Remove {directory}; it is made again."
                )
    return Corpus(
        directory,
        directory.name,
        **record,
        train=splits["train"],
        valid=splits["valid"],
    )


def shard_path(directory: Path, split: str, index: int) -> Path:
    """The file of one shard."""
    return directory / f"{split}-{index:05d}.bin"


def token_dtype(vocab_size: int) -> np.dtype:
    """The smallest dtype for a vocabulary and the special tokens of fine-tuning."""
    return np.dtype("<u4" if vocab_size + _SPECIAL_TOKENS > 2**16 else "<u2")


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
            with path.open("ab") as file:
                file.write(part.tobytes())
            self._shards[-1] += len(part)
            ids = ids[len(part) :]
        self._words += words
        self._bytes += num_bytes

    def close(self, documents: int) -> dict:
        """The counts of the split, as `Split` takes them."""
        return {
            "documents": documents,
            "tokens": sum(self._shards),
            "words": self._words,
            "bytes": self._bytes,
            "shards": self._shards,
        }


def cut_validation(
    directory: Path, record: dict, dtype: np.dtype, fraction: float
) -> None:
    """Moves the last `fraction` of a single document's tokens to validation.

    Its words and bytes are shared out in proportion to the tokens.

    Raises:
      ValueError: if the document holds fewer than two tokens.
    """
    train = record["train"]
    if train["tokens"] < 2:
        raise ValueError(
            f"The text holds {train['tokens']} tokens; that is too few to train on."
        )
    cut = min(max(1, round(fraction * train["tokens"])), train["tokens"] - 1)
    share = cut / train["tokens"]
    words, num_bytes = round(train["words"] * share), round(train["bytes"] * share)
    writer, shards = ShardWriter(directory, "valid", dtype), []
    left = train["tokens"] - cut
    for index, tokens in enumerate(train["shards"]):
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
    record["valid"] = writer.close(documents=1)
    train.update(tokens=train["tokens"] - cut, shards=shards)
    train.update(words=train["words"] - words, bytes=train["bytes"] - num_bytes)


class TokenReader:
    """Random access to the tokens of one split, without holding them in memory."""

    def __init__(self, directory: Path, name: str, split: Split, dtype: str):
        self._dtype = np.dtype(dtype)
        self._files = [
            os.open(shard_path(directory, name, index), os.O_RDONLY)
            for index in range(len(split.shards))
        ]
        self._starts = np.cumsum([0, *split.shards])  # first token of each shard

    def __len__(self) -> int:
        return int(self._starts[-1])

    def read(self, start: int, length: int) -> np.ndarray:
        """[length] tokens from position `start`; fewer at the end."""
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

    def __del__(self) -> None:
        for file in getattr(self, "_files", ()):
            os.close(file)


def open_split(corpus: Corpus, name: str) -> TokenReader:
    """A reader of the "train" or "valid" split."""
    return TokenReader(corpus.directory, name, getattr(corpus, name), corpus.dtype)
