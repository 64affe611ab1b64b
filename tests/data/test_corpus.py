"""From text files to token shards: contents, counts, reuse, failures."""

import concurrent.futures
import dataclasses
import gzip
import json
import resource
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from gpt1_jax.config.sections import default_cache_dir
from gpt1_jax.data import builtin, named_texts, shards
from gpt1_jax.data.corpus import find_texts
from gpt1_jax.data.sentencepiece_tokenizer import SentencePieceTokenizer
from gpt1_jax.data.shards import Corpus, TokenReader
from gpt1_jax.data.tokenizers import Tokenizer
from gpt1_jax.errors import UserError

TRAINED = {}  # a tokenizer of the values by default


def tokens_of(prepared: Corpus, split: str) -> np.ndarray:
    reader = TokenReader(prepared, split)
    return reader.read(0, len(reader))


def write_books(folder: Path, texts: dict[str, str]) -> None:
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text)


@pytest.fixture
def books(tmp_path, make_text) -> dict[str, str]:
    """Ten short books in the folder that `data_config` reads."""
    texts = {f"book{i}.txt": make_text(200, f"book {i}") for i in range(10)}
    write_books(tmp_path / "books", texts)
    return texts


def test_prepare_tokens_decode_to_the_cleaned_text(tmp_path, prepare, books):
    messy = {
        name: "\ufeff" + text.title().replace("\n", " \r\n\r\n\t").replace(" ", "  ")
        for name, text in books.items()
    }
    write_books(tmp_path / "books", messy)
    prepared, tokenizer = prepare(TRAINED)
    valid = tokenizer.decode(tokens_of(prepared, "valid"))
    assert valid in books.values()
    text = "".join(text for text in books.values() if text != valid)
    assert tokenizer.decode(tokens_of(prepared, "train")) == text
    assert tokens_of(prepared, "train").tolist() == tokenizer.encode(text)
    assert prepared.tokenizer_digest == tokenizer.digest


def test_prepare_counts_are_those_of_the_cleaned_text(tmp_path, prepare):
    """Here of two files for validation, of which one ends without a newline."""
    write_books(tmp_path, {"train.txt": "  Naïve\tfox \n\n\nthe dog\n"})
    write_books(tmp_path, {"v1.txt": "the fox", "v2.txt": "a dog\n"})
    files = {"train": f"{tmp_path}/train.txt", "valid": f"{tmp_path}/v?.txt"}
    prepared, tokenizer = prepare(**files)
    assert tokenizer.decode(tokens_of(prepared, "valid")) == "the fox\na dog\n"
    for split, documents, text in (
        (prepared.train, 1, "naïve fox\nthe dog\n"),
        (prepared.valid, 2, "the fox\na dog\n"),
    ):
        size = len(tokenizer.encode(text)), 4, len(text.encode())
        assert dataclasses.astuple(split) == (documents, *size)


def test_prepare_trains_on_at_most_the_wanted_megabytes(
    tmp_path, prepare, make_text, monkeypatch
):
    monkeypatch.setattr(named_texts, "BLOCK_CHARS", 1000)
    write_books(tmp_path / "books", {"a.txt": make_text(20_000)})
    given_lines = []
    train = SentencePieceTokenizer.train

    def spy(lines, *arguments):
        given_lines.extend(lines)
        return train(given_lines, *arguments)

    monkeypatch.setattr(SentencePieceTokenizer, "train", spy)
    prepare({"train_megabytes": 0.03})
    assert 30_000 <= len("\n".join(given_lines)) < 32_000


def test_prepare_by_small_blocks_and_processes_writes_the_same_bytes(
    tmp_path, prepare, make_text, monkeypatch, processes
):
    """Processes are started only for a text that is worth them."""
    texts = {"lines.txt": make_text(500), "line.txt": make_text(500, "", 500)}
    write_books(tmp_path / "books", {**texts, "blank.txt": "\n" * 50 + "fox" + " " * 9})
    with monkeypatch.context() as patch:
        patch.setattr(Tokenizer, "seconds_to_load", 60.0)
        whole, _ = prepare(cache_dir=str(tmp_path / "whole"), num_workers=2)
    assert not processes
    monkeypatch.setattr(named_texts, "BLOCK_CHARS", 64)
    cut, _ = prepare(cache_dir=str(tmp_path / "cut"), num_workers=2)
    assert len(processes) == 2
    assert (cut.directory.name, cut.digest) == (whole.directory.name, whole.digest)
    assert cut.document_tokens == whole.document_tokens
    assert (cut.train.words, cut.valid.words) == (whole.train.words, whole.valid.words)


