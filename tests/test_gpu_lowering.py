"""The custom calls for NVIDIA and AMD GPUs, lowered on this machine and decoded."""

import functools
import re
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import triton
import triton.language as tl
from hypothesis import given, settings

import jtprim as jt
from jtprim import compat
from jtprim.errors import LaunchValueError, OutOfSharedMemoryError, UnsupportedError
from jtprim.lowering import gpu, payload
from jtprim.lowering.cubin import without_ptx_text
from jtprim.lowering.gpu import scalar_parameter
from jtprim.specialize.kernel import kernel_source
from tests import kernels, strategies
from tests.kernels import (
    Ends,
    Work,
    add,
    add_pair,
    add_tiles_into,
    copy_by_device_descriptors,
    count,
    double_into_first,
    pair_of_in_and_out,
    scale_by_fields,
    sum_and_difference,
    takes_anything,
)

GPUS = ["cuda:90", "hip:gfx942"]
X = jnp.arange(100, dtype=jnp.float32)
ARRAY = payload.ArrayParameter(alignment_bytes=16)


def inspect(kernel, *args, platform, grid=4, **kwargs):
    """The one compiled kernel of one launch; keywords are the launch's."""
    f = lambda *args: jt.kernel(kernel)[grid](*args, **kwargs)
    found = jt.inspect(f, *args, platform=platform)
    [one] = found.kernels
    return one


def add_call(platform, **kwargs):
    return inspect(add, X, X, n=100, BLOCK=32, out_shape={"out_ptr": X}, platform=platform, **kwargs)


@pytest.mark.parametrize("platform", GPUS)
def test_a_call_carries_grid_parameters_and_binary(platform):
    one = add_call(platform)
    assert one.grid == (4, 1, 1)
    assert one.parameters == (ARRAY, ARRAY, ARRAY, payload.ScalarParameter("i32", 100))
    assert one.image.startswith(b"\x7fELF")
    assert one.name == one.binary.name == "add"
    assert one.num_threads == (128 if platform == "cuda:90" else 256)
    assert "tt.func public @add" in one.ttir
    assert ("ttg.num-warps" in one.ttgir) and "define" in one.llir
    assert (".visible .entry add" if platform == "cuda:90" else "amdgcn") in one.assembly


@pytest.mark.parametrize("platform", GPUS)
def test_the_message_holds_what_the_runtime_reads(platform):
    f = lambda x: jt.kernel(add)[4](
        x, x, n=100, BLOCK=32, out_shape={"out_ptr": x}, name="mine", metadata=b"bytes"
    )
    text = jt.inspect(f, X, platform=platform).stablehlo
    assert "stablehlo.custom_call @triton_kernel_call_ffi(%" in text
    assert "mhlo.backend_config = {opaque = " in text  # how JAX writes a call of FFI version 4
    one = jt.inspect(f, X, platform=platform).kernels[0]
    assert (one.name, one.metadata) == ("mine", b"bytes")


@pytest.mark.parametrize("platform", GPUS)
def test_operands_and_results_are_kept_from_being_views_of_larger_buffers(platform):
    f = lambda x: jt.kernel(add)[4](x[1:65], x[3:67], n=64, BLOCK=32, out_shape={"out_ptr": x[:64]})
    lines = jt.inspect(f, X, platform=platform).stablehlo.splitlines()
    [call] = [i for i, line in enumerate(lines) if "triton_kernel_call_ffi" in line]
    assert "stablehlo.optimization_barrier" in lines[call - 1]
    assert "stablehlo.optimization_barrier" in lines[call + 1]


def test_a_cost_estimate_stands_on_the_call():
    cost = jt.CostEstimate(flops=100, transcendentals=0, bytes_accessed=1200)
    f = lambda x: jt.kernel(add)[4](x, x, n=100, BLOCK=32, out_shape={"out_ptr": x}, cost_estimate=cost)
    text = jt.inspect(f, X, platform="cuda:90").stablehlo
    assert 'frontend_attributes = {bytes_accessed = "1200", flops = "100", transcendentals = "0"}' in text


