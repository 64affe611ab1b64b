"""Training text in each format and compression, and what is refused of it."""

import gzip
import json
import lzma
import re
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gpt1_jax import data
from gpt1_jax.data import named_texts
from gpt1_jax.data.corpus import prepare_corpus
from gpt1_jax.data.sentencepiece_tokenizer import SentencePieceTokenizer
from gpt1_jax.data.separated import separate
from gpt1_jax.data.shards import TokenReader
from gpt1_jax.errors import MissingPackage, UserError

backports = pytest.importorskip("backports")

KEY = "config.data.train"
TEXTS = ["One naïve text.", "Two, with \u2028 a break", "", "日本 " * 40]
OBJECTS = [{"id": 3, "text": text} for text in TEXTS]
CONTENT = {
    "a.txt": "\n".join(TEXTS),
    "a.jsonl": "\n".join(map(json.dumps, OBJECTS)),
    "lines.json": "\n".join(map(json.dumps, OBJECTS)),
    "list.json": json.dumps(OBJECTS, indent=1),
    "a.csv": "id,text\n" + "\n".join(f'3,"{text}"' for text in TEXTS),
    "a.tsv": "id\ttext\n" + "\n".join(f"3\t{text}" for text in TEXTS),
}


def text_of(path, field="text"):
    (document,) = named_texts.texts_in_files(str(path), KEY, field)
    return "".join(document.blocks())


def test_tables_in_a_folder_are_not_looked_for(tmp_path):
    for name, content in CONTENT.items():
        (tmp_path / name).write_text(content)
    found = named_texts.texts_in_files(str(tmp_path), KEY, "text")
    assert [each.name.rpartition("/")[2] for each in found] == ["a.jsonl", "a.txt"]


REFUSED = {
    "a.csv": (b"id,body\n1,a", "no field 'text'; it has 'id', 'body'; name the"),
    "b.csv": (b"id,text\n1", "b.csv:2: the row has 1 columns"),
    "a.json": (b'[{"text": []}]', "a.json, object 1 of the list: .* not text"),
    "b.json": (b'[{"text": "a"} {"text": "b"}]', "b.json: this is not JSON"),
    "a.jsonl.gz": (gzip.compress(b'{"text"'), "a.jsonl.gz:1: this is not JSON"),
    "cut.txt.xz": (lzma.compress(b"one")[:-9], "damaged or cut short as a compressed"),
    "no.parquet": (b"plain text", "cannot be read as Parquet"),
    "a.parquet.gz": (gzip.compress(b"a"), "a compressed file of Parquet; unpack it"),
    "a.txt": (b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_file_that_cannot_be_read_is_refused_in_one_line(tmp_path, name):
    content, message = REFUSED[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message) as raised:
        text_of(tmp_path / name)
    assert name in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("body", "no field 'body'; it has 'id', 'text', 'list'; name the text's field"),
        ("list", "row 1: column 'list' holds .*, not text"),
        ("text", "row 2: the field 'text' is empty.*--config.data.skip_empty=True"),
    ],
)
def test_a_parquet_column_without_text_is_refused(tmp_path, column, message):
    rows = [{"id": 1, "text": "a", "list": ["a"]}, {"id": 2, "text": None, "list": []}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    with pytest.raises(UserError, match=message):
        text_of(tmp_path / "a.parquet", column)


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl"])
def test_empty_rows_are_passed_over_on_request(tmp_path, caplog, name):
    rows = [{"text": text} for text in ("one", None, "", "two")]
    if name == "a.parquet":
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / name)
    else:
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = str(tmp_path / name)
    (document,) = named_texts.texts_in_files(path, KEY, "text", skip_empty=True)
    assert "".join(document.blocks()) == "one\ntwo\n"
    assert "Left out 2 rows without text" in caplog.text
    (strict,) = named_texts.texts_in_files(path, KEY, "text")
    assert strict.stamp != document.stamp


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a.txt.zst", "a.txt.zst, compressed by zstd, .* or unpack it"),
        ("a.jsonl.ZST", "a.jsonl.ZST, compressed by zstd, needs"),
        ("a.parquet", "a Parquet file needs"),
    ],
)
def test_a_missing_library_is_named_before_any_file_is_read(
    tmp_path, monkeypatch, name, message
):
    (tmp_path / name).write_bytes(b"not read")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "backports.zstd", None)
    monkeypatch.delattr(backports, "zstd")
    monkeypatch.delitem(sys.modules, "gpt1_jax.data.parquet", raising=False)
    monkeypatch.delattr(data, "parquet", raising=False)
    with pytest.raises(MissingPackage, match=message) as raised:
        named_texts.texts_in_files(str(tmp_path / name), KEY, "text")
    assert "pip install 'gpt1_jax[text]'" in str(raised.value)


# --- files that hold several documents ----------------------------------------


MARK = "<|endoftext|>"
STORIES = [f"Story {number}.\nIts end." for number in range(400)]


@pytest.fixture
def stories(tmp_path, data_config):
    """`stories(**overrides)`: the parts of a file of stories."""
    file = tmp_path / "stories.txt"
    file.write_text(f"\n{MARK}\n".join(STORIES) + MARK)

    def make(**overrides):
        config = data_config(
            **{"train": str(file), "document_separator": MARK, **overrides}
        )
        train = named_texts.texts_in_files(config.train, KEY, "text")
        valid = named_texts.texts_in_files(config.valid, KEY, "text")
        return separate(train, valid, config)

    return make


def told(document):
    """The stories that a document holds and those it holds out, which it counts."""
    blocks, found = list(document.blocks()), []
    for held_out in (False, True):
        of_it = (b for b in blocks if isinstance(b, named_texts.HeldOut) == held_out)
        text = "".join(of_it)
        assert MARK not in text
        stories = [f"Story {each}".rstrip() for each in text.split("Story ")[1:]]
        found.append([each.replace("\n\n", "\n") for each in stories])
    assert [document.count, document.held_out] == [len(each) for each in found]
    return found


