"""Adapters: generated Triton functions that call a kernel with its arguments rearranged.

The GPU runtime hands a kernel its buffers as "operands, then results". A kernel whose output comes
before an input in its signature gets an adapter: a function with the same name whose parameters stand
in the runtime's order and which calls the kernel; Triton inlines the call. So does a kernel of which a
scalar argument is in memory, which the adapter loads, and a batched launch, whose adapter moves each pointer
to the arrays of its own member of the batch. The text is put where Python's `linecache` finds it, so
that Triton can read it and errors can show it.

What a batched kernel itself asks about its place in the grid is answered as in a launch of its own
(`answer_unbatched`).
"""

from __future__ import annotations

import functools
import hashlib
import linecache
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import triton
from triton import language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.runtime.jit import JITFunction

from jtprim import compat
from jtprim.arguments import Batching, Branch, Leaf, Operand, Output, Path, Tree, leaves
from jtprim.errors import UnsupportedError
from jtprim.specialize.binder import Specialization
from jtprim.specialize.kernel import KernelSource

# Types that a parameter may be annotated with, as `triton.language` names them.
_TYPE_NAMES = {
    "i1": "int1",
    **{
        f"{short}{bits}": f"{long}{bits}"
        for short, long in (("i", "int"), ("u", "uint"))
        for bits in (8, 16, 32, 64)
    },
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp32": "float32",
    "fp64": "float64",
}


@dataclass(frozen=True, eq=False)
class Adapter:
    """A function that can be compiled, and the specialization of its parameters.

    Attributes:
      function: the kernel itself, or a generated function that calls it.
      specialization: signature, constexprs and attributes by the function's own parameters.
      paths: for each of the function's parameters, its path in the kernel's signature.
      text: of a generated function.
      numbers: parameters that the kernel gets by value, of what a generated function gets pointers to.
      batching: of a batched launch; the text tells it as well.
    """

    function: JITFunction
    specialization: Specialization
    paths: tuple[Path, ...]
    text: str = ""
    numbers: tuple[str, ...] = ()
    batching: Batching | None = None

    def kernel_path(self, path: Path) -> Path:
        """The path in the kernel's signature of what is at `path` in the function's."""
        return (*self.paths[path[0]], *path[1:])

    # All that a function is generated from is in these; a `JITFunction` itself hashes slowly.
    def _identity(self) -> tuple[Specialization, tuple[Path, ...], str]:
        return self.specialization, self.paths, self.text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Adapter) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())


def in_runtime_order(arguments: Sequence[Tree]) -> bool:
    """Whether the kernel's own order of pointers is the runtime's: operands, then outputs."""
    slots = [leaf for tree in arguments for leaf in leaves(tree) if isinstance(leaf, (Operand, Output))]
    outputs = [isinstance(slot, Output) for slot in slots]
    return outputs == sorted(outputs)


def unadapted(source: KernelSource, specialization: Specialization) -> Adapter:
    """The kernel as it stands."""
    paths: list[Path] = [(index,) for index in range(len(specialization.signature))]
    return Adapter(source.compilable(), specialization, tuple(paths))


def adapt(
    source: KernelSource,
    arguments: Sequence[Tree],
    specialization: Specialization,
    batching: Batching | None,
    *,
    reorder: bool = True,
) -> Adapter:
    """The function to compile for an equation's arguments.

    Whole parameters are moved, so tuples and everything Triton knows of them stay as they are; only a
    tuple that holds inputs and outputs at once, or what the adapter changes, is passed by its elements.

    Args:
      source, arguments, specialization: the kernel, its arguments, and their specialization.
      batching: of a batched launch.
      reorder: whether pointers must stand in the runtime's order.
    """
    changed = batching is not None or any(_is_changed(leaf) for tree in arguments for leaf in leaves(tree))
    if not changed and (not reorder or in_runtime_order(arguments)):
        return unadapted(source, specialization)
    pieces: list[tuple[Path, Tree]] = []
    for index, tree in enumerate(arguments):
        pieces += _pieces(tree, (index,))
    order = sorted(pieces, key=lambda piece: _holds(piece[1], Output))  # a stable sort
    paths = tuple(path for path, _ in order)
    text, types = _source_text(source, arguments, paths, batching)
    permuted = _permute(specialization, paths)
    numbers = tuple(
        name
        for (name, _), (_, tree) in zip(permuted.signature, order, strict=True)
        if isinstance(tree, Operand) and tree.by_value
    )
    return Adapter(_jit(source, text, types), permuted, paths, text, numbers, batching)


def _is_changed(leaf: Leaf) -> bool:
    """Whether the kernel gets something else than the compiled function does."""
    return (isinstance(leaf, Operand) and leaf.by_value) or (
        isinstance(leaf, (Operand, Output)) and any(leaf.strides)
    )


def _holds(tree: Tree, kind: type[Leaf]) -> bool:
    return any(isinstance(leaf, kind) for leaf in leaves(tree))


