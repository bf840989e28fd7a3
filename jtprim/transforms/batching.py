"""`jax.vmap` of a launch: one launch with the batch along an axis of the grid that the kernel leaves alone.

Every pointer is moved to the arrays of its own member of the batch by an adapter, around the kernel as it
is. Where no axis is left (the kernel has several programs along each, or asks for its place along it), or
a batched array is behind a tensor descriptor, the launches run one after the other in one program.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import batching
from jax.sharding import NamedSharding, PartitionSpec
from triton import CompilationError

from jtprim import compat
from jtprim.arguments import Batching, Branch, Operand, Output, Tree, leaves
from jtprim.primitive import GRID_LIMITS, OutShape, bind_equation, triton_kernel_p
from jtprim.specialize.access import read_axes
from jtprim.specialize.adapters import adapt
from jtprim.specialize.binder import specialize_arguments
from jtprim.specialize.kernel import KernelSource
from jtprim.specialize.target import PORTABLE
from jtprim.transforms.partitioning import partitioned_batch


def _batch(arrays: Sequence[Any], axes: Sequence[int | None], **params: Any) -> tuple[list[Any], list[int]]:
    [size, *_] = [x.shape[axis] for x, axis in zip(arrays, axes, strict=True) if axis is not None]
    operands = [x if axis is None else jnp.moveaxis(x, axis, 0) for x, axis in zip(arrays, axes, strict=True)]
    batched = [axis is not None for axis in axes]
    for operand, _ in params["aliases"]:  # each member of the batch writes its own
        if not batched[operand]:
            operands[operand] = jnp.broadcast_to(operands[operand], (size, *operands[operand].shape))
            batched[operand] = True
    mesh, axes = compat.explicit_mesh(operands), _mesh_axes(operands, batched)
    if axes:
        results = _divided(params, mesh, axes, operands, batched)
        return results, [0] * len(results)
    shapes = [x.shape[1:] if is_batched else x.shape for x, is_batched in zip(operands, batched, strict=True)]
    found = _free_axis(params, size, batched, shapes, operands)
    if found is None:
        results = _one_by_one(operands, batched, params)
    else:
        spread = _spread(params, found, size, batched, shapes)
        results = triton_kernel_p.bind(*operands, **partitioned_batch(spread, batched, size, operands))
    return results, [0] * len(results)


def _mesh_axes(operands: Sequence[Any], batched: Sequence[bool]) -> Any:
    """The mesh axes that divide the batch, where an operand's type tells so."""
    specs = [jax.typeof(x).sharding.spec for x, moves in zip(operands, batched, strict=True) if moves]
    return next((spec[0] for spec in specs if spec and spec[0] is not None), None)


def _divided(
    params: Mapping[str, Any], mesh: Any, axes: Any, operands: Sequence[Any], batched: Sequence[bool]
) -> list[Any]:
    """The results of a batch that the operands' types divide along mesh axes: each device has some of it."""

    def members(*operands: Any) -> list[Any]:
        moving = [0 if moves else None for moves in batched]
        return jax.vmap(lambda *one: bind_equation(params, one), moving)(*operands)

    specs = [
        PartitionSpec(axes if moves else None, *[None] * (x.ndim - 1)) if x.ndim else PartitionSpec()
        for x, moves in zip(operands, batched, strict=True)
    ]
    placed = [
        jax.sharding.reshard(x, NamedSharding(mesh, spec)) for x, spec in zip(operands, specs, strict=True)
    ]
    names = set(axes) if isinstance(axes, tuple) else {axes}
    run = jax.shard_map(
        members, mesh=mesh, in_specs=tuple(specs), out_specs=PartitionSpec(axes), axis_names=names
    )
    return run(*placed)


def _one_by_one(operands: Sequence[Any], batched: Sequence[bool], params: Mapping[str, Any]) -> list[Any]:
    """The results of the launches one after the other."""

    def one(members: Sequence[Any]) -> list[Any]:
        left = iter(members)
        return triton_kernel_p.bind(
            *(next(left) if is_batched else x for x, is_batched in zip(operands, batched, strict=True)),
            **params,
        )

    moving = [x for x, is_batched in zip(operands, batched, strict=True) if is_batched]
    return list(jax.lax.map(one, moving))


def _free_axis(
    params: Mapping[str, Any],
    size: int,
    batched: Sequence[bool],
    shapes: Sequence[tuple[int, ...]],
    operands: Sequence[Any],
) -> int | None:
    """The axis of the grid that the batch can have, or None if there is none."""
    present: Batching | None = params["batching"]
    slots = [leaf for tree in params["arguments"] for leaf in leaves(tree)]
    for slot in slots:
        moves = isinstance(slot, Output) or (isinstance(slot, Operand) and batched[slot.index])
        if moves and isinstance(slot, (Operand, Output)) and slot.view is not None:
            return None
    if present is not None:
        return present.axis if present.size * size <= GRID_LIMITS[present.axis] else None
    source: KernelSource = params["kernel"]
    if source.function.is_gluon():
        return None
    members = [jax.ShapeDtypeStruct(shape, x.dtype) for shape, x in zip(shapes, operands, strict=True)]
    free = {0, 1, 2}
    for configuration in params["configurations"]:
        arguments = configuration.arguments(source, params["arguments"])
        constexprs = dict(configuration.constexprs)
        outputs = params["out_shape"].shapes
        specialization = specialize_arguments(source, arguments, members, outputs, constexprs, PORTABLE)
        kernel = adapt(source, arguments, specialization, None, reorder=False)
        try:
            free -= read_axes(kernel, configuration.options)
        except CompilationError:
            return None  # a kernel for its own target alone
        free -= {axis for axis in range(3) if configuration.grid[axis] != 1}
    return max((axis for axis in free if size <= GRID_LIMITS[axis]), default=None)


def _spread(
    params: Mapping[str, Any],
    axis: int,
    size: int,
    batched: Sequence[bool],
    shapes: Sequence[tuple[int, ...]],
) -> dict[str, Any]:
    """The parameters of the equation of all launches together."""
    present: Batching | None = params["batching"]
    sizes = () if present is None else present.sizes
    out_shape: OutShape = params["out_shape"]

    def moved(tree: Tree) -> Tree:
        if isinstance(tree, Branch):
            return replace(tree, children=tuple(map(moved, tree.children)))
        inner = (0,) * len(sizes)
        if isinstance(tree, Operand):
            stride = math.prod(shapes[tree.index]) if batched[tree.index] else 0
            return replace(tree, strides=(stride, *(tree.strides or inner)))
        if isinstance(tree, Output):
            stride = math.prod(out_shape.shapes[tree.index].shape)
            return replace(tree, strides=(stride, *(tree.strides or inner)))
        return tree

    items = tuple(
        (coordinate, jax.ShapeDtypeStruct((size, *shape.shape), shape.dtype))
        for coordinate, shape in out_shape.items
    )
    return {
        **params,
        "arguments": tuple(map(moved, params["arguments"])),
        "out_shape": OutShape(items),
        "batching": Batching(axis, (size, *sizes)),
    }


batching.primitive_batchers[triton_kernel_p] = _batch
