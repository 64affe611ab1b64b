"""The numbers by which dropout knows tokens without padding."""

import jax.numpy as jnp
import numpy as np

from gpt1_jax.model.context import Context
from gpt1_jax.ops.dropout import Noise, step_noise
from gpt1_jax.ops.unpad import make_unpadding


def test_token_rows_are_those_of_the_tokens_in_the_padded_batch():
    """Sequences 7 and 9 of 2 and 3 tokens, padded to 4: 7 T + t, then 9 T + t."""
    indices = jnp.array([[0, 1, 4, 5, 6, 8]])  # the last one is empty
    unpadding = make_unpadding(indices, jnp.array([2, 3]), 4)
    noise = Noise(step_noise(0, 0, 2).key, jnp.array([7, 9], jnp.uint32))
    rows = Context(noise, unpadding).token_rows()
    assert rows.dtype == jnp.uint32
    np.testing.assert_array_equal(rows[0, :5], [28, 29, 36, 37, 38])


def test_token_rows_are_none_without_padding_removal_or_dropout():
    unpadding = make_unpadding(jnp.array([[0, 1]]), jnp.array([2]), 2)
    assert Context().token_rows() is None
    assert Context(unpadding=unpadding).token_rows() is None
    assert Context(noise=step_noise(0, 0, 1)).token_rows() is None
