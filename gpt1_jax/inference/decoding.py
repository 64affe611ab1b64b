"""Autoregressive decoding from a language model, with a cache.

A prompt is read in one pass; then a compiled loop draws a token, reads it and draws the
next. The cache grows in steps. Apart from reading it, each token costs the same.

The tokens drawn for a prompt are determined, bit for bit, by the prompt, its seed and
the number of rows computed together, whatever the other rows are. So only contexts that
are padded to the same length share a batch, and a batch always has the same number of
rows, however few are needed. A row whose context is full leaves its batch, and the
newest half of the context is read again.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gpt1_jax.config import ModelConfig
from gpt1_jax.config.sections import SamplingConfig
from gpt1_jax.inference.cache import Cache, decode, init_cache
from gpt1_jax.inference.sampling import Filters, apply_filters, draw, make_filters
from gpt1_jax.model import language_model
from gpt1_jax.model.language_model import Params
from gpt1_jax.ops.cached_attention import in_lanes
from gpt1_jax.ops.products import Transposed
from gpt1_jax.parallel.devices import require_memory

# Sizes of padded contexts and of caches: they double, then grow by a step.
_SMALLEST, _LARGEST_STEP = 32, 128
# XLA's CPU backend is slow at bfloat16 products with one row.
_FEWEST_ROWS = {"bfloat16": 2}
_FEWEST_LANES = 64  # for a `LanesCache`
_ROUND = 32  # the most tokens drawn before they are copied to the host
_READ_TOGETHER = 256  # tokens of prompts, padding included, unless one has more
TOKEN_BYTES = 48  # the least memory of the host for a token that is drawn


@dataclasses.dataclass
class Continuation:
    """A prompt and the text that continues it, filled in as tokens are drawn."""

    prompt: str
    ids: Sequence[int]  # of the prompt, at least one
    seed: int  # in [0, 2**32)
    tokens: list[int] = dataclasses.field(default_factory=list)  # drawn so far
    log_probs: list[float] = dataclasses.field(default_factory=list)  # of these, nats
    text: str = ""  # of the tokens, up to the end of a stop string
    finish_reason: str = ""  # "length" or "stop"; empty as long as more follow
    context: list[int] = dataclasses.field(default_factory=list)  # what is read next

    def __post_init__(self):
        self.context = list(self.ids)


# From a continuation, and how many of its tokens were there before: how many to keep if
# it has ended, or else None.
Stop = Callable[[Continuation, int], int | None]


class Decoder:
    """Continues prompts by a language model.

    Args:
      model: configuration of the language model.
      vocab_size: the vocabulary size without special tokens, which come last in a
        fine-tuned model and are never drawn.
      config: how many tokens to draw, and how.
      batch_size: rows computed together; in bfloat16 there are at least 2.
      round_size: tokens drawn before they are yielded; 0 chooses a fast number.
      stop: whether a continuation ends, asked after each round; None: it never does.
    """

    def __init__(
        self,
        model: ModelConfig,
        vocab_size: int,
        config: SamplingConfig,
        batch_size: int,
        round_size: int = 0,
        stop: Stop | None = None,
    ):
        self._model = dataclasses.replace(
            model,
            remat=False,
            softmax_rows="tokens",
            layer_norm_form="plain",  # one token at a time leaves a kernel no work
        )
        self._vocab_size, self._config = vocab_size, config
        few = _FEWEST_ROWS.get(model.dtype, 1)
        self._batch_size = max(batch_size, few)
        self._round = min(round_size or _ROUND, _ROUND)
        self._stop = stop or (lambda continuation, before: None)
        self._filters = make_filters(config)
        self._top_k = config.top_k if config.do_sample else 0

    def __call__(
        self, params: Params, continuations: Sequence[Continuation]
    ) -> Iterator[Continuation]:
        """Draws tokens, a few of each continuation at a time, until all are finished.

        Args:
          params: the language model's parameters, as `prepare` returns them.
          continuations: prompts to continue. If one is longer than the context, only
            its newest tokens are read. The call fills in `tokens`, `log_probs` (of the
            model's own distribution, before any filter) and `finish_reason`.

        Yields:
          Each continuation whenever it has grown or finished.
        """
        waiting: dict[int, list[Continuation]] = {}  # by padded length
        for continuation in continuations:
            self._enqueue(continuation, waiting)
        while waiting:
            length = min(waiting)
            group = waiting.pop(length)
            batch, rest = group[: self._batch_size], group[self._batch_size :]
            if rest:
                waiting[length] = rest
            yield from self._continue(params, batch, length)
            for row in batch:
                if not row.finish_reason:
                    self._enqueue(row, waiting)

    def check_memory(self, longest: int) -> None:
        """Refuses a batch that no device of this machine can hold.

        Args:
          longest: the number of tokens in the longest prompt.

        Raises:
          UserError: naming its size, the memory that it needs and the memory there is.
        """
        most = self._model.max_seq_len
        length = self._padded(longest if longest <= most else most // 2)
        size = self._cache_size(length, length)
        row = jax.eval_shape(lambda: self._empty(1, length, size))
        row_bytes = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(row))
        logits = 4 * self._vocab_size
        require_memory(
            f"batch_size={self._batch_size}",
            self._batch_size * (row_bytes + logits),
            "Lower it.",
        )

    def _padded(self, num_tokens: int) -> int:
        """The length that a context without its last token is padded to."""
        return bucket(num_tokens - 1, self._model.max_seq_len)

    def _enqueue(
        self, row: Continuation, waiting: dict[int, list[Continuation]]
    ) -> None:
        """Adds a row to those waiting; a full context keeps its newest half."""
        if self._room(row) <= 0:
            row.context = row.context[-(self._model.max_seq_len // 2) :]
        length = self._padded(len(row.context))
        waiting.setdefault(length, []).append(row)

    def _continue(
        self, params: Params, rows: list[Continuation], length: int
    ) -> Iterator[Continuation]:
        """Continues one batch until each row is finished or full."""
        most = self._config.max_new_tokens
        size = self._cache_size(length, length)
        state = self._read(params, rows, length, size)
        taken = length
        while active := [
            (n, row)
            for n, row in enumerate(rows)
            if not row.finish_reason and self._room(row) > 0
        ]:
            if taken == size:
                size = self._cache_size(length, taken)
                state = _grow(self._model, state, size)
            drawn = np.zeros(self._batch_size, np.int32)
            drawn[: len(rows)] = [len(row.tokens) for row in rows]
            left = (min(most - len(row.tokens), self._room(row)) for _, row in active)
            steps = min(self._round, size - taken, *left)
            taken += steps
            state, tokens, log_probs = _draw_tokens(
                self._model,
                self._vocab_size,
                not self._config.do_sample,
                self._top_k,
                params,
                state,
                self._filters,
                drawn,
                steps,
            )
            tokens, log_probs = np.asarray(tokens), np.asarray(log_probs)
            for place, row in active:
                row.log_probs += log_probs[place, :steps].tolist()
                self._add(row, tokens[place, :steps].tolist())
                yield row

    def _add(self, row: Continuation, new: list[int]) -> None:
        """Adds new tokens to a row, up to where it ends."""
        before = len(row.tokens)
        row.context += new
        row.tokens += new
        kept = self._stop(row, before)
        if kept is not None:
            row.finish_reason = "stop"
            del row.tokens[kept:], row.log_probs[kept:]
        elif len(row.tokens) == self._config.max_new_tokens:
            row.finish_reason = "length"

    def _read(
        self, params: Params, rows: list[Continuation], length: int, size: int
    ) -> "_State":
        """A batch that has read the contexts of rows, all but their last tokens."""
        state = self._empty(self._batch_size, length, size)
        count = min(self._batch_size, max(1, _READ_TOGETHER // length))
        for first in range(0, len(rows), count):
            tokens = np.zeros((count, length), np.int32)
            padding = np.zeros(count, np.int32)
            newest = np.zeros(count, np.int32)
            seeds = np.zeros(count, np.uint32)
            seen = np.zeros((count, self._vocab_size), bool)
            for n, row in enumerate(rows[first : first + count]):
                *known, newest[n] = row.context
                padding[n] = length - len(known)
                tokens[n, length - len(known) :] = known
                seeds[n] = row.seed
                seen[n, [*row.ids, *row.tokens]] = True
            state = _read_prompts(
                self._model, params, state, tokens, padding, newest, seeds, seen, first
            )
        return state

    def _empty(self, num_rows: int, length: int, size: int) -> "_State":
        """A batch in which nothing has been read yet."""
        penalized = self._filters.repetition_penalty is not None
        seen_size = self._vocab_size if penalized else 0
        return _start(self._model, num_rows, length, size, seen_size)

    def _room(self, row: Continuation) -> int:
        """The number of tokens that can be drawn before a row's context is too long."""
        return self._model.max_seq_len + 1 - len(row.context)

    def _cache_size(self, length: int, taken: int) -> int:
        """The size of a cache with more than `taken` places.

        It grows in steps, since all of it is read for each token, up to the longest
        that contexts padded to `length` may get. In lanes, only what is taken is read.
        """
        shortest = length // 2 if length > _SMALLEST else 0
        most = min(self._config.max_new_tokens, self._model.max_seq_len - shortest)
        longest = length + -(-most // _ROUND) * _ROUND
        if _lanes_suit(self._model, self._batch_size):
            return longest
        return bucket(taken + 1, longest)


def prepare(model: ModelConfig, params: Params) -> Params:
    """Parameters on the device, in the layout that `Decoder` takes.

    Reading all matrices once bounds the time per token, so they are in the model's
    dtype, and kernels are transposed, like the token embedding.
    """

    def place(path: jax.tree_util.KeyPath, leaf: Any) -> jax.Array | Transposed:
        name = jax.tree_util.keystr(path[-1:], simple=True)
        if name == "kernel":
            return Transposed(jnp.asarray(leaf, model.dtype).T)
        return jnp.asarray(leaf, model.dtype if name == "wte" else None)

    return jax.tree.map_with_path(place, params)


class _State(NamedTuple):
    """The state of N rows in the compiled loop."""

    cache: Cache
    tokens: jax.Array  # [N] int32, the newest, not in the cache yet
    seeds: jax.Array  # [N] uint32
    seen: jax.Array | None  # [N, V] bool, for the repetition penalty


def _lanes_suit(model: ModelConfig, num_rows: int) -> bool:
    """Whether a batch keeps its cache in lanes: with few heads it is no faster."""
    lanes = num_rows * model.num_heads
    on_cpu = jax.default_backend() == "cpu"
    return on_cpu and model.kind == "transformer" and lanes >= _FEWEST_LANES


def _laid_out(model: ModelConfig, num_rows: int, cache: Cache) -> tuple[Any, ...]:
    """The layers of a cache, as a batch of so many rows keeps them."""
    if _lanes_suit(model, num_rows):
        return tuple(in_lanes(layer, model.dtype) for layer in cache.layers)
    return cache.layers


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3, 4))
def _start(
    model: ModelConfig, num_rows: int, length: int, size: int, seen_size: int
) -> _State:
    """A batch whose rows have yet to read `length` tokens each."""
    padding = jnp.zeros(num_rows, jnp.int32)
    cache = init_cache(model, padding, size)
    layers = _laid_out(model, num_rows, cache)
    return _State(
        cache=cache._replace(layers=layers, taken=jnp.int32(length)),
        tokens=jnp.zeros(num_rows, jnp.int32),
        seeds=jnp.zeros(num_rows, jnp.uint32),
        seen=jnp.zeros((num_rows, seen_size), bool) if seen_size else None,
    )


