"""The arith dialect: integers are signless, so each operation says how it takes its operands' bits.

Defined in MLIR's ArithOps.td (https://mlir.llvm.org/docs/Dialects/ArithOps/). What is undefined there (a
shift too far, a division by zero) is whatever XLA makes of it, unless a function says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from jax import lax

from jtprim.lowering.portable.machine import Machine, Results, rule
from jtprim.lowering.portable.values import (
    UNSIGNED,
    Array,
    Operand,
    Pointer,
    Value,
    convert,
    full,
    reinterpret,
    signed,
    unsigned,
)
from jtprim.specialize.reader import Operation

Elementwise = Callable[..., Array]


def elementwise(names: dict[str, Elementwise]) -> None:
    """Registers operations that are one function of arrays, applied to each element."""
    for name, function in names.items():
        rule(name)(lambda m, op, *operands, function=function: m.map(function, *operands))


@rule("arith.constant")
def _constant(m: Machine, op: Operation) -> Results:
    """A constant: one number for all elements, or one for each."""
    kind, value = op.results[0].type, op.attributes["value"]
    if isinstance(value, str):
        raise m.unsupported(op, f"is a constant that MLIR's Python bindings can't read: {value[:60]}")
    value = np.asarray(value)
    first = value.flat[0]
    if not kind.shape:
        return Value(_scalar(first, kind.dtype))
    if (value == first).all():
        return Value(full(kind.shape, _scalar(first, kind.dtype), kind.dtype))
    return Value(value.astype(kind.dtype))


def _scalar(value: Any, dtype: np.dtype[Any]) -> Any:
    return np.asarray(value).astype(dtype)[()]


# --- Integers ------------------------------------------------------------------------------------


def as_signed(function: Elementwise) -> Elementwise:
    """`function` of integers; one-bit ones are computed as bytes, of which the low bit is kept."""

    def wrapped(*arrays: Array) -> Array:
        if arrays[0].dtype != np.bool_:
            return function(*arrays)
        return _low_bit(function(*(signed(array) for array in arrays)))

    return wrapped


def as_unsigned(function: Elementwise) -> Elementwise:
    """`function` of integers taken as unsigned."""

    def wrapped(*arrays: Array) -> Array:
        result = function(*(unsigned(array) for array in arrays))
        if arrays[0].dtype == np.bool_:
            return _low_bit(result)
        return result if result.dtype == np.bool_ else signed(result)

    return wrapped


def _low_bit(array: Array) -> Array:
    if array.dtype == np.bool_:
        return array
    return lax.ne(lax.bitwise_and(array, lax.full_like(array, 1)), lax.full_like(array, 0))


elementwise(
    {
        "arith.addi": as_signed(lax.add),
        "arith.subi": as_signed(lax.sub),
        "arith.muli": as_signed(lax.mul),
        "arith.divsi": as_signed(lax.div),
        "arith.divui": as_unsigned(lax.div),
        "arith.remsi": as_signed(lax.rem),
        "arith.remui": as_unsigned(lax.rem),
        "arith.minsi": as_signed(lax.min),
        "arith.maxsi": as_signed(lax.max),
        "arith.minui": as_unsigned(lax.min),
        "arith.maxui": as_unsigned(lax.max),
        "arith.shli": as_signed(lax.shift_left),
        "arith.shrsi": as_signed(lax.shift_right_arithmetic),
        "arith.shrui": as_unsigned(lax.shift_right_logical),
        "arith.andi": lax.bitwise_and,
        "arith.ori": lax.bitwise_or,
        "arith.xori": lax.bitwise_xor,
    }
)


@rule("arith.ceildivsi", "arith.floordivsi")
def _rounded_division(m: Machine, op: Operation, one: Value, other: Value) -> Results:
    """Signed division rounded up (ceildivsi) or down (floordivsi), where `arith.divsi` drops the fraction."""
    up = op.name == "arith.ceildivsi"

    def divide(a: Array, b: Array) -> Array:
        quotient, remainder = lax.div(a, b), lax.rem(a, b)
        zero, unit = lax.full_like(a, 0), lax.full_like(a, 1)
        same_sign = lax.eq(lax.lt(a, zero), lax.lt(b, zero))
        inexact = lax.ne(remainder, zero)
        off = lax.bitwise_and(inexact, same_sign if up else lax.bitwise_not(same_sign))
        return lax.add(quotient, lax.select(off, unit if up else lax.neg(unit), zero))

    return m.map(divide, one, other)


# arith.cmpi's predicates, in MLIR's order: eq ne slt sle sgt sge ult ule ugt uge.
_ORDERINGS = (lax.lt, lax.le, lax.gt, lax.ge)


@rule("arith.cmpi")
def _compare_integers(m: Machine, op: Operation, one: Value, other: Value) -> Results:
    """`CmpIPredicate`, by number; the order says whether the bits are signed."""
    predicate = op.attributes["predicate"]
    if predicate < 2:
        return m.map((lax.eq, lax.ne)[predicate], one, other)
    take = signed if predicate < 6 else unsigned
    compare = _ORDERINGS[(predicate - 2) % 4]
    return m.map(lambda a, b: compare(take(a), take(b)), one, other)


# --- Floats --------------------------------------------------------------------------------------


def rounded(function: Elementwise) -> Elementwise:
    """`function` of floats, with a result in bfloat16 rounded to it for sure. XLA computes bfloat16 in fp32
    on CPUs, and is free to leave out the rounding between two operations; not `reduce_precision`."""

    def wrapped(*arrays: Array) -> Array:
        result = function(*arrays)
        return lax.reduce_precision(result, 8, 7) if result.dtype == ml_dtypes.bfloat16 else result

    return wrapped


def number_over_nan(function: Elementwise) -> Elementwise:
    """`function` of two floats, where a NaN gives way to a number."""

    def wrapped(one: Array, other: Array) -> Array:
        chosen = lax.select(lax.ne(other, other), one, function(one, other))
        return lax.select(lax.ne(one, one), other, chosen)

    return wrapped


elementwise(
    {
        "arith.addf": rounded(lax.add),
        "arith.subf": rounded(lax.sub),
        "arith.mulf": rounded(lax.mul),
        "arith.divf": rounded(lax.div),
        "arith.remf": rounded(lax.rem),
        "arith.negf": lax.neg,
        "arith.maximumf": lax.max,
        "arith.minimumf": lax.min,
        "arith.maxnumf": number_over_nan(lax.max),
        "arith.minnumf": number_over_nan(lax.min),
    }
)


def _unordered(one: Array, other: Array) -> Array:
    return lax.bitwise_or(lax.ne(one, one), lax.ne(other, other))


def _or_unordered(opposite: Elementwise) -> Elementwise:
    """The comparison that is true where `opposite`, an ordered one, is false; so for NaN."""
    return lambda one, other: lax.bitwise_not(opposite(one, other))


# arith.cmpf's predicates, in MLIR's order; o is false and u is true for NaN.
_FLOAT_COMPARISONS: tuple[Elementwise, ...] = (
    lambda one, other: lax.full_like(one, False, np.bool_),  # false
    lax.eq,  # oeq
    lax.gt,  # ogt
    lax.ge,  # oge
    lax.lt,  # olt
    lax.le,  # ole
    lambda one, other: lax.bitwise_or(lax.lt(one, other), lax.gt(one, other)),  # one
    _or_unordered(_unordered),  # ord
    lambda one, other: lax.bitwise_or(lax.eq(one, other), _unordered(one, other)),  # ueq
    _or_unordered(lax.le),  # ugt
    _or_unordered(lax.lt),  # uge
    _or_unordered(lax.ge),  # ult
    _or_unordered(lax.gt),  # ule
    lax.ne,  # une
    _unordered,  # uno
    lambda one, other: lax.full_like(one, True, np.bool_),  # true
)


@rule("arith.cmpf")
def _compare_floats(m: Machine, op: Operation, one: Value, other: Value) -> Results:
    """`CmpFPredicate`, by number: an ordered one is false, an unordered one true, where a NaN is compared."""
    return m.map(_FLOAT_COMPARISONS[op.attributes["predicate"]], one, other)


# --- Conversions ---------------------------------------------------------------------------------


@rule("arith.select")
def _select(m: Machine, op: Operation, condition: Value, one: Operand, other: Operand) -> Results:
    """One of two values or pointers: for each element, or all of it by a scalar condition."""
    return m.select(op, condition, one, other)


@rule("arith.extf", "arith.truncf")
def _convert(m: Machine, op: Operation, value: Value) -> Results:
    """To a float of other width: exact, or rounded to nearest with ties to even."""
    return m.map(lambda array: convert(array, op.results[0].type.dtype), value)


@rule("arith.extsi", "arith.index_cast")
def _convert_signed(m: Machine, op: Operation, value: Value) -> Results:
    """To a wider integer with the sign bit repeated; an index to a narrower one keeps the low bits."""
    return m.map(lambda array: convert(signed(array), op.results[0].type.dtype), value)


@rule("arith.extui", "arith.index_castui")
def _convert_unsigned(m: Machine, op: Operation, value: Value) -> Results:
    """To a wider integer with zeros above; one bit becomes 0 or 1."""
    return m.map(lambda array: convert(unsigned(array), op.results[0].type.dtype), value)


@rule("arith.sitofp")
def _signed_to_float(m: Machine, op: Operation, value: Value) -> Results:
    """A signed integer, rounded to nearest with ties to even; one bit is 0 or -1."""
    return m.map(lambda array: _integer_to_float(signed(array), op.results[0].type.dtype), value)


@rule("arith.uitofp")
def _unsigned_to_float(m: Machine, op: Operation, value: Value) -> Results:
    """An unsigned integer, rounded to nearest with ties to even."""
    return m.map(lambda array: _integer_to_float(unsigned(array), op.results[0].type.dtype), value)


def _integer_to_float(array: Array, dtype: np.dtype[Any]) -> Array:
    """Types of 16 bits are reached through fp32: so Triton does it for bf16, and for fp16 the result is
    the same, since what fp32 rounds is beyond fp16's range."""
    return convert(convert(array, np.dtype(np.float32)) if dtype.itemsize < 4 else array, dtype)


