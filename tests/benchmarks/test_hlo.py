"""Optimized programs, of this machine and of TPUs and GPUs."""

import jax
import jax.numpy as jnp
import pytest

from benchmarks.compiler.hlo import Collective, collectives, kernels

# A loop of three trips in which a device gathers 16 kB while it adds. A weight is cut
# from a stack and multiplied, a part of another array comes onto the chip meanwhile,
# and what is computed from it there leaves the chip.
ON_A_TPU = """
HloModule jit_step, is_scheduled=true, num_partitions=8

%started (param.1: f32[2,256]) -> (f32[2,256], f32[16,256], u32[]) {
  %param.1 = f32[2,256]{1,0:T(8,128)S(1)} parameter(0)
  %gather.1 = f32[16,256]{1,0:T(8,128)} all-gather(%param.1), channel_id=8
  ROOT %start = (f32[2,256]{1,0:T(8,128)}, f32[16,256]{1,0}, u32[]{:S(2)}) \
custom-call(%gather.1), custom_call_target="AsyncCollectiveStart"
}

%product (param.2: f32[2,256], param.3: f32[2,256]) -> f32[2,256] {
  %param.2 = f32[2,256]{1,0} parameter(0)
  %param.3 = f32[2,256]{1,0} parameter(1)
  %gather.2 = f32[16,256]{1,0:T(8,128)} all-gather(%param.2), channel_id=8
  ROOT %sum = f32[2,256]{1,0} add(%param.2, %param.3)
}

%done (param.4: f32[2,256], param.5: u32[]) -> f32[16,256] {
  %param.4 = f32[2,256]{1,0} parameter(0)
  %param.5 = u32[] parameter(1)
  %gather.3 = f32[16,256]{1,0:T(8,128)} all-gather(%param.4), channel_id=8
  ROOT %end = f32[16,256]{1,0} custom-call(%param.4, %gather.3, %param.5), \
custom_call_target="AsyncCollectiveDone"
}

%dense (param.7: bf16[8,16], param.8: bf16[2,16,32], param.9: s32[]) -> bf16[8,32] {
  %param.7 = bf16[8,16]{1,0:T(8,128)(2,1)} parameter(0)
  %param.8 = bf16[2,16,32]{2,1,0} parameter(1)
  %param.9 = s32[] parameter(2)
  %flat.1 = bf16[32,32]{1,0} bitcast(%param.8)
  %cut = bf16[16,32]{1,0} dynamic-slice(%flat.1, %param.9), dynamic_slice_sizes={16,32}
  ROOT %convolution.1 = bf16[8,32]{1,0} convolution(%param.7, %cut), \
dim_labels=bf_io->bf, metadata={op_name="jit(step)/dot_general"}
}

%shifted (param.10: f32[4,128]) -> f32[4,128] {
  %param.10 = f32[4,128]{1,0:S(1)} parameter(0)
  ROOT %square = f32[4,128]{1,0:S(1)} dot(%param.10, %param.10), \
lhs_contracting_dims={1}
}

%body (state: (s32[], f32[2,256])) -> (s32[], f32[2,256]) {
  %state = (s32[], f32[2,256]{1,0}, bf16[8,16]{1,0}, bf16[2,16,32]{2,1,0}, \
f32[16,128]{1,0}) parameter(0)
  %x = f32[2,256]{1,0} get-tuple-element(%state), index=1
  %begun = (f32[2,256]{1,0}, f32[16,256]{1,0}, u32[]) fusion(%x), calls=%started
  %y = f32[2,256]{1,0} fusion(%x, %x), kind=kOutput, calls=%product
  %all = f32[16,256]{1,0} fusion(%x, %begun), kind=kCustom, calls=%done
  %i = s32[] get-tuple-element(%state), index=0
  %input = bf16[8,16]{1,0} get-tuple-element(%state), index=2
  %stack = bf16[2,16,32]{2,1,0} get-tuple-element(%state), index=3
  %rows = f32[16,128]{1,0} get-tuple-element(%state), index=4
  %fetch = ((f32[16,128]{1,0}), f32[4,128]{1,0:S(1)}, s32[]{:S(2)}) \
slice-start(%rows), slice={[0:4], [0:128]}
  %multiplied = bf16[8,32]{1,0} fusion(%input, %stack, %i), kind=kOutput, \
calls=%dense, backend_config={"window_config":{"estimated_cycles":"700"}}
  %fetched = f32[4,128]{1,0:S(1)} slice-done(%fetch)
  %same = f32[4,128]{1,0:S(1)} custom-call(%fetched), \
custom_call_target="ConcatBitcast"
  %shift = f32[4,128]{1,0:S(1)} fusion(%same), kind=kLoop, calls=%shifted, \
backend_config={"window_config":{"estimated_cycles":"90"}}
  %leave = (f32[4,128]{1,0}, f32[4,128]{1,0:S(1)}, u32[]{:S(2)}) copy-start(%shift)
  %left = f32[4,128]{1,0} copy-done(%leave)
  ROOT %next = (s32[], f32[2,256]{1,0}) tuple(%state, %y)
}

%condition (state.1: (s32[], f32[2,256])) -> pred[] {
  %state.1 = (s32[], f32[2,256]{1,0}) parameter(0)
  %limit = s32[]{:T(128)} constant(3)
  ROOT %less = pred[] compare(%state.1, %limit), direction=LT
}

%all-reduce-scatter (param.6: bf16[16,256]) -> bf16[2,256] {
  %param.6 = bf16[16,256]{1,0} parameter(0)
  %reduced = bf16[16,256]{1,0} all-reduce(%param.6), channel_id=9, to_apply=%add
  ROOT %part = bf16[2,256]{1,0} dynamic-slice(%reduced), dynamic_slice_sizes={2,256}
}

ENTRY %main (arg: (s32[], f32[2,256]), grad: bf16[16,256]) -> bf16[2,256] {
  %arg = (s32[], f32[2,256]{1,0}) parameter(0)
  %grad = bf16[16,256]{1,0:T(8,128)(2,1)} parameter(1)
  %loop = (s32[], f32[2,256]{1,0}) while(%arg), condition=%condition, body=%body
  ROOT %scattered = bf16[2,256]{1,0} fusion(%grad), calls=%all-reduce-scatter
}
"""

