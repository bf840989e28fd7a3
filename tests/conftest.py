"""Settings that all tests share: strict JAX, hypothesis profiles, and what a missing GPU means."""

import functools
import os
from pathlib import Path

import hypothesis
import jax
import pytest

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

# HYPOTHESIS_PROFILE=thorough looks longer. CI draws the same examples each time, so that a failure
# is the commit's own.
hypothesis.settings.register_profile(
    "quick", max_examples=50, deadline=None, derandomize=bool(os.environ.get("CI"))
)
hypothesis.settings.register_profile("thorough", max_examples=1000, deadline=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

GPU_TESTS = Path(__file__).parent / "gpu"


@functools.cache
def has_gpu() -> bool:
    return jax.default_backend() == "gpu"


def pytest_configure():
    folder = os.environ.get("JTPRIM_RECORD_OPERATIONS")
    if folder:  # for docs/operations.py: which operations each test file runs
        _record_operations(Path(folder) / str(os.getpid()))


def _record_operations(path):
    from jtprim.lowering.portable import expansion, machine

    seen = set()

    def recording(name, rule):
        @functools.wraps(rule)
        def recorded(*args, **kwargs):
            test = os.environ.get("PYTEST_CURRENT_TEST", "").split("::")[0]
            if test and (name, test) not in seen:
                seen.add((name, test))
                with path.open("a") as file:
                    file.write(f"{name}\t{test}\n")
            return rule(*args, **kwargs)

        return recorded

    for table in (machine.RULES, expansion.EXPANSIONS):
        table.update({name: recording(name, rule) for name, rule in table.items()})


def pytest_collection_modifyitems(items):
    for item in items:
        if GPU_TESTS in item.path.parents:
            item.add_marker("gpu")


def pytest_runtest_setup(item):
    if item.get_closest_marker("gpu") is None or has_gpu():
        return
    if os.environ.get("JTPRIM_REQUIRE_GPU") == "1":
        pytest.fail("JTPRIM_REQUIRE_GPU=1, and JAX sees no GPU", pytrace=False)
    pytest.skip("needs a GPU")
