"""JAX's transformations on a GPU: batches in one launch, numbers by value, derivatives."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import triton
import triton.language as tl

import jtprim as jt
from examples import functions
from tests.gpu import hopper_kernels
from tests.gpu.machine import local_target
from tests.kernels import add, add_tiles_into, double_into_first, scale_in_place, scale_line

pytestmark = pytest.mark.gpu


def normal(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def test_batches_of_descriptors_that_a_kernel_makes_of_lines():
    x, scale = normal(2, 3, 44), normal(2, 3, 1, seed=1)
    scaled = lambda x, scale: jt.kernel(scale_line)[1](x, scale, n=44, BLOCK=64, out_shape={"out_ptr": x})
    np.testing.assert_array_equal(jax.jit(jax.vmap(jax.vmap(scaled)))(x, scale), x * scale)
    if local_target() == "cuda:90":
        with pytest.raises(NotImplementedError, match="pad the arrays"):
            jax.vmap(
                lambda x: jt.kernel(scale_line)[1](x, scale[0, 0], n=42, BLOCK=64, out_shape={"out_ptr": x})
            )(x[0, :, :42])


@pytest.mark.parametrize("shape", [(1, 100), (7, 1000), (3, 5, 77)])
def test_a_batch_is_one_launch(shape):
    x, y = normal(*shape), normal(shape[-1], seed=1)
    f = lambda x, y: jt.kernel(add)[(triton.cdiv(shape[-1], 64),)](
        x, y, n=shape[-1], BLOCK=64, out_shape={"out_ptr": x}
    )
    for _ in shape[:-1]:
        f = jax.vmap(f, (0, None))
    assert len(jt.inspect(f, x, y, platform=local_target()).kernels) == 1
    np.testing.assert_allclose(jax.jit(f)(x, y), x + jnp.broadcast_to(y, x.shape), rtol=1e-6)


def test_batched_in_outs_moved_outputs_and_scratch_memory():
    x = normal(4, 50, 32)
    scaled = lambda x: jt.kernel(scale_in_place)[50](x, 1600, 2.0, BLOCK=32, input_output_aliases="x_ptr")
    np.testing.assert_array_equal(jax.jit(jax.vmap(scaled), donate_argnums=0)(x + 0), 2 * x)
    moved = lambda x: jt.kernel(double_into_first)[50](x_ptr=x, n=1600, BLOCK=32, out_shape={"out_ptr": x})
    np.testing.assert_array_equal(jax.vmap(moved)(x), 2 * x)
    tiles = lambda x: jt.kernel(add_tiles_into)[4](
        x, x, rows=50, M=16, N=32, out_shape={"out_ptr": x}, input_output_aliases="total_ptr"
    )
    for found in jax.vmap(tiles)(x):
        np.testing.assert_array_equal(found, 2 * x)


@triton.jit
def places_in_the_grid(x_ptr, out_ptr):
    place = (tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)) * tl.num_programs(2) + tl.program_id(2)
    tl.store(out_ptr + place, tl.load(x_ptr + place) + 100 * tl.num_programs(2))


@pytest.mark.parametrize("grid", [(2, 3, 4), (300, 2, 2), (1, 1, 7)])
def test_a_batch_shares_an_axis_with_programs_of_the_launch(grid):
    x = normal(3, 5, math.prod(grid))
    f = lambda x: jt.kernel(places_in_the_grid)[grid](x, out_shape={"out_ptr": x})
    batched = jax.vmap(jax.vmap(f))
    assert len(jt.inspect(batched, x, platform=local_target()).kernels) == 1
    np.testing.assert_array_equal(jax.jit(batched)(x), x + 100 * grid[2])


@pytest.mark.parametrize(
    "kernel, programs",
    [
        (hopper_kernels.wgmma_matmul_without_tma, 12),
        (hopper_kernels.wgmma_matmul_with_own_descriptors, 12),
        (hopper_kernels.warp_specialized_matmul_with_own_descriptors, 5),
    ],
)
def test_gluon_kernels_are_batched_in_one_launch(kernel, programs):
    if local_target() != "cuda:90":
        pytest.skip("written for Hopper")
    a, b = normal(3, 256, 128).astype(jnp.float16), normal(128, 192, seed=1).astype(jnp.float16)
    f = lambda a, b: jt.kernel(kernel)[programs](
        a, b, 256, 192, 128, out_shape={"c_ptr": jax.ShapeDtypeStruct((256, 192), a.dtype)},
        BLOCK_M=64, BLOCK_N=64, BLOCK_K=64, GROUP=8, STAGES=3, num_warps=4,
    )  # fmt: skip
    batched = jax.vmap(f, (0, None))
    assert len(jt.inspect(batched, a, b, platform=local_target()).kernels) == 1
    expected = jnp.matmul(a, b, preferred_element_type=jnp.float32)
    np.testing.assert_allclose(jax.jit(batched)(a, b).astype(jnp.float32), expected, rtol=2e-3, atol=2e-2)


def test_autotuned_kernels_are_batched():
    tuned = triton.autotune([triton.Config({"BLOCK": b}) for b in (32, 128)], key=[])(add)
    f = lambda x: jt.kernel(tuned)[lambda meta: triton.cdiv(1000, meta["BLOCK"])](
        x, x, 1000, out_shape={"out_ptr": x}
    )
    x = normal(16, 1000)
    np.testing.assert_array_equal(jax.jit(jax.vmap(f))(x), 2 * x)


def test_numbers_change_without_a_new_compilation():
    traces = []

    @jax.jit
    def f(x, n, factor):
        traces.append(1)
        return jt.kernel(scale_in_place)[4](x, n, factor, BLOCK=32, input_output_aliases="x_ptr")

    x = normal(100)
    for n, factor in ((100, 2.0), (1, -1.0), (64, 0.5)):
        np.testing.assert_allclose(f(x, n, factor), np.where(np.arange(100) < n, x * factor, x), rtol=1e-6)
    assert len(traces) == 1


@pytest.mark.parametrize(
    "ours, theirs, shapes",
    [
        (functions.softmax, lambda x: jax.nn.softmax(x, axis=1), [(100, 781)]),
        (functions.matmul, lambda a, b: jnp.matmul(a, b, precision="highest"), [(128, 96), (96, 64)]),
    ],
)
def test_gradients_are_those_of_jaxs_own_functions(ours, theirs, shapes):
    args = [normal(*shape, seed=seed) for seed, shape in enumerate(shapes)]
    weights = normal(*theirs(*args).shape, seed=5)
    every = tuple(range(len(args)))
    loss = lambda f: lambda *args: jnp.sum(weights * f(*args))
    value, found = jax.jit(jax.value_and_grad(loss(ours), every))(*args)
    expected_value, expected = jax.value_and_grad(loss(theirs), every)(*args)
    np.testing.assert_allclose(value, expected_value, rtol=2e-2, atol=1e-1)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-2, atol=2e-2 * float(jnp.max(jnp.abs(b))))
