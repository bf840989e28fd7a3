"""conch: kernels of inference and of vision, with references of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from conch.ops.activation.gelu_tanh_and_mul import gelu_tanh_and_mul
from conch.ops.activation.silu_and_mul import silu_and_mul
from conch.ops.attention.paged_attention import paged_attention
from conch.ops.attention.varlen_attention import varlen_attention
from conch.ops.embedding.rotary_embedding import rotary_embedding
from conch.ops.normalization.gemma_rms_norm import gemma_rms_norm
from conch.ops.normalization.rms_norm import fused_add_rms_norm, rms_norm
from conch.ops.quantization.bitsandbytes.functional import dequantize_blockwise, quantize_blockwise
from conch.ops.quantization.fp8 import scaled_fp8_quant
from conch.ops.quantization.gemm import mixed_precision_gemm, scaled_gemm
from conch.ops.quantization.int8 import scaled_int8_quant
from conch.ops.vision.bev_pool import bev_pool, bev_pool_backward
from conch.ops.vision.nms import nms
from conch.ops.vision.voxelization import VoxelizationParameter, generate_voxels
from conch.ops.vllm.copy_blocks import copy_blocks
from conch.ops.vllm.reshape_and_cache import reshape_and_cache
from conch.reference.activation.gelu_tanh_and_mul import gelu_tanh_and_mul as reference_gelu
from conch.reference.activation.silu_and_mul import silu_and_mul as reference_silu
from conch.reference.embedding.rotary_embedding import (
    compute_cos_sin_cache,
)
from conch.reference.embedding.rotary_embedding import (
    rotary_embedding as reference_rotary,
)
from conch.reference.normalization import gemma_rms_norm as gemma
from conch.reference.normalization import rms_norm as rms
from conch.reference.quantization.fp8 import scaled_fp8_quant as reference_fp8
from conch.reference.quantization.int8 import scaled_int8_quant as reference_int8
from conch.reference.quantization.scaled_gemm import scaled_gemm as reference_scaled
from conch.reference.vision.bev_pool import bev_pool_backward_pytorch, bev_pool_pytorch
from conch.reference.vision.nms import nms as reference_nms
from conch.reference.vllm.copy_blocks import copy_blocks as reference_copy
from conch.reference.vllm.reshape_and_cache import reshape_and_cache as reference_cache

from .cases import Case, Inputs
from .drawing import normal, positive

CASES: list[Case] = []


def case(name: str, inputs: Callable[[], Inputs], run: Any, reference: Any, **more: Any) -> None:
    CASES.append(Case(name, inputs, run, reference, **more))


# --- Activations, norms, positions -----------------------------------------------------------------

case("gelu and product", lambda: {"x": normal(6, 128)}, gelu_tanh_and_mul, reference_gelu)
case("silu and product", lambda: {"x": normal(6, 128)}, silu_and_mul, reference_silu)
case(
    "rms norm",
    lambda: {"x": normal(6, 96), "weight": normal(96)},
    lambda x, weight: rms_norm(x, weight, 1e-6),
    lambda x, weight: rms.rms_norm(x, weight, 1e-6),
)
case(
    "rms norm fused with addition",
    lambda: {"x": normal(6, 96), "residual": normal(6, 96), "weight": normal(96)},
    lambda x, residual, weight: fused_add_rms_norm(x, residual, weight, 1e-6),
    lambda x, residual, weight: rms.fused_add_rms_norm(x, residual, weight, 1e-6),
)
case(
    "rms norm of Gemma",
    lambda: {"x": normal(6, 96), "weight": normal(96)},
    lambda x, weight: gemma_rms_norm(x, weight, 1e-6),
    lambda x, weight: gemma.gemma_rms_norm(x, weight, 1e-6),
)
case(
    "rotary embedding",
    lambda: {
        "positions": torch.randint(0, 64, (7,)),
        "query": normal(7, 4 * 32),
        "key": normal(7, 2 * 32),
        "cache": compute_cos_sin_cache(10000.0, 32, 64),
    },
    lambda positions, query, key, cache: rotary_embedding(positions, query, key, 32, cache),
    lambda positions, query, key, cache: reference_rotary(positions, query, key, cache, 32, 32),
)

# --- Attention over a paged cache ------------------------------------------------------------------


def pages(lengths: list[int], queries: int) -> Inputs:
    """A cache of 16 tokens a page, pages shuffled, and sequences in it."""
    most = -(-max(lengths) // 16)
    return {
        "query": normal(queries, 8, 64),
        "key_cache": normal(most * len(lengths) + 3, 16, 2, 64),
        "value_cache": normal(most * len(lengths) + 3, 16, 2, 64),
        "block_table": torch.randperm(most * len(lengths)).int().view(len(lengths), most),
        "seq_lens": torch.tensor(lengths, dtype=torch.int32),
    }


def attended(
    query: Any, key_cache: Any, value_cache: Any, block_table: Any, seq_lens: Any, starts: Any
) -> Any:
    """Each sequence's queries, which are the last of its tokens, to all tokens before them."""
    results = []
    for pages, length, start, stop in zip(
        block_table, seq_lens.tolist(), starts[:-1].tolist(), starts[1:].tolist(), strict=True
    ):
        key, value = (
            cache[pages.long()].flatten(0, 1)[:length].repeat_interleave(4, 1).transpose(0, 1)
            for cache in (key_cache, value_cache)
        )
        count = stop - start
        visible = torch.ones(count, length, dtype=torch.bool).tril(length - count)
        scores = (query[start:stop].transpose(0, 1) @ key.mT / 8).masked_fill(~visible, -torch.inf)
        results.append((scores.softmax(-1) @ value).transpose(0, 1))
    return torch.cat(results)


