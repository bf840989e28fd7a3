"""libdevice and ocml functions, against SciPy, and against exact fractions where they round."""

import fractions
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice
from triton.language.extra.hip import libdevice as ocml

from tests.portable.launching import launch


@triton.jit
def unary(x, out, FUNCTION: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, FUNCTION(tl.load(x + i)))


@triton.jit
def binary(x, y, out, FUNCTION: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, FUNCTION(tl.load(x + i), tl.load(y + i)))


@triton.jit
def ternary(x, y, z, out, FUNCTION: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, FUNCTION(tl.load(x + i), tl.load(y + i), tl.load(z + i)))


KERNELS = {1: unary, 2: binary, 3: ternary}


def call(function, result, *arrays):
    """`function` of arrays of one length, a power of two."""
    kernel, count = KERNELS[len(arrays)], len(arrays)
    out = launch(
        kernel,
        (1,),
        *arrays,
        jnp.zeros(arrays[0].size, result),
        written=[count],
        FUNCTION=function,
        BLOCK=arrays[0].size,
    )
    return np.asarray(out)


NEAR = np.concatenate([np.linspace(-0.99, 0.99, 62), [0.0, 0.5]])
WIDE = np.concatenate([np.linspace(-20, 20, 60), [0.0, 0.5, -0.5, 1.0]])
POSITIVE = np.concatenate([np.linspace(0.01, 30, 62), [1.0, 1e-3]])
ABOVE_ONE = np.concatenate([np.linspace(1, 40, 63), [1.5]])
PROBABLE = np.concatenate([np.linspace(0.001, 0.999, 62), [1e-12, 1e-6]])

