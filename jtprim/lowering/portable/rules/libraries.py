"""Functions of the GPUs' math libraries, libdevice (``__nv_``) and ocml (``__ocml_``), by their names.

A name is C's, with the type in front of it or behind it. What a function computes is defined by the CUDA
Math API and by C's math library; where they round differently from XLA, results differ in the last places.
Values are computed in the type of the operands, but for a few, where a wider type keeps what cancels.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
from jax import lax
from jax.scipy import special

from jtprim.lowering.portable.machine import Machine, Results, rule
from jtprim.lowering.portable.values import Array, Value, bits_of, convert, reinterpret, signed, unsigned
from jtprim.specialize.reader import Operation

from . import bessel
from .arith import Elementwise
from .math import BINARY, UNARY, copysign, fused, nearest_even

F32, F64 = np.dtype(np.float32), np.dtype(np.float64)
I32, I64 = np.dtype(np.int32), np.dtype(np.int64)


def _like(array: Array, value: float) -> Array:
    return lax.full_like(array, value)


def _times(factor: float) -> Callable[[Array], Array]:
    return lambda x: lax.mul(x, _like(x, factor))


# --- Functions of floats -------------------------------------------------------------------------


def _in_double(function: Elementwise) -> Elementwise:
    """`function`, computed in float64 and rounded once."""
    return lambda *arrays: convert(function(*(convert(x, F64) for x in arrays)), np.dtype(arrays[0].dtype))


def _of_half_turns(function: Elementwise) -> Elementwise:
    """sinpi and cospi: the argument counts half turns, and is reduced before pi comes in."""
    return lambda x: function(_times(math.pi)(lax.rem(x, _like(x, 2))))


def _norm(*arrays: Array) -> Array:
    total = _like(arrays[0], 0)
    for x in arrays:
        total = lax.add(total, lax.mul(x, x))
    return lax.sqrt(total)


def _reciprocal(x: Array) -> Array:
    return lax.div(_like(x, 1), x)


def _gamma(x: Array) -> Array:
    """From lgamma, which is of the absolute value; below zero the sign changes at each whole number."""
    size = lax.exp(lax.lgamma(x))
    below = lax.lt(x, _like(x, 0))
    whole = lax.eq(lax.floor(x), x)
    odd = lax.ne(lax.rem(lax.floor(x), _like(x, 2)), _like(x, 0))
    signed_size = lax.select(lax.bitwise_and(below, odd), lax.neg(size), size)
    found = lax.select(lax.bitwise_and(below, whole), _like(x, math.nan), signed_size)
    return lax.select(lax.eq(x, _like(x, 0)), lax.div(_like(x, 1), x), found)


def _scaled_complement(x: Array) -> Array:
    """erfcx(x) = exp(x^2) erfc(x); for large x its asymptotic series (Abramowitz and Stegun, 7.1.23)."""
    large = lax.gt(x, _like(x, 20))
    small = lax.select(large, _like(x, 1), x)
    square = _reciprocal(lax.mul(x, x))
    series = _like(x, 1)
    for odd in (11, 9, 7, 5, 3, 1):  # the next term is below 1e-15 of the sum
        series = 1 - square * (odd / 2) * series
    return lax.select(
        large, series / (x * math.sqrt(math.pi)), lax.exp(lax.mul(small, small)) * lax.erfc(small)
    )


def _complementary_inverse(x: Array) -> Array:
    """erfcinv by the normal distribution's quantiles: 1 - x is 1 for a small x."""
    return _times(-math.sqrt(0.5))(special.ndtri(_times(0.5)(x)))


def _remainder(x: Array, y: Array) -> Array:
    """IEEE remainder: of the quotient rounded to nearest, ties to even."""
    size = lax.abs(y)
    rest = lax.rem(x, y)
    odd = lax.ge(lax.rem(lax.abs(x), size + size), size)  # whether the truncated quotient is odd
    twice = lax.abs(rest) + lax.abs(rest)
    up = lax.bitwise_or(lax.gt(twice, size), lax.bitwise_and(lax.eq(twice, size), odd))
    return lax.select(up, lax.sub(rest, copysign(size, x)), rest)


