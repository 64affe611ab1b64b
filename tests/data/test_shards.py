"""Shards and their checksums: what is compared when, and what damage does."""

import hashlib
import json
import shutil

import numpy as np
import pytest

from gpt1_jax.data import shards
from gpt1_jax.data.shards import (
    CorpusWriter,
    DamagedCorpus,
    TokenReader,
    Verification,
    open_corpus,
    token_dtype,
)
from gpt1_jax.errors import UserError

FORMAT_1_TOKENS = shards.SHARD_TOKENS


@pytest.fixture
def corpus_folder(tmp_path, monkeypatch):
    """A corpus of 1,000 training tokens in ten shards and 50 for validation."""
    monkeypatch.setattr(shards, "SHARD_TOKENS", 100)
    write_corpus(tmp_path / "corpus")
    return tmp_path / "corpus"


def write_corpus(folder):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    writer = CorpusWriter(folder, "f" * 64, np.dtype("<u2"))
    for name, number in (("train", 1000), ("valid", 50)):
        writer.add(name, np.arange(number), words=number // 2, num_bytes=number * 4)
    counts = {"train": 1, "valid": 1}
    writer.finish(counts, {"a.txt": "d" * 64}, {"a.txt": 4}, ["Beware."])


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_load_gives_what_was_written(corpus_folder):
    corpus = open_corpus(corpus_folder)
    assert corpus.train.tokens == 1000
    assert corpus.valid.words == 25
    assert corpus.documents == {"a.txt": "d" * 64}
    assert corpus.warnings == ["Beware."]
    reader = TokenReader(corpus, "train")
    assert reader.read(0, 1000).tolist() == list(range(1000))
    assert reader.read(98, 4).tolist() == [98, 99, 100, 101]  # from two shards
    assert reader.read(999, 5).tolist() == [999]


def test_the_digest_is_that_of_files_of_shards_as_format_1_had_them(corpus_folder):
    """So runs whose corpus had several go on."""
    checksums = {}
    for name, number in (("train", 1000), ("valid", 50)):
        ids = np.arange(number, dtype="<u2")
        for index, start in enumerate(range(0, number, 100)):
            part = ids[start : start + 100].tobytes()
            checksums[f"{name}-{index:05d}.bin"] = hashlib.sha256(part).hexdigest()
    assert len(checksums) == 11
    digest = hashlib.sha256(json.dumps(checksums, sort_keys=True).encode()).hexdigest()
    assert open_corpus(corpus_folder).digest == digest
    assert FORMAT_1_TOKENS == 2**26


def test_tokens_are_wide_for_a_large_vocabulary_and_special_tokens():
    assert (token_dtype(65_533), token_dtype(65_534)) == ("<u2", "<u4")


@pytest.mark.parametrize(
    ("name", "at"), [("train.bin", 0), ("train.bin", 1998), ("valid.bin", 50)]
)
def test_load_finds_a_changed_bit_in_any_shard(corpus_folder, name, at):
    flip(corpus_folder / name, at)
    with pytest.raises(DamagedCorpus, match=f"{name} differs from its checksum") as e:
        open_corpus(corpus_folder)
    assert f"Remove {corpus_folder}" in str(e.value)


def test_load_finds_any_change_of_the_record(corpus_folder, monkeypatch):
    monkeypatch.setattr(shards, "SHARD_TOKENS", 1000)
    write_corpus(corpus_folder)  # with fewer checksums to change
    path = corpus_folder / "corpus.json"
    sound = path.read_text("utf-8")
    texts = ["", "[]", "null", "{}", '{"train": 3}', "[" * 10**5]
    for at in range(0, len(sound), 2):
        if not sound[at].isspace():
            texts.append(sound[:at] + chr(ord(sound[at]) ^ 1) + sound[at + 1 :])
    for changed in texts:
        path.write_text(changed, "utf-8")
        with pytest.raises(DamagedCorpus, match=r"corpus\.json"):
            open_corpus(corpus_folder)


def test_load_of_another_format_is_refused(corpus_folder):
    path = corpus_folder / "corpus.json"
    record = json.loads(path.read_text())
    del record["sha256"]
    record["format"] = 1
    path.write_text(json.dumps({**record, "sha256": shards.json_digest(record)}))
    with pytest.raises(UserError, match=r"a prepared corpus .* reads format 2\. Use"):
        open_corpus(corpus_folder)


def test_load_of_a_large_corpus_does_not_wait_but_reads_raise(
    corpus_folder, monkeypatch
):
    """The checksums of a large corpus are compared while training goes on."""
    begin, sha256 = shards.threading.Event(), shards.sha256

    def slow(*part):
        begin.wait()
        return sha256(*part)

    monkeypatch.setattr(shards, "sha256", slow)
    monkeypatch.setattr(shards, "CHECK_SECONDS", 0.01)
    flip(corpus_folder / "train.bin", 1000)
    corpus = open_corpus(corpus_folder)
    reader = TokenReader(corpus, "train")
    assert len(reader.read(0, 10)) == 10
    begin.set()
    with pytest.raises(DamagedCorpus, match="train"):
        corpus.verification.wait(60)
    with pytest.raises(DamagedCorpus, match="train"):
        reader.read(0, 10)


def test_verification_of_a_file_that_cannot_be_read_is_damage(tmp_path):
    with pytest.raises(DamagedCorpus, match=r"gone\.bin cannot be read"):
        Verification([(shards.Shard("", tmp_path / "gone.bin", 0, 2), "0")]).wait(60)
