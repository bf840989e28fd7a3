"""Triton's own operations on values: the grid, shapes, pointers, conversions and products.

Defined in Triton's include/triton/Dialect/Triton/IR/TritonOps.td.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from jax import lax

from jtprim.lowering.portable.machine import Machine, Results, rule
from jtprim.lowering.portable.values import (
    Array,
    Operand,
    Pointer,
    Value,
    bits_of,
    convert,
    reinterpret,
    signed,
    spread,
    unsigned,
)
from jtprim.specialize.reader import Operation

from .libraries import high_half

# --- The grid ------------------------------------------------------------------------------------


@rule("tt.get_program_id")
def _program_id(m: Machine, op: Operation) -> Results:
    """This program's place on an axis of the grid; int32."""
    return m.program_ids[op.attributes["axis"]]


@rule("tt.get_num_programs")
def _program_count(m: Machine, op: Operation) -> Results:
    """The number of programs on an axis of the grid; int32."""
    return Value(np.int32(m.grid[op.attributes["axis"]]))


@rule("tt.make_range")
def _range(m: Machine, op: Operation) -> Results:
    """The int32 from `start` to `end`, without `end`."""
    start, shape = op.attributes["start"], op.results[0].type.shape
    lanes = lax.iota(np.dtype(np.int32), shape[0])
    return Value(lax.add(lanes, lax.full_like(lanes, start)) if start else lanes)


# --- Shapes --------------------------------------------------------------------------------------


@rule("tt.splat", "tt.broadcast")
def _broadcast(m: Machine, op: Operation, operand: Operand) -> Results:
    """A scalar for all elements; a tensor along axes of extent one."""
    shape = op.results[0].type.shape

    def broadcast(array: Array, front: int) -> Array:
        own = np.shape(array)
        inner = (1,) * (len(shape) - len(own) + front) + own[front:]
        return spread(lax.reshape(array, own[:front] + inner), own[:front] + shape)

    return m.rearrange(broadcast, operand)


@rule("tt.reshape", "tt.expand_dims", "tt.unsplat")
def _reshape(m: Machine, op: Operation, operand: Operand) -> Results:
    """The same elements in row-major order. So it is with `allow_reorder` too, which lets Triton choose."""
    shape = op.results[0].type.shape
    return m.rearrange(lambda array, front: lax.reshape(array, np.shape(array)[:front] + shape), operand)


@rule("tt.trans")
def _transpose(m: Machine, op: Operation, operand: Operand) -> Results:
    """Axis `order[i]` becomes axis i."""

    def transpose(array: Array, front: int) -> Array:
        return lax.transpose(array, (*range(front), *(axis + front for axis in op.attributes["order"])))

    return m.rearrange(transpose, operand)


@rule("tt.join")
def _join(m: Machine, op: Operation, one: Value, other: Value) -> Results:
    """Two tensors along a new last axis."""

    def join(a: Array, b: Array) -> Array:
        axis = np.ndim(a)
        return lax.concatenate([lax.expand_dims(a, (axis,)), lax.expand_dims(b, (axis,))], axis)

    return m.map(join, one, other)


@rule("tt.split")
def _split(m: Machine, op: Operation, value: Value) -> Results:
    """The two halves of a last axis of extent two."""

    def half(position: int) -> Operand:
        return m.rearrange(lambda x, _: lax.index_in_dim(x, position, np.ndim(x) - 1, keepdims=False), value)

    return [half(0), half(1)]


@rule("tt.cat")
def _concatenate(m: Machine, op: Operation, one: Value, other: Value) -> Results:
    """One tensor after the other along the first axis, in order, which Triton does not promise."""
    axis = int(one.batched or other.batched)
    return m.map(lambda a, b: lax.concatenate([a, b], axis), one, other)


@rule("tt.gather")
def _gather(m: Machine, op: Operation, source: Value, indices: Value) -> Results:
    """Along one axis, the element that each index names."""
    batched = source.batched or indices.batched
    source, indices = (m.batch(source), m.batch(indices)) if batched else (source, indices)
    axis, rank = op.attributes["axis"] + batched, np.ndim(source.array)
    shape = np.shape(indices.array)
    places = [
        indices.array if d == axis else lax.broadcasted_iota(indices.dtype, shape, d) for d in range(rank)
    ]
    stacked = lax.concatenate([lax.expand_dims(place, (rank,)) for place in places], rank)
    dimensions = lax.GatherDimensionNumbers(
        offset_dims=(), collapsed_slice_dims=tuple(range(rank)), start_index_map=tuple(range(rank))
    )
    mode = lax.GatherScatterMode.CLIP
    return Value(lax.gather(source.array, stacked, dimensions, slice_sizes=(1,) * rank, mode=mode), batched)


