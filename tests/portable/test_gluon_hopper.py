"""Kernels for Hopper GPUs, run without one: TMA, warpgroup products, barriers, warp specialization."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.blackwell import tma as blackwell_tma
from triton.experimental.gluon.language.nvidia.hopper import async_copy, fence_async_shared, mbarrier, tma

import jtprim as jt
from tests.gpu import hopper_kernels as hopper

# Triton 3.9 has these under other names than 3.6.
_tma_load = getattr(tma, "async_load", tma.async_copy_global_to_shared)
_copy_async = getattr(async_copy, "async_load", async_copy.async_copy_global_to_shared)
_tma_store = getattr(tma, "async_store", tma.async_copy_shared_to_global)

BLOCKS = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 64}
SIZES = [(128, 128, 128), (72, 136, 200)]


def draw(*shape, dtype="float16", seed=0):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape, np.float32), jnp.dtype(dtype))


def matrices(size):
    m, n, k = size
    return draw(m, k, seed=1), draw(k, n, seed=2)


def assert_is_product(out, a, b):
    exact = np.asarray(a).astype(np.float64) @ np.asarray(b).astype(np.float64)
    assert out.dtype == a.dtype
    assert out.shape == exact.shape
    assert np.max(np.abs(np.asarray(out).astype(np.float64) - exact)) <= 3e-3 * np.max(np.abs(exact))


def like(shape, dtype="float16"):
    return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))


def tiles(shape):
    return triton.cdiv(shape[0], 64) * triton.cdiv(shape[1], 64)


def with_pointers(kernel, a, b, *, programs=None, **parameters):
    (m, k), n = a.shape, b.shape[1]
    return jt.kernel(kernel)[programs or tiles((m, n))](
        a,
        b,
        m,
        n,
        k,
        out_shape={"c_ptr": like((m, n))},
        **{"GROUP": 8, "num_warps": 4, **BLOCKS, **parameters},
    )


def descriptor(array, *block, **details):
    layout = gl.NVMMASharedLayout.get_default_for(list(block), gl_type(array.dtype))
    return jt.TensorDescriptor.from_array(array, block, layout=layout, **details)


def gl_type(dtype):
    return {"float16": gl.float16, "float32": gl.float32, "int32": gl.int32}[jnp.dtype(dtype).name]


def with_descriptors(kernel, a, b, *, programs=None, **parameters):
    out = like((a.shape[0], b.shape[1]))
    return jt.kernel(kernel)[programs or tiles(out.shape)](
        descriptor(a, 64, 64),
        descriptor(b, 64, 64),
        descriptor(out, 64, 64),
        **{"GROUP": 8, "num_warps": 4, **parameters},
    )


# --- Products ------------------------------------------------------------------------------------


def test_warpgroups_multiply_what_asynchronous_copies_brought():
    a, b = matrices(SIZES[0])
    launch = functools.partial(with_pointers, hopper.wgmma_matmul_without_tma, STAGES=3)
    assert_is_product(jax.jit(launch)(a, b), a, b)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("stages", [2, 4])
def test_warpgroups_multiply_what_descriptors_made_on_the_device_brought(size, stages):
    a, b = matrices(size)
    launch = functools.partial(with_pointers, hopper.wgmma_matmul_with_own_descriptors, STAGES=stages)
    assert_is_product(jax.jit(launch)(a, b), a, b)


@pytest.mark.parametrize("size", SIZES)
def test_warpgroups_multiply_what_descriptors_made_on_the_host_brought(size):
    a, b = matrices(size)
    launch = functools.partial(with_descriptors, hopper.wgmma_matmul, STAGES=3)
    assert_is_product(launch(a, b), a, b)


def test_a_descriptor_of_an_output_may_come_first():
    a, b = matrices((64, 128, 64))
    out = jt.kernel(hopper.wgmma_matmul_into)[2](
        descriptor(like((64, 128)), 64, 64), descriptor(a, 64, 64), descriptor(b, 64, 64), STAGES=3, GROUP=8
    )
    assert_is_product(out, a, b)


@pytest.mark.parametrize("num_warps", [1, 4])
def test_threads_wait_for_each_others_copies_at_a_barrier(num_warps):
    x = draw(32, 64, dtype="float32")
    out = jt.kernel(hopper.transpose_with_mbarrier)[1](
        x, ROWS=32, COLUMNS=64, num_warps=num_warps, out_shape={"out_ptr": like((64, 32), "float32")}
    )
    np.testing.assert_array_equal(out, x.T)


# --- Warp specialization -------------------------------------------------------------------------


@pytest.mark.parametrize("programs", [1, 3, 8])
@pytest.mark.parametrize("size", SIZES)
def test_partitions_run_side_by_side(size, programs):
    a, b = matrices(size)
    launch = functools.partial(with_descriptors, hopper.warp_specialized_matmul, programs=programs, STAGES=3)
    assert_is_product(jax.jit(launch)(a, b), a, b)


def test_partitions_use_descriptors_that_were_made_before():
    a, b = matrices(SIZES[1])
    kernel = hopper.warp_specialized_matmul_with_own_descriptors
    launch = functools.partial(with_pointers, kernel, programs=2, STAGES=2)
    assert_is_product(jax.jit(launch)(a, b), a, b)


@gluon.jit
def _take_turns(bars, total, out_ptr, STEPS: gl.constexpr, ME: gl.constexpr, layout: gl.constexpr):
    """Adds to a number in shared memory when it is this partition's turn, which differs by a branch."""
    for step in range(STEPS):
        mbarrier.wait(bars.index(ME), step & 1)
        total.store(total.load(layout) * 3 + ME)
        if step % 2 == ME:
            gl.store(out_ptr + step, step)
        mbarrier.arrive(bars.index(1 - ME), count=1)


