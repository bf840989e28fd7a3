"""Launches inside JAX programs on the GPU: loops, branches, many in one program, threads."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import triton
import triton.language as tl

import jtprim as jt
from examples import functions
from tests.kernels import add, scale_in_place

pytestmark = pytest.mark.gpu


def plus(x, y):
    return jt.kernel(add)[lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]),)](
        x, y, x.size, BLOCK=256, out_shape={"out_ptr": x}
    )


def test_a_scan_of_1000_launches():
    x = jnp.arange(1000, dtype=jnp.float32)
    function = jax.jit(lambda x: jax.lax.scan(lambda c, _: (plus(c, x), None), x, None, length=1000)[0])
    for _ in range(2):
        np.testing.assert_array_equal(function(x), 1001 * x)


def test_a_scan_stacks_what_launches_return():
    x = jnp.arange(10, dtype=jnp.float32)
    _, stacked = jax.jit(lambda x: jax.lax.scan(lambda c, _: (plus(c, x), plus(c, c)), x, None, length=5))(x)
    np.testing.assert_array_equal(stacked, np.outer(2 * np.arange(1, 6), x))


def test_many_launches_in_one_program():
    x = jnp.ones(1000, jnp.float32)

    @jax.jit
    def function(x):
        y = x
        for _ in range(100):
            y = plus(y, x)
        return y

    for _ in range(3):  # the runtime may record the launches at an early run and replay them later
        np.testing.assert_array_equal(function(x), np.full(1000, 101))
    np.testing.assert_array_equal(function(2 * x), np.full(1000, 202))


def test_a_branch_takes_one_launch():
    x = jnp.arange(100, dtype=jnp.float32)
    scale = lambda x: jt.kernel(scale_in_place)[(1,)](x, 100, 3.0, BLOCK=128, input_output_aliases="x_ptr")
    function = jax.jit(lambda take, x: jax.lax.cond(take, lambda x: plus(x, x), scale, x))
    np.testing.assert_array_equal(function(True, x), 2 * x)
    np.testing.assert_array_equal(function(False, x), 3 * x)


def test_a_while_loop_ends_by_what_launches_compute():
    x = jnp.ones(10, jnp.float32)
    function = jax.jit(lambda x: jax.lax.while_loop(lambda x: x[0] < 1000, lambda x: plus(x, x), x))
    np.testing.assert_array_equal(function(x), np.full(10, 1024))


def test_kernels_and_xlas_operations_mix():
    x = jnp.asarray(np.random.default_rng(0).standard_normal((64, 100), np.float32))
    function = jax.jit(lambda x: jnp.log(functions.softmax(functions.add(x, x) * 0.5)) + 1)
    np.testing.assert_allclose(function(x), jax.nn.log_softmax(x, axis=1) + 1, rtol=1e-5, atol=1e-5)


def test_a_launch_with_side_effects_runs_and_gives_its_results():
    x = jnp.arange(100, dtype=jnp.float32)
    cost = jt.CostEstimate(flops=100, bytes_accessed=1200)
    function = jax.jit(
        lambda x: jt.kernel(add)[(1,)](
            x,
            x,
            100,
            BLOCK=128,
            out_shape={"out_ptr": x},
            has_side_effect=True,
            cost_estimate=cost,
            name="twice",
        )
    )
    np.testing.assert_array_equal(function(x), 2 * x)


# --- Threads -----------------------------------------------------------------------------------


def run_together(*functions):
    """Runs functions on threads that start at one moment; raises what any of them raised."""
    start = threading.Barrier(len(functions))
    errors = []

    def run(function):
        try:
            start.wait()
            function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert not any(thread.is_alive() for thread in threads)
    if errors:
        raise errors[0]


def test_two_threads_launch_different_kernels():
    x = jnp.arange(5000, dtype=jnp.float32)
    rows = x.reshape(50, 100) / 5000
    expected = functions.softmax_reference(rows)

    def add_often():
        for _ in range(100):
            np.testing.assert_array_equal(plus(x, x), 2 * np.arange(5000))

    def normalize_often():
        for _ in range(100):
            np.testing.assert_allclose(functions.softmax(rows), expected, rtol=1e-5)

    run_together(add_often, normalize_often)


@pytest.mark.parametrize("jitted", [False, True])
def test_threads_that_launch_one_new_kernel_at_one_moment_agree(jitted, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))  # so that it is compiled now

    @triton.jit
    def triple(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
        offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + offsets, mask=offsets < n)
        tl.store(out_ptr + offsets, x * 3, mask=offsets < n)

    kernel = jt.kernel(triple)
    x = jnp.arange(1000, dtype=jnp.float32)
    launch = lambda x: kernel[(4,)](x, n=1000, BLOCK=256, out_shape={"out_ptr": x})

    def race():
        run = jax.jit(lambda x: launch(x)) if jitted else launch
        for _ in range(20):
            np.testing.assert_array_equal(run(x), 3 * np.arange(1000))

    run_together(race, race, race, race)
