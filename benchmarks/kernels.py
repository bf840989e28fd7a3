"""Kernels that only the benchmarks launch."""

import triton
import triton.language as tl

from examples.kernels import matmul_kernel


@triton.jit
def copy_kernel(x_ptr, out_ptr):
    """Copies one element: the smallest launch that has a result."""
    tl.store(out_ptr, tl.load(x_ptr))


@triton.jit
def row_softmax_kernel(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):
    """Softmax of a row-major matrix, one program a row."""
    start = tl.program_id(0) * columns
    offsets = tl.arange(0, BLOCK)
    mask = offsets < columns
    x = tl.load(x_ptr + start + offsets, mask=mask, other=-float("inf"))
    weights = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + start + offsets, weights / tl.sum(weights, axis=0), mask=mask)


@triton.jit
def batched_row_softmax_kernel(x_ptr, out_ptr, rows, columns, BLOCK: tl.constexpr):
    """`row_softmax_kernel` for a batch of matrices, as one writes it by hand."""
    start = (tl.program_id(1).to(tl.int64) * rows + tl.program_id(0)) * columns
    offsets = tl.arange(0, BLOCK)
    mask = offsets < columns
    x = tl.load(x_ptr + start + offsets, mask=mask, other=-float("inf"))
    weights = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + start + offsets, weights / tl.sum(weights, axis=0), mask=mask)


@triton.jit
def batched_matmul_kernel(
    a_ptr,
    b_ptr,
    c_ptr,
    M,
    N,
    K,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    stride_cm,
    stride_cn,
    BLOCK_SIZE_M: tl.constexpr,
    BLOCK_SIZE_N: tl.constexpr,
    BLOCK_SIZE_K: tl.constexpr,
    GROUP_SIZE_M: tl.constexpr,
):
    """`matmul_kernel` for a batch of row-major matrices, as one writes it by hand."""
    batch = tl.program_id(1).to(tl.int64)
    matmul_kernel(
        a_ptr + batch * M * K,
        b_ptr + batch * K * N,
        c_ptr + batch * M * N,
        *(M, N, K),
        *(stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn),
        BLOCK_SIZE_M,
        BLOCK_SIZE_N,
        BLOCK_SIZE_K,
        GROUP_SIZE_M,
        "",
    )
