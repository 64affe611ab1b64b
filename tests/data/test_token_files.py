"""Token files of other programs: their formats, what is refused, what is counted."""

import struct

import numpy as np
import pytest
from etils import epath
from made_up_tokenizer import Numbers

from gpt1_jax.data import token_files
from gpt1_jax.data.corpus import find_texts
from gpt1_jax.data.tokenizers import load_tokenizer
from gpt1_jax.errors import UserError

END = "<|endoftext|>"
TEXTS = {
    "train": "the quick brown fox\njumps over a lazy dog\nthe dog naps\n" * 30,
    "valid": "a café by the river\nthe quick dog\n" * 5,
}


@pytest.fixture
def rules(byte_level, tmp_path):
    """The path of a byte-level tokenizer."""
    byte_level.save(str(tmp_path / "rules.json"))
    return tmp_path / "rules.json"


@pytest.fixture
def prepare(prepare, rules):
    """`prepare(train, valid, source)`: a corpus of these files."""
    saved = {"kind": "huggingface", "path": str(rules), "lowercase": False}

    def run(train, valid="", source="tokens", **data):
        files = {"train": str(train), "valid": str(valid)}
        return prepare(saved, source=source, **files, **data)[0]

    return run


def document_of(path):
    return token_files.TokenFile(epath.Path(path), "")


# How other programs write ids to a file; the name that the file has then.


def nanogpt(path, ids, dtype=np.uint16):
    np.array(ids, dtype).tofile(path.with_suffix(".bin"))


def numpy_array(path, ids, dtype=np.int64):
    np.save(path.with_suffix(".npy"), np.array(ids, dtype))


def llm_c(path, ids):
    head = np.zeros(256, np.int32)
    head[:3] = 20240520, 1, len(ids)
    data = head.tobytes() + np.array(ids, np.uint16).tobytes()
    path.with_suffix(".bin").write_bytes(data)


def datatrove(path, ids, width=2):
    kind = {2: "<u2", 4: "<u4"}[width]
    file = path.with_suffix(".ds")
    file.write_bytes(np.array(ids, kind).tobytes())
    path.with_suffix(".ds.index").write_bytes(struct.pack("<2Q", 7, len(ids)))
    note = f"gpt2|{width}\n{len(ids)}\n{len(ids)} T"
    path.with_suffix(".ds.metadata").write_text(note)


def wide_datatrove(path, ids):
    datatrove(path, ids, width=4)


FORMATS = [nanogpt, numpy_array, llm_c, datatrove, wide_datatrove]


@pytest.mark.parametrize("write", FORMATS)
def test_token_files_become_the_shards_of_their_text(
    write, rules, prepare, tmp_path, monkeypatch
):
    monkeypatch.setattr(token_files, "BLOCK_TOKENS", 1 << 18)
    tokenizer = load_tokenizer(rules)
    for name, text in TEXTS.items():
        (tmp_path / f"{name}.txt").write_text(text)
        write(tmp_path / name, tokenizer.encode(text))
    from_text = prepare(tmp_path / "train.txt", tmp_path / "valid.txt", "text")
    (train,) = (
        p for p in tmp_path.glob("train.*") if p.suffix in (".bin", ".npy", ".ds")
    )
    corpus = prepare(train, train.with_stem("valid"))
    assert corpus.digest == from_text.digest
    assert (corpus.train, corpus.valid) == (from_text.train, from_text.valid)
    assert corpus.document_tokens == {str(train): corpus.train.tokens}


def test_one_corpus_whatever_the_block_and_whoever_decodes(
    rules, prepare, tmp_path, monkeypatch
):
    nanogpt(tmp_path / "a", load_tokenizer(rules).encode(TEXTS["train"]))
    whole = prepare(tmp_path / "a.bin")
    monkeypatch.setattr(token_files, "BLOCK_TOKENS", 100)
    numpy_array(tmp_path / "a", load_tokenizer(rules).encode(TEXTS["train"]))
    cut = prepare(tmp_path / "a.npy")
    assert cut.digest == whole.digest
    assert list(cut.documents.values()) == list(whole.documents.values())
    assert whole.train.words <= cut.train.words <= whole.train.words + 30


def test_files_of_a_folder_are_held_out_whole(rules, prepare, tmp_path):
    ids = load_tokenizer(rules).encode(TEXTS["train"])
    for number in range(4):
        datatrove(tmp_path / f"0000{number}_shuffled", ids)
    corpus = prepare(tmp_path, valid_fraction=0.25)
    assert corpus.train.tokens == 3 * corpus.valid.tokens == 3 * len(ids)
    assert (corpus.train.documents, corpus.valid.documents) == (3, 1)