@rule("arith.trunci")
def _truncate(m: Machine, op: Operation, value: Value) -> Results:
    """The low bits of an integer."""
    dtype = op.results[0].type.dtype
    return m.map(lambda array: _low_bit(array) if dtype == np.bool_ else convert(array, dtype), value)


@rule("arith.fptosi")
def _to_signed(m: Machine, op: Operation, value: Value) -> Results:
    """Toward zero. What does not fit is undefined in MLIR; here it is what an NVIDIA GPU makes of it."""
    return m.map(lambda array: _to_integer(array, op.results[0].type.dtype), value)


@rule("arith.fptoui")
def _to_unsigned(m: Machine, op: Operation, value: Value) -> Results:
    """As `arith.fptosi`, into the range of an unsigned integer."""
    dtype = op.results[0].type.dtype
    if dtype == np.bool_:
        return m.map(lambda array: _low_bit(convert(array, np.dtype(np.int32))), value)
    return m.map(lambda array: signed(_to_integer(array, UNSIGNED[dtype])), value)


def _to_integer(array: Array, dtype: np.dtype[Any]) -> Array:
    """PTX's ``cvt.rzi``. There is none to 8 bits: LLVM converts to 16 and keeps the low ones."""
    if dtype.itemsize > 1:
        return saturate(array, dtype)
    return convert(saturate(array, np.dtype(f"{dtype.kind}2")), dtype)


