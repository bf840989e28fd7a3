"""How long it takes to compile twelve configurations of one kernel: `python -m benchmarks.compilation MODE`.

Prints seconds. A process for each measurement, with a `TRITON_CACHE_DIR` of the caller's choice: what
has been compiled once in a process stays in its memory.
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import triton

from examples import kernels

SIZE = 1024
CONFIGURATIONS = [
    {"BLOCK_SIZE_M": m, "BLOCK_SIZE_N": n, "BLOCK_SIZE_K": k, "num_warps": warps, "num_stages": stages}
    for m, n, warps in ((64, 64, 4), (64, 128, 4), (128, 64, 4), (128, 128, 8))
    for k, stages in ((32, 4), (64, 3), (64, 4))
]


def with_jtprim() -> float:
    """Seconds to lower an autotuned launch, which compiles all configurations."""
    import jax
    import jax.numpy as jnp

    import jtprim as jt
    from examples import functions

    options = ("num_warps", "num_stages")
    configs = [
        triton.Config(
            {name: value for name, value in configuration.items() if name not in options}
            | {"GROUP_SIZE_M": 8},
            **{name: configuration[name] for name in options},
        )
        for configuration in CONFIGURATIONS
    ]
    kernel = jt.kernel(triton.autotune(configs, key=["M", "N", "K"])(kernels.matmul_kernel))
    a = jax.ShapeDtypeStruct((SIZE, SIZE), jnp.float16)

    def matmul(a: jax.Array, b: jax.Array) -> jax.Array:
        return kernel[
            lambda meta: (triton.cdiv(SIZE, meta["BLOCK_SIZE_M"]) * triton.cdiv(SIZE, meta["BLOCK_SIZE_N"]),)
        ](a, b, SIZE, SIZE, SIZE, SIZE, 1, SIZE, 1, SIZE, 1, ACTIVATION="", out_shape={"c_ptr": a})

    x = jax.ShapeDtypeStruct((128,), jnp.float16)
    jax.jit(functions.add).lower(x, x)  # starts the GPU and Triton's compiler
    start = time.perf_counter()
    jax.jit(matmul).lower(a, a)
    return time.perf_counter() - start


def with_triton(threads: int) -> float:
    """Seconds to compile all configurations through `JITFunction.warmup`."""
    import torch

    dtype = torch.float16
    kernels.add_kernel.warmup(dtype, dtype, dtype, 128, BLOCK_SIZE=128, grid=(1,))

    def compile_one(configuration: dict[str, int]) -> Any:
        sizes = (SIZE, SIZE, SIZE, SIZE, 1, SIZE, 1, SIZE, 1)
        return kernels.matmul_kernel.warmup(
            *(dtype, dtype, dtype, *sizes), GROUP_SIZE_M=8, ACTIVATION="", grid=(1,), **configuration
        )

    start = time.perf_counter()
    if threads == 1:
        for configuration in CONFIGURATIONS:
            compile_one(configuration)
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(compile_one, CONFIGURATIONS))
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compilation")
    parser.add_argument("mode", choices=["jtprim", "triton"])
    parser.add_argument("--threads", type=int, default=1, help="for Triton (default: %(default)s)")
    arguments = parser.parse_args()
    print(with_jtprim() if arguments.mode == "jtprim" else with_triton(arguments.threads))


if __name__ == "__main__":
    main()
