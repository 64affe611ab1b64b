"""Effects of components: those of one forward pass for each, by hand."""

import functools

import jax
import numpy as np
import pytest
from tiny_models import drawn_params

from gpt1_jax.data.words import ReadingWindow
from gpt1_jax.model import language_model
from gpt1_jax.model.interventions import forward, replace, state_names, zero
from gpt1_jax.studies.interventions import effects
from gpt1_jax.studies.interventions.effects import find_effects

OUTPUTS = ("attn/heads", "attn/out", "mlp/out")
PAIRS = [  # that differ at their third token, at their second and first, at their end
    ([1, 5, 7, 9, 4], [1, 5, 8, 9, 4, 3]),
    ([1, 2, 3], [1, 4, 3, 6, 6, 5, 4, 8, 9, 7]),
    ([1, 7, 7, 7, 2], [1, 7, 7, 7, 3]),
]
CLEAN, CORRUPTED = [1, 5, 6, 7], [1, 5, 9, 7]
assert_close = functools.partial(np.testing.assert_allclose, atol=1e-5)


@pytest.fixture(scope="module")
def model(tiny_model_config):
    return tiny_model_config()


@pytest.fixture(scope="module")
def params(model):
    drawn = drawn_params(model)
    return jax.tree.map(lambda leaf: 3 * leaf, drawn)  # so that edits show


def pair(good, bad, num_context=1):
    return ReadingWindow(good, num_context), ReadingWindow(bad, num_context)


def difference(model, params, windows, edits=(), states=0, vocab_size=97):
    """D by one forward pass for each answer; of a model of fewer layers if asked."""
    found = []
    for window, edit in zip(windows, edits or ({}, {}), strict=True):
        tokens = np.asarray([window.ids[:-1]])
        output, recorded = forward(model, params, tokens, state_names(model), edit)
        if states:
            state = recorded[state_names(model)[states - 1]]
            output = output._replace(hidden=state)
        logits = language_model.logits(model, output)[0, :, :vocab_size]
        log_probs = np.asarray(jax.nn.log_softmax(logits))
        first = window.num_context
        found.append(
            sum(
                log_probs[at - 1, window.ids[at]]
                for at in range(first, len(window.ids))
            )
        )
    return found[0] - found[1]


def all_effects(model, params, pairs, clean=None, **how):
    how = {"method": "zero", "num_positions": 3, "batch_tokens": 2048, **how}
    return find_effects(model, 97, params, pairs, clean, **how)


def places(model):
    """(field, its place, the activation's name, where) of components of each kind."""
    for layer in range(model.num_layers):
        for head in range(model.num_heads):
            yield "heads", (layer, head), f"h_{layer}/attn/heads", {"heads": head}
        yield "attention", (layer,), f"h_{layer}/attn/out", {}
        yield "mlp", (layer,), f"h_{layer}/mlp/out", {}
        for back in range(3):
            at = {"positions": back}
            yield "positions", (layer, back), state_names(model)[layer], at


def test_effects_are_those_of_one_forward_pass_for_each(model, params):
    pairs = [pair(*each) for each in PAIRS]
    found = all_effects(model, params, pairs)
    differ = 2, 1, 4  # the first token in which a pair's sentences differ
    for number, (windows, first) in enumerate(zip(pairs, differ, strict=True)):
        assert_close(found.base[number], difference(model, params, windows))
        assert found.base[number] == found.clean[number]
        for field, place, name, where in places(model):
            if "positions" in where:
                where = {"positions": (position := first - 1 - where["positions"])}
                if position < 0:
                    assert np.isnan(getattr(found, field)[number, *place])
                    continue
            expected = difference(model, params, windows, [{name: zero(**where)}] * 2)
            actual = getattr(found, field)[number, *place]
            assert_close(actual, expected, err_msg=name)
        for layer in range(3):
            expected = difference(model, params, windows, states=layer + 1)
            assert_close(found.lens[number, layer], expected)
    assert np.ptp(found.heads[0]) > 0.01  # heads matter in this model


