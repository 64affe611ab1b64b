"""Encodes blocks of text, here and on several processes.

Each process runs this module as a program. So it neither copies this process, whose
threads JAX uses, nor imports the user's script again, as a process of `multiprocessing`
would.
"""

import collections
import concurrent.futures
import contextlib
import os
import pickle
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from gpt1_jax.data.text import clean
from gpt1_jax.data.tokenizers import Tokenizer, load_tokenizer

Place = str | os.PathLike[str]
_AHEAD = 4  # blocks for each process


class Block(NamedTuple):
    """A block of a text, or of the ids of a token file.

    Attributes:
      name: that of the text.
      split: "train" or "valid".
      text: the text, or the ids [tokens].
      size: how much of the text it is, for progress.
    """

    name: str
    split: str
    text: str | np.ndarray
    size: int = 0


class Encoded(NamedTuple):
    """A block as ids [tokens], its words and its bytes of cleaned UTF-8 text."""

    ids: np.ndarray
    words: int
    num_bytes: int


def encode_blocks(
    blocks: Iterable[Block], tokenizer_dir: Place, workers: int
) -> Generator[tuple[Block, Encoded], None, None]:
    """Encodes blocks in order, here and, if it takes long, on several processes.

    Closing the iterator ends the processes.

    Args:
      blocks: the blocks, of which a bounded number is read ahead.
      tokenizer_dir: the saved tokenizer, which each process loads.
      workers: number of processes; with one, this process does the work.

    Raises:
      ChildProcessError: if a process ends before its work is done.
    """
    tokenizer = load_tokenizer(tokenizer_dir)
    blocks, began = iter(blocks), time.monotonic()
    for block in blocks:
        yield block, encode(tokenizer, block.text)
        if workers > 1 and time.monotonic() - began >= tokenizer.seconds_to_load:
            break
    else:
        return
    pending: collections.deque[tuple[Block, concurrent.futures.Future[Encoded]]]
    pending = collections.deque()
    with _processes(tokenizer_dir, workers) as submit:
        for block in blocks:
            pending.append((block, submit(block.text)))
            if len(pending) > _AHEAD * workers:
                done, future = pending.popleft()
                yield done, future.result()
        for done, future in pending:
            yield done, future.result()


def encode(tokenizer: Tokenizer, text: str | np.ndarray) -> Encoded:
    """Cleans and encodes a block; each line's newline is a token. Ids stay as they are.

    Words and bytes of ids are those of their text.
    """
    if isinstance(text, np.ndarray):
        decoded = tokenizer.decode_text(text.tolist())
        return Encoded(text, len(decoded.split()), len(decoded.encode()))
    cleaned = clean(text)
    if not cleaned:
        return Encoded(np.zeros(0, np.uint32), 0, 0)
    ids = tokenizer.encode(cleaned)
    ends_line = text.endswith("\n")
    if ends_line:
        ids.append(tokenizer.newline_id)
    num_bytes = len(cleaned.encode()) + ends_line
    return Encoded(np.asarray(ids, np.uint32), len(cleaned.split()), num_bytes)


# --- processes ----------------------------------------------------------------


@contextlib.contextmanager
def _processes(
    tokenizer_dir: Place, workers: int
) -> Iterator[Callable[[Any], concurrent.futures.Future[Encoded]]]:
    """A function that lets one of several processes encode a text.

    They end with the block. They also end with this process, however it ends, because
    their input ends then. They are in process groups of their own, where Ctrl-C does
    not reach them.
    """
    idle: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
    # They can import what this process can, and nothing else from the working folder.
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)

    def encode_there(text: Any) -> Encoded:
        process = idle.get()
        try:
            found = _ask(process, text)
        except (EOFError, OSError, pickle.UnpicklingError) as error:
            raise ChildProcessError(
                "A tokenising process died, perhaps for lack of memory; use "
                f"fewer than {workers} with --config.data.num_workers=N."
            ) from error
        finally:
            idle.put(process)
        if isinstance(found, Exception):
            raise found
        return Encoded(*found)

    threads = concurrent.futures.ThreadPoolExecutor(workers)
    with contextlib.ExitStack() as stack:
        for _ in range(workers):
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, os.fspath(tokenizer_dir)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": paths},
                process_group=0,
            )
            stack.callback(_end, process)
            idle.put(process)
        stack.callback(threads.shutdown, wait=False, cancel_futures=True)
        yield lambda text: threads.submit(encode_there, text)


def _ask(process: "subprocess.Popen[bytes]", text: Any) -> Any:
    assert process.stdin and process.stdout
    pickle.dump(text, process.stdin)
    process.stdin.flush()
    return pickle.load(process.stdout)


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    with contextlib.suppress(OSError), process:  # closes its pipes, and waits
        pass


def main() -> None:
    """Encodes what comes on standard input until that ends; for `_processes`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    results = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # for what libraries print
    tokenizer = load_tokenizer(sys.argv[1])
    with contextlib.suppress(EOFError, BrokenPipeError, pickle.UnpicklingError):
        while True:  # until the other process is gone, perhaps in the middle of a text
            text = pickle.load(sys.stdin.buffer)
            try:
                found: Any = tuple(encode(tokenizer, text))
            except Exception as error:
                found = error
            pickle.dump(found, results)
            results.flush()


if __name__ == "__main__":
    main()
