"""Documents, read block by block so that memory never grows with their size."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from gpt1_jax.errors import UserError

BLOCK_CHARS = 1 << 18


class Block(NamedTuple):
    """A piece of a document."""

    text: str
    ends_line: bool  # whether the next block starts a new line


class Document(NamedTuple):
    """A named text that is read only when its blocks are asked for."""

    name: str
    stamp: str  # changes when the text does: size and time, or versions
    num_bytes: int  # to show progress and to split; for .gz the size on disk
    blocks: Callable[[], Iterator[Block]]
    may_be_blank: bool = False  # dataset rows may; an empty file is a mistake
    older_stamp: str = ""  # what `stamp` was before 24 November 2026, if another


def read_blocks(chunks: Iterable[str]) -> Iterator[Block]:
    """Cuts text into blocks at line ends, or at a space in a very long line."""
    rest = ""
    for chunk in chunks:
        rest += chunk
        start = 0
        while len(rest) - start >= BLOCK_CHARS:
            end = rest.rfind("\n", start, start + BLOCK_CHARS) + 1
            ends_line = end > 0
            if not ends_line:  # before a word, so a line end stays with its last word
                head = rest[start : start + BLOCK_CHARS]
                end = start + (head.rstrip().rfind(" ") + 1 or BLOCK_CHARS - 1)
            yield Block(rest[start:end], ends_line)
            start = end
        rest = rest[start:]
    if rest:
        yield Block(rest, True)


def check_readable(documents: Iterable[Document]) -> dict[str, str]:
    """Reads everything once, so that a bad file is named before long work.

    Args:
      documents: the documents to read.

    Returns:
      The digest of each document's text, by document name; blank ones have none.

    Raises:
      ValueError: naming the first document that cannot be read or holds no text.
    """
    digests = {}
    for document in documents:
        digest, blank = hashlib.sha256(), True
        for block in document.blocks():
            blank = blank and block.text.isspace()
            digest.update(block.text.encode())
        if not blank:
            digests[document.name] = digest.hexdigest()
        elif not document.may_be_blank:
            raise UserError(f"{document.name} holds no text, only white space.")
    return digests
