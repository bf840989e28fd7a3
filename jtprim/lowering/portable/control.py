"""Control flow: loops become JAX loops, branches become masks of active programs.

Defined in MLIR's scf, cf and ub dialects (https://mlir.llvm.org/docs/Dialects/SCFDialect/); calls and
`tt.map_elementwise` in Triton's TritonOps.td.

Both sides of a branch run, with stores and atomics masked, and the results are selected; only a branch
that is known at trace time to go one way in all programs runs that side alone. A loop runs as often as
the longest-running program needs it. The number is static where it is known at trace time, which is
what reverse-mode differentiation needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import numpy as np
from jax import lax

from jtprim import compat
from jtprim.specialize.reader import DTYPES, Block, Operation, Region, Variable

from .machine import (
    Machine,
    Results,
    as_array,
    fixed_part,
    like,
    moving_part,
    rule,
    with_moving_part,
    writes_shared,
    written_in,
)
from .uniformity import uniform_trips
from .values import Array, Operand, Pointer, Value, convert, full

INT32 = np.dtype(np.int32)


@rule("scf.if")
def _if(m: Machine, op: Operation, condition: Value) -> Results:
    """Both sides, with stores masked, and the results selected; one side if the condition is known."""
    then, *otherwise = (region for region in op.regions if region.blocks)
    known = m.facts.conditions.get(op)
    if known is not None:
        chosen = [then] if known else otherwise
        return m.region(chosen[0], ()) if chosen else ()
    with m.only_where(condition):
        results = m.region(then, ())
    if not otherwise:
        return results
    with m.only_where(m.inverse(condition)):
        others = m.region(otherwise[0], ())
    return [m.select(op, condition, one, other) for one, other in zip(results, others, strict=True)]


# --- Loops ---------------------------------------------------------------------------------------


@rule("scf.for")
def _for(m: Machine, op: Operation, lower: Value, upper: Value, step: Value, *initial: Operand) -> Results:
    """A loop that runs as often as the longest-running program needs it; the others keep their results."""
    body = op.regions[0]
    _, *variables = body.blocks[0].arguments
    known = m.facts.trips.get(op)
    if known is not None and not known.any():
        return initial
    trips = None if uniform_trips(m.facts, op) else _trip_count(m, op, lower, upper, step)
    limit = _longest(m, trips) if known is None else int(known.max())
    counted = {
        k: [_value(m.operand(by)) for by in steps]
        for k, steps in enumerate(_steps(body.blocks[0]))
        if steps is not None
    }
    others = [k for k in range(len(variables)) if k not in counted]

    def all_carried(times: Value, values: Sequence[Operand]) -> list[Operand]:
        """Those that an iteration only adds to, after so many; the others are `values`."""
        carried = dict(zip(others, values, strict=True))
        return [
            _advanced(m, initial[k], counted[k], times) if k in counted else carried[k]
            for k in range(len(variables))
        ]

    def iteration(position: Array, values: Sequence[Operand]) -> Sequence[Operand]:
        index = m.map(lambda low, by: low + by * convert(position, low.dtype), lower, step)
        everything = all_carried(Value(position), values)
        if trips is None:
            yielded = m.region(body, [index, *everything])
            return [yielded[k] for k in others]
        running = m.map(lambda count: lax.lt(lax.full_like(count, position), count), trips)
        with m.only_where(running):
            yielded = m.region(body, [index, *everything])
        return [m.select(op, running, yielded[k], old) for k, old in zip(others, values, strict=True)]

    initial = tuple(_widened(m, op, initial))
    start = _batched_where(m, [variables[k] for k in others], [initial[k] for k in others])
    times = Value(np.int32(limit)) if trips is None else trips
    if isinstance(limit, int) and limit == 1:
        return all_carried(times, _kept_fixed(m, op, start, iteration(np.int32(0), start)))
    after = _loop(m, op, body, start, iteration, lambda f, carry: lax.fori_loop(0, limit, f, carry))
    return all_carried(times, after)


def _steps(body: Block) -> list[list[Variable] | None]:
    """For each value that a loop carries: what is added to it in every iteration, where that is all that
    happens to it and comes from outside the loop; else None."""
    definitions = {result: operation for operation in body.operations for result in operation.results}
    inside = {*body.arguments, *definitions}

    def steps(carried: Variable, value: Variable) -> list[Variable] | None:
        found = []
        while value is not carried:
            addition = definitions.get(value)
            if addition is None or addition.name not in ("tt.addptr", "arith.addi"):
                return None
            value, step = addition.operands
            if step in inside and addition.name == "arith.addi":
                value, step = step, value
            if step in inside or step.type.element == "i1":
                return None
            found.append(step)
        return found

    return [steps(*pair) for pair in zip(body.arguments[1:], body.terminator.operands, strict=True)]


def _advanced(m: Machine, operand: Operand, steps: Sequence[Value], times: Value) -> Operand:
    """`operand` with the steps added so many times: a sum that XLA computes where it is used, rather than a
    tensor that a loop carries. It wraps as additions one after the other do."""
    moving = moving_part(operand)
    for step in steps:
        moving = m.map(
            lambda old, by, count: lax.add(old, lax.mul(convert(by, old.dtype), convert(count, old.dtype))),
            moving,
            step,
            times,
        )
    return with_moving_part(operand, moving)


def _trip_count(m: Machine, op: Operation, lower: Value, upper: Value, step: Value) -> Value:
    """How often the loop runs, as int32: ``max(0, ceil((upper - lower) / step))``."""

    def count(low: Array, high: Array, by: Array) -> Array:
        wide = np.dtype(np.uint64 if "unsignedCmp" in op.attributes else np.int64)
        low, high, by = (convert(bound, wide) for bound in (low, high, by))
        rounded = lax.div(high - low + by - lax.full_like(by, 1), by)
        return convert(lax.select(lax.lt(low, high), rounded, lax.full_like(rounded, 0)), INT32)

    return m.map(count, lower, upper, step)


def _longest(m: Machine, trips: Value | None) -> Array:
    assert trips is not None
    active = (
        m.map(lambda count, on: lax.select(on, count, lax.full_like(count, 0)), trips, m.active)
        if m.active
        else trips
    )
    return lax.reduce_max(active.array, (0,)) if active.batched else active.array


def _batched_where(m: Machine, variables: Sequence[Variable], operands: Sequence[Operand]) -> list[Operand]:
    """Gives those operands a program axis that will have one in a later iteration."""
    return [
        _with_program_axis(m, operand) if variable in m.varying else operand
        for variable, operand in zip(variables, operands, strict=True)
    ]


def _with_program_axis(m: Machine, operand: Operand) -> Operand:
    return with_moving_part(operand, m.batch(moving_part(operand)))


def _widened(m: Machine, op: Operation, operands: Sequence[Operand]) -> list[Operand]:
    """What a loop starts from, with pointers of the type that they have in all its iterations."""
    carried = m.facts.carried.get(op)
    if carried is None:  # inside an operation's own region, which has no pointers
        return list(operands)
    return [
        operand.widened(parameters) if isinstance(operand, Pointer) else operand
        for operand, parameters in zip(operands, carried, strict=True)
    ]


def _kept_fixed(
    m: Machine, op: Operation, before: Sequence[Operand], after: Sequence[Operand]
) -> list[Operand]:
    """What an iteration leaves, as what the loop carries."""
    kept = [
        new.widened(old.parameters) if isinstance(old, Pointer) and isinstance(new, Pointer) else new
        for old, new in zip(before, after, strict=True)
    ]
    for old, new in zip(before, kept, strict=True):
        if fixed_part(old) != fixed_part(new):
            raise m.unsupported(op, "carries a view that moves from one buffer in shared memory to another")
    return kept


# The values, the buffers that are written, and shared memory.
_Carry = tuple[list[jax.Array], list[jax.Array], list[jax.Array]]
_Body = Callable[[Array, _Carry], _Carry]


def _loop(
    m: Machine,
    op: Operation,
    written: Region,
    start: Sequence[Operand],
    iteration: Callable[[Array, Sequence[Operand]], Sequence[Operand]],
    run: Callable[[_Body, _Carry], _Carry],
) -> list[Operand]:
    """A JAX loop over `start` and the buffers that the region `written` writes."""
    buffers = written_in(m, written)
    shared = tuple(m.shared) if m.checks.races or writes_shared(written) else ()
    outer, outer_shared = dict(m.memory), dict(m.shared)
    axes = compat.varying_axes(outer.values())  # of `jax.shard_map`: what is carried keeps its type

    def body(position: Array, carry: _Carry) -> _Carry:
        arrays, contents, tiles = carry
        m.memory.update(zip(buffers, contents, strict=True))
        m.shared = {**outer_shared, **dict(zip(shared, tiles, strict=True))}
        values = [like(operand, array) for operand, array in zip(start, arrays, strict=True)]
        after = [
            _with_program_axis(m, new) if _is_batched(old) else new
            for old, new in zip(start, _kept_fixed(m, op, start, iteration(position, values)), strict=True)
        ]
        return (
            compat.varying([as_array(operand) for operand in after], axes),
            [m.memory[p] for p in buffers],
            compat.varying([m.shared[buffer] for buffer in shared], axes),
        )

    initial = (
        compat.varying([as_array(operand) for operand in start], axes),
        [m.memory[p] for p in buffers],
        compat.varying([m.shared[buffer] for buffer in shared], axes),
    )
    arrays, contents, tiles = run(body, initial)
    m.memory = {**outer, **dict(zip(buffers, contents, strict=True))}
    m.shared = {**outer_shared, **dict(zip(shared, tiles, strict=True))}
    return [like(operand, array) for operand, array in zip(start, arrays, strict=True)]


def _is_batched(operand: Operand) -> bool:
    return moving_part(operand).batched


@rule("scf.while")
def _while(m: Machine, op: Operation, *initial: Operand) -> Results:
    """Rotated, since the first region may have side effects: before; while condition: after, before."""
    before, after = op.regions
    condition, *_ = before.blocks[0].terminator.operands
    first, *values = m.region(before, _batched_where(m, before.blocks[0].arguments, initial))
    values = _widened(m, op, values)
    outer = m.active
    start = _batched_where(m, (condition, *op.results), (first, *values))

    def iteration(_: Array, carried: Sequence[Operand]) -> Sequence[Operand]:
        running, *old = carried
        assert isinstance(running, Value)
        with m.only_where(running):
            again, *new = m.region(
                before, _batched_where(m, before.blocks[0].arguments, m.region(after, old))
            )
        assert isinstance(again, Value)
        chosen = [m.select(op, running, one, other) for one, other in zip(new, old, strict=True)]
        return [m.map(lax.bitwise_and, running, again), *chosen]

    def run(body: _Body, carry: _Carry) -> _Carry:
        def proceed(carry: _Carry) -> Array:
            own = like(start[0], carry[0][0])
            assert isinstance(own, Value)
            running = own if outer is None else m.map(lax.bitwise_and, outer, own)
            return lax.reduce_or(running.array, tuple(range(np.ndim(running.array))))

        return lax.while_loop(proceed, lambda carry: body(np.int32(0), carry), carry)

    region = Region((*before.blocks, *after.blocks))
    return _loop(m, op, region, start, iteration, run)[1:]


# --- Functions and early returns -----------------------------------------------------------------


@rule("tt.call")
def _call(m: Machine, op: Operation, *operands: Operand) -> Results:
    """A function that was not inlined (`noinline`)."""
    return function(m, m.module.functions[op.attributes["callee"]], operands)


def function(m: Machine, called: Operation, arguments: Sequence[Operand]) -> list[Operand]:
    """Runs a function: an acyclic graph of blocks, each under the condition that it is reached."""
    blocks = called.regions[0].blocks
    if len(blocks) == 1:
        return m.block(blocks[0], arguments)
    always = Value(np.bool_(True))
    reached: dict[int, Value | None] = {0: None}
    passed: dict[int, Sequence[Operand]] = {0: arguments}
    returned: list[Operand] | None = None
    for position, block in enumerate(blocks):
        if position not in reached:
            continue
        here = reached[position]
        with m.only_where(here):
            values = m.block(block, passed[position])
        for target, condition, given in _edges(m, block.terminator, values):
            if target <= position:
                raise m.unsupported(block.terminator, "jumps backwards")
            edge = m.both(here, condition)
            if target not in reached:
                reached[target], passed[target] = edge, given
                continue
            before = reached[target]
            chosen = edge or always
            passed[target] = [
                m.select(block.terminator, chosen, *pair) for pair in zip(given, passed[target], strict=True)
            ]
            either = None if edge is None or before is None else m.map(lax.bitwise_or, edge, before)
            reached[target] = either
        if not block.terminator.successors:
            chosen = here or always
            pairs = zip(values, returned or values, strict=True)
            returned = [m.select(block.terminator, chosen, *pair) for pair in pairs]
    return returned or []


def _edges(
    m: Machine, terminator: Operation, values: list[Operand]
) -> list[tuple[int, Value | None, list[Operand]]]:
    """The edges that leave a block: target, condition, values passed."""
    match terminator.name:
        case "cf.br":
            return [(terminator.successors[0], None, values)]
        case "cf.cond_br":
            condition = values[0]
            assert isinstance(condition, Value)
            split = 1 + terminator.attributes["operandSegmentSizes"][1]
            first, second = terminator.successors
            return [(first, condition, values[1:split]), (second, m.inverse(condition), values[split:])]
        case _:
            return []


@rule("tt.map_elementwise")
def _map_elementwise(m: Machine, op: Operation, *operands: Value) -> Results:
    """A function of scalars for each element, or for each `pack` consecutive ones: it takes those of the
    first operand, then those of the second, and so on."""
    pack = op.attributes.get("pack", 1)
    batched = any(value.batched for value in operands)
    whole = [(m.batch(value) if batched else value).array for value in operands]
    shape = np.shape(whole[0])
    groups = [lax.reshape(array, (np.size(array) // pack, pack)) for array in whole]
    given = [lax.index_in_dim(group, k, 1, keepdims=False) for group in groups for k in range(pack)]
    results = over_lanes(m, op, given)
    packs = [results[i : i + pack] for i in range(0, len(results), pack)]
    stacked = [lax.concatenate([lax.expand_dims(one, (1,)) for one in several], 1) for several in packs]
    return [Value(lax.reshape(array, shape), batched) for array in stacked]


def over_lanes(m: Machine, op: Operation, arrays: Sequence[Array]) -> list[Array]:
    """The region of `op`, of scalars, with branches and loops, for every element of arrays of one
    dimension: each element is a program of its own. Nothing inside touches memory."""
    lanes = np.size(arrays[0])
    outer = (m.programs, m.program_ids, m.active, m.varying)
    inside = {v for inner in op.walk() for v in inner.results} | {
        v for inner in op.walk() for region in inner.regions for b in region.blocks for v in b.arguments
    }
    captured = m.bindings({v for inner in op.walk() for v in inner.operands if v not in inside})

    def repeated(operand: Operand) -> Operand:
        if not isinstance(operand, Value) or not operand.batched or operand.shape:
            return operand
        each = lanes // np.size(operand.array)
        array = lax.broadcast_in_dim(operand.array, (np.size(operand.array), each), (0,))
        return Value(lax.reshape(array, (lanes,)), batched=True)

    m.program_ids = tuple(_value(repeated(value)) for value in m.program_ids)
    m.programs, m.active, m.varying = lanes, None, outer[3] | inside
    with m.scope():
        m.define(list(captured), [repeated(operand) for operand in captured.values()])
        results = function(m, op, [Value(array, batched=True) for array in arrays])
        given = [m.batch(_value(result)) for result in results]
    m.programs, m.program_ids, m.active, m.varying = outer
    return [result.array for result in given]


def _value(operand: Operand) -> Value:
    assert isinstance(operand, Value)
    return operand


@rule("ub.poison")
def _poison(m: Machine, op: Operation) -> Results:
    """A value that nothing may depend on: zero."""
    kind = op.results[0].type
    if kind.pointer or kind.element not in DTYPES:
        raise m.unsupported(op, "is a pointer that was never set")
    return Value(full(kind.shape, 0, kind.dtype))