FUNCTIONS = {
    "floor": (np.floor, WIDE), "ceil": (np.ceil, WIDE), "trunc": (np.trunc, WIDE), "rint": (np.rint, WIDE),
    "nearbyint": (np.rint, WIDE), "round": (lambda x: np.sign(x) * np.floor(np.abs(x) + 0.5), WIDE),
    "abs": (np.abs, WIDE), "sqrt": (np.sqrt, POSITIVE), "rsqrt": (lambda x: 1 / np.sqrt(x), POSITIVE),
    "cbrt": (np.cbrt, WIDE), "rcbrt": (lambda x: 1 / np.cbrt(x), POSITIVE),
    "exp": (np.exp, WIDE), "exp2": (np.exp2, WIDE), "exp10": (lambda x: 10.0**x, WIDE),
    "expm1": (np.expm1, WIDE),
    "log": (np.log, POSITIVE), "log2": (np.log2, POSITIVE), "log10": (np.log10, POSITIVE),
    "log1p": (np.log1p, NEAR), "logb": (lambda x: np.floor(np.log2(x)), POSITIVE),
    "sin": (np.sin, WIDE), "cos": (np.cos, WIDE), "tan": (np.tan, NEAR),
    "sinpi": (lambda x: np.sin(np.pi * (x % 2)), WIDE), "cospi": (lambda x: np.cos(np.pi * (x % 2)), WIDE),
    "asin": (np.arcsin, NEAR), "acos": (np.arccos, NEAR), "atan": (np.arctan, WIDE),
    "sinh": (np.sinh, WIDE), "cosh": (np.cosh, WIDE), "tanh": (np.tanh, WIDE),
    "asinh": (np.arcsinh, WIDE), "acosh": (np.arccosh, ABOVE_ONE), "atanh": (np.arctanh, NEAR),
    "erf": (scipy.special.erf, WIDE), "erfc": (scipy.special.erfc, NEAR),
    "erfcx": (scipy.special.erfcx, WIDE),
    "erfinv": (scipy.special.erfinv, NEAR), "erfcinv": (scipy.special.erfcinv, PROBABLE),
    "normcdf": (scipy.special.ndtr, NEAR), "normcdfinv": (scipy.special.ndtri, PROBABLE),
    "lgamma": (scipy.special.gammaln, POSITIVE), "tgamma": (scipy.special.gamma, NEAR * 4 + 0.01),
    "cyl_bessel_i0": (scipy.special.i0, WIDE), "cyl_bessel_i1": (scipy.special.i1, WIDE),
    "j0": (scipy.special.j0, WIDE * 4), "j1": (scipy.special.j1, WIDE * 4),
    "y0": (scipy.special.y0, POSITIVE * 3), "y1": (scipy.special.y1, POSITIVE * 3),
    "saturatef": (lambda x: np.clip(x, 0, 1), WIDE),
    "fast_sinf": (np.sin, WIDE), "fast_cosf": (np.cos, WIDE), "fast_tanf": (np.tan, NEAR),
    "fast_expf": (np.exp, WIDE), "fast_exp10f": (lambda x: 10.0**x, WIDE), "fast_logf": (np.log, POSITIVE),
    "fast_log2f": (np.log2, POSITIVE), "fast_log10f": (np.log10, POSITIVE),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_one_number_agree_with_scipy(name):
    reference, x = FUNCTIONS[name]
    single = x.astype(np.float32)
    expected = reference(single.astype(np.float64))
    got = call(getattr(libdevice, name), np.float32, single)
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(got, expected.astype(np.float32), rtol=3e-6, atol=1e-6)


@triton.jit
def unary_in_double(x, high, low, FUNCTION: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    result = FUNCTION(tl.load(x + i).to(tl.float64))
    rounded = result.to(tl.float32)
    tl.store(high + i, rounded)
    tl.store(low + i, (result - rounded.to(tl.float64)).to(tl.float32))


def in_double(function, x):
    """`function` in float64 of float32s, by a kernel that was launched without x64."""
    zeros = jnp.zeros(x.size, np.float32)
    high, low = launch(
        unary_in_double, (1,), x, zeros, zeros, written=[1, 2], FUNCTION=function, BLOCK=x.size
    )
    return np.asarray(high, np.float64) + np.asarray(low, np.float64)


OF_DOUBLES = [name for name in FUNCTIONS if not name.startswith("fast_") and name != "saturatef"]


@pytest.mark.parametrize("name", OF_DOUBLES)
def test_functions_have_the_digits_of_doubles_where_jax_has_none(name):
    """With JAX in its mode of 32 bits, in which it may lower them too."""
    reference, x = FUNCTIONS[name]
    single = x[np.abs(reference(x)) < np.finfo(np.float32).max].astype(np.float32)
    single = np.resize(single, 64)
    got = in_double(getattr(libdevice, name), single)
    np.testing.assert_allclose(got, reference(single.astype(np.float64)), rtol=1e-12, atol=1e-13)


def test_complements_keep_their_digits_where_they_are_small():
    large = np.geomspace(19, 1e10, 64).astype(np.float32)
    expected = scipy.special.erfcx(large.astype(np.float64))
    np.testing.assert_allclose(in_double(libdevice.erfcx, large), expected, rtol=1e-12)
    tiny = np.geomspace(1e-37, 1e-3, 64).astype(np.float32)
    expected = scipy.special.erfcinv(tiny.astype(np.float64))
    np.testing.assert_allclose(in_double(libdevice.erfcinv, tiny), expected, rtol=1e-12)


@pytest.mark.parametrize("name", ["erfc", "erfinv", "erfcinv", "erfcx", "normcdf", "normcdfinv"])
def test_derivatives_in_double_agree_with_quotients_of_differences(name):
    _, x = FUNCTIONS[name]
    x, step = np.resize(x[x > 1e-3], 32).astype(np.float32), np.float32(2.0**-13)
    function = getattr(libdevice, name)

    def total(x):
        zeros = jnp.zeros(x.size, np.float32)
        high, _ = launch(
            unary_in_double, (1,), x, zeros, zeros, written=[1, 2], FUNCTION=function, BLOCK=x.size
        )
        return high.sum()

    above, below = x + step, x - step
    rise = in_double(function, above) - in_double(function, below)
    quotients = rise / (above.astype(np.float64) - below.astype(np.float64))
    np.testing.assert_allclose(jax.grad(total)(x), quotients, rtol=1e-3)


IN_OCML = ["floor", "trunc", "nearbyint", "round", "exp", "log", "sin", "asin", "atanh", "erf", "erfcx", "j1"]


@pytest.mark.parametrize("name", IN_OCML)
def test_functions_of_doubles_agree_with_scipy_in_ocml_too(name):
    reference, x = FUNCTIONS[name]
    with jax.enable_x64(True):
        got = call(getattr(ocml, name), np.float64, x)
    np.testing.assert_allclose(got, reference(x), rtol=1e-11, atol=1e-12)


A = np.random.default_rng(0).normal(size=64).astype(np.float32) * 3
B = np.random.default_rng(1).normal(size=64).astype(np.float32) * 3
C = np.random.default_rng(2).normal(size=64).astype(np.float32) * 3
SMALL = np.random.default_rng(3).integers(-5, 6, 64).astype(np.int32)

OF_SEVERAL = {
    "hypot": (np.hypot, A, B),
    "rhypot": (lambda a, b: 1 / np.hypot(a, b), A, B),
    "norm3d": (lambda a, b, c: np.sqrt(a * a + b * b + c * c), A, B, C),
    "rnorm3d": (lambda a, b, c: 1 / np.sqrt(a * a + b * b + c * c), A, B, C),
    "atan2": (np.arctan2, A, B),
    "copysign": (np.copysign, A, B),
    "fmod": (np.fmod, A, B),
    "remainder": (np.vectorize(math.remainder), A, B),
    "fdim": (lambda a, b: np.maximum(a - b, 0), A, B),
    "pow": (np.power, np.abs(A), B),
    "fma": (lambda a, b, c: a * b + c, A, B, C),
    "pow with an integer": (lambda a, n: a ** n.astype(float), A, SMALL),
    "ldexp": (lambda a, n: np.ldexp(a, n.astype(int)), A, SMALL * 20),
    "scalbn": (lambda a, n: np.ldexp(a, n.astype(int)), A, SMALL * 20),
    "fast_dividef": (np.divide, A, B),
    "fast_powf": (np.power, np.abs(A), B),
}


@pytest.mark.parametrize("name", OF_SEVERAL)
def test_functions_of_several_numbers_agree_with_numpy(name):
    reference, *arrays = OF_SEVERAL[name]
    expected = reference(*(array.astype(np.float64) for array in arrays)).astype(np.float32)
    got = call(getattr(libdevice, name.split()[0]), np.float32, *arrays)
    np.testing.assert_allclose(got, expected, rtol=3e-6, atol=1e-6)


EDGES = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1, -2.5, 3e38], np.float32)


