"""`jt.debug`: kernels with mistakes, and kernels without."""

import re

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import triton
import triton.language as tl
from hypothesis import given, settings

import jtprim as jt
from examples import functions
from tests.kernels import add, scale_in_place


def waited_for(f, *arguments):
    results = jax.block_until_ready(f(*arguments))
    jax.effects_barrier()
    return results


def error_of(f, *arguments, **checks):
    """The message of the error that a launch ends in."""
    with jt.debug(**checks), pytest.raises(Exception) as caught:
        waited_for(f, *arguments)
    return str(caught.value)


X = jnp.arange(10, dtype=jnp.float32)

# --- Bounds --------------------------------------------------------------------------------------


@triton.jit
def without_mask(x_ptr, out_ptr, n, BLOCK: tl.constexpr, READS: tl.constexpr, WRITES: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=None if READS else mask)
    tl.store(out_ptr + offsets, x, mask=None if WRITES else mask)


def unmasked(x, *, programs=3, reads=False, writes=False):
    return jt.kernel(without_mask, target="cuda:90")[programs](
        x, n=x.size, BLOCK=4, READS=reads, WRITES=writes, out_shape={"out_ptr": x}
    )


@pytest.mark.parametrize("in_jit", [False, True])
@pytest.mark.parametrize("reads", [False, True])
def test_an_access_outside_its_array_is_named(reads, in_jit):
    f = lambda x: unmasked(x, reads=reads, writes=not reads)
    found = error_of(jax.jit(f) if in_jit else f, X, bounds=True)
    verb, name = ("reads", "x_ptr") if reads else ("stores to", "out_ptr")
    pattern = (
        rf"without_mask: program \(2, 0, 0\) {verb} element 10 of '{name}', which has 10, at "
        r".*test_debug\.py:\d+; mask the access"
    )
    assert re.search(pattern, found), found


@pytest.mark.parametrize("n, programs", [(10, 3), (12, 3), (10, 5), (1, 1)])
def test_masked_accesses_are_inside(n, programs):
    x = jnp.arange(n, dtype=jnp.float32)
    with jt.debug(bounds=True):
        np.testing.assert_array_equal(waited_for(lambda x: unmasked(x, programs=programs), x), x)


def test_a_function_is_compiled_anew_under_checks_and_again_without():
    f = jax.jit(lambda x: unmasked(x, reads=True))
    np.testing.assert_array_equal(waited_for(f, X), X)
    assert "OutOfBoundsError" in error_of(f, X, bounds=True)
    np.testing.assert_array_equal(waited_for(f, X), X)


