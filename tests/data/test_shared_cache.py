"""A cache in a bucket: who makes a corpus, who fetches it, what killed hosts leave."""

import concurrent.futures
import contextlib
import json
import shutil
import threading
import time

import pytest

from gpt1_jax.data import corpus, owner, shards, shared_cache, tokenizers
from gpt1_jax.data.corpus import prepare_corpus
from gpt1_jax.data.files import write_json
from gpt1_jax.data.shards import TokenReader
from gpt1_jax.errors import UserError

BUCKET = []  # of the test at work


class Killed(BaseException):
    """Ends a host in the middle of its work."""


@pytest.fixture
def shared(tmp_path, monkeypatch):
    """The bucket, which is a folder here; hosts wait for a moment, not for a minute."""
    BUCKET[:] = [tmp_path / "bucket"]
    for module in (corpus, owner):
        monkeypatch.setattr(module, "is_remote", lambda path: "bucket" in str(path))
    monkeypatch.setattr(owner, "BEAT_SECONDS", 0.02)
    monkeypatch.setattr(owner, "PATIENCE_SECONDS", 0.3)
    monkeypatch.setattr(shared_cache, "_POLL_SECONDS", 0.02)
    return tmp_path / "bucket"


@pytest.fixture
def prepare_on(tmp_path, shared, data_config, tokenizer_config, make_text, monkeypatch):
    """`prepare_on(host)`: prepares a text with this host's disk, and the bucket."""
    (tmp_path / "books").mkdir()
    for number in range(3):
        (tmp_path / "books" / f"{number}.txt").write_text(make_text(300, str(number)))

    def run(host, progress=False, **arguments):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / host))
        data = data_config(cache_dir=str(shared), valid_fraction=0.3)
        return prepare_corpus(data, tokenizer_config(), progress=progress, **arguments)

    return run


@pytest.fixture
def no_work(monkeypatch):
    """`no_work()`: from now on, nothing is trained or encoded."""

    def refuse(*args):
        raise AssertionError("this host has nothing to make")

    def forbid():
        monkeypatch.setattr(corpus, "encode_blocks", refuse)
        monkeypatch.setattr(corpus.SentencePieceTokenizer, "train", refuse)

    return forbid


def all_tokens(prepared):
    splits = ("train", "valid")
    return [TokenReader(prepared, each).read(0, 10**6).tolist() for each in splits]


def records(shared):
    return sorted(shared.glob("*/*/shared.json"))


def test_a_second_host_fetches_what_the_first_has_made(
    prepare_on, shared, tmp_path, no_work
):
    first, tokenizer = prepare_on("a")
    assert len(records(shared)) == 2  # the tokenizer and the corpus
    assert not list(shared.glob("*/*/.lock.json"))
    no_work()
    second, same = prepare_on("b")
    assert second.directory.is_relative_to(tmp_path / "b")
    assert (second.digest, same.digest) == (first.digest, tokenizer.digest)
    assert all_tokens(second) == all_tokens(first)
    tokenizers = first.directory.parents[1] / "tokenizers"
    own = tokenizers / records(shared)[1].parent.name
    assert prepare_on("c", own_tokenizer=own)[0].digest == first.digest
    shutil.rmtree(shared)
    prepare_on("a")  # shares what it has, without making it
    assert prepare_on("d")[0].digest == first.digest


@contextlib.contextmanager
def dying(module, name, calls=0):
    """Kills the host in a call of a function, after a number of earlier ones.

    A host that is killed leaves its lease, and no `finally` of its is executed.
    """
    function, counted, leases = getattr(module, name), [], {}

    def die(*args, **kwargs):
        if str(args[0]).endswith(owner.LEASE_FILE):  # at any moment
            return function(*args, **kwargs)
        counted.append(args)
        if len(counted) > calls:
            leases.update(
                (path, path.read_text()) for path in BUCKET[0].rglob(owner.LEASE_FILE)
            )
            patch.setattr(shutil, "rmtree", lambda *args, **kwargs: None)
            raise Killed
        return function(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(module, name, die)
        yield
    for path, text in leases.items():
        path.write_text(text.replace('"owner": "', '"owner": "another'))


STAGES = [  # where the first host dies, and who is next
    ("training the tokenizer", corpus, "_training_lines", 0, "a"),
    ("saving the tokenizer", tokenizers, "create", 0, "b"),
    ("tokenising", corpus, "_write_corpus", 0, "a"),
    ("writing the corpus", shards, "write_json", 0, "b"),
    ("uploading the tokenizer", shared_cache.shutil, "copyfileobj", 1, "a"),
    ("uploading the corpus", shared_cache.shutil, "copyfileobj", 3, "b"),
    ("before the record", shared_cache, "write_json", 1, "a"),
]


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage[0])
def test_whoever_is_next_goes_on_for_a_host_that_died(stage, prepare_on, shared):
    _, module, name, calls, next_host = stage
    with dying(module, name, calls):
        prepare_on("a")
    assert len(records(shared)) < 2
    assert list(shared.rglob(owner.LEASE_FILE)), "it was killed while it held a lease"
    after, _ = prepare_on(next_host)
    assert len(records(shared)) == 2
    for record in records(shared):  # and nothing else is left
        kept = {json.loads(record.read_text())["folder"], record.name}
        assert {path.name for path in record.parent.iterdir()} == kept
    shutil.rmtree(shared)
    alone, _ = prepare_on("c")
    assert after.digest == alone.digest


