"""The launch syntax: how arguments, keywords, grids and outputs are taken, and what is refused."""

import linecache
import os
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import triton
import triton.language as tl
from hypothesis import given
from hypothesis import strategies as st

import jtprim as jt
from jtprim.errors import JtprimError, LaunchTypeError, LaunchValueError, UnsupportedError
from jtprim.primitive import check_grid
from tests import kernels
from tests.kernels import add, add_pair, count, fill, scale_in_place, sum_and_difference

X = np.arange(100, dtype=np.float32)
BLOCKS = lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]),)


def launch(kernel, *args, grid=BLOCKS, **kwargs):
    return jt.kernel(kernel)[grid](*args, **kwargs)


def equation(kernel, *args, grid=BLOCKS, **kwargs):
    """The parameters of the one equation that a launch binds."""
    jaxpr = jax.make_jaxpr(lambda: launch(kernel, *args, grid=grid, **kwargs))()
    [eqn] = [eqn for eqn in jaxpr.eqns if eqn.primitive is jt.triton_kernel_p]
    return eqn.params


# --- Ways to write one launch ------------------------------------------------------------------


@pytest.mark.parametrize(
    "run",
    [
        lambda x: launch(add, x, x, 100, BLOCK=32, out_shape={"out_ptr": x}),
        lambda x: launch(add, x, x, n=100, BLOCK=32, out_shape=x),
        lambda x: launch(add, x, x, 100, 32, out_shape=x, out_names="out_ptr"),
        lambda x: launch(add, x_ptr=x, y_ptr=x, n=100, BLOCK=32, out_shape={2: x}),
        lambda x: launch(add, x, y_ptr=x, BLOCK=32, n=np.int64(100), out_type=jax.typeof(jnp.asarray(x))),
        lambda x: launch(add, x, x, 100, BLOCK=tl.constexpr(32).value, out_shape={("out_ptr",): x}),
        lambda x: jt.triton_call(x, x, 100, kernel=add, grid=4, BLOCK=32, out_shape={"out_ptr": x}),
        lambda x: jt.triton_call(
            x, x, 100, kernel=jt.kernel(add), grid=[4], BLOCK=32, out_shape={"out_ptr": x}
        ),
        lambda x: jt.kernel(BLOCK=32, out_names="out_ptr")(add)[4, 1](x, x, 100, out_shape=x),
        lambda x: jt.kernel(jt.kernel(add, BLOCK=16), BLOCK=32)[(4, 1, 1)](x, x, n=100, out_shape=x),
    ],
)
def test_every_way_to_write_a_launch_is_the_same_equation(run):
    one = jax.make_jaxpr(lambda: launch(add, X, X, 100, BLOCK=32, out_shape={"out_ptr": X}))()
    other = jax.make_jaxpr(lambda: run(X))()
    assert one.eqns[-1].params == other.eqns[-1].params
    np.testing.assert_array_equal(run(X), X + X)


def test_a_kernel_keeps_its_name_and_its_doc():
    kernel = jt.kernel(kernels.double_into_first)
    assert kernel.__name__ == "double_into_first"
    assert kernel.__doc__ == "The output stands before the input."
    assert "double_into_first" in repr(kernel)


def test_stored_keywords_give_way_to_the_launchs_own():
    kernel = jt.kernel(add, num_warps=8, n=50, BLOCK=64)
    params = jax.make_jaxpr(lambda: kernel[2](X, X, out_shape=X, num_warps=2))().eqns[-1].params
    assert dict(params["configurations"][0].options) == {"num_warps": 2}


def test_a_name_that_is_a_parameter_and_an_option_is_both():
    params = equation(with_num_warps, X, out_shape=X, num_warps=8, grid=1)
    assert dict(params["configurations"][0].options) == {"num_warps": 8}
    assert params["arguments"][2].value == 8


@triton.jit
def with_num_warps(x_ptr, out_ptr, num_warps: tl.constexpr):
    tl.store(out_ptr, tl.load(x_ptr) + num_warps)


def test_options_may_come_as_a_mapping():
    params = equation(
        add, X, X, 100, BLOCK=32, out_shape={"out_ptr": X}, backend_options={"num_warps": 2, "maxnreg": 64}
    )
    assert dict(params["configurations"][0].options) == {"num_warps": 2, "maxnreg": 64}


