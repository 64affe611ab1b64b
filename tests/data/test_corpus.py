"""From text files to token shards: contents, counts, reuse, failures."""

import concurrent.futures
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
from gpt1_jax.data import builtin, corpus, named_texts, shards
from gpt1_jax.data.corpus import find_texts
from gpt1_jax.data.sentencepiece_tokenizer import SentencePieceTokenizer
from gpt1_jax.data.shards import Corpus, TokenReader, token_dtype
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


# --- what is written ----------------------------------------------------------


def test_prepare_tokens_decode_to_the_cleaned_text(tmp_path, prepare, books):
    messy = {
        name: "\ufeff" + text.title().replace("\n", " \r\n\r\n\t").replace(" ", "  ")
        for name, text in books.items()
    }
    write_books(tmp_path / "books", messy)
    prepared, tokenizer = prepare(TRAINED)
    train = tokenizer.decode(tokens_of(prepared, "train"))
    valid = tokenizer.decode(tokens_of(prepared, "valid"))
    assert valid in books.values()
    text = "".join(text for text in books.values() if text != valid)
    assert train == text
    assert tokens_of(prepared, "train").tolist() == tokenizer.encode(text)
    assert prepared.tokenizer_digest == tokenizer.digest


def test_prepare_counts_are_those_of_the_cleaned_text(tmp_path, prepare, books):
    write_books(tmp_path / "books", {"book1.txt": "  Naïve\tfox \n\n\nthe dog\n"})
    train, valid = [tmp_path / "books" / f"book{i}.txt" for i in (1, 2)]
    prepared, tokenizer = prepare(train=str(train), valid=str(valid))
    assert prepared.train.documents == prepared.valid.documents == 1
    assert prepared.train.words == 4
    assert prepared.train.bytes == len("naïve fox\nthe dog\n".encode())
    assert prepared.train.tokens == len(tokenizer.encode("naïve fox\nthe dog\n"))
    assert prepared.valid.words == 200
    assert prepared.valid.bytes == len(books["book2.txt"])
    assert prepared.valid.tokens == len(tokens_of(prepared, "valid"))


@pytest.mark.parametrize(
    ("vocab_size", "dtype"),
    [(100, "<u2"), (65_533, "<u2"), (65_534, "<u4"), (100_000, "<u4")],
)
def test_token_dtype_has_room_for_three_special_tokens(vocab_size, dtype):
    assert token_dtype(vocab_size) == np.dtype(dtype)
    assert vocab_size + 3 - 1 <= np.iinfo(dtype).max


def test_prepare_writes_wide_tokens_for_a_large_vocabulary(prepare, books, monkeypatch):
    narrow = tokens_of(prepare()[0], "train")
    monkeypatch.setattr(shards, "NUM_SPECIAL_TOKENS", 1 << 16)
    wide, _ = prepare(valid_fraction=0.11)  # another key, the same split
    wide = tokens_of(wide, "train")
    assert (narrow.dtype, wide.dtype) == (np.uint16, np.uint32)
    assert narrow.tolist() == wide.tolist()


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


# --- order, blocks, shards ----------------------------------------------------


def split_bytes(prepared: Corpus) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in prepared.directory.iterdir()}


def test_prepare_small_blocks_change_nothing(tmp_path, prepare, make_text, monkeypatch):
    texts = {"lines.txt": make_text(500), "line.txt": make_text(500, "", 500)}
    write_books(tmp_path / "books", {**texts, "blank.txt": "\n" * 50 + "fox" + " " * 9})
    whole, _ = prepare(cache_dir=str(tmp_path / "whole"))
    monkeypatch.setattr(named_texts, "BLOCK_CHARS", 64)
    cut, _ = prepare(cache_dir=str(tmp_path / "cut"))
    assert cut.directory.name == whole.directory.name
    for split in ("train", "valid"):
        np.testing.assert_array_equal(tokens_of(cut, split), tokens_of(whole, split))
        assert getattr(cut, split).words == getattr(whole, split).words


def test_prepare_with_processes_writes_the_same_bytes_in_order(
    tmp_path, prepare, books, monkeypatch, processes
):
    monkeypatch.setattr(named_texts, "BLOCK_CHARS", 100)  # some hundred blocks
    one, _ = prepare(cache_dir=str(tmp_path / "one"), num_workers=1)
    two, _ = prepare(cache_dir=str(tmp_path / "two"), num_workers=2)
    assert len(processes) == 2
    assert split_bytes(one) == split_bytes(two)
    assert one.directory.name == two.directory.name


