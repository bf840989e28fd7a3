"""Functions that stay in JAX's x64 mode, whatever becomes of them.

A kernel computes with integers and floats of 64 bits whether or not ``jax_enable_x64`` is set, so that its
translation is traced with it on. JAX asks for the mode again later: rules for lowering, `jax.jvp` and
transposition write out operations in types that follow it, such as `lax.erfc` where it is lowered and
`lax.cumprod` where it is transposed, and each version has its own. Then the mode is the caller's, and float64
becomes float32 with a warning, or types disagree. One equation around the function, whose own rules turn the
mode on, keeps it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir

from jtprim import compat

x64_call_p = Primitive("x64_call")
x64_call_p.multiple_results = True


def x64_call(function: Callable[..., Sequence[Any]], *operands: Any) -> list[Any]:
    """Calls `function` of arrays, whose operations are traced, lowered and transformed in the x64 mode.

    That is one equation, or the operations themselves where the mode is on already.

    Args:
      function: of arrays alone, it may not close over traced ones; gives a sequence of arrays.
      *operands: its arguments.
    """
    if jax.config.jax_enable_x64:  # type: ignore[attr-defined]
        return list(function(*operands))
    with jax.enable_x64(True):
        jaxpr = jax.make_jaxpr(function)(*operands)
    return x64_call_p.bind(*operands, jaxpr=jaxpr)  # type: ignore[no-any-return]


def lower_in_x64(function: Callable[..., Sequence[Any]]) -> Callable[..., Sequence[Any]]:
    """The lowering rule of an equation that `function` computes: of its operands, and of its parameters."""
    rule = mlir.lower_fun(function, multiple_results=True)

    def lower(context: mlir.LoweringRuleContext, *operands: Any, **params: Any) -> Sequence[Any]:
        with jax.enable_x64(True):
            return rule(context, *operands, **params)  # type: ignore[no-any-return]

    return lower


def tangents_of(
    function: Callable[..., Sequence[Any]],
    primals: Sequence[Any],
    tangents: Sequence[Any],
    results: Sequence[Any],
) -> list[Any]:
    """The tangents of `function`'s results, from one equation that is linear in its operands' tangents.

    The results themselves are not of that equation: reverse mode has to know them before any tangent.

    Args:
      function: as `x64_call` takes it.
      primals: its operands.
      tangents: theirs, `jax.interpreters.ad.Zero` where an operand doesn't move.
      results: what it gives of them.
    """
    active = [i for i, tangent in enumerate(tangents) if not isinstance(tangent, ad.Zero)]

    def derivative(*values: Any) -> list[Any]:
        at, along = values[: len(primals)], values[len(primals) :]

        def of_active(*moving: Any) -> list[Any]:
            places = dict(zip(active, moving, strict=True))
            return list(function(*(places.get(i, value) for i, value in enumerate(at))))

        _, moved = jax.jvp(of_active, tuple(at[i] for i in active), along)
        return [tangent for tangent in moved if _is_inexact(tangent)]

    moved = iter(x64_call(derivative, *primals, *(tangents[i] for i in active)))
    return [
        next(moved) if _is_inexact(result) else ad.Zero(jax.typeof(result).to_tangent_aval())
        for result in results
    ]


def _is_inexact(array: Any) -> bool:
    """Whether JAX differentiates values of an array's dtype."""
    return bool(jnp.issubdtype(array.dtype, jnp.inexact))


def _call(*operands: Any, jaxpr: ClosedJaxpr) -> list[Any]:
    return list(jaxpr_as_fun(jaxpr)(*operands))


def _run(*operands: Any, jaxpr: ClosedJaxpr) -> list[Any]:
    with jax.enable_x64(True):
        return _call(*operands, jaxpr=jaxpr)


def _abstract(*_: Any, jaxpr: ClosedJaxpr) -> tuple[list[Any], Any]:
    return jaxpr.out_avals, jaxpr.effects


def _jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, jaxpr: ClosedJaxpr
) -> tuple[list[Any], list[Any]]:
    results = x64_call_p.bind(*primals, jaxpr=jaxpr)
    return results, tangents_of(jaxpr_as_fun(jaxpr), primals, tangents, results)


def _transpose(cotangents: Sequence[Any], *operands: Any, jaxpr: ClosedJaxpr) -> list[Any]:
    linear = [i for i, operand in enumerate(operands) if ad.is_undefined_primal(operand)]
    known = [i for i in range(len(operands)) if i not in linear]
    wanted = [i for i, cotangent in enumerate(cotangents) if not isinstance(cotangent, ad.Zero)]
    if not wanted:
        return [None] * len(operands)

    def transposed(*values: Any) -> Sequence[Any]:
        at = dict(zip(known, values, strict=False))

        def of_linear(*moving: Any) -> list[Any]:
            places = at | dict(zip(linear, moving, strict=True))
            results = _call(*(places[i] for i in range(len(operands))), jaxpr=jaxpr)
            return [results[i] for i in wanted]

        back = jax.linear_transpose(of_linear, *(operands[i].aval for i in linear))
        return back(list(values[len(known) :]))  # type: ignore[no-any-return]

    results = x64_call(transposed, *(operands[i] for i in known), *(cotangents[i] for i in wanted))
    places = dict(zip(linear, results, strict=True))
    return [places.get(i) for i in range(len(operands))]


def _batch(
    arrays: Sequence[Any], axes: Sequence[int | None], *, jaxpr: ClosedJaxpr
) -> tuple[list[Any], list[int]]:
    results = x64_call(jax.vmap(jaxpr_as_fun(jaxpr), axes), *arrays)
    return results, [0] * len(results)


def _expanded(*operands: Any, jaxpr: ClosedJaxpr) -> list[Any]:
    with jax.enable_x64(True):
        jaxpr = compat.expand_jaxpr(jaxpr)
    return x64_call_p.bind(*operands, jaxpr=jaxpr)  # type: ignore[no-any-return]


x64_call_p.def_impl(_run)
x64_call_p.def_effectful_abstract_eval(_abstract)
ad.primitive_jvps[x64_call_p] = _jvp
ad.primitive_transposes[x64_call_p] = _transpose
batching.primitive_batchers[x64_call_p] = _batch
mlir.register_lowering(x64_call_p, lower_in_x64(_call))
compat.register_expansion(x64_call_p, _expanded)
