"""Triton's interpreter, run as `TRITON_INTERPRET=1 python -m benchmarks.interpreter`.

Prints one line of JSON for each kernel: its inputs' shapes and the seconds of one launch.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import triton

from examples import kernels
from examples.training.kernels import attention_forward


class HostTensor:
    """A NumPy array behind the few methods of a PyTorch tensor that Triton's interpreter calls."""

    def __init__(self, array: np.ndarray):
        self.array = array

    @property
    def dtype(self) -> str:
        return str(self.array.dtype)

    def data_ptr(self) -> int:
        return self.array.ctypes.data

    def untyped_storage(self) -> HostTensor:
        return self

    def cpu(self) -> HostTensor:
        return self

    def new_empty(self, size: int, device: str) -> HostTensor:
        return HostTensor(np.empty(size, self.array.dtype))

    def set_(self, storage: HostTensor, offset: int, size: Any, stride: Any) -> None:
        self.array = storage.array

    def copy_(self, other: HostTensor) -> None:
        if other.array is not self.array:
            self.array[...] = other.array

    def storage_offset(self) -> int:
        return 0

    def size(self) -> tuple[int, ...]:
        return self.array.shape

    def stride(self) -> tuple[int, ...]:
        return tuple(step // self.array.itemsize for step in self.array.strides)


# A launch, what it should give, and the inputs' shapes.
Work = tuple[Callable[[], np.ndarray], Callable[[], np.ndarray], list[tuple[int, ...]]]


def draw(*shape: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def empty(*shape: int) -> HostTensor:
    return HostTensor(np.full(shape, np.nan, np.float32))


def add(n: int) -> Work:
    x, y, out = draw(n, seed=0), draw(n, seed=1), empty(n)

    def launch() -> np.ndarray:
        grid = (triton.cdiv(n, 1024),)
        kernels.add_kernel[grid](HostTensor(x), HostTensor(y), out, n, BLOCK_SIZE=1024)
        return out.array

    return launch, lambda: x + y, [x.shape, y.shape]


def softmax(rows: int, columns: int) -> Work:
    x, out = draw(rows, columns, seed=0), empty(rows, columns)

    def launch() -> np.ndarray:
        block = triton.next_power_of_2(columns)
        kernels.softmax_kernel[(rows,)](
            out, HostTensor(x), columns, columns, rows, columns, BLOCK_SIZE=block, num_stages=2
        )
        return out.array

    def reference() -> np.ndarray:
        e = np.exp(x - x.max(axis=1, keepdims=True))
        return e / e.sum(axis=1, keepdims=True)

    return launch, reference, [x.shape]


def matmul(n: int) -> Work:
    a, b, out = draw(n, n, seed=0), draw(n, n, seed=1), empty(n, n)

    def launch() -> np.ndarray:
        grid = (triton.cdiv(n, 128) * triton.cdiv(n, 64),)
        kernels.matmul_kernel[grid](
            HostTensor(a),
            HostTensor(b),
            out,
            *(n, n, n),
            *(n, 1, n, 1, n, 1),
            BLOCK_SIZE_M=128,
            BLOCK_SIZE_N=64,
            BLOCK_SIZE_K=32,
            GROUP_SIZE_M=8,
            ACTIVATION="",
        )
        return out.array

    return launch, lambda: a @ b, [a.shape, b.shape]


def layer_norm(rows: int, columns: int) -> Work:
    x, weight, bias = draw(rows, columns, seed=0), draw(columns, seed=1), draw(columns, seed=2)
    out, mean, rstd = empty(rows, columns), empty(rows), empty(rows)

    def launch() -> np.ndarray:
        arrays = (HostTensor(x), out, HostTensor(weight), HostTensor(bias), mean, rstd)
        block = triton.next_power_of_2(columns)
        kernels._layer_norm_fwd_fused[(rows,)](*arrays, columns, columns, 1e-5, BLOCK_SIZE=block)
        return out.array

    def reference() -> np.ndarray:
        centred = x - x.mean(axis=1, keepdims=True)
        return centred / np.sqrt(x.var(axis=1, keepdims=True) + 1e-5) * weight + bias

    return launch, reference, [x.shape, weight.shape, bias.shape]


def attention(heads: int, length: int, dim: int) -> Work:
    q, k, v = (draw(1, heads, length, dim, seed=seed) for seed in range(3))
    out, lse = empty(1, heads, length, dim), empty(heads, length)

    def launch() -> np.ndarray:
        attention_forward[triton.cdiv(length, 32), heads](
            *(HostTensor(q), HostTensor(k), HostTensor(v), out, lse),
            *(dim**-0.5, length),
            HEAD_DIM=dim,
            CAUSAL=False,
            BLOCK_M=32,
            BLOCK_N=32,
            PRECISION="ieee",
        )
        return out.array

    def reference() -> np.ndarray:
        scores = q @ k.swapaxes(2, 3) * dim**-0.5
        e = np.exp(scores - scores.max(axis=3, keepdims=True))
        return e / e.sum(axis=3, keepdims=True) @ v

    return launch, reference, [q.shape, k.shape, v.shape]


def timed(launch: Callable[[], np.ndarray], reference: Callable[[], np.ndarray]) -> dict[str, Any]:
    """Median seconds of a launch, after one that warms up and is checked; or why it does not run."""
    try:
        result = launch()
    except triton.runtime.errors.InterpreterError as error:  # Triton 3.6 beside NumPy 2.5, for one
        return {"skipped": f"Triton {triton.__version__}'s interpreter, NumPy {np.__version__}: {error}"}
    np.testing.assert_allclose(result, reference(), rtol=1e-3, atol=1e-3)
    times: list[float] = []
    while len(times) < 5 and sum(times) < 5:
        start = time.perf_counter()
        launch()
        times.append(time.perf_counter() - start)
    return {"seconds": statistics.median(times)}


def main() -> None:
    """Times each kernel."""
    for name, (launch, reference, shapes) in {
        "add": add(2**24),
        "softmax": softmax(4096, 1024),
        "matmul": matmul(1024),
        "layer_norm": layer_norm(1151, 8192),
        "attention": attention(8, 1024, 64),
    }.items():
        print(json.dumps({"kernel": name, "shapes": shapes, **timed(launch, reference)}), flush=True)


if __name__ == "__main__":
    main()
