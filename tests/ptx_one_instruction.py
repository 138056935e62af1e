"""Helpers: PTX with one instruction at work on arrays, and numbers rounded exactly, by rational numbers."""

from fractions import Fraction

import numpy as np

from bppsa_nb import ptx

CODES = {"s8": "i1", "u8": "u1", "b16": "u2", "s16": "i2", "u16": "u2", "s32": "i4", "u32": "u4",
         "b32": "u4", "s64": "i8", "u64": "u8", "b64": "u8", "f16": "f2", "f32": "f4", "f64": "f8"}  # fmt: skip
# Bits of precision, the exponents of the smallest and of the greatest normal number.
FORMATS = {"f2": (11, -14, 15), "f4": (24, -126, 127), "f8": (53, -1022, 1023)}


def compute(instruction, result, *operands, block=None):
    """Return what an instruction gives in each lane.

    `result` is the type of %d; `operands` are (type, array) for %a0, %a1 ... An instruction may be several lines.
    """
    n = len(operands[0][1])
    block = block or n
    lines, declared = [], ["  .reg .pred %p<9>;", "  .reg .b64 %rd<20>;", "  .reg .b32 %i<4>;"]
    registers = {"s8": "b16", "u8": "b16"}
    params = [f".param .u64 p{k}" for k in range(len(operands) + 1)]
    lines += [
        "mov.u32 %i0, %ctaid.x;",
        "mov.u32 %i1, %ntid.x;",
        "mov.u32 %i2, %tid.x;",
        "mad.lo.s32 %i0, %i0, %i1, %i2;",
    ]
    for k, (kind, _) in enumerate(operands):
        declared.append(f"  .reg .{registers.get(kind, kind)} %a{k};")
        size = np.dtype(CODES[kind]).itemsize
        lines += [
            f"ld.param.u64 %rd{k}, [p{k}];",
            f"mad.wide.u32 %rd{k}, %i0, {size}, %rd{k};",
            f"ld.global.{'b16' if kind == 'f16' else kind} %a{k}, [%rd{k}];",
        ]
    size = np.dtype(CODES[result]).itemsize
    declared.append(f"  .reg .{registers.get(result, result)} %d;")
    lines += [
        *instruction.splitlines(),
        f"ld.param.u64 %rd9, [p{len(operands)}];",
        f"mad.wide.u32 %rd9, %i0, {size}, %rd9;",
    ]
    lines += [f"st.global.{'b16' if result == 'f16' else result} [%rd9], %d;", "ret;"]
    text = "\n".join(
        [
            ".version 8.0",
            ".target sm_90",
            ".address_size 64",
            f".visible .entry k({', '.join(params)})",
            "{",
            *declared,
            *lines,
            "}",
        ]
    )
    out = np.zeros(n, CODES[result])
    arrays = [np.ascontiguousarray(array).astype(CODES[kind]) for kind, array in operands]
    report = ptx.run(text, n // block, block, *arrays, out)
    assert report.findings == [], report
    return out


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
    up = {
        "rn": rest > Fraction(1, 2) or rest == Fraction(1, 2) and steps % 2 == 1,
        "rz": False,
        "rp": x > 0 and rest > 0,
        "rm": x < 0 and rest > 0,
    }[mode]
    made = (steps + up) * unit
    most = (2 - Fraction(2) ** (1 - precision)) * Fraction(2) ** high
    if made > most:
        away = mode == "rn" or mode == "rp" and x > 0 or mode == "rm" and x < 0
        made = None if away else most
    made = float("inf") if made is None else float(made)
    return made if x > 0 else -made


def same(found, wanted):
    """Say whether arrays are equal to the bit, but for what kind of NaN there is."""
    found, wanted = np.asarray(found), np.asarray(wanted)
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
        plain = [
            0.0,
            1.0,
            1.5,
            np.pi,
            info.max,
            info.tiny,
            info.smallest_subnormal,
            info.tiny * 0.75,
            info.eps,
            np.inf,
            2.0**11 + 1,
        ]
        some = rng.standard_normal(more) * 2.0 ** rng.integers(-12, 12, more)
        plain = np.array([*plain, *some]).astype(dtype)
        return np.concatenate([plain, -plain, np.array([np.nan], dtype)])
    info = np.iinfo(dtype)
    bits = info.bits
    middle = [
        0,
        1,
        2,
        3,
        7,
        31,
        32,
        33,
        63,
        64,
        1 << bits // 2,
        (1 << bits // 2) - 1,
        info.max,
        info.max - 1,
        info.min,
        info.min + 1,
    ]
    middle += [-1, -2, -7] if info.min else []
    middle = [m for m in middle if info.min <= m <= info.max]
    return np.array([*middle, *rng.integers(info.min, info.max, more, dtype=dtype, endpoint=True)], dtype)


def pairs(code, rng, other=None):
    """Return all pairs of edges."""
    a, b = np.meshgrid(edges(code, rng), edges(other or code, rng))
    return blocks(a.ravel(), b.ravel())


def triples(code, rng, count=2048):
    """Return triples of edges, at random."""
    pool = edges(code, rng, 12)
    return tuple(rng.choice(pool, count) for _ in range(3))


def blocks(*arrays):
    """Fill arrays up to a multiple of 256, with what they begin with."""
    n = -(-len(arrays[0]) // 256) * 256
    return tuple(np.resize(a, n) for a in arrays)
