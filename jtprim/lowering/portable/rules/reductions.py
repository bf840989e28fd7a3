"""tt.reduce and tt.scan, with any combine region and any number of operands.

Defined in Triton's include/triton/Dialect/Triton/IR/TritonOps.td, which takes the region to be associative.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from jax import lax

from jtprim.lowering.portable.control import over_lanes
from jtprim.lowering.portable.machine import Machine, Results, rule
from jtprim.lowering.portable.values import Array, Operand, Value, convert
from jtprim.specialize.reader import Operation

# Combine regions of one operation that XLA reduces by itself.
_REDUCTIONS: dict[str, Callable[[Array, tuple[int, ...]], Array]] = {
    "arith.addf": lambda x, axes: lax.reduce_sum(x, axes),
    "arith.addi": lambda x, axes: lax.reduce_sum(x, axes),
    "arith.maxsi": lambda x, axes: lax.reduce_max(x, axes),
    "arith.minsi": lambda x, axes: lax.reduce_min(x, axes),
    "arith.maximumf": lambda x, axes: lax.reduce_max(x, axes),
    "arith.minimumf": lambda x, axes: lax.reduce_min(x, axes),
    "arith.maxnumf": lambda x, axes: _over_numbers(lax.reduce_max, x, axes, -np.inf),
    "arith.minnumf": lambda x, axes: _over_numbers(lax.reduce_min, x, axes, np.inf),
    "arith.andi": lambda x, axes: lax.reduce_and(x, axes),
    "arith.ori": lambda x, axes: lax.reduce_or(x, axes),
    "arith.xori": lambda x, axes: lax.reduce_xor(x, axes),
}
_SCANS: dict[str, Callable[..., Array]] = {
    "arith.addf": lax.cumsum,
    "arith.addi": lax.cumsum,
    "arith.mulf": lax.cumprod,
    "arith.muli": lax.cumprod,
}


def _over_numbers(
    reduce: Callable[[Array, tuple[int, ...]], Array], array: Array, axes: tuple[int, ...], neutral: float
) -> Array:
    """A reduction that skips NaN, and is NaN where there is nothing else."""
    missing = lax.ne(array, array)
    reduced = reduce(lax.select(missing, lax.full_like(array, neutral), array), axes)
    return lax.select(lax.reduce_and(missing, axes), lax.full_like(reduced, np.nan), reduced)


def _only_operation(op: Operation) -> str | None:
    """The name of the one operation that the combine region consists of, on its two arguments."""
    (block,) = op.regions[0].blocks
    first, *rest = block.operations
    if len(op.operands) == 1 and len(rest) == 1 and set(first.operands) == set(block.arguments):
        return first.name
    return None


def _whole(m: Machine, operands: Sequence[Value]) -> tuple[list[Array], bool]:
    """Arrays of one shape: all with a program axis if one has it."""
    batched = any(value.batched for value in operands)
    return [(m.batch(value) if batched else value).array for value in operands], batched


def _combine(m: Machine, op: Operation, one: Sequence[Array], other: Sequence[Array]) -> list[Array]:
    """The combine region, applied to arrays elementwise; a program axis is one more axis to it."""
    shape = np.shape(one[0])
    if not np.size(one[0]):  # the rest that a scan over one element has
        return list(one)
    if any(inner.regions for inner in op.regions[0].blocks[0].operations):  # branches, loops
        flat = [lax.reshape(array, (np.size(array),)) for array in (*one, *other)]
        return [lax.reshape(array, shape) for array in over_lanes(m, op, flat)]
    results = m.region(op.regions[0], [Value(array) for array in (*one, *other)])
    return [_value(result, shape) for result in results]


def _value(result: Operand, shape: tuple[int, ...]) -> Array:
    assert isinstance(result, Value)
    return result.array if np.shape(result.array) == shape else lax.broadcast(result.array, shape)


@rule("tt.reduce")
def _reduce(m: Machine, op: Operation, *operands: Value) -> Results:
    """A combine region along an axis that goes away, applied to neighbours, which keeps the order."""
    arrays, batched = _whole(m, operands)
    axis = op.attributes["axis"] + batched
    direct = _REDUCTIONS.get(_only_operation(op) or "")
    if direct is not None and arrays[0].dtype != np.bool_:
        reduced = direct(arrays[0], (axis,))
        return Value(convert(reduced, operands[0].dtype), batched)
    while arrays[0].shape[axis] > 1:
        arrays = _combine(m, op, *zip(*(_neighbours(array, axis) for array in arrays), strict=True))
    return [Value(lax.squeeze(array, (axis,)), batched) for array in arrays]


def _neighbours(array: Array, axis: int) -> tuple[Array, Array]:
    """The elements at even and those at odd places: to combine these keeps the order of all elements."""
    shape = np.shape(array)
    paired = lax.reshape(array, (*shape[:axis], shape[axis] // 2, 2, *shape[axis + 1 :]))
    return (
        lax.index_in_dim(paired, 0, axis + 1, keepdims=False),
        lax.index_in_dim(paired, 1, axis + 1, keepdims=False),
    )


@rule("tt.scan")
def _scan(m: Machine, op: Operation, *operands: Value) -> Results:
    """A combine region along an axis, with every result on the way; from the end if `reverse`."""
    arrays, batched = _whole(m, operands)
    axis, reverse = op.attributes["axis"] + batched, bool(op.attributes.get("reverse", False))
    direct = _SCANS.get(_only_operation(op) or "")
    if direct is not None and arrays[0].dtype != np.bool_:
        return Value(direct(arrays[0], axis=axis, reverse=reverse), batched)

    def combine(one: Sequence[Array], other: Sequence[Array]) -> list[Array]:
        # `associative_scan` gives the elements of a reversed scan from the end, as (later, earlier);
        # so does Triton.
        return _combine(m, op, one, other)

    scanned = lax.associative_scan(combine, arrays, reverse=reverse, axis=axis)
    return [Value(array, batched) for array in scanned]
