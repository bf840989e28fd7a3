"""`inspect`, `warmup` and `cache_info`: looking at compiled kernels without a GPU."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import triton

import jtprim as jt
from jtprim.errors import LaunchValueError
from tests.kernels import add, add_pair, scale_in_place

X = jnp.arange(100, dtype=jnp.float32)
SHAPE = jax.ShapeDtypeStruct((100,), jnp.float32)


def launch(x):
    return jt.kernel(add)[4](x, x, n=100, BLOCK=32, out_shape={"out_ptr": x})


@pytest.mark.parametrize(
    "platform,stages",
    [
        ("cuda:90", {"ttir", "ttgir", "llir", "ptx", "cubin"}),
        ("hip:gfx942", {"ttir", "ttgir", "llir", "amdgcn", "hsaco"}),
    ],
)
def test_a_dump_holds_every_stage_once(platform, stages, tmp_path):
    found = jt.inspect(lambda x: launch(launch(x)), X, platform=platform)
    assert len(found.kernels) == 2
    files = found.dump(tmp_path / "new" / "folder")
    assert {file.suffix[1:] for file in files} == stages | {"mlir"}
    assert len(files) == len(stages) + 1
    by_stage = {file.suffix[1:]: file for file in files}
    assert by_stage["mlir"].read_text() == found.stablehlo
    assert by_stage["ttgir"].read_text() == found.kernels[0].ttgir
    assert by_stage["cubin" if "cubin" in stages else "hsaco"].read_bytes() == found.kernels[0].image


def test_a_dump_of_a_platform_without_binaries_holds_the_module(tmp_path):
    [file] = jt.inspect(launch, X, platform="cpu").dump(tmp_path)
    assert "stablehlo" in file.read_text()


@pytest.mark.parametrize("x", [X, SHAPE, np.asarray(X)])
def test_warmup_compiles_without_running(x):
    kernel = jt.kernel(add, BLOCK=32)
    jt.clear_caches()
    assert kernel.cache_info().binaries == ()
    [one] = kernel.warmup(x, x, n=100, out_shape={"out_ptr": x}, grid=(4,), target="cuda:90")
    assert (one.grid, one.binary.target.arch) == ((4, 1, 1), 90)
    assert kernel.cache_info().binaries == (one.binary,)


def test_warmup_takes_tuples_nones_and_in_outs():
    [one] = jt.kernel(add_pair).warmup(
        (SHAPE, SHAPE), n=100, BLOCK=32, out_shape={"out_ptr": SHAPE}, grid=1, target="hip:gfx942"
    )
    assert one.binary.target.arch == "gfx942"
    [one] = jt.kernel(scale_in_place).warmup(
        SHAPE, 100, 2.0, BLOCK=32, input_output_aliases="x_ptr", grid=4, target="cuda:80"
    )
    assert one.aliases == {0: 0}


def test_warmup_compiles_every_configuration():
    tuned = triton.autotune([triton.Config({"BLOCK": b}) for b in (16, 32, 64)], key=["n"])(add)
    found = jt.kernel(tuned).warmup(
        SHAPE,
        SHAPE,
        n=100,
        out_shape={"out_ptr": SHAPE},
        grid=lambda m: triton.cdiv(100, m["BLOCK"]),
        target="cuda:90",
    )
    assert [one.grid[0] for one in found] == [7, 4, 2]


def test_warmup_finds_its_target_or_says_how_to_name_one(monkeypatch):
    arguments = dict(n=100, BLOCK=32, out_shape={"out_ptr": SHAPE}, grid=4)
    monkeypatch.delenv("JTPRIM_TARGET", raising=False)
    with pytest.raises(LaunchValueError, match="add: warmup has no GPU here and no target"):
        jt.kernel(add).warmup(SHAPE, SHAPE, **arguments)
    [one] = jt.kernel(add, target="cuda:80").warmup(SHAPE, SHAPE, **arguments)
    assert one.binary.target.arch == 80
    monkeypatch.setenv("JTPRIM_TARGET", "cuda:100")
    [one] = jt.kernel(add).warmup(SHAPE, SHAPE, **arguments)
    assert one.binary.target.arch == 100


def test_cache_info_counts_launches_that_differ():
    kernel = jt.kernel(add, BLOCK=32)
    for x in (X, X + 1, X[:50]):
        kernel[4](x, x, n=x.size, out_shape={"out_ptr": x})
    assert kernel.cache_info().launches == 2
