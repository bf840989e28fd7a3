"""cut-cross-entropy: a linear layer and its loss, without the logits in memory."""

from __future__ import annotations

from typing import Any

import torch
from cut_cross_entropy import linear_cross_entropy

from .cases import Case, Inputs
from .drawing import labels, normal


def inputs() -> Inputs:
    return {
        "e": normal(40, 64, dtype=torch.bfloat16),
        "c": normal(300, 64, dtype=torch.bfloat16),
        "targets": labels(40, 300, ignored=2),
    }


def reference(e: Any, c: Any, targets: Any, reduction: str = "mean", softcap: float | None = None) -> Any:
    logits = e.float() @ c.float().T
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    return torch.nn.functional.cross_entropy(logits, targets, reduction=reduction)


def case(name: str, **settings: Any) -> Case:
    # Gradients below a threshold are left out by the package: not so with filter_eps=None.
    run = lambda e, c, targets: linear_cross_entropy(e, c, targets, filter_eps=None, **settings)
    return Case(name, inputs, run, lambda **given: reference(**given, **settings), ("e", "c"))


CASES = [
    case("mean"),
    case("sum", reduction="sum"),
    case("of each row", reduction="none"),
    case("softcap", softcap=20.0),
    Case("filtered", inputs, linear_cross_entropy, reference, ("e", "c")),
]
