"""Warp specialization: partitions that run side by side and wait for each other at barriers.

The programs of the grid run one after the other (`strategy.py`).

Each partition becomes a list of blocks, cut where it waits, and where a loop or a branch begins or ends in
which it waits. A JAX loop then runs one block of each partition in turn, for as long as there is one that
can go on: a partition whose barrier is in the phase it waits for stays where it is. Values that one block
leaves to another are carried through that loop, with the memory.

A barrier's state is in its place in shared memory, packed as the hardware does it: the phase, the arrivals
that are missing in this phase, those that a phase takes, and the bytes that are expected. A kernel whose
partitions wait for each other in a circle would never end on a GPU; here it raises.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from jtprim import compat
from jtprim.specialize.reader import Operation, Region, Variable

from . import shared
from .machine import (
    Machine,
    Results,
    as_array,
    fixed_part,
    like,
    moving_part,
    rule,
    with_moving_part,
    written_in,
)
from .values import Array, Operand, Shared, Value

INT32, INT64 = np.dtype(np.int32), np.dtype(np.int64)

WAIT = "ttng.wait_barrier"
_ALLOCATIONS = ("ttg.local_alloc", "ttng.tmem_alloc")


# --- Barriers ------------------------------------------------------------------------------------

_PHASE, _MISSING, _COUNT, _BYTES = (0, 1), (1, 20), (21, 20), (41, 23)


def _field(word: Array, place: tuple[int, int]) -> Array:
    """A field of a barrier's word; the last one, the bytes, is signed."""
    start, width = place
    shifted = lax.shift_right_arithmetic(word, np.int64(start))
    return shifted if place == _BYTES else lax.bitwise_and(shifted, np.int64((1 << width) - 1))


def _pack(phase: Array, missing: Array, count: Array, expected: Array) -> Array:
    fields = zip((phase, missing, count, expected), (_PHASE, _MISSING, _COUNT, _BYTES), strict=True)
    words = [lax.shift_left(jax.numpy.asarray(field, INT64), np.int64(place[0])) for field, place in fields]
    return words[0] | words[1] | words[2] | words[3]


def initialise(m: Machine, barrier: Shared, count: int) -> None:
    shape = shared.read(m, barrier).shape
    word = _pack(np.int64(0), np.int64(count), np.int64(count), np.int64(0))
    shared.write(m, barrier, Value(lax.full(shape, word, INT64)))


def arrive(
    m: Machine, barrier: Shared, *, arrivals: int, expected_bytes: int = 0, condition: Value | None = None
) -> None:
    """Arrivals at a barrier, or bytes that are to come (or have, if negative). A phase ends with the last."""

    def after(word: Array) -> Array:
        missing = lax.sub(_field(word, _MISSING), lax.full_like(word, arrivals))
        expected = lax.add(_field(word, _BYTES), lax.full_like(word, expected_bytes))
        count, phase = _field(word, _COUNT), _field(word, _PHASE)
        zero = lax.full_like(word, 0)
        done = lax.bitwise_and(lax.eq(missing, zero), lax.eq(expected, zero))
        return _pack(
            lax.bitwise_xor(phase, lax.convert_element_type(done, INT64)),
            lax.select(done, count, missing),
            count,
            expected,
        )

    shared.write(m, barrier, m.map(after, shared.read(m, barrier)), condition)


def _is_over(m: Machine, barrier: Shared, phase: Value, condition: Value | None) -> Array:
    """Whether the phase of a barrier that has the given parity is complete."""
    word = shared.read(m, barrier).array
    own = lax.index_in_dim(lax.reshape(word, (word.size,)), 0, keepdims=False)
    over = lax.ne(_field(own, _PHASE), lax.convert_element_type(phase.array, INT64))
    return over if condition is None else lax.bitwise_or(over, lax.bitwise_not(condition.array))


# --- From structured control flow to blocks --------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Assign:
    """Gives variables the values of others, all at once."""

    targets: tuple[Variable, ...]
    sources: tuple[Variable, ...]


@dataclasses.dataclass(frozen=True)
class _Advance:
    """Adds the step to a loop's index."""

    index: Variable
    step: Variable


@dataclasses.dataclass(frozen=True)
class _Compare:
    """Whether a loop goes on."""

    result: Variable
    index: Variable
    upper: Variable
    unsigned: bool


_Item = Operation | _Assign | _Advance | _Compare


