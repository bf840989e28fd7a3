"""Writes docs/operations.md: what the portable lowering does with each operation, and which tests run it.

python docs/operations.py

The operations and what becomes of them are read off the code, the tests off a run of them.
"""

from __future__ import annotations

import collections
import inspect
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_suffix(".md")
ROOT = TABLE.parent.parent
TESTS = ("tests/portable", "tests/test_gluon_launches.py")

HEADER = """# Operations of the portable lowering

Made by `python docs/operations.py` (`make docs`): operations and what becomes of them are read off the code,
the tests off a run of them. Any other operation is a `NotImplementedError` that names it and the line.
"""


def operations() -> dict[str, str]:
    """Every operation with a translation, and how it is done."""
    import jtprim.lowering.portable  # noqa: F401  (registers the rules)
    from jtprim.lowering.portable.expansion import EXPANSIONS
    from jtprim.lowering.portable.machine import RULES

    own = {name: how(rule) for name, rule in RULES.items() if not name.startswith("jtprim.")}
    return {**own, **{name: f"expanded: {how(rule)}" for name, rule in EXPANSIONS.items()}}


def how(rule: Callable[..., Any]) -> str:
    """A rule's docstring, up to its first full stop; else its file and name."""
    function = inspect.signature(rule).parameters.get("function")
    if function is not None:  # one function of arrays for each element
        return f"each element: {name_of(function.default)}"
    text = inspect.getdoc(rule)
    if text:
        return " ".join(text.split(". ")[0].split()).rstrip(".")
    file = inspect.getsourcefile(rule)
    place = Path(file).name if file else "?"
    return f"`{rule.__name__.strip('_')}` in {place}"


def name_of(function: Callable[..., Any]) -> str:
    """A function's name; of one that wraps another, the other's."""
    inner = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    wrapped = [value for value in inner if callable(value)]
    if wrapped:
        return name_of(wrapped[0])
    name = function.__name__.strip("_")
    return "a formula" if name == "<lambda>" else f"`{name}`"


def tested() -> dict[str, set[str]]:
    """The test files that run each operation."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "JTPRIM_RECORD_OPERATIONS": folder, "JAX_PLATFORMS": "cpu"}
        command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", *TESTS]
        subprocess.run(command, cwd=ROOT, env=environment, check=True)
        found: dict[str, set[str]] = collections.defaultdict(set)
        for record in Path(folder).iterdir():
            for line in record.read_text().splitlines():
                name, file = line.split("\t")
                found[name].add(file)
        return found


def table(files: dict[str, set[str]]) -> str:
    """The page."""
    dialects: dict[str, list[tuple[str, str]]] = collections.defaultdict(list)
    for name, text in sorted(operations().items()):
        dialects[name.split(".")[0]].append((name, text))
    lines = [HEADER]
    for dialect, entries in dialects.items():
        lines += [f"## {dialect}", "", "| operation | how | tests |", "| --- | --- | --- |"]
        for name, text in entries:
            tests = ", ".join(sorted(Path(file).stem.removeprefix("test_") for file in files.get(name, ())))
            lines.append(f"| `{name}` | {text.replace('|', chr(92) + '|')} | {tests or '-'} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    TABLE.write_text(table(tested()))
    print(f"written: {TABLE}")
