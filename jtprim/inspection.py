"""`inspect`: what a function's launches become on a platform, without running them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo
from triton.backends.compiler import GPUTarget

from jtprim.lowering import payload
from jtprim.lowering.gpu import CUSTOM_CALL_TARGET_NAME
from jtprim.specialize.compile import Binary, find_binary, ptx_digest
from jtprim.specialize.target import BACKENDS, forced_targets, parse_target


@dataclass(frozen=True)
class InspectedKernel:
    """One compiled kernel in a lowered module: one configuration of one launch.

    Attributes:
      name: the launch's name.
      configuration: what an autotuned launch tries here; empty for any other launch.
      grid: programs on each of three axes.
      parameters: the launch's arguments in the compiled kernel's order; see `jtprim.lowering.payload`.
      aliases: operand -> result that is the same buffer.
      metadata: bytes that travel with the call.
      binary: the compiled kernel: entry point, threads, memory, image, and each stage's text.
    """

    name: str
    configuration: str
    grid: tuple[int, int, int]
    parameters: tuple[payload.Parameter, ...]
    aliases: Mapping[int, int]
    metadata: bytes
    binary: Binary

    @property
    def num_threads(self) -> int:
        """Threads in one thread block."""
        return self.binary.num_threads

    @property
    def shared_bytes(self) -> int:
        """Shared memory of one thread block."""
        return self.binary.shared_bytes

    @property
    def image(self) -> bytes:
        """The cubin or hsaco."""
        return self.binary.image

    @property
    def ttir(self) -> str:
        return self.binary.asm["ttir"]

    @property
    def ttgir(self) -> str:
        return self.binary.asm["ttgir"]

    @property
    def llir(self) -> str:
        return self.binary.asm["llir"]

    @property
    def assembly(self) -> str:
        """PTX for an NVIDIA target, AMDGCN for an AMD one."""
        return self.binary.asm["ptx" if self.binary.target.backend == "cuda" else "amdgcn"]


@dataclass(frozen=True)
class Inspection:
    """What `inspect` returns; prints as a table of the kernels.

    Attributes:
      platform: the platform as it was asked for.
      kernels: in the order of the module, configurations of one launch together. Empty where the
        platform runs kernels as translated operations.
      stablehlo: the module's text.
    """

    platform: str
    kernels: tuple[InspectedKernel, ...]
    stablehlo: str = field(repr=False)

    def __str__(self) -> str:
        if not self.kernels:
            return f"no compiled kernels on {self.platform}: launches are StableHLO operations there"
        head = ("kernel", "grid", "threads", "shared", "parameters", "aliases", "binary", "configuration")
        rows = [
            (
                kernel.name,
                "x".join(map(str, kernel.grid)),
                str(kernel.num_threads),
                f"{kernel.shared_bytes:,} B",
                " ".join(map(_parameter_text, kernel.parameters)),
                " ".join(f"{operand}:{result}" for operand, result in kernel.aliases.items()) or "-",
                f"{len(kernel.image):,} B",
                kernel.configuration or "-",
            )
            for kernel in self.kernels
        ]
        widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
        lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in (head, *rows))
        return "\n".join([f"{self.platform}", *lines])

    def dump(self, directory: str | os.PathLike[str]) -> list[Path]:
        """Writes the module's text, and each kernel's stages and binary, into a directory.

        Files are named by kernel, digest and stage, so equal kernels share their files.

        Args:
          directory: made if it isn't there.

        Returns:
          The files.
        """
        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        contents: dict[str, str | bytes] = {f"module.{self.platform.replace(':', '-')}.mlir": self.stablehlo}
        for binary in {kernel.binary.digest: kernel.binary for kernel in self.kernels}.values():
            stem = f"{binary.name[:100]}-{binary.digest[:12]}"
            contents |= {f"{stem}.{stage}": text for stage, text in binary.asm.items()}
            contents[f"{stem}.{'cubin' if binary.target.backend == 'cuda' else 'hsaco'}"] = binary.image
        for name, content in contents.items():
            (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
        return [folder / name for name in contents]


def _parameter_text(parameter: payload.Parameter) -> str:
    if isinstance(parameter, payload.ArrayParameter):
        return "*" + (f"(zeroed {parameter.zeroed_bytes} B)" if parameter.zeroed_bytes else "")
    if isinstance(parameter, payload.ScalarParameter):
        return f"{parameter.kind.rstrip('_')}:{parameter.value}"
    return "descriptor"


def inspect(f: Callable[..., Any], *args: Any, platform: str | GPUTarget, **kwargs: Any) -> Inspection:
    """Lowers a function and returns the kernel calls of the module.

    Needs no GPU. The platform's target counts before targets named on launches.

    Args:
      f: a function of JAX arrays that launches kernels; if it is jitted, its static arguments are so here.
      *args, **kwargs: its arguments; `jax.ShapeDtypeStruct` will do for arrays.
      platform: ``"cuda:90"``, ``"hip:gfx942"``, a `GPUTarget`, or a platform that is no GPU (``"cpu"``).

    Returns:
      The compiled kernels, with binaries and the text of every stage, and the StableHLO.

    Raises:
      ValueError: `platform` names no target.
      JtprimError: as a launch would.
    """
    traced = (f if hasattr(f, "trace") else jax.jit(f)).trace(*args, **kwargs)
    closed = traced.jaxpr

    # A new function: JAX may hold this one's lowering for another target.
    def inspected(*flat: Any) -> Any:
        return jax.core.eval_jaxpr(closed.jaxpr, closed.consts, *flat)

    inspected.__name__ = getattr(f, "__name__", "inspected")
    shapes = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in closed.in_avals]
    fresh = jax.jit(inspected).trace(*shapes)
    if isinstance(platform, str) and ":" not in platform:
        lowered = fresh.lower(lowering_platforms=(platform,))
        return Inspection(platform, (), lowered.as_text())
    target = parse_target(platform)
    name = next(jax_name for jax_name, backend in BACKENDS.items() if backend == target.backend)
    with forced_targets([target]):
        lowered = fresh.lower(lowering_platforms=(name,))
    module = lowered.compiler_ir("stablehlo")
    kernels = tuple(kernel for call in _custom_calls(module.operation) for kernel in _kernels(call))
    return Inspection(f"{target.backend}:{target.arch}", kernels, lowered.as_text())


def _custom_calls(operation: Any) -> Iterator[Any]:
    for region in operation.regions:
        for block in region:
            for inner in block:
                if inner.operation.name == "stablehlo.custom_call" and (
                    ir.StringAttr(inner.attributes["call_target_name"]).value == CUSTOM_CALL_TARGET_NAME
                ):
                    yield inner
                yield from _custom_calls(inner.operation)


def _kernels(call: Any) -> Iterator[InspectedKernel]:
    opaque = ir.StringAttr(ir.DictAttr(call.attributes["mhlo.backend_config"])["opaque"]).value_bytes
    decoded = payload.decode(opaque)
    launches = (
        ((decoded.call, ""),) if isinstance(decoded.call, payload.KernelCall) else decoded.call.configurations
    )
    for launch, configuration in launches:
        yield InspectedKernel(
            name=decoded.name,
            configuration=configuration,
            grid=launch.grid,
            parameters=launch.parameters,
            aliases=_aliases(call),
            metadata=decoded.metadata,
            binary=_binary(launch.kernel.code),
        )


def _aliases(call: Any) -> dict[int, int]:
    if "output_operand_aliases" not in call.attributes:
        return {}
    aliases = [
        stablehlo.OutputOperandAlias(attribute) for attribute in call.attributes["output_operand_aliases"]
    ]
    # The result of a call with a single one has no index.
    return {alias.operand_index: next(iter(alias.output_tuple_indices), 0) for alias in aliases}


def _binary(code: payload.Ptx | payload.ModuleImage) -> Binary:
    digest = code.digest if isinstance(code, payload.ModuleImage) else ptx_digest(code.text)
    binary = find_binary(digest)
    assert binary is not None, "the lowering has just compiled it"
    return binary
