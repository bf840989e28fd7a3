"""Takes the launches that a package makes on PyTorch's CPU tensors through jtprim.

Nothing of a package is changed: it is Triton's launch syntax, ``kernel[grid](...)``, that means jtprim's
while `bridged` is in force. A tensor becomes the flat array of its storage from its first element on, which
is what a pointer to it reaches; the kernel gets strides as numbers, as ever. All tensors are in-outs, and
what a launch changed is written back.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import jax
import ml_dtypes
import numpy as np
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.autotuner import Heuristics
from triton.runtime.jit import KernelInterface
from triton.tools.tensor_descriptor import TensorDescriptor

import jtprim as jt
from jtprim.specialize.kernel import jit_function, kernel_parameters

# Floats that NumPy lacks go through the integers of their size.
_CARRIERS = {
    torch.bfloat16: (torch.int16, ml_dtypes.bfloat16),
    torch.float8_e5m2: (torch.int8, ml_dtypes.float8_e5m2),
    torch.float8_e4m3fn: (torch.int8, ml_dtypes.float8_e4m3fn),
    torch.float8_e5m2fnuz: (torch.int8, ml_dtypes.float8_e5m2fnuz),
    torch.float8_e4m3fnuz: (torch.int8, ml_dtypes.float8_e4m3fnuz),
}


# --- Launches ------------------------------------------------------------------------------------


def kernel_identity(kernel: Any) -> str:
    """What a kernel is counted by: the function inside its autotuners and heuristics."""
    function = jit_function(kernel)
    return f"{function.__module__}.{function.__qualname__}"


@functools.cache
def _wrapped(kernel: Any) -> jt.Kernel:
    return jt.kernel(kernel)


def launch(kernel: Any, grid: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """One launch on tensors, which hold afterwards what the kernel wrote."""
    # Triton binds by position alone; jtprim would pass over what an autotuner sets.
    names = [parameter.name for parameter in kernel_parameters(kernel)]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    # What packages compute from arguments they compute from tensors.
    while isinstance(kernel, Heuristics):
        for name, heuristic in kernel.values.items():
            given[name] = heuristic(given)
        kernel = kernel.fn
    own_grid = (lambda meta: grid({**meta, **given})) if callable(grid) else grid
    tensors: dict[tuple[Any, ...], torch.Tensor] = {}
    converted = {name: _converted(value, (name,), tensors) for name, value in given.items()}
    if not tensors:
        raise TypeError(f"{kernel_identity(kernel)}: the launch has no tensor to write to.")
    before = [np.array(_memory(tensor)) for tensor in tensors.values()]
    with jax.enable_x64(True):
        results = _wrapped(kernel)[own_grid](**converted, input_output_aliases=list(tensors))
        results = jax.tree.leaves(results)
    # Two tensors may share memory: what a launch did not change is left to the other.
    for tensor, old, result in zip(tensors.values(), before, results, strict=True):
        memory, new = _memory(tensor), np.asarray(result)
        bits = np.dtype(f"u{memory.dtype.itemsize}")
        changed = old.view(bits) != new.view(bits)
        memory[changed] = new[changed]


def _converted(value: Any, path: tuple[Any, ...], tensors: dict[tuple[Any, ...], torch.Tensor]) -> Any:
    """An argument as jtprim takes it; its tensors are noted by their path in the signature."""
    if isinstance(value, TensorDescriptor):
        tensors[path] = value.base
        array = jax.numpy.array(_memory(value.base))
        return jt.TensorDescriptor(
            array, tuple(value.shape), tuple(value.strides), tuple(value.block_shape), padding=value.padding
        )
    if isinstance(value, torch.Tensor):
        tensors[path] = value
        with jax.enable_x64(True):
            return jax.numpy.array(_memory(value))
    if isinstance(value, (tuple, list)):
        return tuple(_converted(child, (*path, i), tensors) for i, child in enumerate(value))
    return value


def _memory(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """What a pointer to the tensor reaches, as a NumPy view: its storage from its first element on."""
    flat = tensor.detach()
    count = flat.untyped_storage().nbytes() // flat.element_size() - flat.storage_offset()
    flat = torch.as_strided(flat, (count,), (1,))
    carrier, dtype = _CARRIERS.get(flat.dtype, (None, None))
    return flat.numpy() if carrier is None else flat.view(carrier).numpy().view(dtype)


# --- A device ------------------------------------------------------------------------------------

# What packages ask of a device in order to choose block sizes: those of a small GPU of the architecture
# that the portable lowering takes Triton's IR for.
_PROPERTIES = {
    "multiprocessor_count": 4,
    "max_shared_mem": 101376,
    "warpSize": 32,
    "max_num_regs": 65536,
    "sm_clock_rate": 1000000,
    "mem_clock_rate": 1000000,
    "mem_bus_width": 256,
}


class _Driver:
    """Triton's driver as far as packages ask it anything: which device there is, and what it has."""

    utils = SimpleNamespace(get_device_properties=lambda device: dict(_PROPERTIES))

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cpu", 0, 32)

    def get_current_device(self) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_device_interface(self) -> Any:
        return torch.cpu

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_benchmarker(self) -> Any:
        raise RuntimeError("jtprim chooses an autotuner's configuration; nothing is timed on the CPU.")


_TORCH_PROPERTIES = SimpleNamespace(
    name="none",
    major=8,
    minor=0,
    multi_processor_count=_PROPERTIES["multiprocessor_count"],
    shared_memory_per_block=49152,
    shared_memory_per_block_optin=_PROPERTIES["max_shared_mem"],
    total_memory=8 << 30,
    warp_size=32,
)


def _as_it_stands(function: Any = None, **settings: Any) -> Any:
    return function or (lambda function: function)


@contextlib.contextmanager
def bridged() -> Iterator[set[str]]:
    """While in force, Triton's launches are jtprim's; gives the kernels launched, as they come.

    Packages ask about a device as they are imported: that has to happen inside too.
    """
    launched: set[str] = set()

    def getitem(kernel: Any, grid: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> None:
            launched.add(kernel_identity(kernel))
            launch(kernel, grid, args, kwargs)

        return run

    no_context = lambda *args, **kwargs: contextlib.nullcontext()
    patches = [
        mock.patch.object(KernelInterface, "__getitem__", getitem),
        mock.patch.object(torch.Tensor, "is_cuda", True),
        mock.patch.object(torch.cuda, "is_available", lambda: True),
        mock.patch.object(torch.cuda, "current_device", lambda: 0),
        mock.patch.object(torch.cuda, "get_device_capability", lambda device=None: (8, 0)),
        mock.patch.object(torch.cuda, "get_device_properties", lambda device=None: _TORCH_PROPERTIES),
        mock.patch.object(torch.cuda, "get_device_name", lambda device=None: "none"),
        mock.patch.object(torch.cuda, "device", no_context),
        mock.patch.object(torch.cuda, "synchronize", lambda device=None: None),
        mock.patch.object(triton.runtime.driver, "_active", _Driver()),
        # What packages hand to `torch.compile` is plain PyTorch: it runs as it stands.
        mock.patch.object(torch, "compile", _as_it_stands),
    ]
    with contextlib.ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        yield launched
