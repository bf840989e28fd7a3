"""On the CPU: the portable lowering beside `jax.numpy` under `jax.jit`, and beside Triton's interpreter."""

from __future__ import annotations

import functools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jtprim as jt
from benchmarks.timing import Candidate, measure, summarize, summarize_single
from examples import functions
from examples.demo import relative_error
from examples.training import functions as training
from tests.gpu import attention_kernels

TOLERANCE = 1e-5
ATTENTION = (1, 8, 1024, 64)


def jnp_add(x: jax.Array, y: jax.Array) -> jax.Array:
    return x + y


def jnp_softmax(x: jax.Array) -> jax.Array:
    return jax.nn.softmax(x, axis=1)


def jnp_matmul(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.matmul(a, b)


def jnp_layer_norm(
    x: jax.Array, weight: jax.Array, bias: jax.Array, *, eps: float = 1e-5
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """What `examples.functions.layer_norm` computes, of x of shape [rows, columns]."""
    wide = x.astype(jnp.float32)
    mean = wide.mean(axis=1)
    rstd = jax.lax.rsqrt(wide.var(axis=1) + eps)
    normalized = (wide - mean[:, None]) * rstd[:, None]
    return (normalized * weight[None, :] + bias[None, :]).astype(x.dtype), mean, rstd


def jnp_attention(q: jax.Array, k: jax.Array, v: jax.Array, *, causal: bool) -> jax.Array:
    """Attention written out: all products of queries and keys are in memory at once."""
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) / q.shape[-1] ** 0.5
    if causal:
        seen = jnp.tril(jnp.ones(scores.shape[-2:], bool))
        scores = jnp.where(seen[None, None], scores, -jnp.inf)
    return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores, axis=-1), v)


def draw(*shape: int, dtype: Any = np.float32, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32).astype(dtype)


Case = tuple[str, Callable[..., Any], Callable[..., Any], tuple[np.ndarray, ...]]


def cases() -> Iterator[Case]:
    """Name, the kernel's function, its counterpart in `jax.numpy`, and inputs, all float32."""
    for n in (2**24, 1024):
        yield f"add {n:,}", functions.add, jnp_add, (draw(n, seed=1), draw(n, seed=2))
    for shape in ((4096, 1024), (64, 100)):
        yield f"softmax {shape[0]}x{shape[1]}", functions.softmax, jnp_softmax, (draw(*shape),)
    for shape in ((1151, 8192), (32, 256)):
        inputs = (draw(*shape), draw(shape[1], seed=1), draw(shape[1], seed=2))
        yield f"layer norm {shape[0]}x{shape[1]}", functions.layer_norm, jnp_layer_norm, inputs
    for n in (1024, 128):
        yield f"matmul {n}x{n}x{n}", functions.matmul, jnp_matmul, (draw(n, n, seed=1), draw(n, n, seed=2))
    for causal, name in ((False, "attention"), (True, "causal attention")):
        inputs = tuple(draw(*ATTENTION, seed=seed) for seed in range(3))
        ways = (functools.partial(way, causal=causal) for way in (attention_kernels.attention, jnp_attention))
        yield f"{name} {'x'.join(map(str, ATTENTION))}", *ways, inputs


def beside_jnp(*, seconds: float) -> Iterator[dict[str, Any]]:
    """One result for each case: the portable lowering as a multiple of `jax.numpy`'s time."""
    for name, function, counterpart, inputs in cases():
        arrays = jax.device_put(inputs)
        ours, theirs = jax.jit(function), jax.jit(counterpart)
        check(name, ours(*arrays), theirs(*arrays))
        candidates = {
            "jtprim": Candidate(_calling(ours, arrays), jax.block_until_ready),
            "jnp": Candidate(_calling(theirs, arrays), jax.block_until_ready),
        }
        yield summarize(f"{name} float32", measure(candidates, seconds=seconds), base="jnp")


def check(name: str, results: Any, expected: Any) -> None:
    """Checks that two candidates compute the same; a fast wrong answer is no result."""
    for result, other in zip(jax.tree.leaves(results), jax.tree.leaves(expected), strict=True):
        error = relative_error(result, np.asarray(other).astype(np.float64))
        if not error <= TOLERANCE:
            raise ArithmeticError(f"{name}: the candidates differ by {error:.1e} of the largest value")


def _calling(function: Callable[..., Any], arrays: tuple[jax.Array, ...]) -> Callable[[], Any]:
    return lambda: function(*arrays)


def beside_the_interpreter(*, seconds: float) -> Iterator[dict[str, Any]]:
    """One result for each kernel: Triton's interpreter as a multiple of the portable lowering's time.

    The interpreter replaces `triton.jit` when Triton is imported, so it has a process of its own.
    """
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.interpreter"],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        yield {"case": "Triton's interpreter", "skipped": done.stderr[-2000:]}
        return
    ours = {
        "add": functions.add,
        "softmax": functions.softmax,
        "matmul": functions.matmul,
        "layer_norm": functions.layer_norm,
        "attention": functools.partial(training.attention, causal=False),
    }
    for line in done.stdout.splitlines():
        found = json.loads(line)
        sizes = ", ".join("x".join(map(str, shape)) for shape in found["shapes"])
        case = f"{found['kernel']} {sizes} float32"
        if "skipped" in found:
            yield {"case": case, "skipped": found["skipped"]}
            continue
        arrays = tuple(jnp.asarray(draw(*shape, seed=seed)) for seed, shape in enumerate(found["shapes"]))
        jax.clear_caches()  # `beside_jnp` has compiled it for these shapes
        jt.clear_caches()
        compiled = jax.jit(ours[found["kernel"]])
        start = time.perf_counter()
        jax.block_until_ready(compiled(*arrays))
        first_call = time.perf_counter() - start
        candidate = Candidate(_calling(compiled, arrays), jax.block_until_ready)
        times = measure({"jtprim": candidate}, seconds=seconds)["jtprim"]
        yield summarize_single(
            case,
            {
                "Triton's interpreter": found["seconds"],
                "jtprim, first call (translates and compiles)": first_call,
                "jtprim": statistics.median(times),
            },
            base="jtprim",
        )


def run(*, seconds: float = 4.0) -> Iterator[dict[str, Any]]:
    """All results, `seconds` for each case or a little more."""
    yield from beside_jnp(seconds=seconds)
    yield from beside_the_interpreter(seconds=seconds / 4)
