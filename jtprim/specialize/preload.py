"""Compiling from what Triton's launcher recorded of a launch: ``specialization_data``, a JSON object.

Triton hands the text to ``knobs.runtime.jit_cache_hook`` at each new specialization, and takes it back
in `JITFunction.preload`; the format is that of `triton.runtime.jit.serialize_specialization_data`.
"""

from __future__ import annotations

import functools
import importlib
import json
from collections.abc import Mapping
from typing import Any

from triton import language as tl
from triton.backends.compiler import GPUTarget

from jtprim.arguments import Static
from jtprim.errors import LaunchValueError
from jtprim.specialize.adapters import unadapted
from jtprim.specialize.binder import Specialization
from jtprim.specialize.compile import Binary, compile_kernel, options_for
from jtprim.specialize.kernel import KernelSource
from jtprim.specialize.target import parse_target


def preload(source: KernelSource, specialization_data: str) -> Binary:
    """The binary of one recorded specialization, compiled unless it is at hand.

    Raises:
      LaunchValueError: the text is no such record, or another kernel's.
    """
    function = source.function.fn
    name = f"{function.__module__}.{function.__qualname__}"
    try:
        record = json.loads(specialization_data)
        recorded = record["name"]
        if recorded == name:
            specialization, target = _specialization(source, record), _target(record)
            options = {key: _tuples(value) for key, value in record["options"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, ImportError) as error:
        raise LaunchValueError(
            f"preload got what is no specialization data of Triton's ({type(error).__name__}: {error}); pass "
            "the text that Triton's jit_cache_hook was given.",
            kernel=source.name,
        ) from error
    if recorded != name:
        raise LaunchValueError(
            f"preload got specialization data of {recorded}; expected that of {name}.", kernel=source.name
        )
    return compile_kernel(
        unadapted(source, specialization), options_for(target, tuple(options.items())), target
    )


def _specialization(source: KernelSource, record: Mapping[str, Any]) -> Specialization:
    signature = {name: _tuples(kind) for name, kind in record["signature"].items()}
    constexprs = zip(record["constant_keys"], record["constant_vals"], strict=True)
    attributes = zip(record["attrs_keys"], record["attrs_vals"], strict=True)
    return Specialization(
        signature=tuple((p.name, signature[p.name]) for p in source.function.params),
        constexprs=tuple((tuple(path), Static(_constant(value))) for path, value in constexprs),
        attributes=tuple((tuple(path), _tuples(pairs)) for path, pairs in attributes),
        source=source,
    )


def _constant(value: Any) -> Any:
    if tl.dtype.is_dtype(value):
        return tl.dtype(value)
    if isinstance(value, dict) and "constexpr" in value:
        return tl.constexpr(_tuples(value["constexpr"]))
    if isinstance(value, dict) and "jit_function" in value:
        module, _, path = value["jit_function"].partition(":")
        return functools.reduce(getattr, path.split("."), importlib.import_module(module))
    return _tuples(value)


def _target(record: Mapping[str, Any]) -> GPUTarget:
    """The target; Triton before 3.9 records the architecture alone, among the options (``sm90``)."""
    if "target" in record:
        return GPUTarget(**record["target"])
    arch = str(record["options"]["arch"])
    return parse_target(f"hip:{arch}" if arch.startswith("gfx") else f"cuda:{arch.removeprefix('sm')}")


def _tuples(value: Any) -> Any:
    """Lists of JSON as the tuples that they were."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
