"""Token files of other programs: their formats, what is refused, what is counted."""

import json
import struct
import subprocess
import sys

import numpy as np
import pytest
import tokenizers
from etils import epath
from made_up_tokenizer import Numbers
from tokenizers import decoders, models, pre_tokenizers, trainers

from gpt1_jax.data import token_files
from gpt1_jax.data.corpus import find_texts
from gpt1_jax.data.shards import TokenReader
from gpt1_jax.data.tokenizers import load_tokenizer
from gpt1_jax.errors import UserError

END = "<|endoftext|>"
TEXTS = {
    "train": "the quick brown fox\njumps over a lazy dog\nthe dog naps\n" * 30,
    "valid": "a café by the river\nthe quick dog\n" * 5,
}


@pytest.fixture(scope="module")
def rules(tmp_path_factory):
    """The path of a byte-level tokenizer."""
    path = tmp_path_factory.mktemp("rules") / "tokenizer.json"
    trained = tokenizers.Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()
    what = dict(vocab_size=300, initial_alphabet=letters, special_tokens=[END])
    trainer = trainers.BpeTrainer(**what, show_progress=False)
    trained.train_from_iterator(TEXTS.values(), trainer)
    trained.save(str(path))
    return path


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


def big_endian_array(path, ids):
    numpy_array(path, ids, ">u2")


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


FORMATS = [nanogpt, numpy_array, big_endian_array, llm_c, datatrove, wide_datatrove]


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


def test_the_end_of_the_only_file_is_held_out(rules, prepare, tmp_path):
    ids = load_tokenizer(rules).encode(TEXTS["train"])
    nanogpt(tmp_path / "a", ids)
    corpus = prepare(tmp_path / "a.bin", valid_fraction=0.25)
    kept = [TokenReader(corpus, name).read(0, len(ids)) for name in ("train", "valid")]
    assert np.concatenate(kept).tolist() == ids
    assert len(kept[1]) == round(len(ids) / 4)


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
    for name in ("a", "b"):
        nanogpt(tmp_path / name, load_tokenizer(rules).encode(TEXTS["train"]))
    shown = []
    config = data_config(source="tokens", train=str(tmp_path))
    documents, _ = find_texts(config, tmp_path, shown.append)
    for document in documents:
        document.check(load_tokenizer(rules))
    (line,) = shown
    assert line.startswith(f"{tmp_path / 'a.bin'} begins: 'the quick brown fox\\njumps")


# --- what is refused ----------------------------------------------------------


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
    (made({".bin": b""}), "is empty; remove it"),
    (made({".npy": b"\x93NUMPY\1\0\x76\0{'descr'"}), "is a damaged .npy file"),
    (cut(numpy_array, ".npy", 8), "holds 920 bytes, not the 928 of 100 ids of 8"),
    (array(np.zeros((3, 4), np.int32)), r"int32 of shape \(3, 4\); expected whole num"),
    (array(np.zeros(3)), r"an array of float64 of shape \(3,\)"),
    (array(np.array([{}])), r"an array of object of shape \(1,\)"),
    (cut(llm_c, ".bin", 2), "holds 1,222 bytes, not the 1,224 of 100 ids"),
    (cut(datatrove, ".ds", 1), "holds 199 bytes, not the 200 of 100 ids"),
    (made(NOTELESS), r"a.ds.metadata does not begin with NAME\|2 or NAME\|4"),
    (both_splits, "finds files of both splits, train and val; name them with"),
    (made({".bin": LFS}), "is a Git LFS pointer, not the file; fetch the file with"),
    (
        lambda f: (f / "a.bin").symlink_to(f / "gone.bin"),
        "finds .*a.bin, a link to a file that is not there; remove the",
    ),
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


@pytest.mark.parametrize("ids", [[3], [0] * 20, [1, 0] * 3])
def test_few_or_blank_ids_are_not_taken_for_halves_of_others(ids, rules, tmp_path):
    nanogpt(tmp_path / "a", ids)
    document = document_of(tmp_path / "a.bin")
    document.check(load_tokenizer(rules))
    assert document.length == len(ids)


def test_a_damaged_header_is_one_line_whatever_byte_it_is(rules, tmp_path):
    """NumPy parses it as Python; its errors are of many classes."""
    numpy_array(tmp_path / "a", range(50))
    path, sound = tmp_path / "a.npy", (tmp_path / "a.npy").read_bytes()
    tokenizer, refused = load_tokenizer(rules), 0
    for at in range(128):
        for changed in (sound[at] ^ 1, sound[at] ^ 64, ord("("), ord("'"), 0):
            path.write_bytes(sound[:at] + bytes([changed]) + sound[at + 1 :])
            try:
                document_of(path).check(tokenizer)
            except UserError as error:
                refused += 1
                assert str(path) in str(error) and "\n" not in str(error)
    assert refused > 200


def test_a_file_of_another_kind_or_of_both_splits_is_refused(prepare, tmp_path):
    (tmp_path / "a.txt").write_text("text")
    with pytest.raises(UserError, match=r"a\.txt is not named as a token file"):
        prepare(tmp_path / "a.txt")
    nanogpt(tmp_path / "a", range(100))
    with pytest.raises(UserError, match=r"is named by config\.data\.train and by"):
        prepare(tmp_path / "a.bin", tmp_path / "a.bin")


# --- the real engine ----------------------------------------------------------

DATATROVE = """
import sys
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.tokens import DocumentTokenizer

if __name__ == "__main__":
    texts, tokens, rules, logs = sys.argv[1:]
    tokenizer = DocumentTokenizer(
        tokens, rules, eos_token="<|endoftext|>", shuffle_documents=False
    )
    LocalPipelineExecutor(
        [JsonlReader(texts), tokenizer], tasks=2, workers=2, logging_dir=logs
    ).run()
"""


@pytest.mark.slow
def test_what_datatrove_writes_is_read(rules, prepare, tmp_path):
    pytest.importorskip("datatrove", reason="datatrove is not installed")
    (tmp_path / "texts").mkdir()
    for number, text in enumerate(TEXTS.values()):
        lines = (json.dumps({"text": text, "id": str(i)}) for i in range(3))
        (tmp_path / "texts" / f"{number}.jsonl").write_text("\n".join(lines))
    (tmp_path / "run.py").write_text(DATATROVE)
    places = (tmp_path / "texts", tmp_path / "tokens", rules, tmp_path / "logs")
    program = [sys.executable, "run.py", *map(str, places)]
    subprocess.run(program, cwd=tmp_path, check=True, capture_output=True)
    files = sorted((tmp_path / "tokens").glob("*.ds"))
    assert len(files) == 2
    corpus = prepare(*files)
    tokenizer = load_tokenizer(rules)
    for name, text in TEXTS.items():
        found = TokenReader(corpus, name).read(0, 10**6)
        assert tokenizer.decode(found.tolist()) == f"{text}{END}" * 3
        assert getattr(corpus, name).words == 3 * len(text.split())
