"""Functions of libdevice and ocml, against NumPy, SciPy and exact rational arithmetic."""

import math
from fractions import Fraction

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import triton
import triton.language as tl
from hypothesis import example, given
from triton.language.extra.cuda import libdevice as cuda_library

from jtprim.errors import UnsupportedError
from jtprim.lowering.portable.rules.libraries import library_function
from tests.portable.launching import launch


def call(symbol, *arrays):
    with jax.enable_x64(True):
        return np.asarray(library_function(symbol)(*(jnp.asarray(x) for x in arrays)))


ANY = np.concatenate([np.linspace(-8, 8, 97), [0.5, 100.0, 1e-20, 0.0]])
POSITIVE = np.concatenate([np.linspace(0.05, 20, 97), [1e-10, 1e10]])
UNIT = np.linspace(-0.99, 0.99, 99)
PROBABILITY = np.linspace(0.01, 0.99, 99)

ONE_ARGUMENT = {
    "acos": (np.arccos, UNIT),
    "acosh": (np.arccosh, 1 + POSITIVE),
    "asinh": (np.arcsinh, ANY),
    "cbrt": (np.cbrt, ANY),
    "rcbrt": (lambda x: 1 / np.cbrt(x), POSITIVE),
    "cospi": (lambda x: np.cos(np.pi * np.fmod(x, 2)), ANY),
    "sinpi": (lambda x: np.sin(np.pi * np.fmod(x, 2)), ANY),
    "erfcinv": (scipy.special.erfcinv, PROBABILITY),
    "erfinv": (scipy.special.erfinv, UNIT),
    "erfcx": (scipy.special.erfcx, np.linspace(-2, 60, 99)),
    "exp10": (lambda x: 10.0**x, np.linspace(-20, 20, 99)),
    "lgamma": (scipy.special.gammaln, POSITIVE[:97]),
    "tgamma": (scipy.special.gamma, np.linspace(-3.7, 9, 99)),
    "logb": (lambda x: np.floor(np.log2(np.abs(x))), POSITIVE),
    "nearbyint": (np.rint, np.arange(-10, 10) / 2),
    "round": (lambda x: np.sign(x) * np.floor(np.abs(x) + 0.5), np.arange(-10, 10) / 2),
    "normcdf": (scipy.special.ndtr, ANY),
    "normcdfinv": (scipy.special.ndtri, PROBABILITY),
    "rsqrt": (lambda x: 1 / np.sqrt(x), POSITIVE),
    "trunc": (np.trunc, ANY),
}
TWO_ARGUMENTS = {
    "fmod": np.fmod,
    "remainder": np.vectorize(math.remainder),
    "hypot": np.hypot,
    "rhypot": lambda x, y: 1 / np.hypot(x, y),
    "fdim": lambda x, y: np.maximum(x - y, 0),
    "copysign": np.copysign,
    "atan2": np.arctan2,
    "nextafter": np.nextafter,
}


@pytest.mark.parametrize("suffix, dtype, tolerance", [("f", np.float32, 2e-5), ("", np.float64, 1e-11)])
@pytest.mark.parametrize("name", ONE_ARGUMENT)
def test_functions_of_one_argument_agree_with_scipy(name, suffix, dtype, tolerance):
    function, inputs = ONE_ARGUMENT[name]
    x = inputs.astype(dtype)
    found = call(f"__nv_{name}{suffix}", x)
    assert found.dtype == dtype
    np.testing.assert_allclose(found, function(x.astype(np.float64)), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("suffix, dtype", [("f", np.float32), ("", np.float64)])
@pytest.mark.parametrize("name", TWO_ARGUMENTS)
def test_functions_of_two_arguments_agree_with_numpy(name, suffix, dtype):
    rng = np.random.default_rng(0)
    x, y = (rng.normal(scale=5, size=200).astype(dtype) for _ in "xy")
    np.testing.assert_allclose(call(f"__nv_{name}{suffix}", x, y), TWO_ARGUMENTS[name](x, y), rtol=1e-5)


def test_ocml_has_the_same_functions_under_other_names():
    x = np.linspace(0.1, 3, 30).astype(np.float32)
    for name in ("erf", "log1p", "rsqrt", "tanh", "nearbyint"):
        np.testing.assert_array_equal(call(f"__ocml_{name}_f32", x), call(f"__nv_{name}f", x))
    np.testing.assert_array_equal(call("__ocml_isnan_f32", np.array([1, np.nan], np.float32)), [0, 1])
    np.testing.assert_array_equal(
        call("__ocml_pown_f64", x.astype(float), np.full(30, 3)), x.astype(float) ** 3
    )


@pytest.mark.parametrize("name", ["__nv_ynf", "__nv_jn", "__nv_dadd_rz", "__nv_no_such_thing"])
def test_what_has_no_translation_is_known_to_have_none(name):
    assert library_function(name) is None


def test_truth_values_and_special_numbers():
    x = np.array([0.0, -0.0, 1.5, -np.inf, np.nan], np.float32)
    np.testing.assert_array_equal(call("__nv_isinff", x), [0, 0, 0, 1, 0])
    np.testing.assert_array_equal(call("__nv_finitef", x), [1, 1, 1, 0, 0])
    np.testing.assert_array_equal(call("__nv_signbitf", x)[:4], [0, 1, 0, 1])
    np.testing.assert_array_equal(call("__nv_saturatef", x), [0, 0, 1, 0, 0])
    least = np.iinfo(np.int32).min
    np.testing.assert_array_equal(call("__nv_ilogbf", x), [least, least, 0, np.iinfo(np.int32).max, least])
    np.testing.assert_array_equal(call("__nv_logbf", x[:4]), [-np.inf, -np.inf, 0, np.inf])


# --- Integers ------------------------------------------------------------------------------------

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)


