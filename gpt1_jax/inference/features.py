"""Hidden states of texts.

Sequences of similar length are computed together, and only the requested states leave
the device. Windows and states are streamed, so memory does not grow with the text.
"""

import functools
from collections.abc import Iterable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from gpt1_jax.config import ModelConfig
from gpt1_jax.data.words import ReadingWindow
from gpt1_jax.errors import UserError
from gpt1_jax.inference.scoring import BATCH_TOKENS, round_up_length
from gpt1_jax.model import interventions
from gpt1_jax.model.language_model import Params
from gpt1_jax.parallel import devices

# The most that is held to batch windows of similar length, unless one batch has more:
# batches of tokens, and numbers in their states.
_HELD_BATCHES, _HELD_NUMBERS = 8, 1 << 26


class Reader:
    """Computes the hidden states of reading windows.

    Args:
      model: configuration of the language model.
      params: its parameters.
      layers: the layers to read: 0 is the embedding, then 1 to L.
      mean: whether a row is the mean over its span, or the state of its last token.
      batch_tokens: tokens computed together, unless one sequence has more.

    Raises:
      UserError: if the model has no such layer.
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
        self._model, self._layers, self._mean = model, tuple(layers), mean
        self._params, self._batch_tokens = params, batch_tokens
        held = _HELD_NUMBERS // (len(layers) * model.embed_dim)
        self._held_tokens = min(max(held, batch_tokens), _HELD_BATCHES * batch_tokens)

    def __call__(
        self, windows: Iterable[ReadingWindow]
    ) -> Iterator[tuple[ReadingWindow, np.ndarray]]:
        """Each window, in order, with the states of its spans.

        Args:
          windows: each has a span, and at least one token and at most a full context.

        Yields:
          The window, and [layers, spans, D] float32.
        """
        for held in self._hold(windows):
            found: dict[int, np.ndarray] = {}
            batches = list(self._batches(held))
            outputs = (self._read([held[i] for i in batch]) for batch in batches)
            for batch, states in zip(
                batches, devices.fetched_late(outputs), strict=True
            ):
                for place, index in enumerate(batch):
                    found[index] = states[:, place, : len(held[index].spans)]
            yield from ((window, found[index]) for index, window in enumerate(held))

    def _hold(self, windows: Iterable[ReadingWindow]) -> Iterator[list[ReadingWindow]]:
        """The windows, a bounded number of tokens at a time."""
        held: list[ReadingWindow] = []
        room = self._held_tokens
        for window in windows:
            if held and len(window.ids) > room:
                yield held
                held, room = [], self._held_tokens
            held.append(window)
            room -= len(window.ids)
        if held:
            yield held

    def _batches(self, held: Sequence[ReadingWindow]) -> Iterator[list[int]]:
        """The numbers of windows to compute together: the longest first."""
        order = sorted(range(len(held)), key=lambda index: -len(held[index].ids))
        while order:
            count = self._rows_together(self._padded(len(held[order[0]].ids)))
            yield order[:count]
            order = order[count:]

    def _read(self, windows: Sequence[ReadingWindow]) -> jax.Array:
        """The states of a batch, padded: [layers, N, R, D]."""
        length = self._padded(max(len(window.ids) for window in windows))
        most = max(len(window.spans) for window in windows)
        # Few different batch sizes, so few programs.
        num_rows = next(size for size in (1, length // 2, length) if most <= size)
        num_sequences = self._rows_together(length)
        tokens = np.zeros((num_sequences, length), np.int32)
        spans = np.zeros((num_sequences, num_rows, 2), np.int32)
        spans[..., 1] = 1
        for place, window in enumerate(windows):
            tokens[place, : len(window.ids)] = window.ids
            spans[place, : len(window.spans)] = window.spans
        return _read_states(
            self._model, self._layers, self._mean, self._params, tokens, spans
        )

    def _padded(self, length: int) -> int:
        return round_up_length(length, self._model.max_seq_len)

    def _rows_together(self, length: int) -> int:
        return max(1, self._batch_tokens // length)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _read_states(
    model: ModelConfig,
    layers: tuple[int, ...],
    mean: bool,
    params: Params,
    tokens: jax.Array,
    spans: jax.Array,
) -> jax.Array:
    """[layers, N, R, D] float32 of tokens [N, T] and spans [N, R, 2]."""
    states = interventions.hidden_states(model, params, tokens)
    first, stop = spans[..., 0, None], spans[..., 1, None]  # [N, R, 1]
    places = jnp.arange(tokens.shape[1])
    weights = ((places >= first) & (places < stop)) / (stop - first)  # [N, R, T]

    def rows(state: jax.Array) -> jax.Array:
        state = state.astype(jnp.float32)
        if mean:
            exact = jax.lax.Precision.HIGHEST
            return jnp.einsum("NRT,NTD->NRD", weights, state, precision=exact)
        return jnp.take_along_axis(state, stop - 1, axis=1)

    return jnp.stack([rows(states[layer]) for layer in layers])
