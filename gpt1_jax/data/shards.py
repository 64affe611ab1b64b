"""A prepared corpus on disk: its format, its writer and its reader.

A prepared corpus is a folder: `train.bin` and `valid.bin` hold the token ids of all
documents one after another, little-endian uint16 (uint32 for vocabularies over 65,533),
and `corpus.json` says its format, counts them and holds their checksums.
"""

import dataclasses
import json
import os
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from gpt1_jax.data.files import json_digest, sha256, write_json
from gpt1_jax.data.tokenizers import NUM_SPECIAL_TOKENS
from gpt1_jax.errors import UserError
from gpt1_jax.formats import CORPUS

CHECK_SECONDS = 5.0  # how long opening a corpus waits for its checksums
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
      checksums: the SHA-256 of its files, by name.
      verification: compares the files with them.
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

    Sizes are checked first; then threads compare the files with their checksums.
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
    counts = {name: SplitCounts(**record[name]) for name in ("train", "valid")}
    checksums = {directory / name: each for name, each in record["checksums"].items()}
    for name, split in counts.items():
        file = split_path(directory, name)
        wanted = split.tokens * np.dtype(record["dtype"]).itemsize
        if not file.exists() or file.stat().st_size != wanted:
            raise DamagedCorpus(file, f"does not hold {wanted} bytes")
    verification = Verification(checksums)
    corpus = Corpus(directory, verification=verification, **{**values, **counts})
    corpus.verification.wait(CHECK_SECONDS)
    return corpus


class Verification:
    """Compares files with their SHA-256, each on a thread of its own."""

    def __init__(self, checksums: Mapping[Path, str]):
        self._damage: list[DamagedCorpus] = []
        self._threads = [
            threading.Thread(target=self._compare, args=each, daemon=True)
            for each in checksums.items()
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
        if self._damage:
            raise self._damage[0]

    def _compare(self, path: Path, checksum: str) -> None:
        try:
            if sha256(path) != checksum:
                self._damage.append(DamagedCorpus(path, "differs from its checksum"))
        except OSError as error:
            how = f"cannot be read ({error.strerror})"
            self._damage.append(DamagedCorpus(path, how))


def split_path(directory: Path, split: str) -> Path:
    """The file of one split."""
    return directory / f"{split}-00000.bin"  # as 1.0 named the first of several


def token_dtype(vocab_size: int) -> np.dtype:
    """The smallest dtype for a vocabulary and the special tokens of fine-tuning."""
    return np.dtype("<u4" if vocab_size + NUM_SPECIAL_TOKENS > 2**16 else "<u2")


class CorpusWriter:
    """Writes a prepared corpus: the ids of both splits, then the record."""

    def __init__(self, directory: Path, tokenizer_digest: str, dtype: np.dtype):
        self._directory, self._dtype = directory, dtype
        self._tokenizer_digest = tokenizer_digest
        self.counts = dict.fromkeys(("train", "valid"), SplitCounts(0, 0, 0, 0))
        for name in self.counts:
            split_path(directory, name).touch()

    def add(self, split: str, ids: np.ndarray, words: int, num_bytes: int) -> None:
        """Appends the ids of some text to a split, and counts it."""
        with split_path(self._directory, split).open("ab") as file:
            file.write(ids.astype(self._dtype).data)
        old = self.counts[split]
        self.counts[split] = dataclasses.replace(
            old,
            tokens=old.tokens + len(ids),
            words=old.words + words,
            bytes=old.bytes + num_bytes,
        )

    def hold_out_tail(self, fraction: float) -> None:
        """Moves the last fraction of the training tokens to validation.

        Words and bytes are divided in proportion to the tokens.
        """
        train = self.counts["train"]
        cut = min(max(1, round(fraction * train.tokens)), train.tokens - 1)
        path, size = split_path(self._directory, "train"), self._dtype.itemsize
        share = max(cut, 0) / max(train.tokens, 1)
        words, num_bytes = round(train.words * share), round(train.bytes * share)
        kept = train.tokens - max(cut, 0)
        ids = np.fromfile(path, self._dtype, offset=kept * size)
        self.add("valid", ids, words, num_bytes)
        self.add("train", ids[:0], -words, -num_bytes)
        os.truncate(path, kept * size)
        self.counts["train"] = dataclasses.replace(self.counts["train"], tokens=kept)

    def finish(
        self,
        num_documents: Mapping[str, int],
        documents: Mapping[str, str],
        document_tokens: Mapping[str, int],
        warnings: Sequence[str],
    ) -> None:
        """Writes `corpus.json`, with the checksums of the files and of itself."""
        record = {
            **CORPUS.stamp(),
            "tokenizer_digest": self._tokenizer_digest,
            "dtype": self._dtype.str,
            "documents": dict(documents),
            "document_tokens": dict(document_tokens),
            "warnings": list(warnings),
            "checksums": {
                split_path(self._directory, name).name: sha256(
                    split_path(self._directory, name)
                )
                for name in self.counts
            },
            **{
                name: {**dataclasses.asdict(each), "documents": num_documents[name]}
                for name, each in self.counts.items()
            },
        }
        record["sha256"] = json_digest(record)
        write_json(self._directory / _RECORD_FILE, record)


class TokenReader:
    """Random access to the tokens of one split, without holding them in memory.

    Args:
      corpus: the corpus.
      split: "train" or "valid".
    """

    def __init__(self, corpus: Corpus, split: str):
        self._verification = corpus.verification
        path = split_path(corpus.directory, split)
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