@pytest.mark.parametrize("block", [16, 1 << 18])
def test_whole_documents_are_held_out_and_no_mark_is_left(stories, monkeypatch, block):
    monkeypatch.setattr("gpt1_jax.data.separated.BLOCK_CHARS", block)
    monkeypatch.setattr(named_texts, "BLOCK_CHARS", block)
    (train,), valid = stories(valid_fraction=0.1)
    kept, held = told(train)
    assert sorted(kept + held) == sorted(STORIES)
    assert 20 < len(held) < 60
    assert not valid and train.divides


def test_equal_documents_are_on_one_side_in_whatever_file(stories, tmp_path):
    held = told(stories(valid_fraction=0.1)[0][0])[1]
    other = tmp_path / "other.txt"
    other.write_text(MARK.join(STORIES[::-3]))
    ((document,), _) = stories(train=str(other), valid_fraction=0.1)
    assert set(told(document)[1]) == set(STORIES[::-3]) & set(held)


def test_nothing_is_held_out_of_files_beside_those_for_validation(stories, tmp_path):
    (tmp_path / "other.txt").write_text(f"Story 1{MARK}Story 2")
    (train,), (valid,) = stories(valid=str(tmp_path / "other.txt"))
    assert told(train) == [STORIES, []] and told(valid) == [["Story 1", "Story 2"], []]


@pytest.mark.usefixtures("stories")
def test_separated_documents_are_held_out_of_a_prepared_corpus(
    tmp_path, data_config, tokenizer_config, tokenizer_dir
):
    file = str(tmp_path / "stories.txt")
    corpus, tokenizer = prepare_corpus(
        data_config(train=file, document_separator=MARK),
        tokenizer_config(),
        own_tokenizer=tokenizer_dir,
        progress=False,
    )
    told = []
    for split, counts in (("train", corpus.train), ("valid", corpus.valid)):
        ids = TokenReader(corpus, split).read(0, counts.tokens)
        text = tokenizer.decode(ids.tolist())
        assert "endoftext" not in text
        found = re.findall(r"story (\d+)\.\nits end\.", text)
        assert len(found) == counts.documents
        told += map(int, found)
    assert sorted(told) == list(range(len(STORIES)))
    assert 20 < corpus.valid.documents < 60
    assert [*corpus.documents] == [file]


@pytest.mark.usefixtures("stories")
def test_the_tokenizer_is_trained_on_what_is_not_held_out(
    tmp_path, data_config, tokenizer_config, monkeypatch
):
    given, train = [], SentencePieceTokenizer.train

    def note(lines, *arguments):
        given.extend(lines)
        return train(given, *arguments)

    monkeypatch.setattr(SentencePieceTokenizer, "train", note)
    data = data_config(train=str(tmp_path / "stories.txt"), document_separator=MARK)
    corpus, _ = prepare_corpus(data, tokenizer_config(vocab_size=360), progress=False)
    told = [line for line in given if line.startswith("Story")]
    assert len(told) == corpus.train.documents == 400 - corpus.valid.documents < 400


def test_a_mark_that_never_occurs_is_refused(stories):
    ((train,), _) = stories(document_separator="---")
    with pytest.raises(
        UserError, match=r"document_separator='---' is in none .*stories"
    ):
        train.read_digest()


def test_a_mark_may_be_in_one_of_several_files(stories, tmp_path):
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text(f"Story {number}.")
    train, _ = stories(train=f"{tmp_path}/?.txt,{tmp_path}/stories.txt")
    for document in train:
        document.read_digest()
    assert sum(each.count + each.held_out for each in train) == 403


@pytest.mark.usefixtures("stories")
def test_each_file_of_documents_is_read_twice(
    tmp_path, data_config, tokenizer_config, monkeypatch
):
    """To train the tokenizer, and to encode both splits."""
    opened, real = [], named_texts.read_plain_text

    def note(path, **how):
        opened.append(path.name)
        return real(path, **how)

    monkeypatch.setattr(named_texts, "read_plain_text", note)
    data = data_config(train=str(tmp_path / "stories.txt"), document_separator=MARK)
    small = tokenizer_config(vocab_size=360)
    corpus, _ = prepare_corpus(data, small, progress=False)
    assert corpus.valid.documents > 20
    assert opened == ["stories.txt"] * 2


@pytest.fixture
def prepare(data_config, tokenizer_config, tokenizer_dir):
    """Prepares a corpus of text with marks, in the tests' tokenizer."""

    def make(**overrides):
        data = data_config(document_separator=MARK, **overrides)
        tokenizer = {"own_tokenizer": tokenizer_dir}
        return prepare_corpus(data, tokenizer_config(), progress=False, **tokenizer)[0]

    return make


@pytest.mark.usefixtures("stories")
def test_validation_text_of_nothing_but_marks_is_refused(prepare, tmp_path):
    """Not replaced by a part of the training text."""
    marks = tmp_path / "marks.txt"
    marks.write_text(f"{MARK}\n{MARK}\n")
    with pytest.raises(UserError, match=r"config.data.valid='.*marks.txt' holds no"):
        prepare(train=str(tmp_path / "stories.txt"), valid=str(marks))


def test_a_held_out_end_is_told_where_no_document_could_be(prepare, tmp_path):
    few = tmp_path / "few.txt"
    few.write_text(f"One story. {'words ' * 200}\n{MARK}\nAnother.\n")
    told = prepare(train=str(few)).warnings
    assert any("the end of the text is held out" in each for each in told)
