"""Gluon kernels: layouts, shared memory and its views, asynchronous copies."""

import functools
import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import ampere

import jtprim as jt

# Triton 3.9 has this under another name than 3.6.
_copy_async = getattr(ampere.async_copy, "async_load", ampere.async_copy.async_copy_global_to_shared)
_commit = ampere.async_copy.commit_group
_wait = ampere.async_copy.wait_group


def draw(*shape, dtype="float32", seed=0):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape, np.float32), dtype)


def like(shape, dtype="float32"):
    return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))


# --- Layouts -------------------------------------------------------------------------------------


@gluon.jit
def copy_masked(x_ptr, out_ptr, n, BLOCK: gl.constexpr, layout: gl.constexpr):
    offsets = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout)
    mask = offsets < n
    gl.store(out_ptr + offsets, gl.load(x_ptr + offsets, mask=mask, other=0.0), mask=mask)


LAYOUTS = [
    gl.BlockedLayout([1], [32], [4], [0]),
    gl.BlockedLayout([8], [32], [4], [0]),
    gl.SliceLayout(1, gl.BlockedLayout([1, 1], [8, 4], [4, 1], [1, 0])),
    gl.DistributedLinearLayout(
        reg_bases=[[1]],
        lane_bases=[[2], [4], [8], [16], [32]],
        warp_bases=[[64], [128]],
        block_bases=[],
        shape=[256],
    ),
    gl.AutoLayout(),
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: type(layout).__name__)
@pytest.mark.parametrize("n", [1, 700, 1024])
def test_a_copy_is_the_same_in_every_layout(layout, n):
    x = draw(1024)
    if isinstance(layout, gl.AutoLayout):
        kernel = copy_with_inferred_layout
        layout = LAYOUTS[0]
    else:
        kernel = copy_masked
    out = jt.kernel(kernel)[4](x, n=n, BLOCK=256, layout=layout, out_shape={"out_ptr": x})
    np.testing.assert_array_equal(out, jnp.where(jnp.arange(1024) < n, x, 0))


@gluon.jit
def copy_with_inferred_layout(x_ptr, out_ptr, n, BLOCK: gl.constexpr, layout: gl.constexpr):
    offsets = gl.set_auto_layout(gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, gl.AutoLayout()), layout)
    mask = offsets < n
    gl.store(out_ptr + offsets, gl.load(x_ptr + offsets, mask=mask, other=0.0), mask=mask)


@gluon.jit
def softmax(x_ptr, out_ptr, ROWS: gl.constexpr, COLUMNS: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0])
    other: gl.constexpr = gl.BlockedLayout([4, 1], [8, 4], [1, 4], [0, 1])
    rows = gl.program_id(0) * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    columns = gl.arange(0, COLUMNS, gl.SliceLayout(0, layout))
    places = rows[:, None] * COLUMNS + columns[None, :]
    x = gl.load(x_ptr + places)
    x = x - gl.max(x, axis=1)[:, None]
    exps = gl.convert_layout(gl.exp(x), other)
    total = gl.convert_layout(gl.sum(exps, axis=1), gl.SliceLayout(1, layout))
    gl.store(out_ptr + places, gl.convert_layout(exps, layout) / total[:, None])


def test_reductions_over_slices_of_layouts():
    x = draw(64, 32)
    out = jt.kernel(softmax)[4](x, ROWS=16, COLUMNS=32, out_shape={"out_ptr": x})
    np.testing.assert_allclose(out, jax.nn.softmax(x, axis=1), rtol=1e-5)


@gluon.jit
def gather_rows(x_ptr, index_ptr, out_ptr, ROWS: gl.constexpr, COLUMNS: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0])
    rows = gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    columns = gl.arange(0, COLUMNS, gl.SliceLayout(0, layout))
    places = rows[:, None] * COLUMNS + columns[None, :]
    gathered = gl.gather(gl.load(x_ptr + places), gl.load(index_ptr + places), axis=1)
    gl.store(out_ptr + places, gathered)


def test_a_gather_along_an_axis():
    x = draw(8, 32)
    index = jnp.asarray(np.random.default_rng(1).integers(0, 32, (8, 32)), jnp.int32)
    out = jt.kernel(gather_rows)[1](x, index, ROWS=8, COLUMNS=32, out_shape={"out_ptr": x})
    np.testing.assert_array_equal(out, np.take_along_axis(np.asarray(x), np.asarray(index), 1))


