"""Activations of a model, recorded and replaced by name.

    from gpt1_jax.model.interventions import Intervention, add, zero

    edits = {"h_3/attn/heads": zero(heads=5), "h_4/out": add(vector, positions=-1)}
    how = Intervention(model, record=["h_*/attn/probs"], edits=edits)
    output = language_model.apply(model, params, tokens, how)
    how.recorded  # {"h_0/attn/probs": [N, H, T, T], "h_1/attn/probs": ..}

docs/interventions.md lists the names. An `*` in one stands for any characters but `/`,
as in the paths of files; `*` alone stands for all names.

An edit is a pure function of an activation that returns what takes its place, in its
shape or one that broadcasts to it: `jnp.tanh`, or `def edit(x, site)`, which is given
the `Site` too. It is traced with the model, so `jax.jit`, `jax.grad` and `jax.vmap` go
through it. The edits that this module makes are pytrees of their arrays, as is any
function with its arrays in a `jax.tree_util.Partial`: programs that take such edits as
arguments are compiled once for all values.
"""

import difflib
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace as replace_fields
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from gpt1_jax.config import ModelConfig
from gpt1_jax.errors import UserError
from gpt1_jax.model import language_model
from gpt1_jax.model.execution import Execution, Layer
from gpt1_jax.model.language_model import Output, Params

Edit = Callable[..., Any]  # of an array, or of an array and its `Site`
Places = jax.typing.ArrayLike | Sequence[int] | None
_PROBS = "attn/probs"
MAPS = f"h_*/{_PROBS}"  # the attention probabilities of all layers
_WITH_HEADS = ("attn/q", "attn/k", "attn/v", _PROBS, "attn/heads")
WITHOUT_TOKENS = ("wte", "wpe")


class Site(NamedTuple):
    """Where an activation is."""

    name: str  # within its layer, if it has one: "attn/heads"
    layer: Layer | None
    positions: jax.Array | None  # [N, T] int32 of its tokens, from 0; -1: padding
    words: jax.Array | None  # [N, T] int32, of the word of each, from 0; -1: none

    @property
    def full_name(self) -> str:
        """With its layer, "h_3/attn/heads"."""
        return self.name if self.layer is None else f"h_{self.layer}/{self.name}"


class Intervention(Execution):
    """Records and edits activations, without dropout, in an unrolled loop.

    Attention is computed by the formula if its probabilities are named.

    Args:
      model: as for `Execution`.
      record: the names of what to keep in `recorded`, as it is after an edit.
      edits: the edit of each name; an activation has one at most.
      positions: [N, T] for `Site`; by default 0 to T - 1 in each row.
      words: [N, T] for `Site`, if edits need them.

    Attributes:
      recorded: by full name, what was kept, in the order of the computation.
    """

    def __init__(
        self,
        model: ModelConfig,
        record: Collection[str] = (),
        edits: Mapping[str, Edit] | None = None,
        *,
        positions: jax.Array | None = None,
        words: jax.Array | None = None,
    ):
        self._record, self._edits = tuple(record), dict(edits or {})
        forms: dict[str, Any] = {"layer_norm_form": "plain", "layer_loop": "unrolled"}
        maps = [f"h_{layer}/{_PROBS}" for layer in range(model.depth)]
        if any(_matching(name, self._named) for name in maps):
            forms["attention_form"] = "plain"
        super().__init__(replace_fields(model, remat=False, **forms))
        self._positions, self._words = positions, words
        self._passed: list[str] = []
        self.recorded: dict[str, jax.Array] = {}

    @property
    def _named(self) -> tuple[str, ...]:
        return (*self._record, *self._edits)

    def at(self, name: str, x: jax.Array, layer: Layer | None = None) -> jax.Array:
        """Edits an activation, and keeps it, if it is one of those named."""
        full_name = Site(name, layer, None, None).full_name
        self._passed.append(full_name)
        edits = _matching(full_name, self._edits)
        if len(edits) > 1:
            raise UserError(
                f"{full_name} has the edits of {' and of '.join(map(repr, edits))}; "
                "make them one function."
            )
        for edit in edits:
            x = apply_edit(self._edits[edit], x, self._site(name, x, layer))
        if _matching(full_name, self._record):
            self.recorded[full_name] = x
        return x

    def _site(self, name: str, x: jax.Array, layer: Layer | None) -> Site:
        if name in WITHOUT_TOKENS:
            return Site(name, layer, None, None)
        positions = self._positions
        if positions is None:
            seq_len = x.shape[2 if name == _PROBS else 1]
            rows = jnp.arange(seq_len, dtype=jnp.int32)
            positions = jnp.broadcast_to(rows, (len(x), seq_len))
        return Site(name, layer, positions, self._words)

    def check_names(self) -> None:
        """Refuses names that no activation has had, once the model has run.

        Raises:
          UserError: naming the first, and those that are like it.
        """
        for name in self._named:
            if not any(_matching(each, [name]) for each in self._passed):
                near = difflib.get_close_matches(name, self._passed, 3, 0)
                raise UserError(
                    f"This model has no activation {name!r}; near it are "
                    f"{', '.join(near)}. docs/interventions.md lists all of them."
                )


