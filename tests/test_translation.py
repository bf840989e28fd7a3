"""Launches on platforms that are no GPU: right against NumPy, whatever the arguments."""

import contextlib
import functools

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import triton
import triton.language as tl
from hypothesis import given, settings

import jtprim as jt
from jtprim.errors import JtprimError, LaunchValueError
from tests.kernels import add, add_pair, count, double_into_first, fill, scale_in_place
from tests.strategies import DTYPES

NARROW = [dtype for dtype in DTYPES if dtype not in ("int64", "uint64", "float64")]


def blocks(meta):
    return (triton.cdiv(meta["n"], meta["BLOCK"]),)


def draw(seed, size, dtype):
    random = np.random.default_rng(seed)
    dtype = jnp.dtype(dtype)
    if dtype == np.bool_:
        return random.integers(0, 2, size).astype(bool)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return random.integers(info.min, info.max, size, dtype=dtype, endpoint=True)
    return random.normal(size=size).astype(dtype)


@given(n=st.integers(1, 300), block=st.sampled_from([16, 64, 128]), dtype=st.sampled_from(NARROW))
@settings(max_examples=40)
def test_adding_is_right_for_every_dtype_and_size(n, block, dtype):
    x, y = draw(0, n, dtype), draw(1, n, dtype)
    out = jt.kernel(add)[blocks](x, y, n=n, BLOCK=block, out_shape={"out_ptr": x})
    assert out.dtype == x.dtype
    with np.errstate(over="ignore"):
        expected = x ^ y if dtype == "bool" else x + y
    np.testing.assert_array_equal(np.asarray(out), expected)


@pytest.mark.parametrize("dtype", ["int64", "uint64", "float64"])
def test_adding_is_right_for_64_bits_under_x64(dtype):
    x, y = draw(0, 77, dtype), draw(1, 77, dtype)
    with jax.enable_x64(True), np.errstate(over="ignore"):
        out = jt.kernel(add)[blocks](x, y, n=77, BLOCK=32, out_shape={"out_ptr": x})
        assert out.dtype == x.dtype
        np.testing.assert_array_equal(np.asarray(out), x + y)


@given(value=st.one_of(st.integers(-(2**31), 2**31 - 1), st.booleans(), st.floats(width=32)))
def test_a_scalar_arrives_with_its_value(value):
    out = jt.kernel(fill)[1](value=value, n=5, BLOCK=16, out_shape=jax.ShapeDtypeStruct((5,), jnp.float32))
    np.testing.assert_array_equal(out, np.full(5, value, np.float32))


@triton.jit
def high_word(out_ptr, value):
    tl.store(out_ptr, (value >> 32).to(tl.int32))


@pytest.mark.parametrize("value", [2**31, 2**32 + 5, 7 * 2**32, -(2**33), 2**62])
def test_wide_integers_are_whole_without_x64(value):
    out = jt.kernel(high_word)[1](value=value, out_shape=jax.ShapeDtypeStruct((1,), jnp.int32))
    assert int(out[0]) == value >> 32


@triton.jit
def annotated(out_ptr, half: tl.float16, byte: tl.int8, truth: tl.int1):
    tl.store(out_ptr, half.to(tl.float32))
    tl.store(out_ptr + 1, byte.to(tl.float32))
    tl.store(out_ptr + 2, truth.to(tl.float32))


def test_annotated_scalars_are_rounded_and_wrapped_to_their_type():
    out = jt.kernel(annotated)[1](
        half=0.1, byte=200, truth=True, out_shape=jax.ShapeDtypeStruct((3,), jnp.float32)
    )
    np.testing.assert_array_equal(out, np.float32([np.float16(0.1), 200 - 256, 1]))


