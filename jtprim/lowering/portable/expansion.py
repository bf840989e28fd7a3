"""Gluon's accesses to global memory as loads and stores of pointers, before anything else looks at a kernel.

Asynchronous copies, TMA and AMD's buffer operations become `tt.load`, `tt.store` and `tt.atomic_rmw`
between global memory and values, and `ttg.local_load` and `ttg.local_store` between values and shared
memory. What is known of plain pointers (which programs collide, which accesses are slices) then holds for
them too. Copies happen where they are issued: nothing reads what a copy writes, or writes what it reads,
before the kernel has waited for it, or its result would be undefined on a GPU.

Defined in Triton's TritonGPUOps.td, TritonNvidiaGPUOps.td and TritonAMDGPUOps.td.

A tensor descriptor dissolves into a pointer, sizes, strides and what is read out of bounds; it exists in
no operation afterwards. Partitions of `ttg.warp_specialize` use the values around them directly.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from jtprim.errors import UnsupportedError
from jtprim.specialize.reader import Block, Module, Operation, Region, Type, Variable

# What an access as a pointer means, in Triton's words: `RMWOp` of `DescriptorReduceKind`.
_REDUCE_KINDS = {"f": {1: 5, 2: 7, 3: 6}, "i": {1: 4, 6: 1, 7: 2, 8: 3}}
_PAD_WITH_NAN = 2

_DESCRIPTOR = re.compile(r"!tt\.tensordesc<(?:tensor<)?((?:\d+x)+)([a-z]\w*).*>", re.DOTALL)
BOOL, INT32, INT64 = Type("i1"), Type("i32"), Type("i64")


@dataclasses.dataclass(frozen=True)
class _Descriptor:
    """What a tensor descriptor stands for. `nan` is a condition: whether to read NaN out of bounds."""

    pointer: Variable
    shape: tuple[Variable, ...]
    strides: tuple[Variable, ...]
    nan: Variable | None
    block: tuple[int, ...]

    @property
    def element(self) -> str:
        return self.pointer.type.element


@functools.lru_cache(maxsize=256)
def expand(module: Module, kernel: str) -> Module:
    """The module with all accesses as described above.

    A descriptor among the kernel's parameters is a pointer in the result, its sizes and strides are the
    parameters that follow it, and after these comes one that is new, whether to pad with NaN.

    Raises:
      UnsupportedError: the kernel does with a descriptor what has no translation.
    """
    names = {operation.name for operation in module.operations()}
    if not names & EXPANSIONS.keys() and not any(_is_descriptor(p) for p in module.parameters):
        return module
    expander = _Expander(kernel)
    functions = {
        name: expander.function(function, is_kernel=function is module.entry)
        for name, function in module.functions.items()
    }
    entry = next(new for name, new in functions.items() if module.functions[name] is module.entry)
    return dataclasses.replace(module, entry=entry, functions=MappingProxyType(functions))


def _is_descriptor(variable: Variable) -> bool:
    return variable.type.element.startswith(("!tt.tensordesc", "!ttng.tensordesc"))


def _parse_descriptor(variable: Variable) -> tuple[tuple[int, ...], str] | None:
    match = _DESCRIPTOR.fullmatch(variable.type.element)
    if match is None:
        return None
    block = tuple(int(extent) for extent in match[1].split("x") if extent)
    return block, re.sub(r"^[su]i", "i", match[2])


class _Expander:
    """Rebuilds operations; `emitted` are those of the block that is being rebuilt."""

    def __init__(self, kernel: str):
        self.kernel = kernel
        self.emitted: list[Operation] = []
        self.descriptors: dict[Variable, _Descriptor] = {}
        self.replaced: dict[Variable, Variable] = {}
        self.source: str | None = None

    # Structure.

    def function(self, function: Operation, *, is_kernel: bool) -> Operation:
        region = function.regions[0]
        first, *rest = region.blocks
        arguments = self.parameters(first.arguments) if is_kernel else first.arguments
        blocks = (self.block(first, arguments), *(self.block(block, block.arguments) for block in rest))
        return dataclasses.replace(function, regions=(Region(blocks),))

    def parameters(self, variables: Sequence[Variable]) -> tuple[Variable, ...]:
        given = iter(variables)
        found: list[Variable] = []
        for variable in given:
            parsed = _parse_descriptor(variable) if _is_descriptor(variable) else None
            if parsed is None:
                found.append(variable)
                continue
            block, element = parsed
            pointer = Variable(Type(element, (), pointer=True), variable.name)
            shape = tuple(next(given) for _ in block)
            strides = tuple(next(given) for _ in block)
            nan = Variable(BOOL)
            found += [pointer, *shape, *strides, nan]
            self.descriptors[variable] = _Descriptor(pointer, shape, strides, nan, block)
        return tuple(found)

    def region(self, region: Region) -> Region:
        return Region(tuple(self.block(block, block.arguments) for block in region.blocks))

    def block(self, block: Block, arguments: tuple[Variable, ...]) -> Block:
        outer, self.emitted = self.emitted, []
        for operation in block.operations:
            self.operation(operation)
        inner, self.emitted = self.emitted, outer
        return Block(arguments, tuple(inner))

    def operation(self, operation: Operation) -> None:
        self.source = operation.source
        expansion = EXPANSIONS.get(operation.name)
        if expansion is not None:
            expansion(self, operation, *(self.of(operand) for operand in operation.operands))
            return
        if any(_is_descriptor(v) for v in (*operation.operands, *operation.results)):
            raise self.unsupported(operation, "passes on a tensor descriptor")
        self.emitted.append(
            dataclasses.replace(
                operation,
                operands=tuple(self.of(operand) for operand in operation.operands),
                regions=tuple(self.region(region) for region in operation.regions),
            )
        )

    def of(self, variable: Variable) -> Variable:
        return self.replaced.get(variable, variable)

    def unsupported(self, operation: Operation, reason: str) -> UnsupportedError:
        place = f" at {operation.source}" if operation.source else ""
        return UnsupportedError(f"{operation.name}{place} {reason}.", kernel=self.kernel)

    def described(self, operation: Operation, variable: Variable) -> _Descriptor:
        found = self.descriptors.get(variable)
        if found is None:
            raise self.unsupported(operation, "takes a tensor descriptor that is none of the kernel's own")
        return found

    # Emitting.

    def emit(
        self,
        name: str,
        operands: Sequence[Variable],
        result: Type | Variable | None = None,
        **attributes: Any,
    ) -> Variable:
        """Adds an operation; returns its result."""
        variable = result if isinstance(result, Variable) else Variable(result or Type("none"))
        results = () if result is None else (variable,)
        self.emitted.append(
            Operation(
                name,
                tuple(operands),
                results,
                MappingProxyType(attributes),
                (),
                (),
                self.source,
                bool(results),
            )
        )
        return variable

    def constant(self, value: Any, kind: Type) -> Variable:
        array = np.broadcast_to(np.asarray(value).astype(kind.dtype), kind.shape)
        return self.emit("arith.constant", (), kind, value=array if kind.shape else array[()])

    def splat(self, variable: Variable, shape: tuple[int, ...]) -> Variable:
        return self.emit("tt.splat", [variable], dataclasses.replace(variable.type, shape=shape))

    def along(self, variable: Variable, axis: int, shape: tuple[int, ...]) -> Variable:
        """A tensor of one dimension, as one of several that changes along `axis` only."""
        for new in [d for d in range(len(shape)) if d != axis]:
            extents = list(variable.type.shape)
            extents.insert(new, 1)
            kind = dataclasses.replace(variable.type, shape=tuple(extents))
            variable = self.emit("tt.expand_dims", [variable], kind, axis=new)
        return self.emit("tt.broadcast", [variable], dataclasses.replace(variable.type, shape=shape))

    def all_of(self, masks: Sequence[Variable | None]) -> Variable | None:
        """Conjunction of masks; one that is None is true."""
        given = [mask for mask in masks if mask is not None]
        return (
            functools.reduce(lambda a, b: self.emit("arith.andi", [a, b], a.type), given) if given else None
        )

    def load(
        self,
        pointers: Variable,
        mask: Variable | None,
        other: Variable | None,
        result: Variable | None = None,
    ) -> Variable:
        """The elements at `pointers`; zero where the mask is false and nothing else is given."""
        kind = Type(pointers.type.element, pointers.type.shape)
        if mask is None:
            return self.emit("tt.load", [pointers], result or kind, operandSegmentSizes=(1, 0, 0))
        other = other or self.constant(0, kind)
        return self.emit("tt.load", [pointers, mask, other], result or kind, operandSegmentSizes=(1, 1, 1))

    def store(self, pointers: Variable, value: Variable, mask: Variable | None) -> None:
        self.emit("tt.store", [pointers, value, *([] if mask is None else [mask])])

    # Tensor descriptors.

    def block_at(
        self, descriptor: _Descriptor, first: Sequence[Variable], shape: tuple[int, ...]
    ) -> tuple[Variable, Variable]:
        """Pointers to the elements of a block, and which of these lie inside the tensor.

        Args:
          first: for each dimension, the block's first index, or the index of each of its elements.
          shape: of the block.
        """
        offset: Variable | None = None
        inside: list[Variable] = []
        for axis, start in enumerate(first):
            kind = Type("i32", (shape[axis],))
            if start.type.shape:
                index = start
            else:
                lanes = self.emit("tt.make_range", [], kind, start=0, end=shape[axis])
                index = self.emit("arith.addi", [self.splat(start, kind.shape), lanes], kind)
            size = self.splat(descriptor.shape[axis], kind.shape)
            if size.type.element != "i32":
                size = self.emit("arith.trunci", [size], kind)
            condition = Type("i1", kind.shape)
            for bound, predicate in ((self.constant(0, kind), 5), (size, 2)):
                within = self.emit("arith.cmpi", [index, bound], condition, predicate=predicate)
                inside.append(self.along(within, axis, shape))
            wide = self.emit("arith.extsi", [index], Type("i64", kind.shape))
            stride = self.splat(descriptor.strides[axis], kind.shape)
            if stride.type.element != "i64":
                stride = self.emit("arith.extsi", [stride], wide.type)
            step = self.along(self.emit("arith.muli", [wide, stride], wide.type), axis, shape)
            offset = step if offset is None else self.emit("arith.addi", [offset, step], step.type)
        assert offset is not None
        base = self.splat(descriptor.pointer, shape)
        mask = self.all_of(inside)
        assert mask is not None
        return self.emit("tt.addptr", [base, offset], base.type), mask

    def load_block(
        self, descriptor: _Descriptor, first: Sequence[Variable], shape: tuple[int, ...]
    ) -> Variable:
        pointers, mask = self.block_at(descriptor, first, shape)
        kind = Type(descriptor.element, shape)
        other = self.constant(0, kind)
        if descriptor.nan is not None and kind.element[0] in "fb":
            other = self.emit("arith.select", [descriptor.nan, self.constant(np.nan, kind), other], kind)
        return self.load(pointers, mask, other)


# --- Expansions of operations --------------------------------------------------------------------

_Expansion = Callable[..., None]
EXPANSIONS: dict[str, _Expansion] = {}


def _expansion(*names: str) -> Callable[[_Expansion], _Expansion]:
    def register(function: _Expansion) -> _Expansion:
        EXPANSIONS.update(dict.fromkeys(names, function))
        return function

    return register


def _segments(op: Operation, operands: Sequence[Variable]) -> list[Variable | None]:
    """The operands of an operation of which some are optional; None for one that is missing."""
    given = iter(operands)
    return [next(given) if size else None for size in op.attributes["operandSegmentSizes"]]


def _token(e: _Expander, op: Operation) -> None:
    """The result of an operation that is done at once."""
    for result in op.results:
        e.emit("arith.constant", (), Variable(Type("i32")), value=np.int32(0))
        e.replaced[result] = e.emitted[-1].results[0]


@_expansion("tt.make_tensor_descriptor")
def _make_descriptor(e: _Expander, op: Operation, pointer: Variable, *rest: Variable) -> None:
    """Pointer, sizes, strides and padding, which every use of the descriptor takes."""
    parsed = _parse_descriptor(op.results[0])
    if parsed is None:
        raise e.unsupported(op, "makes a descriptor of a kind that has no portable lowering")
    block, _ = parsed
    rank = len(block)
    nan = e.constant(True, BOOL) if op.attributes.get("padding") == _PAD_WITH_NAN else None
    e.descriptors[op.results[0]] = _Descriptor(
        pointer, tuple(rest[:rank]), tuple(rest[rank : 2 * rank]), nan, block
    )


@_expansion("ttng.async_tma_copy_global_to_local")
def _tma_load(e: _Expander, op: Operation, described: Variable, *rest: Variable) -> None:
    """A masked load of a block, a store to shared memory, and the bytes' arrival at the barrier."""
    descriptor = e.described(op, described)
    rank = len(descriptor.block)
    coordinates, (*offsets, barrier, result, wanted) = rest[:rank], rest[rank:]
    if offsets:
        raise e.unsupported(op, "loads in im2col mode, which has no portable lowering")
    _arriving(e, barrier, result, wanted, e.load_block(descriptor, coordinates, descriptor.block))


