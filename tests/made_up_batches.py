"""Made-up batches of examples, and states, for the training steps."""

import jax
import numpy as np

from gpt1_jax.config import ModelConfig
from gpt1_jax.finetuning.steps import Batch
from gpt1_jax.finetuning.unpad import BandShapes
from gpt1_jax.parallel.mesh import state_sharding
from gpt1_jax.tasks.batches import lengths_by_group, real_indices


def made_up_batch(
    model: ModelConfig, shape: tuple[int, int, int], num_outputs: int, seed: int = 0
) -> Batch:
    """[B, C, T] sequences of 4 to T tokens, and one of `num_outputs` classes each.

    Words are numbers from 1 on, so that only padding is 0; start, delimiter and
    extract token are the last three.
    """
    rng = np.random.default_rng(seed)
    start, delimiter, extract = range(model.vocab_size - 3, model.vocab_size)
    tokens = np.zeros(shape, np.int32)
    lengths = rng.integers(4, shape[2] + 1, shape[:2]).astype(np.int32)
    for place in np.ndindex(*shape[:2]):
        end = lengths[place]
        tokens[place][:end] = rng.integers(1, start, end)
        tokens[place][[0, end // 2, end - 1]] = start, delimiter, extract
    classes = rng.integers(0, num_outputs, shape[0])
    return Batch(tokens, lengths, np.eye(num_outputs, dtype=np.float32)[classes])


def unpadded(batch: Batch, devices: int = 1, parts: int = 1) -> Batch:
    """The batch with the indices of its real tokens, and two bands."""
    seq_len = batch.tokens.shape[-1]
    lengths = lengths_by_group(batch.lengths, devices, parts)
    size = lengths.sum(-1).max() + 3  # some padding
    indices = real_indices(lengths, seq_len, size)
    longest = np.sort(lengths)[:, ::-1].max(axis=0)
    half = len(longest) // 2
    shapes = (half, seq_len), (len(longest) - half, int(longest[half]))
    bands = BandShapes(shape for shape in shapes if shape[0])
    return batch._replace(real_indices=indices, bands=bands)


def on_devices(state, mesh: jax.sharding.Mesh):
    """A copy for a step that consumes it; each device has a buffer of its own."""

    def copied(leaf, sharding):
        leaf = np.asarray(leaf)
        return jax.make_array_from_callback(
            leaf.shape, sharding, lambda index: leaf[index].copy()
        )

    return jax.tree.map(copied, state, state_sharding(mesh, state))