# --- Shared memory -------------------------------------------------------------------------------


@gluon.jit
def transpose(x_ptr, out_ptr, N: gl.constexpr, BLOCK: gl.constexpr):
    read: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0])
    written: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0])
    lanes = gl.arange(0, BLOCK, gl.SliceLayout(1, read))
    across = gl.arange(0, BLOCK, gl.SliceLayout(0, read))
    row, column = gl.program_id(0) * BLOCK, gl.program_id(1) * BLOCK
    x = gl.load(x_ptr + (row + lanes)[:, None] * N + (column + across)[None, :])
    tile = gl.allocate_shared_memory(x.dtype, [BLOCK, BLOCK], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]), x)
    y = tile.permute((1, 0)).load(written)
    gl.store(out_ptr + (column + lanes)[:, None] * N + (row + across)[None, :], y)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_a_transpose_through_shared_memory(dtype):
    x = (draw(64, 64) * 10).astype(dtype)
    out = jt.kernel(transpose)[4, 4](x, N=64, BLOCK=16, out_shape={"out_ptr": x})
    np.testing.assert_array_equal(out, x.T)


@gluon.jit
def running_sums(x_ptr, out_ptr, steps_ptr, BLOCK: gl.constexpr):
    """Adds row after row, as many as each program is told, to one of two places in shared memory."""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    lanes = gl.arange(0, BLOCK, layout)
    program = gl.program_id(0)
    places = gl.allocate_shared_memory(gl.float32, [2, BLOCK], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    places.index(0).store(gl.zeros([BLOCK], gl.float32, layout))
    places.index(1).store(gl.zeros([BLOCK], gl.float32, layout))
    for step in range(gl.load(steps_ptr + program)):
        place = places.index(step % 2)
        if step % 3 != program:
            place.store(place.load(layout) + gl.load(x_ptr + step * BLOCK + lanes))
    gl.store(out_ptr + program * BLOCK + lanes, places.index(0).load(layout) - places.index(1).load(layout))


def test_shared_memory_keeps_what_loops_and_branches_of_each_program_put_there():
    x, steps = draw(9, 128), [0, 9, 5, 7]
    expected = [
        sum((-1.0) ** step * np.asarray(x[step]) for step in range(count) if step % 3 != program)
        + np.zeros(128, np.float32)
        for program, count in enumerate(steps)
    ]
    out = jt.kernel(running_sums)[4](
        x, steps_ptr=jnp.array(steps), BLOCK=128, out_shape={"out_ptr": like((4, 128))}
    )
    np.testing.assert_allclose(out, np.stack(expected), rtol=1e-5, atol=1e-5)


@gluon.jit
def swapped_views(x_ptr, out_ptr, STEPS, BLOCK: gl.constexpr):
    """Carries two views of one buffer through a loop, in which they swap."""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    lanes = gl.arange(0, BLOCK, layout)
    places = gl.allocate_shared_memory(gl.float32, [2, BLOCK], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    one, other = places.index(0), places.index(1)
    one.store(gl.load(x_ptr + lanes))
    for _ in range(STEPS):
        other.store(one.load(layout) * 2 + 1)
        one, other = other, one
    gl.store(out_ptr + lanes, one.load(layout))


@pytest.mark.parametrize("steps", [0, 1, 5])
def test_a_loop_carries_views(steps):
    x = draw(128)
    expected = functools.reduce(lambda x, _: x * 2 + 1, range(steps), x)
    out = jt.kernel(swapped_views)[1](x, STEPS=steps, BLOCK=128, out_shape={"out_ptr": x})
    np.testing.assert_allclose(out, expected, rtol=1e-6)


@gluon.jit
def shuffle_rows(x_ptr, index_ptr, gathered_ptr, scattered_ptr, ROWS: gl.constexpr, COLUMNS: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0])
    rows = gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    columns = gl.arange(0, COLUMNS, gl.SliceLayout(0, layout))
    places = rows[:, None] * COLUMNS + columns[None, :]
    x, index = gl.load(x_ptr + places), gl.load(index_ptr + places)
    tile = gl.allocate_shared_memory(x.dtype, [ROWS, COLUMNS], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]), x)
    gl.store(gathered_ptr + places, tile.gather(index, axis=0))
    tile.scatter(x * 2, index, axis=0)
    gl.store(scattered_ptr + places, tile.load(layout))


