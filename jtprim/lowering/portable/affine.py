"""What is known of a value before anything is emitted: affine integers, boxes of lanes, addresses.

A domain for abstract evaluation (`analysis.py`), with one small rule for each operation that keeps
something known. `None` is "unknown". What is known is exact, except that a `Box` may be too large.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from jtprim.specialize.reader import Operation, Type, Variable

Array = np.ndarray[Any, Any]


@dataclasses.dataclass(frozen=True, eq=False)
class Affine:
    """``base + sum(strides[d] * lane[d])``, plus the unknown start of a loop-carried value.

    Attributes:
      base: int64, broadcastable to (innermost loop, ..., outermost loop, program).
      strides: one for each dimension of the tensor; empty for a scalar.
      origin: the loop-carried variable whose initial value is to be added, if any.
    """

    base: Array
    strides: tuple[int, ...] = ()
    origin: Variable | None = None

    @property
    def uniform(self) -> int | None:
        """The number that this is in all lanes, programs and iterations, if there is one."""
        if self.origin is not None or any(self.strides):
            return None
        first = int(self.base.flat[0])
        return first if (self.base == first).all() else None


@dataclasses.dataclass(frozen=True, eq=False)
class Box:
    """A mask that is false outside ``lower[d] <= lane[d] < upper[d]``. Bounds are like `Affine.base`."""

    lower: tuple[Array, ...]
    upper: tuple[Array, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Place:
    """Where in one parameter's buffer a pointer may point.

    Attributes:
      offset: in elements, if known.
      where: the programs and iterations in which it may, like `Affine.base`; None is all of them.
    """

    offset: Affine | None
    where: Array | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Address:
    """A pointer: its place in the buffer of each parameter that it may point into."""

    places: Mapping[int, Place]

    @property
    def offset(self) -> Affine | None:
        """The offset of a pointer into one buffer alone, if known."""
        return next(iter(self.places.values())).offset if len(self.places) == 1 else None

    def moved(self, move: Callable[[Affine], Abstract]) -> Address:
        """With other offsets, where they were known and `move` says."""
        return Address({p: _moved_place(place, move) for p, place in self.places.items()})


def _moved_place(place: Place, move: Callable[[Affine], Abstract]) -> Place:
    offset = None if place.offset is None else move(place.offset)
    return Place(offset if isinstance(offset, Affine) else None, place.where)


INTEGERS = ("i1", "i8", "i16", "i32", "i64", "index")

Known = Affine | Box | Address
Abstract = Known | None


def bits(kind: Type) -> int:
    return 1 if kind.element == "i1" else kind.dtype.itemsize * 8


def signed(value: int, kind: Type) -> int:
    """`value` as the signed number that its bits are; ``i1`` is 0 or 1."""
    width = bits(kind)
    value &= (1 << width) - 1
    return value - (1 << width) if width > 1 and value >> (width - 1) else value


# --- Joining what is known ----------------------------------------------------------------------


def scalar_mask(value: Abstract) -> Array | None:
    """A condition that is the same in all lanes, over programs and iterations."""
    if isinstance(value, Affine) and value.origin is None and not any(value.strides):
        return value.base != 0
    return None


def meet(*values: Abstract) -> Abstract:
    """What is known of a value that is one of several."""
    first = values[0]
    return first if all(_same(first, value) for value in values) else shared(values)


def _same(one: Abstract, other: Abstract) -> bool:
    if one is other:
        return True
    match one, other:
        case Affine(), Affine():
            return (one.strides, one.origin) == (other.strides, other.origin) and np.array_equal(
                one.base, other.base
            )
        case Address(), Address():
            return one.places.keys() == other.places.keys() and all(
                _same(place.offset, other.places[p].offset) and place.where is other.places[p].where
                for p, place in one.places.items()
            )
        case _:
            return False


def shared(values: Sequence[Abstract]) -> Abstract:
    """A pointer to somewhere in what the pointers among `values` point into; None if there is none."""
    parameters = {p for value in values if isinstance(value, Address) for p in value.places}
    return anywhere(parameters) if parameters else None


def anywhere(parameters: Iterable[int]) -> Address:
    """A pointer to an unknown place in one of some buffers."""
    return Address(dict.fromkeys(parameters, Place(None)))


def unknown(kind: Type, operands: Sequence[Abstract]) -> Abstract:
    """An unknown result; a pointer still has its parameters."""
    return shared(operands) if kind.pointer else None


def forget(value: Abstract) -> Abstract:
    return anywhere(value.places) if isinstance(value, Address) else None


def choose(condition: Array | None, one: Abstract, other: Abstract) -> Abstract:
    """A select whose condition, the same in all lanes, is known or not."""
    if _same(one, other):
        return one
    if condition is not None and (condition.all() or not condition.any()):
        return one if condition.all() else other
    match one, other:
        case Address(), Address():
            parameters = one.places.keys() | other.places.keys()
            return Address(
                {p: _choose_place(condition, one.places.get(p), other.places.get(p)) for p in parameters}
            )
        case Affine(), Affine() if (
            condition is not None and one.strides == other.strides and one.origin is other.origin is None
        ):
            return Affine(np.where(condition, one.base, other.base), one.strides)
        case _:
            return shared((one, other))


def _choose_place(condition: Array | None, one: Place | None, other: Place | None) -> Place:
    """The place in one buffer of a pointer that is one of two, of which one may never point into it."""
    if one is not None and other is not None:
        offset = choose(condition, one.offset, other.offset)
        return Place(offset if isinstance(offset, Affine) else None, _either(one.where, other.where))
    place, chosen = (
        (one, condition) if one is not None else (other, None if condition is None else ~condition)
    )
    assert place is not None
    return Place(place.offset, conjunction(place.where, chosen))


def _either(one: Array | None, other: Array | None) -> Array | None:
    return None if one is None or other is None else np.logical_or(one, other)


def conjunction(one: Array | None, other: Array | None) -> Array | None:
    """Of conditions that are the same in all lanes; None is "may be true"."""
    if one is None or other is None:
        return other if one is None else one
    return np.logical_and(one, other)


# --- Rules: arithmetic --------------------------------------------------------------------------

Rule = Callable[..., Abstract]
RULES: dict[str, Rule] = {}


def _rule(*names: str) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


def in_range(value: Abstract, kind: Type) -> Abstract:
    """`value`, unless its type is too narrow for it: wrapping is not followed."""
    if isinstance(value, Affine) and value.base.size and kind.element in INTEGERS and not kind.pointer:
        bound = 2 if kind.element == "i1" else 1 << (bits(kind) - 1)
        if int(value.base.min()) < -bound or int(value.base.max()) >= bound:
            return None
    return value


def _lanewise(function: Callable[..., Array]) -> Rule:
    """A rule for integers that are the same in all lanes, from the NumPy function."""

    def rule(operation: Operation, *operands: Abstract) -> Abstract:
        if all(isinstance(o, Affine) and o.origin is None and not any(o.strides) for o in operands):
            value = function(*(o.base for o in operands))  # type: ignore[union-attr]
            return Affine(value.astype(np.int64), (0,) * len(operation.results[0].type.shape))
        return None

    return rule


def _nonzero(function: Callable[[Array, Array], Array]) -> Rule:
    """As `_lanewise`, for a division: nothing is known of a division by zero."""
    lanewise = _lanewise(function)

    def rule(operation: Operation, one: Abstract, other: Abstract) -> Abstract:
        if isinstance(other, Affine) and (other.base == 0).any():
            return None
        return lanewise(operation, one, other)

    return rule


def _unsigned(rule: Rule) -> Rule:
    """As `rule`, which is for signed integers, where no operand is negative."""

    def unsigned(operation: Operation, *operands: Abstract) -> Abstract:
        if any(isinstance(operand, Affine) and (operand.base < 0).any() for operand in operands):
            return None
        return rule(operation, *operands)

    return unsigned


def _divide(one: Array, other: Array) -> Array:
    """Integer division that truncates toward zero."""
    return np.sign(one) * np.sign(other) * (np.abs(one) // np.abs(other))


RULES.update(
    {
        "arith.divsi": _nonzero(_divide),
        "arith.divui": _unsigned(_nonzero(_divide)),
        "arith.minsi": _lanewise(np.minimum),
        "arith.maxsi": _lanewise(np.maximum),
        "arith.minui": _unsigned(_lanewise(np.minimum)),
        "arith.maxui": _unsigned(_lanewise(np.maximum)),
        "arith.ori": _lanewise(np.bitwise_or),
    }
)


@_rule("arith.remsi")
def _remainder(operation: Operation, one: Abstract, other: Abstract) -> Abstract:
    modulus = other.uniform if isinstance(other, Affine) else None
    if isinstance(one, Affine) and one.origin is None and modulus is not None and modulus > 0:
        low, high = extremes(one, operation.results[0].type.shape)
        if low >= 0 and high < modulus:
            return one
    return _nonzero(np.fmod)(operation, one, other)


RULES["arith.remui"] = _unsigned(_remainder)


def extremes(value: Affine, shape: Sequence[int]) -> tuple[int, int]:
    """The least and the greatest value over all lanes, programs and iterations."""
    reach = [stride * (extent - 1) for stride, extent in zip(value.strides, shape, strict=True)]
    low, high = int(value.base.min()), int(value.base.max())
    return low + sum(r for r in reach if r < 0), high + sum(r for r in reach if r > 0)


@_rule("arith.shli")
def _shift_left(operation: Operation, one: Abstract, other: Abstract) -> Abstract:
    amount = other.uniform if isinstance(other, Affine) else None
    if amount is None or not 0 <= amount < 62:
        return None
    return _multiply(operation, one, Affine(np.array([1 << amount])))


@_rule("arith.shrsi")
def _shift_right(operation: Operation, one: Abstract, other: Abstract) -> Abstract:
    if isinstance(other, Affine) and ((other.base < 0) | (other.base > 62)).any():
        return None
    return _lanewise(np.right_shift)(operation, one, other)


RULES["arith.shrui"] = _unsigned(_shift_right)


@_rule("arith.andi")
def _and(operation: Operation, one: Abstract, other: Abstract) -> Abstract:
    boxes = [value for value in (one, other) if isinstance(value, Box)]
    if len(boxes) == 2:
        lower = tuple(np.maximum(a, b) for a, b in zip(boxes[0].lower, boxes[1].lower, strict=True))
        upper = tuple(np.minimum(a, b) for a, b in zip(boxes[0].upper, boxes[1].upper, strict=True))
        return Box(lower, upper)
    # A conjunction is nowhere true where one side is not.
    return boxes[0] if boxes else _lanewise(np.bitwise_and)(operation, one, other)


@_rule("arith.xori")
def _xor(operation: Operation, one: Abstract, other: Abstract) -> Abstract:
    return _lanewise(np.bitwise_xor)(operation, one, other)


@_rule("arith.constant")
def _constant(operation: Operation) -> Abstract:
    kind, value = operation.results[0].type, operation.attributes["value"]
    if kind.element not in INTEGERS or isinstance(value, str):
        return None
    value = np.asarray(value)
    if not (value == value.flat[0]).all():
        return None
    return Affine(np.array([signed(int(value.flat[0]), kind)], np.int64), (0,) * len(kind.shape))


@_rule("arith.addi")
def _add(operation: Operation, one: Abstract, other: Abstract) -> Abstract:
    return None if operation.results[0].type.element == "i1" else _sum(one, other)


@_rule("arith.subi")
def _subtract(operation: Operation, one: Abstract, other: Abstract) -> Abstract:
    return None if operation.results[0].type.element == "i1" else _difference(one, other)


def _sum(one: Abstract, other: Abstract) -> Affine | None:
    if not (isinstance(one, Affine) and isinstance(other, Affine)) or (one.origin and other.origin):
        return None
    strides = tuple(a + b for a, b in zip(one.strides, other.strides, strict=True))
    return Affine(one.base + other.base, strides, one.origin or other.origin)


def _difference(one: Abstract, other: Abstract) -> Affine | None:
    if not isinstance(other, Affine) or other.origin:
        return None
    return _sum(one, Affine(-other.base, tuple(-stride for stride in other.strides)))


@_rule("arith.muli")
def _multiply(operation: Operation, one: Abstract, other: Abstract) -> Abstract:
    for value, factor in ((one, other), (other, one)):
        number = factor.uniform if isinstance(factor, Affine) else None
        if number is not None and isinstance(value, Affine) and value.origin is None:
            return Affine(value.base * number, tuple(stride * number for stride in value.strides))
    return _lanewise(np.multiply)(operation, one, other)


@_rule("tt.addptr")
def _add_pointer(operation: Operation, pointer: Abstract, offset: Abstract) -> Abstract:
    return pointer.moved(lambda old: _sum(old, offset)) if isinstance(pointer, Address) else None


@_rule("arith.extsi", "arith.trunci", "arith.index_cast", "arith.extui")
def _resize(operation: Operation, value: Abstract) -> Abstract:
    source, result = operation.operands[0].type, operation.results[0].type
    if not isinstance(value, Affine) or value.origin or result.element == "i1":
        return None
    if source.element == "i1":
        return value if operation.name == "arith.extui" else Affine(-value.base, value.strides)
    if operation.name == "arith.extui" and extremes(value, source.shape)[0] < 0:
        return None
    return value


_COMPARISONS = (np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal)


@_rule("arith.cmpi")
def _compare(operation: Operation, one: Abstract, other: Abstract) -> Abstract:
    predicate, kind = operation.attributes["predicate"], operation.operands[0].type
    if kind.element == "i1" or not (isinstance(one, Affine) and isinstance(other, Affine)):
        return None
    if predicate > 5:  # unsigned: the same as signed where nothing is negative
        if min(extremes(one, kind.shape)[0], extremes(other, kind.shape)[0]) < 0:
            return None
        predicate -= 4
    if not any(one.strides) and not any(other.strides):
        return _lanewise(_COMPARISONS[predicate])(operation, one, other)
    difference = _difference(one, other)
    return None if difference is None else _half_space(difference, predicate, kind.shape)


def _half_space(value: Affine, predicate: int, shape: tuple[int, ...]) -> Box | None:
    """Where ``value < 0`` (predicate 2), ``<= 0``, ``> 0`` or ``>= 0`` (5), if one dimension decides."""
    slanted = [d for d, stride in enumerate(value.strides) if stride and shape[d] > 1]
    if len(slanted) != 1 or predicate < 2 or value.origin:
        return None
    (d,) = slanted
    base, stride = value.base, value.strides[d]
    if stride < 0:
        base, stride, predicate = -base, -stride, {2: 4, 3: 5, 4: 2, 5: 3}[predicate]
    # lane * stride ? -base, in whole lanes: the first lane with value >= 0, the first with value > 0.
    not_negative, positive = -(base // stride), (-base) // stride + 1
    none, extent = np.zeros(1, np.int64), np.full(1, shape[d], np.int64)
    low, high = {
        2: (none, not_negative),
        3: (none, positive),
        4: (positive, extent),
        5: (not_negative, extent),
    }[predicate]
    box = full_box(shape)
    lower, upper = list(box.lower), list(box.upper)
    lower[d], upper[d] = np.maximum(low, 0), np.minimum(high, shape[d])
    return Box(tuple(lower), tuple(upper))


def full_box(shape: Sequence[int]) -> Box:
    """All lanes of a tensor."""
    zero = np.zeros(1, np.int64)
    return Box((zero,) * len(shape), tuple(np.full(1, extent, np.int64) for extent in shape))


@_rule("arith.select")
def _select(operation: Operation, condition: Abstract, one: Abstract, other: Abstract) -> Abstract:
    return choose(scalar_mask(condition), one, other)


# --- Rules: shapes -------------------------------------------------------------------------------


@_rule("tt.make_range")
def _range(operation: Operation) -> Abstract:
    return Affine(np.array([operation.attributes["start"]], np.int64), (1,))


def _on_offset(rule: Callable[[Operation, Affine], Abstract]) -> Rule:
    """Lifts a rule for affine values to pointers, through their offset. Boxes are not followed."""

    def lifted(operation: Operation, value: Abstract) -> Abstract:
        match value:
            case Affine(origin=None):
                return rule(operation, value)
            case Address():
                return value.moved(lambda offset: None if offset.origin else rule(operation, offset))
            case _:
                return None

    return lifted


@_rule("tt.splat")
@_on_offset
def _splat(operation: Operation, value: Affine) -> Abstract:
    return Affine(value.base, (0,) * len(operation.results[0].type.shape))


@_rule("tt.unsplat")
@_on_offset
def _unsplat(operation: Operation, value: Affine) -> Abstract:
    return Affine(value.base)


@_rule("tt.bitcast")
def _bitcast(operation: Operation, value: Abstract) -> Abstract:
    return value if isinstance(value, Address) else None


def _moved(value: Abstract, move: Callable[[tuple[Any, ...], Any], tuple[Any, ...]]) -> Abstract:
    """`value` with its dimensions rearranged: `move` is given a tuple, one entry for each dimension, and
    the entry for a dimension of extent one that is new."""
    match value:
        case Affine(origin=None):
            return Affine(value.base, move(value.strides, 0))
        case Address():
            return value.moved(lambda offset: _moved(offset, move))
        case Box():
            zero, one = np.zeros(1, np.int64), np.ones(1, np.int64)
            return Box(move(value.lower, zero), move(value.upper, one))
        case _:
            return None


@_rule("tt.expand_dims")
def _expand(operation: Operation, value: Abstract) -> Abstract:
    axis = operation.attributes["axis"]
    return _moved(value, lambda entries, new: (*entries[:axis], new, *entries[axis:]))


@_rule("tt.trans")
def _transpose(operation: Operation, value: Abstract) -> Abstract:
    return _moved(value, lambda entries, new: tuple(entries[axis] for axis in operation.attributes["order"]))


@_rule("tt.reshape")
def _reshape(operation: Operation, value: Abstract) -> Abstract:
    """Only dimensions of extent one may come and go."""
    source, result = operation.operands[0].type.shape, operation.results[0].type.shape
    kept = [d for d, extent in enumerate(source) if extent != 1]
    if [source[d] for d in kept] != [extent for extent in result if extent != 1]:
        return None

    def move(entries: tuple[Any, ...], new: Any) -> tuple[Any, ...]:
        long = iter(kept)
        return tuple(new if extent == 1 else entries[next(long)] for extent in result)

    return _moved(value, move)


@_rule("tt.broadcast")
def _broadcast(operation: Operation, value: Abstract) -> Abstract:
    source, result = operation.operands[0].type.shape, operation.results[0].type.shape
    grown = [old != new for old, new in zip(source, result, strict=True)]
    if isinstance(value, Box):
        some = [
            np.where((low <= 0) & (high >= 1), extent, 0)
            for low, high, extent in zip(value.lower, value.upper, result, strict=True)
        ]
        upper = tuple(new if g else old for g, new, old in zip(grown, some, value.upper, strict=True))
        lower = tuple(np.zeros(1, np.int64) if g else old for g, old in zip(grown, value.lower, strict=True))
        return Box(lower, upper)
    return _moved(
        value, lambda entries, new: tuple(new if g else old for g, old in zip(grown, entries, strict=True))
    )