def test_a_launchs_options_come_before_stored_ones_in_either_form():
    stored = jt.kernel(add, backend_options={"num_warps": 2}, num_stages=3)
    expected = equation(add, X, X, n=100, BLOCK=32, out_shape=X, num_warps=8, num_stages=1)
    for own in ({"num_warps": 8, "num_stages": 1}, {"backend_options": {"num_warps": 8, "num_stages": 1}}):
        assert equation(stored, X, X, n=100, BLOCK=32, out_shape=X, **own) == expected


def test_a_name_that_functions_alone_read_is_theirs():
    grid = lambda meta: triton.cdiv(meta["n"], meta["BLOCK"] * meta.get("PER_PROGRAM"))
    params = equation(add, X, X, n=100, BLOCK=16, PER_PROGRAM=2, out_shape=X, grid=grid)
    assert params["configurations"][0].grid == (4, 1, 1)
    zeroed = lambda meta: ["out_ptr"] if meta["ZEROED"] else []
    params = equation(
        count, x_ptr=X, n=100, BLOCK=32, out_shape={"out_ptr": X[:1]}, zeroed_outputs=zeroed, ZEROED=1
    )
    assert params["configurations"][0].zeroed == (0,)


def test_positional_arguments_pass_over_what_is_stored():
    params = equation(jt.kernel(add, y_ptr=X), X, 100, BLOCK=16, out_shape={"out_ptr": X})
    assert params == equation(add, X, X, n=100, BLOCK=16, out_shape={"out_ptr": X})


def test_options_that_are_mappings_are_part_of_the_equation():
    libraries = {"libdevice": "/some/path.bc"}
    params = equation(add, X, X, X, 100, BLOCK=32, extern_libs=libraries)
    assert dict(params["configurations"][0].options) == {"extern_libs": (("libdevice", "/some/path.bc"),)}
    hash(tuple(params.items()))


def test_metadata_goes_by_the_name_that_jax_triton_has_for_it_too():
    one = equation(add, X, X, X, 100, BLOCK=32, serialized_metadata=b"m")
    assert one == equation(add, X, X, X, 100, BLOCK=32, metadata="m")


def test_target_and_cost_may_be_given_as_in_jax_triton():
    cost = jt.CostEstimate(flops=3, bytes_accessed=8)
    one = equation(add, X, X, X, 100, BLOCK=32, target="cuda:90", cost_estimate=cost)
    cost = {"flops": 3, "bytes_accessed": 8}
    assert one == equation(add, X, X, X, 100, BLOCK=32, compute_capability=90, cost_estimate=cost)


@pytest.mark.parametrize("grid", [8, (8,), [8, 1], lambda meta: 8, lambda meta: (8, 1, 1), np.int32(8)])
def test_grids_are_numbers_sequences_and_functions(grid):
    params = equation(add, X, X, n=100, BLOCK=16, out_shape=X, grid=grid)
    assert params["configurations"][0].grid == (8, 1, 1)


def test_a_grid_function_sees_arguments_defaults_outputs_and_options():
    seen = {}

    def grid(meta):
        seen.update(meta)
        return 4

    kernel = jt.kernel(add)
    for _ in range(2):  # as worked out, and from the plan
        seen.clear()
        kernel[grid](X, X, 100, BLOCK=32, out_shape={"out_ptr": X}, num_warps=2)
        assert (seen["n"], seen["BLOCK"], seen["num_warps"]) == (100, 32, 2)
        assert set(seen) == {"x_ptr", "y_ptr", "out_ptr", "n", "BLOCK", "num_warps"}
        assert seen["x_ptr"].shape == seen["out_ptr"].shape == (100,)


def test_a_grid_function_is_asked_at_every_launch():
    sizes = iter([(4,), (2,)])
    kernel = jt.kernel(add, BLOCK=32)
    run = lambda: kernel[lambda meta: next(sizes)](X, X, 100, out_shape={"out_ptr": X})
    np.testing.assert_array_equal(run(), 2 * X)
    np.testing.assert_array_equal(run()[64:], np.zeros(36))


# --- Results -----------------------------------------------------------------------------------


def test_outputs_may_stand_anywhere_and_come_in_the_signatures_order():
    y = X * 3
    s, d = launch(sum_and_difference, X, y, 100, BLOCK=32, out_shape={"difference_ptr": X, "sum_ptr": X})
    np.testing.assert_array_equal(s, X + y)
    np.testing.assert_array_equal(d, X - y)


def test_a_pytree_of_outputs_comes_back_in_its_structure():
    shapes = {"b": X, "a": [jax.ShapeDtypeStruct((100,), np.float32)]}
    out = launch(
        sum_and_difference, X, X, 100, BLOCK=32, out_type=shapes, out_names=["difference_ptr", "sum_ptr"]
    )
    np.testing.assert_array_equal(out["a"][0], X - X)
    np.testing.assert_array_equal(out["b"], X + X)


