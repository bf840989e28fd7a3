"""Argument trees: what is told apart, how they are walked, how coordinates are read."""

import enum
import math
from typing import NamedTuple

import hypothesis.strategies as st
import jax.numpy as jnp
import numpy as np
import pytest
import triton.language as tl
from hypothesis import given

from jtprim.arguments import (
    Branch,
    Operand,
    Static,
    as_static,
    build_tree,
    check_dtype,
    coordinate_text,
    is_array,
    leaves,
    leaves_with_paths,
    map_tree,
    normalize_coordinate,
)
from jtprim.errors import LaunchTypeError, LaunchValueError

scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(), st.text(max_size=3)
)


class Point(NamedTuple):
    x: object
    y: object


def static(value):
    return as_static(value, kernel="k", parameter="p")


@given(scalars)
def test_a_static_equals_itself(value):
    assert Static(value) == Static(value)
    assert hash(Static(value)) == hash(Static(value))


@given(scalars, scalars)
def test_statics_are_equal_only_if_type_and_value_are(a, b):
    same = type(a) is type(b) and (
        math.copysign(1, a) == math.copysign(1, b) and (a == b or (a != a and b != b))
        if isinstance(a, float)
        else a == b
    )
    if Static(a) == Static(b):
        assert same
    elif isinstance(a, float) and a != a:
        pass  # NaNs of different bits differ
    else:
        assert not same


@pytest.mark.parametrize("a,b", [(1, True), (1, 1.0), (0.0, -0.0), (0, False), ((1,), (True,)), ((1,), [1])])
def test_values_that_python_calls_equal_are_told_apart(a, b):
    assert Static(a) != Static(b)


def test_constexprs_compare_by_their_value():
    assert Static(tl.constexpr(3)) == Static(tl.constexpr(3))
    assert Static(tl.constexpr(3)) != Static(tl.constexpr(3.0))
    assert Static(tl.constexpr(3)) != Static(3)


@pytest.mark.parametrize(
    "given_,expected",
    [(np.float32(1.5), 1.5), (np.int64(7), 7), (np.bool_(True), True), (np.uint8(200), 200)],
)
def test_numpy_scalars_become_python_scalars(given_, expected):
    value = static(given_).value
    assert value == expected
    assert type(value) is type(expected)


def test_strings_dtypes_and_enums_become_constexprs():
    class Mode(enum.Enum):
        A = "a"

    for value in ("relu", tl.float16, Mode.A):
        assert static(value) == Static(tl.constexpr(value))


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1])
def test_integers_that_no_type_holds_are_refused_by_name(value):
    with pytest.raises(LaunchValueError, match=r"k: argument 'p' is -?\d+, outside Triton's integers"):
        static(value)


@pytest.mark.parametrize("value", [1j, object(), {1: 2}])
def test_values_without_meaning_are_refused_by_name(value):
    with pytest.raises(LaunchTypeError, match="k: argument 'p' is a .*, which no kernel parameter takes"):
        static(value)


@pytest.mark.parametrize("dtype", ["complex64", "int4", "uint2", "float8_e4m3b11fnuz"])
def test_dtypes_that_triton_lacks_are_refused_by_name(dtype):
    array = jnp.zeros(2, dtype)
    with pytest.raises(LaunchTypeError, match=f"k: argument 'p' has dtype {dtype}, which Triton has no type"):
        check_dtype(array.dtype, kernel="k", parameter="p")


trees = st.recursive(
    st.one_of(st.integers(0, 9), st.just(np.zeros(3))),
    lambda children: st.one_of(
        st.lists(children, max_size=3),
        st.lists(children, max_size=3).map(tuple),
        st.tuples(children, children).map(lambda pair: Point(*pair)),
    ),
    max_leaves=8,
)


@given(trees)
def test_a_tree_walks_like_the_value_it_was_built_from(value):
    arrays = []

    def slot(value, path):
        if not is_array(value):
            return None
        arrays.append(path)
        return Operand(len(arrays) - 1)

    tree = build_tree(value, slot, static)
    assert list(leaves(tree)) == [leaf for _, leaf in leaves_with_paths(tree)]
    assert [path for path, leaf in leaves_with_paths(tree) if isinstance(leaf, Operand)] == arrays
    for path, leaf in leaves_with_paths(tree):
        at = value
        for index in path:
            at = at[index]
        assert isinstance(at, np.ndarray) if isinstance(leaf, Operand) else leaf == Static(at)
    hash(tree)


def test_a_namedtuple_keeps_its_type():
    tree = build_tree(Point(1, (2, 3)), lambda value, path: None, static)
    assert isinstance(tree, Branch)
    assert tree.type is Point
    assert map_tree(lambda leaf: leaf.value, tree) == Point(1, (2, 3))


def normal(coordinate):
    return normalize_coordinate(coordinate, ["a", "b"], kernel="k", setting="out_shape")


@pytest.mark.parametrize(
    "coordinate,expected",
    [("b", ("b",)), (1, ("b",)), (("b", 0, 2), ("b", 0, 2)), ((0, 1), ("a", 1))],
)
def test_coordinates_are_names_positions_and_paths(coordinate, expected):
    assert normal(coordinate) == expected


def test_a_coordinate_prints_like_python():
    assert coordinate_text(("pair", 0, 1)) == "pair[0][1]"


def test_an_unknown_coordinate_names_the_closest():
    names = ["x_ptr", "length"]
    with pytest.raises(LaunchValueError, match="k: out_shape names 'lenght'.*Did you mean 'length'"):
        normalize_coordinate("lenght", names, kernel="k", setting="out_shape")


@pytest.mark.parametrize("coordinate", [2, -1])
def test_a_position_outside_the_signature_is_refused(coordinate):
    with pytest.raises(LaunchValueError, match="has 2 parameters"):
        normal(coordinate)


@pytest.mark.parametrize("coordinate", [True, 1.0, (), ("a", "b"), None])
def test_what_is_no_coordinate_is_refused(coordinate):
    with pytest.raises(LaunchTypeError, match="for a coordinate"):
        normal(coordinate)
