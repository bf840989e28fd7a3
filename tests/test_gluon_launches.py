"""Launches of Gluon kernels on the CPU, as users write them."""

import functools

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import triton
from hypothesis import given, settings
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.amd import cdna3
from triton.experimental.gluon.language.nvidia.ampere import mma_v2
from triton.experimental.gluon.language.nvidia.blackwell import (
    TensorMemoryLayout,
    allocate_tensor_memory,
    tcgen05_commit,
    tcgen05_mma,
)
from triton.experimental.gluon.language.nvidia.blackwell import mbarrier as blackwell_mbarrier
from triton.experimental.gluon.language.nvidia.hopper import tma

import jtprim as jt
from jtprim.errors import UnsupportedError
from tests.gpu import hopper_kernels as hopper

RNG = np.random.default_rng(0)
BLOCKS = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 64}


def draw(*shape, dtype=jnp.float32):
    return jnp.asarray(RNG.normal(size=shape)).astype(dtype)


def assert_close(found, exact, tolerance=2e-3):
    exact = np.asarray(exact, np.float64)
    error = np.max(np.abs(np.asarray(found).astype(np.float64) - exact)) / np.max(np.abs(exact))
    assert error <= tolerance, error


def exact_product(a, b):
    return np.asarray(a).astype(np.float64) @ np.asarray(b).astype(np.float64)


# --- The kernels of the Hopper tests -----------------------------------------------------------


def with_pointers(kernel, a, b, **parameters):
    (m, k), n = a.shape, b.shape[1]
    programs = triton.cdiv(m, 64) * triton.cdiv(n, 64)
    out = jax.ShapeDtypeStruct((m, n), a.dtype)
    return jt.kernel(kernel)[programs](
        a, b, m, n, k, out_shape={"c_ptr": out}, GROUP=8, STAGES=3, num_warps=4, **BLOCKS, **parameters
    )


def gluon_descriptor(array, *block, **options):
    layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16)
    return jt.TensorDescriptor.from_array(array, block, layout=layout, **options)


def with_descriptors(a, b):
    out = jax.ShapeDtypeStruct((a.shape[0], b.shape[1]), a.dtype)
    programs = triton.cdiv(out.shape[0], 64) * triton.cdiv(out.shape[1], 64)
    return jt.kernel(hopper.wgmma_matmul)[programs](
        *(gluon_descriptor(x, 64, 64) for x in (a, b, out)), GROUP=8, STAGES=3, num_warps=4
    )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("size", [(128, 64, 192), (64, 128, 64)])
def test_products_of_what_asynchronous_copies_brought(size, dtype):
    m, n, k = size
    a, b = draw(m, k, dtype=dtype), draw(k, n, dtype=dtype)
    found = jax.jit(functools.partial(with_pointers, hopper.wgmma_matmul_without_tma))(a, b)
    assert_close(found, exact_product(a, b), 1e-2)


@pytest.mark.parametrize("size", [(128, 64, 192), (72, 136, 200)])
def test_products_of_what_descriptors_brought_from_matrices_of_any_size(size):
    m, n, k = size
    a, b = draw(m, k, dtype="float16"), draw(k, n, dtype="float16")
    assert_close(jax.jit(with_descriptors)(a, b), exact_product(a, b))
    own = functools.partial(with_pointers, hopper.wgmma_matmul_with_own_descriptors)
    assert_close(own(a, b), exact_product(a, b))


def test_gradients_go_through_shared_memory():
    a, b = draw(64, 64, dtype="float16"), draw(64, 64, dtype="float16")
    loss = lambda a, b: jnp.sum(with_descriptors(a, b).astype(jnp.float32))
    found = jax.grad(loss)(a, b)
    assert_close(found, np.ones((64, 64)) @ np.asarray(b).astype(np.float64).T, 1e-2)


@pytest.mark.parametrize("shape", [(32, 32), (64, 16)])
def test_threads_meet_at_a_barrier(shape):
    x = draw(*shape)
    out = jax.ShapeDtypeStruct(shape[::-1], x.dtype)
    found = jt.kernel(hopper.transpose_with_mbarrier)[1](
        x, ROWS=shape[0], COLUMNS=shape[1], out_shape={"out_ptr": out}
    )
    np.testing.assert_array_equal(found, x.T)


