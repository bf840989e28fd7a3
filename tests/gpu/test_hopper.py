"""What Hopper GPUs have beyond their predecessors, in kernels launched by jtprim."""

import faulthandler
import functools
import itertools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import triton
from triton.experimental.gluon import language as gl

import jtprim as jt
from examples import functions
from tests.gpu import hopper_kernels as hopper
from tests.gpu.machine import local_target

pytestmark = pytest.mark.gpu

# Relative to the largest value.
TOLERANCES = {"float16": 3e-3, "bfloat16": 2.5e-2}
BLOCKS = {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64}
SMALL_BLOCKS = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64}
# With TMA, blocks need not divide the sizes: rows are multiples of 16 bytes.
SIZES = [(512, 512, 512), (200, 136, 72), (8, 520, 1000)]
# Fewer programs than tiles, and as many as an H100 or H200 has multiprocessors.
PROGRAMS = [1, 3, 132]


@pytest.fixture(autouse=True)
def only_on_hopper():
    if local_target() != "cuda:90":
        pytest.skip("needs a Hopper GPU")


@pytest.fixture(autouse=True)
def end_the_process_if_a_kernel_waits_forever():
    faulthandler.dump_traceback_later(120, exit=True, file=sys.__stderr__)
    yield
    faulthandler.cancel_dump_traceback_later()


def draw(*shape, dtype="float16", seed=0):
    values = np.random.default_rng(seed).standard_normal(shape, np.float32)
    return jnp.asarray(values, jnp.dtype(dtype))


def matrices(size, dtype="float16"):
    m, n, k = size
    return draw(m, k, dtype=dtype, seed=1), draw(k, n, dtype=dtype, seed=2)


def assert_is_product(out, a, b):
    exact = np.asarray(a).astype(np.float64) @ np.asarray(b).astype(np.float64)
    assert out.dtype == a.dtype
    assert out.shape == exact.shape
    error = np.max(np.abs(np.asarray(out).astype(np.float64) - exact)) / np.max(np.abs(exact))
    assert error <= TOLERANCES[a.dtype.name], error


def product_like(a, b):
    return jax.ShapeDtypeStruct((a.shape[0], b.shape[1]), a.dtype)


def tiles(shape, blocks):
    return triton.cdiv(shape[0], blocks["BLOCK_M"]) * triton.cdiv(shape[1], blocks["BLOCK_N"])


# --- Launches ----------------------------------------------------------------------------------


def with_pointers(kernel, a, b, *, blocks=BLOCKS, programs=None, **parameters):
    """A product by a kernel that takes pointers and sizes; by default a program for each tile."""
    (m, k), n = a.shape, b.shape[1]
    out = product_like(a, b)
    return jt.kernel(kernel)[programs or tiles(out.shape, blocks)](
        a, b, m, n, k, out_shape={"c_ptr": out}, **{"GROUP": 8, "num_warps": 8, **blocks, **parameters}
    )


def gluon_descriptor(array, *block):
    layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16)
    return jt.TensorDescriptor.from_array(array, block, layout=layout)


def with_descriptors(kernel, a, b, *, blocks=BLOCKS, programs=None, **parameters):
    """A product by a Gluon kernel that takes descriptors; by default a program for each tile."""
    block_m, block_n, block_k = blocks.values()
    out = product_like(a, b)
    return jt.kernel(kernel)[programs or tiles(out.shape, blocks)](
        gluon_descriptor(a, block_m, block_k),
        gluon_descriptor(b, block_k, block_n),
        gluon_descriptor(out, block_m, block_n),
        **{"GROUP": 8, "num_warps": 8, **parameters},
    )


def inspected(function, *arrays):
    [kernel] = jt.inspect(function, *arrays, platform=local_target()).kernels
    return kernel


# --- Gluon: products by warpgroups -------------------------------------------------------------


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("size", [(512, 512, 512), (128, 256, 64), (256, 256, 1024)])
def test_warpgroups_multiply_what_asynchronous_copies_brought(size, dtype):
    a, b = matrices(size, dtype)
    launch = functools.partial(with_pointers, hopper.wgmma_matmul_without_tma, STAGES=4)
    kernel = inspected(launch, a, b)
    assert "wgmma.mma_async" in kernel.assembly
    assert "cp.async.cg.shared.global" in kernel.assembly
    assert_is_product(jax.jit(launch)(a, b), a, b)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("size", SIZES)
def test_warpgroups_multiply_what_descriptors_made_on_the_device_brought(size, dtype):
    a, b = matrices(size, dtype)
    launch = functools.partial(with_pointers, hopper.wgmma_matmul_with_own_descriptors, STAGES=4)
    assert inspected(launch, a, b).binary.scratch_bytes > 0
    assert_is_product(jax.jit(launch)(a, b), a, b)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("size", SIZES)
