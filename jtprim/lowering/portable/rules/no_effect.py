"""Operations without an effect here: hints, and waiting for what is done already.

Defined in Triton's TritonOps.td, TritonGPUOps.td, TritonNvidiaGPUOps.td and TritonAMDGPUOps.td, and in MLIR's
gpu, rocdl and llvm dialects.
"""

from __future__ import annotations

from jtprim.lowering.portable.machine import Machine, Results, rule
from jtprim.lowering.portable.values import Operand
from jtprim.specialize.reader import Operation


@rule(
    "gpu.barrier",
    "ttg.barrier",
    "ttg.local_barrier",
    "ttng.cluster_arrive",
    "ttng.cluster_wait",
    "ttng.cluster_barrier",
    "ttng.fence_mbarrier_init_release_cluster",
    "amdg.cluster_barrier_arrive",
    "amdg.cluster_barrier_wait",
    "amdg.cond_barrier",
    "amdg.instruction_sched_hint",
    "amdg.memory_counter_wait",
    "rocdl.sched.barrier",
    "llvm.intr.assume",
    "tt.grid_dependency_launch_dependents",
    "tt.grid_dependency_wait",
)
def _nothing(m: Machine, op: Operation, *operands: Operand) -> Results:
    """Nothing: within a program all is in order, and a hint changes no value."""
    return ()


@rule("ttg.convert_layout")
def _same(m: Machine, op: Operation, operand: Operand) -> Results:
    """The same tensor, laid out otherwise."""
    return operand