def _arriving(e: _Expander, barrier: Variable, result: Variable, wanted: Variable, value: Variable) -> None:
    """Puts a value into shared memory, and tells a barrier that it is there."""
    if value.type.shape != result.type.shape:
        value = e.emit("tt.reshape", [value], Type(value.type.element, result.type.shape))
    e.emit("ttg.local_store", [value, result, wanted])
    size = int(np.prod(result.type.shape, dtype=np.int64)) * result.type.dtype.itemsize
    e.emit("jtprim.barrier_bytes", [barrier, wanted], size=size)


@_expansion("ttng.async_tma_gather")
def _tma_gather(e: _Expander, op: Operation, described: Variable, *rest: Variable) -> None:
    """Rows of a matrix by their numbers, from one column on, like a block."""
    rows, column, barrier, result, wanted = rest
    descriptor = e.described(op, described)
    _arriving(e, barrier, result, wanted, e.load_block(descriptor, (rows, column), result.type.shape))


def _stored(e: _Expander, view: Variable, shape: tuple[int, ...]) -> Variable:
    """What shared memory holds, in the shape of a descriptor's block."""
    value = e.emit("ttg.local_load", [view], view.type)
    return (
        value if view.type.shape == shape else e.emit("tt.reshape", [value], Type(view.type.element, shape))
    )


