"""Checks kernels against the formula, on the device that is to use them.

Its compiler may refuse them or generate wrong code, which no test on another chip would
show. A form is one of several ways to compute the same function.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from gpt1_jax.ops.attention import (
    MASK_NDIM,
    causal_attention,
    plain_causal_attention,
)
from gpt1_jax.ops.dropout import Noise, keep_mask, site_words, step_noise
from gpt1_jax.ops.layer_norm import residual_layer_norm

Form = Callable[..., jax.Array]
# (arrays, noise, gradient of the output) -> output and, in training, gradients
Compiled = Callable[..., tuple[jax.Array, ...]]

MOST_ERROR = 1.3  # of a correct form, in units of the error of XLA's own
_NO_ERROR = 1e-6  # of an array's mean; smaller errors are float32's rounding
_SITE = 1
_FURTHER_PAGE = 2**27 + 1  # a row whose counters start over: see `random_bits`


class Check:
    """Compares forms of a function with its formula, on one device.

    Each function is a subclass, with its `formula`, whose float32 result is the
    reference, and XLA's own form, whose error is the measure.

    Args:
      shape: shape of the output, [N, T, ..].
      dtype: dtype of the large arrays; vectors are float32.
      rate: dropout rate.
      training: whether gradients are computed, and dropout is on.
    """

    formula: Form
    usual: Form

    def __init__(
        self, shape: tuple[int, ...], dtype: DTypeLike, rate: float, training: bool
    ):
        self._shape, self._dtype = shape, jnp.dtype(dtype)
        self._rate, self._training = rate if training else 0.0, training
        self._programs: dict[Form, Compiled] = {}
        self._noise: Noise | None = None
        if self._rate:
            noise = step_noise(0, jnp.int32(1), shape[0])
            self._noise = noise._replace(rows=noise.rows.at[-1].set(_FURTHER_PAGE))
        generator = np.random.default_rng(0)
        *self._arrays, self._gradient = (
            self._array(generator.normal(size=each))
            for each in (*self._shapes(), shape)
        )

    def why_not(self, form: Form) -> str:
        """What is wrong with a form; empty if it computes the function.

        Dropout masks must be bit-exact, output and gradients as close to the formula as
        XLA's own form, and a second run must reproduce both. The form's compiler may
        raise any error.
        """
        if wrong := self.wrong_masks(form):
            return f"its dropout masks are wrong in {wrong:,} elements"
        once, again = (self._results(form) for _ in range(2))
        if not all(map(np.array_equal, once, again)):
            return "it gave two results for the same input"
        for name, error in self._errors_of(once).items():
            if not error <= MOST_ERROR:  # or not a number
                return f"{name} has {error:.3g} times the error of XLA's own"
        return ""

    def wrong_masks(self, form: Form) -> int:
        """The number of wrong elements in a form's dropout masks, in both passes."""
        if self._noise is None:
            return 0
        return self._wrong_masks(self._program(form), self._noise)

    def errors(self, form: Form) -> dict[str, float]:
        """The mean errors of a form's output and gradients, divided by XLA's own."""
        return self._errors_of(self._results(form))

    def _shapes(self) -> list[tuple[int, ...]]:
        """The shapes of the input arrays."""
        raise NotImplementedError

    def _call(self, form: Form, arrays: Sequence[jax.Array], noise: Any) -> jax.Array:
        """Calls a form with the arguments that it takes."""
        raise NotImplementedError

    def _wrong_masks(self, run: Compiled, noise: Noise) -> int:
        """Reads the dropout masks off the results of a compiled form."""
        raise NotImplementedError

    def _errors_of(self, results: Sequence[np.ndarray]) -> dict[str, float]:
        found = {}
        rows = zip(results, self._usual_results, self._exact_results, strict=True)
        for number, (ours, theirs, exact) in enumerate(rows):
            name = f"gradient {number}" if number else "the output"
            least = _NO_ERROR * np.abs(exact).mean()
            own = max(np.abs(theirs - exact).mean(), least)
            error = np.abs(ours - exact).mean()
            found[name] = float(error / own) if own else float(error > 0) * np.inf
        return found

    def _array(self, values: Any, dtype: DTypeLike | None = None) -> jax.Array:
        """An array in the dtype that the form takes it in."""
        large = values.ndim > 1
        return jnp.asarray(values, (dtype or self._dtype) if large else jnp.float32)

    def _program(self, form: Form) -> Compiled:
        """A form's program, cached so that it is compiled only once."""

        def compute(arrays: Any, noise: Noise | None, gradient: jax.Array) -> Any:
            if not self._training:
                return (self._call(form, arrays, noise),)
            output, pull = jax.vjp(lambda xs: self._call(form, xs, noise), arrays)
            return output, *pull(gradient)[0]

        return self._programs.setdefault(form, jax.jit(compute))

    def _results(self, form: Form, dtype: DTypeLike | None = None) -> list[np.ndarray]:
        """A form's output and gradients, for the same arrays in another dtype too."""
        *arrays, gradient = (
            self._array(x, dtype) for x in (*self._arrays, self._gradient)
        )
        results = self._program(form)(arrays, self._noise, gradient)
        return [np.asarray(x, np.float32) for x in results]

    @functools.cached_property
    def _usual_results(self) -> list[np.ndarray]:
        return self._results(self.usual)

    @functools.cached_property
    def _exact_results(self) -> list[np.ndarray]:
        with jax.default_matmul_precision("highest"):
            return self._results(self.formula, jnp.float32)


