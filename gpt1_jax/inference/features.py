"""Hidden states and attention maps of texts.

Sequences of about one length are computed together, and only the states asked for
leave the device. Readings come and states go as a stream: memory does not grow with
the text.
"""

import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gpt1_jax.config import ModelConfig
from gpt1_jax.data.words import Window
from gpt1_jax.errors import UserError
from gpt1_jax.inference.scoring import BATCH_TOKENS, padded_length
from gpt1_jax.model import language_model
from gpt1_jax.model.language_model import Params
from gpt1_jax.parallel import devices

_HELD_BATCHES = 8  # tokens that wait for others of about their length, and
_HELD_NUMBERS = 1 << 26  # their states, unless one batch has more


class Reading(NamedTuple):
    """Tokens to read, and the rows of features that they give."""

    ids: Sequence[int]
    spans: Sequence[tuple[int, int]]  # of tokens, from the first to before the second


class Reader:
    """Reads hidden states.

    Args:
      model: configuration of the language model.
      params: its parameters.
      layers: 0 is the embedding, 1 to L the layers.
      mean: whether a row is the mean over its span, or the state of its last token.
      batch_tokens: tokens computed together, unless one sequence has more.

    Raises:
      ValueError: if there is no such layer.
    """

    def __init__(
        self,
        model: ModelConfig,
        params: Params,
        layers: Sequence[int],
        mean: bool = False,
        batch_tokens: int = BATCH_TOKENS,
    ):
        for layer in layers:
            if not 0 <= layer <= model.depth:
                raise UserError(
                    f"There is no layer {layer}: the model has the layers 0 (the "
                    f"embedding) to {model.depth}."
                )
        self._how = _How(model, tuple(layers), mean)
        self._params, self._batch_tokens = params, batch_tokens
        held = _HELD_NUMBERS // (len(layers) * model.embed_dim)
        self._held_tokens = min(max(held, batch_tokens), _HELD_BATCHES * batch_tokens)

    def of_words(
        self, windows: Iterable[Window]
    ) -> Iterator[tuple[Window, np.ndarray]]:
        """Each window with the states of its words, [layers, words, D] float32."""
        windows, again = itertools.tee(windows)
        readings = (Reading(w.ids, [span[1:] for span in w.spans]) for w in again)
        yield from zip(windows, self(readings), strict=True)

    def __call__(self, readings: Iterable[Reading]) -> Iterator[np.ndarray]:
        """The states of each reading, in order: [layers, rows, D] float32.

        The readings have at least one token and one span, and at most the context's.
        """
        for held in self._hold(readings):
            found: dict[int, np.ndarray] = {}
            batches = list(self._batches(held))
            outputs = (self._read([held[i] for i in batch]) for batch in batches)
            for batch, states in zip(
                batches, devices.fetched_late(outputs), strict=True
            ):
                for place, index in enumerate(batch):
                    found[index] = states[:, place, : len(held[index].spans)]
            yield from (found[index] for index in range(len(held)))

    def _hold(self, readings: Iterable[Reading]) -> Iterator[list[Reading]]:
        """The readings, a bounded number of tokens at a time."""
        held: list[Reading] = []
        room = self._held_tokens
        for reading in readings:
            if held and len(reading.ids) > room:
                yield held
                held, room = [], self._held_tokens
            held.append(reading)
            room -= len(reading.ids)
        if held:
            yield held

    def _batches(self, held: Sequence[Reading]) -> Iterator[list[int]]:
        """The numbers of readings to compute together: the longest first."""
        order = sorted(range(len(held)), key=lambda index: -len(held[index].ids))
        while order:
            count = self._rows_together(self._padded(len(held[order[0]].ids)))
            yield order[:count]
            order = order[count:]

    def _read(self, readings: Sequence[Reading]) -> jax.Array:
        """The states of a batch, padded: [layers, N, R, D]."""
        length = self._padded(max(len(reading.ids) for reading in readings))
        most = max(len(reading.spans) for reading in readings)
        # Few numbers of rows, so few programs.
        num_rows = next(size for size in (1, length // 2, length) if most <= size)
        num_sequences = self._rows_together(length)
        tokens = np.zeros((num_sequences, length), np.int32)
        spans = np.zeros((num_sequences, num_rows, 2), np.int32)
        spans[..., 1] = 1
        for place, reading in enumerate(readings):
            tokens[place, : len(reading.ids)] = reading.ids
            spans[place, : len(reading.spans)] = reading.spans
        return _read_states(self._how, self._params, tokens, spans)

    def _padded(self, length: int) -> int:
        return padded_length(length, self._how.model.max_seq_len)

    def _rows_together(self, length: int) -> int:
        return max(1, self._batch_tokens // length)


def attention_maps(
    model: ModelConfig, params: Params, ids: Sequence[int]
) -> np.ndarray:
    """[L, H, T, T] float32: how much each head attends from a token to another."""
    tokens = np.zeros((1, padded_length(len(ids), model.max_seq_len)), np.int32)
    tokens[0, : len(ids)] = ids
    probs = jax.device_get(_read_attention(model, params, tokens))
    return probs[:, :, : len(ids), : len(ids)]


class _How(NamedTuple):
    """What a compiled program is specialised for."""

    model: ModelConfig
    layers: tuple[int, ...]
    mean: bool


@functools.partial(jax.jit, static_argnums=0)
def _read_states(
    how: _How, params: Params, tokens: jax.Array, spans: jax.Array
) -> jax.Array:
    """[layers, N, R, D] float32 of tokens [N, T] and spans [N, R, 2]."""
    states = language_model.hidden_states(how.model, params, tokens)
    first, stop = spans[..., 0, None], spans[..., 1, None]  # [N, R, 1]
    places = jnp.arange(tokens.shape[1])
    weights = ((places >= first) & (places < stop)) / (stop - first)  # [N, R, T]

    def rows(state: jax.Array) -> jax.Array:
        state = state.astype(jnp.float32)
        if how.mean:
            exact = jax.lax.Precision.HIGHEST
            return jnp.einsum("NRT,NTD->NRD", weights, state, precision=exact)
        return jnp.take_along_axis(state, stop - 1, axis=1)

    return jnp.stack([rows(states[layer]) for layer in how.layers])


@functools.partial(jax.jit, static_argnums=0)
def _read_attention(model: ModelConfig, params: Params, tokens: jax.Array) -> jax.Array:
    return jnp.concatenate(language_model.attention(model, params, tokens))