@dataclasses.dataclass
class _Block:
    """What runs from one possible stop to the next.

    Attributes:
      wait: where it begins by waiting.
      items: what it does then.
      condition, targets: where it goes on: to the one target, or by the condition to the first or second.
    """

    wait: Operation | None = None
    items: list[_Item] = dataclasses.field(default_factory=list)
    condition: Variable | None = None
    targets: tuple[int, ...] = ()

    def defined(self) -> Iterator[Variable]:
        for item in self.items:
            yield from _defines(item)

    def used(self) -> Iterator[Variable]:
        """The variables that it takes from elsewhere."""
        own: set[Variable] = set()
        reads = itertools.chain([self.wait] if self.wait else [], self.items)
        for item in reads:
            yield from (v for v in _uses(item) if v not in own)
            own.update(_defines(item))
        if self.condition is not None and self.condition not in own:
            yield self.condition


def _defines(item: _Item) -> Sequence[Variable]:
    match item:
        case _Assign():
            return item.targets
        case _Advance():
            return (item.index,)
        case _Compare():
            return (item.result,)
        case _:
            return item.results


def _uses(item: _Item) -> Sequence[Variable]:
    match item:
        case _Assign():
            return item.sources
        case _Advance():
            return (item.index, item.step)
        case _Compare():
            return (item.index, item.upper)
        case _:
            return [operand for inner in item.walk() for operand in inner.operands]


class _Flattening:
    """Cuts a region into blocks."""

    def __init__(self, m: Machine):
        self.machine = m
        self.blocks: list[_Block] = [_Block()]

    @property
    def current(self) -> _Block:
        return self.blocks[-1]

    def start(self, wait: Operation | None = None) -> int:
        self.blocks.append(_Block(wait))
        return len(self.blocks) - 1

    def go_to_new(self, wait: Operation | None = None) -> int:
        """Ends the block; what follows it is another."""
        before = self.current
        before.targets = (self.start(wait),)
        return before.targets[0]

    def body(self, region: Region) -> tuple[Variable, ...]:
        """Adds the operations of a region; returns what its terminator is given."""
        (block,) = region.blocks
        for operation in block.operations[:-1]:
            self.operation(operation)
        return block.terminator.operands

    def operation(self, operation: Operation) -> None:
        if not any(inner.name == WAIT for inner in operation.walk()):
            self.current.items.append(operation)
            return
        match operation.name:
            case "ttng.wait_barrier":
                self.go_to_new(operation)
            case "scf.for":
                self.counted_loop(operation)
            case "scf.while":
                self.conditional_loop(operation)
            case "scf.if":
                self.branch(operation)
            case _:
                raise self.machine.unsupported(operation, "waits at a barrier inside, in a partition")

    def counted_loop(self, operation: Operation) -> None:
        lower, upper, step, *initial = operation.operands
        index, *carried = operation.regions[0].blocks[0].arguments
        goes_on = Variable(dataclasses.replace(index.type, element="i1"))
        test = _Compare(goes_on, index, upper, "unsignedCmp" in operation.attributes)
        before = self.current
        before.items += [_Assign((index, *carried), (lower, *initial)), test]
        inside = self.start()
        yielded = self.body(operation.regions[0])
        after = self.current
        after.items += [_Assign(tuple(carried), yielded), _Advance(index, step), test]
        outside = self.start()
        for block in (before, after):
            block.condition, block.targets = goes_on, (inside, outside)
        self.current.items.append(_Assign(operation.results, tuple(carried)))

    def conditional_loop(self, operation: Operation) -> None:
        before, after = operation.regions
        arguments = before.blocks[0].arguments
        self.current.items.append(_Assign(arguments, operation.operands))
        head = self.go_to_new()
        condition, *forwarded = self.body(before)
        test = self.current
        inside = self.start()
        self.current.items.append(_Assign(after.blocks[0].arguments, tuple(forwarded)))
        yielded = self.body(after)
        self.current.items.append(_Assign(arguments, yielded))
        self.current.targets = (head,)
        outside = self.start()
        test.condition, test.targets = condition, (inside, outside)
        self.current.items.append(_Assign(operation.results, tuple(forwarded)))

    def branch(self, operation: Operation) -> None:
        (condition,) = operation.operands
        test = self.current
        starts, ends = [], []
        for region in operation.regions:
            starts.append(self.start())
            if region.blocks:
                yielded = self.body(region)
                self.current.items.append(_Assign(operation.results, yielded))
            ends.append(self.current)
        join = self.start()
        for end in ends:
            end.targets = (join,)
        test.condition, test.targets = condition, (starts[0], starts[1] if len(starts) > 1 else join)


