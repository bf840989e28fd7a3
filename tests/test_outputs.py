"""Every form in which a launch may declare its outputs and in-outs, and what it then returns."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import triton
import triton.language as tl

import jtprim as jt
from jtprim.errors import LaunchValueError
from tests.kernels import add

X = jnp.arange(8, dtype=jnp.float32)
ONE = jnp.array([5.25])
I32, I16 = (jax.ShapeDtypeStruct((1,), dtype) for dtype in (jnp.int32, jnp.int16))


@triton.jit
def copy_and_next(x_ptr, n, same_ptr, next_ptr, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    tl.store(same_ptr + offsets, x, mask=offsets < n)
    tl.store(next_ptr + offsets, x + 1, mask=offsets < n)


@triton.jit
def into_a_tuple(x_ptr, nest, twice_ptr):
    x = tl.load(x_ptr)
    tl.store(nest[0], x)
    tl.store(nest[1][0], x.to(tl.int32) + 1)
    tl.store(nest[1][1], x.to(tl.int16) + 2)
    tl.store(twice_ptr, 2 * x)


@triton.jit
def add_to_all(a_ptr, b_ptr, c_ptr):
    tl.store(a_ptr, tl.load(a_ptr) + 1)
    tl.store(b_ptr, tl.load(b_ptr) + 2)
    tl.store(c_ptr, tl.load(c_ptr) + 3)


@triton.jit
def outputs_and_in_out(x_ptr, total_ptr, twice_ptr, thrice_ptr):
    x = tl.load(x_ptr)
    tl.store(twice_ptr, 2 * x)
    tl.store(thrice_ptr, 3 * x)
    tl.store(total_ptr, tl.load(total_ptr) + x)


@triton.jit
def add_to_pair(pair, step):
    tl.store(pair[0], tl.load(pair[0]) + step)
    tl.store(pair[1], tl.load(pair[1]) + 10 * step)


def same_and_next(**declared):
    """The results, and what type they came in."""
    found = jt.kernel(copy_and_next)[1](X, n=8, BLOCK=8, **declared)
    return type(found), *found


NAMES = [("same_ptr", "next_ptr"), ("next_ptr", "same_ptr"), [2, 3], [3, 2], (2, "next_ptr"), ["next_ptr", 2]]


@pytest.mark.parametrize("names", [None, *NAMES])
@pytest.mark.parametrize("shapes", [(X, X), [X, X]])
def test_a_sequence_comes_back_as_one_in_the_signatures_order(shapes, names):
    kind, same, following = same_and_next(out_shape=shapes, out_names=names)
    assert kind is type(shapes)
    np.testing.assert_array_equal(same, X)
    np.testing.assert_array_equal(following, X + 1)


@pytest.mark.parametrize("names", [None, *NAMES])
@pytest.mark.parametrize("keys", NAMES)
def test_named_outputs_come_in_the_signatures_order(keys, names):
    kind, same, following = same_and_next(out_shape=dict.fromkeys(keys, X), out_names=names)
    assert kind is tuple
    np.testing.assert_array_equal(same, X)
    np.testing.assert_array_equal(following, X + 1)


def test_shapes_go_with_their_names():
    short = jax.ShapeDtypeStruct((4,), jnp.float32)
    launch = jt.kernel(copy_and_next)[1]
    for names, shapes in ((("same_ptr", "next_ptr"), (short, X)), (("next_ptr", "same_ptr"), (X, short))):
        same, following = launch(X, n=4, BLOCK=8, out_shape=shapes, out_names=names)
        np.testing.assert_array_equal(same, X[:4])
        np.testing.assert_array_equal(following[:4], X[:4] + 1)


def check_tuple_and_twice(results):
    (same, (one_more, two_more)), twice = results
    for found, expected, dtype in (
        (same, 5.25, jnp.float32),
        (one_more, 6, jnp.int32),
        (two_more, 7, jnp.int16),
        (twice, 10.5, jnp.float32),
    ):
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, [expected])


@pytest.mark.parametrize(
    "declared",
    [
        {"out_shape": ((ONE, (I32, I16)), ONE)},
        {"out_shape": [[ONE, [I32, I16]], ONE]},
        {"out_shape": ((ONE, (I32, I16)), ONE), "out_names": ("nest", "twice_ptr")},
        {"out_shape": (ONE, (ONE, (I32, I16))), "out_names": (2, "nest")},
        {"out_shape": {"nest": (ONE, (I32, I16)), "twice_ptr": ONE}},
        {"out_shape": {2: ONE, 1: [ONE, (I32, I16)]}},
    ],
)
def test_an_element_that_is_a_tuple_is_a_parameter_that_is_one(declared):
    check_tuple_and_twice(jt.kernel(into_a_tuple)[1](ONE, **declared))


def test_paths_into_a_tuple_come_back_one_by_one():
    shapes = {("nest", 0): ONE, ("nest", 1, 0): I32, ("nest", 1, 1): I16, "twice_ptr": ONE}
    same, one_more, two_more, twice = jt.kernel(into_a_tuple)[1](ONE, out_shape=shapes)
    check_tuple_and_twice(((same, (one_more, two_more)), twice))


def test_a_single_tuple_comes_bare():
    @triton.jit
    def into_pair(x_ptr, pair):
        tl.store(pair[0], tl.load(x_ptr))
        tl.store(pair[1], -tl.load(x_ptr))

    for declared in ({"out_shape": [(ONE, ONE)]}, {"out_shape": {"pair": (ONE, ONE)}}):
        plus, minus = jt.kernel(into_pair)[1](ONE, **declared)
        np.testing.assert_array_equal(plus, ONE)
        np.testing.assert_array_equal(minus, -ONE)


class Results(NamedTuple):
    same: object
    following: object


@pytest.mark.parametrize(
    "shapes",
    [Results(X, X), {"a": X, "b": X}, (X, (X,)), [[X], X], ((X, X),)],
)
def test_where_each_shape_is_a_parameters_any_structure_comes_back(shapes):
    found = jt.kernel(copy_and_next)[1](X, n=8, BLOCK=8, out_type=shapes)
    assert jax.tree.structure(found) == jax.tree.structure(shapes)
    same, following = jax.tree.leaves(found)
    np.testing.assert_array_equal(same, X)
    np.testing.assert_array_equal(following, X + 1)


def test_a_nested_sequence_of_as_many_shapes_as_parameters_is_flat():
    found = jt.kernel(copy_and_next)[1](X, n=8, BLOCK=8, out_shape=((X, X),))
    [(same, following)] = found
    np.testing.assert_array_equal(same, X)
    np.testing.assert_array_equal(following, X + 1)


# --- In-outs -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "aliases, expected",
    [
        (["a_ptr", "b_ptr", "c_ptr"], (11, 22, 33)),
        (("c_ptr", "a_ptr", "b_ptr"), (33, 11, 22)),
        ([0, [1, 2]], (11, (22, 33))),
        ([2, [0, 1]], (33, (11, 22))),
        ([[1, 0], 2], ((22, 11), 33)),
        ([[("b_ptr",)], [0, (2,)]], ((22,), (11, 33))),
    ],
)
def test_lists_group_the_results_of_in_outs(aliases, expected):
    arrays = [jnp.array([value]) for value in (10, 20, 30)]
    found = jt.kernel(add_to_all)[1](*arrays, input_output_aliases=aliases)
    assert jax.tree.map(int, jax.tree.map(lambda x: x[0], found)) == expected


ONE_IN_OUT = [
    "total_ptr",
    ["total_ptr"],
    ("total_ptr",),
    (("total_ptr",),),
    [("total_ptr",)],
    1,
    (1,),
    [(1,)],
]


@pytest.mark.parametrize("aliases", ONE_IN_OUT)
@pytest.mark.parametrize(
    "shapes", [(ONE, ONE), [ONE, ONE], {"twice_ptr": ONE, 3: ONE}, {("twice_ptr",): ONE, (3,): ONE}]
)
def test_in_outs_stand_behind_the_outputs(shapes, aliases):
    total = jnp.array([10.0])
    found = jt.kernel(outputs_and_in_out)[1](ONE, total, out_shape=shapes, input_output_aliases=aliases)
    assert isinstance(found, tuple)
    assert [float(x[0]) for x in found] == [10.5, 15.75, 15.25]


@pytest.mark.parametrize("aliases", [{"total_ptr": 2}, {1: 2}, {(1,): 2}, {("total_ptr",): 2}])
def test_an_in_out_may_have_a_place_among_the_shapes(aliases):
    total = jnp.array([10.0])
    shapes = (ONE, ONE, total)
    found = jt.kernel(outputs_and_in_out)[1](ONE, total, out_shape=shapes, input_output_aliases=aliases)
    assert [float(x[0]) for x in found] == [10.5, 15.75, 15.25]


@pytest.mark.parametrize("coordinate", [("pair", 1), (0, 1), [("pair", 1)], [(0, 1)]])
def test_a_path_is_one_in_out(coordinate):
    @triton.jit
    def second(pair, step):
        tl.store(pair[1], tl.load(pair[1]) + tl.load(pair[0]) * step)

    found = jt.kernel(second)[1]((ONE, ONE), 2, input_output_aliases=coordinate)
    np.testing.assert_array_equal(found, 3 * ONE)


def test_a_tuple_of_in_outs_is_a_tuple_of_results():
    pair = ONE, jnp.array([100])
    first, second = jt.kernel(add_to_pair)[1](pair, 2, input_output_aliases="pair")
    np.testing.assert_array_equal(first, ONE + 2)
    np.testing.assert_array_equal(second, [120])
    assert second.dtype == jnp.int32

    @triton.jit
    def both(left, right, out_ptr):
        tl.store(left[0], tl.load(left[0]) + 1)
        tl.store(right[0], tl.load(right[0]) + 2)
        tl.store(right[1], tl.load(right[1]) + 3)
        tl.store(out_ptr, 4.0)

    found = jt.kernel(both)[1]((ONE,), (ONE, ONE), out_shape=ONE, input_output_aliases=["right", "left"])
    assert jax.tree.map(lambda x: float(x[0]), found) == (4.0, (7.25, 8.25), 6.25)

    @triton.jit
    def nested(tree):
        tl.store(tree[0], tl.load(tree[0]) + 1)
        tl.store(tree[1][1], tl.load(tree[1][1]) + tree[1][0])
        tl.store(tree[1][2], tl.load(tree[1][2]) + 3)

    for argument in ((ONE, (2, ONE, ONE), (4,)), [ONE, [2, ONE, ONE], ()]):
        found = jt.kernel(nested)[1](argument, input_output_aliases="tree")
        assert jax.tree.map(lambda x: float(x[0]), found) == (6.25, (7.25, 8.25))
        found = jt.kernel(nested)[1](argument, input_output_aliases=[("tree", 1), ("tree", 0)])
        assert jax.tree.map(lambda x: float(x[0]), found) == ((7.25, 8.25), 6.25)


class Described(NamedTuple):
    ptr: Any
    shape: Any


def test_the_one_array_of_a_tuple_comes_back_bare():
    @triton.jit
    def fill(out, value, BLOCK: tl.constexpr):
        i = tl.arange(0, BLOCK)
        tl.store(out.ptr + i, value, mask=i < out.shape[0])

    x = jnp.zeros(5)
    found = jt.kernel(fill)[1](Described(x, x.shape), 2.0, BLOCK=8, input_output_aliases="out")
    np.testing.assert_array_equal(found, jnp.full(5, 2.0))


@triton.jit
def raise_one(n, x_ptr, pair, WHICH: tl.constexpr):
    pointer = (x_ptr, pair[0], pair[1])[WHICH]
    tl.store(pointer, tl.load(pointer) + n)


@pytest.mark.parametrize("number, which", [(0, 0), ("x_ptr", 0), (2, 2), (("pair", 0), 1)])
def test_numbers_in_a_mapping_of_in_outs_count_arrays_where_they_count_no_parameter(number, which):
    found = jt.kernel(raise_one)[1](
        5, ONE, (ONE, ONE), WHICH=which, out_shape=ONE, input_output_aliases={number: 0}
    )
    np.testing.assert_array_equal(found, ONE + 5)


def test_numbers_in_a_mapping_of_in_outs_that_mean_two_things_are_refused():
    message = (
        r"raise_one: input_output_aliases has 1, which as positions of parameters mean x_ptr, and as "
        r"positions of the arrays that are passed pair\[0\]; name the parameters"
    )
    with pytest.raises(LaunchValueError, match=message):
        jt.kernel(raise_one)[1](5, ONE, (ONE, ONE), WHICH=0, out_shape=ONE, input_output_aliases={1: 0})


# --- Zeroed outputs ----------------------------------------------------------------------------


@triton.jit
def accumulate(x_ptr, pair, single_ptr):
    for i in tl.static_range(2):
        tl.store(pair[i], tl.load(pair[i]) + tl.load(x_ptr))
    tl.store(single_ptr, tl.load(single_ptr) + tl.load(x_ptr))


@pytest.mark.parametrize(
    "zeroed, expected",
    [
        ("single_ptr", (2,)),
        (["single_ptr"], (2,)),
        (("single_ptr",), (2,)),
        ((2,), (2,)),
        ((("single_ptr",),), (2,)),
        ("pair", (0, 1)),
        (1, (0, 1)),
        ([("pair", 1)], (1,)),
        ([(1, 0), "single_ptr"], (0, 2)),
        ((("pair", 1), (1, 0)), (0, 1)),
        ([0], (0,)),  # no output stands there in the signature: the first that is declared
        (lambda meta: [("pair", 0)], (0,)),
    ],
)
def test_zeroed_outputs_are_coordinates(zeroed, expected):
    operands = jax.make_jaxpr(
        lambda x: jt.kernel(accumulate)[1](
            x, out_shape={"pair": (x, x), "single_ptr": x}, zeroed_outputs=zeroed
        )
    )(ONE)
    [configuration] = operands.eqns[0].params["configurations"]
    assert configuration.zeroed == expected


@triton.jit
def place_three(x_ptr, a_ptr, b_ptr, c_ptr):
    tl.store(a_ptr, tl.load(x_ptr))
    tl.store(b_ptr, tl.load(x_ptr))
    tl.store(c_ptr, tl.load(x_ptr))


def zeroed_parameters(zeroed, *args, **declared):
    """The parameters that a launch of `place_three` zeroes."""
    names = [name for name in ("a_ptr", "b_ptr", "c_ptr") if name not in declared.get("given", ())]
    declared.pop("given", None)
    jaxpr = jax.make_jaxpr(lambda *args: jt.kernel(place_three)[1](*args, zeroed_outputs=zeroed, **declared))(
        *args
    )
    [configuration] = jaxpr.eqns[0].params["configurations"]
    return [names[index] for index in configuration.zeroed]


@pytest.mark.parametrize(
    "zeroed, expected",
    [
        ([3], ["c_ptr"]),  # three shapes are declared: a parameter's position alone
        ([0], ["a_ptr"]),  # parameter 0 is an input: a shape's position alone
        ([0, 1], ["a_ptr", "b_ptr"]),  # together: neither is the position of a parameter
        ([3, "a_ptr"], ["a_ptr", "c_ptr"]),
        ([0, 1, 2], ["a_ptr", "b_ptr", "c_ptr"]),
        ([1, 2, 3], ["a_ptr", "b_ptr", "c_ptr"]),
    ],
)
def test_numbers_of_zeroed_outputs_count_parameters_or_declared_shapes(zeroed, expected):
    assert zeroed_parameters(zeroed, ONE, out_shape=[ONE] * 3) == expected


def test_numbers_of_zeroed_outputs_that_mean_two_things_are_refused():
    message = (
        "place_three: zeroed_outputs has 2, which as positions of parameters mean b_ptr, and as positions of "
        "the declared shapes c_ptr; name the parameters"
    )
    with pytest.raises(LaunchValueError, match=message):
        zeroed_parameters(2, ONE, out_shape=[ONE] * 3)
    assert zeroed_parameters(2, ONE, out_shape=dict.fromkeys(["a_ptr", "b_ptr", "c_ptr"], ONE)) == ["b_ptr"]


def test_numbers_of_zeroed_outputs_count_the_shapes_of_in_outs():
    """As in jax-triton, where an in-out's shape is among those declared."""
    aliased = {"out_shape": [ONE] * 3, "input_output_aliases": {"a_ptr": 0}, "given": ("a_ptr",)}
    for zeroed, expected in (([3], ["c_ptr"]), ([1, 2], ["b_ptr", "c_ptr"])):
        assert zeroed_parameters(zeroed, ONE, ONE, **aliased) == expected
    with pytest.raises(LaunchValueError, match="zeroed_outputs names 'a_ptr', which is an in-out"):
        zeroed_parameters(0, ONE, ONE, **aliased)


def test_an_in_out_cannot_be_zeroed():
    with pytest.raises(
        LaunchValueError, match=r"add_to_pair: zeroed_outputs names 'pair\[1\]', which is an in"
    ):
        jt.kernel(add_to_pair)[1]((ONE, ONE), 2, input_output_aliases="pair", zeroed_outputs=[("pair", 1)])


def test_outputs_may_be_stored_with_the_kernel():
    kernel = jt.kernel(add, out_names="out_ptr")
    for shapes in (X, [X], (X,), {"out_ptr": X}, {2: X}):
        found = kernel[1](X, X, 8, BLOCK=8, out_shape=shapes)
        np.testing.assert_array_equal(jax.tree.leaves(found)[0], 2 * X)