def test_prepare_small_corpus_starts_no_processes(
    prepare, books, processes, monkeypatch
):
    monkeypatch.setattr(Tokenizer, "seconds_to_load", 60.0)
    prepare(num_workers=2)
    assert not processes


# --- the split ----------------------------------------------------------------


def test_prepare_counts_the_words_of_a_held_out_tail(tmp_path, prepare, monkeypatch):
    """Where words differ from place to place, so that a share would be wrong."""
    monkeypatch.setattr(named_texts, "BLOCK_CHARS", 1 << 14)
    text = "xylophonist quetzalcoatl\n" * 2000 + "the fox and the dog\n" * 8000
    write_books(tmp_path / "books", {"only.txt": text})
    prepared, tokenizer = prepare(valid_fraction=0.3)
    head, tail = (tokenizer.decode(tokens_of(prepared, s)) for s in ("train", "valid"))
    assert head + tail == text
    told = {"words": len(tail.split()), "bytes": len(tail)}
    for name, counted in told.items():
        assert getattr(prepared.valid, name) == pytest.approx(counted, abs=1)
        share = counted / (counted + getattr(prepared.train, name))
        assert abs(share / 0.3 - 1) > 0.05, "the test should tell them apart"


def test_prepare_explicit_validation_files_are_taken_whole(tmp_path, prepare, books):
    """Even a last line without a newline ends its document."""
    write_books(tmp_path, {"v1.txt": "the fox", "v2.txt": "a dog\n"})
    prepared, tokenizer = prepare(valid=f"{tmp_path}/v?.txt")
    assert tokenizer.decode(tokens_of(prepared, "valid")) == "the fox\na dog\n"
    assert (prepared.train.documents, prepared.valid.documents) == (10, 2)
    assert prepared.train.words == 2000


# --- reuse --------------------------------------------------------------------


def files_of(cache: Path) -> dict[str, tuple[int, int]]:
    """Every file of a cache with its inode and time."""
    return {
        str(path): (path.stat().st_ino, path.stat().st_mtime_ns)
        for path in cache.glob("*/**/*")
    }


def test_prepare_again_rewrites_nothing(tmp_path, prepare, books, monkeypatch):
    first, tokenizer = prepare(TRAINED)
    before = files_of(tmp_path / "cache")
    assert len(before) > 4

    def refuse(*_):
        raise AssertionError("work is done again")

    monkeypatch.setattr(SentencePieceTokenizer, "train", refuse)
    monkeypatch.setattr(SentencePieceTokenizer, "encode", refuse)
    again, same = prepare(TRAINED)
    assert files_of(tmp_path / "cache") == before
    assert (again, same.digest) == (first, tokenizer.digest)


@pytest.fixture
def count_reads(tmp_path):
    """`count_reads()`: how often each book was read since it was last called."""
    opened: list[str] | None = []

    def hook(event, details):  # cannot be removed, so it does nothing in the end
        if event == "open" and opened is not None:
            opened.append(str(details[0]))

    def count() -> list[int]:
        books = sorted((tmp_path / "books").iterdir())
        found = [opened.count(str(book)) for book in books]
        opened.clear()
        return found

    sys.addaudithook(hook)
    yield count
    opened = None


def test_prepare_reads_each_text_for_its_digest_and_to_tokenise_it(
    prepare, tokenizer_dir, books, count_reads
):
    """The tokenizer is trained on the way, and what is in the cache is not read."""
    trained = {"train_megabytes": 0.003}  # of ten times as much
    prepare(trained)
    assert count_reads() == [2] * 10
    prepare(trained)
    assert count_reads() == [0] * 10
    prepare()
    assert count_reads() == [2] * 10
    prepare(trained, own_tokenizer=tokenizer_dir)
    assert count_reads() == [0] * 10, "a run that resumes"


def test_prepare_sees_any_changed_file(tmp_path, prepare, books):
    """Even when its length is the same and the change a moment ago; and its name."""
    first, _ = prepare()
    folders = {first.directory}
    for name in ("book1.txt", "book2.txt", "book3.txt", "book4.txt"):
        text = books[name].replace("fox", "dog")
        (tmp_path / "books" / name).write_text(text)
        changed, _ = prepare()
        folders.add(changed.directory)
    assert tokens_of(first, "train").tolist() != tokens_of(changed, "train").tolist()
    assert prepare()[0] == changed
    (tmp_path / "books" / "book9.txt").rename(tmp_path / "books" / "last.txt")
    folders.add(prepare()[0].directory)
    assert len(folders) == 6


