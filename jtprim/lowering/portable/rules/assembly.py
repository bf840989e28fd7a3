"""tt.elementwise_inline_asm: straight-line PTX, statement by statement.

What an instruction computes is defined by NVIDIA's PTX ISA, chapter 9.7. Registers hold bits, as unsigned
integers for all groups of elements at once; an instruction's type says how it takes them. There are no
branches, no memory and no clocks here: such assembly is refused with the statement, and so is AMD's.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from jax import lax

from jtprim.lowering.portable.machine import Machine, Results, rule
from jtprim.lowering.portable.values import Array, Value, convert, reinterpret
from jtprim.specialize.reader import Operation

from .libraries import library_function, permuted_bytes
from .math import UNARY, copysign, nearest_even

_DTYPES: dict[str, np.dtype[Any]] = {
    "pred": np.dtype(np.bool_),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "e5m2": np.dtype(ml_dtypes.float8_e5m2),
    **{f"{kind}{bits}": np.dtype(f"uint{bits}") for kind in "bu" for bits in (8, 16, 32, 64)},
    **{f"s{bits}": np.dtype(f"int{bits}") for bits in (8, 16, 32, 64)},
}
_U32, _S32 = _DTYPES["u32"], _DTYPES["s32"]


class _Refused(Exception):
    """Why a statement has no translation."""


def _raw(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The type of the bits of a value."""
    return dtype if dtype == np.bool_ else np.dtype(f"uint{8 * dtype.itemsize}")


def _resized(bits: Array, dtype: np.dtype[Any]) -> Array:
    """Bits in another width: the low ones, or zeros in front."""
    if bits.dtype == np.bool_ or dtype == np.bool_:
        if bits.dtype != dtype:
            raise _Refused("takes a predicate for a number")
        return bits
    return convert(bits, dtype)


def _const(like: Array, value: Any) -> Array:
    return lax.full_like(like, value)


# --- Instructions --------------------------------------------------------------------------------
# From the modifiers between the name and the type, and the operands as arrays of the type.

Instruction = Callable[..., Array]


def _high_product(mods: Sequence[str], a: Array, b: Array) -> Array:
    wide = np.dtype(f"{'int' if a.dtype.kind == 'i' else 'uint'}64")
    if a.dtype.itemsize == 8:
        raise _Refused("multiplies 64 bits to 128")
    product = lax.mul(convert(a, wide), convert(b, wide))
    shift = lax.shift_right_arithmetic if a.dtype.kind == "i" else lax.shift_right_logical
    return convert(shift(product, _const(product, 8 * a.dtype.itemsize)), np.dtype(a.dtype))


def _multiply(mods: Sequence[str], a: Array, b: Array) -> Array:
    if "hi" in mods:
        return _high_product(mods, a, b)
    if "wide" in mods:
        wide = np.dtype(f"{'int' if a.dtype.kind == 'i' else 'uint'}{16 * a.dtype.itemsize}")
        return lax.mul(convert(a, wide), convert(b, wide))
    return _saturated(mods, lax.mul(a, b))


def _saturated(mods: Sequence[str], x: Array) -> Array:
    if "sat" not in mods:
        return x
    if x.dtype.kind != "f":
        raise _Refused("saturates integers")
    return lax.select(lax.ne(x, x), _const(x, 0), lax.min(lax.max(x, _const(x, 0)), _const(x, 1)))


def _rounding(mods: Sequence[str], name: str, exact: Callable[..., Array], *operands: Array) -> Array:
    """An operation of floats in its rounding mode; that of float32 has all four."""
    mode = next((m for m in mods if m in ("rn", "rz", "rm", "rp")), "rn")
    if mode == "rn" or operands[0].dtype.kind in "iu":
        return _saturated(mods, exact(*operands))
    suffix = {"rz": "rz", "rm": "rd", "rp": "ru"}[mode]
    function = library_function(f"__nv_{name}_{suffix}") if operands[0].dtype == np.float32 else None
    if function is None:
        raise _Refused("rounds a type in a mode that has no translation")
    return _saturated(mods, function(*operands))


