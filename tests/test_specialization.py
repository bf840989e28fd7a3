"""Specialization: that it is Triton's own, and what its key promises."""

import functools

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import triton
import triton.language as tl
from hypothesis import assume, example, given, settings
from triton.compiler import make_backend

import jtprim as jt
from jtprim import compat
from jtprim.errors import LaunchTypeError
from jtprim.specialize.adapters import unadapted
from jtprim.specialize.binder import kernel_binder, stand_in
from jtprim.specialize.compile import ast_source
from jtprim.specialize.kernel import kernel_source
from jtprim.specialize.target import parse_target
from jtprim.specialize.ttir import portable_ttir
from tests import strategies
from tests.kernels import add, add_pair, takes_anything

TARGETS = ["cuda:90", "cuda:80", "hip:gfx942", "hip:gfx1100"]


class Tensor:
    """What Triton's binder sees of a tensor of another framework."""

    def __init__(self, shape, dtype):
        self.shape, self.dtype = shape, dtype
        self.size_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize

    def data_ptr(self):
        return 4096

    def ptr_range(self):
        return self.size_bytes


def as_tensor(value):
    if isinstance(value, jax.ShapeDtypeStruct):
        return Tensor(value.shape, value.dtype)
    if isinstance(value, (tuple, list)):
        return tuple(map(as_tensor, value))
    return tl.constexpr(value) if isinstance(value, (str, tl.dtype)) else value


def tritons_own(function, target, **kwargs):
    """Signature, constexprs and attributes as `JITFunction.run` makes them."""
    target = parse_target(target)
    backend = make_backend(target)
    binder, _ = kernel_binder(function, target)
    bound, specialization, _ = binder(**kwargs)
    _, signature, constexprs, attributes = function._pack_args(backend, {}, bound, specialization, {})
    return signature, constexprs, attributes


arrays = strategies.shapes_and_dtypes()
values = st.one_of(strategies.scalars, arrays, st.tuples(strategies.scalars, arrays), st.none())


@given(
    x=arrays,
    out=arrays,
    a=values,
    b=values,
    c=values,
    d=values,
    constant=st.one_of(st.integers(0, 64), st.booleans(), st.text("ab", max_size=2), st.none()),
    target=st.sampled_from(TARGETS),
)
def test_specialize_agrees_with_tritons_own_launcher(x, out, a, b, c, d, constant, target):
    arguments = dict(x_ptr=x, a=a, b=b, c=c, out_ptr=out, K=constant, d=d)
    found = jt.specialize(takes_anything, target=target, **arguments)
    tensors = {name: as_tensor(value) for name, value in arguments.items()}
    signature, constexprs, attributes = tritons_own(takes_anything, target, **{**tensors, "K": constant})
    constants = {path for path, _ in found.constexprs}
    assert dict(found.signature) == signature
    assert {path: repr(s.value) for path, s in found.constexprs} == {
        p: repr(v) for p, v in constexprs.items()
    }
    # Triton 3.6 reads attributes into the text of constexprs; later versions don't.
    kept = {p: tuple(map(tuple, v)) for p, v in attributes.items() if p not in constants}
    assert dict(found.attributes) == kept


@given(st.permutations(["x_ptr", "y_ptr", "out_ptr", "n", "BLOCK"]))
def test_the_order_of_keywords_does_not_matter(order):
    x = jax.ShapeDtypeStruct((100,), np.float32)
    arguments = dict(x_ptr=x, y_ptr=x, out_ptr=x, n=100, BLOCK=64)
    shuffled = {name: arguments[name] for name in order}
    assert jt.specialize(add, target="cuda:90", **shuffled) == jt.specialize(
        add, x, x, x, 100, BLOCK=64, target="cuda:90"
    )


@functools.cache
def ttir(specialization):
    return portable_ttir(ast_source(unadapted(specialization.source, specialization)), {})


@given(
    n=strategies.integers,
    m=strategies.integers,
    dtypes=st.tuples(*[st.sampled_from(["float32", "float16", "int32"])] * 2),
    blocks=st.tuples(*[st.sampled_from([16, 32])] * 2),
)
@example(n=32, m=48, dtypes=("float32", "float32"), blocks=(16, 16))
@example(n=1, m=True, dtypes=("float32", "float32"), blocks=(16, 16))
@settings(max_examples=25)
def test_equal_keys_give_equal_ttir(n, m, dtypes, blocks):
    assume(not isinstance(n, bool))
    made = [
        jt.specialize(add, *[jax.ShapeDtypeStruct((64,), dtype)] * 3, number, BLOCK=block, target="cuda:80")
        for number, dtype, block in zip((n, m), dtypes, blocks, strict=True)
        if not isinstance(number, bool)
    ]
    if len(made) == 2 and made[0].key == made[1].key:
        assert ttir(made[0]) == ttir(made[1])
        assert made[0] == made[1]


