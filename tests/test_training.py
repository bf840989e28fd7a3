"""The training example: its operations against `jax.numpy`, and the losses of both kinds of the model."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import jtprim as jt
from examples.training import __main__ as program
from examples.training import functions, model

SHARED_BYTES = 227 << 10  # that a block may have on a Hopper GPU
TINY = model.Size(width=32, layers=2, head_dim=16, length=24, batch=2, checkpoint=True)
SMALL = {"BLOCK_M": 16, "BLOCK_N": 32}


def normal(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def assert_same_gradients(ours, theirs, *args, weights, tolerance=1e-5):
    """Compares values and gradients by every argument of weighted sums."""
    every = tuple(range(len(args)))
    of = lambda f: jax.jit(jax.value_and_grad(lambda *args: jnp.sum(weights * f(*args)), every))(*args)
    compare = lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=10 * tolerance)
    jax.tree.map(compare, of(ours), of(theirs))


# --- Operations --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "length, blocks, causal", [(1, SMALL, True), (37, SMALL, False), (37, SMALL, True), (70, {}, True)]
)
def test_gradients_of_attention_are_those_of_jaxs(length, blocks, causal):
    q, k, v, weights = (normal(2, 3, length, 16, seed=seed) for seed in range(4))
    ours = functools.partial(functions.attention, causal=causal, **blocks)
    theirs = functools.partial(functions.attention_jnp, causal=causal)
    assert_same_gradients(ours, theirs, q, k, v, weights=weights)


def test_gradients_of_causal_attention_do_not_depend_on_blocks():
    q, k, v, weights = (normal(1, 45, 16, seed=seed) for seed in range(4))
    ours = functools.partial(functions.attention, BLOCK_M=32, BLOCK_N=16)
    assert_same_gradients(ours, functions.attention_jnp, q, k, v, weights=weights)


def test_gradients_of_attention_are_those_of_differences():
    q, k, v = (normal(1, 19, 16, seed=seed) for seed in range(3))
    f = jax.jit(functools.partial(functions.attention, **SMALL))
    check_grads(f, (q, k, v), 1, modes=["rev"], rtol=2e-2, atol=2e-2)


def test_the_logarithm_of_sums_has_a_gradient_too():
    q, k, v, weights = (normal(2, 19, 16, seed=seed) for seed in range(4))
    shapes = {"out_ptr": q, "lse_ptr": jax.ShapeDtypeStruct((2, 19), jnp.float32)}

    def ours(q, k):
        out, lse = functions.attention_kernel[2, 2](
            q, k, v, 0.25, 19, 16, CAUSAL=False, PRECISION="ieee", out_shape=shapes, **SMALL
        )
        return lse[..., None] + out

    def theirs(q, k):
        scores = jnp.einsum("hqd,hkd->hqk", q, k) / 4
        return jax.nn.logsumexp(scores, -1, keepdims=True) + functions.attention_jnp(q, k, v, causal=False)

    assert_same_gradients(ours, theirs, q, k, weights=weights)


def test_attention_is_batched_with_its_gradients():
    q, k, v = (normal(3, 1, 20, 16, seed=seed) for seed in range(3))
    loss = lambda f: lambda q, k, v: jnp.sum(jnp.sin(f(q, k, v)))
    ours = loss(functools.partial(functions.attention, **SMALL))
    found = jax.jit(jax.vmap(jax.grad(ours, (0, 1, 2)), (0, None, 0)))(q, k[0], v)
    expected = jax.vmap(jax.grad(loss(functions.attention_jnp), (0, 1, 2)), (0, None, 0))(q, k[0], v)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(2, 3, 33), (1, 1)])
def test_gradients_of_layer_norm_are_those_of_jaxs(shape):
    args = normal(*shape), normal(shape[-1], seed=1), normal(shape[-1], seed=2)
    weights = normal(*shape, seed=3)
    assert_same_gradients(functions.layer_norm, functions.layer_norm_jnp, *args, weights=weights)


@pytest.mark.parametrize("shape", [(2, 3, 50), (1, 1)])
def test_gradients_of_cross_entropy_are_those_of_jaxs(shape):
    targets = jnp.asarray(np.random.default_rng(1).integers(0, shape[-1], shape[:-1]), jnp.int32)
    of = lambda f: lambda logits: f(logits, targets)
    ours, theirs = of(functions.cross_entropy), of(functions.cross_entropy_jnp)
    assert_same_gradients(ours, theirs, normal(*shape), weights=normal(*shape[:-1], seed=2))


# --- The model ---------------------------------------------------------------------------------


def test_losses_are_the_same_at_each_step_and_fall(tmp_path):
    assert program.main(["--steps", "8", "--both", "--out", str(tmp_path)]) == 0
    [path] = tmp_path.glob("*.json")
    report = json.loads(path.read_text())
    ours, theirs = report["losses"]["triton"], report["losses"]["jnp"]
    assert len(ours) == 8
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    assert report["largest_difference"] < 1e-4
    assert ours[-1] < ours[0] - 0.3
    assert report["machine"]["jax"] == jax.__version__


def test_gradients_are_the_same_where_blocks_are_computed_again():
    p, tokens = model.initial(TINY), model.batches(TINY, 1)[0]
    found, expected = (
        jax.jit(jax.grad(functools.partial(model.loss, ops=functions.OPS[kind], size=TINY)))(p, tokens)
        for kind in ("triton", "jnp")
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), found, expected)


# --- For a GPU ---------------------------------------------------------------------------------


def test_the_step_is_lowered_for_a_gpu_with_kernels_that_fit():
    size = model.SIZES["gpu"]
    p = jax.eval_shape(lambda: model.initial(size))
    tokens = jax.ShapeDtypeStruct((size.batch, size.length + 1), jnp.int32)
    step = jax.value_and_grad(functools.partial(model.loss, ops=functions.OPS["triton"], size=size))
    kernels = jt.inspect(step, p, tokens, platform="cuda:90").kernels
    assert {kernel.name for kernel in kernels} == {
        *("attention_forward", "attention_backward_delta"),
        *("attention_backward_dkdv", "attention_backward_dq"),
        *("layer_norm_kernel", "cross_entropy_kernel"),
    }
    assert all(kernel.shared_bytes <= SHARED_BYTES for kernel in kernels)
