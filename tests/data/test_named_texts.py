"""Documents: cut into blocks, read from text files, held out for validation."""

import gzip
import hashlib
import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpt1_jax.data import named_texts
from gpt1_jax.data.named_texts import (
    NamedText,
    cut_blocks,
    hold_out,
    is_near,
)
from gpt1_jax.data.text import clean
from gpt1_jax.errors import UserError

few = settings(max_examples=80)

BLOCK = 16


def small_blocks(chunks: list[str]) -> list[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(named_texts, "BLOCK_CHARS", BLOCK)
        return list(cut_blocks(chunks))


@few
@given(chunks=st.lists(st.text("ab \n", max_size=40), max_size=6))
@example(chunks=["a" * 100])
@example(chunks=[" " * 100])
@example(chunks=["\n" * 100])
@example(chunks=["a" * 16 + "\n"])
@example(chunks=["", ""])
def test_blocks_lose_nothing_and_do_not_depend_on_chunks(chunks):
    text = "".join(chunks)
    blocks = small_blocks(chunks)
    assert blocks == small_blocks([text])
    assert "".join(blocks) == text + "\n" * (text != "" and text[-1] != "\n")
    assert all(0 < len(block) <= BLOCK for block in blocks)


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
def test_blocks_keep_words_whole_and_line_ends(pairs):
    """Blocks cleaned one by one give the whole text, as `prepare_corpus` joins them."""
    text = "".join(word + gap for word, gap in pairs)
    joined = ""
    for block in small_blocks([text]):
        cleaned = clean(block)
        if cleaned:
            joined += cleaned + ("\n" if block.endswith("\n") else " ")
    assert joined.rstrip("\n") == clean(text)


KEY = "config.data.train"


def texts_in_files(paths: str, key: str = KEY, field: str = "text"):
    return named_texts.texts_in_files(paths, key, field)


def text_of(document: NamedText) -> str:
    """The whole text, as it is read: blocks end with a newline."""
    return "".join(document.chunks())


def names(documents: list[NamedText]) -> list[str]:
    return [Path(document.name).name for document in documents]


@pytest.fixture
def books(tmp_path, write) -> Path:
    """A folder with files to find and files to pass over."""
    for letter, name in enumerate(("a.md", "b.txt", "more/c.text", "more/d.txt.gz")):
        text = f"book {'abcd'[letter]}\n".encode()
        write(f"books/{name}", gzip.compress(text) if name.endswith("gz") else text)
    for name in (".git/notes.txt", ".hidden.txt", "more/.cache/deep/a.txt"):
        write(f"books/{name}", "hidden")
    for name in ("cover.jpg", "notes.rst", "of_the_texts.csv", "of_the_texts.json"):
        write(f"books/{name}", "other")
    (tmp_path / "books" / "more" / "folder.txt").mkdir()
    return tmp_path / "books"


def test_texts_in_files_of_a_folder_are_its_texts_by_path(books):
    documents = texts_in_files(str(books))
    assert names(documents) == ["a.md", "b.txt", "c.text", "d.txt.gz"]
    for _ in range(2):
        assert [text_of(d) for d in documents] == [f"book {c}\n" for c in "abcd"]
    assert [d.num_bytes for d in documents] == [7, 7, 7, None]


def test_texts_in_files_are_sorted_without_the_suffix_of_a_compressed_file(write):
    order = ["a.txt.xz", "b.txt.gz", "b.txt-1.txt", "c.txt"]
    folder = {Path(write(name, "text")).parent for name in order}.pop()
    assert names(texts_in_files(str(folder))) == order


@pytest.mark.parametrize(
    ("paths", "found"),
    [
        ("*.rst", "notes.rst"),
        ("[ab].*", "a.md b.txt"),
        ("**/*.t*", "b.txt c.text d.txt.gz"),
        ("more , b.txt,*.txt,, more/c.text", "b.txt c.text d.txt.gz"),  # once each
        (".git,.hidden.txt", "notes.txt .hidden.txt"),  # hidden, but asked for
    ],
)
def test_texts_in_files_of_names_and_globs(books, monkeypatch, paths, found):
    monkeypatch.chdir(books)
    assert names(texts_in_files(paths)) == found.split()


def test_texts_in_files_among_several_need_a_backslash_before_a_comma(tmp_path, write):
    one, *_ = (write(name, "a") for name in ("Austen, Jane.txt", "b [1].txt", "c.txt"))
    assert names(texts_in_files(one)) == ["Austen, Jane.txt"]
    assert names(texts_in_files(f"{tmp_path}/b [1].txt")) == ["b [1].txt"]
    for refused in (f"{one},{tmp_path}/c.txt", f"{tmp_path}/b [1]*.txt"):
        with pytest.raises(
            FileNotFoundError, match=r"Write \\, for a comma .* \[\[\] fo"
        ):
            texts_in_files(refused)
    for comma in ("?", "\\,"):
        written = f"{one.replace(',', comma)},{tmp_path}/b [[]1]*.txt"
        assert names(texts_in_files(written)) == ["Austen, Jane.txt", "b [1].txt"]


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ("b.txt,none.txt", r": 'none\.txt' names no file in the working folder"),
        ("*.none,b.txt", r": '\*\.none' names no file"),
        ("no_text", r": 'no_text' names no file.*\.txt, .* compressed or not"),
        (" , ", "=' , ' names no file"),
        ("blank", r"empty\.txt is empty"),
        ("pipe", "pipe is no file, but a pipe or a device"),
        ("links", r"finds links/a\.txt, a link to a file that is not there"),
        ("links/*.txt", r"finds links/a\.txt, a link"),
        ("m*/*", r": more/a\.pdf ends in \.pdf, not plain text"),
    ],
)
def test_texts_in_files_refuses_a_name_with_its_key(
    books, write, monkeypatch, paths, message
):
    """Before any work: an hour of other text may come before."""
    for name in ("blank/empty.txt", "no_text/cover.jpg", "links/none"):
        write(f"books/{name}", "")
    write("books/more/a.pdf", "text")
    os.mkfifo(books / "pipe")
    (books / "links" / "a.txt").symlink_to(books / "gone.txt")
    monkeypatch.chdir(books)
    with pytest.raises((FileNotFoundError, UserError), match=message) as raised:
        texts_in_files(paths)
    assert KEY in str(raised.value) and "\n" not in str(raised.value)