@pytest.mark.skipif(not hasattr(gl.shared_memory_descriptor, "gather"), reason="newer than this Triton")
def test_gathers_from_and_scatters_to_shared_memory():
    x, random = draw(16, 32), np.random.default_rng(2)
    index = np.stack([random.permutation(16) for _ in range(32)], axis=1).astype(np.int32)
    gathered, scattered = jt.kernel(shuffle_rows)[1](
        x, jnp.asarray(index), ROWS=16, COLUMNS=32, out_shape={"gathered_ptr": x, "scattered_ptr": x}
    )
    np.testing.assert_array_equal(gathered, np.take_along_axis(np.asarray(x), index, 0))
    expected = np.empty((16, 32), np.float32)
    np.put_along_axis(expected, index, 2 * np.asarray(x), 0)
    np.testing.assert_array_equal(scattered, expected)


if hasattr(gl.shared_memory_descriptor, "reinterpret"):

    @gluon.jit
    def _reinterpret(tile, dtype: gl.constexpr, shape: gl.constexpr, layout: gl.constexpr):
        return tile.reinterpret(dtype, shape, layout)

else:  # Triton 3.6

    @gluon.jit
    def _reinterpret(tile, dtype: gl.constexpr, shape: gl.constexpr, layout: gl.constexpr):
        return tile._reinterpret(dtype, shape, layout)


@gluon.jit
def split_into_bytes(x_ptr, bytes_ptr, out_ptr, N: gl.constexpr):
    """Reads the bytes of numbers, and puts the first half of them where the second half is."""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    held: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    lanes, places = gl.arange(0, N, layout), gl.arange(0, 4 * N, layout)
    tile = gl.allocate_shared_memory(gl.int32, [N], held, gl.load(x_ptr + lanes))
    bytes_ = _reinterpret(tile, gl.int8, [4 * N], held)
    gl.store(bytes_ptr + places, bytes_.load(layout))
    bytes_.slice(2 * N, 2 * N).store(bytes_.slice(0, 2 * N).load(layout))
    gl.store(out_ptr + lanes, tile.load(layout))


def test_the_same_memory_as_another_type():
    x = jnp.asarray(np.random.default_rng(0).integers(-(2**31), 2**31, 128), jnp.int32)
    found, out = jt.kernel(split_into_bytes)[1](
        x, N=128, out_shape={"bytes_ptr": like((512,), "int8"), "out_ptr": like((128,), "int32")}
    )
    np.testing.assert_array_equal(found, np.asarray(x).view(np.int8))
    np.testing.assert_array_equal(out, np.tile(x[:64], 2))


# --- Views: any chain of them is NumPy's -----------------------------------------------------------

_VIEW_SHAPE = (4, 8, 16)


# Steps of a chain, as the kernel takes them: a number and its arguments.
SLICE, PERMUTE, RESHAPE = range(3)


@gluon.jit
def through_views(
    x_ptr,
    value_ptr,
    read_ptr,
    out_ptr,
    KINDS: gl.constexpr,
    DETAILS: gl.constexpr,
    COUNT: gl.constexpr,
    SIZE: gl.constexpr,
    own: gl.constexpr,
):
    """Reads a chain of views of a tensor in shared memory; then writes it; then reads the whole tensor."""
    flat: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    cube: gl.constexpr = gl.BlockedLayout([1, 1, 1], [1, 2, 16], [1, 1, 1], [2, 1, 0])
    all_ = gl.arange(0, 512, flat)
    lanes = gl.arange(0, SIZE, flat)
    held: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0])
    places = gl.allocate_shared_memory(gl.float32, [2, 4, 8, 16], held)
    tile = places.index(1)
    tile.store(gl.convert_layout(gl.load(x_ptr + all_).reshape(4, 8, 16), cube))
    view = tile
    for i in gl.static_range(COUNT):
        if KINDS[i] == 0:
            view = view.slice(DETAILS[i][0], DETAILS[i][1], dim=DETAILS[i][2])
        elif KINDS[i] == 1:
            view = view.permute(DETAILS[i])
        else:
            view = view.reshape(DETAILS[i])
    gl.store(read_ptr + lanes, gl.convert_layout(view.load(own).reshape(SIZE), flat))
    view.store(gl.convert_layout(gl.load(value_ptr + lanes).reshape(view.shape), own))
    gl.store(out_ptr + all_, gl.convert_layout(tile.load(cube).reshape(512), flat))


