"""All differences between supported versions of JAX and Triton, and all private names jtprim uses.

Nothing else in jtprim asks for a version or imports from ``jax._src``, ``jaxlib`` or ``triton._C``.
Each section says what it is for and which versions it tells apart.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import jaxlib.version
import triton
from jax._src import core as jax_core
from jax._src import effects as jax_effects
from jax._src import pretty_printer as pp
from jax._src import xla_bridge
from jax._src.custom_partitioning_sharding_rule import str_to_sdy_sharding_rule
from jax._src.interpreters import partial_eval
from jax.sharding import NamedSharding, PartitionSpec
from triton.backends.compiler import BaseBackend
from triton.tools.tensor_descriptor import TensorDescriptor


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:3] if part.isdigit())


# --- jaxlib: what the Triton runtime of the GPU plugins understands ---------------------------

# The plugins' runtime takes a binary inline (`TritonKernel.module_image`) from jaxlib 0.11 on; the
# schema inside 0.10's plugins lacks the field.
HAS_MODULE_IMAGE: bool = _version(jaxlib.version.__version__) >= (0, 11)

# It makes TMA descriptors (`TritonKernelCall.Parameter.tensor_descriptor`) from 0.11.1 on; before, it
# passes over the field.
HAS_TENSOR_DESCRIPTORS: bool = _version(jaxlib.version.__version__) >= (0, 11, 1)


# --- JAX: effects, printing, devices ----------------------------------------------------------


class LaunchEffect(jax_effects.Effect):
    """The effect of a launch that was declared to have side effects: never eliminated."""

    def __str__(self) -> str:
        return "Triton"


launch_effect = LaunchEffect()
for _allowed in (
    jax_effects.lowerable_effects,
    jax_effects.control_flow_allowed_effects,
    jax_effects.remat_allowed_effects,
    jax_effects.custom_derivatives_allowed_effects,
):
    _allowed.add_type(LaunchEffect)


def register_printing(primitive: Any, visible: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Prints equations of `primitive` with the parameters that `visible` keeps, on one line."""

    def rule(eqn: Any, context: Any, settings: Any) -> Any:
        parameters = " ".join(f"{name}={value}" for name, value in visible(eqn.params).items())
        lhs = jax_core.pp_vars(eqn.outvars, context, print_shapes=settings.print_shapes)
        rhs = [pp.text(f"{primitive.name}[{parameters}]")]
        if eqn.invars:
            rhs += [pp.text(" "), jax_core.pp_vars(eqn.invars, context)]
        return pp.concat([lhs, pp.text(" = ", annotation=None), *rhs]) if eqn.outvars else pp.concat(rhs)

    jax_core.pp_eqn_rules[primitive] = rule


def at_top_level() -> bool:
    """Whether nothing is being traced on this thread, so that an equation bound now runs at once."""
    return bool(jax_core.trace_state_clean())


def varying_axes(arrays: Iterable[Any]) -> frozenset[Any]:
    """The mesh axes, manual inside `jax.shard_map`, along which any of the arrays or avals differ."""
    types = [array if isinstance(array, jax_core.ShapedArray) else jax.typeof(array) for array in arrays]
    return frozenset().union(*(kind.mat.varying for kind in types))


def varying(arrays: Sequence[Any], axes: frozenset[Any]) -> list[Any]:
    """The arrays, each marked as differing along all the manual mesh axes `axes`."""
    if not axes:
        return list(arrays)
    missing = [axes - varying_axes([array]) for array in arrays]
    return [
        jax.lax.pcast(array, tuple(sorted(some)), to="varying") if some else array
        for array, some in zip(arrays, missing, strict=True)
    ]


def explicit_mesh(arrays: Iterable[Any]) -> Any:
    """The mesh, with axes of `AxisType.Explicit`, that the arrays' types tell their shardings on; or None."""
    meshes = (jax.typeof(array).sharding.mesh for array in arrays)
    return next((mesh for mesh in meshes if mesh.explicit_axes), None)


def in_explicit_mesh() -> bool:
    """Whether types tell shardings in the context, so that XLA has none to find."""
    return bool(jax.sharding.get_abstract_mesh().explicit_axes)


def results_varying_as(operands: Sequence[Any], shapes: Sequence[Any]) -> list[Any]:
    """Abstract results that differ along the same manual mesh axes as the abstract operands do."""
    axes = varying_axes(operands)
    if not axes:
        return [jax_core.ShapedArray(shape.shape, shape.dtype) for shape in shapes]
    mesh = next(operand.sharding.mesh for operand in operands if operand.mat.varying)
    kind = jax_core.ManualAxisType(varying=axes)
    return [
        jax_core.ShapedArray(
            shape.shape,
            shape.dtype,
            sharding=NamedSharding(mesh, PartitionSpec(*[None] * len(shape.shape))),
            manual_axis_type=kind,
        )
        for shape in shapes
    ]


