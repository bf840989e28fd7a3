"""Tensors drawn at random."""

from __future__ import annotations

import torch


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape).to(dtype)


def positive(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Between 0.1 and 0.9."""
    return (0.1 + 0.8 * torch.rand(shape)).to(dtype)


def decay(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Logarithms of factors below one."""
    return torch.nn.functional.logsigmoid(torch.randn(shape) + 2).to(dtype)


def unit(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Vectors of length one."""
    return torch.nn.functional.normalize(torch.randn(shape), dim=-1).to(dtype)


def labels(rows: int, classes: int, ignored: int = 0) -> torch.Tensor:
    """Classes, the first few of them marked as ignored."""
    found = torch.randint(0, classes, (rows,))
    found[:ignored] = -100
    return found
