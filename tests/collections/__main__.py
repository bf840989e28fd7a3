"""Runs the cases and writes docs/collections.md.

    python -m tests.collections                run all packages
    python -m tests.collections fla gla        run the cases of one package whose names hold "gla"
    python -m tests.collections --report       write the document from what the last runs found

What a run finds is kept in build/collections, so that packages may be run one by one.
"""

from __future__ import annotations

import argparse
import importlib
import warnings

from . import report
from .bridge import bridged
from .cases import Case, run_case

PACKAGES = ("liger", "conch", "lightning", "cce", "fla")


def cases_of(package: str) -> list[Case]:
    with bridged(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(importlib.import_module(f"tests.collections.{package}").CASES)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.collections")
    parser.add_argument("package", nargs="?", choices=PACKAGES)
    parser.add_argument("part", nargs="?", default="", help="of the names of the cases to run")
    parser.add_argument("--report", action="store_true", help="run nothing")
    parser.add_argument("--trace", action="store_true", help="print where errors come from")
    options = parser.parse_args()
    for package in () if options.report else [options.package] if options.package else PACKAGES:
        outcomes = []
        for case in cases_of(package):
            if options.part not in case.name:
                continue
            outcome = run_case(package, case, trace=options.trace)
            outcomes.append(outcome)
            print(
                f"{outcome.seconds:6.1f}s {outcome.verdict:11} {package} {case.name} {outcome.reason}",
                flush=True,
            )
        if not options.part:
            report.keep(package, outcomes)
    report.write()


main()
