"""Tensor descriptors made by the runtime from what the payload says of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import triton

import jtprim as jt
from tests.kernels import (
    Ends,
    Work,
    add_tiles_into,
    copy_tiles,
    copy_tiles_of_a_pair,
    load_tile,
    scale_by_fields,
)

pytestmark = pytest.mark.gpu

X = jnp.arange(64 * 48, dtype=jnp.float32).reshape(64, 48)


def described(x, *block):
    return jt.TensorDescriptor.from_array(x, block)


@pytest.mark.parametrize(
    "dtype", ["float32", "float16", "bfloat16", "float8_e5m2", "int32", "int8", "uint16"]
)
@pytest.mark.parametrize("width", [16, 32, 64, 128])  # in bytes: another swizzle for each
def test_a_tile_arrives_as_it_is_in_memory(dtype, width):
    dtype = jnp.dtype(dtype)
    n = width // dtype.itemsize
    raw = np.random.default_rng(0).integers(0, 120, (64, 2 * width), np.uint8)
    x = jnp.asarray(raw.view(dtype))
    out = {"out_ptr": jax.ShapeDtypeStruct((16, n), dtype)}
    tile = jt.kernel(load_tile)[1](described(x, 16, n), row=8, column=n, M=16, N=n, out_shape=out)
    np.testing.assert_array_equal(np.asarray(tile).view(np.uint8), raw[8:24, width:])


# Along the last axis TMA starts at multiples of 16 bytes alone.
@pytest.mark.parametrize("padding", ["zero", "nan"])
@pytest.mark.parametrize("row,column", [(-5, 0), (60, 40), (3, -8), (64, 48)])
def test_a_load_is_padded_outside_of_the_array(row, column, padding):
    wide = np.full((64 + 160, 48 + 160), 0 if padding == "zero" else np.nan, np.float32)
    wide[80 : 80 + 64, 80 : 80 + 48] = X
    descriptor = jt.TensorDescriptor.from_array(X, (16, 16), padding=padding)
    out = {"out_ptr": jax.ShapeDtypeStruct((16, 16), X.dtype)}
    tile = jt.kernel(load_tile)[1](descriptor, row=row, column=column, M=16, N=16, out_shape=out)
    np.testing.assert_array_equal(tile, wide[80 + row : 96 + row, 80 + column : 96 + column])


def test_float32_is_rounded_to_tf32():
    x = jax.random.normal(jax.random.key(0), (16, 32))
    out = {"out_ptr": x}
    tiles = [
        jt.kernel(load_tile)[1](
            jt.TensorDescriptor.from_array(x, (16, 32), round_f32_to_tf32=rounds),
            row=0,
            column=0,
            M=16,
            N=32,
            out_shape=out,
        )
        for rounds in (False, True)
    ]
    np.testing.assert_array_equal(tiles[0], x)
    np.testing.assert_allclose(tiles[1], x, rtol=2**-10)
    assert not (np.asarray(tiles[1]).view(np.uint32) & 0x1FFF).any()
    assert (np.asarray(tiles[1]) != np.asarray(x)).any()


@pytest.mark.parametrize("shape", [(64, 48), (70, 48), (5, 16)])
@pytest.mark.parametrize("jit", [False, True])
def test_an_output_is_written_through_its_descriptor(shape, jit):
    x = jax.random.normal(jax.random.key(0), shape)
    grid = (triton.cdiv(shape[0], 16), triton.cdiv(shape[1], 16))

    def copy(x):
        target = described(jax.ShapeDtypeStruct(x.shape, x.dtype), 16, 16)
        return jt.kernel(copy_tiles)[grid](described(x, 16, 16), target, M=16, N=16)

    np.testing.assert_array_equal((jax.jit(copy) if jit else copy)(x), x)


def test_in_outs_refs_and_tuples_of_descriptors():
    zeros = jnp.zeros_like(X)
    launch = jt.kernel(copy_tiles)[4, 3]
    np.testing.assert_array_equal(launch(described(X, 16, 16), described(zeros, 16, 16), M=16, N=16), X)
    np.testing.assert_array_equal(zeros, 0)
    ref = jax.new_ref(zeros)
    launch(described(X, 16, 16), described(ref, 16, 16), M=16, N=16)
    np.testing.assert_array_equal(ref[...], X)
    pair = described(X, 16, 16), described(zeros, 16, 16)
    np.testing.assert_array_equal(jt.kernel(copy_tiles_of_a_pair)[4, 3](pair, M=16, N=16), X)


def set_blocks(nargs):
    for name in ("x_desc", "out_desc"):
        nargs[name].block_shape = [nargs["M"], nargs["N"]]


def test_an_autotuners_hook_sets_the_blocks_of_each_configuration():
    configurations = [triton.Config({"M": m, "N": 16}, pre_hook=set_blocks) for m in (8, 16, 32)]
    kernel = jt.kernel(triton.autotune(configurations, key=[])(copy_tiles))
    source, target = described(X, 1, 1), described(jax.ShapeDtypeStruct(X.shape, X.dtype), 1, 1)
    grid = lambda meta: (triton.cdiv(64, meta["M"]), triton.cdiv(48, meta["N"]))
    np.testing.assert_array_equal(kernel[grid](source, target), X)


def test_a_mixed_namedtuple_in_another_order_keeps_its_fields():
    x = jnp.arange(100.0)
    work = Work(Ends(None, x), 3.0)
    out = jt.kernel(scale_by_fields)[4](work, n=100, BLOCK=32, out_shape={("work", 0, 0): x})
    np.testing.assert_array_equal(out, 3 * x)


@pytest.mark.parametrize("launches", [1, 10])  # ten are recorded as a CUDA graph
def test_scratch_memory_goes_to_the_kernel_and_in_outs_keep_their_place(launches):
    x = jax.random.normal(jax.random.key(0), (50, 32))

    def add(total):
        out, total = jt.kernel(add_tiles_into)[4](
            total, x, rows=50, M=16, N=32, out_shape={"out_ptr": x}, input_output_aliases="total_ptr"
        )
        return out, total

    @jax.jit
    def run(total):
        outs = []
        for _ in range(launches):
            out, total = add(total)
            outs.append(out)
        return outs, total

    for _ in range(3):
        outs, total = run(jnp.zeros_like(x))
        for number, out in enumerate(outs, 1):
            np.testing.assert_allclose(out, number * x, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(total, outs[-1])


def test_scratch_memory_is_shared_by_the_configurations_of_an_autotuner():
    x = jax.random.normal(jax.random.key(0), (50, 32))
    tuned = triton.autotune([triton.Config({"M": m}) for m in (32, 8, 16)], key=[])(add_tiles_into)
    out, total = jt.kernel(tuned)[lambda meta: triton.cdiv(50, meta["M"])](
        x, x, rows=50, N=32, out_shape={"out_ptr": x}, input_output_aliases="total_ptr"
    )
    np.testing.assert_array_equal(out, 2 * x)
    np.testing.assert_array_equal(total, 2 * x)
