"""Derivatives that a kernel's author gives: `Kernel.defvjp` and `Kernel.defjvp`, on JAX's own machinery."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jtprim.arguments import NormalCoordinate, coordinate_text, normalize_coordinate
from jtprim.errors import LaunchValueError, listing


@dataclass(frozen=True)
class Rules:
    """A kernel's own derivative: either `fwd` and `bwd`, or `jvp`."""

    fwd: Callable[..., Any] | None = None
    bwd: Callable[..., Any] | None = None
    jvp: Callable[..., Any] | None = None


class Split:
    """A launch's arguments as arrays, which are differentiated, and all else, which passes through.

    Attributes:
      arrays: those that the launch passes for parameters.
      coordinates: of each of them.
      static: all other arguments and keywords by name.
    """

    def __init__(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        positional: Sequence[str],
        names: Sequence[str],
    ):
        found, self._tree = jax.tree_util.tree_flatten_with_path(
            (tuple(args), dict(kwargs)), is_leaf=lambda leaf: leaf is None
        )
        self._leaves = [leaf for _, leaf in found]
        self._places: list[int] = []
        self.coordinates: list[NormalCoordinate] = []
        for place, (path, leaf) in enumerate(found):
            (group, argument, *inside) = path
            name = positional[argument.idx] if group.idx == 0 else argument.key
            if isinstance(leaf, (jax.Array, np.ndarray)) and name in names:
                self._places.append(place)
                self.coordinates.append((name, *(key.idx for key in inside if hasattr(key, "idx"))))
        self.arrays = [self._leaves[place] for place in self._places]
        moving = {coordinate[0] for coordinate in self.coordinates}
        self.static = {
            name: value
            for name, value in {**dict(zip(positional, args, strict=True)), **kwargs}.items()
            if name not in moving
        }

    def joined(self, arrays: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The positional arguments and keywords with `arrays` in their places."""
        leaves = list(self._leaves)
        for place, array in zip(self._places, arrays, strict=True):
            leaves[place] = array
        args, kwargs = jax.tree.unflatten(self._tree, leaves)
        return args, kwargs


def launch(
    rules: Rules,
    run: Callable[..., Any],
    grid: Any,
    split: Split,
    names: Sequence[str],
    *,
    kernel: str,
) -> Any:
    """Launches a kernel that has derivatives of its own.

    Args:
      rules: the derivatives.
      run: launches the kernel for arguments as they were given.
      grid, split: of the launch.
      names: the kernel's parameters.
      kernel: its name, for messages.
    """

    def plain(*arrays: Any) -> Any:
        args, kwargs = split.joined(arrays)
        return run(*args, **kwargs)

    if rules.jvp is not None:
        return _with_jvp(rules.jvp, plain, grid, split)(*split.arrays)
    assert rules.fwd is not None
    assert rules.bwd is not None
    fwd, bwd = rules.fwd, rules.bwd

    def forward(*arrays: Any) -> tuple[Any, Any]:
        args, kwargs = split.joined(arrays)
        result, residuals = fwd(grid, *args, **kwargs)
        return result, residuals

    def backward(residuals: Any, cotangents: Any) -> tuple[Any, ...]:
        return _gradients(bwd(grid, residuals, cotangents, **split.static), split, names, kernel)

    derived = jax.custom_vjp(plain)
    derived.defvjp(forward, backward)
    return derived(*split.arrays)


def _with_jvp(rule: Callable[..., Any], plain: Callable[..., Any], grid: Any, split: Split) -> Any:
    derived = jax.custom_jvp(plain)

    @derived.defjvp
    def moved(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        args, kwargs = split.joined(primals)
        by_name = {
            coordinate[0] if len(coordinate) == 1 else coordinate: tangent
            for coordinate, tangent in zip(split.coordinates, tangents, strict=True)
        }
        result, tangent = rule(grid, by_name, *args, **kwargs)
        return result, tangent

    return derived


def _gradients(found: Any, split: Split, names: Sequence[str], kernel: str) -> tuple[Any, ...]:
    """Cotangents of all arrays from those that a rule gives by coordinate; zero for the others."""
    if not isinstance(found, Mapping):
        raise LaunchValueError(
            f"its bwd returned a {type(found).__name__}; expected a mapping from parameter to gradient.",
            kernel=kernel,
        )
    by_coordinate = {
        normalize_coordinate(key, names, kernel=kernel, setting="bwd's result"): value
        for key, value in found.items()
    }
    for coordinate in by_coordinate.keys() - set(split.coordinates):
        raise LaunchValueError(
            f"its bwd gives a gradient for {coordinate_text(coordinate)!r}, for which the launch passes no "
            f"array; arrays are passed for {listing(map(coordinate_text, split.coordinates))}.",
            kernel=kernel,
        )
    return tuple(
        _zero(array) if (gradient := by_coordinate.get(coordinate)) is None else gradient
        for coordinate, array in zip(split.coordinates, split.arrays, strict=True)
    )


def _zero(array: Any) -> Any:
    if jnp.issubdtype(array.dtype, jnp.inexact):
        return jnp.zeros(array.shape, array.dtype)
    return np.zeros(array.shape, jax.dtypes.float0)
