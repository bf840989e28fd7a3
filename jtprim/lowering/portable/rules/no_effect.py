"""Operations without an effect here: hints, barriers between the threads of a program, debugging."""

from __future__ import annotations

from jtprim.lowering.portable.machine import Machine, Results, rule
from jtprim.lowering.portable.values import Operand
from jtprim.specialize.reader import Operation


@rule(
    "gpu.barrier",
    "ttg.barrier",
    "llvm.intr.assume",
    "tt.print",
    "tt.assert",
)
def _nothing(m: Machine, op: Operation, *operands: Operand) -> Results:
    return ()


@rule("ttg.convert_layout")
def _same(m: Machine, op: Operation, operand: Operand) -> Results:
    return operand