def test_predicates_and_exponents_know_the_special_numbers():
    lowest, highest = np.iinfo(np.int32).min, np.iinfo(np.int32).max
    expected = {
        "isnan": np.isnan(EDGES), "isinf": np.isinf(EDGES), "finitef": np.isfinite(EDGES),
        "signbit": np.signbit(EDGES), "ilogb": [lowest, lowest, highest, highest, lowest, 0, 1, 127],
    }  # fmt: skip
    for name, wanted in expected.items():
        np.testing.assert_array_equal(call(getattr(libdevice, name), np.int32, EDGES), wanted, err_msg=name)


SMALLEST = np.array([1e-45, 3e-42, 1.1e-38, 1.18e-38, 1e-30, -2e-40, -1e-39, 1.0], np.float32)


def test_exponents_of_subnormal_numbers_are_theirs():
    wanted = np.frexp(SMALLEST)[1] - 1
    np.testing.assert_array_equal(call(libdevice.ilogb, np.int32, SMALLEST), wanted)
    np.testing.assert_array_equal(call(libdevice.logb, np.float32, SMALLEST), wanted)
    np.testing.assert_array_equal(in_double(libdevice.logb, SMALLEST[3:5].repeat(2)), wanted[3:5].repeat(2))


@pytest.mark.parametrize("name", ["ldexp", "scalbn"])
def test_scaling_reaches_from_the_least_number_to_the_greatest(name):
    x = np.array([1.5, -1.0, 2e38, 1.2e-38, 0.0, -0.0, np.inf, np.nan], np.float32).repeat(64)
    lowest, highest = np.iinfo(np.int32).min, np.iinfo(np.int32).max
    by = np.concatenate([np.arange(-260, 260, 9), [lowest, lowest + 1, highest, -126, 127, 128]])
    by = np.tile(by, 8).astype(np.int32)
    with np.errstate(over="ignore", under="ignore"):
        wanted = np.ldexp(x, by)
    wanted[np.abs(wanted) < np.finfo(np.float32).tiny] *= 0  # XLA's CPU keeps no subnormal numbers
    np.testing.assert_array_equal(call(getattr(libdevice, name), np.float32, x, by), wanted)


