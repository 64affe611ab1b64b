"""Documents of text files: which are found, how they are read, what is refused."""

import bz2
import gzip
import json
import lzma
import os
import re
from pathlib import Path

import pytest

from gpt1_jax.data import documents, text_files
from gpt1_jax.data.documents import Document, check_readable

KEY = "config.data.train"


def text_documents(paths: str, key: str = KEY, jsonl_field: str = "text"):
    return text_files.text_documents(paths, key, jsonl_field)


def text_of(document: Document) -> str:
    return "".join(block.text for block in document.blocks())


def names(documents: list[Document]) -> list[str]:
    return [Path(document.name).name for document in documents]


@pytest.fixture
def books(tmp_path) -> Path:
    """A folder with files to find and files to pass over."""
    folder = tmp_path / "books"
    (folder / "more" / "folder.txt").mkdir(parents=True)
    (folder / "b.txt").write_text("book b\n")
    (folder / "a.md").write_text("book a\n")
    (folder / "more" / "c.text").write_text("book c\n")
    (folder / "more" / "d.txt.gz").write_bytes(gzip.compress(b"book d\n"))
    (folder / "cover.jpg").write_bytes(b"\xff\xd8")
    (folder / "notes.rst").write_text("notes\n")
    return folder


def test_text_documents_of_a_folder_are_its_texts_by_path(books):
    documents = text_documents(str(books), KEY)
    assert names(documents) == ["a.md", "b.txt", "c.text", "d.txt.gz"]
    assert [text_of(d) for d in documents] == [f"book {c}\n" for c in "abcd"]


def test_text_documents_can_be_read_again(books):
    (document,) = text_documents(str(books / "b.txt"), KEY)
    assert text_of(document) == text_of(document) == "book b\n"
    assert document.num_bytes == 7


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*.txt", ["b.txt"]),
        ("*.rst", ["notes.rst"]),
        ("?.*", ["a.md", "b.txt"]),
        ("[ab].*", ["a.md", "b.txt"]),
        ("**/*.t*", ["b.txt", "c.text", "d.txt.gz"]),
        ("m*/c.text", ["c.text"]),
        ("more/*", ["c.text", "d.txt.gz"]),
    ],
)
def test_text_documents_of_a_glob(books, monkeypatch, pattern, found):
    assert names(text_documents(f"{books}/{pattern}", KEY)) == found
    monkeypatch.chdir(books)
    assert names(text_documents(pattern, KEY)) == found


def test_text_documents_of_commas_name_each_file_once(books):
    paths = f"{books}/more , {books}/b.txt,{books}/*.txt,, {books}/more/c.text"
    assert names(text_documents(paths, KEY)) == ["b.txt", "c.text", "d.txt.gz"]


def test_text_documents_of_a_home_folder(books, monkeypatch):
    monkeypatch.setenv("HOME", str(books.parent))
    assert names(text_documents("~/books/b.txt,~/books/more/*.text", KEY)) == [
        "b.txt",
        "c.text",
    ]


def test_text_documents_take_a_name_with_brackets_as_it_stands(tmp_path):
    (tmp_path / "book [1999].txt").write_text("text")
    assert names(text_documents(str(tmp_path / "book [1999].txt"), KEY)) == [
        "book [1999].txt"
    ]


@pytest.mark.parametrize("missing", ["nowhere.txt", "nowhere/*.txt", "*.none"])
def test_text_documents_missing_entry_is_named(books, missing):
    with pytest.raises(FileNotFoundError, match=re.escape(missing)) as raised:
        text_documents(f"{books},{books}/{missing}", KEY)
    assert KEY in str(raised.value)


def test_text_documents_folder_without_texts_is_refused(tmp_path):
    (tmp_path / "cover.jpg").write_bytes(b"\xff\xd8")
    with pytest.raises(FileNotFoundError, match=r"\.txt, .*\.gz"):
        text_documents(str(tmp_path), KEY)


def test_text_documents_of_commas_alone_are_refused():
    with pytest.raises(ValueError, match=r"config\.data\.train=' , '"):
        text_documents(" , ", KEY)
    assert text_documents("", "config.data.valid") == []


def test_text_documents_empty_file_is_named(books):
    (books / "empty.txt").touch()
    with pytest.raises(ValueError, match=r"empty\.txt is empty"):
        text_documents(str(books), KEY)


def test_text_document_stamp_changes_with_size_and_time(tmp_path):
    file = tmp_path / "book.txt"

    def stamp(text: str, nanoseconds: int) -> str:
        file.write_text(text)
        os.utime(file, ns=(nanoseconds, nanoseconds))
        return text_documents(str(file), KEY)[0].stamp

    second = 1_700_000_000_000_000_000
    first = stamp("one", second)
    assert stamp("two", second + 1_000_000) != first  # a moment later, same size
    assert stamp("three", second) != first
    assert stamp("six", second) == first  # what a stamp cannot see


