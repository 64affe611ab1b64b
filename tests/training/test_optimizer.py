"""The released Adam rule and its schedules against tables, hands and NumPy."""

import functools
import os

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tiny_models import optimizer_config

from gpt1_jax.errors import UserError
from gpt1_jax.model.language_model import init_params
from gpt1_jax.training.optimizer import (
    check_optimizer,
    describe_defaults,
    make_optimizer,
    make_schedule,
    released_adam,
)


# The released linear schedule of the Story Cloze run: 138 updates, of which the
# warmup is 0.2%, less than one update.
def story_cloze_schedule(count):
    x = jnp.asarray(count, jnp.float32) / 138
    return 6.25e-5 * jnp.where(x <= 0.002, x / 0.002, 1.0) * (1 - x)


# Pre-training with 1,000,000 updates: t, the released form, optax's form, and one
# unit of the last digit known.
PRETRAINING_RATES = [
    (0, 0.0, 0.0, 1e-12),
    (500, 6.25e-5, 6.25e-5, 1e-11),
    (1000, 1.25e-4, 1.25e-4, 1e-11),
    (2000, 2.5e-4, 2.5e-4, 1e-11),
    (2001, 2.4999753e-4, 2.5e-4, 2e-11),
    (10_000, 2.49938e-4, 2.49960e-4, 1e-9),
    (100_000, 2.438821e-4, 2.440990e-4, 1e-10),
    (250_000, 2.133883e-4, 2.138047e-4, 1e-10),
    (500_000, 1.25e-4, 1.2539e-4, 1e-8),
    (750_000, 3.66117e-5, 3.67509e-5, 1e-10),
    (1_000_000, 0.0, 0.0, 1e-11),
]


def rates(config, num_steps, updates):
    """The learning rates of some updates, in one program."""
    return np.asarray(jax.jit(make_schedule(config, num_steps))(np.int32(updates)))


def test_cosine_schedules_equal_the_table():
    updates, released, optax_form, digits = np.transpose(PRETRAINING_RATES)
    for name, table in (("cosine", released), ("cosine_after_warmup", optax_form)):
        found = rates(optimizer_config(schedule=name), 1_000_000, updates)
        for rate, expected, digit in zip(found, table, digits, strict=True):
            assert rate == pytest.approx(expected, abs=digit, rel=5e-7)


def test_cosine_schedule_drops_at_the_end_of_warmup():
    """The cosine runs over all of x: at the end of warmup it is already below 1."""
    found = rates(optimizer_config(warmup_steps=20), 100, [20, 21])
    expected = 2.5e-4 * 0.5 * (1 + np.cos(np.pi * 0.21))
    np.testing.assert_allclose(found, [2.5e-4, expected], rtol=1e-6)
    assert expected < 0.9 * 2.5e-4


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("linear", [0.0, 0.25 * 0.95, 0.5 * 0.9, 0.8, 0.7, 0.5, 0.1]),
        ("constant", [0.0, 0.25, 0.5, 1.0, 1.0, 1.0, 1.0]),
    ],
)
def test_linear_and_constant_schedules_by_hand(name, expected):
    """40 updates, 8 of warmup; the linear decay also multiplies the warmup."""
    config = optimizer_config(schedule=name, learning_rate=1.0, warmup_steps=8)
    found = rates(config, 40, [0, 2, 4, 8, 12, 20, 36])
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_the_cosine_of_babylm_is_that_of_its_pipeline():
    """`cosine_schedule_with_warmup` of its finetune/utils.py, with a floor of 0.1."""
    config = optimizer_config(
        schedule="cosine_after_warmup",
        learning_rate=3e-5,
        warmup_steps=0,
        warmup_fraction=0.06,
        final_fraction=0.1,
    )
    t, warmup = np.array([0, 1, 29, 30, 31, 200, 499]), 30
    falling = 0.1 + 0.9 * 0.5 * (1 + np.cos(np.pi * (t - warmup) / (500 - warmup)))
    expected = 3e-5 * np.where(t < warmup, t / warmup, falling)
    np.testing.assert_allclose(rates(config, 500, t), expected, rtol=1e-5)


def test_a_constant_schedule_has_no_final_fraction():
    with pytest.raises(UserError, match=r"final_fraction=0\.1, .*schedule='constant'"):
        optimizer_config(schedule="constant", final_fraction=0.1)


