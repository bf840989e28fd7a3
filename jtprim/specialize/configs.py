"""From an autotuner and heuristics to configurations: a pure function of them and the arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from triton.runtime.autotuner import Autotuner, Config, Heuristics
from triton.runtime.jit import JITFunction

from jtprim.errors import LaunchValueError, UnsupportedError
from jtprim.specialize.kernel import Kernel, kernel_name


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


def configurations(
    kernel: Kernel, arguments: Mapping[str, Any], pinned: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """The configurations that a launch of `kernel` runs or tunes over.

    Layers are taken from the outside in, as Triton runs them: a heuristic sees the launch's arguments
    and what the layers outside it set.

    Args:
      kernel: the function, in any nesting of autotuners and heuristics.
      arguments: the launch's arguments by parameter; outputs as their shapes.
      pinned: keywords of the launch. A configuration that sets one of them otherwise is left out.

    Returns:
      What each configuration sets, by keyword: kernel parameters and compile options alike.

    Raises:
      LaunchValueError: no configuration agrees with the pinned keywords, or none is left by pruning.
      UnsupportedError: a layer has hooks, which would run on the device's host at each launch.
    """
    states: list[dict[str, Any]] = [{}]
    layer: Any = kernel
    while not isinstance(layer, JITFunction):
        if isinstance(layer, Heuristics):
            for state in states:
                for name, heuristic in layer.values.items():
                    state[name] = heuristic({**arguments, **pinned, **state})
        else:
            configs = _configs(layer, arguments, pinned, kernel=kernel_name(kernel))
            states = [{**state, **_keywords(config, pinned)} for state in states for config in configs]
        layer = layer.fn
    return states


def _keywords(config: Config, pinned: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.all_kwargs().items() if name not in pinned}


def _configs(
    tuner: Autotuner, arguments: Mapping[str, Any], pinned: Mapping[str, Any], *, kernel: str
) -> Sequence[Config]:
    """An autotuner's configurations after pruning, as `Autotuner.prune_configs` does it."""
    hooks = [
        name
        for name, used in (
            ("pre_hook", tuner.user_defined_pre_hook or any(c.pre_hook for c in tuner.configs)),
            ("post_hook", tuner.user_defined_post_hook),
            ("reset_to_zero", tuner.reset_to_zero),
            ("restore_value", tuner.restore_value),
        )
        if used
    ]
    if hooks:
        raise UnsupportedError(
            f"its autotuner uses {hooks[0]}, which runs on the host between launches; a launch inside a "
            "JAX program has no such moment. Declare zeroed_outputs or input_output_aliases instead.",
            kernel=kernel,
        )
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