@pytest.mark.parametrize("platform", GPUS)
def test_the_binary_is_inlined_where_the_runtime_takes_it(platform, monkeypatch):
    codes = []
    encode = payload.encode
    monkeypatch.setattr(payload, "encode", lambda p: codes.append(p.call.kernel) or encode(p))
    one = add_call(platform)
    kernel = codes[-1]
    if platform != "cuda:90":
        assert kernel.code == payload.ModuleImage(one.image, one.binary.digest)
    elif compat.HAS_MODULE_IMAGE:
        assert kernel.code == payload.ModuleImage(without_ptx_text(one.image), one.binary.digest)
    else:
        assert kernel.code == payload.Ptx(one.assembly)
    assert kernel.compute_capability == (90 if platform == "cuda:90" else 94)
    assert kernel.num_warps == 4


def test_a_runtime_without_inline_binaries_gets_ptx(monkeypatch):
    monkeypatch.setattr(compat, "HAS_MODULE_IMAGE", False)
    codes = []
    encode = payload.encode
    monkeypatch.setattr(payload, "encode", lambda p: codes.append(p.call.kernel.code) or encode(p))
    one = add_call("cuda:90")
    assert codes[-1] == payload.Ptx(one.assembly)
    assert ".target sm_90a" in codes[-1].text


def test_the_image_of_two_kernels_of_one_name_is_told_apart():
    @triton.jit
    def fill(out_ptr, n, value, BLOCK: tl.constexpr):
        tl.store(out_ptr + tl.arange(0, BLOCK), value)

    one = inspect(fill, n=4, value=1.5, BLOCK=16, out_shape=X, platform="cuda:90")
    other = inspect(kernels.fill, value=1.5, n=4, BLOCK=16, out_shape=X, platform="cuda:90")
    assert one.binary.name == other.binary.name
    assert one.binary.digest != other.binary.digest


@pytest.mark.parametrize("platform", GPUS)
def test_in_outs_become_operand_aliases(platform):
    @triton.jit
    def both(x_ptr, y_ptr, out_ptr, z_ptr):
        tl.store(out_ptr, tl.load(x_ptr))
        tl.store(y_ptr, tl.load(y_ptr) + 1)
        tl.store(z_ptr, tl.load(z_ptr) + 1)

    one = inspect(
        both,
        X,
        X,
        z_ptr=X,
        out_shape={"out_ptr": X},
        input_output_aliases=["z_ptr", "y_ptr"],
        platform=platform,
    )
    assert one.aliases == {2: 1, 1: 2}
    # The output follows the operands in the runtime's order; in-outs have no parameter of their own.
    assert one.parameters == (ARRAY,) * 4


@pytest.mark.parametrize("platform", GPUS)
def test_an_autotuned_call_carries_every_configuration_and_saves_its_in_outs(platform, monkeypatch):
    tuned = triton.autotune([triton.Config({"BLOCK": b}) for b in (32, 64)], key=["n"])(
        kernels.scale_in_place
    )
    sent = []
    encode = payload.encode
    monkeypatch.setattr(payload, "encode", lambda p: sent.append(p.call) or encode(p))
    f = lambda x: jt.kernel(tuned)[lambda meta: triton.cdiv(100, meta["BLOCK"])](
        x, 100, 2.0, input_output_aliases="x_ptr"
    )
    found = jt.inspect(f, X, platform=platform)
    assert [one.grid for one in found.kernels] == [(4, 1, 1), (2, 1, 1)]
    assert "BLOCK=32" in found.kernels[0].configuration
    # Result 0 of a call with one operand is buffer 1.
    assert sent[-1].aliases == (payload.BufferAlias(0, 1, 400),)