@pytest.mark.parametrize("name", ["cosine", "cosine_after_warmup", "linear"])
def test_schedules_begin_at_zero_and_end_at_zero_or_the_final_fraction(name):
    """After the warmup, what falls to 0 without it falls to the fraction."""

    def factors(**values):
        config = optimizer_config(schedule=name, learning_rate=1.0, **values)
        return rates(config, 10, range(11))

    assert factors(warmup_steps=0)[0] == pytest.approx(1.0, rel=1e-6)
    falling = factors(warmup_steps=3)
    assert falling[0] == 0.0 and falling[1:10].min() > 0
    assert falling[10] == pytest.approx(0.0, abs=1e-7)
    with_floor = factors(warmup_steps=3, final_fraction=0.1)
    assert with_floor[0] == 0.0
    np.testing.assert_allclose(with_floor[4:], 0.1 + 0.9 * falling[4:], rtol=1e-6)


def updates_of_constant_gradient(optimizer, ndim, num_updates=4):
    """(first moment, second moment, update, p) of p = 1 under gradients of 0.1."""
    params = {"w": np.ones((1,) * ndim, np.float32)}
    grads = {"w": np.full((1,) * ndim, 0.1, np.float32)}
    state, rows = jax.jit(optimizer.init)(params), []
    update = jax.jit(optimizer.update)
    for _ in range(num_updates):
        updates, state = update(grads, state, params)
        params = {"w": params["w"] + np.asarray(updates["w"])}
        rows.append((updates["w"].item(), params["w"].item()))
    return rows, state


def test_released_adam_by_hand():
    """Story Cloze's rates; to seven digits where the parameter has them.

    Epsilon is added before the bias correction: after it, the third digit from the
    end would be another.
    """
    optimizer = released_adam(story_cloze_schedule, 0.9, 0.999, 1e-8, 0.01)
    rows, state = updates_of_constant_gradient(optimizer, 2, 1)
    assert rows == [(0.0, 1.0)]  # the rate of the first update is zero
    assert state.mu["w"].item() == pytest.approx(0.01, rel=1e-6)
    assert state.nu["w"].item() == pytest.approx(1e-5, rel=1e-6)
    rows, state = updates_of_constant_gradient(optimizer, 2)
    updates, params = zip(*rows, strict=True)
    by_hand = [0, -6.2192970e-5, -6.1718509e-5, -6.1253552e-5]
    np.testing.assert_allclose(updates, by_hand, rtol=5e-7)
    by_hand = [1, 0.9999378070, 0.9998760885, 0.9998148350]
    np.testing.assert_allclose(params, by_hand, rtol=1e-7)
    assert (state.count.dtype, state.count.item()) == (jnp.int32, 4)
    moments = jax.tree.leaves((state.mu, state.nu))
    assert {leaf.dtype for leaf in moments} == {jnp.dtype("float32")}
    with pytest.raises(ValueError, match="decays weights, so update needs params"):
        optimizer.update({"w": np.ones((1, 1))}, state)


def test_released_adam_does_not_decay_vectors():
    """What a vector lacks is lr * c * decay * p = 1.46e-5 * 0.01 at the 2nd update."""
    optimizer = released_adam(story_cloze_schedule, 0.9, 0.999, 1e-8, 0.01)
    matrix, _ = updates_of_constant_gradient(optimizer, 2)
    vector, _ = updates_of_constant_gradient(optimizer, 1)
    scalar, _ = updates_of_constant_gradient(optimizer, 0)
    difference = vector[1][0] - matrix[1][0]
    assert difference == pytest.approx(1.4600721e-5 * 0.01, rel=1e-4)
    assert scalar == vector


def test_adamw_differs_from_released_adam_by_the_decay_factor():
    def adamw(decay):
        return optax.adamw(story_cloze_schedule, weight_decay=decay)

    rows, _ = updates_of_constant_gradient(adamw(0.01), 2)
    plain, _ = updates_of_constant_gradient(adamw(0.0), 2)
    ours, _ = updates_of_constant_gradient(
        released_adam(story_cloze_schedule, 0.9, 0.999, 1e-8, 0.01), 2
    )
    assert rows[1][0] == pytest.approx(-6.2667566e-5, rel=2e-5)  # 1 - b2**t rounds
    assert ours[1][0] == pytest.approx(-6.2192970e-5, rel=5e-7)
    # Without decay the two agree but for epsilon; with it the released rule decays
    # by sqrt(1 - b2^2) / (1 - b1^2) = 0.2353 of AdamW's.
    share = (ours[1][0] - plain[1][0]) / (rows[1][0] - plain[1][0])
    assert share == pytest.approx(np.sqrt(1 - 0.999**2) / 0.19, rel=1e-2)