@_expansion("ttng.async_tma_copy_local_to_global")
def _tma_store(e: _Expander, op: Operation, described: Variable, *rest: Variable) -> None:
    """A block from shared memory, without what is outside of the tensor."""
    *coordinates, view = rest
    descriptor = e.described(op, described)
    pointers, mask = e.block_at(descriptor, coordinates, descriptor.block)
    e.store(pointers, _stored(e, view, descriptor.block), mask)
    _token(e, op)


@_expansion("ttng.async_tma_scatter")
def _tma_scatter(e: _Expander, op: Operation, described: Variable, *rest: Variable) -> None:
    """Rows from shared memory to where their numbers say, without what is outside of the tensor."""
    rows, column, view = rest
    pointers, mask = e.block_at(e.described(op, described), (rows, column), view.type.shape)
    e.store(pointers, _stored(e, view, view.type.shape), mask)
    _token(e, op)


@_expansion("ttng.async_tma_reduce")
def _tma_reduce(e: _Expander, op: Operation, described: Variable, *rest: Variable) -> None:
    """A block from shared memory, combined with the tensor by atomics."""
    *coordinates, view = rest
    descriptor = e.described(op, described)
    kinds = _REDUCE_KINDS["i" if descriptor.element.startswith("i") else "f"]
    kind = kinds.get(op.attributes["kind"])
    if kind is None:
        raise e.unsupported(op, f"is of a kind that has no portable lowering for {descriptor.element}")
    pointers, mask = e.block_at(descriptor, coordinates, descriptor.block)
    value = _stored(e, view, descriptor.block)
    # Nobody asks for what was there before, which is what tells the order of programs.
    operation = Operation(
        "tt.atomic_rmw",
        (pointers, value, mask),
        (Variable(value.type),),
        MappingProxyType({"atomic_rmw_op": kind}),
        (),
        (),
        e.source,
        False,
    )
    e.emitted.append(operation)
    _token(e, op)


