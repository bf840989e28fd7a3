"""Accesses that are strided views of a buffer: slices and reshapes instead of gathers and scatters.

The lanes of all programs that run at once form one tensor. Where its addresses are
``start + sum(strides[d] * index[d])``, with strides that nest (each one a whole row of those below
it), a load is a slice, reshaped; a store is the same backwards. XLA turns these into plain copies,
several times faster than a gather, and much faster than a scatter.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np
from jax import lax

from jtprim.specialize.reader import Operation

from .analysis import Access, Facts
from .strategy import Strategy
from .values import Array, full, spread

# A store outside loops is a view if that spans at most this many times the elements stored.
MAX_SPAN = 4
# And where its buffer would have to be longer than twice its size plus this many elements.
MAX_EXTENSION = 4096

# Most axes that the programs may have, so that no tensor has too many for XLA to be quick.
MAX_PROGRAM_AXES = 6


@dataclasses.dataclass(frozen=True)
class Window:
    """A strided view.

    Attributes:
      shape: the extents of the program axes and of the kernel's tensor.
      program_axes: how many of them are program axes.
      strides: in elements, for each; zero where nothing changes.
      extents: as `shape`, without the lanes that the mask always rules out at the end of a dimension,
        and one where the stride is zero.
      first: the least and the greatest start.
    """

    shape: tuple[int, ...]
    program_axes: int
    strides: tuple[int, ...]
    extents: tuple[int, ...]
    first: tuple[int, int]

    @property
    def nested(self) -> tuple[int, ...]:
        """The dimensions along which something changes, those with the longest stride first."""
        moving = [d for d, extent in enumerate(self.extents) if self.strides[d] and extent > 1]
        return tuple(sorted(moving, key=lambda d: -self.strides[d]))

    @property
    def span(self) -> int:
        """Elements of the slice."""
        return self.strides[self.nested[0]] * self.extents[self.nested[0]] if self.nested else 1

    @property
    def nests(self) -> bool:
        """Whether each stride is a whole row of the dimensions below it."""
        order = self.nested
        rows = [self.strides[d] * self.extents[d] for d in order[1:]]
        return (
            all(self.strides[d] >= row for d, row in zip(order, rows, strict=False))
            and min((self.strides[d] for d in order), default=1) > 0
        )

    @property
    def batched(self) -> bool:
        """Whether programs differ in what they load."""
        return any(self.strides[: self.program_axes])

    def start(self, offset: Array) -> Array:
        """The start: known, or the offset of the first lane of the first program."""
        low, high = self.first
        if low == high:
            return low
        rank = np.ndim(offset)
        return lax.reshape(lax.slice(offset, (0,) * rank, (1,) * rank), ())

    def read(self, buffer: Array, start: Array) -> Array:
        """The view as a tensor of programs (if `batched`) and the kernel's dimensions."""
        order = self.nested
        view = lax.reshape(_slice(buffer, start, self.span), (1, self.span))
        for d in order:
            row = self.strides[d] * self.extents[d]
            view = lax.slice_in_dim(view, 0, row, axis=view.ndim - 1)
            view = lax.reshape(view, (*view.shape[:-1], self.extents[d], self.strides[d]))
        view = lax.index_in_dim(view, 0, view.ndim - 1, keepdims=False)
        view = lax.reshape(view, tuple(self.extents[d] for d in order))
        ranks = np.argsort(order, kind="stable") if order else ()
        view = lax.reshape(lax.transpose(view, tuple(int(r) for r in ranks)), self._kept_extents())
        return self._extended(view)

    def _kept_extents(self) -> tuple[int, ...]:
        moving = set(self.nested)
        return tuple(extent if d in moving else 1 for d, extent in enumerate(self.extents))

    def _extended(self, view: Array) -> Array:
        """From `extents` to `shape`: zeros where the mask is false, repetition where the stride is zero."""
        config = [
            (0, self.shape[d] - extent if self.strides[d] else 0, 0) for d, extent in enumerate(view.shape)
        ]
        if any(high for _, high, _ in config):
            view = lax.pad(view, full((), 0, np.dtype(view.dtype)), config)
        own = self.shape[self.program_axes :]
        if not self.batched:
            return spread(lax.reshape(view, view.shape[self.program_axes :]), own)
        whole = spread(view, self.shape)
        return (
            lax.reshape(whole, (math.prod(self.shape[: self.program_axes]), *own))
            if self.program_axes
            else whole
        )

    def write(self, buffer: Array, start: Array, update: Array, kept: Array) -> Array:
        """The buffer with `update` in the view, where `kept` holds. Both have a program axis, if any."""
        old = _slice(buffer, start, self.span)
        new = lax.select(self._flat(kept), self._flat(update), old)
        return lax.dynamic_update_slice(buffer, new, (np.int32(start) if isinstance(start, int) else start,))

    def _flat(self, tensor: Array) -> Array:
        """A tensor of all lanes as the slice it is a view of; zeros in the gaps."""
        order = self.nested
        tensor = lax.slice(lax.reshape(tensor, self.shape), (0,) * len(self.shape), self.extents)
        tensor = lax.transpose(tensor, (*order, *(d for d in range(len(self.shape)) if d not in order)))
        flat = lax.reshape(tensor, (*(self.extents[d] for d in order), 1))
        for d in reversed(order):
            gap = self.strides[d] - flat.shape[-1]
            if gap:
                config = [(0, 0, 0)] * (flat.ndim - 1) + [(0, gap, 0)]
                flat = lax.pad(flat, full((), 0, np.dtype(flat.dtype)), config)
            flat = lax.reshape(flat, (*flat.shape[:-2], flat.shape[-2] * flat.shape[-1]))
        return flat


