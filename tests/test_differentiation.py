"""Derivatives of launches: forward and reverse mode, to second order, against JAX's own functions."""

import linecache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.test_util import check_grads

import jtprim as jt
from examples import functions
from jtprim.errors import UnsupportedError
from tests.gpu.attention_kernels import attention
from tests.kernels import add, copy_tiles, count, scale_in_place, sum_and_difference


def normal(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def check(f, *args, order=2, tolerance=3e-2):
    check_grads(jax.jit(f), args, order, modes=["fwd", "rev"], rtol=tolerance, atol=tolerance)


def test_the_tutorials_kernels_have_derivatives_to_second_order():
    check(functions.add, normal(100), normal(100, seed=1))
    check(functions.softmax, normal(4, 13))
    check(functions.matmul, normal(20, 17), normal(17, 33, seed=1))
    check(lambda *args: functions.layer_norm(*args)[0], normal(3, 40), normal(40), normal(40, seed=1))


@pytest.mark.parametrize(
    "ours, theirs, args",
    [
        (functions.softmax, lambda x: jax.nn.softmax(x, axis=1), (normal(5, 100),)),
        (functions.matmul, jnp.matmul, (normal(40, 50), normal(50, 30))),
    ],
)
def test_gradients_are_those_of_jaxs_own_functions(ours, theirs, args):
    weights = normal(*theirs(*args).shape, seed=2)
    loss = lambda f: lambda *args: jnp.sum(weights * jnp.tanh(f(*args)))
    every = tuple(range(len(args)))
    for transform in (jax.jit, jax.checkpoint):
        found = jax.jit(jax.grad(transform(loss(ours)), every))(*args)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4),
            found,
            jax.grad(loss(theirs), every)(*args),
        )


def attention_written_out(q, k, v, causal):
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) / q.shape[-1] ** 0.5
    if causal:
        seen = jnp.tril(jnp.ones(scores.shape[-2:], bool))
        scores = jnp.where(seen[None, None], scores, -jnp.inf)
    return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores, -1), v)


@pytest.mark.parametrize("causal", [False, True])
def test_gradients_of_flash_attention_are_those_of_attention_written_out(causal):
    q, k, v = (normal(1, 2, 70, 16, seed=seed) for seed in range(3))
    gradient = lambda f: jax.jit(jax.grad(lambda *a: jnp.sum(jnp.sin(f(*a, causal))), (0, 1, 2)))(q, k, v)
    for found, expected in zip(gradient(attention), gradient(attention_written_out), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_flash_attention_has_derivatives_to_second_order():
    f = jax.jit(lambda *a: attention(*a, causal=True))
    arrays = [normal(1, 1, 70, 16, seed=seed) for seed in range(3)]
    check_grads(f, arrays, order=2, modes=["rev"], rtol=3e-2, atol=3e-2)


UNARY = {
    "tl.exp({})": jnp.exp,
    "tl.log({} * {} + 1.0)": lambda x: jnp.log(x * x + 1.0),
    "tl.sqrt({} * {} + 1.0)": lambda x: jnp.sqrt(x * x + 1.0),
    "tl.sin({})": jnp.sin,
    "tl.cos({})": jnp.cos,
    "tl.sigmoid({})": jax.nn.sigmoid,
    "tl.abs({} + 0.01)": lambda x: jnp.abs(x + 0.01),
    "({} / ({} * {} + 2.0))": lambda x: x / (x * x + 2.0),
    "tl.where({} > 0.3, {} * 2.0, -{})": lambda x: jnp.where(x > 0.3, x * 2.0, -x),
    "tl.maximum({}, 0.2)": lambda x: jnp.maximum(x, 0.2),
    "tl.fma({}, {}, 3.0)": lambda x: x * x + 3.0,
}
BINARY = {
    "({} + {})": jnp.add,
    "({} * {})": jnp.multiply,
    "({} - 0.5 * {})": lambda x, y: x - 0.5 * y,
}

expressions = st.recursive(
    st.sampled_from([("x", lambda x, y: x), ("y", lambda x, y: y)]),
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(sorted(UNARY)), inner).map(
            lambda drawn: (
                drawn[0].replace("{}", drawn[1][0]),
                lambda x, y: UNARY[drawn[0]](drawn[1][1](x, y)),
            )
        ),
        st.tuples(st.sampled_from(sorted(BINARY)), inner, inner).map(
            lambda drawn: (
                drawn[0].format(drawn[1][0], drawn[2][0]),
                lambda x, y: BINARY[drawn[0]](drawn[1][1](x, y), drawn[2][1](x, y)),
            )
        ),
    ),
    max_leaves=4,
)


@settings(max_examples=15)
@given(expressions)
def test_gradients_of_elementwise_kernels_are_those_of_jnp(expression):
    text, reference = expression
    source = (
        "def kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):\n"
        "    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n"
        "    x = tl.load(x_ptr + offsets, mask=offsets < n)\n"
        "    y = tl.load(y_ptr + offsets, mask=offsets < n)\n"
        f"    tl.store(out_ptr + offsets, {text}, mask=offsets < n)\n"
    )
    name = f"<{text}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    namespace = {"tl": tl, "__name__": __name__}
    exec(compile(source, name, "exec"), namespace)
    kernel = jt.kernel(triton.jit(namespace["kernel"]))
    x, y = normal(20), normal(20, seed=1)
    ours = lambda x, y: kernel[2](x, y, n=20, BLOCK=16, out_shape={"out_ptr": x})
    np.testing.assert_allclose(ours(x, y), reference(x, y), rtol=1e-4, atol=1e-5)
    for mode in (jax.jacfwd, jax.jacrev):
        found, expected = jax.jit(mode(ours, (0, 1)))(x, y), jax.jacrev(reference, (0, 1))(x, y)
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-3, atol=1e-4)


