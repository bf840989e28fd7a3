"""Runs the benchmarks of what this machine has, writes a JSON file and a plot, prints ratios.

python -m benchmarks.run [--cpu | --gpu | --hopper | --transforms] [--out benchmarks/results]
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("jtprim", "jax", "jaxlib", "triton", "torch", "numpy")


def main(arguments: Sequence[str] | None = None) -> int:
    """The program. Returns its exit status: 1 if a benchmark failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__.split("\n")[0])
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--cpu", action="store_true", help="the portable lowering, even if there is a GPU")
    where.add_argument("--gpu", action="store_true", help="launches on a GPU; an error if there is none")
    where.add_argument("--hopper", action="store_true", help="kernels that a Hopper GPU alone can run")
    where.add_argument("--transforms", action="store_true", help="batches and derivatives of launches")
    parser.add_argument(
        "--out", type=Path, default=Path("benchmarks/results"), help="folder (default: %(default)s)"
    )
    parser.add_argument("--seconds", type=float, help="for each case; more gives a narrower spread")
    given = parser.parse_args(arguments)
    if given.cpu:
        os.environ["JAX_PLATFORMS"] = "cpu"
    # PyTorch uses the same GPU; this has to be said before JAX starts.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax

    on_gpu = jax.default_backend() == "gpu"
    if (given.gpu or given.hopper) and not on_gpu:
        print("A GPU was asked for, and JAX sees none.", file=sys.stderr)
        return 1
    module = "gpu" if on_gpu else "portable"
    for special in ("hopper", "transforms"):
        module = special if getattr(given, special) else module
    report: dict[str, Any] = {"machine": describe_machine(jax.devices()[0]), "results": []}
    print(", ".join(f"{name} {value}" for name, value in report["machine"].items() if value), flush=True)
    path = given.out / file_name(report["machine"], module)
    given.out.mkdir(parents=True, exist_ok=True)
    seconds = {} if given.seconds is None else {"seconds": given.seconds}
    for result in importlib.import_module(f"benchmarks.{module}").run(**seconds):
        report["results"].append(result)
        print("\n".join(lines(result, absolute=on_gpu)), flush=True)
        path.write_text(json.dumps(report, indent=1) + "\n")  # now, in case a later one is cut off
    print(f"\nwritten: {path}")
    try:
        print(f"written: {plot(report, path.with_suffix('.png'))}")
    except ImportError:
        print("no plot: matplotlib is not installed")
    return 1 if any(result.get("failed") for result in report["results"]) else 0


# --- The machine -------------------------------------------------------------------------------


def describe_machine(device: Any) -> dict[str, Any]:
    """What a reader has to know to compare: device, versions, date and commit."""
    return {
        "device": device.device_kind if device.platform == "gpu" else processor(),
        "platform": device.platform,
        "cores": os.cpu_count(),
        "driver": driver() if device.platform == "gpu" else None,
        "python": platform.python_version(),
        **{name: installed(name) for name in PACKAGES},
        "date": datetime.date.today().isoformat(),
        "commit": commit(),
        "xla_flags": os.environ.get("XLA_FLAGS"),
    }


def installed(package: str) -> str | None:
    if package == "jtprim":
        import jtprim

        return jtprim.__version__
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def processor() -> str:
    try:
        found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1] if found else platform.processor() or platform.machine()


def driver() -> str | None:
    """The NVIDIA driver's version."""
    return output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")


def commit() -> str | None:
    """The commit that is measured: from JTPRIM_COMMIT where there is no repository."""
    return os.environ.get("JTPRIM_COMMIT") or output("git", "rev-parse", "HEAD")


