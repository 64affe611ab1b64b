"""Edits of activations: what they change, where, and what they leave as it is."""

import dataclasses
import functools
import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from made_up_batches import made_up_batch
from tiny_models import LSTM, drawn_params, made_up_params, random_tokens

from gpt1_jax.errors import UserError
from gpt1_jax.finetuning import heads
from gpt1_jax.finetuning.heads import Head
from gpt1_jax.model import interventions, language_model
from gpt1_jax.model.interventions import (
    Intervention,
    Site,
    add,
    apply_edit,
    at,
    keep_heads,
    mean,
    replace,
    zero,
)

TOKENS, OTHERS = random_tokens((2, 9)), random_tokens((2, 9), seed=1)


@functools.partial(jax.jit, static_argnums=(0, 3))
def run(config, params, tokens, record=(), edits=None, sites=None):
    """Logits, and recorded activations by name; edits are arguments of the program."""
    output, recorded = interventions.forward(
        config, params, tokens, record, edits, **(sites or {})
    )
    return language_model.logits(config, output), recorded


@pytest.fixture(scope="module")
def config(tiny_model_config):
    return tiny_model_config()


@pytest.fixture(scope="module")
def lstm(tiny_model_config):
    return tiny_model_config(**LSTM)


@pytest.fixture(scope="module")
def params_of():
    """`params_of(config)`: so large that each activation matters."""

    def enlarged(path, leaf):
        of_lstm = any(key.key == "lstm" for key in path)
        return leaf * {"kernel": 2 if of_lstm else 8}.get(path[-1].key, 5)

    return functools.cache(
        lambda config: jax.tree.map_with_path(enlarged, drawn_params(config))
    )


SAME = interventions.as_pytree(lambda x: x)


@pytest.mark.parametrize(  # the other two: inference/test_forward
    ("kind", "dtype"), [("transformer", "float32"), ("lstm", "bfloat16")]
)
def test_an_edit_that_returns_its_argument_changes_no_bit(
    tiny, lstm, params_of, kind, dtype
):
    """Of any name; by the formula of attention where its probabilities are edited."""
    config = dataclasses.replace(tiny() if kind == "transformer" else lstm, dtype=dtype)
    params, probs = params_of(config), "h_0/attn/probs"
    found, recorded = run(config, params, TOKENS, ("*",), {"*": SAME})
    record = (probs,) if probs in recorded else ()
    np.testing.assert_array_equal(found, run(config, params, TOKENS, record)[0])
    others = [name for name in recorded if name != probs]
    found, _ = run(config, params, TOKENS, (), dict.fromkeys(others, SAME))
    output = jax.jit(language_model.apply, static_argnums=0)(config, params, TOKENS)
    expected = jax.jit(language_model.logits, static_argnums=0)(config, output)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("h_1/*/out", {"h_1/attn/out", "h_1/ln_1/out", "h_1/mlp/out"}),
        ("h_0/attn/[qk]", {"h_0/attn/q", "h_0/attn/k"}),
        ("w*", {"wte", "wpe"}),
    ],
)
def test_a_star_stands_for_one_part_of_a_name(config, params_of, pattern, names):
    def recorded(params):
        return interventions.forward(config, params, TOKENS, [pattern])[1]

    assert set(jax.eval_shape(recorded, params_of(config))) == names


@pytest.mark.parametrize(
    "ways", [dict(layer_loop="scan", remat=True), dict(layer_norm_form="fused")]
)
def test_how_a_model_is_trained_does_not_matter(config, params_of, ways):
    """In a loop there are no names of layers, in a kernel no sums."""
    trained = dataclasses.replace(config, **ways)
    arguments = params_of(config), TOKENS, ("h_*/attn/out",), {"h_1/mlp/out": zero()}
    found, expected = (run(each, *arguments) for each in (trained, config))
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_patching_a_state_from_another_run_gives_its_logits(tiny, params_of):
    config = tiny()
    params, states = params_of(config), interventions.state_names(config)
    clean, recorded = run(config, params, TOKENS, ("*",))
    corrupted, _ = run(config, params, OTHERS)
    assert np.abs(clean - corrupted).max() > 1
    for names in [[name] for name in states] + [list(recorded)]:
        edits = {name: replace(recorded[name]) for name in names}
        found, _ = run(config, params, OTHERS, (), edits)
        np.testing.assert_allclose(found, clean, atol=1e-5)


