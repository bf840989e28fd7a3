"""Operations that Triton's frontends emit in no version, or in one that is not installed: from IR by hand."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from jtprim.lowering.portable import execute

ELEMENTS = {"float32": "f32", "float16": "f16", "int32": "i32", "int8": "i8"}
SHARED = '!ttg.memdesc<{}x{}, "layout", "memory">'


def kernel(body, *arrays):
    """The IR of a kernel that takes pointers `%p0`, `%p1` and so on, to the elements of arrays."""
    kinds = [f"!tt.ptr<{ELEMENTS[array.dtype.name]}>" for array in arrays]
    parameters = ", ".join(f"%p{k}: {kind}" for k, kind in enumerate(kinds))
    return f"""
"builtin.module"() ({{
  "tt.func"() <{{function_type = ({", ".join(kinds)}) -> (), sym_name = "kernel"}}> ({{
  ^bb0({parameters}):
    {body}
    "tt.return"() : () -> ()
  }}) : () -> ()
}}) : () -> ()
"""


def addresses(k, size, element):
    """`%a<k>`: pointers to the elements of the parameter."""
    pointers = f"tensor<{size}x!tt.ptr<{element}>>"
    return f"""
    %r{k} = "tt.make_range"() <{{start = 0 : i32, end = {size} : i32}}> : () -> tensor<{size}xi32>
    %s{k} = "tt.splat"(%p{k}) : (!tt.ptr<{element}>) -> {pointers}
    %a{k} = "tt.addptr"(%s{k}, %r{k}) : ({pointers}, tensor<{size}xi32>) -> {pointers}"""


def load(k, size, element):
    """`%v<k>`: the elements of the parameter."""
    return f"""{addresses(k, size, element)}
    %v{k} = "tt.load"(%a{k}) <{{operandSegmentSizes = array<i32: 1, 0, 0>}}>
      : (tensor<{size}x!tt.ptr<{element}>>) -> tensor<{size}x{element}>"""


def store(k, value, size, element):
    """Writes the value to the parameter."""
    kind = f"tensor<{size}x{element}>"
    return f"""{addresses(k, size, element)}
    "tt.store"(%a{k}, {value}) : (tensor<{size}x!tt.ptr<{element}>>, {kind}) -> ()"""


def run(body, *arrays):
    """What the last array holds afterwards."""
    arrays = [jnp.asarray(array) for array in arrays]
    (result,) = execute(kernel(body, *arrays), (1, 1, 1), arrays, [len(arrays) - 1], kernel="kernel")
    return np.asarray(result)


def elementwise(name, *operands, result=None):
    """One operation of tensors, applied to arrays."""
    size, kinds = len(operands[0]), [ELEMENTS[array.dtype.name] for array in operands]
    result = operands[0].dtype if result is None else np.dtype(result)
    out = ELEMENTS[result.name]
    values = ", ".join(f"%v{k}" for k in range(len(operands)))
    types = ", ".join(f"tensor<{size}x{kind}>" for kind in kinds)
    body = [load(k, size, kind) for k, kind in enumerate(kinds)]
    body += [f'    %o = "{name}"({values}) : ({types}) -> tensor<{size}x{out}>']
    return run("\n".join([*body, store(len(operands), "%o", size, out)]), *operands, np.zeros(size, result))


SMALL = np.array([-0.9, -0.5, -0.0, 0.0, 0.1, 0.25, 0.75, 0.99], np.float32)
ANY = np.array([-70.25, -2.5, -0.5, 0.0, 0.5, 1.5, 2.5, 30.75], np.float32)
UNARY = {
    "math.acos": (np.arccos, SMALL),
    "math.acosh": (np.arccosh, 1 + np.abs(ANY)),
    "math.asin": (np.arcsin, SMALL),
    "math.asinh": (np.arcsinh, ANY),
    "math.atan": (np.arctan, ANY),
    "math.atanh": (np.arctanh, SMALL),
    "math.cbrt": (np.cbrt, ANY),
    "math.cosh": (np.cosh, ANY),
    "math.erfc": (np.vectorize(math.erfc), SMALL),
    "math.expm1": (np.expm1, SMALL),
    "math.log10": (np.log10, np.abs(ANY)),
    "math.log1p": (np.log1p, SMALL),
    "math.sinh": (np.sinh, ANY),
    "math.tan": (np.tan, SMALL),
    "math.tanh": (np.tanh, ANY),
}


@pytest.mark.parametrize("name", UNARY)
def test_functions_agree_with_numpy(name):
    function, x = UNARY[name]
    with np.errstate(divide="ignore"):
        expected = function(x.astype(np.float64))
    np.testing.assert_allclose(elementwise(name, x), expected, rtol=2e-6, atol=1e-7)


EXACT = {
    "math.trunc": np.trunc,
    "math.roundeven": np.rint,
    "math.round": lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x),
}


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_roundings_agree_with_numpy_to_the_sign_of_zero(name, dtype):
    x = np.array([-2.5, -1.5, -0.5, -0.25, -0.0, 0.0, 0.5, 1.5, 2.5, 1000.5, np.inf, -np.inf], dtype)
    found, expected = elementwise(name, x), EXACT[name](x)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))
    assert np.isnan(elementwise(name, np.full(1, np.nan, dtype))).all()


def test_functions_of_two_numbers_agree_with_numpy():
    x, y = ANY, np.array([2.0, -3.0, 0.5, -0.0, np.inf, -1.5, 0.0, 3.0], np.float32)
    np.testing.assert_allclose(elementwise("math.atan2", x, y), np.arctan2(x, y), rtol=2e-6)
    np.testing.assert_array_equal(elementwise("math.copysign", x, y), np.copysign(x, y))
    np.testing.assert_allclose(elementwise("math.powf", np.abs(x), y), np.abs(x) ** y, rtol=2e-6)
    np.testing.assert_allclose(elementwise("tt.approx_divf", x, x + 0.25), x / (x + 0.25), rtol=1e-6)


def test_least_of_floats_is_nan_beside_a_nan():
    x = np.array([1, np.nan, 3, -0.0], np.float32)
    y = np.array([np.nan, 2, 2, 0.0], np.float32)
    np.testing.assert_array_equal(elementwise("arith.minimumf", x, y), np.minimum(x, y))


def test_divisions_of_integers_round_up_and_down():
    x, y = (a.ravel().astype(np.int32) for a in np.meshgrid(np.arange(-8, 8), [-3, -2, -1, 1, 2, 3, 4, 5]))
    np.testing.assert_array_equal(elementwise("arith.floordivsi", x, y), x // y)
    np.testing.assert_array_equal(elementwise("arith.ceildivsi", x, y), -(-x // y))


def test_magnitude_of_integers_wraps():
    x = np.array([-(2**31), -5, 0, 7], np.int32)
    np.testing.assert_array_equal(elementwise("math.absi", x), np.abs(x))


def test_bits_of_floats_as_integers_and_back():
    x = np.array([1.5, -0.0, np.inf, 1e-40], np.float32)
    bits = elementwise("arith.bitcast", x, result=np.int32)
    np.testing.assert_array_equal(bits, x.view(np.int32))
    np.testing.assert_array_equal(elementwise("arith.bitcast", bits, result=np.float32), x)


def test_index_casts_keep_signs_or_do_not():
    body = """{load}
    %i = "arith.{cast}"(%v0) : (tensor<4xi32>) -> tensor<4xindex>
    %h = "arith.constant"() <{{value = dense<16> : tensor<4xindex>}}> : () -> tensor<4xindex>
    %d = "arith.shrsi"(%i, %h) : (tensor<4xindex>, tensor<4xindex>) -> tensor<4xindex>
    %o = "arith.index_cast"(%d) : (tensor<4xindex>) -> tensor<4xi32>{store}"""
    x = np.array([-(2**20), -1, 1, 2**20], np.int32)
    for cast, wide in (
        ("index_cast", x.astype(np.int64)),
        ("index_castui", x.view(np.uint32).astype(np.int64)),
    ):
        text = body.format(cast=cast, load=load(0, 4, "i32"), store=store(1, "%o", 4, "i32"))
        np.testing.assert_array_equal(run(text, x, np.zeros(4, np.int32)), (wide >> 16).astype(np.int32))


NOTHING = [
    "gpu.barrier",
    "ttg.local_barrier",
    "ttng.cluster_arrive",
    "ttng.cluster_barrier",
    "ttng.cluster_wait",
    "ttng.fence",
    "ttng.fence_mbarrier_init_release_cluster",
    "amdg.cluster_barrier_arrive",
    "amdg.cluster_barrier_wait",
    "amdg.instruction_sched_hint",
    "amdg.memory_counter_wait",
    "rocdl.sched.barrier",
    "tt.grid_dependency_launch_dependents",
    "tt.grid_dependency_wait",
]


@pytest.mark.parametrize("name", NOTHING)
def test_barriers_and_hints_change_nothing(name):
    x = np.arange(4, dtype=np.float32)
    body = f'{load(0, 4, "f32")}\n    "{name}"() : () -> (){store(1, "%v0", 4, "f32")}'
    np.testing.assert_array_equal(run(body, x, np.zeros(4, np.float32)), x)


PREFETCHES = ["tt.descriptor_prefetch", "ttng.async_tma_prefetch", "amdg.tdm_prefetch", "amdg.cond_barrier"]


@pytest.mark.parametrize("name", PREFETCHES)
def test_what_takes_operands_and_changes_nothing(name):
    x = np.arange(4, dtype=np.float32)
    body = f"""{load(0, 4, "f32")}
    %c = "arith.constant"() <{{value = true}}> : () -> i1
    "{name}"(%c) : (i1) -> (){store(1, "%v0", 4, "f32")}"""
    np.testing.assert_array_equal(run(body, x, np.zeros(4, np.float32)), x)


@pytest.mark.parametrize("name", ["amdg.async_wait", "amdg.async_tdm_wait"])
def test_waits_give_tokens(name):
    x = np.arange(4, dtype=np.float32)
    body = f"""{load(0, 4, "f32")}
    %t = "{name}"() <{{num_inst = 0 : i32}}> : () -> !ttg.async.token{store(1, "%v0", 4, "f32")}"""
    np.testing.assert_array_equal(run(body, x, np.zeros(4, np.float32)), x)


def test_a_tensor_of_one_element_becomes_a_scalar():
    x = np.array([7], np.int32)
    body = f"""{load(0, 1, "i32")}
    %u = "tt.unsplat"(%v0) : (tensor<1xi32>) -> i32
    "tt.store"(%p1, %u) : (!tt.ptr<i32>, i32) -> ()"""
    np.testing.assert_array_equal(run(body, x, np.zeros(1, np.int32)), x)


def test_bytes_hold_two_numbers_of_four_bits():
    values = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    x = np.arange(256).astype(np.uint8).view(np.int8)
    body = f"""{load(0, 256, "i8")}
    %o = "ttg.fp4_to_fp"(%v0) <{{axis = 0 : i32}}> : (tensor<256xi8>) -> tensor<512xf16>
    {store(1, "%o", 512, "f16")}"""
    numbers = [*values, *(-value for value in values)]
    expected = [numbers[half] for byte in range(256) for half in (byte % 16, byte // 16)]
    np.testing.assert_array_equal(run(body, x, np.zeros(512, np.float16)), np.array(expected, np.float16))


def test_shared_memory_is_copied_out_where_the_mask_holds_then_freed():
    x = np.arange(1, 9, dtype=np.float32)
    view = SHARED.format(8, "f32")
    body = f"""{load(0, 8, "f32")}
    %b = "ttg.local_alloc"(%v0) : (tensor<8xf32>) -> {view}
    {addresses(1, 8, "f32")}
    %three = "arith.constant"() <{{value = dense<3> : tensor<8xi32>}}> : () -> tensor<8xi32>
    %m = "arith.cmpi"(%r1, %three) <{{predicate = 2 : i64}}> : (tensor<8xi32>, tensor<8xi32>) -> tensor<8xi1>
    %t = "amdg.async_copy_local_to_global"(%b, %a1, %m)
      : ({view}, tensor<8x!tt.ptr<f32>>, tensor<8xi1>) -> !ttg.async.token
    "ttg.local_dealloc"(%b) : ({view}) -> ()"""
    np.testing.assert_array_equal(run(body, x, np.zeros(8, np.float32)), [1, 2, 3, 0, 0, 0, 0, 0])


def test_tensor_memory_takes_a_copy_of_shared_memory():
    x = np.arange(8, dtype=np.float32)
    view = SHARED.format(8, "f32")
    body = f"""{load(0, 8, "f32")}
    %b = "ttg.local_alloc"(%v0) : (tensor<8xf32>) -> {view}
    %c = "ttng.tmem_alloc"() : () -> {view}
    "ttng.tmem_copy"(%b, %c) : ({view}, {view}) -> ()
    %o = "ttng.tmem_load"(%c) : ({view}) -> tensor<8xf32>
    {store(1, "%o", 8, "f32")}"""
    np.testing.assert_array_equal(run(body, x, np.zeros(8, np.float32)), x)


def test_buffers_are_compared_and_swapped_one_element_at_a_time():
    x = np.array([1, 2, 3, 4], np.int32)
    memory = np.array([1, 0, 3, 0], np.int32)
    body = f"""{load(0, 4, "i32")}
    %ten = "arith.constant"() <{{value = dense<10> : tensor<4xi32>}}> : () -> tensor<4xi32>
    %old = "amdg.buffer_atomic_cas"(%p1, %r0, %v0, %ten)
      : (!tt.ptr<i32>, tensor<4xi32>, tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>"""
    np.testing.assert_array_equal(run(body, x, memory), [10, 0, 10, 0])


def test_a_value_that_was_never_set_is_zero():
    body = f"""%o = "ub.poison"() <{{value = #ub.poison}}> : () -> tensor<4xi32>
    {store(0, "%o", 4, "i32")}"""
    np.testing.assert_array_equal(run(body, np.arange(4, dtype=np.int32)), np.zeros(4))