@triton.jit
def product(x_ptr, out_ptr, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    """A pipelined loop, whose shared memory grows with the block and the stages."""
    tl.static_assert(BLOCK != 64, "not 64")
    rows = tl.arange(0, BLOCK)[:, None] * BLOCK
    columns = tl.arange(0, BLOCK)[None, :]
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for step in tl.range(0, 8, num_stages=STAGES):
        x = tl.load(x_ptr + step * BLOCK * BLOCK + rows + columns)
        y = tl.load(x_ptr + step * BLOCK * BLOCK + columns * BLOCK + tl.arange(0, BLOCK)[:, None])
        total = tl.dot(x, y, total)
    tl.store(out_ptr + rows + columns, total)


HALF = jax.ShapeDtypeStruct((8, 256, 256), jnp.float16)
OUT = jax.ShapeDtypeStruct((256, 256), jnp.float32)


def test_too_much_shared_memory_is_an_error_with_the_numbers():
    with pytest.raises(
        OutOfSharedMemoryError, match=r"product: needs [\d,]+ bytes of shared memory.*Lower"
    ) as caught:
        inspect(product, HALF, out_shape=OUT, BLOCK=256, STAGES=4, num_warps=8, platform="cuda:90", grid=1)
    assert caught.value.needed_bytes > caught.value.available_bytes == 227 * 1024


def tuned_product(*blocks):
    return triton.autotune([triton.Config({"BLOCK": b}, num_warps=8) for b in blocks], key=[])(product)


def test_threads_may_launch_one_autotuned_kernel():
    tuned = triton.autotune([triton.Config({"BLOCK": b}, num_warps=1) for b in (16, 32)], key=["n"])(add)
    kernel = jt.kernel(tuned)

    def work(n):
        x = jnp.arange(n, dtype=jnp.float32)
        launch = lambda x: kernel[lambda meta: triton.cdiv(n, meta["BLOCK"])](
            x, x, n, out_shape={"out_ptr": x}
        )
        np.testing.assert_array_equal(launch(x), 2 * x)
        return [(one.grid[0], one.configuration) for one in jt.inspect(launch, x, platform="cuda:90").kernels]

    sizes = [33, 64, 100, 200] * 2
    with ThreadPoolExecutor(len(sizes)) as pool:
        for n, found in zip(sizes, pool.map(work, sizes), strict=True):
            assert [grid for grid, _ in found] == [triton.cdiv(n, 16), triton.cdiv(n, 32)]
    assert [config.kwargs for config in tuned.configs] == [{"BLOCK": 16}, {"BLOCK": 32}]


def test_configurations_that_cannot_run_are_left_out_with_a_log_line(caplog):
    caplog.set_level("INFO", logger="jtprim")
    f = lambda x: jt.kernel(tuned_product(256, 64, 32, 16))[1](x, out_shape=OUT, STAGES=4)
    found = jt.inspect(f, HALF, platform="cuda:90")
    assert [one.configuration.split("BLOCK=")[1][:2] for one in found.kernels] == ["32", "16"]
    assert "leaving out configuration (grid=(1,), BLOCK=256" in caplog.text
    assert "BLOCK=64" in caplog.text


def test_progress_shows_when_configurations_take_long_to_compile(caplog, monkeypatch):
    first, release = threading.Event(), threading.Event()

    def compile(candidate):
        if candidate == "slow":
            first.set()
            assert release.wait(60)
        return candidate

    def releases(record):
        if first.is_set() and "compiled 1 of 2" in record.getMessage():
            release.set()
        return True

    monkeypatch.setattr(gpu, "_PROGRESS_SECONDS", 0.01)
    monkeypatch.setattr(gpu._log, "filters", [releases])
    assert gpu._compile_candidates(kernel_source(add), ["quick", "slow"], compile) == ["quick", "slow"]
    assert "add: compiled 1 of 2 configurations" in caplog.messages


def test_a_single_configuration_that_is_left_is_not_tuned():
    [one] = jt.inspect(
        lambda x: jt.kernel(tuned_product(64, 32))[1](x, out_shape=OUT, STAGES=4), HALF, platform="cuda:90"
    ).kernels
    assert not one.configuration


def test_no_configuration_left_is_an_error_that_lists_each():
    with pytest.raises(LaunchValueError, match=r"(?s)product: none of its autotuner's.*BLOCK=256.*BLOCK=64"):
        jt.inspect(
            lambda x: jt.kernel(tuned_product(256, 64))[1](x, out_shape=OUT, STAGES=4),
            HALF,
            platform="cuda:90",
        )


@pytest.mark.parametrize("platform", GPUS)
def test_zeroed_outputs_carry_their_bytes(platform):
    one = inspect(
        count,
        x_ptr=X,
        n=100,
        BLOCK=32,
        out_shape={"out_ptr": X[:3]},
        zeroed_outputs="out_ptr",
        platform=platform,
    )
    assert payload.ArrayParameter(16, zeroed_bytes=12) in one.parameters
    assert ARRAY in one.parameters


# --- Order of parameters -----------------------------------------------------------------------


def pointer_order(one):
    """The kernel's own parameter names in the order of the compiled function's pointers."""
    signature = next(line for line in one.ttir.splitlines() if "tt.func public" in line)
    return [
        part.split(":")[0].strip(" %") for part in signature.split("(", 1)[1].split(",") if "!tt.ptr" in part
    ]


@pytest.mark.parametrize("platform", GPUS)
def test_an_output_before_its_inputs_is_moved_behind_them(platform):
    one = inspect(double_into_first, x_ptr=X, n=100, BLOCK=32, out_shape={"out_ptr": X}, platform=platform)
    assert pointer_order(one) == ["x_ptr", "out_ptr"]
    assert one.binary.name == "double_into_first"
    assert one.parameters == (ARRAY, payload.ScalarParameter("i32", 100), ARRAY)


@pytest.mark.parametrize("platform", GPUS)
def test_outputs_between_inputs_are_moved_behind_them(platform):
    one = inspect(
        sum_and_difference,
        X,
        X,
        n=100,
        BLOCK=32,
        out_shape={"sum_ptr": X, "difference_ptr": X},
        platform=platform,
    )
    assert pointer_order(one) == ["x_ptr", "y_ptr", "sum_ptr", "difference_ptr"]


def test_an_order_that_is_the_runtimes_needs_no_adapter():
    one = add_call("cuda:90")
    assert pointer_order(one) == ["x_ptr", "y_ptr", "out_ptr"]
    assert "callsite" not in one.ttir


def test_moving_parameters_costs_no_vector_accesses():
    n = 1024
    x = jnp.zeros(n)

    @triton.jit
    def double_into_last(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
        offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        mask = offsets < n
        tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=mask) * 2, mask=mask)

    def accesses(kernel):
        one = inspect(kernel, x_ptr=x, n=n, BLOCK=n, out_shape={"out_ptr": x}, grid=1, platform="cuda:90")
        return one.assembly.count("ld.global.v4"), one.assembly.count("st.global.v4")

    assert accesses(double_into_first) == accesses(double_into_last) == (2, 2)


