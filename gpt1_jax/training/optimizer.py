"""The optimizer as released (opt.py): Adam, its decay, clipping and schedules.

Any other optimizer of optax takes its place by its name and arguments. Only the
optimizer knows the structure of its state; other code gets it by `jax.eval_shape`.
"""

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from gpt1_jax.config.sections import RELEASED_ADAM, OptimizerConfig
from gpt1_jax.errors import UserError

_GIVEN = ("b1", "b2", "eps")  # keys passed to optimizers that have these arguments
_MASKS = ("mask", "weight_decay_mask")  # optax's names for the mask of weight decay
_OTHERS = "another, such as released_adam, adamw, lion, adafactor, sgd or contrib.muon"

Schedule = Callable[[jax.typing.ArrayLike], jax.Array]


def make_schedule(config: OptimizerConfig, num_steps: int) -> Schedule:
    """The learning rate of each update.

    Let t be the number of completed updates, x = t / num_steps, and w the fraction of
    the run that warms up (warmup_steps / num_steps, or warmup_fraction). The rate is
    learning_rate times

      cosine               x / w up to w, then (1 + cos(pi x)) / 2: released code;
                           the cosine runs over all of x, not from the end of warmup.
      cosine_after_warmup  x / w, then a cosine from x = w to 1: optax's usual form.
      linear               min(x / w, 1) (1 - x): released code, fine-tuning.
      constant             x / w, then 1.

    With a final fraction f, a factor that falls from 1 to 0 falls from 1 to f instead:
    it is multiplied by 1 - f, and f is added.

    In a run with warmup the first update has rate 0, as in the released code.

    Args:
      config: the optimizer's configuration.
      num_steps: updates in the whole run.

    Returns:
      A function from t (0-based) to the rate, float32.
    """
    peak = config.learning_rate
    warmup = config.warmup_steps or config.warmup_fraction * num_steps
    final = config.final_fraction
    if config.schedule == "cosine_after_warmup":
        return optax.warmup_cosine_decay_schedule(
            0.0, peak, round(warmup), num_steps, final * peak
        )

    def schedule(count: jax.typing.ArrayLike) -> jax.Array:
        count = jnp.asarray(count, jnp.float32)
        x = count / num_steps
        ramp = jnp.minimum(count / warmup, 1.0) if warmup else jnp.ones_like(x)
        if config.schedule == "cosine":
            decay = final + (1 - final) * 0.5 * (1 + jnp.cos(math.pi * x))
            return peak * jnp.where(count <= warmup, ramp, decay)
        if config.schedule == "linear":
            return peak * ramp * (1 - (1 - final) * x)
        return peak * ramp

    return schedule


class ReleasedAdamState(NamedTuple):
    """State of `released_adam`."""

    count: jax.Array  # type: ignore[assignment]  # int32, completed updates
    mu: optax.Updates  # first moment, like params
    nu: optax.Updates  # second moment, like params


def released_adam(
    schedule: Schedule, b1: float, b2: float, eps: float, weight_decay: float
) -> optax.GradientTransformationExtraArgs:
    """Adam with decoupled decay, as the released code executes it (opt.py).

    After t updates, with tau = t + 1 and c = sqrt(1 - b2^tau) / (1 - b1^tau):

      m <- b1 m + (1 - b1) g,   v <- b2 v + (1 - b2) g^2
      p <- p - lr(t) c (m / (sqrt(v) + eps) + decay p)

    where the decay applies to tensors of more than one dimension, embeddings
    included. `optax.adamw` differs: its decay lacks the factor c, which is below 1
    for the first few thousand updates, and its eps is added after bias correction.

    Its `update` takes a scalar `finite`; if it is False, nothing changes. The old or
    new moments are selected before the parameters are computed from them: in this order
    XLA updates all arrays in place.
    """

    def init(params: optax.Params) -> ReleasedAdamState:
        def zeros(p: jax.Array) -> jax.Array:
            return jnp.zeros_like(p, dtype=jnp.float32)

        return ReleasedAdamState(
            jnp.zeros([], jnp.int32),
            jax.tree.map(zeros, params),
            jax.tree.map(zeros, params),
        )

    def update(
        grads: optax.Updates,
        state: ReleasedAdamState,
        params: optax.Params | None = None,
        *,
        finite: jax.typing.ArrayLike = True,
        **_: Any,
    ) -> tuple[optax.Updates, ReleasedAdamState]:
        if params is None:
            raise ValueError("released_adam decays weights, so update needs params.")
        tau = (state.count + 1).astype(jnp.float32)
        correction = jnp.sqrt(_one_minus_power(b2, tau)) / _one_minus_power(b1, tau)
        rate = jnp.where(finite, schedule(state.count) * correction, 0.0)

        def average(beta: float, power: int, old: jax.Array, g: jax.Array) -> jax.Array:
            return jnp.where(finite, beta * old + (1 - beta) * g**power, old)

        mu = jax.tree.map(functools.partial(average, b1, 1), state.mu, grads)
        nu = jax.tree.map(functools.partial(average, b2, 2), state.nu, grads)

        def step(m: jax.Array, v: jax.Array, p: jax.Array) -> jax.Array:
            direction = m / (jnp.sqrt(v) + eps)
            if p.ndim > 1:
                direction = direction + weight_decay * p
            return -rate * direction

        count = state.count + jnp.asarray(finite, jnp.int32)
        updates = jax.tree.map(step, mu, nu, params)
        return updates, ReleasedAdamState(count, mu, nu)

    return optax.GradientTransformationExtraArgs(init, update)


