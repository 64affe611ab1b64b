"""Blocks of text to ids, here and on processes: order, words, and how they end."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

from gpt1_jax.data.encoder import Block, encode_blocks
from gpt1_jax.errors import UserError

TEXTS = [f"the quick fox {'and ' * n}dog" + "\n" * (n % 3 > 0) for n in range(40)]


def blocks_of(texts):
    return [Block(str(n), "train", text) for n, text in enumerate(texts)]


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A working folder with a module of the name of one of Python's."""
    (tmp_path / "json.py").write_text("raise ImportError('of the working folder')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)


@pytest.mark.usefixtures("processes", "elsewhere")
@pytest.mark.parametrize("workers", [1, 2])
def test_blocks_come_in_order(tokenizer_dir, sentencepiece_tokenizer, workers, capfd):
    """A few are read ahead. Ids stay as they are, and their text is counted.

    Processes import what this one can, and nothing from the working folder besides.
    """
    tokenizer, read = sentencepiece_tokenizer, []
    text = "the fox\nand the naïve dog"
    ids = np.array(tokenizer.encode(text), np.uint16)

    def blocks():
        for block in blocks_of([*TEXTS, *[ids] * 6]):
            read.append(block)
            yield block

    found = encode_blocks(blocks(), tokenizer_dir, workers)
    for number, (block, encoded) in enumerate(found):
        assert len(read) <= number + 10
        assert block is read[number]
        if number >= len(TEXTS):
            assert encoded.ids.tolist() == ids.tolist()
            assert (encoded.words, encoded.num_bytes) == (6, len(text.encode()))
            continue
        line = block.text.rstrip("\n")
        newline = [tokenizer.newline_id] * (block.text != line)
        assert encoded.ids.tolist() == tokenizer.encode(line) + newline
        assert encoded.words == len(block.text.split())
        assert encoded.num_bytes == len(block.text)
    assert len(read) == len(TEXTS) + 6
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("processes")
def test_what_a_process_raises_is_raised_here(tokenizer_dir):
    with pytest.raises((IndexError, UserError, ValueError)):
        blocks = blocks_of(["the fox\n", np.array([10**6])])
        list(encode_blocks(blocks, tokenizer_dir, 2))


PARENT = """
    import contextlib, subprocess, sys, time
    from gpt1_jax.data import encoder
    from gpt1_jax.data.tokenizers import Tokenizer

    print("top", flush=True)
    Tokenizer.seconds_to_load = 0.0
    started, start = [], subprocess.Popen

    def note(*arguments, **options):
        started.append(start(*arguments, **options))
        return started[-1]

    subprocess.Popen = note
    blocks = [encoder.Block("", "train", "the fox\\n" * 9)] * 50
    with contextlib.closing(encoder.encode_blocks(blocks, sys.argv[1], 2)) as found:
        for _ in range(20):
            next(found)
        print(*(process.pid for process in started), flush=True)
        time.sleep(60)
"""


@pytest.fixture
def parent(tmp_path, tokenizer_dir):
    """A script without a main guard, at work, and the numbers of its processes."""
    if not os.path.exists("/proc/self/stat"):
        pytest.skip("needs /proc")
    program = tmp_path / "parent.py"
    program.write_text(textwrap.dedent(PARENT))
    process = subprocess.Popen(
        [sys.executable, program, tokenizer_dir],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout.readline() == "top\n"
    yield process, [int(pid) for pid in process.stdout.readline().split()]
    process.kill()
    process.communicate()


def is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for_the_end(pids):
    deadline = time.monotonic() + 20
    while any(map(is_alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(is_alive, pids))


def test_processes_end_when_their_parent_is_gone(parent):
    process, pids = parent
    assert len(pids) == 2
    process.kill()
    wait_for_the_end(pids)
    assert process.communicate()[1] == ""


def test_an_interrupt_is_the_parent_s_alone(parent):
    """Ctrl-C goes to the whole group, even before a process can ignore it.

    Processes do not run the user's script again.
    """
    process, pids = parent
    assert process.pid not in map(os.getpgid, pids)
    for pid in pids:
        os.kill(pid, signal.SIGINT)
    os.killpg(process.pid, signal.SIGINT)
    output, errors = process.stdout.read(), process.stderr.read()
    assert output == ""
    assert errors.count("Traceback") == 1 and "KeyboardInterrupt" in errors
    wait_for_the_end(pids)


def test_a_process_that_is_killed_is_told_and_the_others_end(tokenizer_dir, processes):
    found = encode_blocks(blocks_of(["the quick fox " * 9000] * 40), tokenizer_dir, 2)
    with pytest.raises(ChildProcessError, match=r"fewer than 2 .*num_workers"):
        for number, _ in enumerate(found):
            if number == 10:  # both are at work
                processes[0].kill()
    assert len(processes) == 2
    assert all(process.returncode is not None for process in processes)