def _positive_difference(x: Array, y: Array) -> Array:
    positive = lax.select(lax.gt(x, y), lax.sub(x, y), _like(x, 0))
    return lax.select(lax.bitwise_or(lax.ne(x, x), lax.ne(y, y)), _like(x, math.nan), positive)


def _saturate(x: Array) -> Array:
    clamped = lax.min(lax.max(x, _like(x, 0)), _like(x, 1))
    return lax.select(lax.ne(x, x), _like(x, 0), clamped)


def _magnitude(x: Array) -> Array:
    """The bits of a float without its sign."""
    return reinterpret(lax.abs(x), bits_of(np.dtype(x.dtype)))


def _exponent(x: Array) -> Array:
    """The exponent of a float as an integer of its width; of 0, inf and NaN some number.

    From the bits, also of subnormal numbers: JAX takes those for 0 (`jnp.frexp`).
    """
    size, limits = _magnitude(x), np.finfo(x.dtype)
    normal = lax.sub(lax.shift_right_logical(size, _like(size, limits.nmant)), _like(size, limits.maxexp - 1))
    first = lax.sub(_like(size, limits.bits - 1), lax.clz(size))
    subnormal = lax.add(first, _like(size, limits.minexp - limits.nmant))
    return lax.select(lax.lt(size, _like(size, 1 << limits.nmant)), subnormal, normal)


def _is_zero(x: Array) -> Array:
    """By the bits: XLA's CPU takes subnormal numbers for zero when it compares."""
    bits = _magnitude(x)
    return lax.eq(bits, _like(bits, 0))


def _logb(x: Array) -> Array:
    special = lax.bitwise_not(lax.is_finite(x))
    found = lax.select(_is_zero(x), _like(x, -math.inf), convert(_exponent(x), np.dtype(x.dtype)))
    return lax.select(special, lax.mul(x, x), found)


def _ilogb(x: Array) -> Array:
    """CUDA's: INT_MIN for 0 and NaN, INT_MAX for infinities."""
    exponent = convert(_exponent(x), I32)
    least = lax.full_like(exponent, np.iinfo(np.int32).min)
    odd = lax.bitwise_or(_is_zero(x), lax.ne(x, x))
    infinite = lax.eq(lax.abs(x), _like(x, math.inf))
    found = lax.select(infinite, lax.full_like(exponent, np.iinfo(np.int32).max), exponent)
    return lax.select(odd, least, found)


def _scale(x: Array, exponent: Array) -> Array:
    """x * 2^exponent of float32 or float64, rounded once.

    Three powers of two are enough for any exponent that leaves a number. Where it takes more than one to
    get small, the first ones keep the product out of the subnormal numbers, where it would be rounded, or
    it ends too small for any.
    """
    dtype = np.dtype(x.dtype)
    limits = np.finfo(dtype)
    limit = lax.full_like(exponent, 4 * limits.maxexp)
    rest, product = convert(lax.clamp(lax.neg(limit), exponent, limit), bits_of(dtype)), x
    least, most = _like(rest, limits.minexp), _like(rest, limits.maxexp - 1)
    step_down = _like(rest, limits.minexp + limits.nmant + 1)

    def times_power(product: Array, power: Array) -> Array:
        biased = lax.add(power, _like(power, limits.maxexp - 1))
        return lax.mul(product, reinterpret(lax.shift_left(biased, _like(biased, limits.nmant)), dtype))

    for _ in range(2):
        power = lax.select(lax.lt(rest, least), step_down, lax.min(rest, most))
        product, rest = times_power(product, power), lax.sub(rest, power)
    return times_power(product, lax.clamp(least, rest, most))


