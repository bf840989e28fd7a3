"""Kernels on the GPU give what NumPy gives, and what the portable lowering gives on the CPU."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

import jtprim as jt
from examples import functions
from examples.demo import relative_error
from tests.gpu.machine import local_target
from tests.kernels import add, count, double_into_first, fill, sum_and_difference

pytestmark = pytest.mark.gpu

# Relative to the largest value; float32 products of matrices are TF32's, with float16's mantissa.
TOLERANCES = {"float16": 3e-3, "bfloat16": 2.5e-2, "float32": 2e-6}
TF32_TOLERANCE = 3e-3
DTYPES = list(TOLERANCES)


def draw(*shape, dtype="float32", seed=0):
    values = np.random.default_rng(seed).standard_normal(shape, np.float32)
    return jnp.asarray(values, jnp.dtype(dtype))


def inputs(name, size, dtype):
    match name:
        case "add":
            return draw(*size, dtype=dtype, seed=1), draw(*size, dtype=dtype, seed=2)
        case "softmax":
            return (draw(*size, dtype=dtype, seed=1),)
        case "matmul":
            m, n, k = size
            return draw(m, k, dtype=dtype, seed=1), draw(k, n, dtype=dtype, seed=2)
        case "layer_norm":
            columns = size[1]
            return (
                draw(*size, dtype=dtype, seed=1),
                draw(columns, dtype=dtype, seed=2),
                draw(columns, dtype=dtype, seed=3),
            )


SIZES = {
    "add": [(1,), (1000,), (98432,), (37, 41, 3)],
    "softmax": [(1, 1), (3, 5), (1823, 781), (5000, 130)],
    "matmul": [(1, 1, 1), (16, 16, 16), (100, 70, 50), (512, 512, 512), (257, 129, 1000)],
    "layer_norm": [(1, 1), (7, 100), (64, 1000), (100, 8192)],
}
CASES = [(name, size) for name, sizes in SIZES.items() for size in sizes]


def as_tuple(results):
    return results if isinstance(results, tuple) else (results,)


def tolerance(name, dtype):
    return TF32_TOLERANCE if (name, dtype) == ("matmul", "float32") else TOLERANCES[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name,size", CASES)
def test_the_tutorials_kernels_are_right_against_numpy(name, size, dtype):
    arrays = inputs(name, size, dtype)
    results = as_tuple(jax.jit(getattr(functions, name))(*arrays))
    expected = as_tuple(getattr(functions, f"{name}_reference")(*arrays))
    assert results[0].dtype == dtype
    for result, exact in zip(results, expected, strict=True):
        # A mean is the sum of values that cancel: its error is that of the values.
        scale = max(np.max(np.abs(exact)), 1e-3)
        error = np.max(np.abs(np.asarray(result).astype(np.float64) - exact)) / scale
        limit = tolerance(name, dtype) if result is results[0] else 1e-5 if size[1:] != (1,) else 1e-3
        assert error <= limit, (error, limit)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name,size", [case for case in CASES if case[1][-1] > 1])
def test_the_portable_lowering_on_the_cpu_gives_the_same(name, size, dtype):
    arrays = inputs(name, size, dtype)
    function = jax.jit(getattr(functions, name))
    on_gpu = as_tuple(function(*arrays))
    on_cpu = as_tuple(function(*jax.device_put(arrays, jax.devices("cpu")[0])))
    for gpu, cpu in zip(on_gpu, on_cpu, strict=True):
        assert gpu.dtype == cpu.dtype
        assert cpu.devices() == {jax.devices("cpu")[0]}
        limit = tolerance(name, dtype) if gpu is on_gpu[0] else 1e-5
        assert relative_error(gpu, np.asarray(cpu).astype(np.float64)) <= limit


def test_the_default_device_decides_where_an_eager_launch_runs():
    with jax.default_device(jax.devices("cpu")[0]):
        x = jnp.arange(1000, dtype=jnp.float32)
        on_cpu = functions.add(x, x)
    on_gpu = functions.add(*(jax.device_put(x, jax.devices()[0]),) * 2)
    assert on_cpu.devices() != on_gpu.devices()
    np.testing.assert_array_equal(on_cpu, on_gpu)


@pytest.mark.parametrize("activation", ["", "leaky_relu"])
def test_a_matmul_takes_an_activation(activation):
    a, b = inputs("matmul", (300, 200, 100), "float16")
    out = jax.jit(functools.partial(functions.matmul, activation=activation))(a, b)
    expected = functions.matmul_reference(a, b, activation=activation)
    assert relative_error(out, expected) <= TOLERANCES["float16"]


# --- Compile options ---------------------------------------------------------------------------


@pytest.mark.parametrize("num_stages", [3, 4])
def test_a_kernel_may_take_more_shared_memory_than_48_kib(num_stages):
    a, b = inputs("matmul", (500, 700, 1024), "float16")
    tiles = {"BLOCK_SIZE_M": 128, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_K": 64}
    function = functools.partial(functions.matmul, num_stages=num_stages, num_warps=8, **tiles)
    [kernel] = jt.inspect(function, a, b, platform=local_target()).kernels
    assert kernel.shared_bytes > 48 * 1024
    out = jax.jit(function)(a, b)
    assert relative_error(out, functions.matmul_reference(a, b)) <= TOLERANCES["float16"]


@pytest.mark.parametrize("num_warps", [1, 2, 8, 16, 32])
def test_any_number_of_warps_gives_the_same(num_warps):
    x = draw(5000)
    out = jt.kernel(add)[(3,)](x, x, 5000, BLOCK=2048, num_warps=num_warps, out_shape={"out_ptr": x})
    np.testing.assert_array_equal(out, 2 * x)


# --- Outputs -----------------------------------------------------------------------------------


def test_outputs_may_stand_before_and_between_the_inputs():
    x, y = draw(1000, seed=1), draw(1000, seed=2)
    double = jt.kernel(double_into_first)[(4,)](x, 1000, BLOCK=256, out_shape={"out_ptr": x})
    np.testing.assert_array_equal(double, 2 * x)
    both = {"sum_ptr": x, "difference_ptr": x}
    total, difference = jt.kernel(sum_and_difference)[(4,)](x, y, 1000, BLOCK=256, out_shape=both)
    np.testing.assert_array_equal(total, x + y)
    np.testing.assert_array_equal(difference, x - y)


def test_zeroed_outputs_are_zero_at_every_launch():
    x = jnp.arange(10_000, dtype=jnp.int32)
    launch = jax.jit(
        lambda x: jt.kernel(count)[(10,)](
            x, n=10_000, BLOCK=1024, out_shape={"out_ptr": x[:1]}, zeroed_outputs="out_ptr"
        )
    )
    for _ in range(5):
        np.testing.assert_array_equal(launch(x), [49_995_000])


def test_a_launch_without_programs_gives_zeros():
    launch = lambda n: jt.kernel(fill)[(n,)](
        value=7, n=64, BLOCK=32, out_shape={"out_ptr": jax.ShapeDtypeStruct((64,), jnp.int32)}
    )
    np.testing.assert_array_equal(launch(0), np.zeros(64))
    np.testing.assert_array_equal(launch(2), np.full(64, 7))


def test_arrays_without_elements_go_through():
    empty = jnp.zeros((0, 3))
    assert jax.jit(functions.add)(empty, empty).shape == (0, 3)


# --- Configurations ----------------------------------------------------------------------------


@triton.autotune(
    [triton.Config({"BLOCK": b}, num_warps=w) for b, w in ((64, 1), (256, 2), (1024, 4))], key=[]
)
@triton.jit
def tells_its_block(out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, BLOCK, mask=offsets < n)


def test_of_an_autotuned_kernels_configurations_one_is_picked_and_kept():
    n = 100_000
    launch = jax.jit(
        lambda: jt.kernel(tells_its_block)[lambda meta: triton.cdiv(n, meta["BLOCK"])](
            n=n, out_shape={"out_ptr": jax.ShapeDtypeStruct((n,), jnp.int32)}
        )
    )
    assert len(jt.inspect(launch, platform=local_target()).kernels) == 3
    picked = {int(value) for _ in range(5) for value in np.unique(launch())}
    assert len(picked) == 1
    assert picked <= {64, 256, 1024}


def test_an_autotuned_kernel_is_right():
    configs = [
        triton.Config({"BLOCK_SIZE": 128}, num_warps=2),
        triton.Config({"BLOCK_SIZE": 512}, num_warps=4),
        triton.Config({"BLOCK_SIZE": 2048}, num_warps=8),
    ]
    tuned = jt.kernel(triton.autotune(configs, key=["n_elements"])(functions.add_kernel.fn))
    x, y = draw(98432, seed=1), draw(98432, seed=2)
    grid = lambda meta: triton.cdiv(meta["n_elements"], meta["BLOCK_SIZE"])
    launch = lambda x, y: tuned[grid](x, y, n_elements=x.size, out_shape={"output_ptr": x})
    for run in (launch, jax.jit(launch)):
        np.testing.assert_array_equal(run(x, y), x + y)


def test_heuristics_set_parameters():
    values = {"BLOCK": lambda arguments: triton.next_power_of_2(arguments["n"])}
    kernel = jt.kernel(triton.heuristics(values)(add))
    for n in (5, 100, 1025):
        x = draw(n)
        np.testing.assert_array_equal(kernel[(1,)](x, x, n, out_shape={"out_ptr": x}), 2 * x)


# --- Gluon -------------------------------------------------------------------------------------


@gluon.jit
def gluon_shift(in_ptr, out_ptr, n, BLOCK: gl.constexpr, layout: gl.constexpr):
    offsets = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=layout)
    mask = offsets < n
    gl.store(out_ptr + offsets, gl.load(in_ptr + offsets, mask=mask) + 1, mask=mask)


@pytest.mark.parametrize("per_thread", [1, 4])
def test_a_gluon_kernel_runs(per_thread):
    lanes = 32 if local_target().startswith("cuda") else 64
    layout = gl.BlockedLayout([per_thread], [lanes], [4], [0])
    x = draw(1000)
    launch = lambda x: jt.kernel(gluon_shift)[(4,)](
        x, n=1000, BLOCK=256, layout=layout, num_warps=4, out_shape={"out_ptr": x}
    )
    np.testing.assert_array_equal(jax.jit(launch)(x), x + 1)
    np.testing.assert_array_equal(launch(x), x + 1)


# --- Errors ------------------------------------------------------------------------------------


def test_a_compile_error_shows_the_kernels_line_and_leaves_the_gpu_usable():
    @triton.jit
    def wrong(x_ptr, out_ptr):
        block = tl.arange(0, 100)
        tl.store(out_ptr + block, tl.load(x_ptr + block))

    x = draw(100)
    with pytest.raises(triton.CompilationError, match="power of 2") as caught:
        jt.kernel(wrong)[(1,)](x, out_shape=x)
    assert "block = tl.arange(0, 100)" in str(caught.value)
    np.testing.assert_array_equal(functions.add(x, x), 2 * x)


def test_too_much_shared_memory_is_an_error_and_not_a_crash():
    a, b = inputs("matmul", (512, 512, 512), "float16")
    with pytest.raises(jt.JtprimError, match="bytes of shared memory"):
        functions.matmul(a, b, BLOCK_SIZE_M=256, BLOCK_SIZE_N=256, BLOCK_SIZE_K=128, num_stages=4)
    np.testing.assert_array_equal(functions.add(a, b), a + b)