@triton.jit
def two_dimensional(x_ptr, out_ptr, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    c = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    mask = (r < rows) & (c < columns)
    x = tl.load(x_ptr + r * columns + c, mask=mask)
    tl.store(out_ptr + c * rows + r, x, mask=mask)


@given(rows=st.integers(1, 40), columns=st.integers(1, 40))
@settings(max_examples=20)
def test_a_transposing_kernel_is_right_on_a_two_dimensional_grid(rows, columns):
    x = draw(0, (rows, columns), "float32")
    out = jt.kernel(two_dimensional)[triton.cdiv(rows, 16), triton.cdiv(columns, 8)](
        x,
        rows=rows,
        columns=columns,
        ROWS=16,
        COLUMNS=8,
        out_shape=jax.ShapeDtypeStruct((columns, rows), x.dtype),
    )
    np.testing.assert_array_equal(out, x.T)


@triton.jit
def running_total(x_ptr, total_ptr, n):
    """Program i reads what program i - 1 wrote: right in order only."""
    i = tl.program_id(0)
    before = tl.load(total_ptr + i - 1, mask=i > 0, other=0.0)
    tl.store(total_ptr + i, before + tl.load(x_ptr + i))


def test_programs_that_read_what_earlier_ones_wrote_run_in_order():
    x = draw(0, 33, "float32")
    out = jt.kernel(running_total)[33](x, np.zeros(33, np.float32), 33, input_output_aliases="total_ptr")
    np.testing.assert_allclose(out, np.cumsum(x), rtol=1e-5)


@triton.jit
def last_program(out_ptr):
    tl.store(out_ptr, tl.program_id(0))


def test_the_last_program_wins_where_all_write():
    out = jt.kernel(last_program)[1000](out_shape=jax.ShapeDtypeStruct((1,), jnp.int32))
    assert int(out[0]) == 999


@pytest.mark.parametrize("n", [1, 31, 100, 1000])
def test_atomics_add_over_all_programs(n):
    x = draw(0, n, "int32") % 100
    out = jt.kernel(count)[blocks](
        x_ptr=x, n=n, BLOCK=32, out_shape={"out_ptr": x[:1]}, zeroed_outputs="out_ptr"
    )
    assert int(out[0]) == x.sum()


def test_tuples_lists_and_outputs_first_run():
    x = draw(0, 50, "float32")
    for pair in ((x, x), [x, x]):
        np.testing.assert_array_equal(
            jt.kernel(add_pair)[blocks](pair, n=50, BLOCK=16, out_shape={"out_ptr": x}), x + x
        )
    np.testing.assert_array_equal(
        jt.kernel(double_into_first)[blocks](x, n=50, BLOCK=16, out_names="out_ptr", out_shape=x), 2 * x
    )


def test_a_write_through_an_input_is_an_error_with_the_remedy():
    with pytest.raises(
        JtprimError, match="double_into_first: writes through 'out_ptr', which was passed as an input"
    ):
        x = draw(0, 16, "float32")
        jt.kernel(double_into_first)[1](x, x, n=16, BLOCK=16, has_side_effect=True)


@triton.jit
def with_assembly(x_ptr, out_ptr):
    x = tl.load(x_ptr)
    y = tl.inline_asm_elementwise(
        "shf.l.wrap.b32 $0, $1, $1, 3;", "=r,r", [x], dtype=tl.int32, is_pure=True, pack=1
    )
    tl.store(out_ptr, y)


def test_an_operation_that_the_translation_lacks_is_named_with_its_line():
    x = jnp.ones(1, jnp.int32)
    with pytest.raises(
        NotImplementedError, match=r"with_assembly: .*elementwise_inline_asm.*test_translation\.py:\d+"
    ):
        jt.kernel(with_assembly)[1](x, out_shape=x)


def test_a_float64_kernel_argument_without_x64_is_float32():
    x = np.linspace(0, 1, 16)
    out = jt.kernel(add)[1](x, x, n=16, BLOCK=16, out_shape={"out_ptr": x})
    assert out.dtype == jnp.float32
    np.testing.assert_allclose(out, 2 * x, rtol=1e-6)


@given(factor=st.sampled_from([2.0, 3, True]), n=st.integers(1, 64))
@settings(max_examples=20)
def test_in_place_kernels_leave_what_they_were_given(factor, n):
    x = jnp.asarray(draw(0, 64, "float32"))
    before = np.array(x)
    out = jt.kernel(scale_in_place)[blocks](x, n=n, factor=factor, BLOCK=16, input_output_aliases="x_ptr")
    np.testing.assert_array_equal(x, before)
    np.testing.assert_array_equal(out, np.where(np.arange(64) < n, before * np.float32(factor), before))


def test_fewer_programs_run_at_once_under_a_smaller_bound_and_compute_the_same():
    x = jnp.arange(10_000, dtype=jnp.float32)
    f = jax.jit(lambda x: jt.kernel(add)[157](x, x, n=10_000, BLOCK=64, out_shape={"out_ptr": x}))
    loops = []
    for limit in (None, 4096):
        with jt.chunk_bytes(limit) if limit else contextlib.nullcontext():
            np.testing.assert_array_equal(f(x), 2 * x)
            loops.append(f.lower(x).as_text().count("stablehlo.while"))
    assert loops == [0, 1]


@pytest.mark.parametrize("limit", [0, -1, 1.5, True, "1 GB"])
def test_a_bound_that_is_no_number_of_bytes_is_refused(limit):
    with pytest.raises(ValueError, match="jt.chunk_bytes got"):
        jt.chunk_bytes(limit)


@triton.jit
def rotate_either(q_ptr, k_ptr, angle_ptr, q_out_ptr, k_out_ptr, heads, HALF: tl.constexpr):
    """Rotary embedding of the heads of queries, then of those of keys."""
    head = tl.program_id(0)
    if head < heads:
        source = q_ptr + head * 2 * HALF
        target = q_out_ptr + head * 2 * HALF
    else:
        source = k_ptr + (head - heads) * 2 * HALF
        target = k_out_ptr + (head - heads) * 2 * HALF
    i = tl.arange(0, HALF)
    angle = tl.load(angle_ptr + i)
    a, b = tl.load(source + i), tl.load(source + HALF + i)
    tl.store(target + i, a * tl.cos(angle) - b * tl.sin(angle))
    tl.store(target + HALF + i, a * tl.sin(angle) + b * tl.cos(angle))


def rotated(q, k, angle, **options):
    heads, width = q.shape
    launch = jt.kernel(rotate_either, target="cuda:90")[heads + k.shape[0]]
    return launch(q, k, angle, heads=heads, HALF=width // 2, **options)


def rotated_by_hand(q, k, angle):
    def rotate(x):
        a, b = jnp.split(x, 2, axis=-1)
        c, s = jnp.cos(angle)[None], jnp.sin(angle)[None]
        return jnp.concatenate([a * c - b * s, a * s + b * c], axis=-1)

    return [rotate(q), rotate(k)]


def test_a_kernel_that_takes_one_of_two_arrays_is_right_under_all_transformations():
    random = np.random.default_rng(0)
    q, k, angle = (jnp.asarray(random.normal(size=s), jnp.float32) for s in ((4, 16), (2, 16), (8,)))
    like = {"q_out_ptr": q, "k_out_ptr": k}
    ours = lambda q, k, angle: list(rotated(q, k, angle, out_shape=like))
    loss = lambda f: lambda *args: sum(jnp.sum(jnp.tanh(x) * x) for x in f(*args))
    batch = lambda f: jax.vmap(f, (0, None, 1))
    many = (jnp.stack([q, 2 * q, -q]), k, jnp.stack([angle, angle + 1, -angle], axis=1))
    compare = functools.partial(
        jax.tree.map, functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
    )
    for run in (jax.jit, lambda f: f):
        compare(run(ours)(q, k, angle), rotated_by_hand(q, k, angle))
        compare(run(batch(ours))(*many), batch(rotated_by_hand)(*many))
        every = (0, 1, 2)
        compare(
            run(jax.grad(loss(ours), every))(q, k, angle), jax.grad(loss(rotated_by_hand), every)(q, k, angle)
        )
    with jt.debug(bounds=True, races=True):
        compare(jax.jit(ours)(q, k, angle), rotated_by_hand(q, k, angle))
    with jt.debug(bounds=True), pytest.raises(Exception, match="reads element 12 of 'k_ptr', which has 12"):
        jax.block_until_ready(jax.jit(ours)(q, k[:1, :12], angle))
        jax.effects_barrier()


def test_what_is_written_through_one_of_two_pointers_are_outputs():
    q, k, angle = jnp.ones((1, 4)), jnp.ones((1, 4)), jnp.zeros(2)
    with pytest.raises(LaunchValueError, match="'k_out_ptr'"):
        rotated(q, k, angle, q_out_ptr=q, k_out_ptr=k, input_output_aliases="q_out_ptr")
    q_out, k_out = rotated(
        2 * q, 3 * k, angle, q_out_ptr=q, k_out_ptr=k, input_output_aliases=["q_out_ptr", "k_out_ptr"]
    )
    np.testing.assert_array_equal(q_out, 2 * q)
    np.testing.assert_array_equal(k_out, 3 * k)