@pytest.mark.parametrize("platform", GPUS)
def test_a_tuple_of_input_and_output_is_passed_by_its_elements(platform):
    one = inspect(
        pair_of_in_and_out, pair=(None, X), n=100, BLOCK=32, out_shape={("pair", 0): X}, platform=platform
    )
    assert pointer_order(one) == ["pair__1", "pair__0"]


@pytest.mark.parametrize("platform", GPUS)
def test_device_descriptors_in_a_tuple_are_compiled(platform):
    x = jnp.arange(50 * 32, dtype=jnp.float32).reshape(50, 32)
    launch = lambda x: jt.kernel(copy_by_device_descriptors)[4](
        (x, None), rows=50, M=16, N=32, out_shape={("pair", 1): x}
    )
    np.testing.assert_array_equal(launch(x), x)
    [one] = jt.inspect(launch, x, platform=platform).kernels
    assert one.parameters[:3] == (ARRAY, ARRAY, payload.ScalarParameter("i32", 50))


@pytest.mark.parametrize("platform", GPUS)
def test_a_tuple_of_inputs_is_passed_as_it_is(platform):
    one = inspect(add_pair, (X, X), n=100, BLOCK=32, out_shape={"out_ptr": X}, platform=platform)
    assert one.parameters == (ARRAY, ARRAY, ARRAY, payload.ScalarParameter("i32", 100))


