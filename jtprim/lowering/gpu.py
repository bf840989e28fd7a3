"""The lowering rule for NVIDIA and AMD GPUs: one custom call that carries the compiled kernel.

The custom call is the one that jaxlib's GPU plugins register for Triton; `payload` describes its
message. Nothing here needs a GPU, a driver or a plugin.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import logging
import math
import os
import struct
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo
from jax.interpreters import mlir
from triton.backends.compiler import GPUTarget
from triton.compiler.errors import CompilationError, CompileTimeAssertionFailure
from triton.runtime.errors import PTXASError

from jtprim import compat
from jtprim.arguments import Batching, Operand, Output, Tree, View, coordinate_text
from jtprim.errors import LaunchValueError, OutOfSharedMemoryError, UnsupportedError
from jtprim.lowering import payload
from jtprim.lowering.cubin import without_ptx_text
from jtprim.primitive import Configuration, CostEstimate, OutShape
from jtprim.specialize.access import described_paths, written_paths
from jtprim.specialize.adapters import Adapter, adapt
from jtprim.specialize.binder import leaves_by_path, specialize_arguments
from jtprim.specialize.compile import Binary, compile_arguments
from jtprim.specialize.descriptors import decomposed, shape_and_strides
from jtprim.specialize.kernel import KernelSource, PerFunction
from jtprim.specialize.stand_ins import ALIGNMENT_BYTES
from jtprim.specialize.target import PORTABLE, resolve_target

_log = logging.getLogger(__name__)

# The kernels of which has been said that their inputs are gathered.
_gathering: PerFunction[bool] = PerFunction()

CUSTOM_CALL_TARGET_NAME = "triton_kernel_call_ffi"

# How often the log says how many configurations are compiled.
_PROGRESS_SECONDS = 5.0

# CU_TENSOR_MAP_DATA_TYPE_TFLOAT32 of the CUDA driver's `CUtensorMapDataType`.
_TMA_FLOAT32_AS_TF32 = 11

# The runtime's ROCm build launches `num_warps * 64` threads whatever the GPU's wavefront is.
_ROCM_RUNTIME_WARP = 64

# What addresses in TMA descriptors have to be multiples of (CUDA's cuTensorMapEncodeTiled).
_TMA_ALIGNMENT_BYTES = 16

# Triton's scalar types in the runtime's: the kernel reads its argument's low bytes, so integers narrower
# than 32 bits travel in 32.
_INTEGER_KINDS = {
    "i8": "i32",
    "i16": "i32",
    "i32": "i32",
    "i64": "i64",
    "u1": "u32",
    "u8": "u32",
    "u16": "u32",
    "u32": "u32",
    "u64": "u64",
}


def lower(ctx: mlir.LoweringRuleContext, *operands: Any, platform: str, **params: Any) -> Sequence[Any]:
    """Lowers one equation of `triton_kernel_p` for ``"cuda"`` or ``"rocm"``."""
    source: KernelSource = params["kernel"]
    out_shape: OutShape = params["out_shape"]
    if compat.is_partitioned(ctx.module_context):
        _warn_gathering(source, has_rule=params["partition"] is not None)
    devices = compat.lowering_devices(ctx.module_context, platform)
    target = resolve_target(platform, devices, params["target"], kernel=source.name)
    candidates = [c for c in params["configurations"] if 0 not in c.grid]
    compiled = _compile_candidates(
        source,
        candidates,
        lambda candidate: _kernel_call(
            source, params["arguments"], ctx.avals_in, out_shape.shapes, candidate, target, params["batching"]
        ),
    )
    _check_written(params, ctx.avals_in, candidates[0])
    if devices:
        _check_runtime(source, platform, [one.call for one in compiled])
    results, aliases = list(ctx.avals_out), dict(params["aliases"])
    calls = [one.call for one in compiled]
    scratch_bytes = max(one.scratch_bytes for one in compiled)
    if scratch_bytes and params["batching"] is not None:  # on NVIDIA it is for descriptors
        _check_members(params, ctx.avals_in, candidates[0])
    if scratch_bytes:
        # One more result, behind the outputs and before the in-outs, whose own buffers no parameter takes.
        place = len(results) - len(aliases)
        results.insert(place, jax.core.ShapedArray((scratch_bytes,), np.uint8))
        aliases = {operand: output + 1 for operand, output in aliases.items()}
        pointer = payload.ArrayParameter(max(one.scratch_alignment_bytes for one in compiled))
        calls = [dataclasses.replace(call, parameters=(*call.parameters, pointer)) for call in calls]
    call: payload.KernelCall | payload.AutotunedKernelCall = calls[0]
    if len(calls) > 1:
        call = payload.AutotunedKernelCall(
            name=source.name,
            configurations=tuple(
                (call, repr(one.configuration)) for call, one in zip(calls, compiled, strict=True)
            ),
            aliases=tuple(
                payload.BufferAlias(operand, len(operands) + output, _size_bytes(results[output]))
                for operand, output in aliases.items()
            ),
        )
    opaque = payload.encode(payload.Payload(call, params["name"], params["metadata"]))
    rule = jax.ffi.ffi_lowering(
        CUSTOM_CALL_TARGET_NAME,
        operand_output_aliases=aliases,
        has_side_effect=params["has_side_effect"],
        extra_attributes=_frontend_attributes(params["cost_estimate"]),
    )
    values = _buffers(rule(ctx.replace(avals_out=results), *_buffers(operands), opaque=opaque))
    return [*values[:place], *values[place + 1 :]] if scratch_bytes else values


def _warn_gathering(source: KernelSource, *, has_rule: bool) -> None:
    """Says, once for each kernel, that XLA's partitioner has to gather what the custom call is given."""
    if _gathering.get(source.function):
        return
    _gathering.setdefault(source.function, True)
    reason, remedy = "has no sharding_rule", "pass one"
    if has_rule:
        reason, remedy = (
            "is exported, where its sharding_rule can't be asked",
            "shard explicitly (jax.set_mesh)",
        )
    warnings.warn(
        f"{source.name}: lowered for several devices and {reason}, so that each device launches all of it "
        f"and inputs that are sharded are gathered; {remedy}, or launch inside jax.shard_map.",
        stacklevel=2,
    )