def skip_nonfinite(
    optimizer: optax.GradientTransformation,
) -> optax.GradientTransformationExtraArgs:
    """Gives any optimizer an `update` that takes `finite`, like `released_adam`'s."""

    def update(
        grads: optax.Updates,
        state: optax.OptState,
        params: optax.Params | None = None,
        *,
        finite: jax.typing.ArrayLike = True,
        **_: Any,
    ) -> tuple[optax.Updates, optax.OptState]:
        updates, new = optimizer.update(grads, state, params)
        updates = jax.tree.map(lambda u: jnp.where(finite, u, 0), updates)
        return updates, jax.tree.map(
            lambda new, old: jnp.where(finite, new, old), new, state
        )

    return optax.GradientTransformationExtraArgs(optimizer.init, update)


def clip_by_global_norm(max_norm: float) -> optax.GradientTransformation:
    """Scales gradients down to a global norm of `max_norm` if theirs is larger.

    `optax.clip_by_global_norm` divides each element. XLA does not fuse the division
    with the operations after it, which costs a copy of all gradients.
    """

    def update(
        grads: optax.Updates, state: optax.OptState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, optax.OptState]:
        del params
        norm = optax.tree.norm(grads)
        scale = jnp.where(norm < max_norm, 1.0, max_norm / norm)
        return jax.tree.map(lambda g: g * scale, grads), state

    return optax.GradientTransformation(optax.init_empty_state, update)


def _one_minus_power(base: float, exponent: jax.Array) -> jax.Array:
    """1 - base ** exponent, exact in float32 where base is close to 1."""
    return -jnp.expm1(exponent * (math.log(base) if base else -math.inf))


def decay_mask(params: optax.Params) -> optax.Params:
    """True on tensors of more than one dimension: all but biases and gains."""
    return jax.tree.map(lambda p: p.ndim > 1, params)


def decay_weights(
    schedule: Schedule, weight_decay: float
) -> optax.GradientTransformation:
    """Decoupled decay: subtracts schedule(t) * weight_decay * p from matrices p.

    For optimizers without a decay that takes a mask. The state is the same for every
    `weight_decay`, so that a run may start from another one's optimizer.
    """

    def update(
        updates: optax.Updates, count: jax.Array, params: optax.Params | None = None
    ) -> tuple[optax.Updates, jax.Array]:
        rate = weight_decay * schedule(count)
        updates = jax.tree.map(
            lambda u, p: u - rate * p if p.ndim > 1 else u, updates, params
        )
        return updates, count + 1

    return optax.GradientTransformation(lambda _: jnp.zeros([], jnp.int32), update)


def optax_optimizer(
    config: OptimizerConfig, schedule: Schedule
) -> optax.GradientTransformation:
    """Builds an optimizer of optax from the configuration.

    `b1`, `b2` and `eps` are passed to optimizers with these arguments. Weight decay is
    the optimizer's own if that takes a mask, and otherwise `decay_weights`.

    Raises:
      UserError: if optax has no such optimizer, or it does not work with these
        arguments, or needs more than gradients and parameters; in optax's words.
    """
    try:
        function = _find_function(config.name)
        takes = inspect.signature(function).parameters
        given: dict[str, Any] = {"learning_rate": schedule}
        given |= {key: getattr(config, key) for key in _GIVEN if key in takes}
        mask = next((name for name in _MASKS if name in takes), "")
        own_decay = bool(mask) and "weight_decay" in takes
        if own_decay:
            given |= {"weight_decay": config.weight_decay, mask: decay_mask}
        elif "weight_decay" in takes:
            given["weight_decay"] = 0.0  # it has no mask
        optimizer = function(**given, **config.keyword_arguments)
        if not own_decay:
            decay = decay_weights(schedule, config.weight_decay)
            optimizer = optax.chain(optimizer, decay)
        _try_shapes(optimizer)
    except UserError:
        raise
    except Exception as error:  # whatever optax raises
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(
            f"config.optimizer.name={config.name!r} with config.optimizer.arguments="
            f"{config.arguments!r} does not train here, where it gets a schedule of "
            f"learning rates, gradients and parameters ({reason:.200}, in optax "
            f"{optax.__version__}); change the arguments, or choose {_OTHERS}."
        ) from error
    return optimizer


