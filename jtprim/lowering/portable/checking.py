"""The checks of `jt.debug` on each access: bounds, and races by what other programs did before.

For races programs run one after the other, and for each element of a written buffer it is kept which program
and which operation last stored to it, read it and combined it atomically. Such a record is
``program * operations + operation``, or one of two numbers below zero.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from jtprim.errors import OutOfBoundsError, RaceError
from jtprim.specialize.reader import Operation

from .analysis import ACCESSES
from .machine import Machine
from .strategy import Strategy
from .values import Array, Pointer, Value, convert, full

INT64 = np.dtype(np.int64)

# Records of an element that no program accessed, and of one that several did.
NOBODY, SEVERAL = -1, -2

Records = dict[tuple[str, int], Array]

VERBS = {"load": "reads", "store": "stores to", "atomic": "combines"}


def check_access(m: Machine, op: Operation, pointer: Pointer, mask: Value | None) -> None:
    """Checks the active lanes of an access, where the context asks for it."""
    if not (m.checks.bounds or m.checks.races):
        return
    (parameter,) = pointer.parameters
    batch = m.programs is not None
    lanes = Value(np.zeros(pointer.offset.shape, np.bool_))
    kept = m.both(mask, m.active)
    kept = Value(np.bool_(True)) if kept is None else kept
    active, offset = (
        m.map(lambda x, _: x, m.batch(value) if batch else value, lanes) for value in (kept, pointer.offset)
    )
    wide = m.map(lambda x: convert(x, INT64), offset)
    if m.checks.bounds:
        _check_bounds(m, op, parameter, active.array, wide.array)
    if m.checks.races and parameter in m.strategy.written:
        _check_races(m, op, parameter, active.array, wide.array)


def _name(m: Machine, parameter: int) -> str:
    name = m.module.parameters[parameter].name
    return f"parameter {parameter}" if name is None else repr(name)


def _flat(array: Array) -> Array:
    return lax.reshape(jax.numpy.asarray(array), (int(np.size(array)),))


# --- Bounds --------------------------------------------------------------------------------------


def _check_bounds(m: Machine, op: Operation, parameter: int, active: Array, offset: Array) -> None:
    size = m.sizes[parameter]
    outside = lax.bitwise_or(
        lax.lt(offset, lax.full_like(offset, 0)), lax.ge(offset, lax.full_like(offset, size))
    )
    wrong, places = _flat(lax.bitwise_and(active, outside)), _flat(offset)
    lane = lax.argmax(wrong, 0, np.dtype(np.int32))
    lanes = int(np.size(active)) // (m.programs or 1)
    program = lax.div(lane, np.int32(lanes))
    report = functools.partial(
        _report_outside,
        kernel=m.kernel,
        verb=VERBS[ACCESSES[op.name]],
        name=_name(m, parameter),
        parameter=m.module.parameters[parameter].name,
        size=size,
        source=op.source,
    )
    ids = [_of_program(x, program) for x in m.program_ids]
    element = lax.dynamic_index_in_dim(places, lane, keepdims=False)
    jax.debug.callback(report, lax.reduce_or(wrong, (0,)), element, *ids)


def _of_program(place: Value, program: Array) -> Array:
    if not place.batched:
        return place.array
    return lax.dynamic_index_in_dim(place.array, program, keepdims=False)


def _report_outside(
    wrong: Any,
    element: Any,
    *place: Any,
    kernel: str,
    verb: str,
    name: str,
    parameter: str | None,
    size: int,
    source: str | None,
) -> None:
    if wrong:
        raise OutOfBoundsError(
            f"program {_place(place)} {verb} element {int(element)} of {name}, which has {size}, at "
            f"{source or 'an unknown line'}; mask the access.",
            kernel=kernel,
            parameter=parameter,
        )


def _place(place: Sequence[Any]) -> str:
    return f"({', '.join(str(int(x)) for x in place)})"


# --- Races ---------------------------------------------------------------------------------------

_RECORDS = ("load", "store", "atomic")


def no_records(sizes: Sequence[int], strategy: Strategy) -> Records:
    """Records of a run that has not begun."""
    return {
        (kind, parameter): full((max(sizes[parameter], 1),), NOBODY, INT64)
        for parameter in strategy.written
        for kind in _RECORDS
    }


def _check_races(m: Machine, op: Operation, parameter: int, active: Array, offset: Array) -> None:
    kind = ACCESSES[op.name]
    operations = [access.operation for access in m.facts.accesses]
    number, total = operations.index(op), len(operations)
    active, offset = _flat(active), _flat(offset)
    size = max(m.sizes[parameter], 1)
    inside = lax.bitwise_and(
        active,
        lax.bitwise_and(
            lax.ge(offset, lax.full_like(offset, 0)), lax.lt(offset, lax.full_like(offset, size))
        ),
    )
    place = lax.select(inside, offset, lax.full_like(offset, size))
    x, y, z = (convert(jax.numpy.asarray(i.array), INT64) for i in m.program_ids)
    program = x + m.grid[0] * (y + m.grid[1] * z)
    against = {"load": ("store", "atomic"), "store": _RECORDS, "atomic": ("store", "load")}[kind]
    for other in against:
        found = _taken(m.shared[other, parameter], place)
        owner = lax.div(found, lax.full_like(found, total))
        foreign = lax.bitwise_or(
            lax.eq(found, lax.full_like(found, SEVERAL)),
            lax.bitwise_and(
                lax.ge(found, lax.full_like(found, 0)), lax.ne(owner, lax.broadcast(program, found.shape))
            ),
        )
        wrong = lax.bitwise_and(inside, foreign)
        lane = lax.argmax(wrong, 0, np.dtype(np.int32))
        report = functools.partial(
            _report_race,
            kernel=m.kernel,
            name=_name(m, parameter),
            parameter=m.module.parameters[parameter].name,
            grid=m.grid,
            verbs=(VERBS[other], VERBS[kind]),
            sources=tuple(operation.source for operation in operations),
            operation=number,
        )
        element, record = (
            lax.dynamic_index_in_dim(values, lane, keepdims=False) for values in (offset, found)
        )
        jax.debug.callback(report, lax.reduce_or(wrong, (0,)), element, record, program)
    own = m.shared[kind, parameter]
    before = _taken(own, place)
    mine = lax.broadcast(program * total + number, before.shape)
    owner = lax.div(before, lax.full_like(before, total))
    shared = lax.bitwise_and(
        lax.ne(before, lax.full_like(before, NOBODY)),
        lax.ne(owner, lax.div(mine, lax.full_like(mine, total))),
    )
    shared = lax.bitwise_or(shared, lax.eq(before, lax.full_like(before, SEVERAL)))
    after = lax.select(shared, lax.full_like(mine, SEVERAL), mine)
    m.shared[kind, parameter] = _put(own, place, after)


def _taken(buffer: Array, place: Array) -> Array:
    return buffer.at[place].get(mode="fill", fill_value=NOBODY)  # type: ignore[no-any-return]


def _put(buffer: Array, place: Array, values: Array) -> Array:
    return buffer.at[place].set(values, mode="drop")  # type: ignore[no-any-return]


def _report_race(
    wrong: Any,
    element: Any,
    record: Any,
    program: Any,
    *,
    kernel: str,
    name: str,
    parameter: str | None,
    grid: tuple[int, int, int],
    verbs: tuple[str, str],
    sources: Sequence[str | None],
    operation: int,
) -> None:
    if not wrong:
        return
    here = (
        f"program {_position(int(program), grid)} {verbs[1]} it at {sources[operation] or 'an unknown line'}"
    )
    if record == SEVERAL:
        there = f"more than one program {verbs[0]} it"
    else:
        other, number = divmod(int(record), len(sources))
        there = f"program {_position(other, grid)} {verbs[0]} it at {sources[number] or 'an unknown line'}"
    raise RaceError(
        f"races for element {int(element)} of {name}: {there}, {here}, and nothing orders the two.",
        kernel=kernel,
        parameter=parameter,
    )


def _position(program: int, grid: tuple[int, int, int]) -> str:
    x, y, _ = grid
    return f"({program % x}, {program // x % y}, {program // (x * y)})"