def output(*command: str) -> str | None:
    """The first line that a command prints; None where it can't be run or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip().split("\n")[0] or None if done.returncode == 0 else None


def file_name(machine: Mapping[str, Any], module: str) -> str:
    """One file a machine and day: ``nvidia-h200-2026-01-31.json``, ``nvidia-h200-hopper-2026-01-31.json``."""
    kind = machine["device"] if machine["platform"] == "gpu" else "cpu"
    words = [
        re.sub(r"[^a-z0-9]+", "-", kind.lower()).strip("-"),
        *([module] if module not in ("gpu", "portable") else []),
    ]
    return f"{'-'.join(words)}-{machine['date']}.json"


# --- The report --------------------------------------------------------------------------------


def lines(result: Mapping[str, Any], *, absolute: bool) -> Iterator[str]:
    """A result as text: ratios first; times where the machine is the same for all who measure."""
    yield ""
    yield result["case"]
    if "skipped" in result:
        yield f"  skipped: {result['skipped'].strip().splitlines()[-1]}"
        return
    for name, found in result["candidates"].items():
        spread = "({:.3f} to {:.3f})".format(*found["ratio_quartiles"]) if "ratio_quartiles" in found else ""
        text = f"  {name:<46} {found['ratio']:9.3f} {spread:<20}"
        yield f"{text} {duration(found['median_us']):>12}" if absolute else text.rstrip()


def duration(microseconds: float) -> str:
    """A time in the unit that suits it."""
    unit, size = next((u, s) for u, s in (("s", 1e6), ("ms", 1e3), ("us", 1)) if microseconds >= s or s == 1)
    return f"{microseconds / size:.2f} {unit}"


def plot(report: Mapping[str, Any], path: Path) -> Path:
    """Draws each candidate's ratio to its case's base: medians, with lines from quartile to quartile.

    What was measured in rounds and what was measured once have an axis each.

    Raises:
      ImportError: matplotlib is not installed.
    """
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    shown = [result for result in report["results"] if "candidates" in result]
    panels = [
        [result for result in shown if result["rounds"] > 1],
        [result for result in shown if result["rounds"] == 1],
    ]
    panels = [panel for panel in panels if panel]
    heights = [sum(len(result["candidates"]) - 1 for result in panel) + 2 for panel in panels]
    figure, axes = pyplot.subplots(
        len(panels),
        1,
        figsize=(11, 0.8 + 0.3 * sum(heights)),
        height_ratios=heights,
        layout="constrained",
        squeeze=False,
    )
    for panel, axis in zip(panels, axes[:, 0], strict=True):
        _draw_panel(panel, axis)
    machine = report["machine"]
    commit = (machine["commit"] or "unknown commit")[:10]
    versions = ", ".join(f"{name} {machine[name]}" for name in ("jax", "triton", "torch") if machine[name])
    title = f"{machine['device']}: jtprim {machine['jtprim']} at {commit}, {versions}, {machine['date']}"
    figure.suptitle(title, fontsize=10)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
    return path


def _draw_panel(results: Sequence[Mapping[str, Any]], axis: Any) -> None:
    labels: list[str] = []
    medians: list[float] = []
    for result in results:
        for name, found in result["candidates"].items():
            if name == result["base"]:
                continue
            place, median = len(labels), found["ratio"]
            lower, upper = found.get("ratio_quartiles", (median, median))
            labels.append(f"{result['case']}: {name} / {result['base']}")
            medians.append(median)
            colour = "tab:blue" if name.startswith("jtprim") else "tab:gray"
            axis.plot([lower, upper], [place, place], color=colour, linewidth=3, alpha=0.5)
            axis.plot([median], [place], "o", color=colour, markersize=5)
            text = f"{median:.3f}" if median < 10 else f"{median:,.0f}"
            axis.annotate(text, (upper, place), (6, -3), textcoords="offset points", fontsize=7)
    axis.axvline(1, color="black", linewidth=0.8)
    if max(medians) > 20 * min(medians):
        axis.set_xscale("log")
        axis.margins(x=0.1)
    else:
        axis.set_xlim(0, 1.2 * max(*medians, 1))
    axis.set_ylim(len(labels) - 0.5, -0.5)
    axis.set_yticks(range(len(labels)), labels, fontsize=7)
    axis.grid(axis="x", alpha=0.3)
    axis.set_xlabel("ratio of times; below 1 the first is faster", fontsize=8)


if __name__ == "__main__":
    sys.exit(main())
