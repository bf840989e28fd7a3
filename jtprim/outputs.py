"""How a launch names what the kernel writes: one normal form for all ways to say it.

Outputs are arrays that the kernel only writes; in-outs are arguments that it also writes. What the
equation returns is always "outputs in signature order, then in-outs in the order named"; what the launch
returns is made of that by `Placed.rebuild`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax

from jtprim.arguments import (
    Coordinate,
    NormalCoordinate,
    base_array,
    coordinate_text,
    normalize_coordinate,
)
from jtprim.errors import LaunchTypeError, LaunchValueError, listing
from jtprim.specialize.configs import is_shaped
from jtprim.specialize.kernel import Parameter

# Results as the launch returns them: an array's coordinate, or a tuple of these.
Nest: TypeAlias = "NormalCoordinate | Group"


@dataclass(frozen=True)
class Group:
    """Results that are returned together, as a tuple."""

    members: tuple[Nest, ...]


@dataclass(frozen=True)
class Declared:
    """An output that is declared by a shape alone.

    Attributes:
      shape: its shape and dtype.
      coordinate: where the kernel takes it; None until the launch finds it a parameter.
    """

    shape: Any
    coordinate: Coordinate | None = None


@dataclass(frozen=True)
class Outputs:
    """All that a launch says of its results.

    Attributes:
      shapes: what `out_shape` or `out_type` declares: a mapping coordinate -> shape, or a pytree.
      names: coordinates of a pytree's outputs, in its order.
      typed: whether the pytree came as `out_type`, whose structure is returned whatever it is.
      in_outs: in-outs that the shapes have no place for: coordinates, in lists for groups of results.
      positions: in-outs by coordinate that have a place among the shapes, and their position there.
      described: outputs behind tensor descriptors.
    """

    shapes: Any
    names: tuple[Coordinate, ...] | None
    typed: bool
    in_outs: tuple[Any, ...]
    positions: Mapping[Coordinate, int]
    described: tuple[Declared, ...] = ()

    def __bool__(self) -> bool:
        """Whether the launch says anything at all."""
        return self.shapes is not None or bool(self.in_outs or self.positions or self.described)

    def coordinates(self) -> Iterator[Coordinate]:
        """The coordinates of outputs that the launch names."""
        if isinstance(self.shapes, Mapping) and not self.typed:
            yield from self.shapes
        elif self.names is not None:
            yield from self.names
        yield from (one.coordinate for one in self.described if one.coordinate is not None)


def declare_outputs(out_shape: Any, out_names: Any, out_type: Any, aliases: Any, *, kernel: str) -> Outputs:
    """The normal form of a launch's declarations.

    Args:
      out_shape: a mapping coordinate -> shape, nested for tuples; or one shape; or a sequence of shapes,
        one for a parameter, nested for tuples. A shape is anything with a shape and a dtype.
      out_names: a coordinate, or a sequence of them, for the shapes of a sequence in order. Without it they
        take the first parameters that the launch passes nothing for.
      out_type: a pytree of shapes, one for a parameter.
      aliases: a coordinate of an in-out (of a tuple, for all arrays in it, whose results nest as they do, or
        are bare where one element alone has arrays); or a list of them, in which a list inside groups their
        results; or a mapping from an in-out's coordinate to the position of its result among the declared
        shapes.
      kernel: the kernel's name, for messages.

    Raises:
      LaunchTypeError: a declaration is none of these.
      LaunchValueError: two declarations contradict each other.
    """
    if out_shape is not None and out_type is not None:
        raise LaunchValueError(
            "out_shape and out_type are both given; they say the same, pass one.", kernel=kernel
        )
    typed = out_type is not None
    shapes = out_type if typed else out_shape
    in_outs, positions = _in_outs(aliases, kernel)
    names = None
    if out_names is not None:
        names = tuple(out_names) if isinstance(out_names, (list, tuple)) else (out_names,)
    if not isinstance(shapes, Mapping) or typed:
        single = jax.tree.leaves(shapes, is_leaf=is_shaped)
        counts = {len(single) - len(positions), *([len(shapes)] if isinstance(shapes, (list, tuple)) else [])}
        if names is not None and shapes is not None and len(names) not in counts:
            raise LaunchValueError(
                f"out_names has {len(names)} names for {min(counts)} outputs; name each.", kernel=kernel
            )
        for shape in single:
            if not is_shaped(shape):
                raise LaunchTypeError(
                    f"an output is declared as {shape!r}; expected something with a shape and a dtype, "
                    "such as jax.ShapeDtypeStruct or an array.",
                    kernel=kernel,
                )
    return Outputs(shapes, names, typed, in_outs, positions)


def _in_outs(aliases: Any, kernel: str) -> tuple[tuple[Any, ...], dict[Coordinate, int]]:
    if aliases is None:
        return (), {}
    if isinstance(aliases, Mapping):
        for position in aliases.values():
            if isinstance(position, bool) or not isinstance(position, int):
                raise LaunchTypeError(
                    f"input_output_aliases has {position!r} for a result; expected its position among the "
                    "declared outputs.",
                    kernel=kernel,
                )
        return (), dict(aliases)
    if isinstance(aliases, list) or (isinstance(aliases, tuple) and not _is_path(aliases)):
        return tuple(aliases), {}
    if isinstance(aliases, (str, int, tuple)):
        return (aliases,), {}
    raise LaunchTypeError(
        f"input_output_aliases is {aliases!r}; expected a parameter's name, a list of names, or a "
        "mapping from a parameter to the position of its result.",
        kernel=kernel,
    )


def _is_path(value: tuple[Any, ...]) -> bool:
    """Whether a tuple is one coordinate, as ``("pair", 0)`` is, and no sequence of coordinates."""
    return bool(value) and isinstance(value[0], (str, int)) and all(isinstance(i, int) for i in value[1:])


@dataclass(frozen=True)
class Placed:
    """Outputs with their coordinates found.

    Attributes:
      out_shape: coordinate -> shape of each output.
      aliases: coordinates of in-outs, in the order of their results.
      rebuild: makes what the launch returns from the equation's results; those of Refs, which come
        last, are left out.
      declared: the coordinates of the declared shapes in their order, in-outs' among them.
      named: whether the shapes were declared by the parameters' names.
    """

    out_shape: dict[NormalCoordinate, Any]
    aliases: tuple[NormalCoordinate, ...]
    rebuild: Callable[[Sequence[Any]], Any]
    declared: tuple[NormalCoordinate, ...] = ()
    named: bool = False


def place_outputs(
    outputs: Outputs,
    parameters: Sequence[Parameter],
    passed: Mapping[str, Any],
    refs: Sequence[NormalCoordinate] = (),
    *,
    kernel: str,
) -> Placed:
    """Finds a parameter for each output that has none yet, and the order of the results.

    Args:
      outputs: the declarations.
      parameters: the kernel's parameters.
      passed: the arguments that the launch passes, by parameter.
      refs: coordinates of arguments that are Refs: in-outs that are not returned.
      kernel: the kernel's name, for messages.

    Raises:
      LaunchValueError: there are more outputs than parameters left for them, or one has two.
    """
    return _Placement(outputs, parameters, passed, kernel).place(refs)


class _Placement:
    """The work of `place_outputs`."""

    def __init__(
        self, outputs: Outputs, parameters: Sequence[Parameter], passed: Mapping[str, Any], kernel: str
    ):
        self.outputs, self.passed, self.kernel = outputs, passed, kernel
        self.names = [parameter.name for parameter in parameters]
        named = {self.normal(coordinate, "out_shape")[0] for coordinate in outputs.coordinates()}
        self.free = [
            p.name
            for p in parameters
            if p.name not in passed and p.name not in named and not p.is_constexpr and not p.has_default
        ]
        self.out_shape: dict[NormalCoordinate, Any] = {}
        self.aliases: list[NormalCoordinate] = []
        self.declared: list[NormalCoordinate] = []

    def normal(self, coordinate: Any, setting: str) -> NormalCoordinate:
        return normalize_coordinate(coordinate, self.names, kernel=self.kernel, setting=setting)

    def place(self, refs: Sequence[NormalCoordinate]) -> Placed:
        shapes = self.outputs.shapes
        wrap: Callable[[list[Any]], Any] | None = None
        named = isinstance(shapes, Mapping) and not self.outputs.typed
        if named:
            results = self._mapping(shapes)
        elif self.outputs.typed or self.outputs.positions or not isinstance(shapes, (list, tuple)):
            results, wrap = self._pytree(shapes)
        else:
            results, wrap = self._sequence(shapes)
        for one in self.outputs.described:
            results.append(self._output(self.normal(one.coordinate, "out_shape"), one.shape))
        behind = [self._in_out(alias) for alias in self.outputs.in_outs]
        self.aliases += refs
        self._check_unique()

        ordered = self.ordered()
        index = {key: i for i, key in enumerate([*ordered, *self.aliases])}
        declared = len(results) - len(self.outputs.described)

        def rebuild(values: Sequence[Any]) -> Any:
            def built(nest: Nest) -> Any:
                return tuple(map(built, nest.members)) if isinstance(nest, Group) else values[index[nest]]

            if wrap is not None:
                first = wrap([built(nest) for nest in results[:declared]])
                rest = [built(nest) for nest in (*results[declared:], *behind)]
                if not rest:
                    return first
                return (*first, *rest) if isinstance(shapes, (list, tuple)) and not typed else (first, *rest)
            found = [built(nest) for nest in (*results, *behind)]
            return found[0] if len(found) == 1 else tuple(found) or None

        typed = self.outputs.typed
        return Placed(self.out_shape, tuple(self.aliases), rebuild, tuple(self.declared), named)

    def ordered(self) -> list[NormalCoordinate]:
        """The outputs in the order of the signature."""
        return sorted(self.out_shape, key=self._place_in_signature)

    def _place_in_signature(self, key: NormalCoordinate) -> tuple[int, ...]:
        return (self.names.index(key[0]), *key[1:])

    # --- The forms of a declaration

    def _mapping(self, shapes: Mapping[Any, Any]) -> list[Nest]:
        """Outputs that are named: results come in the order of the signature."""
        if self.outputs.positions:
            raise LaunchValueError(
                f"input_output_aliases is {dict(self.outputs.positions)!r}, which gives in-outs a place "
                "among the declared shapes, but out_shape declares these by name; list the in-outs' names "
                "instead.",
                kernel=self.kernel,
            )
        if self.outputs.names is not None:
            listed = {self.normal(name, "out_names") for name in self.outputs.names}
            if listed != {self.normal(key, "out_shape") for key in shapes}:
                raise LaunchValueError(
                    f"out_names lists {list(self.outputs.names)!r}, but out_shape declares "
                    f"{list(shapes)!r}; leave out_names out.",
                    kernel=self.kernel,
                )
        found = {}
        for key, value in shapes.items():
            coordinate = self.normal(key, "out_shape")
            nest = self._nested(coordinate, value, key)
            if nest is not None:
                found[coordinate] = nest
        return [found[key] for key in sorted(found, key=self._place_in_signature)]

    def _pytree(self, tree: Any) -> tuple[list[Nest], Callable[[list[Any]], Any] | None]:
        """Shapes of any structure, one for a parameter; some may be in-outs' results."""
        shapes, treedef = jax.tree.flatten(tree, is_leaf=is_shaped)
        in_outs = {}
        of_numbers = self._numbered_in_outs()
        for coordinate, position in self.outputs.positions.items():
            if not 0 <= position < len(shapes):
                raise LaunchValueError(
                    f"input_output_aliases gives result {position} to {coordinate!r}, but {len(shapes)} are "
                    "declared.",
                    kernel=self.kernel,
                )
            in_outs[position] = of_numbers.get(coordinate) or self.normal(coordinate, "input_output_aliases")
        names = self.outputs.names
        keys: Iterator[NormalCoordinate]
        if names is not None and len(names) == len(shapes):  # those of in-outs among them
            keys = iter(self.normal(name, "out_names") for i, name in enumerate(names) if i not in in_outs)
        else:
            keys = iter(self._names_for(len(shapes) - len(in_outs)))
        results: list[Nest] = []
        for position, shape in enumerate(shapes):
            if position in in_outs:
                self.aliases.append(in_outs[position])
                self.declared.append(in_outs[position])
                results.append(in_outs[position])
            else:
                results.append(self._output(next(keys), shape))
        return results, None if tree is None else functools.partial(jax.tree.unflatten, treedef)

    def _numbered_in_outs(self) -> dict[Any, NormalCoordinate]:
        """What the numbers in a mapping of in-outs to results mean, where they don't count parameters.

        jax-triton counts the arrays that the launch passes, and AMD's fork the kernel's parameters.
        """
        numbers = [one for one in self.outputs.positions if isinstance(one, int)]
        arrays = [
            one
            for name in self.names
            if name in self.passed and not _is_plain(self.passed[name])
            for one in _arrays_at((name,), self.passed)
        ]
        if not set(range(len(arrays))).issuperset(numbers):
            return {}
        by_array = {number: arrays[number] for number in numbers}
        by_parameter = {number: self.normal(number, "input_output_aliases") for number in numbers}
        if not set(arrays).issuperset(by_parameter.values()):
            return by_array
        if by_array != by_parameter:
            parameters, passed = (
                listing(map(coordinate_text, by.values())) for by in (by_parameter, by_array)
            )
            raise LaunchValueError(
                f"input_output_aliases has {listing(map(str, numbers))}, which as positions of parameters "
                f"mean {parameters}, and as positions of the arrays that are passed {passed}; name the "
                "parameters.",
                kernel=self.kernel,
            )
        return {}

    def _sequence(self, shapes: Sequence[Any]) -> tuple[list[Nest], Callable[[list[Any]], Any] | None]:
        """A sequence of shapes: one of its elements for a parameter, which is a tuple if the element is.

        Where there are as many parameters as single shapes, each shape is one parameter's.
        """
        count = len(jax.tree.leaves(shapes, is_leaf=is_shaped))
        names = self.outputs.names
        wanted = len(self.free) if names is None else len(names)
        if any(not is_shaped(shape) for shape in shapes) and wanted == count != len(shapes):
            return self._pytree(shapes)
        keys = self._names_for(len(shapes))
        results = [
            nest
            for key, shape in zip(keys, shapes, strict=True)
            if (nest := self._nested(key, shape, key[0])) is not None
        ]
        if names is not None:
            results.sort(key=lambda nest: self._place_in_signature(_first(nest)))
        if len(results) == 1 and isinstance(results[0], Group):
            return results, None
        return results, tuple if isinstance(shapes, tuple) else list

    def _names_for(self, count: int) -> list[NormalCoordinate]:
        """Coordinates for so many outputs: those named, or the first parameters left."""
        if self.outputs.names is not None and count:
            return [self.normal(name, "out_names") for name in self.outputs.names]
        if count > len(self.free):
            raise LaunchValueError(
                f"output {len(self.free)} has no parameter left for it: all are passed or have a default; "
                "name the parameter that it is (out_names), or pass fewer arguments.",
                kernel=self.kernel,
            )
        return [(name,) for name in self.free[:count]]

    # --- Single results

    def _nested(self, coordinate: NormalCoordinate, value: Any, key: Any) -> Nest | None:
        """The outputs at a coordinate: one for a shape, several for a sequence or mapping of these."""
        if is_shaped(value):
            return self._output(coordinate, value)
        if isinstance(value, (list, tuple)):
            value = dict(enumerate(value))
        if isinstance(value, Mapping):
            inside = [
                self._nested((*coordinate, *(one if isinstance(one, tuple) else (one,))), shape, key)
                for one, shape in value.items()
            ]
            return Group(tuple(nest for nest in inside if nest is not None))
        if value is None:
            return None
        raise LaunchTypeError(
            f"out_shape declares {key!r} as {value!r}; expected something with a shape and a dtype, "
            "such as jax.ShapeDtypeStruct or an array.",
            kernel=self.kernel,
        )

    def _output(self, coordinate: NormalCoordinate, shape: Any) -> Nest:
        if coordinate in self.out_shape:
            raise LaunchValueError(
                f"{coordinate_text(coordinate)!r} is declared as an output twice.", kernel=self.kernel
            )
        self.out_shape[coordinate] = shape
        self.declared.append(coordinate)
        return coordinate

    def _in_out(self, alias: Any) -> Nest:
        """An in-out, or a group: of a list of them, or of a tuple among the arguments.

        A tuple's group nests as the tuple does, without what is no array; of one member it is that member.
        """
        if isinstance(alias, list) or (isinstance(alias, tuple) and not _is_path(alias)):
            return Group(tuple(map(self._in_out, alias)))
        coordinate = self.normal(alias, "input_output_aliases")
        self.aliases += _arrays_at(coordinate, self.passed)
        nest = _nest_at(coordinate, self.passed)
        return nest.members[0] if isinstance(nest, Group) and len(nest.members) == 1 else nest

    def _check_unique(self) -> None:
        for number, key in enumerate(self.aliases):
            if key in self.aliases[:number]:
                raise LaunchValueError(
                    f"input_output_aliases names {coordinate_text(key)!r} twice.",
                    kernel=self.kernel,
                    parameter=key[0],
                )


