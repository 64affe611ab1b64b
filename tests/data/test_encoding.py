"""Worker processes that encode: order, and what happens when the parent is gone."""

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from gpt1_jax.data.documents import Block
from gpt1_jax.data.encoding import Encoders
from gpt1_jax.data.progress import Progress

BLOCKS = [Block(f"the quick fox {'and ' * n}dog\n", n % 3 > 0) for n in range(40)]


@pytest.mark.parametrize("workers", [1, 2])
def test_encoders_give_the_blocks_in_order(
    tokenizer_dir, sentencepiece_tokenizer, workers
):
    tokenizer = sentencepiece_tokenizer
    with Encoders(tokenizer_dir, workers) as encoders, Progress(0, False) as progress:
        found = list(encoders.map(BLOCKS, progress))
    for block, encoded in zip(BLOCKS, found, strict=True):
        ids = tokenizer.encode(block.text.rstrip("\n"))
        assert encoded.ids.tolist() == ids + [tokenizer.newline_id] * block.ends_line
        assert encoded.words == len(block.text.split())
        assert encoded.bytes == len(block.text) - 1 + block.ends_line


def test_encoders_of_blank_text_give_nothing(tokenizer_dir):
    with Encoders(tokenizer_dir, 1) as encoders, Progress(0, False) as progress:
        (encoded,) = encoders.map([Block(" \n\t\n", True)], progress)
    assert (encoded.ids.tolist(), encoded.words, encoded.bytes) == ([], 0, 0)


PARENT = """
    import multiprocessing, sys, time
    from gpt1_jax.data.documents import Block
    from gpt1_jax.data.encoding import Encoders
    from gpt1_jax.data.progress import Progress

    if __name__ == "__main__":
        with Encoders(sys.argv[1], 2) as encoders, Progress(0, False) as progress:
            list(encoders.map([Block("the fox\\n", True)] * 50, progress))
            print(*(p.pid for p in multiprocessing.active_children()), flush=True)
            time.sleep(60)
"""


def is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="needs /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("group", [False, True])
def test_encoders_end_when_their_parent_is_gone(tmp_path, tokenizer_dir, number, group):
    program = tmp_path / "parent.py"
    program.write_text(textwrap.dedent(PARENT))
    with subprocess.Popen(
        [sys.executable, program, tokenizer_dir],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        workers = [int(pid) for pid in process.stdout.readline().split()]
        assert len(workers) == 2
        if group:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
    deadline = time.monotonic() + 20
    while any(map(is_alive, workers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(is_alive, workers))


@pytest.mark.parametrize("killed", [1, 2])
def test_encoders_whose_worker_is_killed_say_so(tokenizer_dir, killed):
    """The other one, which is handing over a result, ends too."""
    blocks = [Block("the quick fox " * 10_000, True)] * 40
    with (
        Encoders(tokenizer_dir, 2) as encoders,
        Progress(0, False) as progress,
        pytest.raises(ChildProcessError, match=r"fewer than 2 .*num_workers"),
    ):
        results = encoders.map(blocks, progress)
        for _ in range(10):  # until both are at work
            next(results)
        for child in multiprocessing.active_children()[:killed]:
            child.kill()
        list(results)
    assert not multiprocessing.active_children()
