"""What Hopper and Blackwell GPUs have: products of shared memory, tensor memory, barriers.

Defined in Triton's include/triton/Dialect/TritonNvidiaGPU/IR/TritonNvidiaGPUOps.td, and, where that names an
instruction, in NVIDIA's PTX ISA.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax import lax

from jtprim.lowering.portable import partitions, shared
from jtprim.lowering.portable.machine import RULES, Machine, Results, rule
from jtprim.lowering.portable.values import Operand, Shared, Value, full
from jtprim.specialize.reader import Operation

# --- Products ------------------------------------------------------------------------------------


def _value(m: Machine, operand: Operand) -> Value:
    """A factor, from shared memory if it is there."""
    if isinstance(operand, Shared):
        return shared.read(m, operand)
    assert isinstance(operand, Value)
    return operand


def _product(
    m: Machine, op: Operation, one: Operand, other: Operand, sum_: Value, kept: Value | None
) -> Value:
    """``one @ other``, plus `sum_` where the condition `kept` holds."""
    if kept is not None:
        sum_ = m.map(lax.select, kept, sum_, Value(full(sum_.shape, 0, sum_.dtype)))
    product = RULES["tt.dot"](m, op, _value(m, one), _value(m, other), sum_)
    assert isinstance(product, Value)
    return product


@rule("ttng.warp_group_dot")
def _warp_group_dot(
    m: Machine, op: Operation, one: Operand, other: Operand, sum_: Value, kept: Value | None = None
) -> Results:
    """wgmma: a product of matrices, the second and maybe the first of which are in shared memory."""
    return _product(m, op, one, other, sum_, kept)


@rule("ttng.warp_group_dot_wait")
def _wait_for_products(m: Machine, op: Operation, *values: Operand) -> Results:
    """The products that are waited for, as they are."""
    return values


# --- Tensor memory -------------------------------------------------------------------------------


def _tokens(op: Operation, values: Sequence[Operand]) -> Sequence[Operand]:
    """`values`, and tokens for the results that are left."""
    return [*values, *(Value(np.int32(0)) for _ in op.results[len(values) :])]


def _segments(op: Operation, operands: Sequence[Any]) -> list[list[Any]]:
    given = iter(operands)
    return [[next(given) for _ in range(size)] for size in op.attributes["operandSegmentSizes"]]


@rule("ttng.tmem_alloc")
def _allocate(m: Machine, op: Operation, value: Value | None = None) -> Results:
    """A buffer in tensor memory, with what a value holds if there is one."""
    view = shared.allocate(m, op.results[0])
    if value is not None:
        shared.write(m, view, value)
    return _tokens(op, [view])


@rule("ttng.tmem_load")
def _load(m: Machine, op: Operation, view: Shared, *token: Value) -> Results:
    """What tensor memory holds, as a tensor."""
    if any(result.type.shape for result in op.results[1:]):
        raise m.unsupported(
            op, "reduces what it loads, which has no portable lowering; run the kernel on a GPU"
        )
    return _tokens(op, [shared.read(m, view)])


@rule("ttng.tmem_store")
def _store(m: Machine, op: Operation, view: Shared, *rest: Value) -> Results:
    """Puts a tensor into tensor memory where the predicate holds."""
    *_, value, wanted = rest
    shared.write(m, view, value, wanted)
    return _tokens(op, [])


@rule("ttng.tmem_subslice")
def _slice(m: Machine, op: Operation, view: Shared) -> Results:
    """The columns of tensor memory from a constant offset on."""
    shape = op.results[0].type.shape
    axis = op.attributes.get("dim", len(shape) - 1)
    offset = op.attributes["offset" if "offset" in op.attributes else "N"]  # since Triton 3.9; before
    start = tuple(offset if d == axis else 0 for d in range(len(shape)))
    return shared.step(m, view, shared.Slice(start, shape))


@rule("ttng.tmem_copy")
def _copy(m: Machine, op: Operation, source: Shared, target: Shared, *barrier: Operand) -> Results:
    """From shared to tensor memory."""
    if op.operands[0].type.shape != op.operands[1].type.shape:
        raise m.unsupported(op, "copies between layouts of scales, which has no portable lowering")
    shared.write(m, target, shared.read(m, source))
    return _tokens(op, [])


@rule("ttng.tc_gen5_mma")
def _multiply(m: Machine, op: Operation, *operands: Operand) -> Results:
    """tcgen05.mma: a product, added to what is in tensor memory or put in its place."""
    (one,), (other,), (target,), _, (kept,), (wanted,), barriers, conditions = _segments(op, operands)
    if op.attributes.get("two_ctas"):
        raise m.unsupported(op, "multiplies in two thread blocks at once, which has no portable lowering")
    shared.write(m, target, _product(m, op, one, other, shared.read(m, target), kept), wanted)
    if m.facts.has_partitions:
        for barrier, condition in zip(barriers, conditions, strict=True):
            partitions.arrive(m, barrier, arrivals=1, condition=m.both(wanted, condition))
    return _tokens(op, [])


_LANES = 32  # in a warp

# --- Barriers ------------------------------------------------------------------------------------
# Where no warps are specialized, what they keep in order is in order anyway, and they have no state.


@rule("ttng.init_barrier")
def _initialise(m: Machine, op: Operation, barrier: Shared) -> Results:
    """A barrier, whose phases take `count` arrivals."""
    if m.facts.has_partitions:
        partitions.initialise(m, barrier, op.attributes["count"])
    return None


@rule("ttng.arrive_barrier")
def _arrive(m: Machine, op: Operation, barrier: Shared, wanted: Value | None = None) -> Results:
    """So many arrivals at a barrier."""
    if m.facts.has_partitions:
        partitions.arrive(m, barrier, arrivals=op.attributes["count"], condition=wanted)
    return None


@rule("ttng.barrier_expect")
def _expect(m: Machine, op: Operation, barrier: Shared, wanted: Value | None = None) -> Results:
    """One arrival, and bytes that have to come."""
    if m.facts.has_partitions:
        size = op.attributes["size"]
        partitions.arrive(m, barrier, arrivals=1, expected_bytes=size, condition=wanted)
    return None


@rule("jtprim.barrier_bytes")
def _bytes_came(m: Machine, op: Operation, barrier: Shared, wanted: Value | None = None) -> Results:
    """What TMA does to a barrier when it has copied: bytes that were expected are there (`expansion.py`)."""
    if m.facts.has_partitions:
        size = op.attributes["size"]
        partitions.arrive(m, barrier, arrivals=0, expected_bytes=-size, condition=wanted)
    return None


@rule("ttng.tc_gen5_commit")
def _commit(m: Machine, op: Operation, barrier: Shared, *rest: Operand) -> Results:
    """tcgen05.commit: an arrival when the products before it are done, which they are."""
    if m.facts.has_partitions:
        wanted = rest[0] if rest and isinstance(rest[0], Value) else None
        partitions.arrive(m, barrier, arrivals=1, condition=wanted)
    return None


@rule("ttng.async_copy_mbarrier_arrive")
def _arrive_after_copies(m: Machine, op: Operation, barrier: Shared) -> Results:
    """An arrival of each thread. Without `noIncrement` another one is asked for first: nothing changes."""
    if m.facts.has_partitions and "noIncrement" in op.attributes:
        assert m.num_warps is not None
        partitions.arrive(m, barrier, arrivals=_LANES * m.num_warps)
    return None


@rule(
    "ttng.wait_barrier",
    "ttng.inval_barrier",
    "ttng.async_tma_store_wait",
    "ttng.fence_async_shared",
    "ttng.fence",
)
def _ordered(m: Machine, op: Operation, *operands: Operand) -> Results:
    """What waits for what is done already; only partitions wait for others (`partitions.py`)."""
    return _tokens(op, [])
