"""From a specialization, options and a target to a binary, through `triton.compile`.

Triton keeps compiled kernels on disk (``TRITON_CACHE_DIR``, untouched here). The map in memory spares
reading them again: its entries belong to the kernel's source as it was, so a redefined kernel or a
changed global is compiled anew, and they die with the kernel.
"""

from __future__ import annotations

import hashlib
import threading
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NoReturn

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, CompiledKernel, make_backend
from triton.experimental.gluon._runtime import GluonASTSource
from triton.runtime.jit import JITFunction

from jtprim import compat
from jtprim.arguments import Batching, Static, Tree
from jtprim.errors import LaunchValueError, OutOfSharedMemoryError, UnsupportedError
from jtprim.specialize.adapters import Adapter, adapt, answer_unbatched
from jtprim.specialize.binder import specialize_arguments
from jtprim.specialize.kernel import KernelSource, PerFunction, parsing
from jtprim.specialize.target import shared_bytes_limit, target_name

# Stages whose result is text, in the order of compilation, for both backends.
_TEXT_STAGES = ("ttir", "ttgir", "llir", "ptx", "amdgcn")


@dataclass(frozen=True, eq=False)
class Binary:
    """A compiled kernel: all that a launch needs, and the text of every stage on the way.

    Attributes:
      name: the entry point.
      target: what it runs on.
      num_warps: warps of one program as compiled; warp specialization adds to the option's number.
      num_ctas: thread blocks in one program's cluster.
      shared_bytes: dynamic shared memory of one thread block.
      scratch_bytes, scratch_alignment_bytes: global scratch memory of one thread block.
      descriptors: what the compiler says of each TMA descriptor that the kernel takes, in order; nothing
        where it takes pointers in their place.
      image: the cubin or hsaco.
      asm: text by stage: ``ttir``, ``ttgir``, ``llir``, ``ptx`` or ``amdgcn``.
      digest: identifies `image`, the launch's other numbers and the text that they were made from.
    """

    name: str
    target: GPUTarget
    num_warps: int
    num_ctas: int
    shared_bytes: int
    scratch_bytes: int
    scratch_alignment_bytes: int
    image: bytes = field(repr=False)
    asm: Mapping[str, str] = field(repr=False)
    digest: str
    descriptors: tuple[Mapping[str, Any], ...] = ()

    @property
    def num_threads(self) -> int:
        """Threads in one thread block."""
        return self.num_warps * self.target.warp_size


# The binaries in use by the digest of the binary and of its PTX: inspection finds here what a lowered
# module contains.
_by_digest: weakref.WeakValueDictionary[str, Binary] = weakref.WeakValueDictionary()

_Key = tuple[str, str, GPUTarget, tuple[Any, ...], str]
_compiled: PerFunction[dict[_Key, Future[Binary]]] = PerFunction()
_lock = threading.Lock()