def _slice(buffer: Array, start: Array, length: int) -> Array:
    if isinstance(start, int):
        return lax.slice(buffer, (start,), (start + length,))
    return lax.dynamic_slice(buffer, (start,), (length,))


# --- Finding them --------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Windows:
    """All views of a kernel.

    Attributes:
      by_operation: the view of each load and store that is one.
      extensions: by how many elements the buffers have to be longer, so that no view reaches over an end.
    """

    by_operation: Mapping[Operation, Window]
    extensions: Mapping[int, int]


def find_windows(facts: Facts, strategy: Strategy, sizes: Sequence[int], together: int) -> Windows:
    """The views among a kernel's accesses, for `together` programs at once."""
    found: dict[Operation, Window] = {}
    extensions: dict[int, int] = {}
    for operation, access in facts.by_operation.items():
        window = None if access is None else _window(access, facts.programs, together)
        if access is None or window is None:
            continue
        if access.kind == "store" and not (operation in strategy.unique and _writable(access, window)):
            continue
        size = sizes[access.parameter]
        low, high = window.first
        extension = max(0, high + window.span - size)
        if low >= 0 and extension <= size + MAX_EXTENSION:
            found[operation] = window
            extensions[access.parameter] = max(extensions.get(access.parameter, 0), extension)
    return Windows(found, extensions)


def _writable(access: Access, window: Window) -> bool:
    """Whether a store is worth being a view: the slice that it reads and writes is not much longer than
    what is stored. In a loop it may not be longer at all, since a scatter copies only what changes.

    Where a stride is zero, lanes share an element, and it takes the mask to tell which one is stored.
    """
    distinct = all(stride or extent == 1 for stride, extent in zip(window.strides, window.shape, strict=True))
    return distinct and window.span <= math.prod(window.extents) * (1 if access.in_loop else MAX_SPAN)


def _window(access: Access, programs: int, together: int) -> Window | None:
    """The view that an access is, if it is one."""
    if access.kind not in ("load", "store") or access.offset is None:
        return None
    base = np.broadcast_to(access.offset.base, np.broadcast_shapes(access.offset.base.shape, (programs,)))
    axes = _program_axes(base, together)
    if axes is None:
        return None
    extents, strides = axes
    shape = (*extents, *access.shape)
    strides = (*strides, *access.offset.strides)
    limits = (
        access.shape
        if access.box is None
        else tuple(
            max(1, min(extent, int(bound.max())))
            for extent, bound in zip(access.shape, access.box.upper, strict=True)
        )
    )
    kept = tuple(e if s else 1 for e, s in zip((*extents, *limits), strides, strict=True))
    first = base[..., ::together]
    window = Window(shape, len(extents), strides, kept, (int(first.min()), int(first.max())))
    return window if window.nests else None


def _program_axes(base: Array, together: int) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Axes of the programs that run at once, the outermost first, and the strides along them.

    Such that addresses are the same sums of index times stride in every chunk of programs and all iterations;
    None if there are none. They are often those of the grid, but a kernel may make its own: rows and columns
    of tiles out of one number, or the place in a batch.
    """
    if together == 1:
        return (), ()
    flat = base.reshape(-1, base.shape[-1])
    extents, strides = _factored(flat[0, :together] - flat[0, 0])
    if len(extents) > MAX_PROGRAM_AXES:
        return None
    index = np.indices(extents).reshape(len(extents), together)
    expected = np.tensordot(np.array(strides, np.int64), index, 1)
    program = np.arange(base.shape[-1])
    first, place = program // together * together, program % together
    return (extents, strides) if (flat - flat[:, first] == expected[place]).all() else None


def _factored(offsets: Array) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Extents and strides of the axes that offsets of consecutive programs have, if they have any."""
    extents: list[int] = []
    strides: list[int] = []
    while offsets.size > 1:
        stride = int(offsets[1])
        other = np.flatnonzero(offsets != stride * np.arange(offsets.size))
        extent = int(other[0]) if other.size else offsets.size
        if offsets.size % extent:
            extent = offsets.size
        extents.insert(0, extent)
        strides.insert(0, stride)
        offsets = offsets[::extent]
    return tuple(extents), tuple(strides)
