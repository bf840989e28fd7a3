"""Which parameters a kernel reads and writes, read off its IR.

Pointers are followed from the parameters through every operation that yields a pointer. A number that
was made from a pointer is followed too, until a pointer is made of it again.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jtprim.arguments import Path
from jtprim.specialize.adapters import Adapter
from jtprim.specialize.descriptors import decomposed_paths, flattened_paths
from jtprim.specialize.reader import Block, Module, Operation, Region, Variable, read
from jtprim.specialize.ttir import kernel_ttir

# Operations that access memory through their first operand, and how.
_READS = frozenset(
    {"tt.load", "tt.atomic_load", "tt.atomic_poll", "tt.descriptor_load", "tt.descriptor_gather"}
)
_WRITES = frozenset({"tt.store", "tt.atomic_store", "tt.descriptor_store", "tt.descriptor_scatter"})
_BOTH = frozenset({"tt.atomic_rmw", "tt.atomic_cas", "tt.descriptor_reduce"})

# Gluon's: operations that move between global memory and shared memory, and which operand is global.
_GLUON_READS = {
    "ttg.async_copy_global_to_local": 0,
    "ttng.async_tma_copy_global_to_local": 0,
    "ttng.async_tma_gather": 0,
    "amdg.buffer_load": 0,
    "amdg.buffer_load_to_local": 1,
}
_GLUON_WRITES = {
    "ttng.async_tma_copy_local_to_global": 0,
    "ttng.async_tma_reduce": 0,
    "ttng.async_tma_scatter": 0,
    "amdg.buffer_store": 1,
    "amdg.buffer_atomic_rmw": 0,
    "amdg.buffer_atomic_cas": 0,
}

# Code that may do anything with a pointer it is given.
_OPAQUE = frozenset({"tt.elementwise_inline_asm", "tt.extern_elementwise"})


@dataclass(frozen=True)
class Access:
    """How a kernel uses the memory behind its parameters, by position in the compiled signature.

    Attributes:
      reads, writes: parameters that are loaded from and stored to.
      opaque: parameters that foreign code is given, which may read and write them.
      described: parameters that the kernel makes tensor descriptors of.
    """

    reads: frozenset[int]
    writes: frozenset[int]
    opaque: frozenset[int]
    described: frozenset[int] = frozenset()


@functools.lru_cache(maxsize=1024)
def written_paths(adapter: Adapter, options: tuple[tuple[str, Any], ...]) -> frozenset[Path]:
    """The paths, in a kernel's signature, of the pointers that it writes through.

    Args:
      adapter: the kernel, for the portable target.
      options: the launch's compile options.

    Raises:
      triton.CompilationError: the frontend's own error.
    """
    access = kernel_access(read(kernel_ttir(adapter, options)))
    paths = list(decomposed_paths(adapter.specialization))
    return frozenset(adapter.kernel_path(paths[position]) for position in access.writes)


@functools.lru_cache(maxsize=1024)
def described_paths(adapter: Adapter, options: tuple[tuple[str, Any], ...]) -> frozenset[Path]:
    """The paths, in a kernel's signature, of the pointers that it makes tensor descriptors of.

    Args and Raises: as of `written_paths`.
    """
    access = kernel_access(read(kernel_ttir(adapter, options, with_descriptors=True)))
    paths = list(flattened_paths(adapter.specialization))
    return frozenset(adapter.kernel_path(paths[position]) for position in access.described)


_Origins = frozenset[int]
_NONE: _Origins = frozenset()


def kernel_access(module: Module) -> Access:
    """Follows every pointer of a kernel to the accesses made through it."""
    flow = _Flow(module)
    flow.function(module.entry, [frozenset({i}) for i in range(len(module.parameters))])
    found = (flow.reads, flow.writes, flow.opaque, flow.described)
    return Access(*map(frozenset, found))


class _Flow:
    """Origins of the values seen so far. Loops are gone through until nothing is added."""

    def __init__(self, module: Module):
        self.module = module
        self.origins: dict[Variable, _Origins] = {}
        self.reads: set[int] = set()
        self.writes: set[int] = set()
        self.opaque: set[int] = set()
        self.described: set[int] = set()

    def function(self, function: Operation, arguments: Sequence[_Origins]) -> list[_Origins]:
        [region] = function.regions
        for variable, origins in zip(region.blocks[0].arguments, arguments, strict=True):
            self._add(variable, origins)
        self._until_stable(region)
        returned = [block.terminator for block in region.blocks if block.terminator.name == "tt.return"]
        if not returned:
            return []
        return [
            frozenset().union(*(self._of(terminator.operands[i]) for terminator in returned))
            for i in range(len(returned[0].operands))
        ]

    def _until_stable(self, region: Region) -> None:
        while True:
            before = sum(map(len, self.origins.values()))
            for block in region.blocks:
                self._block(block, region)
            if sum(map(len, self.origins.values())) == before:
                return

    def _block(self, block: Block, region: Region) -> None:
        for operation in block.operations:
            self._operation(operation)
        branch = block.terminator
        operands = branch.operands
        if branch.name == "cf.cond_br":
            _, taken, _ = branch.attributes["operandSegmentSizes"]
            handed = [operands[1 : 1 + taken], operands[1 + taken :]]
        else:
            handed = [operands] * len(branch.successors)
        for successor, values in zip(branch.successors, handed, strict=True):
            self._hand(values, region.blocks[successor].arguments)

    def _operation(self, operation: Operation) -> None:
        self._note(operation)
        if operation.name == "tt.call":
            callee = self.module.functions[operation.attributes["callee"]]
            results = self.function(callee, [self._of(operand) for operand in operation.operands])
            for result, origins in zip(operation.results, results, strict=True):
                self._add(result, origins)
        elif operation.name == "scf.for":
            [body] = operation.regions
            arguments = body.blocks[0].arguments[1:]
            self._hand(operation.operands[3:], arguments)
            self._until_stable(body)
            for target in (arguments, operation.results):
                self._hand(body.blocks[0].terminator.operands, target)
                self._hand(operation.operands[3:], target)
        elif operation.name == "scf.while":
            before, after = operation.regions
            self._hand(operation.operands, before.blocks[0].arguments)
            self._until_stable(before)
            for target in (after.blocks[0].arguments, operation.results):
                self._hand(before.blocks[0].terminator.operands[1:], target)
            self._until_stable(after)
            self._hand(after.blocks[0].terminator.operands, before.blocks[0].arguments)
        elif operation.name == "scf.if":
            for region in operation.regions:
                self._until_stable(region)
                for block in region.blocks:
                    self._hand(block.terminator.operands, operation.results)
        elif operation.name == "ttg.warp_specialize":
            default, holder = operation.regions
            [partitions] = (inner for block in holder.blocks for inner in block.operations)
            for region in partitions.regions:
                self._hand((*operation.operands, *partitions.operands), region.blocks[0].arguments)
            for region in (default, *partitions.regions):
                self._until_stable(region)
            self._hand(default.blocks[0].terminator.operands, operation.results)
        elif operation.name not in _READS:  # what is loaded is a number
            for result in operation.results:
                self._add(result, self._from(operation, result))
            for region in operation.regions:
                self._until_stable(region)

    def _hand(self, values: Sequence[Variable], targets: Sequence[Variable]) -> None:
        for value, target in zip(values, targets, strict=True):
            self._add(target, self._of(value))

    def _note(self, operation: Operation) -> None:
        name = operation.name
        if name in _READS or name in _BOTH or name in _GLUON_READS:
            self.reads |= self._of(operation.operands[_GLUON_READS.get(name, 0)])
        if name in _WRITES or name in _BOTH or name in _GLUON_WRITES:
            self.writes |= self._of(operation.operands[_GLUON_WRITES.get(name, 0)])
        if name == "tt.make_tensor_descriptor":
            self.described |= self._of(operation.operands[0])
        if name in _OPAQUE:
            for operand in operation.operands:
                self.opaque |= self._of(operand)

    def _from(self, operation: Operation, result: Variable) -> _Origins:
        """The origins that `operation` hands to a value of `result`'s type.

        A pointer comes from pointers, so that an index loaded from one array, added to a pointer into
        another, does not count; a number comes from numbers, but for `tt.ptr_to_int` and its reverse.
        """
        crossing = operation.name in ("tt.ptr_to_int", "tt.int_to_ptr")
        return frozenset().union(
            *(
                self._of(operand)
                for operand in operation.operands
                if crossing or _is_reference(operand) == _is_reference(result)
            )
        )

    def _of(self, variable: Variable) -> _Origins:
        return self.origins.get(variable, _NONE)

    def _add(self, variable: Variable, origins: _Origins) -> None:
        if origins - self._of(variable):
            self.origins[variable] = self._of(variable) | origins


def _is_reference(variable: Variable) -> bool:
    """Whether a value is a pointer or a descriptor of global memory."""
    return variable.type.pointer or variable.type.element.startswith(("!tt.tensordesc", "!ttng.tensordesc"))


def clear_caches() -> None:
    written_paths.cache_clear()
    described_paths.cache_clear()