def wrapped(value, bits):
    """As a signed integer of so many bits."""
    return (value + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)


def as_unsigned(value, bits):
    return value % 2**bits


def low_24(x):
    return wrapped(x, 24)


BINARY = {
    "mulhi": lambda x, y: (x * y) >> 32,
    "umulhi": lambda x, y: (as_unsigned(x, 32) * as_unsigned(y, 32)) >> 32,
    "mul24": lambda x, y: low_24(x) * low_24(y),
    "umul24": lambda x, y: (x % 2**24) * (y % 2**24),
    "hadd": lambda x, y: (x + y) >> 1,
    "rhadd": lambda x, y: (x + y + 1) >> 1,
    "uhadd": lambda x, y: (as_unsigned(x, 32) + as_unsigned(y, 32)) >> 1,
    "urhadd": lambda x, y: (as_unsigned(x, 32) + as_unsigned(y, 32) + 1) >> 1,
}


@pytest.mark.parametrize("name", BINARY)
@given(x=INT32, y=INT32)
def test_integer_functions_are_exact(name, x, y):
    found = call(f"__nv_{name}", np.int32(x), np.int32(y))
    assert found == wrapped(BINARY[name](x, y), 32)


@given(INT64, INT64)
def test_the_high_half_of_a_product_of_64_bits_is_exact(x, y):
    assert call("__nv_mul64hi", np.int64(x), np.int64(y)) == (x * y) >> 64
    assert call("__nv_umul64hi", np.int64(x), np.int64(y)) == wrapped((x % 2**64 * (y % 2**64)) >> 64, 64)


@given(INT32, INT64)
@example(0, 0)
def test_bits_are_counted(x, y):
    for bits, value, suffix in ((32, x, ""), (64, y, "ll")):
        number = np.dtype(f"int{bits}").type(value)
        text = format(as_unsigned(value, bits), f"0{bits}b")
        assert call(f"__nv_popc{suffix}", number) == text.count("1")
        assert call(f"__nv_clz{suffix}", number) == bits - len(text.lstrip("0"))
        assert call(f"__nv_ffs{suffix}", number) == text[::-1].find("1") + 1
        assert call(f"__nv_brev{suffix}", number) == wrapped(int(text[::-1], 2), bits)


@given(INT32, INT32, INT32)
def test_byte_perm_chooses_bytes_by_three_bits_each(x, y, selector):
    eight = as_unsigned(x, 32).to_bytes(4, "little") + as_unsigned(y, 32).to_bytes(4, "little")
    chosen = [eight[selector >> 4 * place & 7] for place in range(4)]
    expected = int.from_bytes(bytes(chosen), "little", signed=True)
    assert call("__nv_byte_perm", np.int32(x), np.int32(y), np.int32(selector)) == expected


# --- Rounding ------------------------------------------------------------------------------------


def rounded(exact, mode):
    """A fraction as float32, by the definition of the mode. Only for what is neither tiny nor huge."""
    nearest = np.float32(float(exact)) if abs(exact) < 1e30 else np.float32(exact)
    below = above = nearest
    while Fraction(float(below)) > exact:
        below = np.nextafter(below, np.float32(-np.inf))
    while Fraction(float(above)) < exact:
        above = np.nextafter(above, np.float32(np.inf))
    return {"rd": below, "ru": above, "rz": below if exact > 0 else above}[mode]