def _first(nest: Nest) -> NormalCoordinate:
    return _first(nest.members[0]) if isinstance(nest, Group) else nest


def _arrays_at(coordinate: NormalCoordinate, passed: Mapping[str, Any]) -> list[NormalCoordinate]:
    """The coordinates of all arrays in a tuple; any other argument's own."""
    return list(_flat(_nest_at(coordinate, passed)))


def _nest_at(coordinate: NormalCoordinate, passed: Mapping[str, Any]) -> Nest:
    """The coordinates of all arrays in a tuple, nested as they are in it; any other argument's own."""
    name, *path = coordinate
    value = passed.get(name)
    for index in path:
        value = value[index] if isinstance(value, (tuple, list)) and index < len(value) else None
    if not isinstance(value, (tuple, list)):
        return coordinate
    inside = [_nest_at((*coordinate, i), passed) for i, child in enumerate(value) if not _is_plain(child)]
    return Group(tuple(nest for nest in inside if not isinstance(nest, Group) or nest.members))


def _flat(nest: Nest) -> Iterator[NormalCoordinate]:
    if not isinstance(nest, Group):
        yield nest
        return
    for member in nest.members:
        yield from _flat(member)


def _is_plain(value: Any) -> bool:
    return not (is_shaped(base_array(value)) or isinstance(value, (tuple, list)))


