"""Adapters: generated Triton functions that call a kernel with its arguments rearranged.

The GPU runtime hands a kernel its buffers as "operands, then results". A kernel whose output comes
before an input in its signature gets an adapter: a function with the same name whose parameters stand
in the runtime's order and which calls the kernel; Triton inlines the call. Its text is put where
Python's `linecache` finds it, so that Triton can read it and errors can show it.
"""

from __future__ import annotations

import functools
import hashlib
import linecache
from collections.abc import Sequence
from dataclasses import dataclass

import triton
from triton import language as tl
from triton.runtime.jit import JITFunction

from jtprim.arguments import Branch, Leaf, Operand, Output, Path, Tree, leaves
from jtprim.specialize.binder import Specialization
from jtprim.specialize.kernel import KernelSource


@dataclass(frozen=True)
class Adapter:
    """A function that can be compiled, and the specialization of its parameters.

    Attributes:
      function: the kernel itself, or a generated function that calls it.
      specialization: signature, constexprs and attributes by the function's own parameters.
      paths: for each of the function's parameters, its path in the kernel's signature.
    """

    function: JITFunction
    specialization: Specialization
    paths: tuple[Path, ...]


def in_runtime_order(arguments: Sequence[Tree]) -> bool:
    """Whether the kernel's own order of pointers is the runtime's: operands, then outputs."""
    slots = [leaf for tree in arguments for leaf in leaves(tree) if isinstance(leaf, (Operand, Output))]
    outputs = [isinstance(slot, Output) for slot in slots]
    return outputs == sorted(outputs)


def unadapted(source: KernelSource, specialization: Specialization) -> Adapter:
    """The kernel as it stands."""
    paths: list[Path] = [(index,) for index in range(len(specialization.signature))]
    return Adapter(source.compilable(), specialization, tuple(paths))


def adapt(source: KernelSource, arguments: Sequence[Tree], specialization: Specialization) -> Adapter:
    """The function to compile so that pointers stand in the runtime's order.

    Whole parameters are moved, so tuples and everything Triton knows of them stay as they are; only a
    tuple that holds inputs and outputs at once is passed by its elements.
    """
    if in_runtime_order(arguments):
        return unadapted(source, specialization)
    pieces: list[tuple[Path, Tree]] = []
    for index, tree in enumerate(arguments):
        pieces += _pieces(tree, (index,))
    order = sorted(pieces, key=lambda piece: _holds(piece[1], Output))  # a stable sort
    paths = tuple(path for path, _ in order)
    function = _jit(source, *_source_text(source, arguments, paths))
    return Adapter(function, _permute(specialization, paths), paths)


def _holds(tree: Tree, kind: type[Leaf]) -> bool:
    return any(isinstance(leaf, kind) for leaf in leaves(tree))


def _pieces(tree: Tree, path: Path) -> list[tuple[Path, Tree]]:
    """The largest parts of an argument that hold no inputs beside outputs, with their paths."""
    if not (isinstance(tree, Branch) and _holds(tree, Output) and _holds(tree, Operand)):
        return [(path, tree)]
    return [piece for i, child in enumerate(tree.children) for piece in _pieces(child, (*path, i))]


def _permute(specialization: Specialization, paths: Sequence[Path]) -> Specialization:
    """The specialization of a function whose parameter `i` is the kernel's argument at ``paths[i]``."""

    def moved(path: Path) -> Path:
        index, prefix = next((i, p) for i, p in enumerate(paths) if path[: len(p)] == p)
        return (index, *path[len(prefix) :])

    def at(path: Path) -> object:
        kind = specialization.signature[path[0]][1]
        for index in path[1:]:
            kind = kind[index]
        return kind

    return Specialization(
        signature=tuple((_name(specialization, path), at(path)) for path in paths),
        constexprs=tuple(sorted((moved(p), v) for p, v in specialization.constexprs)),
        attributes=tuple(sorted((moved(p), v) for p, v in specialization.attributes)),
        source=specialization.source,
    )


def _name(specialization: Specialization, path: Path) -> str:
    return "__".join([specialization.signature[path[0]][0], *map(str, path[1:])])


def _source_text(
    source: KernelSource, arguments: Sequence[Tree], paths: Sequence[Path]
) -> tuple[str, tuple[type, ...]]:
    """The text of an adapter, and the NamedTuples in it, which it calls ``type0__``, ``type1__``, ..."""
    parameters = source.function.params
    types: list[type] = []

    def name(path: Path) -> str:
        return "__".join([parameters[path[0]].name, *map(str, path[1:])])

    def expression(tree: Tree, path: Path) -> str:
        if path in paths:
            return name(path)
        assert isinstance(tree, Branch)
        items = [expression(child, (*path, i)) for i, child in enumerate(tree.children)]
        if tree.type is tuple:
            return f"({', '.join(items)},)"
        types.append(tree.type)
        return f"type{len(types) - 1}__({', '.join(items)})"

    declared = [name(path) + (": tl.constexpr" if parameters[path[0]].is_constexpr else "") for path in paths]
    passed = [
        f"{parameter.name}={expression(tree, (index,))}"
        for index, (parameter, tree) in enumerate(zip(parameters, arguments, strict=True))
    ]
    text = f"def {source.name}({', '.join(declared)}):\n    kernel__({', '.join(passed)})\n"
    return text, tuple(types)


@functools.lru_cache(maxsize=1024)
def _jit(source: KernelSource, text: str, types: tuple[type, ...]) -> JITFunction:
    # The name holds the kernel's key: `linecache` is one for the process, and Triton's disk cache and
    # JAX's compilation cache need the same name in every process.
    digest = hashlib.sha256(f"{source.key}\n{text}".encode()).hexdigest()
    filename = f"<jtprim adapter of {source.name} {digest[:16]}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    namespace = {"tl": tl, "kernel__": source.compilable(), "__name__": source.function.__module__}
    namespace |= {f"type{index}__": one for index, one in enumerate(types)}
    exec(compile(text, filename, "exec"), namespace)
    function = namespace[source.name]
    if source.function.is_gluon():
        from triton.experimental import gluon

        return gluon.jit(function)
    return triton.jit(function)


def clear_caches() -> None:
    _jit.cache_clear()