def saturate(array: Array, dtype: np.dtype[Any]) -> Array:
    """Truncates toward zero, into the range of `dtype`. A NaN becomes 0, or the upper bit alone if the
    source or the target has 64 bits (PTX ISA, "cvt: Floating Point Notes")."""
    wide = array.dtype == np.float64 or dtype.itemsize == 8
    array = convert(array, np.dtype(np.float64 if array.dtype == np.float64 else np.float32))
    limits = np.iinfo(dtype)
    lowest, beyond = float(limits.min), float(limits.max) if dtype.itemsize < 4 else float(limits.max + 1)
    inside = lax.bitwise_and(
        lax.ge(array, lax.full_like(array, lowest)), lax.lt(array, lax.full_like(array, beyond))
    )
    converted = convert(lax.select(inside, array, lax.full_like(array, 0)), dtype)
    high = lax.full_like(converted, limits.max)
    low = lax.full_like(converted, limits.min)
    missing = lax.full_like(
        converted, np.array(1 << (8 * dtype.itemsize - 1), f"u{dtype.itemsize}").view(dtype) if wide else 0
    )
    bound = lax.select(lax.gt(array, lax.full_like(array, 0)), high, low)
    return lax.select(lax.ne(array, array), missing, lax.select(inside, converted, bound))


@rule("arith.bitcast", "tt.bitcast")
def _bitcast(m: Machine, op: Operation, value: Operand) -> Results:
    """The same bits as another type of the same width; of a pointer, the type that it points to."""
    kind = op.results[0].type
    if isinstance(value, Value):
        return m.map(lambda array: reinterpret(array, kind.dtype), value)
    assert isinstance(value, Pointer)
    # Whether the widths agree is checked where memory is accessed: `i1` is stored as a byte.
    return Pointer(value.parameters, kind.element, value.offset)
