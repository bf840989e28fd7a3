"""`execute` under JAX's transforms, and what it refuses."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import triton
import triton.language as tl

from jtprim.lowering.portable import execute
from tests.portable.launching import compiled, launch


@triton.jit
def softmax_kernel(x, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    mask = c < columns
    v = tl.load(x + row * columns + c, mask=mask, other=-float("inf"))
    e = tl.exp(v - tl.max(v, axis=0))
    tl.store(out + row * columns + c, e / tl.sum(e, axis=0), mask=mask)


@triton.jit
def layer_norm_kernel(x, w, b, out, columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    x += row * columns
    out += row * columns
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, columns, BLOCK):
        c = start + tl.arange(0, BLOCK)
        total += tl.load(x + c, mask=c < columns, other=0.0)
    mean = tl.sum(total, axis=0) / columns
    squares = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, columns, BLOCK):
        c = start + tl.arange(0, BLOCK)
        v = tl.load(x + c, mask=c < columns, other=0.0)
        v = tl.where(c < columns, v - mean, 0.0)
        squares += v * v
    scale = 1 / tl.sqrt(tl.sum(squares, axis=0) / columns + eps)
    for start in range(0, columns, BLOCK):
        c = start + tl.arange(0, BLOCK)
        mask = c < columns
        v = (tl.load(x + c, mask=mask, other=0.0) - mean) * scale
        tl.store(out + c, v * tl.load(w + c, mask=mask) + tl.load(b + c, mask=mask), mask=mask)


def softmax(x):
    rows, columns = x.shape
    block = triton.next_power_of_2(columns)
    text = compiled(softmax_kernel, x, x, columns, BLOCK=block)
    return execute(text, (rows, 1, 1), [x, jnp.zeros_like(x), np.int32(columns)], [1], kernel="softmax")[0]


def layer_norm(x, w, b):
    rows, columns = x.shape
    text = compiled(layer_norm_kernel, x, w, b, x, columns, 1e-5, BLOCK=8)
    arguments = [x, w, b, jnp.zeros_like(x), np.int32(columns), np.float32(1e-5)]
    return execute(text, (rows, 1, 1), arguments, [3], kernel="layer_norm")[0]


def reference_layer_norm(x, w, b):
    normal = (x - x.mean(1, keepdims=True)) / jnp.sqrt(x.var(1, keepdims=True) + 1e-5)
    return normal * w[None] + b[None]


def normal(*shape):
    return jnp.asarray(np.random.default_rng(0).normal(size=shape), jnp.float32)


def test_softmax_agrees_with_jax_eagerly_and_under_jit_and_vmap():
    x = normal(3, 5, 11)
    expected = jax.nn.softmax(x, axis=-1)
    for transformed in (jax.vmap(softmax), jax.jit(jax.vmap(softmax))):
        np.testing.assert_allclose(transformed(x), expected, rtol=1e-5, atol=1e-6)
    for transformed in (softmax, jax.jit(softmax)):
        np.testing.assert_allclose(transformed(x[0]), expected[0], rtol=1e-5, atol=1e-6)


def test_gradients_of_softmax_agree_with_jax_to_second_order():
    x, v = normal(5, 11), normal(5, 11)[::-1]

    def loss(f):
        return lambda x: (f(x) ** 2).sum()

    def curvature(f):
        return jax.jvp(jax.grad(loss(f)), (x,), (v,))[1]

    np.testing.assert_allclose(
        jax.jit(jax.grad(loss(softmax)))(x), jax.grad(loss(jax.nn.softmax))(x), atol=1e-6
    )
    np.testing.assert_allclose(curvature(softmax), curvature(jax.nn.softmax), atol=1e-6)


def test_gradients_of_layer_norm_agree_with_jax_and_batch():
    x, w, b = normal(2, 4, 21), normal(21), normal(21)

    def loss(f):
        return lambda x, w, b: (f(x, w, b) ** 2).sum()

    found = jax.jit(jax.vmap(jax.grad(loss(layer_norm), (0, 1, 2)), (0, None, None)))(x, w, b)
    expected = jax.vmap(jax.grad(loss(reference_layer_norm), (0, 1, 2)), (0, None, None))(x, w, b)
    for got, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=2e-4, atol=2e-4)


def test_traced_scalars_are_arguments_like_others():
    x = normal(5, 11)
    text = compiled(softmax_kernel, x, x, 11, BLOCK=16)

    @jax.jit
    def run(x, columns):
        return execute(text, (5, 1, 1), [x, jnp.zeros_like(x), columns], [1], kernel="softmax")[0]

    np.testing.assert_allclose(run(x, jnp.int32(11)), jax.nn.softmax(x), rtol=1e-5, atol=1e-6)


def test_errors_of_the_frontend_come_as_they_are():
    @triton.jit
    def wrong(x):
        tl.store(x, undefined_name)  # noqa: F821

    with pytest.raises(triton.CompilationError):
        launch(wrong, (1,), np.zeros(1, np.float32), written=[0])


def test_no_tracer_leaks():
    with jax.checking_leaks():
        jax.jit(softmax)(normal(3, 5))


def test_the_emitted_program_is_the_same_in_every_process():
    script = (
        "import jax; from tests.portable.test_transforms import layer_norm, normal; "
        "print(jax.jit(layer_norm).lower(normal(3, 21), normal(21), normal(21)).as_text())"
    )

    def emitted(seed):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-c", script]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    assert "stablehlo" in emitted("1")
    assert emitted("1") == emitted("2")
