"""Hidden states as a stream, in few programs; their values: test_parity_decoding."""

import dataclasses

import numpy as np
import pytest
from tiny_models import drawn_params

from gpt1_jax.data.words import ReadingWindow
from gpt1_jax.inference import features
from gpt1_jax.inference.features import Reader


@pytest.fixture(scope="module")
def model(tiny_model_config):
    return tiny_model_config(max_seq_len=48)


@pytest.fixture(scope="module")
def params(model):
    return drawn_params(model)


def random_windows(count, lengths, seed=0, most=3):
    """Windows of these lengths, each with at most so many spans."""
    rng = np.random.default_rng(seed)
    for length in rng.choice(lengths, count).tolist():
        number = rng.integers(1, min(length, most) + 1)
        ends = sorted(rng.choice(length, number, replace=False) + 1)
        spans = [(int(rng.integers(0, end)), int(end)) for end in ends]
        yield ReadingWindow(rng.integers(0, 97, length).tolist(), 0, spans=spans)


def test_states_do_not_depend_on_how_many_are_computed_together(model, params):
    windows = list(random_windows(30, lengths=(3, 5)))
    one, other = (
        list(Reader(model, params, (2,), batch_tokens=size)(windows))
        for size in (1, 1024)
    )
    assert [window for window, _ in one] == windows
    for (_, a), (_, b) in zip(one, other, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
    rough = dataclasses.replace(model, dtype="bfloat16")
    ((_, states),) = Reader(rough, params, (1,))(windows[:1])
    assert states.dtype == np.float32


def test_a_bounded_number_of_windows_is_held(model, params, monkeypatch):
    """However long the text: few are read ahead of the states that have gone."""
    monkeypatch.setattr(features, "_HELD_NUMBERS", 1)
    drawn = []
    source = random_windows(300, lengths=range(1, 9))
    counted = (drawn.append(None) or window for window in source)
    states = Reader(model, params, (1,), batch_tokens=64)(counted)
    ahead = max(len(drawn) - done for done, _ in enumerate(states))
    assert 8 <= ahead <= 65


def test_few_programs_are_compiled(model, params, monkeypatch):
    shapes = set()

    def noted(model, layers, mean, params, tokens, spans):
        shapes.add((tokens.shape, spans.shape))
        return np.zeros((len(layers), len(tokens), spans.shape[1], 32), np.float32)

    monkeypatch.setattr(features, "_read_states", noted)
    reader = Reader(model, params, (1, 2), batch_tokens=96)
    for seed in range(3):
        list(reader(random_windows(40, range(1, 49), seed, most=48)))
    # 6 lengths, 8 to 48, each with one row, up to half as many as tokens, or all.
    assert 6 <= len(shapes) <= 12


def test_an_unknown_layer_is_refused(model, params):
    for layer in (3, -1):
        with pytest.raises(ValueError, match=rf"no layer {layer}: .* 0 .* to 2\."):
            Reader(model, params, (0, layer))