def zeroed_indices(
    zeroed: Any, placed: Placed, parameters: Sequence[Parameter], *, kernel: str
) -> tuple[int, ...]:
    """Indices, among the outputs in signature order, of those that `zeroed_outputs` names.

    Args:
      zeroed: a coordinate (of a tuple, for all outputs in it), or a sequence of these. The numbers in it
        are all positions in the signature, or all positions among the declared shapes, by whichever of the
        two they are all outputs.
      placed: the outputs.
      parameters, kernel: of the kernel.

    Raises:
      LaunchValueError: it names an in-out, or no output; or its numbers mean one thing as positions in the
        signature and another as positions among the declared shapes.
    """
    names = [parameter.name for parameter in parameters]
    ordered = sorted(placed.out_shape, key=lambda key: (names.index(key[0]), *key[1:]))
    listed: list[Any] = [zeroed] if isinstance(zeroed, (str, int)) else list(zeroed or ())
    numbers = [one for one in listed if isinstance(one, int) and not isinstance(one, bool)]
    coordinates = [one for one in listed if one not in numbers or isinstance(one, bool)]
    found: set[NormalCoordinate] = set()
    for one in [*_numbered(numbers, placed, names, kernel=kernel), *coordinates]:
        key = normalize_coordinate(one, names, kernel=kernel, setting="zeroed_outputs")
        inside = [other for other in ordered if other[: len(key)] == key]
        if not inside and any(other[: len(key)] == key for other in placed.aliases):
            raise LaunchValueError(
                f"zeroed_outputs names {coordinate_text(key)!r}, which is an in-out: zeroing it would "
                "lose what it was given; pass zeros for it, or declare it as an output.",
                kernel=kernel,
                parameter=key[0],
            )
        if not inside:
            raise _no_output(one, ordered, kernel)
        found.update(inside)
    return tuple(sorted(map(ordered.index, found)))


