"""Triton kernels of a transformer: attention forward and backward, layer norm, cross-entropy.

There is nothing of JAX in this file; `examples.training.functions` launches these from JAX.
"""

import triton
import triton.language as tl

# --- Flash attention ---------------------------------------------------------------------------
#
# The scheme of FlashAttention-2 (Dao, 2023). Arrays are row-major, [batch and head, length, HEAD_DIM];
# `lse` (the logarithm of each row's sum of exponentials) and `delta` are [batch and head, length]. Scores are
# never stored: the backward kernels make them again from `lse`.


@triton.jit
def _load(ptr, places, dims, length, HEAD_DIM: tl.constexpr):
    """Rows `places` of one head, zero from `length` on."""
    tile = places[:, None] * HEAD_DIM + dims[None, :]
    return tl.load(ptr + tile, mask=places[:, None] < length, other=0.0)


@triton.jit
def _store(ptr, values, places, dims, length, HEAD_DIM: tl.constexpr):
    tile = places[:, None] * HEAD_DIM + dims[None, :]
    tl.store(ptr + tile, values.to(ptr.dtype.element_ty), mask=places[:, None] < length)


@triton.jit
def _seen(rows, columns, length, CAUSAL: tl.constexpr):
    """Whether a row looks at a column; `rows` and `columns` have the axes of the result."""
    inside = (rows < length) & (columns < length)
    return inside & (rows >= columns) if CAUSAL else inside


@triton.jit
def attention_forward(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    lse_ptr,
    scale,
    length,
    HEAD_DIM: tl.constexpr,
    CAUSAL: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """`BLOCK_M` rows of one head: a running softmax over blocks of keys and values."""
    head = tl.program_id(1).to(tl.int64)
    base = head * length * HEAD_DIM
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, HEAD_DIM)
    q = _load(q_ptr + base, rows, dims, length, HEAD_DIM)
    acc = tl.zeros([BLOCK_M, HEAD_DIM], dtype=tl.float32)
    row_max = tl.full([BLOCK_M], -float("inf"), dtype=tl.float32)
    row_sum = tl.zeros([BLOCK_M], dtype=tl.float32)

    end = tl.minimum((tl.program_id(0) + 1) * BLOCK_M, length) if CAUSAL else length
    for first in tl.range(0, end, BLOCK_N):
        columns = first + tl.arange(0, BLOCK_N)
        k = _load(k_ptr + base, columns, dims, length, HEAD_DIM)
        v = _load(v_ptr + base, columns, dims, length, HEAD_DIM)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
        # Rows from `length` on see column 0 too, so that no row's maximum stays infinite.
        hidden = columns[None, :] >= length
        if CAUSAL:
            hidden = hidden | (rows[:, None] < columns[None, :])
        scores = tl.where(hidden, -float("inf"), scores)
        new_max = tl.maximum(row_max, tl.max(scores, 1))
        weights = tl.exp(scores - new_max[:, None])
        shrink = tl.exp(row_max - new_max)
        row_sum = row_sum * shrink + tl.sum(weights, 1)
        acc = tl.dot(weights.to(v.dtype), v, acc * shrink[:, None], input_precision=PRECISION)
        row_max = new_max

    _store(out_ptr + base, acc / row_sum[:, None], rows, dims, length, HEAD_DIM)
    tl.store(lse_ptr + head * length + rows, row_max + tl.log(row_sum), mask=rows < length)


@triton.jit
def attention_backward_delta(
    out_ptr,
    d_out_ptr,
    d_lse_ptr,
    delta_ptr,
    length,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """delta = sum(out * d_out) - d_lse: what is subtracted from a row's gradients of its weights."""
    head = tl.program_id(1).to(tl.int64)
    base = head * length * HEAD_DIM
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, HEAD_DIM)
    out = _load(out_ptr + base, rows, dims, length, HEAD_DIM).to(tl.float32)
    d_out = _load(d_out_ptr + base, rows, dims, length, HEAD_DIM).to(tl.float32)
    d_lse = tl.load(d_lse_ptr + head * length + rows, mask=rows < length, other=0.0)
    tl.store(delta_ptr + head * length + rows, tl.sum(out * d_out, 1) - d_lse, mask=rows < length)


