"""One launch being worked out: from what the caller wrote to an equation's operands and parameters.

Keywords are sorted, arguments bound to the kernel's parameters, outputs placed, Refs read, and every
callable (grid, heuristics, pruning, hooks, `zeroed_outputs`) resolved to data.
"""

from __future__ import annotations

import copy
import functools
import itertools
import types
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, NoReturn, TypeAlias

import jax
import numpy as np

from jtprim import compat
from jtprim.arguments import (
    NormalCoordinate,
    Operand,
    as_constexpr,
    base_array,
    coordinate_text,
    is_array,
    is_namedtuple,
    leaves_with_paths,
    normalize_coordinate,
)
from jtprim.descriptors import ByValue, TensorDescriptor, strides_from_shape
from jtprim.errors import LaunchTypeError, LaunchValueError, UnsupportedError, did_you_mean, listing
from jtprim.outputs import Declared, Outputs, Placed, declare_outputs, place_outputs, zeroed_indices
from jtprim.plan import Place, Plan, plan_key
from jtprim.primitive import (
    ArgumentBuilder,
    Configuration,
    CostEstimate,
    as_shape,
    check_grid,
    launch_parameters,
)
from jtprim.sharding import Rule, bind_rule, has_sizes, parse_rule, with_sizes
from jtprim.specialize import configs
from jtprim.specialize.access import written_paths
from jtprim.specialize.adapters import adapt
from jtprim.specialize.binder import specialize_arguments
from jtprim.specialize.kernel import Kernel, Parameter, kernel_name, kernel_parameters, kernel_source
from jtprim.specialize.target import PORTABLE, TargetLike, parse_targets, target_of_device_kind

GridLike: TypeAlias = int | Sequence[int] | Callable[[Mapping[str, Any]], int | Sequence[int]]

# Keywords that say how to launch. A kernel parameter of the same name comes first.
SETTINGS = (
    "out_shape",
    "out_names",
    "out_type",
    "input_output_aliases",
    "zeroed_outputs",
    "target",
    "compute_capability",
    "name",
    "metadata",
    "serialized_metadata",
    "cost_estimate",
    "has_side_effect",
    "sharding_rule",
    "donate",
    "backend_options",
)


@functools.cache
def option_names() -> tuple[str, ...]:
    """The compile options of all backends."""
    return tuple(sorted({**compat.option_fields("cuda"), **compat.option_fields("hip")}))


