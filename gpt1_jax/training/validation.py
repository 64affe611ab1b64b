"""The loss over the whole held-out split."""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from gpt1_jax.config import ModelConfig
from gpt1_jax.data.progress import Bar
from gpt1_jax.data.windows import ValidWindows
from gpt1_jax.model import language_model
from gpt1_jax.parallel.devices import fetched_late
from gpt1_jax.parallel.exchange import rows_by_device
from gpt1_jax.parallel.mesh import replicated, to_global_batch
from gpt1_jax.parallel.processes import is_main_process

_PLAIN_PERPLEXITY = 1e6  # above this, powers of ten are easier to read


def sequence_losses(
    model: ModelConfig, params: Any, tokens: jax.Array, lengths: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Summed loss of each sequence, without dropout.

    Args:
      model: configuration of the language model.
      params: the model's parameters.
      tokens: [B, T] int32.
      lengths: [B] int32, real tokens in each sequence; the rest does not count.

    Returns:
      The nats of each sequence's predicted tokens [B], and their number [B].
    """
    output = language_model.apply(model, params, tokens)
    nll = language_model.next_token_nll(model, output, tokens)
    counted = jnp.arange(tokens.shape[1]) < lengths[:, None] - 1  # [B, T]
    return jnp.where(counted, nll, 0.0).sum(axis=1), counted.sum(axis=1)


class Validation:
    """The mean loss over the whole held-out split, or over its first batches.

    Args:
      model: configuration of the language model.
      windows: this host's batches of the split.
      max_batches: the most batches to read; 0 for all.
      mesh: the device mesh.
    """

    def __init__(
        self,
        model: ModelConfig,
        windows: ValidWindows,
        max_batches: int,
        mesh: jax.sharding.Mesh,
    ):
        self._windows, self._mesh = windows, mesh
        self._num_batches = min(max_batches or len(windows), len(windows))
        losses = rows_by_device(mesh, functools.partial(sequence_losses, model))

        def eval_step(*arguments: Any) -> Any:
            return jax.tree.map(jnp.sum, losses(*arguments))

        self._step = jax.jit(eval_step, out_shardings=replicated(mesh))

    def __call__(self, params: Any, stopped: Callable[[], bool]) -> float | None:
        """Nats per token; None if `stopped()` became true before the end."""
        sums = np.zeros(2)  # nats, tokens
        num_batches, active = self._num_batches, is_main_process()
        with Bar("validate", num_batches, "batch", active=active, leave=False) as bar:
            outputs = (
                self._step(
                    params,
                    *(to_global_batch(x, self._mesh) for x in self._windows[index]),
                )
                for index in range(num_batches)
            )
            for part in fetched_late(outputs):
                sums += part
                bar.update()
                if stopped():
                    return None
        return float(sums[0] / sums[1])


class TokenCounts(Protocol):
    """How the tokens of a split relate to its words."""

    @property
    def tokens(self) -> int: ...
    @property
    def words(self) -> int: ...


def loss_metrics(loss: float, split: TokenCounts) -> dict[str, float]:
    """A validation loss in the units that are commonly reported.

    Nats and bits per word, which are comparable across tokenizers, spread the loss of
    all tokens over the words of the text before tokenisation.

    Args:
      loss: nats per token.
      split: counts of the split that was validated on.
    """
    per_word = loss * split.tokens / max(1, split.words)
    return {
        "valid_loss": loss,
        "valid_perplexity": math.exp(min(loss, 700.0)),
        "valid_nats_per_word": per_word,
        "valid_bits_per_word": per_word / math.log(2),
    }


def describe_loss(step: int, metrics: Mapping[str, float]) -> str:
    """`loss_metrics` as a line to print."""
    perplexity = metrics["valid_perplexity"]
    shown = (
        f"{perplexity:.2f}" if perplexity < _PLAIN_PERPLEXITY else f"{perplexity:.1e}"
    )
    return (
        f"step {step:>6}  validation loss {metrics['valid_loss']:.4f}  perplexity "
        f"{shown}  bits per word {metrics['valid_bits_per_word']:.3f}"
    )