def _matching(name: str, patterns: Collection[str]) -> list[str]:
    return [each for each in patterns if each == "*" or _fits(name, each)]


def _fits(name: str, pattern: str) -> bool:
    parts, wanted = name.split("/"), pattern.split("/")
    return len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))


def apply_edit(edit: Edit, x: jax.Array, site: Site) -> jax.Array:
    """An activation after an edit, in the shape and dtype it had before.

    Raises:
      UserError: naming the activation and its shape, if the edit fails, calls NumPy or
        returns what does not broadcast.
    """
    try:
        asks = "site" in inspect.signature(edit).parameters
    except ValueError:  # a built-in without a signature
        asks = False
    shape = f"{site.full_name}, {list(x.shape)},"
    try:
        edited = edit(x, site=site) if asks else edit(x)
    except jax.errors.TracerArrayConversionError as error:
        raise UserError(
            f"The edit of {site.full_name} calls NumPy; it is compiled with the model, "
            "so it takes the functions of jax.numpy."
        ) from error
    except (TypeError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        first_line = str(error).partition("\n")[0]
        raise UserError(f"The edit of {shape} fails: {first_line}") from error
    if edited is None:
        raise UserError(f"The edit of {shape} returns nothing.")
    edited = jnp.asarray(edited, x.dtype)
    try:
        return jnp.broadcast_to(edited, x.shape)
    except ValueError as error:
        raise UserError(
            f"The edit of {shape} returns the shape {list(edited.shape)}."
        ) from error


def forward(
    model: ModelConfig,
    params: Params,
    tokens: jax.Array,
    record: Collection[str] = (),
    edits: Mapping[str, Edit] | None = None,
    **sites: Any,
) -> tuple[Output, dict[str, jax.Array]]:
    """Runs a model, without dropout, with some activations recorded or edited.

    Args:
      model, params, tokens: as for `language_model.apply`.
      record, edits: as for `Intervention`, and so are the others.

    Returns:
      The model's output, and the recorded activations by their full names.

    Raises:
      UserError: if the model has no activation of a name, or an edit does not fit.
    """
    how = Intervention(model, record, edits, **sites)
    output = language_model.apply(model, params, tokens, how)
    how.check_names()
    return output, how.recorded


def without_padding(name: str, x: Any, seq_len: int) -> Any:
    """The first `seq_len` tokens of an activation [N, T, ..]."""
    if name.endswith(_PROBS):
        return x[:, :, :seq_len, :seq_len]
    return x if name in WITHOUT_TOKENS else x[:, :seq_len]


def state_names(model: ModelConfig) -> tuple[str, ...]:
    """The names of h_0 to h_L of eq. 2."""
    return ("embedding", *(f"h_{layer}/out" for layer in range(model.depth)))


def hidden_states(
    model: ModelConfig, params: Params, tokens: jax.Array
) -> list[jax.Array]:
    """The state of each token [N, T, D] before the first layer and after each."""
    _, recorded = forward(model, params, tokens, state_names(model))
    return [recorded[name].astype(model.dtype) for name in state_names(model)]


def check_attention(model: ModelConfig) -> None:
    """Refuses a model without attention.

    Raises:
      ValueError: if it has none; names the model's kind.
    """
    if model.kind != "transformer":
        raise UserError(
            f"This model has no attention maps: its config.model.kind={model.kind!r}. "
            "Only a Transformer has them; both kinds have hidden states."
        )


def attention(model: ModelConfig, params: Params, tokens: jax.Array) -> list[jax.Array]:
    """Each layer's attention probabilities, [N, H, T, T] float32; rows sum to one.

    Raises:
      ValueError: if the model has no attention.
    """
    check_attention(model)
    return list(forward(model, params, tokens, [MAPS])[1].values())


# --- edits ------------------------------------------------------------------------


def at(
    edit: Edit, *, heads: Places = None, positions: Places = None, words: Places = None
) -> Edit:
    """An edit at some places; elsewhere the activation stays as it is.

    Args:
      edit: any edit.
      heads: the numbers of heads, from 0, or from the last, which is -1; None for all.
      positions: those of tokens, [P], or [N, P] if texts differ; a negative one counts
        from the end of each text, whose last token is -1. Of attention probabilities,
        the tokens that attend. None for all.
      words: the numbers of words, likewise.
    """
    if heads is None and positions is None and words is None:
        return as_pytree(edit)
    places = {"heads": heads, "positions": positions, "words": words}
    numbers = {name: _as_numbers(each) for name, each in places.items()}
    return Partial(_at_places, as_pytree(edit), **numbers)


def as_pytree(edit: Edit) -> Edit:
    """The edit as a pytree, so that it can be an argument of a jitted function."""
    return Partial(edit) if jax.tree_util.all_leaves([edit]) else edit


def zero(**places: Places) -> Edit:
    """Zeros, at the places that `at` describes: zero ablation."""
    return at(_zero, **places)


def mean(**places: Places) -> Edit:
    """The mean over each text's tokens, at the places that `at` describes.

    For the mean over a corpus, `replace` by it (`TrainedModel.mean_activations`).
    """
    return at(_mean, **places)


def add(vector: jax.typing.ArrayLike, **places: Places) -> Edit:
    """Adds a vector, at the places that `at` describes: steering."""
    return at(Partial(_add, _as_array(vector)), **places)


def replace(value: jax.typing.ArrayLike, **places: Places) -> Edit:
    """Another value, at the places that `at` describes: patching.

    Args:
      value: of the activation's shape, as another run recorded it, or one that
        broadcasts to it.
      **places: where.
    """
    return at(Partial(_replace, _as_array(value)), **places)


def keep_heads(heads: Places) -> Edit:
    """Zeros in place of all heads but some."""
    return Partial(_keep_heads, heads=_as_numbers(heads))


def check_places(edits: Mapping[str, Edit], num_heads: int, seq_len: int) -> None:
    """Refuses numbers of heads and positions that do not exist.

    Within a program numbers are not known, and such an edit would change nothing.

    Raises:
      UserError: naming the first, and how many there are.
    """
    for name, edit in edits.items():
        is_ours = getattr(edit, "func", None) in (_at_places, _keep_heads)
        places: dict[str, Any] = getattr(edit, "keywords", {}) if is_ours else {}
        for what, count in (("heads", num_heads), ("positions", seq_len)):
            numbers = places.get(what)
            for number in np.ravel([] if numbers is None else numbers):
                if not -count <= number < count:
                    raise UserError(
                        f"The edit of {name} is at {what} {number}; there are {count}, "
                        "counted from 0."
                    )


def _as_array(values: Any, dtype: Any = None) -> Any:
    """An array of NumPy, so that JAX's settings where an edit is made do not matter."""
    if any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(values)):
        return jnp.asarray(values)
    return np.asarray(values, dtype)