def _flattened(m: Machine, region: Region, results: tuple[Variable, ...]) -> list[_Block]:
    flattening = _Flattening(m)
    yielded = flattening.body(region)
    flattening.current.items.append(_Assign(results, yielded[: len(results)]))
    flattening.current.targets = (len(flattening.blocks),)
    return flattening.blocks


# --- Running them ----------------------------------------------------------------------------------


@dataclasses.dataclass
class _Carry:
    """What the loop over steps carries. `counters` say at which block each partition is."""

    counters: list[Array]
    states: list[list[Array]]
    memory: list[Array]
    shared: list[Array]
    progress: Array


jax.tree_util.register_dataclass(
    _Carry, data_fields=["counters", "states", "memory", "shared", "progress"], meta_fields=[]
)


class _Partition:
    """One partition: its blocks, and the variables that they leave to each other, as templates."""

    def __init__(self, m: Machine, region: Region, results: tuple[Variable, ...], num_warps: int | None):
        self.machine, self.num_warps = m, num_warps
        self.blocks = _flattened(m, region, results)
        defined = {variable for block in self.blocks for variable in block.defined()}
        used = {variable for block in self.blocks for variable in block.used()}
        kept = [v for v in defined if v in used or v in results]
        order = {v: i for i, v in enumerate(v for block in self.blocks for v in block.defined())}
        self.variables = sorted(kept, key=order.__getitem__)
        self.templates: dict[Variable, Operand] = {}

    def learn(self) -> None:
        """Runs all blocks once, in the order of the kernel's text, to see what the variables are."""
        self.machine.num_warps = self.num_warps
        for block in self.blocks:
            for item in block.items:
                _execute(self.machine, item)
                for variable in _defines(item):
                    self._note(variable, item)

    def _note(self, variable: Variable, item: _Item) -> None:
        operand = self.machine.operand(variable)
        known = self.templates.get(variable)
        if known is not None and fixed_part(known) != fixed_part(operand):
            raise self.machine.unsupported(
                item if isinstance(item, Operation) else _nothing,
                "carries a view or a pointer that moves from one array to another",
            )
        array = as_array(operand)
        self.templates[variable] = with_moving_part(
            operand, Value(jax.ShapeDtypeStruct(array.shape, array.dtype))
        )

    def start(self) -> list[Array]:
        arrays = [moving_part(self.templates[variable]).array for variable in self.variables]
        return [lax.full(array.shape, np.zeros((), array.dtype), array.dtype) for array in arrays]

    def given(self, state: Sequence[Array]) -> dict[Variable, Operand]:
        return {
            variable: like(self.templates[variable], array)
            for variable, array in zip(self.variables, state, strict=True)
        }


_nothing = Operation("ttg.warp_specialize", (), (), {}, (), (), None, False)


def _execute(m: Machine, item: _Item) -> None:
    match item:
        case _Assign():
            m.define(item.targets, [m.operand(source) for source in item.sources])
        case _Advance():
            index, step = (_scalar(m, variable) for variable in (item.index, item.step))
            m.define((item.index,), [m.map(lax.add, index, step)])
        case _Compare():
            index, upper = (_scalar(m, variable) for variable in (item.index, item.upper))
            m.define((item.result,), [m.map(_unsigned_less if item.unsigned else lax.lt, index, upper)])
        case _:
            m.operation(item)


def _scalar(m: Machine, variable: Variable) -> Value:
    value = m.operand(variable)
    assert isinstance(value, Value)
    return value


def _unsigned_less(one: Array, other: Array) -> Array:
    kind = np.dtype(f"uint{8 * one.dtype.itemsize}")
    return lax.lt(lax.bitcast_convert_type(one, kind), lax.bitcast_convert_type(other, kind))


@rule("ttg.warp_specialize")
def _warp_specialize(m: Machine, op: Operation) -> Results:
    """Partitions side by side, each as far as its barriers let it go."""
    assert m.programs is None
    outer, m.active = m.active, None
    num_warps = m.num_warps
    with m.scope():
        results = _run(m, op, outer)
    m.active, m.num_warps = outer, num_warps
    return results


