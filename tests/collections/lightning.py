"""lightning-attn: linear attention with and without decay, and a norm."""

from __future__ import annotations

from typing import Any

import torch
from lightning_attn.ops.torch.linear_attention import linear_attn
from lightning_attn.ops.torch.srmsnorm import SimpleRMSNormTorch
from lightning_attn.ops.triton import lightning_attn2, lightning_attn2_no_decay
from lightning_attn.ops.triton.srmsnorm import SimpleRMSNorm

from .cases import Case
from .drawing import normal


def heads(length: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    return {name: (normal(2, 3, length, 32) / 4).to(dtype) for name in "qkv"}


def norm(module: Any) -> Any:
    return lambda x: module(x.shape[-1])(x)


CASES = [
    Case(
        f"attention, decay={decay}, length {length}",
        lambda length=length: heads(length, torch.float32),
        (lambda q, k, v: lightning_attn2(q, k, v, SLOPES)) if decay else lightning_attn2_no_decay,
        (lambda q, k, v: linear_attn(q, k, v, SLOPES)) if decay else linear_attn,
        ("q", "k", "v"),
    )
    for decay in (True, False)
    for length in (64, 100)
]
SLOPES = torch.tensor([0.5, 0.25, 0.125])
CASES += [
    Case(
        f"simple rms norm of {columns} columns",
        lambda columns=columns: {"x": normal(5, columns)},
        norm(SimpleRMSNorm),
        norm(SimpleRMSNormTorch),
        ("x",),
    )
    for columns in (64, 100)
]
