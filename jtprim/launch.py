"""The launch syntax: ``kernel[grid](*args, **kwargs)``, `triton_call` and `specialize`.

A launch sorts its keywords, binds its arguments to the kernel's parameters, resolves all callables to
data, and binds one equation.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from jtprim import compat
from jtprim.arguments import (
    NormalCoordinate,
    Operand,
    as_constexpr,
    coordinate_text,
    is_array,
    is_namedtuple,
    leaves_with_paths,
)
from jtprim.errors import LaunchTypeError, LaunchValueError, did_you_mean, listing
from jtprim.inspection import InspectedKernel, inspect
from jtprim.outputs import declare_outputs, place_outputs, zeroed_indices
from jtprim.plan import Place, Plan, Plans, bound_equation, plan_key
from jtprim.primitive import (
    ArgumentBuilder,
    Configuration,
    check_grid,
    launch_parameters,
)
from jtprim.specialize import configs
from jtprim.specialize.binder import Specialization, specialize_arguments
from jtprim.specialize.compile import Binary, compiled_binaries
from jtprim.specialize.kernel import (
    Kernel as TritonKernel,
)
from jtprim.specialize.kernel import (
    KernelWatch,
    Parameter,
    is_kernel,
    jit_function,
    kernel_name,
    kernel_parameters,
    kernel_source,
)
from jtprim.specialize.target import (
    TargetLike,
    environment_targets,
    parse_target,
    parse_targets,
    target_of_device,
    target_of_device_kind,
)

GridLike = int | Sequence[int] | Callable[[Mapping[str, Any]], int | Sequence[int]]

# Keywords that say how to launch. A kernel parameter of the same name comes first.
SETTINGS = (
    "out_shape",
    "out_names",
    "out_type",
    "input_output_aliases",
    "zeroed_outputs",
    "target",
    "name",
    "metadata",
    "cost_estimate",
    "has_side_effect",
    "donate",
    "backend_options",
)


@functools.cache
def option_names() -> tuple[str, ...]:
    """The compile options of all backends."""
    return tuple(sorted({**compat.option_fields("cuda"), **compat.option_fields("hip")}))


# --- Kernels -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class CacheInfo:
    """What jtprim keeps in memory for one kernel.

    Attributes:
      launches: launches that differ in more than the contents of arrays and the grid.
      binaries: the compiled kernels.
    """

    launches: int
    binaries: tuple[Binary, ...]


class Kernel:
    """A Triton kernel that launches inside JAX: ``kernel[grid](*args, **kwargs)``.

    Made by `kernel`. The Triton kernel is `fn`; keywords stored with it hold for every launch unless the
    launch gives its own.
    """

    def __init__(self, fn: TritonKernel, keywords: Mapping[str, Any]):
        self.fn = fn
        self.keywords = dict(keywords)
        self.__name__ = kernel_name(fn)
        self.__doc__ = jit_function(fn).__doc__
        self.__module__ = jit_function(fn).__module__
        self.__wrapped__ = jit_function(fn).fn
        self.watch = KernelWatch(fn)
        self.plans = Plans()
        _sort_keywords(self.fn, self.keywords)

    def __getitem__(self, grid: GridLike) -> Callable[..., Any]:
        return functools.partial(_launch, self, grid)

    def warmup(
        self, *args: Any, grid: GridLike, target: TargetLike | None = None, **kwargs: Any
    ) -> tuple[InspectedKernel, ...]:
        """Compiles what a launch would run on a GPU, without running it.

        Args:
          *args, **kwargs: the launch's arguments; `jax.ShapeDtypeStruct` will do for arrays.
          grid: the launch's grid.
          target: what to compile for; by default this machine's GPU, else the target that is stored
            with the kernel or named in the environment.

        Returns:
          The compiled kernels, one for each configuration, as `inspect` gives them.

        Raises:
          JtprimError: as the launch would.
        """
        leaves, tree = jax.tree.flatten((args, kwargs), is_leaf=lambda leaf: leaf is None)
        places = [place for place, leaf in enumerate(leaves) if is_array(leaf)]
        chosen = self._warmup_target(target)

        def launch(*arrays: Any) -> Any:
            filled = dict(zip(places, arrays, strict=True))
            args, kwargs = jax.tree.unflatten(tree, [filled.get(i, leaf) for i, leaf in enumerate(leaves)])
            return self[grid](*args, **kwargs)

        return inspect(launch, *(leaves[place] for place in places), platform=chosen).kernels

    def _warmup_target(self, target: TargetLike | None) -> GPUTarget:
        if target is not None:
            return parse_target(target)
        if jax.default_backend() == "gpu":
            return target_of_device(jax.local_devices()[0])
        named = (*parse_targets(self.keywords.get("target")), *environment_targets())
        if not named:
            raise LaunchValueError(
                "warmup has no GPU here and no target; pass target='cuda:90' or 'hip:gfx942', or set "
                "JTPRIM_TARGET.",
                kernel=self.__name__,
            )
        return named[0]

    def cache_info(self) -> CacheInfo:
        """What is kept in memory for this kernel."""
        return CacheInfo(len(self.plans), compiled_binaries(jit_function(self.fn)))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise LaunchTypeError("called without a grid; write kernel[grid](...).", kernel=self.__name__)

    def __repr__(self) -> str:
        stored = ", ".join(f"{name}={value!r}" for name, value in self.keywords.items())
        return f"jtprim.kernel({self.__name__}{', ' + stored if stored else ''})"


def kernel(fn: Any = None, /, **keywords: Any) -> Any:
    """Makes a Triton kernel launchable inside JAX.

    Use it bare or with keywords, over `triton.jit`, `gluon.jit`, `triton.autotune` and
    `triton.heuristics`; it stacks:

        @jt.kernel(out_names="out_ptr", num_warps=8)
        @triton.jit
        def add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr): ...

        out = add[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, n, out_shape=x, BLOCK=1024)

    Args:
      fn: the Triton kernel, or another `Kernel`.
      **keywords: kept for every launch: settings as in `triton_call`, kernel arguments, or compile
        options.

    Returns:
      A `Kernel`; without `fn`, a decorator that makes one.

    Raises:
      TypeError: `fn` is no Triton kernel, or a keyword is unknown.
    """
    if fn is None:
        return functools.partial(kernel, **keywords)
    if isinstance(fn, Kernel):
        return Kernel(fn.fn, {**fn.keywords, **keywords})
    if not is_kernel(fn):
        raise TypeError(
            f"jt.kernel got {fn!r}, which is no Triton kernel; decorate a function with triton.jit or "
            "gluon.jit first."
        )
    return Kernel(fn, keywords)


def triton_call(*args: Any, kernel: Any, grid: GridLike, **kwargs: Any) -> Any:
    """Launches a Triton kernel on JAX arrays.

    Works on concrete arrays and under ``jax.jit`` and JAX's control flow. Runs on NVIDIA and AMD GPUs as
    compiled by Triton, elsewhere as translated to XLA.

    Args:
      *args: arguments for the kernel's parameters in order, outputs left out: arrays (pointers),
        numbers (compiled in, specialized as Triton does), and whatever else Triton takes.
      kernel: the Triton kernel, or a `Kernel`.
      grid: number of programs: an int, one to three ints, or a function of the kernel's parameters by
        name (arrays and their shapes too) that returns these. Limits: 2^31-1 programs on axis 0, 65535 on
        the others. A 0 means no work: outputs are then zeros.
      **kwargs: arguments by parameter name; compile options of the backends (``num_warps``, ...); and
        these settings:

        out_shape: the arrays that the kernel only writes: a mapping from parameter (name, position, or
          path into a tuple) to anything with a shape and a dtype; or one such shape, or a pytree of
          shapes, which take the first parameters that nothing is passed for.
        out_names: the parameters of a pytree's shapes, in order.
        out_type: a pytree of shapes, as in `out_shape`.
        input_output_aliases: arguments that the kernel also writes: a parameter, a sequence, or a
          mapping from a parameter to the position of its result in the declared shapes.
        zeroed_outputs: outputs that are zero before the kernel runs: parameters, or positions among the
          declared shapes; or a function of the metaparameters that returns them.
        target: what to compile for where no GPU is at hand: ``"cuda:90"``, ``"hip:gfx942"``, a
          `GPUTarget`, or a sequence of these.
        donate: gives the in-outs of an eager launch away, as `jax.jit` does with donated arguments: the
          kernel works on their memory, and the arrays passed are deleted.
        backend_options: compile options as a mapping.
        name, metadata (bytes), cost_estimate (`CostEstimate`), has_side_effect: see
          `launch_parameters`.

    Returns:
      The outputs in the order of the signature, then the in-outs; a single one bare. Of a pytree of
      shapes, its structure.

    Raises:
      JtprimError: in one of its kinds, which are TypeErrors, ValueErrors and NotImplementedErrors; the
        message names the kernel, the parameter and the way out.
    """
    return _launch(_as_kernel(kernel), grid, *args, **kwargs)


def _as_kernel(fn: Any) -> Kernel:
    return fn if isinstance(fn, Kernel) else _wrap(fn)


@functools.lru_cache(maxsize=1024)
def _wrap(fn: TritonKernel) -> Kernel:
    """The `Kernel` of a bare Triton kernel, so that its launches share their plans."""
    if not is_kernel(fn):
        raise TypeError(
            f"triton_call got kernel={fn!r}; expected a Triton kernel, made by triton.jit or gluon.jit."
        )
    return Kernel(fn, {})


# --- A launch ----------------------------------------------------------------------------------


def _launch(owner: Kernel, grid: GridLike, *args: Any, **kwargs: Any) -> Any:
    kwargs = {**owner.keywords, **kwargs}
    # A function other than the grid is computed from the arguments at each launch: no plan holds it.
    plain = isinstance(owner.fn, JITFunction) and not callable(kwargs.get("zeroed_outputs"))
    key = plan_key(args, kwargs) if plain else None
    plan = owner.plans.find(key, owner.watch.source())
    if plan is not None:
        return plan.launch(grid, args, kwargs)
    request = _Request(owner.fn, grid, args, kwargs)
    operands, params = request.equation()
    if key is not None:
        owner.plans.keep(key, request.plan(params))
    results = bound_equation(params, request.donate)(*operands)
    for ref, value in zip(reversed(request.refs.values()), reversed(results), strict=False):
        ref[...] = value
    return request.placed.rebuild(results)


class _Request:
    """One launch being worked out."""

    def __init__(self, fn: TritonKernel, grid: GridLike, args: Sequence[Any], kwargs: Mapping[str, Any]):
        self.fn, self.grid, self.args, self.kwargs = fn, grid, args, kwargs
        self.name = kernel_name(fn)
        self.parameters = kernel_parameters(fn)
        self.passed, self.options, self.settings = _sort_keywords(fn, kwargs)
        outputs = declare_outputs(
            self.settings.get("out_shape"),
            self.settings.get("out_names"),
            self.settings.get("out_type"),
            self.settings.get("input_output_aliases"),
            kernel=self.name,
        )
        taken = {one.coordinate for one in outputs.declared if one.coordinate is not None}
        self.positional = _positional(
            self.parameters, args, self.passed, taken | configs.configured_names(fn), kernel=self.name
        )
        self.refs: dict[NormalCoordinate, Any] = {}
        self.arguments = {
            name: self._read_refs(value, (name,))
            for name, value in {**dict(zip(self.positional, args, strict=True)), **self.passed}.items()
        }
        self.placed = place_outputs(
            outputs, self.parameters, self.arguments, tuple(self.refs), kernel=self.name
        )
        self.donate = self._donate()

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
        if isinstance(value, (tuple, list)):
            children = [self._read_refs(child, (*coordinate, i)) for i, child in enumerate(value)]
            return type(value)(*children) if is_namedtuple(value) else type(value)(children)
        return value

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
        configurations, arguments = self.configurations(), dict(self.arguments)
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
            target=_targets(settings.get("target")),
            name=settings.get("name"),
            metadata=_metadata(settings.get("metadata", b""), self.name),
            cost_estimate=settings.get("cost_estimate"),
            has_side_effect=bool(settings.get("has_side_effect", False)),
        )

    def configurations(self) -> list[Configuration]:
        """The configurations, every callable resolved."""
        known = {**self.known(), **self.arguments}
        names = configs.configured_names(self.fn)
        pinned = {**{k: v for k, v in self.arguments.items() if k in names}, **self.options}
        zeroed = self.settings.get("zeroed_outputs")
        found: list[Configuration] = []
        for chosen in configs.configurations(self.fn, known, pinned):
            meta = {**known, **chosen.keywords}
            constexprs, options = {}, dict(self.options)
            for key, value in chosen.keywords.items():
                if any(parameter.name == key for parameter in self.parameters):
                    constexprs[key] = as_constexpr(value, kernel=self.name, parameter=key)
                if key in option_names() and value is not None:
                    options[key] = value
            configuration = Configuration(
                grid=check_grid(self.grid(meta) if callable(self.grid) else self.grid, kernel=self.name),
                constexprs=tuple(sorted(constexprs.items())),
                options=tuple(sorted(options.items())),
                zeroed=self._zeroed(zeroed(meta) if callable(zeroed) else zeroed, chosen),
            )
            if configuration not in found:
                found.append(configuration)
        return found

    def _zeroed(self, declared: Any, chosen: configs.Chosen) -> tuple[int, ...]:
        """Indices of the outputs to zero: those declared, and those that an autotuner zeroes.

        An array that is zeroed for tuning alone may be an in-out: then the launch gave its contents, and
        the GPU runtime restores them between the runs that it times.
        """
        names = [declared] if isinstance(declared, (str, int)) else list(declared or ())
        names += sorted(chosen.zeroed)
        names += [name for name in sorted(chosen.reset) if (name,) in self.placed.out_shape]
        return zeroed_indices(names, self.placed, self.parameters, kernel=self.name)

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


def _sort_keywords(
    fn: TritonKernel, keywords: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Keywords as kernel arguments, compile options and settings.

    A name that is a parameter and an option is both.
    """
    names = [parameter.name for parameter in kernel_parameters(fn)]
    passed, options, settings = {}, {}, {}
    for key, value in keywords.items():
        if key in names:
            passed[key] = value
        elif key in SETTINGS:
            settings[key] = value
        elif key not in option_names():
            raise LaunchTypeError(
                f"no parameter named {key!r}; parameters are {listing(names)}; settings are "
                f"{listing(SETTINGS)}; backend options are {listing(option_names())}."
                f"{did_you_mean(key, (*names, *SETTINGS, *option_names()))}",
                kernel=kernel_name(fn),
                parameter=key,
            )
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
        options[key] = value
    return passed, options, settings