@triton.jit
def gathers(index_ptr, x_ptr, out_ptr, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    tl.store(out_ptr + lanes, tl.load(x_ptr + tl.load(index_ptr + lanes)))


@given(st.lists(st.integers(-3, 12), min_size=8, max_size=8))
@settings(max_examples=15)
def test_addresses_from_memory_are_checked(places):
    index = jnp.asarray(places, jnp.int32)
    f = lambda index: jt.kernel(gathers)[1](
        index, X, BLOCK=8, out_shape={"out_ptr": jax.ShapeDtypeStruct((8,), X.dtype)}
    )
    if all(0 <= place < 10 for place in places):
        with jt.debug(bounds=True):
            np.testing.assert_array_equal(waited_for(f, index), X[index])
    else:
        first = next(place for place in places if not 0 <= place < 10)
        assert f"reads element {first} of 'x_ptr'" in error_of(f, index, bounds=True)


@triton.jit
def overruns_in_a_loop(x_ptr, out_ptr, n):
    total = 0.0
    for i in range(n):
        if i % 2 == 1:
            total += tl.load(x_ptr + i)
    tl.atomic_add(out_ptr, total)


def test_accesses_in_loops_and_branches_are_checked_where_they_happen():
    f = lambda n: lambda x: jt.kernel(overruns_in_a_loop)[2](x, n=n, out_shape={"out_ptr": X[:1]})
    with jt.debug(bounds=True):
        waited_for(f(11), X)  # element 10 is in the branch that is not taken
    assert "reads element 11 of 'x_ptr'" in error_of(f(12), X, bounds=True)


# --- Races ---------------------------------------------------------------------------------------


@triton.jit
def overlapping(out_ptr, STRIDE: tl.constexpr, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    tl.store(out_ptr + pid * STRIDE + tl.arange(0, BLOCK), pid)


@pytest.mark.parametrize("stride, races", [(4, False), (3, True), (0, True)])
def test_two_programs_that_store_to_one_element_race(stride, races):
    out = jax.ShapeDtypeStruct((16,), jnp.int32)
    f = lambda: jt.kernel(overlapping)[3](STRIDE=stride, BLOCK=4, out_shape={"out_ptr": out})
    if not races:
        with jt.debug(races=True):
            np.testing.assert_array_equal(waited_for(f)[:12], np.repeat(np.arange(3), 4))
        return
    found = error_of(f, races=True)
    line = r".*test_debug\.py:\d+"
    pattern = (
        rf"overlapping: races for element {stride} of 'out_ptr': program \(0, 0, 0\) stores to it at {line}, "
        rf"program \(1, 0, 0\) stores to it at {line}, and nothing orders the two"
    )
    assert re.search(pattern, found), found


@triton.jit
def shifts(x_ptr, n, BY: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets + BY, mask=offsets + BY < n)
    tl.store(x_ptr + offsets, x, mask=offsets + BY < n)


def test_what_another_program_reads_or_read_is_a_race():
    f = lambda by: lambda x: jt.kernel(shifts)[4](x, n=16, BY=by, BLOCK=4, input_output_aliases="x_ptr")
    x = jnp.arange(16, dtype=jnp.float32)
    with jt.debug(races=True):
        np.testing.assert_array_equal(waited_for(f(0), x), x)
    found = error_of(f(1), x, races=True)
    assert re.search(
        r"element 4 of 'x_ptr': program \(0, 0, 0\) reads it at .*program \(1, 0, 0\) stores to", found
    )


@triton.jit
def accumulates(x_ptr, out_ptr, BLOCK: tl.constexpr, ATOMIC: tl.constexpr):
    total = tl.sum(tl.load(x_ptr + tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)), 0)
    if ATOMIC:
        tl.atomic_add(out_ptr, total)
    else:
        tl.store(out_ptr, tl.load(out_ptr) + total)


def test_sums_race_unless_they_are_atomic():
    x = jnp.arange(16, dtype=jnp.float32)
    f = lambda atomic: (
        lambda x: jt.kernel(accumulates)[1, 4](
            x, jnp.zeros(1), BLOCK=4, ATOMIC=atomic, input_output_aliases="out_ptr"
        )
    )
    with jt.debug(races=True):
        np.testing.assert_array_equal(waited_for(f(True), x), [120])
    found = error_of(f(False), x, races=True)
    assert re.search(r"program \(0, 0, 0\) stores to it.*program \(0, 1, 0\) reads it", found), found


@triton.jit
def scatters(index_ptr, out_ptr, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    tl.store(out_ptr + tl.load(index_ptr + pid * BLOCK + tl.arange(0, BLOCK)), pid)


@settings(max_examples=15)
@given(st.lists(st.integers(0, 30), min_size=12, max_size=12))
def test_races_for_addresses_from_memory_are_found(places):
    index = jnp.asarray(places, jnp.int32)
    out = jax.ShapeDtypeStruct((31,), jnp.int32)
    f = jax.jit(lambda index: jt.kernel(scatters)[3](index, BLOCK=4, out_shape={"out_ptr": out}))
    groups = [set(places[i : i + 4]) for i in (0, 4, 8)]
    common = groups[0] & groups[1] | groups[0] & groups[2] | groups[1] & groups[2]
    if common:
        element = int(re.search(r"races for element (\d+)", error_of(f, index, races=True))[1])
        assert element in common
    else:
        with jt.debug(races=True):
            waited_for(f, index)


@triton.jit
def stores_in_a_loop(out_ptr, n, STEP: tl.constexpr):
    pid = tl.program_id(0)
    for i in range(n):
        if i > 0:
            tl.store(out_ptr + pid + i * STEP, pid)


@pytest.mark.parametrize("step, races", [(3, False), (1, True)])
def test_stores_in_loops_and_branches_are_followed(step, races):
    out = jax.ShapeDtypeStruct((20,), jnp.int32)
    f = lambda: jt.kernel(stores_in_a_loop)[3](n=4, STEP=step, out_shape={"out_ptr": out})
    if races:
        assert "races for element 2 of 'out_ptr'" in error_of(f, races=True)
    else:
        with jt.debug(races=True):
            waited_for(f)


# --- What is not written -------------------------------------------------------------------------


@triton.jit
def writes_some(out_ptr, whole_ptr, n, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    tl.store(out_ptr + lanes, 1, mask=lanes < n)
    tl.store(whole_ptr + lanes, 1, mask=lanes < n)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.int32, jnp.uint8, jnp.bool_])
def test_what_a_kernel_does_not_write_shows(dtype):
    shape = jax.ShapeDtypeStruct((8,), dtype)
    f = lambda: jt.kernel(writes_some)[1](
        n=5, BLOCK=8, out_shape={"out_ptr": shape, "whole_ptr": shape}, zeroed_outputs="whole_ptr"
    )
    with jt.debug(uninitialized=True):
        out, zeroed = waited_for(f)
    np.testing.assert_array_equal(out[:5].astype(jnp.float32), 1)
    np.testing.assert_array_equal(zeroed.astype(jnp.float32), [1] * 5 + [0] * 3)
    if jnp.issubdtype(dtype, jnp.floating):
        assert jnp.isnan(out[5:]).all()
    elif dtype == jnp.bool_:
        assert out[5:].all()
    else:
        assert np.asarray(out[5:]).tobytes() == b"\xa5" * 3 * out.dtype.itemsize
    np.testing.assert_array_equal(waited_for(f)[0][5:].astype(jnp.float32), 0)


# --- Kernels without mistakes --------------------------------------------------------------------

EVERYTHING = {"races": True, "bounds": True, "uninitialized": True}
MATRIX = jnp.asarray(np.random.default_rng(0).normal(size=(40, 50)), jnp.float32)


@pytest.mark.parametrize(
    "f, arrays",
    [
        (functions.softmax, (MATRIX,)),
        (lambda a: functions.matmul(a, a.T, BLOCK_SIZE_M=32, BLOCK_SIZE_N=32, BLOCK_SIZE_K=16), (MATRIX,)),
        (lambda x: functions.layer_norm(x, x[0], x[1])[0], (MATRIX,)),
        (functions.add, (MATRIX, MATRIX)),
        (
            lambda x: jt.kernel(scale_in_place)[63](x, 2000, 2.0, BLOCK=32, input_output_aliases="x_ptr"),
            (MATRIX,),
        ),
    ],
    ids=["softmax", "matmul", "layer norm", "add", "in place"],
)
def test_kernels_without_mistakes_compute_the_same(f, arrays):
    expected = f(*arrays)
    with jt.debug(**EVERYTHING):
        np.testing.assert_allclose(waited_for(jax.jit(f), *arrays), expected, rtol=1e-5, atol=1e-6)


def test_checks_go_with_batches_and_derivatives():
    f = lambda x, n: jt.kernel(add)[2](x, x, n=n, BLOCK=8, out_shape={"out_ptr": x})
    x = jnp.ones((3, 10))
    with jt.debug(**EVERYTHING):
        np.testing.assert_array_equal(waited_for(jax.vmap(lambda x: f(x, 10)), x), 2 * x)
        np.testing.assert_array_equal(waited_for(jax.grad(lambda x: f(x, 10).sum()), x[0]), 2 * x[0])
    assert "element 10 of 'x_ptr'" in error_of(lambda x: f(x, 11), x[0], bounds=True)


def test_on_a_gpu_the_checked_launch_is_translated():
    f = jax.jit(lambda x: unmasked(x))
    lower = lambda: f.trace(X).lower(lowering_platforms=("cuda",)).as_text()
    assert "triton_kernel_call_ffi" in lower()
    with jt.debug(uninitialized=True):
        assert "triton_kernel_call_ffi" not in lower()