def test_prepare_makes_nothing_again_that_is_in_the_cache(
    prepare, tokenizer_dir, books, monkeypatch
):
    """No text is read for it, and the tokenizer of a run is not trained."""
    first, tokenizer = prepare(TRAINED)
    saved, _ = prepare()
    monkeypatch.setattr(named_texts, "read_plain_text", pytest.fail)
    again, same = prepare(TRAINED)
    assert (again, same.digest) == (first, tokenizer.digest)
    resumed, _ = prepare({"vocab_size": 399}, own_tokenizer=tokenizer_dir)
    assert resumed == saved != first


def test_prepare_sees_any_change_of_files_or_tokenizer(tmp_path, prepare, books):
    """Even when a length is the same and the change a moment ago; and a new name."""
    first, _ = prepare(TRAINED)
    for name in ("book3.txt", "book4.txt"):  # of which one is for training
        text = books[name].replace("fox", "vex")
        (tmp_path / "books" / name).write_text(text)
        changed, _ = prepare(TRAINED)
    assert tokens_of(first, "train").tolist() != tokens_of(changed, "train").tolist()
    (tmp_path / "books" / "book9.txt").rename(tmp_path / "books" / "last.txt")
    for wanted in (TRAINED, {"vocab_size": 399}, {"lowercase": False}):
        _, tokenizer = prepare(wanted)
        assert tokenizer.vocab_size == wanted.get("vocab_size", 480)
        assert tokenizer.lowercase == wanted.get("lowercase", True)
    for made in ("corpora", "tokenizers"):
        assert len(list((tmp_path / "cache" / made).iterdir())) == 6


@pytest.mark.parametrize(
    ("differs", "message"),
    [
        ({"lowercase": False}, r"set --config\.tokenizer\.lowercase=True"),
        ({"kind": "gpt1"}, r"holds a sentencepiece.*kind='gpt1'; set --.*=sentencep"),
    ],
)
def test_prepare_refuses_a_tokenizer_of_another_kind_or_case(
    prepare, tokenizer_dir, books, differs, message
):
    with pytest.raises(UserError, match=message):
        prepare({"path": str(tokenizer_dir), **differs})


def test_prepare_twice_at_a_time_works_once(prepare, books, monkeypatch):
    trained, train = [], SentencePieceTokenizer.train

    def slow(lines, vocab_size, lowercase):
        trained.append(vocab_size)
        time.sleep(0.3)
        return train(lines, vocab_size, lowercase)

    monkeypatch.setattr(SentencePieceTokenizer, "train", slow)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        one, other = pool.map(prepare, [TRAINED] * 2)
    assert trained == [480]
    assert one[0] == other[0]


def test_prepare_builtin_and_where_the_cache_may_be(
    tmp_path, prepare, monkeypatch, make_text
):
    texts = {f"module{i}": make_text(50, str(i)) for i in range(4)}
    monkeypatch.setattr(builtin, "_collect_docstrings", lambda _: texts)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "default"))
    monkeypatch.setenv("HOME", str(tmp_path))
    for named, found in (("", default_cache_dir()), ("~/of mine", "of mine")):
        prepared, _ = prepare(source="builtin", train="", cache_dir=named)
        assert prepared.directory.is_relative_to(tmp_path / found)
        assert prepared.train.words + prepared.valid.words == 200


def leftovers(cache: Path) -> list[str]:
    """Whatever a failed preparation left behind."""
    kept = (".lock", "corpora", "tokenizers")
    return [str(path) for path in cache.rglob("*") if path.name not in kept]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"train": "\u00ad\u00ad"}, "holds 0 tokens"),
        ({"train": "the fox", "valid": " \n"}, r"valid\.txt holds no text"),
    ],
)
def test_prepare_refuses_text_of_nothing_and_leaves_nothing(
    tmp_path, prepare, files, message
):
    write_books(tmp_path, {f"{name}.txt": text for name, text in files.items()})
    with pytest.raises(UserError, match=message):
        prepare(**{name: str(tmp_path / f"{name}.txt") for name in files})
    assert not leftovers(tmp_path / "cache")


@pytest.mark.parametrize("workers", [0, 2])
def test_prepare_interrupted_leaves_nothing(
    tmp_path, prepare, books, monkeypatch, processes, workers
):
    add, added = shards.CorpusWriter.add, []

    def interrupt(*arguments):
        added.append(add(*arguments))
        if len(added) == 5:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(named_texts, "BLOCK_CHARS", 100)
        patch.setattr(shards.CorpusWriter, "add", interrupt)
        with pytest.raises(KeyboardInterrupt):
            prepare(num_workers=workers or 1)
    assert len(processes) == workers
    assert not leftovers(tmp_path / "cache")
    assert all(process.returncode is not None for process in processes)
    assert prepare()[0].train.documents == 9