@pytest.mark.parametrize("programs", [1, 3])
def test_warps_that_load_run_beside_those_that_multiply(programs):
    a, b = draw(200, 136, dtype="float16"), draw(136, 72, dtype="float16")
    out = jax.ShapeDtypeStruct((200, 72), a.dtype)
    found = jt.kernel(hopper.warp_specialized_matmul)[programs](
        *(gluon_descriptor(x, 64, 64) for x in (a, b, out)), GROUP=8, STAGES=3, num_warps=4
    )
    assert_close(found, exact_product(a, b))


# --- Views of shared memory ----------------------------------------------------------------------


@gluon.jit
def views(x_ptr, whole_ptr, part_ptr, which, PART: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1, 1], [4, 8], [4, 1], [1, 0])
    shared: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    rows = gl.arange(0, 32, gl.SliceLayout(1, layout))[:, None]
    columns = gl.arange(0, 16, gl.SliceLayout(0, layout))[None, :]
    pid = gl.program_id(0)
    memory = gl.allocate_shared_memory(gl.float32, [4, 32, 16], shared)
    for i in range(4):
        memory.index(i).store(gl.load(x_ptr + ((pid * 4 + i) * 32 + rows) * 16 + columns))
    chosen = memory.index((which + pid) % 4)
    if PART == "slice":
        chosen.slice(16, 16).store(gl.zeros([16, 16], gl.float32, layout))
    if PART == "permuted":
        other: gl.constexpr = gl.BlockedLayout([1, 1], [8, 4], [1, 4], [0, 1])
        chosen.permute([1, 0]).slice(0, 8).store(gl.zeros([8, 32], gl.float32, other))
    if PART == "reshaped":
        chosen.reshape([8, 64]).slice(2, 1).store(gl.full([1, 64], 7.0, gl.float32, layout))
    gl.store(part_ptr + (pid * 32 + rows) * 16 + columns, chosen.load(layout))
    for i in range(4):
        gl.store(whole_ptr + ((pid * 4 + i) * 32 + rows) * 16 + columns, memory.index(i).load(layout))


@pytest.mark.parametrize("part", ["none", "slice", "permuted", "reshaped"])
@settings(max_examples=5)
@given(which=st.integers(0, 3), programs=st.integers(1, 3))
def test_what_is_written_through_views_is_in_the_memory_that_they_view(part, which, programs):
    x = draw(programs, 4, 32, 16)
    whole, found = jt.kernel(views)[programs](
        x,
        which=which,
        PART=part,
        out_shape={"whole_ptr": x, "part_ptr": jax.ShapeDtypeStruct((programs, 32, 16), x.dtype)},
    )
    expected = np.array(x)
    for program in range(programs):
        chosen = expected[program, (which + program) % 4]
        if part == "slice":
            chosen[16:] = 0
        elif part == "permuted":
            chosen.T[:8] = 0
        elif part == "reshaped":
            chosen.reshape(8, 64)[2] = 7
        np.testing.assert_array_equal(found[program], chosen)
    np.testing.assert_array_equal(whole, expected)


_reinterpret = next(
    getattr(gl.shared_memory_descriptor, name)
    for name in ("reinterpret", "_reinterpret")
    if hasattr(gl.shared_memory_descriptor, name)
)


@gluon.jit
def reinterpreted(x_ptr, out_ptr):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    shared: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    lanes = gl.arange(0, 128, layout)
    memory = gl.allocate_shared_memory(gl.float32, [128], shared)
    memory.store(gl.load(x_ptr + lanes))
    halves = gl.arange(0, 256, layout)
    gl.store(out_ptr + halves, _reinterpret(memory, gl.int16, [256], shared).load(layout))


def test_memory_may_be_taken_for_another_type():
    x = draw(128)
    found = jt.kernel(reinterpreted)[1](x, out_shape={"out_ptr": jax.ShapeDtypeStruct((256,), jnp.int16)})
    np.testing.assert_array_equal(found, np.asarray(x).view(np.int16))


