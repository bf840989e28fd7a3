"""`Kernel.defvjp` and `Kernel.defjvp`: an author's own derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import triton
import triton.language as tl

import jtprim as jt
from jtprim.errors import LaunchValueError, UnsupportedError


@triton.jit
def square_root(x_ptr, index_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    index = tl.load(index_ptr + offsets, mask=offsets < n)
    tl.store(out_ptr + offsets, tl.sqrt(tl.load(x_ptr + index, mask=offsets < n)), mask=offsets < n)


X = jnp.arange(1.0, 41.0)
INDEX = jnp.arange(40)[::-1]


def root_kernel():
    """A kernel whose backward rule is twice the true one, so that its use shows."""
    kernel, seen = jt.kernel(square_root), []

    def fwd(grid, x, index, **kwargs):
        out = jt.kernel(square_root)[grid](x, index, **kwargs)
        return out, (out, index)

    def bwd(grid, residuals, cotangent, *, n, BLOCK, num_warps=4, **_):
        seen.append((grid, n, BLOCK, num_warps))
        out, index = residuals
        return {"x_ptr": jnp.zeros(n).at[index].set(2 * cotangent / (2 * out))}

    kernel.defvjp(fwd, bwd)
    return kernel, seen


def test_reverse_mode_takes_the_rule_and_passes_on_what_is_no_array():
    kernel, seen = root_kernel()
    f = lambda x: jnp.sum(
        kernel[2](x, INDEX, n=40, BLOCK=32, num_warps=8, out_shape={"out_ptr": x}) * jnp.arange(40.0)
    )
    expected = 2 * jax.grad(lambda x: jnp.sum(jnp.sqrt(x[INDEX]) * jnp.arange(40.0)))(X)
    for transform in (jax.grad, lambda f: jax.jit(jax.grad(f)), lambda f: jax.grad(jax.checkpoint(f))):
        np.testing.assert_allclose(transform(f)(X), expected, rtol=1e-6)
    assert set(seen) == {(2, 40, 32, 8)}


def test_the_launch_itself_is_as_without_a_rule():
    kernel, _ = root_kernel()
    launch = lambda x: kernel[2](x, INDEX, n=40, BLOCK=32, out_shape={"out_ptr": x})
    np.testing.assert_allclose(launch(X), jnp.sqrt(X[INDEX]), rtol=1e-6)
    np.testing.assert_allclose(jax.jit(launch)(X), jnp.sqrt(X[INDEX]), rtol=1e-6)
    batched = jax.vmap(launch)(jnp.stack([X, 4 * X]))
    np.testing.assert_allclose(batched[1], 2 * batched[0], rtol=1e-6)
    gradients = jax.vmap(jax.grad(lambda x: launch(x).sum()))(jnp.stack([X, 4 * X]))
    np.testing.assert_allclose(gradients[0], 1 / jnp.sqrt(X), rtol=1e-6)


def test_stored_keywords_keep_the_rule():
    kernel, _ = root_kernel()
    stored = jt.kernel(kernel, n=40, BLOCK=32)
    found = jax.grad(lambda x: stored[2](x, INDEX, out_shape={"out_ptr": x}).sum())(X)
    np.testing.assert_allclose(found, 1 / jnp.sqrt(X), rtol=1e-6)


def test_forward_mode_takes_the_rule_and_gives_reverse_mode():
    kernel = jt.kernel(square_root)

    def jvp(grid, tangents, x, index, **kwargs):
        out = jt.kernel(square_root)[grid](x, index, **kwargs)
        return out, 3 * tangents["x_ptr"][index] / (2 * out)

    kernel.defjvp(jvp)
    f = lambda x: kernel[2](x, INDEX, n=40, BLOCK=32, out_shape={"out_ptr": x})
    expected = 1.5 / jnp.sqrt(X[INDEX])
    np.testing.assert_allclose(jax.jvp(f, (X,), (jnp.ones(40),))[1], expected, rtol=1e-6)
    np.testing.assert_allclose(jax.grad(lambda x: f(x).sum())(X)[INDEX], expected, rtol=1e-6)


def test_arrays_in_tuples_and_in_outs_have_gradients_by_path():
    @triton.jit
    def scale_into(total_ptr, pair, BLOCK: tl.constexpr):
        offsets = tl.arange(0, BLOCK)
        scaled = tl.load(pair[0] + offsets) * tl.load(pair[1])
        tl.store(total_ptr + offsets, tl.load(total_ptr + offsets) + scaled)

    kernel = jt.kernel(scale_into, BLOCK=8)

    def fwd(grid, total, pair, **kwargs):
        return jt.kernel(scale_into, BLOCK=8)[grid](total, pair, **kwargs), pair

    def bwd(grid, pair, cotangent, **_):
        x, factor = pair
        return {0: cotangent, ("pair", 0): factor * cotangent, (1, 1): jnp.sum(x * cotangent)[None]}

    kernel.defvjp(fwd, bwd)
    f = lambda total, x, factor: jnp.sum(kernel[1](total, (x, factor), input_output_aliases="total_ptr") ** 2)
    args = jnp.ones(8), jnp.arange(8.0), jnp.array([3.0])
    found = jax.grad(f, (0, 1, 2))(*args)
    expected = jax.grad(lambda total, x, factor: jnp.sum((total + x * factor) ** 2), (0, 1, 2))(*args)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_a_gradient_that_is_left_out_is_zero():
    kernel = jt.kernel(square_root)
    kernel.defvjp(
        lambda grid, *args, **kwargs: (jt.kernel(square_root)[grid](*args, **kwargs), None),
        lambda grid, residuals, cotangent, **_: {},
    )
    f = lambda x: kernel[2](x, INDEX, n=40, BLOCK=32, out_shape={"out_ptr": x}).sum()
    np.testing.assert_array_equal(jax.grad(f)(X), 0)


@pytest.mark.parametrize(
    "gradients, match",
    [
        (3.0, "square_root: its bwd returned a float; expected a mapping"),
        (
            {"out_ptr": X},
            "square_root: its bwd gives a gradient for 'out_ptr', for which .* x_ptr, index_ptr",
        ),
        ({"y_ptr": X}, "square_root: bwd's result names 'y_ptr', which is no parameter"),
    ],
)
def test_a_wrong_result_is_answered_with_what_is_expected(gradients, match):
    kernel = jt.kernel(square_root)
    kernel.defvjp(
        lambda grid, *args, **kwargs: (jt.kernel(square_root)[grid](*args, **kwargs), None),
        lambda grid, residuals, cotangent, **_: gradients,
    )
    f = lambda x: kernel[2](x, INDEX, n=40, BLOCK=32, out_shape={"out_ptr": x}).sum()
    with pytest.raises(LaunchValueError, match=match):
        jax.grad(f)(X)


def test_refs_are_refused():
    kernel, _ = root_kernel()
    with pytest.raises(UnsupportedError, match="square_root: has a derivative of its own and is given a Ref"):
        kernel[2](jax.new_ref(X), INDEX, n=40, BLOCK=32, out_shape={"out_ptr": X})
