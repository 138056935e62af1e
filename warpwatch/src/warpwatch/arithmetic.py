"""What instructions compute where NumPy has no operation that does just that: over arrays of lanes, and exact.

Sections are those of the PTX manual, "Instructions", by their titles. Approximate instructions (`ex2.approx`,
`rcp.approx`, `tanh.approx`, `sin.approx` ...) are computed with NumPy's functions, which are more accurate than the
manual asks; what depends on the last bits of a GPU's own is not seen here.
"""

from fractions import Fraction
from math import isfinite

import numpy as np

# Floating point: "fma", "Rounding Modifiers" -------------------------------------------------------------------------


def _two_sum(a, b):
    """Add; return the sum and what rounding lost."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def _odd(near, missing):
    """Turn nearest numbers into ones rounded to odd, where inexact: rounding these once more is as rounding once."""
    bits = near.view(f"i{near.itemsize}")
    step = np.where((missing > 0) != np.signbit(near), 1, -1)  # away from zero
    inexact = ((missing > 0) | (missing < 0)) & (bits & 1 == 0)
    return (bits + np.where(inexact, step, 0).astype(bits.dtype)).view(near.dtype)


def rounded(exact, code, mode="rn"):
    """Round numbers that stand for exact ones, integers or real ones of a wider type."""
    near = exact.astype(code)
    return near if mode == "rn" else _stepped(near, _missing(exact, near), mode)


def _stepped(near, missing, mode):
    """Go from the nearest number to its neighbor, where a direction asks for that; of what is missing, signs count."""
    up = (missing > 0) & ((mode == "rp") | (mode == "rz") & (near < 0))
    down = (missing < 0) & ((mode == "rm") | (mode == "rz") & (near > 0))
    return np.where(up, np.nextafter(near, np.inf), np.where(down, np.nextafter(near, -np.inf), near))


def _missing(exact, near):
    """Return what is missing from numbers to exact ones; its signs if these are integers, or a list of Python's."""
    if isinstance(exact, np.ndarray):
        if exact.dtype.kind == "f":
            return np.where(np.isfinite(exact), exact - near, 0)
        exact = exact.tolist()
    return np.array([int(e > n) - int(e < n) for e, n in zip(exact, near.tolist(), strict=True)])


def directed_sum(a, b, mode):
    """Add, rounded in a direction: what the sum lacks is a number of the same type."""
    s, lost = _two_sum(a, b)
    return _stepped(s, np.where(np.isfinite(s), lost, np.where(np.isfinite(a) & np.isfinite(b), -s, 0)), mode)


def directed(function, mode, *numbers):
    """Compute and round in a direction: by doubles, or where these are asked for, by rational numbers, one by one."""
    if numbers[0].dtype.char == "f":
        return rounded(function(*(np.asarray(a, float) for a in numbers)), "f4", mode)
    near = function(*(numbers := np.broadcast_arrays(*numbers)))
    exact = near.tolist()
    for n, each in enumerate(zip(*(a.tolist() for a in numbers), strict=True)):
        if all(map(isfinite, each)) and exact[n] == exact[n] and (function is not np.divide or each[1]):
            exact[n] = _EXACT[function](exact[n], *map(Fraction, each))
    return _stepped(near, _missing(exact, near), mode)


def fma(a, b, c, mode="rn"):
    """Multiply and add, rounded once."""
    if a.dtype.char == "d":
        return _fma_double(*np.broadcast_arrays(a, b, c)) if mode == "rn" else directed(_fma_double, mode, a, b, c)
    p = np.multiply(a, b, dtype=float)  # exact
    s = p + c
    if mode != "rn" or np.count_nonzero(s.view("i8") & 0x0FFFFFFF) < s.size:  # perhaps half-way for the type
        return rounded(_odd(*_two_sum(p, np.asarray(c, float))), a.dtype, mode)
    return s.astype(a.dtype)


def _split(a):
    t = a * 134217729.0
    high = t - (t - a)
    return high, a - high


def _fma_double(a, b, c):
    """Boldo and Melquiond, 2008: the product's error exactly, and a sum rounded to odd; extremes one by one."""
    (ah, al), (bh, bl), p = _split(a), _split(b), a * b
    th, tl = _two_sum(c, al * bl - (((p - ah * bh) - al * bh) - ah * bl))
    vh, vl = _two_sum(p, th)
    result = vh + _odd(*_two_sum(tl, vl))
    plain = (np.minimum(abs(p), abs(result)) > 1e-280) & (np.abs([a, b, c, p]).max(axis=0) < 1e290)
    if plain.all():
        return result
    result = np.where(plain, result, p + c)
    hard = ~plain & np.isfinite(a) & np.isfinite(b) & np.isfinite(c) & (a != 0) & (b != 0)
    for n in np.flatnonzero(hard):
        total = Fraction(float(a[n])) * Fraction(float(b[n])) + Fraction(float(c[n]))
        try:
            result[n] = float(total) if total else p[n] + c[n]
        except OverflowError:
            result[n] = np.inf if total > 0 else -np.inf
    return result