def _extremum(function: Callable[[Array, Array], Array]) -> Instruction:
    """min and max: a number comes before NaN, unless the modifier says otherwise."""

    def chosen(mods: Sequence[str], a: Array, b: Array) -> Array:
        found = function(a, b)
        if a.dtype.kind in "iu" or "NaN" in mods:
            return found
        found = lax.select(lax.ne(b, b), a, found)
        return lax.select(lax.ne(a, a), b, found)

    return chosen


def _shift(function: Callable[[Array, Array], Array]) -> Instruction:
    """The amount is 32 bits, and more than the width shifts all out, as XLA has it too."""
    return lambda mods, a, by: function(a, convert(lax.min(by, _const(by, 8 * a.dtype.itemsize)), a.dtype))


def _shift_right(a: Array, by: Array) -> Array:
    return (lax.shift_right_arithmetic if a.dtype.kind == "i" else lax.shift_right_logical)(a, by)


def _any_function_of_three_bits(mods: Sequence[str], a: Array, b: Array, c: Array, table: int) -> Array:
    """lop3: bit ``4 a + 2 b + c`` of the table."""
    result = _const(a, 0)
    for index in range(8):
        if table >> index & 1:
            terms = [x if index >> place & 1 else lax.bitwise_not(x) for x, place in ((a, 2), (b, 1), (c, 0))]
            result = lax.bitwise_or(result, lax.bitwise_and(lax.bitwise_and(*terms[:2]), terms[2]))
    return result


def _field(mods: Sequence[str], a: Array, start: Array, length: Array) -> Array:
    """bfe, of unsigned integers."""
    if a.dtype.kind != "u":
        raise _Refused("extracts a signed field")
    bits = 8 * a.dtype.itemsize
    moved = lax.shift_right_logical(a, convert(start, a.dtype))
    whole = lax.ge(length, _const(length, bits))
    mask = lax.sub(lax.shift_left(_const(a, 1), convert(length, a.dtype)), _const(a, 1))
    return lax.bitwise_and(moved, lax.select(whole, _const(mask, 2**bits - 1), mask))


def _by_name(name: str) -> Instruction:
    function = library_function(name)
    assert function is not None
    return lambda mods, *operands: function(*operands)


def _in_bits(symbol: str) -> Instruction:
    """A function of libdevice's on integers, which takes them as signed."""
    function = library_function(symbol)
    assert function is not None

    def call(mods: Sequence[str], *operands: Array) -> Array:
        signed = [reinterpret(x, np.dtype(f"int{8 * x.dtype.itemsize}")) for x in operands]
        found = function(*signed)
        return reinterpret(found, _raw(np.dtype(found.dtype)))

    return call


_INSTRUCTIONS: dict[str, Instruction] = {
    "add": lambda mods, a, b: _rounding(mods, "fadd", lax.add, a, b),
    "sub": lambda mods, a, b: _rounding(mods, "fsub", lax.sub, a, b),
    "mul": lambda mods, a, b: (
        _multiply(mods, a, b) if a.dtype.kind in "iu" else _rounding(mods, "fmul", lax.mul, a, b)
    ),
    "mad": lambda mods, a, b, c: lax.add(_multiply(mods, a, b), c),
    "fma": lambda mods, a, b, c: _rounding(mods, "fmaf", lambda a, b, c: lax.add(lax.mul(a, b), c), a, b, c),
    "div": lambda mods, a, b: _rounding(mods, "fdiv", lax.div, a, b),
    "rem": lambda mods, a, b: lax.rem(a, b),
    "abs": lambda mods, a: lax.abs(a),
    "neg": lambda mods, a: lax.neg(a),
    "min": _extremum(lax.min),
    "max": _extremum(lax.max),
    "and": lambda mods, a, b: lax.bitwise_and(a, b),
    "or": lambda mods, a, b: lax.bitwise_or(a, b),
    "xor": lambda mods, a, b: lax.bitwise_xor(a, b),
    "not": lambda mods, a: lax.bitwise_not(a),
    "cnot": lambda mods, a: convert(lax.eq(a, _const(a, 0)), np.dtype(a.dtype)),
    "shl": _shift(lax.shift_left),
    "shr": _shift(_shift_right),
    "lop3": _any_function_of_three_bits,
    "prmt": lambda mods, a, b, c: reinterpret(
        permuted_bytes(*(reinterpret(x, _S32) for x in (a, b, c))), _U32
    ),
    "popc": _in_bits("__nv_popc"),
    "clz": _in_bits("__nv_clz"),
    "brev": _in_bits("__nv_brev"),
    "bfe": _field,
    "copysign": lambda mods, a, b: copysign(b, a),
    "ex2": lambda mods, a: lax.exp2(a),
    "lg2": lambda mods, a: UNARY["log2"](a),
    "sin": lambda mods, a: lax.sin(a),
    "cos": lambda mods, a: lax.cos(a),
    "tanh": lambda mods, a: lax.tanh(a),
    "rcp": lambda mods, a: _rounding(mods, "frcp", lambda x: lax.div(_const(x, 1), x), a),
    "sqrt": lambda mods, a: _rounding(mods, "fsqrt", lax.sqrt, a),
    "rsqrt": lambda mods, a: lax.rsqrt(a),
}
# Operands that are of 32 bits whatever the type is, by their places.
_COUNTS = {"shl": (1,), "shr": (1,), "bfe": (1, 2)}