def _positional(
    parameters: Sequence[Parameter],
    args: Sequence[Any],
    keywords: Mapping[str, Any],
    taken: set[Any],
    *,
    kernel: str,
) -> list[str]:
    """The parameter of each positional argument.

    They go to the parameters in order, passing over those that are outputs, that come by keyword, or
    that a configuration sets.
    """
    places = [
        parameter.name
        for index, parameter in enumerate(parameters)
        if parameter.name not in keywords
        and not ({parameter.name, index, (parameter.name,), (index,)} & taken)
    ]
    if len(args) > len(places):
        raise LaunchTypeError(
            f"got {len(args)} positional arguments for {len(places)} parameters ({listing(places)}); the "
            "others are passed by keyword, are outputs, or are set by the kernel's configurations.",
            kernel=kernel,
        )
    return places[: len(args)]


def _targets(named: TargetLike | Sequence[TargetLike] | None) -> Sequence[TargetLike] | None:
    """The targets named on the launch; else that of the abstract mesh in context."""
    if named is not None:
        return parse_targets(named)
    kind = compat.abstract_device_kind()
    target = None if kind is None else target_of_device_kind(kind)
    return None if target is None else (target,)


def _metadata(metadata: Any, kernel: str) -> bytes:
    if isinstance(metadata, str):
        return metadata.encode()
    if not isinstance(metadata, bytes):
        raise LaunchTypeError(f"metadata is {metadata!r}; expected bytes.", kernel=kernel)
    return metadata


