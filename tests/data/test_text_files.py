"""Files are opened and unpacked by what they hold, and read line by line."""

import io
import sys

import numpy as np
import pytest
from compressed import COMPRESS

from gpt1_jax.data import text_files
from gpt1_jax.data.text_files import (
    open_file,
    read_lines,
    read_pieces,
    read_plain_text,
    split_lines,
)
from gpt1_jax.errors import MissingPackage, UserError

backports = pytest.importorskip("backports")
zstd = pytest.importorskip("backports.zstd")

TEXT = "One naïve text.\nTwo\u2028 lines.\n" * 100


@pytest.mark.parametrize("compress", COMPRESS.values(), ids=COMPRESS)
def test_a_compressed_file_is_known_by_its_content(write, standard_input, compress):
    for name in ("a.txt.gz", "a"):
        path = write(name, compress(TEXT.encode()))
        assert "".join(read_plain_text(path)) == TEXT
    standard_input(compress(TEXT.encode()), at_once=16)
    with open_file("-", or_standard_input=True) as file:
        assert file.read().decode() == TEXT


def test_a_git_lfs_pointer_is_called_that(write, lfs_pointer):
    with pytest.raises(UserError, match=r"a\.txt is a Git LFS pointer, .*pull"):
        list(read_plain_text(write("a.txt", lfs_pointer)))


def test_frames_that_follow_each_other_are_one_text(write):
    skipped = b"P*M\x18\4\0\0\0size"  # as pzstd writes
    frames = zstd.compress(b"one ") + zstd.compress(b"two\n")
    assert "".join(read_plain_text(write("a", skipped + frames))) == "one two\n"


def test_the_longest_windows_of_zstd_are_read(write):
    """As of `zstd --long=31`."""
    parameter = zstd.CompressionParameter
    options = {parameter.window_log: 31, parameter.enable_long_distance_matching: 1}
    compressor = zstd.ZstdCompressor(options=options)
    data = compressor.compress(b"one\n" * 1000) + compressor.flush()
    assert "".join(read_plain_text(write("a", data))) == "one\n" * 1000


LONG = b"abcdefgh" * (1 << 12)


@pytest.mark.parametrize("compression", [".gz", ".bz2", ".xz", ".zst"])
def test_a_damaged_compressed_file_is_called_that(write, compression):
    data = COMPRESS[compression](LONG)
    for damaged in (data[:-9], data[:14] + b"\xaa" * 9 + data[23:]):
        with pytest.raises(UserError, match=r"a\.txt is damaged or cut short as a co"):
            list(read_plain_text(write("a.txt", damaged)))


def test_without_its_library_zstd_is_refused_by_content(write, monkeypatch):
    path = write("a.txt", zstd.compress(b"one\n"))
    monkeypatch.setitem(sys.modules, "backports.zstd", None)
    monkeypatch.delattr(backports, "zstd", raising=False)
    message = r"a\.txt, compressed by zstd, needs .*\[text\]', or unpack it"
    with pytest.raises(MissingPackage, match=message):
        list(read_plain_text(path))


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no\.txt cannot be read \(No such"):
        list(read_plain_text(tmp_path / "no.txt"))
    with (
        pytest.raises(FileNotFoundError, match="or - for standard input"),
        open_file(tmp_path, or_standard_input=True),
    ):
        pass


def test_three_line_ends_and_no_other_break(write):
    text = "one\r\n\rtwo\u2028still\x0btwo\n\n\r\nlast"
    lines = ["one\r\n", "\r", "two\u2028still\x0btwo\n", "\n", "\r\n", "last"]
    assert list(split_lines(text)) == lines
    assert list(split_lines("")) == []
    data = b"\xef\xbb\xbf" + text.encode()
    assert list(read_lines(io.BytesIO(data), "a")) == lines
    plain = "one\n\ntwo\u2028still\x0btwo\n\n\nlast"
    assert "".join(read_plain_text(write("a", data))) == plain


@pytest.mark.parametrize("size", [1, 3])
def test_lines_and_characters_may_cross_pieces(monkeypatch, size):
    monkeypatch.setattr(text_files, "_PIECE_BYTES", size)
    text = "日本 naïve\r\n" * 3 + "end"
    assert list(read_lines(io.BytesIO(text.encode()), "a")) == text.splitlines(True)


def test_a_line_longer_than_any_book_is_named(monkeypatch):
    monkeypatch.setattr(text_files, "LONGEST_LINE", 1 << 14)
    monkeypatch.setattr(text_files, "_PIECE_BYTES", 1 << 12)
    with pytest.raises(UserError, match=r"^a:2: the line has more than 16,384 char"):
        list(read_lines(io.BytesIO(b"one\n" + LONG), "a"))


TOKENS = np.random.default_rng(0).geometric(0.002, 2000)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"one\ncaf\xe9 noir\n", "^a:2: byte 0xe9 is not UTF-8 text.*iconv -f windows"),
        (b"caf\xc3", "^a:1: byte 0xc3 is not UTF-8.* or mend that place"),
        (b"\xef\xbb\xbfone\rtwo\rcaf\xe9\rfour", "^a:3: byte 0xe9 is not UTF-8"),
        ("fox".encode("utf-16"), "^a is UTF-16 text, not UTF-8.*iconv"),
        ("fox".encode("utf-16-be"), "^a holds binary data.* or UTF-16"),
        (TOKENS.astype("<u2").tobytes(), "^a holds binary data, such as the numbers"),
        (b"%PDF-1.7\n", "^a is HTML or another format, not plain text. Save"),
        (b"\xef\xbb\xbf<?xml version='1.0'?>", "^a is HTML or another format"),
        (b'\n[\n {"text": "a"}]', r"^a is JSON, not plain text.*\.jsonl or \.json"),
        (b'{"text": "a"}\n', "^a is JSON, not plain text"),
    ],
)
def test_a_file_that_is_not_plain_text_is_refused_in_one_line(data, message):
    with pytest.raises(UserError, match=message) as raised:
        list(read_pieces(io.BytesIO(data), "a"))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "text",
    [
        *("[Illustration]\n\nCHAPTER I.\n", "[1]\n[2]\n", '["Well," said she]\n'),
        *('{"Well," said she}\n', '{"Well,"\nsaid: she}\n', '"Hush," he said.'),
        *("<i>One</i>", "", "\x1b[31mred\n"),
    ],
)
def test_prose_may_begin_with_a_bracket_or_a_quotation_mark(text):
    assert "".join(read_pieces(io.BytesIO(text.encode()), "a")) == text
