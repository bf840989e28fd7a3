"""Plans: what launches of one kernel share when their arguments look alike.

Working out a launch (sorting keywords, binding arguments, building trees) costs ten times what JAX takes
to run one. Two launches whose arrays agree in shape and dtype and whose other arguments are equal differ in
their grid at most, so all else is kept, by a key that tells any two arguments apart that a launch tells
apart. The grid is computed anew at each launch: it may be a function.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np

from jtprim import compat
from jtprim.arguments import Path, base_array, static_identity
from jtprim.descriptors import ByValue, TensorDescriptor
from jtprim.primitive import bind_equation, check_grid
from jtprim.specialize.kernel import KernelSource
from jtprim.transforms.partitioning import mapped

# More different launches than this of one kernel are worked out anew.
_MOST_PLANS = 4096


@dataclass(frozen=True)
class Place:
    """Where an operand stands in a launch: a positional argument or a keyword, then a path into it."""

    argument: int | str
    path: Path = ()


@dataclass(frozen=True)
class Plan:
    """A launch without its arrays and its grid.

    Attributes:
      source: the kernel at the state of its globals that the plan was made for.
      names: the parameter of each positional argument.
      meta: what a grid function sees beside the arguments passed: defaults, shapes of outputs, options.
      places: where the operands stand.
      parameters: the equation's parameters, with the configurations' grid still to be set.
      settings: keywords that say how to launch; a grid function does not see them.
      donate: whether an eager launch gives its in-outs away.
      rebuild: makes what the launch returns from the equation's results.
    """

    source: KernelSource
    names: tuple[str, ...]
    meta: Mapping[str, Any]
    places: tuple[Place, ...]
    parameters: Mapping[str, Any]
    settings: frozenset[str]
    donate: bool
    rebuild: Callable[[Sequence[Any]], Any]
    _bound: dict[tuple[int, ...], Bound] = field(default_factory=dict)

    def launch(self, grid: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Binds the equation for these arguments and returns what the launch returns."""
        if callable(grid):
            passed = {name: value for name, value in kwargs.items() if name not in self.settings}
            grid = grid({**self.meta, **dict(zip(self.names, args, strict=True)), **passed})
        # A tuple of plain ints may be one that was seen before; everything else is looked at closely.
        known = type(grid) is tuple and all(type(size) is int for size in grid)
        bound = self._bound.get(grid) if known else None
        if bound is None:
            sizes = check_grid(grid, kernel=self.source.name)
            [configuration] = self.parameters["configurations"]
            configurations = (replace(configuration, grid=sizes),)
            bound = bound_equation({**self.parameters, "configurations": configurations}, self.donate)
            self._bound[grid if known else sizes] = bound
        operands = []
        for place in self.places:
            operand = args[place.argument] if isinstance(place.argument, int) else kwargs[place.argument]
            for index in place.path:
                operand = operand[index]
            operands.append(base_array(operand))
        return self.rebuild(bound(*operands))


class Bound:
    """One equation without its operands. At top level it runs through `jax.jit`'s own fast path."""

    def __init__(self, parameters: dict[str, Any], donate: bool):
        self.parameters = parameters

        def launch(*operands: Any) -> Any:
            return self.bind(operands)

        launch.__name__ = launch.__qualname__ = parameters["name"]
        donated = tuple(operand for operand, _ in parameters["aliases"]) if donate else ()
        self._compiled = jax.jit(launch, donate_argnums=donated)

    def __call__(self, *operands: Any) -> Any:
        return self._compiled(*operands) if compat.at_top_level() else self.bind(operands)

    def bind(self, operands: Sequence[Any]) -> Any:
        """The equation's results; where operands have shardings in their types, so have the results."""
        mesh, parameters = compat.explicit_mesh(operands), self.parameters
        if mesh is not None:
            return mapped(parameters, mesh, operands)
        if parameters["partition"] is not None and compat.in_explicit_mesh():
            parameters = {**parameters, "partition": None}
        return bind_equation(parameters, operands)


@functools.lru_cache(maxsize=4096)
def _bound(items: tuple[tuple[str, Any], ...], donate: bool) -> Bound:
    return Bound(dict(items), donate)


def bound_equation(parameters: Mapping[str, Any], donate: bool) -> Bound:
    """The one `Bound` of equal parameters.

    Args:
      parameters: of the equation.
      donate: whether an eager launch gives its in-outs away, as `jax.jit` does with donated arguments.
    """
    return _bound(tuple(parameters.items()), donate)


class Plans:
    """The plans of one kernel."""

    def __init__(self) -> None:
        self._plans: dict[Hashable, Plan] = {}

    def __len__(self) -> int:
        return len(self._plans)

    def find(self, key: Hashable | None, source: KernelSource) -> Plan | None:
        plan = None if key is None else self._plans.get(key)
        return plan if plan is not None and (plan.source is source or plan.source == source) else None

    def keep(self, key: Hashable | None, plan: Plan) -> None:
        if key is None:
            return
        if len(self._plans) >= _MOST_PLANS:
            self._plans.clear()
        self._plans[key] = plan


def plan_key(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Hashable | None:
    """A key that is equal for launches that differ in the contents of arrays at most.

    None where an argument is a Ref or can't be hashed: such a launch is worked out each time.
    """
    try:
        return (
            tuple(map(_argument_key, args)),
            tuple((name, _argument_key(value)) for name, value in kwargs.items()),
            jax.dtypes.canonicalize_dtype(np.int64),
            compat.abstract_device_kind(),
        )
    except TypeError:
        return None


def _argument_key(value: Any) -> Hashable:
    kind = type(value)
    if kind is int or kind is str or kind is bool or value is None:
        return (kind, value)
    if isinstance(value, (jax.Array, jax.ShapeDtypeStruct)):
        return (kind is jax.ShapeDtypeStruct, value.shape, value.dtype, value.weak_type)
    if isinstance(value, jax.Ref):
        raise TypeError("a Ref is read and written at each launch")
    if isinstance(value, np.ndarray):
        return (np.ndarray, value.shape, value.dtype)
    if isinstance(value, (tuple, list)):
        return (kind, tuple(map(_argument_key, value)))
    if kind is ByValue:
        return (kind, _argument_key(value.array))
    if kind is TensorDescriptor:
        numbers = (value.shape, value.strides, value.block_shape)
        flags = (value.layout, value.padding, value.round_f32_to_tf32)
        return (kind, _argument_key(value.base), *map(tuple, numbers), *flags)
    if isinstance(value, Mapping):
        return (kind, tuple((_argument_key(k), _argument_key(v)) for k, v in value.items()))
    return static_identity(value)