def _as_numbers(places: Places) -> Any:
    """Numbers of heads, positions or words as an array; None stays None."""
    if places is None:
        return None
    if _as_array(places).dtype == bool:
        raise UserError("An edit got truth values; give it numbers of heads or tokens.")
    return _as_array(places, np.int32)


def _zero(x: jax.Array) -> jax.Array:
    return jnp.zeros_like(x)


def _mean(x: jax.Array, site: Site) -> jax.Array:
    real = _along_tokens(_positions_of(site) >= 0, x, site)
    axis = 2 if site.name == _PROBS else 1
    total = jnp.where(real, x, 0).sum(axis, keepdims=True, dtype=jnp.float32)
    return total / real.sum(axis, keepdims=True)


def _add(vector: jax.Array, x: jax.Array) -> jax.Array:
    return x + vector


def _replace(value: jax.Array, x: jax.Array) -> jax.Array:
    del x
    return value


def _keep_heads(x: jax.Array, heads: jax.Array, site: Site) -> jax.Array:
    return jnp.where(_are_heads(heads, x, site), x, 0)


def _at_places(
    edit: Edit,
    x: jax.Array,
    heads: jax.Array | None,
    positions: jax.Array | None,
    words: jax.Array | None,
    site: Site,
) -> jax.Array:
    chosen: Any = True
    if heads is not None:
        chosen = chosen & _are_heads(heads, x, site)
    if positions is not None:
        among = _among(positions, _positions_of(site))
        chosen = chosen & _along_tokens(among, x, site)
    if words is not None:
        if site.words is None:
            raise UserError(
                f"An edit of {site.full_name} names words, but where they are is not "
                "known; give Intervention its `words`, or name positions."
            )
        among = _among(words, site.words)
        chosen = chosen & _along_tokens(among, x, site)
    return jnp.where(chosen, apply_edit(edit, x, site), x)


