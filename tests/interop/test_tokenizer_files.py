"""The tokenizer beside other formats: our copy, GPT-1's two files, or a refusal."""

import pytest
from etils import epath
from other_formats import write_bpe_files

from gpt1_jax.data import tokenizers
from gpt1_jax.interop import tokenizer_files
from gpt1_jax.interop.tokenizer_files import HUGGING_FACE_FILES, OPENAI_FILES


@pytest.fixture
def folder(tmp_path):
    return epath.Path(tmp_path)


@pytest.fixture
def sentencepiece(pretrained):
    return tokenizers.load(pretrained / "tokenizer")


def test_our_own_copy_comes_back_bit_for_bit(folder, sentencepiece):
    tokenizer_files.write(sentencepiece, folder)
    back = tokenizer_files.read(folder, sentencepiece.vocab_size)
    assert back.digest == sentencepiece.digest
    copy, model = "gpt1_jax_tokenizer", "sentencepiece.model"
    assert list(folder.iterdir()) == [folder / copy]
    back.save(folder / "again")
    assert (folder / "again" / model).read_bytes() == (
        folder / copy / model
    ).read_bytes()


@pytest.mark.parametrize("files", [OPENAI_FILES, HUGGING_FACE_FILES], ids=str)
def test_gpt1s_two_files_are_read_under_either_name(folder, files):
    pytest.importorskip("spacy")
    write_bpe_files(folder, files, vocab_size=20)
    tokenizer = tokenizer_files.read(folder, 20)
    assert tokenizer.kind == "gpt1"
    assert tokenizer.encode("b a\nc") == [2, 1, 19, 3]


def test_openais_folder_gets_the_two_files(folder, tmp_path):
    pytest.importorskip("spacy")
    (folder / "from").mkdir()
    (folder / "to").mkdir()
    write_bpe_files(folder / "from", HUGGING_FACE_FILES, vocab_size=20)
    tokenizer = tokenizer_files.read(folder / "from", 20)
    tokenizer_files.write_openai(tokenizer, folder / "to")
    for theirs, openais in zip(HUGGING_FACE_FILES, OPENAI_FILES, strict=True):
        written = (folder / "to" / openais).read_bytes()
        assert written == (folder / "from" / theirs).read_bytes()


def test_openais_folder_gets_no_file_of_another_tokenizer(folder, sentencepiece):
    tokenizer_files.write_openai(sentencepiece, folder)
    assert [path.name for path in folder.iterdir()] == ["gpt1_jax_tokenizer"]


def test_a_vocabulary_that_does_not_fit_is_refused(folder, sentencepiece):
    tokenizer_files.write(sentencepiece, folder)
    with pytest.raises(ValueError, match=r"has 512 entries; .* 513 rows"):
        tokenizer_files.read(folder, 513)


def test_a_folder_without_a_tokenizer_is_refused(folder):
    (folder / "vocab.json").write_text("{}")
    with pytest.raises(
        FileNotFoundError, match=r"neither gpt1_jax_tokenizer/ nor enco"
    ):
        tokenizer_files.read(folder, 20)


@pytest.mark.parametrize("text", [b"", b"[]", b'{"a": 1}', b'{"a": "b"}', b"\xff"])
def test_files_that_are_no_vocabulary_are_refused(folder, text):
    pytest.importorskip("spacy")
    write_bpe_files(folder, HUGGING_FACE_FILES, vocab_size=20)
    (folder / "vocab.json").write_bytes(text)
    with pytest.raises(ValueError, match=r"vocab.json and merges.txt in .* are not"):
        tokenizer_files.read(folder, 20)
