"""What stays in the x64 mode: functions whose rules and transformations run after the mode is off again."""

import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import triton
import triton.language as tl
from jax import lax

import jtprim as jt
from jtprim.lowering.x64 import x64_call

X = np.random.default_rng(3).uniform(0.3, 0.9, 6).astype(np.float32)


@pytest.fixture(autouse=True)
def no_truncation():
    """JAX warns where it makes float32 of float64."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def in_double(function):
    """`function` of float64 by way of float32; its results as two numbers each that have all digits."""

    def split(x):
        results = function(lax.convert_element_type(x, np.float64))
        high = [lax.convert_element_type(y, np.float32) for y in results]
        rest = (y - lax.convert_element_type(z, np.float64) for y, z in zip(results, high, strict=True))
        return [*high, *(lax.convert_element_type(2.0**24 * y, np.float32) for y in rest)]

    return lambda x: x64_call(split, x)


def joined(results):
    half = len(results) // 2
    parts = zip(results[:half], results[half:], strict=True)
    return [np.float64(high) + np.float64(low) / 2**24 for high, low in parts]


FUNCTIONS = {
    "exp": lambda x: [lax.exp(x)],
    "erfc": lambda x: [lax.erfc(x)],
    "erf_inv": lambda x: [lax.erf_inv(x)],
    "normal": lambda x: [jax.scipy.special.ndtri(x), jax.scipy.special.ndtr(x)],
    "products": lambda x: [lax.cumprod(x)],
    "scanned": lambda x: [lax.associative_scan(lambda a, b: a * b + a, x)],
    "sums": lambda x: [lax.cumsum(x, reverse=True), jnp.sum(x)],
    "sorted": lambda x: [lax.sort(x) * lax.iota(np.float64, x.shape[0])],
    "reversed": lambda x: [jnp.take_along_axis(x, lax.iota(np.int64, x.shape[0])[::-1], axis=0) * x],
    "exponent": lambda x: [jnp.ldexp(*jnp.frexp(x)) * x],
    "loop": lambda x: [lax.fori_loop(0, 3, lambda i, y: y * x + i, x)],
    "while": lambda x: [lax.while_loop(lambda y: y[0] < 5.0, lambda y: y * 2.0, x)],
    "branch": lambda x: [lax.cond(x[0] > 0.5, lambda x: x * x, lambda x: x, x)],
}
FORWARD = {
    "none": lambda f: f,
    "vmap": lambda f: lambda x: jax.vmap(f)(jnp.stack([x, x / 2])),
    "jvp": lambda f: lambda x: jax.jvp(f, (x,), (x,))[1],
    "jvp of jvp": lambda f: FORWARD["jvp"](FORWARD["jvp"](f)),
    "vmap of jvp": lambda f: FORWARD["vmap"](FORWARD["jvp"](f)),
    "jvp of vmap": lambda f: FORWARD["jvp"](FORWARD["vmap"](f)),
    "scan of jvp": lambda f: lambda x: lax.scan(lambda c, x: (c, FORWARD["jvp"](f)(x)), 0, x[None])[1],
}
REVERSE = {
    "vjp": lambda f: lambda x: back(f, x),
    "vmap of vjp": lambda f: lambda x: jax.vmap(REVERSE["vjp"](f))(jnp.stack([x, x / 2])),
    "vjp of vmap": lambda f: REVERSE["vjp"](FORWARD["vmap"](f)),
    "jvp of vjp": lambda f: FORWARD["jvp"](REVERSE["vjp"](f)),
    "vjp of jvp": lambda f: REVERSE["vjp"](FORWARD["jvp"](f)),
    "vjp of vjp": lambda f: REVERSE["vjp"](REVERSE["vjp"](f)),
    "vjp of checkpoint": lambda f: REVERSE["vjp"](jax.checkpoint(f)),
    "vjp of scan": lambda f: REVERSE["vjp"](lambda x: lax.scan(lambda c, x: (c, f(x)), 0, x[None])[1]),
    "vjp of cond": lambda f: REVERSE["vjp"](lambda x: lax.cond(x[1] > 0, f, lambda x: f(x * x), x)),
    "linear": lambda f: lambda x: jax.linear_transpose(jax.linearize(f, x)[1], x)(f(x)),
}


def back(f, x):
    results, pull = jax.vjp(f, x)
    return pull(results)


@pytest.mark.parametrize("run", [jax.jit, lambda f: f], ids=["jit", "eager"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_keep_their_digits_in_forward_mode(name, run):
    for transform in FORWARD.values():
        found = joined(run(transform(in_double(FUNCTIONS[name])))(X))
        with jax.enable_x64(True):
            expected = joined(jax.jit(transform(in_double(FUNCTIONS[name])))(X))
            plain = transform(FUNCTIONS[name])(np.float64(X)) if run is jax.jit else expected
        for one, other, exact in zip(found, expected, plain, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-13)
            np.testing.assert_allclose(one, exact, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("run", [jax.jit, lambda f: f], ids=["jit", "eager"])
@pytest.mark.parametrize("name", sorted(FUNCTIONS.keys() - {"while"}))
def test_functions_have_derivatives_in_reverse_mode(name, run):
    for transform in REVERSE.values():
        found = run(transform(in_double(FUNCTIONS[name])))(X)
        with jax.enable_x64(True):
            expected = jax.jit(transform(in_double(FUNCTIONS[name])))(X)
        for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            assert one.dtype == np.float32
            np.testing.assert_allclose(one, other, rtol=2e-6, atol=1e-6)


def test_where_the_mode_is_on_there_is_no_equation():
    with jax.enable_x64(True):
        assert "x64_call" not in str(jax.make_jaxpr(in_double(FUNCTIONS["exp"]))(X))
    assert str(jax.make_jaxpr(in_double(FUNCTIONS["exp"]))(X)).count("x64_call") == 1


def test_results_that_a_loss_does_not_take_are_not_transposed():
    def both(x):
        return x64_call(
            lambda x: [lax.tanh(x), lax.while_loop(lambda y: y[0] < 5.0, lambda y: y * 2.0, x)], x
        )

    # Of the loop there's no derivative in reverse mode.
    found = jax.jit(jax.grad(lambda x: jnp.sum(both(x)[0])))(X)
    np.testing.assert_allclose(found, 1 - np.tanh(X) ** 2, rtol=1e-6)
    with pytest.raises(ValueError, match="while_loop"):
        jax.grad(lambda x: jnp.sum(both(x)[1]))(X)


def test_integers_among_operands_and_results_do_not_move():
    def scaled(x, n):
        wide = lax.convert_element_type(n, np.int64) << 40
        y = lax.convert_element_type(wide, np.float64) * lax.convert_element_type(x, np.float64) / 2.0**40
        return [lax.convert_element_type(y, np.float32), lax.convert_element_type(wide >> 39, np.int32)]

    n = np.int32([3, 5])
    call = lambda x: x64_call(scaled, x, n)
    (_, twice), (dy, zero) = jax.jvp(call, (X[:2],), (jnp.ones(2),))
    np.testing.assert_array_equal(twice, [6, 10])
    np.testing.assert_allclose(dy, [3, 5])
    assert zero.dtype == jax.dtypes.float0
    np.testing.assert_allclose(jax.grad(lambda x: call(x)[0].sum())(X[:2]), [3, 5])
    moved = jax.vmap(lambda x, n: x64_call(scaled, x, n), (None, 1), 1)(X[:2], np.int32([[1, 2], [3, 4]]))
    np.testing.assert_array_equal(moved[1], [[2, 4], [6, 8]])


def test_a_program_that_is_lowered_for_another_platform_is_in_x64():
    text = jax.jit(in_double(FUNCTIONS["erfc"])).trace(X).lower(lowering_platforms=("cuda",)).as_text()
    assert re.search(r"tensor<6xf64>", text)


@triton.jit
def _times(a, b):
    return a * b


@triton.jit
def scan_and_gather(x, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    wide = tl.load(x + i).to(tl.float64)
    products = tl.associative_scan(wide, 0, _times)
    tl.store(out + i, tl.gather(products, BLOCK - 1 - i, 0).to(tl.float32))


def test_a_kernels_doubles_have_derivatives_without_jax_enable_x64():
    """JAX 0.10.2 had none of a product scan and of a gather."""
    x = jnp.asarray(np.random.default_rng(0).uniform(0.5, 1, 16), jnp.float32)
    like = jax.ShapeDtypeStruct(x.shape, x.dtype)
    launch = lambda x: jt.triton_call(x, kernel=scan_and_gather, grid=(1,), out_shape=like, BLOCK=16)
    for run in (jax.jit, lambda f: f):
        found = run(jax.grad(lambda x: jnp.sum(launch(x) ** 2)))(x)
        expected = jax.grad(lambda x: jnp.sum(jnp.cumprod(x) ** 2))(x)
        np.testing.assert_allclose(found, expected, rtol=1e-5)
        batch = run(jax.vmap(jax.grad(lambda x: jnp.sum(launch(x) ** 2))))(jnp.stack([x, x]))
        np.testing.assert_allclose(batch[1], expected, rtol=1e-5)