class Request:
    """One launch being worked out."""

    def __init__(
        self,
        fn: Kernel,
        grid: GridLike,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        stored: Mapping[str, Any],
    ):
        """Takes the launch apart.

        Args:
          fn, grid, args, kwargs: of the launch.
          stored: keywords that are kept with the kernel, for which the launch may have its own.
        """
        self.fn, self.grid, self.args = fn, grid, args
        self.name = kernel_name(fn)
        self.parameters = kernel_parameters(fn)
        self.passed, self.options, self.settings, self.unknown = (
            {**kept, **own}
            for kept, own in zip(sort_keywords(fn, stored), sort_keywords(fn, kwargs), strict=True)
        )
        # A function may have names of its own, if they don't look like misspelled ones.
        functions = callable(grid) or callable(self.settings.get("zeroed_outputs"))
        for key in self.unknown:
            if not functions or did_you_mean(key, _known_names(fn)):
                refuse_keyword(fn, key)
        outputs = declare_outputs(
            self.settings.get("out_shape"),
            self.settings.get("out_names"),
            self.settings.get("out_type"),
            self.settings.get("input_output_aliases"),
            kernel=self.name,
        )
        taken = set(outputs.coordinates())
        self.positional = positional_parameters(
            self.parameters,
            args,
            self.passed,
            taken | configs.configured_names(fn),
            overtaken=set(kwargs) - set(stored),
            kernel=self.name,
        )
        self.refs: dict[NormalCoordinate, Any] = {}
        self.arguments = {
            name: self._read_refs(value, (name,))
            for name, value in {**dict(zip(self.positional, args, strict=True)), **self.passed}.items()
        }
        outputs = replace(outputs, described=self._described(outputs))
        self._map_arrays(lambda coordinate, value: self._check_sizes([(coordinate, base_array(value))]))
        declared_rule = self.settings.get("sharding_rule")
        if declared_rule is not None:
            self._check_divisible(bool(outputs or self.refs))
        else:
            self._refuse_sizes()
        if not (outputs or self.refs or self.settings.get("has_side_effect")):
            outputs = replace(outputs, in_outs=self._discover())
        self.placed = place_outputs(
            outputs, self.parameters, self.arguments, tuple(self.refs), kernel=self.name
        )
        self._check_sizes(self.placed.out_shape.items())
        self.donate = self._donate()
        self.rule: Rule | None = None
        if declared_rule is not None:
            self.rule = self._rule(parse_rule(declared_rule, kernel=self.name))
        self.sizes = dict(self.rule.sizes) if self.rule is not None else {}

    def _read_refs(self, value: Any, coordinate: NormalCoordinate) -> Any:
        """An argument with the contents of Refs in their place."""
        if isinstance(value, jax.Ref):
            for other, ref in self.refs.items():
                if ref is value:
                    raise LaunchValueError(
                        f"one Ref is passed for {coordinate_text(other)!r} and "
                        f"{coordinate_text(coordinate)!r}; the kernel would write one buffer through "
                        "two pointers, so pass two Refs.",
                        kernel=self.name,
                        parameter=coordinate[0],
                    )
            self.refs[coordinate] = value
            return value[...]
        if isinstance(value, TensorDescriptor):
            return replace(value, base=self._read_refs(value.base, coordinate))
        if isinstance(value, (tuple, list)):
            children = [self._read_refs(child, (*coordinate, i)) for i, child in enumerate(value)]
            return type(value)(*children) if is_namedtuple(value) else type(value)(children)
        return value

    def _described(self, outputs: Outputs) -> tuple[Declared, ...]:
        """The outputs that the launch declares by tensor descriptors of shapes."""
        names = [parameter.name for parameter in self.parameters]
        declared = {
            normalize_coordinate(coordinate, names, kernel=self.name, setting="out_shape")
            for coordinate in outputs.coordinates()
        }

        def found(value: Any, coordinate: NormalCoordinate) -> Iterator[Declared]:
            if isinstance(value, (tuple, list)):
                for index, child in enumerate(value):
                    yield from found(child, (*coordinate, index))
            base = value.base if isinstance(value, TensorDescriptor) else None
            if isinstance(base, jax.ShapeDtypeStruct) and coordinate not in declared:
                yield Declared(base, coordinate)

        return tuple(one for name, value in self.arguments.items() for one in found(value, (name,)))

    def _discover(self) -> tuple[NormalCoordinate, ...]:
        """The arguments that the kernel writes, in the order of its signature, for a launch that names none.

        They are read off the kernel's IR, made for the first configuration.
        """
        source = kernel_source(self.fn)
        defaults = {p.name: p.default for p in self.parameters if p.has_default}
        names = configs.configured_names(self.fn)
        pinned = {**{k: v for k, v in self.arguments.items() if k in names}, **self.options}
        first = configs.configurations(self.fn, {**defaults, **self.arguments}, pinned)[0].keywords
        set_by_config = {p.name: first[p.name] for p in self.parameters if p.name in first}
        builder = ArgumentBuilder(source, {**self.arguments, **set_by_config})
        trees = [builder.build(parameter) for parameter in self.parameters]
        specialization = specialize_arguments(source, trees, builder.operands, (), {}, PORTABLE)
        options = {**self.options, **{k: v for k, v in first.items() if k in option_names()}}
        kernel = adapt(source, trees, specialization, None, reorder=False)
        written = written_paths(kernel, freeze_options(options, kernel=self.name))
        return tuple((self.parameters[path[0]].name, *path[1:]) for path in sorted(written))

    def _check_sizes(self, arrays: Iterable[tuple[NormalCoordinate, Any]]) -> None:
        """Checks that every size is known: not so where `jax.export` leaves some open."""
        for coordinate, array in arrays:
            if not all(isinstance(size, (int, np.integer)) for size in array.shape):
                shape = listing(map(str, array.shape))
                raise UnsupportedError(
                    f"array {coordinate_text(coordinate)!r} has shape ({shape}), which jax.export leaves "
                    "open, but a launch has a grid of known size; export for each shape.",
                    kernel=self.name,
                    parameter=coordinate[0],
                )

    def _donate(self) -> bool:
        donate = bool(self.settings.get("donate", False))
        if donate and len(self.placed.aliases) == len(self.refs):
            raise LaunchValueError(
                "donate=True, but no argument is an in-out; name what the kernel writes in "
                "input_output_aliases.",
                kernel=self.name,
            )
        return donate

    def known(self) -> dict[str, Any]:
        """What callables see beside the arguments passed: defaults, shapes of outputs, options."""
        defaults = {p.name: p.default for p in self.parameters if p.has_default}
        shapes = {key[0]: shape for key, shape in self.placed.out_shape.items() if len(key) == 1}
        return {**defaults, **shapes, **self.options}

    def equation(self) -> tuple[list[Any], dict[str, Any]]:
        """The equation's operands and parameters."""
        configurations, arguments = self.configurations(), self.concrete_arguments()
        if len(configurations) == 1:
            [only] = configurations
            arguments.update((key, static.value) for key, static in only.constexprs)
            configurations = [replace(only, constexprs=())]
        settings = self.settings
        return launch_parameters(
            self.fn,
            arguments,
            out_shape=self.placed.out_shape,
            aliases=self.placed.aliases,
            configurations=configurations,
            target=_targets(settings, self.name),
            name=settings.get("name"),
            metadata=_metadata(settings, self.name),
            cost_estimate=_cost_estimate(settings.get("cost_estimate"), self.name),
            has_side_effect=bool(settings.get("has_side_effect", False)),
        )

    def concrete_arguments(self) -> dict[str, Any]:
        """The arguments with numbers where they ask for the size of an axis."""
        if self.rule is None:
            return dict(self.arguments)
        return {
            name: with_sizes(value, self.sizes, kernel=self.name, parameter=name)
            for name, value in self.arguments.items()
        }

    def configurations(self) -> list[Configuration]:
        """The configurations, every callable resolved."""
        arguments = self.concrete_arguments()
        known = {**self.known(), **arguments}
        grid = with_sizes(self.grid, self.sizes, kernel=self.name, parameter="grid")
        names = configs.configured_names(self.fn)
        pinned = {**{k: v for k, v in arguments.items() if k in names}, **self.options}
        zeroed = self.settings.get("zeroed_outputs")
        found: list[Configuration] = []
        unread = set(self.unknown)
        for chosen in configs.configurations(self.fn, known, pinned):
            meta = _Metaparameters({**known, **chosen.keywords, **self.unknown}, unread)
            constexprs, options = {}, dict(self.options)
            for key, value in chosen.keywords.items():
                if any(parameter.name == key for parameter in self.parameters):
                    constexprs[key] = as_constexpr(value, kernel=self.name, parameter=key)
                if key in option_names() and value is not None:
                    options[key] = value
            configuration = Configuration(
                grid=check_grid(grid(meta) if callable(grid) else grid, kernel=self.name),
                constexprs=tuple(sorted(constexprs.items())),
                options=freeze_options(options, kernel=self.name),
                zeroed=self._zeroed(zeroed(meta) if callable(zeroed) else zeroed, chosen),
                block_shapes=tuple(sorted(chosen.block_shapes.items())),
            )
            if configuration not in found:
                found.append(configuration)
        if unread:
            refuse_keyword(self.fn, sorted(unread)[0])
        return found

    def _zeroed(self, declared: Any, chosen: configs.Chosen) -> tuple[int, ...]:
        """Indices of the outputs to zero: those declared, and those that an autotuner zeroes.

        An array that is zeroed for tuning alone may be an in-out: then the launch gave its contents, and
        the GPU runtime restores them between the runs that it times.
        """
        zeroed = [declared] if isinstance(declared, (str, int)) else list(declared or ())
        zeroed += chosen.zeroed
        zeroed += chosen.reset & self.placed.out_shape.keys()
        return zeroed_indices(zeroed, self.placed, self.parameters, kernel=self.name)

    # --- Launches that are divided among devices

    def _check_divisible(self, declares: bool) -> None:
        """Checks that a launch with a sharding rule can be worked out again for a shard."""
        if not declares:
            raise LaunchValueError(
                "has a sharding_rule, which names the axes of its results; declare these, in out_shape or "
                "input_output_aliases.",
                kernel=self.name,
            )
        if self.settings.get("has_side_effect"):
            raise UnsupportedError(
                "has a sharding_rule and side effects, which JAX's partitioned calls can't have; leave one "
                "out, or launch inside jax.shard_map.",
                kernel=self.name,
            )
        if not callable(self.grid) and not has_sizes(self.grid):
            raise LaunchValueError(
                f"grid {self.grid!r} is that of the whole arrays, but has a sharding_rule, with which each "
                "shard has its own; compute it from jt.axis_size, or in a function of the metaparameters.",
                kernel=self.name,
            )
        for name, cell in zip(*_closure(self.grid), strict=True):
            if is_array(cell):
                raise LaunchValueError(
                    f"the grid's function takes array {name!r} from outside, whose shape is that of the "
                    "whole array and not of a shard; take the array or its sizes from the metaparameters, "
                    "by the parameter's name.",
                    kernel=self.name,
                )

    def _refuse_sizes(self) -> None:
        """Checks that a launch without a sharding rule doesn't ask for the size of an axis."""
        for name, value in {**self.arguments, "grid": self.grid}.items():
            if has_sizes(value):
                raise LaunchValueError(
                    f"{name!r} is {value!r}, which is about the axes of a sharding_rule, but the launch has "
                    "none; pass one, or numbers.",
                    kernel=self.name,
                    parameter=name,
                )

    def _rule(self, parsed: Any) -> Rule:
        """The launch's sharding rule, for the shapes of its arrays."""
        arrays = {coordinate: base_array(value) for coordinate, value in self._arrays()}
        operands = [(coordinate_text(c), array.shape) for c, array in arrays.items()]
        outputs = [(coordinate_text(c), self.placed.out_shape[c].shape) for c in self._outputs()]
        aliases = [c for c in self.placed.aliases if c in arrays]
        in_outs = [(coordinate_text(c), arrays[c].shape) for c in aliases]
        rule = bind_rule(parsed, operands, [*outputs, *in_outs], kernel=self.name)
        for coordinate, result in zip(aliases, rule.results[len(outputs) :], strict=True):
            if rule.operands[list(arrays).index(coordinate)] != result:
                raise LaunchValueError(
                    f"its sharding_rule {rule} gives in-out {coordinate_text(coordinate)!r} other axes as a "
                    "result; the two are one buffer, so name the same.",
                    kernel=self.name,
                    parameter=coordinate[0],
                )
        if rule.reductions and in_outs:
            raise LaunchValueError(
                f"its sharding_rule sums over {listing(sorted(rule.reductions))}, but {in_outs[0][0]!r} is "
                "an in-out, whose contents would be summed too; declare an output, and add it to the array.",
                kernel=self.name,
            )
        return rule

    def _outputs(self) -> list[NormalCoordinate]:
        """The coordinates of outputs in the order of the signature."""
        names = [parameter.name for parameter in self.parameters]
        return sorted(self.placed.out_shape, key=lambda key: (names.index(key[0]), *key[1:]))

    def _arrays(self) -> list[tuple[NormalCoordinate, Any]]:
        """The arguments that are operands, with their coordinates, in the equation's order."""
        found: list[tuple[NormalCoordinate, Any]] = []
        self._map_arrays(lambda coordinate, value: found.append((coordinate, value)))
        return [(c, value) for c, value in found if c not in self.placed.out_shape]

    def _map_arrays(self, function: Callable[[NormalCoordinate, Any], Any]) -> dict[str, Any]:
        """The arguments with `function` of coordinate and value in place of every array."""

        def mapped(value: Any, coordinate: NormalCoordinate) -> Any:
            if is_array(base_array(value)):
                return function(coordinate, value)
            if isinstance(value, (tuple, list)):
                children = [mapped(child, (*coordinate, i)) for i, child in enumerate(value)]
                return type(value)(*children) if is_namedtuple(value) else type(value)(children)
            return value

        return {
            parameter.name: mapped(self.arguments[parameter.name], (parameter.name,))
            for parameter in self.parameters
            if parameter.name in self.arguments
        }

    def template(self) -> Request:
        """This launch without its arrays, to be worked out for the arrays of a shard."""

        def emptied(coordinate: NormalCoordinate, value: Any) -> Any:
            array = base_array(value)
            shape = as_shape(array)
            if isinstance(value, TensorDescriptor):
                whole = TensorDescriptor.from_array(array, value.block_shape)
                if (tuple(value.shape), tuple(value.strides)) != (whole.shape, whole.strides):
                    raise UnsupportedError(
                        f"has a sharding_rule, but argument {coordinate_text(coordinate)!r} is a tensor "
                        "descriptor that isn't of its whole array; make it by TensorDescriptor.from_array.",
                        kernel=self.name,
                        parameter=coordinate[0],
                    )
                return replace(value, base=shape)
            number = array.ndim == 0 and getattr(array, "weak_type", False)
            return ByValue(shape) if number or isinstance(value, ByValue) else shape

        empty = copy.copy(self)
        empty.args, empty.passed, empty.refs = (), {}, {}
        empty.settings = {k: v for k, v in self.settings.items() if k not in ("out_shape", "out_type")}
        empty.arguments = self._map_arrays(emptied)
        shapes = {coordinate: as_shape(shape) for coordinate, shape in self.placed.out_shape.items()}
        empty.placed = Placed(shapes, self.placed.aliases, tuple)
        return empty

    def for_shard(
        self, sizes: Mapping[str, int], shapes: Sequence[jax.ShapeDtypeStruct], operands: Sequence[Any]
    ) -> Request:
        """The launch of one shard, from a `template`.

        Args:
          sizes: of the named axes on one device.
          shapes: of the results there.
          operands: the arrays there, in the equation's order.
        """
        local, left = copy.copy(self), iter(operands)
        outputs = dict(zip(self._outputs(), shapes, strict=False))

        def filled(coordinate: NormalCoordinate, value: Any) -> Any:
            array = outputs[coordinate] if coordinate in outputs else next(left)
            if isinstance(value, TensorDescriptor):
                strides = strides_from_shape(array.shape)
                return replace(value, base=array, shape=tuple(array.shape), strides=strides)
            return ByValue(array) if isinstance(value, ByValue) else array

        local.sizes = dict(sizes)
        local.arguments = self._map_arrays(filled)
        local.placed = Placed(
            {coordinate: outputs[coordinate] for coordinate in self.placed.out_shape},
            self.placed.aliases,
            tuple,
        )
        return local

    def shard_key(self) -> Hashable:
        """Equal for templates that give equal launches for a shard, beside the whole launch's parameters."""
        names, cells = _closure(self.grid)
        code = getattr(self.grid, "__code__", None)
        grid = self.grid if code is None else (code, self.grid.__defaults__, names)  # type: ignore[union-attr]
        key = plan_key((grid, *cells), self.arguments)
        if key is None:
            return object()
        return (
            self.fn,
            key,
            self.settings.get("zeroed_outputs"),
            compat.uses_shardy(),
        )

    def shard_text(self) -> str:
        """What `shard_key` is made of, as text that is the same in every process."""
        functions = [self.grid, self.settings.get("zeroed_outputs")]
        return f"{self.arguments} {[_function_text(one) for one in functions]}"

    def plan(self, params: Mapping[str, Any]) -> Plan:
        """The plan of this launch and all like it."""
        index = {name: number for number, name in enumerate(self.positional)}
        slots = [
            (leaf.index, Place(index.get(parameter.name, parameter.name), path))
            for parameter, tree in zip(self.parameters, params["arguments"], strict=True)
            for path, leaf in leaves_with_paths(tree)
            if isinstance(leaf, Operand)
        ]
        return Plan(
            source=params["kernel"],
            names=tuple(self.positional),
            meta=self.known(),
            places=tuple(place for _, place in sorted(slots, key=lambda slot: slot[0])),
            parameters=params,
            settings=frozenset(self.settings) | {"backend_options"},
            donate=self.donate,
            rebuild=self.placed.rebuild,
        )