def _integer_power(x: Array, exponent: Array) -> Array:
    return lax.pow(x, convert(exponent, np.dtype(x.dtype)))


def _as_condition(function: Elementwise) -> Elementwise:
    """A truth value as the libraries give it: an int32, 1 or 0."""
    return lambda x: convert(function(x), I32)


def _is_infinite(x: Array) -> Array:
    return lax.eq(lax.abs(x), _like(x, math.inf))


def _is_negative(x: Array) -> Array:
    bits = reinterpret(x, bits_of(np.dtype(x.dtype)))
    return lax.lt(bits, lax.full_like(bits, 0))


_FLOATS: dict[str, Elementwise] = {
    **UNARY,
    **BINARY,
    "fabs": lax.abs,
    "fma": fused,
    "pow": lax.pow,
    "powi": _integer_power,
    "pown": _integer_power,
    "fmod": lax.rem,
    "remainder": _remainder,
    "fdim": _positive_difference,
    "rint": nearest_even,
    "nearbyint": nearest_even,
    "exp10": _in_double(lambda x: lax.exp(_times(math.log(10))(x))),
    "sinpi": _of_half_turns(lax.sin),
    "cospi": _of_half_turns(lax.cos),
    "hypot": _in_double(_norm),
    "rhypot": _in_double(lambda *xs: _reciprocal(_norm(*xs))),
    "norm3d": _in_double(_norm),
    "norm4d": _in_double(_norm),
    "rnorm3d": _in_double(lambda *xs: _reciprocal(_norm(*xs))),
    "rnorm4d": _in_double(lambda *xs: _reciprocal(_norm(*xs))),
    "rcbrt": lambda x: _reciprocal(lax.cbrt(x)),
    "lgamma": lax.lgamma,
    "tgamma": _in_double(_gamma),
    "erfinv": lax.erf_inv,
    "erfcinv": _in_double(_complementary_inverse),
    "erfcx": _in_double(_scaled_complement),
    "normcdf": special.ndtr,
    "normcdfinv": special.ndtri,
    **{f"cyl_bessel_i{order}": _in_double(functools.partial(bessel.modified, order)) for order in (0, 1)},
    **{f"i{order}": _in_double(functools.partial(bessel.modified, order)) for order in (0, 1)},
    **{f"j{order}": _in_double(functools.partial(bessel.first_kind, order)) for order in (0, 1)},
    **{f"y{order}": _in_double(functools.partial(bessel.second_kind, order)) for order in (0, 1)},
    "nextafter": lax.nextafter,
    "logb": _logb,
    "ilogb": _ilogb,
    "ldexp": _scale,
    "scalbn": _scale,
    "saturate": _saturate,
    "fdivide": lax.div,
    "isnan": _as_condition(lambda x: lax.ne(x, x)),
    "isinf": _as_condition(_is_infinite),
    "isfinite": _as_condition(lax.is_finite),
    "finite": _as_condition(lax.is_finite),
    "signbit": _as_condition(_is_negative),
}

# --- Functions of integers -----------------------------------------------------------------------


def _of_unsigned(function: Elementwise) -> Elementwise:
    return lambda *arrays: signed(function(*(unsigned(x) for x in arrays)))


def _widened(function: Elementwise) -> Elementwise:
    """A function of int32 that is computed in int64, of which the low half is kept."""
    return lambda *arrays: convert(function(*(convert(x, I64) for x in arrays)), I32)


def _widened_unsigned(function: Elementwise) -> Elementwise:
    def wrapped(*arrays: Array) -> Array:
        wide = (convert(unsigned(x), np.dtype(np.uint64)) for x in arrays)
        return signed(convert(function(*wide), np.dtype(np.uint32)))

    return wrapped


def _shifted_right(x: Array, by: int) -> Array:
    shift = lax.shift_right_arithmetic if np.dtype(x.dtype).kind == "i" else lax.shift_right_logical
    return shift(x, lax.full_like(x, by))


