"""What NVIDIA's GPUs have since Hopper (ttng): TMA, barriers, products of warp groups, tensor memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax import lax

from jtprim.lowering.portable import shared
from jtprim.lowering.portable.machine import Machine, Results, rule
from jtprim.lowering.portable.memory import atomic_lanes, load, store_lanes
from jtprim.lowering.portable.values import (
    Array,
    Descriptor,
    Operand,
    Pointer,
    SharedMemory,
    Value,
    convert,
)
from jtprim.specialize.reader import Operation

from .tt import product
from .ttg import TOKEN


@rule(
    "ttng.init_barrier",
    "ttng.inval_barrier",
    "ttng.barrier_expect",
    "ttng.wait_barrier",
    "ttng.arrive_barrier",
    "ttng.async_copy_mbarrier_arrive",
    "ttng.async_tma_store_wait",
    "ttng.fence_async_shared",
    "ttng.fence_mbarrier_init_release_cluster",
    "ttng.cluster_barrier",
    "ttng.cluster_arrive",
    "ttng.cluster_wait",
    "ttng.tc_gen5_commit",
    "ttng.tmem_wait",
    "amdg.init_barrier",
    "amdg.arrive_barrier",
    "amdg.wait_barrier",
    "amdg.cond_barrier",
)
def _ordered_anyway(m: Machine, op: Operation, *operands: Operand) -> Results:
    """A barrier orders what is done in order anyway."""
    return [TOKEN for _ in op.results]


# --- Descriptors ---------------------------------------------------------------------------------

_PAD_NAN = 2  # Triton's `PaddingOption`


@rule("tt.make_tensor_descriptor")
def _make_descriptor(m: Machine, op: Operation, pointer: Pointer, *numbers: Value) -> Results:
    block = op.results[0].type.shape
    rank = len(numbers) // 2
    return Descriptor(
        pointer, numbers[:rank], numbers[rank:], block, op.attributes.get("padding") == _PAD_NAN
    )


def _lanes(
    m: Machine, descriptor: Descriptor, starts: Sequence[Value], rows: Value | None = None
) -> tuple[Pointer, Value]:
    """Pointers to the elements of the block at `starts`, and which of them are inside the shape.

    With `rows`, one for each row of the block, those replace what the first start would give.
    """
    block = descriptor.block if rows is None else (*rows.shape, descriptor.block[-1])
    rank = len(block)
    index = np.dtype(descriptor.pointer.offset.dtype)
    offset = descriptor.pointer.offset
    inside = Value(np.bool_(True))
    for axis in range(rank):
        extent = block[axis]
        along = (1,) * axis + (extent,) + (1,) * (rank - axis - 1)
        if rows is not None and axis == 0:
            place = _shaped(m, rows, along)
        else:
            lane = Value(lax.reshape(lax.iota(np.dtype(np.int32), extent), along))
            place = m.map(lambda lane, start: lane + convert(start, np.dtype(np.int32)), lane, starts[axis])
        size, stride = descriptor.shape[axis], descriptor.strides[axis]
        within = m.map(
            lambda x, n: lax.bitwise_and(
                lax.ge(x, lax.full_like(x, 0)), lax.lt(x, convert(n, np.dtype(x.dtype)))
            ),
            place,
            size,
        )
        moved = m.map(lambda x, by: convert(x, index) * convert(by, index), place, stride)
        inside = _combined(m, lax.bitwise_and, inside, within, block)
        offset = _combined(m, lax.add, offset, moved, block)
    return Pointer(descriptor.pointer.parameter, descriptor.pointer.element, offset), inside


def _shaped(m: Machine, value: Value, shape: tuple[int, ...]) -> Value:
    reshaped = m.rearrange(lambda x, front: lax.reshape(x, (*np.shape(x)[:front], *shape)), value)
    assert isinstance(reshaped, Value)
    return reshaped


def _combined(
    m: Machine, function: Callable[..., Array], one: Value, other: Value, block: tuple[int, ...]
) -> Value:
    """A function of two values that are broadcast to a block."""
    return m.map(function, _spread(m, one, block), _spread(m, other, block))


def _spread(m: Machine, value: Value, block: tuple[int, ...]) -> Value:
    value = shared.spread_scalar(value, (1,) * len(block))
    front = np.shape(value.array)[: int(value.batched)]
    whole = (*front, *block)
    return Value(lax.broadcast_in_dim(value.array, whole, tuple(range(len(whole)))), value.batched)


def _loaded(m: Machine, op: Operation, descriptor: Descriptor, pointer: Pointer, inside: Value) -> Value:
    loaded = load(m, op, pointer, inside)
    padding = np.nan if descriptor.pads_with_nan and loaded.dtype.kind not in "iub" else 0
    return m.map(lambda keep, x: lax.select(keep, x, lax.full_like(x, padding)), inside, loaded)


def _coordinates(op: Operation, descriptor: Descriptor, numbers: Sequence[Operand]) -> list[Value]:
    starts = [number for number in numbers[: len(descriptor.block)] if isinstance(number, Value)]
    assert len(starts) == len(descriptor.block), op.name
    return starts


@rule("ttng.async_tma_copy_global_to_local")
def _tma_load(m: Machine, op: Operation, descriptor: Descriptor, *rest: Operand) -> Results:
    starts = _coordinates(op, descriptor, rest)
    if op.attributes.get("operandSegmentSizes", (1, 0, 0, 1, 1, 1))[2]:
        raise m.unsupported(op, "loads by im2col")
    _, memory, wanted = rest[-3:]
    assert isinstance(memory, SharedMemory) and isinstance(wanted, Value)
    pointer, inside = _lanes(m, descriptor, starts)
    with m.only_where(wanted):
        shared.write(m, memory, _loaded(m, op, descriptor, pointer, inside))
    return [TOKEN for _ in op.results]


@rule("ttng.async_tma_gather")
def _tma_gather(
    m: Machine,
    op: Operation,
    descriptor: Descriptor,
    rows: Value,
    column: Value,
    barrier: SharedMemory,
    memory: SharedMemory,
    wanted: Value,
) -> Results:
    """A block of rows that are named one by one."""
    pointer, inside = _lanes(m, descriptor, [column, column], rows)
    with m.only_where(wanted):
        shared.write(m, memory, _loaded(m, op, descriptor, pointer, inside))
    return [TOKEN for _ in op.results]


@rule("ttng.async_tma_copy_local_to_global")
def _tma_store(m: Machine, op: Operation, descriptor: Descriptor, *rest: Operand) -> Results:
    memory = rest[-1]
    assert isinstance(memory, SharedMemory)
    pointer, inside = _lanes(m, descriptor, _coordinates(op, descriptor, rest))
    store_lanes(m, op, pointer, _as_block(m, memory, descriptor), inside)
    return [TOKEN for _ in op.results]


@rule("ttng.async_tma_scatter")
def _tma_scatter(
    m: Machine, op: Operation, descriptor: Descriptor, rows: Value, column: Value, memory: SharedMemory
) -> Results:
    pointer, inside = _lanes(m, descriptor, [column, column], rows)
    store_lanes(m, op, pointer, shared.read(m, memory), inside)
    return [TOKEN for _ in op.results]


def _as_block(m: Machine, memory: SharedMemory, descriptor: Descriptor) -> Value:
    """What is stored, with the descriptor's axes: shared memory may lack those of extent one."""
    value = shared.read(m, memory)
    front = np.shape(value.array)[: int(value.batched)]
    return Value(lax.reshape(value.array, (*front, *descriptor.block)), value.batched)


