"""Scalars that are known only as the program runs: loaded by an adapter, no new compilation for another."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import triton
import triton.language as tl

import jtprim as jt
from jtprim.errors import LaunchTypeError
from jtprim.lowering import payload
from tests.kernels import add, scale_in_place

X = jnp.arange(100, dtype=jnp.float32)
ARRAY = payload.ArrayParameter(16)


@triton.jit
def axpy(x_ptr, factor, pair, out_ptr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < pair[1]
    x = tl.load(x_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, x * factor + pair[0], mask=mask)


def run(x, factor, shift, n):
    return jt.kernel(axpy)[4](x, factor, (shift, n), BLOCK=32, out_shape={"out_ptr": x})


def test_python_numbers_go_through_jit_and_change_without_a_new_trace():
    traces = []

    @jax.jit
    def f(x, factor, shift, n):
        traces.append(1)
        return run(x, factor, shift, n)

    for factor, shift, n in ((2.0, 1.0, 100), (-1.5, 0.25, 17), (1.0, 0.0, 0)):
        expected = np.where(np.arange(100) < n, np.asarray(X) * factor + shift, 0)
        np.testing.assert_array_equal(f(X, factor, shift, n), expected)
    assert len(traces) == 1


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int32", "int16", "uint8", "bool"])
def test_an_array_of_no_axes_is_passed_by_value_on_request(dtype):
    @triton.jit
    def fill(value, out_ptr):
        tl.store(out_ptr + tl.program_id(0), value)

    value = jnp.asarray(3, jnp.dtype(dtype))
    out = jt.kernel(fill)[5](
        jt.by_value(value), out_shape={"out_ptr": jax.ShapeDtypeStruct((5,), value.dtype)}
    )
    np.testing.assert_array_equal(out, np.full(5, value))


def test_without_it_the_kernel_gets_a_pointer():
    @triton.jit
    def double(x_ptr, out_ptr):
        tl.store(out_ptr, 2 * tl.load(x_ptr))

    out = jt.kernel(double)[1](jnp.float32(4) + jnp.zeros((), jnp.float32), out_shape=jnp.zeros(1))
    np.testing.assert_array_equal(out, [8])


def test_annotations_are_respected():
    @triton.jit
    def widen(value: tl.int64, out_ptr):
        tl.store(out_ptr, (value * 2147483647) >> 31)

    f = jax.jit(lambda value: jt.kernel(widen)[1](value, out_shape=jnp.zeros(1, jnp.int32)))
    np.testing.assert_array_equal(f(1000), [(1000 * 2147483647) >> 31])


@pytest.mark.parametrize("platform", ["cuda:90", "hip:gfx942"])
def test_the_kernel_is_sent_a_pointer_to_each_number(platform):
    f = lambda x, factor, shift, n: jt.kernel(axpy)[4](
        x, jt.by_value(factor), (jt.by_value(shift), jt.by_value(n)), BLOCK=32, out_shape={"out_ptr": x}
    )
    [one] = jt.inspect(f, X, jnp.float32(2), jnp.float32(1), jnp.int32(100), platform=platform).kernels
    assert one.parameters == (ARRAY,) * 5


def test_numbers_known_at_the_launch_stay_compiled_in():
    [one] = jt.inspect(lambda x: run(x, 2.0, 1.0, 100), X, platform="cuda:90").kernels
    numbers = [payload.ScalarParameter(*given) for given in (("f32", 2.0), ("f32", 1.0), ("i32", 100))]
    assert one.parameters == (ARRAY, *numbers, ARRAY)


def test_in_outs_stay_in_place_and_outputs_first():
    @triton.jit
    def backwards(out_ptr, n, x_ptr, BLOCK: tl.constexpr):
        offsets = tl.arange(0, BLOCK)
        tl.store(out_ptr + offsets, 2 * tl.load(x_ptr + offsets, mask=offsets < n), mask=offsets < n)

    f = jax.jit(lambda x, n: jt.kernel(backwards)[1](x_ptr=x, n=n, BLOCK=128, out_shape={"out_ptr": x}))
    np.testing.assert_array_equal(f(X, 60)[:60], 2 * X[:60])
    scaled = jax.jit(
        lambda x, n, factor: jt.kernel(scale_in_place)[4](
            x, n, factor, BLOCK=32, input_output_aliases="x_ptr"
        )
    )
    np.testing.assert_array_equal(scaled(X, 50, 3.0), np.where(np.arange(100) < 50, 3 * X, X))


def test_numbers_have_derivatives():
    f = lambda factor, shift: jnp.sum(run(X, factor, shift, 10) ** 2)
    reference = lambda factor, shift: jnp.sum((X[:10] * factor + shift) ** 2)
    found, expected = jax.grad(f, (0, 1))(1.5, 2.0), jax.grad(reference, (0, 1))(1.5, 2.0)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_discovered_outputs_and_autotuners_take_numbers_too():
    tuned = triton.autotune([triton.Config({"BLOCK": b}) for b in (32, 64)], key=[])(add)
    f = jax.jit(
        lambda x, n: jt.kernel(tuned)[lambda meta: triton.cdiv(100, meta["BLOCK"])](
            x, x, jnp.zeros_like(x), n
        )
    )
    np.testing.assert_array_equal(f(X, 70), np.where(np.arange(100) < 70, 2 * X, 0))
    assert len(jt.inspect(f, X, 70, platform="cuda:90").kernels) == 2


def test_a_number_is_of_no_axes_and_no_constexpr():
    with pytest.raises(
        LaunchTypeError, match=r"axpy: argument 'factor' is jt.by_value of an array of shape \(100,\)"
    ):
        run(X, jt.by_value(X), 1.0, 100)
    with pytest.raises(LaunchTypeError, match="argument 'factor' is jt.by_value of a float"):
        run(X, jt.by_value(2.0), 1.0, 100)
    with pytest.raises(LaunchTypeError, match="argument 'BLOCK' is an array .* static_argnames"):
        jax.jit(lambda b: jt.kernel(add)[1](X, X, n=100, BLOCK=b, out_shape={"out_ptr": X}))(32)


@triton.jit
def scale_by_pointer(factor_ptr, x_ptr, out_ptr, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets) * tl.load(factor_ptr))


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
def test_where_a_kernel_wants_a_pointer_to_a_number_the_error_says_how_to_pass_one(platform):
    x = X[:64]
    scaled = lambda factor: jt.kernel(scale_by_pointer, target="cuda:90")[1](
        factor, x, BLOCK=64, out_shape={"out_ptr": x}
    )
    lowered = lambda factor: jax.jit(scaled).trace(factor).lower(lowering_platforms=(platform,))
    lowered(jnp.float32(3.0))
    with pytest.raises(triton.CompilationError, match=r"tl\.load\(factor_ptr\)") as caught:
        lowered(3.0)
    assert "factor_ptr: a number that went through jax.jit" in caught.value.__notes__[-1]
    assert "jnp.float32(x)" in caught.value.__notes__[-1]
