"""Inline assembly: PTX in kernels, against NumPy."""

import jax.numpy as jnp
import numpy as np
import pytest
import triton
import triton.language as tl
from triton.language.extra.cuda import utils as cuda_utils

from jtprim.errors import UnsupportedError
from tests.portable.launching import launch


@triton.jit
def one_statement(x, y, out, ASM: tl.constexpr, PACK: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a, b = tl.load(x + offsets), tl.load(y + offsets)
    result = tl.inline_asm_elementwise(
        ASM, "=r,r,r", [a, b], dtype=out.dtype.element_ty, is_pure=True, pack=PACK
    )
    tl.store(out + offsets, result)


def run(asm, x, y, dtype, *, pack=1, programs=2):
    block = len(x) // programs
    out = launch(
        one_statement,
        (programs,),
        x,
        y,
        jnp.zeros(len(x), dtype),
        written=[2],
        ASM=asm,
        PACK=pack,
        BLOCK=block,
    )
    return np.asarray(out)


RNG = np.random.default_rng(0)
INTS = [RNG.integers(-(2**31), 2**31, 64).astype(np.int32) for _ in "xy"]
SMALL = [INTS[0], RNG.integers(0, 40, 64).astype(np.int32)]
FLOATS = [RNG.normal(scale=3, size=64).astype(np.float32) for _ in "xy"]
WIDE = [x.astype(np.int64) for x in INTS]

INTEGER_STATEMENTS = {
    "add.s32 $0, $1, $2;": lambda x, y: x + y,
    "mul.lo.s32 $0, $1, $2;": lambda x, y: x * y,
    "mul.hi.s32 $0, $1, $2;": lambda x, y: x * y >> 32,
    "mul.hi.u32 $0, $1, $2;": lambda x, y: (x % 2**32) * (y % 2**32) >> 32,
    "mad.lo.s32 $0, $1, $2, 7;": lambda x, y: x * y + 7,
    "min.s32 $0, $1, $2;": np.minimum,
    "max.u32 $0, $1, $2;": lambda x, y: np.maximum(x % 2**32, y % 2**32),
    "not.b32 $0, $1;": lambda x, y: ~x,
    "lop3.b32 $0, $1, $2, 0xff00, 0xea;": lambda x, y: (x & y) | 0xFF00,
    "{ .reg .pred p; setp.lt.s32 p, $1, $2; selp.b32 $0, $1, $2, p; }": np.minimum,
    "{ .reg .pred p; setp.ne.s32 p, $1, 0; mov.b32 $0, $2; @!p mov.b32 $0, $1; }": lambda x, y: y,
    "{ .reg .b16 lo, hi; mov.b32 {lo, hi}, $1; mov.b32 $0, {hi, lo}; }": lambda x, y: (
        (x % 2**32 >> 16) | (x % 2**16 << 16)
    ),
    "prmt.b32 $0, $1, $2, 0x9764;": lambda x, y: (
        np.where(x >> 15 & 1, -1, 0) << 24 | (y >> 24 & 255) << 16 | (y >> 16 & 255) << 8 | y & 255
    ),
    "cvt.s32.s8 $0, $1; // of the low byte": lambda x, y: x.astype(np.int8),
    "bfe.u32 $0, $1, 4, 8;": lambda x, y: x >> 4 & 0xFF,
    "mov.u32 $0, %smid; add.u32 $0, $0, $1;": lambda x, y: x,
    "nanosleep.u32 100; mov.b32 $0, $1;": lambda x, y: x,
}


@pytest.mark.parametrize("asm", INTEGER_STATEMENTS)
def test_integer_instructions(asm):
    expected = np.asarray(INTEGER_STATEMENTS[asm](*WIDE)).astype(np.int64).astype(np.int32)
    np.testing.assert_array_equal(run(asm, *INTS, np.int32), expected)


@pytest.mark.parametrize(
    "asm, expected",
    [
        ("shl.b32 $0, $1, $2;", lambda x, y: np.where(y < 32, x << np.minimum(y, 31), 0)),
        ("shr.s32 $0, $1, $2;", lambda x, y: x >> np.minimum(y, 31)),
        ("shr.u32 $0, $1, $2;", lambda x, y: np.where(y < 32, (x % 2**32) >> np.minimum(y, 31), 0)),
    ],
)
def test_shifts_by_more_than_the_width_shift_all_out(asm, expected):
    x, y = (values.astype(np.int64) for values in SMALL)
    np.testing.assert_array_equal(run(asm, *SMALL, np.int32), expected(x, y).astype(np.int32))


FLOAT_STATEMENTS = {
    "fma.rn.f32 $0, $1, $2, 0f3F800000;": lambda x, y: x * y + 1,
    "add.rn.ftz.f32 $0, $1, -1.5;": lambda x, y: x - 1.5,
    "ex2.approx.ftz.f32 $0, $1;": lambda x, y: np.exp2(x),
    "lg2.approx.f32 $0, $1;": lambda x, y: np.log2(x),
    "tanh.approx.f32 $0, $1;": lambda x, y: np.tanh(x),
    "rcp.approx.ftz.f32 $0, $2;": lambda x, y: 1 / y,
    "abs.f32 $0, $1; sqrt.rn.f32 $0, $0;": lambda x, y: np.sqrt(np.abs(x)),
    "max.f32 $0, $1, 0f00000000;": lambda x, y: np.maximum(x, 0),
    "add.sat.f32 $0, $1, $2;": lambda x, y: np.clip(x + y, 0, 1),
    "cvt.rni.f32.f32 $0, $1;": lambda x, y: np.rint(x),
}


@pytest.mark.parametrize("asm", FLOAT_STATEMENTS)
@pytest.mark.filterwarnings("ignore:invalid value encountered in log2")
def test_float_instructions(asm):
    expected = FLOAT_STATEMENTS[asm](*FLOATS)
    np.testing.assert_allclose(run(asm, *FLOATS, np.float32), expected, rtol=2e-6, atol=1e-7)


def test_conversions_round_and_saturate():
    x = np.resize(np.array([2.5, -2.5, 3.7, 1e20, -1e20, np.nan, 0.1, -0.9], np.float32), 16)
    found = run("cvt.rni.s32.f32 $0, $1;", x, x, np.int32)
    np.testing.assert_array_equal(found[:6], [2, -2, 4, 2**31 - 1, -(2**31), 0])
    found = run("cvt.rzi.s32.f32 $0, $1;", x, x, np.int32)
    np.testing.assert_array_equal(found[:3], [2, -2, 3])


@pytest.mark.parametrize("pack", [1, 2, 4])
def test_elements_of_16_bits_are_packed_into_registers(pack):
    x, y = (values.astype(np.float16) for values in FLOATS)
    kind = "f16x2" if pack > 1 else "f16"
    statements = [f"add.{kind} ${i}, ${i + n}, ${i + 2 * n};" for n in [max(1, pack // 2)] for i in range(n)]
    np.testing.assert_array_equal(run(" ".join(statements), x, y, np.float16, pack=pack), x + y)


def test_two_floats_become_one_register():
    @triton.jit
    def halves(x, out, BLOCK: tl.constexpr):
        offsets = tl.arange(0, BLOCK)
        packed = tl.inline_asm_elementwise(
            "cvt.rn.bf16x2.f32 $0, $2, $1;",
            "=r,r,r",
            [tl.load(x + offsets)],
            tl.bfloat16,
            is_pure=True,
            pack=2,
        )
        tl.store(out + offsets, packed)

    out = launch(halves, (1,), FLOATS[0], jnp.zeros(64, jnp.bfloat16), written=[1], BLOCK=64)
    np.testing.assert_array_equal(out, jnp.asarray(FLOATS[0]).astype(jnp.bfloat16))


@triton.jit
def bytes_to_numbers(a, b, whole, real, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x, y = tl.load(a + offsets), tl.load(b + offsets)
    integer, larger = tl.inline_asm_elementwise(
        asm="""
        {
            .reg .b8 part<4>;
            mov.b32 {part0, part1, part2, part3}, $8;   // four bytes of a
            cvt.u32.u8 $0, part0;
            cvt.u32.u8 $1, part1;
            cvt.u32.u8 $2, part2;
            cvt.u32.u8 $3, part3;
        }
        cvt.rn.f32.u32 $4, $0;
        cvt.rn.f32.u32 $5, $1;
        cvt.rn.f32.u32 $6, $2;
        cvt.rn.f32.u32 $7, $3;
        max.f32 $4, $4, $9;
        max.f32 $5, $5, $10;
        max.f32 $6, $6, $11;
        max.f32 $7, $7, $12;
        """,
        constraints="=r,=r,=r,=r,=r,=r,=r,=r,r,r,r,r,r",
        args=[x, y],
        dtype=(tl.int32, tl.float32),
        is_pure=True,
        pack=4,
    )
    tl.store(whole + offsets, integer)
    tl.store(real + offsets, larger)


def test_several_results_and_operands_of_different_widths():
    a = RNG.integers(0, 256, 64).astype(np.uint8)
    b = RNG.normal(scale=100, size=64).astype(np.float32)
    whole, real = launch(
        bytes_to_numbers, (4,), a, b, jnp.zeros(64, jnp.int32), jnp.zeros(64), written=[2, 3], BLOCK=16
    )
    np.testing.assert_array_equal(whole, a)
    np.testing.assert_array_equal(real, np.maximum(a, b))


# --- Triton's own --------------------------------------------------------------------------------


@triton.jit
def through_fp8e4b15(x, codes, out, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    small = tl.load(x + offsets).to(tl.float8e4b15)
    tl.store(codes + offsets, small.to(tl.int8, bitcast=True))
    tl.store(out + offsets, small.to(tl.float16).to(tl.float32))


def test_fp8e4b15_has_a_bias_of_15_and_no_infinity():
    # 16 mantissas times 8 for each exponent; all codes of the format that float16 holds as normal numbers.
    exact = np.array(
        [s * (1 + f / 8) * 2.0 ** (e - 15) for s in (1, -1) for e in range(1, 16) for f in range(8)]
    )
    exact = np.resize(exact[np.abs(exact) < 1.75], 256).astype(np.float32)
    codes, out = launch(
        through_fp8e4b15, (1,), exact, jnp.zeros(256, jnp.int8), jnp.zeros(256), written=[1, 2], BLOCK=256
    )
    np.testing.assert_array_equal(out, exact)
    exponent = np.asarray(codes).view(np.uint8) >> 3 & 15
    np.testing.assert_array_equal(exponent, np.floor(np.log2(np.abs(exact))) + 15)
    large = np.full(256, 5.0, np.float32)
    _, out = launch(
        through_fp8e4b15, (1,), large, jnp.zeros(256, jnp.int8), jnp.zeros(256), written=[1, 2], BLOCK=256
    )
    np.testing.assert_array_equal(out, 1.75 + 0 * large)


@triton.jit
def where_it_runs(out):
    tl.store(out + tl.program_id(0), cuda_utils.smid())


def test_all_programs_run_in_one_place():
    np.testing.assert_array_equal(launch(where_it_runs, (4,), jnp.ones(4, jnp.int32), written=[0]), 0)


# --- What is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "asm, statement",
    [
        ("ld.global.b32 $0, [$1];", "ld.global.b32"),
        ("mov.u32 $0, %clock;", "%clock"),
        ("v_exp_f32 $0, $1", "v_exp_f32"),
        ("add.s32 $0, $1, never;", "never"),
        ("bra done;", "bra done"),
        ("add.s32 t, $1, $2;", "doesn't write"),
    ],
)
def test_other_assembly_is_refused_with_the_statement_and_the_line(asm, statement):
    with pytest.raises(UnsupportedError, match=rf"one_statement: .*test_assembly\.py:\d+ .*{statement}"):
        run(asm, *INTS, np.int32)