@gluon.jit
def _second(bars, total, out_ptr, STEPS: gl.constexpr, layout: gl.constexpr):
    _take_turns(bars, total, out_ptr, STEPS, 1, layout)


@gluon.jit
def _first(bars, total, out_ptr, STEPS: gl.constexpr, layout: gl.constexpr):
    mbarrier.arrive(bars.index(0), count=1)
    _take_turns(bars, total, out_ptr, STEPS, 0, layout)
    return gl.program_id(0) + 7, gl.program_id(0) + 8


@gluon.jit
def ping_pong(out_ptr, total_ptr, result_ptr, STEPS: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    bars = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(2):
        mbarrier.init(bars.index(i), count=1)
    start = gl.full([128], 1, gl.int64, layout)
    total = gl.allocate_shared_memory(gl.int64, [128], gl.SwizzledSharedLayout(1, 1, 1, [0]), start)
    result = gl.warp_specialize(
        [(_first, (bars, total, out_ptr, STEPS, layout)), (_second, (bars, total, out_ptr, STEPS, layout))],
        [4],
        [24],
    )
    gl.store(total_ptr + gl.arange(0, 128, layout), total.load(layout))
    gl.store(result_ptr, result[0] * result[1])


@pytest.mark.parametrize("steps", [1, 4, 7])
def test_partitions_take_turns(steps):
    out, total, result = jt.kernel(ping_pong)[1](
        STEPS=steps,
        out_shape={
            "out_ptr": like((steps,), "int32"),
            "total_ptr": like((128,), "int32"),
            "result_ptr": like((1,), "int32"),
        },
    )
    expected = 1
    for _ in range(steps):
        expected = (expected * 3) * 3 + 1
    np.testing.assert_array_equal(out, np.arange(steps))
    np.testing.assert_array_equal(total, expected)
    assert result == 56


@gluon.jit
def _copy_rows(x_ptr, tiles, loaded, free, STEPS: gl.constexpr, BLOCK: gl.constexpr):
    lanes = gl.arange(0, BLOCK, gl.BlockedLayout([4], [32], [2], [0]))
    for step in range(STEPS):
        mbarrier.wait(free.index(step % 2), step // 2 & 1 ^ 1)
        _copy_async(tiles.index(step % 2), x_ptr + step * BLOCK + lanes)
        async_copy.mbarrier_arrive(loaded.index(step % 2), increment_count=False)


@gluon.jit
def _sum_rows(out_ptr, tiles, loaded, free, STEPS: gl.constexpr, BLOCK: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([2], [32], [4], [0])
    total = gl.zeros([BLOCK], gl.float32, layout)
    step = 0
    while step < STEPS:
        mbarrier.wait(loaded.index(step % 2), step // 2 & 1)
        total += tiles.index(step % 2).load(layout)
        mbarrier.arrive(free.index(step % 2), count=1)
        step += 1
    gl.store(out_ptr + gl.arange(0, BLOCK, layout), total)


@gluon.jit
def sum_of_rows(x_ptr, out_ptr, STEPS: gl.constexpr, BLOCK: gl.constexpr):
    """Rows come through asynchronous copies of two warps, each thread of which arrives at a barrier."""
    tiles = gl.allocate_shared_memory(gl.float32, [2, BLOCK], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    loaded = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(2):
        mbarrier.init(loaded.index(i), count=64)
        mbarrier.init(free.index(i), count=1)
    gl.warp_specialize(
        [
            (_sum_rows, (out_ptr, tiles, loaded, free, STEPS, BLOCK)),
            (_copy_rows, (x_ptr, tiles, loaded, free, STEPS, BLOCK)),
        ],
        [2],
        [24],
    )


def test_threads_of_a_partition_arrive_with_their_copies():
    x = draw(7, 256, dtype="float32")
    out = jt.kernel(sum_of_rows)[1](x, STEPS=7, BLOCK=256, out_shape={"out_ptr": like((256,), "float32")})
    np.testing.assert_allclose(out, x.sum(axis=0), rtol=1e-5, atol=1e-5)


def test_a_batch_of_launches_with_partitions():
    x = draw(3, 4, 128, dtype="float32")
    launch = lambda x: jt.kernel(sum_of_rows)[1](
        x, STEPS=4, BLOCK=128, out_shape={"out_ptr": like((128,), "float32")}
    )
    np.testing.assert_allclose(jax.vmap(launch)(x), x.sum(axis=1), rtol=1e-5, atol=1e-5)


@gluon.jit
def _double(tile, bars, phase, layout: gl.constexpr):
    mbarrier.wait(bars.index(0), phase)
    tile.store(tile.load(layout) * 2)
    mbarrier.arrive(bars.index(1), count=1)


@gluon.jit
def _add_one(tile, bars, phase, layout: gl.constexpr):
    tile.store(tile.load(layout) + 1)
    mbarrier.arrive(bars.index(0), count=1)
    mbarrier.wait(bars.index(1), phase)


@gluon.jit
def specialized_in_a_loop(x_ptr, out_ptr, STEPS, BLOCK: gl.constexpr):
    """Programs of different numbers of steps, each of which specializes the warps anew."""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    places = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout)
    held: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    tile = gl.allocate_shared_memory(gl.float32, [BLOCK], held, gl.load(x_ptr + places))
    bars = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(2):
        mbarrier.init(bars.index(i), count=1)
    for step in range(STEPS + gl.program_id(0)):
        gl.warp_specialize(
            [(_add_one, (tile, bars, step & 1, layout)), (_double, (tile, bars, step & 1, layout))], [4], [24]
        )
    gl.store(out_ptr + places, tile.load(layout))


def test_warps_are_specialized_in_a_loop():
    x = draw(3, 128, dtype="float32")
    out = jt.kernel(specialized_in_a_loop)[3](x, STEPS=0, BLOCK=128, out_shape={"out_ptr": x})
    np.testing.assert_allclose(out, [x[0], (x[1] + 1) * 2, ((x[2] + 1) * 2 + 1) * 2], rtol=1e-6)


@gluon.jit
def _waits(bars, out_ptr, ME: gl.constexpr):
    mbarrier.wait(bars.index(ME), 0)
    mbarrier.arrive(bars.index(1 - ME), count=1)
    gl.store(out_ptr + ME, 1.0)


@gluon.jit
def _waits_first(bars, out_ptr):
    _waits(bars, out_ptr, 0)


@gluon.jit
def _waits_second(bars, out_ptr):
    _waits(bars, out_ptr, 1)


@gluon.jit
def deadlock(out_ptr):
    bars = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(2):
        mbarrier.init(bars.index(i), count=1)
    gl.warp_specialize([(_waits_first, (bars, out_ptr)), (_waits_second, (bars, out_ptr))], [1], [24])


@pytest.mark.filterwarnings("ignore")
def test_partitions_that_wait_forever_are_an_error():
    with pytest.raises(Exception, match="wait at barriers for each other, or for nobody, forever"):
        jax.block_until_ready(jt.kernel(deadlock)[1](out_shape={"out_ptr": like((2,), "float32")}))


# --- TMA -----------------------------------------------------------------------------------------


@gluon.jit
def copy_blocks(x_desc, out_desc, BLOCK_ROWS: gl.constexpr, BLOCK_COLUMNS: gl.constexpr):
    """Copies a block that reaches over the ends of the tensor."""
    tile = gl.allocate_shared_memory(x_desc.dtype, [BLOCK_ROWS, BLOCK_COLUMNS], x_desc.layout)
    loaded = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(loaded, count=1)
    mbarrier.expect(loaded, x_desc.block_type.nbytes)
    row, column = gl.program_id(0) * BLOCK_ROWS - 3, gl.program_id(1) * BLOCK_COLUMNS
    _tma_load(x_desc, [row, column], loaded, tile)
    mbarrier.wait(loaded, 0)
    mbarrier.invalidate(loaded)
    fence_async_shared()
    _tma_store(out_desc, [row + 3, column], tile)
    tma.store_wait(0)


@pytest.mark.parametrize("padding", ["zero", "nan"])
def test_a_block_reads_padding_beyond_the_ends_of_a_tensor(padding):
    x = draw(30, 24, dtype="float32")
    out = jt.kernel(copy_blocks)[3, 2](
        descriptor(x, 16, 16, padding=padding),
        descriptor(like((40, 32), "float32"), 16, 16),
        BLOCK_ROWS=16,
        BLOCK_COLUMNS=16,
    )
    expected = np.full((40, 32), np.nan if padding == "nan" else 0, np.float32)
    expected[3:33, :24] = x
    np.testing.assert_array_equal(out, expected)


@gluon.jit
def copy_batch(x_desc, out_desc, BLOCK: gl.constexpr):
    """Blocks of three dimensions, the first of extent one, through a tile of two."""
    tile = gl.allocate_shared_memory(x_desc.dtype, x_desc.block_shape, x_desc.layout)
    loaded = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(loaded, count=1)
    mbarrier.expect(loaded, x_desc.block_type.nbytes)
    _tma_load(x_desc, [gl.program_id(0), 0, 0], loaded, tile)
    mbarrier.wait(loaded, 0)
    _tma_store(out_desc, [gl.num_programs(0) - 1 - gl.program_id(0), 0, 0], tile)
    tma.store_wait(0)


def test_descriptors_of_three_dimensions():
    x = draw(5, 16, 64)
    layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=3)
    described = [
        jt.TensorDescriptor.from_array(one, (1, 16, 64), layout=layout) for one in (x, like(x.shape))
    ]
    out = jt.kernel(copy_batch)[5](*described, BLOCK=16)
    np.testing.assert_array_equal(out, x[::-1])


@gluon.jit
def permute_rows(x_desc, from_ptr, to_ptr, out_desc, ROWS: gl.constexpr, COLUMNS: gl.constexpr):
    layout: gl.constexpr = gl.SliceLayout(0, gl.BlockedLayout([1, 4], [32, 1], [1, 4], [1, 0]))
    lanes = gl.arange(0, ROWS, layout)
    tile = gl.allocate_shared_memory(x_desc.dtype, [ROWS, COLUMNS], x_desc.layout)
    loaded = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(loaded, count=1)
    mbarrier.expect(loaded, ROWS * x_desc.block_type.nbytes)
    blackwell_tma.async_gather(x_desc, gl.load(from_ptr + lanes), 0, loaded, tile)
    mbarrier.wait(loaded, 0)
    blackwell_tma.async_scatter(out_desc, gl.load(to_ptr + lanes), 0, tile)
    tma.store_wait(0)


def test_tma_gathers_and_scatters_rows():
    x = draw(50, 64)
    random = np.random.default_rng(3)
    taken, put = random.integers(0, 60, 32).astype(np.int32), random.permutation(40)[:32].astype(np.int32)
    out = jt.kernel(permute_rows)[1](
        descriptor_of_rows(x),
        jnp.asarray(taken),
        jnp.asarray(put),
        descriptor_of_rows(like((40, 64))),
        ROWS=32,
        COLUMNS=64,
    )
    expected = np.zeros((40, 64), np.float16)
    expected[put] = np.concatenate([np.asarray(x), np.zeros((10, 64), np.float16)])[taken]
    np.testing.assert_array_equal(out, expected)


def descriptor_of_rows(array):
    layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16)
    return jt.TensorDescriptor.from_array(array, (1, 64), layout=layout)


@gluon.jit
def combine_blocks(x_desc, out_desc, KIND: gl.constexpr):
    """Every program combines its block with the same block of the output."""
    tile = gl.allocate_shared_memory(x_desc.dtype, x_desc.block_shape, x_desc.layout)
    loaded = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(loaded, count=1)
    mbarrier.expect(loaded, x_desc.block_type.nbytes)
    _tma_load(x_desc, [gl.program_id(0) * x_desc.block_shape[0], 0], loaded, tile)
    mbarrier.wait(loaded, 0)
    if KIND == "add":
        tma.async_atomic_add(out_desc, [0, 0], tile)
    elif KIND == "or":
        tma.async_atomic_or(out_desc, [0, 0], tile)
    elif KIND == "xor":
        tma.async_atomic_xor(out_desc, [0, 0], tile)
    else:
        tma.async_atomic_max(out_desc, [0, 0], tile)
    tma.store_wait(0)


def combine(x, kind):
    rows = x.shape[0] // 4
    return jt.kernel(combine_blocks)[4](
        descriptor(x, rows, 32), descriptor(like((rows - 1, 32), x.dtype), rows, 32), KIND=kind
    )


@pytest.mark.skipif(not hasattr(tma, "async_atomic_add"), reason="newer than this Triton")
@pytest.mark.parametrize(
    ("kind", "dtype"), [("add", "float32"), ("add", "int32"), ("or", "int32"), ("xor", "int32")]
)
def test_tma_combines_with_what_is_there(kind, dtype):
    x = (draw(32, 32, dtype="float32") * 100).astype(dtype)
    expected = functools.reduce(
        {"add": jnp.add, "or": jnp.bitwise_or, "xor": jnp.bitwise_xor}[kind], jnp.split(x, 4)
    )
    np.testing.assert_allclose(combine(x, kind), expected[:-1], rtol=1e-5, atol=1e-3)


# --- What can't be done --------------------------------------------------------------------------


@gluon.jit
def carries_descriptors(x_desc, out_desc, STEPS):
    one, other = x_desc, out_desc
    tile = gl.allocate_shared_memory(x_desc.dtype, x_desc.block_shape, x_desc.layout)
    for _ in range(STEPS):
        _tma_store(other, [0, 0], tile)
        tma.store_wait(0)
        one, other = other, one


def test_a_descriptor_that_changes_in_a_loop_is_an_error():
    with pytest.raises(jt.JtprimError, match=r"test_gluon_hopper.py:\d+ passes on a tensor descriptor"):
        jt.kernel(carries_descriptors)[1](*(descriptor(like((64, 64)), 64, 64) for _ in range(2)), STEPS=3)


@pytest.mark.skipif(not hasattr(tma, "async_atomic_max"), reason="newer than this Triton")
def test_a_maximum_of_integers_whose_sign_is_not_known_is_an_error():
    with pytest.raises(jt.JtprimError, match="is of a kind that has no portable lowering for i32"):
        combine(jnp.zeros((32, 32), jnp.int32), "max")