@gluon.jit
def sums_of_slices(x_ptr, out_ptr, ROWS: gl.constexpr, COLUMNS: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0])
    rows = gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    columns = gl.arange(0, COLUMNS, gl.SliceLayout(0, layout))
    x = gl.load(x_ptr + rows[:, None] * COLUMNS + columns[None, :])
    shifted = gl.convert_layout(gl.max(x, 1), gl.SliceLayout(1, layout))
    total = gl.sum(gl.exp(x - shifted[:, None]), 1)
    gl.store(out_ptr + rows, gl.convert_layout(total, gl.SliceLayout(1, layout)))


def test_layouts_do_not_change_values():
    x = draw(32, 64)
    found = jt.kernel(sums_of_slices)[1](
        x, ROWS=32, COLUMNS=64, out_shape={"out_ptr": jax.ShapeDtypeStruct((32,), x.dtype)}
    )
    x = np.asarray(x)
    np.testing.assert_allclose(found, np.exp(x - x.max(1, keepdims=True)).sum(1), rtol=1e-5)


def test_outputs_are_discovered():
    x = draw(32, 64)
    found = jt.kernel(sums_of_slices)[1](x, jnp.zeros(32), ROWS=32, COLUMNS=64)
    assert found.shape == (32,)


# --- TMA -----------------------------------------------------------------------------------------

_load = getattr(tma, "async_load", tma.async_copy_global_to_shared)
_store = getattr(tma, "async_store", tma.async_copy_shared_to_global)


@gluon.jit
def copies_a_block(x_desc, out_desc, row, column):
    bar = gl.allocate_shared_memory(gl.int64, [1], blackwell_mbarrier.MBarrierLayout())
    blackwell_mbarrier.init(bar, count=1)
    tile = gl.allocate_shared_memory(x_desc.dtype, x_desc.block_shape, x_desc.layout)
    blackwell_mbarrier.expect(bar, x_desc.block_type.nbytes)
    _load(x_desc, [row, column], bar, tile)
    blackwell_mbarrier.wait(bar, 0)
    _store(out_desc, [0, 0], tile)
    tma.store_wait(0)


@given(st.integers(-40, 60), st.integers(-40, 60), st.sampled_from(["zero", "nan"]))
def test_what_is_outside_a_descriptor_is_padding(row, column, padding):
    x = draw(50, 48)
    layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=32)
    found = jt.kernel(copies_a_block)[1](
        jt.TensorDescriptor.from_array(x, [32, 32], layout=layout, padding=padding),
        jt.TensorDescriptor.from_array(jax.ShapeDtypeStruct((32, 32), x.dtype), [32, 32], layout=layout),
        row,
        column,
    )
    padded = np.full((200, 200), np.nan if padding == "nan" else 0, np.float32)
    padded[60:110, 60:108] = x
    np.testing.assert_array_equal(found, padded[60 + row : 92 + row, 60 + column : 92 + column])


# --- Products of other GPUs --------------------------------------------------------------------


@gluon.jit
def ampere_product(a_ptr, b_ptr, c_ptr, SIZE: gl.constexpr):
    result: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [4, 1], [16, 8])
    left: gl.constexpr = gl.DotOperandLayout(0, result, 2)
    right: gl.constexpr = gl.DotOperandLayout(1, result, 2)
    copied: gl.constexpr = gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0])
    rows = gl.arange(0, SIZE, gl.SliceLayout(1, copied))[:, None]
    columns = gl.arange(0, SIZE, gl.SliceLayout(0, copied))[None, :]
    a = gl.convert_layout(gl.load(a_ptr + rows * SIZE + columns), left)
    b = gl.convert_layout(gl.load(b_ptr + rows * SIZE + columns), right)
    acc = mma_v2(a, b, gl.zeros([SIZE, SIZE], gl.float32, result))
    gl.store(c_ptr + rows * SIZE + columns, gl.convert_layout(acc, copied))


