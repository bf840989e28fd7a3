"""Stand-ins for arrays and tensor descriptors: what Triton's binder gets in place of PyTorch's tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from jtprim import compat
from jtprim.arguments import View

# XLA aligns every buffer of the GPU platforms at least so; Triton asks for divisibility by 16.
ALIGNMENT_BYTES = 16


class _DType(str):
    """A dtype's name, with what Triton's descriptor classes ask of PyTorch's dtypes."""

    @property
    def itemsize(self) -> int:
        return np.dtype(str(self)).itemsize

    @property
    def is_floating_point(self) -> bool:
        return "float" in self


@dataclass(frozen=True)
class ArrayStandIn:
    """What Triton's binder asks of a tensor."""

    dtype: str
    size_bytes: int

    def data_ptr(self) -> int:
        """An address in bytes; its divisibility is all that Triton looks at."""
        return ALIGNMENT_BYTES

    def ptr_range(self) -> int:
        """The tensor's span in bytes, which AMD's buffer operations limit to 2 GiB."""
        return self.size_bytes


def stand_in(array: Any, view: View | None = None) -> Any:
    """The stand-in of anything with a shape and a dtype, or of a tensor descriptor of it.

    Raises:
      AssertionError, ValueError, TypeError: Triton's own checks of a descriptor.
    """
    size = int(np.prod(array.shape, dtype=np.int64))
    size_bytes = size * np.dtype(array.dtype).itemsize
    if view is None:
        return ArrayStandIn(str(array.dtype), size_bytes)
    base = ArrayStandIn(_DType(array.dtype), size_bytes)
    given = (base, list(view.shape), list(view.strides), list(view.block_shape))
    rounding = {"round_f32_to_tf32": True} if view.round_f32_to_tf32 and compat.DESCRIPTORS_ROUND else {}
    if view.layout is None:
        from triton.tools.tensor_descriptor import TensorDescriptor

        return TensorDescriptor(*given, padding=view.padding, **rounding)
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as GluonTensorDescriptor

    return GluonTensorDescriptor(*given, view.layout, padding=view.padding, **rounding)
