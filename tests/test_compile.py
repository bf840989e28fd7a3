"""Compiling: Triton's disk cache, the map in memory, invalidation, threads, errors."""

import importlib.util
import linecache
import os
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import triton
import triton.language as tl
from triton.runtime.jit import JITCallable

import jtprim as jt
from jtprim.errors import LaunchValueError, UnsupportedError
from jtprim.specialize import compile as compiling
from jtprim.specialize.kernel import kernel_source
from tests.kernels import add

X = jnp.arange(64, dtype=jnp.float32)
SCALE = tl.constexpr(2)


def lowered(kernel, *args, platform="cuda", target="cuda:90", grid=1, **kwargs):
    f = lambda *args: jt.kernel(kernel)[grid](*args, target=target, **kwargs)
    return jax.jit(f).trace(*args).lower(lowering_platforms=(platform,)).as_text()


@pytest.fixture
def compilations(monkeypatch):
    """The kernels that Triton is asked to compile, in order."""
    asked = []
    real = triton.compile

    def compile(src, **kwargs):
        asked.append(src.name)
        return real(src, **kwargs)

    monkeypatch.setattr(triton, "compile", compile)
    return asked


@triton.jit
def scaled_by_helper(x):
    return x * SCALE


@triton.jit
def with_global(x_ptr, out_ptr, n: tl.constexpr):
    offsets = tl.arange(0, n)
    tl.store(out_ptr + offsets, scaled_by_helper(tl.load(x_ptr + offsets)))


def run_with_global():
    return jt.kernel(with_global)[1](X, n=64, out_shape=X)


def test_a_changed_global_is_seen_by_the_next_launch(monkeypatch):
    np.testing.assert_array_equal(run_with_global(), 2 * X)
    first = lowered(with_global, X, n=64, out_shape=X)
    source = kernel_source(with_global)
    monkeypatch.setitem(globals(), "SCALE", tl.constexpr(5))
    np.testing.assert_array_equal(run_with_global(), 5 * X)
    assert kernel_source(with_global) != source
    assert lowered(with_global, X, n=64, out_shape=X) != first
    monkeypatch.setitem(globals(), "SCALE", tl.constexpr(2))
    np.testing.assert_array_equal(run_with_global(), 2 * X)
    assert kernel_source(with_global) == source


def test_a_replaced_helper_is_seen_by_the_next_launch(monkeypatch):
    np.testing.assert_array_equal(run_with_global(), 2 * X)

    @triton.jit
    def other(x):
        return x + 100

    monkeypatch.setitem(globals(), "scaled_by_helper", other)
    np.testing.assert_array_equal(run_with_global(), X + 100)


def test_tritons_objects_are_left_alone(monkeypatch):
    before = (with_global.cache_key, dict(vars(with_global)).keys())
    monkeypatch.setitem(globals(), "SCALE", tl.constexpr(7))
    run_with_global()
    lowered(with_global, X, n=64, out_shape=X)
    assert (with_global.cache_key, dict(vars(with_global)).keys()) == before


