"""Arrays that a kernel gets as something else than a pointer: a tensor descriptor (TMA), or a number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax


@dataclass
class TensorDescriptor:
    """An argument that the kernel gets as a tensor descriptor, made on the host.

    Stands for Triton's own `triton.tools.tensor_descriptor.TensorDescriptor`, and for Gluon's, around a JAX
    array. On NVIDIA GPUs from Hopper on the runtime makes a TMA descriptor of it; elsewhere Triton
    rewrites the kernel to work with pointers. A pytree whose one leaf is `base`.

    What a kernel loads or stores through TMA has to start, along the last axis, at a multiple of 16 bytes:
    the hardware takes anything else for an illegal instruction.

    Attributes:
      base: the array behind it. A `jax.ShapeDtypeStruct` makes it an output, which the kernel writes
        through the descriptor.
      shape: of the tensor, in elements, outermost axis first; up to five axes.
      strides: in elements; the last is 1, the others are multiples of 16 bytes.
      block_shape: of what one load or store moves, in elements; powers of two. An autotuner's hook may
        set it for each configuration.
      layout: of the block in shared memory, for a Gluon kernel (``NVMMASharedLayout``).
      padding: what is read out of bounds: ``"zero"``, or ``"nan"`` for floating-point arrays.
      round_f32_to_tf32: whether float32 is rounded to TF32 as it is loaded.
    """

    base: Any
    shape: Sequence[int]
    strides: Sequence[int]
    block_shape: Sequence[int]
    layout: Any = None
    padding: str = "zero"
    round_f32_to_tf32: bool = False

    @classmethod
    def from_array(
        cls,
        array: Any,
        block_shape: Sequence[int],
        layout: Any = None,
        padding: str = "zero",
        round_f32_to_tf32: bool = False,
    ) -> TensorDescriptor:
        """The descriptor of a whole array, or of an output of a `jax.ShapeDtypeStruct`."""
        strides = strides_from_shape(array.shape)
        return cls(array, tuple(array.shape), strides, block_shape, layout, padding, round_f32_to_tf32)

    # As it is called in Triton.
    from_tensor = from_array


def strides_from_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides, in elements, of a row-major array of `shape`: what JAX's arrays have.

    >>> strides_from_shape((2, 3, 4))
    (12, 4, 1)
    """
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


jax.tree_util.register_dataclass(
    TensorDescriptor,
    data_fields=["base"],
    meta_fields=["shape", "strides", "block_shape", "layout", "padding", "round_f32_to_tf32"],
)


@dataclass
class ByValue:
    """What `by_value` returns; a pytree whose one leaf is `array`."""

    array: Any


def by_value(array: Any) -> ByValue:
    """Passes an array of no axes to a kernel as a number, in place of a pointer to it.

    Its value is read as the kernel runs: it may change without a new compilation, and never goes through
    the host. The kernel is not specialized for it (divisible by 16, equal to 1), as with Triton's
    ``do_not_specialize``. A Python number that went through `jax.jit` is passed so by itself.
    """
    return ByValue(array)


jax.tree_util.register_dataclass(ByValue, data_fields=["array"], meta_fields=[])
