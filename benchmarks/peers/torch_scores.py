"""transformers' OpenAI-GPT as it scores text fastest on a CPU."""

import argparse
import itertools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from transformers import OpenAIGPTLMHeadModel
from transformers.utils.logging import disable_progress_bar

# Of the logits and targets of M tokens, [1, M] or [3, M].
Values = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """log P by PyTorch's own, which keeps all log-probabilities on the way."""
    return -F.cross_entropy(logits, targets, reduction="none")[None]


def log_sum_exp(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The same without them."""
    chosen = logits.gather(1, targets[:, None])[:, 0]
    return (chosen - logits.logsumexp(dim=1))[None]


def with_ranks(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """log P, the target's rank, and the entropy of the distribution."""
    chosen = logits.gather(1, targets[:, None])
    total = logits.logsumexp(dim=1, keepdim=True)
    surprisals = total - logits
    ranks = 1 + (logits > chosen).sum(dim=1)
    entropies = ((-surprisals).exp() * surprisals).sum(dim=1)
    return torch.stack([(chosen - total)[:, 0], ranks.float(), entropies])


def make_peer(
    folder: str,
    windows: Sequence[Any],
    sample: Sequence[Any],
    ranks_and_entropies: bool,
    flags: argparse.Namespace,
    result: dict[str, Any],
) -> Callable[[], list[np.ndarray]]:
    """Scores windows in the way that is fastest on a sample of them.

    Args:
      folder: of the exported model.
      windows: reading windows, whose tokens after their contexts are scored.
      sample: some of them.
      ranks_and_entropies: whether these are computed too.
      flags: `ways` and `batches` to choose from.
      result: to which the way and all seconds of the trial are added.
    """
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    disable_progress_bar()
    model = OpenAIGPTLMHeadModel.from_pretrained(folder).eval()
    assert model.dtype == torch.float32
    trial: dict[tuple[str, str, int], float] = {}
    callers = {}
    forms = (with_ranks,) if ranks_and_entropies else (cross_entropy, log_sum_exp)
    for way, values in itertools.product(flags.ways, forms):
        call = _one_batch(model, values)
        if way == "compiled":
            call = torch.compile(call, dynamic=True)
        name = values.__name__
        callers[way, name] = call
        for size in flags.batches:
            score(call, sample, size)  # compiles, or takes memory for the first time
            start = time.perf_counter()
            score(call, sample, size)
            trial[way, name, size] = time.perf_counter() - start
    way, name, size = min(trial, key=trial.__getitem__)
    result.update(
        way=f"{way}, {name}, {size:,} tokens at a time",
        trial={" ".join(map(str, each)): seconds for each, seconds in trial.items()},
    )
    return lambda: score(callers[way, name], windows, size)


def _one_batch(
    model: OpenAIGPTLMHeadModel, values: Values
) -> Callable[..., torch.Tensor]:
    def call(
        tokens: torch.Tensor, places: torch.Tensor, targets: torch.Tensor
    ) -> torch.Tensor:
        hidden = model.transformer(tokens)[0].flatten(0, 1)[places]
        return values(model.lm_head(hidden), targets)

    return call


@torch.inference_mode()
def score(
    call: Callable[..., torch.Tensor], windows: Sequence[Any], size: int
) -> list[np.ndarray]:
    """The values of each window's tokens after its context.

    Args:
      call: gives the values of a batch's targets.
      windows: reading windows.
      size: tokens of a batch, padding included.
    """
    scores: dict[int, np.ndarray] = {}
    for batch in _batches([len(window.ids) - 1 for window in windows], size):
        ids = [windows[index].ids for index in batch]
        first = np.array([windows[index].num_context for index in batch])[:, None] - 1
        lengths = np.array([len(each) - 1 for each in ids])[:, None]
        positions = np.arange(lengths.max())
        read = positions < lengths  # [N, T]
        scored = read & (positions >= first)
        tokens, targets = np.zeros((2, *read.shape), np.int64)
        tokens[read] = np.concatenate([each[:-1] for each in ids])
        targets[read] = np.concatenate([each[1:] for each in ids])
        values = call(
            torch.from_numpy(tokens),
            torch.from_numpy(scored.ravel().nonzero()[0]),
            torch.from_numpy(targets[scored]),
        )
        stops = scored.sum(1).cumsum()[:-1]
        parts = np.split(values.numpy(), stops, axis=1)
        scores.update(zip(batch, parts, strict=True))
    return [scores[index] for index in range(len(windows))]


def _batches(lengths: Sequence[int], size: int) -> Iterator[list[int]]:
    """The numbers of windows of similar length, as many as `size` tokens hold."""
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        if batch and (len(batch) + 1) * lengths[index] > size:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch
