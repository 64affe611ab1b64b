"""Bytes, products and cycles of kernels, in programs of TPUs, of GPUs and of here."""

import jax
import jax.numpy as jnp
import pytest
from hlo import Program
from kernels import kernels, product_flops

# Two trips: a weight is cut from a stack and multiplied, a part of another array comes
# onto the chip meanwhile, and what is computed from it there leaves the chip.
ON_A_TPU = """
%product (param.1: bf16[8,16], param.2: bf16[2,16,32], param.3: s32[]) -> bf16[8,32] {
  %param.1 = bf16[8,16]{1,0:T(8,128)(2,1)} parameter(0)
  %param.2 = bf16[2,16,32]{2,1,0} parameter(1)
  %param.3 = s32[] parameter(2)
  %flat.1 = bf16[32,32]{1,0} bitcast(%param.2)
  %cut = bf16[16,32]{1,0} dynamic-slice(%flat.1, %param.3), dynamic_slice_sizes={16,32}
  ROOT %convolution.1 = bf16[8,32]{1,0} convolution(%param.1, %cut), \
dim_labels=bf_io->bf, metadata={op_name="jit(step)/dot_general"}
}

%shifted (param.4: f32[4,128]) -> f32[4,128] {
  %param.4 = f32[4,128]{1,0:S(1)} parameter(0)
  ROOT %sine = f32[4,128]{1,0:S(1)} sine(%param.4), metadata={op_name="jit(step)/sin"}
}

%body (state: (s32[], bf16[8,16], bf16[2,16,32], f32[16,128])) -> (s32[]) {
  %state = (s32[], bf16[8,16]{1,0}, bf16[2,16,32]{2,1,0}, f32[16,128]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  %x = bf16[8,16]{1,0} get-tuple-element(%state), index=1
  %stack = bf16[2,16,32]{2,1,0} get-tuple-element(%state), index=2
  %rows = f32[16,128]{1,0} get-tuple-element(%state), index=3
  %fetch = ((f32[16,128]{1,0}), f32[4,128]{1,0:S(1)}, s32[]{:S(2)}) \
slice-start(%rows), slice={[0:4], [0:128]}
  %y = bf16[8,32]{1,0} fusion(%x, %stack, %i), kind=kOutput, calls=%product, \
backend_config={"window_config":{"estimated_cycles":"700"}}
  %fetched = f32[4,128]{1,0:S(1)} slice-done(%fetch)
  %same = f32[4,128]{1,0:S(1)} custom-call(%fetched), \
custom_call_target="ConcatBitcast"
  %shift = f32[4,128]{1,0:S(1)} fusion(%same), kind=kLoop, calls=%shifted, \
backend_config={"window_config":{"estimated_cycles":"90"}}
  %leave = (f32[4,128]{1,0}, f32[4,128]{1,0:S(1)}, u32[]{:S(2)}) copy-start(%shift)
  %left = f32[4,128]{1,0} copy-done(%leave)
  ROOT %next = (s32[], bf16[8,16]{1,0}) tuple(%i, %x)
}

%condition (state.1: (s32[])) -> pred[] {
  %state.1 = (s32[]) parameter(0)
  %limit = s32[] constant(2)
  ROOT %less = pred[] compare(%state.1, %limit), direction=LT
}

ENTRY %main (arg: (s32[])) -> (s32[]) {
  %arg = (s32[]) parameter(0)
  ROOT %loop = (s32[]) while(%arg), condition=%condition, body=%body
}
"""

ON_A_GPU = """
%tiles (param.0: bf16[64,8], param.1: bf16[8,32]) -> bf16[64,32] {
  %param.0 = bf16[64,8]{1,0} parameter(0)
  %param.1 = bf16[8,32]{1,0} parameter(1)
  ROOT %dot = bf16[64,32]{1,0} dot(%param.0, %param.1), lhs_contracting_dims={1}, \
rhs_contracting_dims={0}
}

%written (param.2: f32[100,32], param.3: f32[1,32], param.4: s32[]) -> f32[100,32] {
  %param.2 = f32[100,32]{1,0} parameter(0)
  %param.3 = f32[1,32]{1,0} parameter(1)
  %param.4 = s32[] parameter(2)
  %row = f32[1,32]{1,0} negate(%param.3)
  ROOT %place = f32[100,32]{1,0} dynamic-update-slice(%param.2, %row, %param.4)
}

ENTRY %main (a: bf16[64,8], b: bf16[8,32], c: f32[100,32], d: f32[1,32]) -> bf16[] {
  %a = bf16[64,8]{1,0} parameter(0)
  %b = bf16[8,32]{1,0} parameter(1)
  %c = f32[100,32]{1,0} parameter(2)
  %d = f32[1,32]{1,0} parameter(3)
  %i = s32[] parameter(4)
  %gemm = (f32[64,32]{1,0}, s8[4096]{0}) custom-call(%a, %b), \
custom_call_target="__cublas$gemm", backend_config={"gemm_backend_config":{\
"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],\
"rhs_contracting_dimensions":["0"]}}}
  %triton = bf16[64,32]{1,0} fusion(%a, %b), kind=kCustom, calls=%tiles
  %update = f32[100,32]{1,0} fusion(%c, %d, %i), kind=kLoop, calls=%written
  %partly = bf16[64,32]{1,0} custom-call(%triton), custom_call_target="ours", \
backend_config={serialized_metadata = "{\\22bytes_accessed\\22: \\22227\\22}"}
  ROOT %ours = bf16[64,32]{1,0} custom-call(%triton), custom_call_target="ours", \
backend_config={"cost_estimate":{"flops":"12345","bytes_accessed":"1"}}
}
"""


def found(text):
    return {kernel.name: kernel for kernel in kernels(text)}


def test_kernels_of_a_loop_count_as_often_as_it_runs():
    kernels = found(ON_A_TPU)
    assert {name: k.times for name, k in kernels.items()} == {
        "fetch": 2,
        "y": 2,
        "shift": 2,
        "leave": 2,
    }


def test_a_tpus_kernels_have_the_compilers_cycles():
    cycles = {name: kernel.cycles for name, kernel in found(ON_A_TPU).items()}
    assert cycles == {"y": 700, "shift": 90, "fetch": None, "leave": None}


def test_a_product_that_is_fused_counts_its_multiplications():
    product = found(ON_A_TPU)["y"]
    assert product.flops == 2 * 8 * 16 * 32
    assert [o.name for o in product.operations if o.flops] == ["jit(step)/dot_general"]


def test_a_reduction_counts_what_it_reduces():
    sine = "f32[4,128]{1,0:S(1)} sine(%param.4)"
    total = "f32[] reduce(%param.4), dimensions={0,1}, to_apply=%add"
    sizes = {o.op: o.elements for o in found(ON_A_TPU)["shift"].operations}
    assert sizes["sine"] == 4 * 128
    text = ON_A_TPU.replace(sine, total)
    sizes = {o.op: o.elements for o in found(text)["shift"].operations}
    assert sizes["reduce"] == 4 * 128


def test_of_a_stack_of_weights_only_the_part_that_is_cut_out_is_read():
    index = 4
    assert found(ON_A_TPU)["y"].bytes == 2 * (8 * 16 + 16 * 32 + 8 * 32) + index


def test_arrays_on_the_chip_move_no_bytes_until_they_leave_it():
    kernels = found(ON_A_TPU)
    assert kernels["shift"].bytes == 0
    assert kernels["leave"].bytes == kernels["fetch"].bytes == 4 * 128 * 4
    assert [k.name for k in kernels.values() if k.is_transfer] == ["fetch", "leave"]


def test_a_transfer_is_for_the_kernel_that_it_serves():
    kernels = found(ON_A_TPU)
    for name in ("fetch", "leave"):
        assert kernels[name].operations == kernels["shift"].operations
        assert kernels[name].flops == 0