def test_a_sequence_of_one_stays_a_sequence():
    [out] = launch(add, X, X, n=100, BLOCK=32, out_shape=[X])
    np.testing.assert_array_equal(out, 2 * X)


def test_in_outs_follow_the_outputs():
    @triton.jit
    def both(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
        offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + offsets, mask=offsets < n)
        tl.store(out_ptr + offsets, x + 1, mask=offsets < n)
        tl.store(x_ptr + offsets, x * 2, mask=offsets < n)

    out, x = launch(both, X, n=100, BLOCK=32, out_shape={"out_ptr": X}, input_output_aliases="x_ptr")
    np.testing.assert_array_equal(out, X + 1)
    np.testing.assert_array_equal(x, X * 2)


@pytest.mark.parametrize("aliases", ["x_ptr", ["x_ptr"], 0, (("x_ptr",),)])
def test_an_in_out_is_named_by_any_coordinate_and_the_argument_stays(aliases):
    x = jnp.asarray(X)
    np.testing.assert_array_equal(
        launch(scale_in_place, x, 100, 2.0, BLOCK=32, input_output_aliases=aliases), X * 2
    )
    np.testing.assert_array_equal(x, X)


def test_an_alias_of_a_tuple_is_of_all_arrays_in_it():
    @triton.jit
    def scale_all(pairs, n, BLOCK: tl.constexpr):
        offsets = tl.arange(0, BLOCK)
        for i in tl.static_range(2):
            pointer = pairs[i][0]
            x = tl.load(pointer + offsets, mask=offsets < n)
            tl.store(pointer + offsets, x * pairs[i][1], mask=offsets < n)

    (x,), (y,) = launch(scale_all, ((X, 2.0), [X, 3.0]), 100, BLOCK=128, input_output_aliases="pairs", grid=1)
    np.testing.assert_array_equal(x, X * 2)
    np.testing.assert_array_equal(y, X * 3)


def test_a_kernel_may_come_from_text_without_a_module():
    text = "@triton.jit\ndef double(x_ptr):\n    tl.store(x_ptr, tl.load(x_ptr) * 2)\n"
    linecache.cache["<double>"] = (len(text), None, text.splitlines(True), "<double>")
    names = {"triton": triton, "tl": tl}
    exec(compile(text, "<double>", "exec"), names)
    assert names["double"].__module__ is None
    np.testing.assert_array_equal(jt.kernel(names["double"])[1](X[5:6]), X[5:6] * 2)


def test_pointers_to_constants_are_pointers():
    """Triton 3.9 gives their address space a name: ``!tt.ptr<f32, "constant">``."""

    @triton.jit
    def shifted(x_ptr: tl.const, total_ptr, n, BLOCK: tl.constexpr):
        offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + offsets, mask=offsets < n)
        tl.store(total_ptr + offsets, tl.load(total_ptr + offsets, mask=offsets < n) + x, mask=offsets < n)

    # In-outs are discovered, so that the pointers are followed too.
    np.testing.assert_array_equal(launch(shifted, X, X, 100, BLOCK=32), 2 * X)


def test_aliases_as_a_mapping_give_the_position_of_the_result():
    out = launch(scale_in_place, X, 100, 2.0, BLOCK=32, out_shape=X, input_output_aliases={0: 0})
    np.testing.assert_array_equal(out, X * 2)


@pytest.mark.parametrize("zeroed", ["out_ptr", ["out_ptr"], [0], lambda meta: ["out_ptr"]])
def test_zeroed_outputs_are_named_by_coordinate_position_or_function(zeroed):
    params = equation(count, x_ptr=X, n=100, BLOCK=32, out_shape={"out_ptr": X[:1]}, zeroed_outputs=zeroed)
    assert params["configurations"][0].zeroed == (0,)


@given(st.integers(0, 70), st.sampled_from([16, 32]))
def test_no_work_is_no_operation(n, block):
    grid = (0,) if n == 0 else (triton.cdiv(n, block),)
    out = launch(fill, value=7, n=n, BLOCK=block, out_shape={"out_ptr": X[:70]}, grid=grid)
    np.testing.assert_array_equal(out, np.where(np.arange(70) < n, 7, 0))


def test_no_work_returns_in_outs_as_they_were():
    out = launch(scale_in_place, X, 0, 2.0, BLOCK=32, input_output_aliases="x_ptr", grid=(3, 0))
    np.testing.assert_array_equal(out, X)