def numpy_released_adam(params, grads, schedule, num_steps, decay):
    """The lines of opt.py in float64, gradients clipped to norm 1."""
    b1, b2, eps = 0.9, 0.999, 1e-8
    params = {name: value.astype(np.float64) for name, value in params.items()}
    m = {name: np.zeros_like(value) for name, value in params.items()}
    v = {name: np.zeros_like(value) for name, value in params.items()}
    for t in range(num_steps):
        g = {name: value[t].astype(np.float64) for name, value in grads.items()}
        norm = np.sqrt(sum((value**2).sum() for value in g.values()))
        rate = schedule(t) * np.sqrt(1 - b2 ** (t + 1)) / (1 - b1 ** (t + 1))
        for name in params:
            clipped = g[name] * min(1.0, 1.0 / norm)
            m[name] = b1 * m[name] + (1 - b1) * clipped
            v[name] = b2 * v[name] + (1 - b2) * clipped**2
            direction = m[name] / (np.sqrt(v[name]) + eps)
            if params[name].ndim > 1:
                direction = direction + decay * params[name]
            params[name] = params[name] - rate * direction
    return params


def numpy_warmup_cosine(t):
    return 1e-3 * (t / 10 if t <= 10 else 0.5 * (1 + np.cos(np.pi * t / 50)))


@pytest.mark.parametrize("decay", [0.01, 10.0])
def test_make_optimizer_follows_the_released_lines(decay):
    """50 random steps, some clipped and some not; decay 10 makes its term seen."""
    num_steps = 50
    rng = np.random.default_rng(0)
    shapes = {"kernel": (8, 6), "bias": (6,), "stack": (2, 3, 4), "gain": ()}
    params = {
        name: np.asarray(0.1 * rng.normal(size=shape), np.float32)
        for name, shape in shapes.items()
    }
    sizes = np.exp(rng.normal(size=num_steps) - 2)  # norms from 0.1 to 10
    grads = {
        name: np.stack([s * rng.normal(size=shape) for s in sizes]).astype(np.float32)
        for name, shape in shapes.items()
    }
    norms = np.sqrt(sum((g.reshape(num_steps, -1) ** 2).sum(1) for g in grads.values()))
    assert 10 < np.sum(norms > 1) < 40
    config = optimizer_config(learning_rate=1e-3, warmup_steps=10, weight_decay=decay)
    optimizer = make_optimizer(config, num_steps)

    @jax.jit
    def train(params):
        def step(carry, step_grads):
            params, state = carry
            updates, state = optimizer.update(step_grads, state, params)
            return (optax.apply_updates(params, updates), state), None

        return jax.lax.scan(step, (params, optimizer.init(params)), grads)[0][0]

    actual = train(params)
    expected = numpy_released_adam(params, grads, numpy_warmup_cosine, num_steps, decay)
    for name in shapes:
        assert np.abs(expected[name] - params[name]).max() > 1e-3
        np.testing.assert_allclose(actual[name], expected[name], atol=1e-7, rtol=0)


@functools.partial(jax.jit, static_argnums=0)
def first_update(optimizer, grads, params):
    """Updates, and the state after them."""
    return optimizer.update(grads, optimizer.init(params), params)


def test_make_optimizer_clips_by_the_global_norm():
    """(3, 4) in two tensors becomes (0.6, 0.8); clipped one by one, (1, 1).

    In the first update, which has rate 0: parameters stand still, the moments move.
    """
    optimizer = make_optimizer(optimizer_config(name="adamw", b1=0.0), 10)
    params = {name: np.ones((1, 1), np.float32) for name in "ab"}
    grads = {"a": 3 * params["a"], "b": 4 * params["b"]}
    updates, state = first_update(optimizer, grads, params)
    assert not updates["a"].any() and not updates["b"].any()
    nodes = jax.tree.leaves(state, is_leaf=lambda node: hasattr(node, "mu"))
    [found] = [node for node in nodes if hasattr(node, "mu")]
    assert found.mu["a"].item() == pytest.approx(0.6, rel=1e-6)
    assert found.mu["b"].item() == pytest.approx(0.8, rel=1e-6)


DECAYED = {  # of an update with rate 1 by a zero gradient, the share of decay * p
    "released_adam": np.sqrt(0.001) / 0.1,
    "adamw": 1.0,
    "contrib.muon": 1.0,
    "novograd": 1.0,  # whose own has no mask
    "sgd": 1.0,  # which has none of its own
}


@pytest.mark.parametrize("name", DECAYED)
def test_make_optimizer_decays_matrices_only(name, tiny):
    """All but biases and gains. With a zero gradient only the decay moves them."""
    config = optimizer_config(name=name, warmup_steps=0, weight_decay=0.1)
    optimizer = make_optimizer(config, 10)
    shapes = jax.eval_shape(lambda: init_params(tiny(), jax.random.key(0)))
    params = jax.tree.map(lambda p: np.ones(p.shape, p.dtype), shapes)
    grads = jax.tree.map(np.zeros_like, params)
    updates, _ = first_update(optimizer, grads, params)
    for path, update in jax.tree.leaves_with_path(updates):
        decays = path[-1].key in ("kernel", "wte", "wpe")
        expected = -2.5e-4 * DECAYED[name] * 0.1 * decays
        np.testing.assert_allclose(update, expected, rtol=1e-5, err_msg=str(path))