def _pieces(tree: Tree, path: Path) -> list[tuple[Path, Tree]]:
    """The largest parts of an argument that can be passed as they are, with their paths."""
    mixed = _holds(tree, Output) and _holds(tree, Operand)
    if not isinstance(tree, Branch) or not (mixed or any(map(_is_changed, leaves(tree)))):
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
    source: KernelSource, arguments: Sequence[Tree], paths: Sequence[Path], batching: Batching | None
) -> tuple[str, tuple[type, ...]]:
    """The text of an adapter, and the NamedTuples in it, which it calls ``type0__``, ``type1__``, ..."""
    parameters = source.function.params
    types: list[type] = []

    def name(path: Path) -> str:
        return "__".join([parameters[path[0]].name, *map(str, path[1:])])

    def expression(tree: Tree, path: Path) -> str:
        if path in paths:
            return _moved(tree, name(path), parameters[path[0]].annotation_type if len(path) == 1 else "")
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
    lines = [f"def {source.name}({', '.join(declared)}):", *_batch_indices(batching)]
    lines.append(f"kernel__({', '.join(passed)})")
    return "\n    ".join(lines) + "\n", tuple(types)


def _batch_indices(batching: Batching | None) -> list[str]:
    """Lines that compute the program's place in the batch: ``batch0__``, ``batch1__``, ..."""
    if batching is None:
        return []
    axis, inner = batching.axis, batching.size
    own = f" // (tl.num_programs({axis}) // {inner})" if batching.folded else ""
    lines = [f"batch__ = (tl.program_id({axis}){own}).to(tl.int64)"]
    for level, size in enumerate(batching.sizes):
        inner //= size
        lines.append(f"batch{level}__ = batch__ // {inner} % {size}")
    return lines


def answer_unbatched(module: Any, context: Any, batching: Batching, kernel: str) -> None:
    """Makes the functions that a batched launch's adapter calls see the grid of a launch of their own.

    Triton's language has no way to call a function with another `program_id`, so that the operations
    themselves are replaced, as Triton's frontend made them. The number of a launch's own programs is that of
    all of them divided by the batch's: the binary doesn't depend on the grid, and needs no argument for it.

    Args:
      module, context: an adapter's IR, before calls are inlined. It is changed.
      batching: of the launch.
      kernel: its name, for messages.

    Raises:
      UnsupportedError: the kernel asks by other means, whose answer can't be replaced.
    """
    letter = "xyz"[batching.axis]
    builder = compat.ir_builder(context)
    for operation, asks in compat.called_operations(module):
        if asks == "ttng.clc_get_program_id" or re.search(rf"%n?(cta|cluster)id\.{letter}", asks):
            way = "cluster launch control" if asks.startswith("ttng.") else "inline assembly"
            raise UnsupportedError(
                f"asks by {way} for a place in the grid, which has the members of a batch along axis "
                f"{batching.axis}; use tl.program_id, or jax.lax.map in place of jax.vmap.",
                kernel=kernel,
            )
        if asks not in (f"tt.get_program_id {letter}", f"tt.get_num_programs {letter}"):
            continue
        asked = operation.get_result(0)
        builder.set_insertion_point_after(operation)
        builder.set_loc(asked.get_loc())
        is_place = asks.startswith("tt.get_program_id")
        if batching.folded:
            all_programs = builder.create_get_num_programs(batching.axis)
            answer = builder.create_sdiv(all_programs, builder.get_int32(batching.size))
            if is_place:
                answer = builder.create_srem(builder.create_get_program_id(batching.axis), answer)
        else:
            answer = builder.get_int32(0 if is_place else 1)
        asked.replace_all_uses_with(answer)


def _moved(tree: Tree, name: str, annotation: str) -> str:
    """What the kernel gets of a parameter of the adapter: a pointer moved, a number loaded."""
    if not isinstance(tree, (Operand, Output)) or not _is_changed(tree):
        return name
    steps = [f"batch{level}__ * {stride}" for level, stride in enumerate(tree.strides) if stride]
    pointer = " + ".join([name, *steps])
    if not (isinstance(tree, Operand) and tree.by_value):
        return pointer
    loaded = f"tl.load({pointer})"
    return f"{loaded}.to(tl.{_TYPE_NAMES[annotation]})" if annotation in _TYPE_NAMES else loaded


@functools.lru_cache(maxsize=1024)
def _jit(source: KernelSource, text: str, types: tuple[type, ...]) -> JITFunction:
    # The name holds the kernel's key: `linecache` is one for the process, and Triton's disk cache and
    # JAX's compilation cache need the same name in every process.
    digest = hashlib.sha256(f"{source.key}\n{text}".encode()).hexdigest()
    filename = f"<jtprim adapter of {source.name} {digest[:16]}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    language: Any = gl if source.function.is_gluon() else tl
    namespace = {"tl": language, "kernel__": source.compilable(), "__name__": source.function.__module__}
    namespace |= {f"type{index}__": one for index, one in enumerate(types)}
    exec(compile(text, filename, "exec"), namespace)
    function = namespace[source.name]
    return (gluon.jit if source.function.is_gluon() else triton.jit)(function)


def clear_caches() -> None:
    _jit.cache_clear()
