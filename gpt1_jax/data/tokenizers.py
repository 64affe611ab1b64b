"""The interface of every tokenizer, and how one is saved and loaded.

`sentencepiece`, a byte-pair encoding trained on the corpus, is the default; `gpt1` is
the released one, `huggingface` any of the `tokenizers` library. The first two end words
with a marker, keep the newline as a token of its own and lower-case text by default.

Text is a sequence of lines: the ids of a text are those of its lines joined by the
newline id, so a document may be encoded in pieces cut at line ends.
"""

import abc
import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from etils import epath

from gpt1_jax.data.files import create, sha256, whole_folder, write_json
from gpt1_jax.data.text import LFS_POINTER, refuse_lfs_pointer
from gpt1_jax.errors import UserError, find_named
from gpt1_jax.formats import FORMAT, TOKENIZER, VERSION

NEWLINE = "\n"
NUM_SPECIAL_TOKENS = 3
# Tokens that end a document, in order of choice.
DOCUMENT_ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[EOS]", "[SEP]")


class SpecialTokens(NamedTuple):
    """Ids of the tokens that fine-tuning adds after the vocabulary."""

    start: int
    delimiter: int
    extract: int


def special_tokens(vocab_size: int) -> SpecialTokens:
    """The special tokens after a tokenizer's `vocab_size` entries: 40478 to 40480."""
    return SpecialTokens(vocab_size, vocab_size + 1, vocab_size + 2)