@rule("tt.histogram")
def _histogram(m: Machine, op: Operation, values: Value, mask: Value | None = None) -> Results:
    """How often each number from 0 to the number of bins occurs; others, and masked ones, are not counted."""
    kind = op.results[0].type
    (bins,) = kind.shape
    if mask is not None:  # -1 is in no bin
        values = m.map(lambda x, keep: lax.select(keep, x, lax.full_like(x, -1)), values, mask)

    def count(array: Array, front: int) -> Array:
        shape = (*np.shape(array), bins)
        each = lax.broadcast_in_dim(array, shape, tuple(range(front + 1)))
        hits = lax.eq(each, lax.broadcasted_iota(array.dtype, shape, front + 1))
        return lax.reduce_sum(convert(hits, kind.dtype), (front,))

    return m.rearrange(count, values)


# --- Pointers ------------------------------------------------------------------------------------


@rule("tt.addptr")
def _add_pointer(m: Machine, op: Operation, pointer: Pointer, offset: Value) -> Results:
    """A pointer, moved by a signed number of elements."""
    return add_pointer(m, pointer, offset)


def add_pointer(m: Machine, pointer: Pointer, offset: Value) -> Pointer:
    """A pointer moved by so many elements."""
    # Narrowing a 64 bit offset wraps, which is exact for every sum that lies inside the buffer.
    total = m.map(lambda old, more: lax.add(old, convert(signed(more), old.dtype)), pointer.offset, offset)
    return pointer.moved_to(total)


# --- Conversions ---------------------------------------------------------------------------------

_TOWARD_ZERO = 0  # Triton's `RoundingMode`


@rule("tt.fp_to_fp")
def _convert_float(m: Machine, op: Operation, value: Value) -> Results:
    """To another float type, rounded as `rounding` says; to 8 bits as PTX's ``cvt.rn.satfinite`` does."""
    dtype = op.results[0].type.dtype
    if op.attributes.get("rounding") == _TOWARD_ZERO:
        return m.map(lambda array: _round_toward_zero(array, dtype), value)
    if dtype.itemsize == 1 and value.dtype.itemsize > 1:
        return m.map(lambda array: to_small_float(array, dtype), value)
    return m.map(lambda array: convert(array, dtype), value)


def to_small_float(array: Array, dtype: np.dtype[Any]) -> Array:
    """PTX's ``cvt.rn.satfinite``, which is what Triton uses for floats of 8 bits: to nearest, and to the
    largest finite number for what is beyond it, infinity too. A NaN stays one."""
    largest = lax.full_like(array, float(ml_dtypes.finfo(dtype).max))
    clamped = lax.select(lax.ne(array, array), array, lax.max(lax.min(array, largest), lax.neg(largest)))
    return convert(clamped, dtype)


def _round_toward_zero(array: Array, dtype: np.dtype[Any]) -> Array:
    """Rounds to nearest, then goes back one step where that went away from zero."""
    nearest = convert(array, dtype)
    bits = reinterpret(nearest, bits_of(dtype))
    further = lax.gt(lax.abs(convert(nearest, np.dtype(array.dtype))), lax.abs(array))
    return reinterpret(lax.sub(bits, convert(further, bits_of(dtype))), dtype)


@rule("tt.clampf")
def _clamp(m: Machine, op: Operation, value: Value, low: Value, high: Value) -> Results:
    """Triton's `PropagateNan`: 0 (none) turns NaN into `low`, as ``min(max(x, low), high)`` of numbers."""
    propagates = op.attributes.get("propagateNan", 0) != 0

    def clamp(x: Array, low: Array, high: Array) -> Array:
        clamped = lax.min(lax.max(x, low), high)
        return clamped if propagates else lax.select(lax.ne(x, x), low, clamped)

    return m.map(clamp, value, low, high)


@rule("tt.mulhiui")
def _multiply_high(m: Machine, op: Operation, one: Value, other: Value) -> Results:
    """The upper half of the product of two unsigned integers."""
    return m.map(lambda a, b: signed(high_half(unsigned(a), unsigned(b))), one, other)


# --- Products ------------------------------------------------------------------------------------


@rule("tt.dot")
def _dot(m: Machine, op: Operation, one: Value, other: Value, sum_: Value) -> Results:
    """Matrix product plus accumulator. Operands are widened first: their products are then exact in the
    accumulator's type, as they are in a tensor core; an accumulator of 16 bits is rounded once."""
    result = np.dtype(sum_.dtype)
    return product(m, one, other, sum_, result if result.itemsize >= 4 else np.dtype(np.float32))


def product(m: Machine, one: Value, other: Value, sum_: Value, wide: np.dtype[Any]) -> Value:
    """A product of matrices, or of batches of them, in the type `wide`; plus `sum_`, in whose type it is."""
    batched = one.batched or other.batched
    if batched:
        one, other = m.batch(one), m.batch(other)
    rank = np.ndim(one.array)
    front = tuple(range(rank - 2))
    result = lax.dot_general(
        convert(one.array, wide),
        convert(other.array, wide),
        (((rank - 1,), (rank - 2,)), (front, front)),
        precision=lax.Precision.HIGHEST,
        preferred_element_type=wide,
    )

    def accumulate(product: Array, start: Array) -> Array:
        return convert(lax.add(product, convert(start, wide)), np.dtype(sum_.dtype))

    return m.map(accumulate, Value(result, batched), sum_)