NUMBERS = np.random.default_rng(4).integers(-(2**31), 2**31, 64).astype(np.int32)
OTHERS = np.random.default_rng(5).integers(-(2**31), 2**31, 64).astype(np.int32)
NUMBERS[:4] = [0, -1, 1, -(2**31)]


def bits(x):
    return f"{int(x) & 0xFFFFFFFF:032b}"


def low_24(x):
    return (x & 0xFFFFFF) - ((x & 0x800000) << 1)


def byte_perm(x, y, s):
    data = (x & 0xFFFFFFFF).to_bytes(4, "little") + (y & 0xFFFFFFFF).to_bytes(4, "little")
    return int.from_bytes(bytes(data[s >> 4 * k & 7] for k in range(4)), "little")


INTEGERS = {
    "clz": (lambda x: bits(x).find("1") if x else 32, NUMBERS),
    "popc": (lambda x: bits(x).count("1"), NUMBERS),
    "ffs": (lambda x: 32 - bits(x).rfind("1") if x else 0, NUMBERS),
    "brev": (lambda x: int(bits(x)[::-1], 2), NUMBERS),
    "abs": (abs, NUMBERS),
    "mulhi": (lambda x, y: x * y >> 32, NUMBERS, OTHERS),
    "mul24": (lambda x, y: low_24(x) * low_24(y), NUMBERS, OTHERS),
    "hadd": (lambda x, y: (x + y) >> 1, NUMBERS, OTHERS),
    "rhadd": (lambda x, y: (x + y + 1) >> 1, NUMBERS, OTHERS),
    "byte_perm": (byte_perm, NUMBERS, OTHERS, NUMBERS[::-1].copy()),
}


@pytest.mark.parametrize("name", INTEGERS)
def test_functions_of_integers_agree_with_their_definition(name):
    reference, *arrays = INTEGERS[name]
    expected = [reference(*map(int, row)) for row in zip(*arrays, strict=True)]
    wrapped = [(x + 2**31) % 2**32 - 2**31 for x in expected]
    np.testing.assert_array_equal(call(getattr(libdevice, name), np.int32, *arrays), wrapped)


def test_unsigned_forms_differ():
    x, y = NUMBERS.view(np.uint32), OTHERS.view(np.uint32)
    pairs = [(int(a), int(b)) for a, b in zip(x, y, strict=True)]
    np.testing.assert_array_equal(call(libdevice.mulhi, np.uint32, x, y), [a * b >> 32 for a, b in pairs])
    np.testing.assert_array_equal(call(libdevice.hadd, np.uint32, x, y), [(a + b) >> 1 for a, b in pairs])
    sums = call(libdevice.sad, np.uint32, x, y, x)
    np.testing.assert_array_equal(sums, [(abs(a - b) + a) % 2**32 for a, b in pairs])