def _low_24_bits(x: Array) -> Array:
    """Of an integer, its low 24 bits with their sign."""
    return _shifted_right(lax.shift_left(x, lax.full_like(x, 8)), 8)


def _leading_zeros(x: Array) -> Array:
    return convert(lax.clz(x), I32)


def _ones(x: Array) -> Array:
    return convert(lax.population_count(x), I32)


def _first_one(x: Array) -> Array:
    """The place of the lowest bit that is one, counted from 1; 0 where there is none."""
    lowest = lax.bitwise_and(x, lax.neg(x))
    place = lax.sub(lax.full_like(x, np.dtype(x.dtype).itemsize * 8), lax.clz(lowest))
    return convert(lax.select(lax.eq(x, lax.full_like(x, 0)), lax.full_like(x, 0), place), I32)


def _reversed_bits(x: Array) -> Array:
    bits = np.dtype(x.dtype).itemsize * 8
    x, width = unsigned(x), bits // 2
    while width:
        mask = lax.full_like(x, sum(((1 << width) - 1) << at for at in range(0, bits, 2 * width)))
        by = lax.full_like(x, width)
        upper = lax.bitwise_and(lax.shift_right_logical(x, by), mask)
        x = lax.bitwise_or(upper, lax.shift_left(lax.bitwise_and(x, mask), by))
        width //= 2
    return signed(x)


def permuted_bytes(low: Array, high: Array, selector: Array) -> Array:
    """PTX's ``prmt``: each of four selectors names one of eight bytes; its bit 3 spreads that byte's sign."""
    low, high, selector = (convert(unsigned(x), np.dtype(np.uint64)) for x in (low, high, selector))
    all_bytes = lax.bitwise_or(low, lax.shift_left(high, lax.full_like(high, 32)))
    result = lax.full_like(all_bytes, 0)
    for place in range(4):
        nibble = lax.bitwise_and(
            lax.shift_right_logical(selector, lax.full_like(low, 4 * place)), lax.full_like(low, 15)
        )
        which = lax.mul(lax.bitwise_and(nibble, lax.full_like(low, 7)), lax.full_like(low, 8))
        byte = lax.bitwise_and(lax.shift_right_logical(all_bytes, which), lax.full_like(low, 255))
        spread_sign = lax.select(
            lax.ge(byte, lax.full_like(byte, 128)), lax.full_like(byte, 255), lax.full_like(byte, 0)
        )
        byte = lax.select(lax.ge(nibble, lax.full_like(low, 8)), spread_sign, byte)
        result = lax.bitwise_or(result, lax.shift_left(byte, lax.full_like(byte, 8 * place)))
    return signed(convert(result, np.dtype(np.uint32)))


def _bytes_by_place(low: Array, high: Array, selector: Array) -> Array:
    """CUDA's ``__byte_perm``, which takes three bits of each selector alone."""
    return permuted_bytes(low, high, lax.bitwise_and(selector, lax.full_like(selector, 0x7777)))


def _high_product(x: Array, y: Array) -> Array:
    """The upper half of a signed product: the unsigned one's, less what signs add (Hacker's Delight, 8-3)."""
    high = signed(high_half(unsigned(x), unsigned(y)))
    zero = lax.full_like(x, 0)
    high = lax.sub(high, lax.select(lax.lt(x, zero), y, zero))
    return lax.sub(high, lax.select(lax.lt(y, zero), x, zero))


