"""Files compressed by gzip, bzip2, xz or zstd, read as what they hold."""

import bz2
import gzip
import lzma
import zlib
from typing import Any, BinaryIO

from gpt1_jax.data.text import COMPRESSED, unpacked_name
from gpt1_jax.errors import UserError, from_extra

_READERS: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
# A frame may hold 2**15 times as many bytes, which are then decompressed at once.
_INPUT_BYTES = 1 << 12
_LARGEST_WINDOW = 1 << 31  # bytes; of `zstd --long=31`, its longest


class Unpacked:
    """The content of a compressed file, decompressed as it is read.

    Args:
      file: the open file, at its beginning.
      name: its name, for messages.

    Raises:
      MissingPackage: if the file is compressed by zstd and zstandard is not installed.
    """

    def __init__(self, file: BinaryIO, name: str):
        head = file.read(8)
        file.seek(0)
        self._name = name
        how = next(end for begin, end in COMPRESSED.items() if head.startswith(begin))
        self._how = how.removeprefix(".")
        self._stream = _Zstd(file, name) if how == ".zst" else _READERS[how](file)

    @staticmethod
    def check(name: str) -> None:
        """Refuses a file whose name asks for what cannot be read.

        Raises:
          MissingPackage: as for the file itself.
          UserError: if it is of Parquet, whose parts are read in any order.
        """
        if unpacked_name(name).endswith(".parquet"):
            raise UserError(f"{name} is a compressed file of Parquet; unpack it first.")
        if name.lower().endswith(".zst"):
            _import_zstandard(name)

    def read(self, size: int) -> bytes:
        """The next bytes, about `size` of them; none at the end.

        Raises:
          UserError: if the file is damaged or cut short.
        """
        try:
            return self._stream.read(size)
        except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
            if getattr(error, "errno", None):  # not what bz2 and gzip raise
                raise
            raise UserError(
                f"{self._name} is damaged or cut short as a .{self._how} file "
                f"({error}); fetch or write it again."
            ) from error


def _import_zstandard(needed_by: str) -> Any:
    with from_extra("text", f"{needed_by}, compressed by zstd,", "unpack it"):
        import zstandard

    return zstandard


class _Zstd:
    """The frames of a .zst file; zstandard's own reader ignores that one is cut."""

    def __init__(self, file: BinaryIO, name: str):
        zstandard = _import_zstandard(name)
        self._error = zstandard.ZstdError
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=_LARGEST_WINDOW)
        self._file, self._left = file, b""
        self._frame: Any = None

    def read(self, size: int) -> bytes:
        parts, found = [], 0
        while found < size and (data := self._left or self._file.read(_INPUT_BYTES)):
            self._frame = self._frame or self._decompressor.decompressobj()
            try:
                parts.append(self._frame.decompress(data))
            except self._error as error:
                raise EOFError(str(error)) from error
            found += len(parts[-1])
            self._left = self._frame.unused_data
            if self._frame.eof:
                self._frame = None
        if self._frame and not found:
            raise EOFError("it ends within a frame")
        return b"".join(parts)
