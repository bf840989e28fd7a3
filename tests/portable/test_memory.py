"""Addresses, stores and atomics: what programs see of each other, and which of them run at once."""

import functools

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import triton
import triton.language as tl
from hypothesis import given, settings

from jtprim.errors import LaunchValueError, UnsupportedError
from jtprim.lowering.portable import execute
from jtprim.lowering.portable.analysis import analyse
from jtprim.lowering.portable.strategy import choose_strategy
from jtprim.lowering.portable.windows import _program_axes
from jtprim.specialize.reader import read
from tests.portable import launching
from tests.portable.launching import compiled, is_typed, launch, scalar


def strategy(kernel, grid, *arguments, **constexprs):
    module = read(compiled(kernel, *arguments, **constexprs))
    facts = analyse(module, (*grid, 1, 1)[:3], [scalar(a) for a in arguments])
    return choose_strategy(facts, [np.size(a) if is_typed(a) else 0 for a in arguments])


@triton.jit
def increment(x, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(x + offsets, tl.load(x + offsets, mask=mask) + 1, mask=mask)


@pytest.mark.parametrize("n", [1, 8, 37])
def test_a_kernel_may_work_in_place(n):
    x = np.arange(n, dtype=np.float32)
    grid = (-(-n // 8),)
    np.testing.assert_array_equal(launch(increment, grid, x, n, written=[0], BLOCK=8), x + 1)
    assert strategy(increment, grid, x, n, BLOCK=8).vectorised


@triton.jit
def chain(x):
    p = tl.program_id(0)
    tl.store(x + p + 1, tl.load(x + p) * 2)


def test_a_program_reads_what_the_one_before_wrote():
    x = np.zeros(21, np.float32)
    x[0] = 1
    np.testing.assert_array_equal(launch(chain, (20,), x, written=[0]), 2.0 ** np.arange(21))
    assert not strategy(chain, (20,), x).vectorised


@triton.jit
def same_place(out):
    tl.store(out, tl.program_id(0))


@triton.jit
def same_block(x, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + tl.program_id(0) * BLOCK + i))


def test_where_programs_collide_the_last_one_wins():
    assert launch(same_place, (1000,), jnp.zeros(1, jnp.int32), written=[0]) == 999
    x = np.random.default_rng(0).normal(size=(50, 16)).astype(np.float32)
    out = launch(same_block, (50,), x, jnp.zeros(16, jnp.float32), written=[1], BLOCK=16)
    np.testing.assert_array_equal(out, x[-1])
    found = strategy(same_block, (50,), x, np.zeros(16, np.float32), BLOCK=16)
    assert found.vectorised and not found.unique


@triton.jit
def one_stores(x, out, WHO: tl.constexpr):
    p = tl.program_id(0)
    if p == WHO:
        tl.store(out, tl.load(x + p))


def test_the_one_program_that_stores_is_the_one_that_counts():
    x = np.arange(8, dtype=np.float32) + 1
    assert launch(one_stores, (8,), x, jnp.zeros(1, jnp.float32), written=[1], WHO=3) == 4
    assert launch(one_stores, (8,), x, jnp.zeros(0, jnp.float32), written=[1], WHO=3).shape == (0,)


@triton.jit
def swaps(a, b, n):
    source, target = a, b
    for _ in range(n):
        tl.store(target, tl.load(source) + 1)
        source, target = target, source


@pytest.mark.parametrize("n", [0, 1, 2, 3, 6])
def test_pointers_may_swap_arrays_in_a_loop(n):
    a, b = np.float32([3]), np.float32([7])
    for count in (n, np.array([n], np.int32)):  # known as the kernel is translated, and not
        found = launch(swaps if count is n else swaps_as_told, (1,), a, b, count, written=[0, 1])
        np.testing.assert_array_equal(np.ravel(found), [3 + n - n % 2, 3 + n - 1 + n % 2] if n else [3, 7])


@triton.jit
def swaps_as_told(a, b, count):
    source, target = a, b
    n = tl.load(count)
    while n > 0:
        tl.store(target, tl.load(source) + 1)
        source, target = target, source
        n -= 1


@triton.jit
def of_two(x, y, out, n, KIND: tl.constexpr, BLOCK: tl.constexpr):
    p = tl.program_id(0)
    i = p * BLOCK + tl.arange(0, BLOCK)
    if KIND == "programs":  # a branch that the program decides
        if p % 2 == 0:  # noqa: SIM108
            source = x
        else:
            source = y + 1
        tl.store(out + i, tl.load(source + i, mask=i < n), mask=i < n)
    elif KIND == "data":
        source = x if tl.load(x) > 0 else y
        tl.store(out + i, tl.load(source + n - 1 - i, mask=i < n), mask=i < n)
    elif KIND == "lanes":
        source = tl.where(i % 3 == 0, x + i, y + n - 1 - i)
        tl.store(out + i, tl.load(source, mask=i < n, other=-1), mask=i < n)
    elif KIND == "three":
        source = tl.where(i % 3 == 0, x + i, y + n - 1 - i)
        source = tl.where(i % 5 == 0, out + i, source)
        tl.store(out + i, 1 + tl.load(source, mask=i < n, other=-1), mask=i < n)
    elif KIND == "rows":  # chosen, then spread, moved and reshaped
        source = (x if p % 2 == 0 else y) + tl.arange(0, 2)[:, None] * (BLOCK // 2)
        source = tl.reshape(source + p * BLOCK + tl.arange(0, BLOCK // 2)[None, :], (BLOCK,))
        tl.store(out + i, tl.load(source, mask=i < n), mask=i < n)


def chosen(kind, x, y, out, i, block):
    n, p = len(i), i // block
    return {
        "programs": lambda: np.where(p % 2 == 0, x[i], y[np.minimum(i + 1, len(y) - 1)]),
        "data": lambda: (x if x[0] > 0 else y)[n - 1 - i],
        "rows": lambda: np.where(p % 2 == 0, x[i], y[i]),
        "lanes": lambda: np.where(i % 3 == 0, x[i], y[n - 1 - i]),
        "three": lambda: 1 + np.where(i % 5 == 0, out, np.where(i % 3 == 0, x[i], y[n - 1 - i])),
    }[kind]()


@pytest.mark.parametrize("kind", ["programs", "data", "lanes", "three", "rows"])
@pytest.mark.parametrize("n", [1, 8, 61])
@pytest.mark.parametrize("sign", [-1, 1])
def test_loads_from_one_of_several_arrays(kind, n, sign):
    random = np.random.default_rng(n)
    x, y = (sign * random.uniform(1, 2, n + k).astype(np.float32) for k in (0, 1))
    out = random.normal(size=n).astype(np.float32)
    y = y if kind == "programs" else y[:n]
    found = launch(of_two, (-(-n // 8),), x, y, out, n, written=[2], KIND=kind, BLOCK=8)
    np.testing.assert_array_equal(found, chosen(kind, x, y, out, np.arange(n), 8))


@triton.jit
def into_two(x, one, other, old, n, KIND: tl.constexpr, BLOCK: tl.constexpr):
    p = tl.program_id(0)
    i = p * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n)
    if KIND == "store":
        target = one if p % 2 == 0 else other
        tl.store(target + i, v, mask=i < n)
    elif KIND == "lanes":
        tl.store(tl.where(v > 0, one + i, other + i), v, mask=i < n)
    elif KIND == "add":
        tl.atomic_add(tl.where(v > 0, one, other) + i // 4, v, mask=i < n)
    elif KIND == "exchange":
        before = tl.atomic_xchg(tl.where(v > 0, one + i, other + i), v, mask=i < n)
        tl.store(old + i, before, mask=i < n)
    elif KIND == "swap":  # compared bit by bit
        nothing = tl.zeros_like(v)
        before = tl.atomic_cas(tl.where(v > 0, one + i, other + i), nothing, v)
        tl.store(old + i, before, mask=i < n)


@pytest.mark.parametrize("kind", ["store", "lanes", "add", "exchange", "swap"])
@pytest.mark.parametrize("n", [8, 64])
def test_stores_and_atomics_into_one_of_several_arrays(kind, n):
    random = np.random.default_rng(n)
    x, one, other = (random.integers(-9, 10, n).astype(np.float32) for _ in range(3))
    i, grid, old = np.arange(n), (-(-n // 8),), np.zeros(n, np.float32)
    found = launch(into_two, grid, x, one, other, old, n, written=[1, 2, 3], KIND=kind, BLOCK=8)
    found = [np.asarray(result) for result in found]  # it may still read what is changed below
    first = i // 8 % 2 == 0 if kind == "store" else x > 0
    there = np.where(first, one, other)
    if kind == "add":
        for target, some in ((one, first), (other, ~first)):
            np.add.at(target, i[some] // 4, x[some])
    else:
        new = np.where(there == 0, x, there) if kind == "swap" else x
        one[first], other[~first] = new[first], new[~first]
        old = old if kind in ("store", "lanes") else there
    for result, expected in zip(found, (one, other, old), strict=True):
        np.testing.assert_array_equal(result, expected)


def test_what_programs_are_known_to_write_is_theirs_in_each_of_several_arrays():
    x = np.zeros(64, np.float32)
    assert strategy(into_two, (8,), x, x, x, x, 64, KIND="store", BLOCK=8).vectorised
    assert not strategy(into_two, (8,), x, x, x, x, 64, KIND="exchange", BLOCK=8).vectorised


@triton.jit
def descriptors(x, out, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    source = tl.make_tensor_descriptor(x, shape=[M, N], strides=[N, 1], block_shape=[BLOCK_M, BLOCK_N])
    target = tl.make_tensor_descriptor(out, shape=[M, N], strides=[N, 1], block_shape=[BLOCK_M, BLOCK_N])
    place = [tl.program_id(0) * BLOCK_M, tl.program_id(1) * BLOCK_N]
    target.store(place, source.load(place) * 2)


def test_tensor_descriptors_are_bounded_by_their_shape():
    x = np.random.default_rng(0).normal(size=(20, 36)).astype(np.float32)
    out = launch(descriptors, (2, 3), x, jnp.zeros_like(x), 20, 36, written=[1], BLOCK_M=16, BLOCK_N=16)
    np.testing.assert_array_equal(out, 2 * x)


@triton.jit
def two_stores(out):
    p = tl.program_id(0)
    tl.store(out + p, p)
    tl.store(out + p + 1, -p)


def test_two_stores_that_collide_keep_the_order_of_the_programs():
    expected = np.zeros(11, np.int32)
    for p in range(10):
        expected[p], expected[p + 1] = p, -p
    out = np.zeros(11, np.int32)
    np.testing.assert_array_equal(launch(two_stores, (10,), out, written=[0]), expected)
    assert not strategy(two_stores, (10,), out).vectorised


@triton.jit
def store_in_loop(out, n, STEP: tl.constexpr):
    p = tl.program_id(0)
    for k in range(n):
        tl.store(out + p * STEP + k, p * 100 + k)


@pytest.mark.parametrize(("step", "vectorised"), [(5, True), (7, True), (2, False)])
def test_stores_in_a_loop_keep_the_order_of_the_programs(step, vectorised):
    expected = np.zeros(64, np.int32)
    for p in range(8):
        for k in range(5):
            expected[p * step + k] = p * 100 + k
    out = np.zeros(64, np.int32)
    np.testing.assert_array_equal(launch(store_in_loop, (8,), out, 5, written=[0], STEP=step), expected)
    assert strategy(store_in_loop, (8,), out, 5, STEP=step).vectorised is vectorised


@triton.jit
def advancing(x, out, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    source = x + row * n + tl.arange(0, BLOCK)
    target = out + row * n + tl.arange(0, BLOCK)
    for k in range(0, n, BLOCK):
        mask = tl.arange(0, BLOCK) < n - k
        tl.store(target, tl.load(source, mask=mask) * 2, mask=mask)
        source += BLOCK
        target += BLOCK


def test_pointers_that_advance_in_a_loop_are_followed():
    x = np.random.default_rng(0).normal(size=(6, 37)).astype(np.float32)
    out = np.zeros_like(x)
    np.testing.assert_array_equal(launch(advancing, (6,), x, out, 37, written=[1], BLOCK=8), 2 * x)
    assert strategy(advancing, (6,), x, out, 37, BLOCK=8).vectorised


@triton.jit
def scatter(index, out, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + tl.load(index + i), i)


def test_loaded_addresses_may_collide_and_the_last_one_wins():
    index = np.random.default_rng(0).integers(0, 10, 64).astype(np.int32)
    expected = np.zeros(10, np.int32)
    for i, place in enumerate(index):
        expected[place] = i
    np.testing.assert_array_equal(
        launch(scatter, (16,), index, jnp.zeros(10, jnp.int32), written=[1], BLOCK=4), expected
    )


@triton.jit
def column_store(x, out, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    i, j = tl.arange(0, ROWS), tl.program_id(0)
    tl.store(out + i * COLUMNS + j, tl.load(x + j * ROWS + i))


def test_strided_stores_do_not_collide():
    x = np.random.default_rng(0).normal(size=(5, 8)).astype(np.float32)
    out = np.zeros((8, 5), np.float32)
    np.testing.assert_array_equal(launch(column_store, (5,), x, out, written=[1], ROWS=8, COLUMNS=5), x.T)
    assert strategy(column_store, (5,), x, out, ROWS=8, COLUMNS=5).unique


@triton.jit
def atomics(x, out, BLOCK: tl.constexpr, KIND: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i)
    if KIND == "add":
        tl.atomic_add(out + i % 3, value)
    elif KIND == "max":
        tl.atomic_max(out + i % 3, value)
    elif KIND == "min":
        tl.atomic_min(out + i % 3, value)
    elif KIND == "and":
        tl.atomic_and(out + i % 3, value)
    elif KIND == "or":
        tl.atomic_or(out + i % 3, value)
    elif KIND == "xor":
        tl.atomic_xor(out + i % 3, value)
    else:
        tl.atomic_xchg(out + i % 3, value)


REFERENCES = {
    "add": np.add,
    "max": np.maximum,
    "min": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "xchg": lambda old, new: new,
}


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.float32])
@pytest.mark.parametrize("kind", REFERENCES)
def test_atomics_combine_all_lanes_of_all_programs(kind, dtype):
    if dtype == np.float32 and kind in ("and", "or", "xor"):
        pytest.skip("no bitwise operations on floats")
    x = np.random.default_rng(0).integers(0, 1 << 20, 32).astype(np.int32)
    x = (x - (0 if dtype == np.uint32 else 1 << 19)).astype(dtype)
    start = np.array([5, 6, 7], dtype)
    expected = start.copy()
    for i, value in enumerate(x):
        expected[i % 3] = REFERENCES[kind](expected[i % 3], value)
    out = launch(atomics, (4,), x, start, written=[1], BLOCK=8, KIND=kind)
    assert out.dtype == dtype
    np.testing.assert_array_equal(out, expected)


@triton.jit
def tickets(counter, out):
    tl.store(out + tl.program_id(0), tl.atomic_add(counter, 2))


def test_used_results_of_atomics_follow_the_order_of_the_programs():
    counter, out = launch(tickets, (9,), np.array([3], np.int32), jnp.zeros(9, jnp.int32), written=[0, 1])
    assert counter == 21
    np.testing.assert_array_equal(out, 3 + 2 * np.arange(9))


@triton.jit
def ranks(counters, place, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.atomic_add(counters + tl.load(place + i), 1))


def test_lanes_of_one_program_that_collide_see_each_other():
    place = np.array([0, 1, 0, 0, 1, 2, 0, 2], np.int32)
    counters, out = launch(
        ranks, (1,), jnp.zeros(3, jnp.int32), place, jnp.zeros(8, jnp.int32), written=[0, 2], BLOCK=8
    )
    np.testing.assert_array_equal(counters, [4, 2, 2])
    np.testing.assert_array_equal(out, [0, 0, 1, 2, 1, 0, 3, 1])


@triton.jit
def locked(lock, total, x):
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    tl.store(total, tl.load(total) + tl.load(x + tl.program_id(0)))
    tl.atomic_xchg(lock, 0)


def test_a_lock_guards_a_sum():
    x = np.arange(10, dtype=np.float32)
    lock, total = launch(locked, (10,), jnp.zeros(1, jnp.int32), jnp.zeros(1, jnp.float32), x, written=[0, 1])
    assert (lock, total) == (0, 45)


@triton.jit
def histogram(x, out, n, BINS: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.atomic_add(out + tl.load(x + offsets, mask=mask, other=0) % BINS, 1, mask=mask)


def test_unused_atomics_of_one_kind_run_at_once():
    x = np.random.default_rng(0).integers(0, 1000, 500).astype(np.int32)
    out = np.zeros(7, np.int32)
    result = launch(histogram, (8,), x, out, 500, written=[1], BINS=7, BLOCK=64)
    np.testing.assert_array_equal(result, np.bincount(x % 7, minlength=7))
    assert strategy(histogram, (8,), x, out, 500, BINS=7, BLOCK=64).vectorised


@triton.jit
def reinterpreted(x, out, BLOCK: tl.constexpr, TYPE: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x.to(tl.pointer_type(TYPE)) + i).to(tl.int32))


def test_a_pointer_may_be_cast_to_a_type_of_the_same_width():
    x = np.random.default_rng(0).normal(size=8).astype(np.float32)
    out = launch(reinterpreted, (1,), x, jnp.zeros(8, jnp.int32), written=[1], BLOCK=8, TYPE=tl.int32)
    np.testing.assert_array_equal(out, x.view(np.int32))


def test_a_pointer_cast_to_another_width_is_refused_with_the_parameter_and_line():
    x = np.zeros(8, np.float32)
    with pytest.raises(UnsupportedError, match=r"reinterpreted: tt.load at .*test_memory.py:\d+ takes 'x'"):
        launch(reinterpreted, (1,), x, jnp.zeros(8, jnp.int32), written=[1], BLOCK=8, TYPE=tl.int16)


def test_a_write_through_an_input_is_an_error_that_names_the_parameter():
    with pytest.raises(LaunchValueError) as error:
        launch(increment, (1,), np.zeros(4, np.float32), 4, written=[], BLOCK=4)
    assert str(error.value) == (
        "increment: writes through 'x', which was passed as an input. "
        "Name it in input_output_aliases, or declare an output."
    )


def test_an_empty_grid_changes_nothing():
    x = np.arange(4, dtype=np.float32)
    np.testing.assert_array_equal(launch(increment, (0,), x, 4, written=[0], BLOCK=4), x)


def test_large_grids_run_in_chunks_with_a_partial_last_one():
    launch = functools.partial(launching.launch, chunk_bytes=1000)
    x = np.arange(1003, dtype=np.float32)
    np.testing.assert_array_equal(launch(increment, (126,), x, 1003, written=[0], BLOCK=8), x + 1)
    out = launch(
        histogram, (63,), x.astype(np.int32), jnp.zeros(7, jnp.int32), 1003, written=[1], BINS=7, BLOCK=16
    )
    np.testing.assert_array_equal(out, np.bincount(np.arange(1003) % 7))
    assert launch(same_place, (1000,), jnp.zeros(1, jnp.int32), written=[0]) == 999


def test_the_emitted_program_does_not_grow_with_the_grid():
    def size(programs):
        x = jnp.zeros(8 * programs, jnp.float32)
        text = compiled(increment, x, 8, BLOCK=8)
        run = jax.jit(lambda x: execute(text, (programs, 1, 1), [x, np.int32(8 * programs)], [0], kernel="k"))
        return len(run.lower(x).as_text().splitlines())

    assert size(10_000) == size(16)


@triton.jit
def strided_stores(out, size, A, B, C, LIMIT, TRIPS, BLOCK: tl.constexpr):
    p = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    for k in range(TRIPS):
        place = p * A + k * B + i * C
        tl.store(out + place, p * 1000 + k * 100 + i, mask=(place < size) & (i < LIMIT - k))


small = st.integers(0, 12)


@settings(max_examples=40)
@given(small, small, st.integers(1, 5), st.integers(0, 9), st.integers(0, 4), st.integers(1, 6))
def test_stores_of_any_strides_end_as_if_programs_ran_in_order(a, b, c, limit, trips, programs):
    size = 60
    expected = np.full(size, -1, np.int32)
    for p in range(programs):
        for k in range(trips):
            for i in range(8):
                place = p * a + k * b + i * c
                if place < size and i < limit - k:
                    expected[place] = p * 1000 + k * 100 + i
    start = np.full(size, -1, np.int32)
    out = launch(strided_stores, (programs,), start, size, a, b, c, limit, trips, written=[0], BLOCK=8)
    np.testing.assert_array_equal(out, expected)


@triton.jit
def shifts(x, size, A, SHIFT, SKIP, BLOCK: tl.constexpr):
    p = tl.program_id(0) + tl.num_programs(0) * tl.program_id(1)
    i = tl.arange(0, BLOCK)
    target, source = p * A + i, p * A + i + SHIFT
    if p != SKIP:
        value = tl.load(x + source, mask=(source >= 0) & (source < size), other=-1)
        tl.store(x + target, value + 1, mask=target < size)


@settings(max_examples=40)
@given(small, st.integers(-9, 9), st.integers(-1, 6), st.integers(1, 3), st.integers(1, 3))
def test_in_place_kernels_of_any_shift_end_as_if_programs_ran_in_order(a, shift, skip, width, height):
    size = 50
    expected = np.arange(size, dtype=np.int32) * 10
    start = expected.copy()
    for p in range(width * height):
        if p == skip:
            continue
        places = [(p * a + i, p * a + i + shift) for i in range(4)]
        values = [expected[source] if 0 <= source < size else -1 for _, source in places]
        for (target, _), value in zip(places, values, strict=True):
            if target < size:
                expected[target] = value + 1
    out = launch(shifts, (width, height), start, size, a, shift, skip, written=[0], BLOCK=4)
    np.testing.assert_array_equal(out, expected)


if hasattr(tl, "atomic_load"):  # Triton 3.9

    @triton.jit
    def hands_over(cell, out, n):
        pid = tl.program_id(0)
        if pid > 0:
            while not tl.atomic_poll(cell, pid):
                pass
        seen = tl.atomic_load(cell)
        tl.store(out + pid, seen)
        tl.atomic_store(cell, seen + 1)

    def test_atomic_loads_and_stores_follow_the_order_of_the_programs():
        cell, out = jnp.zeros(1, jnp.int32), jnp.full(5, -1, jnp.int32)
        cell, out = launch(hands_over, (5,), cell, out, 5, written=[0, 1])
        np.testing.assert_array_equal(out, np.arange(5))
        assert cell[0] == 5

    @triton.jit
    def masked(x, out, n, BLOCK: tl.constexpr):
        offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        value = tl.atomic_load(x + offsets, mask=offsets < n)
        tl.atomic_store(out + offsets, value + 1, mask=offsets < n + 1)

    def test_atomic_loads_and_stores_are_masked():
        x = np.arange(10, dtype=np.int32)
        out = launch(masked, (2,), x, jnp.full(10, -1, jnp.int32), 7, written=[1], BLOCK=8)
        np.testing.assert_array_equal(out, [*(x[:7] + 1), 1, -1, -1])


# --- Views ---------------------------------------------------------------------------------------


@given(
    axes=st.lists(st.tuples(st.integers(2, 4), st.integers(-3, 40)), min_size=1, max_size=5),
    chunks=st.integers(1, 3),
)
def test_axes_that_programs_have_are_found_in_their_addresses(axes, chunks):
    offsets = np.zeros(1, np.int64)
    for extent, stride in axes:  # the innermost first
        offsets = (np.arange(extent) * stride)[:, None] + offsets
        offsets = offsets.reshape(-1)
    together = offsets.size
    base = (offsets + np.arange(chunks)[:, None] * 1000).reshape(1, -1)
    extents, strides = _program_axes(base, together)
    index = np.indices(extents).reshape(len(extents), -1)
    np.testing.assert_array_equal(np.tensordot(np.array(strides, np.int64), index, 1), offsets)
    base[0, -1] += 1  # now chunks are not alike
    assert chunks == 1 or _program_axes(base, together) is None


@triton.jit
def tiles(x, row, out, ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    """Of a grid of one axis; the members of a batch are the slowest."""
    p = tl.program_id(0)
    member, tile = p // (ROWS * COLUMNS), p % (ROWS * COLUMNS)
    i = tl.arange(0, BLOCK)[:, None]
    j = tile % COLUMNS * BLOCK + tl.arange(0, BLOCK)[None, :]
    at = ((member * ROWS + tile // COLUMNS) * BLOCK + i) * COLUMNS * BLOCK + j
    tl.store(out + at, tl.load(x + at) + tl.load(row + j))


@pytest.mark.parametrize("chunk_bytes", [1 << 26, 1 << 14])
def test_rows_and_columns_that_a_kernel_makes_of_one_number_are_views(chunk_bytes):
    x = np.random.default_rng(0).normal(size=(3, 4 * 8, 2 * 8)).astype(np.float32)
    given = [x, np.arange(16, dtype=np.float32), np.zeros_like(x)]
    constexprs = {"ROWS": 4, "COLUMNS": 2, "BLOCK": 8}
    text = compiled(tiles, *given, **constexprs)
    run = lambda *arrays: execute(text, (24, 1, 1), arrays, [2], kernel="tiles", chunk_bytes=chunk_bytes)
    np.testing.assert_array_equal(run(*given)[0], x + given[1])
    made = str(jax.make_jaxpr(run)(*given))
    assert "gather" not in made and "scatter" not in made
