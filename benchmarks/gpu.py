"""On a GPU: jtprim beside native Triton (through PyTorch, eagerly and in CUDA graphs) and beside XLA."""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

# PyTorch uses the same GPU: JAX must not take its memory at the start.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import jax.numpy as jnp
import numpy as np
import triton

import jtprim as jt
from benchmarks.kernels import copy_kernel
from benchmarks.portable import draw, jnp_add, jnp_layer_norm, jnp_softmax
from benchmarks.timing import Candidate, measure, summarize, summarize_single
from examples import functions
from examples.demo import relative_error

WITHOUT_NATIVE = ""
try:
    from benchmarks import native
except ImportError as error:  # no PyTorch
    native, WITHOUT_NATIVE = None, str(error)  # type: ignore[assignment]

NATIVE = "native Triton"
NATIVE_GRAPH = "native Triton in a CUDA graph"
FLOOR = "jax.jit(lambda x: x + 1)"
CUSTOM_CALL = "jaxlib's own custom call"

# Launches in one program.
CHAIN = 100
LARGE_CHAIN = 20

# What might change how XLA records launches into graphs; each is measured in a process of its own.
XLA_FLAGS = ("--xla_gpu_graph_min_graph_size=1", "--xla_gpu_enable_command_buffer=")

# Candidates for a product of 1024x1024 matrices, from which native Triton's fastest is taken for all.
MATMUL_SIZE = 1024
MATMUL_CONFIGURATIONS = [
    {
        "BLOCK_SIZE_M": m,
        "BLOCK_SIZE_N": n,
        "BLOCK_SIZE_K": k,
        "GROUP_SIZE_M": 8,
        "num_warps": warps,
        "num_stages": stages,
    }
    for m, n, k, warps, stages in (
        (128, 128, 64, 8, 3),
        (128, 128, 64, 8, 4),
        (128, 128, 64, 4, 4),
        (128, 64, 64, 4, 3),
        (128, 64, 64, 4, 4),
        (128, 64, 64, 8, 4),
        (128, 64, 128, 4, 3),
        (64, 128, 64, 4, 4),
    )
]


_copy = jt.kernel(copy_kernel)


def copy(x: jax.Array) -> jax.Array:
    """A copy of an array of one element."""
    return _copy[(1,)](x, out_shape={"out_ptr": x})


def pivots_to_permutation(pivots: jax.Array) -> jax.Array:
    """One custom call of jaxlib's with one small kernel: what any such call costs under XLA."""
    return jax.lax.linalg.lu_pivots_to_permutation(pivots, pivots.size)


def calling(function: Callable[..., Any], *arguments: Any, launches: int = 1) -> Candidate:
    return Candidate(lambda: function(*arguments), jax.block_until_ready, launches)


def chained(step: Callable[..., jax.Array], launches: int) -> Any:
    """A jitted chain of launches, each on the result of the one before and on the same other arrays."""

    def chain(x: jax.Array, *others: jax.Array) -> jax.Array:
        for _ in range(launches):
            x = step(x, *others)
        return x

    return jax.jit(chain)


class Donating:
    """Calls a chain again and again, and each time gives it the last result's memory for the next one.

    Every call then has its arrays at the same addresses, as a CUDA graph has; XLA records a program's graph
    anew when an address changes.
    """

    def __init__(self, step: Callable[..., jax.Array], launches: int, x: jax.Array, *others: jax.Array):
        chain = chained(step, launches)
        self._chain = jax.jit(lambda _, *arrays: chain(*arrays), donate_argnums=0, keep_unused=True)
        self._arrays = x, *others
        self._result = jnp.zeros_like(x)

    def __call__(self) -> jax.Array:
        self._result = self._chain(self._result, *self._arrays)
        return self._result