def test_warpgroups_multiply_what_descriptors_made_on_the_host_brought(size, dtype):
    a, b = matrices(size, dtype)
    launch = functools.partial(with_descriptors, hopper.wgmma_matmul, STAGES=4)
    assert inspected(launch, a, b).binary.scratch_bytes == 0
    for run in (launch, jax.jit(launch)):
        assert_is_product(run(a, b), a, b)


def test_a_descriptor_of_an_output_may_come_first():
    a, b = matrices((512, 512, 512))
    block_m, block_n, block_k = BLOCKS.values()
    out = jt.kernel(hopper.wgmma_matmul_into)[8](
        gluon_descriptor(product_like(a, b), block_m, block_n),
        gluon_descriptor(a, block_m, block_k),
        gluon_descriptor(b, block_k, block_n),
        STAGES=3,
        GROUP=8,
        num_warps=8,
    )
    assert_is_product(out, a, b)


def test_an_autotuner_picks_the_stages_of_a_gluon_kernel():
    configurations = [triton.Config({"STAGES": s}, num_warps=w) for s, w in ((2, 8), (3, 4), (4, 8))]
    tuned = triton.autotune(configurations, key=[])(hopper.wgmma_matmul)
    a, b = matrices((512, 512, 512))
    block_m, block_n, block_k = SMALL_BLOCKS.values()

    def launch(a, b):
        return jt.kernel(tuned)[16](
            gluon_descriptor(a, block_m, block_k),
            gluon_descriptor(b, block_k, block_n),
            gluon_descriptor(product_like(a, b), block_m, block_n),
            GROUP=8,
        )

    assert len(jt.inspect(launch, a, b, platform=local_target()).kernels) == 3
    assert_is_product(jax.jit(launch)(a, b), a, b)


# --- Persistent products, warp specialization --------------------------------------------------


@pytest.mark.parametrize("programs", PROGRAMS)
@pytest.mark.parametrize("size", SIZES)
def test_a_persistent_kernel_makes_its_descriptors_itself(size, programs):
    a, b = matrices(size)
    launch = functools.partial(
        with_pointers,
        hopper.persistent_matmul,
        blocks=SMALL_BLOCKS,
        programs=programs,
        WARP_SPECIALIZE=False,
    )
    kernel = inspected(launch, a, b)
    assert kernel.num_threads == 256
    assert kernel.binary.scratch_bytes > 0
    assert_is_product(jax.jit(launch)(a, b), a, b)


@pytest.mark.parametrize("programs", PROGRAMS)
@pytest.mark.parametrize("size", SIZES)
def test_a_gluon_kernel_gets_the_warps_that_it_specializes(size, programs):
    a, b = matrices(size)
    launch = functools.partial(with_descriptors, hopper.warp_specialized_matmul, programs=programs, STAGES=3)
    assert inspected(launch, a, b).num_threads > 256
    assert_is_product(jax.jit(launch)(a, b), a, b)


@pytest.mark.parametrize("programs", PROGRAMS)
@pytest.mark.parametrize("size", SIZES)
def test_a_warp_that_is_specialized_loads_through_descriptors_that_others_made(size, programs):
    a, b = matrices(size)
    kernel = hopper.warp_specialized_matmul_with_own_descriptors
    launch = functools.partial(with_pointers, kernel, programs=programs, STAGES=3)
    assert inspected(launch, a, b).num_threads > 256
    assert_is_product(jax.jit(launch)(a, b), a, b)


@pytest.mark.parametrize("programs", PROGRAMS)
@pytest.mark.parametrize("size", SIZES)
def test_triton_specializes_the_warps_of_a_loop(size, programs):
    a, b = matrices(size)
    launch = functools.partial(
        with_pointers,
        hopper.persistent_matmul,
        blocks=SMALL_BLOCKS,
        programs=programs,
        WARP_SPECIALIZE=True,
        num_warps=4,
    )
    assert inspected(launch, a, b).num_threads > 128
    assert_is_product(jax.jit(launch)(a, b), a, b)


# --- Many launches -----------------------------------------------------------------------------

LAUNCHES = {
    "scratch memory": functools.partial(
        with_pointers, hopper.warp_specialized_matmul_with_own_descriptors, programs=4, STAGES=3
    ),
    "descriptors": functools.partial(with_descriptors, hopper.warp_specialized_matmul, programs=4, STAGES=3),
}


def scaled(a):
    """A matrix by which products don't grow."""
    return (a.astype(jnp.float32) / a.shape[0] ** 0.5).astype(a.dtype)


