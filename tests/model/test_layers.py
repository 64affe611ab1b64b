"""The parameters of dense layers and LayerNorms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.errors import ScopeParamShapeError

from gpt1_jax.model.layers import Dense
from gpt1_jax.ops.products import Transposed


def test_dense_hands_out_a_transposed_kernel_and_no_other_shape():
    dense, bias = Dense(5, 7), jnp.ones(7)
    stored = Transposed(jnp.ones((7, 5)))
    kernel, _ = dense.apply({"params": {"kernel": stored, "bias": bias}})
    assert kernel is stored
    for shape in [(5, 8), (7, 5)]:
        wrong = {"kernel": jnp.ones(shape), "bias": bias}
        with pytest.raises(ScopeParamShapeError, match="kernel"):
            dense.apply({"params": wrong})


def test_dense_init_is_normal_with_zero_bias():
    params = Dense(256, 512).init(jax.random.key(0))["params"]
    kernel, bias = (np.asarray(params[name]) for name in ("kernel", "bias"))
    assert kernel.shape == (256, 512)
    assert abs(kernel.mean()) < 5 * 0.02 / np.sqrt(kernel.size)
    assert kernel.std() == pytest.approx(0.02, rel=5 / np.sqrt(2 * kernel.size))
    assert np.abs(kernel).max() > 4 * 0.02, "truncated at two standard deviations"
    assert not bias.any()
