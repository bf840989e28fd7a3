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
