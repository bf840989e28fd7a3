"""`Kernel.preload`: what Triton's launcher records is compiled, and launches find it."""

import inspect
import json

import jax.numpy as jnp
import pytest
import triton
import triton.language as tl
from triton.compiler import make_backend
from triton.runtime import jit as triton_jit

import jtprim as jt
from jtprim.errors import LaunchValueError
from jtprim.specialize.target import parse_target
from tests.kernels import add, add_pair

X = jnp.arange(64, dtype=jnp.float32)


@triton.jit
def double(x):
    return x * 2


@triton.jit
def apply(x_ptr, out_ptr, n, scale, SHAPE: tl.constexpr, FUNCTION: tl.constexpr, DTYPE: tl.constexpr):
    offsets = tl.arange(0, SHAPE[0])
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    tl.store(out_ptr + offsets, FUNCTION(x * scale).to(DTYPE), mask=offsets < n)


def recorded(kernel, *args, target, options=None, **kwargs):
    """The record that Triton's launcher makes of a launch."""
    specialization = jt.specialize(kernel, *args, target=target, **kwargs)
    parsed = make_backend(parse_target(target)).parse_options(dict(options or {}))
    serialize = triton_jit.serialize_specialization_data
    last = [parse_target(target)] if "target" in inspect.signature(serialize).parameters else []
    return serialize(
        f"{kernel.fn.__module__}.{kernel.fn.__qualname__}",
        dict(specialization.signature),
        {path: static.value for path, static in specialization.constexprs},
        {path: [list(pair) for pair in pairs] for path, pairs in specialization.attributes},
        parsed,
        "key",
        *last,
    )


@pytest.fixture
def compilations(monkeypatch):
    jt.clear_caches()
    asked, real = [], triton.compile
    monkeypatch.setattr(
        triton, "compile", lambda src, **kwargs: asked.append(src.name) or real(src, **kwargs)
    )
    return asked


LAUNCHES = [
    (add, (X, X), {"n": 64, "BLOCK": 32}, {}, "out_ptr"),
    (add, (X, X), {"n": 63, "BLOCK": 32}, {"num_warps": 8}, "out_ptr"),
    (add_pair, ((X, X),), {"n": 1, "BLOCK": 32}, {}, "out_ptr"),
]


@pytest.mark.parametrize("target", ["cuda:90", "hip:gfx942"])
@pytest.mark.parametrize("kernel, args, kwargs, options, out", LAUNCHES)
def test_a_launch_finds_what_was_preloaded(kernel, args, kwargs, options, out, target, compilations):
    data = recorded(kernel, *args, **kwargs, **{out: X}, options=options, target=target)
    binary = jt.kernel(kernel).preload(data)
    assert compilations == [kernel.fn.__name__]
    launch = lambda *args: jt.kernel(kernel)[2](*args, **kwargs, **options, out_shape={out: X})
    [one] = jt.inspect(launch, *args, platform=target).kernels
    assert compilations == [kernel.fn.__name__]
    assert one.binary is binary
    assert jt.kernel(kernel).cache_info().binaries == (binary,)


@pytest.mark.skipif(
    "target" not in inspect.signature(triton_jit.serialize_specialization_data).parameters,
    reason="Triton before 3.9 can't record a function among the constants",
)
def test_constants_of_every_kind_are_read_back(compilations):
    kwargs = {"n": 16, "scale": 2.5, "SHAPE": (16, 1), "FUNCTION": double, "DTYPE": tl.float16}
    data = recorded(apply, X, out_ptr=X.astype(jnp.float16), **kwargs, target="cuda:90")
    jt.kernel(apply).preload(data)
    assert compilations == ["apply"]


@pytest.mark.parametrize("data", ["", "[]", "{}", '{"name": 1}', "null"])
def test_what_is_no_record_is_refused(data):
    with pytest.raises(LaunchValueError, match="add: preload got"):
        jt.kernel(add).preload(data)


def test_a_record_that_lacks_something_is_refused():
    record = json.loads(recorded(add, X, X, X, n=64, BLOCK=32, target="cuda:90"))
    for key in ("signature", "constant_keys", "constant_vals", "attrs_keys", "attrs_vals", "options"):
        less = {name: value for name, value in record.items() if name != key}
        with pytest.raises(LaunchValueError, match=f"no specialization data of Triton's .KeyError: '{key}'"):
            jt.kernel(add).preload(json.dumps(less))


def test_another_kernels_record_is_refused():
    data = recorded(add, X, X, X, n=64, BLOCK=32, target="cuda:90")
    with pytest.raises(
        LaunchValueError, match="add_pair: preload got specialization data of tests.kernels.add;"
    ):
        jt.kernel(add_pair).preload(data)


def test_a_second_preload_compiles_nothing(compilations):
    data = recorded(add, X, X, X, n=64, BLOCK=16, target="cuda:80")
    assert jt.kernel(add).preload(data) is jt.kernel(add).preload(data)
    assert compilations == ["add"]
