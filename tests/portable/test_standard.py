"""Triton's standard library: reductions, scans, sorting and the moving of elements, on several types."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import triton
import triton.language as tl

from tests.portable.launching import launch

TYPES = [np.int8, np.int32, np.uint16, ml_dtypes.bfloat16, np.float32]


@triton.jit
def reduced(x, out, whole, R: tl.constexpr, C: tl.constexpr):
    p = tl.program_id(0)
    v = tl.load(x + p * R * C + tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :])
    i = tl.arange(0, R)
    base = out + p * 2 * R
    tl.store(base + i, tl.max(v, 1))
    tl.store(base + R + i, tl.min(v, 1))
    base = whole + p * 8 * R
    value, place = tl.max(v, 1, return_indices=True)
    tl.store(base + i, place)
    tl.store(base + R + i, tl.argmin(v, 1))
    value, place = tl.max(v, 1, return_indices=True, return_indices_tie_break_left=False)
    tl.store(base + 2 * R + i, (value == tl.max(v, 1)).to(tl.int32))
    tl.store(base + 3 * R + i, tl.argmax(v, 1, keep_dims=True).reshape(R))
    tl.store(base + 4 * R + i, tl.reduce_or((v > 2).to(tl.int32), 1))
    tl.store(base + 5 * R + i, tl.xor_sum((v > 2).to(tl.int32), 1))
    tl.store(base + 6 * R + i, tl.sum((v > 2).to(tl.int1), 1))
    tl.store(base + 7 * R + i, tl.sum(v.to(tl.int32)) + tl.zeros([R], tl.int32))


@pytest.mark.parametrize("dtype", TYPES)
def test_reductions_take_every_type(dtype):
    low = 0 if np.dtype(dtype).kind == "u" else -9
    x = np.random.default_rng(0).integers(low, 9, (2, 4, 16)).astype(dtype)
    out, whole = launch(
        reduced,
        (2,),
        x,
        jnp.zeros((2, 2, 4), dtype),
        jnp.zeros((2, 8, 4), jnp.int32),
        written=[1, 2],
        R=4,
        C=16,
    )
    for p in range(2):
        v = x[p].astype(np.float32)
        np.testing.assert_array_equal(out[p].astype(np.float32), [v.max(1), v.min(1)])
        over = v > 2
        expected = [
            v.argmax(1),
            v.argmin(1),
            np.ones(4),
            v.argmax(1),
            over.any(1),
            over.sum(1) % 2,
            over.sum(1),
        ]
        np.testing.assert_array_equal(whole[p], [*expected, np.full(4, v.sum())])


@triton.jit
def ordered(x, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    p = tl.program_id(0)
    v = tl.load(x + p * BLOCK + i)
    base = out + p * 6 * BLOCK
    tl.store(base + i, tl.sort(v))
    tl.store(base + BLOCK + i, tl.sort(v, descending=True))
    tl.store(base + 2 * BLOCK + i, tl.flip(v, 0))
    square = tl.sort(tl.reshape(v, (BLOCK // 4, 4)), dim=1)
    tl.store(base + 3 * BLOCK + i, tl.reshape(square, (BLOCK,)))
    tl.store(base + 4 * BLOCK + i, tl.ravel(tl.flip(tl.reshape(v, (4, BLOCK // 4)), 0)))
    tl.store(base + 5 * BLOCK + i, tl.gather(v, (i * 7 + 3) % BLOCK, 0))


@pytest.mark.parametrize("dtype", TYPES)
def test_sorting_takes_every_type(dtype):
    low = 0 if np.dtype(dtype).kind == "u" else -90
    x = np.random.default_rng(0).integers(low, 90, (2, 16)).astype(dtype)
    out = np.asarray(launch(ordered, (2,), x, jnp.zeros((2, 6, 16), dtype), written=[1], BLOCK=16))
    for p in range(2):
        v = x[p]
        expected = [np.sort(v), np.sort(v)[::-1], v[::-1], np.sort(v.reshape(4, 4), 1).ravel()]
        expected += [v.reshape(4, 4)[::-1].ravel(), v[(np.arange(16) * 7 + 3) % 16]]
        np.testing.assert_array_equal(out[p].astype(np.float32), np.array(expected).astype(np.float32))


@triton.jit
def largest(x, out, K: tl.constexpr, BLOCK: tl.constexpr):
    tl.store(out + tl.arange(0, K), tl.topk(tl.load(x + tl.arange(0, BLOCK)), K))


def test_topk_gives_the_largest_in_order():
    x = np.random.default_rng(0).permutation(32).astype(np.float32)
    out = launch(largest, (1,), x, jnp.zeros(4, jnp.float32), written=[1], K=4, BLOCK=32)
    np.testing.assert_array_equal(out, [31, 30, 29, 28])


@triton.jit
def first(a, b):
    return a


@triton.jit
def nonzero_last(a, b):
    return tl.where(b == 0, a, b)


@triton.jit
def scanned(x, out, R: tl.constexpr, C: tl.constexpr, REVERSE: tl.constexpr):
    at = tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :]
    p = tl.program_id(0)
    v = tl.load(x + p * R * C + at)
    base = out + p * 5 * R * C + at
    tl.store(base, tl.cumsum(v, 1, reverse=REVERSE))
    tl.store(base + R * C, tl.cumprod(v, 0, reverse=REVERSE))
    tl.store(base + 2 * R * C, tl.associative_scan(v, 1, first, reverse=REVERSE))
    tl.store(base + 3 * R * C, tl.associative_scan(v, 1, nonzero_last, reverse=REVERSE))
    tl.store(base + 4 * R * C, tl.associative_scan(v, 0, tl.maximum, reverse=REVERSE) if C < 0 else v)


def running(x, axis, function, reverse):
    x = np.flip(x, axis) if reverse else x
    rows = list(np.moveaxis(x, axis, 0))
    for k in range(1, len(rows)):
        rows[k] = function(rows[k - 1], rows[k]).astype(x.dtype)
    result = np.moveaxis(np.array(rows), 0, axis)
    return np.flip(result, axis) if reverse else result


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_scans_run_either_way_along_any_axis(dtype, reverse):
    x = np.random.default_rng(0).integers(-2, 3, (2, 4, 8)).astype(dtype)
    out = launch(scanned, (2,), x, jnp.zeros((2, 5, 4, 8), dtype), written=[1], R=4, C=8, REVERSE=reverse)
    for p in range(2):
        expected = [
            running(x[p], 1, np.add, reverse),
            running(x[p], 0, np.multiply, reverse),
            running(x[p], 1, lambda a, b: a, reverse),
            running(x[p], 1, lambda a, b: np.where(b == 0, a, b), reverse),
            x[p],
        ]
        np.testing.assert_array_equal(out[p], expected)


@triton.jit
def moved(x, out, whole, rows, columns, BLOCK: tl.constexpr):
    p = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    v = tl.load(x + p * BLOCK + i)
    base = out + p * 6 * BLOCK
    cube = tl.reshape(v, (2, BLOCK // 4, 2))
    tl.store(base + i, tl.ravel(tl.permute(cube, (2, 0, 1))))
    left, right = tl.split(cube)
    tl.store(base + BLOCK + i, tl.ravel(tl.join(right, left)))
    tl.store(base + 2 * BLOCK + i, tl.ravel(tl.interleave(left, right)))
    tl.store(base + 3 * BLOCK + i, tl.softmax(v))
    tl.store(base + 4 * BLOCK + i, tl.sigmoid(v) + tl.zeros_like(v))
    tl.store(base + 5 * BLOCK + i, tl.ravel(tl.trans(tl.reshape(v, (BLOCK // 2, 2)))))
    a, b = tl.swizzle2d(i // columns, i % columns, rows, columns, 2)
    tl.store(whole + p * 3 * BLOCK + i, a * 100 + b)
    counts = tl.histogram((v * 2).to(tl.int32), BLOCK, mask=i % 3 == 0)
    tl.store(whole + p * 3 * BLOCK + BLOCK + i, counts)
    hinted = tl.max_constancy(tl.max_contiguous(tl.multiple_of(i, [1]), [1]), [1])
    tl.assume(p >= 0)
    tl.static_assert(BLOCK > 2)
    tl.debug_barrier()
    tl.store(whole + p * 3 * BLOCK + 2 * BLOCK + i, tl.cdiv(hinted, 3))


def swizzled(i, j, rows, columns, group):
    ij = i * columns + j
    first = ij // (group * columns) * group
    size = min(rows - first, group)
    inside = ij % (group * columns)
    return first + inside % size, inside // size


def test_elements_are_moved_and_counted_as_in_numpy():
    x = np.random.default_rng(0).random((2, 16)).astype(np.float32) * 7
    out, whole = launch(
        moved, (2,), x, jnp.zeros((2, 6, 16), jnp.float32), jnp.zeros((2, 3, 16), jnp.int32), 4, 4,
        written=[1, 2], BLOCK=16,
    )  # fmt: skip
    for p in range(2):
        v = x[p]
        cube = v.reshape(2, 4, 2)
        np.testing.assert_array_equal(out[p, 0], cube.transpose(2, 0, 1).ravel())
        np.testing.assert_array_equal(out[p, 1], cube[..., ::-1].ravel())
        np.testing.assert_array_equal(out[p, 2], v)
        np.testing.assert_allclose(out[p, 3], np.exp(v - v.max()) / np.exp(v - v.max()).sum(), rtol=1e-5)
        np.testing.assert_allclose(out[p, 4], 1 / (1 + np.exp(-v)), rtol=1e-5)
        np.testing.assert_array_equal(out[p, 5], v.reshape(8, 2).T.ravel())
        places = [swizzled(k // 4, k % 4, 4, 4, 2) for k in range(16)]
        np.testing.assert_array_equal(whole[p, 0], [a * 100 + b for a, b in places])
        np.testing.assert_array_equal(whole[p, 1], np.bincount((v * 2).astype(int)[::3], minlength=16))
        np.testing.assert_array_equal(whole[p, 2], -(-np.arange(16) // 3))


@triton.jit
def atomics(x, out, old, N: tl.constexpr, BLOCK: tl.constexpr, USED: tl.constexpr):
    p = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    v = tl.load(x + p * BLOCK + i)
    mask = v != 3
    a = tl.atomic_add(out + i % N, v, mask=mask)
    b = tl.atomic_max(out + N + i % N, v, mask=mask, sem="relaxed")
    c = tl.atomic_min(out + 2 * N + i % N, v, mask=mask, scope="cta")
    if USED:
        tl.store(old + p * 3 * BLOCK + i, a)
        tl.store(old + p * 3 * BLOCK + BLOCK + i, b)
        tl.store(old + p * 3 * BLOCK + 2 * BLOCK + i, c)


@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.float32, np.int64, np.uint64, np.float64])
def test_atomics_add_and_compare_as_their_type_does(dtype, used):
    """Which of the lanes of one program that collide comes first is undefined: of floats, the positive."""
    N = 8 if used else 4
    signs = 0 if np.dtype(dtype).kind == "u" else -9
    with jax.enable_x64(True):
        x = np.random.default_rng(0).integers(signs, 9, (3, 8)).astype(dtype)
        start = np.random.default_rng(1).integers(signs, 9, (3, N)).astype(dtype)
        out, old = (
            launch(
                atomics, (3,), x, start, jnp.zeros((3, 3, 8), dtype), written=[1, 2], N=N, BLOCK=8, USED=used
            )
            if used
            else (launch(atomics, (3,), x, start, start, written=[1], N=N, BLOCK=8, USED=used), None)
        )
    expected, before = start.copy(), np.zeros((3, 3, 8), dtype)
    for p in range(3):
        for k, function in enumerate((np.add, np.maximum, np.minimum)):
            for lane in range(8):
                before[p, k, lane] = expected[k, lane % N]
                if x[p, lane] != 3:
                    expected[k, lane % N] = function(expected[k, lane % N], x[p, lane])
    np.testing.assert_array_equal(out, expected)
    if used:
        kept = np.broadcast_to((x != 3)[:, None], before.shape)
        np.testing.assert_array_equal(np.asarray(old)[kept], before[kept])


@triton.jit
def halves(x, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.atomic_add(out + i % 2, tl.load(x + tl.program_id(0) * BLOCK + i))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_atomics_add_floats_of_16_bits(dtype):
    x = np.random.default_rng(0).integers(0, 5, (3, 8)).astype(dtype)
    out = launch(halves, (3,), x, jnp.zeros(2, dtype), written=[1], BLOCK=8)
    np.testing.assert_array_equal(out, x.reshape(-1, 2).astype(np.float32).sum(0).astype(dtype))


@triton.jit
def locked(lock, count, out):
    """Programs take a lock in turn; the last one waits for all others."""
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    n = tl.load(count)
    tl.store(out + tl.program_id(0), n * 10)
    tl.store(count, n + 1)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)
    if tl.program_id(0) == tl.num_programs(0) - 1:
        while tl.atomic_add(count, 0) < tl.num_programs(0):
            pass
        tl.store(out + tl.num_programs(0), 1)


def test_locks_that_earlier_programs_release_are_taken():
    zero = jnp.zeros(1, jnp.int32)
    lock, count, out = launch(locked, (4,), zero, zero, jnp.zeros(5, jnp.int32), written=[0, 1, 2])
    assert lock[0] == 0 and count[0] == 4
    np.testing.assert_array_equal(out, [0, 10, 20, 30, 1])


@triton.jit
def handed_on(flags, data, out, BLOCK: tl.constexpr):
    """Each program waits for the one before it."""
    p = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    seen = p == 0
    if p > 0:
        seen = tl.atomic_poll(flags + p - 1, 1)
    total = tl.atomic_load(data + i, mask=i < 3, sem="acquire")
    tl.store(out + p * BLOCK + i, tl.where(i < 3, total, -1))
    tl.atomic_store(data + i, total + p + 1, mask=i != 1)
    tl.atomic_store(flags + p, seen.to(tl.int32))
    tl.store(out + tl.num_programs(0) * BLOCK + p, tl.atomic_poll(flags + p, 2, timeout_ns=10).to(tl.int32))


@pytest.mark.skipif(not hasattr(tl, "atomic_poll"), reason="new in Triton 3.9")
def test_programs_may_wait_for_earlier_ones():
    flags, data, out = launch(
        handed_on, (4,), jnp.zeros(4, jnp.int32), jnp.zeros(4, jnp.int32), jnp.zeros(20, jnp.int32),
        written=[0, 1, 2], BLOCK=4,
    )  # fmt: skip
    np.testing.assert_array_equal(flags, np.ones(4))
    np.testing.assert_array_equal(
        out[:16].reshape(4, 4), [[0, 0, 0, -1], [1, 0, 1, -1], [3, 0, 3, -1], [6, 0, 6, -1]]
    )
    np.testing.assert_array_equal(out[16:], np.zeros(4))
    np.testing.assert_array_equal(data[:3], [10, 0, 10])


@triton.jit
def quotients(x, y, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    a, b = tl.load(x + i), tl.load(y + i)
    tl.store(out + i, tl.fdiv(a, b))
    tl.store(out + BLOCK + i, tl.fdiv(a, b, ieee_rounding=True))
    tl.store(out + 2 * BLOCK + i, tl.div_rn(a, b))
    tl.store(out + 3 * BLOCK + i, a / b)
    tl.store(out + 4 * BLOCK + i, a % b)


def test_every_division_is_the_quotient():
    x, y = np.random.default_rng(0).normal(size=(2, 32)).astype(np.float32)
    out = launch(quotients, (1,), x, y, jnp.zeros((5, 32), jnp.float32), written=[2], BLOCK=32)
    np.testing.assert_array_equal(out, [x / y] * 4 + [np.fmod(x, y)])
