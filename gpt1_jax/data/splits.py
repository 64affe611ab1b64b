"""Which documents are held out for validation."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from gpt1_jax.data.documents import Document

Documents = list[Document]


def hold_out(
    documents: Documents, fraction: float, rule: str
) -> tuple[Documents, Documents]:
    """Divides documents into those for training and those for validation.

    The order in which documents are considered depends on their names alone, so a
    corpus that grows by a document keeps most of its split.

    Args:
      documents: all of them.
      fraction: the share to hold out.
      rule: "size" for that share of the bytes, "documents" for that share of the
        documents, whatever their sizes.

    Returns:
      Training and validation documents in the order given. There are none for
      validation if no whole documents make up between half and twice the share: the
      caller then cuts off the end of the text once it is tokenised.
    """
    if len(documents) == 1:
        return documents, []
    order = sorted(documents, key=_position)
    if rule == "documents":
        number = min(max(1, round(fraction * len(order))), len(order) - 1)
        chosen = {document.name for document in order[:number]}
    else:
        chosen = _by_size(order, fraction)
    return (
        [d for d in documents if d.name not in chosen],
        [d for d in documents if d.name in chosen],
    )


def _position(document: Document) -> str:
    return hashlib.sha256(Path(document.name).name.encode()).hexdigest()


def _by_size(order: Documents, fraction: float) -> set[str]:
    """Names of documents that together hold about `fraction` of the bytes."""
    wanted = fraction * sum(document.num_bytes for document in order)
    chosen: set[str] = set()
    held = 0
    for document in order:
        closer = abs(wanted - held - document.num_bytes) < abs(wanted - held)
        if closer and len(chosen) < len(order) - 1:
            held += document.num_bytes
            chosen.add(document.name)
    return chosen if is_near(held, wanted) else set()


def is_near(found: float, wanted: float) -> bool:
    """Whether a share is between half and twice what was asked for."""
    return wanted / 2 <= found <= wanted * 2


def shared_texts(
    train: Sequence[Document], valid: Sequence[Document], digests: dict[str, str]
) -> list[tuple[str, str]]:
    """Pairs of a validation and a training document with the same text, by name.

    Args:
      train: documents for training.
      valid: documents for validation.
      digests: text digests by document name, as `check_readable` returns them.
    """
    trained = {digests[d.name]: d.name for d in train if d.name in digests}
    return [
        (document.name, trained[digests[document.name]])
        for document in valid
        if digests.get(document.name) in trained
    ]