def test_a_redefined_kernel_is_compiled_anew(tmp_path):
    results = []
    for constant in (1, 2):
        path = tmp_path / "redefined.py"
        path.write_text(
            "import triton, triton.language as tl\n"
            "@triton.jit\n"
            "def kernel(out_ptr):\n"
            f"    tl.store(out_ptr, {constant}.0)\n"
        )
        spec = importlib.util.spec_from_file_location(f"redefined{constant}", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        results.append(float(jt.kernel(module.kernel)[1](out_shape=X[:1])[0]))
        results.append(lowered(module.kernel, out_shape=X[:1]))
        linecache.clearcache()
    assert results[0] == 1
    assert results[2] == 2
    assert results[1] != results[3]


def test_a_helper_that_is_defined_after_the_kernel_is_part_of_its_key(tmp_path, monkeypatch):
    # On the disk, where one source with another helper must not find the first one's binary.
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    template = """
import triton, triton.language as tl
import jtprim as jt

@jt.kernel
@triton.jit
def kernel(out_ptr):
    tl.store(out_ptr, helper())

@triton.jit
def helper():
    return {constant}.0
"""
    path = tmp_path / "late.py"
    texts = []
    for constant in (1, 2):
        path.write_text(template.format(constant=constant))
        linecache.clearcache()
        spec = importlib.util.spec_from_file_location("late", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        assert float(module.kernel[1](out_shape=X[:1])[0]) == constant
        texts.append(lowered(module.kernel, out_shape=X[:1]))
    assert texts[0] != texts[1]


def test_what_differs_in_values_only_is_compiled_once(compilations):
    jt.clear_caches()
    for n in (64, 32, 48):
        lowered(add, X, X, n=n, BLOCK=64, out_shape={"out_ptr": X})
    assert compilations == ["add"]
    lowered(add, X, X, n=63, BLOCK=64, out_shape={"out_ptr": X})  # no longer divisible by 16
    lowered(add, X, X, n=64, BLOCK=64, out_shape={"out_ptr": X}, num_warps=8)
    lowered(add, X, X, n=64, BLOCK=64, out_shape={"out_ptr": X}, target="cuda:80")
    assert compilations == ["add"] * 4


def test_tritons_disk_cache_is_used_and_its_directory_left_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    jt.clear_caches()
    first = lowered(add, X, X, n=64, BLOCK=16, out_shape={"out_ptr": X})
    assert list(tmp_path.rglob("*.cubin"))
    jt.clear_caches()
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.cubin")}
    assert lowered(add, X, X, n=64, BLOCK=16, out_shape={"out_ptr": X}) == first
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.cubin")} == times
    assert os.environ["TRITON_CACHE_DIR"] == str(tmp_path)


def in_threads(work, count=4):
    """Runs `work(index)` in threads that start together; its results."""
    barrier = threading.Barrier(count)

    def run(index):
        barrier.wait()
        return work(index)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


def test_threads_that_want_one_kernel_compile_it_once(compilations):
    jt.clear_caches()
    launch = {"n": 64, "BLOCK": 32, "out_shape": {"out_ptr": X}, "num_warps": 1}
    texts = in_threads(lambda _: lowered(add, X, X, **launch))
    assert len(set(texts)) == 1
    assert compilations == ["add"]


@pytest.mark.parametrize("platform", ["cuda", "cpu"])
def test_one_thread_at_a_time_parses_python(platform, monkeypatch, tmp_path):
    # ast.parse of CPython 3.11 fails when another thread parses meanwhile; Triton calls it in three places.
    parsing, overlaps = [], []
    real = JITCallable.parse

    def parse(self):
        parsing.append(self)
        overlaps.append(len(parsing) > 1)
        time.sleep(0.002)
        try:
            return real(self)
        finally:
            parsing.pop()

    monkeypatch.setattr(JITCallable, "parse", parse)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    jt.clear_caches()

    def work(index):
        anew = triton.jit(add.fn)
        lowered(anew, X, X, n=64, BLOCK=16 << index, out_shape={"out_ptr": X}, platform=platform)

    in_threads(work)
    assert len(overlaps) >= 8
    assert not any(overlaps)


@triton.jit
def wrong(x_ptr, out_ptr):
    value = tl.load(x_ptr)
    tl.store(out_ptr, value.no_such_method())


@pytest.mark.parametrize("platform,target", [("cuda", "cuda:90"), ("rocm", "hip:gfx942")])
def test_a_compile_error_comes_with_tritons_excerpt(platform, target):
    with pytest.raises(triton.CompilationError) as caught:
        lowered(wrong, X, out_shape=X, platform=platform, target=target)
    assert "value.no_such_method()" in str(caught.value)
    assert caught.value.__notes__ == [f"while jtprim compiled wrong for {target}"]


def test_a_compile_error_reaches_those_who_run_on_the_cpu_too():
    with pytest.raises(triton.CompilationError, match=re.escape("value.no_such_method()")) as caught:
        jt.kernel(wrong)[1](X, out_shape=X)
    assert caught.value.__notes__[0] == "while jtprim read the IR of wrong"


def test_a_failed_compilation_is_tried_again(compilations):
    for _ in range(2):
        with pytest.raises(triton.CompilationError):
            lowered(wrong, X, out_shape=X)
    assert compilations == ["wrong"] * 2


def test_an_option_that_the_backend_refuses_is_named():
    with pytest.raises(
        LaunchValueError, match="add: Triton's backend for cuda:90 refuses the options {'num_warps': 3}"
    ):
        lowered(add, X, X, n=64, BLOCK=64, out_shape={"out_ptr": X}, num_warps=3)


def test_an_option_that_triton_refuses_is_refused_on_the_cpu_too():
    with pytest.raises(LaunchValueError, match="add: Triton's backend for .* refuses the options.*num_warps"):
        jt.kernel(add)[1](X, X, n=64, BLOCK=64, out_shape={"out_ptr": X}, num_warps=3)


@pytest.mark.parametrize("option", ["launch_cooperative_grid", "launch_pdl"])
def test_options_that_the_runtime_cannot_honour_are_refused(option):
    with pytest.raises(UnsupportedError, match=f"add: {option} is set"):
        lowered(add, X, X, n=64, BLOCK=64, out_shape={"out_ptr": X}, backend_options={option: True})


def test_another_vendors_options_do_not_matter():
    plain = lowered(add, X, X, n=64, BLOCK=64, out_shape={"out_ptr": X})
    assert lowered(add, X, X, n=64, BLOCK=64, out_shape={"out_ptr": X}, waves_per_eu=2) == plain


def test_clearing_the_caches_forgets_binaries():
    lowered(add, X, X, n=64, BLOCK=64, out_shape={"out_ptr": X})
    assert compiling.compiled_binaries(add)
    jt.clear_caches()
    assert not compiling.compiled_binaries(add)
