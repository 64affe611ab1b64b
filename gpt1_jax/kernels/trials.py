"""Checks and times a form of attention or of LayerNorm on this device.

A form is one of several ways to compute the same function. Kernels are tried on the
device that is to use them: its compiler may refuse them, or generate slow or wrong
code, which no test on another chip would show.
"""

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from gpt1_jax.kernels.attention import fused_causal_attention
from gpt1_jax.kernels.layer_norm import fused_residual_layer_norm
from gpt1_jax.ops.attention import (
    MASK_NDIM,
    causal_attention,
    plain_causal_attention,
)
from gpt1_jax.ops.dropout import Noise, keep_mask, site_words, step_noise
from gpt1_jax.ops.layer_norm import Branch, residual_layer_norm

# (noise or None, dropout rate, arrays) -> output, shaped like the first array
Form = Callable[[Noise | None, float, Sequence[jax.Array]], jax.Array]
# (arrays, noise, gradient of the output) -> output and, in training, gradients
Compiled = Callable[..., tuple[jax.Array, ...]]

MOST_ERROR = 1.3  # of a correct form, in units of the error of XLA's own
_NO_ERROR = 1e-6  # of an array's mean; smaller errors are float32's rounding
_SITE = 1
_CHECKED = 2  # sequences whose results are compared with the formula's
_ROUNDS, _ROUND_SECONDS, _MOST_CALLS = 3, 0.05, 20  # for timing
_FURTHER_PAGE = 2**27 + 1  # a row whose counters start over: see `random_bits`


class Refused(Exception):
    """A form must not be used; the message says why."""


class Function(NamedTuple):
    """A function that several forms compute, at certain sizes.

    Attributes:
      usual: XLA's own form, to compare with.
      usual_name: its name.
      formula: the form whose float32 result is the reference.
      kernels: the form that uses our kernels.
      shapes: the shapes of its input arrays; the output has the first.
      wrong_masks: counts wrong elements of the dropout masks of a compiled form, given
        the noise, the rate and the dtype of the arrays.
      most_time: the share of the usual form's time below which kernels are used.
    """

    usual: Form
    usual_name: str
    formula: Form
    kernels: Form
    shapes: tuple[tuple[int, ...], ...]
    wrong_masks: Callable[[Compiled, Noise, float, jnp.dtype], int]
    most_time: float = 1.0


def attention_function(
    num_seqs: int, seq_len: int, num_heads: int, head_dim: int
) -> Function:
    """Causal attention of queries, keys and values [N, T, H, K]."""
    shape = num_seqs, seq_len, num_heads, head_dim
    blocked, plain = map(attention_form, (causal_attention, plain_causal_attention))
    # For a TPU, blocks take half a minute to compile, longer than a trial may take, and
    # the formula a sixth of that. By the compiler's estimate, blocks then run in 0.84
    # times its cycles.
    on_tpu = jax.default_backend() == "tpu"
    return Function(
        usual=plain if on_tpu else blocked,
        usual_name="plain" if on_tpu else "blocked",
        most_time=0.8 if on_tpu else 1.0,
        formula=plain,
        kernels=attention_form(fused_causal_attention),
        shapes=(shape,) * 3,
        wrong_masks=functools.partial(_wrong_attention_masks, shape),
    )


def layer_norm_function(num_seqs: int, seq_len: int, embed_dim: int) -> Function:
    """LayerNorm of a residual sum [N, T, D], with its branch's bias and dropout."""
    shape = num_seqs, seq_len, embed_dim
    plain = layer_norm_form(residual_layer_norm)  # checked elsewhere to be the formula
    return Function(
        usual=plain,
        usual_name="plain",
        formula=plain,
        kernels=layer_norm_form(fused_residual_layer_norm),
        shapes=(shape, shape, *[(embed_dim,)] * 3),
        wrong_masks=functools.partial(_wrong_layer_norm_masks, shape),
    )


def attention_form(attend: Callable[..., jax.Array]) -> Form:
    """A function with the arguments of `causal_attention`, as a form."""
    return lambda noise, rate, arrays: attend(*arrays, rate, noise, _SITE)


