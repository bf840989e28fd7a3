"""The demo's kernels against NumPy, on odd sizes and in every floating type that they take."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import demo, functions

dtypes = st.sampled_from(sorted(demo.TOLERANCES))
# Of one, of a power of two, just beside it, and others.
sizes = st.sampled_from([1, 2, 16, 31, 33, 100])
few = settings(max_examples=8)


def draw(*shape, dtype, seed=0):
    values = np.random.default_rng(seed).standard_normal(shape, np.float32)
    return jnp.asarray(values, jnp.dtype(dtype))


def assert_close(results, expected, dtype):
    """Compares as the demo does; values that should be zero are looked at on the scale of 1."""
    for number, (result, exact) in enumerate(
        zip(demo._as_tuple(results), demo._as_tuple(expected), strict=True)
    ):
        assert result.shape == exact.shape
        scale = max(np.max(np.abs(exact)), 1.0)
        error = np.max(np.abs(np.asarray(result).astype(np.float64) - exact)) / scale
        assert error <= (demo.TOLERANCES[dtype] if number == 0 else 1e-5)


@few
@given(st.lists(sizes, min_size=1, max_size=3), dtypes, st.sampled_from([32, 1024]))
def test_add(shape, dtype, block_size):
    x, y = draw(*shape, dtype=dtype, seed=1), draw(*shape, dtype=dtype, seed=2)
    out = jax.jit(functools.partial(functions.add, block_size=block_size))(x, y)
    assert out.dtype == dtype
    assert_close(out, functions.add_reference(x, y), dtype)


@few
@given(sizes, sizes, dtypes, st.sampled_from([1, 7, 1024]))
def test_softmax_whatever_the_number_of_programs(rows, columns, dtype, programs):
    x = draw(rows, columns, dtype=dtype)
    out = jax.jit(functools.partial(functions.softmax, programs=programs))(x)
    assert out.dtype == dtype
    assert_close(out, functions.softmax_reference(x), dtype)


@few
@given(sizes, sizes, sizes, dtypes, st.sampled_from(["", "leaky_relu"]))
def test_matmul_with_and_without_an_activation(m, n, k, dtype, activation):
    a, b = draw(m, k, dtype=dtype, seed=1), draw(k, n, dtype=dtype, seed=2)
    tiles = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 16, "GROUP_SIZE_M": 3}
    out = jax.jit(functools.partial(functions.matmul, activation=activation, **tiles))(a, b)
    assert out.dtype == dtype
    assert_close(out, functions.matmul_reference(a, b, activation=activation), dtype)


@few
@given(sizes, sizes, dtypes)
def test_layer_norm_returns_means_and_deviations_too(rows, columns, dtype):
    x = draw(rows, columns, dtype=dtype, seed=1)
    weight, bias = draw(columns, dtype=dtype, seed=2), draw(columns, dtype=dtype, seed=3)
    out, mean, rstd = jax.jit(functions.layer_norm)(x, weight, bias)
    assert (out.dtype, mean.dtype, rstd.dtype) == (dtype, jnp.float32, jnp.float32)
    assert_close((out, mean, rstd), functions.layer_norm_reference(x, weight, bias), dtype)


def test_layer_norm_takes_rows_that_are_longer_than_a_block():
    x = draw(3, 20_000, dtype="float32")
    weight, bias = draw(20_000, dtype="float32", seed=1), draw(20_000, dtype="float32", seed=2)
    assert_close(
        functions.layer_norm(x, weight, bias), functions.layer_norm_reference(x, weight, bias), "float32"
    )


@pytest.mark.parametrize("m,n,k", [(130, 70, 40), (256, 200, 96)])
def test_grouped_ordering_covers_every_tile(m, n, k):
    a, b = draw(m, k, dtype="float32", seed=1), draw(k, n, dtype="float32", seed=2)
    assert_close(functions.matmul(a, b), functions.matmul_reference(a, b), "float32")


# --- The demo itself ---------------------------------------------------------------------------


def case(wrong_by=0.0):
    """A small case whose reference is off by so much."""
    x = np.arange(100, dtype=np.float32)
    return demo.Case("vector-add", "100", functions.add, lambda x, y: x + y + np.float64(wrong_by), (x, x))


def test_a_right_result_is_ok_and_a_wrong_one_is_not():
    assert demo.run(case(), seconds=0).ok
    assert not demo.run(case(wrong_by=0.01), seconds=0).ok
    assert not demo.run(case(wrong_by=np.nan), seconds=0).ok


def test_every_tutorial_is_among_the_cases_and_has_a_tolerance():
    found = list(demo.cases())
    assert {one.tutorial for one in found} == {"vector-add", "fused-softmax", "matmul", "layer-norm"}
    assert all(0 < one.tolerance < 0.1 for one in found)


def test_stablehlo_for_both_gpus_is_written_with_a_summary(tmp_path):
    tables = demo.write_lowerings(case(), tmp_path)
    for name in demo.TARGETS:
        text = (tmp_path / f"vector-add.{name}.mlir").read_text()
        assert "stablehlo.custom_call @triton_kernel_call_ffi" in text
    assert [table.splitlines()[0] for table in tables] == [
        "vector-add on h100: cuda:90",
        "vector-add on mi300x: hip:gfx942",
    ]
    assert all("add_kernel" in table for table in tables)