def test_prepare_change_trains_another_tokenizer(tmp_path, prepare, books):
    for name in ("book3.txt", "book4.txt"):  # of which one is for training
        prepare(TRAINED)
        text = books[name].replace("fox", "vex") + "vex vex"
        (tmp_path / "books" / name).write_text(text)
    prepare(TRAINED)
    assert len(list((tmp_path / "cache" / "tokenizers").iterdir())) >= 2


def test_prepare_with_another_tokenizer_is_another_corpus(prepare, books, tmp_path):
    write_books(tmp_path / "books", {"c.txt": "The End\n" * 100})
    cased = {"vocab_size": 399, "lowercase": False}
    wanted = [{"vocab_size": 390}, {"vocab_size": 399}, cased]
    corpora, tokenizers = zip(*map(prepare, wanted), strict=True)
    assert [each.vocab_size for each in tokenizers] == [390, 399, 399]
    assert [each.lowercase for each in tokenizers] == [True, True, False]
    assert len({corpus.directory for corpus in corpora}) == 3
    assert len({corpus.train.words for corpus in corpora}) == 1


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


# --- failures -----------------------------------------------------------------


def leftovers(cache: Path) -> list[str]:
    """Whatever a failed preparation left behind."""
    found = [p for p in cache.rglob("*") if p.name not in (".lock", "corpora")]
    return [str(path) for path in found if path.name != "tokenizers"]


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


def damage(path: Path, how: str) -> None:
    """Changes a file, or removes it."""
    data = path.read_bytes()
    half = len(data) // 2
    path.unlink()
    changed = {
        "flipped": data[:half] + bytes([data[half] ^ 4]) + data[half + 1 :],
        "cut": data[:-2],
        "empty": b"",
    }
    if how != "gone":
        path.write_bytes(changed[how])


def test_prepare_makes_a_damaged_corpus_or_tokenizer_again(
    tmp_path, prepare, books, capsys
):
    prepared, tokenizer = prepare(TRAINED)
    before = split_bytes(prepared)
    for name, how in (
        *(("train.bin", "flipped"), ("train.bin", "gone"), ("valid.bin", "cut")),
        *(("corpus.json", "empty"), ("corpus.json", "gone"), ("corpus.json", "cut")),
        *(("sentencepiece.model", "flipped"), ("sentencepiece.model", "gone")),
        *(("tokenizer.json", "gone"), ("tokenizer.json", "cut")),
    ):
        (path,) = (tmp_path / "cache").rglob(name)
        damage(path, how)
        again, same = prepare(TRAINED)
        assert (again, same.digest) == (prepared, tokenizer.digest), (name, how)
        assert split_bytes(again) == before, (name, how)
        out = capsys.readouterr().out
        assert str(path.parent) in out and "Making it again" in out, (name, how)


def test_prepare_uses_the_tokenizer_of_a_run_that_goes_on(
    tmp_path, prepare, tokenizer_dir, books
):
    own, tokenizer = prepare({"vocab_size": 399}, own_tokenizer=tokenizer_dir)
    assert tokenizer.vocab_size == 480
    assert not (tmp_path / "cache" / "tokenizers").exists()
    assert prepare()[0] == own


# --- warnings -----------------------------------------------------------------


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


def test_prepare_warns_of_a_share_far_from_the_one_asked_for(
    tmp_path, prepare, make_text
):
    """One document of three may be held out, and its bytes are worth more tokens."""
    texts = {f"{i}.txt": make_text(400, str(i)) for i in range(9)}
    write_books(tmp_path / "books", {**texts, "long.txt": "日本" * 200})
    found = []
    for fraction in np.linspace(0.02, 0.12, 11):
        prepared, _ = prepare(valid_fraction=float(fraction))
        share = prepared.valid.tokens / (prepared.train.tokens + prepared.valid.tokens)
        told = any("are held out for" in line for line in prepared.warnings)
        assert told == (not fraction / 2 <= share <= 2 * fraction)
        found.append(told)
    assert any(found)


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


