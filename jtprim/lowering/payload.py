"""The message in the custom call's ``opaque`` attribute, both ways.

jaxlib's GPU plugins launch a Triton kernel from zlib-compressed bytes of the protobuf message
``jax_triton.TritonAnyKernelCall``. The wire format is under JAX's export compatibility promise, the
plugins' Python constructors are not, and they exist only beside a plugin: so jtprim holds the
schema itself, and lowers for a GPU anywhere.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

# ---------------------------------------------------------------------------------------------
# What a launch is, as data.
# ---------------------------------------------------------------------------------------------

ScalarKind = Literal["bool_", "i32", "u32", "i64", "u64", "f32", "f64"]

_INTEGER_RANGES = {
    "i32": (-(2**31), 2**31 - 1),
    "u32": (0, 2**32 - 1),
    "i64": (-(2**63), 2**63 - 1),
    "u64": (0, 2**64 - 1),
}


@dataclass(frozen=True)
class ArrayParameter:
    """A pointer to the next of the call's buffers.

    Arguments:
      alignment_bytes: the runtime refuses a buffer whose address this doesn't divide; 0 checks nothing.
      zeroed_bytes: how many bytes of the buffer the runtime sets to zero before the launch.
    """

    alignment_bytes: int
    zeroed_bytes: int = 0


@dataclass(frozen=True)
class ScalarParameter:
    """A number passed by value.

    A ``value`` of kind ``f32`` is rounded to float32 by `encode`, to infinity where it is too large.

    Raises:
      ValueError: ``value`` isn't one that ``kind`` can hold.
    """

    kind: ScalarKind
    value: bool | int | float

    def __post_init__(self) -> None:
        if not _can_hold(self.kind, self.value):
            raise ValueError(f"a scalar parameter of kind {self.kind} can't hold {self.value!r}.")


def _can_hold(kind: ScalarKind, value: bool | int | float) -> bool:
    if kind == "bool_" or isinstance(value, bool):
        return kind == "bool_" and isinstance(value, bool)
    if kind in _INTEGER_RANGES:
        lowest, highest = _INTEGER_RANGES[kind]
        return isinstance(value, int) and lowest <= value <= highest
    return kind in ("f32", "f64") and isinstance(value, int | float)


@dataclass(frozen=True)
class TensorDescriptorParameter:
    """A TMA descriptor (NVIDIA, Hopper on) that the runtime makes over the next of the call's buffers.

    Arguments:
      element_type: the number of a ``CUtensorMapDataType``.
      swizzle: the number of a ``CUtensorMapSwizzle``.
      shape: the tensor's shape, outermost axis first.
      strides: the tensor's strides, in elements.
      block_shape: the shape of the block that one copy moves, in elements.
      oob_fill: the number of a ``CUtensorMapFloatOOBfill``: 0 for zeros, 1 for NaN.
    """

    element_type: int
    swizzle: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    block_shape: tuple[int, ...]
    oob_fill: int


Parameter: TypeAlias = ArrayParameter | ScalarParameter | TensorDescriptorParameter


@dataclass(frozen=True)
class Ptx:
    """PTX assembly, which the runtime assembles at the first launch."""

    text: str


@dataclass(frozen=True)
class ModuleImage:
    """An object file (cubin or hsaco), which the runtime loads as it is.

    Arguments:
      object_file: the file's content.
      digest: a short string that no other object file has.
    """

    object_file: bytes
    digest: str


@dataclass(frozen=True)
class Kernel:
    """A compiled kernel.

    Arguments:
      name: the entry function in ``code``.
      num_warps: warps of the *compiled* kernel (warp specialization adds to the option's number).
      num_ctas: thread blocks of a cluster.
      shared_bytes: dynamic shared memory of a thread block.
      code: PTX, or an object file for runtimes that take one.
      compute_capability: 90 for an NVIDIA sm_90.
    """

    name: str
    num_warps: int
    num_ctas: int
    shared_bytes: int
    code: Ptx | ModuleImage
    compute_capability: int


@dataclass(frozen=True)
class KernelCall:
    """One kernel, how many programs of it run on each axis, and what they are given."""

    kernel: Kernel
    grid: tuple[int, int, int]
    parameters: tuple[Parameter, ...]


@dataclass(frozen=True)
class BufferAlias:
    """An operand that shares its buffer with a result; the runtime restores it after tuning.

    Arguments:
      input_buffer: index of the operand.
      output_buffer: index of the result among *all* buffers, operands first: result ``r`` of a call
        with ``n`` operands is ``n + r``.
      size_bytes: size of the buffer.
    """

    input_buffer: int
    output_buffer: int
    size_bytes: int


@dataclass(frozen=True)
class AutotunedKernelCall:
    """Several configurations of a launch, each with a description; the runtime times them and keeps one."""

    name: str
    configurations: tuple[tuple[KernelCall, str], ...]
    aliases: tuple[BufferAlias, ...]


@dataclass(frozen=True)
class Payload:
    """All that a custom call tells the runtime."""

    call: KernelCall | AutotunedKernelCall
    name: str = ""
    metadata: bytes = b""


def encode(payload: Payload) -> bytes:
    """The bytes for the custom call's ``opaque`` attribute.

    The same payload gives the same bytes: XLA's and JAX's caches are keyed by them.

    Raises:
      ValueError: a number doesn't fit the field that carries it.

    >>> kernel = Kernel("add", 4, 1, 0, Ptx("// PTX"), compute_capability=90)
    >>> payload = Payload(KernelCall(kernel, (8, 1, 1), (ArrayParameter(16), ScalarParameter("i32", 7))))
    >>> decode(encode(payload)) == payload
    True
    """
    message = _AnyKernelCall()
    _fill(message, name=payload.name, metadata=payload.metadata)
    match payload.call:
        case KernelCall():
            _write_kernel_call(message.kernel_call, payload.call)
        case AutotunedKernelCall():
            _write_autotuned_call(message.autotuned_kernel_call, payload.call)
    return zlib.compress(message.SerializeToString(deterministic=True))


def decode(data: bytes) -> Payload:
    """The payload that `encode` made ``data`` of.

    Fields that jtprim never writes (``ttir``, those of a newer schema) are passed over.

    Raises:
      ValueError: ``data`` isn't such a message.
    """
    try:
        message = _AnyKernelCall.FromString(zlib.decompress(data))
    except zlib.error as error:
        raise ValueError(f"a Triton payload is zlib-compressed, these {len(data)} bytes aren't.") from error
    except DecodeError as error:
        raise ValueError("a Triton payload holds a TritonAnyKernelCall message, this one doesn't.") from error

    call: KernelCall | AutotunedKernelCall
    match message.WhichOneof("value"):
        case "kernel_call":
            call = _read_kernel_call(message.kernel_call)
        case "autotuned_kernel_call":
            call = _read_autotuned_call(message.autotuned_kernel_call)
        case _:
            raise ValueError("this Triton payload holds no kernel call.")
    return Payload(call, message.name, message.metadata)


# ---------------------------------------------------------------------------------------------
# Data to message.
# ---------------------------------------------------------------------------------------------

# protobuf makes its classes at run time and ships no types.
_Message: TypeAlias = Any


def _write_autotuned_call(message: _Message, call: AutotunedKernelCall) -> None:
    _fill(message, name=call.name)
    for kernel_call, description in call.configurations:
        configuration = message.configs.add()
        _fill(configuration, description=description)
        _write_kernel_call(configuration.kernel_call, kernel_call)
    for alias in call.aliases:
        _fill(
            message.input_output_aliases.add(),
            input_buffer_idx=alias.input_buffer,
            output_buffer_idx=alias.output_buffer,
            buffer_size_bytes=alias.size_bytes,
        )


def _write_kernel_call(message: _Message, call: KernelCall) -> None:
    _write_kernel(message.kernel, call.kernel)
    grid_0, grid_1, grid_2 = call.grid
    _fill(message, grid_0=grid_0, grid_1=grid_1, grid_2=grid_2)
    for parameter in call.parameters:
        _write_parameter(message.parameters.add(), parameter)


def _write_kernel(message: _Message, kernel: Kernel) -> None:
    _fill(
        message,
        kernel_name=kernel.name,
        num_warps=kernel.num_warps,
        num_ctas=kernel.num_ctas,
        shared_mem_bytes=kernel.shared_bytes,
        compute_capability=kernel.compute_capability,
    )
    match kernel.code:
        case Ptx(text):
            _fill(message, ptx=text)
        case ModuleImage(object_file, digest):
            # The runtime caches loaded images by (kernel_name, shared_mem_bytes, ptx,
            # compute_capability), the object file is not part of it: without something of its own in
            # `ptx`, a kernel would run the image of another one of the same name.
            _fill(message, ptx=digest)
            _fill(
                message.module_image,
                object_file=object_file,
                kernel_name=kernel.name,
                shared_mem_bytes=kernel.shared_bytes,
            )


def _write_parameter(message: _Message, parameter: Parameter) -> None:
    match parameter:
        case ArrayParameter(alignment_bytes, zeroed_bytes):
            _fill(message.array, ptr_divisibility=alignment_bytes, bytes_to_zero=zeroed_bytes)
        case ScalarParameter(kind, value):
            _fill(message, **{kind: value})
        case TensorDescriptorParameter():
            _fill(
                message.tensor_descriptor.nvidia,
                elem_type=parameter.element_type,
                swizzle=parameter.swizzle,
                shape=parameter.shape,
                strides=parameter.strides,
                block_shape=parameter.block_shape,
                oob_fill=parameter.oob_fill,
            )


def _fill(message: _Message, **fields: Any) -> None:
    """Sets fields of a message, with an error that names the one that a value doesn't fit."""
    for name, value in fields.items():
        try:
            if isinstance(value, tuple):
                getattr(message, name).extend(value)
            else:
                setattr(message, name, value)
        except (OverflowError, TypeError, ValueError) as error:
            raise ValueError(f"{message.DESCRIPTOR.name}.{name} can't hold {value!r}.") from error


# ---------------------------------------------------------------------------------------------
# Message to data.
# ---------------------------------------------------------------------------------------------


def _read_autotuned_call(message: _Message) -> AutotunedKernelCall:
    return AutotunedKernelCall(
        name=message.name,
        configurations=tuple(
            (_read_kernel_call(configuration.kernel_call), configuration.description)
            for configuration in message.configs
        ),
        aliases=tuple(
            BufferAlias(alias.input_buffer_idx, alias.output_buffer_idx, alias.buffer_size_bytes)
            for alias in message.input_output_aliases
        ),
    )


def _read_kernel_call(message: _Message) -> KernelCall:
    return KernelCall(
        kernel=_read_kernel(message.kernel),
        grid=(message.grid_0, message.grid_1, message.grid_2),
        parameters=tuple(_read_parameter(parameter) for parameter in message.parameters),
    )


def _read_kernel(message: _Message) -> Kernel:
    has_image = message.HasField("module_image")
    return Kernel(
        name=message.kernel_name,
        num_warps=message.num_warps,
        num_ctas=message.num_ctas if message.HasField("num_ctas") else 1,
        shared_bytes=message.shared_mem_bytes,
        code=ModuleImage(message.module_image.object_file, message.ptx) if has_image else Ptx(message.ptx),
        compute_capability=message.compute_capability,
    )


def _read_parameter(message: _Message) -> Parameter:
    match message.WhichOneof("value"):
        case "array":
            return ArrayParameter(message.array.ptr_divisibility, message.array.bytes_to_zero)
        case "tensor_descriptor":
            descriptor = message.tensor_descriptor.nvidia
            return TensorDescriptorParameter(
                element_type=descriptor.elem_type,
                swizzle=descriptor.swizzle,
                shape=tuple(descriptor.shape),
                strides=tuple(descriptor.strides),
                block_shape=tuple(descriptor.block_shape),
                oob_fill=descriptor.oob_fill,
            )
        case None:
            raise ValueError("a parameter in this Triton payload has no value.")
        case kind:
            return ScalarParameter(kind, getattr(message, kind))


# ---------------------------------------------------------------------------------------------
# The schema, as it stands in jaxlib 0.12 (tests/test_payload.py holds it to the plugins' own).
# ---------------------------------------------------------------------------------------------

# A line without indent names a message; below it stand its fields: number, name, type. Before the
# type may stand `optional`, `repeated`, or `oneof` and that oneof's name, as in a .proto file.
_SCHEMA = """
TritonAnyKernelCall
    1 kernel_call            oneof value TritonKernelCall
    2 autotuned_kernel_call  oneof value TritonAutotunedKernelCall
    3 metadata               bytes
    4 name                   string

TritonAutotunedKernelCall
    1 name                   string
    2 configs                repeated TritonAutotunedKernelCall.Config
    3 input_output_aliases   repeated TritonAutotunedKernelCall.InputOutputAlias

TritonAutotunedKernelCall.Config
    1 kernel_call            TritonKernelCall
    2 description            string

TritonAutotunedKernelCall.InputOutputAlias
    1 input_buffer_idx       uint32
    2 output_buffer_idx      uint32
    3 buffer_size_bytes      uint64

TritonKernelCall
    1 kernel                 TritonKernel
    2 grid_0                 uint32
    3 grid_1                 uint32
    4 grid_2                 uint32
    5 parameters             repeated TritonKernelCall.Parameter

TritonKernelCall.Parameter
    1 array                  oneof value TritonKernelCall.Parameter.Array
    2 bool_                  oneof value bool
    3 i32                    oneof value int32
    4 u32                    oneof value uint32
    5 i64                    oneof value int64
    6 u64                    oneof value uint64
    7 f32                    oneof value float
    8 f64                    oneof value double
    9 tensor_descriptor      oneof value TritonKernelCall.Parameter.TensorDescriptor

TritonKernelCall.Parameter.Array
    1 bytes_to_zero          uint64
    2 ptr_divisibility       uint64

TritonKernelCall.Parameter.TensorDescriptor
    1 nvidia                 oneof backend TritonKernelCall.Parameter.TensorDescriptor.Nvidia

TritonKernelCall.Parameter.TensorDescriptor.Nvidia
    1 elem_type              uint32
    2 swizzle                uint32
    3 shape                  repeated uint64
    4 strides                repeated uint64
    5 block_shape            repeated uint32
    6 oob_fill               uint32

TritonKernel
    1 kernel_name            string
    2 num_warps              uint32
    3 shared_mem_bytes       uint32
    4 ptx                    string
    5 ttir                   string
    6 compute_capability     uint32
   10 num_ctas               optional uint32
   11 module_image           optional ModuleImageProto
   12 global_scratch_size    optional uint32
   13 global_scratch_align   optional uint32

ModuleImageProto
    1 object_file            bytes
    2 kernel_name            string
    3 shared_mem_bytes       uint32
"""


def _file_descriptor() -> descriptor_pb2.FileDescriptorProto:
    """What protoc would make of the schema if it were a .proto file."""
    file = descriptor_pb2.FileDescriptorProto(
        name="jaxlib/gpu/triton.proto", package="jax_triton", syntax="proto3"
    )
    messages: dict[str, _Message] = {}
    for block in _SCHEMA.strip().split("\n\n"):
        path, *rows = block.splitlines()
        parent, _, name = path.rpartition(".")
        siblings = messages[parent].nested_type if parent else file.message_type
        messages[path] = siblings.add(name=name)
        for row in rows:
            _add_field(messages[path], *row.split())
    return file


def _add_field(message: _Message, number: str, name: str, *type_words: str) -> None:
    *label, type_name = type_words
    field = message.field.add(
        number=int(number),
        name=name,
        label=descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL,
    )
    if type_name[0].isupper():
        field.type = descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE
        field.type_name = f".jax_triton.{type_name}"
    else:
        field.type = descriptor_pb2.FieldDescriptorProto.Type.Value(f"TYPE_{type_name.upper()}")

    match label:
        case ["repeated"]:
            field.label = descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED
        case ["oneof", oneof]:
            field.oneof_index = _oneof_index(message, oneof)
        case ["optional"]:  # proto3 says so by a oneof of one field
            field.proto3_optional = True
            field.oneof_index = _oneof_index(message, f"_{name}")


def _oneof_index(message: _Message, name: str) -> int:
    names = [oneof.name for oneof in message.oneof_decl]
    if name not in names:
        message.oneof_decl.add(name=name)
        names.append(name)
    return names.index(name)


# A pool of jtprim's own: in the default pool a second definition of the same messages would clash.
_pool = descriptor_pool.DescriptorPool()
_pool.AddSerializedFile(_file_descriptor().SerializeToString())
_AnyKernelCall: Any = message_factory.GetMessageClass(
    _pool.FindMessageTypeByName("jax_triton.TritonAnyKernelCall")
)
