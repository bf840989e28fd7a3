"""Trains a small transformer: `python -m examples.training [--steps 300] [--both]`.

Writes the losses, with the machine that they are of, and a plot. With `--both` the same model is trained in
`jax.numpy` too; exits 1 if the two end up further apart than `TOLERANCE`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from benchmarks.run import describe_machine
from examples.training import model

# In nats, of the mean losses of the last tenth of the steps. Rounding differs from the first step on, and
# what differs grows in training: single steps come further apart.
TOLERANCE = 0.05


def main(arguments: Sequence[str] | None = None) -> int:
    """The program. Returns its exit status."""
    on_gpu = jax.default_backend() == "gpu"
    parser = argparse.ArgumentParser(prog="python -m examples.training", description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=300 if on_gpu else 60, help="default: %(default)s")
    parser.add_argument("--out", type=Path, default=Path("build/training"), help="default: %(default)s")
    parser.add_argument("--both", action="store_true", help="also without Triton, to compare")
    given = parser.parse_args(arguments)
    size = model.SIZES["gpu" if on_gpu else "cpu"]
    report: dict[str, Any] = {
        "machine": describe_machine(jax.devices()[0]),
        "size": vars(size),
        "losses": {},
        "seconds": {},
    }
    print(f"{report['machine']['device']}, {size}", flush=True)
    for kind in ("triton", "jnp") if given.both else ("triton",):
        print(f"\n{kind}", flush=True)
        report["losses"][kind], report["seconds"][kind] = run(kind, size, given.steps)
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / f"{'gpu' if on_gpu else 'cpu'}.json"
    status = 0
    if given.both:
        differences = [a - b for a, b in zip(*report["losses"].values(), strict=True)]
        last = differences[-max(given.steps // 10, 1) :]
        report["largest_difference"] = max(map(abs, differences))
        report["last_difference"] = sum(last) / len(last)
        print(f"\nlargest difference of a step's losses: {report['largest_difference']:.2e}")
        print(f"difference of the last {len(last)} steps' mean losses: {report['last_difference']:.2e}")
        status = 0 if abs(report["last_difference"]) <= TOLERANCE else 1
    path.write_text(json.dumps(report, indent=1) + "\n")
    print(f"written: {path}")
    try:
        print(f"written: {plot(report, path.with_suffix('.png'))}")
    except ImportError:
        print("no plot: matplotlib is not installed")
    return status


def run(kind: str, size: model.Size, steps: int) -> tuple[list[float], dict[str, float]]:
    """Trains one model; returns its losses, and the seconds of the first step and of all others together."""
    losses, start, first = [], time.perf_counter(), 0.0
    # A GPU would round float32 to TF32 in the products around the kernels: noise that training multiplies.
    with jax.default_matmul_precision("highest"):
        for step, loss in enumerate(model.train(kind, size, steps)):
            if step == 0:
                loss.block_until_ready()
                first = time.perf_counter() - start
            losses.append(loss)
            if step % max(steps // 10, 1) == 0 or step == steps - 1:
                print(f"  step {step:4}  loss {float(loss):.4f}", flush=True)
    losses = [float(loss) for loss in losses]
    others = time.perf_counter() - start - first
    print(f"  first step {first:.1f} s, {max(steps - 1, 0)} others {others:.1f} s", flush=True)
    return losses, {"first": first, "others": others}


def plot(report: Mapping[str, Any], path: Path) -> Path:
    """Draws the losses.

    Raises:
      ImportError: matplotlib is not installed.
    """
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for (kind, losses), style in zip(report["losses"].items(), ("-", "--"), strict=False):
        axis.plot(losses, style, label=kind, linewidth=1.5)
    axis.set_xlabel("step")
    axis.set_ylabel("loss in nats per byte")
    axis.grid(alpha=0.3)
    axis.legend()
    machine = report["machine"]
    commit = (machine["commit"] or "unknown commit")[:10]
    axis.set_title(
        f"{machine['device']}: jtprim at {commit}, jax {machine['jax']}, triton {machine['triton']}",
        fontsize=9,
    )
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
    return path


if __name__ == "__main__":
    sys.exit(main())