def test_the_mean_is_that_over_all_tokens_of_all_answers(model, params):
    pairs = [pair(*each) for each in PAIRS]
    found = all_effects(model, params, pairs, method="mean")
    names = [f"h_1/{name}" for name in OUTPUTS]
    recorded = [
        forward(model, params, np.asarray([window.ids[:-1]]), names)[1]
        for windows in pairs
        for window in windows
    ]
    means = {
        name: np.concatenate([each[name][0] for each in recorded]).mean(axis=0)
        for name in names
    }
    for actual, name, where in (
        (found.heads[0, 1, 0], "h_1/attn/heads", {"heads": 0}),
        (found.attention[0, 1], "h_1/attn/out", {}),
        (found.mlp[0, 1], "h_1/mlp/out", {}),
    ):
        edits = [{name: replace(means[name], **where)}] * 2
        assert_close(actual, difference(model, params, pairs[0], edits))


@pytest.mark.parametrize("answers", [([2], [3]), ([2, 8], [3, 4, 4])], ids=str)
def test_a_patch_is_what_the_component_gives_after_the_clean_prompt(
    model, params, answers
):
    """Also of answers with several tokens, which are read after the prompt."""
    clean = pair(*(CLEAN + answer for answer in answers), 4)
    corrupted = pair(*(CORRUPTED + answer for answer in answers), 4)
    found = all_effects(model, params, [corrupted], [clean], method="patch")
    assert_close(found.base[0], difference(model, params, corrupted))
    assert_close(found.clean[0], difference(model, params, clean))
    recorded = [
        forward(model, params, np.asarray([window.ids[:-1]]), ["*"])[1]
        for window in clean
    ]
    for field, place, name, where in places(model):
        if "positions" in where:
            where = {"positions": 3 - where["positions"]}
        edits = [{name: replace(each[name], **where)} for each in recorded]
        expected = difference(model, params, corrupted, edits)
        assert_close(getattr(found, field)[0, *place], expected, err_msg=name)
    # The only token that differs stands at position 2, one back from the last.
    assert_close(found.positions[0, 0, 1], found.clean[0])
    assert_close(found.positions[0, 0, 0], found.base[0])


def test_special_tokens_get_no_probability(model, params):
    windows = pair(*PAIRS[0])
    expected = difference(model, params, windows, vocab_size=50)
    how = {"method": "zero", "num_positions": 0, "batch_tokens": 1}
    found = find_effects(model, 50, params, [windows], None, **how)
    assert_close(found.base[0], expected)
    assert found.positions.shape == (1, 2, 0)


@pytest.mark.parametrize("batch_tokens", [1, 300, 100_000])
def test_effects_do_not_depend_on_what_is_computed_together(
    model, params, batch_tokens
):
    pairs = [pair(*each) for each in PAIRS] * 2
    one, other = (
        all_effects(model, params, pairs, method="mean", batch_tokens=size)
        for size in (2048, batch_tokens)
    )
    for ours, theirs in zip(one, other, strict=True):
        assert_close(ours, theirs)


def test_all_components_of_all_pairs_are_one_program(model, params):
    pairs = [pair(*PAIRS[0]), pair(*PAIRS[2])]
    all_effects(model, params, pairs)
    before = effects._find_effects._cache_size()
    all_effects(model, jax.tree.map(lambda leaf: 2 * leaf, params), pairs[::-1])
    assert effects._find_effects._cache_size() == before


def test_pairs_that_do_not_fit_into_memory_are_refused(model, params, monkeypatch):
    monkeypatch.setattr("gpt1_jax.parallel.devices.memory_bytes", lambda: 1000)
    with pytest.raises(ValueError, match=r"A pair of 12 tokens .* Lower config\.pos"):
        all_effects(model, params, [pair(*PAIRS[1])])
