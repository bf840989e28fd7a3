"""Gluon's shared memory and asynchronous copies (ttg). A copy is done when it is asked for.

A kernel that waits for its copies sees what it would see on a GPU; one that doesn't wait races there.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import lax

from jtprim.lowering.portable import shared
from jtprim.lowering.portable.machine import Machine, Results, rule
from jtprim.lowering.portable.memory import load
from jtprim.lowering.portable.values import Array, Operand, Pointer, SharedMemory, Value, full
from jtprim.specialize.reader import Operation

# What stands for a token: an order that is kept anyway.
TOKEN = Value(np.int32(0))


@rule(
    "ttg.async_commit_group",
    "ttg.async_wait",
    "ttg.local_dealloc",
    "ttg.local_barrier",
    "amdg.async_wait",
    "amdg.memory_counter_wait",
)
def _token(m: Machine, op: Operation, *operands: Operand) -> Results:
    """Nothing to wait for: an order that is kept anyway."""
    return [TOKEN for _ in op.results]


# --- Memory --------------------------------------------------------------------------------------


@rule("ttg.local_alloc")
def _allocate(m: Machine, op: Operation, initial: Value | None = None) -> Results:
    memory = shared.allocate(m, op)
    if initial is not None:
        shared.write(m, memory, initial)
    return memory


@rule("ttg.local_load")
def _load(m: Machine, op: Operation, memory: SharedMemory, *tokens: Value) -> Results:
    return shared.read(m, memory)


@rule("ttg.local_store")
def _store(m: Machine, op: Operation, value: Value, memory: SharedMemory) -> Results:
    shared.write(m, memory, value)
    return None


@rule("ttg.local_gather")
def _gather(m: Machine, op: Operation, memory: SharedMemory, indices: Value, *tokens: Value) -> Results:
    """Along one axis, the element that each index names."""
    values, places = _whole(m, shared.read(m, memory), indices)
    axis = op.attributes["axis"] + int(m.programs is not None)
    return Value(jnp.take_along_axis(values, places, axis, mode="clip"), m.programs is not None)


@rule("ttg.local_scatter")
def _scatter(m: Machine, op: Operation, *operands: Operand) -> Results:
    """Along one axis, to the place that each index names."""
    memory = next(x for x in operands if isinstance(x, SharedMemory))
    numbers = [x for x in operands if isinstance(x, Value)]
    # Values and indices have one shape; indices are integers, named by the operation's order: 3.9 has
    # destination, values, indices.
    values, indices = numbers[0], numbers[1]
    old, new, places = _whole(m, shared.read(m, memory), values, indices)
    axis = op.attributes["axis"] + int(m.programs is not None)
    written = jnp.put_along_axis(old, places, new.astype(old.dtype), axis, inplace=False, mode="drop")
    shared.write(m, memory, Value(written, m.programs is not None))
    return None


def _whole(m: Machine, *values: Value) -> list[Array]:
    return [m.batch(value).array if m.programs is not None else value.array for value in values]


# --- Views ---------------------------------------------------------------------------------------


@rule("ttg.memdesc_index")
def _index(m: Machine, op: Operation, memory: SharedMemory, place: Value) -> Results:
    return shared.index(memory, place)


@rule("ttg.memdesc_subslice")
def _subslice(m: Machine, op: Operation, memory: SharedMemory) -> Results:
    return shared.subslice(memory, op.attributes["offsets"], op.results[0].type.shape)


@rule("ttg.memdesc_trans")
def _transpose(m: Machine, op: Operation, memory: SharedMemory) -> Results:
    return shared.transposed(memory, op.attributes["order"])


@rule("ttg.memdesc_reshape")
def _reshape(m: Machine, op: Operation, memory: SharedMemory) -> Results:
    return shared.reshaped(memory, op.results[0].type.shape)


@rule("ttg.memdesc_reinterpret")
def _reinterpret(m: Machine, op: Operation, memory: SharedMemory) -> Results:
    """The same bytes as another type and shape; a swizzled layout is taken to be none."""
    return shared.reinterpreted(memory, op.results[0].type.dtype, op.results[0].type.shape)


# --- Copies --------------------------------------------------------------------------------------


@rule("ttg.async_copy_global_to_local")
def _copy(m: Machine, op: Operation, pointer: Pointer, memory: SharedMemory, *rest: Value) -> Results:
    """Elements that the mask leaves out become `other`, or zero."""
    _, _, masks, others = op.attributes["operandSegmentSizes"]
    copy_in(m, op, pointer, memory, rest[0] if masks else None, rest[masks] if others else None)
    return TOKEN


def copy_in(
    m: Machine,
    op: Operation,
    pointer: Pointer,
    memory: SharedMemory,
    mask: Value | None,
    other: Value | None,
) -> None:
    """Copies from global to shared memory."""
    loaded = load(m, op, pointer, mask)
    if mask is not None:
        if other is None:
            other = Value(full(loaded.shape, 0, loaded.dtype))
        loaded = m.map(lax.select, mask, loaded, other)
    shared.write(m, memory, loaded)


@rule("gluon.set_auto_layout")
def _same(m: Machine, op: Operation, operand: Operand) -> Results:
    """Layouts say where elements are kept, not what they are."""
    return operand


@rule("ttg.warp_specialize")
def _warp_specialize(m: Machine, op: Operation, *operands: Operand) -> Results:
    """Partitions that wait for each other have no order in which one after the other could run."""
    raise m.unsupported(op, "runs several programs side by side; run the kernel on a GPU")


@rule("ttg.fp4_to_fp")
def _from_fp4(m: Machine, op: Operation, value: Value) -> Results:
    """Two numbers of four bits (e2m1) in each byte, along one axis; the first is in the low half."""
    from .tt import unpack_e2m1

    axis, dtype = op.attributes["axis"], op.results[0].type.dtype
    return m.rearrange(
        lambda array, front: lax.convert_element_type(unpack_e2m1(array, axis + front), dtype), value
    )
