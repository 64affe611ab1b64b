"""Items that are made once: several passes, a full disk, items that fail."""

import errno
import os

import pytest

from gpt1_jax.errors import UserError
from gpt1_jax.studies import made_once


@pytest.mark.parametrize("held", [1, 1 << 26])
def test_items_are_made_once_and_read_again(held, monkeypatch):
    """From memory or from disk, by several readers at a time."""
    monkeypatch.setattr(made_once, "_HELD_BYTES", held)
    passes = []

    def make():
        passes.append(0)
        for number in range(2500):
            passes[-1] += 1
            yield number, str(number)

    with made_once.MadeOnce(make) as items:
        next(iter(items))  # a pass that is not finished counts for nothing
        assert passes == [1000]
        expected = [(number, str(number)) for number in range(2500)]
        assert list(items) == expected
        assert list(items) == expected
        assert [one == other for one, other in zip(items, items, strict=True)]
        assert passes == [1000, 2500]


def test_a_full_temporary_folder_is_named(monkeypatch):
    def full(part, file):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(made_once.pickle, "dump", full)
    with (
        made_once.MadeOnce(lambda: [1]) as items,
        pytest.raises(OSError, match=r"does not fit .* TMPDIR=DIR: .*tmp"),
    ):
        list(items)


def test_what_cannot_be_made_is_said_each_time():
    def make():
        yield 1
        raise UserError("no more")

    with made_once.MadeOnce(make) as items:
        for _ in range(2):
            with pytest.raises(UserError, match="no more"):
                list(items)