def _usual_attention(*arguments: Any) -> jax.Array:
    """In blocks, but for a TPU, where they would take half a minute to compile."""
    on_tpu = jax.default_backend() == "tpu"
    return (plain_causal_attention if on_tpu else causal_attention)(*arguments)


class AttentionCheck(Check):
    """Causal attention of queries, keys and values [N, T, H, K]."""

    formula = staticmethod(plain_causal_attention)
    usual = staticmethod(_usual_attention)

    def _shapes(self) -> list[tuple[int, ...]]:
        return [self._shape] * 3

    def _call(self, form: Form, arrays: Sequence[jax.Array], noise: Any) -> jax.Array:
        return form(*arrays, self._rate, noise, _SITE)

    def _wrong_masks(self, run: Compiled, noise: Noise) -> int:
        """Reads the masks off the results.

        With equal scores a query attends to all keys that it sees. If the values are
        unit vectors, its output shows which keys it keeps; if the gradients are, those
        of the values show which queries keep a key.
        """
        _, seq_len, num_heads, head_dim = self._shape
        mask = (num_heads, seq_len, seq_len), self._rate, None, MASK_NDIM
        keep = keep_mask(site_words(noise, _SITE), noise.rows, *mask)
        keep = np.tril(np.asarray(keep))  # [N, H, T, T]
        zeros, wrong = jnp.zeros(self._shape, self._dtype), 0
        for start in range(0, seq_len, head_dim):
            part = slice(start, min(start + head_dim, seq_len))
            units = jnp.eye(seq_len, head_dim, -start, self._dtype)[:, None]
            units = jnp.broadcast_to(units, self._shape)
            output, *gradients = run([zeros, zeros, units], noise, units)
            for found, expected in (
                (output, keep[..., part]),
                (gradients[2], keep[..., part, :].swapaxes(2, 3)),
            ):
                kept = np.asarray(found).swapaxes(1, 2)[..., : part.stop - start] != 0
                wrong += (kept != expected).sum()
        return int(wrong)


class LayerNormCheck(Check):
    """LayerNorm of a residual sum [N, T, D], with its branch's bias and dropout."""

    formula = usual = staticmethod(residual_layer_norm)  # tested to be the formula

    def _shapes(self) -> list[tuple[int, ...]]:
        return [self._shape] * 2 + [self._shape[-1:]] * 3

    def _call(self, form: Form, arrays: Sequence[jax.Array], noise: Any) -> jax.Array:
        return form(*arrays, self._rate, noise, _SITE)

    def _wrong_masks(self, run: Compiled, noise: Noise) -> int:
        """Reads the masks off the results.

        If only the branch adds something, the same everywhere, then kept elements lie
        above the mean of their vector. The gradient of the branch is zero where it is
        dropped.
        """
        words = site_words(noise, _SITE)
        keep = np.asarray(keep_mask(words, noise.rows, self._shape[1:], self._rate))
        ones, gain = jnp.ones(self._shape, self._dtype), jnp.ones(self._shape[-1])
        gradient = jnp.sin(jnp.arange(ones.size, dtype=jnp.float32))
        gradient = gradient.reshape(self._shape).astype(self._dtype)
        results = run([0 * ones, ones, 0 * gain, gain, 0 * gain], noise, gradient)
        output, _, d_branch = (np.asarray(x, np.float32) for x in results[:3])
        telling = ~keep.all(-1, keepdims=True)  # a vector with all kept is constant
        wrong = ((output > 0) != keep) & telling
        zeros = int((d_branch[keep] == 0).sum())
        if zeros <= 1e-4 * keep.sum():  # a gradient may round to zero by chance
            zeros = 0
        return int(wrong.sum() + (d_branch[~keep] != 0).sum() + zeros)