def layer_norm_form(norm: Callable[..., jax.Array]) -> Form:
    """A function with the arguments of `residual_layer_norm`, as a form."""

    def compute(
        noise: Noise | None, rate: float, arrays: Sequence[jax.Array]
    ) -> jax.Array:
        x, output, branch_bias, scale, bias = arrays
        branch = Branch(output, branch_bias, rate, noise, _SITE, None)
        return norm(x, branch, scale, bias)

    return compute


class Trial:
    """Compares forms of a function with XLA's own, on one device.

    Args:
      function: the function, at the sizes of a run.
      dtype: dtype of its large arrays; vectors are float32.
      rate: dropout rate.
      training: whether gradients are computed, and dropout is on.
    """

    def __init__(
        self, function: Function, dtype: DTypeLike, rate: float, training: bool
    ):
        self._function, self._dtype = function, jnp.dtype(dtype)
        self._rate, self._training = rate if training else 0.0, training
        self._programs: dict[Form, Compiled] = {}
        generator = np.random.default_rng(0)
        self._arrays = [
            jnp.asarray(generator.normal(size=shape), self._dtype_of(shape))
            for shape in function.shapes
        ]
        shape = function.shapes[0]
        # Gradients of vectors are sums over all sequences; only the first ones count.
        gradient = generator.normal(size=shape)
        gradient[_CHECKED:] = 0.0
        self._gradient = jnp.asarray(gradient, self._dtype)
        self._noise: Noise | None = None
        if self._rate:
            noise = step_noise(0, jnp.int32(1), shape[0])
            self._noise = noise._replace(rows=noise.rows.at[-1].set(_FURTHER_PAGE))

    def _dtype_of(self, shape: Sequence[int]) -> jnp.dtype:
        return jnp.dtype("float32") if len(shape) == 1 else self._dtype

    def _program(self, form: Form) -> Compiled:
        """A form's program, cached so that it is compiled only once."""

        def compute(arrays: Any, noise: Noise | None, gradient: jax.Array) -> Any:
            if not self._training:
                return (form(noise, self._rate, arrays),)
            output, pull = jax.vjp(lambda xs: form(noise, self._rate, xs), arrays)
            return output, *pull(gradient)[0]

        return self._programs.setdefault(form, jax.jit(compute))

    def check(self, form: Form) -> None:
        """Checks that a form computes the function.

        Dropout masks must be bit-exact, output and gradients as close to the formula as
        XLA's own form, and a second run must reproduce both.

        Raises:
          Refused: if it does not. Its compiler may raise other errors.
        """
        wrong = self.wrong_masks(form)
        if wrong:
            raise Refused(f"its dropout masks are wrong in {wrong:,} elements")
        once, again = (self._results(form) for _ in range(2))
        if not all(map(np.array_equal, once, again)):
            raise Refused("it gave two results for the same input")
        for name, error in self._errors_of(once).items():
            if not error <= MOST_ERROR:  # or not a number
                raise Refused(f"{name} has {error:.3g} times the error of XLA's own")

    def wrong_masks(self, form: Form) -> int:
        """The number of wrong elements in a form's dropout masks, in both passes."""
        if self._noise is None:
            return 0
        return self._function.wrong_masks(
            self._program(form), self._noise, self._rate, self._dtype
        )

    def errors(self, form: Form) -> dict[str, float]:
        """The mean errors of a form's output and gradients, divided by XLA's own."""
        return self._errors_of(self._results(form))

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

    def _results(self, form: Form) -> list[np.ndarray]:
        """Output and gradients of the checked sequences; vectors whole."""
        results = self._program(form)(self._arrays, self._noise, self._gradient)
        return [_checked(np.asarray(x, np.float32)) for x in results]

    @functools.cached_property
    def _usual_results(self) -> list[np.ndarray]:
        return self._results(self._function.usual)

    @functools.cached_property
    def _exact_results(self) -> list[np.ndarray]:
        """The formula's results in float32, on the checked sequences alone."""
        arrays = [_checked(x).astype(jnp.float32) for x in self._arrays]
        gradient, noise = _checked(self._gradient).astype(jnp.float32), self._noise
        if noise is not None:
            noise = noise._replace(rows=noise.rows[: len(gradient)])
        with jax.default_matmul_precision("highest"):
            results = self._program(self._function.formula)(arrays, noise, gradient)
        return [np.asarray(x) for x in results]

    def seconds(self, form: Form) -> tuple[float, float]:
        """The best times of XLA's own form and of another, measured in turns.

        Each is the time of a forward and, in training, a backward pass, in seconds.
        """
        runs = [self._program(each) for each in (self._function.usual, form)]
        for run in runs:
            self._time(run, 1)  # compiles
        calls = int(_ROUND_SECONDS / self._time(runs[0], 1))
        calls = min(max(1, calls), _MOST_CALLS)
        turns = [[self._time(run, calls) for run in runs] for _ in range(_ROUNDS)]
        usual, other = map(min, zip(*turns, strict=True))
        return usual, other

    def _time(self, run: Compiled, calls: int) -> float:
        start = time.perf_counter()
        for _ in range(calls):
            results = run(self._arrays, self._noise, self._gradient)
        jax.block_until_ready(results)
        return (time.perf_counter() - start) / calls


