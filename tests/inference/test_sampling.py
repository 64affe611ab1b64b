"""The filters equal transformers', and tokens are drawn by their probabilities."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import sampling_config

from gpt1_jax.inference.sampling import Filters, apply_filters, draw, make_filters

SCORES = 4 * np.random.default_rng(0).normal(size=(6, 997)).astype(np.float32)
SETTINGS = [
    dict(repetition_penalty=1.7),
    dict(temperature=0.6),
    dict(top_k=5),
    dict(top_k=5000),
    dict(top_p=1e-6),
    dict(top_p=0.3),
    dict(top_p=0.999),
    dict(top_k=20, top_p=0.5),
    dict(min_p=0.05),
    dict(repetition_penalty=0.8, temperature=1.4, top_k=90, top_p=0.8, min_p=0.02),
]


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_filters_equal_those_of_transformers(setting):
    torch = pytest.importorskip("torch")
    logits_process = pytest.importorskip("transformers.generation.logits_process")
    classes = dict(
        repetition_penalty="RepetitionPenaltyLogitsProcessor",
        temperature="TemperatureLogitsWarper",
        top_k="TopKLogitsWarper",
        top_p="TopPLogitsWarper",
        min_p="MinPLogitsWarper",
    )
    read = np.random.default_rng(1).integers(0, 997, (6, 40))
    expected = torch.tensor(SCORES)
    for name, class_name in classes.items():
        if name in setting:
            process = getattr(logits_process, class_name)(setting[name])
            expected = process(torch.tensor(read), expected)
    seen = np.zeros(SCORES.shape, bool)
    np.put_along_axis(seen, read, True, axis=1)
    config = sampling_config(**setting)
    actual = apply_filters(SCORES, make_filters(config), config.top_k, seen)
    np.testing.assert_allclose(actual, expected.numpy(), rtol=1e-6)


def test_what_is_off_is_not_computed():
    assert make_filters(sampling_config()) == Filters()
    greedy = sampling_config(do_sample=False, temperature=0.5, top_p=0.5, min_p=0.5)
    assert make_filters(greedy) == Filters()


@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0])
def test_tokens_are_drawn_by_the_tempered_softmax(temperature):
    scores = SCORES[0, :20] / 4
    rows = np.tile(scores, (20_000, 1))
    keys = jax.random.split(jax.random.key(0), 20_000)
    filters = Filters(temperature=np.float32(temperature))
    drawn = jax.jit(lambda *given: draw(apply_filters(*given, top_k=0), keys))
    shares = np.bincount(drawn(rows, filters), minlength=20) / 20_000
    expected = np.exp(scores / temperature) / np.exp(scores / temperature).sum()
    error = 4 * np.sqrt(expected * (1 - expected) / 20_000) + 1e-4
    assert (np.abs(shares - expected) < error).all()


def test_without_keys_the_best_token_is_taken():
    np.testing.assert_array_equal(draw(SCORES, None), SCORES.argmax(-1))


@pytest.mark.parametrize(("point", "drawn"), [(0.55, 3), (1.0, 3), (0.1, 0)])
def test_what_is_excluded_is_never_drawn(monkeypatch, point, drawn):
    """Sums in parts round apart, so that they may rise at a token that has nothing."""
    logits = np.float32([[0.0, -np.inf, -np.inf, 0.0, -np.inf]])
    sums = np.float32([[0.5, 0.49, 0.6, 1.0, 1.0001]])
    monkeypatch.setattr(jnp, "cumsum", lambda x, axis: sums)
    monkeypatch.setattr(jax.random, "uniform", lambda key: jnp.float32(point))
    found = jax.jit(lambda *given: draw(*given))(logits, jax.random.key(0)[None])
    assert found.tolist() == [drawn]
