"""Launches through native Triton and PyTorch: what the GPU benchmarks compare with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton

from benchmarks.kernels import copy_kernel
from benchmarks.timing import Candidate
from examples import kernels


def copy(x: torch.Tensor, out: torch.Tensor) -> None:
    copy_kernel[(1,)](x, out)


def add(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> None:
    n = x.numel()
    kernels.add_kernel[(triton.cdiv(n, 1024),)](x, y, out, n, BLOCK_SIZE=1024)


def softmax(x: torch.Tensor, out: torch.Tensor) -> None:
    """As `examples.functions.softmax` launches it."""
    rows, columns = x.shape
    kernels.softmax_kernel[(min(rows, 1024),)](
        out,
        x,
        columns,
        columns,
        rows,
        columns,
        BLOCK_SIZE=triton.next_power_of_2(columns),
        num_stages=2,
        num_warps=8 if columns >= 2048 else 4,
    )


def matmul(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, configuration: dict[str, int]) -> None:
    (m, k), n = a.shape, b.shape[1]
    tiles_m, tiles_n = configuration["BLOCK_SIZE_M"], configuration["BLOCK_SIZE_N"]
    kernels.matmul_kernel[(triton.cdiv(m, tiles_m) * triton.cdiv(n, tiles_n),)](
        a, b, out, m, n, k, k, 1, n, 1, n, 1, ACTIVATION="", **configuration
    )


def layer_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    out: torch.Tensor,
    mean: torch.Tensor,
    rstd: torch.Tensor,
) -> None:
    """As `examples.functions.layer_norm` launches it."""
    rows, columns = x.shape
    block_size = min(triton.next_power_of_2(columns), 65536 // x.element_size())
    kernels._layer_norm_fwd_fused[(rows,)](
        x,
        out,
        weight,
        bias,
        mean,
        rstd,
        columns,
        columns,
        1e-5,
        BLOCK_SIZE=block_size,
        num_warps=min(max(block_size // 256, 1), 8),
    )


def tensor(array: Any) -> torch.Tensor:
    return torch.from_numpy(array).cuda()


def empty(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.float32, device="cuda")


def eager(launch: Callable[[], None]) -> Candidate:
    """Launches one by one."""
    return Candidate(launch, lambda _: torch.cuda.synchronize())


def in_a_graph(
    step: Callable[[torch.Tensor, torch.Tensor], None], x: torch.Tensor, launches: int
) -> tuple[Candidate, torch.Tensor]:
    """Launches in a chain, each on what the one before wrote, recorded once as a CUDA graph.

    Args:
      step: launches from its first argument to its second; both are like `x`.
      x: what the first launch reads.
      launches: an even number of at least two.

    Returns:
      The candidate whose calls replay the graph, and where the last launch's result is.
    """
    buffers = torch.empty_like(x), torch.empty_like(x)

    def chain() -> None:
        step(x, buffers[0])
        for number in range(1, launches):
            step(buffers[(number + 1) % 2], buffers[number % 2])

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        chain()  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    # JAX's threads may allocate meanwhile, which is no part of the graph.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        chain()
    result = buffers[(launches - 1) % 2]
    return replaying(graph, launches, step, x, buffers), result


def replaying(graph: torch.cuda.CUDAGraph, launches: int, *used: Any) -> Candidate:
    """A candidate whose calls replay a graph.

    A graph knows addresses alone. What it reads and writes has to be among `used`: PyTorch gives free
    memory back to the driver when the next graph is recorded.
    """

    def replay(_: tuple[Any, ...] = used) -> None:
        graph.replay()

    return Candidate(replay, lambda _: torch.cuda.synchronize(), launches)