def _closure(function: Any) -> tuple[list[str], list[Any]]:
    """The names and values that a function takes from outside, its globals aside."""
    if getattr(function, "__closure__", None) is None:
        return [], []
    found = [
        (name, cell.cell_contents)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__, strict=True)
        if cell != types.CellType()
    ]
    return [name for name, _ in found], [value for _, value in found]


def _function_text(function: Any) -> str:
    """What a function computes, and of what, as text; of anything else its own text."""
    code = getattr(function, "__code__", None)
    if code is None:
        return repr(function)
    consts = [one.co_code if isinstance(one, types.CodeType) else one for one in code.co_consts]
    outside = [_function_text(value) for value in _closure(function)[1]]
    return f"{code.co_code.hex()} {consts} {code.co_names} {function.__defaults__} {outside}"


class _Metaparameters(dict[str, Any]):
    """What a grid function sees; it tells which of the names that nothing else knows were read."""

    def __init__(self, values: Mapping[str, Any], unread: set[str]):
        super().__init__(values)
        self._unread = unread

    def __getitem__(self, name: str) -> Any:
        self._unread.discard(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self._unread.discard(name)
        return super().get(name, default)


def freeze_options(options: Mapping[str, Any], *, kernel: str) -> tuple[tuple[str, Any], ...]:
    """Compile options as hashable data: mappings become pairs and lists tuples, which Triton takes as well.

    Raises:
      LaunchTypeError: a value can't be hashed.
    """

    def freeze(value: Any) -> Any:
        if isinstance(value, Mapping):
            return tuple((key, freeze(one)) for key, one in value.items())
        return tuple(map(freeze, value)) if isinstance(value, (list, tuple)) else value

    frozen = tuple(sorted((name, freeze(value)) for name, value in options.items()))
    for name, value in frozen:
        try:
            hash(value)
        except TypeError as error:
            raise LaunchTypeError(
                f"option {name!r} is a {type(value).__name__} that can't be hashed; options are part of the "
                "compiled kernel's key, so pass a hashable value.",
                kernel=kernel,
                parameter=name,
            ) from error
    return frozen


def sort_keywords(
    fn: Kernel, keywords: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Keywords as kernel arguments, compile options, settings, and those that are none of these.

    A name that is a parameter and an option is both.
    """
    names = [parameter.name for parameter in kernel_parameters(fn)]
    passed: dict[str, Any] = {}
    options: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    unknown: dict[str, Any] = {}
    for key, value in keywords.items():
        if key in names:
            passed[key] = value
        elif key in SETTINGS:
            settings[key] = value
        elif key not in option_names():
            unknown[key] = value
        if key in option_names():
            options[key] = value
    for key, value in (settings.pop("backend_options", None) or {}).items():
        if key not in option_names():
            raise LaunchTypeError(
                f"backend_options has {key!r}; backend options are {listing(option_names())}."
                f"{did_you_mean(key, option_names())}",
                kernel=kernel_name(fn),
                parameter=key,
            )
        if key in options:
            raise LaunchValueError(
                f"option {key!r} is given as a keyword and in backend_options; pass it once.",
                kernel=kernel_name(fn),
                parameter=key,
            )
        options[key] = value
    return passed, options, settings, unknown


def refuse_keyword(fn: Kernel, key: str) -> NoReturn:
    """Says that a launch's keyword means nothing, and which ones are near it."""
    names = [parameter.name for parameter in kernel_parameters(fn)]
    raise LaunchTypeError(
        f"no parameter named {key!r}; parameters are {listing(names)}; settings are "
        f"{listing(SETTINGS)}; backend options are {listing(option_names())}."
        f"{did_you_mean(key, _known_names(fn))}",
        kernel=kernel_name(fn),
        parameter=key,
    )


def _known_names(fn: Kernel) -> tuple[str, ...]:
    return (*(parameter.name for parameter in kernel_parameters(fn)), *SETTINGS, *option_names())


def positional_parameters(
    parameters: Sequence[Parameter],
    args: Sequence[Any],
    keywords: Mapping[str, Any],
    taken: set[Any],
    *,
    overtaken: Collection[str] = (),
    kernel: str,
) -> list[str]:
    """The parameter of each positional argument.

    They go to the parameters in order, passing over outputs, constexprs that come by keyword, what is
    stored with the kernel, and what a configuration sets.

    Args:
      parameters: the kernel's parameters.
      args: the positional arguments.
      keywords: the arguments that come by keyword.
      taken: coordinates of outputs, and names that configurations set.
      overtaken: names that an argument behind them may not pass over, unless they are constexprs: as in
        Python, a positional argument would be meant for them.
      kernel: the kernel's name, for messages.

    Raises:
      LaunchTypeError: there are too many, or one is meant for a parameter that comes by keyword.
    """
    inputs = [
        parameter
        for index, parameter in enumerate(parameters)
        if not ({parameter.name, index, (parameter.name,), (index,)} & taken)
    ]
    places = [parameter.name for parameter in inputs if parameter.name not in keywords]
    if len(args) > len(places):
        raise LaunchTypeError(
            f"got {len(args)} positional arguments for {len(places)} parameters ({listing(places)}); the "
            "others are passed by keyword, are outputs, or are set by the kernel's configurations.",
            kernel=kernel,
        )
    places = places[: len(args)]
    before = itertools.takewhile(lambda parameter: parameter.name not in places[-1:], inputs)
    for parameter in before if places else ():
        if parameter.name in overtaken and not parameter.is_constexpr:
            raise LaunchTypeError(
                f"got multiple values for argument {parameter.name!r}: by keyword, and by position; pass "
                "what stands behind it by keyword too.",
                kernel=kernel,
                parameter=parameter.name,
            )
    return places


def _targets(settings: Mapping[str, Any], kernel: str) -> Sequence[TargetLike] | None:
    """The targets named on the launch; else that of the abstract mesh in context."""
    named, capability = settings.get("target"), settings.get("compute_capability")
    if capability is not None:
        if named is not None:
            raise LaunchValueError(
                "target and compute_capability are both given; they say the same, pass target.",
                kernel=kernel,
            )
        named = f"cuda:{capability}"
    if named is not None:
        return parse_targets(named)
    kind = compat.abstract_device_kind()
    target = None if kind is None else target_of_device_kind(kind)
    return None if target is None else (target,)


def _cost_estimate(estimate: Any, kernel: str) -> CostEstimate | None:
    """A launch's cost, which may be given as a mapping."""
    if estimate is None or isinstance(estimate, CostEstimate):
        return estimate
    names = [field.name for field in fields(CostEstimate)]
    if not isinstance(estimate, Mapping) or not set(estimate) <= set(names):
        raise LaunchTypeError(
            f"cost_estimate is {estimate!r}; expected a jt.CostEstimate, or a mapping with {listing(names)}.",
            kernel=kernel,
        )
    return CostEstimate(**estimate)


def _metadata(settings: Mapping[str, Any], kernel: str) -> bytes:
    metadata = settings.get("metadata", settings.get("serialized_metadata", b""))
    if isinstance(metadata, str):
        return metadata.encode()
    if not isinstance(metadata, bytes):
        raise LaunchTypeError(f"metadata is {metadata!r}; expected bytes.", kernel=kernel)
    return metadata
