"""Documents from files, TFDS and the machine's own documentation."""

import functools
import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpt1_jax.data import corpus, sources
from gpt1_jax.data.sources import (
    Document,
    builtin_documents,
    check_readable,
    read_blocks,
    text_documents,
    tfds_documents,
)

KEY = "config.data.train"
few = settings(deadline=None, max_examples=150)


def text_of(document: Document) -> str:
    return "".join(block.text for block in document.blocks())


def names(documents: list[Document]) -> list[str]:
    return [Path(document.name).name for document in documents]


# --- blocks -------------------------------------------------------------------

BLOCK = 16


def small_blocks(chunks: list[str]) -> list[sources.Block]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "BLOCK_CHARS", BLOCK)
        return list(read_blocks(chunks))


chunks_of_text = st.lists(st.text("ab \n", max_size=40), max_size=6)


@few
@given(chunks=chunks_of_text)
@example(chunks=["a" * 100])
@example(chunks=[" " * 100])
@example(chunks=["\n" * 100])
@example(chunks=["a" * 16 + "\n"])
def test_read_blocks_lose_nothing(chunks):
    blocks = small_blocks(chunks)
    assert "".join(block.text for block in blocks) == "".join(chunks)
    assert all(0 < len(block.text) <= BLOCK for block in blocks)
    for block in blocks[:-1]:
        assert block.ends_line == block.text.endswith("\n")
    assert all(block.ends_line for block in blocks[-1:])


@few
@given(chunks=chunks_of_text)
def test_read_blocks_do_not_depend_on_chunks(chunks):
    assert small_blocks(chunks) == small_blocks(["".join(chunks)])


words_and_gaps = st.lists(
    st.tuples(
        st.text("ab", min_size=1, max_size=5),
        st.sampled_from([" ", "  ", "\n", "\n\n", " \n"]),
    ),
    max_size=40,
)


@few
@given(pairs=words_and_gaps)
@example(pairs=[("aaaaa", " "), ("bbbbb", " "), ("aaa", " \n"), ("b", "\n")])
@example(pairs=[("aaaaa", " "), ("bbbbb", " "), ("aaaa", "\n"), ("b", "\n")])
def test_read_blocks_keep_words_whole_and_line_ends(pairs):
    """Blocks cleaned one by one give the whole text, as `prepare` joins them."""
    text = "".join(word + gap for word, gap in pairs)
    joined = ""
    for block in small_blocks([text]):
        cleaned = corpus.clean(block.text)
        if cleaned:
            joined += cleaned + ("\n" if block.ends_line else " ")
    assert joined.rstrip("\n") == corpus.clean(text)


def test_read_blocks_cut_a_long_line_at_a_space():
    text = "aaaa bbbb cccc dddd eeee ffff"
    assert small_blocks([text]) == [
        ("aaaa bbbb cccc ", False),
        ("dddd eeee ffff", True),
    ]


def test_read_blocks_of_nothing_are_none():
    assert small_blocks([]) == small_blocks(["", ""]) == []


# --- text files ---------------------------------------------------------------


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
    with pytest.raises(FileNotFoundError, match=r"\.txt\.gz"):
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
    monkeypatch.setattr(sources, "BLOCK_CHARS", 7)
    text = "naïve café 日本語\r\n\rx\r\n" * 20
    (tmp_path / "a.txt").write_bytes(text.encode())
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(text.encode()))
    expected = text.replace("\r\n", "\n").replace("\r", "\n")
    assert [text_of(d) for d in text_documents(str(tmp_path), KEY)] == [expected] * 2


@pytest.mark.parametrize("suffix", [".txt", ".txt.gz"])
def test_text_document_not_utf8_is_named_with_the_position(
    tmp_path, monkeypatch, suffix
):
    monkeypatch.setattr(sources, "BLOCK_CHARS", 10)
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
    with pytest.raises(ValueError, match=r"book\.txt\.gz is not a whole gzip file"):
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
    monkeypatch.setattr(sources, "BLOCK_CHARS", 16)
    (books / "late.txt").write_bytes(b"good text\n" * 100 + b"\xff")
    with pytest.raises(ValueError, match=r"late\.txt is not UTF-8"):
        check_readable(text_documents(str(books), KEY))


def test_check_readable_accepts_text_after_white_space(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "BLOCK_CHARS", 16)
    (tmp_path / "late.txt").write_text("\n" * 100 + "text" + "\n" * 100)
    check_readable(text_documents(str(tmp_path), KEY))