def test_heads_in_a_batch_of_edits_have_the_effects_of_one_by_one(config, params_of):
    """And so have texts' positions and vectors: all are arrays."""
    params = params_of(config)

    @jax.jit
    def effect(head, position, vector):
        edits = {
            "h_0/attn/heads": zero(heads=head, positions=position),
            "h_1/mlp/out": add(vector, positions=position),
        }
        return run(config, params, TOKENS, (), edits)[0][:, -1, 7].sum()

    given = np.arange(2), np.array([8, -3]), 0.1 * np.ones((2, 32))
    together = jax.jit(jax.vmap(effect))(*given)
    for one, arguments in zip(together, zip(*given, strict=True), strict=True):
        assert float(one) == pytest.approx(float(effect(*arguments)), abs=1e-5)
    assert abs(together[0] - together[1]) > 0.01


def test_edits_reach_the_logits_of_a_fine_tuned_head(tiny):
    config, head = tiny(), Head(3, per_choice=False, dropout=0.1, extract_token=96)
    params = made_up_params(heads.init_params, config, head)
    params["head"]["bias"] = np.array([1, 2, 3], np.float32)
    tokens = made_up_batch(config, (5, 1, 12), 2).tokens
    edits = {"h_0/attn/heads": replace(jnp.ones(16), heads=1), "h_0/out": zero()}

    @jax.jit
    def logits(params, edits):
        how = Intervention(config, ["h_0/attn/heads"], edits)
        found, _ = heads.apply(config, head, params, tokens, wrap=lambda _: how)
        how.check_names()
        return found, how.recorded["h_0/attn/heads"]

    found, of_heads = logits(params, edits)
    np.testing.assert_array_equal(of_heads[:, :, 1], 1)
    np.testing.assert_array_equal(found, [[1, 2, 3]] * 5)
    clean, _ = logits(params, {})
    assert np.abs(clean - found).min() > 1e-4


def test_gates_of_an_lstm_are_edited_before_the_recurrence(lstm, params_of):
    """And its output behind it: a position's edit reaches no other."""
    params = params_of(lstm)
    _, clean = run(lstm, params, TOKENS, ("*",))
    for name, reached in (("gates", np.arange(9) >= 4), ("hidden", np.arange(9) == 4)):
        edits = {f"h_0/lstm/{name}": zero(positions=4)}
        _, found = run(lstm, params, TOKENS, ("h_0/out",), edits)
        changed = np.abs(found["h_0/out"] - clean["h_0/out"]).max(-1) > 1e-5
        np.testing.assert_array_equal(changed, [reached] * 2)
        patched = {f"h_0/lstm/{name}": replace(clean[f"h_0/lstm/{name}"])}
        _, found = run(lstm, params, OTHERS, ("h_0/out",), patched)
        np.testing.assert_allclose(found["h_0/out"], clean["h_0/out"], atol=1e-6)


def test_an_edit_keeps_the_dtype_of_the_activation(config, params_of):
    rough = dataclasses.replace(config, dtype="bfloat16")
    edits = {
        "h_0/out": add(0.1 * np.ones(32, np.float64), positions=0),
        "h_1/attn/probs": mean(),
        "h_1/mlp/hidden": replace(np.ones(128, np.int32), positions=1),
    }
    logits, recorded = run(rough, params_of(config), TOKENS, tuple(edits), edits)
    dtypes = [recorded[name].dtype for name in edits]
    assert dtypes == ["bfloat16", "float32", "bfloat16"]
    exact, _ = run(config, params_of(config), TOKENS, tuple(edits), edits)
    error = np.linalg.norm(logits - exact) / np.linalg.norm(exact)
    assert 1e-4 < error < 0.05