@pytest.mark.parametrize("platform", GPUS)
@pytest.mark.parametrize("scale", [3.0, 1, 2])
def test_a_mixed_namedtuple_in_another_order_keeps_its_fields(platform, scale):
    launch = lambda x: jt.kernel(scale_by_fields)[4](
        Work(Ends(None, x), scale), n=100, BLOCK=32, out_shape={("work", 0, 0): x}
    )
    np.testing.assert_array_equal(launch(X), X * scale)
    [one] = jt.inspect(launch, X, platform=platform).kernels
    number = {3.0: ("f32", 3.0), 1: None, 2: ("i32", 2)}[scale]
    scalars = [payload.ScalarParameter(*given) for given in (number, ("i32", 100)) if given]
    assert sorted(map(repr, one.parameters)) == sorted(map(repr, [ARRAY, ARRAY, *scalars]))


def test_a_compile_error_behind_an_adapter_shows_the_kernels_own_line():
    @triton.jit
    def wrong_and_moved(out_ptr, x_ptr):
        tl.store(out_ptr, tl.load(x_ptr).nothing())

    with pytest.raises(triton.CompilationError, match="nothing"):
        inspect(wrong_and_moved, X, out_shape={"out_ptr": X}, platform="cuda:90")


# --- Scratch memory ----------------------------------------------------------------------------


def add_into(x, total, kernel=add_tiles_into, grid=4, **kwargs):
    return jt.kernel(kernel)[grid](
        total, x, rows=50, out_shape={"out_ptr": x}, input_output_aliases="total_ptr", **kwargs
    )


def custom_call(text):
    """Result types and aliases of the one custom call in a module."""
    [line] = [line for line in text.splitlines() if "@triton_kernel_call_ffi" in line]
    aliases = re.findall(r"output_tuple_indices = \[(\d*)\],\s*operand_index = (\d+)", line)
    return re.findall(r"tensor<[^>]*>", line.rpartition("->")[2]), [tuple(map(int, pair)) for pair in aliases]


def test_scratch_memory_is_a_result_that_xla_allocates():
    x = jnp.arange(50 * 32, dtype=jnp.float32).reshape(50, 32)
    out, total = add_into(x, 2 * x, M=16, N=32)
    np.testing.assert_array_equal(out, 3 * x)
    np.testing.assert_array_equal(total, 3 * x)
    found = jt.inspect(functools.partial(add_into, M=16, N=32), x, x, platform="cuda:90")
    [one] = found.kernels
    size = 4 * one.binary.scratch_bytes
    assert size >= 4 * 3 * 128  # three TMA descriptors for each program
    # The kernel takes total, x, out and, behind its own parameters, the scratch memory: operands, then
    # results in their order. The in-out's result, whose buffer is the operand's, comes last.
    results, aliases = custom_call(found.stablehlo)
    assert results == ["tensor<50x32xf32>", f"tensor<{size}xui8>", "tensor<50x32xf32>"]
    assert aliases == [(2, 0)]
    scratch = payload.ArrayParameter(one.binary.scratch_alignment_bytes)
    assert one.parameters == (ARRAY, ARRAY, ARRAY, payload.ScalarParameter("i32", 50), scratch)