def test_a_host_that_dies_while_it_fetches_has_nothing_and_fetches_again(
    prepare_on, tmp_path
):
    first, _ = prepare_on("a")
    with dying(shared_cache.shutil, "copyfileobj", 3):
        prepare_on("b")
    assert not list((tmp_path / "b").glob("gpt1_jax/corpora/[!.]*"))
    assert prepare_on("b")[0].digest == first.digest


def flipped(record):
    folder = record.parent / json.loads(record.read_text())["folder"]
    path = max(folder.iterdir(), key=lambda each: each.stat().st_size)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def changed(**values):
    def change(record):
        record.write_text(json.dumps({**json.loads(record.read_text()), **values}))

    return change


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (flipped, "differs from its checksum; making "),
        (lambda record: next(record.parent.glob("*/*.bin")).unlink(), "lacks a file"),
        (changed(folder="../.."), "is damaged (a name with folders); making "),
        (changed(sizes={"../../x": 1}), "is damaged (a name with folders)"),
        (changed(sizes=3), "is damaged ("),
        (lambda record: record.write_text('{"folder":'), ""),
    ],
)
def test_a_damaged_bucket_is_noticed_and_mended(
    damage, said, prepare_on, shared, tmp_path, capsys
):
    first, _ = prepare_on("a")
    damage(records(shared)[0])  # of the corpus
    second, _ = prepare_on("b", progress=True)
    assert said in capsys.readouterr().out
    assert second.digest == first.digest
    assert not (tmp_path / "b" / "x").exists()
    third, _ = prepare_on("c")
    assert third.digest == first.digest


def test_of_a_run_s_processes_the_others_wait_for_the_main_one(
    prepare_on, shared, no_work
):
    """Even those with the same disk, and whoever comes first."""
    first, _ = prepare_on("a")
    hidden = shared.rename(shared.with_name("hidden"))
    no_work()
    with concurrent.futures.ThreadPoolExecutor() as pool:
        waiting = pool.submit(prepare_on, "b", is_main=False)
        time.sleep(0.3)
        assert not waiting.done()
        with owner.exclusive(shared.parent / "b" / "gpt1_jax", print):
            pass  # the cache is free for the main process
        hidden.rename(shared)
        assert waiting.result(60)[0].digest == first.digest


def test_another_process_finds_damage_that_the_main_one_cannot_see(prepare_on, shared):
    prepare_on("a")
    flipped(records(shared)[0])
    with pytest.raises(UserError, match=r"differs from its checksum\. Remove .*bucket"):
        prepare_on("b", is_main=False)


def test_of_two_runs_one_makes_the_corpus(prepare_on, shared, no_work, capsys):
    """The other waits while a lease is kept, and finds what it was for."""
    first, _ = prepare_on("a")
    record = records(shared)[0]
    text = record.read_text()
    record.unlink()
    lease = record.with_name(owner.LEASE_FILE)
    held = {"owner": "x", "host": "host-7", "pid": 12}
    write_json(lease, {**held, "count": -1})

    def work():
        for count in range(40):  # for longer than an owner is watched
            write_json(lease, {**held, "count": count})
            time.sleep(0.02)
        record.write_text(text)
        lease.unlink()

    thread = threading.Thread(target=work)
    thread.start()
    no_work()
    second, _ = prepare_on("b", progress=True)
    thread.join()
    assert second.digest == first.digest
    assert f"{record.parent} is in use by process 12 on host" in capsys.readouterr().out


def test_a_disk_without_room_is_refused_before_anything_is_fetched(
    prepare_on, monkeypatch, tmp_path
):
    prepare_on("a")
    usage = shutil.disk_usage(tmp_path)._replace(free=10)
    monkeypatch.setattr(shared_cache.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(UserError, match="Make room, or set XDG_CACHE_HOME"):
        prepare_on("b")


def test_a_bucket_that_cannot_be_written_is_refused_before_any_work(
    prepare_on, no_work, monkeypatch
):
    def refuse(*args):
        raise PermissionError(13, "denied")

    monkeypatch.setattr(shared_cache, "check_writable", refuse)
    no_work()
    message = r"bucket/tokenizers/.* cannot be written \(denied\); name"
    with pytest.raises(PermissionError, match=message):
        prepare_on("a")
