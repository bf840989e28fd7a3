"""From an autotuner and heuristics to configurations: a pure function of them and the arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from triton.runtime.autotuner import Autotuner, Config, Heuristics
from triton.runtime.jit import JITFunction

from jtprim.arguments import NormalCoordinate, coordinate_text, is_namedtuple
from jtprim.descriptors import TensorDescriptor
from jtprim.errors import LaunchValueError, UnsupportedError
from jtprim.specialize.kernel import Kernel, kernel_name


@dataclass(frozen=True)
class Chosen:
    """One configuration as autotuners and heuristics make it.

    Attributes:
      keywords: what it sets: kernel parameters and compile options alike.
      zeroed: coordinates of arrays that a configuration's own hook zeroes before every launch.
      reset: coordinates of arrays that are zeroed before each run while tuning.
      block_shapes: block shapes that a configuration's own hook sets on tensor descriptors, by coordinate.
    """

    keywords: dict[str, Any]
    zeroed: frozenset[NormalCoordinate] = frozenset()
    reset: frozenset[NormalCoordinate] = frozenset()
    block_shapes: Mapping[NormalCoordinate, tuple[int, ...]] = field(default_factory=dict)


def configured_names(kernel: Kernel) -> set[str]:
    """The keywords that autotuners' configurations and heuristics set."""
    names: set[str] = set()
    layer: Any = kernel
    while not isinstance(layer, JITFunction):
        if isinstance(layer, Heuristics):
            names.update(layer.values)
        else:
            names.update(name for config in layer.configs for name in config.kwargs)
        layer = layer.fn
    return names


def configurations(kernel: Kernel, arguments: Mapping[str, Any], pinned: Mapping[str, Any]) -> list[Chosen]:
    """The configurations that a launch of `kernel` runs or tunes over.

    Layers are taken from the outside in, as Triton runs them: a heuristic sees the launch's arguments
    and what the layers outside it set.

    Args:
      kernel: the function, in any nesting of autotuners and heuristics.
      arguments: the launch's arguments by parameter; outputs as their shapes.
      pinned: keywords of the launch. A configuration that sets one of them otherwise is left out.

    Raises:
      LaunchValueError: no configuration agrees with the pinned keywords, or none is left by pruning.
      UnsupportedError: a hook does what a launch inside a JAX program can't.
    """
    states = [Chosen({})]
    layer: Any = kernel
    while not isinstance(layer, JITFunction):
        if isinstance(layer, Heuristics):
            for state in states:
                for name, heuristic in layer.values.items():
                    state.keywords[name] = heuristic({**arguments, **pinned, **state.keywords})
        else:
            name = kernel_name(kernel)
            configs = _configs(layer, arguments, pinned, kernel=name)
            states = [
                _with_config(state, layer, config, arguments, pinned, kernel=name)
                for state in states
                for config in configs
            ]
        layer = layer.fn
    return states


def _with_config(
    state: Chosen,
    tuner: Autotuner,
    config: Config,
    arguments: Mapping[str, Any],
    pinned: Mapping[str, Any],
    *,
    kernel: str,
) -> Chosen:
    keywords = {name: value for name, value in config.all_kwargs().items() if name not in pinned}
    keywords = {**state.keywords, **keywords}
    seen = _run_hooks(tuner, config, {**arguments, **pinned, **keywords}, kernel=kernel)
    return Chosen(
        keywords,
        state.zeroed | seen.zeroed,
        state.reset | seen.reset,
        {**state.block_shapes, **seen.block_shapes},
    )


# --- Hooks -------------------------------------------------------------------------------------


class HookArray:
    """What a hook sees of an array: its shape and dtype, and `zero_`, which zeroes it before the launch."""

    def __init__(self, coordinate: NormalCoordinate, array: Any, kernel: str, zeroed: set[NormalCoordinate]):
        self.shape, self.dtype = array.shape, array.dtype
        self._coordinate, self._kernel, self._zeroed = coordinate, kernel, zeroed

    def zero_(self) -> HookArray:
        self._zeroed.add(self._coordinate)
        return self

    def __getattr__(self, attribute: str) -> Any:
        raise UnsupportedError(
            f"a hook of its autotuner uses {coordinate_text(self._coordinate)}.{attribute}; inside a JAX "
            "program an array has no memory that a hook could reach, so it may call zero_() and look at "
            "shape and dtype.",
            kernel=self._kernel,
            parameter=self._coordinate[0],
        )


