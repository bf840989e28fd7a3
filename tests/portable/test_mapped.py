"""Functions of scalars inside tensor operations: mapped, or as combine functions, with control flow."""

import jax.numpy as jnp
import numpy as np
import pytest
import triton
import triton.language as tl

from tests.portable.launching import launch


@triton.jit
def collatz_steps(n, limit):
    steps = 0
    while n != 1 and steps < limit:
        if n % 2 == 0:  # noqa: SIM108
            n = n // 2
        else:
            n = 3 * n + 1
        steps += 1
    return steps


@triton.jit
def summed_up_to(n, limit):
    total = 0
    for k in range(n):
        if k == limit:
            total += 1000
        total += k
    return total


@triton.jit
def mapped_collatz(x, limit, out, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.map_elementwise(collatz_steps, tl.load(x + i), tl.load(limit + i)))


@triton.jit
def mapped_sum(x, limit, out, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.map_elementwise(summed_up_to, tl.load(x + i), tl.load(limit + i)))


def steps(n, limit):
    count = 0
    while n != 1 and count < limit:
        n, count = n // 2 if n % 2 == 0 else 3 * n + 1, count + 1
    return count


@pytest.mark.parametrize("programs", [1, 2])
@pytest.mark.parametrize(
    ("kernel", "reference"),
    [(mapped_collatz, steps), (mapped_sum, lambda n, limit: sum(range(n)) + 1000 * (limit < n))],
)
def test_mapped_functions_may_loop_differently_often_for_each_element(kernel, reference, programs):
    x = np.random.default_rng(0).integers(1, 40, 16).astype(np.int32)
    limit = np.random.default_rng(1).integers(0, 60, 16).astype(np.int32)
    out = launch(
        kernel, (programs,), x, limit, jnp.zeros(16, jnp.int32), written=[2], BLOCK=16 // programs
    )  # fmt: skip
    np.testing.assert_array_equal(out, [reference(int(n), int(k)) for n, k in zip(x, limit, strict=True)])


@triton.jit
def swapped_pairs(a0, a1, b0, b1):
    if a0 > a1:
        return a1 + tl.program_id(0), a0, b1, b0
    return a0, a1, b0, b1


@triton.jit
def pairs(x, y, out, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a, b = tl.map_elementwise(swapped_pairs, tl.load(x + i), tl.load(y + i), pack=2)
    tl.store(out + i, a)
    tl.store(out + tl.num_programs(0) * BLOCK + i, b)


def test_packs_are_consecutive_elements():
    x, y = np.random.default_rng(0).integers(0, 99, (2, 16)).astype(np.int32)
    out = np.asarray(launch(pairs, (2,), x, y, jnp.zeros(32, jnp.int32), written=[2], BLOCK=8))
    first, second = x.copy().reshape(8, 2), y.copy().reshape(8, 2)
    for row in range(8):
        if first[row, 0] > first[row, 1]:
            first[row] = first[row, ::-1] + [row // 4, 0]
            second[row] = second[row, ::-1]
    np.testing.assert_array_equal(out.reshape(2, 8, 2), [first, second])


@triton.jit
def gcd(a, b):
    while b != 0:
        a, b = b, a % b
    return a


@triton.jit
def combined(x, out, scanned, BLOCK: tl.constexpr, REVERSE: tl.constexpr):
    p = tl.program_id(0)
    i = p * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i)
    tl.store(out + p, tl.reduce(v, 0, gcd))
    tl.store(scanned + i, tl.associative_scan(v, 0, gcd, reverse=REVERSE))


@pytest.mark.parametrize("programs", [1, 3])
@pytest.mark.parametrize("reverse", [False, True])
def test_combine_functions_may_loop(reverse, programs):
    x = np.random.default_rng(0).integers(1, 9, (programs, 8)).astype(np.int32) * 12
    out, scanned = launch(
        combined, (programs,), x, jnp.zeros(programs, jnp.int32), jnp.zeros_like(x), written=[1, 2],
        BLOCK=8, REVERSE=reverse,
    )  # fmt: skip
    np.testing.assert_array_equal(out, np.gcd.reduce(x, axis=1))
    ordered = x[:, ::-1] if reverse else x
    running = np.gcd.accumulate(ordered, axis=1)
    np.testing.assert_array_equal(scanned, running[:, ::-1] if reverse else running)
