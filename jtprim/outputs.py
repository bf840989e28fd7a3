"""How a launch names what the kernel writes: one normal form for all ways to say it.

Outputs are arrays that the kernel only writes; in-outs are arguments that it also writes. What the
equation returns is always "outputs in signature order, then in-outs in the order named"; what the launch
returns has the structure that the caller declared.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from jtprim.arguments import (
    Coordinate,
    NormalCoordinate,
    base_array,
    coordinate_text,
    normalize_coordinate,
)
from jtprim.errors import LaunchTypeError, LaunchValueError
from jtprim.specialize.configs import is_shaped
from jtprim.specialize.kernel import Parameter


@dataclass(frozen=True)
class Declared:
    """One array that a launch returns.

    Attributes:
      shape: its shape and dtype.
      coordinate: where the kernel takes it; None until the launch finds it a parameter.
      in_out: coordinate of the argument that it is the final content of, if it is an in-out.
    """

    shape: Any
    coordinate: Coordinate | None = None
    in_out: Coordinate | None = None


@dataclass(frozen=True)
class Outputs:
    """All that a launch says of its results.

    Attributes:
      declared: outputs, and in-outs that the structure has a place for.
      in_outs: coordinates of in-outs that the structure has no place for; they are returned behind.
      structure: builds what the launch returns from the declared results; None for "in signature
        order, a single one bare".
      described: outputs behind tensor descriptors, which the structure has no place for either.
    """

    declared: tuple[Declared, ...]
    in_outs: tuple[Coordinate, ...]
    structure: Callable[[Sequence[Any]], Any] | None
    described: tuple[Declared, ...] = ()


def declare_outputs(out_shape: Any, out_names: Any, out_type: Any, aliases: Any, *, kernel: str) -> Outputs:
    """The normal form of a launch's declarations.

    Args:
      out_shape: a mapping coordinate -> shape, nested for tuples; or one shape; or any other pytree of
        shapes, whose structure is then returned. A shape is anything with a shape and a dtype.
      out_names: a coordinate, or a sequence of them, for the shapes of a pytree in order. Without it they
        take the first parameters that the launch passes nothing for.
      out_type: the same as a pytree in `out_shape`.
      aliases: a coordinate of an in-out (of a tuple, for all arrays in it), a sequence of them, or a
        mapping from an in-out's coordinate to the position of its result among the declared shapes.
      kernel: the kernel's name, for messages.

    Raises:
      LaunchTypeError: a declaration is none of these.
      LaunchValueError: two declarations contradict each other.
    """
    if out_shape is not None and out_type is not None:
        raise LaunchValueError(
            "out_shape and out_type are both given; they say the same, pass one.", kernel=kernel
        )
    if isinstance(out_shape, Mapping):
        if out_names is not None:
            raise LaunchValueError(
                "out_names is given beside an out_shape that already names its outputs; leave it out.",
                kernel=kernel,
            )
        declared = list(_from_mapping(out_shape, (), kernel))
        structure = None
    else:
        tree = out_type if out_type is not None else out_shape
        shapes, treedef = jax.tree.flatten(tree, is_leaf=is_shaped)
        for shape in shapes:
            if not is_shaped(shape):
                raise LaunchTypeError(
                    f"an output is declared as {shape!r}; expected something with a shape and a dtype, "
                    "such as jax.ShapeDtypeStruct or an array.",
                    kernel=kernel,
                )
        declared = [Declared(shape) for shape in shapes]
        structure = None if tree is None else functools.partial(jax.tree.unflatten, treedef)
        if out_names is not None:
            declared = _named(declared, out_names, kernel)
    in_outs, positions = _in_outs(aliases, kernel)
    for coordinate, position in positions.items():
        if not 0 <= position < len(declared):
            raise LaunchValueError(
                f"input_output_aliases gives result {position} to {coordinate!r}, but {len(declared)} are "
                "declared.",
                kernel=kernel,
            )
        declared[position] = Declared(declared[position].shape, in_out=coordinate)
    return Outputs(tuple(declared), in_outs, structure)


def _from_mapping(mapping: Mapping[Any, Any], prefix: tuple[Any, ...], kernel: str) -> Any:
    for key, value in mapping.items():
        coordinate = (*prefix, *(key if isinstance(key, tuple) else (key,)))
        if is_shaped(value):
            yield Declared(value, coordinate)
        elif isinstance(value, Mapping):
            yield from _from_mapping(value, coordinate, kernel)
        elif isinstance(value, (tuple, list)):
            yield from _from_mapping(dict(enumerate(value)), coordinate, kernel)
        elif value is not None:
            raise LaunchTypeError(
                f"out_shape declares {key!r} as {value!r}; expected something with a shape and a dtype, "
                "such as jax.ShapeDtypeStruct or an array.",
                kernel=kernel,
            )


def _named(declared: Sequence[Declared], names: Any, kernel: str) -> list[Declared]:
    names = list(names) if isinstance(names, (list, tuple)) else [names]
    if len(names) != len(declared):
        raise LaunchValueError(
            f"out_names has {len(names)} names for {len(declared)} outputs; name each.", kernel=kernel
        )
    return [Declared(one.shape, name) for one, name in zip(declared, names, strict=True)]


def _in_outs(aliases: Any, kernel: str) -> tuple[tuple[Coordinate, ...], dict[Coordinate, int]]:
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
    if isinstance(aliases, (str, int)):
        return (aliases,), {}
    if isinstance(aliases, (list, tuple)):
        return tuple(aliases), {}
    raise LaunchTypeError(
        f"input_output_aliases is {aliases!r}; expected a parameter's name, a sequence of names, or a "
        "mapping from a parameter to the position of its result.",
        kernel=kernel,
    )


@dataclass(frozen=True)
class Placed:
    """Outputs with their coordinates found.

    Attributes:
      out_shape: coordinate -> shape of each output.
      aliases: coordinates of in-outs, in the order of their results.
      rebuild: makes what the launch returns from the equation's results; those of Refs, which come
        last, are left out.
    """

    out_shape: dict[NormalCoordinate, Any]
    aliases: tuple[NormalCoordinate, ...]
    rebuild: Callable[[Sequence[Any]], Any]


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
    names = [parameter.name for parameter in parameters]

    def normal(coordinate: Coordinate, setting: str) -> NormalCoordinate:
        return normalize_coordinate(coordinate, names, kernel=kernel, setting=setting)

    declared = (*outputs.declared, *outputs.described)
    named = {normal(d.coordinate, "out_shape")[0] for d in declared if d.coordinate is not None}
    free = iter(
        p.name
        for p in parameters
        if p.name not in passed and p.name not in named and not p.is_constexpr and not p.has_default
    )
    keys: list[NormalCoordinate] = []
    out_shape: dict[NormalCoordinate, Any] = {}
    aliases: list[NormalCoordinate] = []
    for number, one in enumerate(declared):
        if one.in_out is not None:
            key = normal(one.in_out, "input_output_aliases")
            aliases.append(key)
            keys.append(key)
            continue
        if one.coordinate is not None:
            key = normal(one.coordinate, "out_shape")
        else:
            name = next(free, None)
            if name is None:
                raise LaunchValueError(
                    f"output {number} has no parameter left for it: all are passed or have a default; name "
                    "the parameter that it is (out_names), or pass fewer arguments.",
                    kernel=kernel,
                )
            key = (name,)
        if key in out_shape:
            raise LaunchValueError(f"{coordinate_text(key)!r} is declared as an output twice.", kernel=kernel)
        out_shape[key] = one.shape
        keys.append(key)
    in_outs = [
        inside
        for coordinate in outputs.in_outs
        for inside in _arrays_at(normal(coordinate, "input_output_aliases"), passed)
    ]
    behind = [*keys[len(outputs.declared) :], *in_outs]
    keys = keys[: len(outputs.declared)]
    aliases += in_outs
    aliases += refs
    _check_unique(aliases, kernel)

    position = {name: index for index, name in enumerate(names)}
    ordered = sorted(out_shape, key=lambda key: (position[key[0]], *key[1:]))
    index = {key: i for i, key in enumerate([*ordered, *aliases])}
    structure, visible = outputs.structure, len(ordered) + len(aliases) - len(refs)

    def rebuild(results: Sequence[Any]) -> Any:
        results = results[:visible]
        if structure is None:
            return results[0] if len(results) == 1 else tuple(results) or None
        built = structure([results[index[key]] for key in keys])
        return (built, *(results[index[key]] for key in behind)) if behind else built

    return Placed(out_shape, tuple(aliases), rebuild)


def _arrays_at(coordinate: NormalCoordinate, passed: Mapping[str, Any]) -> list[NormalCoordinate]:
    """The coordinates of all arrays in a tuple; any other argument's own."""
    name, *path = coordinate
    value = passed.get(name)
    for index in path:
        value = value[index] if isinstance(value, (tuple, list)) and index < len(value) else None
    if not isinstance(value, (tuple, list)):
        return [coordinate]
    inside = [_arrays_at((*coordinate, i), passed) for i, child in enumerate(value) if not _is_plain(child)]
    return [one for group in inside for one in group]