@gluon.jit
def blackwell_product(a_ptr, b_ptr, c_ptr, SIZE: gl.constexpr):
    copied: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    shared: gl.constexpr = gl.NVMMASharedLayout.get_default_for([SIZE, SIZE], gl.float16)
    tensor: gl.constexpr = TensorMemoryLayout([SIZE, SIZE], col_stride=1)
    rows = gl.arange(0, SIZE, gl.SliceLayout(1, copied))[:, None]
    columns = gl.arange(0, SIZE, gl.SliceLayout(0, copied))[None, :]
    a = gl.allocate_shared_memory(gl.float16, [SIZE, SIZE], shared, gl.load(a_ptr + rows * SIZE + columns))
    b = gl.allocate_shared_memory(gl.float16, [SIZE, SIZE], shared, gl.load(b_ptr + rows * SIZE + columns))
    acc = allocate_tensor_memory(gl.float32, [SIZE, SIZE], tensor)
    bar = gl.allocate_shared_memory(gl.int64, [1], blackwell_mbarrier.MBarrierLayout())
    blackwell_mbarrier.init(bar, count=1)
    for i in range(2):
        tcgen05_mma(a, b, acc, use_acc=i > 0)
    tcgen05_commit(bar)
    blackwell_mbarrier.wait(bar, 0)
    out = acc.load(gl.BlockedLayout([1, SIZE], [32, 1], [4, 1], [0, 1]))
    gl.store(c_ptr + rows * SIZE + columns, gl.convert_layout(out, copied))


@pytest.mark.parametrize("kernel, times", [(ampere_product, 1), (blackwell_product, 2)])
def test_tensor_cores_of_other_generations_multiply(kernel, times):
    size = 128
    a, b = (draw(size, size, dtype="float16") for _ in "ab")
    out = jax.ShapeDtypeStruct((size, size), jnp.float32)
    found = jt.kernel(kernel)[1](a, b, SIZE=size, out_shape={"c_ptr": out}, num_warps=4)
    assert_close(found, times * exact_product(a, b), 1e-5)


@gluon.jit
def through_buffers(x_ptr, out_ptr, total_ptr, n, BLOCK: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [64], [4], [0])
    offsets = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout)
    mask = offsets < n
    x = cdna3.buffer_load(x_ptr, offsets, mask=mask, other=-1.0)
    cdna3.buffer_store(x * 2, out_ptr, offsets, mask=offsets < n + 1)
    cdna3.buffer_atomic_add(total_ptr, offsets % 4, x, mask=mask)


def test_amds_buffer_operations():
    x = draw(300)
    out, total = jt.kernel(through_buffers)[2](
        x, jnp.zeros(300), n=250, BLOCK=256, total_ptr=jnp.zeros(4),
        input_output_aliases=["out_ptr", "total_ptr"], target="hip:gfx942",
    )  # fmt: skip
    np.testing.assert_array_equal(out, np.concatenate([2 * x[:250], [-2], np.zeros(49)]))
    np.testing.assert_allclose(total, [np.asarray(x)[i:250:4].sum() for i in range(4)], rtol=1e-4, atol=1e-5)


# --- Batches -------------------------------------------------------------------------------------


def launches(f, *args):
    return [eqn for eqn in jax.make_jaxpr(f)(*args).eqns if eqn.primitive is jt.triton_kernel_p]


def multiplied_without_tma(a, b):
    return with_pointers(hopper.wgmma_matmul_without_tma, a, b)


def multiplied_by_own_descriptors(a, b):
    return with_pointers(hopper.wgmma_matmul_with_own_descriptors, a, b)


def multiplied_by_partitions(a, b):
    """Of warps that ask for the number of programs."""
    (m, k), n = a.shape, b.shape[1]
    return jt.kernel(hopper.warp_specialized_matmul_with_own_descriptors)[3](
        a, b, m, n, k, out_shape={"c_ptr": jax.ShapeDtypeStruct((m, n), a.dtype)},
        GROUP=8, STAGES=3, num_warps=4, **BLOCKS,
    )  # fmt: skip


