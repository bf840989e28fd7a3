"""Which GPU a kernel is compiled for.

A target is Triton's `GPUTarget`. It comes, in this order, from the devices that a lowering is for,
from the target named on the kernel or the launch, from the abstract mesh in context, and from the
environment variable ``JTPRIM_TARGET``. Naming one needs no GPU, no driver and no plugin.
"""

from __future__ import annotations

import contextlib
import os
import re
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import jax
from triton.backends.compiler import GPUTarget

from jtprim.errors import LaunchValueError

ENVIRONMENT_VARIABLE = "JTPRIM_TARGET"

# Triton's name of the backend for each of JAX's GPU platforms.
BACKENDS = {"cuda": "cuda", "rocm": "hip"}
_GPU_PLATFORMS = ("gpu", *BACKENDS)  # as devices name theirs

# The portable lowering reads the IR that Triton makes for this target: before Hopper, tensor
# descriptors are rewritten to plain pointers.
PORTABLE = GPUTarget("cuda", 80, 32)
# A Gluon kernel is written for one kind of GPU, with layouts for the lanes of its warps, and Triton's checks
# refuse some of its operations and layouts for others. In the order in which they are tried after `PORTABLE`.
PORTABLE_GLUON = (
    GPUTarget("cuda", 90, 32),
    GPUTarget("cuda", 100, 32),
    GPUTarget("hip", "gfx950", 64),
    GPUTarget("hip", "gfx942", 64),
    GPUTarget("hip", "gfx1250", 32),
    GPUTarget("hip", "gfx1100", 32),
)

# Device kinds, as JAX reports them, by the longest matching word. Compute capabilities from NVIDIA's
# "CUDA GPU compute capability" table, architectures from AMD's ROCm "system requirements" table.
_DEVICE_KINDS = {
    "GB300": "cuda:103",
    "B300": "cuda:103",
    "GB200": "cuda:100",
    "B200": "cuda:100",
    "GH200": "cuda:90",
    "H200": "cuda:90",
    "H100": "cuda:90",
    "H800": "cuda:90",
    "H20": "cuda:90",
    "L40S": "cuda:89",
    "L40": "cuda:89",
    "L4": "cuda:89",
    "RTX 6000 Ada": "cuda:89",
    "A100": "cuda:80",
    "A30": "cuda:80",
    "A800": "cuda:80",
    "A10": "cuda:86",
    "A10G": "cuda:86",
    "A40": "cuda:86",
    "T4": "cuda:75",
    "V100": "cuda:70",
    "MI355X": "hip:gfx950",
    "MI350X": "hip:gfx950",
    "MI325X": "hip:gfx942",
    "MI300X": "hip:gfx942",
    "MI300A": "hip:gfx942",
    "MI250X": "hip:gfx90a",
    "MI250": "hip:gfx90a",
    "MI210": "hip:gfx90a",
    "MI100": "hip:gfx908",
}

# Shared memory that one thread block may have, in KiB. NVIDIA: "CUDA C++ Programming Guide", technical
# specifications per compute capability, the maximum per block less 1 KiB that the system keeps. AMD:
# the LDS of a workgroup in the ISA guides.
_SHARED_KIB: dict[int | str, int] = {
    **dict.fromkeys((70, 72), 96),
    75: 64,
    **dict.fromkeys((80, 87), 163),
    **dict.fromkeys((86, 89, 120, 121), 99),
    **dict.fromkeys((90, 100, 101, 103, 110), 227),
    "gfx950": 160,
}

# Overrides every other source while a module is lowered for inspection or export. JAX keeps what it lowers
# with one value apart from what it lowers with another.
_forced = jax.make_user_context(())

TargetLike: TypeAlias = str | GPUTarget


def parse_target(target: TargetLike) -> GPUTarget:
    """The `GPUTarget` that a name stands for.

    Args:
      target: ``"cuda:90"`` (or ``"cuda:9.0"``), ``"hip:gfx942"`` (or ``"rocm:gfx942"``), or a
        `GPUTarget`.

    Raises:
      ValueError: the text names no target.
    """
    if isinstance(target, GPUTarget):
        return target
    backend, _, arch = str(target).strip().partition(":")
    if backend == "cuda" and re.fullmatch(r"\d{2,3}|\d{1,2}\.\d", arch):
        return GPUTarget("cuda", int(arch.replace(".", "")), 32)
    # Feature suffixes (`:sramecc+:xnack-`) choose no other instructions in Triton.
    match = re.match(r"gfx(\d+)[0-9a-f]{2}\b", arch)
    if backend in ("hip", "rocm") and match:
        # GCN and CDNA (gfx9 and before) run 64 lanes a wavefront, RDNA (gfx10 on) 32.
        return GPUTarget("hip", arch.split(":")[0], 32 if int(match[1]) >= 10 else 64)
    raise ValueError(
        f"{target!r} names no GPU target; write a CUDA compute capability as 'cuda:90' or an AMD "
        "architecture as 'hip:gfx942'."
    )