# Of two texts, the second of which is padded.
POSITIONS = np.array([[0, 1, 2, 3, 4], [0, 1, 2, -1, -1]], np.int32)
WORDS = np.array([[0, 0, 1, 1, 2], [0, 1, -1, -1, -1]], np.int32)
SHAPES = {"attn/heads": (2, 5, 3, 4), "attn/probs": (2, 3, 5, 5), "out": (2, 5, 4)}
PLACES = [  # the places of an edit, and the tokens (text, position) that it changes
    (dict(), None),
    (dict(positions=0), [(0, 0), (1, 0)]),
    (dict(positions=-1), [(0, 4), (1, 2)]),
    (dict(positions=[1, -2]), [(0, 1), (0, 3), (1, 1)]),
    (dict(positions=[[0, 1], [-1, 1]]), [(0, 0), (0, 1), (1, 2), (1, 1)]),
    (dict(positions=-4), [(0, 1)]),  # the second text has three tokens
    (dict(positions=[]), []),
    (dict(words=-1), [(0, 4), (1, 1)]),
    (dict(words=[[0, 2], [0, 0]]), [(0, 0), (0, 1), (0, 4), (1, 0)]),
    (dict(words=1, positions=[1, 2]), [(0, 2), (1, 1)]),
]


def changed_by(edits, name):
    """Whether each edit changes each of the numbers of an activation."""
    x = np.random.default_rng(0).uniform(1, 2, SHAPES[name]).astype(np.float32)
    site = Site(name, 0, POSITIONS, WORDS)
    after = jax.jit(lambda x: [apply_edit(edit, x, site) for edit in edits])(x)
    return np.asarray(after) != x


def expected_change(name, tokens=None, heads=None):
    """Where those tokens are in an activation, and those heads; None for all."""
    chosen = np.full((2, 5), tokens is None)
    for token in tokens or ():
        chosen[token] = True
    if name == "out":
        return np.broadcast_to(chosen[..., None], SHAPES[name])
    of_heads = np.full(3, heads is None)
    of_heads[[] if heads is None else heads] = True
    each = np.einsum("nt,h->nth", chosen, of_heads)
    if name == "attn/probs":
        each = each.swapaxes(1, 2)
    return np.broadcast_to(each[..., None], SHAPES[name])


@pytest.mark.parametrize("name", SHAPES)
def test_edits_change_the_tokens_that_they_name(name):
    for edit in (zero, functools.partial(add, 1), functools.partial(replace, 0)):
        found = changed_by([edit(**places) for places, _ in PLACES], name)
        for (places, tokens), changed in zip(PLACES, found, strict=True):
            expected = expected_change(name, tokens)
            np.testing.assert_array_equal(changed, expected, err_msg=str(places))


@pytest.mark.parametrize("name", ["attn/heads", "attn/probs"])
@pytest.mark.parametrize("chosen", [-1, [0, 2], []], ids=str)
def test_edits_change_the_heads_that_they_name(chosen, name):
    edits = zero(heads=chosen), keep_heads(chosen), add(1, heads=chosen, positions=-1)
    zeroed, kept, both = changed_by(edits, name)
    expected = expected_change(name, heads=chosen)
    np.testing.assert_array_equal(zeroed, expected)
    np.testing.assert_array_equal(kept, ~expected)
    expected = expected_change(name, {(0, 4), (1, 2)}, chosen)
    np.testing.assert_array_equal(both, expected)