@pytest.mark.parametrize(
    "multiply", [multiplied_without_tma, multiplied_by_own_descriptors, multiplied_by_partitions]
)
def test_a_batch_of_gluon_launches_is_one_launch(multiply):
    a, b = draw(3, 128, 64, dtype="float16"), draw(64, 128, dtype="float16")
    batched = jax.vmap(multiply, (0, None))
    assert len(launches(batched, a, b)) == 1
    for one, found in zip(a, jax.jit(batched)(a, b), strict=True):
        assert_close(found, exact_product(one, b), 1e-2)
    [kernel] = jt.inspect(batched, a, b, platform="cuda:90").kernels
    assert kernel.grid[1:] == (1, 3)


@gluon.jit
def places_in_the_grid(x_ptr, out_ptr):
    place = (gl.program_id(0) * gl.num_programs(1) + gl.program_id(1)) * gl.num_programs(2) + gl.program_id(2)
    gl.store(out_ptr + place, gl.load(x_ptr + place) + 100.0 * gl.num_programs(2))


@pytest.mark.parametrize("platform", ["cuda:90", "hip:gfx942"])
def test_a_batch_of_gluon_launches_may_share_an_axis(platform):
    x = draw(5, 24)
    batched = jax.vmap(lambda x: jt.kernel(places_in_the_grid)[2, 3, 4](x, out_shape={"out_ptr": x}))
    assert len(launches(batched, x)) == 1
    np.testing.assert_array_equal(batched(x), x + 400)
    [kernel] = jt.inspect(batched, x, platform=platform).kernels
    assert kernel.grid == (2, 3, 20)


def test_a_batch_of_launches_on_amds_buffers_is_one_launch():
    x = draw(3, 300)

    def launch(x):
        return jt.kernel(through_buffers)[2](
            x, jnp.zeros(300), n=250, BLOCK=256, total_ptr=jnp.zeros(4),
            input_output_aliases=["out_ptr", "total_ptr"], target="hip:gfx942",
        )  # fmt: skip

    assert len(launches(jax.vmap(launch), x)) == 1
    outs, totals = jax.vmap(launch)(x)
    for one, out, total in zip(x, outs, totals, strict=True):
        np.testing.assert_array_equal(out, launch(one)[0])
        np.testing.assert_allclose(total, launch(one)[1], rtol=1e-4, atol=1e-5)
    [kernel] = jt.inspect(jax.vmap(launch), x, platform="hip:gfx942").kernels
    assert kernel.grid == (2, 1, 3)


@gluon.jit
def where_in_the_grid_by_assembly(out_ptr):
    place = gl.inline_asm_elementwise("mov.u32 $0, %ctaid.z;", "=r", [], dtype=gl.int32, is_pure=True, pack=1)
    gl.store(out_ptr, place)


def test_assembly_that_asks_for_the_batchs_axis_is_refused():
    x = jnp.zeros((2, 1), jnp.int32)
    batched = jax.vmap(
        lambda x: jt.kernel(where_in_the_grid_by_assembly)[1](x, input_output_aliases="out_ptr")
    )
    with pytest.raises(UnsupportedError, match=r"where_in_the_grid_by_assembly: asks by inline assembly"):
        jt.inspect(batched, x, platform="cuda:90")


def test_places_that_cluster_launch_control_tells_are_refused_in_a_batch():
    clc = pytest.importorskip("triton.experimental.gluon.language.nvidia.blackwell.clc")

    @gluon.jit
    def steal(out_ptr):
        layout: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
        answer = gl.allocate_shared_memory(gl.int64, [2], layout)
        arrived = gl.allocate_shared_memory(gl.int64, [1], blackwell_mbarrier.MBarrierLayout())
        blackwell_mbarrier.init(arrived, count=1)
        clc.try_cancel(answer, arrived)
        gl.store(out_ptr, clc.load_result(answer).program_id(0))

    x = jnp.zeros((2, 1), jnp.int32)
    batched = jax.vmap(lambda x: jt.kernel(steal)[1](x, input_output_aliases="out_ptr"))
    with pytest.raises(UnsupportedError, match=r"steal: asks by cluster launch control"):
        jt.inspect(batched, x, platform="cuda:100")
