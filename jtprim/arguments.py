"""Argument trees: what a launch passes for each of the kernel's parameters.

A tree has a slot where each array goes (`Operand`, `Output`), a `Static` for every other value, and a
`Branch` for each tuple. It is hashable and compares as Triton's specialization does: ``1``, ``1.0`` and
``True`` are three different arguments. The same walk serves the launch, the specialization and the
lowering.
"""

from __future__ import annotations

import enum
import math
import struct
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import numpy as np
from triton import language as tl
from triton._utils import type_canonicalisation_dict
from triton.runtime.jit import JITCallable

from jtprim.descriptors import ByValue, TensorDescriptor
from jtprim.errors import LaunchTypeError, LaunchValueError, did_you_mean, listing
from jtprim.specialize.kernel import cache_key

Path = tuple[int, ...]
# The name of a parameter, its position in the signature, or a path that starts with either.
Coordinate = str | int | tuple[str | int, ...]


@dataclass(frozen=True)
class View:
    """How a tensor descriptor sees the array that it is made of: `TensorDescriptor` without its base."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    block_shape: tuple[int, ...]
    layout: Any
    padding: str
    round_f32_to_tf32: bool


@dataclass(frozen=True)
class Operand:
    """Slot of an array that the launch passes: an operand of the equation.

    Attributes:
      index: of the operand.
      view: set where the kernel gets a tensor descriptor of the array in place of a pointer to it.
      by_value: whether the kernel gets the array's one element in place of a pointer to it.
      strides: of a batched launch, elements from one program's array to the next one's, for each of the
        batch's axes; 0 for an array that they share.
    """

    index: int
    view: View | None = None
    by_value: bool = False
    strides: tuple[int, ...] = ()

    def __repr__(self) -> str:
        return f"operand {self.index}"


@dataclass(frozen=True)
class Output:
    """Slot of an array that the kernel only writes: a result of the equation.

    Attributes:
      index: of the output.
      view, strides: as an `Operand`'s.
    """

    index: int
    view: View | None = None
    strides: tuple[int, ...] = ()

    def __repr__(self) -> str:
        return f"output {self.index}"


@dataclass(frozen=True)
class Batching:
    """How a batched launch spreads over the grid.

    Attributes:
      axis: of the grid.
      sizes: the batch's extents, outermost first; along `axis` run as many times the programs of one launch
        as their product, all of one launch before those of the next.
      folded: whether a launch itself may have other than one program along `axis`.
    """

    axis: int
    sizes: tuple[int, ...]
    folded: bool = False

    @property
    def size(self) -> int:
        return math.prod(self.sizes)

    def grid(self, grid: tuple[int, int, int]) -> tuple[int, int, int]:
        """The grid of all launches together, from that of one."""
        x, y, z = (self.size * size if axis == self.axis else size for axis, size in enumerate(grid))
        return x, y, z


@dataclass(frozen=True, eq=False)
class Static:
    """An argument that JAX does not trace, compared by type and value."""

    value: Any

    @cached_property
    def _identity(self) -> Hashable:
        return static_identity(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Static) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    def __repr__(self) -> str:
        return self.value.__name__ if isinstance(self.value, JITCallable) else repr(self.value)


@dataclass(frozen=True)
class Branch:
    """A tuple of arguments; `type` is `tuple`, or the NamedTuple that the kernel sees."""

    children: tuple[Tree, ...]
    type: type = tuple

    def build(self, values: Sequence[Any]) -> Any:
        """A tuple of this branch's type that holds `values`."""
        return tuple(values) if self.type is tuple else self.type(*values)

    def __repr__(self) -> str:
        return f"({', '.join(map(repr, self.children))})"


Slot = Operand | Output
Leaf = Operand | Output | Static
Tree = Operand | Output | Static | Branch


