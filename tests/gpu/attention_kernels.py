"""Flash attention, forward: a Triton kernel with its configurations, and the function that launches it."""

from __future__ import annotations

from typing import Any

import jax
import triton
import triton.language as tl

import jtprim as jt

LOG2_E = 1.4426950408889634

# What a tuned launch tries. The first is what runs where nothing is tuned: it suits every GPU and the CPU.
CONFIGURATIONS = [
    triton.Config({"BLOCK_M": 64, "BLOCK_N": 64}, num_warps=4, num_stages=2),
    triton.Config({"BLOCK_M": 128, "BLOCK_N": 64}, num_warps=4, num_stages=3),
    triton.Config({"BLOCK_M": 128, "BLOCK_N": 64}, num_warps=8, num_stages=3),
    triton.Config({"BLOCK_M": 128, "BLOCK_N": 128}, num_warps=8, num_stages=2),
    triton.Config({"BLOCK_M": 128, "BLOCK_N": 128}, num_warps=8, num_stages=3),
]


@triton.jit
def _attend(
    acc,
    row_max,
    row_sum,
    q,
    k_ptrs,
    v_ptrs,
    rows,
    scale,
    start,
    end,
    length,
    HEAD_DIM: tl.constexpr,
    BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr,
    BOUNDED: tl.constexpr,
):
    """Adds the keys and values of columns `start` to `end` to a running softmax.

    `CAUSAL` hides the columns behind each row's own; `BOUNDED` those from `length` on.
    """
    columns = tl.arange(0, BLOCK_N)
    for first in tl.range(start, end, BLOCK_N):
        offset = first.to(tl.int64) * HEAD_DIM
        if BOUNDED:
            inside = first + columns < length
            k = tl.load(k_ptrs + offset, mask=inside[None, :], other=0.0)
        else:
            k = tl.load(k_ptrs + offset)
        scores = tl.dot(q, k)
        if CAUSAL:
            scores = tl.where(rows[:, None] >= first + columns[None, :], scores, -float("inf"))
        if BOUNDED:
            scores = tl.where(inside[None, :], scores, -float("inf"))
        new_max = tl.maximum(row_max, tl.max(scores, 1) * scale)
        weights = tl.exp2(scores * scale - new_max[:, None])
        shrink = tl.exp2(row_max - new_max)
        row_sum = row_sum * shrink + tl.sum(weights, 1)
        row_max = new_max
        if BOUNDED:  # noqa: SIM108
            v = tl.load(v_ptrs + offset, mask=inside[:, None], other=0.0)
        else:
            v = tl.load(v_ptrs + offset)
        acc = tl.dot(weights.to(v.dtype), v, acc * shrink[:, None])
    return acc, row_max, row_sum


@triton.jit
def attention_forward(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    scale,
    length,
    HEAD_DIM: tl.constexpr,
    CAUSAL: tl.constexpr,
    EVEN: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Attention of `BLOCK_M` rows of one head, block after block of keys and values.

    Arrays are row-major, [batch and head, length, HEAD_DIM]. `scale` multiplies the products before a
    softmax of base 2, and is positive. `EVEN` says that all blocks divide the length.
    """
    # A causal program has the more to do the further down its rows are: those start first.
    block = tl.num_programs(0) - 1 - tl.program_id(0) if CAUSAL else tl.program_id(0)
    base = tl.program_id(1).to(tl.int64) * length * HEAD_DIM
    rows = block * BLOCK_M + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, HEAD_DIM)
    columns = tl.arange(0, BLOCK_N)
    row_offsets = base + rows[:, None] * HEAD_DIM + dims[None, :]
    k_ptrs = k_ptr + base + columns[None, :] * HEAD_DIM + dims[:, None]
    v_ptrs = v_ptr + base + columns[:, None] * HEAD_DIM + dims[None, :]

    if EVEN:
        q = tl.load(q_ptr + row_offsets)
    else:
        q = tl.load(q_ptr + row_offsets, mask=rows[:, None] < length, other=0.0)
    acc = tl.zeros([BLOCK_M, HEAD_DIM], dtype=tl.float32)
    row_max = tl.full([BLOCK_M], -float("inf"), dtype=tl.float32)
    row_sum = tl.zeros([BLOCK_M], dtype=tl.float32)

    # Blocks that are seen as a whole, then those that are seen in part.
    if CAUSAL:
        whole = block * BLOCK_M // BLOCK_N * BLOCK_N
        end = tl.minimum(block * BLOCK_M + BLOCK_M, length)
    else:
        whole = length // BLOCK_N * BLOCK_N
        end = length
    acc, row_max, row_sum = _attend(
        acc, row_max, row_sum, q, k_ptrs, v_ptrs, rows, scale, 0, whole, length,
        HEAD_DIM, BLOCK_N, CAUSAL=False, BOUNDED=False,
    )  # fmt: skip
    if CAUSAL or not EVEN:
        acc, row_max, row_sum = _attend(
            acc, row_max, row_sum, q, k_ptrs, v_ptrs, rows, scale, whole, end, length,
            HEAD_DIM, BLOCK_N, CAUSAL, BOUNDED=not EVEN,
        )  # fmt: skip

    out = (acc / row_sum[:, None]).to(out_ptr.dtype.element_ty)
    if EVEN:
        tl.store(out_ptr + row_offsets, out)
    else:
        tl.store(out_ptr + row_offsets, out, mask=rows[:, None] < length)


def _is_even(arguments: Any) -> bool:
    return arguments["length"] % max(arguments["BLOCK_M"], arguments["BLOCK_N"]) == 0


tuned_attention_forward = triton.autotune(CONFIGURATIONS, key=["length", "HEAD_DIM", "CAUSAL"])(
    triton.heuristics({"EVEN": _is_even})(attention_forward)
)

_kernel = jt.kernel(tuned_attention_forward)


def attention(
    q: jax.Array, k: jax.Array, v: jax.Array, causal: bool = False, **configuration: int
) -> jax.Array:
    """Attention with its configuration tuned at the first call on a GPU.

    Args:
      q, k, v: of one shape [batch, heads, length, dim] and one dtype, float16 or bfloat16; dim is a power
        of two, at least 16.
      causal: whether a row sees its own column and those before it alone.
      **configuration: parameters to set, which then aren't tuned: ``BLOCK_M=64``.

    Returns:
      softmax(q k^T / sqrt(dim)) v, of the shape and dtype of `q`.
    """
    batch, heads, length, dim = q.shape
    return _kernel[lambda meta: (triton.cdiv(length, meta["BLOCK_M"]), batch * heads)](
        q,
        k,
        v,
        LOG2_E / dim**0.5,
        length,
        HEAD_DIM=dim,
        CAUSAL=causal,
        out_shape={"out_ptr": q},
        **configuration,
    )
