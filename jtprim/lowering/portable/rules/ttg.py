"""Shared memory: allocations, views, loads and stores (the `ttg` dialect).

Defined in Triton's include/triton/Dialect/TritonGPU/IR/TritonGPUOps.td.
"""

from __future__ import annotations

import numpy as np
from jax import lax

from jtprim.lowering.portable import shared
from jtprim.lowering.portable.machine import RULES, Machine, Results, rule
from jtprim.lowering.portable.values import Array, Shared, Value, convert
from jtprim.specialize.reader import Operation

from .tt import unpack_e2m1


@rule("ttg.local_alloc")
def _allocate(m: Machine, op: Operation, value: Value | None = None) -> Results:
    """A buffer in shared memory, with what a value holds if there is one."""
    view = shared.allocate(m, op.results[0])
    if value is not None:
        shared.write(m, view, value)
    return view


@rule("ttg.local_dealloc")
def _free(m: Machine, op: Operation, view: Shared) -> Results:
    """Ends a buffer's life: nothing reads it afterwards."""
    return None


@rule("ttg.local_load")
def _load(m: Machine, op: Operation, view: Shared, *token: Value) -> Results:
    """What a view holds, as a tensor."""
    return shared.read(m, view)


@rule("ttg.local_store")
def _store(m: Machine, op: Operation, value: Value, view: Shared, wanted: Value | None = None) -> Results:
    """`wanted` is there where a copy with a condition became this (`expansion.py`)."""
    shared.write(m, view, value, wanted)
    return None


# --- Views ---------------------------------------------------------------------------------------


@rule("ttg.memdesc_index")
def _index(m: Machine, op: Operation, view: Shared, place: Value) -> Results:
    """The view at one place of the first axis, which goes away."""
    indexed = shared.step(m, view, shared.Index(), place)
    if len(op.operands[0].type.shape) == len(op.results[0].type.shape):  # of one axis: it stays
        return shared.step(m, indexed, shared.Reshape(op.results[0].type.shape))
    return indexed


@rule("ttg.memdesc_subslice")
def _slice(m: Machine, op: Operation, view: Shared) -> Results:
    """The part of a view that begins at constant offsets."""
    return shared.step(m, view, shared.Slice(op.attributes["offsets"], op.results[0].type.shape))


@rule("ttg.memdesc_trans")
def _transpose(m: Machine, op: Operation, view: Shared) -> Results:
    """A view with its axes in another order."""
    return shared.step(m, view, shared.Transpose(op.attributes["order"]))


@rule("ttg.memdesc_reshape")
def _reshape(m: Machine, op: Operation, view: Shared) -> Results:
    """A view of the same elements in row-major order."""
    return shared.step(m, view, shared.Reshape(op.results[0].type.shape))


@rule("ttg.memdesc_reinterpret")
def _reinterpret(m: Machine, op: Operation, view: Shared) -> Results:
    """Another type of the same memory: the bytes are taken in row-major order, whatever the layouts say.

    A kernel that reads elements of another shape or width than it wrote, through layouts that swizzle, finds
    them elsewhere on a GPU. Most kernels do this to use memory again.
    """
    kind, source = op.results[0].type, op.operands[0].type
    if np.prod(kind.shape) * kind.dtype.itemsize > np.prod(source.shape) * source.dtype.itemsize:
        raise m.unsupported(op, "makes a view that is larger than what it is a view of")
    return shared.step(m, view, shared.Reinterpret(kind.shape, kind.dtype))


# --- Gathers and scatters ------------------------------------------------------------------------


@rule("ttg.local_gather")
def _gather(m: Machine, op: Operation, view: Shared, indices: Value) -> Results:
    """`tt.gather` from shared memory."""
    return RULES["tt.gather"](m, op, shared.read(m, view), indices)


@rule("ttg.local_scatter")
def _scatter(m: Machine, op: Operation, view: Shared, values: Value, indices: Value) -> Results:
    """Along one axis, each value to where its index says. Of several to one place, one stays."""
    axis, shape = op.attributes["axis"], indices.shape
    rank = len(shape)

    def scatter(whole: Array, values: Array, indices: Array) -> Array:
        front = np.ndim(whole) - rank
        places = [
            indices if d == axis + front else lax.broadcasted_iota(indices.dtype, np.shape(indices), d)
            for d in range(np.ndim(whole))
        ]
        stacked = lax.concatenate(
            [lax.expand_dims(place, (np.ndim(whole),)) for place in places], np.ndim(whole)
        )
        dimensions = lax.ScatterDimensionNumbers(
            update_window_dims=(),
            inserted_window_dims=tuple(range(np.ndim(whole))),
            scatter_dims_to_operand_dims=tuple(range(np.ndim(whole))),
        )
        mode = lax.GatherScatterMode.FILL_OR_DROP
        return lax.scatter(whole, stacked, values, dimensions, mode=mode)

    old = shared.read(m, view)
    batched = old.batched or values.batched or indices.batched
    operands = [m.batch(value) if batched else value for value in (old, values, indices)]
    shared.write(m, view, Value(scatter(*(operand.array for operand in operands)), batched))
    return None


# --- Asynchronous copies, which are done when they are issued --------------------------------------


@rule("ttg.async_commit_group", "ttg.async_wait", "amdg.async_wait", "amdg.async_tdm_wait")
def _wait(m: Machine, op: Operation, *tokens: Value) -> Results:
    """Groups of copies, and waits for them, which give tokens that nothing needs."""
    return [Value(np.int32(0)) for _ in op.results]


@rule("ttg.fp4_to_fp")
def _from_fp4(m: Machine, op: Operation, value: Value) -> Results:
    """Two numbers of four bits (e2m1) in each byte, along one axis; the first is in the low half."""
    axis, dtype = op.attributes["axis"], op.results[0].type.dtype
    return m.rearrange(lambda array, front: convert(unpack_e2m1(array, axis + front), dtype), value)
