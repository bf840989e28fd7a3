"""The lowering rule for every platform that is no GPU: the kernel's IR as JAX operations.

`translate` is an ordinary function of JAX arrays, so what JAX can do with its operations (compile,
differentiate, batch), it can do with a kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jtprim.arguments import Operand, Output, Tree
from jtprim.lowering import portable
from jtprim.primitive import Configuration, OutShape
from jtprim.specialize.binder import Specialization, leaves_by_path, specialize_arguments
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


def translate(*operands: jax.Array, **params: Any) -> list[jax.Array]:
    """The results of one equation of `triton_kernel_p`, computed by JAX operations.

    Of several configurations the first is taken: they differ in speed on a GPU, not in meaning.

    Args:
      *operands: the equation's operands.
      **params: its parameters.

    Returns:
      The outputs, zero where the kernel writes nothing, then the in-outs.
    """
    source: KernelSource = params["kernel"]
    arguments: tuple[Tree, ...] = params["arguments"]
    out_shape: OutShape = params["out_shape"]
    configuration: Configuration = params["configurations"][0]
    specialization = specialize_arguments(
        source, arguments, operands, out_shape.shapes, dict(configuration.constexprs), PORTABLE
    )
    ttir = kernel_ttir(specialization, configuration.options)
    values, places = _values(specialization, arguments, operands, out_shape)
    written = {output: operand for operand, output in params["aliases"]}
    wanted = [
        places[Operand(written[index]) if index in written else Output(index)]
        for index in range(len(out_shape.items))
    ]
    return portable.execute(ttir, configuration.grid, values, wanted, kernel=source.name)


def _values(
    specialization: Specialization,
    arguments: Sequence[Tree],
    operands: Sequence[jax.Array],
    out_shape: OutShape,
) -> tuple[list[Any], dict[Operand | Output, int]]:
    """The values of the IR function's parameters, and where each array stands among them."""
    leaves = leaves_by_path(arguments)
    values: list[Any] = []
    places: dict[Operand | Output, int] = {}
    for path, kind in specialization.leaf_types():
        if kind == "constexpr":
            continue
        leaf = leaves[path]
        if isinstance(leaf, Operand):
            places[leaf] = len(values)
            values.append(operands[leaf.index])
        elif isinstance(leaf, Output):
            shape = out_shape.shapes[leaf.index]
            places[leaf] = len(values)
            values.append(jnp.zeros(shape.shape, shape.dtype))
        else:
            values.append(_scalar(kind, leaf.value))
    return values, places


def _scalar(kind: str, value: Any) -> np.generic:
    """A number in one of Triton's scalar types; integers wrap as they do in the compiled kernel."""
    dtype = np.dtype(_SCALARS[kind])
    if dtype.kind in "iu":
        return np.asarray(int(value) & (2 ** (8 * dtype.itemsize) - 1), f"u{dtype.itemsize}").view(dtype)[()]
    return dtype.type(value)