def high_half(a: Array, b: Array) -> Array:
    """The upper half of the product of two unsigned integers."""
    bits = a.dtype.itemsize * 8
    if bits < 64:
        wide = np.dtype(f"uint{2 * bits}")
        product = lax.mul(convert(a, wide), convert(b, wide))
        return convert(lax.shift_right_logical(product, lax.full_like(product, bits)), np.dtype(a.dtype))
    half, mask = lax.full_like(a, 32), lax.full_like(a, 0xFFFFFFFF)

    def low(x: Array) -> Array:
        return lax.bitwise_and(x, mask)

    def high(x: Array) -> Array:
        return lax.shift_right_logical(x, half)

    carry = high(lax.mul(low(a), low(b)))
    middle = lax.add(lax.mul(high(a), low(b)), carry)
    cross = lax.add(lax.mul(low(a), high(b)), low(middle))
    return lax.add(lax.add(lax.mul(high(a), high(b)), high(middle)), high(cross))


def _distance(x: Array, y: Array) -> Array:
    return lax.sub(lax.max(x, y), lax.min(x, y))


_INTEGERS: dict[str, Elementwise] = {
    "abs": lax.abs,
    "llabs": lax.abs,
    "iabs": lax.abs,
    "clz": _leading_zeros,
    "clzll": _leading_zeros,
    "popc": _ones,
    "popcll": _ones,
    "ffs": _first_one,
    "ffsll": _first_one,
    "brev": _reversed_bits,
    "brevll": _reversed_bits,
    "byte_perm": _bytes_by_place,
    "mulhi": _widened(lambda x, y: _shifted_right(x * y, 32)),
    "umulhi": _of_unsigned(high_half),
    "mul64hi": _high_product,
    "umul64hi": _of_unsigned(high_half),
    "mul24": lambda x, y: lax.mul(_low_24_bits(x), _low_24_bits(y)),
    "umul24": _of_unsigned(lambda x, y: lax.mul(_low_24_bits(x), _low_24_bits(y))),
    "hadd": _widened(lambda x, y: _shifted_right(x + y, 1)),
    "rhadd": _widened(lambda x, y: _shifted_right(x + y + 1, 1)),
    "uhadd": _widened_unsigned(lambda x, y: _shifted_right(x + y, 1)),
    "urhadd": _widened_unsigned(lambda x, y: _shifted_right(x + y + 1, 1)),
    "sad": _widened(lambda x, y, z: _distance(x, y) + z),
    "usad": _of_unsigned(lambda x, y, z: _distance(x, y) + z),
}

# --- Bits ----------------------------------------------------------------------------------------


def _words(x: Array) -> Array:
    return reinterpret(x, np.dtype(np.uint64))


def _from_words(high: Array, low: Array) -> Array:
    high, low = (convert(unsigned(x), np.dtype(np.uint64)) for x in (high, low))
    return reinterpret(lax.bitwise_or(lax.shift_left(high, lax.full_like(high, 32)), low), F64)


def _as(dtype: np.dtype[Any]) -> Elementwise:
    return lambda x: reinterpret(x, dtype)


_BITS: dict[str, Elementwise] = {
    "float_as_int": _as(I32),
    "float_as_uint": _as(I32),
    "int_as_float": _as(F32),
    "uint_as_float": _as(F32),
    "double_as_longlong": _as(I64),
    "longlong_as_double": _as(F64),
    "double2hiint": lambda x: signed(convert(_shifted_right(_words(x), 32), np.dtype(np.uint32))),
    "double2loint": lambda x: signed(convert(_words(x), np.dtype(np.uint32))),
    "hiloint2double": _from_words,
}

# --- Rounding modes ------------------------------------------------------------------------------
# A result is rounded to nearest, and moved one step where the sign of its exact error says so. For
# float32 that error is had from float64, where products are exact; float64 has no wider type.

_STEPS: dict[str, Callable[[Array, Array], Array]] = {
    "rn": lambda nearest, error: nearest,
    "rd": lambda nearest, error: _step(nearest, lax.lt(error, _like(error, 0)), -math.inf),
    "ru": lambda nearest, error: _step(nearest, lax.gt(error, _like(error, 0)), math.inf),
    "rz": lambda nearest, error: lax.select(
        lax.lt(nearest, _like(nearest, 0)),
        _STEPS["ru"](nearest, error),
        _STEPS["rd"](nearest, error),
    ),
}


