"""Kernels that only the benchmarks launch."""

import triton
import triton.language as tl


@triton.jit
def copy_kernel(x_ptr, out_ptr):
    """Copies one element: the smallest launch that has a result."""
    tl.store(out_ptr, tl.load(x_ptr))