@pytest.mark.parametrize("name", LAUNCHES)
def test_every_launch_of_a_chain_has_its_own(name):
    a, b = matrices((512, 512, 512))
    b = scaled(b)

    @jax.jit
    def chain(a, b):
        results = [a]
        for _ in range(10):
            results.append(LAUNCHES[name](results[-1], b))
        return results

    for run in range(5):  # arrays are elsewhere each time, or the program is replayed from a graph
        results = chain(a + run, b)
        for x, y in itertools.pairwise(results):
            assert_is_product(y, x, b)


@pytest.mark.parametrize("name", LAUNCHES)
def test_a_scan_of_launches_with_donated_memory(name):
    a, b = matrices((512, 512, 512))
    b = scaled(b)

    def steps(x, b):
        return jax.lax.scan(lambda x, _: (LAUNCHES[name](x, b), None), x, None, length=5)[0]

    x = expected = a
    run = jax.jit(steps, donate_argnums=0)
    for _ in range(3):
        expected = functools.reduce(lambda x, _: LAUNCHES[name](x, b), range(5), expected)
        x = run(x + 0, b)
        np.testing.assert_array_equal(x, expected)


# --- Descriptors in tuples ---------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
def test_a_kernel_makes_a_tuple_of_descriptors_of_a_tuple_of_pointers(size):
    a, b = matrices(size)
    m, n, _ = size
    out = jt.kernel(hopper.matmul_with_a_tuple_of_descriptors)[triton.cdiv(m, 128), triton.cdiv(n, 128)](
        (a, b), size, num_warps=8, out_shape={"c_ptr": product_like(a, b)}, **SMALL_BLOCKS
    )
    assert_is_product(out, a, b)


@pytest.mark.parametrize("size", SIZES)
def test_descriptors_come_in_a_tuple(size):
    a, b = matrices(size)
    m, n, k = size
    described = jt.TensorDescriptor.from_array
    out = jt.kernel(hopper.matmul_of_a_tuple_of_descriptors)[triton.cdiv(m, 128), triton.cdiv(n, 128)](
        (described(a, (128, 64)), described(b, (64, 128))),
        described(product_like(a, b), (128, 128)),
        k,
        BLOCK_K=64,
        num_warps=8,
    )
    assert_is_product(out, a, b)


# --- Clusters, registers, barriers -------------------------------------------------------------


@pytest.mark.parametrize("num_ctas", [1, 2, 4])
def test_a_program_is_a_cluster_of_num_ctas_thread_blocks(num_ctas):
    like = jax.ShapeDtypeStruct((4096,), jnp.int32)
    launch = lambda: jt.kernel(hopper.ranks_in_cluster)[4](
        BLOCK=1024, num_ctas=num_ctas, out_shape={"rank_ptr": like, "size_ptr": like}
    )
    assert inspected(launch).grid == (4, 1, 1)
    ranks, sizes = jax.jit(launch)()
    np.testing.assert_array_equal(sizes, num_ctas)
    for of_program in np.asarray(ranks).reshape(4, 1024):
        found, counts = np.unique(of_program, return_counts=True)
        np.testing.assert_array_equal(found, range(num_ctas))
        np.testing.assert_array_equal(counts, 1024 // num_ctas)


@pytest.mark.parametrize("size", [(512, 512, 512), (100, 70, 50)])
def test_a_cluster_of_two_multiplies(size):
    a, b = matrices(size)
    launch = jax.jit(functools.partial(functions.matmul, num_ctas=2))
    assert inspected(launch, a, b).binary.num_ctas == 2
    assert_is_product(launch(a, b), a, b)


@pytest.mark.parametrize("maxnreg", [None, 32, 64, 128])
def test_a_kernel_keeps_to_the_registers_that_it_may_have(maxnreg):
    x = draw(10_000, dtype="float32")
    options = {} if maxnreg is None else {"maxnreg": maxnreg}
    launch = lambda x: jt.kernel(hopper.polynomial)[3](
        x, n=x.size, DEGREE=3, BLOCK=4096, num_warps=1, out_shape={"out_ptr": x}, **options
    )
    assert (f".maxnreg {maxnreg}" in inspected(launch, x).assembly) == bool(options)
    expected = 1 + x * (1 + x * (1 + x))
    np.testing.assert_allclose(launch(x), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("num_warps", [1, 4, 8])
@pytest.mark.parametrize("shape", [(32, 32), (64, 128), (128, 32)])
def test_threads_wait_for_each_others_copies_at_a_barrier(shape, num_warps):
    x = draw(*shape, dtype="float32")
    rows, columns = shape
    out = jt.kernel(hopper.transpose_with_mbarrier)[1](
        x,
        ROWS=rows,
        COLUMNS=columns,
        num_warps=num_warps,
        out_shape={"out_ptr": jax.ShapeDtypeStruct((columns, rows), x.dtype)},
    )
    np.testing.assert_array_equal(out, x.T)