@st.composite
def chains(draw_):
    """Steps of views, as the kernel takes them, that are valid for `_VIEW_SHAPE`."""
    shape, steps = _VIEW_SHAPE, []
    for _ in range(draw_(st.integers(1, 4))):
        kinds = [kind for kind, _ in steps]
        # Triton 3.9 ends the process where a part of a reshaped view is permuted.
        permutable = not (RESHAPE in kinds and SLICE in kinds)
        kind = draw_(st.sampled_from([RESHAPE, SLICE, *([PERMUTE] if permutable else [])]))
        if kind == RESHAPE and not steps:
            shape = draw_(st.sampled_from([(32, 16), (4, 128), (8, 4, 16), (2, 2, 8, 16)]))
            steps.append((RESHAPE, shape))
        elif kind == SLICE:
            axis = draw_(st.integers(0, len(shape) - 1))
            length = 2 ** draw_(st.integers(0, shape[axis].bit_length() - 1))
            start = length * draw_(st.integers(0, shape[axis] // length - 1))
            steps.append((SLICE, (start, length, axis)))
            shape = (*shape[:axis], length, *shape[axis + 1 :])
        elif kind == PERMUTE:
            order = draw_(st.permutations(range(len(shape))))
            steps.append((PERMUTE, tuple(order)))
            shape = tuple(shape[axis] for axis in order)
    return tuple(steps)


def taken(array, steps):
    for kind, details in steps:
        if kind == RESHAPE:
            array = array.reshape(details)
        elif kind == SLICE:
            start, length, axis = details
            array = array[(slice(None),) * axis + (slice(start, start + length),)]
        else:
            array = array.transpose(details)
    return array


@given(chains())
@settings(max_examples=12, deadline=None)
def test_a_chain_of_views_is_what_numpy_makes_of_it(steps):
    whole = np.arange(512, dtype=np.float32).reshape(_VIEW_SHAPE)
    view = taken(whole, steps)
    rank = view.ndim
    own = gl.BlockedLayout([1] * rank, [1] * (rank - 1) + [32], [1] * rank, [*range(rank)][::-1])
    value = -1 - np.arange(view.size, dtype=np.float32)
    expected_read = view.copy()
    view[...] = value.reshape(view.shape)
    read, out = jt.kernel(through_views)[1](
        jnp.arange(512, dtype=jnp.float32),
        jnp.asarray(value),
        KINDS=tuple(kind for kind, _ in steps),
        DETAILS=tuple(details for _, details in steps),
        COUNT=len(steps),
        SIZE=view.size,
        own=own,
        num_warps=1,
        out_shape={"read_ptr": like((view.size,)), "out_ptr": like((512,))},
    )
    np.testing.assert_array_equal(read, expected_read.ravel())
    np.testing.assert_array_equal(out, whole.ravel())


# --- Asynchronous copies and tensor cores: a pipelined product -------------------------------------


@gluon.jit
def pipelined_matmul(
    a_ptr,
    b_ptr,
    c_ptr,
    M,
    N,
    K,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr,
):
    """A tile a program; masked copies into a ring of buffers, and products of 16 by 8."""
    product: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [2, 2], [16, 8])
    left: gl.constexpr = gl.DotOperandLayout(0, product, 2)
    right: gl.constexpr = gl.DotOperandLayout(1, product, 2)
    copied: gl.constexpr = gl.BlockedLayout([1, 8], [8, 4], [4, 1], [1, 0])
    held: gl.constexpr = gl.SwizzledSharedLayout(8, 1, 4, [1, 0])
    dtype: gl.constexpr = a_ptr.dtype.element_ty
    a_tiles = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_M, BLOCK_K], held)
    b_tiles = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_K, BLOCK_N], held)
    rows = gl.program_id(0) * BLOCK_M + gl.arange(0, BLOCK_M, gl.SliceLayout(1, copied))
    a_columns = gl.arange(0, BLOCK_K, gl.SliceLayout(0, copied))
    b_rows = gl.arange(0, BLOCK_K, gl.SliceLayout(1, copied))
    columns = gl.program_id(1) * BLOCK_N + gl.arange(0, BLOCK_N, gl.SliceLayout(0, copied))
    steps = gl.cdiv(K, BLOCK_K)
    for early in gl.static_range(STAGES - 1):
        k = early * BLOCK_K
        a_mask = (rows < M)[:, None] & (a_columns + k < K)[None, :]
        b_mask = (b_rows + k < K)[:, None] & (columns < N)[None, :]
        _copy_async(a_tiles.index(early), a_ptr + rows[:, None] * K + (a_columns + k)[None, :], mask=a_mask)
        _copy_async(b_tiles.index(early), b_ptr + (b_rows + k)[:, None] * N + columns[None, :], mask=b_mask)
        _commit()
    acc = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, product)
    for step in range(steps):
        k = (step + STAGES - 1) * BLOCK_K
        slot = (step + STAGES - 1) % STAGES
        a_mask = (rows < M)[:, None] & (a_columns + k < K)[None, :]
        b_mask = (b_rows + k < K)[:, None] & (columns < N)[None, :]
        _copy_async(a_tiles.index(slot), a_ptr + rows[:, None] * K + (a_columns + k)[None, :], mask=a_mask)
        _copy_async(b_tiles.index(slot), b_ptr + (b_rows + k)[:, None] * N + columns[None, :], mask=b_mask)
        _commit()
        _wait(STAGES - 1)
        a, b = a_tiles.index(step % STAGES).load(left), b_tiles.index(step % STAGES).load(right)
        acc = ampere.mma_v2(a, b, acc)
    _wait(0)
    c_rows = gl.program_id(0) * BLOCK_M + gl.arange(0, BLOCK_M, gl.SliceLayout(1, product))
    c_columns = gl.program_id(1) * BLOCK_N + gl.arange(0, BLOCK_N, gl.SliceLayout(0, product))
    mask = (c_rows < M)[:, None] & (c_columns < N)[None, :]
    gl.store(c_ptr + c_rows[:, None] * N + c_columns[None, :], acc.to(dtype), mask=mask)