def test_text_document_without_byte_order_mark_and_with_any_line_end(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\rthree\n")
    (document,) = text_documents(str(tmp_path), KEY)
    assert text_of(document) == "one\ntwo\nthree\n"


def test_text_document_in_chunks_equals_the_file(tmp_path, monkeypatch):
    """Characters and line ends that straddle the chunks stay whole."""
    monkeypatch.setattr(documents, "BLOCK_CHARS", 7)
    text = "naïve café 日本語\r\n\rx\r\n" * 20
    (tmp_path / "a.txt").write_bytes(text.encode())
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(text.encode()))
    expected = text.replace("\r\n", "\n").replace("\r", "\n")
    assert [text_of(d) for d in text_documents(str(tmp_path), KEY)] == [expected] * 2


@pytest.mark.parametrize("suffix", [".txt", ".txt.gz"])
def test_text_document_not_utf8_is_named_with_the_position(
    tmp_path, monkeypatch, suffix
):
    monkeypatch.setattr(documents, "BLOCK_CHARS", 10)
    data = b"0123456789" * 5 + "café".encode("latin1") + b" and more text"
    file = tmp_path / f"latin{suffix}"
    file.write_bytes(gzip.compress(data) if suffix.endswith("gz") else data)
    (document,) = text_documents(str(file), KEY)
    with pytest.raises(ValueError, match=r"not UTF-8 text: byte 0xe9") as raised:
        text_of(document)
    assert str(file) in str(raised.value)
    assert "position 53" in str(raised.value)


def test_text_document_cut_inside_a_character_is_refused(tmp_path):
    (tmp_path / "cut.txt").write_bytes("日本".encode()[:-1])
    (document,) = text_documents(str(tmp_path), KEY)
    with pytest.raises(ValueError, match=r"cut\.txt is not UTF-8 text: byte 0xe6"):
        text_of(document)