# --- TensorFlow Datasets ------------------------------------------------------

ROWS = ["One row.", "Two\nlines", "naïve café", "", "The last."]


@functools.cache  # TFDS registers a name once
def rows_builder() -> type:
    """The TFDS builder of a dataset `gpt1_rows`, which holds `self.rows`."""
    import tensorflow_datasets as tfds

    class Gpt1Rows(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            features = {
                "text": tfds.features.Text(),
                "latin": tfds.features.Text(),
                "label": tfds.features.ClassLabel(num_classes=5),
            }
            return tfds.core.DatasetInfo(
                builder=self,
                features=tfds.features.FeaturesDict(features),
                disable_shuffling=True,
            )

        def _split_generators(self, dl_manager):
            return {
                "train": self._generate_examples(self.rows),
                "test": self._generate_examples(self.rows[:2]),
            }

        def _generate_examples(self, rows):
            for index, text in enumerate(rows):
                latin = text.encode("latin1")
                yield index, {"text": text, "latin": latin, "label": index}

    return Gpt1Rows


def prepare_tfds(directory: Path, rows: list[str]) -> None:
    """Has TFDS prepare the rows as ArrayRecord."""
    builder = rows_builder()(data_dir=directory, file_format="array_record")
    builder.rows = rows
    builder.download_and_prepare()


@pytest.fixture(scope="module")
def tfds_dir(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("tfds")
    prepare_tfds(directory, ROWS)
    return directory


def test_tfds_documents_are_the_rows(tfds_dir):
    documents = tfds_documents("gpt1_rows:train", "text", str(tfds_dir), KEY)
    assert [text_of(d) for d in documents] == [row + "\n" for row in ROWS]
    assert len({d.name for d in documents}) == len(ROWS)
    assert all(block.ends_line for d in documents for block in d.blocks())
    assert sum(d.num_bytes for d in documents) > 0


def test_tfds_documents_of_a_slice(tfds_dir):
    documents = tfds_documents("gpt1_rows:train[1:3]", "text", str(tfds_dir), KEY)
    assert [text_of(d) for d in documents] == [row + "\n" for row in ROWS[1:3]]
    test = tfds_documents("gpt1_rows:test", "text", str(tfds_dir), KEY)
    whole = tfds_documents("gpt1_rows:train", "text", str(tfds_dir), KEY)
    assert len({test[0].stamp, documents[0].stamp, whole[0].stamp}) == 3


def test_tfds_documents_are_ranges_of_rows_when_there_are_many(tfds_dir, monkeypatch):
    monkeypatch.setattr(sources, "_MAX_TFDS_DOCUMENTS", 2)
    documents = tfds_documents("gpt1_rows:train", "text", str(tfds_dir), KEY)
    assert [text_of(d) for d in documents] == [
        "".join(row + "\n" for row in rows) for rows in (ROWS[:3], ROWS[3:])
    ]


def test_tfds_documents_stamp_changes_with_the_text(tfds_dir, tmp_path):
    prepare_tfds(tmp_path, [*ROWS[:4], "Another end."])
    one, other = (
        tfds_documents("gpt1_rows:train", "text", str(directory), KEY)
        for directory in (tfds_dir, tmp_path)
    )
    assert one[0].name == other[0].name
    assert one[0].stamp != other[0].stamp


def test_tfds_documents_may_hold_blank_rows(tfds_dir):
    check_readable(tfds_documents("gpt1_rows:train", "text", str(tfds_dir), KEY))


def test_tfds_documents_can_be_read_where_the_builder_is_not_defined(tfds_dir):
    """A fresh process knows the dataset only by its files."""
    program = f"""
        import json, sys
        from gpt1_jax.data.sources import tfds_documents
        documents = tfds_documents("gpt1_rows:train", "text", {str(tfds_dir)!r}, "key")
        texts = ["".join(b.text for b in d.blocks()) for d in documents]
        print(json.dumps([texts, documents[0].stamp, "tensorflow" in sys.modules]))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    texts, stamp, tensorflow = json.loads(done.stdout.splitlines()[-1])
    assert texts == [row + "\n" for row in ROWS]
    here = tfds_documents("gpt1_rows:train", "text", str(tfds_dir), KEY)
    assert stamp == here[0].stamp
    assert not tensorflow


@pytest.mark.parametrize(
    ("spec", "feature", "message"),
    [
        ("gpt1_rows", "text", "must be NAME:SPLIT"),
        ("gpt1_rows:", "text", "split"),
        ("gpt1_rows:validation", "text", r"'validation'.*'train', 'test'"),
        ("gpt1_rows:train[:0]", "text", r"train\[:0\]"),
        ("gpt1_nothing:train", "text", "no dataset 'gpt1_nothing'"),
        ("gpt1_rows:train", "texts", r"tfds_feature='texts'.*label, latin, text"),
        ("gpt1_rows:train", "label", r"tfds_feature='label' is not a text feature"),
    ],
)
def test_tfds_documents_wrong_name_split_or_feature_is_named(
    tfds_dir, spec, feature, message
):
    with pytest.raises(ValueError, match=f"(?s){message}") as raised:
        tfds_documents(spec, feature, str(tfds_dir), KEY)
    assert "config.data.t" in str(raised.value)
    assert len(str(raised.value)) < 300


def test_tfds_documents_row_not_utf8_is_named(tfds_dir):
    documents = tfds_documents("gpt1_rows:train", "latin", str(tfds_dir), KEY)
    with pytest.raises(ValueError, match="gpt1_rows:train, row 2") as raised:
        check_readable(documents)
    assert type(raised.value) is ValueError


def test_tfds_documents_prepared_as_tfrecord_are_refused(tfds_dir, tmp_path):
    shutil.copytree(tfds_dir / "gpt1_rows", tmp_path / "gpt1_rows")
    info = tmp_path / "gpt1_rows" / "1.0.0" / "dataset_info.json"
    info.write_text(info.read_text().replace("array_record", "tfrecord"))
    with pytest.raises(ValueError, match="prepare the dataset again with file_format"):
        tfds_documents("gpt1_rows:train", "text", str(tmp_path), KEY)


# --- the documentation on every machine ---------------------------------------


def test_builtin_documents_are_collected_once(tmp_path, monkeypatch):
    calls = []

    def collect(packages):
        calls.append(packages)
        return {"b.module": "Text of b.", "a.module": "Text of a: naïve."}

    monkeypatch.setattr(sources, "_collect_docstrings", collect)
    first = builtin_documents(tmp_path)
    again = builtin_documents(tmp_path)
    assert len(calls) == 1
    assert set(calls[0]) <= set(sources.BUILTIN_PACKAGES)
    assert [d[:3] for d in first] == [d[:3] for d in again]
    assert [(d.name, text_of(d)) for d in again] == [
        ("a.module", "Text of a: naïve."),
        ("b.module", "Text of b."),
    ]
    assert len(list((tmp_path / "builtin").iterdir())) == 1


def test_builtin_documents_leave_nothing_when_interrupted(tmp_path, monkeypatch):
    def interrupt(packages):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(sources, "_collect_docstrings", interrupt)
        with pytest.raises(KeyboardInterrupt):
            builtin_documents(tmp_path)
    monkeypatch.setattr(sources, "_collect_docstrings", lambda _: {"a": "Text."})
    assert [text_of(d) for d in builtin_documents(tmp_path)] == ["Text."]


@pytest.mark.slow
def test_builtin_documents_are_megabytes_of_text(tmp_path):
    documents = builtin_documents(tmp_path)
    check_readable(documents)
    texts = [text_of(d) for d in documents]
    assert sum(map(len, texts)) > 5_000_000
    assert len({d.name for d in documents}) == len(documents) > 500
    "".join(texts).encode()  # no half surrogates


def test_docstrings_are_the_prose_of_a_source_file(tmp_path):
    prose = "This sentence is long enough to count as documentation " * 2
    file = tmp_path / "module.py"
    file.write_text(
        f'"""{prose}\n\nOver two\nlines."""\n'
        "def short():\n    '''Too short.'''\n"
        f"class Code:\n    '''\n    >>> print({prose!r})\n    '''\n"
        "    path = '\\d'\n"
    )
    assert sources._docstrings(file) == [f"{prose.strip()}\nOver two lines."]


@pytest.mark.parametrize("content", [b"def broken(:", b"'''caf\xe9'''", b"x = '\0'"])
def test_docstrings_of_a_file_that_is_no_source_are_none(tmp_path, content):
    file = tmp_path / "module.py"
    file.write_bytes(content)
    assert sources._docstrings(file) == []


def test_unwrap_gives_a_line_for_each_paragraph():
    text = """Title
        -----
        A paragraph over
        two lines.

            code = sample()

        >>> more(code)

        The end.
        """
    assert sources.unwrap(text) == "Title A paragraph over two lines.\nThe end."