_COMPARISONS: dict[str, Callable[[Array, Array], Array]] = {
    "eq": lax.eq,
    "ne": lambda a, b: lax.bitwise_or(lax.lt(a, b), lax.gt(a, b)),
    "lt": lax.lt,
    "le": lax.le,
    "gt": lax.gt,
    "ge": lax.ge,
    "lo": lax.lt,
    "ls": lax.le,
    "hi": lax.gt,
    "hs": lax.ge,
}


def _convert(mods: Sequence[str], target: str, source: str, x: Array) -> Array:
    """cvt of one value."""
    to, from_ = _DTYPES[target], _DTYPES[source]
    mode = next((m for m in mods if m in ("rn", "rz", "rm", "rp", "rni", "rzi", "rmi", "rpi")), "rn")
    if from_.kind in "iu" and to.kind in "iu":
        if "sat" in mods:
            raise _Refused("saturates integers")
        return convert(x, to)
    if to.kind in "iu":
        suffix = {"rni": "rn", "rzi": "rz", "rmi": "rd", "rpi": "ru"}.get(mode, "rz")
        kind = {"s32": "int", "u32": "uint", "s64": "ll", "u64": "ull"}.get(target)
        function = library_function(f"__nv_double2{kind}_{suffix}")
        if kind is None or function is None:
            raise _Refused(f"converts to {target}")
        return reinterpret(function(convert(x, np.dtype(np.float64))), to)
    if target == source:  # rounds to a whole number, or saturates
        whole = {
            "rni": nearest_even,
            "rzi": UNARY["trunc"],
            "rmi": lax.floor,
            "rpi": lax.ceil,
        }
        return _saturated(mods, whole[mode](x) if mode in whole else x)
    if mode == "rz" and from_ == np.float32 and to.kind != "i":
        nearest = convert(x, to)
        bits = reinterpret(nearest, _raw(to))
        further = lax.gt(lax.abs(convert(nearest, from_)), lax.abs(x))
        return _saturated(mods, reinterpret(lax.sub(bits, convert(further, _raw(to))), to))
    if mode not in ("rn", "rni"):
        raise _Refused("rounds a type in a mode that has no translation")
    if "satfinite" in mods:
        largest = float(ml_dtypes.finfo(to).max)
        x = lax.select(lax.ne(x, x), x, lax.clamp(_const(x, -largest), x, _const(x, largest)))
    if "relu" in mods:
        x = lax.max(x, _const(x, 0))
    return _saturated(mods, convert(x, to))


def _rounded_to_tf32(mods: Sequence[str], x: Array) -> Array:
    """cvt.rna: to ten bits of mantissa, ties away from zero; the other bits are zero."""
    if "rna" not in mods:
        raise _Refused("rounds to TF32 in a mode that has no translation")
    bits = reinterpret(x, _U32)
    rounded = lax.bitwise_and(lax.add(bits, _const(bits, 1 << 12)), _const(bits, 0xFFFFE000))
    return lax.select(lax.is_finite(x), rounded, bits)


# --- Statements ----------------------------------------------------------------------------------

_GUARD = re.compile(r"@(!?)([\w%$]+)\s+")
_NO_EFFECT = ("nanosleep", "membar", "fence", "bar", "barrier", "griddepcontrol", "discard", "prefetch")


