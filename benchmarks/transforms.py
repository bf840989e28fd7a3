"""JAX's transformations of launches: batches beside ones written by hand, derivatives beside jnp's."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import triton

import jtprim as jt
from benchmarks.gpu import LARGE_CHAIN, attempt, calling, chained, check, first, kept_apart
from benchmarks.kernels import batched_matmul_kernel, batched_row_softmax_kernel, row_softmax_kernel
from benchmarks.portable import draw, jnp_layer_norm, jnp_softmax
from benchmarks.timing import measure, summarize
from examples import functions

BY_HAND = "batched by hand"
ON_CPU = jax.default_backend() == "cpu"

# --- Batches -----------------------------------------------------------------------------------

BATCH, ROWS, COLUMNS = 64, 512, 1000


def row_softmax(x: jax.Array) -> jax.Array:
    """Softmax of one matrix, [rows, columns]."""
    rows, columns = x.shape
    block = triton.next_power_of_2(columns)
    return jt.kernel(row_softmax_kernel)[rows](x, columns=columns, BLOCK=block, out_shape={"out_ptr": x})


def row_softmaxes(x: jax.Array) -> jax.Array:
    """Softmax of each matrix of a batch, by a kernel that knows of batches."""
    batch, rows, columns = x.shape
    block = triton.next_power_of_2(columns)
    return jt.kernel(batched_row_softmax_kernel)[rows, batch](
        x, rows=rows, columns=columns, BLOCK=block, out_shape={"out_ptr": x}
    )


def batch_of_softmaxes(seconds: float) -> dict[str, Any]:
    x = jnp.asarray(draw(BATCH, ROWS, COLUMNS))
    ways: dict[str, Callable[..., jax.Array]] = {
        "jtprim, jax.vmap": jax.vmap(row_softmax),
        BY_HAND: row_softmaxes,
        "jtprim, jax.lax.map": functools.partial(jax.lax.map, row_softmax),
        "jnp": kept_apart(functools.partial(jax.nn.softmax, axis=-1)),
    }
    case = f"softmax of {BATCH} matrices {ROWS}x{COLUMNS} float32"
    return compared(case, ways, (x,), seconds, tolerance=1e-5, base=BY_HAND)


def products(a: jax.Array, b: jax.Array, **tiles: int) -> jax.Array:
    """The products of two batches of square matrices, by a kernel that knows of batches."""
    batch, size, _ = a.shape
    grid = triton.cdiv(size, tiles["BLOCK_SIZE_M"]) * triton.cdiv(size, tiles["BLOCK_SIZE_N"])
    return jt.kernel(batched_matmul_kernel)[grid, batch](
        a, b, *[size] * 3, *[size, 1] * 3, out_shape={"c_ptr": a}, **tiles
    )


def batch_of_products(seconds: float) -> dict[str, Any]:
    batch, size = 16, 1024
    a, b = (jnp.asarray(draw(batch, size, size, seed=seed)) for seed in (1, 2))
    arrays = a.astype(jnp.float16), (b / size**0.5).astype(jnp.float16)  # products stay of one size
    tiles = {"BLOCK_SIZE_M": 128, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 8}
    tiles |= {"num_warps": 8, "num_stages": 3}
    one = functools.partial(functions.matmul, **tiles)
    ways: dict[str, Callable[..., jax.Array]] = {
        "jtprim, jax.vmap": jax.vmap(one),
        BY_HAND: functools.partial(products, **tiles),
        "jtprim, jax.lax.map": lambda a, b: jax.lax.map(lambda pair: one(*pair), (a, b)),
        "jnp": kept_apart(jnp.matmul),
    }
    case = f"{batch} products of {size}^3 float16"
    return compared(case, ways, arrays, seconds, tolerance=5e-3, base=BY_HAND)


def compared(
    case: str,
    ways: dict[str, Callable[..., jax.Array]],
    arrays: tuple[jax.Array, ...],
    seconds: float,
    *,
    tolerance: float,
    base: str,
    chain: int = LARGE_CHAIN,
) -> dict[str, Any]:
    """Chains of each way, all of which compute the same, side by side."""
    exact = np.asarray(jax.jit(ways[base])(*arrays))
    for way in ways.values():
        check(case, jax.jit(way)(*arrays), exact, tolerance)
    candidates = {name: calling(chained(way, chain), *arrays, launches=chain) for name, way in ways.items()}
    return summarize(case, measure(candidates, seconds=seconds), base=base)


# --- Derivatives -------------------------------------------------------------------------------

# Functions by jtprim and by jnp, shapes of their arguments on a GPU and on the CPU.
DIFFERENTIATED: dict[str, tuple[Any, Any, list[tuple[int, ...]], list[tuple[int, ...]]]] = {
    "softmax": (functions.softmax, jnp_softmax, [(8192, 4096)], [(512, 1000)]),
    "layer norm": (
        first(functions.layer_norm),
        first(jnp_layer_norm),
        [(8192, 8192), (8192,), (8192,)],
        [(512, 1000), (1000,), (1000,)],
    ),
}


def gradient(name: str, seconds: float) -> dict[str, Any]:
    """The gradient of a function by its first argument, its value computed as well."""
    ours, theirs, large, small = DIFFERENTIATED[name]
    inputs = [jnp.asarray(draw(*shape, seed=seed)) for seed, shape in enumerate(small if ON_CPU else large)]
    weights = jnp.asarray(draw(*inputs[0].shape, seed=9))

    def of(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
        def loss(x: jax.Array, weights: jax.Array, *others: jax.Array) -> tuple[jax.Array, jax.Array]:
            out = function(x, *others)
            return jnp.sum(weights * out), out

        def both(*arrays: jax.Array) -> jax.Array:
            (_, out), found = jax.value_and_grad(loss, has_aux=True)(*arrays)
            return jax.lax.optimization_barrier((found, out))[0]

        return both

    ways = {"jtprim": of(ours), "jnp": of(theirs)}
    shape = "x".join(map(str, inputs[0].shape))
    case = f"value and gradient of {name} {shape} float32"
    return compared(
        case, ways, (inputs[0], weights, *inputs[1:]), seconds, tolerance=1e-4, base="jnp", chain=1
    )


# --- Results -----------------------------------------------------------------------------------


def run(*, seconds: float = 3.0) -> Iterator[dict[str, Any]]:
    """All results; under a minute on a GPU."""
    if not ON_CPU:  # elsewhere the hand-written batch is the same JAX operations
        yield attempt(batch_of_softmaxes, seconds)
        yield attempt(batch_of_products, seconds)
    for name in DIFFERENTIATED:
        yield attempt(gradient, name, seconds)
