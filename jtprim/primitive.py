"""`triton_kernel_p`: the JAX primitive of which every launch is one equation.

An equation carries data, never a closure: everything that a launch computes with callables (the grid,
heuristics, an autotuner's pruning) is resolved before. Two launches that mean the same have equal
parameters. Only with a sharding rule an equation knows how to work the launch out again, for each shard: that
is compared by what the launch was given.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import jax
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import xla

from jtprim import compat
from jtprim.arguments import (
    Coordinate,
    NormalCoordinate,
    Operand,
    Output,
    Static,
    Tree,
    View,
    as_constexpr,
    as_static,
    build_tree,
    check_dtype,
    coordinate_text,
    is_array,
    leaves,
    normalize_coordinate,
    with_block_shapes,
)
from jtprim.descriptors import ByValue, TensorDescriptor
from jtprim.errors import LaunchTypeError, LaunchValueError, did_you_mean, listing
from jtprim.specialize.kernel import Kernel, KernelSource, Parameter, kernel_parameters, kernel_source
from jtprim.specialize.stand_ins import stand_in
from jtprim.specialize.target import TargetLike, parse_targets, target_name

# Programs on each axis of a grid: CUDA's and HIP's limits.
GRID_LIMITS = (2**31 - 1, 65535, 65535)


@dataclass(frozen=True)
class Configuration:
    """One way to run a kernel: what differs between an autotuner's configurations.

    Attributes:
      grid: programs on each of three axes.
      constexprs: parameters that the configuration sets, in place of the launch's arguments.
      options: compile options by name, as given; a backend's defaults are added when lowering.
      zeroed: indices of outputs that are zeroed before the kernel runs.
      block_shapes: block shapes of descriptors, in place of the arguments' own, by coordinate.
    """

    grid: tuple[int, int, int]
    constexprs: tuple[tuple[str, Static], ...] = ()
    options: tuple[tuple[str, Any], ...] = ()
    zeroed: tuple[int, ...] = ()
    block_shapes: tuple[tuple[NormalCoordinate, tuple[int, ...]], ...] = ()

    def arguments(self, source: KernelSource, arguments: Sequence[Tree]) -> tuple[Tree, ...]:
        """An equation's arguments as this configuration has them, its constexprs aside."""
        names = [parameter.name for parameter in source.function.params]
        return with_block_shapes(arguments, names, self.block_shapes)

    def __repr__(self) -> str:
        parts = [f"grid={_short_grid(self.grid)}"]
        parts += [f"{name}={value}" for name, value in (*self.constexprs, *self.options)]
        parts += [f"zeroed={self.zeroed}"] if self.zeroed else []
        parts += [f"{coordinate_text(c)}.block_shape={shape}" for c, shape in self.block_shapes]
        return f"({', '.join(parts)})"


