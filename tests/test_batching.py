"""`jax.vmap` of launches, against a Python loop."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st
from triton.compiler import ASTSource

import jtprim as jt
from examples import functions
from tests.kernels import add, add_tiles_into, copy_tiles, double_into_first, scale_in_place, scale_line


@triton.jit
def affine(x_ptr, factor_ptr, shift, out_ptr, total_ptr, n, BLOCK: tl.constexpr):
    """out = x * factor + shift; total += x. The factor has one element."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, x * tl.load(factor_ptr) + shift, mask=mask)
    tl.store(total_ptr + offsets, tl.load(total_ptr + offsets, mask=mask) + x, mask=mask)


def run(x, factor, shift, total):
    return jt.kernel(affine)[2](
        x, factor, jt.by_value(shift), total_ptr=total, n=30, BLOCK=16,
        out_shape={"out_ptr": x}, input_output_aliases="total_ptr",
    )  # fmt: skip


def reference(x, factor, shift, total):
    return x * factor + shift, total + x


def normal(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def eqns(f, *args):
    return [eqn for eqn in jax.make_jaxpr(f)(*args).eqns if eqn.primitive is jt.triton_kernel_p]


SHAPES = ((30,), (1,), (), (30,))
some_axes = st.tuples(*(st.sampled_from([None, *range(len(shape) + 1)]) for shape in SHAPES)).filter(
    lambda axes: any(axis is not None for axis in axes)
)


def batched_arguments(*levels):
    """Arguments with an axis of each level's size put in where the level has it."""
    shapes = [list(shape) for shape in SHAPES]
    for size, axes in levels:
        for shape, axis in zip(shapes, axes, strict=True):
            if axis is not None:
                shape.insert(axis, size)
    return [normal(*shape, seed=seed) for seed, shape in enumerate(shapes)]


@settings(max_examples=20)
@given(axes=some_axes, size=st.integers(1, 4), out_axes=st.sampled_from([0, 1, -1]))
def test_any_subset_of_operands_may_be_batched_along_any_axis(axes, size, out_axes):
    args = batched_arguments((size, axes))
    found = jax.jit(jax.vmap(run, axes, out_axes))(*args)
    for ours, expected in zip(found, jax.vmap(reference, axes, out_axes)(*args), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)


@settings(max_examples=10)
@given(outer=some_axes, inner=some_axes, sizes=st.tuples(st.integers(1, 3), st.integers(1, 3)))
def test_batches_nest(outer, inner, sizes):
    args = batched_arguments((sizes[1], inner), (sizes[0], outer))
    nested = lambda f: jax.vmap(jax.vmap(f, inner), outer)
    assert len(eqns(nested(run), *args)) == 1
    for ours, expected in zip(jax.jit(nested(run))(*args), nested(reference)(*args), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("platform", ["cuda:90", "hip:gfx942"])
def test_a_batch_is_one_launch_along_a_free_axis(platform):
    x = normal(5, 7, 100)
    f = lambda x: jt.kernel(add)[4](x, x, n=100, BLOCK=32, out_shape={"out_ptr": x})
    batched = jax.vmap(jax.vmap(f))
    [eqn] = eqns(batched, x)
    assert eqn.params["batching"].axis == 2
    assert "batch=(5, 7)" in str(eqn)
    [one] = jt.inspect(batched, x, platform=platform).kernels
    assert one.grid == (4, 1, 35)
    np.testing.assert_array_equal(batched(x), 2 * x)


@triton.jit
def places(out_ptr, x_ptr, AXIS: tl.constexpr):
    value = tl.load(x_ptr) + 100 * tl.program_id(AXIS) + 1000 * tl.num_programs(AXIS)
    tl.store(out_ptr + tl.program_id(0), value)


def test_a_kernel_that_asks_about_the_batchs_axis_sees_one_program_along_it():
    x = normal(3, 1)
    for axis in range(3):
        launch = lambda x: jt.kernel(places)[1](x_ptr=x, AXIS=axis, out_shape={"out_ptr": x})  # noqa: B023
        [eqn] = eqns(jax.vmap(launch), x)
        assert eqn.params["batching"].axis == 2
        np.testing.assert_allclose(jax.vmap(launch)(x), x + 1000, rtol=1e-6)


def test_a_batch_beyond_an_axis_limit_takes_another():
    x = jnp.arange(70_000, dtype=jnp.float32)[:, None]
    f = lambda x: jt.kernel(add)[1](x, x, n=1, BLOCK=1, out_shape={"out_ptr": x})
    [eqn] = eqns(jax.vmap(f), x)
    assert eqn.params["batching"].axis == 0
    np.testing.assert_array_equal(jax.vmap(f)(x[:100]), 2 * x[:100])
    several = lambda x: jt.kernel(add)[3](x, x, n=1, BLOCK=1, out_shape={"out_ptr": x})
    [eqn] = eqns(jax.vmap(several), x)
    assert (eqn.params["batching"].axis, eqn.params["batching"].folded) == (0, True)


def test_where_no_axis_has_room_for_a_batch_launches_run_one_after_the_other():
    # As JAX sees it: the shapes alone are 2^31 programs.
    x = jax.ShapeDtypeStruct((2**17, 1), jnp.float32)
    f = lambda x: jt.kernel(add)[2**15, 2, 2](x, x, n=1, BLOCK=1, out_shape={"out_ptr": x})
    assert not eqns(jax.vmap(f), x)
    assert len(jax.make_jaxpr(jax.vmap(f))(x).eqns) == 1


@triton.jit
def full_grid(x_ptr, out_ptr):
    extents = tl.num_programs(0) * 100 + tl.num_programs(1) * 10 + tl.num_programs(2)
    place = (tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)) * tl.num_programs(2) + tl.program_id(2)
    tl.store(out_ptr + place, extents + tl.load(x_ptr + place))


@pytest.mark.parametrize("grid", [(2, 3, 4), (4, 1, 2), (2, 2, 1), (1, 1, 1)])
@pytest.mark.parametrize("sizes", [(1,), (3,), (2, 3), (2, 1, 2)])
def test_a_batch_shares_an_axis_where_the_launch_has_programs_along_all(grid, sizes):
    count, extents = math.prod(grid), int("".join(map(str, grid)))
    x = normal(*sizes, count)
    f = lambda x: jt.kernel(full_grid)[grid](x, out_shape={"out_ptr": x})
    batched = f
    for _ in sizes:
        batched = jax.vmap(batched)
    [eqn] = eqns(batched, x)
    assert eqn.params["batching"].folded == (1 not in grid)
    np.testing.assert_array_equal(jax.jit(batched)(x), x + extents)
    np.testing.assert_array_equal(jax.vmap(f, 1, 1)(x.reshape(-1, count).T), x.reshape(-1, count).T + extents)


@pytest.mark.parametrize("platform", ["cuda:90", "hip:gfx942"])
def test_a_batch_that_shares_an_axis_is_one_launch(platform):
    x = normal(5, 8)
    f = lambda x: jt.kernel(full_grid)[2, 2, 2](x, out_shape={"out_ptr": x})
    [one] = jt.inspect(jax.vmap(f), x, platform=platform).kernels
    assert one.grid == (2, 2, 10)
    [other] = jt.inspect(jax.vmap(f), normal(5, 8), platform=platform).kernels
    assert other.binary == one.binary


def test_the_binary_of_a_batch_that_shares_an_axis_does_not_depend_on_the_grid():
    def binary(*grid):
        x = normal(5, 64)
        f = lambda x: jt.kernel(full_grid)[grid](x, out_shape={"out_ptr": x})
        [one] = jt.inspect(jax.vmap(f), x, platform="cuda:90").kernels
        return one.binary

    assert binary(2, 2, 2) == binary(3, 2, 4)


@triton.jit
def place_of(block_count):
    return tl.program_id(0) * block_count + tl.program_id(1)


@triton.autotune([triton.Config({"BLOCK": block}) for block in (16, 32)], key=[])
@triton.jit
def add_by_tiles(x_ptr, shift, total_ptr, out_ptr, M, N, BLOCK: tl.constexpr):
    """out = x + shift, total += x, where functions that the kernel calls ask for the place."""
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    places = tl.program_id(0) * N + columns
    mask = (columns < N) & (place_of(tl.num_programs(1)) < M * tl.num_programs(1))
    x = tl.load(x_ptr + places, mask=mask)
    tl.store(out_ptr + places, x + shift + tl.program_id(2), mask=mask)
    if tl.program_id(2) == tl.num_programs(2) - 1:
        tl.store(total_ptr + places, tl.load(total_ptr + places, mask=mask) + x, mask=mask)


@settings(max_examples=15)
@given(
    axes=st.tuples(*(st.sampled_from([None, *range(rank + 1)]) for rank in (2, 0, 2))).filter(
        lambda axes: any(axis is not None for axis in axes)
    ),
    size=st.integers(1, 3),
    rows=st.integers(2, 3),
    columns=st.integers(33, 50),
)
def test_batches_of_kernels_that_use_all_axes_are_their_launches_one_by_one(axes, size, rows, columns):
    shapes = [[rows, columns], [], [rows, columns]]
    for shape, axis in zip(shapes, axes, strict=True):
        if axis is not None:
            shape.insert(axis, size)
    args = [normal(*shape, seed=seed) for seed, shape in enumerate(shapes)]

    def f(x, shift, total):
        grid = lambda meta: (rows, triton.cdiv(columns, meta["BLOCK"]), 2)
        return jt.kernel(add_by_tiles)[grid](
            x, jt.by_value(shift), total, M=rows, N=columns,
            out_shape={"out_ptr": x}, input_output_aliases="total_ptr",
        )  # fmt: skip

    [eqn] = eqns(jax.vmap(f, axes), *args)
    assert eqn.params["batching"].folded
    found = jax.vmap(f, axes)(*args)
    for member in range(size):
        one = [a if axis is None else jnp.take(a, member, axis) for a, axis in zip(args, axes, strict=True)]
        for ours, expected in zip(found, f(*one), strict=True):
            np.testing.assert_array_equal(ours[member], expected)


def text(f, *args):
    return str(jax.make_jaxpr(f)(*args))


def is_one_launch(f, *args):
    printed = text(f, *args)
    return printed.count("triton_kernel[") == 1 and "scan[" not in printed and "while[" not in printed


@settings(max_examples=60)
@given(
    grid=st.tuples(*(st.sampled_from([1, 2, 3, 300, 65535]) for _ in range(3))),
    sizes=st.lists(st.sampled_from([1, 2, 200, 30_000, 2**20]), min_size=1, max_size=2),
)
def test_a_batch_takes_an_axis_that_has_room_and_rather_one_of_its_own(grid, sizes):
    f = lambda x: jt.kernel(full_grid)[grid](x, out_shape={"out_ptr": x})
    for _ in sizes:
        f = jax.vmap(f)
    x = jax.ShapeDtypeStruct((*sizes, 4), jnp.float32)
    size, limits = math.prod(sizes), (2**31 - 1, 65535, 65535)
    rooms = [axis for axis in range(3) if grid[axis] * size <= limits[axis]]
    own = [axis for axis in rooms if grid[axis] == 1]
    if rooms:
        assert is_one_launch(f, x)
        [eqn] = eqns(f, x)
        axis = eqn.params["batching"].axis
        assert axis == max(own or rooms)
        assert eqn.params["batching"].grid(grid) == (*grid[:axis], grid[axis] * size, *grid[axis + 1 :])
    else:
        assert "scan[" in text(f, x)


@triton.jit(noinline=True)
def rows_before(x, y, z):
    return (z * tl.num_programs(1) + y) * tl.num_programs(0) + x


@triton.jit
def scale_in_grid(out_ptr, x_ptr, factor, total_ptr, shared_ptr):
    """out = x * factor + shared, total += x + the programs along axis 2; each program has an element."""
    place = rows_before(tl.program_id(0), tl.program_id(1), tl.program_id(2))
    x = tl.load(x_ptr + place)
    tl.store(out_ptr + place, x * factor + tl.load(shared_ptr + tl.program_id(0)))
    tl.store(total_ptr + place, tl.load(total_ptr + place) + x + tl.num_programs(2))


GRID = (2, 3, 2)
GRID_SHAPES = ((2, 3, 2), (), (2, 3, 2), (2,))


def run_in_grid(x, factor, total, shared):
    return jt.kernel(scale_in_grid)[GRID](
        x_ptr=x, factor=jt.by_value(factor), total_ptr=total, shared_ptr=shared,
        out_shape={"out_ptr": x}, input_output_aliases="total_ptr",
    )  # fmt: skip


def reference_in_grid(x, factor, total, shared):
    return x * factor + shared[None, None], total + x + GRID[2]


def grid_arguments(*levels):
    shapes = [list(shape) for shape in GRID_SHAPES]
    for size, axes in levels:
        for shape, axis in zip(shapes, axes, strict=True):
            if axis is not None:
                shape.insert(axis, size)
    return [normal(*shape, seed=seed) for seed, shape in enumerate(shapes)]


grid_axes = st.tuples(*(st.sampled_from([None, *range(len(shape) + 1)]) for shape in GRID_SHAPES)).filter(
    lambda axes: any(axis is not None for axis in axes)
)


@settings(max_examples=10)
@given(outer=grid_axes, inner=grid_axes, sizes=st.tuples(st.integers(1, 3), st.integers(1, 3)))
def test_batches_that_share_an_axis_nest_whatever_is_batched(outer, inner, sizes):
    args = grid_arguments((sizes[1], inner), (sizes[0], outer))
    nested = lambda f: jax.vmap(jax.vmap(f, inner), outer)
    assert is_one_launch(nested(run_in_grid), *args)
    found, expected = jax.jit(nested(run_in_grid))(*args), nested(reference_in_grid)(*args)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_where_no_axis_has_room_for_it_a_batch_of_batches_is_still_right(monkeypatch):
    axes = (0, None, 0, None)
    args = grid_arguments((3, axes), (2, axes))
    nested = lambda f: jax.vmap(jax.vmap(f, axes), axes)
    monkeypatch.setattr("jtprim.transforms.batching.GRID_LIMITS", (9, 9, 9))  # room for three, not for six
    assert text(nested(run_in_grid), *args).count("scan[") == 1
    for ours, theirs in zip(nested(run_in_grid)(*args), nested(reference_in_grid)(*args), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@triton.jit
def blocks_along_the_last_axis(x_ptr, out_ptr, BLOCK: tl.constexpr):
    first = ((tl.program_id(1) * 2 + tl.program_id(0)) * tl.num_programs(2) + tl.program_id(2)) * BLOCK
    offsets = first + tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, 2 * tl.load(x_ptr + offsets))


@pytest.mark.parametrize("blocks", [(16, 32), (32, 16)])
def test_a_configuration_with_one_program_along_the_shared_axis_agrees_with_the_others(blocks):
    configurations = [triton.Config({"BLOCK": block}) for block in blocks]
    tuned = triton.autotune(configurations, key=[])(blocks_along_the_last_axis)
    f = lambda x: jt.kernel(tuned)[lambda meta: (2, 2, 32 // meta["BLOCK"])](x, out_shape={"out_ptr": x})
    x = normal(3, 128)
    assert is_one_launch(jax.vmap(f), x)
    np.testing.assert_array_equal(jax.vmap(f)(x), 2 * x)
    kernels = jt.inspect(jax.vmap(f), x, platform="cuda:90").kernels
    assert [one.grid for one in kernels] == [(2, 2, 3 * 32 // block) for block in blocks]


def test_outputs_that_are_discovered_and_numbers_that_are_traced_share_an_axis():
    def f(x, out, factor):
        return jt.kernel(scale_in_grid)[GRID](out, x, jt.by_value(factor), x, jnp.zeros(2))

    x, factors = normal(4, 2, 3, 2), jnp.arange(4.0)
    assert is_one_launch(jax.vmap(f), x, x, factors)
    out, total = jax.vmap(f)(x, x, factors)
    np.testing.assert_allclose(out, x * factors[:, None, None, None], rtol=1e-6)
    np.testing.assert_allclose(total, 2 * x + GRID[2], rtol=1e-6)


def test_a_batch_of_no_launches_that_use_all_axes():
    axes = (0, None, None, 0)
    for found in jax.vmap(run_in_grid, axes)(*grid_arguments((0, axes))):
        assert found.shape == (0, 2, 3, 2)


def test_derivatives_of_a_batch_that_shares_an_axis():
    x, factor, total, shared = grid_arguments((3, (0, 0, None, None)))
    loss = lambda f: lambda *args: jnp.sum(jnp.sin(f(*args)[0]))
    batched = lambda f: jax.vmap(jax.grad(loss(f), (0, 1)), (0, 0, None, None))
    found = batched(run_in_grid)(x, factor, total, shared)
    expected = batched(reference_in_grid)(x, factor, total, shared)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("platform", ["cuda:90", "hip:gfx942"])
def test_a_launch_that_is_not_batched_is_compiled_as_triton_does(platform):
    x = normal(8)
    f = lambda x: jt.kernel(full_grid)[2, 2, 2](x, out_shape={"out_ptr": x})
    jt.inspect(jax.vmap(f), normal(3, 8), platform=platform)
    [one] = jt.inspect(f, x, platform=platform).kernels
    specialized = jt.specialize(full_grid, x, x, target=platform)
    own = ASTSource(
        full_grid,
        dict(specialized.signature),
        {path: static.value for path, static in specialized.constexprs},
        {path: [list(pair) for pair in pairs] for path, pairs in specialized.attributes},
    )
    native = triton.compile(own, target=one.binary.target)
    assert one.binary.image == next(native.asm[stage] for stage in ("cubin", "hsaco") if stage in native.asm)
    assert one.binary.asm["ttir"] == native.asm["ttir"]


@triton.jit
def place_by_assembly(x_ptr, out_ptr, REGISTER: tl.constexpr):
    place = tl.inline_asm_elementwise(
        "mov.u32 $0, %" + REGISTER + ";", "=r", [], dtype=tl.int32, is_pure=True, pack=1
    )
    tl.store(out_ptr + place, tl.load(x_ptr + place))


def test_assembly_may_ask_for_the_place_along_any_axis_but_the_batchs():
    def compiled(register):
        f = lambda x: jt.kernel(place_by_assembly)[2](x, REGISTER=register, out_shape={"out_ptr": x})
        return jt.inspect(jax.vmap(f), normal(3, 2), platform="cuda:90").kernels

    assert [one.grid for one in compiled("ctaid.x")] == [(2, 1, 3)]
    for register in ("ctaid.z", "nctaid.z", "clusterid.z"):
        with pytest.raises(NotImplementedError, match="place_by_assembly: asks by inline assembly"):
            compiled(register)


def test_descriptors_are_batched_one_after_the_other():
    def copied(x):
        target = jt.TensorDescriptor.from_array(jax.ShapeDtypeStruct(x.shape, x.dtype), (16, 16))
        return jt.kernel(copy_tiles)[2, 2](jt.TensorDescriptor.from_array(x, (16, 16)), target, M=16, N=16)

    x = normal(3, 32, 32)
    np.testing.assert_array_equal(jax.vmap(copied)(x), x)


def test_members_of_a_batch_that_tma_cannot_reach_are_refused_where_it_is_tma():
    def scaled(x, scale):
        return jt.kernel(scale_line)[1](x, scale, n=x.size, BLOCK=64, out_shape={"out_ptr": x})

    scale = normal(2, 3, 1)  # is loaded without TMA, from any address
    for length, fits in ((44, True), (42, False)):
        x = normal(2, 3, length)
        batch = jax.vmap(jax.vmap(scaled))
        np.testing.assert_array_equal(batch(x, scale), x * scale)
        for platform in ("cuda:80", "hip:gfx942"):
            jt.inspect(batch, x, scale, platform=platform)
        if fits:
            jt.inspect(batch, x, scale, platform="cuda:90")
            continue
        with pytest.raises(NotImplementedError, match=r"'x_ptr'.*168 bytes.*multiple of 16; pad the arrays"):
            jt.inspect(batch, x, scale, platform="cuda:90")
        jt.inspect(
            jax.vmap(jax.vmap(scaled, (None, 0)), (None, 0)), x[0, 0], scale[:, :1], platform="cuda:80"
        )


def test_an_in_out_that_is_not_batched_becomes_one_for_each():
    x, total = normal(4, 30), normal(30, seed=1)
    f = lambda x, total: run(x, jnp.ones(1), jnp.float32(0), total)[1]
    np.testing.assert_allclose(jax.vmap(f, (0, None))(x, total), total[None] + x, rtol=1e-6)
    scaled = lambda x: jt.kernel(scale_in_place)[1](x, 30, 2.0, BLOCK=32, input_output_aliases="x_ptr")
    np.testing.assert_array_equal(jax.vmap(scaled)(x), 2 * x)


def test_outputs_before_inputs_and_scratch_memory_are_batched():
    x = normal(4, 50)
    f = lambda x: jt.kernel(double_into_first)[1](x_ptr=x, n=50, BLOCK=64, out_shape={"out_ptr": x})
    np.testing.assert_array_equal(jax.vmap(f)(x), 2 * x)
    x = normal(3, 50, 32)
    g = lambda x: jt.kernel(add_tiles_into)[4](
        x, x, rows=50, M=16, N=32, out_shape={"out_ptr": x}, input_output_aliases="total_ptr"
    )
    for found in jax.vmap(g)(x):
        np.testing.assert_array_equal(found, 2 * x)
    [one] = jt.inspect(jax.vmap(g), x, platform="cuda:90").kernels
    assert one.grid == (4, 1, 3)


def test_autotuned_kernels_are_batched_with_every_configuration():
    tuned = triton.autotune([triton.Config({"BLOCK": b}) for b in (16, 32)], key=[])(add)
    f = lambda x: jt.kernel(tuned)[lambda meta: triton.cdiv(40, meta["BLOCK"])](
        x, x, 40, out_shape={"out_ptr": x}
    )
    x = normal(6, 40)
    np.testing.assert_array_equal(jax.vmap(f)(x), 2 * x)
    assert [one.grid for one in jt.inspect(jax.vmap(f), x, platform="cuda:90").kernels] == [
        (3, 1, 6),
        (2, 1, 6),
    ]


def test_batches_of_one_and_of_none():
    f = lambda x: jt.kernel(add)[1](x, x, n=30, BLOCK=32, out_shape={"out_ptr": x})
    for size in (1, 0):
        x = normal(size, 30)
        np.testing.assert_array_equal(jax.vmap(f)(x), 2 * x)


@pytest.mark.parametrize(
    "ours, theirs, shapes",
    [
        (functions.softmax, lambda x: jax.nn.softmax(x, axis=1), [(7, 20)]),
        (functions.matmul, jnp.matmul, [(20, 30), (30, 10)]),
    ],
)
def test_the_tutorials_kernels_are_batched_and_differentiated_either_way(ours, theirs, shapes):
    args = [normal(3, *shape, seed=seed) for seed, shape in enumerate(shapes)]
    for f in (
        lambda f: jax.vmap(f),
        lambda f: jax.vmap(jax.grad(lambda *args: jnp.sum(jnp.sin(f(*args))))),
        lambda f: jax.grad(lambda *args: jnp.sum(jnp.sin(jax.vmap(f)(*args)))),
    ):
        np.testing.assert_allclose(jax.jit(f(ours))(*args), f(theirs)(*args), rtol=1e-3, atol=1e-4)


def test_the_members_of_a_batch_are_those_of_a_loop():
    x, factor = normal(2, 3, 30), normal(3, 1, seed=1)
    f = lambda x, factor: run(x, factor, jnp.float32(0.5), jnp.zeros(30))[0]
    found = jax.vmap(jax.vmap(f, (0, 0)), (0, None))(x, factor)
    for i, j in itertools.product(range(2), range(3)):
        np.testing.assert_array_equal(found[i, j], f(x[i, j], factor[j]))
