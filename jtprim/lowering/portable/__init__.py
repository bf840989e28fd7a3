"""The portable lowering: a kernel's TTIR as JAX operations, for every platform that is no GPU.

`execute` is all that the rest of jtprim uses. The way of a kernel through this package:

    (reader)     text -> a small immutable IR, in `jtprim.specialize`
    expansion    Gluon's copies between global and shared memory become loads and stores
    analysis     which addresses each access touches, how often each loop runs (affine: the domain)
    strategy     may all programs run at once?
    grid         runs them: at once, in chunks, or one after the other
    machine      one program, or many at once, operation by operation
    rules/       what each operation becomes, one file for each dialect; control, memory, shared,
                 partitions
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from jtprim.checks import NO_CHECKS, Checks
from jtprim.chunks import DEFAULT_CHUNK_BYTES
from jtprim.errors import LaunchValueError, UnsupportedError
from jtprim.lowering.x64 import x64_call
from jtprim.specialize.reader import Module, Type, read

from . import grid as _grid
from . import rules as _rules
from .analysis import Facts, analyse
from .expansion import expand
from .strategy import choose_strategy
from .values import SIGNED, Array, Operand, Pointer, Value, convert, reinterpret

__all__ = ["execute"]

_rules.register()


def execute(
    ttir: str,
    grid: tuple[int, int, int],
    arguments: Sequence[jax.Array | np.generic],
    written: Sequence[int],
    *,
    kernel: str,
    checks: Checks = NO_CHECKS,
    chunk_bytes: int = DEFAULT_CHUNK_BYTES,
) -> list[jax.Array]:
    """Runs a kernel for every program of a grid, in JAX operations.

    Pure and traceable: `jax.jit`, `jax.vmap` and differentiation apply to it. Integers of 64 bits are
    computed as such whether or not ``jax_enable_x64`` is set.

    Args:
      ttir: the module, as `jtprim.specialize.ttir.portable_ttir` prints it.
      grid: the number of programs on each axis.
      arguments: one for each parameter of the kernel. A pointer parameter takes an array of any shape,
        whose memory is its row-major flattening; a scalar parameter takes a NumPy scalar, which is
        known at trace time, or a traced array of no dimensions.
      written: pointer parameters whose final contents are wanted.
      kernel: the kernel's name, for messages.
      checks: what accesses are checked for as the kernel runs; `jtprim.debug` says how.
      chunk_bytes: what programs that run at once may take; `jtprim.chunk_bytes` says of what.

    Returns:
      For each of `written`, an array of the shape and dtype of its argument.

    Raises:
      LaunchValueError: the kernel writes through a parameter that is not among `written`.
      UnsupportedError: the kernel does what has no translation; the message names the operation and
        the line of the kernel.
    """
    _check_layouts(ttir, kernel)
    module = expand(read(ttir), kernel)
    dynamic = [i for i, argument in enumerate(arguments) if not isinstance(argument, np.generic)]

    def run(*arrays: jax.Array) -> list[jax.Array]:
        given = list(arguments)
        for i, array in zip(dynamic, arrays, strict=True):
            given[i] = array
        return _run(module, grid, given, written, kernel=kernel, checks=checks, chunk_bytes=chunk_bytes)

    return x64_call(run, *(arguments[i] for i in dynamic))


def _run(
    module: Module,
    grid: tuple[int, int, int],
    arguments: Sequence[jax.Array | np.generic],
    written: Sequence[int],
    *,
    kernel: str,
    checks: Checks,
    chunk_bytes: int,
) -> list[jax.Array]:
    facts = analyse(module, grid, arguments)
    _check_pointers(facts, kernel)
    _check_written(module, facts, written, kernel)
    pointers = [i for i, variable in enumerate(module.parameters) if variable.type.pointer]
    memory = {
        i: _to_memory(arguments[i], module.parameters[i].type, _name(module, i), kernel) for i in pointers
    }
    sizes = [memory[i].size if i in memory else 0 for i in range(len(arguments))]
    operands = [
        _operand(i, variable.type, arguments[i], sizes[i]) for i, variable in enumerate(module.parameters)
    ]
    if math.prod(grid):
        strategy = choose_strategy(facts, sizes)
        if checks.races:  # which are told by what programs before did
            strategy = dataclasses.replace(strategy, vectorised=False)
        memory |= _grid.run(module, grid, facts, strategy, memory, operands, kernel, checks, chunk_bytes)
    return [_from_memory(memory[i], arguments[i]) for i in written]


def _check_layouts(ttir: str, kernel: str) -> None:
    """Layouts don't change what a kernel computes, with one exception."""
    if "fp4Padded = true" in ttir:
        raise UnsupportedError(
            "has a shared memory layout with fp4_padded=True, in which TMA spreads what it loads: this has "
            "no portable lowering; run the kernel on a GPU.",
            kernel=kernel,
        )


def _check_pointers(facts: Facts, kernel: str) -> None:
    for operation in facts.unknown_pointers:
        place = f" at {operation.source}" if operation.source else ""
        reason = "uses a pointer that does not come from one parameter"
        raise UnsupportedError(f"{operation.name}{place} {reason}.", kernel=kernel)


def _check_written(module: Module, facts: Facts, written: Sequence[int], kernel: str) -> None:
    for access in facts.accesses:
        if access.kind != "load" and access.parameter not in written:
            name = module.parameters[access.parameter].name
            raise LaunchValueError(
                f"writes through {_name(module, access.parameter)}, which was passed as an input. "
                "Name it in input_output_aliases, or declare an output.",
                kernel=kernel,
                parameter=name,
            )


def _name(module: Module, position: int) -> str:
    name = module.parameters[position].name
    return f"parameter {position}" if name is None else repr(name)


def _to_memory(array: Any, kind: Type, name: str, kernel: str) -> Array:
    """An argument as flat memory of the kernel's element type; booleans are bytes, integers signless."""
    flat = lax.reshape(jax.numpy.asarray(array), (math.prod(array.shape),))
    stored = np.dtype(np.int8) if kind.element == "i1" else kind.dtype
    if flat.dtype == np.bool_:
        flat = convert(flat, np.dtype(np.int8))
    if flat.dtype.itemsize != stored.itemsize:
        raise UnsupportedError(
            f"takes {name}, an array of {array.dtype}, for one of {kind.element}.", kernel=kernel
        )
    return reinterpret(flat, stored)


def _from_memory(flat: Array, argument: Any) -> jax.Array:
    """Flat memory as an array like `argument`."""
    dtype = np.dtype(argument.dtype)
    if dtype == np.bool_:
        flat = lax.ne(flat, lax.full_like(flat, 0))
    return lax.reshape(reinterpret(flat, dtype), argument.shape)


def _operand(position: int, kind: Type, argument: Any, size: int) -> Operand:
    if kind.pointer:
        index = np.int32 if size < 1 << 31 else np.int64
        return Pointer((position,), kind.element, Value(index(0)))
    array = argument if isinstance(argument, jax.Array) else np.asarray(argument)[()]
    if np.dtype(array.dtype) in SIGNED and kind.dtype.itemsize == array.dtype.itemsize:
        array = reinterpret(array, SIGNED[np.dtype(array.dtype)])
    return Value(convert(array, kind.dtype))