@pytest.mark.parametrize("name", SHAPES)
def test_the_mean_is_that_over_the_tokens_of_each_text(name):
    x = np.random.default_rng(0).normal(size=SHAPES[name]).astype(np.float32)
    site = Site(name, 0, POSITIONS, WORDS)
    after = jax.jit(lambda edit, x: apply_edit(edit, x, site))
    found = after(mean(), x)
    axis = 2 if name == "attn/probs" else 1
    for number, length in ((0, 5), (1, 3)):
        of_text = np.take(x[number], range(length), axis - 1)
        expected = np.broadcast_to(of_text.mean(axis - 1, keepdims=True), x[0].shape)
        np.testing.assert_allclose(found[number], expected, atol=1e-6)
    rough = x.astype("bfloat16")
    exact = np.asarray(after(mean(), rough.astype("float32"))).astype("bfloat16")
    np.testing.assert_array_equal(after(mean(), rough), exact)
    one = after(mean(positions=-1), x)
    expected = np.where(expected_change(name, {(0, 4), (1, 2)}), found, x)
    np.testing.assert_array_equal(one, expected)


def test_functions_of_ones_own_are_given_the_place_if_they_ask(config, params_of):
    sites = []

    def halved(x, site):
        sites.append(site)
        return x / 2

    edits = {
        "h_*/mlp/out": halved,
        "embedding": at(halved, positions=-1),
        "wpe": halved,
        "h_0/out": operator.methodcaller("clip", -1, 1),  # it has no signature
    }
    words = np.zeros((2, 9), np.int32)
    arguments = config, params_of(config), TOKENS, tuple(edits)
    _, clean = run(*arguments)
    _, found = interventions.forward(*arguments, edits, words=words)  # not compiled
    places = [("wpe", None), ("embedding", None), ("mlp/out", 0), ("mlp/out", 1)]
    assert [(site.name, site.layer) for site in sites] == places
    assert sites[0].positions is sites[0].words is None
    for site in sites[1:]:
        np.testing.assert_array_equal(site.positions, [range(9)] * 2)
        np.testing.assert_array_equal(site.words, words)
    np.testing.assert_array_equal(found["wpe"], clean["wpe"] / 2)
    assert np.abs(found["h_0/out"]).max() == 1 < np.abs(clean["h_0/out"]).max()


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        ({"h_0/attn/head": zero()}, r"no activation 'h_0/attn/head'; near .*n/heads"),
        ({"h_*/out": zero(), "h_?/attn": zero()}, r"no activation 'h_\?/attn'; near"),
        (
            {"h_*/out": zero(), "h_1/out": zero()},
            r"^h_1/out has the edits of 'h_\*/out' and of 'h_1/out'; make them one",
        ),
        ({"h_0/mlp/out": zero(heads=0)}, r"mlp/out has no heads, .*; attn/q, .* have"),
        ({"embedding": keep_heads(0)}, r"embedding has no heads, which"),
        ({"wte": zero(positions=0)}, r"wte has no tokens, which an edit"),
        ({"h_0/out": zero(words=0)}, r"names words, .*give Intervention its `words"),
        ({"h_0/out": replace(np.ones(3))}, r"out, \[2, 9, 32\], returns the shape \[3"),
        ({"h_0/out": lambda x: None}, r"h_0/out, \[2, 9, 32\], returns nothing"),
        ({"h_0/out": add(np.ones(3))}, r"h_0/out, \[2, 9, 32\], fails: .*shapes"),
        ({"h_0/out": np.tanh}, r"^The edit of h_0/out calls NumPy; .* jax\.numpy"),
    ],
    ids=lambda each: each if isinstance(each, str) else "+".join(each),
)
def test_edits_that_do_not_fit_are_refused(config, params_of, edits, message):
    def edited(params):
        return interventions.forward(config, params, TOKENS, edits=edits)[0].hidden

    with pytest.raises(UserError, match=message) as caught:
        jax.eval_shape(edited, params_of(config))
    assert "\n" not in str(caught.value)
