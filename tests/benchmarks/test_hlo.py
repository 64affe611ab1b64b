"""Optimized programs, of this machine and of TPUs and GPUs."""

import jax
import jax.numpy as jnp
from hlo import Array, Collective, Frame, Program, arrays, collectives

from gpt1_jax.parallel.mesh import batch_sharding, make_mesh, replicated

# A loop of three trips in which a device gathers 16 kB while it multiplies.
ON_A_TPU = """
HloModule jit_step, is_scheduled=true

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

%body (state: (s32[], f32[2,256])) -> (s32[], f32[2,256]) {
  %state = (s32[], f32[2,256]{1,0}) parameter(0)
  %x = f32[2,256]{1,0} get-tuple-element(%state), index=1
  %begun = (f32[2,256]{1,0}, f32[16,256]{1,0}, u32[]) fusion(%x), calls=%started
  %y = f32[2,256]{1,0} fusion(%x, %x), kind=kOutput, calls=%product
  %all = f32[16,256]{1,0} fusion(%x, %begun), kind=kCustom, calls=%done
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
%wrapped (param.0: f32[64]) -> f32[8] {
  %param.0 = f32[64]{0} parameter(0)
  ROOT %scatter = f32[8]{0} reduce-scatter(%param.0), channel_id=2, dimensions={0}
}

%commands (a: f32[8], b: f32[8]) -> f32[64] {
  %a = f32[8]{0} parameter(0)
  %b = f32[8]{0} parameter(1)
  %start = (f32[8]{0}, f32[64]{0}) all-gather-start(%a), channel_id=1
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


WITH_PLACES = """
HloModule jit_step, is_scheduled=true

FileNames
1 "/home/me/train.py"
2 "/home/me/gpt1_jax/ops/gelu.py"

FunctionNames
1 "<module>"
2 "Block.__call__"
3 "gelu"

FileLocations
1 {file_name_id=1 function_name_id=1 line=9 end_line=9 column=0 end_column=9}
2 {file_name_id=1 function_name_id=2 line=7 end_line=7 column=4 end_column=9}
3 {file_name_id=2 function_name_id=3 line=21 end_line=21 column=4 end_column=9}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=2}
3 {file_location_id=3 parent_frame_id=3}
4 {file_location_id=3 parent_frame_id=2}