def lowering_devices(module_context: Any, platform: str) -> list[Any]:
    """The devices of one platform that a lowering is for; none when it is for none of this machine.

    `ModuleContext.get_backend` starts the platform's backend where the module has none, and refuses a
    module for several platforms; its attribute does neither.
    """
    backend = module_context.backend
    if backend is None or xla_bridge.canonicalize_platform(backend.platform) != platform:
        return []
    return list(backend.local_devices())


def parse_sharding_rule(text: str, **more: Any) -> Any:
    """The `SdyShardingRule` of its text; a ValueError or TypeError where JAX refuses it."""
    return str_to_sdy_sharding_rule(text, **more)


def uses_shardy() -> bool:
    """Which of JAX's partitioners is set, which its partitioned calls are made for."""
    return bool(jax.config.jax_use_shardy_partitioner)  # type: ignore[attr-defined]


def in_manual_axes() -> bool:
    """Whether what is traced is inside `jax.shard_map`."""
    return bool(jax.sharding.get_abstract_mesh().manual_axes)


def with_vjp_within(exported: Any, context: Callable[[], AbstractContextManager[None]]) -> Any:
    """An `Exported` whose derivative, which is exported when asked for, is so within `context()`."""

    def get_vjp(again: Any) -> Any:
        with context():
            return with_vjp_within(exported._get_vjp(again), context)

    return exported if exported._get_vjp is None else dataclasses.replace(exported, _get_vjp=get_vjp)


def for_export(module_context: Any) -> bool:
    """Whether a module is lowered for `jax.export`."""
    return bool(module_context.lowering_parameters.for_export)


def is_partitioned(module_context: Any) -> bool:
    """Whether XLA's partitioner is to divide a module: not for one device, nor inside `jax.shard_map`."""
    context = module_context.axis_context
    if hasattr(context, "manual_axes"):  # inside shard_map, or a shard of a partitioned operation
        return set(context.manual_axes) != set(context.mesh.axis_names)
    return getattr(context, "num_devices", 1) > 1


def abstract_device_kind() -> str | None:
    """The device kind of the mesh in context (``jax.set_mesh``), if it is a GPU's."""
    mesh = jax.sharding.get_abstract_mesh()
    device = None if mesh.empty else mesh.abstract_device
    if device is None or device.platform not in ("gpu", "cuda", "rocm"):
        return None
    return device.device_kind


# --- JAX: operations that others are made of --------------------------------------------------


def register_expansion(primitive: Any, expanded: Callable[..., Any]) -> None:
    """What takes the place of an equation of `primitive` when operations are written out, before lowering.

    JAX 0.12.1 has some, such as that of `jnp.frexp`, that are written out in others only then.
    """
    primitive.to_lojax = expanded


def expand_jaxpr(jaxpr: Any) -> Any:
    """A closed jaxpr of operations that have lowering rules of their own."""
    return partial_eval.lower_jaxpr2(jaxpr)


# --- Triton: options and the AMD backend's view of arrays --------------------------------------


def option_fields(backend: str) -> dict[str, Any]:
    """The options of a backend (``"cuda"`` or ``"hip"``) with their defaults."""
    if backend == "cuda":
        from triton.backends.nvidia.compiler import CUDAOptions as options
    else:
        from triton.backends.amd.compiler import HIPOptions as options
    return {field.name: field.default for field in dataclasses.fields(options)}


def binder_backend(backend: Any) -> Any:
    """The backend object that Triton's generated binder asks about arrays.

    Triton 3.6 and 3.7: the AMD backend imports torch to learn whether an array spans 2 GiB, even for
    objects that answer `ptr_range` themselves. This one answers by the same rule without it.
    """
    if backend.target.backend != "hip" or _version(triton.__version__) >= (3, 8):
        return backend

    class _Backend(type(backend)):  # type: ignore[misc]
        @staticmethod
        def get_tensor_specialization(arg: Any, **kwargs: Any) -> str:
            text = BaseBackend.get_tensor_specialization(arg, **kwargs)
            in_range = triton.knobs.amd.use_buffer_ops and arg.ptr_range() <= 2**31 - 1
            return text + "S" if in_range else text

    return _Backend(backend.target)


