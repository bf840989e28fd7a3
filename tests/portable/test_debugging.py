"""tl.device_print and tl.device_assert."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import triton
import triton.language as tl

import jtprim as jt


@triton.jit
def prints(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    offsets = pid * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    if pid > 0:
        tl.device_print("x is", x)
    tl.device_print("pid and n", pid, n)
    tl.store(out_ptr + offsets, x, mask=offsets < n)


def printed(capfd, f, *arguments):
    jax.block_until_ready(f(*arguments))
    jax.effects_barrier()
    return capfd.readouterr().out.splitlines()


@pytest.mark.parametrize("in_jit", [False, True])
def test_each_active_program_prints_each_element(capfd, in_jit):
    x = jnp.arange(6, dtype=jnp.float32)
    f = lambda x: jt.kernel(prints)[3](x, n=6, BLOCK=2, out_shape={"out_ptr": x})
    lines = printed(capfd, jax.jit(f) if in_jit else f, x)
    expected = [f"pid ({p}, 0, 0) idx ({i}) x is: {2.0 * p + i}" for p in (1, 2) for i in (0, 1)]
    assert [line for line in lines if "x is" in line] == expected
    assert "pid (2, 0, 0) pid and n: 2 (operand 0)" in lines
    assert "pid (0, 0, 0) pid and n: 6 (operand 1)" in lines


@triton.jit
def prints_bits(x_ptr, out_ptr):
    x = tl.load(x_ptr)
    tl.device_print("bits", x, hex=True)
    tl.device_print("unsigned", x.to(tl.uint8, bitcast=True))
    tl.device_print("here")
    tl.store(out_ptr, x)


def test_numbers_print_in_hex_and_by_their_sign(capfd):
    x = jnp.asarray([-2], jnp.int8)
    lines = printed(capfd, lambda x: jt.kernel(prints_bits)[1](x, out_shape={"out_ptr": x}), x)
    assert set(lines) == {
        "pid (0, 0, 0) bits: 0xfe",
        "pid (0, 0, 0) unsigned: 254",
        "pid (0, 0, 0) here",
    }


@triton.jit
def asserts(x_ptr, out_ptr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets)
    tl.device_assert(x >= 0, "x is negative")
    tl.store(out_ptr + offsets, x)


@pytest.mark.parametrize("in_jit", [False, True])
def test_an_assertion_that_fails_is_an_error_that_names_the_program_and_the_line(in_jit):
    f = lambda x: jt.kernel(asserts)[4](x, BLOCK=4, debug=True, out_shape={"out_ptr": x})
    f = jax.jit(f) if in_jit else f
    x = jnp.arange(16, dtype=jnp.float32)
    np.testing.assert_array_equal(f(x), x)
    message = r"asserts: .*test_debugging\.py:\d+: program \(2, 0, 0\) at element \(1,\): x is negative"
    with pytest.raises(Exception, match=message):
        jax.block_until_ready(f(x.at[9].set(-1.0)))
        jax.effects_barrier()


def test_assertions_are_left_out_without_debug():
    x = jnp.full(16, -1.0)
    f = lambda x: jt.kernel(asserts)[4](x, BLOCK=4, out_shape={"out_ptr": x})
    np.testing.assert_array_equal(f(x), x)
