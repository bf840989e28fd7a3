"""What a kernel's addresses are, found before anything is emitted: abstract evaluation with NumPy.

Integers are followed through the kernel as affine functions of the lane, for all programs and all
loop iterations at once: ``base + sum(strides[d] * lane[d])``, where `base` is a NumPy array over the
programs (last axis) and the enclosing loops (leading axes, innermost first). Masks are followed as
boxes of lanes. Whatever is not of this kind (loaded from memory, floats, traced scalars) is unknown,
`None`. What is found is exact where it is known, and masks err on the side of more lanes.

The result, `Facts`, says what each access to memory touches, how often each loop runs and which way
each branch goes. The choice of a strategy (`strategy.py`), static trip counts, and the recognition of
windows rest on it.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jtprim.specialize.reader import Block, Module, Operation, Region, Variable

from .affine import (
    INTEGERS,
    RULES,
    Abstract,
    Address,
    Affine,
    Array,
    Box,
    Place,
    anywhere,
    bits,
    choose,
    conjunction,
    forget,
    in_range,
    meet,
    scalar_mask,
    signed,
    unknown,
)

# Most elements that `Affine.base` may have (programs times loop iterations); 8 bytes each.
# Beyond it, an induction variable or a program id is unknown.
MAX_POINTS = 1 << 22


@dataclasses.dataclass(frozen=True, eq=False)
class Access:
    """One access to memory by one operation, over all programs and iterations.

    Attributes:
      parameter: which pointer parameter it goes through.
      offset: addresses in elements, if known.
      shape: lanes.
      box: the lanes that can be active, if the mask says so.
      active: the programs and iterations that can reach it, where that is known.
      in_loop: whether a program can do it more than once.
    """

    operation: Operation
    parameter: int
    offset: Affine | None
    shape: tuple[int, ...]
    box: Box | None
    active: Array | None
    in_loop: bool

    @property
    def kind(self) -> str:
        """``load``, ``store`` or ``atomic``."""
        return ACCESSES[self.operation.name]


@dataclasses.dataclass
class Facts:
    """What is known about a kernel for given static arguments and grid.

    Attributes:
      programs: how many there are.
      accesses: all accesses, in the order of the kernel's text.
      trips: how often a loop runs, over programs and enclosing loops; absent where unknown.
      conditions: which way a branch goes in all programs; absent where unknown.
      carried: into which buffers each value that a loop carries may point in some iteration.
      unknown_pointers: accesses whose pointer comes from no parameter that can be named.
      has_partitions: whether the kernel specializes warps.
    """

    programs: int
    accesses: list[Access]
    trips: dict[Operation, Array | None]
    conditions: dict[Operation, bool | None]
    carried: dict[Operation, list[frozenset[int]]]
    unknown_pointers: list[Operation]
    has_partitions: bool = False

    @functools.cached_property
    def by_operation(self) -> dict[Operation, Access | None]:
        """The access of each operation that has exactly one; None where it has several."""
        found: dict[Operation, Access | None] = {}
        for access in self.accesses:
            found[access.operation] = None if access.operation in found else access
        return found

    @functools.cached_property
    def touched(self) -> dict[Operation, frozenset[int]]:
        """The parameters whose buffers each operation may access."""
        found: dict[Operation, frozenset[int]] = {}
        for access in self.accesses:
            found[access.operation] = found.get(access.operation, frozenset()) | {access.parameter}
        return found


def analyse(module: Module, grid: Sequence[int], arguments: Sequence[Any]) -> Facts:
    """Evaluates the kernel abstractly.

    Args:
      module: the kernel.
      grid: its three extents.
      arguments: NumPy scalars are known; everything else is not, and pointers are parameters.
    """
    evaluator = _Evaluator(module, tuple(grid))
    evaluator.function(module.entry, [_argument(i, v, arguments[i]) for i, v in enumerate(module.parameters)])
    return evaluator.facts


def _argument(position: int, variable: Variable, argument: Any) -> Abstract:
    if variable.type.pointer:
        return Address({position: Place(Affine(np.zeros(1, np.int64)))})
    if isinstance(argument, np.integer | np.bool_) and variable.type.element in INTEGERS:
        return Affine(np.array([signed(int(argument), variable.type)], np.int64))
    return None


class _Evaluator:
    """Evaluates blocks; holds what was found and where evaluation stands."""

    def __init__(self, module: Module, grid: tuple[int, ...]):
        self.module, self.grid = module, grid
        self.programs = int(np.prod(np.array(grid, object)))
        self.facts = Facts(self.programs, [], {}, {}, {}, [])
        self.environment: dict[Variable, Abstract] = {}
        self.active: Array | None = None
        self.loop_axes = 0
        self._axis_sizes: list[int] = []
        self.in_loop = False
        self.recording = True

    # Evaluation of operations, blocks and functions.

    def function(self, function: Operation, arguments: Sequence[Abstract]) -> list[Abstract]:
        return self.blocks(function.regions[0], arguments)

    def region(self, region: Region, arguments: Sequence[Abstract]) -> list[Abstract]:
        return self.block(region.blocks[0], arguments)

    def block(self, block: Block, arguments: Sequence[Abstract]) -> list[Abstract]:
        """Evaluates a block; returns what its terminator is given."""
        self.environment.update(zip(block.arguments, arguments, strict=True))
        for operation in block.operations[:-1]:
            operands = [self.environment.get(operand) for operand in operation.operands]
            results = self.operation(operation, operands)
            self.environment.update(zip(operation.results, results, strict=True))
        return [self.environment.get(operand) for operand in block.terminator.operands]

    def operation(self, operation: Operation, operands: list[Abstract]) -> Sequence[Abstract]:
        if control := _CONTROL.get(operation.name):
            return control(self, operation, operands)
        if operation.name in ACCESSES:
            self.access(operation, operands)
            return [None] * len(operation.results)
        rule = RULES.get(operation.name)
        if rule is None:
            return [unknown(result.type, operands) for result in operation.results]
        result = operation.results[0]
        return [in_range(rule(operation, *operands), result.type) or unknown(result.type, operands)]

    def access(self, operation: Operation, operands: list[Abstract]) -> None:
        if not self.recording:
            return
        pointer = operands[0]
        if not isinstance(pointer, Address):
            self.facts.unknown_pointers.append(operation)
            return
        mask = operands[position] if (position := _mask_position(operation)) is not None else None
        active = conjunction(self.active, scalar_mask(mask))
        for parameter, place in sorted(pointer.places.items()):
            offset = place.offset if place.offset is None or place.offset.origin is None else None
            self.facts.accesses.append(
                Access(
                    operation,
                    parameter,
                    offset,
                    operation.operands[0].type.shape,
                    mask if isinstance(mask, Box) else None,
                    conjunction(active, place.where),
                    self.in_loop,
                )
            )

    # Control flow.

    def blocks(self, region: Region, arguments: Sequence[Abstract]) -> list[Abstract]:
        """Evaluates an acyclic graph of blocks. Values that meet in a block are unknown there."""
        blocks = region.blocks
        incoming: dict[int, list[tuple[Array | None, list[Abstract]]]] = {0: [(None, list(arguments))]}
        outer, returned = self.active, None
        for position, block in enumerate(blocks):
            edges = incoming.get(position)
            if edges is None:
                continue
            self.active = conjunction(outer, _either([active for active, _ in edges]))
            inside = None if len(edges) > 1 else edges[0][0]
            given = (
                edges[0][1]
                if len(edges) == 1
                else [meet(*values) for values in zip(*(e[1] for e in edges), strict=True)]
            )
            values = self.block(block, given)
            for target, active, passed in _edges(block.terminator, values):
                incoming.setdefault(target, []).append((conjunction(inside, active), passed))
            if not block.terminator.successors:
                returned = (
                    values
                    if returned is None
                    else [meet(*pair) for pair in zip(returned, values, strict=True)]
                )
        self.active = outer
        return returned or []

    def branch(self, operation: Operation, operands: list[Abstract]) -> Sequence[Abstract]:
        condition = operands[0]
        self.decide(operation, condition)
        known = scalar_mask(condition)
        outcomes = []
        for region, active in zip(operation.regions, (known, None if known is None else ~known), strict=True):
            if not region.blocks:
                continue
            outer, self.active = self.active, conjunction(self.active, active)
            outcomes.append(self.region(region, []))
            self.active = outer
        if len(outcomes) < 2:
            return [None] * len(operation.results)
        return [choose(known, *pair) for pair in zip(*outcomes, strict=True)]

    def decide(self, operation: Operation, condition: Abstract) -> None:
        if not self.recording:
            return
        uniform = condition.uniform if isinstance(condition, Affine) else None
        value = None if uniform is None else bool(uniform)
        known = self.facts.conditions.setdefault(operation, value)
        if known != value:
            self.facts.conditions[operation] = None

    def counted_loop(self, operation: Operation, operands: list[Abstract]) -> Sequence[Abstract]:
        lower, upper, step, *initial = operands
        trips = _trips(lower, upper, step, unsigned="unsignedCmp" in operation.attributes)
        self.count(operation, trips)
        body = operation.regions[0].blocks[0]
        longest = 0 if trips is None else int(trips.max())
        followed = trips is not None and longest * max(self.programs, 1) * self._points() <= MAX_POINTS
        saved = (self.active, self.loop_axes, self.in_loop, self.recording)
        self.in_loop = True
        index, counter = None, None
        if followed:
            assert trips is not None and isinstance(lower, Affine) and isinstance(step, Affine)
            counter = np.arange(max(longest, 1), dtype=np.int64).reshape((-1,) + (1,) * (self.loop_axes + 1))
            self._axis_sizes.append(max(longest, 1))
            self.loop_axes += 1
            self.active = conjunction(self.active, counter < trips)
            index = in_range(Affine(lower.base + counter * step.base), operation.operands[0].type)
        initial, steps = self.steps(operation, index, initial, followed)
        inside = [_advance(start, step, counter) for start, step in zip(initial, steps, strict=True)]
        self.recording = saved[3]
        self.block(body, [index, *inside])
        if followed:
            self._axis_sizes.pop()
        self.active, self.loop_axes, self.in_loop, self.recording = saved
        return [_advance(start, step, trips) for start, step in zip(initial, steps, strict=True)]

    def _points(self) -> int:
        return functools.reduce(operator.mul, self._axis_sizes, 1)

    def steps(
        self, operation: Operation, index: Abstract, initial: Sequence[Abstract], followed: bool
    ) -> tuple[list[Abstract], list[Array | None]]:
        """What a loop starts from, with pointers into all the buffers that they get to, and by how much each
        carried value grows in one iteration; None where that is not constant."""
        self.recording = False
        body = operation.regions[0].blocks[0]
        carried = body.arguments[1:]

        def iteration(start: Sequence[Abstract]) -> list[Abstract]:
            placeholders = [_placeholder(*pair) for pair in zip(carried, start, strict=True)]
            return self.block(body, [index, *placeholders])

        initial, yielded = _until_stable(initial, iteration)
        self.carry(operation, initial)
        own_axis = self.loop_axes if followed else None
        return initial, [_growth(*pair, own_axis) for pair in zip(carried, yielded, strict=True)]

    def carry(self, operation: Operation, values: Sequence[Abstract]) -> None:
        found = [frozenset(value.places) if isinstance(value, Address) else frozenset() for value in values]
        before = self.facts.carried.get(operation, found)
        self.facts.carried[operation] = [one | other for one, other in zip(before, found, strict=True)]

    def count(self, operation: Operation, trips: Array | None) -> None:
        if not self.recording:
            return
        known = self.facts.trips.setdefault(operation, trips)
        if known is not trips and not (
            known is not None and trips is not None and np.array_equal(known, trips)
        ):
            self.facts.trips[operation] = None

    def conditional_loop(self, operation: Operation, operands: list[Abstract]) -> Sequence[Abstract]:
        saved = self.in_loop, self.recording
        before, after = operation.regions
        self.in_loop, self.recording = True, False

        def forwarded(arguments: Sequence[Abstract]) -> list[Abstract]:
            return [forget(value) for value in self.region(before, arguments)[1:]]

        arguments, _ = _until_stable(
            [forget(value) for value in operands], lambda given: self.region(after, forwarded(given))
        )
        self.recording = saved[1]
        passed = forwarded(arguments)
        self.carry(operation, passed)
        self.region(after, passed)
        self.in_loop, self.recording = saved
        return passed

    def partitions(self, operation: Operation, operands: list[Abstract]) -> Sequence[Abstract]:
        """Warp specialization, after `expansion.py`: the results are those of the first region."""
        self.facts.has_partitions = True
        default, *_ = [self.region(region, []) for region in operation.regions]
        return default

    # The grid.

    def program_id(self, operation: Operation, operands: list[Abstract]) -> Sequence[Abstract]:
        axis = operation.attributes["axis"]
        if self.grid[axis] == 1:
            return [Affine(np.zeros(1, np.int64))]
        if self.programs > MAX_POINTS:
            return [None]
        program = np.arange(self.programs, dtype=np.int64)
        before = int(np.prod(self.grid[:axis], dtype=np.int64))
        return [Affine(program // before % self.grid[axis])]

    def program_count(self, operation: Operation, operands: list[Abstract]) -> Sequence[Abstract]:
        return [Affine(np.array([self.grid[operation.attributes["axis"]]], np.int64))]

    def call(self, operation: Operation, operands: list[Abstract]) -> Sequence[Abstract]:
        return self.function(self.module.functions[operation.attributes["callee"]], operands)


# --- Control flow: helpers -----------------------------------------------------------------------


def _either(actives: Sequence[Array | None]) -> Array | None:
    known = [active for active in actives if active is not None]
    return functools.reduce(np.logical_or, known) if len(known) == len(actives) else None


def _edges(terminator: Operation, values: list[Abstract]) -> list[tuple[int, Array | None, list[Abstract]]]:
    """The edges that leave a block: target, where it is taken if known, values passed."""
    match terminator.name:
        case "cf.br":
            return [(terminator.successors[0], None, values)]
        case "cf.cond_br":
            taken = scalar_mask(values[0])
            split = 1 + terminator.attributes["operandSegmentSizes"][1]
            first, second = terminator.successors
            return [
                (first, taken, values[1:split]),
                (second, None if taken is None else ~taken, values[split:]),
            ]
        case _:
            return []


def _trips(lower: Abstract, upper: Abstract, step: Abstract, unsigned: bool) -> Array | None:
    bounds = (lower, upper, step)
    if not all(isinstance(bound, Affine) and bound.origin is None for bound in bounds):
        return None
    first, last, by = (bound.base for bound in bounds)  # type: ignore[union-attr]
    if (by <= 0).any() or (unsigned and ((first < 0).any() or (last < 0).any())):
        return None
    return np.maximum(0, -((first - last) // by))


def _placeholder(variable: Variable, initial: Abstract) -> Abstract:
    """Stands for a loop-carried value, to see what one iteration does to it."""
    symbol = Affine(np.zeros(1, np.int64), (0,) * len(variable.type.shape), origin=variable)
    if isinstance(initial, Address):
        return Address(dict.fromkeys(initial.places, Place(symbol)))
    return symbol if variable.type.element in INTEGERS and bits(variable.type) > 1 else None


def _until_stable(
    start: Sequence[Abstract], iteration: Callable[[Sequence[Abstract]], list[Abstract]]
) -> tuple[list[Abstract], list[Abstract]]:
    """What a loop carries, pointers into all buffers that they get to; and what an iteration makes of it."""
    start = list(start)
    while True:
        after = iteration(start)
        wider = [_widened(*pair) for pair in zip(start, after, strict=True)]
        if all(new is old for new, old in zip(wider, start, strict=True)):
            return start, after
        start = wider


def _widened(start: Abstract, after: Abstract) -> Abstract:
    if (
        isinstance(start, Address)
        and isinstance(after, Address)
        and after.places.keys() - start.places.keys()
    ):
        return anywhere(start.places.keys() | after.places.keys())
    return start


def _growth(variable: Variable, yielded: Abstract, own_axis: int | None) -> Array | None:
    """What an iteration adds to a carried value, if that is one number in all lanes and iterations.

    `own_axis` counts the loops around the body, itself included, if its iterations have an axis.
    """
    value = yielded.offset if isinstance(yielded, Address) else yielded
    if not isinstance(value, Affine) or value.origin is not variable or any(value.strides):
        return None
    if own_axis is not None and value.base.ndim == own_axis + 1:
        return value.base[0] if value.base.shape[0] == 1 else None
    return value.base


def _advance(initial: Abstract, step: Array | None, times: Array | None) -> Abstract:
    """A carried value after `times` iterations."""
    if step is not None and not step.any():
        return initial
    if isinstance(initial, Address):
        return (
            forget(initial) if step is None else initial.moved(lambda offset: _advance(offset, step, times))
        )
    if step is None or times is None or not isinstance(initial, Affine):
        return None
    return Affine(initial.base + step * times, initial.strides, initial.origin)


def _mask_position(operation: Operation) -> int | None:
    """Which operand of an access is its mask."""
    if operation.name == "tt.load":
        return 1 if operation.attributes["operandSegmentSizes"][1] else None
    if operation.name == "tt.atomic_load":
        return 1 if len(operation.operands) > 1 else None
    if operation.name in ("tt.store", "tt.atomic_store", "tt.atomic_rmw"):
        return 2 if len(operation.operands) > 2 else None
    return None


# What an operation does to memory, through its first operand. `atomic` is to read and write in one step.
ACCESSES = {
    "tt.load": "load",
    "tt.atomic_load": "load",
    "tt.atomic_poll": "load",
    "tt.store": "store",
    "tt.atomic_store": "store",
    "tt.atomic_rmw": "atomic",
    "tt.atomic_cas": "atomic",
}

_CONTROL: dict[str, Callable[[_Evaluator, Operation, list[Abstract]], Sequence[Abstract]]] = {
    "scf.if": _Evaluator.branch,
    "scf.for": _Evaluator.counted_loop,
    "scf.while": _Evaluator.conditional_loop,
    "tt.call": _Evaluator.call,
    "ttg.warp_specialize": _Evaluator.partitions,
    "tt.get_program_id": _Evaluator.program_id,
    "tt.get_num_programs": _Evaluator.program_count,
}
