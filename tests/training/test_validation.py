import functools
import math

import jax
import numpy as np
import pytest
from tiny_models import drawn_params

from gpt1_jax.data.corpus import prepare_corpus
from gpt1_jax.data.shards import SplitCounts, TokenReader
from gpt1_jax.data.windows import ValidWindows
from gpt1_jax.model import language_model
from gpt1_jax.parallel.mesh import make_mesh
from gpt1_jax.training.validation import Validation, loss_metrics


@functools.partial(jax.jit, static_argnums=0)
def next_token_nll(model, params, tokens):
    output = language_model.apply(model, params, tokens)
    return language_model.next_token_nll(model, output, tokens)


@pytest.fixture
def prepared(tiny_config):
    """A corpus, a model for it, and its parameters."""
    config = tiny_config()
    corpus, tokenizer = prepare_corpus(config.data, config.tokenizer, progress=False)
    model = config.model.with_vocab_size(tokenizer.vocab_size)
    return corpus, model, drawn_params(model)


def valid_windows(corpus, model):
    reader = TokenReader(corpus, "valid")
    return ValidWindows(reader, model.max_seq_len, 8, slice(0, 8))


def validation(corpus, model, max_batches=0):
    return Validation(model, valid_windows(corpus, model), max_batches, make_mesh())


def test_validation_counts_every_token_once(prepared):
    corpus, model, params = prepared
    loss = validation(corpus, model)(params, lambda: False)
    tokens = TokenReader(corpus, "valid").read(0, corpus.valid.tokens).astype(np.int32)
    total, stride = 0.0, model.max_seq_len - 1
    for start in range(0, len(tokens) - 1, 8 * stride):
        rest = np.pad(tokens[start:], (0, 8 * stride + 1))
        window = np.lib.stride_tricks.sliding_window_view(rest, stride + 1)
        nll = next_token_nll(model, params, window[: 8 * stride : stride])[:, :-1]
        total += float(np.asarray(nll).ravel()[: len(tokens) - 1 - start].sum())
    assert loss == pytest.approx(total / (len(tokens) - 1), rel=1e-6)


def test_the_first_batches_are_read_if_asked(prepared):
    corpus, model, params = prepared
    first = validation(corpus, model, max_batches=1)
    windows = valid_windows(corpus, model)
    tokens, lengths = windows[0]
    assert len(windows) > 1 and (lengths == model.max_seq_len).all()
    nll = np.asarray(next_token_nll(model, params, tokens))
    expected = float(nll[:, :-1].mean())
    assert first(params, lambda: False) == pytest.approx(expected, rel=1e-6)
    assert first(params, lambda: True) is None, "a stop ends it"


def test_losses_are_spread_over_the_words_of_the_split_validated():
    """600 tokens of 2 nats in 400 words: 3 nats a word."""
    split = SplitCounts(documents=1, tokens=600, words=400, bytes=1)
    metrics = loss_metrics(2.0, split)
    assert metrics["valid_perplexity"] == pytest.approx(math.exp(2.0))
    assert metrics["valid_nats_per_word"] == pytest.approx(3.0)
    assert metrics["valid_bits_per_word"] == pytest.approx(3.0 / math.log(2))