# --- Specialization without a launch -----------------------------------------------------------


def specialize(kernel: Any, *args: Any, target: TargetLike | None = None, **kwargs: Any) -> Specialization:
    """What Triton would compile a kernel for, given a launch's arguments; needs no device.

    Args:
      kernel: the Triton kernel, or a `Kernel`. Of an autotuned kernel, the first configuration that
        agrees with the arguments counts.
      *args, **kwargs: arguments for all parameters, outputs included: arrays or
        `jax.ShapeDtypeStruct`, and static values. Compile options are accepted and don't matter.
      target: ``"cuda:90"``, ``"hip:gfx942"`` or a `GPUTarget`; by default that of the environment
        variable ``JTPRIM_TARGET``.

    Returns:
      Signature, constexprs, attributes and key.

    Raises:
      JtprimError: as a launch would.
      ValueError: no target is named.
    """
    fn = kernel.fn if isinstance(kernel, Kernel) else kernel
    stored = kernel.keywords if isinstance(kernel, Kernel) else {}
    name, parameters = kernel_name(fn), kernel_parameters(fn)
    passed, options, settings = _sort_keywords(fn, {**stored, **kwargs})
    targets = parse_targets(target or settings.get("target")) or environment_targets()
    if not targets:
        raise ValueError(
            f"{name}: no target named; pass target='cuda:90' or 'hip:gfx942', or set JTPRIM_TARGET."
        )
    names = configs.configured_names(fn)
    positional = _positional(parameters, args, passed, names, kernel=name)
    arguments = {**dict(zip(positional, args, strict=True)), **passed}
    pinned = {k: v for k, v in {**arguments, **options}.items() if k in names}
    first = configs.configurations(fn, arguments, pinned)[0].keywords
    arguments |= {p.name: first[p.name] for p in parameters if p.name in first}
    builder = ArgumentBuilder(kernel_source(fn), arguments)
    trees = [builder.build(parameter) for parameter in parameters]
    return specialize_arguments(kernel_source(fn), trees, builder.operands, (), {}, targets[0])
