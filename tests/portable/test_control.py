"""Loops, branches and early returns."""

import jax.numpy as jnp
import numpy as np
import pytest
import triton
import triton.language as tl

from jtprim.lowering.portable import execute
from tests.portable.launching import launch


@triton.jit
def triangular(x, out, n):
    p = tl.program_id(0)
    total = 0.0
    for k in range(p, n, 2):
        total += tl.load(x + k)
    tl.store(out + p, total)


def test_a_loop_may_run_differently_often_in_each_program():
    x = np.arange(10, dtype=np.float32)
    out = launch(triangular, (12,), x, jnp.zeros(12, jnp.float32), 10, written=[1])
    np.testing.assert_array_equal(out, [x[p::2].sum() for p in range(12)])


@triton.jit
def counted_by_memory(counts, out, BLOCK: tl.constexpr):
    p = tl.program_id(0)
    total = tl.zeros([BLOCK], tl.int32)
    for k in range(tl.load(counts + p)):
        total += k
    tl.store(out + p * BLOCK + tl.arange(0, BLOCK), total)


def test_trip_counts_may_come_from_memory():
    counts = np.array([3, 0, 7, 1, 5], np.int32)
    out = launch(counted_by_memory, (5,), counts, jnp.zeros(20, jnp.int32), written=[1], BLOCK=4)
    np.testing.assert_array_equal(out, np.repeat(counts * (counts - 1) // 2, 4))


@triton.jit
def collatz(x, out):
    p = tl.program_id(0)
    n = tl.load(x + p)
    steps = 0
    while n != 1:
        if n % 2 == 0:  # noqa: SIM108
            n = n // 2
        else:
            n = 3 * n + 1
        steps += 1
    tl.store(out + p, steps)


def test_while_loops_end_when_the_last_program_does():
    x = np.array([1, 2, 3, 6, 7, 27], np.int32)
    out = launch(collatz, (6,), x, jnp.zeros(6, jnp.int32), written=[1])
    np.testing.assert_array_equal(out, [0, 1, 7, 8, 16, 111])


@triton.jit
def returns_early(x, out, n):
    p = tl.program_id(0)
    if p >= n:
        return
    v = tl.load(x + p)
    if v < 0:
        tl.store(out + p, -1.0)
        return
    tl.store(out + p, v * 2)


@pytest.mark.parametrize("n", [0, 3, 8])
def test_programs_that_return_early_store_nothing_more(n):
    x = np.array([1, -2, 3, -4, 5, -6, 7, -8], np.float32)
    out = launch(returns_early, (8,), x, jnp.full(8, 9, jnp.float32), n, written=[1])
    np.testing.assert_array_equal(out, np.where(np.arange(8) < n, np.where(x < 0, -1, 2 * x), 9))


@triton.jit
def returns_from_branches(x, out, n):
    p = tl.program_id(0)
    if p >= n:
        return
    v = tl.load(x + p)
    if v < 0:
        if v < -4:
            return
        v = -v
    else:
        if v > 5:
            return
    tl.store(out + p, v * 2)


def test_early_returns_may_share_a_block():
    x = np.array([1, -2, 3, -4, 5, -6, 7, -8], np.float32)
    out = launch(returns_from_branches, (8,), x, jnp.full(8, 9, jnp.float32), 7, written=[1])
    left = (np.arange(8) >= 7) | (x < -4) | (x > 5)
    np.testing.assert_array_equal(out, np.where(left, 9, 2 * np.abs(x)))


# Blocks after the first stand in any order in MLIR: here one that both branches jump to comes before them.
SHUFFLED = """
"builtin.module"() ({
  "tt.func"() <{function_type = (!tt.ptr<f32>) -> (), sym_name = "shuffled"}> ({
  ^bb0(%out: !tt.ptr<f32>):
    %p = "tt.get_program_id"() <{axis = 0 : i32}> : () -> i32
    %two = "arith.constant"() <{value = 2 : i32}> : () -> i32
    %low = "arith.cmpi"(%p, %two) <{predicate = 2 : i64}> : (i32, i32) -> i1
    "cf.cond_br"(%low)[^done, ^next] <{operandSegmentSizes = array<i32: 1, 0, 0>}> : (i1) -> ()
  ^done:
    "tt.return"() : () -> ()
  ^store:
    "tt.store"(%place, %value) <{boundaryCheck = array<i32>}> : (!tt.ptr<f32>, f32) -> ()
    "cf.br"()[^done] : () -> ()
  ^next:
    %place = "tt.addptr"(%out, %p) : (!tt.ptr<f32>, i32) -> !tt.ptr<f32>
    %value = "arith.sitofp"(%p) : (i32) -> f32
    %five = "arith.constant"() <{value = 5 : i32}> : () -> i32
    %high = "arith.cmpi"(%p, %five) <{predicate = 5 : i64}> : (i32, i32) -> i1
    "cf.cond_br"(%high)[^done, ^store] <{operandSegmentSizes = array<i32: 1, 0, 0>}> : (i1) -> ()
  }) : () -> ()
}) : () -> ()
"""


def test_blocks_run_in_the_order_of_control_flow():
    (out,) = execute(SHUFFLED, (8, 1, 1), [jnp.full(8, 9, jnp.float32)], [0], kernel="shuffled")
    np.testing.assert_array_equal(out, [9, 9, 2, 3, 4, 9, 9, 9])


@triton.jit
def nested(x, out, n, BLOCK: tl.constexpr):
    p = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for k in range(n):
        if (p + k) % 2 == 0:
            for j in range(k):
                total += tl.load(x + j * BLOCK + i)
        else:
            total -= 1.0
            tl.store(out + p * BLOCK + i, total)
    tl.store(out + p * BLOCK + i, total)


def test_loops_and_branches_nest():
    x = np.random.default_rng(0).integers(0, 9, (5, 4)).astype(np.float32)
    expected = np.zeros((3, 4), np.float32)
    for p in range(3):
        for k in range(5):
            expected[p] += x[:k].sum(0) if (p + k) % 2 == 0 else -1
    out = launch(nested, (3,), x, jnp.zeros(12, jnp.float32), 5, written=[1], BLOCK=4)
    np.testing.assert_array_equal(out, expected.reshape(-1))


@triton.jit
def grid_position(out):
    i, j, k = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    place = (k * tl.num_programs(1) + j) * tl.num_programs(0) + i
    tl.store(out + place, i + 10 * j + 100 * k)


def test_axis_zero_of_the_grid_runs_fastest():
    out = launch(grid_position, (2, 3, 4), jnp.zeros(24, jnp.int32), written=[0])
    k, j, i = np.indices((4, 3, 2))
    np.testing.assert_array_equal(out.reshape(4, 3, 2), i + 10 * j + 100 * k)


@triton.jit(noinline=True)
def scaled(v, s):
    return v * s


@triton.jit
def calls(x, out):
    i = tl.program_id(0)
    tl.store(out + i, scaled(tl.load(x + i), 2.0) + scaled(tl.load(x + i), 3.0))


def test_functions_that_are_not_inlined_are_called():
    x = np.arange(8, dtype=np.float32)
    np.testing.assert_array_equal(launch(calls, (8,), x, jnp.zeros(8, jnp.float32), written=[1]), 5 * x)


@triton.jit
def larger_or_next(a, b):
    if a > b:
        return a
    if a == 0:
        return 7.0
    return b + 1


@triton.jit
def mapped(x, y, out, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.map_elementwise(larger_or_next, tl.load(x + i), tl.load(y + i)))


def test_functions_mapped_over_elements_branch_for_each_element():
    x, y = np.random.default_rng(0).integers(-2, 3, (2, 16)).astype(np.float32)
    out = launch(mapped, (2,), x, y, jnp.zeros(16, jnp.float32), written=[2], BLOCK=8)
    np.testing.assert_array_equal(out, np.where(x > y, x, np.where(x == 0, 7, y + 1)))


@triton.jit
def steps_to_one(n):
    steps = 0
    while n > 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return steps


@triton.jit
def sum_and_difference(a, b, c, d):
    return a + c, b + d, a - c, b - d


@triton.jit
def mapped_in_pairs(x, y, sums, differences, steps, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a, b = tl.load(x + i), tl.load(y + i)
    total, difference = tl.map_elementwise(sum_and_difference, a, b, pack=2)
    tl.store(sums + i, total)
    tl.store(differences + i, difference)
    tl.store(steps + i, tl.map_elementwise(steps_to_one, a))


def test_mapped_functions_may_take_several_elements_and_have_loops():
    x = np.arange(1, 33, dtype=np.int32)
    outs = [jnp.zeros(32, jnp.int32) for _ in range(3)]
    sums, differences, steps = launch(
        mapped_in_pairs, (2,), x, x[::-1].copy(), *outs, written=[2, 3, 4], BLOCK=16
    )
    np.testing.assert_array_equal(sums, x + x[::-1])
    np.testing.assert_array_equal(differences, x - x[::-1])
    expected = []
    for n in x.tolist():
        count = 0
        while n > 1:
            n, count = (n // 2 if n % 2 == 0 else 3 * n + 1), count + 1
        expected.append(count)
    np.testing.assert_array_equal(steps, expected)


@triton.jit
def nearer_to_zero(a, b):
    if tl.abs(a) < tl.abs(b):  # noqa: SIM108
        chosen = a
    else:
        chosen = b
    return chosen


@triton.jit
def combined_with_branches(x, out, running, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i)
    tl.store(out + tl.program_id(0), tl.reduce(value, 0, nearer_to_zero))
    tl.store(running + i, tl.associative_scan(value, 0, nearer_to_zero))


def test_functions_that_combine_may_branch():
    x = np.random.default_rng(0).normal(size=64).astype(np.float32)
    out, running = launch(
        combined_with_branches, (2,), x, jnp.zeros(2), jnp.zeros(64), written=[1, 2], BLOCK=32
    )
    halves = x.reshape(2, 32)
    np.testing.assert_array_equal(out, halves[np.arange(2), np.abs(halves).argmin(1)])
    sizes = np.minimum.accumulate(np.abs(halves), axis=1)
    np.testing.assert_array_equal(np.abs(np.asarray(running).reshape(2, 32)), sizes)
