"""From an equation of `triton_kernel_p` to StableHLO: the rules, registered here together."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from jax.extend.core import jaxpr_as_fun
from jax.extend.mlir import ir
from jax.interpreters import mlir

from jtprim import compat
from jtprim.checks import current_checks
from jtprim.lowering import gpu, translation
from jtprim.lowering.x64 import lower_in_x64
from jtprim.primitive import triton_kernel_p

_no_work = mlir.lower_fun(translation.no_work, multiple_results=True)
_translate = lower_in_x64(translation.translate)


def _choose(rule: Callable[..., Sequence[Any]]) -> Callable[..., Sequence[Any]]:
    """`rule`, except where every configuration's grid is empty, and under `jt.debug`: it translates."""

    def lower(ctx: mlir.LoweringRuleContext, *operands: Any, **params: Any) -> Sequence[Any]:
        if translation.is_empty(params):
            return _no_work(ctx, *operands, **params)
        return (_translate if current_checks() else rule)(ctx, *operands, **params)

    return lower


def _divided(rule: Callable[..., Sequence[Any]]) -> Callable[..., Sequence[Any]]:
    """`rule`, except where the equation has a sharding rule and XLA is to divide it among devices.

    An exported program can't: what it is divided into is asked of this process.
    """

    def lower(ctx: mlir.LoweringRuleContext, *operands: Any, **params: Any) -> Sequence[Any]:
        module = ctx.module_context
        if params["partition"] is None or not compat.is_partitioned(module) or compat.for_export(module):
            return rule(ctx, *operands, **params)
        call = jaxpr_as_fun(params["partition"].jaxpr)
        results = mlir.lower_fun(call, multiple_results=True)(ctx, *operands)
        # JAX's call names what to ask by an address alone, which another program may have in another
        # process, or later in this one: the text has to tell them apart for JAX's compilation cache.
        attributes: dict[str, ir.Attribute] = {
            "launch": ir.StringAttr.get(params["partition"].digest(params))
        }
        if results[0].owner.name == "stablehlo.custom_call":
            results[0].owner.attributes["mhlo.frontend_attributes"] = ir.DictAttr.get(attributes)
        return results

    return lower


for _platform in ("cuda", "rocm"):
    mlir.register_lowering(
        triton_kernel_p,
        _divided(_choose(functools.partial(gpu.lower, platform=_platform))),
        platform=_platform,
    )
mlir.register_lowering(triton_kernel_p, _divided(_translate))
