import copy
import dataclasses
import importlib.metadata
import math
import os
import re
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool
from hypothesis import given
from hypothesis import strategies as st

from jtprim.lowering import payload
from jtprim.lowering.payload import (
    ArrayParameter,
    AutotunedKernelCall,
    BufferAlias,
    Kernel,
    KernelCall,
    ModuleImage,
    Payload,
    Ptx,
    ScalarParameter,
    TensorDescriptorParameter,
    decode,
    encode,
)
from tests import strategies

KERNEL = Kernel("add", num_warps=4, num_ctas=1, shared_bytes=0, code=Ptx("//"), compute_capability=90)
CALL = KernelCall(KERNEL, (8, 1, 1), (ArrayParameter(16), ScalarParameter("i32", -1)))


def sent(data: Payload) -> bytes:
    """The message inside the bytes that the runtime gets."""
    return zlib.decompress(encode(data))


# --- both ways


@given(strategies.payloads)
def test_a_payload_comes_back_as_it_went(data):
    returned = decode(encode(data))
    assert repr(returned) == repr(data)  # tells 0.0 from -0.0, and NaN equals itself
    if "nan" not in repr(data):
        assert returned == data
        assert hash(returned) == hash(data)


@given(strategies.payloads)
def test_equal_payloads_have_equal_bytes(data):
    assert encode(copy.deepcopy(data)) == encode(data)


@given(st.floats())
def test_an_f32_travels_rounded_to_float32(value):
    call = dataclasses.replace(CALL, parameters=(ScalarParameter("f32", value),))
    with np.errstate(over="ignore"):
        rounded = float(np.float32(value))
    [returned] = decode(encode(Payload(call))).call.parameters
    assert repr(returned.value) == repr(rounded)


@pytest.mark.parametrize("kind", ["f32", "f64"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -0.0])
def test_floats_that_are_no_ordinary_numbers_travel(kind, value):
    call = dataclasses.replace(CALL, parameters=(ScalarParameter(kind, value),))
    [returned] = decode(encode(Payload(call))).call.parameters
    assert repr(returned.value) == repr(value)


def test_the_bytes_of_a_launch_are_these():
    assert sent(Payload(CALL, name="add", metadata=b"m")) == bytes.fromhex(
        "0a 2a"  # kernel_call
        "   0a 0f"  # kernel
        "      0a 03 616464"  # kernel_name
        "      10 04"  # num_warps
        "      22 02 2f2f"  # ptx; no shared memory, so no field for it
        "      30 5a"  # compute_capability
        "      50 01"  # num_ctas
        "   10 08  18 01  20 01"  # grid
        "   2a 04  0a 02 10 10"  # an array aligned to 16 bytes
        "   2a 0b  18 ffffffffffffffffff01"  # i32 -1
        "1a 01 6d"  # metadata
        "22 03 616464"  # name
    )


def test_the_bytes_of_an_autotuned_launch_are_these():
    kernel = dataclasses.replace(KERNEL, name="", code=Ptx(""))
    call = AutotunedKernelCall("t", ((KernelCall(kernel, (1, 1, 1), ()), "c"),), (BufferAlias(0, 2, 4),))
    assert sent(Payload(call)) == bytes.fromhex(
        "12 1e"  # autotuned_kernel_call
        "   0a 01 74"  # name
        "   12 13"  # configuration
        "      0a 0e  0a 06 10 04 30 5a 50 01  10 01 18 01 20 01"
        "      12 01 63"  # description
        "   1a 04  10 02 18 04"  # an alias of operand 0
    )


# --- what a runtime that is older than the schema must not be sent


def fields_sent(kernel: Kernel) -> set[int]:
    message = payload._AnyKernelCall.FromString(sent(Payload(KernelCall(kernel, (1, 1, 1), ()))))
    return {field.number for field, _ in message.kernel_call.kernel.ListFields()}


NEWER_KERNEL_FIELDS = {11, 12, 13}


def test_an_object_file_alone_needs_a_newer_field():
    assert not fields_sent(KERNEL) & NEWER_KERNEL_FIELDS
    kernel = dataclasses.replace(KERNEL, code=ModuleImage(b"ELF", "digest"))
    assert fields_sent(kernel) & NEWER_KERNEL_FIELDS == {11}


def test_an_object_file_is_sent_with_its_digest_as_ptx():
    call = KernelCall(dataclasses.replace(KERNEL, code=ModuleImage(b"ELF", "digest")), (1, 1, 1), ())
    kernel = payload._AnyKernelCall.FromString(sent(Payload(call))).kernel_call.kernel
    assert kernel.ptx == "digest"
    assert kernel.module_image.object_file == b"ELF"
    assert kernel.module_image.kernel_name == kernel.kernel_name


