"""What jtprim compiles is what Triton's own launcher compiles, for argument trees of any shape."""

import hashlib
import linecache
from typing import Any, NamedTuple
from unittest import mock

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import triton
import triton.language as tl
from hypothesis import given, settings
from triton.runtime import driver
from triton.runtime.jit import MockTensor

import jtprim as jt
from jtprim.specialize.target import parse_target
from tests import strategies

# Triton's AMD backend imports torch to look at arrays before 3.8.
TARGETS = ["cuda:90", *(["hip:gfx942"] if triton.__version__ >= "3.8" else [])]


class Fields(NamedTuple):
    a: Any
    b: Any


class Driver:
    """A machine with one GPU, as far as a launch that is not run asks for it."""

    def __init__(self, target):
        self.target = parse_target(target)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0

    def get_current_target(self):
        return self.target


@triton.jit
def halve(x):
    return x * 0.5


arrays = st.builds(
    jax.ShapeDtypeStruct,
    st.just((4,)),
    st.sampled_from([np.dtype(name) for name in ("float32", "float16", "int32", "uint8", "bool")]),
)
arguments = st.recursive(
    st.one_of(arrays, strategies.scalars, st.none(), st.just(halve)),
    lambda inside: st.one_of(
        st.lists(inside, min_size=1, max_size=3).map(tuple), st.builds(Fields, inside, inside)
    ),
    max_leaves=5,
)
constants = st.one_of(
    st.integers(-3, 64),
    st.booleans(),
    st.text("ab", max_size=2),
    st.none(),
    st.just(halve),
    st.just((1, "a")),
)
# An annotation, and a value for the parameter that has it.
parameters = st.one_of(
    st.tuples(st.sampled_from(["", ": tl.int64", ": tl.int16"]), st.integers(-(2**15), 2**15 - 1)),
    st.tuples(st.sampled_from(["", ": tl.float16"]), st.floats(-100, 100)),
    st.tuples(st.just(": tl.constexpr"), constants),
    st.tuples(st.just(""), arguments),
)


def statements(expression, value):
    """Kernel code in which every leaf of an argument changes what is stored."""
    if isinstance(value, Fields):
        yield from statements(f"{expression}.a", value.a)
        yield from statements(f"{expression}.b", value.b)
    elif isinstance(value, tuple):
        for index, child in enumerate(value):
            yield from statements(f"{expression}[{index}]", child)
    elif isinstance(value, jax.ShapeDtypeStruct):
        yield f"acc += tl.load({expression} + tl.program_id(0)).to(tl.float32)"
    elif value is None or isinstance(value, str):
        yield f"if {expression} == {value!r}:"
        yield "    acc += 7"
    elif value is halve:
        yield f"acc = {expression}(acc)"
    elif isinstance(value, tl.dtype):
        yield f"acc += tl.full((), 2, {expression}).to(tl.float32)"
    else:
        yield f"acc += {expression}"


def kernel_of(given_parameters, unspecialized):
    """A kernel whose parameters suit the arguments."""
    heads = [f"p{i}{annotation}" for i, (annotation, _) in enumerate(given_parameters)]
    body = [line for i, (_, value) in enumerate(given_parameters) for line in statements(f"p{i}", value)]
    text = f"def kernel({', '.join([*heads, 'out_ptr'])}):\n    acc = 0.0\n"
    text += "".join(f"    {line}\n" for line in body) + "    tl.store(out_ptr + tl.program_id(0), acc)\n"
    name = f"<kernel {hashlib.sha256(text.encode()).hexdigest()}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    namespace = {"tl": tl, "__name__": __name__}
    exec(compile(text, name, "exec"), namespace)
    return triton.jit(namespace["kernel"], do_not_specialize=[f"p{i}" for i in unspecialized])


def mapped(function, value):
    """`function` of each leaf of an argument."""
    if isinstance(value, Fields):
        return Fields(*(mapped(function, child) for child in value))
    return tuple(mapped(function, child) for child in value) if isinstance(value, tuple) else function(value)


def as_mock(value):
    if isinstance(value, jax.ShapeDtypeStruct):
        return MockTensor(str(value.dtype), list(value.shape))
    return tl.constexpr(value) if isinstance(value, (str, tl.dtype)) else value


def as_array(value):
    return jnp.zeros(value.shape, value.dtype) if isinstance(value, jax.ShapeDtypeStruct) else value


@pytest.mark.parametrize("target", TARGETS)
@settings(max_examples=30)
@given(
    given_parameters=st.lists(parameters, min_size=1, max_size=4),
    unspecialized=st.sets(st.integers(0, 3)),
    num_warps=st.sampled_from([1, 4]),
)
def test_the_compiled_kernel_is_the_one_that_tritons_launcher_compiles(
    target, given_parameters, unspecialized, num_warps
):
    runtime = [i for i, (annotation, _) in enumerate(given_parameters) if annotation != ": tl.constexpr"]
    unspecialized = [i for i in runtime if i in unspecialized]
    kernel = kernel_of(given_parameters, unspecialized)
    out = jax.ShapeDtypeStruct((4,), np.float32)
    mocks = [v if ": tl.constexpr" in a else mapped(as_mock, v) for a, v in given_parameters]
    arrays = [mapped(as_array, value) for _, value in given_parameters]
    f = lambda: jt.kernel(kernel)[4](*arrays, out_shape={"out_ptr": out}, num_warps=num_warps)
    try:
        with mock.patch.object(driver, "_active", Driver(target)):
            native = kernel.warmup(*mocks, as_mock(out), grid=(1,), num_warps=num_warps)
    except (triton.CompilationError, TypeError):  # such as a float for a parameter that isn't specialized
        with pytest.raises((triton.CompilationError, TypeError)):
            jt.inspect(f, platform=target)
        return
    [ours] = jt.inspect(f, platform=target).kernels
    assert ours.binary.asm["ttir"] == native.asm["ttir"]
    assert ours.image == native.kernel
