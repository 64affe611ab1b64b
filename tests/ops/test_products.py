"""Products: what is rounded and what is not, and how their operands are stored."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from forms import assert_near, kept, take_branches_of, with_gradients

from gpt1_jax.ops.gelu import gelu
from gpt1_jax.ops.products import (
    Transposed,
    compiler_options,
    dense,
    einsum,
    in_order,
    matmul,
    plain_dense,
    plain_matmul,
    product,
    row_major,
    transposed_product,
    wait_to_recompute,
)


@pytest.mark.parametrize("form", [matmul, plain_matmul])
def test_matmul_rounds_its_operands_and_sums_in_float32(form):
    ones = np.ones((1, 257), np.float32)
    one_and_a_bit = np.float32([[1 + 2**-10]])
    for dtype, expected in (("float32", 1 + 2**-10), ("bfloat16", 1.0)):
        assert form(one_and_a_bit, ones[:, :1], jnp.dtype(dtype)) == expected
    summed = form(ones, ones.T, jnp.dtype("bfloat16"))
    assert summed.dtype == jnp.float32
    assert summed.item() == 257.0  # bfloat16 has 256 and 258


def matmul_problem():
    rng = np.random.default_rng(0)
    shapes = (4, 50, 32), (32, 24), (4, 50, 24)
    return (rng.normal(size=shape).astype(np.float32) for shape in shapes)


def test_gradients_of_matmul_round_operands_but_sum_in_float32():
    x, kernel, weight = matmul_problem()
    product = functools.partial(matmul, dtype=jnp.bfloat16)

    def rounded(a):
        return a.astype(jnp.bfloat16).astype(np.float64)

    _, dx, dkernel = with_gradients(product, weight, x, kernel)
    assert dx.dtype == dkernel.dtype == jnp.float32
    expected = np.einsum("bti,bto->io", rounded(x), rounded(weight))
    np.testing.assert_allclose(dkernel, expected, atol=1e-4)  # unrounded sums
    expected = np.einsum("bto,io->bti", rounded(weight), rounded(kernel))
    np.testing.assert_allclose(dx, expected, atol=0.1)
    _, *by_bfloat16 = with_gradients(product, weight, x.astype(jnp.bfloat16), kernel)
    assert [g.dtype for g in by_bfloat16] == [jnp.bfloat16, jnp.float32]
    np.testing.assert_array_equal(by_bfloat16[0].astype(jnp.float32), dx)


@pytest.mark.parametrize(("platform", "waits"), [("cuda", False), ("tpu", True)])
def test_a_gpu_keeps_the_rounded_kernel(platform, waits, monkeypatch):
    """Elsewhere the backward pass rounds it again, once it has the gradient.

    That is rounded before: in float32, it would be stored twice as large.
    """
    take_branches_of(platform, monkeypatch)
    x, kernel, weight = matmul_problem()
    vjp = jax.vjp(lambda x, k: matmul(x, k, jnp.dtype("bfloat16")), x, kernel)[1]
    equations = jax.make_jaxpr(vjp)(weight).eqns
    [barrier] = [e for e in equations if e.primitive.name == "optimization_barrier"]
    [waited] = [v for v in barrier.outvars if v.aval.shape == kernel.shape]
    assert any(waited is read for e in equations for read in e.invars) == waits
    [grad] = [v.aval for v in barrier.invars if v.aval.shape == weight.shape]
    assert grad.dtype == jnp.bfloat16


@pytest.mark.parametrize(
    ("platform", "dtype", "activation"),
    [
        ("cpu", "float32", gelu),
        ("cpu", "bfloat16", gelu),
        ("cpu", "bfloat16", None),
        ("cuda", "float32", jnp.sin),
        ("rocm", "float32", None),
        ("tpu", "float32", jnp.sin),
    ],
)
def test_dense_equals_the_plain_form(platform, dtype, activation, monkeypatch):
    """The value and the gradients by all three arguments: the bias is added once."""
    if platform != "cpu":
        take_branches_of(platform, monkeypatch)
    dtype = jnp.dtype(dtype)
    x, kernel, weight = matmul_problem()
    x, weight = x.astype(dtype), weight.astype(dtype)
    given = x, kernel, np.linspace(0, 1, 24, dtype=np.float32)
    actual, expected = (
        with_gradients(
            lambda *given, form=form: form(*given, dtype, activation), weight, *given
        )
        for form in (dense, plain_dense)
    )
    # Autodiff rounds the kernel's gradient, of up to 27, to bfloat16.
    tolerance = 5e-5 if dtype == jnp.float32 else 2**-3
    assert_near(actual, expected, tolerance, scaled=False)


def test_dense_keeps_one_array_for_its_activation():
    """And its input; autodiff keeps results in between."""
    x, kernel, weight = matmul_problem()
    given = kernel, np.ones(24), jnp.dtype("float32"), gelu
    ours, plain = (
        [leaf.shape for leaf in kept(form, x)].count(weight.shape)
        for form in (lambda x: dense(x, *given), lambda x: plain_dense(x, *given))
    )
    assert ours == 1 < plain


@pytest.mark.parametrize(
    ("platform", "dtype"), [("rocm", "bf16"), ("cpu", "f32"), ("tpu", "f32")]
)
def test_a_gpu_adds_the_bias_in_the_dtype_of_the_product(platform, dtype):
    """Lowered ahead of time, both passes; the sum is kept, and formed once."""
    x, kernel, weight = matmul_problem()
    x, weight = x.astype(jnp.bfloat16), weight.astype(jnp.bfloat16)
    layer = functools.partial(dense, dtype=x.dtype, activation=jnp.sin)
    traced = with_gradients.trace(
        lambda *given: layer(*given), weight, x, kernel, np.ones(24, np.float32)
    )
    text = traced.lower(lowering_platforms=(platform,)).as_text()
    assert re.findall(r"stablehlo\.add .*<4x50x24x(\w+)>", text) == [dtype]


def test_options_are_those_of_a_gpu_whose_compiler_knows_them(monkeypatch):
    assert compiler_options("gpu") == {"xla_gpu_enable_triton_gemm": False}
    assert compiler_options("tpu") == compiler_options("cpu") == {}

    def refuse(lowered, compiler_options):
        raise jax.errors.JaxRuntimeError(f"No such compile option: {compiler_options}")

    monkeypatch.setattr(jax.stages.Lowered, "compile", refuse)
    assert compiler_options("gpu") == {}


def test_dense_sums_the_gradient_that_it_multiplies():
    """One array of the gradient's size is waited for, and it is not float32."""
    x, kernel, weight = matmul_problem()
    x, weight = x.astype(jnp.bfloat16), weight.astype(jnp.bfloat16)
    layer = functools.partial(dense, dtype=x.dtype)
    vjp = jax.vjp(lambda *given: layer(*given), x, kernel, np.ones(24, np.float32))[1]
    equations = jax.make_jaxpr(vjp)(weight).eqns
    [barrier] = [e for e in equations if e.primitive.name == "optimization_barrier"]
    waited = [v for v in barrier.outvars if v.aval.shape == weight.shape]
    assert [v.aval.dtype for v in waited] == [jnp.bfloat16]
    np.testing.assert_allclose(
        vjp(weight)[2], weight.astype(jnp.float32).sum((0, 1)), atol=1e-4
    )