def test_arrays_of_no_elements_go_through():
    empty = np.zeros((0, 3), np.float32)
    assert launch(add, empty, empty, n=0, BLOCK=32, out_shape=empty).shape == (0, 3)


# --- Autotuners and heuristics -----------------------------------------------------------------


def tuned(**kwargs):
    configs = [
        triton.Config({"BLOCK": 16}, num_warps=1),
        triton.Config({"BLOCK": 32}, num_warps=2),
        triton.Config({"BLOCK": 32}, num_warps=4),
    ]
    return triton.autotune(configs, key=["n"], **kwargs)(add)


def blocks(params):
    return [dict(c.constexprs)["BLOCK"].value for c in params["configurations"]]


def test_an_autotuned_kernel_carries_every_configuration_with_its_own_grid():
    params = equation(tuned(), X, X, 100, out_shape={"out_ptr": X})
    assert blocks(params) == [16, 32, 32]
    assert [c.grid for c in params["configurations"]] == [(7, 1, 1), (4, 1, 1), (4, 1, 1)]
    assert [dict(c.options)["num_warps"] for c in params["configurations"]] == [1, 2, 4]


def test_pinned_and_unpinned_launches_of_one_kernel_do_not_disturb_each_other():
    kernel = tuned()
    before = list(kernel.configs)
    for _ in range(2):
        assert len(equation(kernel, X, X, 100, out_shape={"out_ptr": X})["configurations"]) == 3
        pinned = equation(kernel, X, X, 100, BLOCK=16, out_shape={"out_ptr": X})
        assert len(pinned["configurations"]) == 1
        assert kernel.configs == before


def test_a_pinned_option_is_every_configurations_own():
    params = equation(tuned(), X, X, 100, num_warps=8, out_shape={"out_ptr": X})
    assert [dict(c.options)["num_warps"] for c in params["configurations"]] == [8, 8]


def test_pinning_what_no_configuration_has_is_an_error():
    with pytest.raises(LaunchValueError, match="add: no configuration of its autotuner has BLOCK=64"):
        launch(tuned(), X, X, 100, BLOCK=64, out_shape={"out_ptr": X})


def test_pruning_is_tritons_own():
    pruned = tuned(prune_configs_by={"early_config_prune": lambda configs, args, **kwargs: configs[1:]})
    assert blocks(equation(pruned, X, X, 100, out_shape={"out_ptr": X})) == [32, 32]
    modelled = tuned(
        prune_configs_by={"perf_model": lambda BLOCK, num_warps, **kw: BLOCK * 10 - num_warps, "top_k": 2}
    )
    params = equation(modelled, X, X, 100, out_shape={"out_ptr": X})
    assert [
        (b, dict(c.options)["num_warps"])
        for b, c in zip(blocks(params), params["configurations"], strict=True)
    ] == [
        (16, 1),
        (32, 4),
    ]


@pytest.mark.parametrize("order", ["heuristics outside", "autotune outside"])
def test_heuristics_and_autotuners_nest_either_way(order):
    heuristics = triton.heuristics({"EVEN": lambda args: args["n"] % args.get("BLOCK", 10) == 0})
    autotune = triton.autotune([triton.Config({"BLOCK": b}) for b in (16, 25)], key=["n"])

    @triton.jit
    def kernel(x_ptr, n, out_ptr, BLOCK: tl.constexpr, EVEN: tl.constexpr):
        tl.store(out_ptr, tl.load(x_ptr))

    nested = heuristics(autotune(kernel)) if order == "heuristics outside" else autotune(heuristics(kernel))
    params = equation(nested, X, 100, out_shape={"out_ptr": X})
    even = [dict(c.constexprs)["EVEN"].value for c in params["configurations"]]
    assert even == ([True, True] if order == "heuristics outside" else [False, True])


def test_an_autotuned_launch_runs():
    np.testing.assert_array_equal(launch(tuned(), X, X, 100, out_shape={"out_ptr": X}), 2 * X)


def counted(**kwargs):
    """An autotuned kernel that adds into its output or in-out."""
    hook = kwargs.pop("config_hook", None)
    configs = [triton.Config({"BLOCK": 16}, pre_hook=hook), triton.Config({"BLOCK": 32})]
    return triton.autotune(configs, key=["n"], **kwargs)(count)


def zeroed(params):
    return [configuration.zeroed for configuration in params["configurations"]]