def parse_targets(targets: TargetLike | Sequence[TargetLike] | None) -> tuple[GPUTarget, ...]:
    """Like `parse_target`, for one target or a sequence of targets of different vendors."""
    if targets is None:
        return ()
    if isinstance(targets, str):
        targets = targets.split(",")
    elif isinstance(targets, GPUTarget):
        targets = (targets,)
    return tuple(parse_target(target) for target in targets)


def environment_targets() -> tuple[GPUTarget, ...]:
    """The targets named in ``JTPRIM_TARGET``: one, or several separated by commas."""
    text = os.environ.get(ENVIRONMENT_VARIABLE, "")
    return parse_targets(text) if text else ()


def target_name(target: GPUTarget) -> str:
    """``cuda:90`` or ``hip:gfx942``: the text that `parse_target` reads."""
    return f"{target.backend}:{target.arch}"


def shared_bytes_limit(target: GPUTarget) -> int | None:
    """Shared memory in bytes that one thread block may have on `target`; None if unknown."""
    default = 64 if target.backend == "hip" else None
    kib = _SHARED_KIB.get(target.arch, default)
    return None if kib is None else kib * 1024


def target_of_device(device: Any) -> GPUTarget:
    """The target of one of JAX's GPU devices, from its public `compute_capability`."""
    capability = str(device.compute_capability)
    return parse_target(f"hip:{capability}" if capability.startswith("gfx") else f"cuda:{capability}")


def get_compute_capability(device: int | jax.Device = 0) -> int:
    """The CUDA compute capability of one of this process's NVIDIA GPUs, as one number: 90 for 9.0.

    Args:
      device: the GPU, or its index among those of `jax.local_devices`.

    Raises:
      ValueError: it is no NVIDIA GPU, or there is none of that index.
    """
    if isinstance(device, int):
        found = [one for one in jax.local_devices() if one.platform in _GPU_PLATFORMS]
        if not 0 <= device < len(found):
            raise ValueError(
                f"there is no GPU {device}: JAX has {len(found)} in this process; a kernel compiles without "
                "one for a target that is named, as in target='cuda:90'."
            )
        device = found[device]
    target = target_of_device(device) if device.platform in _GPU_PLATFORMS else None
    if target is None or target.backend != "cuda":
        raise ValueError(
            f"device {device} ({device.device_kind}) has no CUDA compute capability; pass an NVIDIA GPU."
        )
    return int(target.arch)


def target_of_device_kind(kind: str) -> GPUTarget | None:
    """The target of an abstract device's kind (``"NVIDIA H100 80GB HBM3"``), or None if unknown."""
    words = sorted((name for name in _DEVICE_KINDS if re.search(rf"\b{name}\b", kind)), key=len)
    return parse_target(_DEVICE_KINDS[words[-1]]) if words else None


@contextlib.contextmanager
def forced_targets(targets: Sequence[GPUTarget]) -> Iterator[None]:
    """Within the context, lowerings on this thread are for `targets`, whatever devices there are."""
    with _forced(tuple(targets)):
        yield


def resolve_target(
    platform: str, devices: Sequence[Any], named: Sequence[GPUTarget], *, kernel: str
) -> GPUTarget:
    """The target to compile `kernel` for.

    Args:
      platform: JAX's name of the platform, ``"cuda"`` or ``"rocm"``.
      devices: the platform's devices that the lowering is for; empty where there are none.
      named: targets named on the kernel, on the launch, or by the mesh in context.
      kernel: the kernel's name, for the message.

    Raises:
      LaunchValueError: nothing names a target of this platform.
    """
    backend = BACKENDS[platform]

    def of_backend(targets: Sequence[GPUTarget]) -> GPUTarget | None:
        return next((target for target in targets if target.backend == backend), None)

    forced, chosen = of_backend(_forced.value), of_backend(named)
    if forced is not None:
        return forced
    if devices:
        local = target_of_device(devices[0])
        if chosen is not None and chosen != local:
            warnings.warn(
                f"{kernel}: compiled for this lowering's devices ({target_name(local)}), not for the "
                f"named target {target_name(chosen)}; to lower for another GPU on this machine, "
                "start JAX with JAX_PLATFORMS=cpu.",
                stacklevel=2,
            )
        return local
    target = chosen or of_backend(environment_targets())
    if target is None:
        example = "cuda:90" if platform == "cuda" else "hip:gfx942"
        raise LaunchValueError(
            f"lowered for {platform} with no such GPU here and no target named; pass "
            f"target={example!r} to jt.kernel or to the launch, or set {ENVIRONMENT_VARIABLE}={example}.",
            kernel=kernel,
        )
    return target