def static_identity(value: Any) -> Hashable:
    """A hashable stand-in for a static value that is equal only for indistinguishable values.

    Floats compare by their bits: -0.0 is not 0.0, and a NaN is equal to itself.

    Raises:
      TypeError: the value, or one inside it, can't be hashed.
    """
    if isinstance(value, float):
        return (float, struct.pack("<d", value))
    if isinstance(value, tl.constexpr):
        return (tl.constexpr, static_identity(value.value))
    if isinstance(value, (tuple, list)):
        return (type(value), tuple(map(static_identity, value)))
    if isinstance(value, dict):
        return (dict, tuple((static_identity(k), static_identity(v)) for k, v in value.items()))
    if isinstance(value, JITCallable):
        cache_key(value)  # its hash
    hash(value)
    return (type(value), value)


# --- Telling the kinds of argument apart -------------------------------------------------------


def is_array(value: Any) -> bool:
    """Whether an argument is an operand: an array or a tracer, or an abstract array."""
    return isinstance(value, (jax.Array, np.ndarray, jax.ShapeDtypeStruct))


def base_array(value: Any) -> Any:
    """The array behind a tensor descriptor or a number passed by value; any other argument itself."""
    if isinstance(value, ByValue):
        return value.array
    return value.base if isinstance(value, TensorDescriptor) else value


def is_namedtuple(value: Any) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_fields")


def as_static(value: Any, *, kernel: str, parameter: str) -> Static:
    """The `Static` for an argument that is no array, in the form that Triton's binder takes.

    NumPy scalars become Python scalars of the same value; strings, dtypes and enums, which Triton takes
    for constexpr parameters alone, become constexprs.

    Raises:
      LaunchTypeError: Triton has no meaning for the value.
      LaunchValueError: an integer is below -2^63 or above 2^64-1.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, enum.IntEnum):
        value = int(value)
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        raise LaunchValueError(
            f"argument {parameter!r} is {value}, outside Triton's integers of -2^63 to 2^64-1.",
            kernel=kernel,
            parameter=parameter,
        )
    if isinstance(value, (str, tl.dtype, enum.Enum)):
        value = tl.constexpr(value)
    if value is None or isinstance(value, (bool, int, float, tl.constexpr, JITCallable)):
        return Static(value)
    raise LaunchTypeError(
        f"argument {parameter!r} is a {type(value).__name__}, which no kernel parameter takes; pass an "
        "array, a number, a string, a dtype, a jit function, None, or a tuple of these.",
        kernel=kernel,
        parameter=parameter,
    )


def as_constexpr(value: Any, *, kernel: str, parameter: str) -> Static:
    """The `Static` for an argument of a parameter annotated as ``tl.constexpr``.

    Raises:
      LaunchTypeError: the value is an array, or can't be hashed.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if is_array(value):
        raise LaunchTypeError(
            f"argument {parameter!r} is an array of shape {value.shape}, but the parameter is a constexpr; "
            "pass a Python value, under jax.jit through static_argnames.",
            kernel=kernel,
            parameter=parameter,
        )
    try:
        static_identity(value)
    except TypeError as error:
        raise LaunchTypeError(
            f"argument {parameter!r} is a {type(value).__name__} that can't be hashed; a constexpr is part "
            "of the compiled kernel's key, so pass a hashable value.",
            kernel=kernel,
            parameter=parameter,
        ) from error
    return Static(value)


def check_dtype(dtype: Any, *, kernel: str, parameter: str) -> None:
    """Checks that Triton has a pointer type for arrays of `dtype`.

    Raises:
      LaunchTypeError: it has none (complex, 2- and 4-bit numbers, keys, some float8 variants).
    """
    if str(dtype) in type_canonicalisation_dict:
        return
    remedy = {"c": "pass its real and imaginary parts", "i": "convert it to int8", "u": "convert it to uint8"}
    kind = str(dtype)[:1]
    raise LaunchTypeError(
        f"argument {parameter!r} has dtype {dtype}, which Triton has no type for; "
        f"{remedy.get(kind, 'convert it first')}.",
        kernel=kernel,
        parameter=parameter,
    )


# --- Building and walking ----------------------------------------------------------------------


