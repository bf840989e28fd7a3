"""AMD's buffer operations (amdg): a pointer for all lanes, and an offset for each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jax import lax

from jtprim.lowering.portable.machine import Machine, Results, rule
from jtprim.lowering.portable.memory import atomic_lanes, load, store_lanes
from jtprim.lowering.portable.values import Operand, Pointer, SharedMemory, Value, full
from jtprim.specialize.reader import Operation

from . import tt, ttg


def _lanes(m: Machine, op: Operation, pointer: Pointer, offsets: Value) -> Pointer:
    spread = m.map(
        lambda base, like: lax.full_like(like, 0, np.dtype(base.dtype)) + base, pointer.offset, offsets
    )
    return tt.add_pointer(m, Pointer(pointer.parameter, pointer.element, spread), offsets)


def _optional(op: Operation, operands: Sequence[Operand], required: int) -> list[Operand | None]:
    """The operands behind the required ones, each of which may be absent."""
    sizes = op.attributes["operandSegmentSizes"]
    left = iter(operands[required:])
    return [next(left) if size else None for size in sizes[required:]]


@rule("amdg.buffer_load")
def _buffer_load(m: Machine, op: Operation, *operands: Operand) -> Results:
    pointer, offsets = operands[:2]
    assert isinstance(pointer, Pointer) and isinstance(offsets, Value)
    _, mask, other = _optional(op, operands, 2)
    assert mask is None or isinstance(mask, Value)
    loaded = load(m, op, _lanes(m, op, pointer, offsets), mask)
    if mask is None:
        return loaded
    if other is None:
        other = Value(full(loaded.shape, 0, loaded.dtype))
    assert isinstance(other, Value)
    return m.map(lax.select, mask, loaded, other)


@rule("amdg.buffer_store")
def _buffer_store(m: Machine, op: Operation, *operands: Operand) -> Results:
    value, pointer, offsets = operands[:3]
    assert isinstance(value, Value) and isinstance(pointer, Pointer) and isinstance(offsets, Value)
    _, mask = _optional(op, operands, 3)
    assert mask is None or isinstance(mask, Value)
    store_lanes(m, op, _lanes(m, op, pointer, offsets), value, mask)
    return None


@rule("amdg.buffer_atomic_rmw")
def _buffer_atomic(m: Machine, op: Operation, *operands: Operand) -> Results:
    pointer, offsets, value = operands[:3]
    assert isinstance(value, Value) and isinstance(pointer, Pointer) and isinstance(offsets, Value)
    _, mask = _optional(op, operands, 3)
    assert mask is None or isinstance(mask, Value)
    lanes = _lanes(m, op, pointer, offsets)
    return atomic_lanes(m, op, lanes, value, mask, op.attributes["atomic_rmw_op"])


@rule("amdg.buffer_load_to_local")
def _buffer_load_to_local(m: Machine, op: Operation, *operands: Operand) -> Results:
    memory, pointer, offsets = operands[:3]
    assert isinstance(memory, SharedMemory) and isinstance(pointer, Pointer) and isinstance(offsets, Value)
    mask, other, _ = _optional(op, operands, 3)
    assert (mask is None or isinstance(mask, Value)) and (other is None or isinstance(other, Value))
    ttg.copy_in(m, op, _lanes(m, op, pointer, offsets), memory, mask, other)
    return ttg.TOKEN
