"""Compressed files: for each suffix, the function that compresses bytes."""

import bz2
import gzip
import lzma

import pytest

zstd = pytest.importorskip("backports.zstd")

COMPRESS = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstd.compress,
}