@pytest.mark.parametrize("platform", ["cuda:80", "hip:gfx942"])
def test_a_kernel_that_needs_no_scratch_memory_has_no_such_result(platform):
    x = jnp.zeros((50, 32))
    found = jt.inspect(functools.partial(add_into, M=16, N=32), x, x, platform=platform)
    results, aliases = custom_call(found.stablehlo)
    assert results == ["tensor<50x32xf32>"] * 2
    assert aliases == [(1, 0)]
    assert found.kernels[0].parameters == (ARRAY, ARRAY, ARRAY, payload.ScalarParameter("i32", 50))


def test_configurations_share_the_scratch_memory_of_the_one_that_needs_most(monkeypatch):
    calls = []
    encode = payload.encode
    monkeypatch.setattr(payload, "encode", lambda p: calls.append(p.call) or encode(p))
    tuned = triton.autotune([triton.Config({"M": m}) for m in (32, 8, 16)], key=[])(add_tiles_into)
    x = jnp.zeros((50, 32))
    launch = functools.partial(add_into, kernel=tuned, grid=lambda meta: triton.cdiv(50, meta["M"]), N=32)
    found = jt.inspect(launch, x, x, platform="cuda:90")
    needed = [one.grid[0] * one.binary.scratch_bytes for one in found.kernels]
    results, aliases = custom_call(found.stablehlo)
    assert results[1] == f"tensor<{max(needed)}xui8>"
    assert aliases == [(2, 0)]
    [call] = calls
    assert {len(one.parameters) for one, _ in call.configurations} == {5}
    assert call.aliases == (payload.BufferAlias(0, 2 + 2, x.nbytes),)


def test_each_block_of_a_cluster_has_scratch_memory_of_its_own():
    x = jnp.zeros((50, 32))
    found = jt.inspect(functools.partial(add_into, M=16, N=32, num_ctas=2), x, x, platform="cuda:90")
    [one] = found.kernels
    assert custom_call(found.stablehlo)[0][1] == f"tensor<{4 * 2 * one.binary.scratch_bytes}xui8>"


# --- Scalars -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind,value,expected",
    [
        ("i32", -5, ("i32", -5)),
        ("i64", 2**40, ("i64", 2**40)),
        ("u64", 2**63, ("u64", 2**63)),
        ("u1", True, ("u32", 1)),
        ("i8", -1, ("i32", -1)),
        ("i8", 255, ("i32", -1)),
        ("u8", 255, ("u32", 255)),
        ("i16", 40000, ("i32", 40000 - 2**16)),
        ("fp32", 1.5, ("f32", 1.5)),
        ("fp64", 0.1, ("f64", 0.1)),
        ("fp16", 1.0, ("u32", 0x3C00)),
        ("bf16", 1.0, ("u32", 0x3F80)),
    ],
)
def test_scalars_travel_as_the_kernel_reads_them(kind, value, expected):
    assert scalar_parameter(kind, value) == payload.ScalarParameter(*expected)


@given(strategies.integers)
@settings(max_examples=30)
def test_every_integer_that_triton_takes_travels(value):
    x = X[:1]
    one = inspect(takes_anything, x, a=value, b=2, c=2, out_shape={"out_ptr": x}, K=0, platform="cuda:90")
    scalars = [p for p in one.parameters if isinstance(p, payload.ScalarParameter)]
    assert value == 1 or scalars[0].value == value


@triton.jit
def scalars_of_all_types(
    out_ptr, a: tl.int8, b: tl.uint16, c: tl.float16, d: tl.bfloat16, e: tl.float64, f: tl.int1, g: tl.int64
):
    tl.store(out_ptr, a + b + c + d + e + f + g)


