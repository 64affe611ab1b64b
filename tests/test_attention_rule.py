"""Who may attend to whom is said once: a change there reaches every form."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import KIND, WAYS, made_up_params

from gpt1_jax.config import ModelConfig
from gpt1_jax.config.sections import DEFAULT_SAMPLING
from gpt1_jax.data.words import ReadingWindow
from gpt1_jax.finetuning.unpad import BandShapes, Unpadded, make_unpadding, pad
from gpt1_jax.inference import prefix_tree
from gpt1_jax.inference.decoding import Continuation, Decoder, prepare
from gpt1_jax.inference.scoring import Scorer
from gpt1_jax.model import language_model
from gpt1_jax.model.execution import Execution
from gpt1_jax.ops import attention, cached_attention
from gpt1_jax.ops.dropout import step_noise
from gpt1_jax.tasks.batches import lengths_by_group, real_indices

pytestmark = pytest.mark.slow
LENGTH = 192  # more than a block of positions
SIZES = dict(vocab_size=97, num_layers=2, num_heads=4, embed_dim=32, mlp_dim=64)
MODEL = ModelConfig(**KIND, **WAYS, **SIZES, max_seq_len=LENGTH)
PLAIN = dataclasses.replace(MODEL, attention_form="plain")


@pytest.fixture(scope="module", autouse=True)
def windowed():
    """A token attends to the last 32 alone, as where docs/library.md changes it."""
    jax.clear_caches()
    with pytest.MonkeyPatch.context() as patch:
        for module in (attention, cached_attention, prefix_tree):
            patch.setattr(module, "may_attend", lambda q, k: (k <= q) & (q - k < 32))
        yield
    jax.clear_caches()


@pytest.fixture(scope="module")
def params():
    """Kernels large enough for attention to be sharp."""
    return jax.tree.map_with_path(
        lambda path, x: jnp.asarray(x * (12 if path[-1].key == "kernel" else 3)),
        made_up_params(language_model.init_params, MODEL),
    )


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def tokens(rng):
    return jnp.asarray(rng.integers(0, 97, (3, LENGTH)))


@pytest.fixture(scope="module")
def by_formula(params):
    """`by_formula(ids, first)`: the log-probabilities of ids[first:]."""

    @jax.jit
    def log_probs(tokens):
        output = language_model.apply(PLAIN, params, tokens)
        return jax.nn.log_softmax(language_model.logits(PLAIN, output))

    def of_continuation(ids, first):
        padded = np.zeros((1, LENGTH), int)
        padded[0, : len(ids)] = ids
        places = np.arange(first, len(ids))
        return np.asarray(log_probs(padded))[0, places - 1, np.array(ids)[first:]]

    return of_continuation


def test_the_formula_follows_the_rule(by_formula, rng):
    """What is further back than two layers see does not matter."""
    ids = rng.integers(0, 97, 100)
    near, far = ids.copy(), ids.copy()
    near[80], far[30] = (near[80] + 1) % 97, (far[30] + 1) % 97
    expected = by_formula(ids, 99)
    np.testing.assert_array_equal(by_formula(far, 99), expected)
    assert abs(by_formula(near, 99) - expected) > 1e-3


def test_training_in_the_default_form_follows_it(params, tokens):
    """A loss and its gradients, beside the largest."""

    def loss(params, form):
        model = dataclasses.replace(MODEL, attention_form=form)
        how = Execution(model, step_noise(0, jnp.int32(0), 3))
        hidden = language_model.apply(model, params, tokens, how).hidden
        return (hidden * jnp.cos(jnp.arange(hidden.size).reshape(hidden.shape))).sum()

    gradients = jax.jit(jax.value_and_grad(loss), static_argnums=1)
    plain, auto = (
        jax.tree.leaves(gradients(params, each)) for each in ("plain", "auto")
    )
    for expected, found in zip(plain, auto, strict=True):
        assert abs(expected - found).max() < 1e-4 * (1 + abs(expected).max())


@pytest.mark.parametrize("batch_size", [1, 16], ids=["in rows", "in lanes"])
def test_samples_follow_it(batch_size, params, by_formula, rng):
    """Drawn with a cache; of 16 rows or more it lies in lanes."""
    sampling = dataclasses.replace(DEFAULT_SAMPLING, max_new_tokens=90)
    rows = [
        Continuation("", rng.integers(0, 97, length).tolist(), seed)
        for seed, length in enumerate([40, 45, 50])
    ]
    list(Decoder(MODEL, 97, sampling, batch_size)(prepare(MODEL, params), rows))
    for row in rows:
        expected = by_formula([*row.ids, *row.tokens], len(row.ids))
        assert len(row.tokens) == 90
        np.testing.assert_allclose(row.log_probs, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("context_len", "tail_len"),
    [(45, 12), (60, 40), (8, 70)],
    ids=["in a tree", "after a shared context", "in rows"],
)
def test_scores_follow_it(context_len, tail_len, params, by_formula, rng):
    """Of windows that share their beginning."""
    context = rng.integers(0, 97, context_len).tolist()
    tails = rng.integers(0, 97, (4, tail_len)).tolist()
    windows = [ReadingWindow([*context, *tail], context_len) for tail in tails]
    scores = Scorer(MODEL, 97)(params, windows)
    for found, window in zip(scores, windows, strict=True):
        expected = by_formula(window.ids, context_len)
        np.testing.assert_allclose(found.log_probs, expected, atol=1e-5)


@pytest.mark.parametrize(
    "bands", [None, BandShapes(((1, 192), (2, 136)))], ids=["packed", "in bands"]
)
def test_a_batch_without_padding_follows_it(bands, params, tokens):
    lengths = np.array([[LENGTH], [70], [130]])
    groups = lengths_by_group(lengths, 1, parts=1)
    indices = jnp.asarray(real_indices(groups, LENGTH, groups.sum()))
    unpadding = make_unpadding(indices, jnp.asarray(lengths[:, 0]), LENGTH, bands)
    noise = step_noise(0, jnp.int32(0), 3)

    @jax.jit
    def both(params):
        how = Unpadded(MODEL, noise, unpadding)
        hidden = language_model.apply(MODEL, params, tokens, how).hidden
        whole = language_model.apply(MODEL, params, tokens, Execution(MODEL, noise))
        return pad(hidden, unpadding), whole.hidden

    real = np.arange(LENGTH) < lengths
    found, expected = (np.asarray(each)[real] for each in both(params))
    np.testing.assert_allclose(found, expected, atol=1e-5)