def test_a_transfer_for_a_product_does_not_multiply():
    sine = "sine(%param.4)"
    product = "dot(%param.4, %param.4), lhs_contracting_dims={1}"
    kernels = found(ON_A_TPU.replace(sine, product))
    assert kernels["shift"].flops > 0 and kernels["fetch"].flops == 0
    assert any(operation.flops for operation in kernels["fetch"].operations)


def test_a_transfer_for_what_is_not_a_kernel_is_for_itself():
    text = ON_A_TPU.replace("fusion(%same), kind=kLoop, calls=%shifted", "tuple(%same)")
    [only] = found(text)["fetch"].operations
    assert only.op == "slice-start"


def test_products_of_a_gpu_are_calls_of_a_library_or_fusions_of_tiles():
    kernels = found(ON_A_GPU)
    for name, width in (("gemm", 4), ("triton", 2)):
        assert kernels[name].flops == 2 * 64 * 8 * 32
        operands = 2 * (64 * 8 + 8 * 32)
        assert kernels[name].bytes == operands + width * 64 * 32, "without its room"


def test_a_kernel_of_ours_has_the_products_that_it_says():
    assert found(ON_A_GPU)["ours"].flops == 12345


def test_a_kernel_of_ours_for_a_gpu_moves_what_it_says():
    """It may leave parts of its arrays alone; others move all."""
    kernels = found(ON_A_GPU)
    assert kernels["partly"].bytes == 227
    assert kernels["ours"].bytes == 2 * 64 * 32 * 2


def test_of_an_array_that_is_updated_in_place_only_the_update_counts():
    row, index = 4 * 32, 4
    assert found(ON_A_GPU)["update"].bytes == row + index + row


HEADS = """
ENTRY %main (left: bf16[16,12,128,512], right: bf16[16,12,512,64]) -> bf16[] {{
  %left = bf16[16,12,128,512]{{3,2,1,0}} parameter(0)
  %right = bf16[16,12,512,64]{{3,2,1,0}} parameter(1)
  ROOT %both = bf16[16,12,128,64]{{3,2,1,0}} convolution(%left, %right), \
window={{{window}}}, dim_labels=01bf_01io->01bf
}}
"""


@pytest.mark.parametrize(
    "window",
    [
        "size=16x12 stride=15x11 lhs_dilate=16x12",
        "size=16x12 stride=16x12 pad=15_15x11_11 lhs_dilate=15x11 rhs_reversal=1x1",
    ],
)
def test_a_tpus_batches_of_products_are_convolutions_over_dilated_windows(window):
    program = Program(HEADS.format(window=window))
    flops = product_flops(program, program.instructions["both"])
    assert flops == 2 * 16 * 12 * 128 * 512 * 64


@pytest.mark.parametrize("strides", [(1, 1), (2, 3)])
@pytest.mark.parametrize("padding", [((0, 0), (0, 0)), ((4, 2), (0, 3))])
@pytest.mark.parametrize("dilations", [((1, 1), (1, 1)), ((1, 2), (2, 1))])
def test_products_are_as_many_as_xla_counts(strides, padding, dilations):
    def convolve(x, kernel):
        return jax.lax.conv_general_dilated(x, kernel, strides, padding, *dilations)

    shapes = jnp.ones((3, 5, 9, 8)), jnp.ones((7, 5, 4, 2))
    compiled = jax.jit(convolve).lower(*shapes).compile()
    flops = sum(kernel.flops for kernel in kernels(compiled.as_text()))
    assert flops == compiled.cost_analysis()["flops"] > 0


def test_a_loop_of_this_machine_moves_its_arrays_in_each_trip():
    def layers(x, weights):
        return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, weights)[0]

    shapes = jnp.ones((8, 64)), jnp.ones((6, 64, 64))
    compiled = jax.jit(layers).lower(*shapes).compile()
    found = list(kernels(compiled.as_text()))
    assert sum(k.times * k.flops for k in found) == 6 * 2 * 8 * 64 * 64
    moved = sum(k.times * k.bytes for k in found)
    weights, x = 4 * 6 * 64 * 64, 4 * 8 * 64
    assert weights + 6 * 2 * x < moved < 4 * weights, "not the whole stack each time"
