"""Loads, stores and atomics on flat buffers.

Defined in Triton's include/triton/Dialect/Triton/IR/TritonOps.td.

An address outside the buffer is never touched: loads clip it (what they return is masked by the
kernel, or undefined on a GPU too), stores and atomics drop it. Stores that may collide are scattered
without the promise of unique indices; XLA's CPU backend then applies them in order, so that the last
program wins. On other platforms one of them wins, as on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jax import lax

from jtprim.specialize.reader import DTYPES, Operation

from .checking import check_access
from .machine import Machine, Results, rule
from .values import (
    SIGNED,
    Array,
    Pointer,
    Value,
    bits_of,
    convert,
    full,
    reinterpret,
    unsigned,
)

_ONE_ELEMENT = lax.GatherDimensionNumbers(offset_dims=(), collapsed_slice_dims=(0,), start_index_map=(0,))
_INTO_ONE_ELEMENT = lax.ScatterDimensionNumbers(
    update_window_dims=(), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,)
)


def contents(m: Machine, op: Operation, pointer: Pointer) -> Array:
    """The one buffer that `pointer` points into, as the pointer's type."""
    (parameter,) = pointer.parameters
    buffer = m.memory[parameter]
    wanted = DTYPES.get(pointer.element)
    if wanted == np.bool_:  # Triton stores i1 as a byte
        wanted = np.dtype(np.int8)
    if wanted is None or wanted.itemsize != buffer.dtype.itemsize:
        name = m.module.parameters[parameter].name or f"parameter {parameter}"
        reason = f"takes {name!r}, an array of {buffer.dtype}, for one of {pointer.element}"
        raise m.unsupported(op, reason)
    return reinterpret(buffer, wanted)


def write_back(m: Machine, pointer: Pointer, buffer: Array) -> None:
    (parameter,) = pointer.parameters
    m.memory[parameter] = reinterpret(buffer, m.memory[parameter].dtype)


# --- Loads ---------------------------------------------------------------------------------------


@rule("tt.load")
def _load(m: Machine, op: Operation, pointer: Pointer, *rest: Value) -> Results:
    """What pointers point to; `other` where the mask is false, zero if there is none."""
    _, masks, others = op.attributes["operandSegmentSizes"]
    mask = rest[0] if masks else None
    other = rest[masks] if others else None
    loaded = load(m, op, pointer, mask)
    if mask is None:
        return loaded
    if other is None:
        other = Value(full(loaded.shape, 0, loaded.dtype))
    return m.map(lax.select, mask, loaded, other)


def load(m: Machine, op: Operation, pointer: Pointer, mask: Value | None = None) -> Value:
    """The elements at `pointer`; any number where it points out of the buffer, or the mask is false."""
    return _each(m, op, pointer, mask, lambda one, kept: _load_from(m, op, one, kept))


def _each(
    m: Machine,
    op: Operation,
    pointer: Pointer,
    mask: Value | None,
    access: Callable[[Pointer, Value | None], Value],
) -> Value:
    """What an access to each of the buffers that `pointer` may point into gives, lane by lane."""
    (first, there), *others = m.into_each(op, pointer)
    result = access(first, m.both(mask, there))
    for other, there in others:
        assert there is not None
        result = m.map(lax.select, there, access(other, m.both(mask, there)), result)
    return result


def _load_from(m: Machine, op: Operation, pointer: Pointer, mask: Value | None) -> Value:
    check_access(m, op, pointer, mask)
    buffer = contents(m, op, pointer)
    if buffer.size == 0:
        return Value(full(pointer.offset.shape, 0, buffer.dtype))
    window = m.windows.get(op)
    if window is None:
        array, batched = take(buffer, pointer.offset.array), pointer.offset.batched
    else:
        array, batched = window.read(buffer, window.start(pointer.offset.array)), window.batched
    return Value(convert(array, op.results[0].type.dtype) if pointer.element == "i1" else array, batched)


def take(buffer: Array, offset: Array) -> Array:
    """``buffer[offset]``, with offsets clipped to the buffer."""
    indices = lax.expand_dims(offset, (np.ndim(offset),))
    return lax.gather(buffer, indices, _ONE_ELEMENT, slice_sizes=(1,), mode=lax.GatherScatterMode.CLIP)


