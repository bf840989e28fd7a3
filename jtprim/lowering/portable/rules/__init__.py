"""What each operation becomes in JAX: one file for each of MLIR's dialects."""

from __future__ import annotations

import importlib

_FILES = (
    ".arith",
    ".math",
    ".tt",
    ".reductions",
    ".no_effect",
    ".ttg",
    ".ttng",
    "..control",
    "..memory",
    "..partitions",
)


def register() -> None:
    """Fills the table of rules, `machine.RULES`."""
    for file in _FILES:
        importlib.import_module(file, __name__)
