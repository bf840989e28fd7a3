"""tt.print and tt.assert: calls back to Python, with the place of each program in the grid.

Defined in Triton's include/triton/Dialect/Triton/IR/TritonOps.td.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jtprim.lowering.portable.machine import Machine, Results, rule
from jtprim.lowering.portable.values import Array, Value
from jtprim.specialize.reader import Operation


@rule("tt.print")
def _print(m: Machine, op: Operation, *operands: Value) -> Results:
    """Prints a line for each element, as Triton does on a GPU. Of two operations either may print first."""
    signs = op.attributes["isSigned"]
    show = functools.partial(
        _print_programs, prefix=op.attributes["prefix"], in_hex=bool(op.attributes["hex"]), signs=signs
    )
    jax.debug.callback(show, *_all_programs(m, *operands))
    return None


def _all_programs(m: Machine, *operands: Value) -> list[Array]:
    """With a program axis: whether each program is active, its place on each axis, the operands."""
    active = Value(np.bool_(True)) if m.active is None else m.active
    values = [active, *m.program_ids, *operands]
    if m.programs is None:
        return [jax.numpy.expand_dims(value.array, 0) for value in values]
    return [m.batch(value).array for value in values]


def _print_programs(
    active: Any, x: Any, y: Any, z: Any, *values: Any, prefix: str, in_hex: bool, signs: Sequence[int]
) -> None:
    several = len(values) > 1
    for program in np.flatnonzero(np.asarray(active)):
        place = f"pid ({x[program]}, {y[program]}, {z[program]})"
        if not values:
            print(f"{place}{prefix}".removesuffix(": "))
        for number, (value, signed) in enumerate(zip(values, signs, strict=True)):
            elements = _as_printed(np.asarray(value)[program], signed)
            for index in np.ndindex(elements.shape):
                at = f" idx ({', '.join(map(str, index))})" if index else ""
                text = _in_hex(elements[index].tobytes()) if in_hex else str(elements[index])
                print(f"{place}{at}{prefix}{text}" + (f" (operand {number})" if several else ""))


def _as_printed(array: np.ndarray[Any, Any], signed: int) -> np.ndarray[Any, Any]:
    if array.dtype.kind == "i" and not signed:
        return array.view(f"uint{8 * array.dtype.itemsize}")
    return array.astype(np.int32) if array.dtype == np.bool_ else array


def _in_hex(number: bytes) -> str:
    return f"0x{number[::-1].hex()}"


@rule("tt.assert")
def _assert(m: Machine, op: Operation, condition: Value) -> Results:
    """Stops the computation with an error, where a GPU stops with a trap."""
    check = functools.partial(
        _check_programs,
        message=op.attributes["message"],
        source=op.source or "an unknown line",
        kernel=m.kernel,
    )
    jax.debug.callback(check, *_all_programs(m, condition))
    return None


def _check_programs(
    active: Any, x: Any, y: Any, z: Any, condition: Any, *, message: str, source: str, kernel: str
) -> None:
    condition = np.asarray(condition)
    held = condition.reshape(len(condition), -1).all(axis=1)
    for program in np.flatnonzero(np.asarray(active) & ~held):
        index = tuple(int(i) for i in np.argwhere(~condition[program])[0])
        at = f" at element {index}" if index else ""
        place = f"({x[program]}, {y[program]}, {z[program]})"
        raise AssertionError(f"{kernel}: {source}: program {place}{at}: {message or 'device_assert failed'}")