@pytest.mark.parametrize(
    "hooks,expected",
    [
        ({"reset_to_zero": ["out_ptr"]}, [(0,), (0,)]),
        ({"pre_hook": lambda args, reset_only=False: args["out_ptr"].zero_()}, [(0,), (0,)]),
        ({"config_hook": lambda args: args["out_ptr"].zero_()}, [(0,), ()]),
        ({"restore_value": ["out_ptr"]}, [(), ()]),
    ],
)
def test_hooks_that_zero_an_output_zero_it_before_the_launch(hooks, expected):
    params = equation(counted(**hooks), x_ptr=X, n=100, out_shape={"out_ptr": X[:1]})
    assert zeroed(params) == expected


@pytest.mark.parametrize("hooks", [{"reset_to_zero": ["out_ptr"]}, {"restore_value": ["out_ptr"]}])
def test_an_in_out_that_is_reset_for_tuning_keeps_what_the_launch_gave(hooks):
    kernel = counted(**hooks)
    start = np.float32([1000])
    for _ in range(2):
        out = launch(kernel, start, X, 100, input_output_aliases="out_ptr")
        np.testing.assert_array_equal(out, start + X.sum())
    assert zeroed(equation(kernel, start, X, 100, input_output_aliases="out_ptr")) == [(), ()]


def test_a_hook_that_zeroes_an_in_out_at_every_launch_is_refused():
    kernel = counted(config_hook=lambda args: args["out_ptr"].zero_())
    with pytest.raises(LaunchValueError, match="zeroed_outputs names 'out_ptr', which is an in-out"):
        launch(kernel, X[:1], X, 100, input_output_aliases="out_ptr")


def test_a_hook_that_reaches_for_memory_is_refused_by_what_it_uses():
    kernel = counted(config_hook=lambda args: args["out_ptr"].fill_(1))
    with pytest.raises(UnsupportedError, match="count: a hook of its autotuner uses out_ptr.fill_"):
        launch(kernel, x_ptr=X, n=100, out_shape={"out_ptr": X[:1]})


def test_a_hook_after_the_launch_is_refused():
    kernel = counted(post_hook=lambda args, exception: None)
    with pytest.raises(UnsupportedError, match="count: its autotuner has a post_hook"):
        launch(kernel, x_ptr=X, n=100, out_shape={"out_ptr": X[:1]})


# --- Refs and donation -------------------------------------------------------------------------


def test_a_ref_is_read_and_written_in_place():
    ref = jax.new_ref(jnp.asarray(X))
    assert launch(scale_in_place, ref, 100, 2.0, BLOCK=32) is None
    np.testing.assert_array_equal(ref[...], X * 2)


def test_a_ref_beside_an_output_is_not_returned():
    ref = jax.new_ref(jnp.asarray(X))
    out = launch(add, ref, X, n=100, BLOCK=32, out_shape={"out_ptr": X})
    np.testing.assert_array_equal(out, 2 * X)
    np.testing.assert_array_equal(ref[...], X)


def test_refs_work_under_jit_in_scan_and_in_tuples():
    @jax.jit
    def f(x):
        ref = jax.new_ref(x)

        def step(carry, _):
            launch(scale_in_place, ref, 100, 2.0, BLOCK=32)
            out = launch(add_pair, (ref, ref[...]), n=100, BLOCK=32, out_shape={"out_ptr": x})
            return carry + out, None

        total, _ = jax.lax.scan(step, jnp.zeros_like(x), length=3)
        return jax.freeze(ref), total

    last, total = f(jnp.asarray(X))
    np.testing.assert_array_equal(last, X * 8)
    np.testing.assert_array_equal(total, X * (4 + 8 + 16))


def test_one_ref_for_two_parameters_is_refused():
    ref = jax.new_ref(jnp.asarray(X))
    with pytest.raises(LaunchValueError, match="add: one Ref is passed for 'x_ptr' and 'y_ptr'"):
        launch(add, ref, ref, n=100, BLOCK=32, out_shape={"out_ptr": X})


