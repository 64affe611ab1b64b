"""Effects of components: each is replaced alone, all of them in one batched program.

A component is a head, the attention or the MLP of a layer, or a layer's input at one
position. Its effect is measured on D, the difference between the log-probabilities of
two answers, in nats.
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gpt1_jax.config import ModelConfig
from gpt1_jax.data.words import ReadingWindow
from gpt1_jax.inference.prefix_tree import common_length
from gpt1_jax.inference.scoring import round_up, round_up_length
from gpt1_jax.model import costs, language_model
from gpt1_jax.model.execution import Block, Layer
from gpt1_jax.model.interventions import Intervention, forward, state_names
from gpt1_jax.model.language_model import Output, Params
from gpt1_jax.parallel.devices import require_memory

_CHUNK = 256  # rows of logits that are held at a time
_OUTPUTS = ("attn/heads", "attn/out", "mlp/out")

Array = Any  # of NumPy; in a program, of JAX
Pair = tuple[ReadingWindow, ReadingWindow]  # the better answer first
Values = Mapping[str, jax.Array]  # what replaces activations, by their full names


class Effects(NamedTuple):
    """D of n pairs of answers, nats, with each component replaced; float32."""

    base: Array  # [n] with none replaced
    clean: Array  # [n] after the clean prompt, if others are corrupted; else base
    heads: Array  # [n, L, H]
    attention: Array  # [n, L]
    mlp: Array  # [n, L]
    positions: Array  # [n, L, P]; NaN where no token stands so far back
    lens: Array  # [n, L + 1] as the states h_0 to h_L have it


class Batch(NamedTuple):
    """The answers to P prompts: N = 2 P rows, the first answer before the second."""

    tokens: Array  # [N, T] int32
    clean: Array  # [N, T] int32, the prompts to patch from; `tokens` if none
    lengths: Array  # [N] int32
    last: Array  # [N] int32, the position from which positions are counted back
    where: Array  # [N, S] int32, positions before the tokens that are scored
    targets: Array  # [N, S] int32, these tokens
    weights: Array  # [N, S] float32: 1, or 0 for padding


class Sweep(Intervention):
    """Runs a model once with each component replaced, and once with none.

    The N rows of the inputs stay as they are. Before each layer N more are added for
    each of its components, H heads, attention, MLP and P positions: up to there they
    equal the first N, which are computed once.

    Args:
      model: the model's configuration.
      values: what replaces `attn/heads`, `attn/out`, `mlp/out` and the input of each
        layer (`state_names`), of their shapes or ones that broadcast to them.
      last: [N] the last position, which is replaced first, and then those before it.
      num_positions: P.
    """

    def __init__(
        self, model: ModelConfig, values: Values, last: jax.Array, num_positions: int
    ):
        super().__init__(model, state_names(model))
        self._values, self._last, self._num_positions = values, last, num_positions
        self._first = 0  # the first row of this layer's components

    def run_layers(self, block: Block, layers: list[Any], h: jax.Array) -> jax.Array:
        """h_L of all rows: [(1 + L (H + 2 + P)) N, T, D]."""
        num_heads, num_rows = self.model.num_heads, len(self._last)
        each = num_heads + 2 + self._num_positions
        back = jnp.arange(self._num_positions)[:, None, None]
        places = self._last[:, None] - back == jnp.arange(h.shape[1])  # [P, N, T]
        for layer, params in enumerate(layers):
            self._first = len(h)
            h = jnp.concatenate([h, jnp.tile(h[:num_rows], (each, 1, 1))])
            name = state_names(self.model)[layer]
            h = self._replaced(h, num_heads + 2, places[..., None], name)
            h = block(h, params, layer)
        return h

    def at(self, name: str, x: jax.Array, layer: Layer | None = None) -> jax.Array:
        """Replaces, in its own rows, each component with this output."""
        x = super().at(name, x, layer)
        num_heads, full_name = self.model.num_heads, f"h_{layer}/{name}"
        if name == "attn/heads":
            each = jnp.eye(num_heads, dtype=bool)[:, None, None, :, None]
            return self._replaced(x, 0, each, full_name)
        if name in ("attn/out", "mlp/out"):
            place = num_heads + (name == "mlp/out")
            return self._replaced(x, place, jnp.ones((1, 1, 1, 1), bool), full_name)
        return x

    def _replaced(
        self, x: jax.Array, place: int, chosen: jax.Array, name: str
    ) -> jax.Array:
        """The rows of x [rows, T, ..], with values where components are `chosen`.

        `chosen` is bool [C, ..]: where each of C components is in [N, T, ..]; `place`
        is the number of the first of them in its layer.
        """
        num, num_rows = len(chosen), len(self._last)
        if not num:
            return x
        first = self._first + place * num_rows
        own = x[first : first + num * num_rows]
        apart = own.reshape(num, num_rows, *x.shape[1:])
        value = self._values[name].astype(x.dtype)
        replaced = jnp.where(chosen, value, apart).reshape(own.shape)
        return x.at[first : first + num * num_rows].set(replaced)


def find_effects(
    model: ModelConfig,
    vocab_size: int,
    params: Params,
    pairs: Sequence[Pair],
    clean: Sequence[Pair] | None,
    *,
    method: str,
    num_positions: int,
    batch_tokens: int,
) -> Effects:
    """D of pairs of answers, with each component replaced alone.

    Args:
      model: configuration of a Transformer.
      vocab_size: the vocabulary without special tokens, which get no probability.
      params: the model's parameters.
      pairs: the two answers to each prompt, scored after their context, from the first
        token in which they differ.
      clean: the same answers after clean prompts of as many tokens, for patching.
      method: "zero": a component gives zeros; "mean": its mean over all tokens of all
        answers; "patch": what it gives after the clean prompt.
      num_positions: P, how many positions are replaced: the last token before the
        answers differ, or of the prompt if it is patched, and those before it.
      batch_tokens: tokens computed together, unless one pair takes more.

    Raises:
      UserError: if one pair does not fit into memory.
    """
    components = model.num_layers * (model.num_heads + 2 + num_positions)
    num_rows = 2 * (1 + components)  # that the last layer computes for a pair
    num_tokens = batch_tokens // num_rows
    batches = list(_batches(pairs, clean, model.max_seq_len, num_tokens))
    longest = max(batch.tokens.shape[1] for _, batch in batches)
    require_memory(
        f"A pair of {longest} tokens with each component of {model.layers} replaced",
        num_rows * longest * costs.forward_bytes(model),
        "Lower config.positions, or choose shorter texts.",
    )
    values: Values | None = None  # to patch, those after the clean prompt
    if method == "zero":
        values = dict.fromkeys(_replaced_names(model), jnp.zeros(()))
    if method == "mean":
        sums = [_sum_activations(model, params, batch) for _, batch in batches]
        total = sum(batch.lengths.sum() for _, batch in batches)
        values = jax.tree.map(lambda *each: sum(each) / total, *sums)
    order: list[int] = []
    parts = []
    for numbers, batch in batches:
        effects = _find_effects(model, vocab_size, num_positions, params, batch, values)
        parts.append([each[: len(numbers)] for each in jax.device_get(effects)])
        order += numbers
    joined = (np.concatenate(each) for each in zip(*parts, strict=True))
    return Effects(*(each[np.argsort(order)] for each in joined))


def _batches(
    pairs: Sequence[Pair],
    clean: Sequence[Pair] | None,
    max_seq_len: int,
    num_tokens: int,
) -> Iterator[tuple[list[int], Batch]]:
    """Pairs of similar length, with their numbers; few shapes, so few programs."""
    by_length: dict[int, list[int]] = {}
    most = 1  # tokens that are scored
    for number, pair in enumerate(pairs):
        longest = max(len(window.ids) - 1 for window in pair)
        length = round_up_length(longest, max_seq_len)
        by_length.setdefault(length, []).append(number)
        most = max(most, *(len(w.ids) - _first_scored(pair) for w in pair))
    most = round_up(most)
    for length, numbers in sorted(by_length.items()):
        together = min(max(1, num_tokens // length), len(numbers))
        for start in range(0, len(numbers), together):
            own = numbers[start : start + together]
            filled = [*own, *own[:1] * (together - len(own))]
            rows = [
                _rows(pairs[n], clean[n] if clean else None, length, most)
                for n in filled
            ]
            batch = Batch(*map(np.concatenate, zip(*rows, strict=True)))
            batch.lengths[2 * len(own) :] = 0
            yield own, batch


def _first_scored(pair: Pair) -> int:
    """The first token in which two answers differ; those before it score the same."""
    same = common_length(pair[0].ids, pair[1].ids)
    return max(1, same, pair[0].num_context)


def _rows(pair: Pair, clean: Pair | None, length: int, most: int) -> Batch:
    """The two rows of a pair."""
    first = _first_scored(pair)
    batch = Batch(
        tokens=np.zeros((2, length), np.int32),
        clean=np.zeros((2, length), np.int32),
        lengths=np.zeros(2, np.int32),
        last=np.full(2, (pair[0].num_context if clean else first) - 1, np.int32),
        where=np.zeros((2, most), np.int32),
        targets=np.zeros((2, most), np.int32),
        weights=np.zeros((2, most), np.float32),
    )
    for row, window in enumerate(pair):
        read, count = window.ids[:-1], len(window.ids) - first
        batch.tokens[row, : len(read)] = read
        batch.clean[row, : len(read)] = clean[row].ids[:-1] if clean else read
        batch.lengths[row] = len(read)
        batch.where[row, :count] = range(first - 1, len(read))
        batch.targets[row, :count] = window.ids[first:]
        batch.weights[row, :count] = 1
    return batch


def _replaced_names(model: ModelConfig) -> list[str]:
    """The names of all activations that are replaced."""
    layers = range(model.num_layers)
    outputs = [f"h_{layer}/{name}" for layer in layers for name in _OUTPUTS]
    return [*state_names(model)[:-1], *outputs]


@functools.partial(jax.jit, static_argnums=0)
def _sum_activations(model: ModelConfig, params: Params, batch: Batch) -> Values:
    """Sums over all tokens of the activations that are replaced, float32."""
    names = _replaced_names(model)
    _, recorded = forward(model, params, batch.tokens, names)
    real = jnp.arange(batch.tokens.shape[1]) < batch.lengths[:, None]

    def total(x: jax.Array) -> jax.Array:
        of_tokens = jnp.expand_dims(real, range(2, x.ndim))
        return jnp.where(of_tokens, x, 0).sum((0, 1), dtype=jnp.float32)

    return {name: total(x) for name, x in recorded.items()}


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _find_effects(
    model: ModelConfig,
    vocab_size: int,
    num_positions: int,
    params: Params,
    batch: Batch,
    values: Values | None,
) -> Effects:
    """The `Effects` on a batch; without values, they are those of the clean prompts."""
    num_rows, seq_len = batch.tokens.shape
    clean_hidden = []
    if values is None:
        names = _replaced_names(model)
        output, values = forward(model, params, batch.clean, names)
        clean_hidden = [output.hidden]
    how = Sweep(model, values, batch.last, num_positions)
    output = language_model.apply(model, params, batch.tokens, how)
    states = [how.recorded[name][:num_rows] for name in state_names(model)]
    hidden = [*clean_hidden, *states, output.hidden]
    stacked = jnp.concatenate([each.astype(model.dtype) for each in hidden])
    scored = stacked.reshape(-1, num_rows, seq_len, model.embed_dim)
    difference = _differences(model, output.unembedding[:vocab_size], scored, batch)
    ends = np.cumsum([len(clean_hidden), len(states), 1])
    clean, lens, base, components = jnp.split(difference, ends, axis=1)
    components = components.reshape(len(base), model.num_layers, -1)
    heads = model.num_heads
    back = batch.last[::2, None] - jnp.arange(num_positions)
    missing = (back < 0)[:, None]
    return Effects(
        base=base[:, 0],
        clean=(clean if clean_hidden else base)[:, 0],
        heads=components[..., :heads],
        attention=components[..., heads],
        mlp=components[..., heads + 1],
        positions=jnp.where(missing, jnp.nan, components[..., heads + 2 :]),
        lens=lens,
    )


def _differences(
    model: ModelConfig, unembedding: jax.Array, hidden: jax.Array, batch: Batch
) -> jax.Array:
    """D of each pair, [P, M], from M states [M, N, T, D] of its answers."""
    scored = jnp.take_along_axis(hidden, batch.where[None, ..., None], axis=2)
    targets = jnp.broadcast_to(batch.targets, scored.shape[:-1])
    # One sequence of which each state predicts the next token.
    rows = jnp.pad(scored.reshape(1, -1, model.embed_dim), ((0, 0), (0, 1), (0, 0)))
    tokens = jnp.pad(targets.reshape(1, -1), ((0, 0), (1, 0)))
    by_chunk = replace(model, loss_chunk=_CHUNK)
    output = Output(rows, unembedding)
    nll = language_model.next_token_nll(by_chunk, output, tokens)[0, :-1]
    log_probs = -(nll.reshape(targets.shape) * batch.weights).sum(axis=-1)  # [M, N]
    return (log_probs[:, ::2] - log_probs[:, 1::2]).T
