"""From an equation of `triton_kernel_p` to StableHLO: the rules, registered here together."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from jax.interpreters import mlir

from jtprim.checks import current_checks
from jtprim.lowering import gpu, translation
from jtprim.primitive import triton_kernel_p

_no_work = mlir.lower_fun(translation.no_work, multiple_results=True)
_translate = mlir.lower_fun(translation.translate, multiple_results=True)


def _choose(rule: Callable[..., Sequence[Any]]) -> Callable[..., Sequence[Any]]:
    """`rule`, except where every configuration's grid is empty, and under `jt.debug`: it translates."""

    def lower(ctx: mlir.LoweringRuleContext, *operands: Any, **params: Any) -> Sequence[Any]:
        if translation.is_empty(params):
            return _no_work(ctx, *operands, **params)
        return (_translate if current_checks() else rule)(ctx, *operands, **params)

    return lower


for _platform in ("cuda", "rocm"):
    mlir.register_lowering(
        triton_kernel_p, _choose(functools.partial(gpu.lower, platform=_platform)), platform=_platform
    )
mlir.register_lowering(triton_kernel_p, _translate)
