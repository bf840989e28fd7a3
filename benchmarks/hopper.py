"""On a Hopper GPU: kernels that use its warpgroup products and TMA, under jtprim and natively.

`run` gives results as `benchmarks.gpu.run` does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import triton
from triton.experimental.gluon import language as gl

import jtprim as jt
from benchmarks.gpu import (
    LARGE_CHAIN,
    NATIVE_GRAPH,
    WITHOUT_NATIVE,
    Donating,
    attempt,
    calling,
    chained,
    check,
    kept_apart,
    native,
)
from benchmarks.portable import draw
from benchmarks.timing import Candidate, measure, summarize
from tests.gpu import attention_kernels
from tests.gpu import hopper_kernels as hopper

SDPA_GRAPH = "torch's scaled_dot_product_attention in a CUDA graph"

SIZE = 4096
ATTENTION = {"batch": 4, "heads": 16, "length": 4096}
ATTENTION_CHAIN = 10

# Tiles of the products, and programs of those that are persistent: one a multiprocessor.
BLOCK_M, BLOCK_N, BLOCK_K = 128, 256, 64
BLOCKS = {"BLOCK_M": BLOCK_M, "BLOCK_N": BLOCK_N, "BLOCK_K": BLOCK_K}
H100_MULTIPROCESSORS = 132


def multiprocessors() -> int:
    return int(getattr(jax.devices()[0], "core_count", H100_MULTIPROCESSORS))


def tiles(size: int) -> int:
    return triton.cdiv(size, BLOCK_M) * triton.cdiv(size, BLOCK_N)


# --- Products ----------------------------------------------------------------------------------

# Gluon kernels that take descriptors made on the host, and tl's that makes its own; how many programs
# each has, and its parameters.
PRODUCTS: dict[str, tuple[Any, Callable[[], int], dict[str, Any]]] = {
    "Gluon wgmma": (hopper.wgmma_matmul, lambda: tiles(SIZE), {"STAGES": 4}),
    "Gluon wgmma, warps specialized": (hopper.warp_specialized_matmul, multiprocessors, {"STAGES": 3}),
    "tl, persistent": (
        hopper.persistent_matmul,
        multiprocessors,
        {**BLOCKS, "WARP_SPECIALIZE": False, "num_stages": 3},
    ),
    "tl, persistent, warps specialized": (
        hopper.persistent_matmul,
        multiprocessors,
        {**BLOCKS, "WARP_SPECIALIZE": True, "num_stages": 3, "num_warps": 4},
    ),
}
COMMON = {"GROUP": 8, "num_warps": 8}


def descriptors(make: Callable[..., Any], a: Any, b: Any, out: Any) -> list[Any]:
    """Descriptors of two matrices and their product, by JAX's or PyTorch's way to make one."""
    layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16)
    blocks = (BLOCK_M, BLOCK_K), (BLOCK_K, BLOCK_N), (BLOCK_M, BLOCK_N)
    return [make(x, list(block), layout) for x, block in zip((a, b, out), blocks, strict=True)]


def product(name: str, a: jax.Array, b: jax.Array) -> jax.Array:
    """The product of two square matrices under jtprim."""
    kernel, programs, parameters = PRODUCTS[name]
    out = jax.ShapeDtypeStruct(a.shape, a.dtype)
    launch = functools.partial(jt.kernel(kernel)[programs()], **{**COMMON, **parameters})
    if kernel.is_gluon():
        return launch(*descriptors(jt.TensorDescriptor.from_array, a, b, out))
    return launch(a, b, *[len(a)] * 3, out_shape={"c_ptr": out})


def natively_multiply(a: Any, out: Any, *, name: str, b: Any) -> None:
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    kernel, programs, parameters = PRODUCTS[name]
    launch = functools.partial(kernel[(programs(),)], **{**COMMON, **parameters})
    if kernel.is_gluon():
        launch(*descriptors(TensorDescriptor.from_tensor, a, b, out))
    else:
        launch(a, b, out, *[len(a)] * 3)


def matrices() -> tuple[np.ndarray, np.ndarray]:
    """Matrices whose products stay of one size however long the chain is."""
    a, b = draw(SIZE, SIZE, seed=1), draw(SIZE, SIZE, seed=2)
    return a.astype(np.float16), (b / np.sqrt(SIZE)).astype(np.float16)


def matmul(name: str, seconds: float) -> dict[str, Any]:
    inputs = matrices()
    arrays = tuple(map(jnp.asarray, inputs))
    step = functools.partial(product, name)
    check(name, jax.jit(step)(*arrays), jax.jit(jnp.matmul)(*arrays), 2e-3)
    ours = chained(step, LARGE_CHAIN)
    candidates = {
        "jtprim": calling(ours, *arrays, launches=LARGE_CHAIN),
        "jtprim, donating": calling(Donating(step, LARGE_CHAIN, *arrays), launches=LARGE_CHAIN),
        "jnp": calling(chained(jnp.matmul, LARGE_CHAIN), *arrays, launches=LARGE_CHAIN),
    }
    if native:
        allocate_scratch_memory()
        a, b = map(native.tensor, inputs)
        natively = functools.partial(natively_multiply, name=name, b=b)
        candidates[NATIVE_GRAPH], result = native.in_a_graph(natively, a, LARGE_CHAIN)
        candidates[NATIVE_GRAPH].batch(1)
        check(name, ours(*arrays), result, 1e-6)  # the same kernel on the same numbers
    summary = summarized(f"{SIZE}^3 float16 matmul, {name}", candidates, seconds)
    return with_teraflops(summary, 2 * SIZE**3)


def allocate_scratch_memory() -> None:
    """Lets native Triton take the memory for descriptors that a kernel makes from PyTorch."""
    triton.set_allocator(
        lambda size, alignment, stream: native.torch.empty(size, dtype=native.torch.int8, device="cuda")
    )


# --- Attention ---------------------------------------------------------------------------------


def jnp_attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Causal attention written out: all products of queries and keys are in memory at once."""
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k, preferred_element_type=jnp.float32) / q.shape[-1] ** 0.5
    seen = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    weights = jax.nn.softmax(jnp.where(seen[None, None], scores, -jnp.inf), axis=-1)
    return jnp.einsum("bhqk,bhkd->bhqd", weights.astype(v.dtype), v)


