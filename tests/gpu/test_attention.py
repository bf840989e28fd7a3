"""Flash attention, tuned inside a JAX program, against attention written out in float32."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jtprim as jt
from tests.gpu.attention_kernels import CONFIGURATIONS, attention
from tests.gpu.machine import local_target

pytestmark = pytest.mark.gpu

# Relative to the largest value: weights and results are rounded to the dtype.
TOLERANCES = {"float16": 2e-3, "bfloat16": 1.6e-2}
SIMPLE = {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 2}


def draw(batch, heads, length, dim, dtype):
    """Queries, keys and values."""
    values = np.random.default_rng(0).standard_normal((3, batch, heads, length, dim), np.float32)
    return tuple(jnp.asarray(values, jnp.dtype(dtype)))


@functools.partial(jax.jit, static_argnums=3)
def written_out(q, k, v, causal):
    q, k, v = (x.astype(jnp.float32) for x in (q, k, v))
    product = functools.partial(jnp.einsum, precision=jax.lax.Precision.HIGHEST)
    scores = product("bhqd,bhkd->bhqk", q, k) / q.shape[-1] ** 0.5
    if causal:
        seen = jnp.tril(jnp.ones(scores.shape[-2:], bool))
        scores = jnp.where(seen[None, None], scores, -jnp.inf)
    return product("bhqk,bhkd->bhqd", jax.nn.softmax(scores, axis=-1), v)


def assert_is_attention(out, q, k, v, causal):
    exact = np.asarray(written_out(q, k, v, causal))
    assert out.dtype == q.dtype
    assert out.shape == q.shape
    error = np.max(np.abs(np.asarray(out).astype(np.float32) - exact)) / np.max(np.abs(exact))
    assert error <= TOLERANCES[q.dtype.name], error


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [100, 512, 1000])  # blocks divide one of these
def test_attention_is_right(length, causal, dim, dtype):
    q, k, v = draw(2, 3, length, dim, dtype)
    run = jax.jit(attention, static_argnums=3)
    for _ in range(2):  # the first run tunes
        assert_is_attention(run(q, k, v, causal), q, k, v, causal)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", [(1, 1, 1, 64), (3, 1, 129, 64), (1, 16, 2048, 128)])
def test_attention_of_other_shapes_is_right(shape, causal):
    q, k, v = draw(*shape, "float16")
    assert_is_attention(attention(q, k, v, causal), q, k, v, causal)


@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=str)
@pytest.mark.parametrize("length", [256, 300])
def test_every_configuration_is_right(length, configuration):
    q, k, v = draw(2, 2, length, 64, "float16")
    run = functools.partial(attention, causal=True, **configuration.all_kwargs())
    assert_is_attention(jax.jit(run)(q, k, v), q, k, v, True)


def test_all_configurations_travel_unless_one_is_pinned():
    arrays = draw(1, 2, 256, 64, "float16")
    tuned = jt.inspect(attention, *arrays, platform=local_target()).kernels
    pinned = jt.inspect(functools.partial(attention, **SIMPLE), *arrays, platform=local_target()).kernels
    assert len(pinned) == 1
    assert 1 < len(tuned) <= len(CONFIGURATIONS)


def test_the_portable_lowering_on_the_cpu_gives_the_same():
    arrays = draw(1, 2, 100, 64, "float16")
    run = jax.jit(functools.partial(attention, causal=True))
    on_cpu = run(*jax.device_put(arrays, jax.devices("cpu")[0]))
    np.testing.assert_allclose(run(*arrays), on_cpu, atol=4e-3)


def test_attention_runs_inside_a_scan_and_under_checkpoint():
    q, k, v = draw(1, 2, 200, 64, "float16")

    @jax.jit
    def layers(x):
        layer = jax.checkpoint(lambda x: attention(x, k, v, True))
        return jax.lax.scan(lambda x, _: (layer(x), None), x, None, length=3)[0]

    expected = q
    for _ in range(3):
        expected = attention(expected, k, v, True)
    np.testing.assert_allclose(layers(q), expected, atol=4e-3)


def test_two_attentions_of_one_program_are_tuned_apart():
    short, long = draw(1, 2, 128, 64, "float16"), draw(1, 2, 1024, 64, "float16")

    @jax.jit
    def both(short, long):
        return attention(*short), attention(*long, causal=True)

    out_short, out_long = both(short, long)
    assert_is_attention(out_short, *short, False)
    assert_is_attention(out_long, *long, True)
