"""Shared memory: an array for each allocation, and views that lead from it to what an operation names.

A view reads its part of an array and puts a new part in its place, both functionally; a chain of views is
followed inwards to read, and back outwards to write. Where many programs run at once, each has its own
memory along the program axis.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax import lax

from jtprim.specialize.reader import Operation

from .machine import Machine
from .values import Array, SharedMemory, Value, convert, full, reinterpret, spread


def allocate(m: Machine, op: Operation) -> SharedMemory:
    """The memory of the operation's result. What it holds is undefined on a GPU, and zero here."""
    kind = op.results[0].type
    front = () if m.programs is None else (m.programs,)
    m.shared[op] = full((*front, *kind.shape), 0, kind.dtype)
    return SharedMemory(op, kind.dtype, kind.shape)


def read(m: Machine, memory: SharedMemory) -> Value:
    array, front = m.shared[memory.allocation], int(m.programs is not None)
    for view in memory.views:
        array = view.read(array, front)
    return Value(array, bool(front))


def write(m: Machine, memory: SharedMemory, value: Value, where: Value | None = None) -> None:
    """Stores a value, for the active programs alone; of its elements those alone where `where` holds."""
    front = int(m.programs is not None)
    arrays = [m.shared[memory.allocation]]
    for view in memory.views:
        arrays.append(view.read(arrays[-1], front))
    old = Value(arrays.pop(), bool(front))
    new = m.map(
        lambda array, like: convert(array, np.dtype(like.dtype)), m.batch(_shaped(value, memory.shape)), old
    )
    kept = m.both(where, m.active)
    if kept is not None:
        new = m.map(lax.select, kept, new, old)
    part = new.array
    for view, array in zip(reversed(memory.views), reversed(arrays), strict=True):
        part = view.write(array, part, front)
    m.shared[memory.allocation] = part


def _shaped(value: Value, shape: tuple[int, ...]) -> Value:
    """A value in another shape of as many elements; a scalar stays one."""
    if not value.shape or value.shape == shape:
        return value
    front = np.shape(value.array)[: int(value.batched)]
    return Value(lax.reshape(value.array, (*front, *shape)), value.batched)


# --- Views ---------------------------------------------------------------------------------------


def _viewed(memory: SharedMemory, view: Any, shape: Sequence[int]) -> SharedMemory:
    return replace(memory, views=(*memory.views, view), shape=tuple(shape))


class _Index:
    """One element along the first axis, which programs may choose differently."""

    def __init__(self, index: Value):
        self.index = index

    def read(self, array: Array, front: int) -> Array:
        if self.index.batched:
            return jax.vmap(lambda own, i: lax.dynamic_index_in_dim(own, i, 0, keepdims=False))(
                array, self.index.array
            )
        return lax.dynamic_index_in_dim(array, self.index.array, front, keepdims=False)

    def write(self, array: Array, part: Array, front: int) -> Array:
        if self.index.batched:
            return jax.vmap(lambda own, new, i: lax.dynamic_update_index_in_dim(own, new, i, 0))(
                array, part, self.index.array
            )
        return lax.dynamic_update_index_in_dim(array, part, self.index.array, front)


class _Slice:
    def __init__(self, starts: Sequence[int], shape: Sequence[int]):
        self.starts, self.shape = tuple(starts), tuple(shape)

    def read(self, array: Array, front: int) -> Array:
        stops = [start + extent for start, extent in zip(self.starts, self.shape, strict=True)]
        own = np.shape(array)[:front]
        return lax.slice(array, (0,) * front + self.starts, (*own, *stops))

    def write(self, array: Array, part: Array, front: int) -> Array:
        starts = [np.int32(start) for start in (0,) * front + self.starts]
        return lax.dynamic_update_slice(array, part, starts)


class _Transposed:
    def __init__(self, order: Sequence[int]):
        self.order = tuple(order)

    def _axes(self, order: Sequence[int], front: int) -> tuple[int, ...]:
        return (*range(front), *(axis + front for axis in order))

    def read(self, array: Array, front: int) -> Array:
        return lax.transpose(array, self._axes(self.order, front))

    def write(self, array: Array, part: Array, front: int) -> Array:
        back = np.argsort(self.order).tolist()
        return lax.transpose(part, self._axes(back, front))


class _Reshaped:
    def __init__(self, shape: Sequence[int]):
        self.shape = tuple(shape)

    def read(self, array: Array, front: int) -> Array:
        return lax.reshape(array, (*np.shape(array)[:front], *self.shape))

    def write(self, array: Array, part: Array, front: int) -> Array:
        return lax.reshape(part, np.shape(array))


class _Reinterpreted:
    """The first bytes as numbers of another type and shape."""

    def __init__(self, dtype: np.dtype[Any], shape: Sequence[int]):
        self.dtype, self.shape = dtype, tuple(shape)

    def read(self, array: Array, front: int) -> Array:
        flat = _bytes(array, front)
        wanted = math.prod(self.shape) * self.dtype.itemsize
        return _from_bytes(lax.slice_in_dim(flat, 0, wanted, axis=front), self.dtype, self.shape)

    def write(self, array: Array, part: Array, front: int) -> Array:
        flat = lax.dynamic_update_slice_in_dim(_bytes(array, front), _bytes(part, front), 0, front)
        return _from_bytes(flat, np.dtype(array.dtype), np.shape(array)[front:])


_BYTE = np.dtype(np.uint8)


def _bytes(array: Array, front: int) -> Array:
    """The bytes of an array in row-major order, with the axes in front kept."""
    dtype = np.dtype(array.dtype)
    own = np.shape(array)[:front]
    if dtype == np.bool_:
        array = convert(array, _BYTE)
    raw = reinterpret(array, _BYTE) if dtype.itemsize == 1 else lax.bitcast_convert_type(array, _BYTE)
    return lax.reshape(raw, (*own, math.prod(np.shape(array)[front:]) * dtype.itemsize))


def _from_bytes(flat: Array, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    own = np.shape(flat)[:-1]
    if dtype.itemsize == 1:
        array = lax.reshape(flat, (*own, *shape))
        return lax.ne(array, lax.full_like(array, 0)) if dtype == np.bool_ else reinterpret(array, dtype)
    return lax.bitcast_convert_type(lax.reshape(flat, (*own, *shape, dtype.itemsize)), dtype)


def index(memory: SharedMemory, place: Value) -> SharedMemory:
    return _viewed(memory, _Index(place), memory.shape[1:])


def subslice(memory: SharedMemory, starts: Sequence[int], shape: Sequence[int]) -> SharedMemory:
    return _viewed(memory, _Slice(starts, shape), shape)


def transposed(memory: SharedMemory, order: Sequence[int]) -> SharedMemory:
    return _viewed(memory, _Transposed(order), [memory.shape[axis] for axis in order])


def reshaped(memory: SharedMemory, shape: Sequence[int]) -> SharedMemory:
    return _viewed(memory, _Reshaped(shape), shape)


def reinterpreted(memory: SharedMemory, dtype: np.dtype[Any], shape: Sequence[int]) -> SharedMemory:
    return replace(_viewed(memory, _Reinterpreted(dtype, shape), shape), dtype=dtype)


def spread_scalar(value: Value, shape: tuple[int, ...]) -> Value:
    """A scalar as a tensor; a program axis stays in front."""
    if value.shape:
        return value
    if value.batched:
        return Value(lax.broadcast_in_dim(value.array, (*np.shape(value.array), *shape), (0,)), True)
    return Value(spread(value.array, shape))