def _check_runtime(source: KernelSource, platform: str, calls: Sequence[payload.KernelCall]) -> None:
    """Checks that the runtime on this machine, where the program is to run, can do what the calls ask for."""
    if platform == "rocm" and not compat.HAS_MODULE_IMAGE:
        raise UnsupportedError(
            "needs jaxlib 0.11 or newer on AMD GPUs: the runtime of older ones takes binaries by the path "
            "of a temporary file only; upgrade jax.",
            kernel=source.name,
        )
    parameters = [parameter for call in calls for parameter in call.parameters]
    descriptors = any(isinstance(one, payload.TensorDescriptorParameter) for one in parameters)
    if descriptors and not compat.HAS_TENSOR_DESCRIPTORS:
        raise UnsupportedError(
            "needs jaxlib 0.11.1 or newer: the runtime of older ones can't make its TMA descriptors; upgrade "
            "jax, or make them in the kernel (tl.make_tensor_descriptor).",
            kernel=source.name,
        )


def _check_written(params: Mapping[str, Any], operands: Sequence[Any], configuration: Configuration) -> None:
    """Checks that the kernel writes through no array that the equation has as an input alone."""
    source: KernelSource = params["kernel"]
    outputs = params["out_shape"].shapes
    arguments = configuration.arguments(source, params["arguments"])
    specialization = specialize_arguments(
        source, arguments, operands, outputs, dict(configuration.constexprs), PORTABLE
    )
    try:
        kernel = adapt(source, arguments, specialization, params["batching"], reorder=False)
        written = written_paths(kernel, configuration.options)
    except CompilationError:
        return  # it compiled for its own target, and may well not for the portable one
    leaves = leaves_by_path(params["arguments"])
    in_outs = {operand for operand, _ in params["aliases"]}
    for path in sorted(written):
        leaf = leaves[path]
        if isinstance(leaf, Operand) and leaf.index not in in_outs:
            text = coordinate_text((source.function.params[path[0]].name, *path[1:]))
            raise LaunchValueError(
                f"writes through {text!r}, which was passed as an input. Name it in input_output_aliases, or "
                "declare an output.",
                kernel=source.name,
                parameter=text,
            )