ON_A_GPU = """
HloModule jit_step, is_scheduled=true, replica_count=1, num_partitions=8

%wrapped (param.0: f32[64]) -> f32[8] {
  %param.0 = f32[64]{0} parameter(0)
  ROOT %scatter = f32[8]{0} reduce-scatter(%param.0), channel_id=2, dimensions={0}
}

%commands (a: f32[8], b: f32[8]) -> f32[64] {
  %a = f32[8]{0} parameter(0)
  %b = f32[8]{0} parameter(1)
  %start = (f32[8]{0}, f32[64]{0}) all-gather-start(%a), replica_groups={{0,1},{2,3}}
  %gemm = f32[8]{0} custom-call(%b), custom_call_target="__cublas$gemm"
  ROOT %done = f32[64]{0} all-gather-done(%start)
}

ENTRY %main (x: f32[8], y: f32[8], z: f32[64]) -> f32[64] {
  %first = (f32[64]{0}, f32[8]{0}) reduce-scatter-start(%z), channel_id=3
  %last = f32[8]{0} reduce-scatter-done(%first)
  %sum = f32[64]{0} all-reduce-start(%z), channel_id=4, to_apply=%add
  %total = f32[64]{0} all-reduce-done(%sum)
  %x = f32[8]{0} parameter(0)
  %y = f32[8]{0} parameter(1)
  %z = f32[64]{0} parameter(2)
  %begin = ((f32[64]{0}), f32[8]{0}) async-start(%z), calls=%wrapped
  %copied = f32[64]{0} copy(%z)
  %end = f32[8]{0} async-done(%begin)
  ROOT %called = f32[64]{0} call(%x, %y), to_apply=%commands
}
"""


