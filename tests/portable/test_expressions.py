"""Random expressions of elementwise operations in every dtype, against NumPy with a GPU's rules."""

import functools
import itertools
import linecache
import operator

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import triton
import triton.language as tl
from hypothesis import given, settings

from tests.portable.launching import launch

SIGNED = [np.int8, np.int16, np.int32, np.int64]
UNSIGNED = [np.uint8, np.uint16, np.uint32, np.uint64]
FLOATS = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]
LANES = 64

# An operation: how a kernel writes it, and what it is in NumPy, where both operands are of one dtype.
# Division and remainder round toward zero; divisors are positive.


def divide(x, y):
    quotient = np.abs(x.astype(object)) // np.abs(y.astype(object))
    return (quotient * np.sign(x.astype(object)) * np.sign(y.astype(object))).astype(x.dtype)


def remainder(x, y):
    return (x.astype(object) - divide(x, y).astype(object) * y.astype(object)).astype(x.dtype)


ARITHMETIC = {"({} + {})": operator.add, "({} - {})": operator.sub, "({} * {})": operator.mul}
INTEGER = {
    **ARITHMETIC,
    "({} & {})": operator.and_,
    "({} | {})": operator.or_,
    "({} ^ {})": operator.xor,
    "tl.minimum({}, {})": np.minimum,
    "tl.maximum({}, {})": np.maximum,
    "tl.where({0} < {1}, {0}, {1} + {0})": lambda x, y: np.where(x < y, x, y + x),
    "({0} // ({1} & 63 | 1) + {0} % ({1} & 63 | 1))": lambda x, y: (
        divide(x, y & 63 | 1) + remainder(x, y & 63 | 1)
    ),
    "({} >> ({} & 7))": lambda x, y: x >> (y & x.dtype.type(7)),
    "({} << ({} & 7))": lambda x, y: x << (y & x.dtype.type(7)),
}
# A compiler may round a product and a sum once (`enable_fp_fusion`), so the only products here are exact.
# Triton 3.6 gives the minimum and maximum of bfloat16 in float32.
FLOAT = {
    "({} + {})": operator.add,
    "({} - {})": operator.sub,
    "({} * 0.5 - {})": lambda x, y: x * x.dtype.type(0.5) - y,
    "tl.minimum({}, {}).to(x.dtype)": np.fmin,
    "tl.maximum({}, {}).to(x.dtype)": np.fmax,
    "tl.where({0} <= {1}, {0}, {1})": lambda x, y: np.where(x <= y, x, y),
    "tl.where({0} != {1}, {0}, -{1})": lambda x, y: np.where(x != y, x, -y),
    "tl.abs({} - {})": lambda x, y: np.abs(x - y),
}


@st.composite
def expressions(draw, operations, depth=3):
    """The text of an expression of x and y, and the function that computes it."""
    if depth == 0 or draw(st.integers(0, 3)) == 0:
        name = draw(st.sampled_from("xy"))
        return name, lambda x, y: x if name == "x" else y
    pattern = draw(st.sampled_from(sorted(operations)))
    (first, f), (second, g) = (draw(expressions(operations, depth - 1)) for _ in "xy")

    def compute(x, y):
        return operations[pattern](f(x, y), g(x, y)).astype(x.dtype)

    return pattern.format(first, second), compute


NUMBERS = itertools.count()


@functools.cache
def kernel_of(expression):
    """A kernel that stores the expression of two blocks."""
    text = (
        "@triton.jit\n"
        "def expression(x_ptr, y_ptr, out_ptr, BLOCK: tl.constexpr):\n"
        "    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n"
        "    x = tl.load(x_ptr + places)\n"
        "    y = tl.load(y_ptr + places)\n"
        f"    tl.store(out_ptr + places, ({expression}).to(out_ptr.dtype.element_ty))\n"
    )
    name = f"<expression {next(NUMBERS)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    names = {"triton": triton, "tl": tl}
    exec(compile(text, name, "exec"), names)
    return names["expression"]


def run(expression, x, y):
    with jax.enable_x64(True):
        out = jnp.zeros(LANES, x.dtype)
        return np.asarray(launch(kernel_of(expression), (2,), x, y, out, written=[2], BLOCK=LANES // 2))


@pytest.mark.parametrize("dtype", SIGNED + UNSIGNED, ids=lambda dtype: dtype.__name__)
@settings(max_examples=25)
@given(expressions(INTEGER), st.integers(0, 2**32 - 1))
def test_integers_wrap_and_keep_the_sign_rules_of_their_type(dtype, drawn, seed):
    expression, compute = drawn
    info = np.iinfo(dtype)
    rng = np.random.default_rng(seed)
    x, y = (rng.integers(info.min, info.max, LANES, dtype, endpoint=True) for _ in "xy")
    with np.errstate(all="ignore"):
        expected = compute(x, y)
    np.testing.assert_array_equal(run(expression, x, y), expected)


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: np.dtype(dtype).name)
@settings(max_examples=25)
@given(expressions(FLOAT), st.integers(0, 2**32 - 1))
def test_floats_are_rounded_after_each_operation_of_their_type(dtype, drawn, seed):
    expression, compute = drawn
    rng = np.random.default_rng(seed)
    x, y = (rng.normal(size=LANES).astype(dtype) for _ in "xy")
    for values in (x, y):
        values[rng.integers(0, LANES, 6)] = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-3]
    with np.errstate(all="ignore"):
        expected = compute(x, y)
    found = run(expression, x, y)
    np.testing.assert_array_equal(found.astype(np.float64), expected.astype(np.float64))