def kept_apart(step: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """A step of XLA's own operations that is not fused with the one after it."""
    return lambda *arrays: jax.lax.optimization_barrier(step(*arrays))


# --- Launches ----------------------------------------------------------------------------------


def eager_launch(seconds: float) -> dict[str, Any]:
    x = jnp.ones(1, jnp.float32)
    candidates = {"jtprim": calling(copy, x), FLOOR: calling(jax.jit(lambda x: x + 1), x)}
    if native:
        source, target = native.tensor(np.ones(1, np.float32)), native.tensor(np.zeros(1, np.float32))
        candidates[NATIVE] = native.eager(lambda: native.copy(source, target))
    times = measure(candidates, seconds=seconds)
    return summarize("eager launch of a one-element copy", times, base=FLOOR)


def jitted_launch(seconds: float) -> dict[str, Any]:
    x = jnp.ones(1, jnp.float32)
    candidates = {
        "jtprim": calling(jax.jit(copy), x),
        CUSTOM_CALL: calling(jax.jit(pivots_to_permutation), jnp.zeros(1, jnp.int32)),
        FLOOR: calling(jax.jit(lambda x: x + 1), x),
    }
    return summarize("jitted launch of a one-element copy", measure(candidates, seconds=seconds), base=FLOOR)


def copies_in_one_program(seconds: float) -> dict[str, Any]:
    x = jnp.ones(1, jnp.float32)
    one_pivot = jnp.zeros(1, jnp.int32)
    step = kept_apart(lambda x: x + 1)
    candidates = {
        "jtprim": calling(chained(copy, CHAIN), x, launches=CHAIN),
        "jtprim, donating": calling(Donating(copy, CHAIN, x), launches=CHAIN),
        CUSTOM_CALL: calling(chained(pivots_to_permutation, CHAIN), one_pivot, launches=CHAIN),
        f"{CUSTOM_CALL}, donating": calling(
            Donating(pivots_to_permutation, CHAIN, one_pivot), launches=CHAIN
        ),
        "jnp": calling(chained(step, CHAIN), x, launches=CHAIN),
        "jnp, donating": calling(Donating(step, CHAIN, x), launches=CHAIN),
    }
    if native:
        source = native.tensor(np.ones(1, np.float32))
        candidates[NATIVE_GRAPH], _ = native.in_a_graph(native.copy, source, CHAIN)
    base = NATIVE_GRAPH if native else "jnp"
    return summarize(f"one-element copy, {CHAIN} in one jit", measure(candidates, seconds=seconds), base=base)


# --- Kernels -----------------------------------------------------------------------------------


def matmul_inputs() -> tuple[np.ndarray, np.ndarray]:
    """Matrices whose products stay of one size however long the chain is."""
    a, b = draw(MATMUL_SIZE, MATMUL_SIZE, seed=1), draw(MATMUL_SIZE, MATMUL_SIZE, seed=2)
    return a.astype(np.float16), (b / np.sqrt(MATMUL_SIZE)).astype(np.float16)


def best_matmul_configuration() -> tuple[dict[str, int], dict[str, float]]:
    """Native Triton's fastest configuration in a CUDA graph, and the time of each in microseconds."""
    if not native:
        return MATMUL_CONFIGURATIONS[0], {}
    a, b = map(native.tensor, matmul_inputs())
    found: dict[str, float] = {}
    for configuration in MATMUL_CONFIGURATIONS:
        step = functools.partial(_native_matmul, b=b, configuration=configuration)
        try:
            candidate, _ = native.in_a_graph(step, a, LARGE_CHAIN)
        except triton.runtime.errors.OutOfResources:
            continue
        [times] = measure({"": candidate}, seconds=0.2).values()
        found[json.dumps(configuration)] = statistics.median(times) * 1e6
    return json.loads(min(found, key=found.__getitem__)), found


def _native_matmul(a: Any, out: Any, *, b: Any, configuration: dict[str, int]) -> None:
    native.matmul(a, b, out, configuration)


def matmuls_in_one_program(seconds: float) -> dict[str, Any]:
    configuration, tried = best_matmul_configuration()
    a, b = matmul_inputs()
    arrays = jnp.asarray(a), jnp.asarray(b)
    step = functools.partial(functions.matmul, **configuration)
    ours = chained(step, CHAIN)
    candidates = {
        "jtprim": calling(ours, *arrays, launches=CHAIN),
        "jtprim, donating": calling(Donating(step, CHAIN, *arrays), launches=CHAIN),
        "jnp": calling(chained(jnp.matmul, CHAIN), *arrays, launches=CHAIN),
        "jnp, donating": calling(Donating(jnp.matmul, CHAIN, *arrays), launches=CHAIN),
    }
    if native:
        natively = functools.partial(_native_matmul, b=native.tensor(b), configuration=configuration)
        candidates[NATIVE_GRAPH], result = native.in_a_graph(natively, native.tensor(a), CHAIN)
        candidates[NATIVE_GRAPH].batch(1)
        check("matmul", ours(*arrays), result, 1e-6)  # the same kernel on the same numbers
    base = NATIVE_GRAPH if native else "jnp"
    case = f"{MATMUL_SIZE}^3 float16 matmul, {CHAIN} in one jit"
    summary = summarize(case, measure(candidates, seconds=seconds), base=base)
    return {**summary, "configuration": configuration, "configurations_us": tried}


# How each is launched: by jtprim, by XLA's own operations, and natively; and its inputs, some hundred MB.
LARGE: dict[str, tuple[Any, Any, Any, list[tuple[tuple[int, ...], Any]]]] = {
    "add": (functions.add, jnp_add, native and native.add, [((2**26,), np.float32)] * 2),
    "softmax": (functions.softmax, jnp_softmax, native and native.softmax, [((8192, 4096), np.float32)]),
    "layer norm": (
        functions.layer_norm,
        jnp_layer_norm,
        native and native.layer_norm,
        [((8192, 8192), np.float16), ((8192,), np.float32), ((8192,), np.float32)],
    ),
}


def large_kernel(name: str, seconds: float) -> dict[str, Any]:
    """A kernel that is bound by memory, on arrays larger than any cache."""
    ours, theirs, launch, kinds = LARGE[name]
    inputs = [draw(*shape, dtype=dtype, seed=seed) for seed, (shape, dtype) in enumerate(kinds)]
    arrays = tuple(map(jnp.asarray, inputs))
    x = arrays[0]
    check(name, first(ours)(*arrays), first(theirs)(*arrays), 5e-3 if x.dtype == jnp.float16 else 1e-5)
    our_chain = chained(first(ours), LARGE_CHAIN)
    candidates = {
        "jtprim": calling(our_chain, *arrays, launches=LARGE_CHAIN),
        "jnp": calling(chained(kept_apart(first(theirs)), LARGE_CHAIN), *arrays, launches=LARGE_CHAIN),
    }
    if native:
        source, *others = map(native.tensor, inputs)
        rows = [native.empty(x.shape[0]), native.empty(x.shape[0])] if name == "layer norm" else []
        candidates[NATIVE_GRAPH], result = native.in_a_graph(
            lambda a, out: launch(a, *others, out, *rows), source, LARGE_CHAIN
        )
        candidates[NATIVE_GRAPH].batch(1)
        check(name, our_chain(*arrays), result, 1e-6)
    sizes = "x".join(map(str, x.shape))
    base = NATIVE_GRAPH if native else "jnp"
    return summarize(f"{name} {sizes} {x.dtype}", measure(candidates, seconds=seconds), base=base)


def first(function: Callable[..., Any]) -> Callable[..., jax.Array]:
    """The first result of a function alone, which has the shape and dtype of its first argument."""
    return lambda *arrays: jax.tree.leaves(function(*arrays))[0]


def check(name: str, result: jax.Array, other: Any, tolerance: float) -> None:
    """Checks that two candidates compute the same; a fast wrong answer is no result."""
    exact = np.asarray(other.cpu().numpy() if hasattr(other, "cpu") else other).astype(np.float64)
    error = relative_error(result, exact)
    if not error <= tolerance:
        raise ArithmeticError(f"{name}: the candidates differ by {error:.1e} of the largest value")


# --- Before a launch ---------------------------------------------------------------------------


def tracing_and_lowering(seconds: float) -> dict[str, Any]:
    """Functions that JAX has not seen before, of launches and of operations of XLA's."""
    x = jax.ShapeDtypeStruct((1,), jnp.float32)
    candidates = {
        "jtprim": Candidate(lambda: chained(copy, CHAIN).lower(x)),
        "jnp.sin": Candidate(lambda: chained(jnp.sin, CHAIN).lower(x)),
    }
    times = measure(candidates, seconds=seconds)
    return summarize(f"trace and lower {CHAIN} launches", times, base="jnp.sin")


def compiling() -> dict[str, Any]:
    """Twelve configurations of a matmul, in processes of their own."""
    modes = {"jtprim": ["jtprim"]}
    if native:
        modes["native Triton, one by one"] = ["triton"]
        modes["native Triton on 8 threads"] = ["triton", "--threads", "8"]
    times: dict[str, float] = {}
    for name, arguments in modes.items():
        with tempfile.TemporaryDirectory() as folder:
            times[name] = run_module("benchmarks.compilation", *arguments, TRITON_CACHE_DIR=folder)
            if "--threads" not in arguments:
                again = run_module("benchmarks.compilation", *arguments, TRITON_CACHE_DIR=folder)
                times[f"{name}, from Triton's disk cache"] = again
    base = "native Triton, one by one" if native else "jtprim"
    return summarize_single("compile 12 configurations of a matmul", times, base=base)


def run_module(module: str, *arguments: str, **environment: str) -> Any:
    """What a module prints as JSON when it is run in another process."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    if done.returncode:
        raise RuntimeError(f"{module} {' '.join(arguments)} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def with_xla_flags(flags: str) -> dict[str, Any]:
    """The launches in one program once more, with flags that XLA reads at its start."""
    case = f"one-element copy, {CHAIN} in one jit, XLA_FLAGS={flags}"
    given = os.environ.get("XLA_FLAGS", "")
    try:
        summary = run_module("benchmarks.gpu", "--copies", XLA_FLAGS=f"{given} {flags}".strip())
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        return {"case": case, "skipped": str(error)[-1000:]}
    return {**summary, "case": case}


def run(*, seconds: float = 3.0) -> Iterator[dict[str, Any]]:
    """All results; three to four minutes."""
    if not native:
        yield {"case": NATIVE, "skipped": WITHOUT_NATIVE}
    yield attempt(eager_launch, seconds)
    yield attempt(jitted_launch, 2 * seconds)
    yield attempt(copies_in_one_program, seconds)
    yield attempt(matmuls_in_one_program, 2 * seconds)
    for name in ("add", "softmax", "layer norm"):
        yield attempt(large_kernel, name, seconds)
    yield attempt(tracing_and_lowering, seconds)
    yield attempt(compiling)
    for flags in XLA_FLAGS:
        yield with_xla_flags(flags)


def attempt(benchmark: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """A benchmark's result, or why there is none: one failure does not lose the others' time."""
    try:
        return benchmark(*arguments)
    except Exception as error:
        case = " ".join([benchmark.__name__, *(a for a in arguments if isinstance(a, str))])
        return {"case": case, "skipped": f"{type(error).__name__}: {str(error)[-1000:]}", "failed": True}


def main() -> None:
    """The part of the benchmark that is run anew for other XLA flags; prints its result as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu")
    parser.add_argument("--copies", action="store_true", required=True, help="launches in one program")
    parser.parse_args()
    print(json.dumps(copies_in_one_program(1.0)))


if __name__ == "__main__":
    main()