def _numbered(
    numbers: Sequence[int], placed: Placed, names: Sequence[str], *, kernel: str
) -> list[NormalCoordinate]:
    """The coordinates that the numbers in `zeroed_outputs` mean.

    jax-triton counts the declared shapes, and AMD's fork the kernel's parameters. Where the launch declares
    its outputs by name, numbers count parameters first.
    """
    in_signature = {names.index(key[0]) for key in placed.out_shape}
    readings: list[list[NormalCoordinate]] = []
    if in_signature.issuperset(numbers):
        readings.append([(names[number],) for number in numbers])
    if set(range(len(placed.declared))).issuperset(numbers):
        readings.append([placed.declared[number] for number in numbers])
    if not readings:
        aliased = {names.index(key[0]) for key in placed.aliases}
        if aliased.union(in_signature).issuperset(numbers):  # said to be an in-out by the caller
            return [(names[number],) for number in numbers]
        count = range(len(placed.declared))
        wrong = next((one for one in numbers if one not in count and one not in in_signature), numbers[0])
        raise _no_output(wrong, list(placed.out_shape), kernel)
    outputs = [
        {key for key in placed.out_shape for one in reading if key[: len(one)] == one} for reading in readings
    ]
    if outputs[0] != outputs[-1] and not placed.named:
        raise LaunchValueError(
            f"zeroed_outputs has {listing(map(str, numbers))}, which as positions of parameters mean "
            f"{listing(map(coordinate_text, readings[0]))}, and as positions of the declared shapes "
            f"{listing(map(coordinate_text, readings[1]))}; name the parameters.",
            kernel=kernel,
        )
    return readings[0]


def _no_output(one: Any, outputs: Sequence[NormalCoordinate], kernel: str) -> LaunchValueError:
    return LaunchValueError(
        f"zeroed_outputs has {one!r}, which is no output; outputs are "
        f"{', '.join(map(coordinate_text, outputs)) or 'none'}.",
        kernel=kernel,
    )
