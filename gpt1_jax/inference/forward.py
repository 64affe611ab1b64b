"""Texts through a model whose activations are recorded or edited, as one batch."""

import functools
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gpt1_jax.config import ModelConfig
from gpt1_jax.data.tokenizers import Tokenizer
from gpt1_jax.data.words import word_of_each
from gpt1_jax.errors import UserError
from gpt1_jax.inference.generation import prompt_ids
from gpt1_jax.inference.scoring import round_up_length
from gpt1_jax.model import costs, interventions, language_model
from gpt1_jax.model.interventions import Edit
from gpt1_jax.model.language_model import Params
from gpt1_jax.parallel.devices import require_memory


class Forward(NamedTuple):
    """What a model computed from N texts; of one text, arrays have no axis N.

    If a text is shorter than others, ignore the rows after its end.
    """

    logits: np.ndarray  # [N, T, V] float32, of the token after each
    tokens: list[Any]  # for each text its tokens, as strings
    ids: np.ndarray  # [N, T] int32; -1 behind a text's end
    recorded: dict[str, np.ndarray]  # by full name, float32, as they were computed

    def of_first(self) -> "Forward":
        """The results for the first text alone."""
        first = {
            name: x if name in interventions.WITHOUT_TOKENS else x[0]
            for name, x in self.recorded.items()
        }
        return Forward(self.logits[0], self.tokens[0], self.ids[0], first)


def forward_texts(
    model: ModelConfig,
    params: Params,
    tokenizer: Tokenizer,
    texts: Mapping[str, str],
    record: Collection[str],
    edits: Mapping[str, Edit] | None = None,
    *,
    with_logits: bool = True,
    few_programs: bool = False,
) -> Forward:
    """Runs a model on texts, together.

    Args:
      model: configuration of the language model.
      params: its parameters.
      tokenizer: its tokenizer.
      texts: by the names that messages have for them.
      record: the names of activations to return.
      edits: by names of activations.
      with_logits: whether to compute logits; if not, they are [N, T, 0].
      few_programs: whether to pad texts to one of a few lengths, unless there are
        edits. Each length has a program of its own, and programs may round apart.

    Raises:
      UserError: if there is no text, one is longer than the model's context, they do
        not fit into memory, there is no such activation or an edit does not fit it.
    """
    rows = {name: prompt_ids(tokenizer, text) for name, text in texts.items()}
    words = None
    if edits:
        words = [word_of_each(tokenizer, texts[name], rows[name]) for name in rows]
    how = {"with_logits": with_logits, "few_programs": few_programs}
    found = forward_ids(model, params, rows, record, edits, words=words, **how)
    tokens = [[tokenizer.decode([token]) for token in row] for row in rows.values()]
    logits = found.logits[..., : tokenizer.vocab_size]
    return found._replace(tokens=tokens, logits=logits)


def forward_ids(
    model: ModelConfig,
    params: Params,
    rows: Mapping[str, Sequence[int]],
    record: Collection[str],
    edits: Mapping[str, Edit] | None = None,
    *,
    words: Sequence[Sequence[int] | None] | None = None,
    with_logits: bool = False,
    few_programs: bool = True,
) -> Forward:
    """Runs a model on sequences of tokens, together.

    Args:
      model, params, record, edits, with_logits, few_programs: as for `forward_texts`.
      rows: the tokens of each sequence, by the names that messages have for them.
      words: for each sequence the word of each token, if edits may ask for it.

    Raises:
      UserError: as `forward_texts`.
    """
    _check_lengths(model, rows)
    seq_len = max(map(len, rows.values()))
    length = seq_len
    if few_programs and not edits:
        length = round_up_length(seq_len, model.max_seq_len)
    ids = _padded(rows.values(), length)
    per_token = costs.forward_bytes(model) + 4 * model.vocab_size * with_logits
    together = f"A batch of {len(rows):,} texts of up to {seq_len} tokens"
    require_memory(together, ids.size * per_token, "Pass fewer at a time.")
    sites: dict[str, Any] = {}
    if edits:
        edits = {name: interventions.as_pytree(edit) for name, edit in edits.items()}
        interventions.check_places(edits, model.num_heads, seq_len)
        positions = [range(len(row)) for row in rows.values()]
        sites["positions"] = _padded(positions, seq_len)
        if words and None not in words:
            sites["words"] = _padded(words, seq_len)
    logits, recorded = jax.device_get(
        _forward(
            *(model, tuple(record), with_logits),
            *(params, np.maximum(ids, 0), edits, sites),
        )
    )
    recorded = {
        name: interventions.without_padding(name, x, seq_len)
        for name, x in recorded.items()
    }
    return Forward(logits[:, :seq_len], [], ids[:, :seq_len], recorded)


def sum_over_tokens(found: Forward) -> tuple[int, dict[str, np.ndarray]]:
    """The number of tokens, and sums over them of recorded activations in float64.

    Raises:
      UserError: if an activation has no mean over tokens.
    """
    real = found.ids >= 0
    for name in found.recorded:
        if name in interventions.WITHOUT_TOKENS or name.endswith("attn/probs"):
            raise UserError(f"{name} has no mean over tokens; leave it out.")
    sums = {n: x[real].sum(0, dtype=np.float64) for n, x in found.recorded.items()}
    return int(real.sum()), sums


def _check_lengths(model: ModelConfig, rows: Mapping[str, Sequence[int]]) -> None:
    if not rows:
        raise UserError("There is no text; pass one or more.")
    for name, row in rows.items():
        if len(row) > model.max_seq_len:
            raise UserError(
                f"{name[0].upper()}{name[1:]} has {len(row)} tokens; this model reads "
                f"{model.max_seq_len}. Pass a shorter one."
            )


def _padded(rows: Collection[Any], length: int) -> np.ndarray:
    """[N, T] int32: -1 behind the end of each row."""
    padded = np.full((len(rows), length), -1, np.int32)
    for place, row in enumerate(rows):
        padded[place, : len(row)] = row
    return padded


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _forward(
    model: ModelConfig,
    record: tuple[str, ...],
    with_logits: bool,
    params: Params,
    tokens: jax.Array,
    edits: Mapping[str, Edit] | None,
    sites: Mapping[str, jax.Array],
) -> tuple[jax.Array, OrderedDict[str, jax.Array]]:
    """Logits [N, T, V] or [N, T, 0], and what was recorded, float32."""
    output, recorded = interventions.forward(
        model, params, tokens, record, edits, **sites
    )
    logits = jnp.zeros((*tokens.shape, 0))
    if with_logits:
        logits = language_model.logits(model, output)
    # A dict would come back in the order of its keys, h_10 before h_2.
    in_order = OrderedDict((n, x.astype(jnp.float32)) for n, x in recorded.items())
    return logits, in_order
