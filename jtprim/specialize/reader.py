"""Text of a TTIR module -> a small immutable IR.

jaxlib's MLIR bindings parse the text, with no Triton dialect registered: `tt` operations and types are
then opaque, which is why Triton's generic form is needed, and why the properties of an operation
(``<{...}>``) are not among `Operation.attributes`. They are taken from the operation's own printed
form and parsed again, by MLIR.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np

from jtprim import compat

ir = compat.mlir_ir

# TTIR's names of element types. Integers are signless: they are held as signed ones.
DTYPES: Mapping[str, np.dtype[Any]] = MappingProxyType(
    {
        name: np.dtype(dtype)
        for name, dtype in {
            "i1": np.bool_,
            "i8": np.int8,
            "i16": np.int16,
            "i32": np.int32,
            "i64": np.int64,
            "index": np.int64,
            "f16": np.float16,
            "bf16": ml_dtypes.bfloat16,
            "f32": np.float32,
            "f64": np.float64,
            "f8E5M2": ml_dtypes.float8_e5m2,
            "f8E4M3FN": ml_dtypes.float8_e4m3fn,
            "f8E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
            "f8E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
        }.items()
    }
)


@dataclasses.dataclass(frozen=True)
class Type:
    """The type of a value: a scalar (shape ``()``) or a tensor, of numbers or of pointers to them.

    Attributes:
      element: TTIR's name of the number type, or the whole text of a type that is neither.
      shape: the tensor's shape.
      pointer: whether the elements are pointers to `element`.
    """

    element: str
    shape: tuple[int, ...] = ()
    pointer: bool = False

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy dtype of `element`; `KeyError` if it is not a number type."""
        return DTYPES[self.element]


@dataclasses.dataclass(frozen=True, eq=False)
class Variable:
    """An SSA value: the result of an operation, or an argument of a block. Compared by identity."""

    type: Type
    name: str | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Operation:
    """One operation. Compared by identity.

    Attributes:
      name: with the dialect, as in ``arith.addi``.
      attributes: attributes and properties together, as Python and NumPy values.
      successors: for a branch, the positions of the target blocks in their region.
      source: where it comes from, as ``file.py:12``, or None.
      result_used: whether any operation uses one of its results.
    """

    name: str
    operands: tuple[Variable, ...]
    results: tuple[Variable, ...]
    attributes: Mapping[str, Any]
    regions: tuple[Region, ...]
    successors: tuple[int, ...]
    source: str | None
    result_used: bool

    def walk(self) -> Iterator[Operation]:
        """This operation and all those inside its regions, in textual order."""
        yield self
        for region in self.regions:
            for block in region.blocks:
                for operation in block.operations:
                    yield from operation.walk()


@dataclasses.dataclass(frozen=True, eq=False)
class Block:
    arguments: tuple[Variable, ...]
    operations: tuple[Operation, ...]

    @property
    def terminator(self) -> Operation:
        return self.operations[-1]