def test_in_outs_and_several_outputs_have_derivatives():
    x, y = normal(50), normal(50, seed=1)

    def scaled(x):
        return jt.kernel(scale_in_place)[2](x, 50, 3.0, BLOCK=32, input_output_aliases="x_ptr")

    check(lambda x: scaled(x) * x, x)

    def both(x, y):
        shapes = {"difference_ptr": x, "sum_ptr": x}
        s, d = jt.kernel(sum_and_difference)[2](x, y, 50, BLOCK=32, out_shape=shapes)
        return s * d

    np.testing.assert_allclose(jax.grad(lambda x: both(x, y).sum())(x), 2 * x, rtol=1e-5)
    check(both, x, y)


def test_descriptors_have_derivatives():
    x = normal(64, 48)

    def copied(x):
        source = jt.TensorDescriptor.from_array(x, (16, 16))
        target = jt.TensorDescriptor.from_array(jax.ShapeDtypeStruct(x.shape, x.dtype), (16, 16))
        return jt.kernel(copy_tiles)[4, 3](source, target, M=16, N=16)

    np.testing.assert_allclose(jax.jit(jax.grad(lambda x: (copied(x) ** 2).sum()))(x), 2 * x)


def test_integers_among_operands_and_results_have_none():
    @triton.jit
    def gather(x_ptr, index_ptr, out_ptr, doubled_ptr, n, BLOCK: tl.constexpr):
        offsets = tl.arange(0, BLOCK)
        index = tl.load(index_ptr + offsets, mask=offsets < n)
        tl.store(out_ptr + offsets, 3 * tl.load(x_ptr + index, mask=offsets < n), mask=offsets < n)
        tl.store(doubled_ptr + offsets, 2 * index, mask=offsets < n)

    x, index = normal(8), jnp.array([1, 1, 0, 7, 3, 2, 2, 2])

    def f(x, index):
        out, doubled = jt.kernel(gather)[1](x, index, n=8, BLOCK=8, out_type=(x, index))
        return jnp.sum(out), doubled

    found, doubled = jax.grad(f, has_aux=True)(x, index)
    np.testing.assert_array_equal(doubled, 2 * index)
    np.testing.assert_array_equal(found, 3 * np.bincount(index, minlength=8))


def test_an_integer_result_alone_has_no_derivative_but_may_be_used():
    def f(x):
        below = jt.kernel(count)[1](x, n=30, BLOCK=32, out_shape={"out_ptr": x[:1]}, zeroed_outputs="out_ptr")
        return jnp.sum(x * 2) + 0 * jnp.sum(below)

    np.testing.assert_array_equal(jax.grad(f)(normal(30)), 2)


def test_the_launch_itself_stays_a_launch():
    x = normal(64)
    f = lambda x, y: jnp.sum(jt.kernel(add)[2](x, y, n=64, BLOCK=32, out_shape={"out_ptr": x}) ** 2)
    with_grad = jax.jit(jax.value_and_grad(f))
    jaxpr = jax.make_jaxpr(with_grad)(x, x)
    assert str(jaxpr).count("triton_kernel[") == 1
    for platform in ("cuda:90", "hip:gfx942"):
        assert len(jt.inspect(with_grad, x, x, platform=platform).kernels) == 1


def test_what_is_not_differentiated_is_not_translated():
    @triton.jit
    def untranslatable(x_ptr, out_ptr):
        x = tl.inline_asm_elementwise(
            "mov.b32 $0, %clock; // $1", "=f,f", [tl.load(x_ptr)], tl.float32, True, 1
        )
        tl.store(out_ptr, x)

    f = lambda x: jt.kernel(untranslatable)[1](x, out_shape={"out_ptr": x}, target="cuda:90")[0]
    lowered = jax.jit(lambda x: f(x) * x[0]).trace(normal(1)).lower(lowering_platforms=("cuda",))
    assert "triton_kernel_call_ffi" in lowered.as_text()
    with pytest.raises(UnsupportedError, match=r"untranslatable: tt.elementwise_inline_asm at .*:\d+"):
        jax.jit(jax.grad(f)).trace(normal(1))


def test_an_autotuned_kernel_and_a_launch_without_programs_have_derivatives():
    tuned = triton.autotune([triton.Config({"BLOCK": b}) for b in (16, 32)], key=[])(add)
    f = lambda x: jt.kernel(tuned)[lambda meta: triton.cdiv(40, meta["BLOCK"])](
        x, x * x, 40, out_shape={"out_ptr": x}
    )
    check(f, normal(40))
    empty = lambda x: jt.kernel(add)[0](x, x, n=0, BLOCK=16, out_shape={"out_ptr": x})
    np.testing.assert_array_equal(jax.grad(lambda x: empty(x).sum())(normal(4)), 0)


def test_derivatives_go_through_scan():
    def f(x):
        step = lambda x, _: (functions.softmax(x) + x, None)
        return jax.lax.scan(step, x, None, length=3)[0]

    reference = lambda x: jax.lax.fori_loop(0, 3, lambda _, x: jax.nn.softmax(x, axis=1) + x, x)
    x = normal(3, 9)
    found = jax.jit(jax.jacrev(f))(x)
    np.testing.assert_allclose(found, jax.jacfwd(reference)(x), rtol=1e-3, atol=1e-5)