@functools.partial(jax.jit, static_argnums=0, donate_argnums=2)
def _read_prompts(
    model: ModelConfig,
    params: Params,
    state: _State,
    tokens: jax.Array,
    padding: jax.Array,
    newest: jax.Array,
    seeds: jax.Array,
    seen: jax.Array,
    first: int,
) -> _State:
    """The state with some rows, from `first` on, that have read their prompts.

    Args:
      model, params, state: the model and the batch.
      tokens: [R, T] int32, contexts padded in front.
      padding: [R] int32, how many leading tokens are padding.
      newest: [R] int32, the token that follows each.
      seeds: [R] uint32.
      seen: [R, V] bool, the tokens of each text so far.
      first: the first row.
    """
    num_rows, (num_prompts, length) = len(state.tokens), tokens.shape
    empty = init_cache(model, padding, length)
    _, read = decode(model, params, tokens, empty)
    layers = _laid_out(model, num_rows, read)
    rows = first + jnp.arange(num_prompts)  # rows behind the last are dropped

    def insert(all_rows: jax.Array, some: jax.Array, axis: int = 0) -> jax.Array:
        """Arrays of N * M and R * M rows, which may be smaller along other axes."""

        def apart(x: jax.Array, number: int) -> jax.Array:
            return x.reshape(*x.shape[:axis], number, -1, *x.shape[axis + 1 :])

        some = apart(some, num_prompts)
        window: list[Any] = [slice(size) for size in some.shape]
        window[axis] = rows
        inserted = apart(all_rows, num_rows).at[tuple(window)].set(some, mode="drop")
        return inserted.reshape(all_rows.shape)

    axis = 2 if _lanes_suit(model, num_rows) else 0
    insert_layer = functools.partial(insert, axis=axis)
    return _State(
        cache=Cache(
            layers=jax.tree.map(insert_layer, state.cache.layers, layers),
            taken=state.cache.taken,
            padding=insert(state.cache.padding, padding),
        ),
        tokens=insert(state.tokens, newest),
        seeds=insert(state.seeds, seeds),
        seen=None if state.seen is None else insert(state.seen, seen),
    )