def _step(x: Array, moved: Array, toward: float) -> Array:
    return lax.select(moved, lax.nextafter(x, _like(x, toward)), x)


def _exact_sum(x: Array, y: Array) -> tuple[Array, Array]:
    """A sum and what its rounding lost (Knuth, The Art of Computer Programming 4.2.2, theorem B)."""
    total = lax.add(x, y)
    other = lax.sub(total, x)
    return total, lax.add(lax.sub(x, lax.sub(total, other)), lax.sub(y, other))


def _rounded_fma(x: Array, y: Array, z: Array) -> tuple[Array, Array]:
    x, y, z = (convert(value, F64) for value in (x, y, z))
    total, lost = _exact_sum(lax.mul(x, y), z)
    # To odd: the last bit then stands for all that float64 lost, so that float32 rounds as if of the whole.
    bits = _words(total)
    even = lax.eq(lax.bitwise_and(bits, lax.full_like(bits, 1)), lax.full_like(bits, 0))
    off = lax.bitwise_and(lax.bitwise_and(lax.ne(lost, _like(lost, 0)), lax.is_finite(total)), even)
    outward = lax.eq(lax.gt(lost, _like(lost, 0)), lax.gt(total, _like(total, 0)))
    one = lax.full_like(bits, 1)
    moved = lax.select(outward, lax.add(bits, one), lax.sub(bits, one))
    total = reinterpret(lax.select(off, moved, bits), F64)
    nearest = convert(total, F32)
    return nearest, lax.sub(total, convert(nearest, F64))


def _rounded_quotient(x: Array, y: Array) -> tuple[Array, Array]:
    nearest = lax.div(x, y)
    rest = lax.sub(convert(x, F64), lax.mul(convert(nearest, F64), convert(y, F64)))
    return nearest, lax.select(_is_negative(y), lax.neg(rest), rest)


def _rounded_root(x: Array) -> tuple[Array, Array]:
    nearest = lax.sqrt(x)
    wide = convert(nearest, F64)
    return nearest, lax.sub(convert(x, F64), lax.mul(wide, wide))


_ROUNDED: dict[str, Callable[..., tuple[Array, Array]]] = {
    "fadd": lambda x, y: _rounded_fma(x, _like(x, 1), y),
    "fsub": lambda x, y: _rounded_fma(y, _like(y, -1), x),
    "fmul": lambda x, y: _rounded_fma(x, y, _like(x, -0.0)),
    "fmaf": _rounded_fma,
    "fdiv": _rounded_quotient,
    "frcp": lambda x: _rounded_quotient(_like(x, 1), x),
    "fsqrt": _rounded_root,
}
_NEAREST: dict[str, Elementwise] = {
    "dadd": lax.add,
    "dsub": lax.sub,
    "dmul": lax.mul,
    "ddiv": lax.div,
    "drcp": _reciprocal,
    "dsqrt": lax.sqrt,
    "fma": fused,
    "frsqrt": lax.rsqrt,
}
_WHOLE: dict[str, Elementwise] = {
    "rn": nearest_even,
    "rd": lax.floor,
    "ru": lax.ceil,
    "rz": lambda x: lax.select(lax.lt(x, _like(x, 0)), lax.ceil(x), lax.floor(x)),
}
_KINDS = {
    "int": np.int32,
    "uint": np.uint32,
    "ll": np.int64,
    "ull": np.uint64,
    "float": np.float32,
    "double": np.float64,
}


def _rounded(mode: str, function: Callable[..., tuple[Array, Array]]) -> Elementwise:
    return lambda *arrays: _STEPS[mode](*function(*arrays))


