"""What kernels are for, and sums over those that are for the same."""

import pytest

from benchmarks.compiler.hlo import Array, Frame, Kernel, Operation
from benchmarks.compiler.kinds import kind, largest
from benchmarks.compiler.targets import Chip

CHIP = Chip(10**9, 100, 1000, network_bytes_per_second=10, cycles_per_second=50)


def frames(*places):
    """Calls, the innermost first: "ops/gelu.py:gelu:21", or outside the package."""
    found = []
    for place in places:
        path, function, number = place.split(":")
        file = path if path.startswith("/") else f"/home/me/gpt1_jax/{path}"
        found.append(Frame(file, function, int(number)))
    return found


def operation(op, *places, elements=64, dtype="f32", flops=0.0, name="jit(step)/it"):
    return Operation(op, dtype, elements, flops, frames(*places), name)


def kernel(*operations, op="fusion", times=1, num_bytes=0, cycles=None):
    flops = sum(operation.flops for operation in operations)
    results = [Array("f32", (8, 8), 256, 0)]
    operations = [operation(op), *operations]
    return Kernel("fusion.1", op, results, times, num_bytes, flops, cycles, operations)


def operation_of(*places, **values):
    return operation("multiply", *places, **values)


DENSE = "model/execution.py:Execution.dense:150"
MATMUL = "ops/products.py:_matmul_bwd:55", DENSE
BLOCKED = "ops/products.py:product.<locals>.rounded:73", "ops/attention.py:_blocked:180"
DROPOUT = "ops/dropout.py:plain_dropout:68", "ops/dropout.py:dropout:61"
RESIDUAL = "model/execution.py:Execution.add_and_norm:170"


@pytest.mark.parametrize(
    "expected, places",
    [
        ("dense rest", MATMUL),
        ("attention rest", BLOCKED),
        ("residual dropout", [*DROPOUT, RESIDUAL]),
        ("embedding", [*DROPOUT, "model/transformer.py:embed:60"]),
        ("optimizer", ["/site-packages/optax/u.py:f:1", "training/optimizer.py:g:2"]),
        ("copies and other", ["/home/me/benchmarks/compiled.py:main:200"]),
    ],
)
def test_a_kernel_is_for_what_its_line_is_for(expected, places):
    assert kind(kernel(operation_of(*places))) == expected


def test_a_kernel_is_for_its_largest_product():
    small = operation("dot", *MATMUL, flops=10.0)
    large = operation("convolution", *BLOCKED, flops=20.0)
    rest = operation_of("ops/losses.py:_softmax:145", elements=10**6)
    assert kind(kernel(small, large, rest)) == "attention products"
    assert kind(kernel(operation("dot", flops=1.0))) == "other products"
    assert kind(kernel(operation("all-reduce", *MATMUL))) == "collectives"


def test_without_a_product_a_kernel_is_for_most_of_what_it_computes():
    norm = operation_of("ops/layer_norm.py:_layer_norm_fwd:35", elements=30)
    gelu = [operation_of("ops/gelu.py:_gelu:15", elements=n) for n in (20, 20)]
    copy = operation("transpose", "ops/attention.py:_blocked_fwd:175", elements=99)
    argument = operation("parameter", *MATMUL, elements=10**6)
    assert kind(kernel(norm, *gelu, copy, argument)) == "GELU", "it also moves"
    assert kind(kernel(copy, argument)) == "attention rest", "it only moves"
    joined = operation("maximum", *BLOCKED, elements=99, name="attn/concatenate")
    assert kind(kernel(norm, joined)) == "LayerNorm"


PRODUCT = kernel(
    operation("dot", *BLOCKED, flops=500.0, name="jit(step)/attn/dot_general"),
    times=3,
    num_bytes=100,
    cycles=25,
)
GELU = kernel(operation_of("ops/gelu.py:_gelu:15"), num_bytes=700, cycles=10)
FETCHED = kernel(*GELU.operations[1:], op="copy-start", num_bytes=200)


def test_the_kernels_that_take_most_time_come_first_equal_ones_as_one():
    found = largest([GELU, PRODUCT, FETCHED, PRODUCT], CHIP)
    assert [(e["kind"], e["op"], e["kernels"]) for e in found] == [
        ("GELU", "fusion", 1),
        ("attention products", "fusion", 6),
        ("GELU", "copy-start", 0),
    ]
    assert found[1]["bytes"] == 600 and found[1]["estimated_seconds"] == 3.0
    assert found[1]["line"] == "ops/attention.py:180"
    assert found[1]["operation"] == "jit(step)/attn/dot_general"
    assert found[1]["result"] == "f32[8,8]"
    assert largest([PRODUCT, GELU], None)[0]["kind"] == "GELU", "by bytes"
