"""The launch syntax: ``kernel[grid](*args, **kwargs)``, `triton_call` and `specialize`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from jtprim import compat
from jtprim.arguments import is_array
from jtprim.errors import LaunchTypeError, LaunchValueError, UnsupportedError
from jtprim.inspection import InspectedKernel, inspect
from jtprim.plan import Plans, bound_equation, plan_key
from jtprim.primitive import ArgumentBuilder, bind_equation
from jtprim.request import GridLike, Request, positional_parameters, refuse_keyword, sort_keywords
from jtprim.specialize import configs
from jtprim.specialize.binder import Specialization, specialize_arguments
from jtprim.specialize.compile import Binary, compiled_binaries
from jtprim.specialize.kernel import (
    Kernel as TritonKernel,
)
from jtprim.specialize.kernel import (
    KernelWatch,
    is_interpreted,
    is_kernel,
    jit_function,
    kernel_name,
    kernel_parameters,
    kernel_source,
)
from jtprim.specialize.preload import preload
from jtprim.specialize.target import (
    TargetLike,
    environment_targets,
    parse_target,
    parse_targets,
    target_of_device,
)
from jtprim.transforms import custom
from jtprim.transforms.custom import Rules
from jtprim.transforms.partitioning import Shard, partitioned

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

    def __init__(self, fn: TritonKernel, keywords: Mapping[str, Any], rules: Rules | None = None):
        self.fn = fn
        self.keywords = dict(keywords)
        self._rules = rules
        self.__name__ = kernel_name(fn)
        self.__doc__ = jit_function(fn).__doc__
        self.__module__ = jit_function(fn).__module__
        self.__wrapped__ = jit_function(fn).fn
        self.watch = KernelWatch(fn)
        self.plans = Plans()
        for unknown in sort_keywords(self.fn, self.keywords)[3]:
            refuse_keyword(self.fn, unknown)

    def __getitem__(self, grid: GridLike) -> Callable[..., Any]:
        return functools.partial(_launch, self, grid)

    def defvjp(self, fwd: Callable[..., Any], bwd: Callable[..., Any]) -> None:
        """Gives the kernel a derivative of its own for reverse mode, in place of its translation's.

            def fwd(grid, x, **kwargs):
                out, root = with_root[grid](x, **kwargs)
                return out, (x, root)

            def bwd(grid, residuals, cotangent, *, BLOCK, **_):
                return {"x_ptr": backward[grid](*residuals, cotangent, BLOCK=BLOCK, ...)}

            kernel.defvjp(fwd, bwd)

        Args:
          fwd: called as ``fwd(grid, *args, **kwargs)`` with what the launch was given, stored keywords
            too; returns what the launch returns, and a pytree of residuals.
          bwd: called as ``bwd(grid, residuals, cotangents, **static)``, where the cotangents have the
            structure of what the launch returns and `static` is all that the launch was given beside
            arrays, by parameter or keyword; returns a mapping from parameter (or path into a tuple) to the
            array's gradient. An array that is left out has a gradient of zero.
        """
        self._rules = Rules(fwd=fwd, bwd=bwd)

    def defjvp(self, jvp: Callable[..., Any]) -> None:
        """Gives the kernel a derivative of its own for forward mode, from which JAX takes reverse mode.

        Args:
          jvp: called as ``jvp(grid, tangents, *args, **kwargs)``, where `tangents` maps each parameter (or
            path into a tuple) that was given an array to the array's tangent; returns what the launch
            returns, and its tangent, which is linear in the tangents.
        """
        self._rules = Rules(jvp=jvp)

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

    def preload(self, specialization_data: str) -> Binary:
        """Compiles a specialization that Triton's own launcher recorded, as `JITFunction.preload` does.

        Needs no GPU: the record names its target. A launch that specializes alike then compiles nothing.

        Args:
          specialization_data: the JSON text that Triton passes to ``knobs.runtime.jit_cache_hook``.

        Returns:
          The compiled kernel.

        Raises:
          LaunchValueError: the text is no such record, or another kernel's.
          triton.CompilationError: the kernel's source is at fault.
        """
        return preload(kernel_source(self.fn), specialization_data)

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
        return Kernel(fn.fn, {**fn.keywords, **keywords}, fn._rules)
    if not is_kernel(fn):
        raise _no_kernel(
            fn,
            f"jt.kernel got {fn!r}, which is no Triton kernel; decorate a function with triton.jit or "
            "gluon.jit first.",
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
          path into a tuple) to anything with a shape and a dtype, or to tuples of these for a parameter
          that is a tuple; or one such shape, or a sequence of shapes, which take the first parameters
          that nothing is passed for.
        out_names: the parameters of a sequence's shapes, in order.
        out_type: a pytree of shapes, one for a parameter, whose structure is returned.
        input_output_aliases: arguments that the kernel also writes: a parameter (of a tuple, all arrays in
          it); a list of them, in which a list inside groups their results in a tuple; or a mapping
          from a parameter to the position of its result in the declared shapes, in which numbers may also
          count the arrays passed, where that alone makes sense.
        zeroed_outputs: outputs that are zero before the kernel runs: parameters; numbers
          count the signature's, or all of them the declared shapes, where that alone makes sense; or a
          function of the metaparameters that returns these.
        target: what to compile for where no GPU is at hand: ``"cuda:90"``, ``"hip:gfx942"``, a
          `GPUTarget`, or a sequence of these. An NVIDIA target may be given as ``compute_capability=90``.
        donate: gives the in-outs of an eager launch away, as `jax.jit` does with donated arguments: the
          kernel works on their memory, and the arrays passed are deleted.
        sharding_rule: the named axes of the operands (inputs and in-outs, as they stand in the signature) and
          of the results (outputs, then in-outs), such as ``"b i, b j -> b i j"``. `jax.jit` of sharded
          arrays divides the launch along those axes that all results have. Each device then launches on
          its shards: the outputs' shapes, declared whole, are scaled; a grid's function is called again,
          with the shards by parameter; `axis_size` stands for numbers of the shard; all other numbers
          stay. Whatever is sharded otherwise is moved by XLA first. Also a pair of text and a mapping
          (`need_replication_factors`: axes that the kernel needs whole; `reduction_factors`: axes over which
          the devices' outputs are summed; sizes of axes that stand in brackets alone), or JAX's
          `SdyShardingRule`. Operands without axes may be left out.
        backend_options: compile options as a mapping.
        name, metadata (bytes; also as serialized_metadata), cost_estimate (`CostEstimate`,
          or a mapping), has_side_effect: see `launch_parameters`.

    Returns:
      The outputs in the order of the signature, then the in-outs, in a tuple (in a list if the outputs
      were declared in one and there are no in-outs); a single one bare. Of `out_type`, its structure.

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
        raise _no_kernel(
            fn, f"triton_call got kernel={fn!r}; expected a Triton kernel, made by triton.jit or gluon.jit."
        )
    return Kernel(fn, {})


def _no_kernel(fn: Any, otherwise: str) -> TypeError:
    """The error for what is no kernel."""
    if not is_interpreted(fn):
        return TypeError(otherwise)
    return TypeError(
        f"{fn!r} was made under TRITON_INTERPRET=1, for Triton's interpreter alone; unset it: without a GPU "
        "jtprim runs kernels as JAX operations, and jt.debug checks what they do."
    )


# --- A launch ----------------------------------------------------------------------------------


def _launch(owner: Kernel, grid: GridLike, *args: Any, **kwargs: Any) -> Any:
    if owner._rules is None:
        return _launch_itself(owner, grid, *args, **kwargs)
    request = Request(owner.fn, grid, args, kwargs, owner.keywords)
    if request.refs:
        raise UnsupportedError(
            "has a derivative of its own and is given a Ref; pass its contents, and declare an in-out.",
            kernel=owner.__name__,
        )
    names = [parameter.name for parameter in request.parameters]
    split = custom.Split(args, {**owner.keywords, **kwargs}, request.positional, names)

    def run(*args: Any, **merged: Any) -> Any:
        return _launch_itself(owner, grid, *args, **{name: merged[name] for name in kwargs})

    return custom.launch(owner._rules, run, grid, split, names, kernel=owner.__name__)


def _launch_itself(owner: Kernel, grid: GridLike, *args: Any, **kwargs: Any) -> Any:
    own, kwargs = kwargs, {**owner.keywords, **kwargs}
    # A function other than the grid is computed from the arguments at each launch: no plan holds it.
    plain = isinstance(owner.fn, JITFunction) and not callable(kwargs.get("zeroed_outputs"))
    plain = plain and kwargs.get("sharding_rule") is None
    key = plan_key(args, kwargs) if plain else None
    plan = owner.plans.find(key, owner.watch.source())
    if plan is not None:
        return plan.launch(grid, args, kwargs)
    request = Request(owner.fn, grid, args, own, owner.keywords)
    operands, params = request.equation()
    if key is not None:
        owner.plans.keep(key, request.plan(params))
    if request.rule is not None and not (compat.in_manual_axes() or _on_one_device(operands)):
        params = partitioned(params, request.rule, _shard(request), operands)
    results = bound_equation(params, request.donate)(*operands)
    for ref, value in zip(reversed(request.refs.values()), reversed(results), strict=False):
        ref[...] = value
    return request.placed.rebuild(results)


def _on_one_device(operands: Sequence[Any]) -> bool:
    """Whether a launch runs at once, on one device."""
    return compat.at_top_level() and all(
        not isinstance(operand, jax.Array) or len(operand.sharding.device_set) == 1 for operand in operands
    )


def _shard(request: Request) -> Shard:
    """How the launch is worked out again for each shard."""
    template = request.template()

    def launch(sizes: Mapping[str, int], shapes: Sequence[Any], *arrays: Any) -> list[Any]:
        operands, params = template.for_shard(sizes, shapes, arrays).equation()
        return bind_equation(params, operands)

    return Shard(template.shard_key(), template.shard_text(), launch)


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
    if not is_kernel(fn):
        raise _no_kernel(
            fn, f"specialize got kernel={fn!r}; expected a Triton kernel, made by triton.jit or gluon.jit."
        )
    stored = kernel.keywords if isinstance(kernel, Kernel) else {}
    name, parameters = kernel_name(fn), kernel_parameters(fn)
    passed, options, settings, unknown = sort_keywords(fn, {**stored, **kwargs})
    for key in unknown:
        refuse_keyword(fn, key)
    targets = parse_targets(target or settings.get("target")) or environment_targets()
    if not targets:
        raise ValueError(
            f"{name}: no target named; pass target='cuda:90' or 'hip:gfx942', or set JTPRIM_TARGET."
        )
    names = configs.configured_names(fn)
    positional = positional_parameters(parameters, args, passed, names, kernel=name)
    arguments = {**dict(zip(positional, args, strict=True)), **passed}
    pinned = {k: v for k, v in {**arguments, **options}.items() if k in names}
    first = configs.configurations(fn, arguments, pinned)[0].keywords
    arguments |= {p.name: first[p.name] for p in parameters if p.name in first}
    builder = ArgumentBuilder(kernel_source(fn), arguments)
    trees = [builder.build(parameter) for parameter in parameters]
    return specialize_arguments(kernel_source(fn), trees, builder.operands, (), {}, targets[0])
