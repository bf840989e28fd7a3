"""Kernels for AMD GPUs, whose warps have 64 lanes, run without one: buffer operations, MFMA and WMMA."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.amd import AMDMFMALayout, AMDWMMALayout, cdna3, cdna4, rdna3

import jtprim as jt


def draw(*shape, dtype="float32", seed=0):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape, np.float32), jnp.dtype(dtype))


def like(shape, dtype="float32"):
    return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))


# --- Buffer operations ---------------------------------------------------------------------------


@gluon.jit
def add_buffers(x_ptr, y_ptr, out_ptr, n, BLOCK: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([4], [64], [4], [0])
    offsets = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout)
    mask = offsets < n
    x = cdna3.buffer_load(x_ptr, offsets, mask=mask, other=0.0)
    y = cdna3.buffer_load(y_ptr, offsets)
    cdna3.buffer_store(x + y, out_ptr, offsets, mask=offsets < n + 1)


@pytest.mark.parametrize("n", [0, 700, 1024])
def test_buffers_are_loaded_and_stored(n):
    x, y = draw(1024, seed=1), draw(1024, seed=2)
    out = jt.kernel(add_buffers)[1](x, y, n=n, BLOCK=1024, out_shape={"out_ptr": x})
    lanes = np.arange(1024)
    expected = np.where(lanes < n + 1, np.where(lanes < n, x, 0) + y, 0)
    np.testing.assert_array_equal(out, expected)


@gluon.jit
def count(index_ptr, counts_ptr, largest_ptr, BLOCK: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [64], [4], [0])
    offsets = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout)
    index = cdna3.buffer_load(index_ptr, offsets)
    cdna3.buffer_atomic_add(counts_ptr, index, gl.full([BLOCK], 1, gl.uint32, layout), mask=index != 3)
    cdna3.buffer_atomic_max(largest_ptr, index % 4, offsets)


def test_atomics_on_buffers():
    index = np.random.default_rng(5).integers(0, 16, 1024).astype(np.int32)
    counts, largest = jt.kernel(count)[4](
        jnp.asarray(index),
        BLOCK=256,
        out_shape={"counts_ptr": like((16,), "uint32"), "largest_ptr": like((4,), "int32")},
    )
    expected = np.bincount(index, minlength=16)
    expected[3] = 0
    np.testing.assert_array_equal(counts, expected)
    np.testing.assert_array_equal(largest, [np.flatnonzero(index % 4 == i).max() for i in range(4)])


@gluon.jit
def through_shared(x_ptr, out_ptr, n, BLOCK: gl.constexpr):
    """Reverses halves that are copied to shared memory asynchronously, in two ways."""
    layout: gl.constexpr = gl.BlockedLayout([1], [64], [4], [0])
    lanes = gl.arange(0, BLOCK, layout)
    tiles = gl.allocate_shared_memory(gl.float32, [2, BLOCK], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    fill = gl.full([BLOCK], -1.0, gl.float32, layout)
    cdna4.async_copy.buffer_load_to_shared(tiles.index(0), x_ptr, lanes, mask=lanes < n, other=fill)
    cdna4.async_copy.global_load_to_shared(tiles.index(1), x_ptr + BLOCK + lanes)
    cdna4.async_copy.commit_group()
    cdna4.async_copy.wait_group(0)
    cdna3.buffer_store(tiles.index(1).load(layout), out_ptr, lanes)
    cdna3.buffer_store(tiles.index(0).load(layout), out_ptr, lanes + BLOCK)


def test_buffers_are_copied_to_shared_memory():
    x = draw(512)
    out = jt.kernel(through_shared)[1](x, n=200, BLOCK=256, out_shape={"out_ptr": x})
    first = np.where(np.arange(256) < 200, x[:256], -1)
    np.testing.assert_array_equal(out, np.concatenate([x[256:], first]))


# --- Products ------------------------------------------------------------------------------------


@gluon.jit
def multiply_tile(
    a_ptr,
    b_ptr,
    c_ptr,
    M: gl.constexpr,
    N: gl.constexpr,
    K: gl.constexpr,
    KIND: gl.constexpr,
    copied: gl.constexpr,
    product: gl.constexpr,
    WIDTH: gl.constexpr,
):
    left: gl.constexpr = gl.DotOperandLayout(0, product, WIDTH)
    right: gl.constexpr = gl.DotOperandLayout(1, product, WIDTH)
    rows = gl.arange(0, M, gl.SliceLayout(1, copied))
    across = gl.arange(0, K, gl.SliceLayout(0, copied))
    down = gl.arange(0, K, gl.SliceLayout(1, copied))
    columns = gl.arange(0, N, gl.SliceLayout(0, copied))
    a = gl.convert_layout(gl.load(a_ptr + rows[:, None] * K + across[None, :]), left)
    b = gl.convert_layout(gl.load(b_ptr + down[:, None] * N + columns[None, :]), right)
    acc = gl.zeros([M, N], gl.float32, product)
    acc = cdna3.mfma(a, b, acc) if KIND == "mfma" else rdna3.wmma(a, b, acc)
    gl.store(c_ptr + rows[:, None] * N + columns[None, :], gl.convert_layout(acc, copied))


MFMA = AMDMFMALayout(version=3, instr_shape=[32, 32, 8], transposed=True, warps_per_cta=[2, 2])


def wmma_layout():
    try:
        return AMDWMMALayout(version=1, transposed=True, warps_per_cta=[2, 2])
    except TypeError:  # Triton 3.9 asks for the warps' places as bases
        return AMDWMMALayout(version=1, transposed=True, warp_bases=[[0, 1], [1, 0]])


@pytest.mark.parametrize("kind", ["mfma", "wmma"])
def test_products_of_matrix_instructions(kind):
    a, b = draw(64, 32, dtype="float16", seed=1), draw(32, 64, dtype="float16", seed=2)
    lanes = [16, 4] if kind == "mfma" else [8, 4]
    out = jt.kernel(multiply_tile)[1](
        a,
        b,
        M=64,
        N=64,
        K=32,
        KIND=kind,
        copied=gl.BlockedLayout([1, 8], lanes, [4, 1], [1, 0]),
        product=MFMA if kind == "mfma" else wmma_layout(),
        WIDTH=4 if kind == "mfma" else 16,
        out_shape={"c_ptr": like((64, 64))},
    )
    np.testing.assert_allclose(
        out, np.asarray(a, np.float32) @ np.asarray(b, np.float32), rtol=1e-4, atol=1e-4
    )
