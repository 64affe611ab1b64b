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

assert_close = functools.partial(np.testing.assert_allclose, atol=1e-5)


def pair(good, bad, num_context=1):
    return ReadingWindow(good, num_context), ReadingWindow(bad, num_context)


# That differ at their third token, at their second and first, and at their end.
PAIRS = [
    pair([1, 5, 7, 9, 4], [1, 5, 8, 9, 4, 3]),
    pair([1, 2, 3], [1, 4, 3, 6, 6, 5, 4, 8, 9, 7]),
    pair([1, 7, 7, 7, 2], [1, 7, 7, 7, 3]),
]


@pytest.fixture(scope="module")
def model(tiny_model_config):
    return tiny_model_config()


@pytest.fixture(scope="module")
def params(model):
    drawn = drawn_params(model)
    return jax.tree.map(lambda leaf: 3 * leaf, drawn)  # so that edits show


def read_together(pairs):
    """The windows of pairs, and their tokens as rows.

    Padding behind a text changes nothing in it.
    """
    windows = [window for pair in pairs for window in pair]
    tokens = np.zeros((len(windows), max(len(w.ids) for w in windows) - 1), np.int32)
    for row, window in zip(tokens, windows, strict=True):
        row[: len(window.ids) - 1] = window.ids[:-1]
    return windows, tokens


def differences(model, params, pairs, edits=None, states=0, vocab_size=97):
    """D of each pair, by one forward pass; of a model of fewer layers if asked."""
    windows, tokens = read_together(pairs)
    output, recorded = forward(model, params, tokens, state_names(model), edits or {})
    if states:
        output = output._replace(hidden=recorded[state_names(model)[states - 1]])
    logits = language_model.logits(model, output)[..., :vocab_size]
    log_probs = np.asarray(jax.nn.log_softmax(logits))
    scores = [
        sum(own[at - 1, ids[at]] for at in range(first, len(ids)))
        for own, (ids, first, *_) in zip(log_probs, windows, strict=True)
    ]
    return np.subtract(scores[::2], scores[1::2])


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


def test_effects_are_those_of_one_forward_pass_for_each(model, params):
    found = all_effects(model, params, PAIRS)
    base = differences(model, params, PAIRS)
    assert_close(found.base, base)
    assert (found.base == found.clean).all()
    for field, place, name, where in places(model):
        expected = differences(model, params, PAIRS, {name: zero(**where)})
        actual = getattr(found, field)[:, *place]
        assert_close(actual, expected, err_msg=name)
    for layer, name in enumerate(state_names(model)):
        expected = differences(model, params, PAIRS, states=layer + 1)
        assert_close(found.lens[:, layer], expected)
        for number, first in enumerate((2, 1, 4)):  # in which sentences differ
            for position in range(max(0, first - 3), first) if layer < 2 else ():
                edits = {name: zero(positions=position)}
                expected = differences(model, params, [PAIRS[number]], edits)
                actual = found.positions[number, layer, first - 1 - position]
                assert_close(actual, expected[0])
    assert np.isnan(found.positions).sum(axis=(1, 2)).tolist() == [2, 4, 0]
    assert np.ptp(found.heads[0]) > 0.01  # heads matter in this model


def test_the_mean_is_that_over_all_tokens_of_all_answers(model, params):
    found = all_effects(model, params, PAIRS, method="mean")
    windows, tokens = read_together(PAIRS)
    _, recorded = forward(model, params, tokens, ["*"])
    for field, place, name, where in places(model):
        rows = zip(recorded[name], windows, strict=True)
        own = [row[: len(window.ids) - 1] for row, window in rows]
        mean = np.concatenate(own).mean(axis=0)
        expected = differences(model, params, PAIRS, {name: replace(mean, **where)})
        assert_close(getattr(found, field)[:, *place], expected, err_msg=name)


@pytest.mark.parametrize("answers", [([2], [3]), ([2, 8], [3, 4, 4])], ids=str)
def test_a_patch_is_what_the_component_gives_after_the_clean_prompt(
    model, params, answers
):
    """Also of answers with several tokens, which are read after the prompt."""
    clean = pair(*([1, 5, 6, 7, *answer] for answer in answers), 4)
    corrupted = pair(*([1, 5, 9, 7, *answer] for answer in answers), 4)
    found = all_effects(model, params, [corrupted], [clean], method="patch")
    assert_close(found.base, differences(model, params, [corrupted]))
    assert_close(found.clean, differences(model, params, [clean]))
    _, tokens = read_together([clean])
    _, recorded = forward(model, params, tokens, ["*"])
    back = [
        ("positions", (layer, back), state_names(model)[layer], {"positions": 3 - back})
        for layer in range(2)
        for back in range(3)
    ]
    for field, place, name, where in (*places(model), *back):
        edits = {name: replace(recorded[name], **where)}
        expected = differences(model, params, [corrupted], edits)
        assert_close(getattr(found, field)[:, *place], expected, err_msg=name)
    # The only token that differs stands at position 2, one back from the last.
    assert_close(found.positions[0, 0, 1], found.clean[0])
    assert_close(found.positions[0, 0, 0], found.base[0])


def test_special_tokens_get_no_probability(model, params):
    windows = PAIRS[0]
    expected = differences(model, params, [windows], vocab_size=50)
    how = {"method": "zero", "num_positions": 0, "batch_tokens": 1}
    found = find_effects(model, 50, params, [windows], None, **how)
    assert_close(found.base, expected)
    assert found.positions.shape == (1, 2, 0)


# One pair at a time, and three, so that one batch is filled up.
@pytest.mark.parametrize("batch_tokens", [1, 800])
def test_effects_do_not_depend_on_what_is_computed_together(
    model, params, batch_tokens
):
    pairs = PAIRS * 2
    one, other = (
        all_effects(model, params, pairs, method="mean", batch_tokens=size)
        for size in (2048, batch_tokens)
    )
    for ours, theirs in zip(one, other, strict=True):
        assert_close(ours, theirs)
    before = effects._find_effects._cache_size()  # all are one program
    scaled = jax.tree.map(lambda leaf: 2 * leaf, params)
    all_effects(model, scaled, pairs[::-1], method="mean", batch_tokens=batch_tokens)
    assert effects._find_effects._cache_size() == before


def test_pairs_that_do_not_fit_into_memory_are_refused(model, params, monkeypatch):
    monkeypatch.setattr("gpt1_jax.parallel.devices.memory_bytes", lambda: 1000)
    with pytest.raises(ValueError, match=r"A pair of 12 tokens .* Lower config\.pos"):
        all_effects(model, params, PAIRS[1:2])