def build_tree(value: Any, slot: Callable[[Any, Path], Slot | None], leaf: Callable[[Any], Static]) -> Tree:
    """The tree of one argument.

    Args:
      value: what the launch passes: tuples and lists, nested, of arrays and static values.
      slot: gives an array's slot from the array and its path below the parameter, or None for a value
        that is no array.
      leaf: makes the `Static` of every other value.
    """

    def build(value: Any, path: Path) -> Tree:
        found = slot(value, path)
        if found is not None:
            return found
        if isinstance(value, (tuple, list)):
            children = tuple(build(child, (*path, i)) for i, child in enumerate(value))
            return Branch(children, type(value) if is_namedtuple(value) else tuple)
        return leaf(value)

    return build(value, ())


def map_tree(function: Callable[[Leaf], Any], tree: Tree) -> Any:
    """`function` of each leaf, in tuples of the tree's structure."""
    if isinstance(tree, Branch):
        return tree.build([map_tree(function, child) for child in tree.children])
    return function(tree)


def leaves(tree: Tree) -> Iterator[Leaf]:
    """The leaves from left to right: the order of the compiled kernel's own parameters."""
    if isinstance(tree, Branch):
        for child in tree.children:
            yield from leaves(child)
    else:
        yield tree


def leaves_with_paths(tree: Tree, path: Path = ()) -> Iterator[tuple[Path, Leaf]]:
    """Like `leaves`, each with its path below the tree's root."""
    if isinstance(tree, Branch):
        for index, child in enumerate(tree.children):
            yield from leaves_with_paths(child, (*path, index))
    else:
        yield path, tree


def with_block_shapes(
    arguments: Sequence[Tree], names: Sequence[str], block_shapes: Sequence[tuple[NormalCoordinate, Path]]
) -> tuple[Tree, ...]:
    """Arguments with the block shapes that a configuration sets for their descriptors.

    Args:
      arguments: one tree for each of the parameters `names`.
      block_shapes: coordinate -> block shape.
    """
    found = dict(block_shapes)

    def replaced(tree: Tree, coordinate: NormalCoordinate) -> Tree:
        if isinstance(tree, Branch):
            children = [replaced(child, (*coordinate, i)) for i, child in enumerate(tree.children)]
            return replace(tree, children=tuple(children))
        if isinstance(tree, (Operand, Output)) and tree.view and coordinate in found:
            return replace(tree, view=replace(tree.view, block_shape=found[coordinate]))
        return tree

    if not found:
        return tuple(arguments)
    return tuple(replaced(tree, (name,)) for name, tree in zip(names, arguments, strict=True))


# --- Coordinates -------------------------------------------------------------------------------

NormalCoordinate = tuple[str, *Path]


def coordinate_text(coordinate: NormalCoordinate) -> str:
    """``x`` or ``pair[0][1]``, for messages and jaxprs."""
    name, *path = coordinate
    return f"{name}" + "".join(f"[{index}]" for index in path)


def normalize_coordinate(
    coordinate: Coordinate, names: Sequence[str], *, kernel: str, setting: str
) -> NormalCoordinate:
    """A coordinate as (parameter name, index, index, ...).

    Args:
      coordinate: a name, a position in the signature, or a path that starts with either.
      names: the kernel's parameters.
      kernel, setting: the kernel and the setting that the coordinate stands in, for messages.

    Raises:
      LaunchValueError: it names no parameter.
      LaunchTypeError: it is no coordinate.
    """
    path = coordinate if isinstance(coordinate, tuple) else (coordinate,)
    head, *rest = path or (None,)
    if (
        isinstance(head, bool)
        or not isinstance(head, (int, str))
        or not all(isinstance(i, int) for i in rest)
    ):
        raise LaunchTypeError(
            f"{setting} has {coordinate!r} for a coordinate; expected a parameter's name, its position, or "
            "a path such as ('pair', 0).",
            kernel=kernel,
        )
    if isinstance(head, int):
        if not 0 <= head < len(names):
            raise LaunchValueError(
                f"{setting} has position {head}, but the kernel has {len(names)} parameters.", kernel=kernel
            )
        head = names[head]
    if head not in names:
        raise LaunchValueError(
            f"{setting} names {head!r}, which is no parameter; parameters are {listing(names)}."
            f"{did_you_mean(head, names)}",
            kernel=kernel,
            parameter=head,
        )
    return (head, *(int(i) for i in rest))
