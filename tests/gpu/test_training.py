"""The training example on a GPU: attention's own gradients, and the losses of both kinds of the model."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from examples.training import functions, model

pytestmark = pytest.mark.gpu

SMALL = model.Size(width=128, layers=2, head_dim=64, length=128, batch=8)


def normal(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [100, 256])  # blocks divide one of these
def test_gradients_of_attention_are_those_of_jaxs(length, causal):
    q, k, v, weights = (normal(2, 3, length, 64, seed=seed) for seed in range(4))

    def gradients(f):
        loss = lambda q, k, v: jnp.sum(weights * f(q, k, v, causal=causal))
        with jax.default_matmul_precision("highest"):
            return jax.jit(jax.grad(loss, (0, 1, 2)))(q, k, v)

    for found, expected in zip(
        gradients(functions.attention), gradients(functions.attention_jnp), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["layer_norm", "cross_entropy"])
def test_gradients_of_other_operations_are_those_of_jaxs(name):
    x = normal(4, 50, 128)
    rest = (
        (normal(128, seed=1), normal(128, seed=2))
        if name == "layer_norm"
        else (jnp.asarray(np.random.default_rng(1).integers(0, 128, (4, 50)), jnp.int32),)
    )

    def gradient(kind):
        operation = getattr(functions.OPS[kind], name)
        return jax.jit(jax.grad(lambda x: jnp.sum(jnp.sin(operation(x, *rest)))))(x)

    np.testing.assert_allclose(gradient("triton"), gradient("jnp"), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("checkpoint", [False, True])
def test_losses_of_thirty_steps_agree_and_fall(checkpoint):
    train = functools.partial(model.train, size=model.Size(**{**vars(SMALL), "checkpoint": checkpoint}))
    ours, theirs = (np.array(list(train(kind, steps=30))) for kind in ("triton", "jnp"))
    np.testing.assert_allclose(ours, theirs, rtol=5e-3)
    np.testing.assert_allclose(ours[:5], theirs[:5], rtol=1e-4)
    assert ours[-1] < ours[0] - 1
