"""`export`: `jax.export.export` for functions that launch kernels, for GPUs named by architecture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from triton.backends.compiler import GPUTarget

from jtprim import compat
from jtprim.errors import UnsupportedError, listing
from jtprim.lowering.gpu import CUSTOM_CALL_TARGET_NAME
from jtprim.specialize.target import BACKENDS, TargetLike, forced_targets, parse_target, target_name


def export(
    fun_jit: Any,
    *,
    platforms: Sequence[TargetLike] | None = None,
    disabled_checks: Sequence[jax.export.DisabledSafetyCheck] = (),
) -> Callable[..., jax.export.Exported]:
    """`jax.export.export`, with kernels allowed and GPUs named by architecture.

    Needs no GPU. What is exported carries the compiled kernels: it loads and runs with JAX alone.

        exported = jt.export(jax.jit(f), platforms=("cpu", "cuda:90", "hip:gfx942"))(x)
        Path("f.bin").write_bytes(exported.serialize(vjp_order=1))
        jax.export.deserialize(bytearray(Path("f.bin").read_bytes())).call(x)

    JAX refuses custom calls that aren't on its own list of stable ones, and asks for each to be allowed;
    this allows the one for kernels (`CUSTOM_CALL_TARGET_NAME`), which JAX keeps compatible for the
    programs of its own Triton kernels.

    Args:
      fun_jit: the function, as `jax.jit` makes it.
      platforms: JAX's names (``"cpu"``, ``"cuda"``, ``"rocm"``, ...), or targets (``"cuda:90"``,
        ``"hip:gfx942"``, a `GPUTarget`), at most one for each of JAX's platforms. A target counts before
        those named on launches; a GPU's bare name takes these, or ``JTPRIM_TARGET``. By default the
        platform of this process.
      disabled_checks: of JAX's safety checks, further ones that are not made.

    Returns:
      A function of arrays, or of things with shapes and dtypes, that returns a `jax.export.Exported`.

    Raises:
      UnsupportedError: two targets are for one platform; what is exported has one binary for each.
      ValueError: a name with a colon is no target.
      JtprimError: as a launch would, when the function that is returned is called; an array whose shape has
        symbolic sizes is an error.
    """
    names, targets = _platforms(platforms, getattr(fun_jit, "__name__", "export"))
    exporting = jax.export.export(
        fun_jit,
        platforms=names,
        disabled_checks=(
            *disabled_checks,
            jax.export.DisabledSafetyCheck.custom_call(CUSTOM_CALL_TARGET_NAME),
        ),
    )

    def do_export(*args: Any, **kwargs: Any) -> jax.export.Exported:
        with forced_targets(targets):
            exported = exporting(*args, **kwargs)
        return compat.with_vjp_within(exported, lambda: forced_targets(targets))

    return do_export


def _platforms(
    platforms: Sequence[TargetLike] | None, function: str
) -> tuple[tuple[str, ...] | None, tuple[GPUTarget, ...]]:
    """JAX's names of the platforms, and the targets among them."""
    if platforms is None:
        return None, ()
    jax_names = {backend: name for name, backend in BACKENDS.items()}
    names: list[str] = []
    targets: list[GPUTarget] = []
    for platform in [platforms] if isinstance(platforms, (str, GPUTarget)) else platforms:
        if isinstance(platform, str) and ":" not in platform:
            name = platform
        else:
            target = parse_target(platform)
            targets.append(target)
            name = jax_names[target.backend]
        if name in names:
            of_name = [one for one in targets if jax_names[one.backend] == name]
            raise UnsupportedError(
                f"is exported for {name} twice ({listing(map(target_name, of_name))}), but a program "
                "carries one binary of a kernel for each platform; export it once for each architecture.",
                kernel=function,
            )
        names.append(name)
    return tuple(names), tuple(targets)