# Prepares again and again, each time killed at the next change of the cache, and then
# to the end. The last line says how many changes there are.
KILLED = """
import json, os, shutil, signal, sys
from pathlib import Path
from gpt1_jax.config.sections import DataConfig, TokenizerConfig
from gpt1_jax.data.corpus import prepare_corpus

texts, cache, first, each = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
CHANGES = {"os.mkdir", "os.rename", "os.truncate", "os.remove", "os.rmdir", "open"}
left = 10**9

def change(event, details):
    global left
    if event in CHANGES and cache in str(details[0]):
        if event != "open" or set(str(details[1])) & set("wax"):
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

def prepare(number):
    global left
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        left = number
        data = DataConfig(
            "text", texts, "", 0.1, "text", False, "", "text", "", cache, 1
        )
        tokenizer = TokenizerConfig("sentencepiece", 480, True, "", 1.0)
        corpus, _ = prepare_corpus(data, tokenizer, progress=False)
        counts = [corpus.digest, corpus.train.words, corpus.valid.bytes]
        os.write(writer, json.dumps(counts + [number - left]).encode())
        os._exit(0)
    os.close(writer)
    with open(reader) as file:
        text = file.read()
    os.waitpid(pid, 0)
    return json.loads(text) if text else []

sys.addaudithook(change)
*whole, changes = prepare(10**9)
for number in range(first, changes, each):
    shutil.rmtree(cache)
    assert not prepare(number), f"was not killed at {number} of {changes}"
    *again, _ = prepare(10**9)
    assert again == whole, number
    left_over = {path.name for path in Path(cache).rglob(".*")} - {".lock"}
    assert not left_over, (number, left_over)
print(changes)
"""


@pytest.mark.parametrize(
    ("first", "each"), [(5, 23), pytest.param(0, 1, marks=pytest.mark.slow)]
)
def test_prepare_killed_at_any_change_of_the_cache_is_done_by_the_next(
    tmp_path, make_text, first, each
):
    """Without a wait, and with nothing left over."""
    write_books(tmp_path / "books", {"only.txt": make_text(3000)})
    places = tmp_path / "books", tmp_path / "cache"
    arguments = [sys.executable, "-c", KILLED, *map(str, (*places, first, each))]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert not done.stderr
    assert int(done.stdout) > 50


@pytest.mark.parametrize("split", ["train", "valid"])
def test_prepare_names_a_bad_file_before_any_work(
    tmp_path, prepare, books, monkeypatch, split
):
    def train(lines, *arguments):
        assert not list(lines)  # reads them all first, as the trainer does

    monkeypatch.setattr(SentencePieceTokenizer, "train", train)
    (tmp_path / "bad.txt").write_bytes(b"good text\n" * 60_000 + b"\xff")
    with pytest.raises(UserError, match=r"bad\.txt:60001: .* is not UTF-8 text"):
        prepare(TRAINED, **{split: f"{tmp_path}/bad.txt"})


def test_prepare_makes_a_damaged_corpus_or_tokenizer_again(
    tmp_path, prepare, books, capsys
):
    prepared, tokenizer = prepare(TRAINED)

    def written() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in prepared.directory.iterdir()}

    def flipped(data: bytes) -> bytes:
        half = len(data) // 2
        return data[:half] + bytes([data[half] ^ 4]) + data[half + 1 :]

    before = written()
    for name, damage in (
        ("train.bin", flipped),
        ("valid.bin", lambda data: data[:-2]),
        ("corpus.json", lambda data: b""),
        ("corpus.json", None),
        ("sentencepiece.model", flipped),
        ("tokenizer.json", None),
    ):
        (path,) = (tmp_path / "cache").rglob(name)
        data = path.read_bytes()
        path.unlink()
        if damage:
            path.write_bytes(damage(data))
        again, same = prepare(TRAINED)
        assert (again, same.digest) == (prepared, tokenizer.digest), name
        assert written() == before, name
        out = capsys.readouterr().out
        assert str(path.parent) in out and "Making it again" in out, name


def test_prepare_warns_of_text_in_both_splits_each_time(
    tmp_path, prepare, books, capsys
):
    write_books(tmp_path / "held", {"same.txt": books["book3.txt"], "own.txt": "fox"})
    for _ in range(2):
        prepared, _ = prepare(valid=str(tmp_path / "held"), progress=True)
        (warning,) = prepared.warnings
        assert "1 of 2 validation documents" in warning
        assert f"{tmp_path}/held/same.txt holds the text of {tmp_path}/b" in warning
        assert f"WARNING: {warning}" in capsys.readouterr().out


