"""Arithmetic, against NumPy."""

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import triton
import triton.language as tl
from hypothesis import given

from tests.portable.launching import launch

FLOATS = [np.float16, ml_dtypes.bfloat16, np.float32]
INTEGERS = [np.int8, np.int16, np.int32, np.uint8, np.uint16, np.uint32]


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(
        out + offsets, tl.load(x + offsets, mask=mask) + tl.load(y + offsets, mask=mask, other=0), mask=mask
    )


@given(
    st.integers(1, 3000), st.sampled_from([1, 16, 128, 1024]), st.sampled_from(FLOATS + INTEGERS), st.data()
)
def test_addition_agrees_with_numpy_for_any_length_block_and_dtype(n, block, dtype, data):
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    x, y = (rng.integers(0, 100, n).astype(dtype) for _ in "xy")
    out = launch(add, (-(-n // block),), x, y, jnp.zeros(n, dtype), n, written=[2], BLOCK=block)
    assert out.dtype == dtype
    np.testing.assert_array_equal(np.asarray(out), x + y)


def test_elements_beyond_the_mask_keep_what_they_held():
    x = np.arange(10, dtype=np.float32)
    out = launch(add, (2,), x, x, jnp.full(10, -1.0, jnp.float32), 7, written=[2], BLOCK=4)
    np.testing.assert_array_equal(out, [*(2 * x[:7]), -1, -1, -1])


def test_doubles_are_computed_as_doubles():
    with jax.enable_x64(True):
        x = np.linspace(0, 1, 100)
        out = launch(add, (1,), x, x / 3, jnp.zeros(100, jnp.float64), 100, written=[2], BLOCK=128)
        assert out.dtype == np.float64
        np.testing.assert_array_equal(out, x + x / 3)


@triton.jit
def wide(x, out, n, shift, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    big = tl.load(x + offsets).to(tl.int64) << shift
    tl.store(out + offsets, ((big * 3) >> shift).to(tl.int32))


def test_integers_of_64_bits_are_not_truncated_without_x64():
    x = np.arange(-8, 8, dtype=np.int32) * 1000
    np.testing.assert_array_equal(
        launch(wide, (1,), x, jnp.zeros(16, jnp.int32), 16, 40, written=[1], BLOCK=16), x * 3
    )


@triton.jit
def integer_operations(x, y, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    a, b = tl.load(x + i), tl.load(y + i)
    tl.store(out + i, a // b)
    tl.store(out + BLOCK + i, a % b)
    tl.store(out + 2 * BLOCK + i, tl.maximum(a, b))
    tl.store(out + 3 * BLOCK + i, tl.minimum(a, b))
    tl.store(out + 4 * BLOCK + i, (a & b) | (a ^ 3))
    tl.store(out + 5 * BLOCK + i, a >> 1)
    tl.store(out + 6 * BLOCK + i, tl.where(a < b, a, b) * 5)
    tl.store(out + 7 * BLOCK + i, (a > b).to(tl.int32).to(a.dtype))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_operations_take_the_sign_of_their_type(dtype):
    rng = np.random.default_rng(1)
    info = np.iinfo(dtype)
    x, y = (rng.integers(info.min, info.max, 64, dtype=dtype, endpoint=True) for _ in "xy")
    y[y == 0] = 1
    out = np.asarray(launch(integer_operations, (1,), x, y, jnp.zeros(512, dtype), written=[2], BLOCK=64))
    quotient = np.trunc(x.astype(np.float64) / y).astype(np.int64).astype(dtype)
    with np.errstate(over="ignore"):
        expected = [
            quotient,
            x - quotient * y,
            np.maximum(x, y),
            np.minimum(x, y),
            (x & y) | (x ^ dtype(3)),
            x >> dtype(1),
            np.minimum(x, y) * dtype(5),
            (x > y).astype(dtype),
        ]
    for got, wanted in zip(out.reshape(8, 64), expected, strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_division_by_zero_does_not_crash():
    x, y = np.arange(64, dtype=np.int32), np.zeros(64, np.int32)
    launch(integer_operations, (1,), x, y, jnp.zeros(512, jnp.int32), written=[2], BLOCK=64)


@triton.jit
def float_operations(x, y, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    a, b = tl.load(x + i), tl.load(y + i)
    tl.store(out + i, tl.maximum(a, b))
    tl.store(out + BLOCK + i, tl.minimum(a, b))
    tl.store(out + 2 * BLOCK + i, tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL))
    tl.store(out + 3 * BLOCK + i, (a < b).to(tl.float32))
    tl.store(out + 4 * BLOCK + i, (a != b).to(tl.float32))
    tl.store(out + 5 * BLOCK + i, (a >= b).to(tl.float32))
    tl.store(out + 6 * BLOCK + i, (not (a >= b)).to(tl.float32) if BLOCK < 0 else tl.where(a >= b, 0.0, 1.0))
    tl.store(out + 7 * BLOCK + i, tl.clamp(a, -1.0, 1.0))


def test_nan_follows_the_rules_of_each_operation():
    x = np.array([1, np.nan, 2, np.nan, np.inf, -np.inf, 0, -3], np.float32)
    y = np.array([2, 1, np.nan, np.nan, 1, 1, 0, -4], np.float32)
    out = np.asarray(launch(float_operations, (1,), x, y, jnp.zeros(64, jnp.float32), written=[2], BLOCK=8))
    expected = [np.fmax(x, y), np.fmin(x, y), np.maximum(x, y), x < y, x != y, x >= y, ~(x >= y)]
    for got, wanted in zip(out.reshape(8, 8), expected, strict=False):
        np.testing.assert_array_equal(got, wanted)
    np.testing.assert_array_equal(out[-8:][~np.isnan(x)], np.clip(x, -1, 1)[~np.isnan(x)])


@triton.jit
def functions(x, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    a = tl.load(x + i)
    tl.store(out + i, tl.exp(a))
    tl.store(out + BLOCK + i, tl.exp2(a))
    tl.store(out + 2 * BLOCK + i, tl.log(a))
    tl.store(out + 3 * BLOCK + i, tl.log2(a))
    tl.store(out + 4 * BLOCK + i, tl.sin(a) + tl.cos(a))
    tl.store(out + 5 * BLOCK + i, tl.sqrt(a) + tl.sqrt_rn(a))
    tl.store(out + 6 * BLOCK + i, tl.rsqrt(a))
    tl.store(out + 7 * BLOCK + i, tl.floor(a) + tl.ceil(a))
    tl.store(out + 8 * BLOCK + i, tl.abs(-a) + tl.sigmoid(a))
    tl.store(out + 9 * BLOCK + i, tl.fma(a, a, a) + tl.div_rn(a, a))
    tl.store(out + 10 * BLOCK + i, tl.erf(a))


def test_functions_agree_with_numpy():
    x = np.linspace(0.1, 4, 64, dtype=np.float32)
    out = np.asarray(launch(functions, (1,), x, jnp.zeros(704, jnp.float32), written=[1], BLOCK=64))
    expected = [
        np.exp(x),
        np.exp2(x),
        np.log(x),
        np.log2(x),
        np.sin(x) + np.cos(x),
        2 * np.sqrt(x),
        1 / np.sqrt(x),
        np.floor(x) + np.ceil(x),
        x + 1 / (1 + np.exp(-x)),
        x * x + x + 1,
        jax.scipy.special.erf(x),
    ]
    for got, wanted in zip(out.reshape(11, 64), expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=1e-6)


@triton.jit
def convert(x, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i).to(out.dtype.element_ty))


SMALL_FLOATS = [ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3fn]
CONVERSIONS = [
    (source, target) for source in [*FLOATS, *INTEGERS, np.bool_] for target in [*FLOATS, *INTEGERS]
]
CONVERSIONS += [(source, target) for source in SMALL_FLOATS for target in FLOATS]
CONVERSIONS += [(source, target) for source in FLOATS for target in SMALL_FLOATS]


@pytest.mark.parametrize(("source", "target"), CONVERSIONS)
def test_conversions_keep_small_whole_numbers(source, target):
    x = np.array([0, 1, 2, 3, 4, 5, 6, 7]).astype(source)
    out = launch(convert, (1,), x, jnp.zeros(8, target), written=[1], BLOCK=8)
    assert out.dtype == target
    np.testing.assert_array_equal(np.asarray(out), x.astype(target))


@triton.jit
def truncate(x, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i).to(tl.bfloat16, fp_downcast_rounding="rtz"))


def test_rounding_toward_zero_never_grows():
    x = np.random.default_rng(0).normal(size=256).astype(np.float32) * 1e3
    x[:3] = [np.inf, -np.inf, np.nan]
    out = np.asarray(launch(truncate, (1,), x, jnp.zeros(256, jnp.bfloat16), written=[1], BLOCK=256))
    expected = (x.view(np.uint32) >> 16).astype(np.uint16).view(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(out.astype(np.float32), expected.astype(np.float32))


@triton.jit
def bits(x, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i).to(tl.int32, bitcast=True) ^ 1)


def test_bitcast_keeps_the_bits():
    x = np.random.default_rng(0).normal(size=16).astype(np.float32)
    out = launch(bits, (1,), x, jnp.zeros(16, jnp.int32), written=[1], BLOCK=16)
    np.testing.assert_array_equal(out, x.view(np.int32) ^ 1)


@triton.jit
def negate(x, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    flag = tl.load(x + i)
    tl.store(out + i, (not flag) if BLOCK < 0 else (flag == 0))


def test_boolean_arrays_stay_boolean():
    x = np.array([True, False] * 8)
    out = launch(negate, (1,), x, jnp.zeros(16, jnp.bool_), written=[1], BLOCK=16)
    assert out.dtype == np.bool_
    np.testing.assert_array_equal(out, ~x)


@triton.jit
def random(out, seed, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.randint(seed, i))


def philox(seed, offset):
    key = [seed & 0xFFFFFFFF, seed >> 32]
    c = [offset, 0, 0, 0]
    for _ in range(10):
        p0, p1 = 0xCD9E8D57 * c[2], 0xD2511F53 * c[0]
        c = [(p0 >> 32) ^ c[1] ^ key[0], p0 & 0xFFFFFFFF, (p1 >> 32) ^ c[3] ^ key[1], p1 & 0xFFFFFFFF]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c[0]


def test_random_numbers_are_philox():
    out = np.asarray(launch(random, (2,), jnp.zeros(64, jnp.uint32), 1234, written=[0], BLOCK=32))
    np.testing.assert_array_equal(out, [philox(1234, i) for i in range(64)])


@triton.jit
def to_integers(x, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i).to(out.dtype.element_ty))


@pytest.mark.parametrize("dtype", [np.int16, np.uint16, np.int32, np.uint32])
def test_floats_beyond_an_integer_type_become_its_bounds_and_nan_zero(dtype):
    x = np.array([1e20, -1e20, np.inf, -np.inf, np.nan, 2.9, -2.9, 0.0], np.float32)
    info = np.iinfo(dtype)
    out = launch(to_integers, (1,), x, jnp.zeros(8, dtype), written=[1], BLOCK=8)
    small = -2 if info.min < 0 else 0
    np.testing.assert_array_equal(out, [info.max, info.min, info.max, info.min, 0, 2, small, 0])


@pytest.mark.parametrize("dtype", [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2])
def test_floats_of_eight_bits_saturate(dtype):
    largest = float(ml_dtypes.finfo(dtype).max)
    x = np.array([1e6, -1e6, np.inf, -np.inf, largest, 1.0, -0.3, 0.0], np.float32)
    out = launch(to_integers, (1,), x, jnp.zeros(8, dtype), written=[1], BLOCK=8)
    expected = np.clip(x, -largest, largest).astype(dtype)
    np.testing.assert_array_equal(np.asarray(out).astype(np.float32), expected.astype(np.float32))
