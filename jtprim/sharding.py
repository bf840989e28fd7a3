"""Sharding rules: which named axes the arrays of a launch have, and how a mesh divides these.

A rule names the axes of every operand and result; an axis that all results have, or that is summed over, can
be divided among devices. Nothing here touches a device: shapes and mesh axes in, sizes and mesh axes out.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from jax.experimental.custom_partitioning import BATCHING, ArrayMapping, CompoundFactor, SdyShardingRule

from jtprim import compat
from jtprim.errors import LaunchTypeError, LaunchValueError, did_you_mean, listing

# The named axes of one array's axis: one, or several where the axis is their product, the slowest first.
Factors: TypeAlias = tuple[str, ...]
# The factors of each axis of one array.
Mapped: TypeAlias = tuple[Factors, ...]
# Mesh axes by the named axis that they divide, in order, the slowest first.
Assignment: TypeAlias = dict[str, tuple[str, ...]]

_OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
}


# --- Numbers that depend on a shard ------------------------------------------------------------


@dataclass(frozen=True)
class AxisSize:
    """What `axis_size` returns, and what is computed of it: a number that each shard has its own of.

    Attributes:
      operation: ``"size"`` of the named axis `left`, or an operator.
      left, right: its operands.
    """

    operation: str
    left: Any
    right: Any = None

    def value(self, sizes: Mapping[str, int]) -> int:
        """The number for axes of these sizes; a KeyError for an axis that isn't among them."""
        if self.operation == "size":
            return sizes[self.left]
        left, right = (
            part.value(sizes) if isinstance(part, AxisSize) else part for part in (self.left, self.right)
        )
        return _OPERATIONS[self.operation](left, right)

    def __repr__(self) -> str:
        if self.operation == "size":
            return f"jt.axis_size({self.left!r})"
        return f"({self.left!r} {self.operation} {self.right!r})"

    def __add__(self, other: int | AxisSize) -> AxisSize:
        return AxisSize("+", self, other)

    def __radd__(self, other: int) -> AxisSize:
        return AxisSize("+", other, self)

    def __sub__(self, other: int | AxisSize) -> AxisSize:
        return AxisSize("-", self, other)

    def __rsub__(self, other: int) -> AxisSize:
        return AxisSize("-", other, self)

    def __mul__(self, other: int | AxisSize) -> AxisSize:
        return AxisSize("*", self, other)

    def __rmul__(self, other: int) -> AxisSize:
        return AxisSize("*", other, self)

    def __floordiv__(self, other: int | AxisSize) -> AxisSize:
        return AxisSize("//", self, other)

    def __mod__(self, other: int | AxisSize) -> AxisSize:
        return AxisSize("%", self, other)


def axis_size(*names: str) -> AxisSize:
    """The size of a named axis of the launch's `sharding_rule`, or the product of several.

    Stands for a number in the arguments and the grid of that launch. Where the launch is divided among
    devices, each has the size of its own shard; elsewhere it is the whole axis. Sums, products, ``//`` and
    ``%`` with ints are numbers of the same kind, and so is `cdiv`.

        n = jt.axis_size("b", "i")
        add[(jt.cdiv(n, 1024),)](x, y, n=n, BLOCK=1024, out_shape=x, sharding_rule="b i, b i -> b i")

    Args:
      *names: of axes; at least one.

    Raises:
      TypeError: no name is given, or one is no string.
    """
    if not names or not all(isinstance(name, str) for name in names):
        raise TypeError(f"jt.axis_size got {names!r}; expected the names of axes in the sharding_rule.")
    first, *rest = (AxisSize("size", name) for name in names)
    return math.prod(rest, start=first)  # type: ignore[call-overload, no-any-return]


def with_sizes(value: Any, sizes: Mapping[str, int], *, kernel: str, parameter: str) -> Any:
    """An argument or a grid with numbers in place of every `AxisSize`.

    Raises:
      LaunchValueError: one names an axis that isn't in `sizes`.
    """
    if isinstance(value, AxisSize):
        try:
            return value.value(sizes)
        except KeyError as error:
            [name] = error.args
            raise LaunchValueError(
                f"{parameter!r} asks for the size of axis {name!r}, which the sharding_rule doesn't have; it "
                f"has {listing(sizes)}.{did_you_mean(name, sizes)}",
                kernel=kernel,
                parameter=parameter,
            ) from error
    if isinstance(value, (tuple, list)):
        children = [with_sizes(child, sizes, kernel=kernel, parameter=parameter) for child in value]
        return type(value)(*children) if hasattr(value, "_fields") else type(value)(children)
    return value


def has_sizes(value: Any) -> bool:
    """Whether an `AxisSize` stands anywhere in an argument or a grid."""
    if isinstance(value, (tuple, list)):
        return any(map(has_sizes, value))
    return isinstance(value, AxisSize)