def test_the_same_array_may_be_in_out_and_input_at_once():
    @triton.jit
    def add_into(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
        offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        mask = offsets < n
        y = tl.load(y_ptr + offsets, mask=mask)
        tl.store(x_ptr + offsets, tl.load(x_ptr + offsets, mask=mask) + y, mask=mask)

    x = jnp.asarray(X)
    np.testing.assert_array_equal(launch(add_into, x, x, 100, BLOCK=32, input_output_aliases=0), 2 * X)
    np.testing.assert_array_equal(x, X)


@pytest.mark.parametrize("kernel", [scale_in_place, None])
def test_an_eager_launch_donates_its_in_outs_on_request(kernel):
    kernel = kernel or triton.autotune([triton.Config({}, num_warps=w) for w in (2, 4)], key=[])(
        scale_in_place
    )
    run = jt.kernel(kernel, input_output_aliases="x_ptr", BLOCK=32)
    for donate in (False, True, False):
        x = jnp.asarray(X) + 0
        np.testing.assert_array_equal(run[BLOCKS](x, 100, 2.0, donate=donate), X * 2)
        assert x.is_deleted() is donate


def test_donating_without_an_in_out_is_refused():
    with pytest.raises(LaunchValueError, match="add: donate=True, but no argument is an in-out"):
        launch(add, X, X, n=100, BLOCK=32, out_shape={"out_ptr": X}, donate=True)


# --- Outputs that nobody declared --------------------------------------------------------------


@triton.jit
def writes_nothing(x_ptr):
    tl.load(x_ptr)


def test_a_launch_as_pasted_returns_what_the_kernel_writes():
    x, out = jnp.asarray(X), jnp.zeros(100)
    for run in (add_pasted, jax.jit(add_pasted)):
        np.testing.assert_array_equal(run(x, out), 2 * X)
        np.testing.assert_array_equal(out, np.zeros(100))


def add_pasted(x, out):
    return launch(add, x, x, out, 100, BLOCK=32)


def test_what_a_discovered_output_leaves_unwritten_is_kept():
    out = launch(add, X, X, jnp.full(100, -1.0), 50, BLOCK=32)
    np.testing.assert_array_equal(out, np.where(np.arange(100) < 50, 2 * X, -1))


def test_several_discovered_outputs_come_in_the_signatures_order():
    s, d = launch(sum_and_difference, X * 0, X, X * 0, 3 * X, 100, BLOCK=32)
    np.testing.assert_array_equal(s, 4 * X)
    np.testing.assert_array_equal(d, -2 * X)


def test_outputs_of_an_autotuned_kernel_are_discovered():
    np.testing.assert_array_equal(launch(tuned(), X, X, X * 0, 100), 2 * X)


def test_discovered_outputs_may_be_donated():
    out = jnp.zeros(100) + 0
    np.testing.assert_array_equal(launch(add, X, X, out, 100, BLOCK=32, donate=True), 2 * X)
    assert out.is_deleted()


# --- What is refused, and how ------------------------------------------------------------------


@pytest.mark.parametrize(
    "error,match,run",
    [
        (LaunchTypeError, "add: no parameter named 'xptr'.*Did you mean 'x_ptr'", lambda: launch(add, xptr=3, out_shape=X)),
        (LaunchTypeError, "did you mean 'num_warps'", lambda: launch(add, X, num_warp=3, out_shape=X)),
        (LaunchTypeError, "Did you mean 'out_shape'", lambda: launch(add, X, outshape=X)),
        (LaunchTypeError, "backend_options has 'warps'", lambda: launch(add, X, backend_options={"warps": 1})),
        (LaunchTypeError, "missing argument 'n'", lambda: launch(add, X, X, BLOCK=32, out_shape={"out_ptr": X}, grid=1)),
        (LaunchTypeError, "got 6 positional arguments for 4 parameters", lambda: launch(add, *[X] * 6, out_shape={"out_ptr": X})),
        (LaunchValueError, "'out_ptr' is declared as an output and passed", lambda: launch(add, X, X, 1, out_ptr=X, BLOCK=32, out_shape={"out_ptr": X}, grid=1)),
        (LaunchValueError, "writes no array that the launch names", lambda: launch(writes_nothing, X, grid=1)),
        (LaunchValueError, "out_shape names 'out'.*Did you mean 'out_ptr'", lambda: launch(add, X, X, 1, out_shape={"out": X})),
        (LaunchTypeError, "an output is declared as 3", lambda: launch(add, X, X, 1, out_shape=3)),
        (LaunchTypeError, "out_shape declares 'out_ptr' as 3", lambda: launch(add, X, X, 1, out_shape={"out_ptr": 3})),
        (LaunchValueError, "out_shape and out_type are both given", lambda: launch(add, X, out_shape=X, out_type=X)),
        (LaunchValueError, "out_names has 2 names for 1", lambda: launch(add, X, out_shape=X, out_names=["a", "b"])),
        (LaunchValueError, "out_names lists .'x_ptr'., but out_shape declares .'out_ptr'.", lambda: launch(add, X, out_shape={"out_ptr": X}, out_names="x_ptr")),
        (LaunchValueError, "declared as an output twice", lambda: launch(add, X, out_type=(X, X), out_names=["out_ptr", 2])),
        (LaunchValueError, "output 1 has no parameter left", lambda: launch(add, X, X, 1, BLOCK=32, out_type=(X, X))),
        (LaunchValueError, "'n', for which the launch passes no array", lambda: launch(add, X, X, X, 1, BLOCK=32, input_output_aliases="n", grid=1)),
        (LaunchValueError, "names 'x_ptr' twice", lambda: launch(scale_in_place, X, 1, 1, BLOCK=32, input_output_aliases=["x_ptr", 0])),
        (LaunchTypeError, "input_output_aliases is 1.5", lambda: launch(add, X, input_output_aliases=1.5)),
        (LaunchValueError, "gives in-outs a place among the declared shapes, but out_shape declares these by name; list", lambda: launch(add, X, X, n=1, BLOCK=32, out_shape={"out_ptr": X}, input_output_aliases={"x_ptr": 0})),
        (LaunchValueError, "gives result 1", lambda: launch(scale_in_place, X, 1, 1, out_shape=X, input_output_aliases={0: 1})),
        (LaunchTypeError, "argument 'BLOCK' is an array", lambda: launch(add, X, X, 1, BLOCK=X, out_shape=X, grid=1)),
        (LaunchTypeError, "argument 'BLOCK' is a set that can't be hashed", lambda: launch(add, X, X, 1, BLOCK={1}, out_shape=X, grid=1)),
        (LaunchTypeError, "argument 'n' is a object", lambda: launch(add, X, X, n=object(), BLOCK=32, out_shape=X, grid=1)),
        (LaunchTypeError, "argument 'x_ptr' has dtype complex64.*real and imaginary", lambda: launch(add, X.astype(np.complex64), X, 1, BLOCK=32, out_shape=X, grid=1)),
        (LaunchTypeError, r"argument 'pair\[1\]' has dtype int4", lambda: launch(add_pair, (X, jnp.zeros(3, "int4")), n=1, BLOCK=32, out_shape=X, grid=1)),
        (LaunchTypeError, "argument 'out_ptr' has dtype complex64", lambda: launch(add, X, X, n=1, BLOCK=32, out_shape=X.astype(np.complex64), grid=1)),
        (LaunchTypeError, "'x_ptr' is a ShapeDtypeStruct", lambda: launch(add, jax.ShapeDtypeStruct((3,), np.float32), X, 1, BLOCK=32, out_shape=X, grid=1)),
        (LaunchValueError, "zeroed_outputs names 'x_ptr', which is an in-out", lambda: launch(scale_in_place, X, 1, 1, BLOCK=32, input_output_aliases="x_ptr", zeroed_outputs="x_ptr")),
        (LaunchValueError, "zeroed_outputs has 3, which is no output; outputs are out_ptr", lambda: launch(add, X, X, n=1, BLOCK=32, out_shape=X, zeroed_outputs=3)),
        (LaunchValueError, "zeroed_outputs has 'y_ptr', which is no output", lambda: launch(add, X, X, n=1, BLOCK=32, out_shape=X, zeroed_outputs="y_ptr")),
        (LaunchTypeError, "cost_estimate is .'flop': 3.; expected a jt.CostEstimate, or a mapping with flops", lambda: launch(add, X, X, n=1, BLOCK=32, out_shape=X, cost_estimate={"flop": 3})),
        (LaunchValueError, "target and compute_capability are both given", lambda: launch(add, X, X, n=1, BLOCK=32, out_shape=X, target="cuda:90", compute_capability=90)),
        (LaunchTypeError, "got multiple values for argument 'x_ptr'", lambda: launch(add, X, x_ptr=X, n=1, BLOCK=32, out_shape=X)),
        (LaunchValueError, "option 'num_warps' is given as a keyword and in backend_options", lambda: launch(add, X, X, n=1, BLOCK=32, out_shape=X, num_warps=4, backend_options={"num_warps": 2})),
        (LaunchTypeError, "no parameter named 'BLOK'.*Did you mean", lambda: jt.kernel(add)[lambda meta: 1](X, X, n=1, BLOCK=32, out_shape=X, BLOK=4)),
        (LaunchTypeError, "no parameter named 'UNREAD'", lambda: jt.kernel(add)[lambda meta: 1](X, X, n=1, BLOCK=32, out_shape=X, UNREAD=4)),
        (LaunchTypeError, "metadata is 3; expected bytes", lambda: launch(add, X, X, n=1, BLOCK=32, out_shape=X, metadata=3)),
        (LaunchTypeError, "option 'extern_libs' is a set that can't be hashed", lambda: launch(add, X, X, n=1, BLOCK=32, out_shape=X, extern_libs={1})),
        (LaunchTypeError, "called without a grid", lambda: jt.kernel(add)(X)),
    ],
)  # fmt: skip
def test_a_mistake_is_answered_by_one_sentence_that_names_it(error, match, run):
    with pytest.raises(error, match=f"(?i){match}") as caught:
        run()
    assert isinstance(caught.value, JtprimError)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(caught.value.kernel + ": ")


@pytest.mark.parametrize(
    "grid,match",
    [
        ((), "has 0 axes"),
        ((1, 2, 3, 4), "has 4 axes"),
        ((1, 70000), "exceeds the limit of 65535 programs on axis 1"),
        ((2**31,), "exceeds the limit of 2147483647 programs on axis 0"),
        ((1, 1, 65536), "on axis 2"),
        ((-1,), "negative on axis 0"),
        ((1.5,), "has a float on axis 0"),
        ((True,), "has a bool on axis 0"),
        ("8", "has a str on axis 0"),
        (None, "has a NoneType on axis 0"),
    ],
)
def test_a_grid_that_cannot_be_is_refused(grid, match):
    with pytest.raises(JtprimError, match=match):
        check_grid(grid, kernel="k")


def test_a_traced_grid_is_refused_with_the_remedy():
    with pytest.raises(LaunchTypeError, match="add: the grid depends on a value that jax.jit traces"):
        jax.jit(lambda n: launch(add, X, X, n=100, BLOCK=32, out_shape=X, grid=(n,)))(3)


@pytest.mark.parametrize("value", [3, add.fn, None])
def test_only_triton_kernels_are_kernels(value):
    with pytest.raises(TypeError, match="no Triton kernel|expected a Triton kernel"):
        jt.triton_call(X, kernel=value, grid=1)
    with pytest.raises(TypeError, match="expected a Triton kernel"):
        jt.specialize(value, X, target="cuda:90")
    if value is not None:
        with pytest.raises(TypeError, match="which is no Triton kernel"):
            jt.kernel(value)


def test_kernels_for_tritons_interpreter_are_refused_with_the_remedy():
    code = textwrap.dedent("""
        import jax.numpy as jnp, triton
        import jtprim as jt
        def kernel(x_ptr): pass
        made = triton.jit(kernel)
        tuned = triton.autotune([triton.Config({})], key=[])(made)
        call = lambda fn: jt.triton_call(jnp.zeros(1), kernel=fn, grid=1)
        for use in (jt.kernel, call, jt.specialize):
            for fn in (made, tuned):
                try:
                    use(fn)
                except TypeError as error:
                    assert "TRITON_INTERPRET=1" in str(error) and "jt.debug" in str(error), error
                else:
                    raise AssertionError(use)
    """)
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert not run.returncode, run.stderr


def test_stored_keywords_are_checked_when_they_are_stored():
    with pytest.raises(LaunchTypeError, match="add: no parameter named 'BLOK'.*Did you mean 'BLOCK'"):
        jt.kernel(add, BLOK=32)


# --- Plans -------------------------------------------------------------------------------------


def test_launches_that_differ_in_contents_alone_share_a_plan():
    kernel = jt.kernel(add, BLOCK=32)
    for scale in (1, 2, 3):
        out = kernel[BLOCKS](X * scale, jnp.asarray(X), n=100, out_shape=X)
        np.testing.assert_array_equal(out, X * (scale + 1))
    assert len(kernel.plans) == 1


@given(st.lists(st.sampled_from([1, True, 1.0, 0, False, -0.0, 0.0, 2]), min_size=2, max_size=6))
def test_a_plan_never_serves_a_launch_with_other_scalars(values):
    kernel = jt.kernel(fill, BLOCK=16)
    for value in values:
        out = kernel[(1,)](value=value, n=4, out_shape={"out_ptr": X[:4]})
        np.testing.assert_array_equal(np.signbit(out), np.signbit(np.full(4, value, np.float32)))
        np.testing.assert_array_equal(out, np.full(4, value, np.float32))


def test_a_plan_never_serves_arrays_of_another_dtype_or_shape():
    kernel = jt.kernel(add, BLOCK=32)
    for x in (X, X[:50], X.astype(np.int32), X.reshape(10, 10)):
        out = kernel[BLOCKS](x, x, n=x.size, out_shape=x)
        assert (out.shape, out.dtype) == (x.shape, x.dtype)
        np.testing.assert_array_equal(out, x + x)
