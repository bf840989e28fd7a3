"""From an equation of `triton_kernel_p` to StableHLO: the rules, registered here together."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax.interpreters import mlir

from jtprim.lowering import gpu, translation
from jtprim.primitive import OutShape, triton_kernel_p


def _no_work(*operands: Any, **params: Any) -> list[Any]:
    """The results of a launch without programs: zeros, and in-outs as they were given."""
    out_shape: OutShape = params["out_shape"]
    kept = {output: operands[operand] for operand, output in params["aliases"]}
    return [
        kept[index] if index in kept else jnp.zeros(shape.shape, shape.dtype)
        for index, shape in enumerate(out_shape.shapes)
    ]


def _unless_empty(rule: Callable[..., Sequence[Any]]) -> Callable[..., Sequence[Any]]:
    """`rule`, except where every configuration's grid is empty."""
    no_work = mlir.lower_fun(_no_work, multiple_results=True)

    def lower(ctx: mlir.LoweringRuleContext, *operands: Any, **params: Any) -> Sequence[Any]:
        empty = all(0 in configuration.grid for configuration in params["configurations"])
        return (no_work if empty else rule)(ctx, *operands, **params)

    return lower


for _platform in ("cuda", "rocm"):
    mlir.register_lowering(
        triton_kernel_p, _unless_empty(functools.partial(gpu.lower, platform=_platform)), platform=_platform
    )
mlir.register_lowering(
    triton_kernel_p, _unless_empty(mlir.lower_fun(translation.translate, multiple_results=True))
)
