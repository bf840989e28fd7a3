"""tl.dot_scaled, against products of the numbers that the formats stand for."""

import itertools

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import triton
import triton.language as tl

from tests.portable.launching import launch

M, N, K = 32, 16, 64
RNG = np.random.default_rng(0)


@triton.jit
def scaled_product(
    a, a_scale, b, b_scale, out, A_FORMAT: tl.constexpr, B_FORMAT: tl.constexpr, A_SCALED: tl.constexpr,
    B_SCALED: tl.constexpr, A_K_PACK: tl.constexpr, B_K_PACK: tl.constexpr, A_ROWS: tl.constexpr,
    A_COLUMNS: tl.constexpr, B_ROWS: tl.constexpr, B_COLUMNS: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    BLOCKS: tl.constexpr,
):  # fmt: skip
    x = tl.load(a + tl.arange(0, A_ROWS)[:, None] * A_COLUMNS + tl.arange(0, A_COLUMNS)[None, :])
    y = tl.load(b + tl.arange(0, B_ROWS)[:, None] * B_COLUMNS + tl.arange(0, B_COLUMNS)[None, :])
    x_scale = None
    if A_SCALED:
        x_scale = tl.load(a_scale + tl.arange(0, M)[:, None] * BLOCKS + tl.arange(0, BLOCKS)[None, :])
    y_scale = None
    if B_SCALED:
        y_scale = tl.load(b_scale + tl.arange(0, N)[:, None] * BLOCKS + tl.arange(0, BLOCKS)[None, :])
    places = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    product = tl.dot_scaled(
        x, x_scale, A_FORMAT, y, y_scale, B_FORMAT, tl.load(out + places), lhs_k_pack=A_K_PACK,
        rhs_k_pack=B_K_PACK,
    )  # fmt: skip
    tl.store(out + places, product)


STORED = {
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "bf16": ml_dtypes.bfloat16,
    "fp16": np.float16,
}
E2M1 = np.array([float(code) for code in np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn)])


def draw(kind, shape, packed_axis):
    """A matrix as the kernel takes it, and its numbers."""
    if kind == "e2m1":
        codes = RNG.integers(0, 16, shape).astype(np.uint8)
        first, second = (np.take(codes, range(i, shape[packed_axis], 2), packed_axis) for i in (0, 1))
        return first | second << 4, E2M1[codes]
    numbers = RNG.normal(size=shape).astype(STORED[kind])
    bits = numbers.view(np.uint8) if numbers.dtype.itemsize == 1 else numbers
    return bits, numbers.astype(np.float64)


def run(
    a_kind, b_kind, *, a_scaled=True, b_scaled=True, a_k_pack=True, b_k_pack=True, a_codes=None, block=32
):
    a, a_numbers = draw(a_kind, (M, K), 1 if a_k_pack else 0)
    b, b_numbers = draw(b_kind, (K, N), 0 if b_k_pack else 1)
    blocks = K // block
    a_codes = RNG.integers(117, 137, (M, blocks)).astype(np.uint8) if a_codes is None else a_codes
    b_codes = RNG.integers(117, 137, (N, blocks)).astype(np.uint8)
    start = RNG.normal(size=(M, N)).astype(np.float32)
    out = launch(
        scaled_product, (1,), a, a_codes, b, b_codes, jnp.asarray(start), written=[4], A_FORMAT=a_kind,
        B_FORMAT=b_kind, A_SCALED=a_scaled, B_SCALED=b_scaled, A_K_PACK=a_k_pack, B_K_PACK=b_k_pack,
        A_ROWS=a.shape[0], A_COLUMNS=a.shape[1], B_ROWS=b.shape[0], B_COLUMNS=b.shape[1], M=M, N=N,
        BLOCKS=blocks,
    )  # fmt: skip
    if a_scaled:
        a_numbers = a_numbers * np.repeat(2.0 ** (a_codes.astype(float) - 127), block, axis=1)
    if b_scaled:
        b_numbers = b_numbers * np.repeat(2.0 ** (b_codes.astype(float) - 127), block, axis=1).T
    return np.asarray(out), a_numbers @ b_numbers + start


@pytest.mark.parametrize("kinds", list(itertools.product(["e2m1", *STORED], repeat=2)), ids="-".join)
def test_all_formats_multiply(kinds):
    scaled = [kind not in ("bf16", "fp16") for kind in kinds]
    found, exact = run(*kinds, a_scaled=scaled[0], b_scaled=scaled[1])
    np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-5 * np.abs(exact).max())


@pytest.mark.parametrize("k_packs", [(True, False), (False, True), (False, False)])
def test_numbers_of_four_bits_are_packed_along_either_axis(k_packs):
    found, exact = run("e2m1", "e2m1", a_k_pack=k_packs[0], b_k_pack=k_packs[1])
    np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-5 * np.abs(exact).max())


@pytest.mark.parametrize("scaled", [(True, False), (False, True)])
def test_either_operand_may_come_without_scales(scaled):
    found, exact = run("e4m3", "e5m2", a_scaled=scaled[0], b_scaled=scaled[1])
    np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-5 * np.abs(exact).max())


def test_the_largest_scale_stands_for_nan_and_the_least_is_no_zero():
    codes = np.full((M, K // 32), 127, np.uint8)
    codes[3, 1], codes[5, :] = 255, 0
    found, exact = run("e4m3", "e4m3", a_codes=codes)
    assert np.isnan(found[3]).all() and not np.isnan(np.delete(found, 3, axis=0)).any()
    np.testing.assert_allclose(found[5], exact[5], rtol=1e-5)