@pytest.mark.parametrize(
    ("which", "fraction"), [("3 4 5 9", 0.05), (" ".join(map(str, range(12))), 0.2)]
)
def test_prepare_compressed_files_are_divided_as_plain_ones(
    prepare, packed, which, fraction
):
    """The same text is held out, the tokenizer is the same, and so are all tokens."""
    (plain, tokenizer), (corpus, same) = (
        prepare(TRAINED, train=packed(folder, names), valid_fraction=fraction)
        for folder, names in (("plain", ""), ("packed", which))
    )
    assert tokenizer.digest == same.digest
    assert corpus.digest == plain.digest
    assert (corpus.train, corpus.valid) == (plain.train, plain.valid)
    assert not corpus.warnings


@pytest.mark.parametrize(("megabytes", "times", "most"), [(1.0, 2, 0), (0.004, 3, 2)])
def test_prepare_reads_compressed_files_twice_and_then_never(
    prepare, packed, count_reads, megabytes, times, most
):
    """What is kept in memory, once; what is trained on and could not be, thrice."""
    packed("books", " ".join(map(str, range(12))))
    count_reads()  # of what is written
    prepare({"train_megabytes": megabytes})
    found = count_reads()
    assert set(found) <= set(range(1, times + 1))
    assert found.count(3) <= most
    prepare({"train_megabytes": megabytes})
    assert count_reads() == [0] * 12


def test_prepare_cuts_the_end_off_where_no_documents_are_the_wanted_share(
    tmp_path, prepare, make_text
):
    """Which is told, unless there is one document only."""
    text = ""
    for number, fraction in ((1, 0.9), (2, 0.02)):
        text += (book := make_text(5000, str(number)))
        write_books(tmp_path / "books", {f"{number}.txt": book})
        prepared, tokenizer = prepare(valid_fraction=fraction)
        train, valid = tokens_of(prepared, "train"), tokens_of(prepared, "valid")
        assert [*train, *valid] == tokenizer.encode(text)
        assert len(valid) == round(fraction * (len(train) + len(valid)))
        assert len(valid) == prepared.valid.tokens
        assert (prepared.train.documents, prepared.valid.documents) == (number, 1)
        assert len(prepared.warnings) == number - 1
    assert "the end of the text is held out instead" in prepared.warnings[0]


def test_prepare_unwritable_cache_is_refused(tmp_path, prepare, books):
    (tmp_path / "file").touch()
    for cache in (tmp_path / "file", tmp_path / "file" / "cache"):
        with pytest.raises(OSError, match=rf"^{cache} .*--config\.data\.cache_dir"):
            prepare(cache_dir=str(cache))


def test_prepare_on_a_full_disk_is_one_line(tmp_path, prepare, books):
    """Files of more than 1,000 bytes are refused by the system, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    message = (
        rf"^{tmp_path}.* cannot be w.* \(File too large\).*--config\.data\.cache_dir"
    )
    try:
        with pytest.raises(OSError, match=message):
            prepare()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert prepare()[0].train.tokens


# --- memory -------------------------------------------------------------------


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
    assert peak(30) < peak(10) + 300_000


# --- progress -----------------------------------------------------------------


def test_the_bar_counts_what_its_total_does(tmp_path, prepare, packed, monkeypatch):
    """Bytes of text, whatever the files are: of compressed ones no more than all."""
    bars = []

    class Noting(corpus.Bar):
        def update(self, n=1):
            super().update(n)
            bars.append((self.n, self.total))

    monkeypatch.setattr(corpus, "Bar", Noting)
    packed("books", "0 1 2 3 4")
    marks = tmp_path / "marks.txt"
    marks.write_text("naïve fox<|mark|>" * 2000 + "the end")
    ends_without_newline = {"train": str(marks)}
    separated = {"train": str(marks), "document_separator": "<|mark|>"}
    for data in ({}, ends_without_newline, separated):
        bars.clear()
        prepare(progress=True, **data)
        assert all(0 < n <= total for n, total in bars)
        assert bars[-1][0] == bars[-1][1] > 20_000
        assert len({total for _, total in bars}) == 1


# --- where text comes from ----------------------------------------------------


def test_find_texts_names_the_module_of_a_source_that_is_not_there(
    tmp_path, data_config, monkeypatch
):
    monkeypatch.setitem(corpus.SOURCES, "builtin", "not_there:find_text")
    with pytest.raises(ValueError, match=r"source='builtin' needs not_there, .*=text"):
        find_texts(data_config(source="builtin", train=""), tmp_path, print)


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
