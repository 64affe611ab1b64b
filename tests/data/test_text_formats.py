"""Text in every format, many documents in a file, libraries that are missing."""

import re
import sys

import pytest
from compressed import COMPRESS
from etils import epath

from gpt1_jax import data
from gpt1_jax.data import named_texts
from gpt1_jax.data.sentencepiece_tokenizer import SentencePieceTokenizer
from gpt1_jax.data.shards import TokenReader
from gpt1_jax.data.tables import write_own_table
from gpt1_jax.errors import MissingPackage, UserError
from gpt1_jax.jobs.generate import read_prompts

backports = pytest.importorskip("backports")

KEY = "config.data.train"


@pytest.mark.parametrize(
    "name",
    ["a.jsonl", "a.ndjson.gz", "A.JSON.bz2", "a.csv.xz", "a.tsv.zst", "a.parquet"],
)
def test_the_name_says_the_format_and_cells_are_the_same_text(tmp_path, name):
    """Of every format, numbers and bools too."""
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    columns = {"prompt": [1, 20], "y": [True, False], "z": ['a "b", \u2028 c', "é"]}
    path, (_, suffix, *packed) = epath.Path(tmp_path) / name, name.lower().split(".")
    is_json = suffix in ("ndjson", "json")
    write_own_table(path, columns, ".jsonl" if is_json else f".{suffix}")
    if suffix == "json":
        lines = path.read_text().strip().split("\n")
        path.write_text("[" + ",\n".join(lines) + "]")
    for compression in packed:
        path.write_bytes(COMPRESS[f".{compression}"](path.read_bytes()))
    for field, values in columns.items():
        (document,) = named_texts.texts_in_files(str(path), KEY, field)
        assert "".join(document.blocks()) == "".join(f"{each}\n" for each in values)
    assert read_prompts(str(path)) == ["1", "20"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a.jsonl.ZST", "a.jsonl.ZST, compressed by zstd, needs"),
        ("a.parquet", "a Parquet file needs"),
    ],
)
def test_a_missing_library_is_named_before_any_file_is_read(
    write, monkeypatch, name, message
):
    for module in ("pyarrow", "backports.zstd"):
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delattr(backports, "zstd", raising=False)
    monkeypatch.delitem(sys.modules, "gpt1_jax.data.parquet", raising=False)
    monkeypatch.delattr(data, "parquet", raising=False)
    with pytest.raises(MissingPackage, match=rf"{message}.*'gpt1_jax\[text\]'"):
        named_texts.texts_in_files(write(name, "not read"), KEY, "text")


MARK = "<|endoftext|>"
STORIES = [f"Story {number}.\nIts end." for number in range(400)]


@pytest.fixture
def stories(write, data_config):
    """`stories(**overrides)`: the parts of a file of stories."""
    file = write("stories.txt", f"\n{MARK}\n".join(STORIES) + MARK)

    def make(**overrides):
        how = {"train": file, "document_separator": MARK, **overrides}
        return named_texts.find_text(data_config(**how), None, print)

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


def test_equal_documents_are_on_one_side_in_whatever_file(stories, write):
    held = told(stories(valid_fraction=0.1)[0][0])[1]
    other = write("other.txt", MARK.join(STORIES[::-3]))
    ((document,), _) = stories(train=other, valid_fraction=0.1)
    assert set(told(document)[1]) == set(STORIES[::-3]) & set(held)


def test_nothing_is_held_out_of_files_beside_those_for_validation(stories, write):
    other = write("other.txt", f"Story 1{MARK}Story 2")
    (train,), (valid,) = stories(valid=other)
    assert told(train) == [STORIES, []] and told(valid) == [["Story 1", "Story 2"], []]


def test_separated_documents_are_held_out_of_a_prepared_corpus_and_its_tokenizer(
    stories, prepare, tmp_path, monkeypatch
):
    given, train = [], SentencePieceTokenizer.train

    def note(lines, *arguments):
        given.extend(lines)
        return train(given, *arguments)

    monkeypatch.setattr(SentencePieceTokenizer, "train", note)
    file = str(tmp_path / "stories.txt")
    how = {"train": file, "document_separator": MARK}
    corpus, tokenizer = prepare({"vocab_size": 360}, **how)
    told = []
    for split, counts in (("train", corpus.train), ("valid", corpus.valid)):
        ids = TokenReader(corpus, split).read(0, counts.tokens)
        text = tokenizer.decode(ids.tolist())
        assert "endoftext" not in text
        told.append(re.findall(r"story (\d+)\.\nits end\.", text))
        assert len(told[-1]) == counts.documents
    assert sorted(map(int, told[0] + told[1])) == list(range(len(STORIES)))
    assert 20 < corpus.valid.documents < 60
    assert re.findall(r"Story (\d+)", " ".join(given)) == told[0]


def test_a_mark_is_in_one_of_several_files_or_is_refused(stories, tmp_path):
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text(f"Story {number}.")
    files = f"{tmp_path}/?.txt,{tmp_path}/stories.txt"
    train, _ = stories(train=files)
    for document in train:
        document.read_digest()
    assert sum(each.count + each.held_out for each in train) == 403
    *others, last = stories(train=files, document_separator="---")[0]
    for document in others:
        document.read_digest()
    with pytest.raises(UserError, match=r"_separator='---' is in none .*0\.txt"):
        last.read_digest()


def test_validation_text_of_nothing_but_marks_is_refused(prepare, write):
    """Not replaced by a part of the training text."""
    files = {"train": f"One{MARK}Two", "valid": f"{MARK}\n{MARK}\n"}
    files = {split: write(f"{split}.txt", text) for split, text in files.items()}
    with pytest.raises(UserError, match=r"config.data.valid='.*valid.txt' holds no"):
        prepare(document_separator=MARK, **files)


def test_a_held_out_end_is_told_where_no_document_could_be(prepare, write):
    few = write("few.txt", f"One story. {'words ' * 200}\n{MARK}\nAnother.\n")
    corpus, _ = prepare(train=few, document_separator=MARK)
    assert any("the end of the text is held out" in each for each in corpus.warnings)
