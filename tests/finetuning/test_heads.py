"""Heads on the extract token: pooling, sums and choices, dropout, initialisation."""

import functools

import jax
import numpy as np
import pytest
from made_up_batches import made_up_batch
from tiny_models import PAPER, count_params, made_up_params

from gpt1_jax.finetuning import heads
from gpt1_jax.finetuning.heads import Head
from gpt1_jax.ops.dropout import step_noise

EXTRACT = 96  # the last of the 97 tokens of `tiny`
JUDGED_TOGETHER = Head(3, per_choice=False, dropout=0.1, extract_token=EXTRACT)
CHOICES = Head(2, per_choice=True, dropout=0.1, extract_token=EXTRACT)


@functools.partial(jax.jit, static_argnums=(0, 1))
def apply(config, head, params, tokens, seed=None):
    """With the dropout of the first step, if there is a seed."""
    noise = None if seed is None else step_noise(seed, 0, len(tokens))
    return heads.apply(config, head, params, tokens, noise)


@functools.cache
def params_of(config, head):
    """Initial parameters whose biases are not 0, and kernels large enough to tell."""
    params = made_up_params(heads.init_params, config, head)
    rng = np.random.default_rng(2)
    return jax.tree.map_with_path(
        lambda path, p: (
            p + 0.1 * rng.normal(size=p.shape).astype(np.float32)
            if path[-1].key in ("bias", "kernel")
            else p
        ),
        params,
    )


def logits_of(config, head, tokens, seed=None):
    return np.asarray(apply(config, head, params_of(config, head), tokens, seed)[0])


def largest_difference(one, other):
    return float(np.abs(one - other).max())


@pytest.fixture(scope="module")
def config(tiny):
    return tiny()


@pytest.fixture(scope="module")
def tokens(config):
    return made_up_batch(config, (5, 2, 12), 2).tokens


@pytest.mark.parametrize(
    "head",
    [JUDGED_TOGETHER, CHOICES, JUDGED_TOGETHER._replace(extract_token=EXTRACT - 1)],
    ids=["together", "choices", "at the delimiter"],
)
def test_logits_are_a_linear_map_of_the_state_at_the_extract_token(
    config, tokens, head
):
    """Eq. 3 by hand: of the sum over the sequences, or of each one.

    The extract token is the head's own, not guessed from the vocabulary.
    """
    params = params_of(config, head)
    logits, output = apply(config, head, params, tokens, None)
    assert output.hidden.shape == (10, 12, 32)
    hidden = np.asarray(output.hidden, np.float64).reshape(5, 2, 12, 32)
    places = (tokens == head.extract_token).argmax(-1)
    assert (places > 0).all()
    pooled = np.take_along_axis(hidden, places[..., None, None], 2)[:, :, 0]
    kernel, bias = (np.asarray(params["head"][n], float) for n in ("kernel", "bias"))
    if head.per_choice:
        expected = (pooled @ kernel + bias)[..., 0]
    else:
        expected = pooled.sum(1) @ kernel + bias
    np.testing.assert_allclose(logits, expected, atol=2e-6)
    assert logits.dtype == np.float32
    assert logits.std() > 0.03


@pytest.mark.parametrize("head", [JUDGED_TOGETHER, CHOICES], ids=str)
def test_pooled_at_the_first_extract_token(config, tokens, head):
    """What follows it is ignored, be it padding or a second one."""
    other = tokens.copy()
    places = (tokens == EXTRACT).argmax(-1)
    after = np.arange(12) > places[..., None]
    assert after.any()
    other[after] = EXTRACT
    logits = logits_of(config, head, tokens)
    assert largest_difference(logits, logits_of(config, head, other)) < 1e-6
    other = tokens.copy()
    other[:, :, 1] = 1 + other[:, :, 1] % 50
    assert largest_difference(logits, logits_of(config, head, other)) > 1e-2


@pytest.fixture(scope="module")
def no_dropout(tiny):
    """The decoder's; the head has its own."""
    return tiny(embed_dropout=0.0, attn_dropout=0.0, resid_dropout=0.0)