for lengths in ([20, 5, 33], [300, 17]):
    case(
        f"paged attention of sequences of {lengths}",
        lambda lengths=lengths: pages(lengths, len(lengths)),
        lambda **given: paged_attention(**given),
        lambda **given: attended(**given, starts=torch.arange(len(given["seq_lens"]) + 1)),
    )
# Whole sequences, and one of which only the last token asks: what the package takes for causal.
case(
    "varlen attention, causal",
    lambda: {**pages([20, 5, 33], 20 + 1 + 33), "starts": torch.tensor([0, 20, 21, 54], dtype=torch.int32)},
    lambda starts, query, key_cache, value_cache, block_table, seq_lens: varlen_attention(
        query, key_cache, value_cache, starts, 33, seq_lens, 33, block_table, causal=True
    ),
    attended,
)

# --- Quantization ----------------------------------------------------------------------------------

case(
    "quantization to fp8",
    lambda: {"x": normal(6, 64), "scale": positive(1)},
    lambda x, scale: scaled_fp8_quant(x, scale)[0].float(),
    lambda x, scale: reference_fp8(x, scale).float(),
)
case(
    "quantization to int8",
    lambda: {"x": 20 * normal(6, 64), "scale": positive(1)},
    lambda x, scale: scaled_int8_quant(x, scale)[0],
    lambda x, scale: reference_int8(x, scale),
)
case(
    "matmul of int8",
    lambda: {
        "a": torch.randint(-128, 127, (20, 64), dtype=torch.int8),
        "b": torch.randint(-128, 127, (64, 32), dtype=torch.int8),
        "scale_a": positive(20, 1) / 100,
        "scale_b": positive(32, 1) / 100,
    },
    lambda a, b, scale_a, scale_b: scaled_gemm(a, b, scale_a, scale_b, torch.float16),
    lambda a, b, scale_a, scale_b: reference_scaled(a, b, scale_a, scale_b, torch.float16),
)


