"""Triton and Gluon kernels inside JAX programs."""

from triton import cdiv as cdiv
from triton import next_power_of_2 as next_power_of_2

from jtprim import lowering as lowering
from jtprim import transforms as transforms
from jtprim.caches import clear_caches as clear_caches
from jtprim.checks import debug as debug
from jtprim.chunks import chunk_bytes as chunk_bytes
from jtprim.descriptors import TensorDescriptor as TensorDescriptor
from jtprim.descriptors import by_value as by_value
from jtprim.descriptors import strides_from_shape as strides_from_shape
from jtprim.errors import JtprimError as JtprimError
from jtprim.exporting import export as export
from jtprim.inspection import InspectedKernel as InspectedKernel
from jtprim.inspection import Inspection as Inspection
from jtprim.inspection import inspect as inspect
from jtprim.launch import Kernel as Kernel
from jtprim.launch import kernel as kernel
from jtprim.launch import specialize as specialize
from jtprim.launch import triton_call as triton_call
from jtprim.lowering.gpu import CUSTOM_CALL_TARGET_NAME as CUSTOM_CALL_TARGET_NAME
from jtprim.primitive import Configuration as Configuration
from jtprim.primitive import CostEstimate as CostEstimate
from jtprim.primitive import launch_parameters as launch_parameters
from jtprim.primitive import triton_kernel_p as triton_kernel_p
from jtprim.sharding import axis_size as axis_size
from jtprim.specialize.binder import Specialization as Specialization
from jtprim.specialize.target import get_compute_capability as get_compute_capability

__version__ = "0.1.0"
