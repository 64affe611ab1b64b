"""The loss and the step of fine-tuning (eq. 4 and 5).

They read like those of pre-training in `training.steps`, which has the parts that both
need.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gpt1_jax.config import ModelConfig
from gpt1_jax.finetuning import heads
from gpt1_jax.finetuning.heads import Head
from gpt1_jax.finetuning.unpad import BandShapes, Unpadding, make_unpadding, unpad
from gpt1_jax.model import language_model
from gpt1_jax.model.execution import Wrap, unchanged
from gpt1_jax.ops.dropout import Noise, step_noise
from gpt1_jax.training.optimizer import Optimizer
from gpt1_jax.training.state import TrainState
from gpt1_jax.training.steps import Metrics, Step, make_gradients, update


class Batch(NamedTuple):
    """A padded batch of examples, as arrays of either NumPy or JAX."""

    tokens: Any  # [B, C, T] int32, padded with 0
    lengths: Any  # [B, C] int32, real tokens of each sequence
    targets: Any  # [B, K] float32, see `heads.classification_loss`
    real_indices: Any = None  # [S, R] int32, see `tasks.batches.real_indices`
    bands: BandShapes | None = None  # of each group


def make_batch(*, bands: Sequence[tuple[int, int]] = (), **arrays: Any) -> Batch:
    """A batch, from its arrays and what `tasks.batches.choose_bands` found for it."""
    return Batch(**arrays, bands=BandShapes(bands) if bands else None)


def finetune_loss(
    model: ModelConfig,
    head: Head,
    aux_lm_weight: float,
    params: Any,
    batch: Batch,
    noise: Noise,
    wrap: Wrap = unchanged,
) -> tuple[jax.Array, Metrics]:
    """L3 = L2 + lambda L1 (eq. 5).

    Args:
      model: configuration of the language model.
      head: the task's head.
      aux_lm_weight: lambda; 0 leaves L1 out.
      params: parameters of the model and the head.
      batch: examples [B, C, T].
      noise: the step's dropout noise.
      wrap: changes the execution on devices that hold only parts of the parameters.

    Returns:
      L3, and the metrics `clf_loss` (L2, nats per example) and `lm_loss` (L1, nats per
      token; not if left out).
    """
    unpadding = _unpadding(batch)
    logits, output = heads.apply(
        model, head, params, batch.tokens, noise, unpadding, wrap
    )
    clf_loss = heads.classification_loss(logits, batch.targets, head.multilabel)
    if not aux_lm_weight:
        return clf_loss, {"clf_loss": clf_loss}
    tokens = batch.tokens.reshape(-1, batch.tokens.shape[-1])
    weights = sequence_mean_weights(batch.lengths.reshape(-1), tokens.shape[1])
    if unpadding is not None:
        # A sequence's last token precedes the next one's first, with weight 0.
        tokens, weights = unpad(tokens, unpadding), unpad(weights, unpadding)
    lm_loss = language_model.next_token_loss(model, output, tokens, weights)
    loss = clf_loss + aux_lm_weight * lm_loss  # eq. 5
    return loss, {"clf_loss": clf_loss, "lm_loss": lm_loss}


def make_finetune_step(
    model: ModelConfig,
    head: Head,
    optimizer: Optimizer,
    aux_lm_weight: float,
    accumulation_steps: int = 1,
    mesh: jax.sharding.Mesh | None = None,
) -> Step:
    """Builds the pure function of one fine-tuning update.

    Args:
      model, head, aux_lm_weight: as for `finetune_loss`.
      optimizer: turns gradients into updates.
      accumulation_steps: number of parts in which a batch is computed one by one.
      mesh: the devices that share the batch, if there are several.

    Returns:
      `finetune_step(state, batch, seed)`. Its metrics are scalars: `loss` and those of
      `finetune_loss`, `grad_norm`, `learning_rate` and the counts of `apply_gradients`.
    """
    loss_fn = functools.partial(finetune_loss, model, head, aux_lm_weight)
    gradients = make_gradients(model, loss_fn, accumulation_steps, mesh)

    def finetune_step(
        state: TrainState, batch: Batch, seed: jax.Array
    ) -> tuple[TrainState, Metrics]:
        noise = step_noise(seed, state.step, len(batch.tokens))
        return update(state, batch, noise, gradients, optimizer)

    return finetune_step


def sequence_mean_weights(lengths: jax.Array, seq_len: int) -> jax.Array:
    """Weights of `next_token_loss` for L1 in fine-tuning, the auxiliary objective.

    As in the released code, each sequence is averaged over its own predicted tokens,
    then the sequences are averaged: a short one weighs as much as a long one, and
    padding weighs nothing. Delimiter and extract tokens are predicted too.

    Args:
      lengths: [N] integers, real tokens of each sequence, at least 2.
      seq_len: T.

    Returns:
      [N, T] float32; column t weighs the loss of token t + 1.
    """
    predicted = (lengths - 1)[:, None]
    counted = jnp.arange(seq_len) < predicted
    return counted / (predicted * len(lengths)).astype(jnp.float32)


def _unpadding(batch: Batch) -> Unpadding | None:
    """How to leave out a batch's padding; None if it does not list its real tokens."""
    if batch.real_indices is None:
        return None
    lengths, seq_len = batch.lengths.reshape(-1), batch.tokens.shape[-1]
    return make_unpadding(batch.real_indices, lengths, seq_len, batch.bands)