def _are_heads(heads: jax.Array, x: jax.Array, site: Site) -> jax.Array:
    """Which numbers along the axis of heads are among some."""
    if site.name not in _WITH_HEADS:
        raise UserError(
            f"{site.full_name} has no heads, which an edit of it names; "
            f"{', '.join(_WITH_HEADS)} have them."
        )
    axis = 1 if site.name == _PROBS else 2
    num_heads = x.shape[axis]
    heads = jnp.where(heads < 0, heads + num_heads, heads)
    chosen = jnp.isin(jnp.arange(num_heads), heads)
    return jnp.expand_dims(chosen, [i for i in range(x.ndim) if i != axis])


def _positions_of(site: Site) -> jax.Array:
    if site.positions is None:
        raise UserError(f"{site.full_name} has no tokens, which an edit of it names.")
    return site.positions


def _among(wanted: jax.Array, numbers: jax.Array) -> jax.Array:
    """Which of numbers [N, T], -1 for none, are among those wanted, [P] or [N, P]."""
    wanted = jnp.atleast_1d(wanted)
    wanted = jnp.where(wanted < 0, wanted + 1 + numbers.max(1, keepdims=True), wanted)
    same = numbers[..., None] == wanted[:, None]
    return same.any(axis=-1) & (numbers >= 0)


def _along_tokens(of_tokens: jax.Array, x: jax.Array, site: Site) -> jax.Array:
    """The values [N, T] of tokens, in a shape that broadcasts to the activation."""
    if site.name == _PROBS:
        return of_tokens[:, None, :, None]
    return jnp.expand_dims(of_tokens, list(range(2, x.ndim)))