# Triton's `DescriptorReduceKind`, as its `RMWOp`: add, min, max, and, or, xor.
_REDUCTIONS = {1: 4, 2: 7, 3: 6, 6: 1, 7: 2, 8: 3}


@rule("ttng.async_tma_reduce")
def _tma_reduce(m: Machine, op: Operation, descriptor: Descriptor, *rest: Operand) -> Results:
    memory = rest[-1]
    assert isinstance(memory, SharedMemory)
    kind = _REDUCTIONS.get(op.attributes["kind"])
    if kind is None:
        raise m.unsupported(op, "counts up or down with a wrap")
    pointer, inside = _lanes(m, descriptor, _coordinates(op, descriptor, rest))
    atomic_lanes(m, op, pointer, _as_block(m, memory, descriptor), inside, kind)
    return [TOKEN for _ in op.results]


# --- Products ------------------------------------------------------------------------------------

F32 = np.dtype(np.float32)


def _multiplied(
    m: Machine, one: Operand, other: Operand, start: Value, accumulates: Value | None = None
) -> Value:
    """The product of two matrices, plus `start` where the condition says so."""
    a, b = (shared.read(m, x) if isinstance(x, SharedMemory) else x for x in (one, other))
    assert isinstance(a, Value) and isinstance(b, Value)
    wide: np.dtype[Any] = start.dtype if start.dtype.itemsize >= 4 else F32
    if accumulates is not None:
        start = m.map(
            lambda keep, x: lax.select(keep, x, lax.full_like(x, 0)),
            shared.spread_scalar(accumulates, start.shape),
            start,
        )
    return product(m, a, b, start, wide)