def damaged_gzip(how: str) -> bytes:
    data = gzip.compress(os.urandom(4000).hex().encode(), mtime=0)
    if how == "cut":
        return data[: len(data) // 2]
    if how == "overwritten":
        return data[:10] + b"\xff" * 20 + data[30:]  # no such kind of deflate block
    if how == "wrong checksum":
        return data[:-8] + bytes(4) + data[-4:]
    return b"plain text"


@pytest.mark.parametrize("how", ["cut", "overwritten", "wrong checksum", "plain"])
def test_text_document_damaged_gzip_is_named(tmp_path, how):
    (tmp_path / "book.txt.gz").write_bytes(damaged_gzip(how))
    (document,) = text_documents(str(tmp_path), KEY)
    with pytest.raises(
        ValueError, match=r"book\.txt\.gz is damaged or not a gzip file"
    ):
        text_of(document)


@pytest.mark.parametrize("content", [b" \n\t\r\n  \n", b"\xef\xbb\xbf"])
def test_check_readable_names_a_file_of_white_space(books, content):
    (books / "blank.txt").write_bytes(content)
    with pytest.raises(ValueError, match=r"blank\.txt holds no text"):
        check_readable(text_documents(str(books), KEY))


def test_check_readable_names_an_empty_gzip_file(books):
    (books / "blank.txt.gz").write_bytes(gzip.compress(b""))
    with pytest.raises(ValueError, match=r"blank\.txt\.gz holds no text"):
        check_readable(text_documents(str(books), KEY))


def test_check_readable_reads_to_the_end(books, monkeypatch):
    monkeypatch.setattr(documents, "BLOCK_CHARS", 16)
    (books / "late.txt").write_bytes(b"good text\n" * 100 + b"\xff")
    with pytest.raises(ValueError, match=r"late\.txt is not UTF-8"):
        check_readable(text_documents(str(books), KEY))


def test_check_readable_accepts_text_after_white_space(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "BLOCK_CHARS", 16)
    (tmp_path / "late.txt").write_text("\n" * 100 + "text" + "\n" * 100)
    check_readable(text_documents(str(tmp_path), KEY))


def test_text_documents_of_a_folder_pass_over_what_is_hidden(books):
    for name in (".git/notes.txt", "more/.cache/deep/a.txt", ".hidden.txt"):
        (books / name).parent.mkdir(parents=True, exist_ok=True)
        (books / name).write_text("hidden\n")
    assert names(text_documents(str(books))) == ["a.md", "b.txt", "c.text", "d.txt.gz"]
    assert names(text_documents(str(books / ".git"))) == ["notes.txt"]  # asked for
    assert names(text_documents(str(books / ".hidden.txt"))) == [".hidden.txt"]


def test_text_documents_of_a_folder_in_any_case_and_gzipped(tmp_path):
    (tmp_path / "UPPER.TXT").write_text("upper\n")
    (tmp_path / "Notes.Md.Gz").write_bytes(gzip.compress(b"notes\n"))
    documents = text_documents(str(tmp_path))
    assert names(documents) == ["Notes.Md.Gz", "UPPER.TXT"]
    assert [text_of(d) for d in documents] == ["notes\n", "upper\n"]


@pytest.mark.parametrize("how", ["folder", "glob", "name"])
def test_text_documents_name_a_dangling_link_and_its_key(books, how):
    link = books / "more" / "dangling.txt"
    link.symlink_to(books / "gone.txt")
    entry = {"folder": books, "glob": f"{books}/more/*.txt", "name": link}[how]
    with pytest.raises(FileNotFoundError, match=r"dangling\.txt") as raised:
        text_documents(str(entry))
    assert KEY in str(raised.value)


def test_text_documents_take_a_link_to_a_file(books):
    (books / "more" / "e.txt").symlink_to(books / "b.txt")
    (document,) = text_documents(str(books / "more" / "e.txt"))
    assert text_of(document) == "book b\n"


@pytest.mark.parametrize(
    "name", ["a.zip", "a.txt.bz2", "a.txt.xz", "a.TXT.ZST", "a.tar.gz", "a.tgz", "a.7z"]
)
def test_text_documents_compressed_otherwise_are_refused_by_name(tmp_path, name):
    (tmp_path / name).write_bytes(b"\x00\x01")
    with pytest.raises(ValueError, match=r"only \.gz is read; unpack") as raised:
        text_documents(str(tmp_path / name))
    assert name in str(raised.value)
    assert KEY in str(raised.value)


@pytest.mark.parametrize(
    ("compress", "what"),
    [(bz2.compress, "bzip2"), (lzma.compress, "xz"), (gzip.compress, "gzip")],
)
def test_text_document_compressed_without_saying_so_is_refused(
    tmp_path, compress, what
):
    (tmp_path / "a.txt").write_bytes(compress(os.urandom(999)))
    (document,) = text_documents(str(tmp_path / "a.txt"))
    with pytest.raises(ValueError, match=f"{what}.*only .gz is read") as raised:
        text_of(document)
    assert "iconv" not in str(raised.value)


# --- JSON lines ---------------------------------------------------------------


def write_jsonl(path: Path, *values) -> str:
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    return str(path)


@pytest.mark.parametrize("name", ["a.jsonl", "a.JSONL", "a.ndjson", "a.jsonl.gz"])
def test_jsonl_documents_are_their_field(tmp_path, name, monkeypatch):
    monkeypatch.setattr(documents, "BLOCK_CHARS", 7)  # lines straddle the chunks
    texts = ["One naïve text.", "Two\nlines,\u2028a break", "", "日本"]
    lines = "\r\n".join(json.dumps({"id": 3, "text": text}) for text in texts)
    data = f"\n{lines}".encode()
    file = tmp_path / name
    file.write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    (document,) = text_documents(str(tmp_path))
    assert text_of(document) == "".join(text + "\n" for text in texts)


def test_jsonl_documents_of_another_field_have_another_stamp(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", {"text": "one", "body": "two"})
    (one,), (other,), (plain,) = (
        text_documents(path, jsonl_field=field) for field in ("text", "body", "")
    )
    assert [text_of(one), text_of(other)] == ["one\n", "two\n"]
    assert json.loads(text_of(plain)) == {"text": "one", "body": "two"}
    assert len({one.stamp, other.stamp, plain.stamp}) == 3
    stat = os.stat(path)
    assert plain.stamp == f"{stat.st_size}-{stat.st_mtime_ns}"  # as in 0.1.0


def test_jsonl_documents_are_not_searched_for_without_a_field(books):
    write_jsonl(books / "x.jsonl", {"text": "one"})
    assert names(text_documents(str(books)))[-1] == "x.jsonl"
    assert "x.jsonl" not in names(text_documents(str(books), jsonl_field=""))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": ', "cannot be read as JSON"),
        ("plain text", "cannot be read as JSON"),
        ('{"a":' * 100_000, "nested too deeply"),
        ("[" * 100_000, "nested too deeply"),
        ('{"text": "a", "n": ' + "9" * 5000 + "}", "cannot be read as JSON"),
        ("[1, 2]", "not a JSON object"),
        ("null", "not a JSON object"),
        ('{"content": "a", "id": 3}', "no field 'text'; it has 'content', 'id'"),
        ("{}", "no field 'text'; it has none"),
        ('{"text": null}', "is None, not text"),
        ('{"text": ["a"]}', r"is \['a'\], not text"),
        ('{"text": "a\\ud800b"}', "character 1 .*half of a surrogate pair"),
    ],
)
def test_jsonl_document_that_cannot_be_read_is_named_with_its_line(
    tmp_path, line, message
):
    (tmp_path / "a.jsonl").write_text('{"text": "fine"}\n\n' + line + "\n")
    (document,) = text_documents(str(tmp_path))
    with pytest.raises(ValueError, match=message) as raised:
        text_of(document)
    assert f"{tmp_path}/a.jsonl:3: " in str(raised.value)
    assert len(str(raised.value)) < 500
    "".join(str(raised.value)).encode()  # can be printed