def test_collectives_of_a_tpu_may_go_on_in_the_products_fused_into_them():
    assert collectives(ON_A_TPU) == {
        Collective("all-gather", ((16, 256),), 16 * 256 * 4, 8): 3,
        Collective("reduce-scatter", ((2, 256),), 16 * 256 * 2, 8): 1,
    }


def test_collectives_of_a_gpu_have_starts_and_ends():
    assert collectives(ON_A_GPU) == {
        Collective("reduce-scatter", ((8,),), 64 * 4, 8): 2,
        Collective("all-reduce", ((64,),), 64 * 4, 8): 1,
        Collective("all-gather", ((64,),), 64 * 4, 2): 1,
    }


def test_what_a_device_sends_depends_on_kind_and_group():
    kinds = ("all-reduce", "collective-permute", "reduce-scatter")
    sent = [Collective(kind, ((),), 800, group=8).sent for kind in kinds]
    assert sent == [1400, 800, 700]
    for groups in ("{{0,2},{1,3}}", "[4,2]<=[8]"):
        line = f"  %x = f32[8]{{0}} all-reduce(%y), replica_groups={groups}"
        [found] = collectives(f"ENTRY %main (y: f32[8]) -> f32[8] {{\n{line}\n}}")
        assert found.group == 2


KERNELS_ON_A_GPU = """
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


def by_name(text):
    return {kernel.name: kernel for kernel in kernels(text)}


def test_kernels_of_a_tpu_have_their_work():
    """As often as their loop runs, with the compiler's cycles.

    Of a stack of weights only the part that is cut out is read. Arrays on the chip move
    no bytes until they leave it, by transfers that serve a kernel and multiply nothing.
    """
    found = by_name(ON_A_TPU)
    product = 2 * 8 * 16 * 32
    read = 2 * (8 * 16 + 16 * 32 + 8 * 32) + 4  # and an index
    expected = {
        "fetch": (3, None, 0, 4 * 128 * 4, True),
        "multiplied": (3, 700, product, read, False),
        "shift": (3, 90, 2 * 4 * 128 * 128, 0, False),
        "leave": (3, None, 0, 4 * 128 * 4, True),
    }
    for name, numbers in expected.items():
        k = found[name]
        assert (k.times, k.cycles, k.flops, k.bytes, k.is_transfer) == numbers, name
    multiplied = [o.name for o in found["multiplied"].operations if o.flops]
    assert multiplied == ["jit(step)/dot_general"]
    served = found["shift"].operations
    assert found["fetch"].operations == found["leave"].operations == served


def test_kernels_of_a_gpu_have_their_work():
    """Products are a library's or fusions of tiles; ours say what they do.

    A kernel of ours may leave parts of its arrays alone; others move all. Of an array
    that is updated in place only the update counts.
    """
    operands, result, row = 2 * (64 * 8 + 8 * 32), 64 * 32, 4 * 32
    found = by_name(KERNELS_ON_A_GPU).items()
    assert {name: (k.flops, k.bytes) for name, k in found} == {
        "gemm": (2 * 64 * 8 * 32, operands + 4 * result),  # without its room
        "triton": (2 * 64 * 8 * 32, operands + 2 * result),
        "update": (0, row + 4 + row),  # and an index
        "partly": (0, 227),
        "ours": (12345, 2 * result * 2),
    }


@pytest.mark.parametrize(
    ("strides", "padding", "dilations"),
    [
        ((2, 3), ((4, 2), (0, 3)), ((1, 1), (1, 1))),
        ((1, 1), ((4, 2), (0, 3)), ((1, 2), (2, 1))),
    ],
)
def test_products_are_as_many_as_xla_counts(strides, padding, dilations):
    def convolve(x, kernel):
        return jax.lax.conv_general_dilated(x, kernel, strides, padding, *dilations)

    shapes = jnp.ones((3, 5, 9, 8)), jnp.ones((7, 5, 4, 2))
    compiled = jax.jit(convolve).lower(*shapes).compile()
    flops = sum(kernel.flops for kernel in kernels(compiled.as_text()))
    assert flops == compiled.cost_analysis()["flops"] > 0