def packed(weights: torch.Tensor, bits: int) -> torch.Tensor:
    """Rows of weights of few bits, several to an int32."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int64)[None, :, None]
    grouped = weights.long().view(-1, 32 // bits, weights.shape[1])
    words = (grouped << shifts).sum(1)
    return torch.where(words >= 2**31, words - 2**32, words).int()


for bits in (4, 8):
    case(
        f"matmul with weights of {bits} bits",
        lambda bits=bits: {
            "x": normal(20, 256, dtype=torch.float16),
            "weights": torch.randint(0, 2**bits, (256, 64)),
            "scales": (positive(2, 64) / 100).half(),
        },
        lambda x, weights, scales, bits=bits: mixed_precision_gemm(
            x, packed(weights, bits), scales, None, bits, 2 ** (bits - 1), 128
        ),
        lambda x, weights, scales, bits=bits: (
            x.float() @ ((weights - 2 ** (bits - 1)) * scales.float().repeat_interleave(128, 0))
        ).half(),
    )


def blockwise(x: torch.Tensor, kind: str) -> torch.Tensor:
    """There and back, which loses what fits in four bits."""
    quantized, state = quantize_blockwise(x, blocksize=64, quant_type=kind)
    return dequantize_blockwise(quantized, state, blocksize=64, quant_type=kind)


LEVELS = {
    "fp4": torch.tensor([0.0, 0.0625, 8, 12, 4, 6, 2, 3]) / 12,
    "nf4": torch.tensor(
        (
            *(-1.0, -0.6961928, -0.5250731, -0.3949175, -0.2844414, -0.1847734, -0.09105, 0.0),
            *(0.0795803, 0.1609302, 0.2461123, 0.3379152, 0.4407098, 0.562617, 0.7229568, 1.0),
        )
    ),
}


def nearest(x: torch.Tensor, kind: str) -> torch.Tensor:
    """The nearest of the levels that four bits stand for, in blocks of 64 scaled to their largest."""
    levels = LEVELS[kind]
    levels = torch.cat([levels, -levels]) if kind == "fp4" else levels
    blocks = x.view(-1, 64)
    largest = blocks.abs().amax(-1, keepdim=True)
    places = ((blocks / largest)[..., None] - levels).abs().argmin(-1)
    return (levels[places] * largest).view_as(x)


for kind in LEVELS:
    case(
        f"quantization in blocks, {kind}",
        lambda: {"x": normal(256)},
        lambda x, kind=kind: blockwise(x, kind),
        lambda x, kind=kind: nearest(x, kind),
    )

# --- Caches ----------------------------------------------------------------------------------------


def changed(function: Any, **fixed: Any) -> Any:
    """A function that writes to two caches, as one that returns them."""

    def run(key_cache: Any, value_cache: Any, **given: Any) -> Any:
        function(key_cache=key_cache, value_cache=value_cache, **given, **fixed)
        return key_cache, value_cache

    return run


case(
    "writing to a paged cache",
    lambda: {
        "key": normal(7, 2, 32),
        "value": normal(7, 2, 32),
        "key_cache": normal(5, 16, 2, 32),
        "value_cache": normal(5, 16, 2, 32),
        "slot_mapping": torch.randperm(80)[:7],
    },
    changed(reshape_and_cache),
    changed(reference_cache, kv_cache_dtype="auto", k_scale=None, v_scale=None),
)


def copied(function: Any, make: Any) -> Any:
    def run(keys: Any, values: Any, pairs: Any) -> Any:
        function([keys], [values], make(pairs))
        return keys, values

    return run


case(
    "copying blocks of a cache",
    lambda: {"keys": normal(6, 64), "values": normal(6, 64), "pairs": torch.tensor([[0, 3], [1, 5]])},
    copied(copy_blocks, lambda pairs: pairs),
    copied(reference_copy, lambda pairs: [tuple(pair) for pair in pairs.tolist()]),
)

# --- Vision ----------------------------------------------------------------------------------------


def points() -> Inputs:
    """Points in order of the cell that they fall in, and where each cell's points start."""
    cells = torch.randint(0, 4, (60, 4), dtype=torch.int32) % torch.tensor([4, 3, 2, 2], dtype=torch.int32)
    cells, counts = cells.unique(dim=0, return_counts=True)
    starts = counts.cumsum(0) - counts
    return {
        "geom_feats": cells.repeat_interleave(counts, 0).int(),
        "interval_starts": starts.int(),
        "interval_lengths": counts.int(),
    }


def bev_pool_forward(image_feats: Any, geom_feats: Any, interval_starts: Any, interval_lengths: Any) -> Any:
    return bev_pool(image_feats, geom_feats, interval_starts, interval_lengths, 2, 2, 4, 3)


case(
    "pooling to a bird's-eye view",
    lambda: {"image_feats": normal(60, 32), **points()},
    bev_pool_forward,
    lambda **given: bev_pool_pytorch(**given, batch_size=2, grid_cells_z=2, grid_cells_x=4, grid_cells_y=3),
)
case(
    "pooling to a bird's-eye view, backwards",
    lambda: {"grad_output": normal(2, 2, 4, 3, 32), **points()},
    lambda grad_output, geom_feats, interval_starts, interval_lengths: bev_pool_backward(
        grad_output, geom_feats, interval_starts, interval_lengths
    ),
    bev_pool_backward_pytorch,
)


def boxes() -> Inputs:
    corners = torch.rand(50, 2)
    return {
        "boxes": torch.cat([corners, corners + 0.05 + 0.3 * torch.rand(50, 2)], -1),
        "scores": torch.rand(50),
    }


case(
    "non-maximum suppression",
    boxes,
    lambda boxes, scores: nms(boxes, scores, 0.3),
    lambda boxes, scores: reference_nms(boxes, scores, 0.3),
)

GRID = VoxelizationParameter((0.0, 0.0, 0.0), (4.0, 3.0, 2.0), (1.0, 1.0, 1.0), 50)


def voxels(points: torch.Tensor) -> Any:
    """How many points are in each cell, and their sums: in whatever order the cells come."""
    counts, features, indices, _ = generate_voxels(points, GRID)
    filled = int(counts)
    by_cell = torch.zeros(24, 4)
    x, y, z = indices[:filled, :3].long().unbind(-1)
    cells = (z * 3 + y) * 4 + x
    return by_cell.index_add(0, cells, features[:filled].sum(1))


def voxels_reference(points: torch.Tensor) -> Any:
    inside = ((points[:, :3] >= 0) & (points[:, :3] < torch.tensor([4.0, 3.0, 2.0]))).all(-1)
    x, y, z = points[inside, :3].long().unbind(-1)
    return torch.zeros(24, 4).index_add(0, (z * 3 + y) * 4 + x, points[inside])


case("voxels", lambda: {"points": 5 * torch.rand(60, 4) - 0.5}, voxels, voxels_reference)