# What is exact; of a root, a number on that side of the nearest one on which the root is.
_EXACT = {np.divide: lambda _, a, b: a / b, _fma_double: lambda _, a, b, c: a * b + c,
          np.sqrt: lambda near, a: Fraction(near) + (a - Fraction(near) ** 2)}  # fmt: skip


# Halves: "f16" and "bf16", which is the upper half of single precision, alone or two in one word -------------------


def numbers(bits, kind, flush=False):
    """Return what bits stand for, as doubles; twice as many numbers, if there are pairs."""
    bits = _normal(bits.view("u2"), kind) if flush else bits.view("u2")
    return (bits.view("f2") if kind[0] == "f" else (bits.astype("u4") << 16).view("f4")).astype(float)


def bits_of(exact, kind, mode="rn", flush=False):
    """Round to halves, and return their bits."""
    if kind[0] == "f":
        made = rounded(exact, "f2", mode).view("u2")
    else:
        near = exact.astype("f4")
        bits = _odd(near, _missing(exact, near)).view("u4")
        up = {"rn": 0x7FFF + (bits >> 16 & 1), "rz": 0, "rm": 0xFFFF * (bits >> 31), "rp": 0xFFFF * (~bits >> 31)}
        made = (bits + up[mode] >> 16).astype("u2")
    made = np.where(exact == exact, made, np.uint16(0x7FFF))
    return (_normal(made, kind) if flush else made).view("u4" if "x2" in kind else "u2")


def _normal(bits, kind):
    """Replace subnormal numbers by zeros of their sign."""
    return np.where(bits & (0x7C00 if kind[0] == "f" else 0x7F80), bits, bits & 0x8000)


def flushed(a):
    """Replace subnormal numbers by zeros of their sign (`.ftz`, single precision only)."""
    return a * ~(abs(a) < np.finfo(a.dtype).tiny)


def whole(a, code):
    """Convert to integers: the nearest that there is, and NaN as the manual says ("cvt", "Integer Notes")."""
    info = np.iinfo(code)
    low, high, none = a <= float(info.min), a >= float(info.max), a != a
    inside = np.where(low | high | none, 0, a).astype(code)
    lost = 0 if a.itemsize < 8 and info.bits < 64 else info.min if info.min else 1 << (info.bits - 1)
    return np.select([none, high, low], [np.array(n, code) for n in (lost, info.max, info.min)], inside)


# Integers ----------------------------------------------------------------------------------------------------------


def fitted(a, code):
    """Convert integers to a type, the nearest that there is (`cvt.sat`)."""
    info, own = np.iinfo(code), np.iinfo(a.dtype)
    return np.clip(a, max(info.min, own.min), min(info.max, own.max)).astype(code)


def high(a, b, code):
    """Return the upper half of a product ("mul.hi"); of 64 bits, by Python's integers."""
    bits = 8 * np.dtype(code).itemsize
    wide = np.multiply(a, b, dtype=f"{code[0]}{bits // 4}" if bits < 64 else object)
    return (wide >> bits).astype(code)


def carried(op, a, b, carry):
    """Add or subtract unsigned numbers and a carry; return the carry, too ("Extended-Precision Integer Arithmetic")."""
    if op == "sub":
        return a - b - carry, (a < b) | (a - b < carry)
    return a + b + carry, (a + b < a) | (a + b + carry < a + b)


def top_bit(a):
    """Return the place of the highest bit that differs from the sign, or is set; -1 where none is ("bfind", "clz")."""
    place, a = np.full(a.shape, -1, "i4"), np.where(a < 0, ~a, a)
    while a.any():
        place += a != 0
        a = a >> 1
    return place


def extracted(a, start, length):
    """Return a field of bits, filled up with its sign where numbers are signed ("bfe"); start and length are bytes."""
    bits, start, length = 8 * a.itemsize, start & 255, length & 255
    above = bits - np.minimum(start + length, bits)  # bits above the field
    return np.where(length, a << above.astype(a.dtype) >> (above + start).astype(a.dtype), a.dtype.type(0))


def inserted(a, b, start, length):
    """Put the low bits of a number into another ("bfi"); unsigned."""
    one, start, length = a.dtype.type(1), (start & 255).astype(a.dtype), (length & 255).astype(a.dtype)
    mask = (one << length) - one << start
    return b & ~mask | a << start & mask


def permuted(a, b, selector):
    """Choose bytes of two numbers, or copies of their signs ("prmt", its default mode); uint32."""
    a, b, selector = np.broadcast_arrays(a, b, selector)
    choice = selector[:, None] >> np.arange(0, 16, 4, "u4")
    byte = np.take_along_axis(np.stack([a, b], axis=1).view("u1"), (choice & 7).astype(int), axis=1)
    return np.where(choice & 8, (byte >> 7) * np.uint8(255), byte).view("u4").ravel()


def chosen(a, b, c, table):
    """Any logical function of three numbers, by its truth table ("lop3")."""
    terms = [(a if n & 4 else ~a) & (b if n & 2 else ~b) & (c if n & 1 else ~c) for n in range(8) if table >> n & 1]
    return np.bitwise_or.reduce(terms) if terms else 0 * a
