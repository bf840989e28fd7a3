"""Which values may differ between the programs that run at once.

Needed where a loop starts: what is carried through it has one type throughout, so a carried value
that differs in a later iteration must have its program axis from the beginning.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from jtprim.specialize.reader import Module, Operation, Region, Variable

from .analysis import Facts


def varying(module: Module, grid: Sequence[int], facts: Facts) -> frozenset[Variable]:
    """The variables that depend on the program id, directly or through control flow."""
    marking = _Marking(module, grid, facts)
    while marking.pass_over():
        pass
    return frozenset(marking.marked)


class _Marking:
    """Marks variables, by passes over all operations until nothing changes."""

    def __init__(self, module: Module, grid: Sequence[int], facts: Facts):
        self.module, self.grid, self.facts = module, grid, facts
        self.marked: set[Variable] = set()

    def pass_over(self) -> bool:
        before = len(self.marked)
        for function in self.module.functions.values():
            for operation in function.walk():
                self.visit(operation)
        return len(self.marked) > before

    def mark(self, variables: Iterable[Variable]) -> None:
        self.marked.update(variables)

    def differs(self, variables: Iterable[Variable]) -> bool:
        return any(variable in self.marked for variable in variables)

    def flow(self, sources: Sequence[Variable], targets: Sequence[Variable]) -> None:
        """A value that differs makes the variable that it is passed to differ."""
        self.mark(target for source, target in zip(sources, targets, strict=True) if source in self.marked)

    def visit(self, operation: Operation) -> None:
        match operation.name:
            case "tt.get_program_id":
                if self.grid[operation.attributes["axis"]] > 1:
                    self.mark(operation.results)
            case "scf.for":
                self.counted_loop(operation)
            case "scf.while":
                self.conditional_loop(operation)
            case "scf.if":
                self.branch(operation)
            case "tt.call":
                self.call(operation)
            case "tt.func":
                self.blocks(operation.regions[0])
            case _:
                # What is in shared memory may differ, whatever was put there.
                of_shared = operation.name.startswith(("ttg.", "ttng.", "amdg."))
                if of_shared or self.differs(operation.operands):
                    self.mark(operation.results)

    def counted_loop(self, operation: Operation) -> None:
        (block,) = operation.regions[0].blocks
        bounds, initial = operation.operands[:3], operation.operands[3:]
        index, *carried = block.arguments
        if self.differs((bounds[0], bounds[2])):
            self.mark((index,))
        if self.differs(bounds) and not uniform_trips(self.facts, operation):
            self.mark((*carried, *operation.results))
        self.flow(initial, carried)
        self.flow(block.terminator.operands, carried)
        self.flow(carried, operation.results)

    def conditional_loop(self, operation: Operation) -> None:
        before, after = (region.blocks[0] for region in operation.regions)
        condition, *forwarded = before.terminator.operands
        everything = (*before.arguments, *after.arguments, *operation.results)
        if self.differs((condition,)):
            self.mark(everything)
        self.flow(operation.operands, before.arguments)
        self.flow(after.terminator.operands, before.arguments)
        self.flow(forwarded, after.arguments)
        self.flow(forwarded, operation.results)

    def branch(self, operation: Operation) -> None:
        if self.differs(operation.operands) and self.facts.conditions.get(operation) is None:
            self.mark(operation.results)
        for region in operation.regions:
            if region.blocks:
                self.flow(region.blocks[0].terminator.operands, operation.results)

    def call(self, operation: Operation) -> None:
        blocks = self.module.functions[operation.attributes["callee"]].regions[0].blocks
        self.flow(operation.operands, blocks[0].arguments)
        # A function that returns early under a condition that differs selects between its results.
        if any(self.differs(block.terminator.operands) for block in blocks):
            self.mark(operation.results)

    def blocks(self, region: Region) -> None:
        """Where blocks meet, values are selected by the conditions of all branches before."""
        if any(
            self.differs(block.terminator.operands) for block in region.blocks if block.terminator.successors
        ):
            self.mark(argument for block in region.blocks[1:] for argument in block.arguments)


def uniform_trips(facts: Facts, operation: Operation) -> bool:
    """Whether a loop is known to run equally often in all programs, whenever it is reached."""
    trips = facts.trips.get(operation)
    return trips is not None and bool((trips == trips.flat[0]).all())
