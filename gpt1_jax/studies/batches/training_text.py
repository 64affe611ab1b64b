"""The text that each update of a pre-training run reads, and the updates of a text.

Batches are a pure function of (seed, step), so the run folder and the corpus tell what
each update read, also after a resume and with any number of devices.
"""

from typing import Any

import numpy as np
from etils import epath

from gpt1_jax.data.corpus import prepare_corpus
from gpt1_jax.data.shards import TokenReader
from gpt1_jax.data.windows import TrainWindows
from gpt1_jax.errors import UserError
from gpt1_jax.runs.checkpoint_files import newest_metadata, saved_steps
from gpt1_jax.runs.pretrained import read_pretrained
from gpt1_jax.runs.resume import saved_digests, which_documents
from gpt1_jax.studies.batches.passages import find_passage
from gpt1_jax.studies.config import SAME_TEXT, TextConfig


class TrainingText:
    """The text that a run has read, by update.

    Update N is the one that makes state N, from 1.

    Args:
      folder: the run folder.
      text: where the text is now.

    Attributes:
      num_steps: the updates that the run has taken, up to its newest saved step.

    Raises:
      UserError: if the folder holds no pre-training run, or the text has changed.
      OSError: if the text cannot be read.
    """

    def __init__(self, folder: epath.Path, text: TextConfig = SAME_TEXT):
        run = read_pretrained(folder)
        if run is None:
            raise UserError(
                f"{folder} is no pre-training run: only these read a corpus, batch by "
                "batch. Name the folder of one with --config.init_from=DIR."
            )
        self._folder, self._origin_steps = folder, run.taken_over
        self.num_steps = max(saved_steps(folder), default=0)
        self._corpus, self._tokenizer = prepare_corpus(
            text.applied_to(run.config.data),
            run.config.tokenizer,
            own_tokenizer=folder / "tokenizer",
        )
        saved = saved_digests(newest_metadata(folder)).get("text")
        if saved != self._corpus.digest:
            which = which_documents(folder, self._corpus.documents)
            raise UserError(
                f"The text is not what the run in {folder} was trained on{which}; name "
                "that with --config.data.train=PATHS and --config.data.valid=PATHS."
            )
        self._reader = TokenReader(self._corpus, "train")
        self._seq_len = run.config.model.max_seq_len
        self._batch_size = run.config.train.batch_size
        self._windows = TrainWindows(
            self._reader,
            self._seq_len,
            self._batch_size,
            slice(0, self._batch_size),
            run.num_steps or self.num_steps,
            run.config.seed,
        )
        sizes = self._corpus.document_tokens
        self._names = list(sizes)
        self._firsts = np.cumsum([0, *sizes.values()])  # first token of each document

    def batch(self, step: int) -> list[dict[str, Any]]:
        """The sequences that update `step` read, a record for each.

        Returns:
          "step", "row" and "epoch" (both from 1), "documents": where its tokens come
          from, as `places` says, and "text", decoded.

        Raises:
          UserError: if the run has taken no such update.
        """
        first = self._origin_steps + 1
        if not first <= step <= self.num_steps:
            origin = "; those before were its origin's" if self._origin_steps else ""
            raise UserError(
                f"The run in {self._folder} has no update {step}: its saved states "
                f"hold those from {first} to {self.num_steps}{origin}."
            )
        return [
            {
                "step": step,
                "row": row,
                "epoch": self._windows.epoch(step - 1, row - 1) + 1,
                "documents": self.places(start, self._seq_len),
                "text": self._tokenizer.decode(
                    self._reader.read(start, self._seq_len).tolist()
                ),
            }
            for row, start in enumerate(self._windows.starts(step - 1), 1)
        ]

    def places(self, start: int, length: int) -> list[dict[str, Any]]:
        """The documents that tokens of the split come from.

        Args:
          start: the first token.
          length: how many there are.

        Returns:
          For each document its "document" name, the offset in it of the "first_token",
          from 0, and "num_tokens". Empty if the corpus does not know.
        """
        found = []
        stop = start + length
        while self._names and start < stop:
            index = int(np.searchsorted(self._firsts, start, side="right")) - 1
            end = min(stop, int(self._firsts[index + 1]))
            place = {
                "document": self._names[index],
                "first_token": start - int(self._firsts[index]),
                "num_tokens": end - start,
            }
            found.append(place)
            start = end
        return found

    def find(self, passage: str) -> tuple[int, list[dict[str, Any]]]:
        """Finds the updates that read a passage.

        Args:
          passage: the text, searched for by `find_passage`.

        Returns:
          In how many places of the training text it is, and a record for each time
          that an update read one of them: "step", "row", "epoch", "place" (from 1, in
          the order of the text), "documents" (where the part is that was read), and
          "part": "whole", or "beginning", "middle" or "end", where windows cut it.

        Raises:
          UserError: if the passage holds no token.
        """
        spans = list(find_passage(self._reader, self._tokenizer, passage))
        starts, stops = np.asarray(spans, np.int64).reshape(-1, 2).T
        records = []
        for step in range(self._origin_steps + 1, self.num_steps + 1) if spans else ():
            windows = np.asarray(self._windows.starts(step - 1))
            first = np.searchsorted(stops, windows, side="right")
            last = np.searchsorted(starts, windows + self._seq_len)
            for row in np.flatnonzero(first < last).tolist():
                records += [
                    {
                        "step": step,
                        "row": row + 1,
                        "epoch": self._windows.epoch(step - 1, row) + 1,
                        "place": place + 1,
                        **self._part(int(windows[row]), *spans[place]),
                    }
                    for place in range(first[row], last[row])
                ]
        return len(spans), records

    def _part(self, window: int, start: int, stop: int) -> dict[str, Any]:
        """The part of a passage that a window holds, and where it is."""
        first, last = max(window, start), min(window + self._seq_len, stop)
        begins, ends = first == start, last == stop
        parts = {(True, True): "whole", (True, False): "beginning"}
        part = parts.get((begins, ends), "end" if ends else "middle")
        return {"documents": self.places(first, last - first), "part": part}
