"""What the GPU tests ask about the machine, and how they start another process on it."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import jax

from jtprim.specialize.target import target_name, target_of_device

ROOT = Path(__file__).parents[2]


def local_target() -> str:
    """The target of this machine's first GPU, as a launch names it: ``"cuda:90"``."""
    return target_name(target_of_device(jax.devices()[0]))


def local_platform() -> str:
    """JAX's name of this machine's GPU platform for a lowering: ``"cuda"`` or ``"rocm"``."""
    return "cuda" if local_target().startswith("cuda") else "rocm"


def run_python(program: str, **environment: str) -> str:
    """Runs a program in another process, with the project at hand; returns what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def opaque(text: str) -> list[str]:
    """The messages of the kernel calls in a StableHLO module's text."""
    return re.findall(r'opaque = "([^"]*)"', text)


def copies(compiled: Any, shape: str = "") -> list[str]:
    """The instructions of a compiled program that copy an array, of a given shape (``"f32[8]"``) if any."""
    pattern = re.compile(rf"^.* = .*{re.escape(shape)}\S* copy(?:-start)?\(.*$", re.MULTILINE)
    return pattern.findall(compiled.as_text())