@_expansion("ttng.async_tma_prefetch", "amdg.tdm_prefetch", "tt.descriptor_prefetch")
def _prefetch(e: _Expander, op: Operation, *operands: Variable) -> None:
    """Nothing: a hint."""
    _token(e, op)


@_expansion("ttg.async_copy_global_to_local")
def _copy_to_shared(e: _Expander, op: Operation, *operands: Variable) -> None:
    """cp.async: a masked load and a store to shared memory."""
    pointers, view, mask, other = _segments(op, operands)[:4]
    assert pointers is not None and view is not None
    e.emit("ttg.local_store", [e.load(pointers, mask, other), view])
    _token(e, op)


@_expansion("amdg.async_copy_local_to_global")
def _copy_from_shared(
    e: _Expander, op: Operation, view: Variable, pointers: Variable, *mask: Variable
) -> None:
    """A load from shared memory and a masked store."""
    e.store(pointers, e.emit("ttg.local_load", [view], view.type), mask[0] if mask else None)
    _token(e, op)


# --- AMD's buffer operations: a pointer to the start, and an offset for each element --------------


def _pointers(e: _Expander, pointer: Variable, offsets: Variable) -> Variable:
    base = e.splat(pointer, offsets.type.shape)
    return e.emit("tt.addptr", [base, offsets], base.type)


