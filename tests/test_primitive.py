"""`triton_kernel_p`: what an equation holds, how it prints, and how JAX's machinery treats it."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import triton
import triton.language as tl

import jtprim as jt
from jtprim.errors import LaunchTypeError, LaunchValueError
from jtprim.primitive import Configuration, OutShape
from tests.kernels import add, add_pair, fill, scale_in_place, sum_and_difference

X = jnp.arange(64, dtype=jnp.float32)


def add_launch(x, y, **kwargs):
    return jt.kernel(add)[(2,)](x, y, n=64, BLOCK=32, out_shape={"out_ptr": x}, **kwargs)


def launches(f, *args):
    jaxpr = jax.make_jaxpr(f)(*args).jaxpr
    return [eqn for eqn in jaxpr.eqns if eqn.primitive is jt.triton_kernel_p]


# --- Parameters --------------------------------------------------------------------------------


def test_an_equation_bound_by_hand_is_the_launchs_own():
    operands, params = jt.launch_parameters(
        add,
        {"x_ptr": X, "y_ptr": X, "n": 64, "BLOCK": 32},
        out_shape={"out_ptr": X},
        configurations=[Configuration((2, 1, 1))],
    )
    [out] = jt.triton_kernel_p.bind(*operands, **params)
    np.testing.assert_array_equal(out, X + X)
    [eqn] = launches(add_launch, X, X)
    assert eqn.params == params


def test_launches_that_mean_the_same_are_equal_and_hash_the_same():
    f = lambda x: (
        add_launch(x, x)
        + jt.kernel(add)[lambda meta: triton.cdiv(meta["n"], 32)](
            y_ptr=x, x_ptr=x, BLOCK=32, n=64, out_shape=[x]
        )[0]
    )
    one, other = launches(f, X)
    assert one.params == other.params
    assert hash(tuple(one.params.items())) == hash(tuple(other.params.items()))


@pytest.mark.parametrize(
    "change",
    [
        {"num_warps": 8},
        {"name": "other"},
        {"metadata": b"m"},
        {"has_side_effect": True},
        {"target": "cuda:80"},
    ],
)
def test_launches_that_differ_are_not_equal(change):
    one, other = launches(lambda x: add_launch(x, x) + add_launch(x, x, **change), X)
    assert one.params != other.params


def test_the_results_have_the_shapes_that_were_declared_whatever_the_operands():
    shape = jax.ShapeDtypeStruct((3, 7), jnp.int8)
    out = jax.eval_shape(lambda x: jt.kernel(fill)[1](value=1, n=1, BLOCK=16, out_shape=shape), X)
    assert (out.shape, out.dtype) == ((3, 7), jnp.int8)


@pytest.mark.parametrize("dtype", ["float64", "int64"])
def test_a_declared_64_bit_dtype_follows_jaxs_x64_mode(dtype):
    shape = jax.ShapeDtypeStruct((4,), dtype)
    f = lambda: jt.kernel(fill)[1](value=1, n=1, BLOCK=16, out_shape=shape)
    assert jax.eval_shape(f).dtype == jax.dtypes.canonicalize_dtype(dtype)
    with jax.enable_x64(True):
        assert jax.eval_shape(f).dtype == dtype


def bound_with(change):
    operands, params = jt.launch_parameters(
        scale_in_place,
        {"x_ptr": X, "n": 64, "factor": 2.0, "BLOCK": 64},
        aliases=["x_ptr"],
        configurations=[Configuration((1, 1, 1))],
    )
    change(operands, params)
    return jax.make_jaxpr(lambda: jt.triton_kernel_p.bind(*operands, **params))()


def test_an_equation_whose_operands_miss_their_slots_is_refused():
    with pytest.raises(LaunchValueError, match="has 2 operands, but its arguments have slots for 1"):
        bound_with(lambda operands, params: operands.append(X))


def test_an_in_out_whose_result_is_another_shape_is_refused():
    def change(operands, params):
        params["out_shape"] = OutShape(((("x_ptr",), jax.ShapeDtypeStruct((3,), jnp.float32)),))

    with pytest.raises(LaunchValueError, match=r"in-out 'x_ptr' is given as float32\[64\].*f32\[3\]"):
        bound_with(change)


def test_outputs_inside_tuples_are_declared_by_path():
    from tests.kernels import pair_of_in_and_out

    out = jt.kernel(pair_of_in_and_out)[1]((None, X), 64, BLOCK=64, out_shape={("pair", 0): X})
    np.testing.assert_array_equal(out, X + 1)


def test_a_declared_element_that_the_argument_lacks_is_refused():
    with pytest.raises(
        LaunchValueError, match=r"out_shape declares 'pair\[2\]', but the argument has no such"
    ):
        jt.kernel(add_pair)[1]((X, X), out_ptr=X, n=1, BLOCK=16, out_shape={("pair", 2): X})


def test_an_output_index_to_zero_must_exist():
    with pytest.raises(LaunchValueError, match="zeroed_outputs has 1, which is no output: there are 1"):
        jt.launch_parameters(
            fill,
            {"value": 1, "n": 1, "BLOCK": 16},
            out_shape={"out_ptr": X},
            configurations=[Configuration((1, 1, 1), zeroed=(1,))],
        )


def test_an_unknown_argument_is_refused():
    with pytest.raises(LaunchTypeError, match="fill: no parameter named 'val'.*Did you mean 'value'"):
        jt.launch_parameters(
            fill, {"val": 1}, out_shape={"out_ptr": X}, configurations=[Configuration((1, 1, 1))]
        )


# --- Printing ----------------------------------------------------------------------------------


def test_a_jaxpr_shows_a_launch_in_one_line():
    text = jax.make_jaxpr(add_launch)(X, X).pretty_print(use_color=False, width=200)
    assert "triton_kernel[kernel=add grid=(2,) out_shape={out_ptr: f32[64]}] a b" in " ".join(text.split())


def test_a_jaxpr_shows_what_is_out_of_the_ordinary():
    f = lambda x: jt.kernel(scale_in_place)[(2, 3)](
        x,
        64,
        2.0,
        BLOCK=32,
        input_output_aliases="x_ptr",
        num_warps=8,
        target="cuda:90",
        name="mine",
        has_side_effect=True,
    )
    text = " ".join(str(jax.make_jaxpr(f)(X)).split())
    assert (
        "triton_kernel[kernel=scale_in_place grid=(2, 3) num_warps=8 out_shape={x_ptr: f32[64]} "
        "aliases={0: 0} target=cuda:90 name=mine has_side_effect=True] a" in text
    )


# --- Transformations that run it ---------------------------------------------------------------


def test_it_runs_eagerly_under_jit_and_under_remat():
    for f in (
        add_launch,
        jax.jit(add_launch),
        jax.checkpoint(add_launch),
        jax.jit(jax.checkpoint(add_launch)),
    ):
        np.testing.assert_array_equal(f(X, X), 2 * X)


def test_it_runs_in_scan():
    def step(x, _):
        x = add_launch(x, X)
        return x, x[0]

    last, firsts = jax.jit(lambda x: jax.lax.scan(step, x, length=5))(X + 1)
    np.testing.assert_array_equal(last, 6 * X + 1)
    np.testing.assert_array_equal(firsts, np.ones(5))


def test_it_runs_in_while_and_cond():
    def loop(x):
        return jax.lax.while_loop(lambda x: x[1] < 10, lambda x: add_launch(x, x), x)

    np.testing.assert_array_equal(jax.jit(loop)(X), 16 * X)
    branch = jax.jit(lambda p, x: jax.lax.cond(p, lambda x: add_launch(x, x), lambda x: x, x))
    np.testing.assert_array_equal(branch(True, X), 2 * X)
    np.testing.assert_array_equal(branch(False, X), X)


def test_in_place_in_scan_leaves_the_argument():
    def step(x, _):
        return jt.kernel(scale_in_place)[1](x, 64, 2.0, BLOCK=64, input_output_aliases="x_ptr"), None

    np.testing.assert_array_equal(jax.jit(lambda x: jax.lax.scan(step, x, length=3))(X)[0], 8 * X)
    np.testing.assert_array_equal(X, np.arange(64))


def test_a_kernel_that_writes_its_argument_many_times_in_one_program_sees_each():
    f = jax.jit(
        lambda x: add_launch(jt.kernel(scale_in_place)[1](x, 64, 3.0, BLOCK=64, input_output_aliases=0), x)
    )
    np.testing.assert_array_equal(f(X), 4 * X)


# --- Dead code ---------------------------------------------------------------------------------


def remaining(f, *args):
    """The launches left in the lowered module's jaxpr after JAX's dead-code elimination."""
    jaxpr = jax.make_jaxpr(jax.jit(f))(*args)
    [eqn] = jaxpr.eqns
    from jax.interpreters import partial_eval as pe

    reduced, _ = pe.dce_jaxpr(eqn.params["jaxpr"].jaxpr, [True] * len(eqn.outvars))
    return [eqn for eqn in reduced.eqns if eqn.primitive is jt.triton_kernel_p]


def test_a_launch_whose_results_are_unused_disappears():
    def f(x):
        add_launch(x, x)
        return x

    assert not remaining(f, X)


def test_a_launch_with_side_effects_stays():
    def f(x):
        add_launch(x, x, has_side_effect=True)
        return x

    assert len(remaining(f, X)) == 1
    np.testing.assert_array_equal(jax.jit(f)(X), X)


def test_a_launch_of_which_one_result_is_used_stays_and_keeps_it_right():
    def f(x):
        return jt.kernel(sum_and_difference)[2](
            x, x, 64, BLOCK=32, out_shape={"sum_ptr": x, "difference_ptr": x}
        )[1]

    assert len(remaining(f, X)) == 1
    np.testing.assert_array_equal(jax.jit(f)(X), 0 * X)


@triton.jit
def says_something(x_ptr):
    tl.device_print("x", tl.load(x_ptr))


def test_a_launch_with_nothing_but_side_effects_is_allowed():
    def f(x):
        jt.kernel(says_something)[2](x, has_side_effect=True, target="cuda:90")
        return x

    assert len(remaining(f, X)) == 1
    assert "triton_kernel_call_ffi" in jax.jit(f).trace(X).lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.parametrize("loop", ["scan", "while", "cond", "remat", "custom_vjp"])
def test_side_effects_are_allowed_in_control_flow(loop):
    def body(x):
        return add_launch(x, x, has_side_effect=True)

    @jax.custom_vjp
    def custom(x):
        return body(x)

    custom.defvjp(lambda x: (body(x), None), lambda _, g: (g,))
    f = {
        "scan": lambda x: jax.lax.scan(lambda x, _: (body(x), None), x, length=2)[0],
        "while": lambda x: jax.lax.while_loop(lambda x: x[1] < 4, body, x),
        "cond": lambda x: jax.lax.cond(x[1] > 0, lambda x: body(body(x)), lambda x: x, x),
        "remat": jax.checkpoint(lambda x: body(body(x))),
        "custom_vjp": lambda x: custom(custom(x)),
    }[loop]
    np.testing.assert_array_equal(jax.jit(f)(X), 4 * X)


# --- Importing ---------------------------------------------------------------------------------


def test_importing_starts_no_backend_and_says_nothing():
    code = (
        "import jtprim, sys\n"
        "from jax._src import xla_bridge\n"
        "assert not xla_bridge.backends_are_initialized()\n"
    )
    run = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
