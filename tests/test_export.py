"""`jt.export`: programs made on this machine, without a GPU, that load and run with JAX alone."""

import functools
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

import jtprim as jt
from jtprim.errors import LaunchValueError, UnsupportedError
from jtprim.inspection import _custom_calls, _kernels
from tests.kernels import add, scale_in_place
from tests.test_partitioning import run

X = jnp.arange(100, dtype=jnp.float32)
EVERYWHERE = ("cpu", "cuda:90", "hip:gfx942")


def added(x, y, **kwargs):
    grid = lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]),)
    return jt.kernel(add)[grid](x, y, n=x.size, BLOCK=32, out_shape={"out_ptr": x}, **kwargs)


def targets(exported):
    """The targets of the kernels in an exported program."""
    from jax.extend.mlir import ir
    from jax.interpreters import mlir

    with mlir.make_ir_context():
        module = ir.Module.parse(exported.mlir_module())
        kernels = [kernel for call in _custom_calls(module.operation) for kernel in _kernels(call)]
    return [f"{kernel.binary.target.backend}:{kernel.binary.target.arch}" for kernel in kernels]


def test_one_program_for_three_platforms_runs_in_a_process_without_jtprim(tmp_path):
    f = jax.jit(lambda x, y: jnp.sin(added(x, 2 * y)))
    exported = jt.export(f, platforms=EVERYWHERE)(X, X)
    assert exported.platforms == ("cpu", "cuda", "rocm")
    (tmp_path / "f.bin").write_bytes(exported.serialize(vjp_order=1))
    program = f"""
import sys, jax, jax.numpy as jnp, numpy as np
f = jax.export.deserialize(bytearray(open({str(tmp_path / "f.bin")!r}, "rb").read()))
x = jnp.arange(100, dtype=jnp.float32)
np.testing.assert_allclose(jax.jit(f.call)(x, x), jnp.sin(3 * x), atol=1e-5)
found = jax.grad(lambda x: f.call(x, x).sum())(x)
np.testing.assert_allclose(found, 3 * jnp.cos(3 * x), atol=1e-5)
assert not {{"jtprim", "triton"}} & set(sys.modules)
"""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr


@settings(max_examples=10)
@given(st.permutations([*EVERYWHERE, "tpu"]), st.integers(1, 4))
def test_platforms_and_targets_come_out_as_asked_for(platforms, count):
    chosen = platforms[:count]
    exported = jt.export(jax.jit(added), platforms=chosen)(X, X)
    names = {"cuda:90": "cuda", "hip:gfx942": "rocm"}
    assert exported.platforms == tuple(names.get(name, name) for name in chosen)
    assert sorted(targets(exported)) == sorted(set(chosen) & {"cuda:90", "hip:gfx942"})


def test_a_target_counts_before_a_launchs_own_and_before_what_was_lowered_before():
    f = jax.jit(functools.partial(added, target="cuda:80"))
    for platform in ("cuda", "cuda:90", "cuda:80", "cuda:90"):
        expected = "cuda:80" if platform == "cuda" else platform
        assert targets(jt.export(f, platforms=(platform,))(X, X)) == [expected]


def test_derivatives_are_exported_for_the_same_targets():
    kernel = jt.kernel(add)
    scale = jt.kernel(scale_in_place)[4]

    def bwd(grid, _, cotangent, *, n, **kwargs):
        return {"x_ptr": scale(cotangent, n, 3.0, BLOCK=32, input_output_aliases="x_ptr")}

    kernel.defvjp(lambda grid, *args, **kwargs: (added(*args), ()), bwd)
    f = jax.jit(lambda x: kernel[4](x, X, n=100, BLOCK=32, out_shape={"out_ptr": x}))
    exported = jt.export(f, platforms=EVERYWHERE)(X)
    assert sorted(targets(exported.vjp())) == ["cuda:90", "hip:gfx942"]
    again = jax.export.deserialize(exported.serialize(vjp_order=2))
    np.testing.assert_array_equal(jax.grad(lambda x: again.call(x).sum())(X), 3)


def test_static_arguments_keywords_and_in_outs_pass_through():
    f = jax.jit(
        lambda x, factor, *, block: jt.kernel(scale_in_place)[7](
            x, x.size, factor, BLOCK=block, input_output_aliases="x_ptr"
        ),
        static_argnames="block",
        donate_argnums=0,
    )
    exported = jt.export(f)(X, 3.0, block=16)
    assert exported.platforms == (jax.default_backend(),)
    np.testing.assert_array_equal(exported.call(X + 0, 3.0), 3 * X)