@dataclasses.dataclass(frozen=True, eq=False)
class Region:
    blocks: tuple[Block, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Module:
    """A kernel (`entry`) and the functions that it calls, by name.

    Attributes:
      num_warps: warps of one program, in the IR of a Gluon kernel.
    """

    entry: Operation
    functions: Mapping[str, Operation]
    num_warps: int | None = None

    @property
    def parameters(self) -> tuple[Variable, ...]:
        return self.entry.regions[0].blocks[0].arguments

    def operations(self) -> Iterator[Operation]:
        """All operations of all functions, those inside others too."""

        def inside(operation: Operation) -> Iterator[Operation]:
            yield operation
            for region in operation.regions:
                for block in region.blocks:
                    for child in block.operations:
                        yield from inside(child)

        for function in self.functions.values():
            yield from inside(function)


@functools.lru_cache(maxsize=256)
def read(text: str) -> Module:
    """Parses the generic form of a TTIR module, as `specialize.ttir.portable_ttir` prints it."""
    with ir.Context() as context, ir.Location.unknown():
        context.allow_unregistered_dialects = True
        parsed = ir.Module.parse(text)
        functions = [
            _Reader().operation(child.operation)
            for child in parsed.body.operations
            if child.operation.name == "tt.func"
        ]
        attributes = parsed.operation.attributes
        num_warps = attributes["ttg.num-warps"].value if "ttg.num-warps" in attributes else None
    by_name = {function.attributes["sym_name"]: function for function in functions}
    entry = next(f for f in functions if f.attributes.get("sym_visibility", "public") == "public")
    return Module(entry, MappingProxyType(by_name), num_warps)


class _Reader:
    """Converts the operations of one function; holds the variables that were met."""

    def __init__(self) -> None:
        self._variables: dict[Any, Variable] = {}

    def operation(self, parsed: Any, blocks: tuple[Any, ...] = ()) -> Operation:
        return Operation(
            name=parsed.name,
            operands=tuple(self._variables[operand] for operand in parsed.operands),
            results=tuple(self._define(result, None) for result in parsed.results),
            attributes=MappingProxyType(_attributes(parsed)),
            regions=tuple(self._region(region) for region in parsed.regions),
            successors=tuple(blocks.index(successor) for successor in parsed.successors),
            source=_source(str(parsed.location)),
            result_used=any(next(iter(result.uses), None) is not None for result in parsed.results),
        )

    def _region(self, parsed: Any) -> Region:
        blocks = _by_control_flow(tuple(parsed.blocks))
        arguments = [
            tuple(self._define(argument, _name(str(argument.location))) for argument in block.arguments)
            for block in blocks
        ]
        return Region(
            tuple(
                Block(own, tuple(self.operation(child.operation, blocks) for child in block.operations))
                for own, block in zip(arguments, blocks, strict=True)
            )
        )

    def _define(self, value: Any, name: str | None) -> Variable:
        variable = Variable(_type(str(value.type)), name)
        self._variables[value] = variable
        return variable


def _by_control_flow(blocks: tuple[Any, ...]) -> tuple[Any, ...]:
    """Blocks in reverse postorder: each after those that jump to it, unless control flow goes in circles.

    MLIR allows any order after the first. A block that early returns share, for one, may be printed before
    blocks that jump to it. Blocks that are never reached are left out.
    """
    if len(blocks) < 2:
        return blocks

    def successors(position: int) -> list[int]:
        *_, terminator = blocks[position].operations
        return [blocks.index(successor) for successor in terminator.operation.successors]

    finished: list[int] = []
    met = {0}
    waiting = [(0, successors(0))]
    while waiting:
        position, following = waiting[-1]
        if not following:
            finished.append(position)
            waiting.pop()
        elif (target := following.pop()) not in met:
            met.add(target)
            waiting.append((target, successors(target)))
    return tuple(blocks[position] for position in reversed(finished))


_TENSOR = re.compile(r"tensor<((?:\d+x)*)(!tt\.ptr<[^<>]*>|[^,]*?)(?:,.*)?>", re.DOTALL)
# Address spaces are numbers, since Triton 3.9 also names: ``!tt.ptr<f32, "constant">``.
_POINTER = re.compile(r"!tt\.ptr<([^,<>]*)(?:, *[^<>]*)?>")
_SHARED = re.compile(r"!ttg\.memdesc<((?:\d+x)*)([^,]*?),.*>", re.DOTALL)


def _type(text: str) -> Type:
    """``tensor<4x8x!tt.ptr<f32>>`` and the like. Layouts and address spaces are dropped.

    A view of shared memory has the type of the tensor that it holds.
    """
    shape: tuple[int, ...] = ()
    if tensor := _TENSOR.fullmatch(text) or _SHARED.fullmatch(text):
        shape = tuple(int(extent) for extent in tensor[1].split("x") if extent)
        text = tensor[2]
    if pointer := _POINTER.fullmatch(text):
        return Type(pointer[1], shape, pointer=True)
    return Type(text, shape)


_PLACE = re.compile(r'"([^"]*)":(\d+)(?::\d+| to)')
_TRITONS_OWN = re.compile(r"[/\\]triton[/\\](language|experimental)[/\\]")


def _source(location: str) -> str | None:
    """``file:line`` of the innermost call frame that is not in Triton's own library."""
    places = _PLACE.findall(location)
    own = [(file, line) for file, line in places if not _TRITONS_OWN.search(file)]
    return ":".join((own or places)[0]) if places else None


def _name(location: str) -> str | None:
    name = re.match(r'loc\("([^"]*)"\(', location)
    return name[1] if name else None


def _attributes(parsed: Any) -> dict[str, Any]:
    header = parsed.get_asm(skip_regions=True, print_generic_op_form=True, use_local_scope=True)
    found = {name: parsed.attributes[name] for name in _discardable_names(parsed)}
    found.update(_dictionary(ir.Attribute.parse(_properties(header))))
    return {name: _decode(attribute) for name, attribute in found.items()}


def _discardable_names(parsed: Any) -> list[str]:
    return [named.name if hasattr(named, "name") else named for named in parsed.attributes]


_BEFORE_PROPERTIES = re.compile(r'(?:[^"]*= )?"[^"]*"\([^()]*\)(?:\[[^\]]*\])? <(?=\{)')


def _properties(header: str) -> str:
    """The text of the properties dictionary in an operation's generic form; ``{}`` if it has none.

    It stands between the operands and the type, in which layouts look just like it. Its end is found by
    counting braces, since MLIR's parser takes a whole string only.
    """
    opening = _BEFORE_PROPERTIES.match(header)
    if opening is None:
        return "{}"
    depth = 0
    for token in re.finditer(r'"(?:[^"\\]|\\.)*"|\{|\}', header[opening.end() :]):
        depth += {"{": 1, "}": -1}.get(token[0], 0)
        if depth == 0:
            return header[opening.end() : opening.end() + token.end()]
    return "{}"


def _dictionary(attribute: Any) -> dict[str, Any]:
    dictionary = ir.DictAttr(attribute)
    return {dictionary[i].name: dictionary[i].attr for i in range(len(dictionary))}


def _decode(attribute: Any) -> Any:
    """An attribute as a Python value: numbers, strings, tuples, NumPy arrays; text for the others."""
    attribute = attribute.maybe_downcast() if hasattr(attribute, "maybe_downcast") else attribute
    match attribute:
        case ir.UnitAttr():
            return True
        case ir.BoolAttr() | ir.IntegerAttr() | ir.FloatAttr() | ir.StringAttr() | ir.FlatSymbolRefAttr():
            return attribute.value
        case (
            ir.DenseI32ArrayAttr() | ir.DenseI64ArrayAttr() | ir.DenseI8ArrayAttr() | ir.DenseBoolArrayAttr()
        ):
            return tuple(attribute[i] for i in range(len(attribute)))
        case ir.DenseElementsAttr():
            return _dense(attribute)
        case _:
            return str(attribute)


def _dense(attribute: Any) -> np.ndarray[Any, Any] | str:
    """A dense constant. MLIR's buffer protocol knows no 8 and no brain 16 bit floats: those come
    from their splat value, and one that is no splat stays text."""
    kind = _type(str(attribute.type))
    if attribute.is_splat:
        scalar = _decode(attribute.get_splat_value())
        return np.broadcast_to(np.asarray(scalar, kind.dtype), kind.shape)
    if kind.element in ("i1", "i8", "i16", "i32", "i64", "f16", "f32", "f64"):
        return np.array(attribute)
    return str(attribute)
