"""Tensor descriptors as arguments: what is checked, sent to the runtime, and computed without TMA."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

import jtprim as jt
from jtprim import compat
from jtprim.errors import LaunchTypeError, LaunchValueError, UnsupportedError
from jtprim.lowering import payload
from tests.kernels import copy_tiles, copy_tiles_of_a_pair, load_tile

X = jnp.arange(64 * 48, dtype=jnp.float32).reshape(64, 48)


def tile(x, row, column, m=16, n=16, padding="zero", **kwargs):
    descriptor = jt.TensorDescriptor.from_array(x, (m, n), padding=padding)
    out = {"out_ptr": jax.ShapeDtypeStruct((m, n), x.dtype)}
    return jt.kernel(load_tile)[1](descriptor, row=row, column=column, M=m, N=n, out_shape=out, **kwargs)


def copied(x, m=16, n=16, kernel=copy_tiles, **kwargs):
    source = jt.TensorDescriptor.from_array(x, (m, n))
    target = jt.TensorDescriptor.from_array(jax.ShapeDtypeStruct(x.shape, x.dtype), (m, n))
    grid = (triton.cdiv(x.shape[0], m), triton.cdiv(x.shape[1], n))
    return jt.kernel(kernel)[grid](source, target, M=m, N=n, **kwargs)


def calls(f, *args, platform="cuda:90"):
    """The kernel calls of a lowered function, as the runtime gets them."""
    found = []
    encode = payload.encode
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(payload, "encode", lambda p: found.append(p.call) or encode(p))
        jt.inspect(f, *args, platform=platform)
    return found


# --- What it computes --------------------------------------------------------------------------


@settings(max_examples=10)
@given(row=st.integers(-8, 70), column=st.integers(-8, 50), padding=st.sampled_from(["zero", "nan"]))
def test_a_load_is_padded_outside_of_the_array(row, column, padding):
    wide = np.full((64 + 160, 48 + 160), 0 if padding == "zero" else np.nan, np.float32)
    wide[80 : 80 + 64, 80 : 80 + 48] = X
    expected = wide[80 + row : 96 + row, 80 + column : 96 + column]
    np.testing.assert_array_equal(tile(X, row, column, padding=padding), expected)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float16, jnp.bfloat16, jnp.int32, jnp.int8, jnp.uint16])
@pytest.mark.parametrize("shape", [(64, 48), (70, 48), (5, 16)])
def test_a_descriptor_of_a_shape_is_an_output(shape, dtype):
    x = jnp.arange(np.prod(shape)).reshape(shape).astype(dtype)
    for f in (copied, jax.jit(copied)):
        result = f(x)
        assert result.dtype == dtype
        np.testing.assert_array_equal(result, x)


def test_one_of_an_array_that_the_kernel_writes_is_an_in_out():
    y = jnp.zeros_like(X)
    source, target = (jt.TensorDescriptor.from_array(a, (16, 16)) for a in (X, y))
    launch = jt.kernel(copy_tiles)[4, 3]
    for named in ({}, {"input_output_aliases": "out_desc"}):
        np.testing.assert_array_equal(launch(source, target, M=16, N=16, **named), X)
    np.testing.assert_array_equal(y, 0)


def test_a_descriptor_in_a_tuple():
    source, target = (jt.TensorDescriptor.from_array(a, (16, 16)) for a in (X, jnp.zeros_like(X)))
    launch = jt.kernel(copy_tiles_of_a_pair)[4, 3]
    np.testing.assert_array_equal(launch((source, target), M=16, N=16), X)
    target = dataclasses.replace(target, base=jax.ShapeDtypeStruct(X.shape, X.dtype))
    np.testing.assert_array_equal(launch((source, target), M=16, N=16), X)


def test_an_output_may_be_declared_under_its_name_too():
    source, target = (jt.TensorDescriptor.from_array(a, (16, 16)) for a in (X, X))
    launch = jt.kernel(copy_tiles)[4, 3]
    result = launch(source, out_desc=target, M=16, N=16, out_shape={"out_desc": X})
    np.testing.assert_array_equal(result, X)


def test_a_ref_behind_a_descriptor_is_written():
    ref = jax.new_ref(jnp.zeros_like(X))
    source, target = (jt.TensorDescriptor.from_array(a, (16, 16)) for a in (X, ref))
    assert jt.kernel(copy_tiles)[4, 3](source, target, M=16, N=16) is None
    np.testing.assert_array_equal(ref[...], X)


def test_part_of_an_array():
    part = jt.TensorDescriptor(X, shape=(64, 20), strides=(48, 1), block_shape=(16, 32))
    out = {"out_ptr": jax.ShapeDtypeStruct((16, 32), X.dtype)}
    result = jt.kernel(load_tile)[1](part, row=8, column=0, M=16, N=32, out_shape=out)
    np.testing.assert_array_equal(result, np.pad(X[8:24, :20], ((0, 0), (0, 12))))


def test_descriptors_cross_jit_and_repeat_launches():
    f = jax.jit(
        lambda d: jt.kernel(load_tile)[1](d, row=0, column=0, M=16, N=16, out_shape={"out_ptr": d.base})
    )
    small = X[:16, :16]
    descriptor = jt.TensorDescriptor.from_array(small, (16, 16))
    np.testing.assert_array_equal(f(descriptor), small)
    for scale in (1, 2):
        np.testing.assert_array_equal(tile(X * scale, 16, 0), X[16:32, :16] * scale)
    np.testing.assert_array_equal(tile(X, 16, 0, m=32), X[16:48, :16])


@given(st.lists(st.integers(1, 9), max_size=5))
def test_strides_are_those_of_a_row_major_array(shape):
    numpys = np.empty(shape, np.int8).strides
    assert jt.strides_from_shape(shape) == tuple(numpys)


# --- Hooks -------------------------------------------------------------------------------------


def set_blocks(nargs):
    assert nargs["x_desc"].base.dtype == jnp.float32
    nargs["x_desc"].block_shape = [nargs["M"], nargs["N"]]
    nargs["out_desc"].block_shape = [nargs["M"], nargs["N"]]


def tuned(*sizes, hook=set_blocks):
    configurations = [triton.Config({"M": m, "N": n}, num_warps=1, pre_hook=hook) for m, n in sizes]
    return triton.autotune(configurations, key=[])(copy_tiles)


def tuned_copy(kernel, x):
    source = jt.TensorDescriptor.from_array(x, (1, 1))
    target = jt.TensorDescriptor.from_array(jax.ShapeDtypeStruct(x.shape, x.dtype), (1, 1))
    grid = lambda meta: (triton.cdiv(x.shape[0], meta["M"]), triton.cdiv(x.shape[1], meta["N"]))
    return jt.kernel(kernel)[grid](source, target)


def test_a_hook_sets_block_shapes_for_its_configuration():
    sizes = [(16, 16), (32, 16)]
    np.testing.assert_array_equal(tuned_copy(tuned(*sizes), X), X)
    np.testing.assert_array_equal(tuned_copy(tuned(sizes[1]), X), X)
    for platform in ("cuda:90", "hip:gfx942"):
        [call] = calls(lambda x: tuned_copy(tuned(*sizes), x), X, platform=platform)
        assert [one.grid for one, _ in call.configurations] == [(4, 3, 1), (2, 3, 1)]
    [call] = calls(lambda x: tuned_copy(tuned(*sizes), x), X)
    blocks = [
        [p.block_shape for p in one.parameters if isinstance(p, payload.TensorDescriptorParameter)]
        for one, _ in call.configurations
    ]
    assert blocks == [[size, size] for size in sizes]


def test_a_hook_may_set_nothing_else():
    def hook(nargs):
        nargs["x_desc"].shape = [1, 1]

    with pytest.raises(UnsupportedError, match=r"copy_tiles: .*sets x_desc.shape; .* may set block_shape"):
        tuned_copy(tuned((16, 16), hook=hook), X)


# --- What the runtime gets ---------------------------------------------------------------------


def test_tma_descriptors_are_followed_by_shape_and_strides():
    [call] = calls(copied, X.astype(jnp.float16))
    descriptor = payload.TensorDescriptorParameter(
        element_type=6, swizzle=1, shape=(64, 48), strides=(48, 1), block_shape=(16, 16), oob_fill=0
    )
    numbers = [payload.ScalarParameter(*one) for one in (("i32", 64), ("i32", 48), ("i64", 48), ("i64", 1))]
    assert call.parameters == (descriptor, *numbers, descriptor, *numbers)


@pytest.mark.parametrize("platform", ["cuda:80", "hip:gfx942"])
def test_without_tma_a_pointer_and_its_numbers_are_sent(platform):
    [call] = calls(lambda x: tile(x, 0, 0, padding="nan"), X, platform=platform)
    shape = [payload.ScalarParameter("i64", n) for n in (64, 48, 48, 1)]
    flags = [payload.ScalarParameter("u32", 1)] + [
        payload.ScalarParameter("u32", 0)
    ] * compat.DESCRIPTORS_ROUND
    again = [payload.ScalarParameter(*one) for one in (("i32", 64), ("i32", 48), ("i64", 48), ("i64", 1))]
    head = (payload.ArrayParameter(16), *shape, *flags, *again)
    assert call.parameters[: len(head)] == head


def test_padding_and_rounding_are_sent():
    descriptor = jt.TensorDescriptor.from_array(X, (16, 16), padding="nan", round_f32_to_tf32=True)
    out = {"out_ptr": X[:16, :16]}
    f = lambda d: jt.kernel(load_tile)[1](d, row=0, column=0, M=16, N=16, out_shape=out)
    [call] = calls(f, descriptor)
    assert call.parameters[0].oob_fill == 1
    assert call.parameters[0].element_type == 11


def test_the_order_of_the_runtime_is_kept_where_an_output_comes_first():
    @triton.jit
    def backwards(out_desc, x_desc, M: tl.constexpr, N: tl.constexpr):
        out_desc.store([0, 0], x_desc.load([0, 0]))

    def f(x):
        source = jt.TensorDescriptor.from_array(x, (16, 16))
        target = jt.TensorDescriptor.from_array(jax.ShapeDtypeStruct((32, 32), x.dtype), (16, 16))
        return jt.kernel(backwards)[1](target, source, M=16, N=16)

    [call] = calls(f, X)
    shapes = [p.shape for p in call.parameters if isinstance(p, payload.TensorDescriptorParameter)]
    assert shapes == [(64, 48), (32, 32)]
    np.testing.assert_array_equal(f(X)[:16, :16], X[:16, :16])


# --- What is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"shape": (64,)}, "of one length"),
        ({"strides": (48, 2)}, "contiguous"),
        ({"strides": (47, 1)}, "16-byte aligned"),
        ({"strides": (-48, 1)}, "negative"),
        ({"shape": (65, 48)}, "reaches element 3119 of an array of 3072"),
        ({"shape": (0, 48)}, "positive"),
        ({"block_shape": (16, 24)}, "power of 2"),
        ({"padding": "edge"}, "padding"),
        ({"round_f32_to_tf32": True, "base": X.astype(jnp.float16)}, "float32"),
    ],
)
def test_a_wrong_descriptor_is_refused_with_its_numbers(change, reason):
    descriptor = dataclasses.replace(jt.TensorDescriptor.from_array(X, (16, 16)), **change)
    with pytest.raises(
        LaunchValueError, match="load_tile: argument 'x_desc' is a tensor descriptor"
    ) as caught:
        jt.kernel(load_tile)[1](descriptor, row=0, column=0, M=16, N=16, out_shape={"out_ptr": X})
    assert reason in str(caught.value)


def test_nan_padding_is_for_floating_point():
    with pytest.raises(LaunchValueError, match="floating point"):
        tile(X.astype(jnp.int32), 0, 0, padding="nan")


def test_a_descriptor_of_no_array_is_refused():
    descriptor = jt.TensorDescriptor([1.0], (1,), (1,), (1,))
    with pytest.raises(LaunchTypeError, match="'x_desc' is a tensor descriptor of a list; pass an array"):
        jt.kernel(load_tile)[1](descriptor, row=0, column=0, M=16, N=16, out_shape={"out_ptr": X})


def test_zeroing_through_a_tma_descriptor_is_refused():
    with pytest.raises(UnsupportedError, match="copy_tiles: is to be zeroed.*pass zeros"):
        calls(lambda x: copied(x, zeroed_outputs="out_desc"), X)
    assert calls(lambda x: copied(x, zeroed_outputs="out_desc"), X, platform="cuda:80")
