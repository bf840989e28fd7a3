"""Shared memory and tensor memory: buffers of each program's own, and views of them.

A view is a chain of steps from the whole buffer. To read it, the steps are taken one after the other; to
write it, each step puts a new part into the whole that it was taken from. The contents are what a tensor
of the buffer's shape would hold: layouts, which say at which address an element is, do not show in them.

A buffer begins with zeros. On a GPU it begins with anything.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol

import jax
import numpy as np
from jax import lax

from jtprim.specialize.reader import Variable

from .machine import Machine
from .values import Array, Shared, Value, convert, full

INT32 = np.dtype(np.int32)


class Step(Protocol):
    """A part of an array. `place` is given to a step that takes an index at run time."""

    dynamic: bool

    def part(self, whole: Array, place: Array) -> Array: ...

    def put(self, whole: Array, place: Array, part: Array) -> Array: ...


@dataclasses.dataclass(frozen=True)
class Index:
    """One element along the first axis."""

    dynamic = True

    def part(self, whole: Array, place: Array) -> Array:
        return lax.dynamic_index_in_dim(whole, place, 0, keepdims=False)

    def put(self, whole: Array, place: Array, part: Array) -> Array:
        return lax.dynamic_update_index_in_dim(whole, part, place, 0)


@dataclasses.dataclass(frozen=True)
class Slice:
    """A box of given start and extents."""

    start: tuple[int, ...]
    shape: tuple[int, ...]
    dynamic = False

    def part(self, whole: Array, place: Array) -> Array:
        stop = tuple(low + extent for low, extent in zip(self.start, self.shape, strict=True))
        return lax.slice(whole, self.start, stop)

    def put(self, whole: Array, place: Array, part: Array) -> Array:
        return lax.dynamic_update_slice(whole, part, [np.int32(low) for low in self.start])


@dataclasses.dataclass(frozen=True)
class Transpose:
    """The axes in another order."""

    order: tuple[int, ...]
    dynamic = False

    def part(self, whole: Array, place: Array) -> Array:
        return lax.transpose(whole, self.order)

    def put(self, whole: Array, place: Array, part: Array) -> Array:
        return lax.transpose(part, tuple(int(axis) for axis in np.argsort(self.order)))


@dataclasses.dataclass(frozen=True)
class Reshape:
    """The elements, in row-major order, in another shape."""

    shape: tuple[int, ...]
    dynamic = False

    def part(self, whole: Array, place: Array) -> Array:
        return lax.reshape(whole, self.shape)

    def put(self, whole: Array, place: Array, part: Array) -> Array:
        return lax.reshape(part, np.shape(whole))


@dataclasses.dataclass(frozen=True)
class Reinterpret:
    """The first bytes, in row-major order, as a tensor of another type."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    dynamic = False

    def part(self, whole: Array, place: Array) -> Array:
        old, new = np.dtype(whole.dtype), self.dtype
        count = int(np.prod(self.shape, dtype=np.int64)) * new.itemsize // old.itemsize
        flat = lax.slice(lax.reshape(whole, (whole.size,)), (0,), (count,))
        return lax.reshape(_cast(flat, new), self.shape)

    def put(self, whole: Array, place: Array, part: Array) -> Array:
        flat = _cast(lax.reshape(part, (part.size,)), np.dtype(whole.dtype))
        whole_flat = lax.reshape(whole, (whole.size,))
        return lax.reshape(lax.dynamic_update_slice(whole_flat, flat, [np.int32(0)]), np.shape(whole))


def _cast(flat: Array, dtype: np.dtype[Any]) -> Array:
    """The same bytes, in order, as elements of another type."""
    old = np.dtype(flat.dtype)
    if old.itemsize < dtype.itemsize:
        ratio = dtype.itemsize // old.itemsize
        return lax.bitcast_convert_type(lax.reshape(flat, (flat.size // ratio, ratio)), dtype)
    cast = lax.bitcast_convert_type(flat, dtype)
    return lax.reshape(cast, (cast.size,))


# --- What the rules use --------------------------------------------------------------------------


def allocate(m: Machine, variable: Variable) -> Shared:
    """A buffer for what `variable` is a view of."""
    front = () if m.programs is None else (m.programs,)
    m.shared[variable] = full((*front, *variable.type.shape), 0, variable.type.dtype)
    return Shared(variable, (), Value(np.zeros(0, INT32)))


def step(m: Machine, view: Shared, taken: Step, place: Value | None = None) -> Shared:
    """A view of a part of a view."""
    if place is None:
        return Shared(view.buffer, (*view.steps, taken), view.places)
    batched = place.batched or view.places.batched
    if batched:
        place, old = m.batch(place), m.batch(view.places)
    else:
        old = view.places
    last = lax.expand_dims(convert(jax.numpy.asarray(place.array), INT32), (int(batched),))
    return Shared(
        view.buffer,
        (*view.steps, taken),
        Value(lax.concatenate([jax.numpy.asarray(old.array), last], int(batched)), batched),
    )


def read(m: Machine, view: Shared) -> Value:
    """What a view holds."""
    whole = m.shared[view.buffer]
    if m.programs is None:
        return Value(_part(whole, view.steps, view.places.array))
    axes = (0, 0 if view.places.batched else None)
    part = jax.vmap(lambda whole, places: _part(whole, view.steps, places), axes)
    return Value(part(whole, view.places.array), batched=True)


def write(m: Machine, view: Shared, value: Value, condition: Value | None = None) -> None:
    """Puts a value into a view, in the active programs for which a condition (a scalar) holds."""
    whole = m.shared[view.buffer]
    kept = m.both(condition, m.active)

    def put(whole: Array, places: Array, part: Array, kept: Array | None) -> Array:
        new = _put(whole, view.steps, places, convert(part, _dtype(whole, view.steps)))
        return new if kept is None else lax.select(kept, new, whole)

    operands = (view.places, value, kept)
    arrays = [None if operand is None else operand.array for operand in operands]
    if m.programs is None:
        m.shared[view.buffer] = put(whole, *arrays)
        return
    axes = [None if operand is None or not operand.batched else 0 for operand in operands]
    m.shared[view.buffer] = jax.vmap(put, (0, *axes))(whole, *arrays)


def _dtype(whole: Array, steps: Sequence[Step]) -> np.dtype[Any]:
    cast = [taken.dtype for taken in steps if isinstance(taken, Reinterpret)]
    return cast[-1] if cast else np.dtype(whole.dtype)


def _part(whole: Array, steps: Sequence[Step], places: Array) -> Array:
    for taken in steps:
        place, places = _next_place(taken, places)
        whole = taken.part(whole, place)
    return whole


def _put(whole: Array, steps: Sequence[Step], places: Array, part: Array) -> Array:
    if not steps:
        return part
    taken, *rest = steps
    place, places = _next_place(taken, places)
    return taken.put(whole, place, _put(taken.part(whole, place), rest, places, part))


def _next_place(taken: Step, places: Array) -> tuple[Array, Array]:
    return (places[0], places[1:]) if taken.dynamic else (None, places)