def test_jsonl_documents_of_another_field_have_another_stamp(tmp_path, write):
    path = write("a.jsonl", '{"text": "one", "body": "two"}')
    (one,), (other,), (plain,) = (
        texts_in_files(path, field=field) for field in ("text", "body", "")
    )
    assert [text_of(one), text_of(other)] == ["one\n", "two\n"]
    assert json.loads(text_of(plain)) == {"text": "one", "body": "two"}
    (lenient,) = named_texts.texts_in_files(path, KEY, "text", skip_empty=True)
    stat = os.stat(path)
    stamp = f"{stat.st_size}-{stat.st_mtime_ns}"
    stamps = [each.stamp for each in (plain, one, other, lenient)]
    assert stamps == [stamp + end for end in ("", "-text", "-body", "-text-skip_empty")]
    write("b.NDJSON.gz", gzip.compress(b'{"text": "three"}'))
    write("c.txt", "text")
    assert names(texts_in_files(str(tmp_path))) == ["a.jsonl", "b.NDJSON.gz", "c.txt"]
    assert names(texts_in_files(str(tmp_path), field="")) == ["c.txt"]


def made_documents(sizes):
    return [
        NamedText(f"book{number}.txt", "", size, lambda: iter(()))
        for number, size in enumerate(sizes)
    ]


def share(held, everything):
    return sum(d.num_bytes for d in held) / sum(d.num_bytes for d in everything)


some_sizes = st.lists(st.integers(1, 10_000), min_size=1, max_size=60)


@few
@given(sizes=some_sizes, fraction=st.floats(0.001, 0.999))
@example(sizes=[5, 5], fraction=0.99)
def test_hold_out_divides_the_documents_in_order(sizes, fraction):
    everything = made_documents(sizes)
    train, valid = hold_out(everything, fraction)
    assert sorted([*train, *valid], key=everything.index) == everything
    assert [d for d in everything if d in train] == train
    assert [d for d in everything if d in valid] == valid
    assert train
    if valid:
        assert is_near(share(valid, everything), fraction)


@few
@given(number=st.integers(200, 300), seed=st.integers(0, 2**32 - 1))
def test_hold_out_by_size_is_exact_where_documents_are_many(number, seed):
    sizes = np.random.default_rng(seed).integers(900, 1101, number).tolist()
    everything = made_documents(sizes)
    _, valid = hold_out(everything, 0.02)
    assert share(valid, everything) == pytest.approx(0.02, rel=0.2)


@pytest.mark.parametrize(
    ("sizes", "fraction"),
    [([67_000, 102_000], 0.02), ([134_804, 37], 0.02), ([10] * 10, 0.02), ([9], 0.1)],
)
def test_hold_out_no_whole_documents_where_none_are_the_share(sizes, fraction):
    everything = made_documents(sizes)
    assert hold_out(everything, fraction) == (everything, [])


def counted(*chunks):
    """A document of these pieces, and a list with an entry for each time it is read."""
    times_read = []

    def read():
        times_read.append(None)
        yield from chunks

    return NamedText("a", "", 0, read), times_read


def test_a_digest_is_of_the_text_alone():
    one, _ = counted("naïve ", "text\n")
    (same, _), (other, _) = counted("", "naïve text\n"), counted("naïve text")
    digest = hashlib.sha256("naïve text\n".encode()).hexdigest()
    assert one.read_digest() == same.read_digest() == digest
    assert other.read_digest() != digest  # though its last block ends with a newline


def test_a_text_read_to_its_end_is_not_read_again_for_its_digest():
    document, times_read = counted("a text", "\n")
    assert list(document.blocks()) == ["a text\n"]
    assert document.read_digest() == document.read_digest()
    assert len(times_read) == 1
    document, times_read = counted("a text", "\n" * named_texts.BLOCK_CHARS)
    next(document.blocks())
    assert document.read_digest()
    assert len(times_read) == 2, "the digest of a part is not that of the text"


def test_hold_out_changes_little_when_a_document_is_added():
    before, after = (hold_out(made_documents([1000] * n), 0.1)[1] for n in (100, 101))
    assert len({d.name for d in before} & {d.name for d in after}) >= 9
