"""Files that hold many documents, with a mark such as <|endoftext|> between them."""

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence

from gpt1_jax.config.sections import DataConfig
from gpt1_jax.data.named_texts import BLOCK_CHARS, HeldOut, NamedText
from gpt1_jax.errors import UserError

_HEAD = 1 << 12  # characters that decide whether a document is held out


def separate(
    train: Sequence[NamedText], valid: Sequence[NamedText], config: DataConfig
) -> tuple[list[NamedText], list[NamedText]]:
    """The text between the marks in files, and what of it is held out.

    Each file remains one `NamedText`, so that its documents, perhaps millions, are
    never listed. Their own text decides which are held out, so equal documents stay
    together, whatever their neighbours and their file.

    Args:
      train: the files for training.
      valid: those for validation; if none, `config.valid_fraction` of the documents in
        `train` are held out.
      config: the section that names the mark.

    Raises:
      UserError: if the mark is in no file, once the last of them is read.
    """
    mark, files = config.document_separator, [*train, *valid]
    fraction = 0.0 if valid else config.valid_fraction
    holds: dict[str, bool] = {}  # whether a file that was read holds the mark

    def note(name: str, found: bool) -> None:
        holds[name] = found
        if len(holds) == len(files) and not any(holds.values()):
            raise UserError(
                f"config.data.document_separator={mark!r:.60} is in none of the files, "
                f"of which the first is {files[0].name}; look at what stands between "
                "their documents, or leave it empty."
            )

    return (
        [_separated(each, mark, fraction, note) for each in train],
        [_separated(each, mark, fraction, note) for each in valid],
    )


def _separated(
    file: NamedText, mark: str, fraction: float, note: Callable[[str, bool], None]
) -> NamedText:
    """The documents of a file, a fraction of which are `HeldOut`.

    Args:
      file: its text.
      mark: what stands between its documents.
      fraction: the share to hold out.
      note: told its name and whether it holds the mark, once it is read.
    """
    made = dataclasses.replace(
        file,
        stamp=f"{file.stamp}-{mark}-{fraction}",
        may_be_blank=True,
        divides=fraction > 0,
    )

    def chunks() -> Iterator[str]:
        numbers, marks, is_held, begins = [0, 0], -1, False, True
        kept, held, size = list[str](), list[str](), 0
        for piece, ends in _pieces(file.chunks(), mark):
            if begins:
                head = piece[:_HEAD].strip()
                is_held = _is_held_out(head, fraction)
                numbers[is_held] += bool(head)
            (held if is_held else kept).append(piece + "\n" * ends)
            size += len(piece)
            if size > BLOCK_CHARS:
                yield "".join(kept)
                yield HeldOut("".join(held))
                kept, held, size = [], [], 0
            marks += ends
            begins = ends
        yield "".join(kept)
        yield HeldOut("".join(held))
        note(file.name, marks > 0)
        made.count, made.held_out = numbers

    made.chunks = chunks
    return made


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