def _checked(x: Any) -> Any:
    """The sequences that are compared, or all of a vector."""
    return x if x.ndim == 1 else x[:_CHECKED]


def _wrong_attention_masks(
    shape: tuple[int, int, int, int],
    run: Compiled,
    noise: Noise,
    rate: float,
    dtype: jnp.dtype,
) -> int:
    """Reads the masks off the results.

    With equal scores a query attends to all keys that it sees. If the values are unit
    vectors, its output shows which keys it keeps; if the gradients are, those of the
    values show which queries keep a key.
    """
    num_seqs, seq_len, num_heads, head_dim = shape
    rows = noise.rows[jnp.array(sorted({0, num_seqs - 1}))]
    probs_shape = num_heads, seq_len, seq_len
    keep = keep_mask(site_words(noise, _SITE), rows, probs_shape, rate, None, MASK_NDIM)
    keep = np.tril(np.asarray(keep))  # [rows, H, T, T]
    zeros, wrong = jnp.zeros(shape, dtype), 0
    for start in range(0, seq_len, head_dim):
        part = slice(start, min(start + head_dim, seq_len))
        units = jnp.eye(seq_len, head_dim, -start, dtype)[:, None]
        units = jnp.broadcast_to(units, shape)
        output, *gradients = run([zeros, zeros, units], noise, units)
        for found, expected in (
            (output, keep[..., part]),
            (gradients[2], keep[..., part, :].swapaxes(2, 3)),
        ):
            ends = np.asarray(found[:: max(1, num_seqs - 1)]).swapaxes(1, 2)
            wrong += ((ends[..., : part.stop - start] != 0) != expected).sum()
    return int(wrong)


def _wrong_layer_norm_masks(
    shape: tuple[int, int, int],
    run: Compiled,
    noise: Noise,
    rate: float,
    dtype: jnp.dtype,
) -> int:
    """Reads the masks off the results.

    If only the branch adds something, the same everywhere, then kept elements lie above
    the mean of their vector. The gradient of the branch is zero where it is dropped.
    """
    num_seqs, _, embed_dim = shape
    rows = noise.rows[jnp.array(sorted({0, num_seqs - 1}))]
    keep = np.asarray(keep_mask(site_words(noise, _SITE), rows, shape[1:], rate))
    ones, gain = jnp.ones(shape, dtype), jnp.ones(embed_dim)
    gradient = jnp.sin(jnp.arange(ones.size, dtype=jnp.float32)).reshape(shape)
    arrays = [0 * ones, ones, 0 * gain, gain, 0 * gain]
    results = run(arrays, noise, gradient.astype(dtype))
    ends = (np.asarray(x, np.float32)[:: max(1, num_seqs - 1)] for x in results[:3])
    output, _, d_branch = ends
    telling = ~keep.all(-1, keepdims=True)  # a vector with all kept is constant
    wrong = ((output > 0) != keep) & telling
    # A gradient may round to zero by chance.
    return int(wrong.sum() + (d_branch[~keep] != 0).sum() + _excess(d_branch, keep))


def _excess(gradient: np.ndarray, keep: np.ndarray) -> int:
    """How many kept gradients are zero, beyond the few that round to it."""
    zeros = int((gradient[keep] == 0).sum())
    return zeros if zeros > 1e-4 * keep.sum() else 0
