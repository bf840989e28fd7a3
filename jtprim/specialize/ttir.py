"""A kernel's TTIR for the portable lowering: Triton's frontend and its first stage, nothing else.

The target is fixed (`target.PORTABLE`) to one for which the `ttir` stage rewrites tensor descriptors to
plain pointers. For a Gluon kernel, which is written for one kind of GPU, it is the first of several that
Triton makes the kernel's IR for. No driver, GPU or assembler is needed.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from triton.backends.compiler import GPUTarget, Language
from triton.compiler import make_backend
from triton.runtime.jit import JITFunction

from jtprim import compat
from jtprim.specialize.adapters import Adapter
from jtprim.specialize.compile import ast_source, check_options, raise_compile_error
from jtprim.specialize.target import PORTABLE, PORTABLE_GLUON

# The options that the frontend reads. All others steer code generation for one GPU, which the
# portable lowering does not have: `num_ctas`, for one, is refused on sm_80.
_FRONTEND_OPTIONS = ("num_warps", "num_stages", "debug", "sanitize_overflow", "default_dot_input_precision")

_FP8_DTYPES = ("fp8e4b15", "fp8e4b8", "fp8e4nv", "fp8e5", "fp8e5b16")


@functools.lru_cache(maxsize=1024)
def kernel_ttir(
    adapter: Adapter, options: tuple[tuple[str, Any], ...], *, with_descriptors: bool = False
) -> str:
    """`portable_ttir` of a kernel, for a specialization made for the portable target.

    Raises:
      triton.CompilationError: the kernel's source is at fault; with the excerpt that Triton shows.
      LaunchValueError: an option has a value that Triton refuses.
    """
    source = adapter.specialization.source
    check_options(source, _frontend_options(dict(options)), PORTABLE)
    try:
        return portable_ttir(ast_source(adapter), dict(options), with_descriptors=with_descriptors)
    except Exception as error:
        raise_compile_error(error, adapter, f"while jtprim read the IR of {source.name}")


def portable_ttir(source: Any, options: Mapping[str, object], *, with_descriptors: bool = False) -> str:
    """Translates a kernel to TTIR with all calls inlined.

    Args:
      source: a `triton.compiler.ASTSource`, or Gluon's `GluonASTSource`.
      options: the launch's backend options; those that are about code generation are ignored.
      with_descriptors: the module as the frontend makes it, with tensor descriptors that are not rewritten
        yet and calls that are not inlined.

    Returns:
      The module in MLIR's generic form, with source locations. A Gluon kernel comes as `ttgir`, the
      first stage that inlines its calls.

    Raises:
      triton.CompilationError: the frontend's own error, unchanged.
    """
    if source.language is Language.GLUON:
        return _gluon_ttgir(source, options)
    module, backend, parsed, context = _frontend(source, options, PORTABLE)
    if with_descriptors:
        return compat.print_generic(module, context)
    stages: dict[str, Any] = {}
    backend.add_stages(stages, parsed, source.language)
    return compat.print_generic(stages["ttir"](module, {}), context)


def _gluon_ttgir(source: Any, options: Mapping[str, object]) -> str:
    """A Gluon kernel's `ttgir`, made for the first target that has its layouts and operations."""
    refusal: Exception | None = None
    for target in _gluon_targets(source.fn):
        try:
            module, _, _, context = _frontend(source, options, target)
            compat.inline_gluon(module)
        except Exception as error:
            refusal = refusal or error
        else:
            return compat.print_generic(module, context)
    assert refusal is not None
    raise refusal


def _gluon_targets(function: JITFunction) -> list[GPUTarget]:
    """The targets to try, those first whose part of Gluon the kernel's module uses.

    Triton writes to the standard error stream why it refuses a kernel: the first guess had better be right.
    """
    used = _gluon_modules(function)
    amd, blackwell = (any(f".{part}" in name for name in used) for part in ("amd", "nvidia.blackwell"))

    def distance(target: GPUTarget) -> tuple[bool, bool]:
        return amd != (target.backend == "hip"), blackwell != (target.arch == 100)

    return sorted((PORTABLE, *PORTABLE_GLUON), key=distance)  # a stable sort


def _gluon_modules(function: JITFunction) -> set[str]:
    """Names of the modules of Gluon from which the globals of a kernel, and of kernels among these, come."""
    found: set[str] = set()
    seen: set[int] = set()
    waiting = [function]
    while waiting:
        values = waiting.pop().fn.__globals__
        if id(values) in seen:
            continue
        seen.add(id(values))
        for value in list(values.values()):
            if isinstance(value, JITFunction):
                waiting.append(value)
            name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
            if isinstance(name, str) and name.startswith("triton.experimental.gluon.language"):
                found.add(name)
    return found


def _frontend(source: Any, options: Mapping[str, object], target: GPUTarget) -> tuple[Any, Any, Any, Any]:
    """The module that Triton's frontend makes, with the backend, its options and the context."""
    backend = make_backend(target)
    parsed = backend.parse_options(_frontend_options(options))
    context = compat.triton_context(backend)
    codegen, modules = backend.get_codegen_implementation(parsed), backend.get_module_map()
    return source.make_ir(target, parsed, codegen, modules, context), backend, parsed, context


def _frontend_options(options: Mapping[str, object]) -> dict[str, object]:
    chosen = {name: options[name] for name in _FRONTEND_OPTIONS if options.get(name) is not None}
    # Fusion is decided long after this stage; naming it keeps Triton 3.9 from warning about its default.
    return {**chosen, "supported_fp8_dtypes": _FP8_DTYPES, "enable_fp_fusion": True}


def clear_caches() -> None:
    kernel_ttir.cache_clear()