@pytest.mark.parametrize("platform", GPUS)
def test_annotated_scalars_are_passed_in_their_type(platform):
    one = inspect(
        scalars_of_all_types,
        a=1,
        b=2,
        c=1.0,
        d=1.0,
        e=0.5,
        f=True,
        g=7,
        out_shape={"out_ptr": X},
        platform=platform,
    )
    assert [(p.kind, p.value) for p in one.parameters[1:]] == [
        ("i32", 1),
        ("u32", 2),
        ("u32", 0x3C00),
        ("u32", 0x3F80),
        ("f64", 0.5),
        ("u32", 1),
        ("i64", 7),
    ]


# --- Targets, determinism, export --------------------------------------------------------------


@pytest.mark.parametrize(
    "platform,name", [("cuda:80", "sm_80"), ("cuda:90", "sm_90a"), ("cuda:100", "sm_100a")]
)
def test_every_target_gets_its_own_code(platform, name):
    assert f".target {name}" in add_call(platform).assembly


@pytest.mark.parametrize("platform,threads", [("hip:gfx942", 256), ("hip:gfx1100", 128)])
def test_amds_wavefronts_are_counted_in_threads(platform, threads):
    assert add_call(platform).num_threads == threads


def test_an_odd_number_of_rdna_wavefronts_is_refused():
    with pytest.raises(UnsupportedError, match="add: has 32 threads.*use an even num_warps on gfx1100"):
        add_call("hip:gfx1100", num_warps=1)


def test_several_named_targets_serve_several_platforms():
    f = jax.jit(
        lambda x: jt.kernel(add)[4](
            x, x, n=100, BLOCK=32, out_shape={"out_ptr": x}, target=("cuda:90", "hip:gfx942")
        )
    )
    for name in ("cuda", "rocm"):
        assert "triton_kernel_call_ffi" in f.trace(X).lower(lowering_platforms=(name,)).as_text()
    exported = jax.export.export(
        f,
        platforms=["cuda", "rocm", "cpu"],
        disabled_checks=[jax.export.DisabledSafetyCheck.custom_call("triton_kernel_call_ffi")],
    )(X)
    again = jax.export.deserialize(exported.serialize())
    assert again.platforms == ("cuda", "rocm", "cpu")
    assert again.mlir_module().count("triton_kernel_call_ffi") == 2
    np.testing.assert_array_equal(again.call(X), 2 * X)


def test_an_abstract_mesh_names_the_target(monkeypatch):
    monkeypatch.delenv("JTPRIM_TARGET", raising=False)
    device = jax.sharding.AbstractDevice(device_kind="NVIDIA A100-SXM4-40GB", num_cores=None, platform="cuda")
    mesh = jax.sharding.AbstractMesh((1,), ("x",), abstract_device=device)
    f = jax.jit(lambda x: jt.kernel(add)[4](x, x, n=100, BLOCK=32, out_shape={"out_ptr": x}))
    with jax.sharding.use_abstract_mesh(mesh):
        traced = f.trace(X)
    assert "target=cuda:80" in str(traced.jaxpr)
    assert "triton_kernel_call_ffi" in traced.lower(lowering_platforms=("cuda",)).as_text()


PROGRAM = """
import jax, jax.numpy as jnp, triton, jtprim as jt
from tests.kernels import add, double_into_first
x = jnp.arange(100, dtype=jnp.float32)
def f(x):
    y = jt.kernel(add)[4](x, x, n=100, BLOCK=32, out_shape={"out_ptr": x})
    return jt.kernel(double_into_first)[4](y, 100, BLOCK=32, out_shape={"out_ptr": x})
print(jt.inspect(f, x, platform="PLATFORM").stablehlo)
"""


@pytest.mark.parametrize("platform", [*GPUS, "cpu"])
def test_the_text_is_the_same_in_every_process(platform, tmp_path):
    texts = []
    for seed in ("1", "2"):
        # A disk cache of its own: each process compiles for itself.
        environment = {
            "PYTHONHASHSEED": seed,
            "TRITON_CACHE_DIR": str(tmp_path / seed),
            "JAX_PLATFORMS": "cpu",
        }
        texts.append(run(PROGRAM.replace("PLATFORM", platform), environment))
    assert texts[0] == texts[1]
    assert "stablehlo" in texts[0]