ENTRY %main (x: f32[8]) -> f32[8] {
  %x = f32[8]{0} parameter(0), metadata={op_name="x"}
  %deep = f32[8]{0} tanh(%x), metadata={op_name="jit(step)/tanh" stack_frame_id=3}
  %flat = f32[8]{0} tanh(%deep), metadata={op_name="jit(step)/tanh" stack_frame_id=4}
  ROOT %old = f32[8]{0} add(%deep, %flat), metadata={op_name="jit(step)/add" \
source_file="/home/me/train.py" source_line=5 source_end_line=5}
}
"""


def test_an_instruction_comes_from_a_line_and_those_that_called_it():
    program = Program(WITH_PLACES)
    gelu = Frame("/home/me/gpt1_jax/ops/gelu.py", "gelu", 21)
    block = Frame("/home/me/train.py", "Block.__call__", 7)
    module = Frame("/home/me/train.py", "<module>", 9)
    frames = {name: program.frames(i) for name, i in program.instructions.items()}
    assert frames["deep"] == [gelu, block, module]
    assert frames["flat"] == [gelu, module]
    assert frames["old"] == [Frame("/home/me/train.py", "", 5)], "before jax 0.9"
    assert frames["x"] == []


def test_lines_of_this_file_are_found_in_what_jax_compiles(with_lines):
    def inner(x):
        return jnp.tanh(x)

    def outer(x):
        return inner(x) + 1

    program = Program(jax.jit(outer).lower(jnp.ones(8)).compile().as_text())
    [tanh] = (i for i in program.instructions.values() if i.op == "tanh")
    lines = [f.line for f in program.frames(tanh) if f.file == __file__]
    first = inner.__code__.co_firstlineno
    # Before 0.9 JAX writes down the innermost call only.
    assert lines[:2] == [first + 1, outer.__code__.co_firstlineno + 1][: len(lines)]
    assert lines


def test_computations_run_as_often_as_their_loop():
    runs = [(found[0].name, times) for found, times in Program(ON_A_TPU).runs()]
    assert runs == [("state", 3), ("arg", 1)]


def test_types_say_how_large_arrays_are_and_where():
    text = "(bf16[16,512]{1,0:T(8,128)(2,1)S(1)}, pred[3]{0}, u32[]{:S(2)}, s4[5])"
    assert arrays(text) == [
        Array("bf16", (16, 512), 16 * 512 * 2, memory=1),
        Array("pred", (3,), 3, memory=0),
        Array("u32", (), 4, memory=2),
        Array("s4", (5,), 5, memory=0),
    ]


STARTS = """
ENTRY %main (x: f32[8]) -> f32[4] {
  %x = f32[8]{0} parameter(0)
  %copy = (f32[8]{0:S(1)}, f32[8]{0}, u32[]{:S(2)}) copy-start(%x)
  %part = ((f32[8]{0}), f32[4]{0:S(1)}, s32[]{:S(2)}) slice-start(%x), slice={[0:4]}
  %sum = f32[8]{0} all-reduce-start(%x), channel_id=1, to_apply=%add
  ROOT %end = f32[4]{0} slice-done(%part)
}
"""


def test_the_results_of_a_start_are_those_of_its_end():
    found = Program(STARTS).instructions
    results = {name: [a.shape for a in found[name].results] for name in found}
    assert results["copy"] == results["sum"] == [(8,)]
    assert results["part"] == results["end"] == [(4,)]
    assert found["copy"].results[0].memory == 1


def test_collectives_of_a_tpu_overlap_where_products_are_fused_into_them():
    assert collectives(ON_A_TPU) == {
        Collective("all-gather", ((16, 256),), 16 * 256 * 4, overlaps=True): 3,
        Collective("reduce-scatter", ((2, 256),), 16 * 256 * 2, overlaps=False): 1,
    }


def test_collectives_of_a_tpu_without_work_until_their_end_do_not_overlap():
    product = "%y = f32[2,256]{1,0} fusion(%x, %x), kind=kOutput, calls=%product"
    assert product in ON_A_TPU
    found = collectives(ON_A_TPU.replace(product, "%y = f32[2,256]{1,0} copy(%x)"))
    assert (
        found[Collective("all-gather", ((16, 256),), 16 * 256 * 4, overlaps=False)] == 3
    )


def test_collectives_of_a_gpu_overlap_with_what_is_between_start_and_done():
    assert collectives(ON_A_GPU) == {
        Collective("reduce-scatter", ((8,),), 64 * 4, overlaps=False): 2,
        Collective("all-reduce", ((64,),), 64 * 4, overlaps=False): 1,
        Collective("all-gather", ((64,),), 64 * 4, overlaps=True): 1,
    }


def test_collectives_of_eight_devices_count_as_often_as_their_loop_runs():
    mesh = make_mesh()
    rows, whole = batch_sharding(mesh), replicated(mesh)

    def step(weights, x):
        def layer(x, weights):  # sums over the split rows of x
            return jnp.tanh(weights @ x)[:32], None

        def layers(x):
            return jax.lax.scan(layer, x, weights)[0]

        return jax.lax.with_sharding_constraint(layers(x), rows)

    shapes = jnp.ones((5, 32, 32)), jnp.ones((32, 16))
    jitted = jax.jit(step, in_shardings=(whole, rows), out_shardings=rows)
    found = collectives(jitted.lower(*shapes).compile().as_text())
    assert sum(found.values()) == 5, found


def test_collectives_add_up_a_gradient_once():
    mesh = make_mesh()
    compiled = jax.jit(
        jax.grad(lambda w, x: jnp.sum(jnp.tanh(x @ w))),
        in_shardings=(replicated(mesh), batch_sharding(mesh)),
        out_shardings=replicated(mesh),
    )
    shapes = jnp.ones((24, 40)), jnp.ones((16, 24))
    text = compiled.lower(*shapes).compile().as_text()
    [found] = collectives(text).elements()
    assert (found.kind, found.bytes) == ("all-reduce", 24 * 40 * 4)
    assert sorted(found.shapes[0]) == [24, 40]