# --- Rounding modes ------------------------------------------------------------------------------


def rounded(exact, mode):
    """A fraction as fp32."""
    nearest = np.float32(float(exact))
    below = (
        nearest if fractions.Fraction(float(nearest)) <= exact else np.nextafter(nearest, np.float32(-np.inf))
    )
    above = (
        nearest if fractions.Fraction(float(nearest)) >= exact else np.nextafter(nearest, np.float32(np.inf))
    )
    if mode == "rn":
        low, high = exact - fractions.Fraction(float(below)), fractions.Fraction(float(above)) - exact
        even = not below.view(np.uint32) & 1
        return below if low < high or (low == high and even) else above
    return {"rd": below, "ru": above, "rz": below if exact > 0 else above}[mode]


EXACT = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "fma": lambda a, b, c: a * b + c,
}


@pytest.mark.parametrize("mode", ["rn", "rz", "rd", "ru"])
@pytest.mark.parametrize("name", EXACT)
def test_each_rounding_mode_is_exact(name, mode):
    rng = np.random.default_rng(6)
    count = 3 if name == "fma" else 2
    arrays = [
        (rng.normal(size=64) * 2.0 ** rng.integers(-30, 30, 64)).astype(np.float32) for _ in range(count)
    ]
    arrays[0][:32] = arrays[0][:32] // 1  # some sums and products need no rounding
    rows = [[fractions.Fraction(float(x)) for x in row] for row in zip(*arrays, strict=True)]
    expected = [rounded(EXACT[name](*row), mode) for row in rows]
    np.testing.assert_array_equal(call(getattr(libdevice, f"{name}_{mode}"), np.float32, *arrays), expected)


ROUNDINGS = {"rn": round, "rz": math.trunc, "rd": math.floor, "ru": math.ceil}


@pytest.mark.parametrize("mode", ROUNDINGS)
def test_conversions_round_and_saturate(mode):
    x = np.array(
        [0.5, 1.5, -0.5, -1.5, 2.7, -2.7, 3e9, -3e9, np.nan, np.inf, -np.inf, 1, 7, 8, 9, 2**31 - 128],
        np.float32,
    )
    whole = [
        0 if math.isnan(v) else int(v) if math.isinf(v) is False and v == int(v) else v for v in map(float, x)
    ]
    clipped = [int(np.clip(v, -(2**31), 2**31 - 1)) if abs(v) > 2**31 else ROUNDINGS[mode](v) for v in whole]
    np.testing.assert_array_equal(call(getattr(libdevice, f"float2int_{mode}"), np.int32, x), clipped)
    large = np.array([2**24 + 1, -(2**24) - 1, 2**31 - 1, -(2**31), 5, 2**30 + 3, 2**24 + 3, 0], np.int32)
    expected = [rounded(fractions.Fraction(int(v)), mode) for v in large]
    np.testing.assert_array_equal(call(getattr(libdevice, f"int2float_{mode}"), np.float32, large), expected)


@pytest.mark.parametrize("mode", ["rn", "rz", "rd", "ru"])
def test_integers_of_64_bits_become_floats_in_each_mode(mode):
    x = np.array(
        [2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63), 3, 2**62 + 2**38 + 1, 2**40 + 1, -7], np.int64
    )
    with jax.enable_x64(True):
        got = call(getattr(libdevice, f"ll2float_{mode}"), np.float32, x)
    np.testing.assert_array_equal(got, [rounded(fractions.Fraction(int(v)), mode) for v in x])


def test_what_cannot_be_exact_is_refused():
    with jax.enable_x64(True), pytest.raises(NotImplementedError, match=r"__nv_dmul_rz"):
        call(libdevice.mul_rz, np.float64, np.ones(4), np.ones(4))
