"""Items made by the first of several passes and read by all, however many there are."""

import contextlib
import itertools
import pickle
import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Generic, TypeVar, cast

_HELD_BYTES, _HELD_ITEMS = 1 << 26, 1000  # in memory; in one write
Item = TypeVar("Item")


class MadeOnce(Generic[Item]):
    """Items that are made once, by the first pass over them, and then read again.

    Up to a size they are held in memory, beyond it in a temporary file. A pass that was
    not finished counts for nothing.

    Args:
      make: makes the items, which `pickle` takes.

    Raises:
      OSError: in the first pass, if the temporary folder is full.
    """

    def __init__(self, make: Callable[[], Iterable[Item]]):
        self._make = make
        self._file: IO[bytes] | None = None

    def __enter__(self) -> "MadeOnce[Item]":
        return self

    def __exit__(self, *error: object) -> None:
        if self._file is not None:
            self._file.close()

    def __iter__(self) -> Iterator[Item]:
        return self._first_pass() if self._file is None else self._read(self._file)

    def _first_pass(self) -> Iterator[Item]:
        items = iter(self._make())
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(tempfile.SpooledTemporaryFile(_HELD_BYTES))
            while part := list(itertools.islice(items, _HELD_ITEMS)):
                try:
                    pickle.dump(part, file)
                except OSError as error:
                    raise OSError(
                        error.errno,
                        f"{error.strerror}: the encoded text does not fit into the "
                        "temporary folder; name a larger one with TMPDIR=DIR",
                        tempfile.gettempdir(),
                    ) from error
                yield from part
            stack.pop_all()
            self._file = cast(IO[bytes], file)

    def _read(self, file: IO[bytes]) -> Iterator[Item]:
        place = 0
        while True:
            file.seek(place)
            try:
                part = pickle.load(file)
            except EOFError:
                return
            place = file.tell()
            yield from part