@dataclass(frozen=True)
class OutShape:
    """The results of an equation, in order: coordinate -> shape and dtype. Hashable."""

    items: tuple[tuple[NormalCoordinate, jax.ShapeDtypeStruct], ...]

    @functools.cached_property
    def shapes(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        return tuple(shape for _, shape in self.items)

    @functools.cached_property
    def coordinates(self) -> tuple[NormalCoordinate, ...]:
        return tuple(coordinate for coordinate, _ in self.items)

    def __repr__(self) -> str:
        return "{" + ", ".join(f"{coordinate_text(c)}: {_short_shape(s)}" for c, s in self.items) + "}"


@dataclass(frozen=True)
class CostEstimate:
    """What a launch costs: written on the call as frontend attributes, for tools that read the program.

    XLA's GPU backends of the supported versions take no estimate for this kind of call.

    Attributes:
      flops: floating-point operations.
      transcendentals: transcendental operations.
      bytes_accessed: bytes read and written.
    """

    flops: int = 0
    transcendentals: int = 0
    bytes_accessed: int = 0


def _short_grid(grid: tuple[int, int, int]) -> str:
    used = max((axis + 1 for axis in range(3) if grid[axis] != 1), default=1)
    return str(grid[:used])


def _short_shape(shape: jax.ShapeDtypeStruct) -> str:
    return str(jax.core.ShapedArray(shape.shape, shape.dtype).str_short(short_dtypes=True))


triton_kernel_p = Primitive("triton_kernel")
triton_kernel_p.multiple_results = True


def bind_equation(parameters: Mapping[str, Any], operands: Sequence[Any]) -> list[Any]:
    """The results of one equation.

    Inside `jax.shard_map` an equation's operands all differ along the same axes, as JAX's own do.
    """
    alike = compat.varying(operands, compat.varying_axes(operands))
    return list(triton_kernel_p.bind(*alike, **parameters))


# --- Parameters of an equation -----------------------------------------------------------------


def check_grid(grid: Any, *, kernel: str) -> tuple[int, int, int]:
    """A grid as three numbers of programs; those left out are 1.

    Args:
      grid: an int, or a tuple or list of one to three ints, 0 among them for no work at all.
      kernel: the kernel's name, for messages.

    Raises:
      LaunchTypeError: it is something else.
      LaunchValueError: it is empty, too long, negative or beyond a limit of the GPUs.
    """
    sizes = list(grid) if isinstance(grid, (tuple, list)) else [grid]
    if isinstance(grid, jax.core.Tracer) or any(isinstance(size, jax.core.Tracer) for size in sizes):
        raise LaunchTypeError(
            "the grid depends on a value that jax.jit traces; make it static (static_argnums), or compute "
            "it from shapes.",
            kernel=kernel,
        )
    if not sizes or len(sizes) > 3:
        raise LaunchValueError(
            f"grid {grid!r} has {len(sizes)} axes; expected one to three, such as (8,).", kernel=kernel
        )
    for axis, size in enumerate(sizes):
        if isinstance(size, bool) or not isinstance(size, (int, np.integer)):
            raise LaunchTypeError(
                f"grid {grid!r} has a {type(size).__name__} on axis {axis}; expected an int, or a function "
                "of the metaparameters that returns ints.",
                kernel=kernel,
            )
        if size < 0:
            raise LaunchValueError(f"grid {grid!r} is negative on axis {axis}.", kernel=kernel)
        if size > GRID_LIMITS[axis]:
            raise LaunchValueError(
                f"grid {grid!r} exceeds the limit of {GRID_LIMITS[axis]} programs on axis {axis}; give each "
                "program more work, or fold the axis into axis 0.",
                kernel=kernel,
            )
    x, y, z = (*map(int, sizes), 1, 1)[:3]
    return x, y, z


def launch_parameters(
    kernel: Kernel,
    arguments: Mapping[str, Any],
    *,
    out_shape: Mapping[Any, Any] | None = None,
    aliases: Sequence[Coordinate] = (),
    configurations: Sequence[Configuration],
    target: TargetLike | Sequence[TargetLike] | None = None,
    name: str | None = None,
    metadata: bytes = b"",
    cost_estimate: CostEstimate | None = None,
    has_side_effect: bool = False,
) -> tuple[list[Any], dict[str, Any]]:
    """The operands and parameters of a `triton_kernel_p` equation.

    The launch syntax binds what this returns, so an equation bound by hand is the one a launch gives:

        operands, parameters = launch_parameters(add, {"x": x, "y": y, "n": 8, "BLOCK": 8},
            out_shape={"out": x}, configurations=[Configuration((1, 1, 1))])
        [out] = triton_kernel_p.bind(*operands, **parameters)

    Args:
      kernel: a `triton.jit` or `gluon.jit` function, or an autotuner or heuristics around one (whose
        configurations are given, not computed).
      arguments: value of each parameter by name, except outputs: arrays, static values and tuples of
        these; defaults fill in for those left out.
      out_shape: coordinate -> anything with a shape and a dtype, for each array that the kernel only
        writes.
      aliases: coordinates of arguments that the kernel also writes. Their results follow the outputs.
      configurations: at least one.
      target: what to compile for where the lowering has no GPU at hand: ``"cuda:90"``,
        ``"hip:gfx942"``, a `GPUTarget`, or several of these for different vendors.
      name: of the launch, in profiles and dumps; the kernel's own by default.
      metadata: bytes that travel with the custom call.
      cost_estimate: written on the call, for tools that read the program.
      has_side_effect: keeps the launch even if no result is used.

    Returns:
      The arrays to bind, and the equation's parameters. Outputs come in the order of the signature,
      then in-outs.

    Raises:
      LaunchTypeError, LaunchValueError: an argument or a setting is at fault; the sentence says which.
    """
    source = kernel_source(kernel)
    builder = ArgumentBuilder(source, arguments, out_shape, configurations)
    trees = tuple(map(builder.build, kernel_parameters(kernel)))
    builder.check_concrete()
    results = list(builder.outputs)
    pairs = []
    for coordinate in aliases:
        operand = builder.in_out(coordinate)
        array = builder.operands[operand.index]
        pairs.append((operand.index, len(results)))
        results.append((builder.normal(coordinate, "input_output_aliases"), as_shape(array)))
    if not results and not has_side_effect:
        raise LaunchValueError(
            "writes no array that the launch names; declare its outputs in out_shape, its in-outs "
            "in input_output_aliases, or say has_side_effect=True.",
            kernel=source.name,
        )
    _check_zeroed(configurations, len(builder.outputs), kernel=source.name)
    return builder.operands, {
        "kernel": source,
        "arguments": trees,
        "out_shape": OutShape(tuple(results)),
        "aliases": tuple(pairs),
        "batching": None,
        "configurations": tuple(configurations),
        "target": parse_targets(target),
        "name": name or source.name,
        "metadata": metadata,
        "cost_estimate": cost_estimate,
        "has_side_effect": has_side_effect,
        "partition": None,
    }


def as_shape(array: Any) -> jax.ShapeDtypeStruct:
    """Shape and dtype of an array or of something like one, the dtype as JAX's x64 mode has it."""
    return jax.ShapeDtypeStruct(tuple(array.shape), jax.dtypes.canonicalize_dtype(array.dtype))


class ArgumentBuilder:
    """Builds the argument trees of one equation, and collects its operands and outputs."""

    def __init__(
        self,
        source: KernelSource,
        arguments: Mapping[str, Any],
        out_shape: Mapping[Any, Any] | None = None,
        configurations: Sequence[Configuration] = (),
    ):
        self.kernel = source.name
        self.names = [parameter.name for parameter in source.function.params]
        self.arguments = arguments
        self.declared = {self.normal(c, "out_shape"): as_shape(s) for c, s in (out_shape or {}).items()}
        self.configured = {name for c in configurations for name, _ in c.constexprs}
        self.operands: list[Any] = []
        self.slots: dict[NormalCoordinate, Operand] = {}
        self.outputs: list[tuple[NormalCoordinate, jax.ShapeDtypeStruct]] = []
        for unknown in set(arguments) - set(self.names):
            raise LaunchTypeError(
                f"no parameter named {unknown!r}; parameters are {listing(self.names)}."
                f"{did_you_mean(unknown, self.names)}",
                kernel=self.kernel,
                parameter=unknown,
            )

    def normal(self, coordinate: Coordinate, setting: str) -> NormalCoordinate:
        return normalize_coordinate(coordinate, self.names, kernel=self.kernel, setting=setting)

    def in_out(self, coordinate: Coordinate) -> Operand:
        """The operand at a coordinate of an argument that the kernel also writes."""
        normal = self.normal(coordinate, "input_output_aliases")
        if normal in self.slots:
            return self.slots[normal]
        raise LaunchValueError(
            f"input_output_aliases names {coordinate_text(normal)!r}, for which the launch passes no array; "
            f"arrays are passed for {listing(map(coordinate_text, self.slots))}.",
            kernel=self.kernel,
            parameter=normal[0],
        )

    def build(self, parameter: Parameter) -> Tree:
        """The tree of one parameter's argument."""
        name = parameter.name
        if name in self.configured:
            return Static(None)  # each configuration has its own value
        value = self._value(parameter)
        if parameter.is_constexpr:
            return as_constexpr(value, kernel=self.kernel, parameter=name)
        tree = build_tree(
            value,
            lambda array, path: self._slot(array, (name, *path)),
            functools.partial(as_static, kernel=self.kernel, parameter=name),
        )
        for left in (c for c in self.declared if c[0] == name):
            raise LaunchValueError(
                f"out_shape declares {coordinate_text(left)!r}, but the argument has no such element; pass "
                "None there.",
                kernel=self.kernel,
                parameter=name,
            )
        return tree

    def check_concrete(self) -> None:
        """Checks that every operand can be bound: a shape alone is good for specialization only."""
        for coordinate, slot in self.slots.items():
            if isinstance(self.operands[slot.index], jax.ShapeDtypeStruct):
                raise LaunchTypeError(
                    f"argument {coordinate_text(coordinate)!r} is a ShapeDtypeStruct; pass an array, launch "
                    "under jax.eval_shape, or declare it in out_shape if it is an output.",
                    kernel=self.kernel,
                    parameter=coordinate[0],
                )

    def _value(self, parameter: Parameter) -> Any:
        name = parameter.name
        inside = [path for head, *path in self.declared if head == name]
        if name in self.arguments:
            if [] in inside and not isinstance(self.arguments[name], TensorDescriptor):
                raise LaunchValueError(
                    f"{name!r} is declared as an output and passed as well; leave it out of the call, or "
                    "name it in input_output_aliases in place of out_shape.",
                    kernel=self.kernel,
                    parameter=name,
                )
            return self.arguments[name]
        if inside:
            return _placeholders(inside)
        if parameter.has_default:
            return parameter.default
        raise LaunchTypeError(
            f"missing argument {name!r}; pass it, or declare it in out_shape if the kernel writes it.",
            kernel=self.kernel,
            parameter=name,
        )

    def _slot(self, value: Any, coordinate: NormalCoordinate) -> Operand | Output | None:
        text = coordinate_text(coordinate)
        view = None
        by_value = isinstance(value, ByValue)
        if isinstance(value, TensorDescriptor):
            view = self._view(value, text)
            value = value.base
        elif isinstance(value, ByValue):
            value = self._single(value.array, text)
        if coordinate in self.declared:
            shape = self.declared.pop(coordinate)
            check_dtype(shape.dtype, kernel=self.kernel, parameter=text)
            self.outputs.append((coordinate, shape))
            return Output(len(self.outputs) - 1, view)
        if not is_array(value):
            return None
        check_dtype(value.dtype, kernel=self.kernel, parameter=text)
        # A Python number that went through jax.jit is still meant as a number.
        by_value |= view is None and value.ndim == 0 and bool(getattr(value, "weak_type", False))
        self.operands.append(value)
        self.slots[coordinate] = Operand(len(self.operands) - 1, view, by_value)
        return self.slots[coordinate]

    def _single(self, array: Any, text: str) -> Any:
        """The array of `jt.by_value`, checked to have no axes."""
        if not is_array(array) or array.ndim != 0:
            got = f"an array of shape {array.shape}" if is_array(array) else f"a {type(array).__name__}"
            raise LaunchTypeError(
                f"argument {text!r} is jt.by_value of {got}; expected an array of no axes.",
                kernel=self.kernel,
                parameter=text,
            )
        return array

    def _view(self, descriptor: TensorDescriptor, text: str) -> View:
        """A descriptor without its base, checked by Triton's rules and against the base's size."""

        def refuse(reason: str) -> NoReturn:
            raise LaunchValueError(
                f"argument {text!r} is a tensor descriptor of shape {tuple(descriptor.shape)}, strides "
                f"{tuple(descriptor.strides)}, blocks of {tuple(descriptor.block_shape)}: {reason}.",
                kernel=self.kernel,
                parameter=text,
            )

        base = descriptor.base
        if not is_array(base):
            raise LaunchTypeError(
                f"argument {text!r} is a tensor descriptor of a {type(base).__name__}; pass an array, or a "
                "jax.ShapeDtypeStruct for an output.",
                kernel=self.kernel,
                parameter=text,
            )
        check_dtype(base.dtype, kernel=self.kernel, parameter=text)
        shape, strides, block_shape = (
            tuple(int(number) for number in numbers)
            for numbers in (descriptor.shape, descriptor.strides, descriptor.block_shape)
        )
        if not len(shape) == len(strides) == len(block_shape):
            refuse("the three must be of one length")
        view = View(
            shape,
            strides,
            block_shape,
            descriptor.layout,
            descriptor.padding,
            bool(descriptor.round_f32_to_tf32),
        )
        try:
            stand_in(base, view)
        except (AssertionError, ValueError, TypeError) as error:
            refuse(f"{error}".split(":")[0].rstrip("."))
        if view.round_f32_to_tf32 and base.dtype != np.float32:
            refuse(f"round_f32_to_tf32 is for float32, and the array is of {base.dtype}")
        if any(stride < 0 for stride in strides):
            refuse("strides can't be negative")
        last = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        if last >= math.prod(base.shape):
            refuse(f"it reaches element {last} of an array of {math.prod(base.shape)}")
        return view


def _placeholders(paths: Sequence[Sequence[int]]) -> Any:
    """Nested tuples with a place at each path, for arguments that consist of outputs alone."""
    if [] in paths:
        return None
    size = 1 + max(path[0] for path in paths)
    return tuple(_placeholders([path[1:] for path in paths if path[0] == i] or [[]]) for i in range(size))


def _check_zeroed(configurations: Sequence[Configuration], outputs: int, *, kernel: str) -> None:
    for index in (index for c in configurations for index in c.zeroed):
        if not 0 <= index < outputs:
            raise LaunchValueError(
                f"zeroed_outputs has {index}, which is no output: there are {outputs}, and an in-out keeps "
                "what it was given.",
                kernel=kernel,
            )


# --- Rules -------------------------------------------------------------------------------------


def _abstract_eval(*avals: Any, **params: Any) -> tuple[list[Any], set[Any]]:
    out_shape: OutShape = params["out_shape"]
    slots = {leaf.index for tree in params["arguments"] for leaf in leaves(tree) if isinstance(leaf, Operand)}
    if slots != set(range(len(avals))):
        raise LaunchValueError(
            f"the equation has {len(avals)} operands, but its arguments have slots for {len(slots)}.",
            kernel=params["kernel"].name,
        )
    for operand, output in params["aliases"]:
        given, result = avals[operand], out_shape.shapes[output]
        if (given.shape, given.dtype) != (result.shape, result.dtype):
            raise LaunchValueError(
                f"in-out {coordinate_text(out_shape.coordinates[output])!r} is given as "
                f"{given.str_short()} and declared as {_short_shape(result)}; the two are one buffer.",
                kernel=params["kernel"].name,
            )
    effects = {compat.launch_effect} if params["has_side_effect"] else set()
    return compat.results_varying_as(avals, out_shape.shapes), effects


def _visible(params: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters that a printed jaxpr shows: those that differ from the plainest launch."""
    shown: dict[str, Any] = {"kernel": params["kernel"]}
    configurations = params["configurations"]
    if len(configurations) == 1:
        [configuration] = configurations
        shown["grid"] = _short_grid(configuration.grid)
        shown.update(dict(configuration.options))
    else:
        shown["configurations"] = f"[{', '.join(map(repr, configurations))}]"
    shown["out_shape"] = params["out_shape"]
    if params["aliases"]:
        pairs = ", ".join(f"{operand}: {output}" for operand, output in params["aliases"])
        shown["aliases"] = "{" + pairs + "}"
    if params["batching"]:
        shown["batch"] = params["batching"].sizes
    if params["target"]:
        shown["target"] = ",".join(map(target_name, params["target"]))
    if params["name"] != params["kernel"].name:
        shown["name"] = params["name"]
    if params["has_side_effect"]:
        shown["has_side_effect"] = True
    if params["partition"] is not None:
        shown["sharding_rule"] = params["partition"]
    return shown


triton_kernel_p.def_impl(functools.partial(xla.apply_primitive, triton_kernel_p))
triton_kernel_p.def_effectful_abstract_eval(_abstract_eval)
compat.register_printing(triton_kernel_p, _visible)