def _find_function(name: str) -> Callable[..., optax.GradientTransformation]:
    """The function of optax, or of optax.contrib, that makes an optimizer.

    No other can be named: a configuration may come from anybody.

    Raises:
      UserError: if there is none.
    """
    place, _, short = name.rpartition(".")
    module = {"": optax, "contrib": optax.contrib}.get(place)
    function: Any = getattr(module, short, None)
    takes = inspect.signature(function).parameters if callable(function) else ()
    if "learning_rate" not in takes:
        raise UserError(
            f"config.optimizer.name={name!r}: optax {optax.__version__} has no such "
            f"function that takes a learning rate; choose {_OTHERS}."
        )
    if short.startswith("schedule_free"):
        raise UserError(
            f"config.optimizer.name={name!r} trains other parameters than those to "
            f"evaluate and save; choose {_OTHERS}."
        )
    return function


def _try_shapes(optimizer: optax.GradientTransformation) -> None:
    """Traces an update; raises whatever goes wrong."""

    def update(params: Any) -> Any:
        state = optimizer.init(params)
        updates, new_state = optimizer.update(params, state, params)
        return (params, state), (updates, new_state)

    matrix, vector = (jax.ShapeDtypeStruct(n, jnp.float32) for n in ((4, 6), (6,)))
    before, after = jax.eval_shape(update, {"w": matrix, "b": vector})
    before, after = (
        jax.tree.map(lambda x: f"{x.dtype}{list(x.shape)}", each)
        for each in (before, after)
    )
    if before != after:
        raise ValueError(f"an update returns {after} for {before}")


def describe_defaults(config: OptimizerConfig) -> str:
    """Names those of `b1`, `b2` and `eps` that differ from an optimizer's defaults."""
    if config.name in (RELEASED_ADAM, "adamw"):  # the keys are theirs
        return ""
    takes = inspect.signature(_find_function(config.name)).parameters
    changed = [
        f"{key}={getattr(config, key)} (its default is {takes[key].default})"
        for key in _GIVEN
        if key in takes and takes[key].default != getattr(config, key)
    ]
    if not changed:
        return ""
    return f"Optimizer: optax.{config.name} with config.optimizer.{', '.join(changed)}."


class Optimizer(NamedTuple):
    """An optax transformation and its learning rate."""

    init: Callable[[optax.Params], optax.OptState]
    update: Callable[..., tuple[optax.Updates, optax.OptState]]
    learning_rate: Schedule


def make_optimizer(config: OptimizerConfig, num_steps: int | None) -> Optimizer:
    """Global-norm clipping, then the optimizer with its schedule.

    Args:
      config: the optimizer's configuration.
      num_steps: updates in the whole run, where the schedule ends; None if only the
        shapes of the state are asked for, which are the same for every schedule.

    Returns:
      The optax chain; its updates are added to the parameters. Its `update` takes
      `finite` (see `released_adam`).

    Raises:
      UserError: as `optax_optimizer`.
    """
    schedule: Schedule = jnp.zeros_like
    if num_steps is not None:
        schedule = make_schedule(config, num_steps)
    if config.name == RELEASED_ADAM:
        optimizer = released_adam(
            schedule, config.b1, config.b2, config.eps, config.weight_decay
        )
    else:
        optimizer = skip_nonfinite(optax_optimizer(config, schedule))
    chain = optax.chain(clip_by_global_norm(config.clip_norm), optimizer)
    return Optimizer(chain.init, chain.update, schedule)


def check_optimizer(config: OptimizerConfig) -> None:
    """Refuses an optimizer that cannot train, before any long work.

    Raises:
      UserError: as `optax_optimizer`.
    """
    make_optimizer(config, None)