FLOAT32 = st.floats(np.float32(2.0**-20), np.float32(2.0**20), width=32) | st.floats(
    np.float32(-(2.0**20)), np.float32(-(2.0**-20)), width=32
)
EXACT = {
    "fadd": lambda x, y: x + y,
    "fsub": lambda x, y: x - y,
    "fmul": lambda x, y: x * y,
    "fdiv": lambda x, y: x / y,
}


@pytest.mark.parametrize("mode", ["rd", "ru", "rz"])
@pytest.mark.parametrize("name", EXACT)
@given(x=FLOAT32, y=FLOAT32)
def test_rounding_modes_are_exact(name, mode, x, y):
    exact = EXACT[name](Fraction(x), Fraction(y))
    assert call(f"__nv_{name}_{mode}", np.float32(x), np.float32(y)) == rounded(exact, mode)


@pytest.mark.parametrize("mode", ["rd", "ru", "rz"])
@given(x=FLOAT32, y=FLOAT32, z=FLOAT32)
@example(x=float(np.float32(1 + 2**-23)), y=float(np.float32(1 + 2**-23)), z=float(np.float32(2.0**20)))
def test_fused_multiply_and_add_rounds_once(mode, x, y, z):
    exact = Fraction(x) * Fraction(y) + Fraction(z)
    found = call(f"__nv_fmaf_{mode}", *(np.float32(value) for value in (x, y, z)))
    assert found == rounded(exact, mode)


@pytest.mark.parametrize("mode", ["rd", "ru"])
@given(x=FLOAT32.map(abs))
def test_roots_are_bounds(mode, x):
    root = call(f"__nv_fsqrt_{mode}", np.float32(x))
    other = np.nextafter(root, np.float32(np.inf if mode == "rd" else 0))
    low, high = (root, other) if mode == "rd" else (other, root)
    square = Fraction(x)
    if Fraction(float(root)) ** 2 != square:
        assert Fraction(float(low)) ** 2 < square < Fraction(float(high)) ** 2


def test_conversions_to_integers_round_and_saturate():
    x = np.array([2.5, -2.5, 3.7, -0.2, 1e20, -1e20, np.nan], np.float32)
    top, bottom = 2**31 - 1, -(2**31)
    assert call("__nv_float2int_rn", x).tolist() == [2, -2, 4, 0, top, bottom, 0]
    assert call("__nv_float2int_rz", x).tolist() == [2, -2, 3, 0, top, bottom, 0]
    assert call("__nv_float2int_rd", x).tolist() == [2, -3, 3, -1, top, bottom, 0]
    assert call("__nv_float2int_ru", x).tolist() == [3, -2, 4, 0, top, bottom, 0]
    assert call("__nv_float2uint_rz", x).view(np.uint32).tolist() == [2, 0, 3, 0, 2**32 - 1, 0, 0]
    assert call("__nv_float2ll_rz", x).tolist()[4:6] == [2**63 - 1, -(2**63)]
    odd = np.int32(2**24 + 1)
    assert call("__nv_int2float_rd", odd) == 2**24
    assert call("__nv_int2float_ru", odd) == 2**24 + 2


def test_bits_of_doubles_come_apart_and_together():
    x = np.array([1.5, -2.25e-300])
    high, low = call("__nv_double2hiint", x), call("__nv_double2loint", x)
    np.testing.assert_array_equal(call("__nv_hiloint2double", high, low), x)


# --- In kernels ----------------------------------------------------------------------------------


@triton.jit
def library_calls(x, n, out, counts, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    value = tl.load(x + offsets)
    tl.store(out + offsets, cuda_library.tanh(value) + cuda_library.fast_expf(value))
    tl.store(counts + offsets, cuda_library.popc(tl.load(n + offsets)))


def test_kernels_call_libraries():
    x = np.linspace(-2, 2, 64).astype(np.float32)
    n = np.arange(64, dtype=np.int32)
    out, counts = launch(
        library_calls, (1,), x, n, jnp.zeros(64), jnp.zeros(64, jnp.int32), written=[2, 3], BLOCK=64
    )
    np.testing.assert_allclose(out, np.tanh(x) + np.exp(x), rtol=1e-5)
    np.testing.assert_array_equal(counts, [int(i).bit_count() for i in n])


@triton.jit
def bessel(x, out, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(out + offsets, cuda_library.jn(offsets, tl.load(x + offsets)))


def test_an_unknown_function_is_refused_by_its_name_and_line():
    with pytest.raises(UnsupportedError, match=r"bessel: .*test_libraries\.py:\d+ calls __nv_jnf"):
        launch(bessel, (1,), np.ones(16, np.float32), jnp.zeros(16), written=[1], BLOCK=16)