@rule("tt.atomic_load")
def _atomic_load(m: Machine, op: Operation, pointer: Pointer, mask: Value | None = None) -> Results:
    """A load: programs that could write meanwhile run one after the other. Masked lanes are zero."""
    loaded = load(m, op, pointer, mask)
    return loaded if mask is None else m.map(_or_zero, mask, loaded)


def _or_zero(mask: Array, array: Array) -> Array:
    return lax.select(mask, array, lax.full_like(array, 0))


@rule("tt.atomic_poll")
def _poll(m: Machine, op: Operation, pointer: Pointer, expected: Value, *timeout: Value) -> Results:
    """Whether the element has the value that is waited for; to wait would not change it here."""
    return m.map(lax.eq, load(m, op, pointer), expected)


# --- Stores --------------------------------------------------------------------------------------


@rule("tt.store", "tt.atomic_store")
def _store(m: Machine, op: Operation, pointer: Pointer, value: Value, mask: Value | None = None) -> Results:
    """Writes where the mask is true."""
    store_lanes(m, op, pointer, value, mask)
    return None


def store_lanes(m: Machine, op: Operation, pointer: Pointer, value: Value, mask: Value | None) -> None:
    """Stores where the mask holds, for the active programs."""
    for one, there in m.into_each(op, pointer):
        _store_to(m, op, one, value, m.both(mask, there))


def _store_to(m: Machine, op: Operation, pointer: Pointer, value: Value, mask: Value | None) -> None:
    check_access(m, op, pointer, mask)
    buffer = contents(m, op, pointer)
    if buffer.size == 0:
        return
    window = m.windows.get(op)
    if window is not None:
        kept = m.both(mask, m.active) or Value(np.bool_(True))
        update, kept_array = (_all_lanes(m, lanes, pointer.offset.shape) for lanes in (value, kept))
        start = window.start(pointer.offset.array)
        written = window.write(buffer, start, convert(update, np.dtype(buffer.dtype)), kept_array)
    else:
        offset, (update,) = _lanes(m, pointer, mask, buffer.size, value)
        update = convert(update, np.dtype(buffer.dtype))
        written = _scatter(lax.scatter, buffer, offset, update, unique=op in m.strategy.unique)
    write_back(m, pointer, written)


def _all_lanes(m: Machine, value: Value, shape: tuple[int, ...]) -> Array:
    """An element for each lane of each program, even where they do not differ."""
    value = m.batch(value)
    return m.map(lambda array, _: array, value, Value(np.zeros(shape, np.bool_))).array


def _lanes(
    m: Machine, pointer: Pointer, mask: Value | None, size: int, *values: Value
) -> tuple[Array, list[Array]]:
    """The offsets of all lanes, with masked ones moved out of the buffer, and values of the same shape."""
    shape = pointer.offset.shape
    offset = _all_lanes(m, pointer.offset, shape)
    kept = m.both(mask, m.active)
    if kept is not None:
        offset = lax.select(_all_lanes(m, kept, shape), offset, lax.full_like(offset, size))
    return offset, [_all_lanes(m, value, shape) for value in values]


def _scatter(
    operation: Callable[..., Array], buffer: Array, offset: Array, update: Array, *, unique: bool
) -> Array:
    return operation(
        buffer,
        lax.expand_dims(offset, (np.ndim(offset),)),
        update,
        _INTO_ONE_ELEMENT,
        unique_indices=unique,
        mode=lax.GatherScatterMode.FILL_OR_DROP,
    )


# --- Atomics -------------------------------------------------------------------------------------

# Triton's `RMWOp`. The unsigned kinds are the signed ones on the same bits taken as unsigned.
AND, OR, XOR, ADD, FADD, MAX, MIN, UMAX, UMIN, XCHG = range(1, 11)

_COMBINE: dict[int, Callable[[Array, Array], Array]] = {
    AND: lax.bitwise_and,
    OR: lax.bitwise_or,
    XOR: lax.bitwise_xor,
    ADD: lax.add,
    FADD: lax.add,
    MAX: lax.max,
    MIN: lax.min,
    UMAX: lax.max,
    UMIN: lax.min,
    XCHG: lambda old, new: new,
}
_SCATTERS: dict[int, Callable[..., Array]] = {
    ADD: lax.scatter_add,
    FADD: lax.scatter_add,
    MAX: lax.scatter_max,
    MIN: lax.scatter_min,
    UMAX: lax.scatter_max,
    UMIN: lax.scatter_min,
    XCHG: lax.scatter,
}