def _run(m: Machine, op: Operation, active: Value | None) -> Sequence[Operand]:
    warps = (m.num_warps, *op.attributes["partitionNumWarps"])
    partitions = [
        _Partition(m, region, op.results if position == 0 else (), warps[position])
        for position, region in enumerate(op.regions)
    ]
    for inner in op.walk():
        if inner.name in _ALLOCATIONS:
            shared.allocate(m, inner.results[0])
    memory = sorted({p for region in op.regions for p in written_in(m, region)})
    outer_memory, outer_shared = dict(m.memory), dict(m.shared)
    tiles = list(outer_shared)
    axes = compat.varying_axes(outer_memory.values())

    def learn() -> list[Array]:
        with m.aside():
            for partition in partitions:
                partition.learn()
        return []

    jax.eval_shape(learn)

    def enter(carry: _Carry, position: int) -> None:
        m.memory = {**outer_memory, **dict(zip(memory, carry.memory, strict=True))}
        m.shared = {**outer_shared, **dict(zip(tiles, carry.shared, strict=True))}
        m.num_warps = partitions[position].num_warps
        given = partitions[position].given(carry.states[position])
        m.define(tuple(given), list(given.values()))

    def branch(position: int, block: _Block) -> Callable[[_Carry], _Carry]:
        def run(carry: _Carry) -> _Carry:
            with m.aside():
                enter(carry, position)
                for item in block.items:
                    _execute(m, item)
                state = [as_array(m.operand(v)) for v in partitions[position].variables]
                return _Carry(
                    _replaced(carry.counters, position, compat.varying([_following(m, block)], axes)[0]),
                    _replaced(carry.states, position, compat.varying(state, axes)),
                    compat.varying([m.memory[p] for p in memory], axes),
                    compat.varying([m.shared[tile] for tile in tiles], axes),
                    compat.varying([jax.numpy.asarray(np.bool_(True))], axes)[0],
                )

        def run_unless_waiting(carry: _Carry) -> _Carry:
            assert block.wait is not None
            with m.aside():
                enter(carry, position)
                barrier, phase, *rest = (m.operand(v) for v in block.wait.operands)
                wanted = rest[0] if block.wait.attributes["operandSegmentSizes"][2] else None
                assert isinstance(barrier, Shared) and isinstance(phase, Value)
                assert wanted is None or isinstance(wanted, Value)
                over = _is_over(m, barrier, phase, wanted)
            return lax.cond(over, run, lambda carry: carry, carry)

        return run if block.wait is None else run_unless_waiting

    branches = [
        [*(branch(i, block) for block in partition.blocks), lambda carry: carry]
        for i, partition in enumerate(partitions)
    ]
    ends = [np.int32(len(partition.blocks)) for partition in partitions]

    def step(carry: _Carry) -> _Carry:
        [stopped] = compat.varying([jax.numpy.asarray(np.bool_(False))], axes)
        carry = dataclasses.replace(carry, progress=stopped)
        for position, of_partition in enumerate(branches):
            carry = lax.switch(carry.counters[position], of_partition, carry)
        return carry

    first = [jax.numpy.asarray(np.int32(0)) for _ in partitions]
    if active is not None:
        first = [lax.select(active.array, zero, end) for zero, end in zip(first, ends, strict=True)]
    carry = lax.while_loop(
        lambda carry: carry.progress,
        step,
        _Carry(
            compat.varying(first, axes),
            [compat.varying(partition.start(), axes) for partition in partitions],
            compat.varying([m.memory[p] for p in memory], axes),
            compat.varying([m.shared[tile] for tile in tiles], axes),
            compat.varying([jax.numpy.asarray(np.bool_(True))], axes)[0],
        ),
    )
    _raise_if_stuck(m, op, carry.counters, ends)
    m.memory = {**outer_memory, **dict(zip(memory, carry.memory, strict=True))}
    m.shared = {**outer_shared, **dict(zip(tiles, carry.shared, strict=True))}
    default = partitions[0].given(carry.states[0])
    return [default[result] for result in op.results]


def _following(m: Machine, block: _Block) -> Array:
    """The number of the block that runs next."""
    if block.condition is None:
        return jax.numpy.asarray(np.int32(block.targets[0]))
    chosen = _scalar(m, block.condition).array
    first, second = (jax.numpy.asarray(np.int32(target)) for target in block.targets)
    return lax.select(chosen, first, second)


def _replaced(values: Sequence[Any], position: int, value: Any) -> list[Any]:
    return [*values[:position], value, *values[position + 1 :]]


def _raise_if_stuck(m: Machine, op: Operation, counters: Sequence[Array], ends: Sequence[Any]) -> None:
    """Raises, when the kernel runs, if a partition has not come to its end."""
    stuck: Array = np.bool_(False)
    for counter, end in zip(counters, ends, strict=True):
        stuck = lax.bitwise_or(stuck, lax.ne(counter, end))

    def complain(stuck: Array) -> None:
        if np.any(stuck):
            reason = "has partitions that wait at barriers for each other, or for nobody, forever"
            raise m.unsupported(op, reason)

    jax.debug.callback(complain, stuck)
