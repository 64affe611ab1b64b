"""Effects of components: those of one forward pass for each, by hand."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import drawn_params

from gpt1_jax.data.words import ReadingWindow
from gpt1_jax.model import language_model
from gpt1_jax.model.interventions import forward, state_names
from gpt1_jax.studies.interventions import effects
from gpt1_jax.studies.interventions.effects import find_effects

assert_close = functools.partial(np.testing.assert_allclose, atol=1e-5)
VOCAB_SIZE = 90  # of the model's 97 tokens; those behind get no probability


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


@functools.partial(jax.jit, static_argnums=0)
def forward_edited(model, params, tokens, edits):
    """Activations, and logits of each state: one program, whatever is edited where."""

    def edit(chosen, value):
        return lambda x: jnp.where(chosen, value, x)

    functions = {name: edit(*each) for name, each in edits.items()}
    names = {*edits, *state_names(model)}
    output, recorded = forward(model, params, tokens, names, functions)
    states = (output._replace(hidden=recorded[name]) for name in state_names(model))
    return recorded, [language_model.logits(model, state) for state in states]


class Reference:
    """D of three pairs, by one forward pass."""

    def __init__(self, model, params, pairs):
        self.windows = [window for pair in pairs for window in pair]
        # Padding behind a text changes nothing in it.
        tokens = np.zeros((len(self.windows), model.max_seq_len), np.int32)
        for row, window in zip(tokens, self.windows, strict=True):
            row[: len(window.ids) - 1] = window.ids[:-1]
        self._forward = functools.partial(forward_edited, model, params, tokens)
        apart = model.num_heads, model.embed_dim // model.num_heads
        self._shapes = {
            name: (*tokens.shape, *(apart if "heads" in name else [model.embed_dim]))
            for name in (*state_names(model)[:-1], *(each[2] for each in places(model)))
        }

    def run(self, name="", where=np.s_[:], value=0.0):
        """The activations, and D [L + 1, n] as each state has it, with a value."""
        edits = {
            each: (np.zeros(shape, bool), np.zeros(shape, np.float32))
            for each, shape in self._shapes.items()
        }
        if name:
            edits[name][0][where], edits[name][1][:] = True, value
        recorded, logits = jax.device_get(self._forward(edits))
        return recorded, np.array([self._differences(each) for each in logits])

    def _differences(self, logits):
        exact = logits[..., :VOCAB_SIZE].astype(np.float64)
        log_probs = exact - np.log(np.exp(exact).sum(-1, keepdims=True))
        scores = [
            sum(own[at - 1, ids[at]] for at in range(first, len(ids)))
            for own, (ids, first, *_) in zip(log_probs, self.windows, strict=True)
        ]
        return np.subtract(scores[::2], scores[1::2])

    def replaced(self, *edit):
        """D of the model's output."""
        return self.run(*edit)[1][-1]


def all_effects(model, params, pairs, clean=None, **how):
    how = {"method": "zero", "num_positions": 3, "batch_tokens": 2048, **how}
    return find_effects(model, VOCAB_SIZE, params, pairs, clean, **how)


def places(model):
    """(field, its place, the activation's name, where) of components of each kind."""
    for layer in range(model.num_layers):
        for head in range(model.num_heads):
            yield "heads", (layer, head), f"h_{layer}/attn/heads", np.s_[:, :, head]
        yield "attention", (layer,), f"h_{layer}/attn/out", np.s_[:]
        yield "mlp", (layer,), f"h_{layer}/mlp/out", np.s_[:]


def test_effects_are_those_of_one_forward_pass_for_each(model, params):
    """Also of pairs that take more than `batch_tokens`."""
    found = all_effects(model, params, PAIRS, batch_tokens=1)
    reference = Reference(model, params, PAIRS)
    _, lens = reference.run()
    assert_close(found.lens.T, lens)
    assert_close(found.base, lens[-1])
    assert (found.base == found.clean).all()
    for field, place, name, where in places(model):
        actual = getattr(found, field)[:, *place]
        assert_close(actual, reference.replaced(name, where), err_msg=name)
    for layer, name in enumerate(state_names(model)[:-1]):
        for position in range(4):
            expected = reference.replaced(name, np.s_[:, position])
            for number, first in enumerate((2, 1, 4)):  # in which sentences differ
                if 0 <= (back := first - 1 - position) < 3:
                    actual = found.positions[number, layer, back]
                    assert_close(actual, expected[number])
    assert np.isnan(found.positions).sum(axis=(1, 2)).tolist() == [2, 4, 0]
    assert np.ptp(found.heads[0]) > 0.01  # heads matter in this model


@pytest.fixture(scope="module")
def together(model, params):
    """Effects on all pairs twice, as few batches."""
    return all_effects(model, params, PAIRS * 2, method="mean")


def test_the_mean_is_that_over_all_tokens_of_all_answers(model, params, together):
    reference = Reference(model, params, PAIRS)
    recorded, _ = reference.run()
    for field, place, name, where in places(model):
        rows = zip(recorded[name], reference.windows, strict=True)
        own = [row[: len(window.ids) - 1] for row, window in rows]
        mean = np.concatenate(own).mean(axis=0)
        expected = np.tile(reference.replaced(name, where, mean), 2)
        assert_close(getattr(together, field)[:, *place], expected, err_msg=name)


def test_a_patch_is_what_the_component_gives_after_the_clean_prompt(model, params):
    """Also of answers with several tokens, which are read after the prompt."""
    answers = ([2], [3]), ([2, 8], [3, 4, 4]), ([4], [6, 5])
    clean, corrupted = (
        [pair(*(prompt + answer for answer in each), 4) for each in answers]
        for prompt in ([1, 5, 6, 7], [1, 5, 9, 7])
    )
    found = all_effects(model, params, corrupted, clean, method="patch")
    reference = Reference(model, params, corrupted)
    recorded, after_clean = Reference(model, params, clean).run()
    assert_close(found.base, reference.replaced())
    assert_close(found.clean, after_clean[-1])
    back = [
        ("positions", (layer, back), state_names(model)[layer], np.s_[:, 3 - back])
        for layer in range(2)
        for back in range(3)
    ]
    for field, place, name, where in (*places(model), *back):
        expected = reference.replaced(name, where, recorded[name])
        assert_close(getattr(found, field)[:, *place], expected, err_msg=name)
    # The only token that differs stands at position 2, one back from the last.
    assert_close(found.positions[:, 0, 1], found.clean)
    assert_close(found.positions[:, 0, 0], found.base)


def test_effects_do_not_depend_on_what_is_computed_together(model, params, together):
    """Here batches of three short pairs of four, so that one is filled up."""
    how = {"method": "mean", "batch_tokens": 800}
    for ours, theirs in zip(
        together, all_effects(model, params, PAIRS * 2, **how), strict=True
    ):
        assert_close(ours, theirs)
    before = effects._find_effects._cache_size()  # all are one program
    scaled = jax.tree.map(lambda leaf: 2 * leaf, params)
    all_effects(model, scaled, PAIRS[::-1] * 2, **how)
    assert effects._find_effects._cache_size() == before


def test_pairs_that_do_not_fit_into_memory_are_refused(model, params, monkeypatch):
    monkeypatch.setattr("gpt1_jax.parallel.devices.memory_bytes", lambda: 1000)
    with pytest.raises(ValueError, match=r"A pair of 12 tokens .* Lower config\.pos"):
        all_effects(model, params, PAIRS[1:2])