class HookDescriptor:
    """What a hook sees of a tensor descriptor: all that it is, its base a `HookArray`.

    A hook sets `block_shape`, for the configuration whose hook it is.
    """

    _coordinate: NormalCoordinate
    _kernel: str
    _block_shapes: dict[NormalCoordinate, tuple[int, ...]]

    def __init__(
        self,
        coordinate: NormalCoordinate,
        descriptor: TensorDescriptor,
        kernel: str,
        zeroed: set[NormalCoordinate],
        block_shapes: dict[NormalCoordinate, tuple[int, ...]],
    ):
        vars(self).update({f.name: getattr(descriptor, f.name) for f in fields(descriptor)})
        vars(self)["base"] = HookArray(coordinate, descriptor.base, kernel, zeroed)
        vars(self).update(_coordinate=coordinate, _kernel=kernel, _block_shapes=block_shapes)

    def __setattr__(self, attribute: str, value: Any) -> None:
        if attribute != "block_shape":
            raise UnsupportedError(
                f"a hook of its autotuner sets {coordinate_text(self._coordinate)}.{attribute}; of a tensor "
                "descriptor it may set block_shape.",
                kernel=self._kernel,
                parameter=self._coordinate[0],
            )
        vars(self)["block_shape"] = value
        self._block_shapes[self._coordinate] = tuple(map(int, value))


@dataclass
class _Seen:
    """What hooks did to their stand-ins."""

    zeroed: set[NormalCoordinate] = field(default_factory=set)
    reset: set[NormalCoordinate] = field(default_factory=set)
    block_shapes: dict[NormalCoordinate, tuple[int, ...]] = field(default_factory=dict)


def _run_hooks(tuner: Autotuner, config: Config, arguments: Mapping[str, Any], *, kernel: str) -> _Seen:
    """Runs the hooks that come before a launch, on stand-ins.

    `restore_value` needs nothing: what an array held before tuning is kept by JAX's immutability, and
    the GPU runtime saves and restores in-outs between the runs that it times.
    """
    if tuner.user_defined_post_hook:
        raise UnsupportedError(
            "its autotuner has a post_hook, which runs on the host after a launch; a launch inside a JAX "
            "program has no such moment. Do what the hook does in the program.",
            kernel=kernel,
        )
    seen = _Seen()

    def stand_in(value: Any, coordinate: NormalCoordinate, zeroed: set[NormalCoordinate]) -> Any:
        if isinstance(value, TensorDescriptor):
            return HookDescriptor(coordinate, value, kernel, zeroed, seen.block_shapes)
        if is_shaped(value):
            return HookArray(coordinate, value, kernel, zeroed)
        if isinstance(value, (tuple, list)):
            children = [stand_in(child, (*coordinate, i), zeroed) for i, child in enumerate(value)]
            return type(value)(*children) if is_namedtuple(value) else type(value)(children)
        return value

    def stand_ins(zeroed: set[NormalCoordinate]) -> dict[str, Any]:
        return {name: stand_in(value, (name,), zeroed) for name, value in arguments.items()}

    if tuner.user_defined_pre_hook:
        tuner.pre_hook(stand_ins(seen.reset))
    else:
        seen.reset.update((name,) for name in tuner.reset_to_zero)
    if config.pre_hook is not None:
        config.pre_hook(stand_ins(seen.zeroed))
    return seen


def is_shaped(value: Any) -> bool:
    """Whether `value` is an array, or stands for one."""
    return hasattr(value, "shape") and hasattr(value, "dtype")


# --- Pruning -----------------------------------------------------------------------------------


def _configs(
    tuner: Autotuner, arguments: Mapping[str, Any], pinned: Mapping[str, Any], *, kernel: str
) -> Sequence[Config]:
    """An autotuner's configurations after pruning, as `Autotuner.prune_configs` does it."""
    configs = [
        config
        for config in tuner.configs
        if all(config.kwargs[name] == value for name, value in pinned.items() if name in config.kwargs)
    ]
    if not configs:
        names = sorted({name for config in tuner.configs for name in config.kwargs} & set(pinned))
        raise LaunchValueError(
            f"no configuration of its autotuner has {', '.join(f'{n}={pinned[n]!r}' for n in names)}; leave "
            "these out to tune over all, or pass values that one configuration has.",
            kernel=kernel,
        )
    if tuner.early_config_prune is not None:
        configs = list(tuner.early_config_prune(configs, dict(arguments), **pinned))
        if not configs:
            raise LaunchValueError(
                "early_config_prune of its autotuner left no configuration; it must keep one.", kernel=kernel
            )
    if tuner.perf_model is not None:
        top = tuner.configs_top_k
        count = max(1, int(len(configs) * top)) if isinstance(top, float) else top
        times = {c: tuner.perf_model(**{**arguments, **pinned, **c.all_kwargs()}) for c in configs}
        configs = sorted(configs, key=times.__getitem__)[:count]
    return configs
