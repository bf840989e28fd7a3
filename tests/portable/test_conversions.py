"""Conversions between number types where they saturate, wrap or round, as PTX defines them."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import triton
import triton.language as tl
from triton.language.extra.cuda import utils

from tests.portable.launching import launch


@triton.jit
def convert(x, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i).to(out.dtype.element_ty))


def converted(x, dtype):
    return np.asarray(launch(convert, (1,), x, jnp.zeros(x.size, dtype), written=[1], BLOCK=x.size))


EDGES = [0.5, -0.5, 2.99, -2.99, 127.5, 128, 200, -200, 300, -300, 40000, -40000, 70000, 3e9, -3e9, 5e9]
EDGES += [
    1e20,
    -1e20,
    np.inf,
    -np.inf,
    np.nan,
    -0.0,
    255,
    256,
    65535,
    65536,
    2**31,
    2**32,
    2**63,
    2**64,
    1,
    -1,
]


def rzi(value, kind, bits, wide):
    """PTX's cvt.rzi of one number to an integer of `bits`, signed (i) or not (u)."""
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if kind == "i" else (0, 2**bits - 1)
    if np.isnan(value):
        pattern = 1 << (bits - 1) if wide else 0
        return pattern - 2**bits if kind == "i" and pattern > high else pattern
    if np.isinf(value):
        return high if value > 0 else low
    return min(max(int(value), low), high)


