"""Rules of `triton_kernel_p` under JAX's transformations, registered on import."""

from jtprim.transforms import batching as batching
from jtprim.transforms import differentiation as differentiation