# --- Triton: tensor descriptors ---------------------------------------------------------------

# Newer versions than 3.6 round float32 to TF32 as they load it; a kernel that was rewritten to
# pointers then takes one flag more.
DESCRIPTORS_ROUND: bool = "round_f32_to_tf32" in {
    field.name for field in dataclasses.fields(TensorDescriptor)
}


def tma_element_type(element_type: int) -> int:
    """The ``CUtensorMapDataType`` of an element type as Triton's compiler numbers them."""
    from triton.backends.nvidia.driver import TMA_DTYPE_DEVICE_TO_HOST

    return int(TMA_DTYPE_DEVICE_TO_HOST[element_type])


# --- Triton: changing a module -----------------------------------------------------------------


def ir_builder(context: Any) -> Any:
    """What makes operations of Triton's IR."""
    from triton._C import libtriton

    return libtriton.ir.builder(context)


def called_operations(module: Any) -> list[tuple[Any, str]]:
    """The operations about a program's place in the grid, in all functions but the entry.

    Returns:
      Each with ``"tt.get_program_id x"``, ``"tt.get_num_programs z"`` and such; inline assembly with its
      text; what cluster launch control says with its name. Triton 3.6 doesn't tell an operation's axis; all
      versions print operations in the order in which they are walked.
    """
    printed = re.findall(
        r"^\s*%\S+ = (tt\.get_program_id|tt\.get_num_programs) ([xyz])", module.str_nodebug(), re.M
    )
    asks = iter([" ".join(words) for words in printed])
    found: list[tuple[Any, str]] = []
    of_function: list[tuple[Any, str]] = []

    def visit(operation: Any) -> None:  # a function comes after what is in it
        name = operation.get_name()
        if name in ("tt.get_program_id", "tt.get_num_programs"):
            of_function.append((operation, next(asks)))
        elif name == "ttng.clc_get_program_id":
            of_function.append((operation, name))
        elif name == "tt.elementwise_inline_asm":
            of_function.append((operation, operation.get_str_attr("asm_string")))
        elif name == "tt.func":
            if operation.get_str_attr("sym_visibility") != "public":
                found.extend(of_function)
            of_function.clear()

    module.walk(visit)
    return found


# --- Triton: printing a module in generic form ------------------------------------------------

# jaxlib's MLIR bindings; they read what Triton prints. `mlir-python-bindings` on PyPI is an empty
# placeholder, so these are the ones to use.
from jaxlib.mlir import ir as _ir  # noqa: E402

mlir_ir: Any = _ir

_GENERIC_MARK = "jtprim_generic"


def triton_context(backend: Any) -> Any:
    """A fresh MLIR context of Triton's, with the dialects of `backend` loaded, and all others there are.

    MLIR ends the process where a kernel makes an operation of a dialect that isn't loaded.
    """
    from triton._C import libtriton

    context = libtriton.ir.context()
    libtriton.ir.load_dialects(context)
    for vendor in ("nvidia", "amd"):
        if hasattr(libtriton, vendor):
            getattr(libtriton, vendor).load_dialects(context)
    backend.load_dialects(context)
    return context


def inline_gluon(module: Any) -> None:
    """Inlines the calls of a Gluon module and resolves its automatic layouts.

    These are the passes that both backends begin their `ttgir` stage with. What they do further is not
    wanted here: NVIDIA's makes bytes in scratch memory of every tensor descriptor.
    """
    from triton._C.libtriton import ir, passes

    manager = ir.pass_manager(module.context)
    passes.gluon.add_inliner(manager)
    passes.gluon.add_infer_coalesced_encodings(manager)
    passes.gluon.add_resolve_auto_encodings(manager)
    passes.gluon.add_canonicalizer(manager)
    passes.common.add_sccp(manager)
    passes.ttir.add_loop_aware_cse(manager)
    passes.gluon.add_canonicalizer(manager)
    passes.common.add_symbol_dce(manager)
    manager.run(module, "jtprim_gluon")


def print_generic(module: Any, context: Any) -> str:
    """Prints one of Triton's modules in MLIR's generic form, with source locations.

    libtriton has no switch for the generic form, but MLIR falls back to it for a module that does not
    verify: a unit attribute without a dialect's prefix is enough. The mark is given a prefix in the
    text, which is then valid. The module is spoilt and must not be used afterwards.
    """
    from triton._C.libtriton import ir

    module.set_attr(_GENERIC_MARK, ir.builder(context).get_unit_attr())
    return str(module).replace(_GENERIC_MARK, _GENERIC_MARK.replace("_", "."))
