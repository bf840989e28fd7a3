"""Arguments of every type arrive on the GPU as they were passed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import triton
import triton.language as tl

import jtprim as jt
from tests.kernels import add_pair, fill

pytestmark = pytest.mark.gpu

INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
FLOATS = ["float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2"]


@pytest.fixture(autouse=True)
def with_64_bits():
    with jax.enable_x64(True):
        yield


# --- Arrays ------------------------------------------------------------------------------------


@triton.jit
def duplicate(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=mask), mask=mask)


@pytest.mark.parametrize("dtype", ["bool", *INTEGERS, *FLOATS])
@pytest.mark.parametrize("n", [1, 77, 4096])
def test_arrays_of_every_dtype_are_read_and_written_bit_by_bit(dtype, n):
    dtype = jnp.dtype(dtype)
    raw = np.random.default_rng(0).integers(0, 256, n * dtype.itemsize, np.uint8)
    values = raw < 128 if dtype.kind == "b" else raw.view(dtype)
    out = jt.kernel(duplicate)[(triton.cdiv(n, 256),)](
        jnp.asarray(values), n=n, BLOCK=256, out_shape={"out_ptr": jax.ShapeDtypeStruct((n,), dtype)}
    )
    assert out.dtype == dtype
    np.testing.assert_array_equal(np.asarray(out).view(np.uint8), values.view(np.uint8))


def test_pointers_in_a_tuple_are_passed_in_order():
    x, y = jnp.arange(100.0), jnp.full(100, 2.5)
    out = jt.kernel(add_pair)[(1,)]((x, y), n=100, BLOCK=128, out_shape={"out_ptr": x})
    np.testing.assert_array_equal(out, x + y)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("start", [1, 3, 4])
def test_a_slice_at_any_offset_is_an_aligned_array_of_its_own(dtype, start):
    x = jnp.arange(300, dtype=dtype)
    size = 256  # for which XLA would pass a view of `x`

    @jax.jit
    def part(x):
        piece = x[start : start + size]
        return jt.kernel(duplicate)[(1,)](piece, n=size, BLOCK=size, out_shape={"out_ptr": piece})

    np.testing.assert_array_equal(part(x), x[start : start + size])


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_a_result_that_goes_into_a_slice_is_an_aligned_array_of_its_own(dtype):
    x = jnp.arange(600, dtype=dtype)

    @jax.jit
    def into(x):
        piece = x[300:556]
        out = jt.kernel(duplicate)[(1,)](piece, n=256, BLOCK=256, out_shape={"out_ptr": piece})
        return x.at[3:259].set(out)

    np.testing.assert_array_equal(into(x)[3:259], x[300:556])


# --- Scalars -----------------------------------------------------------------------------------


def filled(kernel, value, dtype):
    """One element of an array of `dtype` that `kernel` fills with `value`."""
    out = jt.kernel(kernel)[(1,)](
        value=value, n=4, BLOCK=16, out_shape={"out_ptr": jax.ShapeDtypeStruct((4,), jnp.dtype(dtype))}
    )
    assert out.dtype == dtype
    assert np.unique(np.asarray(out).view(f"u{out.dtype.itemsize}")).size == 1
    return np.asarray(out)[0]


@pytest.mark.parametrize(
    "value,dtype",
    [
        (True, "bool"),
        (False, "bool"),
        (0, "int32"),
        (1, "int32"),
        (16, "int32"),
        (-7, "int32"),
        (-16, "int32"),
        (2**31 - 1, "int32"),
        (-(2**31), "int32"),
        (2**31, "int64"),
        (-(2**31) - 1, "int64"),
        (2**63 - 1, "int64"),
        (-(2**63), "int64"),
        (2**63, "uint64"),
        (2**64 - 1, "uint64"),
        (np.int8(-3), "int32"),
        (np.uint16(65535), "int32"),
        (np.float32(0.1), "float32"),
    ],
)
def test_numbers_arrive_as_tritons_own_type_for_them(value, dtype):
    assert filled(fill, value, dtype) == value


@pytest.mark.parametrize("value", [0.0, -0.0, 1.0, 16.0, 0.1, -1e30, 1e-40, np.inf, -np.inf, np.nan])
def test_floats_arrive_as_float32_to_the_bit(value):
    assert filled(fill, value, "float32").tobytes() == np.float32(value).tobytes()


@triton.jit
def fill_int8(out_ptr, value: tl.int8, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, value, mask=offsets < n)


@triton.jit
def fill_uint8(out_ptr, value: tl.uint8, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, value, mask=offsets < n)


@triton.jit
def fill_int16(out_ptr, value: tl.int16, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, value, mask=offsets < n)


@triton.jit
def fill_uint16(out_ptr, value: tl.uint16, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, value, mask=offsets < n)


@triton.jit
def fill_uint32(out_ptr, value: tl.uint32, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, value, mask=offsets < n)


@triton.jit
def fill_int64(out_ptr, value: tl.int64, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, value, mask=offsets < n)


@triton.jit
def fill_uint64(out_ptr, value: tl.uint64, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, value, mask=offsets < n)


@triton.jit
def fill_float16(out_ptr, value: tl.float16, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, value, mask=offsets < n)


@triton.jit
def fill_bfloat16(out_ptr, value: tl.bfloat16, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, value, mask=offsets < n)


@triton.jit
def fill_float32(out_ptr, value: tl.float32, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, value, mask=offsets < n)


@triton.jit
def fill_float64(out_ptr, value: tl.float64, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, value, mask=offsets < n)


@pytest.mark.parametrize(
    "kernel,values,dtype",
    [
        (fill_int8, [-128, -1, 0, 1, 127], "int8"),
        (fill_uint8, [0, 1, 16, 255], "uint8"),
        (fill_int16, [-(2**15), -1, 2**15 - 1], "int16"),
        (fill_uint16, [0, 2**16 - 1], "uint16"),
        (fill_uint32, [0, 2**31, 2**32 - 1], "uint32"),
        (fill_int64, [-(2**63), -1, 5, 2**63 - 1], "int64"),
        (fill_uint64, [5, 2**64 - 1], "uint64"),
        (fill_float16, [0.1, -2.0, 65504.0, np.inf], "float16"),
        (fill_bfloat16, [0.1, -2.0, 1e30, np.inf], "bfloat16"),
        (fill_float32, [0.1, -2.0, 1e30], "float32"),
        (fill_float64, [0.1, -2.0, 1e300, 5e-324], "float64"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_annotated_scalars_arrive_in_the_annotations_type(kernel, values, dtype):
    for value in values:
        assert filled(kernel, value, dtype).tobytes() == np.asarray(value, jnp.dtype(dtype)).tobytes()


@triton.jit
def store_all(out_ptr, a, b: tl.int8, c, d: tl.float64, e, f: tl.float16, g, h: tl.int16):
    """Scalars of all widths side by side: each has to be found at its own place."""
    tl.store(out_ptr + 0, a.to(tl.float64))
    tl.store(out_ptr + 1, b.to(tl.float64))
    tl.store(out_ptr + 2, c.to(tl.float64))
    tl.store(out_ptr + 3, d)
    tl.store(out_ptr + 4, e.to(tl.float64))
    tl.store(out_ptr + 5, f.to(tl.float64))
    tl.store(out_ptr + 6, g.to(tl.float64))
    tl.store(out_ptr + 7, h.to(tl.float64))


def test_scalars_of_different_widths_stand_side_by_side():
    values = (True, -5, 2**40, 0.1, 3, 0.5, 2.5, -300)
    out = jt.kernel(store_all)[(1,)](*values, out_shape={"out_ptr": jax.ShapeDtypeStruct((8,), jnp.float64)})
    np.testing.assert_array_equal(out, values)
