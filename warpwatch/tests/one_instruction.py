"""Helpers: PTX with one instruction at work on arrays, and numbers rounded exactly, by rational numbers."""

from fractions import Fraction

import numpy as np
from helpers import beside

import warpwatch

CODES = {"s8": "i1", "u8": "u1", "b16": "u2", "s16": "i2", "u16": "u2", "s32": "i4", "u32": "u4",
         "b32": "u4", "s64": "i8", "u64": "u8", "b64": "u8", "f16": "f2", "f32": "f4", "f64": "f8"}  # fmt: skip
# Bits of precision, the exponents of the smallest and of the greatest normal number.
FORMATS = {"f2": (11, -14, 15), "bf16": (8, -126, 127), "f4": (24, -126, 127), "f8": (53, -1022, 1023)}
TEXT = beside(__file__)["TEXT"]


def compute(instruction, result, *operands):
    """Return what an instruction gives in each lane.

    `result` is the type of %d; `operands` are (type, array) for %a0, %a1 ... An instruction may be several lines.
    """
    n = len(operands[0][1])
    arrays = [np.ascontiguousarray(array).astype(CODES[kind]) for kind, array in operands]
    arrays.append(np.zeros(n, CODES[result]))
    kinds, names = [*(kind for kind, _ in operands), result], [*(f"%a{k}" for k in range(len(operands))), "%d"]
    declared, load = "", ""
    for k, (kind, name, array) in enumerate(zip(kinds, names, arrays, strict=True)):
        declared += f".reg .{'b16' if kind in ('s8', 'u8') else kind} {name}; "
        load += f"ld.param.u64 %rd{k}, [p{k}]; mad.wide.u32 %rd{k}, %i0, {array.itemsize}, %rd{k};\n"
        load += f"ld.global.{'b16' if kind == 'f16' else kind} {name}, [%rd{k}];\n" if name != "%d" else ""
    params, stored = ", ".join(f".param .u64 p{k}" for k in range(len(kinds))), "b16" if result == "f16" else result
    text = TEXT.format(params=params, declared=declared, load=load, instruction=instruction, stored=stored, last=k)
    block = n if n % 256 else 256
    report = warpwatch.run(text, n // block, block, *arrays)
    assert report.findings == [], report
    return arrays[-1]


def check(instruction, result, wanted, *operands):
    """Compare what an instruction gives with what it should."""
    found = compute(instruction, result, *operands)
    ok = same(found, wanted)
    assert ok.all(), (instruction, [a[~ok][:3] for _, a in operands], found[~ok][:3], np.asarray(wanted)[~ok][:3])


def rounded(x, code, mode="rn"):
    """Round a rational number to a floating-point format, from its definition."""
    precision, low, high = FORMATS[code]
    if x == 0:
        return 0.0
    size = abs(x)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= Fraction(2) ** exponent > size
    unit = Fraction(2) ** (max(exponent, low) - precision + 1)
    steps, rest = divmod(size / unit, 1)
    nearest = rest > Fraction(1, 2) or rest == Fraction(1, 2) and steps % 2 == 1
    away = mode == "rp" and x > 0 or mode == "rm" and x < 0
    made = (steps + (nearest if mode == "rn" else away and rest > 0)) * unit
    most = (2 - Fraction(2) ** (1 - precision)) * Fraction(2) ** high
    if made > most:
        made = float("inf") if mode == "rn" or away else most
    return float(made) if x > 0 else -float(made)


def same(found, wanted):
    """Say whether arrays are equal to the bit, but for what kind of NaN there is."""
    found, wanted = np.asarray(found), np.broadcast_to(wanted, np.shape(found))
    bits = f"u{found.itemsize}"
    equal = found.view(bits) == wanted.astype(found.dtype).view(bits)
    if found.dtype.kind == "f":
        equal |= np.isnan(found) & np.isnan(wanted)
    return equal


def edges(code, rng, more=4):
    """Return the numbers at which instructions go wrong, and some others."""
    dtype = np.dtype(code)
    if dtype.kind == "f":
        info = np.finfo(dtype)
        plain = [0.0, 1.0, 1.5, np.pi, info.max, info.tiny, info.smallest_subnormal, info.tiny * 0.75, info.eps, np.inf]
        some = rng.standard_normal(more) * 2.0 ** rng.integers(-12, 12, more)
        plain = np.array([*plain, 2.0**11 + 1, *some]).astype(dtype)
        return np.concatenate([plain, -plain, np.array([np.nan], dtype)])
    info = np.iinfo(dtype)
    middle, half = [0, 1, 2, 3, 7, 31, 32, 33, 63, 64, -1, -2, -7], 1 << info.bits // 2
    middle += [half, half - 1, info.max, info.max - 1, info.min, info.min + 1]
    middle = [m for m in middle if info.min <= m <= info.max]
    return np.array([*middle, *rng.integers(info.min, info.max, more, dtype=dtype, endpoint=True)], dtype)


def pairs(code, rng, other=None):
    """Return all pairs of edges."""
    a, b = np.meshgrid(edges(code, rng), edges(other or code, rng))
    return blocks(a.ravel(), b.ravel())


def blocks(*arrays):
    """Fill arrays up to a multiple of 256, with what they begin with."""
    n = -(-len(arrays[0]) // 256) * 256
    return tuple(np.resize(a, n) for a in arrays)
