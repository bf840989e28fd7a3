"""The state of a translation, and what every rule needs from it.

A `Machine` runs one program, or many at once: it holds the buffers, the mask of the programs that are
active, and the table of variables. Rules, one for each operation, are registered in `RULES`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence

import jax
from jax import lax

from jtprim.checks import Checks
from jtprim.errors import UnsupportedError
from jtprim.specialize.reader import Block, Module, Operation, Region, Variable

from .analysis import Facts
from .strategy import Strategy
from .values import APART, Array, Operand, Pointer, Shared, Value, spread
from .windows import Window

Results = Sequence[Operand] | Operand | None
Rule = Callable[..., Results]

RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Registers a rule for operations: ``rule(machine, operation, *operands) -> results``."""

    def register(function: Rule) -> Rule:
        for name in names:
            assert name not in RULES, name
            RULES[name] = function
        return function

    return register


class Machine:
    """One program, or `programs` of them at once.

    Attributes:
      kernel: the name for error messages.
      grid: the extents of the grid.
      programs: how many run at once, as a leading axis; None if it is one, without such an axis.
      program_ids: for each axis of the grid.
      memory: the contents of the buffers, flat, by parameter; possibly with more elements at the end, whose
        contents do not matter.
      windows: the loads and stores that are views.
      shared: the contents of each program's buffers in shared memory, by the variable of their allocation;
        with a program axis where several programs run at once. Under `jt.debug(races=True)` the records of
        `checking` too.
      num_warps: of the partition that runs, or of the program, if known.
      active: which of the programs are active, or None for all; a boolean scalar of the kernel.
      sizes: elements of each parameter's array.
      checks: what each access is checked for.
    """

    def __init__(
        self,
        *,
        kernel: str,
        module: Module,
        grid: tuple[int, int, int],
        facts: Facts,
        strategy: Strategy,
        varying: frozenset[Variable],
        memory: Mapping[int, Array],
        windows: Mapping[Operation, Window],
        programs: int | None,
        program_ids: Sequence[Value],
        active: Value | None,
        sizes: Sequence[int],
        checks: Checks,
    ):
        self.kernel, self.module, self.grid = kernel, module, grid
        self.facts, self.strategy, self.varying = facts, strategy, varying
        self.memory, self.windows = dict(memory), windows
        self.shared: dict[Hashable, Array] = {}
        self.sizes, self.checks = sizes, checks
        self.num_warps = module.num_warps
        self.programs, self.program_ids, self.active = programs, tuple(program_ids), active
        self._environment: dict[Variable, Operand] = {}

    # Running.

    def region(self, region: Region, arguments: Sequence[Operand]) -> list[Operand]:
        """Runs a region of one block; returns what its terminator is given."""
        (block,) = region.blocks
        return self.block(block, arguments)

    def block(self, block: Block, arguments: Sequence[Operand]) -> list[Operand]:
        self._environment.update(zip(block.arguments, arguments, strict=True))
        for operation in block.operations[:-1]:
            self.operation(operation)
        return [self._environment[operand] for operand in block.terminator.operands]

    def operation(self, operation: Operation) -> None:
        found = RULES.get(operation.name)
        if found is None:
            raise self.unsupported(operation, "has no portable lowering; run the kernel on a GPU")
        results = found(self, operation, *(self._environment[operand] for operand in operation.operands))
        results = (
            ()
            if results is None
            else (results,)
            if isinstance(results, Value | Pointer | Shared)
            else results
        )
        self._environment.update(zip(operation.results, results, strict=True))

    def operand(self, variable: Variable) -> Operand:
        """What a variable stands for."""
        return self._environment[variable]

    def define(self, variables: Sequence[Variable], operands: Sequence[Operand]) -> None:
        self._environment.update(zip(variables, operands, strict=True))

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Forgets afterwards what variables were defined inside."""
        outer, self._environment = self._environment, dict(self._environment)
        try:
            yield
        finally:
            self._environment = outer

    def bindings(self, variables: Iterable[Variable]) -> dict[Variable, Operand]:
        """What those of the variables stand for that were met already."""
        return {v: self._environment[v] for v in variables if v in self._environment}

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Forgets afterwards what was defined and written inside."""
        memory, shared = self.memory, self.shared
        self.memory, self.shared = dict(memory), dict(shared)
        try:
            with self.scope():
                yield
        finally:
            self.memory, self.shared = memory, shared

    @contextlib.contextmanager
    def only_where(self, condition: Value | None) -> Iterator[None]:
        """Runs what is inside for those active programs only for which `condition` holds."""
        outer, self.active = self.active, self.both(self.active, condition)
        try:
            yield
        finally:
            self.active = outer

    # Errors.

    def unsupported(self, operation: Operation, reason: str) -> UnsupportedError:
        place = f" at {operation.source}" if operation.source else ""
        return UnsupportedError(f"{operation.name}{place} {reason}.", kernel=self.kernel)

    # Values.

    def batch(self, value: Value) -> Value:
        """`value` with a program axis."""
        if value.batched or self.programs is None:
            return value
        return Value(spread(value.array, (self.programs, *value.shape)), batched=True)

    def map(self, function: Callable[..., Array], *values: Value) -> Value:
        """Applies a function of arrays of one shape, elementwise. Scalars are spread to tensors."""
        shape = max((value.shape for value in values), key=len)
        batched = any(value.batched for value in values)
        if not batched:
            return Value(function(*(spread(value.array, shape) for value in values)))
        whole = (self.programs or 1, *shape)
        return Value(function(*(_align(value, shape, whole) for value in values)), batched=True)

    def rearrange(self, function: Callable[[Array, int], Array], operand: Operand) -> Operand:
        """Applies a function of an array and the number of axes in front of the kernel's own, to a value
        or to a pointer's offset."""
        if isinstance(operand, Pointer):
            offset = self.rearrange(function, operand.offset)
            assert isinstance(offset, Value)
            return operand.moved_to(offset)
        assert isinstance(operand, Value)
        return Value(function(operand.array, int(operand.batched)), operand.batched)

    def select(self, operation: Operation, condition: Value, one: Operand, other: Operand) -> Operand:
        """`one` where `condition` holds, else `other`."""
        if one is other:
            return one
        if isinstance(one, Pointer) and isinstance(other, Pointer):
            one, other = one.widened(other.parameters), other.widened(one.parameters)
            return one.moved_to(self.map(lax.select, condition, one.offset, other.offset))
        if isinstance(one, Shared) and isinstance(other, Shared):
            if (one.buffer, one.steps) != (other.buffer, other.steps):
                raise self.unsupported(operation, "chooses between views of two buffers in shared memory")
            return Shared(one.buffer, one.steps, self.map(lax.select, condition, one.places, other.places))
        assert isinstance(one, Value) and isinstance(other, Value)
        return self.map(lax.select, condition, one, other)

    def into_each(self, operation: Operation, pointer: Pointer) -> list[tuple[Pointer, Value | None]]:
        """For each buffer that an access may go to: a pointer into it, and which lanes go; None is all."""
        if len(pointer.parameters) == 1:
            return [(pointer, None)]
        touched = self.facts.touched[operation]

        def near(parameter: int) -> tuple[Pointer, Value | None]:
            offset = self.map(lambda far: lax.sub(far, lax.full_like(far, parameter * APART)), pointer.offset)
            there = self.map(
                lambda near: lax.bitwise_and(
                    lax.ge(near, lax.full_like(near, -APART // 2)),
                    lax.lt(near, lax.full_like(near, APART // 2)),
                ),
                offset,
            )
            return Pointer((parameter,), pointer.element, offset), there

        found = [near(parameter) for parameter in pointer.parameters if parameter in touched]
        return found if len(found) > 1 else [(found[0][0], None)]

    def both(self, one: Value | None, other: Value | None) -> Value | None:
        """Conjunction of masks; None is all true."""
        if one is None or other is None:
            return other if one is None else one
        return self.map(lax.bitwise_and, one, other)

    def inverse(self, mask: Value) -> Value:
        return self.map(lax.bitwise_not, mask)


def _align(value: Value, shape: tuple[int, ...], whole: tuple[int, ...]) -> Array:
    """The array of `value` in the shape `whole`, which is `shape` with the programs in front."""
    if value.batched and value.shape != shape:  # a scalar for each program: its axis stays in front
        return lax.broadcast_in_dim(value.array, whole, (0,))
    return spread(value.array, whole)


def written_in(machine: Machine, region: Region) -> tuple[int, ...]:
    """The parameters whose buffers the operations of a region write, ascending."""
    operations = {
        operation for block in region.blocks for top in block.operations for operation in top.walk()
    }
    calls = any(operation.name == "tt.call" for operation in operations)
    return tuple(
        sorted(
            {
                access.parameter
                for access in machine.facts.accesses
                if access.kind != "load" and (calls or access.operation in operations)
            }
        )
    )


# Operations that change shared or tensor memory.
_SHARED_WRITES = frozenset(
    {
        "ttg.local_store",
        "ttg.local_scatter",
        "ttng.tmem_store",
        "ttng.tmem_copy",
        "ttng.tc_gen5_mma",
        "ttng.tc_gen5_commit",
        "ttng.init_barrier",
        "ttng.arrive_barrier",
        "ttng.barrier_expect",
        "ttng.async_copy_mbarrier_arrive",
        "jtprim.barrier_bytes",
        "tt.call",
    }
)


def writes_shared(region: Region) -> bool:
    """Whether the operations of a region write to shared memory."""
    return any(
        operation.name in _SHARED_WRITES
        for block in region.blocks
        for top in block.operations
        for operation in top.walk()
    )


def moving_part(operand: Operand) -> Value:
    """What of an operand may change from one iteration of a loop to the next."""
    match operand:
        case Pointer():
            return operand.offset
        case Shared():
            return operand.places
        case _:
            return operand


def fixed_part(operand: Operand) -> Hashable:
    """What of an operand may not."""
    match operand:
        case Pointer():
            return operand.parameters, operand.element
        case Shared():
            return operand.buffer, operand.steps
        case _:
            return None


def with_moving_part(operand: Operand, value: Value) -> Operand:
    """`operand` with another part that changes."""
    match operand:
        case Pointer():
            return operand.moved_to(value)
        case Shared():
            return Shared(operand.buffer, operand.steps, value)
        case _:
            return value


def as_array(operand: Operand) -> jax.Array:
    """What a loop carries for an operand."""
    return jax.numpy.asarray(moving_part(operand).array)


def like(operand: Operand, array: Array) -> Operand:
    """`operand` with another array."""
    return with_moving_part(operand, Value(array, moving_part(operand).batched))
