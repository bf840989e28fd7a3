"""Which parameters a kernel reads and writes, however its pointers travel."""

import jax
import jax.numpy as jnp
import pytest
import triton
import triton.language as tl

import jtprim as jt
from jtprim.errors import LaunchValueError
from jtprim.specialize.access import Access, kernel_access
from jtprim.specialize.adapters import unadapted
from jtprim.specialize.reader import read
from jtprim.specialize.ttir import kernel_ttir
from tests.kernels import add, add_pair, count, double_into_first, pair_of_in_and_out, scale_in_place

X = jax.ShapeDtypeStruct((64,), jnp.float32)
INDEX = jax.ShapeDtypeStruct((64,), jnp.int32)


def access(kernel, *args, **kwargs):
    specialization = jt.specialize(kernel, *args, target="cuda:80", **kwargs)
    return kernel_access(read(kernel_ttir(unadapted(specialization.source, specialization), ())))


def reads_and_writes(kernel, *args, **kwargs):
    found = access(kernel, *args, **kwargs)
    return sorted(found.reads), sorted(found.writes)


@triton.jit
def gathers(x_ptr, index_ptr, out_ptr):
    """An index from one array is added to pointers into two others."""
    offsets = tl.arange(0, 64)
    index = tl.load(index_ptr + offsets)
    tl.store(out_ptr + index, tl.load(x_ptr + index))


@triton.jit
def chooses(x_ptr, y_ptr, flag):
    pointer = x_ptr
    if flag > 3:
        pointer = y_ptr
    tl.store(pointer, 1.0)


@triton.jit
def walks(x_ptr, out_ptr, n):
    """The pointers are carried through a loop."""
    for _ in range(n):
        tl.store(out_ptr, tl.load(x_ptr))
        x_ptr += 1
        out_ptr += 1


@triton.jit
def swaps(x_ptr, y_ptr, n):
    """Which pointer is which changes from one iteration to the next."""
    a = x_ptr
    b = y_ptr
    for _ in range(n):
        tl.store(a, 0.0)
        c = a
        a = b
        b = c


@triton.jit(noinline=True)
def stores_for_another(pointer, value):
    tl.store(pointer, value)


@triton.jit
def calls(x_ptr, out_ptr):
    stores_for_another(out_ptr, tl.load(x_ptr))


@triton.jit
def returns_early(x_ptr, out_ptr, n):
    if tl.program_id(0) >= n:
        return
    tl.store(out_ptr, tl.load(x_ptr))


@triton.jit
def through_a_number(x_ptr, out_ptr):
    address = out_ptr.to(tl.int64, bitcast=True) + 4
    tl.store(address.to(tl.pointer_type(tl.float32), bitcast=True), tl.load(x_ptr))


@triton.jit
def locks(lock_ptr, x_ptr):
    while tl.atomic_cas(lock_ptr, 0, 1) == 1:
        pass
    tl.store(x_ptr, tl.load(x_ptr) + 1)
    tl.atomic_xchg(lock_ptr, 0)


@triton.jit
def describes(x_ptr, out_ptr):
    x = tl.make_tensor_descriptor(x_ptr, [8, 8], [8, 1], [8, 8])
    out = tl.make_tensor_descriptor(out_ptr, [8, 8], [8, 1], [8, 8])
    out.store([0, 0], x.load([0, 0]))


@pytest.mark.parametrize(
    "kernel,arguments,reads,writes",
    [
        (add, (X, X, X, 64), [0, 1], [2]),
        (double_into_first, (X, X, 64), [1], [0]),
        (scale_in_place, (X, 64, 2.0), [0], [0]),
        (add_pair, ((X, X), X, 64), [0, 1], [2]),
        (pair_of_in_and_out, ((X, X), 64), [1], [0]),
        (count, (X, X, 64), [0, 1], [0]),
        (gathers, (X, INDEX, X), [0, 1], [2]),
        (chooses, (X, X, 2), [], [0, 1]),
        (walks, (X, X, 5), [0], [1]),
        (swaps, (X, X, 5), [], [0, 1]),
        (calls, (X, X), [0], [1]),
        (returns_early, (X, X, 5), [0], [1]),
        (through_a_number, (X, X), [0], [1]),
        (locks, (INDEX, X), [0, 1], [0, 1]),
        (describes, (X, X), [0], [1]),
    ],
)
def test_accesses_are_followed_to_their_parameters(kernel, arguments, reads, writes):
    blocks = {"BLOCK": 64} if any(p.name == "BLOCK" for p in kernel.params) else {}
    assert reads_and_writes(kernel, *arguments, **blocks) == (reads, writes)


@triton.jit
def foreign(x_ptr, out_ptr):
    tl.inline_asm_elementwise(
        "st.global.f32 [$1], 0;", "=r,l", [x_ptr], dtype=tl.int32, is_pure=False, pack=1
    )
    tl.store(out_ptr, 1.0)


def test_foreign_code_is_told_apart():
    assert access(foreign, X, X) == Access(frozenset(), frozenset({1}), frozenset({0}))


@pytest.mark.parametrize("platform", ["cuda:90", "hip:gfx942", "cpu"])
def test_a_write_through_an_input_is_refused_on_every_platform(platform):
    f = lambda x: jt.kernel(scale_in_place)[1](x, 64, 2.0, BLOCK=64, has_side_effect=True)
    with pytest.raises(
        LaunchValueError,
        match="scale_in_place: writes through 'x_ptr', which was passed as an input. Name it in input_output",
    ):
        jt.inspect(f, X, platform=platform)


def test_a_write_through_an_element_of_a_tuple_is_refused_by_its_path():
    f = lambda x: jt.kernel(pair_of_in_and_out)[1]((x, x), 64, BLOCK=64, has_side_effect=True)
    with pytest.raises(LaunchValueError, match=r"writes through 'pair\[0\]', which was passed as an input"):
        jt.inspect(f, X, platform="cuda:90")
