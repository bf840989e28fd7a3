"""Hypothesis strategies, each named for what it draws."""

import jax
import jax.numpy as jnp
import triton.language as tl
from hypothesis import strategies as st

from jtprim.lowering import payload

# ---------------------------------------------------------------------------------------------
# payloads
# ---------------------------------------------------------------------------------------------

u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)

array_parameters = st.builds(payload.ArrayParameter, alignment_bytes=u64, zeroed_bytes=u64)

scalar_parameters = st.one_of(
    st.builds(payload.ScalarParameter, st.just("bool_"), st.booleans()),
    st.builds(payload.ScalarParameter, st.just("i32"), st.integers(-(2**31), 2**31 - 1)),
    st.builds(payload.ScalarParameter, st.just("u32"), u32),
    st.builds(payload.ScalarParameter, st.just("i64"), st.integers(-(2**63), 2**63 - 1)),
    st.builds(payload.ScalarParameter, st.just("u64"), u64),
    st.builds(payload.ScalarParameter, st.just("f32"), st.floats(width=32)),
    st.builds(payload.ScalarParameter, st.just("f64"), st.floats()),
)


@st.composite
def tensor_descriptor_parameters(draw):
    def per_axis(numbers):
        return st.lists(numbers, min_size=rank, max_size=rank).map(tuple)

    rank = draw(st.integers(1, 5))
    return payload.TensorDescriptorParameter(
        element_type=draw(u32),
        swizzle=draw(u32),
        shape=draw(per_axis(u64)),
        strides=draw(per_axis(u64)),
        block_shape=draw(per_axis(u32)),
        oob_fill=draw(u32),
    )


@st.composite
def compiled_kernels(draw):
    return payload.Kernel(
        name=draw(st.text()),
        num_warps=draw(u32),
        num_ctas=draw(u32),
        shared_bytes=draw(u32),
        code=draw(
            st.builds(payload.Ptx, st.text())
            | st.builds(payload.ModuleImage, object_file=st.binary(), digest=st.text())
        ),
        compute_capability=draw(u32),
    )


kernel_calls = st.builds(
    payload.KernelCall,
    kernel=compiled_kernels(),
    grid=st.tuples(u32, u32, u32),
    parameters=st.lists(
        array_parameters | scalar_parameters | tensor_descriptor_parameters(), max_size=5
    ).map(tuple),
)

buffer_aliases = st.builds(payload.BufferAlias, input_buffer=u32, output_buffer=u32, size_bytes=u64)

autotuned_kernel_calls = st.builds(
    payload.AutotunedKernelCall,
    name=st.text(),
    configurations=st.lists(st.tuples(kernel_calls, st.text()), max_size=3).map(tuple),
    aliases=st.lists(buffer_aliases, max_size=3).map(tuple),
)

payloads = st.builds(
    payload.Payload, call=kernel_calls | autotuned_kernel_calls, name=st.text(), metadata=st.binary()
)


# ---------------------------------------------------------------------------------------------
# arguments of a launch
# ---------------------------------------------------------------------------------------------

DTYPES = (
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
)

# Around the borders that Triton's specialization looks at.
integers = st.one_of(
    st.sampled_from(
        [0, 1, 2, 15, 16, 17, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**63 - 1, 2**63, 2**64 - 1]
    ),
    st.integers(-(2**63), 2**64 - 1),
)

scalars = st.one_of(
    integers, st.booleans(), st.floats(), st.text("abD", max_size=3), st.sampled_from([tl.float16, tl.int8])
)


@st.composite
def shapes_and_dtypes(draw):
    """A `jax.ShapeDtypeStruct` of any dtype that both JAX and Triton have, up to more than 2 GiB."""
    shape = draw(st.sampled_from([(), (1,), (16,), (3, 5), (0,), (2**29, 4)]))
    return jax.ShapeDtypeStruct(shape, jnp.dtype(draw(st.sampled_from(DTYPES))))
