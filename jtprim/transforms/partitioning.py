"""Launches that are divided among devices by a sharding rule, through `jax.experimental.custom_partitioning`.

An equation with a rule carries a `Partition`: its lowering for several devices is a call that XLA's
partitioner asks back about once it knows how operands and results are sharded. The answer is one launch a
device, worked out anew for the shapes of the shards; XLA moves what is sharded otherwise. On one device, and
inside `jax.shard_map`, the lowering is the launch itself. Derivatives are made of the kernel's translation,
which XLA divides as it does all JAX operations.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental.custom_partitioning import custom_partitioning
from jax.extend.core import ClosedJaxpr
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from triton.runtime.jit import JITCallable

from jtprim.arguments import Static, leaves
from jtprim.primitive import bind_equation, triton_kernel_p
from jtprim.sharding import Assignment, Rule, shape_of, spec_of
from jtprim.specialize.kernel import cache_key

# Works out the launch of one shard: from the sizes of the named axes and the shapes of the results, both on
# one device, and the operands there, to the results there.
Launch = Callable[..., Sequence[Any]]


@dataclass(frozen=True)
class Shard:
    """The launch of one shard.

    Attributes:
      key: equal for launches that work out the same.
      text: describes the launch, so that it is another one's in no process.
      launch: called as ``launch(sizes, shapes, *operands)``.
    """

    key: Hashable
    text: str = field(compare=False)
    launch: Launch = field(compare=False)


class Partition(NamedTuple):
    """How one equation is divided. A tuple, for JAX to find the jaxpr: its partitioned calls need devices.

    Attributes:
      rule: the named axes of operands and results.
      shard: what each device runs.
      jaxpr: the equation as a call that can be divided.
    """

    rule: Rule
    shard: Shard
    jaxpr: ClosedJaxpr

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Partition) and self[:2] == other[:2]

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self[:2])

    def __repr__(self) -> str:
        return repr(self.rule)

    def digest(self, params: Mapping[str, Any]) -> str:
        """A text that two equations don't share, in whatever process, whose shards run something else.

        Args:
          params: of the equation.
        """
        described = {name: value for name, value in params.items() if name not in ("kernel", "partition")}
        statics = [leaf for tree in params["arguments"] for leaf in leaves(tree) if isinstance(leaf, Static)]
        statics += [static for one in params["configurations"] for _, static in one.constexprs]
        called = [cache_key(one.value) for one in statics if isinstance(one.value, JITCallable)]
        keys = [params["kernel"].key, *called]
        text = f"{keys} {self.rule} {self.rule.to_jax()} {described} {self.shard.text}"
        return hashlib.sha256(text.encode()).hexdigest()


def partitioned(
    params: Mapping[str, Any], rule: Rule, shard: Shard, operands: Sequence[Any]
) -> dict[str, Any]:
    """An equation's parameters with a rule.

    Args:
      params: of the equation; a partition that it has is replaced.
      rule, shard: how it is divided.
      operands: the equation's operands, or anything with their shapes and dtypes.
    """
    whole = {**params, "partition": None}

    def launch(*operands: Any) -> tuple[Any, ...]:
        return tuple(triton_kernel_p.bind(*operands, **whole))

    def assigned(mesh: Any, args: Sequence[Any], results: Sequence[Any]) -> tuple[Any, Assignment]:
        mapped = (*rule.results, *rule.operands) if results else rule.operands
        pairs: list[tuple[Any, Any]] = []
        for one, array in zip(mapped, (*results, *args), strict=True):
            sharding = array.sharding
            if isinstance(sharding, NamedSharding):
                mesh = sharding.mesh
                pairs.append((one, sharding.spec))
            elif sharding is not None:  # there is no mesh whose axes would have names
                devices = sorted(sharding.device_set, key=lambda device: device.id)
                return Mesh(np.array(devices), ("devices",)), {}
        return mesh, rule.assign(pairs, mesh.shape)

    def placed(mesh: Any, assignment: Assignment, mapped: Sequence[Any]) -> tuple[NamedSharding, ...]:
        return tuple(NamedSharding(mesh, PartitionSpec(*spec_of(one, assignment))) for one in mapped)

    def partition(mesh: Any, args: Sequence[Any], results: Sequence[Any]) -> tuple[Any, ...]:
        mesh, assignment = assigned(mesh, args, results)
        run = _one_device(rule, shard, assignment, mesh.shape, [result.dtype for result in results])
        return (
            mesh,
            run if assignment else launch,
            placed(mesh, assignment, rule.results),
            placed(mesh, assignment, rule.operands),
        )

    def inferred(mesh: Any, args: Sequence[Any], results: Sequence[Any]) -> tuple[NamedSharding, ...]:
        mesh, assignment = assigned(mesh, args, ())
        return placed(mesh, assignment, rule.results)

    call = custom_partitioning(launch)
    call.def_partition(partition, infer_sharding_from_operands=inferred, sharding_rule=rule.to_jax())
    avals = [jax.ShapeDtypeStruct(operand.shape, operand.dtype) for operand in operands]
    return {**params, "partition": Partition(rule, shard, jax.make_jaxpr(call)(*avals))}


def _one_device(
    rule: Rule, shard: Shard, assignment: Assignment, mesh: Mapping[str, int], dtypes: Sequence[Any]
) -> Callable[..., tuple[Any, ...]]:
    """What each device runs on its shards of the operands, for its shards of the results."""
    sizes = rule.shard_sizes(assignment, mesh)
    shapes = [
        jax.ShapeDtypeStruct(shape_of(result, sizes), dtype)
        for result, dtype in zip(rule.results, dtypes, strict=True)
    ]
    summed = tuple(axis for name in sorted(rule.reductions) for axis in assignment.get(name, ()))

    def run(*operands: Any) -> tuple[Any, ...]:
        found = shard.launch(sizes, shapes, *operands)
        return tuple(jax.lax.psum(list(found), summed) if summed else found)

    return run


def _whole(params: Mapping[str, Any], *operands: Any) -> list[Any]:
    return bind_equation({**params, "partition": None}, operands)


def mapped(params: Mapping[str, Any], mesh: Any, operands: Sequence[Any]) -> list[Any]:
    """A launch's results where the operands' types tell how they are sharded: nothing is left to ask XLA.

    Without a rule, and where none of its axes is divided, all devices launch the same on whole arrays.

    Args:
      params: of the equation.
      mesh: that the types are about.
      operands: of the equation.
    """
    partition: Partition | None = params["partition"]
    inside: tuple[PartitionSpec, ...] = (PartitionSpec(),) * len(operands)
    outside: Any = PartitionSpec()
    run: Callable[..., Any] = functools.partial(_whole, params)
    if partition is not None:
        rule = partition.rule
        specs = [jax.typeof(operand).sharding.spec for operand in operands]
        if assignment := rule.assign(list(zip(rule.operands, specs, strict=True)), mesh.shape):
            dtypes = [shape.dtype for shape in params["out_shape"].shapes]
            run = _one_device(rule, partition.shard, assignment, mesh.shape, dtypes)
            inside, outside = (
                tuple(PartitionSpec(*spec_of(one, assignment)) for one in side)
                for side in (rule.operands, rule.results)
            )
    placed = [
        jax.sharding.reshard(operand, NamedSharding(mesh, spec))
        for operand, spec in zip(operands, inside, strict=True)
    ]
    return list(jax.shard_map(run, mesh=mesh, in_specs=inside, out_specs=outside)(*placed))


def partitioned_batch(
    params: Mapping[str, Any], batched: Sequence[bool], size: int, operands: Sequence[Any]
) -> dict[str, Any]:
    """The parameters of a batch of launches, divided as one of them is, and along the batch.

    Args:
      params: of the equation of all launches together, with one launch's partition, or with none.
      batched: which operands have an axis for the batch, their first.
      size: of the batch.
      operands: of all launches together.
    """
    present: Partition | None = params["partition"]
    if present is None:
        return dict(params)
    [rule, shard, _] = present
    axes = tuple(0 if moves else None for moves in batched)

    def launch(sizes: Mapping[str, int], shapes: Sequence[Any], *operands: Any) -> Any:
        members = [jax.ShapeDtypeStruct(shape.shape[1:], shape.dtype) for shape in shapes]
        return jax.vmap(lambda *one: shard.launch(sizes, members, *one), axes)(*operands)

    both = Shard((shard.key, axes), f"{shard.text} {axes}", launch)
    return partitioned(params, rule.with_batch(batched, size), both, operands)