def _check_members(params: Mapping[str, Any], operands: Sequence[Any], configuration: Configuration) -> None:
    """Checks that TMA can reach the members of a batch that the kernel makes descriptors of."""
    source: KernelSource = params["kernel"]
    outputs = params["out_shape"].shapes
    sizes = {
        path: _member_bytes(leaf, operands[leaf.index] if isinstance(leaf, Operand) else outputs[leaf.index])
        for path, leaf in leaves_by_path(params["arguments"]).items()
        if isinstance(leaf, Operand | Output)
    }
    if not any(size % _TMA_ALIGNMENT_BYTES for size in sizes.values()):
        return
    arguments = configuration.arguments(source, params["arguments"])
    specialization = specialize_arguments(
        source, arguments, operands, outputs, dict(configuration.constexprs), PORTABLE
    )
    kernel = adapt(source, arguments, specialization, params["batching"], reorder=False)
    for path in sorted(described_paths(kernel, configuration.options)):
        if sizes[path] % _TMA_ALIGNMENT_BYTES:
            text = coordinate_text((source.function.params[path[0]].name, *path[1:]))
            raise UnsupportedError(
                f"makes a TMA descriptor of {text!r}, of which each member of the batch (jax.vmap) has "
                f"{sizes[path]} bytes, where TMA needs a multiple of {_TMA_ALIGNMENT_BYTES}; pad the arrays, "
                "or use jax.lax.map.",
                kernel=source.name,
                parameter=text,
            )


def _member_bytes(leaf: Operand | Output, array: Any) -> int:
    """Bytes from one member of a batch to the next, along the batch's fastest axis on which they differ."""
    return next((stride for stride in reversed(leaf.strides) if stride), 0) * int(array.dtype.itemsize)


def _buffers(values: Sequence[Any]) -> Sequence[Any]:
    """The same values, each in a buffer of its own.

    XLA hands a custom call a view of a larger buffer where an operand is a slice, or a result goes into
    one (its dynamic-slice fusion), at any offset: the pointer is then not aligned as Triton assumes, and
    the runtime refuses the launch. XLA looks no further than a barrier, which itself costs nothing.
    """
    return stablehlo.OptimizationBarrierOp(values).results if values else values


def _frontend_attributes(cost_estimate: CostEstimate | None) -> dict[str, Any]:
    """What a call says of itself to tools that read the program; XLA hands it on and looks at none of it."""
    if cost_estimate is None:
        return {}
    numbers: dict[str, ir.Attribute] = {
        name: ir.StringAttr.get(str(number)) for name, number in dataclasses.asdict(cost_estimate).items()
    }
    return {"mhlo.frontend_attributes": ir.DictAttr.get(numbers)}


def _compile_candidates(
    source: KernelSource,
    candidates: Sequence[Configuration],
    compile: Callable[[Configuration], _Compiled],
) -> list[_Compiled]:
    """The calls of all configurations that compile; several are compiled on threads.

    Progress is logged, as a warning so that it is seen, when that takes long. As Triton's autotuner
    does, a configuration that fails an assertion at compile time, that the assembler refuses, or that
    needs too much shared memory is left out with a line in the log.
    """
    if len(candidates) == 1:
        return [compile(candidates[0])]
    with concurrent.futures.ThreadPoolExecutor(min(len(candidates), os.cpu_count() or 1)) as pool:
        futures = [pool.submit(compile, candidate) for candidate in candidates]
        while waiting := concurrent.futures.wait(futures, timeout=_PROGRESS_SECONDS).not_done:
            done = len(futures) - len(waiting)
            _log.warning("%s: compiled %d of %d configurations", source.name, done, len(futures))
    compiled, failures = [], []
    for candidate, future in zip(candidates, futures, strict=True):
        try:
            compiled.append(future.result())
        except (OutOfSharedMemoryError, CompileTimeAssertionFailure, PTXASError) as error:
            failures.append(f"{candidate}: {error}")
            _log.info("%s: leaving out configuration %s", source.name, failures[-1])
    if not compiled:
        raise LaunchValueError(
            "none of its autotuner's configurations can be compiled: " + "; ".join(failures),
            kernel=source.name,
        )
    return compiled


