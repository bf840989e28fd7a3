"""Derivatives of a launch: of the kernel's translation, while the launch itself stays as it is.

The rule for `jax.jvp` binds the equation as it was and differentiates `translate`, which is made of JAX
operations, so that reverse mode and higher orders follow from JAX's own rules. XLA compiles the
derivative on every platform, and leaves out what of the translation it doesn't need.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from jax.interpreters import ad

from jtprim.lowering.translation import translate
from jtprim.lowering.x64 import tangents_of
from jtprim.primitive import triton_kernel_p


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[list[Any], list[Any]]:
    results = triton_kernel_p.bind(*primals, **params)
    return results, tangents_of(functools.partial(translate, **params), primals, tangents, results)


ad.primitive_jvps[triton_kernel_p] = _jvp