# --- errors


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("i32", 2**31),
        ("i32", -(2**31) - 1),
        ("u32", -1),
        ("u32", 2**32),
        ("i64", 2**63),
        ("u64", 2**64),
        ("i32", True),
        ("i32", 1.0),
        ("bool_", 1),
        ("f32", "1"),
        ("f64", True),
        ("f16", 1.0),
    ],
)
def test_a_scalar_that_its_kind_cannot_hold_is_refused(kind, value):
    expected = f"a scalar parameter of kind {kind} can't hold {value!r}."
    with pytest.raises(ValueError, match=f"^{re.escape(expected)}$"):
        ScalarParameter(kind, value)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (dataclasses.replace(CALL, grid=(1, 2**32, 1)), "TritonKernelCall.grid_1 can't hold 4294967296."),
        (
            dataclasses.replace(CALL, parameters=(ArrayParameter(-1),)),
            "Array.ptr_divisibility can't hold -1.",
        ),
        (
            dataclasses.replace(CALL, parameters=(TensorDescriptorParameter(0, 0, (4,), (-1,), (4,), 0),)),
            "Nvidia.strides can't hold (-1,).",
        ),
        (
            dataclasses.replace(CALL, parameters=(ScalarParameter("f64", 10**400),)),
            f"Parameter.f64 can't hold {10**400}.",
        ),
    ],
)
def test_a_number_that_its_field_cannot_hold_is_refused(call, sentence):
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        encode(Payload(call))


@given(st.binary() | st.binary().map(zlib.compress))
def test_bytes_that_are_no_payload_are_refused(data):
    with pytest.raises(ValueError, match=r"^[^.]+\.$"):
        decode(data)


# --- the schema


def test_the_default_pool_does_not_learn_the_messages():
    with pytest.raises(KeyError):
        descriptor_pool.Default().FindMessageTypeByName("jax_triton.TritonAnyKernelCall")


# What jaxlib 0.10 lacks. Everything else must stand in every plugin's schema.
NEWER = {
    "ModuleImageProto",
    "TritonKernel.module_image",
    "TritonKernel.global_scratch_size",
    "TritonKernel.global_scratch_align",
    "TritonKernelCall.Parameter.TensorDescriptor",
    "TritonKernelCall.Parameter.TensorDescriptor.Nvidia",
    "TritonKernelCall.Parameter.tensor_descriptor",
}


def wheels() -> list[Path]:
    folder = os.environ.get("JTPRIM_PLUGIN_WHEELS")
    return sorted(Path(folder).glob("jax_*_plugin-*.whl")) if folder else []


def installed_libraries() -> list[Path]:
    return sorted(
        Path(str(distribution.locate_file(file)))
        for distribution in importlib.metadata.distributions()
        if re.fullmatch(r"jax[-_]\w+[-_]plugin", distribution.metadata["Name"])
        for file in distribution.files or ()
        if file.name == "_triton.so"
    )


def read_library(path: Path) -> bytes:
    """The plugin's `_triton.so`, itself or inside a wheel; it is read, never loaded."""
    if path.suffix != ".whl":
        return path.read_bytes()
    with zipfile.ZipFile(path) as wheel:
        [member] = [name for name in wheel.namelist() if name.endswith("/_triton.so")]
        return wheel.read(member)


def embedded_descriptor(library: bytes) -> descriptor_pb2.FileDescriptorProto:
    """The serialized descriptor that protoc's C++ code carries, from field 1, name, to field 12, syntax."""
    name, syntax = b"\n\x17jaxlib/gpu/triton.proto", b"b\x06proto3"
    start = library.index(name)
    end = library.index(syntax, start) + len(syntax)
    return descriptor_pb2.FileDescriptorProto.FromString(library[start:end])


def outline(file: descriptor_pb2.FileDescriptorProto) -> dict[str, dict[str, tuple]]:
    """Messages by path, each with its fields: number, type, label, message, oneof, proto3's optional."""
    messages = {}

    def visit(prefix: str, message: descriptor_pb2.DescriptorProto) -> None:
        path = prefix + message.name
        messages[path] = {
            field.name: (
                field.number,
                field.type,
                field.label,
                field.type_name,
                message.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else None,
                field.proto3_optional,
            )
            for field in message.field
        }
        for nested in message.nested_type:
            visit(f"{path}.", nested)

    for message in file.message_type:
        visit("", message)
    return messages


@pytest.mark.parametrize(
    "plugin",
    [
        pytest.param(path, id=path.name if path.suffix == ".whl" else path.parent.name)
        for path in wheels() + installed_libraries()
    ]
    or [pytest.param(None, marks=pytest.mark.skip("no jax plugin, and no JTPRIM_PLUGIN_WHEELS"))],
)
def test_the_schema_is_that_of_the_plugin(plugin):
    theirs = outline(embedded_descriptor(read_library(plugin)))
    ours = outline(payload._file_descriptor())

    for path, fields in ours.items():
        if path not in theirs:
            assert path in NEWER
            continue
        lacking = {f"{path}.{name}" for name in fields.keys() - theirs[path].keys()}
        assert lacking <= NEWER
        assert theirs[path] == {name: field for name, field in fields.items() if name in theirs[path]}
