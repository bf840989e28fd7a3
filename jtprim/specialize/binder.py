"""Specialization: what Triton derives from a launch's arguments, through Triton's own binder.

Triton generates a binder from each kernel's signature (`create_function_from_signature`). It is built
once per kernel and backend, and given stand-ins for arrays and descriptors.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from triton._utils import canonicalize_dtype, find_paths_if, get_iterable_path
from triton.backends.compiler import BaseBackend, GPUTarget
from triton.compiler import make_backend
from triton.runtime.jit import JITCallable, JITFunction, create_function_from_signature

from jtprim import compat
from jtprim.arguments import Branch, Leaf, Operand, Output, Path, Static, Tree, map_tree
from jtprim.errors import LaunchTypeError
from jtprim.specialize.kernel import KernelSource, PerFunction, cache_key
from jtprim.specialize.stand_ins import stand_in


@dataclass(frozen=True)
class Specialization:
    """What Triton compiles a kernel for.

    Attributes:
      signature: each parameter's name and type in Triton's words (``"*fp32"``, ``"i32"``,
        ``"constexpr"``), nested for tuples.
      constexprs: value of each constexpr by its path: the parameter's position, then positions inside
        tuples. Integers equal to 1 and None are among them.
      attributes: attributes of other parameters by path, as Triton names them
        (``(("tt.divisibility", 16),)``); empty where Triton looked and found none, which its disk cache
        tells apart from not looking.
      source: the kernel.
    """

    signature: tuple[tuple[str, Any], ...]
    constexprs: tuple[tuple[Path, Static], ...]
    attributes: tuple[tuple[Path, tuple[tuple[str, int], ...]], ...]
    source: KernelSource

    @cached_property
    def key(self) -> str:
        """A digest: equal keys compile to equal TTIR under equal options."""
        constexprs = [
            (
                path,
                cache_key(static.value) if isinstance(static.value, JITCallable) else repr(static._identity),
            )
            for path, static in self.constexprs
        ]
        text = repr((self.source.key, self.signature, constexprs, self.attributes))
        return hashlib.sha256(text.encode()).hexdigest()

    def leaf_types(self) -> list[tuple[Path, str]]:
        """Path and type of each leaf of the signature, in the compiled kernel's order."""
        found: list[tuple[Path, str]] = []

        def walk(kind: Any, path: Path) -> None:
            if isinstance(kind, tuple):
                for index, child in enumerate(kind):
                    walk(child, (*path, index))
            else:
                found.append((path, kind))

        for index, (_, kind) in enumerate(self.signature):
            walk(kind, (index,))
        return found

    def is_aligned(self, path: Path) -> bool:
        """Whether Triton assumes that the pointer at `path` is divisible by 16."""
        return any(path == at and ("tt.divisibility", 16) in found for at, found in self.attributes)


_Binder = Callable[..., tuple[dict[str, Any], list[Any], dict[str, Any]]]
_binders: PerFunction[dict[GPUTarget, tuple[_Binder, BaseBackend]]] = PerFunction()


def kernel_binder(function: JITFunction, target: GPUTarget) -> tuple[_Binder, BaseBackend]:
    """Triton's binder for a kernel, and the backend it was built for."""
    of_function = _binders.setdefault(function, {})
    found = of_function.get(target)
    if found is None:
        backend = make_backend(target)
        binder = create_function_from_signature(
            function.signature, function.params, compat.binder_backend(backend)
        )
        found = of_function[target] = (binder, backend)
    return found


def specialize_values(source: KernelSource, values: Mapping[str, Any], target: GPUTarget) -> Specialization:
    """The specialization for argument values, arrays given by their stand-ins.

    Follows `JITFunction._pack_args` of Triton 3.9: attributes of constexprs are left out.
    """
    binder, backend = kernel_binder(source.function, target)
    try:
        bound, specialization, _ = binder(**values)
    except (TypeError, OverflowError, KeyError) as error:
        raise LaunchTypeError(
            f"Triton can't specialize these arguments: {error}.", kernel=source.name
        ) from error
    types = [kind for kind, _ in specialization]
    names = [parameter.name for parameter in source.function.params]
    arguments = list(bound.values())
    constexprs = tuple(
        (path, Static(get_iterable_path(arguments, path)))
        for path in find_paths_if(types, lambda _, kind: kind == "constexpr")
    )
    keys = ["" if kind == "constexpr" else key for kind, key in specialization]
    constexpr_paths = {path for path, _ in constexprs}
    attributes = tuple(
        (path, tuple((name, value) for name, value in backend.parse_attr(get_iterable_path(keys, path))))
        for path in find_paths_if(keys, lambda _, key: isinstance(key, str))
        if path not in constexpr_paths
    )
    return Specialization(tuple(zip(names, types, strict=True)), constexprs, attributes, source)


def specialize_arguments(
    source: KernelSource,
    arguments: Sequence[Tree],
    operands: Sequence[Any],
    outputs: Sequence[Any],
    constexprs: Mapping[str, Static],
    target: GPUTarget,
) -> Specialization:
    """The specialization of an equation's arguments.

    Args:
      source: the kernel.
      arguments: one tree for each parameter.
      operands, outputs: shapes and dtypes of the operands and the outputs, by slot.
      constexprs: values of a configuration, by parameter; they replace the arguments' own.
      target: what to specialize for.
    """

    def value(leaf: Leaf) -> Any:
        if isinstance(leaf, Operand):
            return stand_in(operands[leaf.index], leaf.view)
        if isinstance(leaf, Output):
            return stand_in(outputs[leaf.index], leaf.view)
        return leaf.value

    values = {
        parameter.name: map_tree(value, tree)
        for parameter, tree in zip(source.function.params, arguments, strict=True)
    }
    values.update((name, static.value) for name, static in constexprs.items())
    found = specialize_values(source, values, target)
    # An annotation types what the kernel gets; of a number in memory, the compiled function gets a pointer.
    in_memory = {
        parameter.name: f"*{canonicalize_dtype(str(operands[tree.index].dtype))}"
        for parameter, tree in zip(source.function.params, arguments, strict=True)
        if isinstance(tree, Operand) and tree.by_value and parameter.annotation_type
    }
    if not in_memory:
        return found
    signature = tuple((name, in_memory.get(name, kind)) for name, kind in found.signature)
    return replace(found, signature=signature)


def leaves_by_path(arguments: Sequence[Tree]) -> dict[Path, Leaf]:
    """Every leaf of an equation's arguments by its path in the signature."""
    found: dict[Path, Leaf] = {}

    def walk(tree: Tree, path: Path) -> None:
        if isinstance(tree, Branch):
            for index, child in enumerate(tree.children):
                walk(child, (*path, index))
        else:
            found[path] = tree

    for index, tree in enumerate(arguments):
        walk(tree, (index,))
    return found


def clear_caches() -> None:
    _binders.clear()