def multiply(a, b, stages):
    (m, k), n = a.shape, b.shape[1]
    blocks = {"BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_K": 32}
    return jt.kernel(pipelined_matmul)[jt.cdiv(m, 32), jt.cdiv(n, 32)](
        a, b, m, n, k, STAGES=stages, **blocks, out_shape={"c_ptr": like((m, n), a.dtype)}
    )


def assert_is_product(out, a, b, tolerance=3e-3):
    exact = np.asarray(a, np.float64) @ np.asarray(b, np.float64)
    assert out.shape == exact.shape
    np.testing.assert_allclose(
        np.asarray(out, np.float64), exact, atol=tolerance * np.abs(exact).max(), rtol=0
    )


@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize("size", [(64, 64, 128), (40, 72, 50)])
def test_a_product_of_what_asynchronous_copies_brought(size, stages):
    m, n, k = size
    a, b = draw(m, k, dtype="float16", seed=1), draw(k, n, dtype="float16", seed=2)
    assert_is_product(jax.jit(functools.partial(multiply, stages=stages))(a, b), a, b)


def test_a_product_may_be_batched_and_differentiated():
    a, b = draw(3, 32, 64, seed=1), draw(64, 32, seed=2)
    a, b = a.astype("float16"), b.astype("float16")
    batched = jax.vmap(lambda a: multiply(a, b, 2))(a)
    for one, out in zip(a, batched, strict=True):
        assert_is_product(out, one, b)

    def loss(product, a):
        return jnp.sum(product(a, b).astype(jnp.float32) ** 2)

    got = jax.grad(functools.partial(loss, functools.partial(multiply, stages=2)))(a[0])
    expected = jax.grad(functools.partial(loss, operator.matmul))(a[0])
    np.testing.assert_allclose(got, expected, atol=2e-2 * float(jnp.abs(expected).max()))