@pytest.fixture
def packed(tmp_path, make_text):
    """`packed(folder, which)`: books of all sizes, those in `which` compressed."""

    def make(folder: str, which: str) -> str:
        (tmp_path / folder).mkdir()
        for number in range(12):
            name, text = f"{number}.txt", make_text(40 * (number + 1) ** 2, str(number))
            if number % 2 == 0:
                name, more = f"{number}.jsonl", "of the same" * 3
                rows = ({"text": line, "more": more} for line in text.splitlines())
                text = "".join(f"{json.dumps(row)}\n" for row in rows)
            data = text.encode()
            if str(number) in which.split():
                name, data = f"{name}.gz", gzip.compress(data, mtime=0)
            (tmp_path / folder / name).write_bytes(data)
        return str(tmp_path / folder)

    return make


EVERY = " ".join(map(str, range(12)))


@pytest.mark.parametrize(
    ("which", "fraction", "megabytes"),
    [("3 4 5 9", 0.05, 1.0), (EVERY, 0.2, 1.0), (EVERY, 0.1, 0.004)],
)
def test_prepare_compressed_files_are_divided_as_plain_ones(
    prepare, packed, which, fraction, megabytes
):
    """Same text held out, same tokenizer and tokens."""
    trained = {"train_megabytes": megabytes}
    how = {"train": packed("plain", ""), "valid_fraction": fraction}
    plain, tokenizer = prepare(trained, **how)
    how["train"] = packed("books", which)
    corpus, same = prepare(trained, **how)
    assert tokenizer.digest == same.digest
    assert corpus.digest == plain.digest
    assert (corpus.train, corpus.valid) == (plain.train, plain.valid)
    assert not corpus.warnings


def test_prepare_cuts_the_end_off_where_no_documents_are_the_wanted_share(
    tmp_path, prepare, make_text
):
    """Which is told, unless there is one document only.

    In the first, words differ from place to place, so that a share would be wrong.
    """
    first = "xylophonist quetzalcoatl\n" * 500 + "the fox and the dog\n" * 2000
    text = ""
    for number, fraction, book in ((1, 0.9, first), (2, 0.02, make_text(5000))):
        text += book
        write_books(tmp_path / "books", {f"{number}.txt": book})
        prepared, tokenizer = prepare(valid_fraction=fraction)
        train, valid = tokens_of(prepared, "train"), tokens_of(prepared, "valid")
        assert [*train, *valid] == tokenizer.encode(text)
        assert len(valid) == round(fraction * (len(train) + len(valid)))
        assert len(valid) == prepared.valid.tokens
        held = tokenizer.decode(valid)
        assert prepared.valid.words == pytest.approx(len(held.split()), abs=1)
        assert prepared.valid.bytes == pytest.approx(len(held.encode()), abs=2)
        assert (prepared.train.documents, prepared.valid.documents) == (number, 1)
        assert len(prepared.warnings) == number - 1
    assert "the end of the text is held out instead" in prepared.warnings[0]


def test_prepare_on_a_full_disk_or_an_unwritable_one_is_one_line(
    tmp_path, prepare, books
):
    """Files of more than 1,000 bytes are refused by the system, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    message = r".* cannot be w.* \(File too large\).*--config\.data\.cache_dir"
    try:
        with pytest.raises(OSError, match=f"^{tmp_path}{message}"):
            prepare()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert prepare()[0].train.tokens
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=rf"^{tmp_path}/file .*--config\.data\.cache_dir"):
        prepare(cache_dir=str(tmp_path / "file"))


def test_prepare_memory_does_not_grow_with_the_text(
    tmp_path, prepare, make_text, monkeypatch
):
    """In one document, of which the end is held out."""
    monkeypatch.setattr(named_texts, "BLOCK_CHARS", 1 << 14)
    monkeypatch.setattr(shards, "_MOVED", 1 << 12)
    text = make_text(20_000)  # 0.1 MB

    def peak(times: int) -> int:
        write_books(tmp_path / "books", {"only.txt": text * times})
        tracemalloc.start()
        corpus, _ = prepare(valid_fraction=0.5)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert corpus.train.words + corpus.valid.words == times * 20_000
        return most

    peak(1)
    assert peak(12) < peak(4) + 300_000


@pytest.mark.parametrize("valid", ["books/book3.txt", "link.txt"])
def test_find_texts_refuses_a_file_named_for_both_splits(
    tmp_path, data_config, books, monkeypatch, valid
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link.txt").symlink_to(tmp_path / "books" / "book3.txt")
    with pytest.raises(
        UserError, match=rf"^{valid} .* config\.data\.train and by config\.data\.valid"
    ):
        find_texts(data_config(valid=valid), tmp_path, print)
