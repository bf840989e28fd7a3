"""Triton's tutorial kernels inside `jax.jit`, on whatever this machine has: `python -m examples.demo`.

Runs each kernel on full-size inputs and checks it against NumPy; then lowers each for an NVIDIA H100
and an AMD MI300X, which takes neither, and writes the StableHLO and a summary of the compiled kernels.
Exits 1 if a result is wrong.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jtprim as jt
from examples import functions

TARGETS = {"h100": "cuda:90", "mi300x": "hip:gfx942"}

# Of the largest absolute value of the reference: three units in the last place of the half types, and
# 16 of float32, whose square roots, exponentials and quotients GPUs approximate.
TOLERANCES = {"float16": 3e-3, "bfloat16": 2.5e-2, "float32": 2e-6}
# GPUs multiply float32 matrices as TF32, whose mantissa is float16's.
TF32_TOLERANCE = 3e-3


@dataclass(frozen=True)
class Case:
    """One kernel on inputs of one size.

    Attributes:
      tutorial: Triton's tutorial, and the name of the files written.
      sizes: the inputs' sizes, for the table.
      function: runs the kernel on JAX arrays.
      reference: the same in NumPy, in float64.
      inputs: arrays of one dtype.
    """

    tutorial: str
    sizes: str
    function: Callable[..., Any]
    reference: Callable[..., Any]
    inputs: tuple[np.ndarray, ...]

    @property
    def dtype(self) -> str:
        return str(self.inputs[0].dtype)

    @property
    def tolerance(self) -> float:
        tf32 = self.dtype == "float32" and self.tutorial == "matmul" and jax.default_backend() == "gpu"
        return TF32_TOLERANCE if tf32 else TOLERANCES[self.dtype]


@dataclass(frozen=True)
class Outcome:
    """What came of a case: its error, relative to the largest value, and its time in milliseconds."""

    case: Case
    error: float
    milliseconds: float

    @property
    def ok(self) -> bool:
        return self.error <= self.case.tolerance  # not so for NaN


def cases(seed: int = 0) -> Iterator[Case]:
    """The tutorials' sizes, and larger ones."""
    random = np.random.default_rng(seed)

    def draw(*shape: int, dtype: Any = np.float32) -> np.ndarray:
        return random.standard_normal(shape, np.float32).astype(dtype)

    for n in (98432, 2**24):
        yield Case("vector-add", f"{n:,}", functions.add, functions.add_reference, (draw(n), draw(n)))
    for rows, columns in ((1823, 781), (4096, 1024)):
        yield Case(
            "fused-softmax",
            f"{rows}x{columns}",
            functions.softmax,
            functions.softmax_reference,
            (draw(rows, columns),),
        )
    for n in (512, 1024):
        yield Case(
            "matmul",
            f"{n}x{n}x{n}",
            functools.partial(functions.matmul, activation="leaky_relu"),
            functools.partial(functions.matmul_reference, activation="leaky_relu"),
            (draw(n, n, dtype=np.float16), draw(n, n, dtype=np.float16)),
        )
    for dtype in (np.float16, np.float32):
        yield Case(
            "layer-norm",
            "1151x8192",
            functions.layer_norm,
            functions.layer_norm_reference,
            (draw(1151, 8192, dtype=dtype), draw(8192, dtype=dtype), draw(8192, dtype=dtype)),
        )


def run(case: Case, *, seconds: float = 0.5) -> Outcome:
    """Runs a case inside `jax.jit`, checks all its outputs, and times it for some `seconds`."""
    compiled = jax.jit(case.function)
    arrays = [jnp.asarray(array) for array in case.inputs]
    results = jax.block_until_ready(compiled(*arrays))
    expected = case.reference(*case.inputs)
    pairs = zip(_as_tuple(results), _as_tuple(expected), strict=True)
    error = max(relative_error(result, exact) for result, exact in pairs)
    times: list[float] = []
    while len(times) < 3 or (sum(times) < seconds and len(times) < 1000):
        start = time.perf_counter()
        jax.block_until_ready(compiled(*arrays))
        times.append(time.perf_counter() - start)
    return Outcome(case, error, statistics.median(times) * 1e3)


def relative_error(result: Any, expected: np.ndarray) -> float:
    """The largest absolute difference, relative to the largest absolute value of `expected`."""
    result = np.asarray(result).astype(np.float64)
    if result.shape != expected.shape:
        raise ValueError(f"the result has shape {result.shape}, the reference {expected.shape}")
    return float(np.max(np.abs(result - expected)) / np.max(np.abs(expected)))


def _as_tuple(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)


def write_lowerings(case: Case, folder: Path) -> list[str]:
    """Writes a case's StableHLO for every target; returns what `jtprim.inspect` says of each."""
    tables = []
    for name, target in TARGETS.items():
        found = jt.inspect(jax.jit(case.function), *case.inputs, platform=target)
        (folder / f"{case.tutorial}.{name}.mlir").write_text(found.stablehlo)
        tables.append(f"{case.tutorial} on {name}: {found}\n")
    return tables


COLUMNS = {"kernel": 13, "sizes": 14, "dtype": 8, "max error": 9, "tolerance": 9, "ms": 9, "ok": 3}


def line(cells: Sequence[str]) -> str:
    """One line of the table: the first three columns to the left, numbers to the right."""
    placed = [
        cell.ljust(width) if number < 3 else cell.rjust(width)
        for number, (cell, width) in enumerate(zip(cells, COLUMNS.values(), strict=True))
    ]
    return "  ".join(placed)


def header() -> str:
    device = jax.devices()[0]
    versions = ", ".join(f"{name} {version(name)}" for name in ("jax", "triton", "numpy"))
    how = "kernels as compiled by Triton" if device.platform == "gpu" else "kernels translated to StableHLO"
    return f"jtprim {jt.__version__} on {device.device_kind} ({how}); {versions}"


def main(arguments: Sequence[str] | None = None) -> int:
    """The program. Returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description=__doc__.split("\n")[0])
    parser.add_argument(
        "--out", type=Path, default=Path("build/demo"), help="folder for StableHLO (default: %(default)s)"
    )
    folder: Path = parser.parse_args(arguments).out
    folder.mkdir(parents=True, exist_ok=True)

    print(header(), end="\n\n")
    print(line(list(COLUMNS)), flush=True)
    outcomes, tables = [], {}
    for case in cases():
        outcome = run(case)
        outcomes.append(outcome)
        print(
            line(
                (
                    case.tutorial,
                    case.sizes,
                    case.dtype,
                    f"{outcome.error:.1e}",
                    f"{case.tolerance:.1e}",
                    f"{outcome.milliseconds:.3f}",
                    "yes" if outcome.ok else "NO",
                )
            ),
            flush=True,
        )
        if case.tutorial not in tables:
            tables[case.tutorial] = write_lowerings(case, folder)
    print("\nErrors are relative to the largest value of the reference, which NumPy computes in float64.")

    summary = "\n".join(text for texts in tables.values() for text in texts)
    (folder / "kernels.txt").write_text(summary)
    print(f"\n{summary}")
    print(
        f"StableHLO for an H100 and an MI300X: {folder}/*.mlir; the summary above: {folder / 'kernels.txt'}"
    )
    wrong = [outcome for outcome in outcomes if not outcome.ok]
    if wrong:
        print(f"{len(wrong)} of {len(outcomes)} results are wrong.", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
