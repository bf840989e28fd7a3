"""Triton kernels that several tests launch."""

from typing import NamedTuple

import triton
import triton.language as tl


@triton.jit
def add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    y = tl.load(y_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, x + y, mask=mask)


@triton.jit
def double_into_first(out_ptr, x_ptr, n, BLOCK: tl.constexpr):
    """The output stands before the input."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=mask) * 2, mask=mask)


@triton.jit
def sum_and_difference(sum_ptr, x_ptr, difference_ptr, y_ptr, n, BLOCK: tl.constexpr):
    """Two outputs between two inputs."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    y = tl.load(y_ptr + offsets, mask=mask)
    tl.store(sum_ptr + offsets, x + y, mask=mask)
    tl.store(difference_ptr + offsets, x - y, mask=mask)


@triton.jit
def scale_in_place(x_ptr, n, factor, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(x_ptr + offsets, tl.load(x_ptr + offsets, mask=mask) * factor, mask=mask)


@triton.jit
def add_pair(pair, out_ptr, n, BLOCK: tl.constexpr):
    """A tuple of two pointers."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(pair[0] + offsets, mask=mask)
    y = tl.load(pair[1] + offsets, mask=mask)
    tl.store(out_ptr + offsets, x + y, mask=mask)


@triton.jit
def pair_of_in_and_out(pair, n, BLOCK: tl.constexpr):
    """A tuple of an output and an input."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(pair[0] + offsets, tl.load(pair[1] + offsets, mask=mask) + 1, mask=mask)


@triton.jit
def fill(out_ptr, value, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, value, mask=offsets < n)


@triton.jit
def count(out_ptr, x_ptr, n, BLOCK: tl.constexpr):
    """Adds into its output, which has to be zero before."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n, other=0)
    tl.atomic_add(out_ptr, tl.sum(x, axis=0))


@triton.jit
def takes_anything(x_ptr, a, b, c, out_ptr, K: tl.constexpr, d=None, e=3):
    """For specialization: compiles to little, whatever the scalars are."""
    tl.store(out_ptr, tl.load(x_ptr))


@triton.jit
def load_tile(x_desc, out_ptr, row, column, M: tl.constexpr, N: tl.constexpr):
    tile = x_desc.load([row, column])
    offsets = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(out_ptr + offsets, tile)


@triton.jit
def copy_tiles(x_desc, out_desc, M: tl.constexpr, N: tl.constexpr):
    row, column = tl.program_id(0) * M, tl.program_id(1) * N
    out_desc.store([row, column], x_desc.load([row, column]))


@triton.jit
def copy_tiles_of_a_pair(pair, M: tl.constexpr, N: tl.constexpr):
    row, column = tl.program_id(0) * M, tl.program_id(1) * N
    pair[1].store([row, column], pair[0].load([row, column]))


class Ends(NamedTuple):
    out: object
    x: object


class Work(NamedTuple):
    ends: Ends
    scale: object


@triton.jit
def scale_by_fields(work, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(work.ends.x + offsets, mask=mask)
    tl.store(work.ends.out + offsets, x * work.scale, mask=mask)


@triton.jit
def copy_through(descriptors, row):
    descriptors[1].store([row, 0], descriptors[0].load([row, 0]))


@triton.jit
def copy_by_device_descriptors(pair, rows, M: tl.constexpr, N: tl.constexpr):
    """Makes its descriptors of a tuple of pointers, and hands them on in a tuple."""
    source = tl.make_tensor_descriptor(pair[0], shape=[rows, N], strides=[N, 1], block_shape=[M, N])
    target = tl.make_tensor_descriptor(pair[1], shape=[rows, N], strides=[N, 1], block_shape=[M, N])
    copy_through((source, target), tl.program_id(0) * M)


@triton.jit
def add_tiles_into(total_ptr, x_ptr, out_ptr, rows, M: tl.constexpr, N: tl.constexpr):
    """Adds x to `total` in place, and writes the sum to `out` as well, through descriptors of its own."""
    row = tl.program_id(0) * M
    total = tl.make_tensor_descriptor(total_ptr, shape=[rows, N], strides=[N, 1], block_shape=[M, N])
    x = tl.make_tensor_descriptor(x_ptr, shape=[rows, N], strides=[N, 1], block_shape=[M, N])
    out = tl.make_tensor_descriptor(out_ptr, shape=[rows, N], strides=[N, 1], block_shape=[M, N])
    tile = total.load([row, 0]) + x.load([row, 0])
    total.store([row, 0], tile)
    out.store([row, 0], tile)


@triton.jit
def scale_line(x_ptr, scale_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """out = x * scale, of one element, through descriptors of one dimension that the kernel makes."""
    x = tl.make_tensor_descriptor(x_ptr, shape=[n], strides=[1], block_shape=[BLOCK])
    out = tl.make_tensor_descriptor(out_ptr, shape=[n], strides=[1], block_shape=[BLOCK])
    out.store([0], x.load([0]) * tl.load(scale_ptr))