def options_for(target: GPUTarget, options: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """The options of a launch that `target`'s backend has; another vendor's are left out."""
    known = compat.option_fields(target.backend)
    return {name: value for name, value in options if name in known}


class _Source:
    """Of an `ASTSource`: what parses Python waits for other threads that do, and a batch's grid is hidden."""

    batching: Batching | None = None

    def hash(self) -> str:
        with parsing:
            return super().hash()  # type: ignore[misc]

    def make_ir(self, *args: Any) -> Any:
        with parsing:
            module = super().make_ir(*args)  # type: ignore[misc]
        if self.batching is not None:
            [*_, context] = args
            answer_unbatched(module, context, self.batching, self.fn.__name__)  # type: ignore[attr-defined]
        return module


class _TritonSource(_Source, ASTSource):  # type: ignore[misc]
    pass


class _GluonSource(_Source, GluonASTSource):  # type: ignore[misc]
    pass


def ast_source(adapter: Adapter) -> ASTSource:
    """What Triton compiles: a function with its types, constants and attributes."""
    specialization = adapter.specialization
    source_type = _GluonSource if adapter.function.is_gluon() else _TritonSource
    source = source_type(
        adapter.function,
        dict(specialization.signature),
        {path: static.value for path, static in specialization.constexprs},
        {path: [list(pair) for pair in pairs] for path, pairs in specialization.attributes},
    )
    source.batching = adapter.batching
    return source


def compile_arguments(
    source: KernelSource,
    arguments: Sequence[Tree],
    operands: Sequence[Any],
    outputs: Sequence[Any],
    constexprs: Mapping[str, Static],
    options: Sequence[tuple[str, Any]],
    target: GPUTarget,
    batching: Batching | None,
) -> tuple[Adapter, Binary]:
    """Specializes, adapts and compiles a kernel for one configuration of an equation.

    Returns:
      The adapter whose parameters the binary has, and the binary.
    """
    specialization = specialize_arguments(source, arguments, operands, outputs, constexprs, target)
    adapter = adapt(source, arguments, specialization, batching)
    return adapter, compile_kernel(adapter, options_for(target, options), target)


def compile_kernel(adapter: Adapter, options: Mapping[str, Any], target: GPUTarget) -> Binary:
    """The binary, compiled unless it is at hand; two threads that ask for it compile it once.

    Raises:
      OutOfSharedMemoryError: the kernel needs more shared memory than the target has.
      triton.CompilationError: the kernel's source is at fault; with the excerpt that Triton shows.
      LaunchValueError: an option has a value that the backend refuses.
      UnsupportedError: an option asks for what jaxlib's runtime can't do.
    """
    source = adapter.specialization.source
    parsed = check_options(source, options, target)
    key = (adapter.specialization.key, str(sorted(vars(parsed).items())), target, adapter.paths, adapter.text)
    with _lock:
        of_function = _compiled.setdefault(source.function, {})
        future = of_function.get(key)
        mine = future is None
        if future is None:
            future = of_function[key] = Future()
    if mine:
        try:
            binary = _compile(adapter, parsed, target)
        except BaseException as error:
            with _lock:
                of_function.pop(key, None)
            future.set_exception(error)
            raise
        _by_digest[binary.digest] = binary
        if "ptx" in binary.asm:
            _by_digest[ptx_digest(binary.asm["ptx"])] = binary
        future.set_result(binary)
    binary = future.result()
    _check_shared_memory(source, binary, options)
    return binary


def _check_shared_memory(source: KernelSource, binary: Binary, options: Mapping[str, Any]) -> None:
    limit = shared_bytes_limit(binary.target)
    if limit is None or binary.shared_bytes <= limit:
        return
    chosen = ", ".join(f"{name}={value}" for name, value in options.items())
    raise OutOfSharedMemoryError(
        f"needs {binary.shared_bytes:,} bytes of shared memory{' with ' + chosen if chosen else ''}; "
        f"{target_name(binary.target)} offers {limit:,}. Lower num_stages or the block sizes.",
        kernel=source.name,
        needed_bytes=binary.shared_bytes,
        available_bytes=limit,
    )


def check_options(source: KernelSource, options: Mapping[str, Any], target: GPUTarget) -> Any:
    """The backend's options object for a launch's options.

    Raises:
      LaunchValueError: an option has a value that the backend refuses.
      UnsupportedError: an option asks for what jaxlib's runtime can't do.
    """
    given = dict(options)
    # As `JITFunction.run` does: what the decorator and the environment say of debugging.
    knobs = triton.knobs
    options = {
        "debug": source.function.debug or knobs.runtime.debug,
        "instrumentation_mode": knobs.compilation.instrumentation_mode,
        **options,
    }
    try:
        parsed = make_backend(target).parse_options(dict(options))
    except (AssertionError, ValueError, TypeError) as error:
        raise LaunchValueError(
            f"Triton's backend for {target_name(target)} refuses the options {given}: {error}.",
            kernel=source.name,
        ) from error
    for option in ("launch_cooperative_grid", "launch_pdl"):
        if getattr(parsed, option, False):
            raise UnsupportedError(
                f"{option} is set, but jaxlib's runtime launches every kernel plainly; remove the option.",
                kernel=source.name,
            )
    return parsed


def _compile(adapter: Adapter, options: Any, target: GPUTarget) -> Binary:
    source = adapter.specialization.source
    try:
        compiled: CompiledKernel = triton.compile(ast_source(adapter), target=target, options=vars(options))
    except Exception as error:
        raise_compile_error(error, adapter, f"while jtprim compiled {source.name} for {target_name(target)}")
    metadata = compiled.metadata
    binary_stage = "cubin" if target.backend == "cuda" else "hsaco"
    image = compiled.asm[binary_stage]
    launch = (
        metadata.name,
        metadata.num_warps,
        metadata.num_ctas,
        metadata.shared,
        getattr(metadata, "global_scratch_size", 0),
        getattr(metadata, "global_scratch_align", 1),
    )
    asm = {stage: compiled.asm[stage] for stage in _TEXT_STAGES if stage in compiled.asm}
    # The first text as well: two kernels may become one image, and `inspect` shows each its own source.
    first = next(iter(asm.values()))
    digest = hashlib.sha256(repr((launch, first)).encode() + image).hexdigest()
    name, num_warps, num_ctas, shared_bytes, scratch_bytes, scratch_alignment_bytes = launch
    return Binary(
        name=name,
        target=target,
        num_warps=num_warps,
        num_ctas=num_ctas,
        shared_bytes=shared_bytes,
        scratch_bytes=scratch_bytes,
        scratch_alignment_bytes=scratch_alignment_bytes,
        image=image,
        asm=asm,
        digest=digest,
        descriptors=tuple(getattr(metadata, "tensordesc_meta", None) or ()),
    )


def raise_compile_error(error: Exception, adapter: Adapter, note: str) -> NoReturn:
    """Raises what Triton raised, with a note; of an adapter, the error in the kernel that it calls."""
    generated = adapter.function.fn is not adapter.specialization.source.function.fn
    if generated and isinstance(error.__cause__, triton.CompilationError):
        error = error.__cause__
    error.add_note(note)
    if adapter.numbers:
        error.add_note(
            f"{', '.join(adapter.numbers)}: a number that went through jax.jit, or a weakly typed array of "
            "one, comes by value; for a pointer to it pass an array with a dtype, such as jnp.float32(x)"
        )
    raise error


def ptx_digest(text: str) -> str:
    """Identifies a binary by its PTX, for calls that carry nothing else."""
    return hashlib.sha256(text.encode()).hexdigest()


def find_binary(digest: str) -> Binary | None:
    """A binary that is in memory, by its own digest or that of its PTX."""
    return _by_digest.get(digest)


def compiled_binaries(function: JITFunction) -> tuple[Binary, ...]:
    """The binaries of a kernel that are in memory, in the order in which they were asked for."""
    with _lock:
        futures = list((_compiled.get(function) or {}).values())
    return tuple(f.result() for f in futures if f.done() and f.exception() is None)


def clear_caches() -> None:
    """Forgets all compiled kernels in memory; those on disk stay."""
    with _lock:
        _compiled.clear()
