"""Kernels for Blackwell GPUs, run without one: products in tensor memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import blackwell
from triton.experimental.gluon.language.nvidia.blackwell import (
    TensorMemoryLayout,
    allocate_tensor_memory,
    tcgen05_commit,
    tcgen05_mma,
)
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

import jtprim as jt

_tma_load = getattr(tma, "async_load", tma.async_copy_global_to_shared)
_tma_store = getattr(tma, "async_store", tma.async_copy_shared_to_global)

if hasattr(blackwell, "get_tmem_reg_layout"):
    _layout_of_registers = blackwell.get_tmem_reg_layout

    @gluon.jit
    def _load(memory, M: gl.constexpr, N: gl.constexpr, layout: gl.constexpr):
        registers: gl.constexpr = _layout_of_registers(gl.float32, (M, N), layout, gl.num_warps())
        return memory.load(registers)

else:  # Triton 3.9 finds the layout by itself

    @gluon.jit
    def _load(memory, M: gl.constexpr, N: gl.constexpr, layout: gl.constexpr):
        return memory.load()


def draw(*shape, dtype="float16", seed=0):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape, np.float32), jnp.dtype(dtype))


def like(shape, dtype="float16"):
    return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))


def descriptor(array, *block):
    layout = gl.NVMMASharedLayout.get_default_for(list(block), gl.float16)
    return jt.TensorDescriptor.from_array(array, block, layout=layout)


@gluon.jit
def multiply(a_desc, b_desc, c_desc, K):
    """A tile a program: TMA brings tiles, tensor memory accumulates."""
    BLOCK_M: gl.constexpr = c_desc.block_shape[0]
    BLOCK_N: gl.constexpr = c_desc.block_shape[1]
    BLOCK_K: gl.constexpr = a_desc.block_shape[1]
    layout: gl.constexpr = TensorMemoryLayout([BLOCK_M, BLOCK_N], col_stride=1)
    a_tile = gl.allocate_shared_memory(a_desc.dtype, [BLOCK_M, BLOCK_K], a_desc.layout)
    b_tile = gl.allocate_shared_memory(b_desc.dtype, [BLOCK_K, BLOCK_N], b_desc.layout)
    acc = allocate_tensor_memory(gl.float32, [BLOCK_M, BLOCK_N], layout)
    loaded = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    multiplied = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(loaded, count=1)
    mbarrier.init(multiplied, count=1)
    row, column = gl.program_id(0) * BLOCK_M, gl.program_id(1) * BLOCK_N
    phase = 0
    for k in range(0, K, BLOCK_K):
        mbarrier.expect(loaded, a_desc.block_type.nbytes + b_desc.block_type.nbytes)
        _tma_load(a_desc, [row, k], loaded, a_tile)
        _tma_load(b_desc, [k, column], loaded, b_tile)
        mbarrier.wait(loaded, phase)
        tcgen05_mma(a_tile, b_tile, acc, use_acc=k > 0)
        tcgen05_commit(multiplied)
        mbarrier.wait(multiplied, phase)
        phase ^= 1
    c = _load(acc, BLOCK_M, BLOCK_N, layout)
    c_tile = gl.allocate_shared_memory(c_desc.dtype, [BLOCK_M, BLOCK_N], c_desc.layout)
    c_tile.store(c.to(c_desc.dtype))
    fence_async_shared()
    _tma_store(c_desc, [row, column], c_tile)
    tma.store_wait(0)


@pytest.mark.parametrize("size", [(256, 128, 128), (136, 72, 200)])
def test_products_accumulate_in_tensor_memory(size):
    m, n, k = size
    a, b = draw(m, k, seed=1), draw(k, n, seed=2)
    out = jt.kernel(multiply)[jt.cdiv(m, 128), jt.cdiv(n, 64)](
        descriptor(a, 128, 64), descriptor(b, 64, 64), descriptor(like((m, n)), 128, 64), K=k
    )
    exact = np.asarray(a, np.float64) @ np.asarray(b, np.float64)
    np.testing.assert_allclose(np.asarray(out, np.float64), exact, atol=3e-3 * np.abs(exact).max(), rtol=0)


@gluon.jit
def _issue(a_tile, b_tile, acc, ready, done, STEPS: gl.constexpr):
    for step in range(STEPS):
        mbarrier.wait(ready, step & 1)
        tcgen05_mma(a_tile, b_tile, acc, use_acc=step > 0, mbarriers=[done])


@gluon.jit
def _drain(
    out_ptr, acc, ready, done, STEPS: gl.constexpr, M: gl.constexpr, N: gl.constexpr, layout: gl.constexpr
):
    """Stores the accumulator after every product."""
    stored: gl.constexpr = gl.BlockedLayout([1, 4], [2, 16], [4, 1], [1, 0])
    rows = gl.arange(0, M, gl.SliceLayout(1, stored))
    columns = gl.arange(0, N, gl.SliceLayout(0, stored))
    for step in range(STEPS):
        mbarrier.wait(done, step & 1)
        value = gl.convert_layout(_load(acc, M, N, layout), stored)
        gl.store(out_ptr + step * M * N + rows[:, None] * N + columns[None, :], value)
        mbarrier.arrive(ready, count=1)


@gluon.jit
def powers(a_ptr, out_ptr, STEPS: gl.constexpr, M: gl.constexpr, K: gl.constexpr):
    """One partition multiplies, the other stores what comes of it."""
    copied: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    layout: gl.constexpr = TensorMemoryLayout([M, M], col_stride=1)
    rows = gl.arange(0, M, gl.SliceLayout(1, copied))
    columns = gl.arange(0, K, gl.SliceLayout(0, copied))
    a = gl.load(a_ptr + rows[:, None] * K + columns[None, :])
    held: gl.constexpr = gl.NVMMASharedLayout.get_default_for([M, K], gl.float16)
    tile = gl.allocate_shared_memory(gl.float16, [M, K], held, a)
    acc = allocate_tensor_memory(gl.float32, [M, M], layout)
    ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    done = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(ready, count=1)
    mbarrier.init(done, count=1)
    mbarrier.arrive(ready, count=1)
    gl.warp_specialize(
        [
            (_drain, (out_ptr, acc, ready, done, STEPS, M, M, layout)),
            (_issue, (tile, tile.permute((1, 0)), acc, ready, done, STEPS)),
        ],
        [1],
        [24],
    )


def test_a_partition_stores_what_another_multiplies():
    a = draw(128, 64)
    out = jt.kernel(powers)[1](a, STEPS=3, M=128, K=64, out_shape={"out_ptr": like((3, 128, 128), "float32")})
    once = np.asarray(a, np.float32) @ np.asarray(a, np.float32).T
    np.testing.assert_allclose(out, np.arange(1, 4)[:, None, None] * once, rtol=1e-3, atol=1e-3)


@gluon.jit
def through_tensor_memory(x_ptr, out_ptr, M: gl.constexpr, N: gl.constexpr):
    """Swaps the halves of a matrix in tensor memory."""
    copied: gl.constexpr = gl.BlockedLayout([1, 4], [2, 16], [4, 1], [1, 0])
    layout: gl.constexpr = TensorMemoryLayout([M, N], col_stride=1)
    half: gl.constexpr = TensorMemoryLayout([M, N // 2], col_stride=1)
    rows = gl.arange(0, M, gl.SliceLayout(1, copied))
    columns = gl.arange(0, N // 2, gl.SliceLayout(0, copied))
    places = rows[:, None] * N + columns[None, :]
    memory = allocate_tensor_memory(gl.float32, [M, N], layout)
    left, right = memory.slice(0, N // 2), memory.slice(N // 2, N // 2)
    registers = _load(left, M, N // 2, half)
    left.store(_like(gl.load(x_ptr + places + N // 2), registers))
    right.store(_like(gl.load(x_ptr + places), registers))
    gl.store(out_ptr + places, gl.convert_layout(_load(left, M, N // 2, half), copied))
    gl.store(out_ptr + places + N // 2, gl.convert_layout(_load(right, M, N // 2, half), copied))


@gluon.jit
def _like(value, other):
    return gl.convert_layout(value, other.type.layout)


def test_slices_of_tensor_memory():
    x = draw(128, 64, dtype="float32")
    out = jt.kernel(through_tensor_memory)[1](x, M=128, N=64, out_shape={"out_ptr": x})
    np.testing.assert_array_equal(out, np.roll(x, 32, axis=1))
