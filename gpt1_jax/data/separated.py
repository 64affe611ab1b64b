"""Files that hold many documents, with a mark such as <|endoftext|> between them."""

import dataclasses
from collections.abc import Iterator

from gpt1_jax.config.sections import DataConfig
from gpt1_jax.data.documents import Document
from gpt1_jax.errors import UserError


def separate(documents: list[Document], config: DataConfig) -> list[Document]:
    """The files without the marks, each of which becomes a line end.

    A file stays one named `Document`, so that millions of them are never listed; its
    documents are counted once it is read.

    Raises:
      UserError: when a file is read that does not hold the mark.
    """
    return [_part(document, config.document_separator) for document in documents]


def _part(document: Document, mark: str) -> Document:
    part = dataclasses.replace(document, stamp=f"{document.stamp}-{mark}")

    def chunks() -> Iterator[str]:
        count, rest = 0, ""
        for chunk in document.chunks():
            *whole, rest = (rest + chunk).split(mark)
            count += len(whole)
            ready = len(rest) - len(mark)  # the end may be the beginning of a mark
            yield "\n".join((*whole, rest[: max(ready, 0)]))
            rest = rest[max(ready, 0) :]
        if not count:
            raise UserError(
                f"config.data.document_separator={mark!r:.60} is not in "
                f"{document.name}; look at what stands between its documents, or leave "
                "it empty."
            )
        yield rest
        part.count = count + bool(rest.strip())

    part.chunks = chunks
    return part