@functools.partial(jax.jit, static_argnums=(0, 2))
def _grow(model: ModelConfig, state: _State, size: int) -> _State:
    """The state with room for `size` places."""
    empty = init_cache(model, state.cache.padding, size)

    def copy(larger: jax.Array, old: jax.Array) -> jax.Array:
        return jax.lax.dynamic_update_slice(larger, old, (0,) * old.ndim)

    layers = jax.tree.map(copy, empty.layers, state.cache.layers)
    return state._replace(cache=state.cache._replace(layers=layers))


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3), donate_argnums=5)
def _draw_tokens(
    model: ModelConfig,
    vocab_size: int,
    greedy: bool,
    top_k: int,
    params: Params,
    state: _State,
    filters: Filters,
    drawn: jax.Array,
    num_steps: int,
) -> tuple[_State, jax.Array, jax.Array]:
    """Draws `num_steps` tokens for each row, after the [N] drawn before.

    Returns:
      The state after them, the tokens [N, _ROUND] and their log-probabilities.
    """
    num_rows = len(state.tokens)

    def step(number: int, carry: Any) -> Any:
        state, tokens, log_probs = carry
        # The barrier keeps XLA from copying all matrices before the loop.
        newest, weights = jax.lax.optimization_barrier((state.tokens[:, None], params))
        output, cache = decode(model, weights, newest, state.cache)
        logits = language_model.logits(model, output)[:, 0, :vocab_size]
        filtered = apply_filters(logits, filters, top_k, state.seen)
        token = draw(filtered, None if greedy else keys(state, number))
        rows = jnp.arange(num_rows)
        log_prob = logits[rows, token] - jax.nn.logsumexp(logits, axis=-1)
        seen = None if state.seen is None else state.seen.at[rows, token].set(True)
        state = state._replace(cache=cache, tokens=token, seen=seen)
        return (
            state,
            tokens.at[:, number].set(token),
            log_probs.at[:, number].set(log_prob),
        )

    def keys(state: _State, number: int) -> jax.Array:
        return jax.vmap(jax.random.fold_in)(
            jax.vmap(jax.random.key)(state.seeds), drawn + number
        )

    shape = (num_rows, _ROUND)
    start = state, jnp.zeros(shape, jnp.int32), jnp.zeros(shape, jnp.float32)
    return jax.lax.fori_loop(0, num_steps, step, start)


def bucket(length: int, longest: int) -> int:
    """The size that a length is padded to: few sizes, so few programs."""
    size = _SMALLEST
    while size < length:
        size += min(size, _LARGEST_STEP)
    return min(size, longest)