@_expansion("amdg.buffer_load")
def _buffer_load(e: _Expander, op: Operation, *operands: Variable) -> None:
    """A masked load at a pointer plus offsets."""
    pointer, offsets, _, mask, other = _segments(op, operands)
    assert pointer is not None and offsets is not None
    e.load(_pointers(e, pointer, offsets), mask, other, op.results[0])


@_expansion("amdg.buffer_load_to_local")
def _buffer_load_to_local(e: _Expander, op: Operation, *operands: Variable) -> None:
    """A masked load at a pointer plus offsets, and a store to shared memory."""
    view, pointer, offsets, mask, other, _ = _segments(op, operands)
    assert view is not None and pointer is not None and offsets is not None
    e.emit("ttg.local_store", [e.load(_pointers(e, pointer, offsets), mask, other), view])
    _token(e, op)


@_expansion("amdg.buffer_store")
def _buffer_store(e: _Expander, op: Operation, *operands: Variable) -> None:
    """A masked store at a pointer plus offsets."""
    value, pointer, offsets, _, mask = _segments(op, operands)
    assert value is not None and pointer is not None and offsets is not None
    e.store(_pointers(e, pointer, offsets), value, mask)


@_expansion("amdg.buffer_atomic_rmw")
def _buffer_atomic(e: _Expander, op: Operation, *operands: Variable) -> None:
    """`tt.atomic_rmw` at a pointer plus offsets."""
    pointer, offsets, value, _, mask = _segments(op, operands)
    assert pointer is not None and offsets is not None and value is not None
    pointers = _pointers(e, pointer, offsets)
    given = [pointers, value, *([] if mask is None else [mask])]
    e.emitted.append(dataclasses.replace(op, name="tt.atomic_rmw", operands=tuple(given)))


@_expansion("amdg.buffer_atomic_cas")
def _buffer_compare_and_swap(e: _Expander, op: Operation, *operands: Variable) -> None:
    """`tt.atomic_cas` at a pointer plus offsets."""
    pointer, offsets, compared, value, *_ = operands
    pointers = _pointers(e, pointer, offsets)
    e.emitted.append(dataclasses.replace(op, name="tt.atomic_cas", operands=(pointers, compared, value)))


# --- Warp specialization -------------------------------------------------------------------------


@_expansion("ttg.warp_specialize")
def _warp_specialize(e: _Expander, op: Operation, *operands: Variable) -> None:
    """Its own region and those of the partitions side by side, without what they capture."""
    default, holder = op.regions
    (partitions,) = (inner for block in holder.blocks for inner in block.operations)
    captured = (*op.operands, *partitions.operands)
    for region in partitions.regions:
        for inside, outside in zip(region.blocks[0].arguments, captured, strict=True):
            e.replaced[inside] = e.of(outside)
    regions = [e.region(default)]
    for region in partitions.regions:
        (block,) = region.blocks
        regions.append(Region((e.block(block, ()),)))
    e.emitted.append(dataclasses.replace(op, operands=(), regions=tuple(regions)))