@triton.jit
def attention_backward_dkdv(
    q_ptr,
    k_ptr,
    v_ptr,
    d_out_ptr,
    lse_ptr,
    delta_ptr,
    dk_ptr,
    dv_ptr,
    scale,
    length,
    HEAD_DIM: tl.constexpr,
    CAUSAL: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Gradients of `BLOCK_N` keys and values: a sum over the blocks of rows that see them."""
    head = tl.program_id(1).to(tl.int64)
    base = head * length * HEAD_DIM
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    dims = tl.arange(0, HEAD_DIM)
    k = _load(k_ptr + base, columns, dims, length, HEAD_DIM)
    v = _load(v_ptr + base, columns, dims, length, HEAD_DIM)
    dk = tl.zeros([BLOCK_N, HEAD_DIM], dtype=tl.float32)
    dv = tl.zeros([BLOCK_N, HEAD_DIM], dtype=tl.float32)

    start = tl.program_id(0) * BLOCK_N // BLOCK_M * BLOCK_M if CAUSAL else 0
    for first in tl.range(start, length, BLOCK_M):
        rows = first + tl.arange(0, BLOCK_M)
        q = _load(q_ptr + base, rows, dims, length, HEAD_DIM)
        d_out = _load(d_out_ptr + base, rows, dims, length, HEAD_DIM)
        lse = tl.load(lse_ptr + head * length + rows, mask=rows < length, other=0.0)
        delta = tl.load(delta_ptr + head * length + rows, mask=rows < length, other=0.0)
        scores = tl.dot(k, tl.trans(q), input_precision=PRECISION) * scale  # columns by rows
        seen = _seen(rows[None, :], columns[:, None], length, CAUSAL)
        weights = tl.where(seen, tl.exp(scores - lse[None, :]), 0.0)
        dv = tl.dot(weights.to(d_out.dtype), d_out, dv, input_precision=PRECISION)
        d_weights = tl.dot(v, tl.trans(d_out), input_precision=PRECISION)
        d_scores = weights * (d_weights - delta[None, :])
        dk = tl.dot(d_scores.to(q.dtype), q, dk, input_precision=PRECISION)

    _store(dk_ptr + base, dk * scale, columns, dims, length, HEAD_DIM)
    _store(dv_ptr + base, dv, columns, dims, length, HEAD_DIM)


@triton.jit
def attention_backward_dq(
    q_ptr,
    k_ptr,
    v_ptr,
    d_out_ptr,
    lse_ptr,
    delta_ptr,
    dq_ptr,
    scale,
    length,
    HEAD_DIM: tl.constexpr,
    CAUSAL: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Gradients of `BLOCK_M` queries: a sum over the blocks of keys that they see."""
    head = tl.program_id(1).to(tl.int64)
    base = head * length * HEAD_DIM
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, HEAD_DIM)
    q = _load(q_ptr + base, rows, dims, length, HEAD_DIM)
    d_out = _load(d_out_ptr + base, rows, dims, length, HEAD_DIM)
    lse = tl.load(lse_ptr + head * length + rows, mask=rows < length, other=0.0)
    delta = tl.load(delta_ptr + head * length + rows, mask=rows < length, other=0.0)
    dq = tl.zeros([BLOCK_M, HEAD_DIM], dtype=tl.float32)

    end = tl.minimum((tl.program_id(0) + 1) * BLOCK_M, length) if CAUSAL else length
    for first in tl.range(0, end, BLOCK_N):
        columns = first + tl.arange(0, BLOCK_N)
        k = _load(k_ptr + base, columns, dims, length, HEAD_DIM)
        v = _load(v_ptr + base, columns, dims, length, HEAD_DIM)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
        seen = _seen(rows[:, None], columns[None, :], length, CAUSAL)
        weights = tl.where(seen, tl.exp(scores - lse[:, None]), 0.0)
        d_weights = tl.dot(d_out, tl.trans(v), input_precision=PRECISION)
        d_scores = weights * (d_weights - delta[:, None])
        dq = tl.dot(d_scores.to(k.dtype), k, dq, input_precision=PRECISION)

    _store(dq_ptr + base, dq * scale, rows, dims, length, HEAD_DIM)


# --- Kernels whose derivatives are their translation's -------------------------------------------


@triton.jit
def layer_norm_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    out_ptr,
    n_rows,
    n_columns,
    eps,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Normalizes `ROWS` rows; `BLOCK` is a power of two, at least `n_columns`."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK)
    offsets = rows[:, None] * n_columns + columns[None, :]
    mask = (rows[:, None] < n_rows) & (columns[None, :] < n_columns)
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0)
    mean = tl.sum(x, 1) / n_columns
    centred = tl.where(mask, x - mean[:, None], 0.0)
    variance = tl.sum(centred * centred, 1) / n_columns
    weight = tl.load(weight_ptr + columns, mask=columns < n_columns, other=0.0)
    bias = tl.load(bias_ptr + columns, mask=columns < n_columns, other=0.0)
    out = centred / tl.sqrt(variance + eps)[:, None] * weight[None, :] + bias[None, :]
    tl.store(out_ptr + offsets, out, mask=mask)


@triton.jit
def cross_entropy_kernel(
    logits_ptr,
    targets_ptr,
    loss_ptr,
    n_rows,
    n_classes,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """-log softmax(logits)[target] of `ROWS` rows; `BLOCK` is a power of two, at least `n_classes`."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK)
    offsets = rows[:, None] * n_classes + columns[None, :]
    inside = columns[None, :] < n_classes
    # Rows that aren't there are of zeros, not infinite.
    logits = tl.load(logits_ptr + offsets, mask=(rows[:, None] < n_rows) & inside, other=0.0)
    target = tl.load(targets_ptr + rows, mask=rows < n_rows, other=0)
    highest = tl.max(tl.where(inside, logits, -float("inf")), 1)
    exponentials = tl.where(inside, tl.exp(logits - highest[:, None]), 0.0)
    chosen = tl.sum(tl.where(columns[None, :] == target[:, None], logits, 0.0), 1)
    tl.store(loss_ptr + rows, highest + tl.log(tl.sum(exponentials, 1)) - chosen, mask=rows < n_rows)
