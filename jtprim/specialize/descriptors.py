"""What tensor descriptors are to Triton: types when it compiles, and several parameters when it has.

A compiled kernel takes for each descriptor either a TMA descriptor, made by the runtime, or, where the
target has none or the kernel was rewritten to pointers, a pointer with shape, strides and flags; in both
cases shape and strides follow once more (Triton 3.9's `triton.backends.driver`, which 3.6 agrees with).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from jtprim import compat
from jtprim.arguments import Path, View
from jtprim.errors import UnsupportedError
from jtprim.specialize.binder import Specialization


def is_descriptor(kind: Any) -> bool:
    """Whether a type of a signature is a tensor descriptor's."""
    return isinstance(kind, str) and kind.startswith("tensordesc")


def shape_and_strides(view: View) -> list[tuple[str, int]]:
    """The numbers, with their types, that follow a descriptor among the compiled kernel's parameters."""
    return [*(("i32", size) for size in view.shape), *(("i64", stride) for stride in view.strides)]


def decomposed(view: View, *, kernel: str, parameter: str) -> list[tuple[str, int]]:
    """The numbers that follow a pointer which the compiled kernel takes in place of a descriptor.

    Raises:
      UnsupportedError: this Triton doesn't round to TF32 without TMA.
    """
    if view.round_f32_to_tf32 and not compat.DESCRIPTORS_ROUND:
        raise UnsupportedError(
            f"argument {parameter!r} has round_f32_to_tf32=True, which this Triton does with TMA alone; "
            "upgrade Triton, or leave it out.",
            kernel=kernel,
            parameter=parameter,
        )
    return [
        *(("i64", number) for number in (*view.shape, *view.strides)),
        ("u1", view.padding == "nan"),
        *([("u1", view.round_f32_to_tf32)] if compat.DESCRIPTORS_ROUND else []),
        *shape_and_strides(view),
    ]


def dissolved(view: View, *, kernel: str, parameter: str) -> list[tuple[str, int]]:
    """The numbers that follow a pointer which the portable lowering takes in place of a Gluon kernel's
    descriptor: sizes, strides, and whether NaN is read out of bounds.

    Raises:
      UnsupportedError: the descriptor rounds to TF32.
    """
    if view.round_f32_to_tf32:
        raise UnsupportedError(
            f"argument {parameter!r} has round_f32_to_tf32=True, which has no portable lowering in a Gluon "
            "kernel; leave it out.",
            kernel=kernel,
            parameter=parameter,
        )
    return [*shape_and_strides(view), ("u1", view.padding == "nan")]


def decomposed_paths(specialization: Specialization) -> Iterator[Path]:
    """The path of the argument that each parameter of a kernel's IR is part of.

    Triton's own IR is without descriptors; in Gluon's each is one parameter, before its sizes and strides.
    """
    if specialization.source.function.is_gluon():
        return flattened_paths(specialization)
    return _paths(specialization, lambda rank: 4 * rank + 1 + compat.DESCRIPTORS_ROUND)


def flattened_paths(specialization: Specialization) -> Iterator[Path]:
    """The same of the IR as the frontend makes it, with descriptors."""
    return _paths(specialization, lambda rank: 2 * rank)


def _paths(specialization: Specialization, numbers: Callable[[int], int]) -> Iterator[Path]:
    for path, kind in specialization.leaf_types():
        if is_descriptor(kind):
            rank = kind[kind.index("[") : kind.index("]")].count(",") + 1
            yield from [path] * (1 + numbers(rank))
        elif kind != "constexpr":
            yield path