def test_lowering_for_a_named_target_starts_no_gpu_backend():
    run(
        """
        import jax, jax.numpy as jnp, jtprim as jt
        from jax._src import xla_bridge
        from tests.kernels import add
        xla_bridge.register_backend_factory("cuda", lambda: 1 / 0, priority=-1, fail_quietly=False)
        x = jax.ShapeDtypeStruct((100,), jnp.float32)
        kernel = jt.kernel(add, target="cuda:90", BLOCK=32)
        f = jax.jit(lambda x: kernel[4](x, x, n=100, out_shape={"out_ptr": x}))
        f.trace(x).lower(lowering_platforms=("cuda",))
        """,
        {"JAX_PLATFORMS": "cpu"},
    )


def run(program, environment):
    import os

    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_plain_table_of_kernels_is_printed():
    f = lambda x: jt.kernel(add)[4](x, x, n=100, BLOCK=32, out_shape={"out_ptr": x})
    lines = str(jt.inspect(f, X, platform="cuda:90")).splitlines()
    assert lines[0] == "cuda:90"
    assert lines[1].split() == [
        "kernel",
        "grid",
        "threads",
        "shared",
        "parameters",
        "aliases",
        "binary",
        "configuration",
    ]
    assert lines[2].split()[:3] == ["add", "4x1x1", "128"]
    assert "no compiled kernels on cpu" in str(jt.inspect(f, X, platform="cpu"))
    assert not jt.inspect(f, X, platform="cpu").kernels


def test_inspect_keeps_a_jitted_functions_static_arguments():
    f = jax.jit(
        lambda x, n: jt.kernel(add)[4](x, x, n=n, BLOCK=32, out_shape={"out_ptr": x}), static_argnums=1
    )
    for platform in ("cuda:90", "cuda:80"):
        [one] = jt.inspect(f, X, 77, platform=platform).kernels
        assert one.parameters[-1] == payload.ScalarParameter("i32", 77)
        assert one.binary.target.arch == int(platform[5:])


@pytest.mark.parametrize("platform", ["nonsense:1", "cuda:x"])
def test_inspect_refuses_what_is_no_target(platform):
    with pytest.raises(ValueError, match="names no GPU target"):
        jt.inspect(lambda x: x, X, platform=platform)


@triton.jit
def descriptor_made_on_the_host(x_desc, out_ptr):
    offsets = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]
    tl.store(out_ptr + offsets, x_desc.load([0, 0]))


class Hopper:
    compute_capability = "9.0"


def test_a_runtime_that_makes_no_descriptors_is_an_error_where_the_program_is_to_run(monkeypatch):
    x = jnp.zeros((16, 16))

    def plain(x):
        return jt.kernel(add)[1](x, x, n=256, BLOCK=256, out_shape={"out_ptr": x}, target="cuda:90")

    def described(x):
        descriptor = jt.TensorDescriptor.from_array(x, (16, 16))
        launch = jt.kernel(descriptor_made_on_the_host)[1]
        return launch(descriptor, out_shape={"out_ptr": x}, target="cuda:90")

    def lower(f):
        jax.clear_caches()
        return jax.jit(f).trace(x).lower(lowering_platforms=("cuda",))

    monkeypatch.setattr(compat, "HAS_TENSOR_DESCRIPTORS", False)
    lower(described)  # for another machine
    monkeypatch.setattr(compat, "lowering_devices", lambda *_: [Hopper()])
    lower(plain)
    with pytest.raises(UnsupportedError, match=r"needs jaxlib 0.11.1 or newer: .* can't make its TMA desc"):
        lower(described)
    monkeypatch.setattr(compat, "HAS_TENSOR_DESCRIPTORS", True)
    lower(described)