@pytest.mark.parametrize(
    "value,kind",
    [
        (2, "i32"),
        (-5, "i32"),
        (2**31, "i64"),
        (-(2**31) - 1, "i64"),
        (2**63, "u64"),
        (True, "u1"),
        (1.0, "fp32"),
        (0.5, "fp32"),
        (1, "constexpr"),
        (None, "constexpr"),
        ("text", "constexpr"),
        (tl.float16, "constexpr"),
        (np.float32(1), "fp32"),
        (np.int64(7), "i32"),
        ((1.5, 2**40), ("fp32", "i64")),
    ],
)
def test_scalars_have_tritons_types(value, kind):
    x = jnp.zeros(4)
    found = jt.specialize(takes_anything, x, value, 2, 2, x, K=0, target="cuda:90")
    assert dict(found.signature)["a"] == kind


def test_a_float_one_is_not_the_integer_constant_one():
    x = jnp.zeros(4)
    found = jt.specialize(takes_anything, x, 1.0, 1, True, x, K=0, target="cuda:90")
    types = dict(found.signature)
    assert (types["a"], types["b"], types["c"]) == ("fp32", "constexpr", "u1")


@pytest.mark.parametrize("value,divisible", [(64, True), (16, True), (0, True), (8, False), (-32, True)])
def test_divisibility_by_sixteen_is_an_attribute(value, divisible):
    x = jnp.zeros(4)
    found = jt.specialize(takes_anything, x, value, 2, 2, x, K=0, target="cuda:90")
    assert found.is_aligned((1,)) is divisible


@triton.jit(do_not_specialize=["n"], do_not_specialize_on_alignment=["m"])
def annotated(x_ptr, n, m, half: tl.float16, byte: tl.int8, wide: tl.int64, K: tl.constexpr = 4):
    tl.store(x_ptr, 0)


def test_annotations_and_do_not_specialize_are_respected():
    found = jt.specialize(annotated, jnp.zeros(4), 1, 16, 1.0, 3, 16, target="cuda:90")
    assert dict(found.signature) == {
        "x_ptr": "*fp32",
        "n": "i32",
        "m": "i32",
        "half": "fp16",
        "byte": "i8",
        "wide": "i64",
        "K": "constexpr",
    }
    assert not found.is_aligned((2,))
    assert found.is_aligned((5,))


def test_amd_learns_that_small_arrays_span_less_than_two_gib():
    small, large = jax.ShapeDtypeStruct((8,), np.float32), jax.ShapeDtypeStruct((2**30,), np.float32)
    found = jt.specialize(add, small, large, small, 8, BLOCK=8, target="hip:gfx942")
    attributes = dict(found.attributes)
    assert ("tt.pointer_range", 32) in attributes[(0,)]
    assert ("tt.pointer_range", 32) not in attributes[(1,)]


def test_the_binder_is_built_once_per_kernel_and_target():
    target = parse_target("cuda:90")
    assert kernel_binder(add, target) is kernel_binder(add, target)
    assert kernel_binder(add, target) is not kernel_binder(add_pair, target)


def test_tuples_nest_in_signature_and_paths():
    x = jnp.zeros(4)
    found = jt.specialize(add_pair, (x, x), x, 1, BLOCK=16, target="cuda:90")
    assert dict(found.signature)["pair"] == ("*fp32", "*fp32")
    assert [path for path, _ in found.constexprs] == [(2,), (3,)]
    assert [path for path, _ in found.leaf_types()] == [(0, 0), (0, 1), (1,), (2,), (3,)]


def test_the_target_may_come_from_the_environment(monkeypatch):
    x = jnp.zeros(4)
    monkeypatch.setenv("JTPRIM_TARGET", "hip:gfx942")
    assert jt.specialize(add, x, x, x, 4, BLOCK=4) == jt.specialize(
        add, x, x, x, 4, BLOCK=4, target="hip:gfx942"
    )
    monkeypatch.delenv("JTPRIM_TARGET")
    with pytest.raises(ValueError, match="add: no target named; pass target='cuda:90'"):
        jt.specialize(add, x, x, x, 4, BLOCK=4)


def test_a_missing_argument_is_named():
    with pytest.raises(LaunchTypeError, match="add: missing argument 'n'"):
        jt.specialize(add, *[jnp.zeros(4)] * 3, BLOCK=4, target="cuda:90")


def test_stand_ins_know_dtype_and_bytes():
    one = stand_in(jax.ShapeDtypeStruct((3, 5), jnp.bfloat16))
    assert (one.dtype, one.size_bytes, one.ptr_range()) == ("bfloat16", 30, 30)


def test_options_of_both_backends_are_known():
    assert "num_warps" in compat.option_fields("cuda")
    assert "waves_per_eu" in compat.option_fields("hip")
    assert kernel_source(add).name == "add"
