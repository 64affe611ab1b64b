"""transformers' OpenAI-GPT as it scores sentences fastest on a CPU."""

import argparse
import itertools
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from transformers import OpenAIGPTLMHeadModel
from transformers.utils.logging import disable_progress_bar

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # -log P of each target


def cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """PyTorch's own, which keeps all log-probabilities on the way."""
    return F.cross_entropy(logits, targets, reduction="none")


def log_sum_exp(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The same without them."""
    chosen = logits.gather(1, targets[:, None])[:, 0]
    return logits.logsumexp(dim=1) - chosen


LOSSES: dict[str, Loss] = {"cross_entropy": cross_entropy, "logsumexp": log_sum_exp}


def make_peer(
    folder: str,
    sentences: Sequence[Sequence[int]],
    sample: Sequence[Sequence[int]],
    flags: argparse.Namespace,
    result: dict[str, Any],
) -> Callable[[], list[np.ndarray]]:
    """Scores the sentences in the way that is fastest on a sample of them.

    Args:
      folder: of the exported model.
      sentences: the ids of each, the first of which is not scored.
      sample: some of them.
      flags: `ways` and `batches` to choose from.
      result: to which the way and all seconds of the trial are added.
    """
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    disable_progress_bar()
    model = OpenAIGPTLMHeadModel.from_pretrained(folder).eval()
    assert model.dtype == torch.float32
    trial: dict[tuple[str, str, int], float] = {}
    callers = {}
    for way, (name, loss) in itertools.product(flags.ways, LOSSES.items()):
        call = _one_batch(model, loss)
        if way == "compiled":
            call = torch.compile(call, dynamic=True)
        callers[way, name] = call
        for size in flags.batches:
            if way == "compiled":
                score(call, sample, size)
            start = time.perf_counter()
            score(call, sample, size)
            trial[way, name, size] = time.perf_counter() - start
    way, name, size = min(trial, key=trial.__getitem__)
    result.update(
        way=f"{way}, {name}, {size} sentences at a time",
        trial={" ".join(map(str, each)): seconds for each, seconds in trial.items()},
    )
    return lambda: score(callers[way, name], sentences, size)


def _one_batch(model: OpenAIGPTLMHeadModel, loss: Loss) -> Callable[..., torch.Tensor]:
    def call(
        tokens: torch.Tensor, places: torch.Tensor, targets: torch.Tensor
    ) -> torch.Tensor:
        hidden = model.transformer(tokens)[0].flatten(0, 1)[places]
        return loss(model.lm_head(hidden), targets)

    return call


@torch.inference_mode()
def score(
    call: Callable[..., torch.Tensor], sentences: Sequence[Sequence[int]], size: int
) -> list[np.ndarray]:
    """The log-probabilities of each sentence's tokens but the first, nats.

    Args:
      call: gives -log P of a batch's targets.
      sentences: their ids.
      size: sentences of a batch.
    """
    order = sorted(range(len(sentences)), key=lambda index: len(sentences[index]))
    scores: dict[int, np.ndarray] = {}
    for start in range(0, len(order), size):
        batch = order[start : start + size]
        lengths = np.array([len(sentences[index]) - 1 for index in batch])
        read = np.arange(lengths.max()) < lengths[:, None]  # [N, T]
        tokens = np.zeros(read.shape, np.int64)
        tokens[read] = np.concatenate([sentences[index][:-1] for index in batch])
        targets = np.concatenate([sentences[index][1:] for index in batch])
        nll = call(
            torch.from_numpy(tokens),
            torch.from_numpy(read.ravel().nonzero()[0]),
            torch.from_numpy(targets),
        )
        parts = np.split(-nll.numpy(), lengths.cumsum()[:-1])
        scores.update(zip(batch, parts, strict=True))
    return [scores[index] for index in range(len(sentences))]
