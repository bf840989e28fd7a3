"""What runs found, and docs/collections.md made of it."""

from __future__ import annotations

import importlib.metadata
import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from .cases import Outcome

ROOT = Path(__file__).resolve().parents[2]
FOUND = ROOT / "build" / "collections"
DOCUMENT = ROOT / "docs" / "collections.md"

# The name of each module of cases, and the distribution that its kernels come from.
DISTRIBUTIONS = {
    "liger": "liger-kernel",
    "fla": "fla-core",
    "conch": "conch-triton-kernels",
    "lightning": "lightning-attn",
    "cce": "cut-cross-entropy",
}
VERDICTS = ("agreed", "differed", "unsupported", "failed")

HEAD = """# Kernels of published packages

Written by `python -m tests.collections` (`make collections`).

Each case calls a function of a package, which launches its Triton kernels as it always does, on PyTorch's CPU
tensors; jtprim runs them in its portable lowering. Results and gradients are compared with the package's own
PyTorch reference, or with the same written in PyTorch. A kernel agrees if every case that launches it does.

Versions: {versions}.
"""


def keep(package: str, outcomes: Sequence[Outcome]) -> None:
    """Stores what a run of a package found."""
    version = importlib.metadata.version(DISTRIBUTIONS[package])
    FOUND.mkdir(parents=True, exist_ok=True)
    found = {"version": version, "outcomes": [outcome.as_json() for outcome in outcomes]}
    (FOUND / f"{package}.json").write_text(json.dumps(found, indent=1))


def write() -> None:
    """Writes the document from what is stored."""
    found = {
        package: json.loads(path.read_text())
        for package in DISTRIBUTIONS
        if (path := FOUND / f"{package}.json").exists()
    }
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("jax", "triton", "torch")]
    parts = [HEAD.format(versions=", ".join(versions)), _summary(found)]
    for package, content in found.items():
        parts.append(_table(f"{DISTRIBUTIONS[package]} {content['version']}", _outcomes(content)))
    DOCUMENT.write_text("\n".join(parts))
    print(_summary(found))


def _outcomes(content: dict[str, list[dict[str, object]]]) -> list[Outcome]:
    return [Outcome(**{**one, "kernels": tuple(one["kernels"])}) for one in content["outcomes"]]  # type: ignore[arg-type]


def _agreeing(outcomes: Sequence[Outcome]) -> tuple[int, int]:
    """How many kernels agree in all cases that launch them, and how many are launched."""
    launched = {kernel for outcome in outcomes for kernel in outcome.kernels}
    wrong = {kernel for outcome in outcomes if outcome.verdict != "agreed" for kernel in outcome.kernels}
    return len(launched - wrong), len(launched)


def _summary(found: dict[str, dict[str, list[dict[str, object]]]]) -> str:
    lines = ["| package | kernels that agree | cases | " + " | ".join(VERDICTS) + " |"]
    lines.append("| --- | --- | --- |" + " --- |" * len(VERDICTS))
    everything: list[Outcome] = []
    for package, content in found.items():
        outcomes = _outcomes(content)
        everything += outcomes
        lines.append(_row(DISTRIBUTIONS[package], outcomes))
    lines.append(_row("all", everything))
    return "\n".join(lines) + "\n"


def _row(name: str, outcomes: Sequence[Outcome]) -> str:
    agreeing, launched = _agreeing(outcomes)
    verdicts = Counter(outcome.verdict for outcome in outcomes)
    counts = " | ".join(str(verdicts[verdict]) for verdict in VERDICTS)
    return f"| {name} | {agreeing} of {launched} | {len(outcomes)} | {counts} |"


def _table(title: str, outcomes: Sequence[Outcome]) -> str:
    lines = [f"## {title}\n", "| case | outcome | kernels |", "| --- | --- | --- |"]
    for outcome in outcomes:
        kernels = ", ".join(f"`{kernel.rsplit('.', 1)[1]}`" for kernel in outcome.kernels)
        reason = re.sub(r"\S*/site-packages/", "", outcome.reason.replace("|", "\\|"))
        lines.append(f"| {outcome.case} | {outcome.verdict}{': ' + reason if reason else ''} | {kernels} |")
    return "\n".join(lines) + "\n"
