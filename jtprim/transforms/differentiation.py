"""Derivatives of a launch: of the kernel's translation, while the launch itself stays as it is.

The rule for `jax.jvp` binds the equation as it was and differentiates `translate`, which is made of JAX
operations, so that reverse mode and higher orders follow from JAX's own rules. XLA compiles the
derivative on every platform, and leaves out what of the translation it doesn't need.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import ad

from jtprim.lowering.translation import translate
from jtprim.primitive import triton_kernel_p


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[list[Any], list[Any]]:
    results = triton_kernel_p.bind(*primals, **params)
    active = [i for i, tangent in enumerate(tangents) if not isinstance(tangent, ad.Zero)]

    def of_active(*values: Any) -> list[Any]:
        operands = list(primals)
        for index, value in zip(active, values, strict=True):
            operands[index] = value
        return translate(*operands, **params)

    _, moved = jax.jvp(of_active, tuple(primals[i] for i in active), tuple(tangents[i] for i in active))
    return results, [
        tangent if _is_inexact(result) else ad.Zero(jax.typeof(result).to_tangent_aval())
        for tangent, result in zip(moved, results, strict=True)
    ]


def _is_inexact(array: Any) -> bool:
    """Whether JAX differentiates values of an array's dtype."""
    return bool(jnp.issubdtype(array.dtype, jnp.inexact))


ad.primitive_jvps[triton_kernel_p] = _jvp
