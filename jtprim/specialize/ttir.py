"""A kernel's TTIR for the portable lowering: Triton's frontend and its first stage, nothing else.

The target is fixed (`target.PORTABLE`) to one for which the `ttir` stage rewrites tensor descriptors to
plain pointers. No driver, GPU or assembler is needed.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from triton import CompilationError
from triton.backends.compiler import GPUTarget, Language
from triton.compiler import make_backend

from jtprim import compat
from jtprim.specialize.adapters import Adapter
from jtprim.specialize.compile import ast_source, check_options
from jtprim.specialize.target import PORTABLE

# The options that the frontend reads. All others steer code generation for one GPU, which the
# portable lowering does not have: `num_ctas`, for one, is refused on sm_80.
_FRONTEND_OPTIONS = ("num_warps", "num_stages", "debug", "sanitize_overflow", "default_dot_input_precision")

# What Gluon's operations need of a target is checked as its IR is made: tensor memory, the threads of a warp.
# The first target for which a kernel can be made is taken; the IR says the same for all.
_GLUON_TARGETS = (
    PORTABLE,
    GPUTarget("cuda", 100, 32),
    GPUTarget("hip", "gfx942", 64),
    GPUTarget("hip", "gfx950", 64),
    GPUTarget("hip", "gfx1250", 32),
)

_FP8_DTYPES = ("fp8e4b15", "fp8e4b8", "fp8e4nv", "fp8e5", "fp8e5b16")


@functools.lru_cache(maxsize=1024)
def kernel_ttir(adapter: Adapter, options: tuple[tuple[str, Any], ...]) -> str:
    """`portable_ttir` of a kernel, for a specialization made for the portable target.

    Raises:
      triton.CompilationError: the frontend's own error, unchanged.
      LaunchValueError: an option has a value that Triton refuses.
    """
    check_options(adapter.specialization.source, _frontend_options(dict(options)), PORTABLE)
    return portable_ttir(ast_source(adapter), dict(options))


def portable_ttir(source: Any, options: Mapping[str, object]) -> str:
    """Translates a kernel to TTIR with all calls inlined.

    Args:
      source: a `triton.compiler.ASTSource`, or Gluon's `GluonASTSource`.
      options: the launch's backend options; those that are about code generation are ignored.

    Returns:
      The module in MLIR's generic form, with source locations. A Gluon kernel comes as its frontend makes
      it, before anything is decided for a target.

    Raises:
      triton.CompilationError: the frontend's own error, unchanged.
    """
    error: Exception | None = None
    for target in _GLUON_TARGETS if source.language == Language.GLUON else (PORTABLE,):
        try:
            return _ttir_for(target, source, options)
        except (CompilationError, RuntimeError) as found:
            error = error or found
    assert error is not None
    raise error


def _ttir_for(target: GPUTarget, source: Any, options: Mapping[str, object]) -> str:
    backend = make_backend(target)
    parsed = backend.parse_options(_frontend_options(options))
    context = compat.triton_context(backend)
    module = source.make_ir(
        target, parsed, backend.get_codegen_implementation(parsed), backend.get_module_map(), context
    )
    if source.language == Language.GLUON:
        compat.inline_gluon(module)
    else:
        stages: dict[str, Any] = {}
        backend.add_stages(stages, parsed, source.language)
        module = stages["ttir"](module, {})
    return compat.print_generic(module, context)


def _frontend_options(options: Mapping[str, object]) -> dict[str, object]:
    chosen = {name: options[name] for name in _FRONTEND_OPTIONS if options.get(name) is not None}
    # Fusion is decided long after this stage; naming it keeps Triton 3.9 from warning about its default.
    return {**chosen, "supported_fp8_dtypes": _FP8_DTYPES, "enable_fp_fusion": True}


def clear_caches() -> None:
    kernel_ttir.cache_clear()
