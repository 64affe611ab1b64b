"""Decoding with a cache is what the model says, whatever else is in the batch."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import all_logits, drawn_params, sampling_config

from gpt1_jax.inference import decoding
from gpt1_jax.inference.decoding import Continuation, Decoder

VOCAB = 90  # of 97: the rest stands for special tokens
PROMPTS = [[1, 2, 3], [5] * 20, [7, 8] * 15, [9] * 70, [4], [6, 60] * 16, [3, 5] * 29]
GREEDY = dict(do_sample=False, max_new_tokens=12)
SAMPLED = dict(
    max_new_tokens=12,
    temperature=1.3,
    top_k=30,
    top_p=0.95,
    min_p=0.001,
    repetition_penalty=1.1,
)


@pytest.fixture(scope="module")
def model(tiny_model_config):
    return tiny_model_config(num_layers=1, max_seq_len=64)


def large_params(model):
    """Large matrices: what comes next depends on all that was read."""
    larger = {"kernel": 10 if model.kind == "transformer" else 4, "wte": 5, "wpe": 5}
    return jax.tree.map_with_path(
        lambda path, leaf: leaf * larger.get(path[-1].key, 1),
        drawn_params(model),
    )


@pytest.fixture(scope="module")
def params(model):
    return large_params(model)


def make(model, batch_size=3, round_size=0, stop=None, **values):
    config = sampling_config(**values)
    return Decoder(model, VOCAB, config, batch_size, round_size, stop)


def continued(decoder, params, prompts, seeds=None):
    """The tokens and log-probabilities of each prompt."""
    seeds = seeds or range(len(prompts))
    found = [Continuation("", *each) for each in zip(prompts, seeds, strict=True)]
    for _ in decoder(params, found):
        pass
    return [(each.tokens, each.log_probs) for each in found]


def expected_greedy(model, params, prompts, count):
    """One forward pass without a cache for each token; as `continued` has it."""
    contexts, found = [list(each) for each in prompts], [([], []) for _ in prompts]
    for _ in range(count):
        padded = np.zeros((len(prompts), model.max_seq_len), np.int32)
        for row, context in zip(padded, contexts, strict=True):
            if len(context) > model.max_seq_len:
                del context[: -(model.max_seq_len // 2)]
            row[: len(context)] = context
        of_all = np.asarray(all_logits(model, params, padded), np.float64)
        for scores, context, each in zip(of_all, contexts, found, strict=True):
            scores, (tokens, log_probs) = scores[len(context) - 1, :VOCAB], each
            tokens.append(int(scores.argmax()))
            log_probs.append(scores[tokens[-1]] - np.log(np.exp(scores).sum()))
            context.append(tokens[-1])
    return found


# Rows of which the heads of the tiny model are kept in lanes, on a CPU.
IN_LANES = 32


@pytest.mark.parametrize(
    ("kind", "rows"), [("transformer", 4), ("transformer", IN_LANES), ("lstm", 4)]
)
def test_greedy_tokens_are_the_best_without_a_cache(model, kind, rows):
    """Also for a context that slides at once, or on the way."""
    model = dataclasses.replace(model, kind=kind, num_layers=2)
    params = large_params(model)
    decoder = make(model, rows, **{**GREEDY, "max_new_tokens": 50})
    found = continued(decoder, params, PROMPTS[:4])
    expected = expected_greedy(model, params, PROMPTS[:4], 50)
    for (ours, theirs), (tokens, log_probs) in zip(found, expected, strict=True):
        assert ours == tokens
        np.testing.assert_allclose(theirs, log_probs, atol=2e-4)


@pytest.mark.parametrize(
    ("kind", "dtype", "rows"),
    [
        ("transformer", "float32", 3),
        ("transformer", "bfloat16", IN_LANES),
        ("lstm", "bfloat16", 3),
    ],
)
def test_a_continuation_does_not_depend_on_its_neighbours(
    model, kind, dtype, rows, monkeypatch
):
    """They are read 2 or 1 at a time, by their length; some slide on the way.

    The cache grows after 32 tokens.
    """
    monkeypatch.setattr(decoding, "_READ_TOGETHER", 64)
    model = dataclasses.replace(model, kind=kind, dtype=dtype)
    prepare = jax.jit(decoding.prepare, static_argnums=0)
    prepared = prepare(model, large_params(model))
    decoder = make(model, rows, **{**SAMPLED, "max_new_tokens": 40})
    together = continued(decoder, prepared, PROMPTS)
    for seed in (0, 3, 6):  # of a few tokens, more than a context has, and almost
        (alone,) = continued(decoder, prepared, [PROMPTS[seed]], [seed])
        assert alone == together[seed]
    seeds = range(len(PROMPTS))[::-1]
    backwards = continued(decoder, prepared, PROMPTS[::-1], seeds)
    assert backwards[::-1] == together


def test_tokens_do_not_depend_on_how_many_are_drawn_at_a_time(model, params):
    whole = continued(make(model, **SAMPLED), params, PROMPTS[:3])
    for size in (1, 5):
        decoder = make(model, round_size=size, **SAMPLED)
        assert continued(decoder, params, PROMPTS[:3]) == whole
    one, other, again = continued(decoder, params, [PROMPTS[0]] * 3, [1, 2, 1])
    assert one == again != other


def test_a_continuation_ends_where_it_is_told_to(model, params):
    whole, _ = continued(make(model, **GREEDY), params, [PROMPTS[0]])[0]

    def stop(continuation, before):
        return 5 if len(continuation.tokens) >= 5 > before else None

    for size in (1, 3, 0):
        decoder = make(model, round_size=size, stop=stop, **GREEDY)
        ended = Continuation("", PROMPTS[0], 0)
        assert all(each is ended for each in decoder(params, [ended]))
        assert ended.tokens == whole[:5] and len(ended.log_probs) == 5
        assert ended.finish_reason == "stop"


def test_only_the_vocabulary_is_drawn_from(model, params):
    """Neither special tokens nor the positions that the softmax may have."""
    model = dataclasses.replace(model, softmax_rows="tokens+positions")
    large = {**params, "wpe": 100 * params["wpe"]}
    decoder = make(model, batch_size=16, max_new_tokens=24, temperature=9.0)
    found = continued(decoder, large, [PROMPTS[0]] * 16)
    assert 80 <= max(token for tokens, _ in found for token in tokens) < VOCAB


@pytest.mark.parametrize(
    ("rows", "places", "expected"),  # of rows that no other test has: traced here
    [(5, 1, {64, 96}), (IN_LANES + 1, 0, {96})],
)
def test_few_lengths_are_compiled(model, params, monkeypatch, rows, places, expected):
    """A memory in lanes, of [S, K, M], has room for all tokens from the start."""
    traced = []
    decode = decoding.decode

    def counted(model, params, tokens, cache):
        traced.append((tokens.shape, cache.layers[0].values.shape))
        return decode(model, params, tokens, cache)

    monkeypatch.setattr(decoding, "decode", counted)
    decoder = make(model, rows, **{**GREEDY, "max_new_tokens": 40})
    prompts = [[1] * length for length in range(1, 65, 3)]
    continued(decoder, params, prompts)
    continued(decoder, params, prompts[::-1])
    lengths = {shape for (_, shape), _ in traced if shape > 1}
    assert lengths == {32, 64}
    sizes = {memory[places] for (_, shape), memory in traced if shape == 1}
    assert sizes == expected
    assert len(traced) == 2 + len(expected)  # to read prompts, and to draw


def test_preparing_rounds_matrices_alone(model, params):
    prepared = decoding.prepare(dataclasses.replace(model, dtype="bfloat16"), params)
    assert prepared["wte"].dtype == "bfloat16" and prepared["wpe"].dtype == "float32"
    layer, original = prepared["h_0"]["mlp"]["c_fc"], params["h_0"]["mlp"]["c_fc"]
    assert layer["bias"].dtype == "float32"
    rounded = original["kernel"].astype(jnp.bfloat16)
    np.testing.assert_array_equal(layer["kernel"].rows, rounded.T, strict=True)