def test_words_end_where_documents_do(rules, prepare, tmp_path):
    tokenizer = load_tokenizer(rules)
    nanogpt(tmp_path / "a", tokenizer.encode(f"the fox{END}dogs nap{END}" * 50))
    corpus = prepare(tmp_path / "a.bin")
    assert corpus.train.words + corpus.valid.words == 200


def test_a_file_without_files_beside_it_has_the_width_of_the_vocabulary(tmp_path):
    wide = Numbers()
    wide.vocab_size = 100_000
    nanogpt(tmp_path / "a", [70_000, 3] * 5, np.uint32)
    document = document_of(tmp_path / "a.bin")
    document.check(wide)
    assert [block.tolist() for block in document.blocks()] == [[70_000, 3] * 5]
    nanogpt(tmp_path / "a", range(10))
    with pytest.raises(UserError, match=r"another width than is usual"):
        document_of(tmp_path / "a.bin").check(wide)


def test_a_run_shows_how_the_first_file_begins(rules, data_config, tmp_path):
    tokenizer = load_tokenizer(rules)
    for name in ("a", "b"):
        nanogpt(tmp_path / name, tokenizer.encode(TEXTS["train"]))
    shown = []
    config = data_config(source="tokens", train=f"{tmp_path}/?.bin")
    documents, _ = find_texts(config, tmp_path, shown.append)
    for document in documents:
        document.check(tokenizer)
    (line,) = shown
    assert line.startswith(f"{tmp_path / 'a.bin'} begins: 'the quick brown fox\\njumps")


def made(content):
    """Writes a file `a` of this suffix, or of these suffixes, by their content."""
    return lambda folder: [
        (folder / f"a{suffix}").write_bytes(data) for suffix, data in content.items()
    ]


def cut(write, suffix, size, ids=range(100)):
    """Writes ids as another program does, and cuts the end of the file off."""

    def make(folder):
        write(folder / "a", ids)
        path = folder / f"a{suffix}"
        path.write_bytes(path.read_bytes()[:-size])

    return make


def array(value):
    """Writes an array of NumPy."""
    return lambda folder: np.save(folder / "a.npy", value, allow_pickle=True)


def both_splits(folder):
    for name in ("train", "val"):
        nanogpt(folder / name, range(100))


HIGH = [1] * 500 + [300, 1]
NOTELESS = {".ds": b"\1\0", ".ds.metadata": b"gpt2"}
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n"
REFUSED = [
    (lambda f: nanogpt(f / "a", HIGH), "from 1 to 300, but the tokenizer's .* to 299"),
    (array(np.array([1, -100, 2])), "holds ids from -100 to 2, but"),
    (
        lambda f: nanogpt(f / "a", range(100), np.uint32),
        r"holds numbers of 32 bits.*numpy.save\('train.npy', ",
    ),
    (made({".bin": b"\1\0\2"}), "holds 3 bytes, not the 4 of 2 ids of 2 bytes: it is"),
    (made({".npy": b"\x93NUMPY\1\0\x76\0{'descr'"}), "is a damaged .npy file"),
    (cut(numpy_array, ".npy", 8), "holds 920 bytes, not the 928 of 100 ids of 8"),
    (array(np.zeros((3, 4), np.int32)), r"int32 of shape \(3, 4\); expected whole num"),
    (cut(llm_c, ".bin", 2), "holds 1,222 bytes, not the 1,224 of 100 ids"),
    (cut(datatrove, ".ds", 1), "holds 199 bytes, not the 200 of 100 ids"),
    (made(NOTELESS), r"a.ds.metadata does not begin with NAME\|2 or NAME\|4"),
    (both_splits, "finds files of both splits, train and val; name them with"),
    (made({".bin": LFS}), "is a Git LFS pointer, not the file; fetch the file with"),
    (made({".pkl": b"\x80\4N."}), "names no file. A folder is searched for .bin, .npy"),
]


@pytest.mark.parametrize(("make", "message"), REFUSED, ids=range(len(REFUSED)))
def test_other_files_are_refused_and_nothing_is_kept(make, message, prepare, tmp_path):
    (tmp_path / "tokens").mkdir()
    make(tmp_path / "tokens")
    with pytest.raises((UserError, FileNotFoundError), match=message) as error:
        prepare(tmp_path / "tokens")
    assert "\n" not in str(error.value)
    assert not list((tmp_path / "cache").glob("corpora/*"))


def test_a_file_of_another_kind_or_of_both_splits_is_refused(prepare, tmp_path):
    (tmp_path / "a.txt").write_text("text")
    with pytest.raises(UserError, match=r"a\.txt is not named as a token file"):
        prepare(tmp_path / "a.txt")
    nanogpt(tmp_path / "a", range(100))
    with pytest.raises(UserError, match=r"is named by config\.data\.train and by"):
        prepare(tmp_path / "a.bin", tmp_path / "a.bin")