@pytest.mark.parametrize(("b1", "b2"), [(0.0, 0.999), (0.9, 0.0), (0.9, 0.99999)])
def test_released_adam_works_with_any_beta(b1, b2):
    """A first step without decay has size rate * c * (1-b1) g / sqrt((1-b2) g^2).

    The last is exact to float32: 1 - b2**tau by subtraction would be off by 6e-5 at
    the first update with 0.999, and by more with 0.99999.
    """
    optimizer = released_adam(lambda count: jnp.float32(0.5), b1, b2, 0.0, 0.0)
    rows, _ = updates_of_constant_gradient(optimizer, 2, 3)
    np.testing.assert_allclose([row[0] for row in rows], [-0.5] * 3, rtol=1e-5)
    assert rows[0][0] == pytest.approx(-0.5, rel=1e-6)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        *(("lion", ""), ("sgd", "momentum=0.9,nesterov=True"), ("lamb", "")),
        *(("adafactor", "min_dim_size_to_factor=2"), ("contrib.muon", "ns_steps=3")),
    ],
)
def test_any_optimizer_of_optax_trains(name, arguments):
    """Its first update has rate 0; then it goes downhill."""
    config = optimizer_config(name=name, arguments=arguments, weight_decay=0.0)
    optimizer = make_optimizer(config, 10)
    matrix = np.arange(1, 7, dtype=np.float32).reshape(2, 3)
    params = {"w": matrix, "b": np.ones(3, np.float32)}
    grads = jax.tree.map(lambda p: np.full_like(p, 0.1), params)
    state, update = jax.jit(optimizer.init)(params), jax.jit(optimizer.update)
    for number in range(5):
        updates, state = update(grads, state, params)
        values = jax.device_get(updates).values()
        assert all(((u < 0) if number else (u == 0)).all() for u in values)


def test_keys_and_arguments_reach_an_optimizer():
    """Lion by hand: the sign of b1 m + (1 - b1) g, with m <- b2 m + (1 - b2) g."""
    config = optimizer_config(name="lion", b2=0.5, arguments="mu_dtype=bfloat16")
    optimizer = make_optimizer(config, 10)
    grads = {"w": np.full((2, 2), 0.25, np.float32)}
    _, state = first_update(optimizer, grads, grads)
    [mu] = [leaf for leaf in jax.tree.leaves(state) if leaf.ndim]
    assert mu.dtype == jnp.bfloat16 and (mu == 0.125).all()


NO_FUNCTION = "has no such function that takes a learning rate"
NO_TRAINING = "does not train here"


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("lyon", "", f"='lyon': .*{NO_FUNCTION}; choose another, such as released_"),
        *((name, "", NO_FUNCTION) for name in ("freeze_all", "_src.alias.sgd")),
        *((name, "", NO_FUNCTION) for name in ("contrib", "contrib.os.system")),
        ("contrib.schedule_free_sgd", "", "other parameters than those to evaluate"),
        ("sgd", "momentun=0.9", "='sgd' .*unexpected keyword argument 'momentun'"),
        ("lion", "mask=None", r"lion\(\) got multiple values .*'mask'"),
        ("sgd", "momentum=(1,2)", rf"arguments='momentum=\(1,2\)' {NO_TRAINING}"),
        ("contrib.dpsgd", "", "missing .*'l2_norm_clip', 'noise_multiplier', and 'se"),
        ("sm3", "", f"{NO_TRAINING}.*optax [0-9.]+.*choose another, such as"),
    ],
)
def test_what_is_no_optimizer_is_refused_in_a_line(
    monkeypatch, name, arguments, message
):
    """And not called, as a configuration may come from anybody."""
    called = []
    for place, function in ((optax, "freeze_all"), (os, "system")):
        monkeypatch.setattr(place, function, called.append, raising=False)
    with pytest.raises(UserError, match=message) as refused:
        check_optimizer(optimizer_config(name=name, arguments=arguments))
    assert "\n" not in str(refused.value) and not called


def test_keys_that_differ_from_optax_are_named():
    def describe(**values):
        return describe_defaults(optimizer_config(**values))

    assert describe(b2=0.9) == describe(name="adamw") == describe(name="sgd") == ""
    assert describe(name="lion") == (
        "Optimizer: optax.lion with config.optimizer.b2=0.999 (its default is 0.99)."
    )
