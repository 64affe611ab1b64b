"""The kernels for TPUs are lowered and compiled for them, without one."""

import importlib.util
import os
import subprocess
import sys

import jax
import numpy as np
import pytest
from forms import with_gradients
from tiny_run import ROOT

from gpt1_jax.kernels.attention_tpu import attention
from gpt1_jax.ops.dropout import step_noise


def test_kernels_are_lowered_for_a_tpu():
    """Operations that Pallas does not know on a TPU are found without its compiler."""
    noise = step_noise(0, np.int32(3), 2)
    shape = jax.ShapeDtypeStruct((2, 300, 4, 64), "bfloat16")
    traced = with_gradients.trace(
        lambda *qkv: attention(*qkv, 0.1, noise, 3), shape, *[shape] * 3
    )
    text = traced.lower(lowering_platforms=("tpu",)).as_text()
    assert text.count("@tpu_custom_call") == 2
    assert "exponential" not in text, "no softmax outside of the kernels"


COMPILE = """
from benchmarks.compiler.targets import TARGETS, devices_of, in_place_of, prepare

target = TARGETS["v5e-1"]
prepare(target)
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from gpt1_jax.kernels.attention_tpu import attention
from gpt1_jax.ops.dropout import Noise


def gradients(qkv, seed, rows):
    def attend(qkv):
        parts = (x.reshape(2, 300, 4, 64) for x in jnp.split(qkv, 3, axis=-1))
        noise = Noise(jax.random.key(seed), rows)
        return attention(*parts, 0.1, noise, 3).astype("float32").sum()

    return jax.grad(attend)(qkv)


mesh = Mesh(np.array(devices_of(target)), "x")
whole = NamedSharding(mesh, PartitionSpec())
shapes = ((2, 300, 768), "bfloat16"), ((), "int32"), ((2,), "uint32")
arguments = (jax.ShapeDtypeStruct(*shape, sharding=whole) for shape in shapes)
with in_place_of(target):
    lowered = jax.jit(gradients).trace(*arguments).lower(lowering_platforms=("tpu",))
text = lowered.compile().as_text()
print(text.count('custom_call_target="tpu_custom_call"'))
"""


@pytest.mark.slow
def test_kernels_compile_for_a_tpu():
    if not importlib.util.find_spec("libtpu"):
        pytest.skip("libtpu is not installed: pip install -e '.[aot]'")
    process = subprocess.run(
        [sys.executable, "-c", COMPILE],
        env={**os.environ, "PYTHONPATH": str(ROOT), "XLA_FLAGS": ""},
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout.split() == ["2"]
