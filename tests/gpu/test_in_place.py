"""In-outs on the GPU: written where they lie if they are donated, in a copy if not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import triton

import jtprim as jt
from tests.gpu.machine import copies
from tests.kernels import scale_in_place

pytestmark = pytest.mark.gpu

N = 1_000_000
GRID = lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]),)


def scale(x, factor=2.0, kernel=scale_in_place, **keywords):
    keywords = {"BLOCK": 1024, **keywords}
    return jt.kernel(kernel)[GRID](x, x.size, factor, input_output_aliases="x_ptr", **keywords)


def ones(n=N):
    return jax.block_until_ready(jnp.ones(n, jnp.float32))


def test_a_donated_in_out_is_written_where_it_lies():
    x = ones()
    function = jax.jit(lambda x: scale(x), donate_argnums=0)
    assert copies(function.lower(x).compile()) == []
    pointer = x.unsafe_buffer_pointer()
    out = function(x)
    assert out.unsafe_buffer_pointer() == pointer
    assert x.is_deleted()
    np.testing.assert_array_equal(out, np.full(N, 2))


def test_an_in_out_that_is_not_donated_is_left_as_it_was():
    x = ones()
    function = jax.jit(lambda x: scale(x))
    assert copies(function.lower(x).compile()) != []
    out = function(x)
    assert out.unsafe_buffer_pointer() != x.unsafe_buffer_pointer()
    np.testing.assert_array_equal(x, np.ones(N))
    np.testing.assert_array_equal(out, np.full(N, 2))


def test_an_eager_launch_leaves_its_in_out_unless_it_donates_it():
    x = ones()
    np.testing.assert_array_equal(scale(x), np.full(N, 2))
    np.testing.assert_array_equal(x, np.ones(N))
    pointer = x.unsafe_buffer_pointer()
    out = scale(x, donate=True)
    assert x.is_deleted()
    assert out.unsafe_buffer_pointer() == pointer
    np.testing.assert_array_equal(out, np.full(N, 2))


def test_a_chain_of_launches_in_place_copies_nothing():
    function = jax.jit(lambda x: scale(scale(scale(x))), donate_argnums=0)
    x = ones()
    assert copies(function.lower(x).compile()) == []
    np.testing.assert_array_equal(function(x), np.full(N, 8))


def test_a_scan_in_place_copies_nothing():
    def function(x):
        return jax.lax.scan(lambda x, _: (scale(x, -1.0), None), x, None, length=101)[0]

    function = jax.jit(function, donate_argnums=0)
    x = ones()
    assert copies(function.lower(x).compile(), f"f32[{N}]") == []
    pointer = x.unsafe_buffer_pointer()
    out = function(x)
    assert out.unsafe_buffer_pointer() == pointer
    np.testing.assert_array_equal(out, np.full(N, -1))


@pytest.mark.parametrize("donate", [False, True])
def test_tuning_an_in_place_kernel_leaves_one_application(donate):
    configs = [triton.Config({"BLOCK": b}, num_warps=w) for b, w in ((128, 1), (512, 4), (1024, 8))]
    tuned = triton.autotune(configs, key=["n"])(scale_in_place)

    def launch(x):
        return jt.kernel(tuned)[GRID](x, x.size, 3.0, input_output_aliases="x_ptr")

    function = jax.jit(launch, donate_argnums=0 if donate else ())
    for _ in range(3):
        x = ones()
        np.testing.assert_array_equal(function(x), np.full(N, 3))
        assert x.is_deleted() == donate
    if not donate:
        np.testing.assert_array_equal(x, np.ones(N))


def test_tuning_an_in_place_kernel_inside_a_scan_leaves_one_application_a_step():
    configs = [triton.Config({"BLOCK": b}) for b in (128, 1024)]
    tuned = triton.autotune(configs, key=["n"])(scale_in_place)

    def step(x, _):
        return jt.kernel(tuned)[GRID](x, x.size, 2.0, input_output_aliases="x_ptr"), None

    out, _ = jax.jit(lambda x: jax.lax.scan(step, x, None, length=10))(ones(5000))
    np.testing.assert_array_equal(out, np.full(5000, 1024))
