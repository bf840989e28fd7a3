"""What leaves the process: lowered modules for named targets, exported artifacts, cached programs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jtprim as jt
from examples import functions
from tests.gpu.machine import local_platform, local_target, opaque, run_python
from tests.kernels import add, double_into_first

pytestmark = pytest.mark.gpu

X = np.arange(1000, dtype=np.float32)


def launch(x, **settings):
    """Two launches, one of them through an adapter."""
    y = jt.kernel(add)[(4,)](x, x, 1000, BLOCK=256, out_shape={"out_ptr": x}, **settings)
    return jt.kernel(double_into_first)[(4,)](y, 1000, BLOCK=256, out_shape={"out_ptr": x}, **settings)


PROGRAM = """
import sys
import jax
import jax.numpy as jnp
from tests.gpu.test_artifacts import launch
x = jax.ShapeDtypeStruct((1000,), jnp.float32)
f = jax.jit(lambda x: launch(x, target="TARGET"))
assert jax.devices()[0].platform == "cpu"
"""


def test_a_named_target_elsewhere_gives_the_call_that_this_machine_gives(tmp_path):
    program = PROGRAM + "print(f.trace(x).lower(lowering_platforms=('PLATFORM',)).as_text())"
    text = run_python(
        program.replace("TARGET", local_target()).replace("PLATFORM", local_platform()),
        JAX_PLATFORMS="cpu",
        TRITON_CACHE_DIR=str(tmp_path),  # compiled anew, not read from this machine's cache
    )
    local = jax.jit(launch).lower(X).as_text()
    assert len(opaque(local)) == 2
    assert opaque(text) == opaque(local)


def test_a_named_target_that_is_the_local_one_changes_nothing():
    named = jax.jit(lambda x: launch(x, target=local_target()))
    assert opaque(named.lower(X).as_text()) == opaque(jax.jit(launch).lower(X).as_text())


def test_inspection_shows_the_call_that_runs():
    found = jt.inspect(launch, X, platform=local_target())
    assert opaque(found.stablehlo) == opaque(jax.jit(launch).lower(X).as_text())
    assert [kernel.name for kernel in found.kernels] == ["add", "double_into_first"]


def test_a_target_for_another_gpu_warns_and_runs_for_this_one():
    other = "cuda:75" if local_platform() == "cuda" else "hip:gfx908"
    function = jax.jit(lambda x: launch(x, target=other))
    with pytest.warns(UserWarning, match=f"not for the named target {other}"):
        out = function(X)
    np.testing.assert_array_equal(out, 4 * X)


def test_a_target_of_another_vendor_does_not_matter():
    other = "hip:gfx942" if local_platform() == "cuda" else "cuda:90"
    np.testing.assert_array_equal(launch(X, target=other), 4 * X)


def test_name_and_metadata_travel_with_a_launch_that_runs():
    function = jax.jit(lambda x: launch(x, name="first try", metadata=b"any\x00bytes"))
    kernel, _ = jt.inspect(function, X, platform=local_target()).kernels
    assert (kernel.name, kernel.metadata) == ("first try", b"any\x00bytes")
    np.testing.assert_array_equal(function(X), 4 * X)


# --- jax.export --------------------------------------------------------------------------------

CALL_TARGET = "triton_kernel_call_ffi"
UNCHECKED = [jax.export.DisabledSafetyCheck.custom_call(CALL_TARGET)]

CALL_WITHOUT_JTPRIM = """
import sys
import jax
import numpy as np
exported = jax.export.deserialize(open("PATH", "rb").read())
x = np.arange(1000, dtype=np.float32)
np.testing.assert_array_equal(exported.call(x), 4 * x)
assert "jtprim" not in sys.modules and "triton" not in sys.modules
"""


def test_an_exported_artifact_runs_here_and_where_jtprim_is_not(tmp_path):
    exported = jax.export.export(jax.jit(launch), disabled_checks=UNCHECKED)(X)
    path = tmp_path / "artifact"
    path.write_bytes(exported.serialize())
    again = jax.export.deserialize(bytearray(path.read_bytes()))
    np.testing.assert_array_equal(jax.jit(again.call)(X), 4 * X)
    run_python(CALL_WITHOUT_JTPRIM.replace("PATH", str(path)))


def test_an_artifact_exported_without_a_gpu_runs_on_one(tmp_path):
    path = tmp_path / "artifact"
    program = PROGRAM + (
        f"checks = [jax.export.DisabledSafetyCheck.custom_call('{CALL_TARGET}')]\n"
        "exported = jax.export.export(f, platforms=['PLATFORM'], disabled_checks=checks)(x)\n"
        f"open('{path}', 'wb').write(exported.serialize())"
    )
    run_python(
        program.replace("TARGET", local_target()).replace("PLATFORM", local_platform()),
        JAX_PLATFORMS="cpu",
    )
    exported = jax.export.deserialize(bytearray(path.read_bytes()))
    assert exported.platforms == (local_platform(),)
    np.testing.assert_array_equal(exported.call(jnp.asarray(X)), 4 * X)


def test_one_artifact_serves_the_cpu_and_the_gpu():
    platforms = ["cpu", local_platform()]
    exported = jax.export.export(jax.jit(launch), platforms=platforms, disabled_checks=UNCHECKED)(X)
    for device in (jax.devices("cpu")[0], jax.devices()[0]):
        out = exported.call(jax.device_put(X, device))
        assert out.devices() == {device}
        np.testing.assert_array_equal(out, 4 * X)


# --- The persistent compilation cache ----------------------------------------------------------

COMPILE = """
import jax
import numpy as np
from tests.gpu.test_artifacts import X, launch
events = []
jax.monitoring.register_event_listener(lambda name, **_: events.append(name))
f = jax.jit(launch)
out = f(X)
np.testing.assert_array_equal(out, 4 * X)
print(events.count("/jax/compilation_cache/cache_hits"), events.count("/jax/compilation_cache/cache_misses"))
"""


def test_a_second_process_finds_the_program_in_jaxs_compilation_cache(tmp_path):
    environment = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "jax"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    hits, misses = map(int, run_python(COMPILE, TRITON_CACHE_DIR=str(tmp_path / "1"), **environment).split())
    assert hits == 0
    assert misses > 0
    # With a Triton cache of its own: it is the text of the program that has to be equal.
    hits, misses = map(int, run_python(COMPILE, TRITON_CACHE_DIR=str(tmp_path / "2"), **environment).split())
    assert hits > 0
    assert misses == 0


def test_a_program_compiled_ahead_of_time_runs():
    a = jnp.ones((64, 32), jnp.float16)
    compiled = jax.jit(functions.matmul).lower(a, a.T).compile()
    np.testing.assert_array_equal(compiled(a, a.T), np.full((64, 64), 32))