class _Registers:
    """What the registers of one piece of assembly hold."""

    def __init__(self, lanes: int):
        self._lanes = lanes
        self._bits: dict[str, Array] = {}

    # Reading and writing.

    def read(self, operand: str, dtype: np.dtype[Any]) -> Array:
        if operand.startswith("!"):
            return lax.bitwise_not(self.read(operand[1:], dtype))
        if operand.startswith("-") and operand[1:] in self._bits:
            raise _Refused(f"reads {operand!r}")
        if operand.startswith("{"):
            return reinterpret(self._joined(_parts(operand[1:-1]), _raw(dtype)), dtype)
        if operand in self._bits:
            return reinterpret(_resized(self._bits[operand], _raw(dtype)), dtype)
        if operand == "%smid":  # all programs run in one place
            return lax.full((self._lanes,), 0, dtype)
        return lax.full((self._lanes,), self._literal(operand, dtype), dtype)

    def _literal(self, text: str, dtype: np.dtype[Any]) -> Any:
        if match := re.fullmatch(r"0[fF]([0-9a-fA-F]{8})", text):
            value: Any = struct.unpack(">f", bytes.fromhex(match[1]))[0]
        elif match := re.fullmatch(r"0[dD]([0-9a-fA-F]{16})", text):
            value = struct.unpack(">d", bytes.fromhex(match[1]))[0]
        elif re.fullmatch(r"-?(0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)U?", text):
            number = int(text.removesuffix("U"), 0) if text != "0U" else 0
            if dtype.kind in "iu":
                return np.array(number % 2 ** (8 * dtype.itemsize), _raw(dtype)).view(dtype)[()]
            if dtype.itemsize == 2:  # a 16-bit float's immediate is its bits
                return np.array(number, np.uint16).view(dtype)[()]
            value = number
        elif re.fullmatch(r"-?\d+\.\d*([eE][-+]?\d+)?", text):
            value = float(text)
        else:
            raise _Refused(f"reads {text!r}, which is no register that was written")
        return np.asarray(value).astype(dtype)[()]

    def _joined(self, parts: Sequence[str], dtype: np.dtype[Any]) -> Array:
        width = dtype.itemsize // len(parts)
        total = lax.full((self._lanes,), 0, dtype)
        for place, part in enumerate(parts):
            bits = convert(self.read(part, np.dtype(f"uint{8 * width}")), dtype)
            total = lax.bitwise_or(total, lax.shift_left(bits, _const(bits, 8 * width * place)))
        return total

    def write(self, operand: str, value: Array, guard: Array | None = None) -> None:
        bits = reinterpret(value, _raw(np.dtype(value.dtype)))
        if operand.startswith("{"):
            parts = _parts(operand[1:-1])
            width = bits.dtype.itemsize // len(parts)
            for place, part in enumerate(parts):
                moved = lax.shift_right_logical(bits, _const(bits, 8 * width * place))
                self.write(part, convert(moved, np.dtype(f"uint{8 * width}")), guard)
            return
        if operand == "_":
            return
        if guard is not None:
            old = self._bits.get(operand)
            old = _const(bits, 0) if old is None else _resized(old, np.dtype(bits.dtype))
            bits = lax.select(guard, bits, old)
        self._bits[operand] = bits

    # Execution.

    def run(self, statement: str) -> None:
        guard = None
        if match := _GUARD.match(statement):
            guard = self.read(f"{match[1]}{match[2]}", np.dtype(np.bool_))
            statement = statement[match.end() :]
        name, _, rest = statement.partition(" ")
        name, *mods = name.strip().split(".")
        if name in _NO_EFFECT:
            return
        kinds = [m for m in mods if m.removesuffix("x2") in _DTYPES]
        others = [m for m in mods if m not in kinds]
        operands = _parts(rest)
        if not kinds or not operands:
            raise _Refused("has no translation")
        target, *sources = operands
        if name == "setp":
            self._compare(others, kinds[0], target, sources, guard)
        elif name == "cvt" and "tf32" in others:
            self.write(target, _rounded_to_tf32(others, self.read(sources[0], _DTYPES["f32"])), guard)
        elif name == "cvt":
            self.write(target, self._converted(others, kinds, sources), guard)
        elif name == "mov":
            self.write(target, self.read(sources[0], _DTYPES[kinds[0]]), guard)
        elif name == "selp":
            chosen = self.read(sources[2], np.dtype(np.bool_))
            one, other = (self.read(source, _raw(_DTYPES[kinds[0]])) for source in sources[:2])
            self.write(target, lax.select(chosen, one, other), guard)
        elif name in _INSTRUCTIONS:
            self.write(target, self._computed(name, others, kinds[-1], sources), guard)
        else:
            raise _Refused("has no translation")

    def _computed(self, name: str, mods: Sequence[str], kind: str, sources: Sequence[str]) -> Array:
        if kind.endswith("x2"):
            halves = zip(*(self._halves(source, kind) for source in sources), strict=True)
            return _pair(*(_INSTRUCTIONS[name](mods, *half) for half in halves))
        dtype = _DTYPES[kind]
        if name == "mad" and "wide" in mods:
            product = self._computed("mul", mods, kind, sources[:2])
            return lax.add(product, self.read(sources[2], np.dtype(product.dtype)))
        if name == "lop3":
            *inputs, table = sources
            return _INSTRUCTIONS[name](mods, *(self.read(x, dtype) for x in inputs), int(table, 0))
        counts = _COUNTS.get(name, ())
        return _INSTRUCTIONS[name](
            mods, *(self.read(x, _U32 if place in counts else dtype) for place, x in enumerate(sources))
        )

    def _halves(self, source: str, kind: str) -> list[Array]:
        dtype = _DTYPES[kind.removesuffix("x2")]
        whole = self.read(source, np.dtype(f"uint{16 * dtype.itemsize}"))
        upper = lax.shift_right_logical(whole, _const(whole, 8 * dtype.itemsize))
        return [reinterpret(convert(bits, _raw(dtype)), dtype) for bits in (whole, upper)]

    def _compare(
        self, mods: Sequence[str], kind: str, target: str, sources: Sequence[str], guard: Array | None
    ) -> None:
        names = target.split("|")
        compare = _COMPARISONS.get(mods[0])
        # Each ordered comparison has a twin that is true for NaN too.
        unordered = compare is None and mods[0].endswith("u")
        compare = compare or _COMPARISONS.get(mods[0].removesuffix("u"))
        if compare is None or len(sources) > 2:
            raise _Refused("has no translation")

        def compared(a: Array, b: Array) -> Array:
            found = compare(a, b)
            if unordered:
                found = lax.bitwise_or(found, lax.bitwise_or(lax.ne(a, a), lax.ne(b, b)))
            return found

        if kind.endswith("x2"):
            results = [
                compared(*half) for half in zip(*(self._halves(s, kind) for s in sources), strict=True)
            ]
        else:
            first = compared(*(self.read(source, _DTYPES[kind]) for source in sources))
            results = [first, lax.bitwise_not(first)]
        for name, result in zip(names, results, strict=False):
            self.write(name.strip(), result, guard)

    def _converted(self, mods: Sequence[str], kinds: Sequence[str], sources: Sequence[str]) -> Array:
        target, source = kinds
        if not target.endswith("x2"):
            return _convert(mods, target, source, self.read(sources[0], _DTYPES[source]))
        one = target.removesuffix("x2")
        if source.endswith("x2"):
            halves = self._halves(sources[0], source)
            return _pair(*(_convert(mods, one, source.removesuffix("x2"), half) for half in halves))
        upper, lower = (_convert(mods, one, source, self.read(s, _DTYPES[source])) for s in sources)
        return _pair(lower, upper)