@dataclasses.dataclass(frozen=True)
class _Compiled:
    """One configuration's call, and the global scratch memory that it needs.

    The memory is a result of the custom call, which nobody reads: XLA allocates it. Were the runtime asked
    to (`TritonKernel.global_scratch_size`), it would while XLA records a CUDA graph, and CUDA refuses a
    graph that allocates inside another. Triton's kernels take the pointer behind their own parameters,
    where the runtime puts a null pointer if nobody comes before it.
    """

    call: payload.KernelCall
    configuration: Configuration
    scratch_bytes: int
    scratch_alignment_bytes: int


def _kernel_call(
    source: KernelSource,
    arguments: Sequence[Tree],
    operands: Sequence[Any],
    outputs: Sequence[jax.ShapeDtypeStruct],
    configuration: Configuration,
    target: GPUTarget,
    batching: Batching | None,
) -> _Compiled:
    arguments = configuration.arguments(source, arguments)
    adapter, binary = compile_arguments(
        source,
        arguments,
        operands,
        outputs,
        dict(configuration.constexprs),
        configuration.options,
        target,
        batching,
    )
    grid = configuration.grid if batching is None else batching.grid(configuration.grid)
    call = payload.KernelCall(
        kernel=_kernel(source, binary),
        grid=grid,
        parameters=tuple(_parameters(adapter, binary, arguments, outputs, configuration)),
    )
    blocks = math.prod(grid) * binary.num_ctas
    return _Compiled(call, configuration, blocks * binary.scratch_bytes, binary.scratch_alignment_bytes)


def _kernel(source: KernelSource, binary: Binary) -> payload.Kernel:
    code: payload.Ptx | payload.ModuleImage
    if binary.target.backend == "hip":
        code = payload.ModuleImage(binary.image, binary.digest)
    elif compat.HAS_MODULE_IMAGE:
        code = payload.ModuleImage(without_ptx_text(binary.image), binary.digest)
    else:
        code = payload.Ptx(binary.asm["ptx"])
    return payload.Kernel(
        name=binary.name,
        num_warps=_runtime_warps(source, binary),
        num_ctas=binary.num_ctas,
        shared_bytes=binary.shared_bytes,
        code=code,
        compute_capability=_compute_capability(binary.target),
    )


def _runtime_warps(source: KernelSource, binary: Binary) -> int:
    """The number of warps that makes the runtime launch the binary's threads."""
    if binary.target.backend == "cuda":
        return binary.num_warps
    warps, rest = divmod(binary.num_threads, _ROCM_RUNTIME_WARP)
    if rest:
        raise UnsupportedError(
            f"has {binary.num_threads} threads, but jaxlib's ROCm runtime launches multiples of "
            f"{_ROCM_RUNTIME_WARP}; use an even num_warps on {binary.target.arch}.",
            kernel=source.name,
        )
    return warps


def _compute_capability(target: GPUTarget) -> int:
    """The target as the runtime counts: 90 for sm_90, 94 for gfx942 (major and minor)."""
    if target.backend == "cuda":
        return int(target.arch)
    digits = str(target.arch).removeprefix("gfx")
    return int(digits[:-2]) * 10 + int(digits[-2], 16)


