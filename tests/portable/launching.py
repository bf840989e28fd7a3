"""Launches a kernel through the portable lowering alone, without the rest of jtprim."""

import inspect

import jax
import numpy as np
from triton.compiler import ASTSource

from jtprim.chunks import DEFAULT_CHUNK_BYTES
from jtprim.lowering.portable import execute
from jtprim.specialize.ttir import portable_ttir

TRITON_TYPES = {
    "bool": "i1",
    "int8": "i8",
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
    "uint8": "u8",
    "uint16": "u16",
    "uint32": "u32",
    "uint64": "u64",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float32": "fp32",
    "float64": "fp64",
    "float8_e5m2": "fp8e5",
    "float8_e4m3fn": "fp8e4nv",
}


def compiled(kernel, *arguments, **constexprs):
    """The kernel's TTIR for these arguments. Python ints are i32, Python floats fp32."""
    names = list(inspect.signature(kernel.fn).parameters)
    signature = {name: "constexpr" for name in names}
    for name, argument in zip(names, arguments, strict=False):
        dtype = TRITON_TYPES[np.dtype(argument.dtype).name] if is_typed(argument) else scalar_type(argument)
        signature[name] = f"*{dtype}" if is_typed(argument) and np.ndim(argument) else dtype
    return portable_ttir(ASTSource(kernel, signature=signature, constexprs=constexprs), {})


def is_typed(argument):
    return hasattr(argument, "dtype")


def scalar_type(argument):
    return "fp32" if isinstance(argument, float) else "i32"


def scalar(argument):
    if is_typed(argument):
        return argument
    return np.float32(argument) if isinstance(argument, float) else np.int32(argument)


def launch(kernel, grid, *arguments, written, chunk_bytes=DEFAULT_CHUNK_BYTES, **constexprs):
    """Runs a kernel; returns the contents of the `written` arguments, a bare array if it is one.

    Arrays are pointers (even those of one element), scalars of NumPy and Python are static.
    """
    text = compiled(kernel, *arguments, **constexprs)
    grid = (*grid, 1, 1)[:3]
    arrays = [i for i, a in enumerate(arguments) if is_typed(a) and np.ndim(a)]

    @jax.jit
    def run(values):
        given = [scalar(a) for a in arguments]
        for position, value in zip(arrays, values, strict=True):
            given[position] = value
        return execute(text, grid, given, written, kernel=kernel.fn.__name__, chunk_bytes=chunk_bytes)

    results = run([arguments[i] for i in arrays])
    return results[0] if len(results) == 1 else results