# --- Rules -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rule:
    """A sharding rule for arrays of known shapes.

    Attributes:
      operands, results: the named axes of each array, those of an ellipsis too.
      sizes: of the named axes, in the order in which they come up.
      reductions: axes over which each shard's results are summed.
      whole: axes that are never divided.
    """

    operands: tuple[Mapped, ...]
    results: tuple[Mapped, ...]
    sizes: tuple[tuple[str, int], ...]
    reductions: frozenset[str] = frozenset()
    whole: frozenset[str] = frozenset()

    def __repr__(self) -> str:
        operands, results = (", ".join(map(_mapped_text, side)) for side in (self.operands, self.results))
        return f"'{operands} -> {results}'"

    def divisible(self) -> Iterator[str]:
        """The axes that may be divided: all results have them, or are summed over them."""
        for name, _ in self.sizes:
            everywhere = all(any(name in factors for factors in result) for result in self.results)
            if name not in self.whole and (everywhere or name in self.reductions):
                yield name

    def shard_sizes(self, assignment: Assignment, mesh: Mapping[str, int]) -> dict[str, int]:
        """The sizes of the named axes on each device."""
        return {
            name: size // math.prod(mesh[axis] for axis in assignment.get(name, ()))
            for name, size in self.sizes
        }

    def assign(self, specs: Sequence[tuple[Mapped, Sequence[Any]]], mesh: Mapping[str, int]) -> Assignment:
        """Which mesh axes divide which named axes, from how single arrays are divided.

        A mesh axis divides one named axis at most, the first that asks for it. A named axis is divided
        evenly or not at all.

        Args:
          specs: of arrays, the more important first, its named axes and its partition spec.
          mesh: sizes of the mesh's axes.
        """
        left = {name: size for name, size in self.sizes if name in set(self.divisible())}
        found: Assignment = {}
        taken: set[str] = set()
        for mapped, spec in specs:
            fixed = set(found)  # an earlier array has had its say
            for factors, entry in zip(mapped, spec, strict=False):
                names = iter(factors)
                name = next(names, None)
                for axis in _mesh_axes(entry):
                    while name is not None and left.get(name) == 1 and name in found:
                        name = next(names, None)
                    divides = name in left and left[name] % mesh[axis] == 0
                    if name is None or not divides or name in fixed or axis in taken:
                        break  # what comes after would be in other chunks
                    found[name] = (*found.get(name, ()), axis)
                    left[name] //= mesh[axis]
                    taken.add(axis)
        return self._contiguous(found, left)

    def _contiguous(self, found: Assignment, left: Mapping[str, int]) -> Assignment:
        """Without what would divide an array's axis into chunks that aren't contiguous."""
        for mapped in (*self.operands, *self.results):
            for factors in mapped:
                divided = True
                for name in factors:
                    if name in found and not divided:
                        return self._contiguous({k: v for k, v in found.items() if k != name}, left)
                    divided = divided and name in found and left[name] == 1
        return found

    def with_batch(self, batched: Sequence[bool], size: int) -> Rule:
        """The rule of a batch of launches, along the first axis of all results and of some operands."""
        taken = {name for name, _ in self.sizes}
        name = next(one for number in range(len(taken) + 1) if (one := f"batch{number}") not in taken)
        return replace(
            self,
            operands=tuple(
                ((name,), *mapped) if moves else mapped
                for mapped, moves in zip(self.operands, batched, strict=True)
            ),
            results=tuple(((name,), *mapped) for mapped in self.results),
            sizes=((name, size), *self.sizes),
        )

    def to_jax(self) -> SdyShardingRule:
        """The rule as JAX takes it; axes that can't be divided need replication."""
        short = {name: f"f{number}" for number, (name, _) in enumerate(self.sizes)}
        divisible = set(self.divisible())

        def mapping(mapped: Mapped) -> ArrayMapping:
            return ArrayMapping(
                *(
                    short[factors[0]] if len(factors) == 1 else CompoundFactor(*map(short.get, factors))
                    for factors in mapped
                )
            )

        alone = {
            factors[0]
            for mapped in (*self.operands, *self.results)
            for factors in mapped
            if len(factors) == 1
        }
        sizes: dict[str, Any] = {short[name]: size for name, size in self.sizes if name not in alone}
        return SdyShardingRule(
            tuple(map(mapping, self.operands)),
            tuple(map(mapping, self.results)),
            reduction_factors=tuple(short[name] for name, _ in self.sizes if name in self.reductions),
            need_replication_factors=tuple(short[name] for name, _ in self.sizes if name not in divisible),
            **sizes,
        )


def _mesh_axes(entry: Any) -> tuple[str, ...]:
    if entry is None or not isinstance(entry, (str, tuple)):
        return ()
    return (entry,) if isinstance(entry, str) else entry


def _mapped_text(mapped: Mapped) -> str:
    return " ".join(one[0] if len(one) == 1 else f"({' '.join(one)})" for one in mapped)


