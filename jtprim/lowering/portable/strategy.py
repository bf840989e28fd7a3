"""Which programs may run at once: what the addresses of a kernel's accesses allow.

The rule, for each buffer that the kernel writes:

- one store operation outside loops and nothing else: safe. Where programs collide, the stores are
  applied in the order of the programs, so the last one wins, as it does in a loop over programs;
- atomics of one commutative kind, whose results are unused, and nothing else: safe;
- everything else is safe if no two programs touch a common element, and not otherwise.

"Touch a common element" is decided on the addresses themselves (`analysis.py`), for all programs and
iterations; an address that is not known at trace time counts as a collision. Used results of atomics
are never safe, since they tell programs apart by the order in which they run.

A kernel whose warps are specialized is never safe: its partitions wait for each other as each program has
them wait. If all buffers are safe, all programs run at once; otherwise the programs run one after the other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from jtprim.specialize.reader import Operation

from .affine import Array
from .analysis import Access, Facts

# Most runs of consecutive elements that are compared to find collisions; 24 bytes each.
MAX_RUNS = 1 << 22

# Read-modify-write kinds (Triton's `RMWOp`) whose order does not matter: all but exchange.
COMMUTATIVE = (1, 2, 3, 4, 5, 6, 7, 8, 9)


@dataclasses.dataclass(frozen=True)
class Strategy:
    """How to run the grid.

    Attributes:
      vectorised: all programs at once, rather than one after the other.
      unique: the stores of which no two lanes, programs or iterations write to one element.
      written: pointer parameters that the kernel writes, ascending.
    """

    vectorised: bool
    unique: frozenset[Operation]
    written: tuple[int, ...]


def choose_strategy(facts: Facts, sizes: Sequence[int]) -> Strategy:
    """Applies the rule above.

    Args:
      facts: the kernel's accesses.
      sizes: elements of each pointer parameter's buffer; accesses outside it do not count.
    """
    runs = {
        access: _runs(access, facts.programs, sizes[access.parameter]) for access in _stores_and_others(facts)
    }
    written = tuple(sorted({access.parameter for access in facts.accesses if access.kind != "load"}))
    safe = not facts.has_partitions and all(
        _safe([a for a in facts.accesses if a.parameter == p], runs) for p in written
    )
    unique = frozenset(
        access.operation
        for access in facts.accesses
        if access.kind == "store"
        and facts.by_operation[access.operation] is not None
        and _without_overlap(runs[access])
    )
    return Strategy(safe, unique, written)


def _stores_and_others(facts: Facts) -> list[Access]:
    """The accesses whose addresses matter: all those to written buffers."""
    written = {access.parameter for access in facts.accesses if access.kind != "load"}
    return [access for access in facts.accesses if access.parameter in written]


def _safe(accesses: list[Access], runs: dict[Access, Runs | None]) -> bool:
    atomics = [access for access in accesses if access.kind == "atomic"]
    if any(access.operation.result_used for access in atomics):
        return False
    if len(atomics) == len(accesses) and _one_commutative_kind(atomics):
        return True
    if len(accesses) == 1 and accesses[0].kind == "store" and not accesses[0].in_loop:
        return True
    return _disjoint([runs[access] for access in accesses])


def _one_commutative_kind(atomics: list[Access]) -> bool:
    kinds = {access.operation.attributes.get("atomic_rmw_op") for access in atomics}
    return len(kinds) == 1 and kinds.pop() in COMMUTATIVE


# --- Runs of consecutive elements ----------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Runs:
    """Runs ``[start, stop)`` of elements, and the program that touches each."""

    start: Array
    stop: Array
    program: Array


def _runs(access: Access, programs: int, size: int) -> Runs | None:
    """All the elements an access may touch, as runs; None if unknown or too many.

    The dimension with stride one, if there is one, gives the runs; the others are enumerated.
    """
    if access.offset is None or programs == 0:
        return None
    shape, strides = access.shape, access.offset.strides
    along = next((d for d in reversed(range(len(shape))) if strides[d] == 1), None)
    across = [d for d in range(len(shape)) if d != along and (strides[d] or access.box is not None)]
    lanes = int(np.prod([shape[d] for d in across], dtype=np.int64))
    bounds = () if access.box is None else access.box.lower + access.box.upper
    active = np.ones(1, bool) if access.active is None else access.active
    points = np.broadcast_shapes(
        access.offset.base.shape, active.shape, *(b.shape for b in bounds), (programs,)
    )
    if lanes * int(np.prod(points, dtype=np.int64)) > MAX_RUNS:
        return None
    lane = _lane_grid([shape[d] for d in across])
    start = access.offset.base[..., None] + sum(
        (strides[d] * lane[k] for k, d in enumerate(across)), start=np.zeros(lanes, np.int64)
    )
    kept = active[..., None]
    low, high = np.zeros(1, np.int64), np.ones(1, np.int64)
    if along is not None:
        high = np.array([shape[along]], np.int64)
    if access.box is not None:
        for k, d in enumerate(across):
            kept = (
                kept
                & (lane[k] >= access.box.lower[d][..., None])
                & (lane[k] < access.box.upper[d][..., None])
            )
        if along is not None:
            low, high = access.box.lower[along][..., None], access.box.upper[along][..., None]
    program = np.arange(programs)[:, None]
    start, stop, kept, program = np.broadcast_arrays(
        np.maximum(start + low, 0), np.minimum(start + high, size), kept, program
    )
    kept = kept & (start < stop)
    return Runs(start[kept], stop[kept], program[kept])


def _lane_grid(extents: Sequence[int]) -> list[Array]:
    """For each dimension, its index in each lane of a tensor of these extents, flattened."""
    return [index.reshape(-1) for index in np.indices(tuple(extents), np.int64)]


def _without_overlap(runs: Runs | None) -> bool:
    """Whether no element is in two runs."""
    if runs is None:
        return False
    order = np.argsort(runs.start, kind="stable")
    return bool((runs.start[order][1:] >= runs.stop[order][:-1]).all())


def _disjoint(groups: Sequence[Runs | None]) -> bool:
    """Whether no element is touched by two programs."""
    if any(group is None for group in groups):
        return False
    known = [group for group in groups if group is not None]
    start = np.concatenate([group.start for group in known])
    stop = np.concatenate([group.stop for group in known])
    program = np.concatenate([group.program for group in known])
    return _without_overlap(_merged(Runs(start, stop, program)))


def _merged(runs: Runs) -> Runs:
    """The same elements, where no two runs of one program overlap."""
    if not runs.start.size:
        return runs
    # Programs side by side on one line: then one sort and one running maximum do for all of them.
    span = int(runs.stop.max()) + 1
    start, stop = runs.start + runs.program * span, runs.stop + runs.program * span
    order = np.argsort(start, kind="stable")
    start, stop, program = start[order], stop[order], runs.program[order]
    furthest = np.maximum.accumulate(stop)
    first = np.concatenate([[True], start[1:] > furthest[:-1]])
    last = np.concatenate([first[1:], [True]])
    program = program[first]
    return Runs(start[first] - program * span, furthest[last] - program * span, program)
