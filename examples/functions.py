"""Triton's tutorial kernels as functions of JAX arrays, each with its reference in NumPy.

The functions work on any platform, eagerly and inside `jax.jit`; the references compute in float64.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import triton

import jtprim as jt
from examples import kernels

# --- Tutorial 01: vector addition --------------------------------------------------------------

add_kernel = jt.kernel(kernels.add_kernel)


def add(x: jax.Array, y: jax.Array, *, block_size: int = 1024) -> jax.Array:
    """The sum of two arrays.

    Args:
      x, y: of one shape, of any number of dimensions, and one dtype.
      block_size: elements for each program, a power of two.

    Returns:
      An array of the same shape and dtype.
    """
    grid = lambda meta: (triton.cdiv(meta["n_elements"], meta["BLOCK_SIZE"]),)  # noqa: E731
    return add_kernel[grid](x, y, n_elements=x.size, BLOCK_SIZE=block_size, out_shape={"output_ptr": x})


def add_reference(x: Any, y: Any) -> np.ndarray:
    return _exact(x) + _exact(y)


# --- Tutorial 02: fused softmax ----------------------------------------------------------------

softmax_kernel = jt.kernel(kernels.softmax_kernel)


def softmax(x: jax.Array, *, programs: int = 1024) -> jax.Array:
    """Softmax along the rows of a matrix.

    Args:
      x: of shape [rows, columns], float16, bfloat16 or float32; a row has to fit into the registers of
        one program.
      programs: number of programs at most; each takes every so many rows.

    Returns:
      An array of the same shape and dtype.
    """
    rows, columns = x.shape
    # The kernel's first parameter is its output: arrays that are passed go to those behind it.
    return softmax_kernel[(min(rows, programs),)](
        x,
        columns,
        columns,
        rows,
        columns,
        BLOCK_SIZE=triton.next_power_of_2(columns),
        num_stages=2,
        num_warps=8 if columns >= 2048 else 4,
        out_shape={"output_ptr": x},
    )


def softmax_reference(x: Any) -> np.ndarray:
    shifted = np.exp(_exact(x) - _exact(x).max(axis=1, keepdims=True))
    return shifted / shifted.sum(axis=1, keepdims=True)


# --- Tutorial 03: matrix multiplication --------------------------------------------------------

matmul_kernel = jt.kernel(kernels.matmul_kernel)

# Tiles that fit the shared memory of an MI300X (64 KiB) as well as that of an H100.
MATMUL_TILES = {"BLOCK_SIZE_M": 128, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 32, "GROUP_SIZE_M": 8}


def matmul(a: jax.Array, b: jax.Array, *, activation: str = "", **configuration: int) -> jax.Array:
    """The product of two matrices, accumulated in float32.

    Args:
      a, b: of shapes [M, K] and [K, N] and one dtype: float16, bfloat16 or float32. (A GPU with tensor
        cores multiplies float32 as TF32, which keeps 10 bits of the mantissa.)
      activation: ``"leaky_relu"``, or nothing.
      **configuration: tile sizes and compile options in place of `MATMUL_TILES` and Triton's defaults.

    Returns:
      An array of shape [M, N] and the same dtype.
    """
    (m, k), n = a.shape, b.shape[1]
    return matmul_kernel[
        lambda meta: (triton.cdiv(m, meta["BLOCK_SIZE_M"]) * triton.cdiv(n, meta["BLOCK_SIZE_N"]),)
    ](
        a,
        b,
        *(m, n, k),
        *(k, 1, n, 1, n, 1),  # strides of a, b and c in elements
        ACTIVATION=activation,
        out_shape={"c_ptr": jax.ShapeDtypeStruct((m, n), a.dtype)},
        **{**MATMUL_TILES, **configuration},
    )


def matmul_reference(a: Any, b: Any, *, activation: str = "") -> np.ndarray:
    product = _exact(a) @ _exact(b)
    return np.where(product >= 0, product, 0.01 * product) if activation == "leaky_relu" else product


# --- Tutorial 05: layer normalization ----------------------------------------------------------

layer_norm_kernel = jt.kernel(kernels._layer_norm_fwd_fused)


def layer_norm(
    x: jax.Array, weight: jax.Array, bias: jax.Array, *, eps: float = 1e-5
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Layer normalization of the rows of a matrix.

    Args:
      x: of shape [rows, columns], float16, bfloat16 or float32.
      weight, bias: of shape [columns].
      eps: added to the variance.

    Returns:
      The normalized array, of the shape and dtype of `x`; each row's mean, and the reciprocal of its
      standard deviation: float32, of shape [rows].
    """
    rows, columns = x.shape
    of_rows = jax.ShapeDtypeStruct((rows,), jnp.float32)
    # The tutorial's choices: at most 64 KiB of a row at once, a warp for each 256 columns of it.
    block_size = min(triton.next_power_of_2(columns), 65536 // x.dtype.itemsize)
    return layer_norm_kernel[(rows,)](
        x,
        weight,
        bias,
        columns,
        columns,
        eps,
        BLOCK_SIZE=block_size,
        num_warps=min(max(block_size // 256, 1), 8),
        out_shape={"Y": x, "Mean": of_rows, "Rstd": of_rows},
    )


def layer_norm_reference(
    x: Any, weight: Any, bias: Any, *, eps: float = 1e-5
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    x = _exact(x)
    mean = x.mean(axis=1)
    rstd = 1 / np.sqrt(x.var(axis=1) + eps)
    normalized = (x - mean[:, None]) * rstd[:, None]
    return normalized * _exact(weight) + _exact(bias), mean, rstd


def _exact(x: Any) -> np.ndarray:
    return np.asarray(x).astype(np.float64)