@rule("ttng.warp_group_dot")
def _warp_group_dot(
    m: Machine, op: Operation, one: Operand, other: Operand, start: Value, accumulates: Value | None = None
) -> Results:
    return _multiplied(m, one, other, start, accumulates)


@rule("ttng.warp_group_dot_wait")
def _wait_for_products(m: Machine, op: Operation, *operands: Operand) -> Results:
    return operands


# --- Tensor memory -------------------------------------------------------------------------------


@rule("ttng.tmem_alloc")
def _allocate(m: Machine, op: Operation, initial: Value | None = None) -> Results:
    memory = shared.allocate(m, op)
    if initial is not None:
        shared.write(m, memory, initial)
    return [memory, *(TOKEN for _ in op.results[1:])]


@rule("ttng.tmem_load")
def _load(m: Machine, op: Operation, memory: SharedMemory, *tokens: Value) -> Results:
    if any(op.attributes.get(name) for name in ("redOp", "abs", "NaN")):
        raise m.unsupported(op, "reduces what it loads")
    return [shared.read(m, memory), *(TOKEN for _ in op.results[1:])]


@rule("ttng.tmem_store")
def _store(m: Machine, op: Operation, memory: SharedMemory, *rest: Value) -> Results:
    *_, value, wanted = rest
    with m.only_where(wanted):
        shared.write(m, memory, value)
    return [TOKEN for _ in op.results]


@rule("ttng.tmem_copy")
def _copy(m: Machine, op: Operation, source: SharedMemory, target: SharedMemory, *rest: Operand) -> Results:
    if source.shape != target.shape:
        raise m.unsupported(op, "copies the scales of blocks, in a layout of their own")
    shared.write(m, target, shared.read(m, source))
    return [TOKEN for _ in op.results]


@rule("ttng.tmem_subslice")
def _subslice(m: Machine, op: Operation, memory: SharedMemory) -> Results:
    """Columns, from `N` on."""
    shape = op.results[0].type.shape
    return shared.subslice(memory, (*(0 for _ in shape[:-1]), op.attributes["N"]), shape)


@rule("ttng.tc_gen5_mma")
def _tensor_core_product(
    m: Machine, op: Operation, one: SharedMemory, other: SharedMemory, target: SharedMemory, *rest: Operand
) -> Results:
    tokens = op.attributes["operandSegmentSizes"][3]
    accumulates, wanted = rest[tokens], rest[tokens + 1]
    assert isinstance(accumulates, Value) and isinstance(wanted, Value)
    result = _multiplied(m, one, other, shared.read(m, target), accumulates)
    with m.only_where(wanted):
        shared.write(m, target, result)
    return [TOKEN for _ in op.results]
