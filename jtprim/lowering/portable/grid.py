"""Running all programs of the grid: at once, in chunks, or one after the other."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from jax import lax

from jtprim.checks import Checks
from jtprim.specialize.reader import DTYPES, Module, Operation

from .analysis import Facts
from .checking import Records, no_records
from .control import function
from .machine import Machine
from .strategy import Strategy
from .uniformity import varying
from .values import Array, Operand, Value, convert, full
from .windows import find_windows

INT32 = np.dtype(np.int32)


def run(
    module: Module,
    grid: tuple[int, int, int],
    facts: Facts,
    strategy: Strategy,
    memory: Mapping[int, Array],
    arguments: Sequence[Operand],
    kernel: str,
    checks: Checks,
    chunk_bytes: int,
) -> dict[int, Array]:
    """Runs the kernel for every program; returns the final contents of the written buffers.

    The emitted program does not grow with the grid: program ids come from a counter, never from
    constants.
    """
    total = math.prod(grid)
    together = min(total, _chunk(module, chunk_bytes)) if strategy.vectorised and total > 1 else 1
    together = math.ceil(total / math.ceil(total / together))
    sizes = [memory[i].size if i in memory else 0 for i in range(len(arguments))]
    windows = find_windows(facts, strategy, sizes, together)
    memory = {p: _extended(buffer, windows.extensions.get(p, 0)) for p, buffer in memory.items()}
    variables = varying(module, grid, facts) if together > 1 else frozenset()

    def some(first: Array, memory: Mapping[int, Array], records: Records) -> tuple[dict[int, Array], Records]:
        """Runs `together` programs, from number `first` on; `records` are those of all programs before."""
        ids = _flat_ids(first, together)
        machine = Machine(
            kernel=kernel,
            module=module,
            grid=grid,
            facts=facts,
            strategy=strategy,
            varying=variables,
            memory=memory,
            windows=windows.by_operation,
            programs=together if together > 1 else None,
            program_ids=_program_ids(ids, grid),
            active=None
            if total % together == 0
            else Value(lax.lt(ids.array, lax.full_like(ids.array, total)), True),
            sizes=sizes,
            checks=checks,
        )
        machine.shared.update(records)
        function(machine, module.entry, arguments)
        return machine.memory, {key: machine.shared[key] for key in records}

    records = no_records(sizes, strategy) if checks.races else {}
    if together == total:
        return _cut(some(np.int32(0), memory, records)[0], sizes)

    def step(position: Array, carry: tuple[dict[int, Array], Records]) -> tuple[dict[int, Array], Records]:
        carried, records = carry
        first = lax.mul(convert(position, INT32), np.int32(together))
        after, records = some(first, {**memory, **carried}, records)
        return {parameter: after[parameter] for parameter in carried}, records

    carried = {parameter: memory[parameter] for parameter in strategy.written}
    steps = math.ceil(total / together)
    carried, _ = lax.fori_loop(np.int32(0), np.int32(steps), step, (carried, records))
    return _cut(carried, sizes)


def _extended(buffer: Array, extension: int) -> Array:
    zero = full((), 0, np.dtype(buffer.dtype))
    return lax.pad(buffer, zero, [(0, extension, 0)]) if extension else buffer


def _cut(memory: Mapping[int, Array], sizes: Sequence[int]) -> dict[int, Array]:
    return {p: lax.slice(buffer, (0,), (sizes[p],)) for p, buffer in memory.items()}


def _flat_ids(first: Array, together: int) -> Value:
    """The numbers of the programs that run at once, behind a barrier: XLA would otherwise fold all that
    follows from them, for every program, while it compiles."""
    if together == 1:
        return Value(first)
    return Value(
        lax.add(lax.optimization_barrier(lax.iota(INT32, together)), full((together,), 0, INT32) + first),
        True,
    )


def _program_ids(flat: Value, grid: tuple[int, int, int]) -> list[Value]:
    """The number of a program on each axis; axis 0 runs fastest."""
    ids, before = [], 1
    for extent in grid:
        if extent == 1:
            ids.append(Value(np.int32(0)))
            continue
        array = lax.div(flat.array, lax.full_like(flat.array, before))
        ids.append(Value(lax.rem(array, lax.full_like(array, extent)), flat.batched))
        before *= extent
    return ids


def _chunk(module: Module, limit: int) -> int:
    """How many programs fit into so many bytes, by what the largest operation takes and gives."""
    largest = max(
        (_bytes(op) for entry in module.functions.values() for op in entry.walk() if op.name != "tt.func"),
        default=1,
    )
    return max(1, limit // max(1, largest))


def _bytes(operation: Operation) -> int:
    """Bytes of the operands and results of an operation, for one program."""
    kinds = [variable.type for variable in (*operation.operands, *operation.results)]
    return sum(
        math.prod(kind.shape) * (4 if kind.pointer else kind.dtype.itemsize)
        for kind in kinds
        if kind.pointer or kind.element in DTYPES
    )
