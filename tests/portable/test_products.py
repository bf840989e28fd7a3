"""tt.dot, and the matrix product of Triton's tutorial."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import triton
import triton.language as tl

from tests.portable.launching import launch


@triton.jit
def leaky_relu(x):
    return tl.where(x >= 0, x, 0.01 * x)


@triton.jit
def matmul(
    a_ptr,
    b_ptr,
    c_ptr,
    M,
    N,
    K,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
    ACTIVATION: tl.constexpr,
):
    """Triton's tutorial: grouped ordering, wrapped rows and columns, masked k."""
    pid = tl.program_id(axis=0)
    num_pid_m = tl.cdiv(M, BLOCK_M)
    num_pid_n = tl.cdiv(N, BLOCK_N)
    num_pid_in_group = GROUP * num_pid_n
    group_id = pid // num_pid_in_group
    first_pid_m = group_id * GROUP
    group_size_m = min(num_pid_m - first_pid_m, GROUP)
    pid_m = first_pid_m + ((pid % num_pid_in_group) % group_size_m)
    pid_n = (pid % num_pid_in_group) // group_size_m
    offs_am = (pid_m * BLOCK_M + tl.arange(0, BLOCK_M)) % M
    offs_bn = (pid_n * BLOCK_N + tl.arange(0, BLOCK_N)) % N
    offs_k = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + (offs_am[:, None] * K + offs_k[None, :])
    b_ptrs = b_ptr + (offs_k[:, None] * N + offs_bn[None, :])
    accumulator = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BLOCK_K)):
        a = tl.load(a_ptrs, mask=offs_k[None, :] < K - k * BLOCK_K, other=0.0)
        b = tl.load(b_ptrs, mask=offs_k[:, None] < K - k * BLOCK_K, other=0.0)
        accumulator = tl.dot(a, b, accumulator)
        a_ptrs += BLOCK_K
        b_ptrs += BLOCK_K * N
    if ACTIVATION:
        accumulator = leaky_relu(accumulator)
    c = accumulator.to(c_ptr.dtype.element_ty)
    offs_cm = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_cn = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    c_ptrs = c_ptr + N * offs_cm[:, None] + offs_cn[None, :]
    tl.store(c_ptrs, c, mask=(offs_cm[:, None] < M) & (offs_cn[None, :] < N))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32])
@pytest.mark.parametrize(("m", "n", "k"), [(64, 64, 64), (70, 50, 33), (1, 130, 16)])
def test_the_tutorials_matrix_product_agrees_with_numpy(m, n, k, dtype):
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(m, k)).astype(dtype), rng.normal(size=(k, n)).astype(dtype)
    blocks = dict(BLOCK_M=16, BLOCK_N=32, BLOCK_K=16, GROUP=2, ACTIVATION=True)
    grid = (-(-m // 16) * -(-n // 32),)
    out = launch(matmul, grid, a, b, jnp.zeros((m, n), jnp.float32), m, n, k, written=[2], **blocks)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_allclose(out, np.where(exact >= 0, exact, 0.01 * exact), rtol=1e-4, atol=1e-4)


@triton.jit
def dot(a, b, c, SIZE: tl.constexpr, TYPE: tl.constexpr):
    i, j = tl.arange(0, SIZE)[:, None], tl.arange(0, SIZE)[None, :]
    start = tl.load(c + i * SIZE + j)
    product = tl.dot(tl.load(a + i * SIZE + j), tl.load(b + i * SIZE + j), out_dtype=TYPE)
    tl.store(c + i * SIZE + j, product + start)


@pytest.mark.parametrize(
    ("operand", "result", "kind"),
    [
        (np.int8, np.int32, tl.int32),
        (np.float16, np.float16, tl.float16),
        (np.float16, np.float32, tl.float32),
        (ml_dtypes.float8_e5m2, np.float32, tl.float32),
        (np.float64, np.float64, tl.float64),
    ],
)
def test_the_accumulators_type_decides(operand, result, kind):
    rng = np.random.default_rng(0)
    with jax.enable_x64(operand == np.float64):
        a, b = (rng.integers(-4, 4, (32, 32)).astype(operand) for _ in "ab")
        c = rng.integers(-4, 4, (32, 32)).astype(result)
        out = launch(dot, (1,), a, b, c, written=[2], SIZE=32, TYPE=kind)
        assert out.dtype == result
        np.testing.assert_array_equal(out, (a.astype(np.float64) @ b.astype(np.float64) + c).astype(result))