def _parameters(
    adapter: Adapter,
    binary: Binary,
    arguments: Sequence[Tree],
    outputs: Sequence[jax.ShapeDtypeStruct],
    configuration: Configuration,
) -> list[payload.Parameter]:
    """The launch's arguments in the order of the binary's parameters; constexprs have none."""
    leaves = leaves_by_path(arguments)
    source, specialization = adapter.specialization.source, adapter.specialization
    descriptors = iter(binary.descriptors)
    found: list[payload.Parameter] = []
    for path, kind in specialization.leaf_types():
        if kind == "constexpr":
            continue
        place = adapter.kernel_path(path)
        leaf = leaves[place]
        if not isinstance(leaf, (Operand, Output)):
            found.append(scalar_parameter(kind, leaf.value))
            continue
        zeroed = isinstance(leaf, Output) and leaf.index in configuration.zeroed
        name = coordinate_text((source.function.params[place[0]].name, *place[1:]))
        if leaf.view is not None and binary.descriptors:
            if zeroed:
                raise UnsupportedError(
                    "is to be zeroed, and is written through a TMA descriptor, which the runtime doesn't "
                    "zero; pass zeros for it, as an in-out.",
                    kernel=source.name,
                    parameter=name,
                )
            found.append(_descriptor_parameter(source, name, leaf.view, next(descriptors)))
            numbers = shape_and_strides(leaf.view)
        else:
            found.append(
                payload.ArrayParameter(
                    alignment_bytes=ALIGNMENT_BYTES if leaf.view or specialization.is_aligned(path) else 0,
                    zeroed_bytes=_size_bytes(outputs[leaf.index]) if zeroed else 0,
                )
            )
            numbers = decomposed(leaf.view, kernel=source.name, parameter=name) if leaf.view else []
        found += [scalar_parameter(kind, number) for kind, number in numbers]
    return found


def _descriptor_parameter(
    source: KernelSource, name: str, view: View, compiled: Mapping[str, Any]
) -> payload.TensorDescriptorParameter:
    """The TMA descriptor that a kernel expects, as Triton's own launcher makes it."""
    if "swizzle" not in compiled:
        raise UnsupportedError(
            f"takes {name!r} as a descriptor of AMD's tensor data mover, which jaxlib's runtime can't make; "
            "pass an array, and make the descriptor in the kernel (tl.make_tensor_descriptor).",
            kernel=source.name,
            parameter=name,
        )
    shape = view.shape
    if compiled["fp4_padded"]:
        shape = (*shape[:-1], 2 * shape[-1])
    element_type = _TMA_FLOAT32_AS_TF32
    if not view.round_f32_to_tf32:
        element_type = compat.tma_element_type(compiled["elem_type"])
    return payload.TensorDescriptorParameter(
        element_type=element_type,
        swizzle=compiled["swizzle"],
        shape=shape,
        strides=view.strides,
        block_shape=tuple(compiled["block_size"]),
        oob_fill=int(view.padding == "nan"),
    )


def scalar_parameter(kind: str, value: Any) -> payload.ScalarParameter:
    """A number as the compiled kernel reads it, for one of Triton's scalar types."""
    if kind == "fp64":
        return payload.ScalarParameter("f64", float(value))
    if kind == "fp32":
        return payload.ScalarParameter("f32", float(value))
    if kind in ("fp16", "bf16"):
        dtype = np.dtype(np.float16) if kind == "fp16" else np.dtype(jax.numpy.bfloat16)
        (bits,) = struct.unpack("<H", np.asarray(float(value), dtype).tobytes())
        return payload.ScalarParameter("u32", bits)
    runtime = _INTEGER_KINDS[kind]
    bits = int(kind[1:])
    wrapped = int(value) & (2**bits - 1) if bits > 1 else int(bool(value))
    if kind.startswith("i") and wrapped >= 2 ** (bits - 1):
        wrapped -= 2**bits
    return payload.ScalarParameter(runtime, wrapped)  # type: ignore[arg-type]


def _size_bytes(shape: Any) -> int:
    return int(np.prod(shape.shape, dtype=np.int64)) * np.dtype(shape.dtype).itemsize