def test_other_custom_calls_are_refused_unless_they_are_allowed():
    f = jax.jit(lambda x: jax.ffi.ffi_call("of_a_user", x)(added(x, x)))
    with pytest.raises(ValueError, match="of_a_user"):
        jt.export(f, platforms=("cuda:90",))(X)
    allowed = jax.export.DisabledSafetyCheck.custom_call("of_a_user")
    exported = jt.export(f, platforms=("cuda:90",), disabled_checks=[allowed])(X)
    assert targets(exported) == ["cuda:90"]


def test_two_architectures_of_one_vendor_are_refused():
    with pytest.raises(
        UnsupportedError, match=r"added: is exported for cuda twice \(cuda:80, cuda:90\), but"
    ):
        jt.export(jax.jit(added), platforms=("cuda:80", "cpu", "cuda:90"))
    with pytest.raises(UnsupportedError, match=r"for cpu twice"):
        jt.export(jax.jit(added), platforms=("cpu", "cpu"))
    with pytest.raises(ValueError, match="'cuda:x' names no GPU target"):
        jt.export(jax.jit(added), platforms=("cuda:x",))


def test_a_gpu_without_a_name_needs_one_somewhere(monkeypatch):
    monkeypatch.delenv("JTPRIM_TARGET", raising=False)
    with pytest.raises(LaunchValueError, match="add: lowered for cuda with no such GPU here and no target"):
        jt.export(jax.jit(added), platforms=("cuda",))(X, X)


def test_a_program_for_other_platforms_says_so_when_called():
    exported = jt.export(jax.jit(added), platforms=("cuda:90",))(X, X)
    again = jax.export.deserialize(exported.serialize())
    with pytest.raises(ValueError, match="was exported for platforms .*cuda.* but it is used on .*cpu"):
        again.call(X, X)


@triton.jit
def writes_where_it_likes(x_ptr, BLOCK: tl.constexpr):
    tl.store(x_ptr + tl.arange(0, BLOCK), 1.0)


def test_symbolic_sizes_are_refused():
    b, c = jax.export.symbolic_shape("b, c")
    symbolic = jax.ShapeDtypeStruct((b, 4), jnp.float32)
    message = r"add: array 'x_ptr' has shape \(b, 4\), which jax.export leaves open.* export for each shape"
    with pytest.raises(UnsupportedError, match=message):
        jt.export(jax.jit(added), platforms=EVERYWHERE)(symbolic, symbolic)
    f = jax.jit(lambda x: jt.kernel(writes_where_it_likes)[1](x, BLOCK=8))
    with pytest.raises(UnsupportedError, match=r"'x_ptr' has shape \(b, 4\)"):
        jt.export(f, platforms=("cpu",))(symbolic)
    out = jax.ShapeDtypeStruct((c,), jnp.float32)
    f = jax.jit(lambda x, y: jt.kernel(add)[1](X, X, n=4, BLOCK=8, out_shape={"out_ptr": y}))
    with pytest.raises(UnsupportedError, match=r"'out_ptr' has shape \(c\)"):
        jt.export(f, platforms=("cpu",))(symbolic, out)


def test_programs_for_several_devices():
    run("""
    mesh = jax.make_mesh((4, 2), ("i", "j"), axis_types=(AxisType.Explicit,) * 2)
    x = place(X, "i", "j", mesh=mesh)
    f = jax.jit(lambda x: added(x, x))
    exported = jt.export(f, platforms=("cpu", "cuda:90"))(x)
    assert exported.nr_devices == 8
    again = jax.jit(jax.export.deserialize(exported.serialize()).call)
    np.testing.assert_array_equal(again(x), 2 * X)
    assert moved(again, x) == set()

    x = place(X, "i", "j")
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        exported = jt.export(f, platforms=("cpu", "cuda:90"))(x)
    [said] = [str(one.message) for one in found if "lowered for several" in str(one.message)]
    assert "is exported, where its sharding_rule can't be asked" in said
    np.testing.assert_array_equal(jax.jit(jax.export.deserialize(exported.serialize()).call)(x), 2 * X)
    """)
