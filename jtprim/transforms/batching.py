"""`jax.vmap` of a launch: one launch with the batch along an axis of the grid.

Every pointer is moved to the arrays of its own member of the batch by an adapter, around the kernel as it
is. Where the launches have several programs along each axis, the batch shares one with them; the kernel sees
the grid of one launch. Where no axis has room for the batch, or a batched array is behind a tensor descriptor
made on the host, the launches run one after the other in one program.
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

from jtprim import compat
from jtprim.arguments import Batching, Branch, Operand, Output, Tree, leaves
from jtprim.primitive import GRID_LIMITS, Configuration, OutShape, bind_equation, triton_kernel_p
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
    present: Batching | None = params["batching"]
    sizes = (size,) if present is None else (size, *present.sizes)
    batching = _batching(params["configurations"], sizes)
    if batching is None or _behind_descriptor(params["arguments"], batched):
        results = _one_by_one(operands, batched, params)
    else:
        spread = _spread(params, batching, batched, shapes)
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


def _behind_descriptor(arguments: Sequence[Tree], batched: Sequence[bool]) -> bool:
    """Whether a batched array is behind a descriptor made on the host.

    It describes the array of one launch: a kernel can't move it to another's as it moves a pointer, and gets
    no array of descriptors from the runtime.
    """
    slots = [leaf for tree in arguments for leaf in leaves(tree) if isinstance(leaf, (Operand, Output))]
    return any(slot.view is not None and (isinstance(slot, Output) or batched[slot.index]) for slot in slots)


def _batching(configurations: Sequence[Configuration], sizes: tuple[int, ...]) -> Batching | None:
    """How a batch spreads over the grid, or None where no axis has room for it.

    An axis with one program is taken before one that the launches' own programs and the batch then share, and
    the slowest axis before faster ones: the programs of one launch, which have data in common, stay together.
    """
    size = math.prod(sizes)
    found = [
        Batching(axis, sizes, folded=any(one.grid[axis] != 1 for one in configurations)) for axis in (2, 1, 0)
    ]
    fitting = [
        batching
        for batching in found
        if all(one.grid[batching.axis] * size <= GRID_LIMITS[batching.axis] for one in configurations)
    ]
    return min(fitting, key=lambda batching: batching.folded, default=None)


def _spread(
    params: Mapping[str, Any],
    batching: Batching,
    batched: Sequence[bool],
    shapes: Sequence[tuple[int, ...]],
) -> dict[str, Any]:
    """The parameters of the equation of all launches together."""
    [size, *sizes] = batching.sizes
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
        "batching": batching,
    }


batching.primitive_batchers[triton_kernel_p] = _batch
