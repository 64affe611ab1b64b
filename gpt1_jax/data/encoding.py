"""Blocks of text to token ids, on several processes."""

import collections
import concurrent.futures
import dataclasses
import multiprocessing
import os
import signal
import threading
import types
from collections.abc import Iterable, Iterator

import numpy as np

from gpt1_jax.data import tokenizers
from gpt1_jax.data.documents import Block
from gpt1_jax.data.progress import Progress
from gpt1_jax.data.text import clean

_GRACE_SECONDS = 1.0


@dataclasses.dataclass(frozen=True)
class Encoded:
    """A block of text as the corpus holds it."""

    ids: np.ndarray  # [tokens] uint32
    words: int
    bytes: int  # of cleaned UTF-8 text


class Encoders:
    """Encodes blocks in order, a bounded number of them ahead.

    Args:
      tokenizer_dir: the saved tokenizer, which each process loads.
      workers: number of processes; with one, this process does the work.
    """

    def __init__(self, tokenizer_dir: str | os.PathLike[str], workers: int):
        self._workers = workers
        self._pool: concurrent.futures.Executor | None = None
        if workers > 1:
            self._pool = concurrent.futures.ProcessPoolExecutor(
                workers,
                mp_context=multiprocessing.get_context("spawn"),
                initializer=_start_worker,
                initargs=(os.fspath(tokenizer_dir),),
            )
        else:
            _start_worker(tokenizer_dir)

    def __enter__(self) -> "Encoders":
        return self

    def __exit__(self, *exception: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def map(self, blocks: Iterable[Block], progress: Progress) -> Iterator[Encoded]:
        """The encoded blocks in the order of `blocks`.

        Raises:
          ChildProcessError: if a process ends before its work is done.
        """
        try:
            yield from self._map(blocks, progress)
        except concurrent.futures.BrokenExecutor as error:
            raise ChildProcessError(
                "A tokenising process died, perhaps for lack of memory; use "
                f"fewer than {self._workers} with --config.data.num_workers=N."
            ) from error

    def _map(self, blocks: Iterable[Block], progress: Progress) -> Iterator[Encoded]:
        if self._pool is None:
            for block in blocks:
                yield _encode(block)
                progress.update(len(block.text))
            return
        pending: collections.deque = collections.deque()
        for block in blocks:
            pending.append((self._pool.submit(_encode, block), len(block.text)))
            while len(pending) > 4 * self._workers or (
                pending and pending[0][0].done()
            ):
                future, size = pending.popleft()
                yield future.result()
                progress.update(size)
        for future, size in pending:
            yield future.result()
            progress.update(size)


_tokenizer: tokenizers.Tokenizer | None = None  # of this worker process


def _start_worker(tokenizer_dir: str | os.PathLike[str]) -> None:
    global _tokenizer
    parent = multiprocessing.parent_process()
    if parent is not None:
        # Signals are the parent's to handle; a worker ends when the parent does. The
        # pool itself ends its workers by SIGTERM when one of them has died.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, _end_late)
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    _tokenizer = tokenizers.load(tokenizer_dir)


def _end_late(number: int, frame: types.FrameType | None) -> None:
    """Ends this process, but not before its parent has handled the same signal."""
    del number, frame
    threading.Timer(_GRACE_SECONDS, os._exit, [1]).start()


def _end_with(parent: "multiprocessing.process.BaseProcess") -> None:
    """Ends this process when its parent is gone: it would wait for work for ever."""
    parent.join()
    os._exit(1)


def _encode(block: Block) -> Encoded:
    """Cleans and encodes one block; each line's newline is a token."""
    text = clean(block.text)
    if not text or _tokenizer is None:
        return Encoded(np.zeros(0, np.uint32), 0, 0)
    ids = _tokenizer.encode(text)
    if block.ends_line:
        ids.append(_tokenizer.newline_id)
    size = len(text.encode()) + block.ends_line
    return Encoded(np.asarray(ids, np.uint32), len(text.split()), size)
