"""Tensor descriptors and block pointers: what the frontend makes of blocks of memory."""

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import triton
import triton.language as tl

from tests.portable.launching import launch


def block_pointers():
    """Triton 3.9 has none any more."""
    return "removed" not in (tl.make_block_ptr.__doc__ or "")


@triton.jit
def through_block_pointers(x, out, rows, columns, R: tl.constexpr, C: tl.constexpr, PADDING: tl.constexpr):
    source = tl.make_block_ptr(x, (rows, columns), (columns, 1), (0, 0), (R, C), (1, 0))
    target = tl.make_block_ptr(out, (rows, columns), (columns, 1), (tl.program_id(0) * R, 0), (R, C), (1, 0))
    source = tl.advance(source, (tl.program_id(0) * R, 0))
    for _ in range(tl.cdiv(columns, C)):
        v = tl.load(source, boundary_check=(0, 1), padding_option=PADDING)
        tl.store(target, v + tl.max(tl.where(v == v, 0.0, 100.0)), boundary_check=(0, 1))
        source = tl.advance(source, (0, C))
        target = tl.advance(target, (0, C))


@pytest.mark.skipif(not block_pointers(), reason="Triton removed block pointers")
@pytest.mark.parametrize("padding", ["zero", "nan"])
def test_block_pointers_move_and_pad(padding):
    x = np.random.default_rng(0).normal(size=(11, 13)).astype(np.float32)
    out = launch(
        through_block_pointers, (3,), x, jnp.zeros_like(x), 11, 13, written=[1], R=4, C=8, PADDING=padding
    )
    expected = x.copy()
    if padding == "nan":
        expected[8:] += 100
        expected[:, 8:] += 100
        expected[8:, 8:] -= 100
    np.testing.assert_allclose(out, expected, rtol=1e-6)


@triton.jit
def through_descriptors(x, out, seen, rows, columns, R: tl.constexpr, C: tl.constexpr, PADDING: tl.constexpr):
    i, j = tl.program_id(0) * R, tl.program_id(1) * C
    source = tl.make_tensor_descriptor(x, [rows, columns], [columns, 1], [R, C], padding_option=PADDING)
    target = tl.make_tensor_descriptor(out, [rows, columns], [columns, 1], [R, C])
    v = source.load([i, j])
    target.store([i, j], v)
    place = (tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)) * R * C
    tl.store(seen + place + tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :], v)


@pytest.mark.parametrize("padding", ["zero", "nan"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_descriptors_pad_what_they_load_and_store_what_is_inside(dtype, padding):
    x = np.random.default_rng(0).normal(size=(11, 24)).astype(dtype)
    out, seen = launch(
        through_descriptors, (3, 2), x, jnp.zeros_like(x), jnp.zeros((3, 2, 4, 16), dtype), 11, 24,
        written=[1, 2], R=4, C=16, PADDING=padding,
    )  # fmt: skip
    np.testing.assert_array_equal(out, x)
    padded = np.pad(x, [(0, 1), (0, 8)], constant_values=0 if padding == "zero" else np.nan)
    np.testing.assert_array_equal(seen, padded.reshape(3, 4, 2, 16).transpose(0, 2, 1, 3))


@triton.jit
def reduced_into(x, out, rows, columns, KIND: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
    """Each program combines its block into the same place."""
    i, j = tl.arange(0, R)[:, None], tl.arange(0, C)[None, :]
    target = tl.make_tensor_descriptor(out, [rows, columns], [columns, 1], [R, C])
    v = tl.load(x + tl.program_id(0) * R * C + i * C + j)
    if KIND == "add":
        target.atomic_add([2, 0], v)
    elif KIND == "max":
        target.atomic_max([2, 0], v)
    elif KIND == "min":
        target.atomic_min([2, 0], v)
    elif KIND == "and":
        target.atomic_and([2, 0], v)
    elif KIND == "or":
        target.atomic_or([2, 0], v)
    else:
        target.atomic_xor([2, 0], v)


REDUCTIONS = {"add": np.add, "max": np.maximum, "min": np.minimum}
REDUCTIONS |= {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        *[(kind, dtype) for kind in REDUCTIONS for dtype in (np.int32, np.uint32)],
        ("add", np.float32),
        ("add", np.float16),
        ("add", ml_dtypes.bfloat16),
    ],
)
def test_descriptors_combine_with_what_is_there(kind, dtype):
    rng = np.random.default_rng(0)
    x, start = rng.integers(0, 100, (3, 4, 16)).astype(dtype), rng.integers(0, 99, (5, 16)).astype(dtype)
    out = launch(reduced_into, (3,), x, start, 5, 16, written=[1], KIND=kind, R=4, C=16)
    expected = start.copy()
    for block in x:
        expected[2:] = REDUCTIONS[kind](expected[2:], block[:3]).astype(dtype)
    np.testing.assert_array_equal(out, expected)


@triton.jit
def rows_of(x, places, out, rows, columns, R: tl.constexpr, C: tl.constexpr):
    where = tl.load(places + tl.arange(0, R))
    source = tl.make_tensor_descriptor(x, [rows, columns], [columns, 1], [1, C])
    target = tl.make_tensor_descriptor(out, [rows, columns], [columns, 1], [1, C])
    target.scatter(source.gather(where, 16) * 2, where, 0)


def test_descriptors_gather_and_scatter_rows():
    x = np.random.default_rng(0).normal(size=(20, 32)).astype(np.float32)
    places = np.array([3, 1, 19, 7, 25, 0, 2, 10], np.int32)  # 25 is outside
    out = launch(rows_of, (1,), x, places, jnp.zeros_like(x), 20, 32, written=[2], R=8, C=16)
    expected = np.zeros_like(x)
    inside = places[places < 20]
    expected[inside, :16] = 2 * x[inside, 16:]
    np.testing.assert_array_equal(out, expected)