def _pair(lower: Array, upper: Array) -> Array:
    """Two values in a register of twice the width."""
    raw = _raw(np.dtype(lower.dtype))
    wide = np.dtype(f"uint{16 * raw.itemsize}")
    low, high = (convert(reinterpret(half, raw), wide) for half in (lower, upper))
    return lax.bitwise_or(low, lax.shift_left(high, _const(high, 8 * raw.itemsize)))


def _parts(text: str) -> list[str]:
    """Operands: split at commas outside braces."""
    return [part.strip() for part in re.split(r",(?![^{]*\})", text) if part.strip()]


def _statements(text: str) -> list[str]:
    text = re.sub(r"//[^\n]*|/\*.*?\*/", " ", text, flags=re.DOTALL)
    # Braces that open a scope stand where a statement begins; others hold the parts of a register.
    text = re.sub(r"(^|;)\s*((?:[{}]\s*)+)", r"\1 ", text)
    found = [" ".join(statement.split()) for statement in text.split(";")]
    found = [re.sub(r"^(?:[{}] *)+|^\}$", "", statement) for statement in found]
    return [statement for statement in found if statement and not statement.startswith(".reg")]


# --- The operation -------------------------------------------------------------------------------


@rule("tt.elementwise_inline_asm")
def _inline_assembly(m: Machine, op: Operation, *operands: Value) -> Results:
    """Straight-line PTX, statement by statement (`assembly.py`)."""
    text, pack = op.attributes["asm_string"], op.attributes["packed_element"]
    shape = op.results[0].type.shape
    batched = any(value.batched for value in operands)
    whole = [(m.batch(value) if batched else value).array for value in operands]
    front = (m.programs or 1,) if batched else ()
    size = int(np.prod((*front, *shape), dtype=np.int64))
    groups = -(-size // pack)
    registers = _Registers(groups)
    outputs = [_places(result.type.dtype, pack) for result in op.results]
    first = sum(len(places) for places in outputs)
    for array in whole:
        flat = lax.reshape(array, (size,))
        flat = lax.pad(flat, _const(flat[0], 0), [(0, groups * pack - size, 0)])
        for bits in _packed(lax.reshape(flat, (groups, pack))):
            registers.write(f"${first}", bits)
            first += 1
    for statement in _statements(text):
        try:
            registers.run(statement)
        except (_Refused, KeyError, ValueError, TypeError, IndexError) as error:
            reason = f": it {error}" if isinstance(error, _Refused) else ""
            raise m.unsupported(op, f"has no portable lowering for {statement!r}{reason}") from error
    results, number = [], 0
    for result, places in zip(op.results, outputs, strict=True):
        try:
            found = [
                registers.read(f"${number + i}", np.dtype(f"uint{bits}")) for i, bits in enumerate(places)
            ]
        except _Refused as error:
            raise m.unsupported(op, f"doesn't write ${number}") from error
        number += len(places)
        flat = lax.reshape(_unpacked(found, result.type.dtype, pack), (groups * pack,))[:size]
        results.append(Value(lax.reshape(flat, (*front, *shape)), batched))
    return results


def _places(dtype: np.dtype[Any], pack: int) -> list[int]:
    """Bits of the registers that hold so many packed elements: several of less than 32 bits share one."""
    bits = 8 * dtype.itemsize
    each = max(1, 32 // bits)
    return [bits * min(each, pack - start) for start in range(0, pack, each)]


def _packed(array: Array) -> list[Array]:
    """The registers of an operand, [groups, pack]."""
    dtype = np.dtype(array.dtype)
    if dtype == np.bool_:
        array, dtype = convert(array, np.dtype(np.uint8)), np.dtype(np.uint8)
    columns = lax.split(reinterpret(array, _raw(dtype)), (1,) * array.shape[1], axis=1)
    columns = [lax.squeeze(column, (1,)) for column in columns]
    registers = []
    for bits in _places(dtype, len(columns)):
        wide = np.dtype(f"uint{bits if bits in (8, 16, 32, 64) else 32}")
        total = lax.full(columns[0].shape, 0, wide)
        for place in range(bits // (8 * dtype.itemsize)):
            part = convert(columns.pop(0), wide)
            total = lax.bitwise_or(total, lax.shift_left(part, _const(part, 8 * dtype.itemsize * place)))
        registers.append(total)
    return registers


def _unpacked(registers: Sequence[Array], dtype: np.dtype[Any], pack: int) -> Array:
    """The elements, [groups, pack], of a result's registers."""
    raw = np.dtype(np.uint8) if dtype == np.bool_ else _raw(dtype)
    columns = []
    for bits, register in zip(_places(dtype, pack), registers, strict=True):
        for place in range(bits // (8 * dtype.itemsize)):
            moved = lax.shift_right_logical(register, _const(register, 8 * dtype.itemsize * place))
            columns.append(lax.expand_dims(convert(moved, raw), (1,)))
    joined = lax.concatenate(columns, 1)
    return lax.ne(joined, _const(joined, 0)) if dtype == np.bool_ else reinterpret(joined, dtype)
