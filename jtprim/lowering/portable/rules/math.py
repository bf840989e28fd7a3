"""The math dialect, and Triton's precise and approximate variants.

Defined in MLIR's MathOps.td (https://mlir.llvm.org/docs/Dialects/MathOps/) and Triton's TritonOps.td. Results
are as exact as XLA's functions; the approximate variants are no less exact than the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from jax import lax

from jtprim.lowering.portable.values import Array, bits_of, reinterpret

from .arith import Elementwise, elementwise, rounded


def _scaled(function: Callable[[Array], Array], factor: float) -> Callable[[Array], Array]:
    return lambda array: lax.mul(function(array), lax.full_like(array, factor))


_log2 = _scaled(lax.log, 1 / math.log(2))
_log10 = _scaled(lax.log, 1 / math.log(10))


def nearest_even(array: Array) -> Array:
    return lax.round(array, lax.RoundingMethod.TO_NEAREST_EVEN)


def _away_from_zero(array: Array) -> Array:
    return lax.round(array, lax.RoundingMethod.AWAY_FROM_ZERO)


def _toward_zero(array: Array) -> Array:
    return lax.select(lax.lt(array, lax.full_like(array, 0)), lax.ceil(array), lax.floor(array))


def _absolute(array: Array) -> Array:
    return array if array.dtype == np.bool_ else lax.abs(array)


def fused(one: Array, other: Array, added: Array) -> Array:
    """Multiply and add. XLA decides whether the product is rounded on the way."""
    return lax.add(lax.mul(one, other), added)


def copysign(magnitude: Array, sign: Array) -> Array:
    bits = reinterpret(sign, bits_of(np.dtype(sign.dtype)))
    negative = lax.lt(bits, lax.full_like(bits, 0))  # so is -0.0
    return lax.select(negative, lax.neg(lax.abs(magnitude)), lax.abs(magnitude))


UNARY: dict[str, Elementwise] = {
    "exp": lax.exp,
    "exp2": lax.exp2,
    "expm1": lax.expm1,
    "log": lax.log,
    "log2": _log2,
    "log10": _log10,
    "log1p": lax.log1p,
    "sin": lax.sin,
    "cos": lax.cos,
    "tan": lax.tan,
    "asin": lax.asin,
    "acos": lax.acos,
    "atan": lax.atan,
    "sinh": lax.sinh,
    "cosh": lax.cosh,
    "tanh": lax.tanh,
    "asinh": lax.asinh,
    "acosh": lax.acosh,
    "atanh": lax.atanh,
    "sqrt": lax.sqrt,
    "rsqrt": lax.rsqrt,
    "cbrt": lax.cbrt,
    "erf": lax.erf,
    "erfc": lax.erfc,
    "floor": lax.floor,
    "ceil": lax.ceil,
    "trunc": _toward_zero,
    "round": _away_from_zero,
    "roundeven": nearest_even,
}
BINARY: dict[str, Elementwise] = {"atan2": lax.atan2, "copysign": copysign}

elementwise({f"math.{name}": function for name, function in {**UNARY, **BINARY}.items()})
elementwise(
    {
        "math.absf": lax.abs,
        "math.absi": _absolute,
        "math.fma": rounded(fused),
        "math.powf": lax.pow,
        "tt.precise_sqrt": lax.sqrt,
        "tt.precise_divf": lax.div,
        "tt.approx_divf": lax.div,
    }
)