class Tokenizer(abc.ABC):
    """Text to ids and back; `len(ids)` never depends on how text was cut at lines."""

    kind: str
    vocab_size: int
    newline_id: int
    lowercase: bool = True  # whether text loses its capitals
    marks_word_ends: bool = True  # so words have the same ids wherever they stand
    digest: str  # content digest of the mapping from text to ids
    seconds_to_load: float = 0.5  # roughly, in a new process

    @abc.abstractmethod
    def encode(self, text: str) -> list[int]:
        """The ids of a text; what cannot be spelled becomes the unknown token."""

    @abc.abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, with the tokenizer's own spacing and case."""

    def decode_text(self, ids: Sequence[int]) -> str:
        """The text of ids, a newline in place of each token that ends a document."""
        text = self.decode(ids)
        for end in DOCUMENT_ENDS:
            text = text.replace(end, NEWLINE)
        return text

    def lines(self, ids: Sequence[int]) -> list[list[int]]:
        """The ids of each line, without the newlines between them."""
        lines: list[list[int]] = [[]]
        for token in ids:
            if token == self.newline_id:
                lines.append([])
            else:
                lines[-1].append(int(token))
        return lines

    def cased(self, text: str) -> str:
        """The text, in lower case if the tokenizer loses capitals."""
        return text.lower() if self.lowercase else text

    @abc.abstractmethod
    def _contents(self) -> dict[str, bytes]:
        """The files of a saved tokenizer, by name."""

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Writes the tokenizer and its checksums to a new or empty folder."""
        files = self._contents()
        description = {
            **TOKENIZER.stamp(),
            "kind": self.kind,
            "vocab_size": self.vocab_size,
            "content_digest": self.digest,
            "files": {n: hashlib.sha256(c).hexdigest() for n, c in files.items()},
        }
        with whole_folder(directory) as folder:
            for name, content in files.items():
                create(folder / name, content)
            write_json(folder / _DESCRIPTION_FILE, description)


_DESCRIPTION_FILE = "tokenizer.json"
_DESCRIPTION_KINDS = {  # of each value
    FORMAT: int,
    VERSION: str,
    "kind": str,
    "vocab_size": int,
    "content_digest": str,
    "files": dict,
}
_KINDS = {  # modules and classes, imported on demand
    "sentencepiece": "sentencepiece_tokenizer:SentencePieceTokenizer",
    "gpt1": "gpt1_tokenizer:GPT1Tokenizer",
    "huggingface": "other_tokenizers:HuggingFaceTokenizer",
}


def load_tokenizer(place: str | os.PathLike[str]) -> Tokenizer:
    """Loads a saved tokenizer, whose files are compared with their checksums.

    Args:
      place: its folder; or a file or folder that `other_tokenizers.find` knows.

    Raises:
      FileNotFoundError: if the folder or one of its files is missing.
      ValueError: if it is damaged, of another format or of no known kind.
    """
    folder = epath.Path(place)
    if not folder.exists():
        raise FileNotFoundError(f"There is no tokenizer folder or file {folder}.")
    refuse_lfs_pointers(folder)
    description = _description(folder)
    kind, found = description.get("kind", ""), folder
    if not kind:
        kind, found = find_named(
            "gpt1_jax.data.other_tokenizers:find", str(folder), "name a saved tokenizer"
        )(folder)
    for name, checksum in description.get("files", {}).items():
        if not (folder / name).exists():
            raise _damaged(folder, f"lacks {name}")
        if sha256(folder / name) != checksum:
            raise _damaged(folder, f"holds a {name} that differs from its checksum")
    cls = find_named(f"gpt1_jax.data.{_KINDS[kind]}", str(folder))
    try:
        tokenizer: Tokenizer = cls.load(found)
    except (OSError, ImportError, KeyboardInterrupt, SystemExit):
        raise
    # Three libraries, each with errors of its own; a panic in Rust is no Exception.
    except BaseException as error:
        raise UserError(
            f"The tokenizer in {folder} cannot be loaded: {error}"
        ) from error
    if description.get("vocab_size", tokenizer.vocab_size) != tokenizer.vocab_size:
        raise _damaged(folder, "holds a tokenizer of another vocabulary size")
    if description.get("content_digest", tokenizer.digest) != tokenizer.digest:
        raise _damaged(folder, "holds a tokenizer of another content digest")
    return tokenizer


_FILES = re.compile(  # of tokenizers, by whatever program
    r".*\.model|tokenizer\.json|huggingface\.json|vocab\.json|merges\.txt|"
    r"encoder_bpe_40000\.json|vocab_40000\.bpe"
)


def refuse_lfs_pointers(place: epath.Path) -> None:
    """Refuses a tokenizer of which a file is a Git LFS pointer.

    Args:
      place: a file, or a folder that may hold other things.

    Raises:
      UserError: naming the file.
    """
    files = [place]
    if place.is_dir():
        files = [each for each in place.iterdir() if _FILES.fullmatch(each.name)]
    for path in files:
        with path.open("rb") as file:
            refuse_lfs_pointer(file.read(len(LFS_POINTER)), str(path))


def _description(directory: epath.Path) -> Mapping[str, Any]:
    """What `Tokenizer.save` wrote; empty for a file or folder of another program."""
    path = directory / _DESCRIPTION_FILE
    if not path.exists():
        return {}
    try:
        description = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        problem = f"holds a {path.name} that cannot be read: {error}"
        raise _damaged(directory, problem) from error
    changed = _damaged(directory, f"holds a {path.name} that has been changed")
    if not isinstance(description, dict):
        raise changed
    if isinstance(description.get("model"), dict):  # of the `tokenizers` library
        return {}
    TOKENIZER.check(description, directory)
    if {key: type(value) for key, value in description.items()} != _DESCRIPTION_KINDS:
        raise changed
    if description["kind"] not in _KINDS:
        raise UserError(
            f"{path} names the tokenizer kind {description['kind']!r}; known are "
            f"{', '.join(_KINDS)}."
        )
    return description


def _damaged(directory: epath.Path, how: str) -> UserError:
    return UserError(
        f"The tokenizer in {directory} is damaged: the folder {how}. Put back a sound "
        "copy of it."
    )


def texts_digest(*parts: str) -> str:
    """The content digest of texts."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