def _to_integer(dtype: np.dtype[Any], mode: str) -> Elementwise:
    """PTX's ``cvt``: rounds, then saturates. NaN becomes 0, in 64 bits the highest bit alone."""

    def converted(x: Array) -> Array:
        whole = _WHOLE[mode](convert(x, F64))
        info = np.iinfo(dtype)
        result = convert(whole, dtype)
        # The bounds as float64: the upper one may round up to the first number that doesn't fit.
        result = lax.select(
            lax.ge(whole, _like(whole, float(info.max))), lax.full_like(result, info.max), result
        )
        result = lax.select(
            lax.le(whole, _like(whole, float(info.min))), lax.full_like(result, info.min), result
        )
        missing = 0 if dtype.itemsize == 4 else 1 << 63
        nan = lax.full_like(result, np.array(missing, np.uint64).astype(dtype))
        return signed(lax.select(lax.ne(whole, whole), nan, result))

    return converted


def _from_integer(source: np.dtype[Any], target: np.dtype[Any], mode: str) -> Elementwise:
    """Integers as floats. The error is exact: that of the upper half, a multiple of what the nearest float is
    one of too, and then the lower half."""

    def converted(x: Array) -> Array:
        exact = reinterpret(x, source)
        nearest = convert(exact, target)
        if mode == "rn":
            return nearest
        half = lax.full_like(exact, 1 << (4 * source.itemsize))
        lower = lax.rem(exact, half)
        upper = convert(lax.sub(exact, lower), F64)
        return _STEPS[mode](nearest, upper - convert(nearest, F64) + convert(lower, F64))

    return converted


def _with_a_rounding_mode(name: str) -> Elementwise | None:
    """The function of a name that ends in a rounding mode."""
    found = re.fullmatch(r"(.*)_(r[nduz])", name)
    if found is None:
        return None
    stem, mode = found.groups()
    if stem in _ROUNDED:
        return _rounded(mode, _ROUNDED[stem])
    if stem in _NEAREST:
        return _NEAREST[stem] if mode == "rn" else None
    if stem == "double2float":
        return _rounded(mode, lambda x: (convert(x, F32), lax.sub(x, convert(convert(x, F32), F64))))
    if conversion := re.fullmatch(r"([a-z]+)2([a-z]+)", stem):
        source, target = (_KINDS.get(kind) for kind in conversion.groups())
        if source is None or target is None:
            return None
        if np.dtype(target).kind in "iu":
            return _to_integer(np.dtype(target), mode)
        return _from_integer(np.dtype(source), np.dtype(target), mode)
    return None


# --- Names ---------------------------------------------------------------------------------------


def _to_long(mode: Elementwise) -> Elementwise:
    return lambda x: _to_integer(I64, "rz")(mode(x))


_OTHERS: dict[str, Elementwise] = {
    "llrint": _to_long(nearest_even),
    "llround": _to_long(UNARY["round"]),
}

_TABLE = {**_FLOATS, **_INTEGERS, **_BITS, **_OTHERS}


def library_function(symbol: str) -> Elementwise | None:
    """The function of a symbol of one of the libraries; None if it has no translation."""
    name = re.sub(r"^__(nv|ocml|triton_hip)_", "", symbol)
    name = re.sub(r"_f(32|64)$", "", name)
    if rounding := _with_a_rounding_mode(name):
        return rounding
    name = name.removeprefix("fast_")
    for candidate in (name, name.removesuffix("f"), name.removesuffix("d")):
        if candidate in _TABLE:
            return _TABLE[candidate]
    return None


@rule("tt.extern_elementwise")
def _library_call(m: Machine, op: Operation, *operands: Value) -> Results:
    """A function of a math library, by its symbol (`libraries.py`)."""
    symbol = op.attributes["symbol"]
    function = library_function(symbol)
    if function is None:
        raise m.unsupported(op, f"calls {symbol}, which has no portable lowering; run the kernel on a GPU")
    dtype = op.results[0].type.dtype
    return m.map(lambda *arrays: convert(function(*arrays), dtype), *operands)
