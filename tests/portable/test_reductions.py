"""Reductions, scans and the operations that move elements."""

import jax.numpy as jnp
import numpy as np
import pytest
import triton
import triton.language as tl

from tests.portable.launching import launch


@triton.jit
def reductions(x, out, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    i, j = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    v = tl.load(x + i[:, None] * COLUMNS + j[None, :])
    tl.store(out + j, tl.sum(v, axis=0))
    tl.store(out + COLUMNS + j, tl.max(v, axis=0))
    tl.store(out + 2 * COLUMNS + j, tl.min(v, axis=0))
    tl.store(out + 3 * COLUMNS + i, tl.sum(v, axis=1))
    tl.store(out + 4 * COLUMNS + i, tl.argmax(v, axis=1))
    tl.store(out + 5 * COLUMNS + i, tl.argmin(v, axis=1))
    tl.store(out + 6 * COLUMNS + i, tl.xor_sum(v.to(tl.int32), axis=1))


def test_reductions_agree_with_numpy_and_ties_go_to_the_first():
    x = np.random.default_rng(0).integers(-3, 3, (16, 16)).astype(np.float32)
    out = launch(reductions, (1,), x, jnp.zeros(112, jnp.float32), written=[1], ROWS=16, COLUMNS=16)
    expected = [x.sum(0), x.max(0), x.min(0), x.sum(1), x.argmax(1), x.argmin(1)]
    expected.append(np.bitwise_xor.reduce(x.astype(np.int32), axis=1))
    np.testing.assert_array_equal(out.reshape(7, 16), expected)


@triton.jit
def compose(a0, b0, a1, b1):
    return a0 * a1, b0 * a1 + b1


@triton.jit
def affine(a, b, out, BLOCK: tl.constexpr, REVERSE: tl.constexpr):
    p = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    va, vb = tl.load(a + p * BLOCK + i), tl.load(b + p * BLOCK + i)
    ra, rb = tl.reduce((va, vb), 0, compose)
    sa, sb = tl.associative_scan((va, vb), 0, compose, reverse=REVERSE)
    base = out + p * (4 * BLOCK)
    tl.store(base + i, ra)
    tl.store(base + BLOCK + i, rb)
    tl.store(base + 2 * BLOCK + i, sa)
    tl.store(base + 3 * BLOCK + i, sb)


def test_combine_regions_may_have_several_operands_and_need_not_commute():
    a, b = np.random.default_rng(0).integers(1, 3, (2, 3, 8)).astype(np.int32)
    out = np.asarray(
        launch(affine, (3,), a, b, jnp.zeros(96, jnp.int32), written=[2], BLOCK=8, REVERSE=False)
    )
    out = out.reshape(3, 4, 8)
    for p in range(3):
        scanned, total = [], (1, 0)
        for x, y in zip(a[p], b[p], strict=True):
            total = (total[0] * x, total[1] * x + y)
            scanned.append(total)
        np.testing.assert_array_equal(out[p, :2, 0], total)
        np.testing.assert_array_equal(out[p, 2:].T, scanned)


@triton.jit
def scans(x, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    v = tl.load(x + i)
    tl.store(out + i, tl.cumsum(v, 0))
    tl.store(out + BLOCK + i, tl.cumprod(v, 0))
    tl.store(out + 2 * BLOCK + i, tl.cumsum(v, 0, reverse=True))
    tl.store(out + 3 * BLOCK + i, tl.sort(v))
    tl.store(out + 4 * BLOCK + i, tl.flip(v, 0))


def test_scans_and_sort_agree_with_numpy():
    x = np.random.default_rng(0).integers(-3, 4, 32).astype(np.int32)
    out = launch(scans, (1,), x, jnp.zeros(160, jnp.int32), written=[1], BLOCK=32)
    expected = [x.cumsum(), x.cumprod(), x[::-1].cumsum()[::-1], np.sort(x), x[::-1]]
    np.testing.assert_array_equal(out.reshape(5, 32), expected)


@triton.jit
def moves(x, index, out, counts, BLOCK: tl.constexpr, BINS: tl.constexpr):
    p = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    v, places = tl.load(x + p * BLOCK + i), tl.load(index + p * BLOCK + i)
    even, odd = tl.split(tl.reshape(v, (BLOCK // 2, 2)))
    half = tl.arange(0, BLOCK // 2)
    base = out + p * 6 * BLOCK
    tl.store(base + half, even)
    tl.store(base + BLOCK // 2 + half, odd)
    tl.store(base + BLOCK + i, tl.interleave(odd, even))
    tl.store(base + 2 * BLOCK + i, tl.gather(v, places, 0))
    tl.store(base + 3 * BLOCK + i, tl.reshape(tl.trans(tl.reshape(v, (BLOCK // 2, 2))), (BLOCK,)))
    tl.store(base + 4 * BLOCK + tl.arange(0, 2 * BLOCK), tl.cat(v, v + 1, can_reorder=True))
    tl.store(counts + p * BINS + tl.arange(0, BINS), tl.histogram(places, BINS))


@pytest.mark.filterwarnings("ignore:tl.cat.can_reorder=True. is deprecated")
def test_elements_move_as_in_numpy():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 99, (2, 8)).astype(np.int32)
    index = rng.integers(0, 8, (2, 8)).astype(np.int32)
    out, counts = launch(
        moves,
        (2,),
        x,
        index,
        jnp.zeros(96, jnp.int32),
        jnp.zeros(16, jnp.int32),
        written=[2, 3],
        BLOCK=8,
        BINS=8,
    )
    for p in range(2):
        pairs = x[p].reshape(4, 2)
        expected = [pairs.T, pairs[:, ::-1], x[p][index[p]], pairs.T, x[p], x[p] + 1]
        np.testing.assert_array_equal(
            out.reshape(2, 48)[p], np.concatenate([e.reshape(-1) for e in expected])
        )
        np.testing.assert_array_equal(counts.reshape(2, 8)[p], np.bincount(index[p], minlength=8))


@triton.jit
def largest(x, out, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    i, j = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    v = tl.load(x + i[:, None] * COLUMNS + j[None, :])
    tl.store(out + i, tl.max(v, axis=1))
    tl.store(out + ROWS + i, tl.min(v, axis=1))


def test_largest_and_smallest_skip_nan():
    x = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)
    x[0, 1:3], x[1], x[2, 0] = np.nan, np.nan, -np.inf
    out = launch(largest, (1,), x, jnp.zeros(8, jnp.float32), written=[1], ROWS=4, COLUMNS=8)
    np.testing.assert_array_equal(out.reshape(2, 4), [np.fmax.reduce(x, axis=1), np.fmin.reduce(x, axis=1)])
