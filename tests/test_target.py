"""Targets: their names, where they come from, and in which order."""

import dataclasses

import jax
import pytest
from triton.backends.compiler import GPUTarget

import jtprim as jt
from jtprim.errors import LaunchValueError
from jtprim.specialize.target import (
    forced_targets,
    parse_target,
    parse_targets,
    resolve_target,
    target_name,
    target_of_device,
    target_of_device_kind,
)

H100, MI300 = GPUTarget("cuda", 90, 32), GPUTarget("hip", "gfx942", 64)


@dataclasses.dataclass
class Device:
    compute_capability: str


@pytest.mark.parametrize(
    "text,target",
    [
        ("cuda:90", H100),
        ("cuda:9.0", H100),
        ("cuda:12.1", GPUTarget("cuda", 121, 32)),
        (" cuda:80", GPUTarget("cuda", 80, 32)),
        ("hip:gfx942", MI300),
        ("rocm:gfx942", MI300),
        ("hip:gfx942:sramecc+:xnack-", MI300),
        ("hip:gfx90a", GPUTarget("hip", "gfx90a", 64)),
        ("hip:gfx1100", GPUTarget("hip", "gfx1100", 32)),
        ("hip:gfx1201", GPUTarget("hip", "gfx1201", 32)),
    ],
)
def test_a_target_is_read_from_its_name(text, target):
    assert parse_target(text) == target
    assert parse_target(target_name(target)) == target


@pytest.mark.parametrize("text", ["", "cuda", "cuda:", "cuda:sm90", "hip:942", "tpu:v5", "gfx942", "cuda:9"])
def test_what_names_no_target_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match="names no GPU target.*'cuda:90'.*'hip:gfx942'"):
        parse_target(text)


def test_several_targets_come_as_text_or_sequence():
    assert parse_targets("cuda:90,hip:gfx942") == parse_targets(["cuda:90", MI300]) == (H100, MI300)
    assert parse_targets(None) == ()


@pytest.mark.parametrize("capability,target", [("9.0", H100), ("gfx942", MI300), ("gfx942:xnack-", MI300)])
def test_a_device_tells_its_target(capability, target):
    assert target_of_device(Device(capability)) == target


@pytest.mark.parametrize(
    "kind,name",
    [
        ("NVIDIA H100 80GB HBM3", "cuda:90"),
        ("NVIDIA GH200 480GB", "cuda:90"),
        ("NVIDIA A100-SXM4-40GB", "cuda:80"),
        ("NVIDIA A10G", "cuda:86"),
        ("NVIDIA L4", "cuda:89"),
        ("NVIDIA B200", "cuda:100"),
        ("Tesla V100-SXM2-16GB", "cuda:70"),
        ("AMD Instinct MI300X", "hip:gfx942"),
        ("AMD Instinct MI250X", "hip:gfx90a"),
    ],
)
def test_an_abstract_devices_kind_tells_its_target(kind, name):
    assert target_of_device_kind(kind) == parse_target(name)


def test_an_unknown_kind_has_no_target():
    assert target_of_device_kind("TPU v5e") is None


def resolve(platform="cuda", devices=(), named=()):
    return resolve_target(platform, devices, parse_targets(list(named)), kernel="k")


def test_the_lowerings_devices_come_first(monkeypatch):
    monkeypatch.setenv("JTPRIM_TARGET", "cuda:80")
    assert resolve(devices=[Device("9.0")]) == H100


def test_another_target_than_the_devices_is_warned_about():
    with pytest.warns(UserWarning, match=r"k: compiled for this lowering's devices \(cuda:90\)"):
        assert resolve(devices=[Device("9.0")], named=["cuda:80"]) == H100


def test_a_named_target_comes_before_the_environment(monkeypatch):
    monkeypatch.setenv("JTPRIM_TARGET", "cuda:80,hip:gfx90a")
    assert resolve(named=["cuda:90"]) == H100
    assert resolve("rocm", named=["cuda:90"]) == parse_target("hip:gfx90a")


def test_a_named_target_of_the_other_vendor_does_not_count(monkeypatch):
    monkeypatch.delenv("JTPRIM_TARGET", raising=False)
    assert resolve("rocm", named=["cuda:90", "hip:gfx942"]) == MI300
    with pytest.raises(LaunchValueError, match="no target named; pass target='hip:gfx942'"):
        resolve("rocm", named=["cuda:90"])


def test_without_any_target_the_error_says_how_to_name_one(monkeypatch):
    monkeypatch.delenv("JTPRIM_TARGET", raising=False)
    with pytest.raises(LaunchValueError, match="k: lowered for cuda with no such GPU.*JTPRIM_TARGET=cuda:90"):
        resolve()


def test_a_forced_target_comes_before_all_else():
    with forced_targets([MI300, GPUTarget("cuda", 100, 32)]):
        assert resolve(devices=[Device("9.0")], named=["cuda:80"]).arch == 100
    assert resolve(devices=[Device("9.0")]) == H100


@dataclasses.dataclass
class LocalDevice(Device):
    platform: str = "gpu"
    device_kind: str = "some GPU"


def test_the_compute_capability_of_a_local_gpu_is_a_number(monkeypatch):
    cpu, nvidia, amd = jax.devices("cpu")[0], LocalDevice("9.0"), LocalDevice("gfx942")
    monkeypatch.setattr(jax, "local_devices", lambda: [cpu, nvidia, amd])
    assert jt.get_compute_capability() == jt.get_compute_capability(nvidia) == 90
    with pytest.raises(ValueError, match="has no CUDA compute capability; pass an NVIDIA GPU"):
        jt.get_compute_capability(1)
    with pytest.raises(ValueError, match="has no CUDA compute capability"):
        jt.get_compute_capability(cpu)
    for index in (2, -1):
        with pytest.raises(ValueError, match=f"there is no GPU {index}: JAX has 2.*target='cuda:90'"):
            jt.get_compute_capability(index)