@rule("tt.atomic_rmw")
def _atomic(m: Machine, op: Operation, pointer: Pointer, value: Value, mask: Value | None = None) -> Results:
    """`RMWOp`, element by element where the mask is true; gives what was there before."""
    return atomic_lanes(m, op, pointer, value, mask, op.attributes["atomic_rmw_op"])


def atomic_lanes(
    m: Machine, op: Operation, pointer: Pointer, value: Value, mask: Value | None, kind: int
) -> Value:
    """Combines values with memory where the mask holds; returns what was there, if that is used.

    Args:
      kind: Triton's `RMWOp`.
    """
    return _each(m, op, pointer, mask, lambda one, kept: _combine_with(m, op, one, value, kept, kind))


def _combine_with(
    m: Machine, op: Operation, pointer: Pointer, value: Value, mask: Value | None, kind: int
) -> Value:
    check_access(m, op, pointer, mask)
    buffer = contents(m, op, pointer)
    if buffer.size == 0:
        return Value(full(pointer.offset.shape, 0, value.dtype))
    offset, (update,) = _lanes(m, pointer, mask, buffer.size, value)
    if kind in (UMAX, UMIN):
        buffer, update = unsigned(buffer), unsigned(update)
    if kind in _SCATTERS and not op.result_used:
        write_back(m, pointer, _signed(_scatter(_SCATTERS[kind], buffer, offset, update, unique=False)))
        return Value(full(pointer.offset.shape, 0, value.dtype))
    buffer, old = _one_by_one(_COMBINE[kind], buffer, offset, update)
    write_back(m, pointer, _signed(buffer))
    return Value(_signed(old), m.programs is not None)


def _signed(array: Array) -> Array:
    return reinterpret(array, SIGNED.get(np.dtype(array.dtype), np.dtype(array.dtype)))


@rule("tt.atomic_cas")
def _compare_and_swap(m: Machine, op: Operation, pointer: Pointer, expected: Value, value: Value) -> Results:
    """Writes where memory holds what was compared; gives what was there before."""
    return _each(m, op, pointer, None, lambda one, kept: _swap_in(m, op, one, expected, value, kept))


def _swap_in(
    m: Machine, op: Operation, pointer: Pointer, expected: Value, value: Value, mask: Value | None
) -> Value:
    check_access(m, op, pointer, mask)
    buffer = contents(m, op, pointer)
    offset, (compared, update) = _lanes(m, pointer, mask, buffer.size, expected, value)
    bits = bits_of(np.dtype(buffer.dtype))

    def swap(old: Array, compared: Array, update: Array) -> Array:
        return lax.select(lax.eq(reinterpret(old, bits), reinterpret(compared, bits)), update, old)

    buffer, old = _one_by_one(swap, buffer, offset, compared, update)
    write_back(m, pointer, buffer)
    return Value(old, m.programs is not None)


def _one_by_one(
    update: Callable[..., Array], buffer: Array, offset: Array, *values: Array
) -> tuple[Array, Array]:
    """Read-modify-write of one lane after the other, so that lanes that collide see each other.

    Args:
      update: from the old element and the lane's values to the new element.
      buffer: flat.
      offset: an element for each lane; outside the buffer for a lane that takes no part.
      values: of the shape of `offset`.

    Returns:
      The new buffer, and the old elements in the shape of `offset`.
    """
    lanes = np.size(offset)
    places, *given = (lax.reshape(array, (lanes,)) for array in (offset, *values))

    def step(lane: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        buffer, results = carry
        place, *own = (lax.dynamic_index_in_dim(array, lane, keepdims=False) for array in (places, *given))
        old = take(buffer, place)
        new = convert(update(old, *own), np.dtype(buffer.dtype))
        buffer = _scatter(lax.scatter, buffer, place, new, unique=True)
        return buffer, lax.dynamic_update_index_in_dim(results, old, lane, 0)

    start = (buffer, full((lanes,), 0, np.dtype(buffer.dtype)))
    buffer, results = lax.fori_loop(np.int32(0), np.int32(lanes), step, start)
    return buffer, lax.reshape(results, np.shape(offset))
