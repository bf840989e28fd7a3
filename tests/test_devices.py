"""Several devices, and several processes: each test runs programs of its own on eight virtual CPU devices."""

import os
import subprocess
import sys
import textwrap

HEAD = """
import jax, jax.numpy as jnp, numpy as np, triton
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
import jtprim as jt
from examples import functions
from tests.kernels import add, scale_in_place

devices = np.array(jax.devices())
assert len(devices) == 8
mesh = Mesh(devices.reshape(4, 2), ("i", "j"))

def added(x, y):
    grid = (triton.cdiv(x.size, 32),)
    return jt.kernel(add)[grid](x, y, n=x.size, BLOCK=32, out_shape={"out_ptr": x})

x = jnp.arange(64 * 48, dtype=jnp.float32).reshape(64, 48)
"""


def run(program, **environment):
    """What a program prints, in a process with eight CPU devices."""
    done = subprocess.run(
        [sys.executable, "-c", HEAD + textwrap.dedent(program)],
        env={
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_each_device_launches_on_its_own_shard():
    run("""
    spec = P("i", "j")
    f = jax.jit(jax.shard_map(added, mesh=mesh, in_specs=(spec, spec), out_specs=spec))
    out = f(x, x)
    assert out.sharding.is_equivalent_to(NamedSharding(mesh, spec), 2), out.sharding
    np.testing.assert_array_equal(out, 2 * x)

    one_row = jax.shard_map(added, mesh=mesh, in_specs=(spec, P()), out_specs=spec)
    np.testing.assert_array_equal(jax.jit(one_row)(x, x[:16, :24]), x + jnp.tile(x[:16, :24], (4, 2)))

    rows = jax.shard_map(functions.softmax, mesh=mesh, in_specs=P(("i", "j")), out_specs=P(("i", "j")))
    np.testing.assert_allclose(jax.jit(rows)(x / 100), jax.nn.softmax(x / 100, axis=1), rtol=1e-5)
    found = jax.jit(jax.grad(lambda x: (rows(x) ** 2).sum()))(x / 100)
    expected = jax.grad(lambda x: (jax.nn.softmax(x, axis=1) ** 2).sum())(x / 100)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-6)
    hvp = lambda f: jax.jit(lambda x: jax.jvp(jax.grad(lambda x: (f(x) ** 2).sum()), (x,), (x,))[1])(x / 100)
    np.testing.assert_allclose(hvp(rows), hvp(lambda x: jax.nn.softmax(x, axis=1)), rtol=1e-3, atol=1e-6)
    """)


def test_loops_and_batches_work_inside_shard_map():
    run("""
    a = x / 1000
    specs = P("i"), P(None, "j")
    product = jax.shard_map(functions.matmul, mesh=mesh, in_specs=specs, out_specs=P("i", "j"))
    b = a.T + 0
    np.testing.assert_allclose(jax.jit(product)(a, b), a @ b, rtol=1e-5, atol=1e-4)
    for argument in (0, 1):
        found = jax.jit(jax.grad(lambda a, b: (product(a, b) ** 2).sum(), argument))(a, b)
        expected = jax.grad(lambda a, b: ((a @ b) ** 2).sum(), argument)(a, b)
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)
    batch = jax.shard_map(jax.vmap(added), mesh=mesh, in_specs=(P("i"), P("i")), out_specs=P("i"))
    np.testing.assert_array_equal(jax.jit(batch)(x, x), 2 * x)
    """)


def test_sharded_arrays_go_through_jit_whatever_their_sharding():
    run("""
    for spec in (P("i", "j"), P(None, "i"), P(("i", "j")), P()):
        placed = jax.device_put(x, NamedSharding(mesh, spec))
        np.testing.assert_array_equal(jax.jit(added)(placed, placed), 2 * x)
        np.testing.assert_array_equal(added(placed, placed), 2 * x)
        scaled = lambda x: jt.kernel(scale_in_place)[96](x, 3072, 2.0, BLOCK=32, input_output_aliases="x_ptr")
        np.testing.assert_array_equal(jax.jit(scaled, donate_argnums=0)(placed + 0), 2 * x)
        np.testing.assert_array_equal(placed, x)
    """)


def test_batches_are_sharded():
    run("""
    placed = jax.device_put(x, NamedSharding(mesh, P("i")))
    out = jax.jit(jax.vmap(added))(placed, placed)
    np.testing.assert_array_equal(out, 2 * x)
    """)


def test_another_process_finds_the_compiled_program(tmp_path):
    program = """
    hits = []
    jax.monitoring.register_event_listener(
        lambda event, **_: hits.append(event) if event.endswith("/cache_hits") else None
    )
    f = jax.jit(lambda x: jax.vmap(added)(x, x) @ functions.matmul(x.T, x).T)
    np.testing.assert_array_equal(f(x).shape, (64, 48))
    print(len(hits))
    """
    environment = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    first, second = (int(run(program, **environment).split()[-1]) for _ in range(2))
    assert second > first