def natively_attend(
    q: Any, out: Any, *, k: Any, v: Any, kernel: Any, configuration: Mapping[str, Any]
) -> None:
    batch, heads, length, dim = q.shape
    kernel[lambda meta: (triton.cdiv(length, meta["BLOCK_M"]), batch * heads)](
        q,
        k,
        v,
        out,
        attention_kernels.LOG2_E / dim**0.5,
        length,
        HEAD_DIM=dim,
        CAUSAL=True,
        **configuration,
    )


def fastest_configuration(q: Any, k: Any, v: Any) -> dict[str, Any]:
    """What native Triton's autotuner picks."""
    tuned = attention_kernels.tuned_attention_forward
    natively_attend(q, native.torch.empty_like(q), k=k, v=v, kernel=tuned, configuration={})
    return tuned.best_config.all_kwargs()


def scaled_dot_product_attention(q: Any, k: Any, v: Any) -> tuple[Candidate, Any]:
    """PyTorch's own attention in a chain, recorded as a CUDA graph; and where its result is."""
    torch = native.torch

    def chain() -> Any:
        x = q
        for _ in range(ATTENTION_CHAIN):
            x = torch.nn.functional.scaled_dot_product_attention(x, k, v, is_causal=True)
        return x

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        chain()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        result = chain()
    return native.replaying(graph, ATTENTION_CHAIN, q, k, v, result), result


def attention(dim: int, seconds: float) -> dict[str, Any]:
    """Causal attention of heads of `dim`."""
    batch, heads, length = ATTENTION.values()
    inputs = [draw(batch, heads, length, dim, dtype=np.float16, seed=seed) for seed in range(3)]
    arrays = tuple(map(jnp.asarray, inputs))
    tuned = functools.partial(attention_kernels.attention, causal=True)
    check("attention", jax.jit(tuned)(*arrays), jax.jit(jnp_attention)(*arrays), 5e-3)
    candidates = {
        "jtprim, tuned by JAX's runtime": calling(
            chained(tuned, ATTENTION_CHAIN), *arrays, launches=ATTENTION_CHAIN
        ),
        "jnp, written out": calling(
            chained(kept_apart(jnp_attention), ATTENTION_CHAIN), *arrays, launches=ATTENTION_CHAIN
        ),
    }
    configuration: dict[str, Any] = {}
    if native:
        q, k, v = map(native.tensor, inputs)
        configuration = fastest_configuration(q, k, v)
        natively = functools.partial(
            natively_attend,
            k=k,
            v=v,
            kernel=attention_kernels.tuned_attention_forward.fn,
            configuration=configuration,
        )
        candidates[NATIVE_GRAPH], result = native.in_a_graph(natively, q, ATTENTION_CHAIN)
        candidates[NATIVE_GRAPH].batch(1)
        ours = chained(functools.partial(tuned, **configuration), ATTENTION_CHAIN)
        check("attention", ours(*arrays), result, 1e-6)  # the same kernel on the same numbers
        candidates["jtprim"] = calling(ours, *arrays, launches=ATTENTION_CHAIN)
        candidates[SDPA_GRAPH], result = scaled_dot_product_attention(q, k, v)
        candidates[SDPA_GRAPH].batch(1)
        check("attention", ours(*arrays), result, 2e-2)
    case = f"causal attention {batch}x{heads}x{length}x{dim} float16"
    summary = summarized(case, candidates, seconds)
    # Of a square of products half is computed: each is a product of a query and a key, and of a weight
    # and a value.
    operations = 4 * batch * heads * length**2 * dim // 2
    return {**with_teraflops(summary, operations), "configuration": configuration}


# --- Results -----------------------------------------------------------------------------------


def summarized(case: str, candidates: Mapping[str, Candidate], seconds: float) -> dict[str, Any]:
    base = NATIVE_GRAPH if native else next(name for name in candidates if name.startswith("jnp"))
    return summarize(case, measure(candidates, seconds=seconds), base=base)


def with_teraflops(summary: dict[str, Any], operations: int) -> dict[str, Any]:
    """A summary with the operations a second, in 10^12, of each candidate's median."""
    teraflops = {name: operations / found["median_us"] / 1e6 for name, found in summary["candidates"].items()}
    return {**summary, "teraflops": teraflops}


def run(*, seconds: float = 3.0) -> Iterator[dict[str, Any]]:
    """All results; one to two minutes."""
    if getattr(jax.devices()[0], "compute_capability", None) != "9.0":
        yield {"case": "kernels for Hopper GPUs", "skipped": "needs a Hopper GPU"}
        return
    if not native:
        yield {"case": NATIVE_GRAPH, "skipped": WITHOUT_NATIVE}
    for name in PRODUCTS:
        yield attempt(matmul, name, seconds)
    for dim in (64, 128):
        yield attempt(attention, dim, seconds)
