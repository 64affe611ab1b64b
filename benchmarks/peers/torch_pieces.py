"""The parts of a training step in PyTorch, eager, as `Case`s.

Each function takes the flags of `pieces.py`; products run under autocast in bfloat16.
"""

import argparse
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks.harness import Case
from benchmarks.paper_model import pretrain_config
from benchmarks.peers.pieces import (
    GRADIENT,
    attention_arrays,
    dense_arrays,
    dropout_arrays,
    loss_arrays,
)
from benchmarks.peers.torch_peers import (
    device_kind,
    device_name,
    make_gpt,
    make_optimizer,
    synchronize,
)


def dropout_cases(flags: argparse.Namespace, name: str) -> dict[str, Case]:
    """Dropout; `name` as in `dropout_arrays`."""
    x, gradient = (_tensor(part, flags.dtype) for part in dropout_arrays(flags, name))

    def drop(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, flags.dropout)

    return {"torch": _forward_backward(flags, drop, [x], gradient)}


def attention_cases(flags: argparse.Namespace) -> dict[str, Case]:
    """Causal attention of [N, T, H, K], fused and by the formula."""
    *qkv, gradient = (_tensor(x, flags.dtype) for x in attention_arrays(flags))

    def fused(*qkv: torch.Tensor) -> torch.Tensor:
        query, key, value = (x.transpose(1, 2) for x in qkv)  # [N, H, T, K]
        attended = F.scaled_dot_product_attention(
            query, key, value, dropout_p=flags.dropout, is_causal=True
        )
        return attended.transpose(1, 2)

    hidden = torch.ones(flags.seq_len, flags.seq_len, dtype=torch.bool).triu(1)
    hidden = hidden.to(device_kind())

    def explicit(*qkv: torch.Tensor) -> torch.Tensor:
        query, key, value = (x.transpose(1, 2) for x in qkv)
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
        scores = scores.float().masked_fill(hidden, -math.inf)  # [N, H, T, T]
        probs = F.dropout(scores.softmax(-1), flags.dropout)
        return (probs.to(value.dtype) @ value).transpose(1, 2)

    return {
        "torch_sdpa": _forward_backward(flags, fused, qkv, gradient),
        "torch_explicit": _forward_backward(flags, explicit, qkv, gradient),
    }


def loss_cases(flags: argparse.Namespace) -> dict[str, Case]:
    """Mean nats of the T - 1 tokens after the first, from logits kept whole."""
    states, matrix, tokens = loss_arrays(flags)
    labels = torch.from_numpy(tokens).long().to(device_kind())[:, 1:].flatten()

    def loss(hidden: torch.Tensor, unembedding: torch.Tensor) -> torch.Tensor:
        logits = hidden[:, :-1].flatten(0, 1) @ unembedding.T
        return F.cross_entropy(logits.float(), labels)

    arrays = [_tensor(states, flags.dtype), _tensor(matrix, "float32")]
    one = torch.ones([], device=device_kind())
    return {"torch": _forward_backward(flags, loss, arrays, one)}


def dense_cases(flags: argparse.Namespace) -> dict[str, Case]:
    """The first product of the MLP; the kernel is [F, D] here."""
    x, kernel, gradient = dense_arrays(flags)
    arrays = [_tensor(x, flags.dtype), _tensor(kernel.T.copy(), "float32")]
    gradient_tensor = _tensor(gradient, flags.dtype)
    return {"torch": _forward_backward(flags, F.linear, arrays, gradient_tensor)}


def optimizer_cases(flags: argparse.Namespace) -> dict[str, Case]:
    """Clipping and fused AdamW on all parameters."""
    settings = pretrain_config(flags, flags.dtype).optimizer
    parameters = list(make_gpt(flags).to(device_kind()).parameters())
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, GRADIENT)
    optimizer = make_optimizer(parameters, settings)

    def run() -> None:
        torch.nn.utils.clip_grad_norm_(parameters, settings.clip_norm)
        optimizer.step()

    return {"torch_fused_adamw": _case(run)}


def _tensor(x: np.ndarray, dtype: str) -> torch.Tensor:
    return torch.from_numpy(x).to(device_kind(), getattr(torch, dtype))


def _forward_backward(
    flags: argparse.Namespace,
    function: Callable[..., torch.Tensor],
    arrays: Sequence[torch.Tensor],
    gradient: torch.Tensor,
) -> Case:
    """Value and gradients by `arrays`; `gradient` is that of the function's output."""
    leaves = [x.clone().requires_grad_() for x in arrays]
    mixed = flags.dtype == "bfloat16"

    def run() -> Any:
        with torch.autocast(device_kind(), dtype=torch.bfloat16, enabled=mixed):
            value = function(*leaves)
        return value, torch.autograd.grad(value, leaves, gradient)

    return _case(run)


def _case(run: Callable[[], Any]) -> Case:
    return Case(
        run=run,
        wait=lambda _: synchronize(),
        device=device_name(),
        temporary_bytes=None,
    )