@pytest.mark.parametrize("source", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
@pytest.mark.parametrize("target", [f"{k}{b}" for k in ("int", "uint") for b in (8, 16, 32, 64)])
def test_floats_saturate_as_integers_and_nan_is_zero(source, target):
    target = np.dtype(target)
    with np.errstate(over="ignore"), jax.enable_x64(True):
        x = np.array(EDGES, np.float64).astype(source)
        got = converted(x, target)
    width = max(target.itemsize, 2) * 8  # there is no cvt to 8 bits
    wide = source == np.float64 or width == 64
    expected = [rzi(float(v), target.kind, width, wide) for v in x]
    wrapped = np.array([v % 2 ** (8 * target.itemsize) for v in expected], f"u{target.itemsize}").view(target)
    np.testing.assert_array_equal(got, wrapped)


@pytest.mark.parametrize("target", [np.float16, ml_dtypes.bfloat16, np.float32])
@pytest.mark.parametrize("source", [np.int32, np.uint32, np.int8, np.uint8, np.int64, np.uint64])
def test_integers_round_to_the_nearest_float(source, target):
    limits = np.iinfo(source)
    x = np.random.default_rng(0).integers(limits.min, limits.max, 64, source, endpoint=True)
    x[:4] = [limits.min, limits.max, 0, 1]
    with np.errstate(over="ignore"), jax.enable_x64(True):
        expected = x.astype(np.float32).astype(target)
        np.testing.assert_array_equal(converted(x, target), expected)


EIGHT_BITS = [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2]


@pytest.mark.parametrize("target", EIGHT_BITS)
@pytest.mark.parametrize("source", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_floats_of_8_bits_round_to_even_and_saturate(source, target):
    """Against all 256 codes: the nearest, of two the one with an even code."""
    rng = np.random.default_rng(0)
    x = (rng.normal(size=512) * 2.0 ** rng.integers(-18, 10, 512)).astype(source)
    codes = np.arange(256, dtype=np.uint8)
    numbers = codes.view(target).astype(np.float64)
    x[:128] = [*((numbers[:127] + numbers[1:128]) / 2).astype(source).tolist(), 0]  # ties
    x[128:133] = np.array([np.inf, -np.inf, np.nan, 60000, -60000], source)
    got = converted(x, target).astype(np.float64)
    finite = codes[np.isfinite(numbers)]
    values = finite.view(target).astype(np.float64)
    for value, result in zip(x.astype(np.float64), got, strict=True):
        if np.isnan(value):
            assert np.isnan(result)
            continue
        distance = np.abs(values - np.clip(value, values.min(), values.max()))
        nearest = finite[distance == distance.min()]
        even = (
            [c for c in nearest if c % 2 == 0]
            if len(set(np.abs(nearest.view(target).astype(float)))) > 1
            else nearest
        )
        assert result in np.array(even, np.uint8).view(target).astype(np.float64), (value, result)


@pytest.mark.parametrize("source", EIGHT_BITS)
@pytest.mark.parametrize("target", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_every_code_of_8_bits_is_read_exactly(source, target):
    codes = np.arange(256, dtype=np.uint8).view(source)
    np.testing.assert_array_equal(
        converted(codes, target).astype(np.float32),
        codes.astype(np.float32).astype(target).astype(np.float32),
    )


@triton.jit
def toward_zero(x, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i).to(out.dtype.element_ty, fp_downcast_rounding="rtz"))


@pytest.mark.parametrize("target", [np.float16, ml_dtypes.bfloat16])
def test_rounding_toward_zero_takes_the_smaller_neighbour(target):
    x = np.random.default_rng(0).normal(size=256).astype(np.float32) * 100
    out = np.asarray(launch(toward_zero, (1,), x, jnp.zeros(256, target), written=[1], BLOCK=256))
    assert (np.abs(out.astype(np.float64)) <= np.abs(x)).all()
    up = np.nextafter(np.abs(out), np.array(np.inf, target)).astype(np.float64)
    assert (up > np.abs(x)).all()


@triton.jit
def through_e4b15(x, out, back, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    code = tl.load(x + i).to(tl.float8e4b15)
    tl.store(out + i, code.to(tl.uint8, bitcast=True))
    tl.store(back + i, code.to(tl.float32))


def e4b15(code):
    sign, exponent, mantissa = code >> 7, code >> 3 & 15, code & 7
    size = mantissa / 8 * 2.0**-14 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 15)
    return -size if sign else size


def test_e4b15_is_fp16_with_fewer_bits():
    x = np.random.default_rng(0).normal(size=256).astype(np.float32)
    x[:3] = [np.nan, 5, -5]
    codes, back = launch(
        through_e4b15,
        (1,),
        x,
        jnp.zeros(256, jnp.uint8),
        jnp.zeros(256, jnp.float32),
        written=[1, 2],
        BLOCK=256,
    )
    np.testing.assert_array_equal(back, [e4b15(int(c)) for c in codes])
    np.testing.assert_array_equal(back[:3], [1.75, 1.75, -1.75])
    inside = np.abs(x) <= 1.75
    assert (np.abs(np.asarray(back) - x)[inside] <= np.maximum(np.abs(x) / 16, 2.0**-18)[inside] * 1.01).all()


@triton.jit
def instructions(x, y, n, out, whole, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    a, b, k = tl.load(x + i), tl.load(y + i), tl.load(n + i)
    r = tl.inline_asm_elementwise(
        "tanh.approx.f32 $0, $1;", "=f,f", [a], dtype=tl.float32, is_pure=True, pack=1
    )
    tl.store(out + i, r)
    r = tl.inline_asm_elementwise(
        "{ ex2.approx.ftz.f32 $0, $1; }", "=f,f", [a], dtype=tl.float32, is_pure=True, pack=1
    )
    tl.store(out + BLOCK + i, r)
    r = tl.inline_asm_elementwise(
        "max.f32  $0, $1,\n $2;", "=f,f,f", [a, b], dtype=tl.float32, is_pure=True, pack=1
    )
    tl.store(out + 2 * BLOCK + i, r)
    r = tl.inline_asm_elementwise(
        "cvt.rna.tf32.f32 $0, $1;", "=r,r", [a], dtype=tl.float32, is_pure=True, pack=1
    )
    tl.store(out + 3 * BLOCK + i, r)
    r = tl.inline_asm_elementwise(
        "shr.u32 $0, $1, $2;", "=r,r,r", [k, k & 63], dtype=tl.int32, is_pure=True, pack=1
    )
    tl.store(whole + i, r)
    r = tl.inline_asm_elementwise(
        "mul.lo.s32 $0, $1, $2;", "=r,r,r", [k, k], dtype=tl.int32, is_pure=True, pack=1
    )
    tl.store(whole + BLOCK + i, r)
    tl.store(whole + 2 * BLOCK + i, utils.smid())


def test_single_instructions_of_ptx_are_translated():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 64)).astype(np.float32)
    n = rng.integers(-(2**31), 2**31, 64).astype(np.int32)
    x[0] = np.nan
    out, whole = launch(
        instructions,
        (1,),
        x,
        y,
        n,
        jnp.zeros(256, jnp.float32),
        jnp.zeros(192, jnp.int32),
        written=[3, 4],
        BLOCK=64,
    )
    tanh, exp2, largest, tf32 = np.asarray(out).reshape(4, 64)
    np.testing.assert_allclose(tanh, np.tanh(x), rtol=1e-5)
    np.testing.assert_allclose(exp2, np.exp2(x), rtol=1e-5)
    np.testing.assert_array_equal(largest, np.fmax(x, y))
    assert (tf32[1:].view(np.uint32) & 0x1FFF == 0).all()
    np.testing.assert_array_less(np.abs(tf32 - x)[1:], np.abs(x)[1:] * 2.0**-11 * 1.001)
    amount = n.view(np.uint32) & 63
    shifted = [int(a) >> int(s) for a, s in zip(n.view(np.uint32), amount, strict=True)]
    with np.errstate(over="ignore"):
        expected = [np.array(shifted, np.uint32).view(np.int32), n * n, np.zeros(64)]
    np.testing.assert_array_equal(np.asarray(whole).reshape(3, 64), expected)
