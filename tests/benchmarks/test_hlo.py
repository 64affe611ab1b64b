"""Collectives in optimized programs, of this machine and of TPUs and GPUs."""

import jax
import jax.numpy as jnp
from hlo import Collective, collectives

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
