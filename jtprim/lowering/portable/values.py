"""What a variable of the kernel stands for while JAX operations are emitted."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
from jax import lax

from jtprim.specialize.reader import Variable

Array = Any  # jax.Array, a tracer, or a NumPy array or scalar: what `lax` takes


@dataclasses.dataclass(frozen=True)
class Value:
    """A scalar or tensor, for one program, or for all programs that run at once.

    Attributes:
      array: with the shape of the kernel's tensor, or with one more axis, the programs, in front.
      batched: whether it has that axis.
    """

    array: Array
    batched: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape that the kernel sees."""
        return np.shape(self.array)[self.batched :]

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.array.dtype)


# How many elements apart buffers are taken to lie that one tensor of pointers points into: more than any has.
APART = 1 << 48


@dataclasses.dataclass(frozen=True)
class Pointer:
    """A pointer, or a tensor of pointers, into the buffer of one parameter, or each into one of several.

    Attributes:
      parameters: whose buffers, ascending.
      element: TTIR's name of the type pointed to.
      offset: in elements from the buffer's start; int32, or int64 for a buffer that needs it. With several
        buffers int64, and `APART` times the parameter whose buffer it is is added.
    """

    parameters: tuple[int, ...]
    element: str
    offset: Value

    def moved_to(self, offset: Value) -> Pointer:
        """With another offset."""
        return dataclasses.replace(self, offset=offset)

    def widened(self, parameters: Iterable[int]) -> Pointer:
        """The same, of a type that may point into other buffers as well."""
        wider = tuple(sorted({*self.parameters, *parameters}))
        if len(self.parameters) > 1 or wider == self.parameters:
            return dataclasses.replace(self, parameters=wider)
        far = lax.add(convert(self.offset.array, np.dtype(np.int64)), np.int64(self.parameters[0] * APART))
        return Pointer(wider, self.element, Value(far, self.offset.batched))


@dataclasses.dataclass(frozen=True)
class Shared:
    """A view of a buffer in shared memory or tensor memory (`shared.py`).

    Attributes:
      buffer: the variable that its allocation defined.
      steps: from the buffer's whole to the view.
      places: int32, the index that each step takes which takes one; of shape ``(number of these,)``.
    """

    buffer: Variable
    steps: tuple[Any, ...]
    places: Value


Operand = Value | Pointer | Shared

UNSIGNED = {np.dtype(f"int{bits}"): np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64)}
SIGNED = {unsigned: signed for signed, unsigned in UNSIGNED.items()}


def convert(array: Array, dtype: np.dtype[Any]) -> Array:
    """Conversion by value."""
    return array if array.dtype == dtype else lax.convert_element_type(array, dtype)


def reinterpret(array: Array, dtype: np.dtype[Any]) -> Array:
    """The same bits as another type of the same width."""
    return array if array.dtype == dtype else lax.bitcast_convert_type(array, dtype)


def unsigned(array: Array) -> Array:
    """Integers taken as unsigned; booleans as 0 and 1."""
    if array.dtype == np.bool_:
        return convert(array, np.dtype(np.uint8))
    return reinterpret(array, UNSIGNED[np.dtype(array.dtype)])


def signed(array: Array) -> Array:
    """Integers taken as signed; booleans as 0 and -1, the signed values of one bit."""
    if array.dtype == np.bool_:
        return lax.neg(convert(array, np.dtype(np.int8)))
    return reinterpret(array, SIGNED.get(np.dtype(array.dtype), np.dtype(array.dtype)))


def bits_of(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The signed integer type as wide as `dtype`."""
    return np.dtype(f"int{dtype.itemsize * 8}")


def full(shape: tuple[int, ...], fill: Any, dtype: np.dtype[Any]) -> jax.Array:
    return lax.full(shape, np.asarray(fill, dtype), dtype)


def spread(array: Array, shape: tuple[int, ...]) -> Array:
    """Broadcasts by repeating leading axes and axes of extent one."""
    own = np.shape(array)
    if own == shape:
        return array
    padded = (1,) * (len(shape) - len(own)) + own
    array = lax.reshape(array, padded) if padded != own else array
    return lax.broadcast_in_dim(array, shape, tuple(range(len(shape)))) if padded != shape else array
