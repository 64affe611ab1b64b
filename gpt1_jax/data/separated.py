"""Files that hold many documents, with a mark such as <|endoftext|> between them."""

import dataclasses
import hashlib
from collections.abc import Iterable, Iterator, Sequence

from gpt1_jax.config.sections import DataConfig
from gpt1_jax.data.documents import BLOCK_CHARS, Document
from gpt1_jax.errors import UserError

_HEAD = 1 << 12  # characters that decide whether a document is held out


def separate(
    train: Sequence[Document], valid: Sequence[Document], config: DataConfig
) -> tuple[list[Document], list[Document]]:
    """The text between the marks in files, and what of it is held out.

    A file stays one named `Document`, or two where a part of its documents is held out,
    so that millions of them are never listed. Which are held out, their text decides:
    equal documents stay together, whatever stands beside them and in whatever file.

    Args:
      train: the files for training.
      valid: those for validation; if none, `config.valid_fraction` of the documents in
        `train` are held out.
      config: the section that names the mark.

    Raises:
      UserError: if the mark is in no file.
    """
    mark = config.document_separator
    files = [*train, *valid]
    if not any(mark in text for each in files for text in _overlapping(each, mark)):
        raise UserError(
            f"config.data.document_separator={mark!r:.60} is in none of the files, of "
            f"which the first is {files[0].name}; look at what stands between their "
            "documents, or leave it empty."
        )
    if valid:
        return [_part(d, mark) for d in train], [_part(d, mark) for d in valid]
    fraction = config.valid_fraction
    return (
        [_part(each, mark, fraction, is_held_out=False) for each in train],
        [_part(each, mark, fraction, is_held_out=True) for each in train],
    )


def _overlapping(document: Document, mark: str) -> Iterator[str]:
    """The text in pieces, each with the end of the one before: a mark is in one."""
    end = ""
    for chunk in document.chunks():
        yield end + chunk
        end = (end + chunk)[-len(mark) :]


def _part(
    document: Document, mark: str, fraction: float = 0.0, is_held_out: bool = False
) -> Document:
    """The documents of a file but for a fraction of them, or that fraction."""
    share = fraction if is_held_out else 1 - fraction
    part = dataclasses.replace(
        document,
        name=document.name + " (held out)" * is_held_out,
        stamp=f"{document.stamp}-{mark}-{fraction}",
        num_bytes=round(document.num_bytes * share),
        may_be_blank=True,
    )

    def chunks() -> Iterator[str]:
        count, begins, is_chosen = 0, True, True
        for piece, ends in _pieces(document.chunks(), mark):
            if begins:
                head = piece[:_HEAD].strip()
                is_chosen = _is_held_out(head, fraction) == is_held_out
                count += is_chosen and bool(head)
            if is_chosen:
                yield piece + "\n" * ends
            begins = ends
        part.count = count

    part.chunks = chunks
    return part


def _is_held_out(head: str, fraction: float) -> bool:
    digest = hashlib.blake2b(head.encode(), digest_size=4).digest()
    return int.from_bytes(digest) < fraction * 2**32


def _pieces(chunks: Iterable[str], mark: str) -> Iterator[tuple[str, bool]]:
    """The text between the marks, in pieces, and whether each ends a document."""
    rest = ""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(mark)
        for text in whole:
            yield text, True
        if len(rest) > BLOCK_CHARS:  # its end may be the beginning of a mark
            cut = len(rest) - len(mark)
            yield rest[:cut], False
            rest = rest[cut:]
    yield rest, True
