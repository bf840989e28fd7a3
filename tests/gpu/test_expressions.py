"""Random elementwise expressions: the compiled kernel and its translation give the same numbers."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jtprim as jt
from tests.portable.test_expressions import (
    FLOAT,
    FLOATS,
    INTEGER,
    LANES,
    SIGNED,
    UNSIGNED,
    expressions,
    kernel_of,
)

pytestmark = pytest.mark.gpu


def on(device, expression, x, y):
    """The expression as a launch on `device` gives it."""
    with jax.enable_x64(True), jax.default_device(device):
        launch = jax.jit(
            lambda x, y: jt.kernel(kernel_of(expression))[2](x, y, BLOCK=LANES // 2, out_shape={"out_ptr": x})
        )
        return np.asarray(launch(jax.device_put(x, device), jax.device_put(y, device)))


def on_both(expression, x, y):
    return on(jax.devices()[0], expression, x, y), on(jax.devices("cpu")[0], expression, x, y)


@pytest.mark.parametrize("dtype", SIGNED + UNSIGNED, ids=lambda dtype: dtype.__name__)
@settings(max_examples=8)
@given(expressions(INTEGER), st.integers(0, 2**32 - 1))
def test_integers_are_the_same_bits(dtype, drawn, seed):
    expression, _ = drawn
    info = np.iinfo(dtype)
    rng = np.random.default_rng(seed)
    x, y = (rng.integers(info.min, info.max, LANES, dtype, endpoint=True) for _ in "xy")
    found, expected = on_both(expression, x, y)
    assert found.dtype == expected.dtype == dtype
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: np.dtype(dtype).name)
@settings(max_examples=8)
@given(expressions(FLOAT), st.integers(0, 2**32 - 1))
def test_floats_agree_to_the_last_place(dtype, drawn, seed):
    """To one unit in the last place of the largest number involved, which a difference may have lost."""
    expression, _ = drawn
    rng = np.random.default_rng(seed)
    x, y = (rng.normal(size=LANES).astype(dtype) for _ in "xy")
    for values in (x, y):
        values[rng.integers(0, LANES, 6)] = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-3]
    found, expected = (array.astype(np.float64) for array in on_both(expression, x, y))
    largest = max(np.abs(array[np.isfinite(array)]).max(initial=1.0) for array in (x, y, expected))
    unit = float(jax.numpy.finfo(dtype).eps) * float(largest)
    np.testing.assert_allclose(found, expected, rtol=0, atol=unit)