# Triton's `ScaleDotElemType`: formats of operands that come as integers.
_SCALED_FORMATS: dict[int, np.dtype[Any]] = {
    0: np.dtype(ml_dtypes.float8_e4m3fn),
    1: np.dtype(ml_dtypes.float8_e5m2),
}
_E2M1 = 4

# The OCP formats for microscaling: the values of e2m1, and the bias of a scale's exponent.
_E2M1_VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
_SCALE_BIAS = 127
F32 = np.dtype(np.float32)


@rule("tt.dot_scaled")
def _scaled_dot(m: Machine, op: Operation, one: Value, other: Value, sum_: Value, *scales: Value) -> Results:
    """Product of matrices whose blocks along the inner axis have scales (OCP Microscaling Formats)."""
    *_, has_one, has_other = op.attributes["operandSegmentSizes"]
    one = _scaled_operand(m, op, one, "a_elem_type", "lhs_k_pack", inner=-1)
    other = _scaled_operand(m, op, other, "b_elem_type", "rhs_k_pack", inner=-2)
    if has_one:
        one = _scaled(m, one, scales[0], inner=-1)
    if has_other:  # a scale's shape is [N, blocks]
        swapped = m.rearrange(
            lambda x, _: lax.transpose(x, (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2)), scales[-1]
        )
        assert isinstance(swapped, Value)
        other = _scaled(m, other, swapped, inner=-2)
    return product(m, one, other, sum_, F32)


def _scaled_operand(m: Machine, op: Operation, value: Value, kind: str, packed: str, inner: int) -> Value:
    """An operand as float32. Two numbers of e2m1 share a byte, the first in its low half."""
    code = op.attributes[kind]
    if code != _E2M1:
        dtype = _SCALED_FORMATS.get(code, value.dtype)
        return m.map(lambda x: convert(reinterpret(x, dtype), F32), value)
    along = inner if op.attributes[packed] else (-1 if inner == -2 else -2)

    unpacked = m.rearrange(lambda array, _: unpack_e2m1(array, np.ndim(array) + along), value)
    assert isinstance(unpacked, Value)
    return unpacked


def unpack_e2m1(array: Array, axis: int) -> Array:
    """Bytes of two numbers of e2m1 each as twice as many float32 along an axis."""
    bits, shape = unsigned(array), np.shape(array)
    low = lax.bitwise_and(bits, lax.full_like(bits, 15))
    high = lax.shift_right_logical(bits, lax.full_like(bits, 4))
    joined = lax.concatenate([lax.expand_dims(half, (axis + 1,)) for half in (low, high)], axis + 1)
    return _e2m1(lax.reshape(joined, (*shape[:axis], 2 * shape[axis], *shape[axis + 1 :])))


def _e2m1(code: Array) -> Array:
    """The numbers that four bits stand for: a sign, then one of eight magnitudes."""
    magnitude = lax.bitwise_and(code, lax.full_like(code, 7))
    number = lax.full_like(code, 0, F32)
    for place, value in enumerate(_E2M1_VALUES):
        number = lax.select(
            lax.eq(magnitude, lax.full_like(code, place)), lax.full_like(number, value), number
        )
    return lax.select(lax.ge(code, lax.full_like(code, 8)), lax.neg(number), number)


def _scaled(m: Machine, value: Value, scale: Value, inner: int) -> Value:
    """Each block along the axis `inner` times its scale: a power of two as its exponent, or a float8."""

    def spread_out(array: Array, front: int) -> Array:
        factor = (
            _power_of_two(array)
            if array.dtype.itemsize == 1 and array.dtype.kind in "iu"
            else convert(array, F32)
        )
        axis = np.ndim(array) + inner
        times = value.shape[inner] // np.shape(array)[axis]
        shape = np.shape(array)
        repeated = lax.broadcast_in_dim(
            factor,
            (*shape[: axis + 1], times, *shape[axis + 1 :]),
            (*range(axis + 1), *range(axis + 2, array.ndim + 1)),
        )
        return lax.reshape(repeated, (*shape[:axis], times * shape[axis], *shape[axis + 1 :]))

    factors = m.rearrange(spread_out, scale)
    assert isinstance(factors, Value)
    return m.map(lax.mul, value, factors)


def _power_of_two(code: Array) -> Array:
    """e8m0: ``2 ** (code - 127)``, NaN for 255; the bits of a float32's exponent, but for the least one."""
    exponent = convert(unsigned(code), np.dtype(np.int32))
    ordinary = reinterpret(lax.shift_left(exponent, lax.full_like(exponent, 23)), F32)
    least = lax.full_like(ordinary, 2.0**-_SCALE_BIAS)
    number = lax.select(lax.eq(exponent, lax.full_like(exponent, 0)), least, ordinary)
    return lax.select(lax.eq(exponent, lax.full_like(exponent, 255)), lax.full_like(number, np.nan), number)