def test_a_transposed_kernel_is_the_same_kernel():
    x, kernel, _ = matmul_problem()
    compiled = jax.jit(matmul, static_argnums=2)
    expected = compiled(x, kernel, jnp.dtype("bfloat16"))
    actual = compiled(x, Transposed(kernel.T), jnp.dtype("bfloat16"))
    np.testing.assert_allclose(actual, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("platform", "dtype"), [("cuda", "bf16"), ("tpu", "bf16"), ("cpu", "f32")]
)
def test_product_writes_what_it_reads_on_accelerators(platform, dtype):
    """Lowered ahead of time, without one; a CPU's writes float32."""
    ones = np.ones((4, 4), jnp.bfloat16)

    traced = jax.jit(lambda x: product("ab,bc->ac", x, x)).trace(ones)
    text = traced.lower(lowering_platforms=(platform,)).as_text()
    assert re.findall(r"dot_general.*x(\w+)>$", text, re.MULTILINE) == [dtype]


@pytest.mark.parametrize("width", [4, 6])  # narrower or wider than the other operand
@pytest.mark.parametrize(("batch", "dtype"), [((), "float32"), ((2, 3), "bfloat16")])
def test_transposed_product_sums_over_the_rows(batch, dtype, width):
    rng = np.random.default_rng(0)
    left = rng.normal(size=(*batch, 7, width)).astype(jnp.dtype(dtype))
    right = rng.normal(size=(*batch, 7, 5)).astype(jnp.dtype(dtype))
    actual = jax.jit(transposed_product)(left, right)
    assert actual.dtype == jnp.float32
    exact = (np.asarray(a, np.float64) for a in (left, right))
    expected = np.einsum("...ni,...no->...io", *exact)
    np.testing.assert_allclose(actual, expected, atol=2e-6)


@pytest.mark.parametrize(
    ("function", "platforms"), [(row_major, {"cpu"}), (in_order, {"cuda", "rocm"})]
)
def test_layouts_are_asked_for_where_they_help(function, platforms):
    asked = set()
    for platform in ("cpu", "cuda", "rocm", "tpu"):
        traced = jax.jit(lambda x: function(x + 1)).trace(np.ones((2, 3), np.float32))
        text = traced.lower(lowering_platforms=(platform,)).as_text()
        asked |= {platform} if "custom_call" in text else set()
    assert asked == platforms


@pytest.mark.parametrize(("platform", "arrays"), [("tpu", 1), ("cpu", 2), ("cuda", 2)])
def test_wait_to_recompute_lets_a_tpu_compute_with_the_product(platform, arrays):
    """Lowered ahead of time: there the gradient is not among what is waited for."""
    residual, grad = np.ones(3, np.float32), np.ones(2, np.float32)
    traced = jax.jit(wait_to_recompute).trace(residual, grad)
    text = traced.lower(lowering_platforms=(platform,)).as_text()
    [waited] = re.findall(r"optimization_barrier .*", text)
    assert waited.count("tensor<") == arrays


def test_einsum_is_the_same_where_a_cpu_lacks_the_product(monkeypatch):
    """Of bfloat16 into float32, before JAX 0.9."""
    left, right = jax.random.normal(jax.random.key(0), (2, 8, 64), jnp.bfloat16)
    expected = einsum("ab,cb->ac", left, right)
    monkeypatch.setattr(jax, "__version_info__", (0, 8, 2))
    program = jax.make_jaxpr(functools.partial(einsum, "ab,cb->ac"))(left, right)
    assert "convert_element_type[new_dtype=float32" in str(program)
    actual = einsum("ab,cb->ac", left, right)
    # 64 terms of about 1, which may be summed in another order.
    np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=64 * 2**-24)