def test_mask_of_the_head_is_shared_by_the_choices(no_dropout):
    """Two equal choices get the same logit, two equal examples do not."""
    tokens = made_up_batch(no_dropout, (1, 1, 12), 2).tokens
    tokens = np.broadcast_to(tokens, (6, 2, 12))
    head = Head(2, True, 0.5, EXTRACT)
    logits = logits_of(no_dropout, head, tokens, seed=1)
    assert largest_difference(logits[:, 0], logits[:, 1]) < 1e-6
    assert len(np.unique(logits[:, 0].round(5))) == 6


def test_dropout_of_the_head_keeps_the_expectation(no_dropout):
    tokens = made_up_batch(no_dropout, (1, 2, 12), 2).tokens
    tokens = np.broadcast_to(tokens, (1000, 2, 12))
    exact = logits_of(no_dropout, JUDGED_TOGETHER, tokens[:1])
    drawn = logits_of(no_dropout, JUDGED_TOGETHER, tokens, seed=1)
    error = drawn.std(0) / np.sqrt(1000)
    assert (drawn.std(0) > 0.05).all()
    np.testing.assert_array_less(np.abs(drawn.mean(0) - exact[0]), 5 * error)


def test_sequences_of_an_example_have_masks_of_their_own(config):
    """In the decoder: alike, they come out different."""
    tokens = made_up_batch(config, (1, 1, 12), 2).tokens
    tokens = np.broadcast_to(tokens, (3, 2, 12))
    logits = logits_of(config, Head(2, True, 0.0, EXTRACT), tokens, seed=1)
    assert len(np.unique(logits.round(5))) == 6


def test_initial_head_is_normal_with_bias_zero(tiny):
    config = tiny(embed_dim=512)
    head = Head(40, False, 0.1, EXTRACT)
    init = jax.jit(lambda key: heads.init_params(config, head, key)["head"])
    made = jax.device_get(init(jax.random.key(0)))
    kernel, bias = made["kernel"], made["bias"]
    assert (kernel.shape, bias.shape) == ((512, 40), (40,))
    assert kernel.dtype == bias.dtype == np.float32
    assert not bias.any()
    assert float(kernel.std()) == pytest.approx(0.02, rel=0.03)
    assert float(kernel.mean()) == pytest.approx(0.0, abs=6e-4)
    assert float(np.abs(kernel).max()) > 0.06, "it is not truncated"


@pytest.mark.parametrize(
    ("head", "count"),
    [
        (Head(2, True, 0.1, 40480), 116_537_857),
        (Head(6, False, 0.1, 40480), 116_541_702),
    ],
    ids=str,
)
def test_paper_size_has_the_number_of_parameters(tiny_model_config, head, count):
    sizes = {**PAPER, "vocab_size": 40481}  # and three specials
    config = tiny_model_config(**sizes, layer_loop="scan")
    shapes = jax.eval_shape(
        lambda key: heads.init_params(config, head, key), jax.random.key(0)
    )
    assert count_params(shapes) == count
    width = 1 if head.per_choice else head.num_outputs
    assert shapes["head"]["kernel"].shape == (768, width)


def test_gradients_reach_special_tokens_and_every_parameter(config, tokens):
    params = params_of(config, JUDGED_TOGETHER)

    def loss(params):
        logits, _ = heads.apply(config, JUDGED_TOGETHER, params, tokens)
        return (logits**2).sum()

    gradients = jax.jit(jax.grad(loss))(params)
    by_token = np.abs(gradients["transformer"]["wte"]).max(1)
    assert (by_token[-3:] > 1e-3).all(), "start, delimiter and extract token"
    unused = np.setdiff1d(np.arange(97), tokens)
    assert not by_token[unused].any()
    for path, gradient in jax.tree.leaves_with_path(gradients):
        assert np.abs(gradient).max() > 1e-6, jax.tree_util.keystr(path)