def _is_plain(value: Any) -> bool:
    return not (is_shaped(base_array(value)) or isinstance(value, (tuple, list)))


def _check_unique(aliases: Sequence[NormalCoordinate], kernel: str) -> None:
    for number, key in enumerate(aliases):
        if key in aliases[:number]:
            raise LaunchValueError(
                f"input_output_aliases names {coordinate_text(key)!r} twice.", kernel=kernel, parameter=key[0]
            )


def zeroed_indices(
    zeroed: Any, placed: Placed, parameters: Sequence[Parameter], *, kernel: str
) -> tuple[int, ...]:
    """Indices, among the outputs in signature order, of those that `zeroed_outputs` names.

    Args:
      zeroed: a coordinate or position among the declared outputs, or a sequence of these.
      placed: the outputs.
      parameters, kernel: of the kernel.

    Raises:
      LaunchValueError: it names an in-out, or no output.
    """
    names = [parameter.name for parameter in parameters]
    position = {name: index for index, name in enumerate(names)}
    ordered = sorted(placed.out_shape, key=lambda key: (position[key[0]], *key[1:]))
    declared = list(placed.out_shape)
    found = []
    for one in [zeroed] if isinstance(zeroed, (str, int)) else list(zeroed or ()):
        if isinstance(one, int) and not isinstance(one, bool):
            key = declared[one] if 0 <= one < len(declared) else None
        else:
            key = normalize_coordinate(one, names, kernel=kernel, setting="zeroed_outputs")
        if key is not None and key in placed.aliases:
            raise LaunchValueError(
                f"zeroed_outputs names {coordinate_text(key)!r}, which is an in-out: zeroing it would lose "
                "what it was given; pass zeros for it, or declare it as an output.",
                kernel=kernel,
                parameter=key[0],
            )
        if key not in placed.out_shape:
            raise LaunchValueError(
                f"zeroed_outputs has {one!r}, which is no output; outputs are "
                f"{', '.join(map(coordinate_text, ordered)) or 'none'}.",
                kernel=kernel,
            )
        found.append(ordered.index(key))
    return tuple(sorted(set(found)))