def spec_of(mapped: Mapped, assignment: Assignment) -> tuple[tuple[str, ...] | None, ...]:
    """The partition spec of one array."""
    axes = (tuple(axis for name in factors for axis in assignment.get(name, ())) for factors in mapped)
    return tuple(names or None for names in axes)


def shape_of(mapped: Mapped, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The shape of one array, for axes of these sizes."""
    return tuple(math.prod(sizes[name] for name in factors) for factors in mapped)


# --- From what a launch says to a rule ---------------------------------------------------------


def parse_rule(declared: Any, *, kernel: str) -> SdyShardingRule:
    """A launch's `sharding_rule` as JAX has it.

    Args:
      declared: text, an `SdyShardingRule`, or text and a mapping with what JAX takes beside it:
        `reduction_factors`, `need_replication_factors`, and sizes of axes that stand in brackets only.
      kernel: the kernel's name, for messages.

    Raises:
      LaunchTypeError: it is something else.
      LaunchValueError: JAX refuses it.
    """
    if isinstance(declared, SdyShardingRule):
        return declared
    text, more = declared if isinstance(declared, tuple) and len(declared) == 2 else (declared, {})
    if not isinstance(text, str) or not isinstance(more, Mapping):
        raise LaunchTypeError(
            f"sharding_rule is {declared!r}; expected text such as 'b i, b i -> b i', a pair of that and a "
            "mapping such as {'need_replication_factors': ('i',)}, or a SdyShardingRule.",
            kernel=kernel,
        )
    more = {key: tuple(value) if isinstance(value, (list, tuple)) else value for key, value in more.items()}
    try:
        return compat.parse_sharding_rule(text, **more)
    except (ValueError, TypeError) as error:
        raise LaunchValueError(
            f"sharding_rule {text!r} is refused: {str(error).rstrip('.')}; name the axes of each array, such "
            "as 'b i, b i -> b i'.",
            kernel=kernel,
        ) from error


def bind_rule(
    parsed: SdyShardingRule,
    operands: Sequence[tuple[str, Sequence[int]]],
    results: Sequence[tuple[str, Sequence[int]]],
    *,
    kernel: str,
) -> Rule:
    """The rule for arrays of known shapes.

    Args:
      parsed: as JAX has it. Operands without axes may be left out.
      operands, results: what each is called, and its shape.
      kernel: the kernel's name, for messages.

    Raises:
      LaunchValueError: the rule has another number of arrays, or of an array's axes; or sizes differ.
    """
    sizes = dict(parsed.factor_sizes)
    products: list[tuple[Factors, int, str]] = []
    mappings = list(parsed.operand_mappings)
    if len(mappings) == sum(bool(shape) for _, shape in operands):
        left = iter(mappings)
        mappings = [next(left) if shape else ArrayMapping() for _, shape in operands]

    def refuse(reason: str) -> LaunchValueError:
        return LaunchValueError(f"its sharding_rule {reason}.", kernel=kernel)

    def bound(
        kind: str, mappings: Sequence[Any], arrays: Sequence[tuple[str, Sequence[int]]]
    ) -> tuple[Any, ...]:
        if len(mappings) != len(arrays):
            names = listing(name for name, _ in arrays)
            raise refuse(f"has {len(mappings)} {kind}, but the launch has {len(arrays)}: {names}")
        return tuple(
            expanded(mapping, name, tuple(shape))
            for mapping, (name, shape) in zip(mappings, arrays, strict=True)
        )

    def expanded(mapping: Any, name: str, shape: tuple[int, ...]) -> Mapped:
        axes = [tuple(axis) if isinstance(axis, tuple) else (axis,) for axis in mapping]
        if axes and axes[0][0].startswith(BATCHING):
            group = axes.pop(0)[0][len(BATCHING) :] or "0"
            axes = [(f"...{group}[{i}]",) for i in range(len(shape) - len(axes))] + axes
        if len(axes) != len(shape):
            raise refuse(f"gives {name!r} {len(axes)} axes, but its shape is {shape}")
        for factors, size in zip(axes, shape, strict=True):
            if len(factors) == 1:
                known = sizes.setdefault(factors[0], size)
                if known != size:
                    raise refuse(f"has axis {factors[0]!r} of {size} in {name!r} and of {known} elsewhere")
            else:
                products.append((factors, size, name))
        return tuple(axes)

    found = bound("operands", mappings, operands), bound("results", parsed.result_mappings, results)
    for factors, size, name in products:
        if math.prod(sizes[one] for one in factors) != size:
            raise refuse(f"has axis ({' '.join(factors)}) of {size} in {name!r}, which is no such product")
    reductions = frozenset(parsed.reduction_factors)
    for name in reductions:
        if any(name in factors for mapped in found[1] for factors in mapped):
            raise refuse(f"sums over axis {name!r}, which a result has")
    whole = frozenset((*parsed.need_replication_factors, *parsed.permutation_factors))
    return Rule(*found, tuple(sizes.items()), reductions, whole)
