"""The lowering rule for every platform that is no GPU: the kernel's IR as JAX operations.

`translate` is an ordinary function of JAX arrays, so what JAX can do with its operations (compile,
differentiate, batch), it can do with a kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jtprim import compat
from jtprim.arguments import Batching, Operand, Output, Static, Tree, coordinate_text
from jtprim.checks import current_checks
from jtprim.chunks import current_chunk_bytes
from jtprim.lowering import portable
from jtprim.primitive import Configuration, OutShape
from jtprim.specialize.adapters import Adapter, adapt
from jtprim.specialize.binder import leaves_by_path, specialize_arguments
from jtprim.specialize.descriptors import decomposed, dissolved
from jtprim.specialize.kernel import KernelSource
from jtprim.specialize.target import PORTABLE
from jtprim.specialize.ttir import kernel_ttir

_SCALARS = {
    "u1": np.bool_,
    **{
        f"{sign}{bits}": np.dtype(f"{name}{bits}")
        for sign, name in (("i", "int"), ("u", "uint"))
        for bits in (8, 16, 32, 64)
    },
    "fp16": np.float16,
    "bf16": jnp.bfloat16,
    "fp32": np.float32,
    "fp64": np.float64,
}


def is_empty(params: Mapping[str, Any]) -> bool:
    """Whether a launch has no programs, in any of its configurations."""
    batching: Batching | None = params["batching"]
    empty = all(0 in configuration.grid for configuration in params["configurations"])
    return empty or (batching is not None and batching.size == 0)


def no_work(*operands: Any, **params: Any) -> list[Any]:
    """The results of a launch without programs: zeros, and in-outs as they were given."""
    out_shape: OutShape = params["out_shape"]
    kept = {output: operands[operand] for operand, output in params["aliases"]}
    return [
        kept[index] if index in kept else jnp.zeros(shape.shape, shape.dtype)
        for index, shape in enumerate(out_shape.shapes)
    ]


def translate(*operands: jax.Array, **params: Any) -> list[jax.Array]:
    """The results of one equation of `triton_kernel_p`, computed by JAX operations.

    Of several configurations the first is taken: they differ in speed on a GPU, not in meaning.

    Args:
      *operands: the equation's operands.
      **params: its parameters.

    Returns:
      The outputs, zero where the kernel writes nothing, then the in-outs.
    """
    if is_empty(params):
        return no_work(*operands, **params)
    source: KernelSource = params["kernel"]
    out_shape: OutShape = params["out_shape"]
    configuration: Configuration = params["configurations"][0]
    arguments = configuration.arguments(source, params["arguments"])
    specialization = specialize_arguments(
        source, arguments, operands, out_shape.shapes, dict(configuration.constexprs), PORTABLE
    )
    batching: Batching | None = params["batching"]
    adapter = adapt(source, arguments, specialization, batching, reorder=False)
    ttir = kernel_ttir(adapter, configuration.options)
    values, places = _values(adapter, arguments, operands, out_shape, configuration.zeroed)
    written = {output: operand for operand, output in params["aliases"]}
    wanted = [
        places[(Operand, written[index]) if index in written else (Output, index)]
        for index in range(len(out_shape.items))
    ]
    grid = configuration.grid if batching is None else batching.grid(configuration.grid)
    return portable.execute(
        ttir,
        grid,
        values,
        wanted,
        kernel=source.name,
        checks=current_checks(),
        chunk_bytes=current_chunk_bytes(),
    )


def _values(
    adapter: Adapter,
    arguments: Sequence[Tree],
    operands: Sequence[jax.Array],
    out_shape: OutShape,
    zeroed: Sequence[int],
) -> tuple[list[Any], dict[tuple[type, int], int]]:
    """The values of the IR function's parameters, and where each array stands among them."""
    leaves = leaves_by_path(arguments)
    axes = compat.varying_axes(operands)
    values: list[Any] = []
    places: dict[tuple[type, int], int] = {}
    for path, kind in adapter.specialization.leaf_types():
        if kind == "constexpr":
            continue
        place = adapter.kernel_path(path)
        leaf = leaves[place]
        if isinstance(leaf, Static):
            values.append(_scalar(kind, leaf.value))
            continue
        places[type(leaf), leaf.index] = len(values)
        if isinstance(leaf, Operand):
            values.append(operands[leaf.index])
        else:
            values += compat.varying([_initial(out_shape.shapes[leaf.index], leaf.index in zeroed)], axes)
        if leaf.view is not None:
            source = adapter.specialization.source
            name = coordinate_text((source.function.params[place[0]].name, *place[1:]))
            split = dissolved if source.function.is_gluon() else decomposed
            numbers = split(leaf.view, kernel=source.name, parameter=name)
            values += [_scalar(kind, number) for kind, number in numbers]
    return values, places


def _initial(shape: jax.ShapeDtypeStruct, zeroed: bool) -> jax.Array:
    """What an output holds before the kernel runs."""
    if zeroed or not current_checks().uninitialized:
        return jnp.zeros(shape.shape, shape.dtype)
    if jnp.issubdtype(shape.dtype, jnp.inexact):
        return jnp.full(shape.shape, jnp.nan, shape.dtype)
    dtype = np.dtype(shape.dtype)
    number = True if dtype == np.bool_ else np.frombuffer(b"\xa5" * dtype.itemsize, dtype)[0]
    return jnp.full(shape.shape, number, dtype)


def _scalar(kind: str, value: Any) -> np.generic:
    """A number in one of Triton's scalar types; integers wrap as they do in the compiled kernel."""
    dtype = np.dtype(_SCALARS[kind])
    if dtype.kind in "iu":
        return np.asarray(int(value) & (2 ** (8 * dtype.itemsize) - 1), f"u{dtype.itemsize}").view(dtype)[()]
    return dtype.type(value)
