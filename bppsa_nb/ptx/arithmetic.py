"""What instructions compute where NumPy has no operation that does just that: over arrays of lanes, and exact.

Sections are those of the PTX manual, "Instructions", by their titles. Approximate instructions (`ex2.approx`,
`rcp.approx`, `tanh.approx`, `sin.approx` ...) are computed with NumPy's functions, which are more accurate than the
manual asks; what depends on the last bits of a GPU's own is not seen here.
"""

from fractions import Fraction

import numpy as np

# Floating point: "fma", "Rounding Modifiers" -------------------------------------------------------------------------


def odd_sum(p, c):
    """Add in double precision, rounded to odd where inexact: rounding that once more is as rounding once."""
    s = p + c
    bits = s.view("i8")
    back = s - p
    error = (p - (s - back)) + (c - back)
    inexact = (error != 0) & (bits & 1 == 0) & np.isfinite(error)
    return (bits + np.where(inexact, np.where((error > 0) == (s > 0), 1, -1), 0)).view("f8")


def exact(name, result, *args):
    """Return the sign of what is exact minus a rounded result, by rational numbers; 0 where nothing is finite."""
    result, *args = np.broadcast_arrays(result, *args)
    made = np.zeros(result.shape, "i1")
    for n in np.flatnonzero(np.logical_and.reduce([np.isfinite(a) for a in args])):
        numbers = [Fraction(float(a[n])) for a in args]
        if np.isfinite(result[n]):
            difference = RESIDUES[name](Fraction(float(result[n])), *numbers)
            made[n] = (difference > 0) - (difference < 0)
        elif name not in ("div", "rcp") or numbers[-1]:  # beyond the range
            made[n] = -np.sign(result[n])
    return made


RESIDUES = {  # the sign of these is the sign of the error
    "add": lambda r, a, b: a + b - r,
    "sub": lambda r, a, b: a - b - r,
    "mul": lambda r, a, b: a * b - r,
    "fma": lambda r, a, b, c: a * b + c - r,
    "div": lambda r, a, b: (a - r * b) * b,
    "sqrt": lambda r, a: a - r * r,
    "rcp": lambda r, a: (1 - r * a) * a,
}


def directed(name, mode, result, *args):
    """Round a result that was rounded to the nearest as rz, rm or rp ask."""
    return towards(result, exact(name, result, *args), mode)


def towards(result, sign, mode):
    """Step from the nearest number to the one that rz, rm or rp ask for; `sign` is that of the error."""
    up = (sign > 0) & ((mode == "rp") | (mode == "rz") & (result < 0))
    down = (sign < 0) & ((mode == "rm") | (mode == "rz") & (result > 0))
    infinity = result.dtype.type(np.inf)
    return np.where(up, np.nextafter(result, infinity), np.where(down, np.nextafter(result, -infinity), result))


def rounded(wide, code, mode="rn"):
    """Round a double that stands for an exact number."""
    found = wide.astype(code)
    if mode == "rn":
        return found
    return towards(found, np.where(np.isfinite(wide), np.sign(wide - found), 0), mode)


def fma(a, b, c, mode="rn"):
    """Multiply and add, rounded once."""
    if a.dtype.char == "d":
        a, b, c = np.broadcast_arrays(a, b, c)
        result = _fma_double(a, b, c, a * b)
        return result if mode == "rn" else directed("fma", mode, result, a, b, c)
    p = np.multiply(a, b, dtype=float)  # exact
    s = p + c
    if mode != "rn" or np.count_nonzero(s.view("i8") & 0x0FFFFFFF) < s.size:  # perhaps half-way for the type
        return rounded(odd_sum(p, np.asarray(c, float)), a.dtype, mode)
    return s.astype(a.dtype)


def _split(a):
    t = a * 134217729.0
    high = t - (t - a)
    return high, a - high


def _two_sum(a, b):
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def _fma_double(a, b, c, p):
    """Boldo and Melquiond, 2008: the product's error exactly, and a sum rounded to odd; extremes one by one."""
    (ah, al), (bh, bl) = _split(a), _split(b)
    low = al * bl - (((p - ah * bh) - al * bh) - ah * bl)
    th, tl = _two_sum(c, low)
    vh, vl = _two_sum(p, th)
    z, error = _two_sum(tl, vl)
    bits = z.view("i8")
    odd = (error != 0) & (bits & 1 == 0)
    z = np.where(odd, bits + np.where((error > 0) == (z > 0), 1, -1), bits).view("f8")
    result = vh + z
    size = abs(p)
    plain = (size > 1e-280) & (size < 1e290) & (abs(a) < 1e290) & (abs(b) < 1e290) & (abs(c) < 1e290)
    plain &= abs(result) > 1e-280
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


def flushed(a):
    """Replace subnormal numbers by zeros of their sign (`.ftz`, single precision only)."""
    small = abs(a) < np.finfo(a.dtype).tiny
    return np.where(small, np.copysign(a.dtype.type(0), a), a) if small.any() else a


def saturated(a):
    """Bring numbers into [0, 1], NaN to +0 (`.sat`)."""
    return np.where(a > 0, np.minimum(a, a.dtype.type(1)), a.dtype.type(0))


def smaller(a, b):
    """Return the smaller number: of a NaN and a number the number, of zeros the negative one ("min")."""
    return _one_of(np.fmin(a, b), a, b, np.bitwise_or)


def larger(a, b):
    """Return the larger number: of a NaN and a number the number, of zeros the positive one ("max")."""
    return _one_of(np.fmax(a, b), a, b, np.bitwise_and)


def _one_of(found, a, b, join):
    same, bits = a == b, f"i{found.itemsize}"
    joined = join(np.asarray(a).view(bits), np.asarray(b).view(bits)).view(found.dtype) if same.any() else found
    return np.where(same, joined, found)


def whole(a, code):
    """Convert to integers: the nearest that there is, and NaN as the manual says ("cvt", "Integer Notes")."""
    info, a = np.iinfo(code), np.asarray(a)
    low, high, none = a <= float(info.min), a >= float(info.max), a != a
    inside = np.where(low | high | none, 0, a).astype(code)
    lost = 0 if a.itemsize < 8 and info.bits < 64 else info.min if info.min else 1 << (info.bits - 1)
    return np.where(none, np.array(lost, code), np.where(high, info.max, np.where(low, info.min, inside)).astype(code))


def from_whole(a, code, mode):
    """Convert integers to floating point."""
    found = a.astype(code)
    if mode == "rn":
        return found
    sign = [(int(x) > float(r)) - (int(x) < float(r)) for x, r in zip(np.ravel(a), np.ravel(found), strict=True)]
    return towards(found, np.array(sign), mode)


# Integers ----------------------------------------------------------------------------------------------------------


def fitted(a, code):
    """Convert integers to a type, the nearest that there is (`cvt.sat`)."""
    info, own = np.iinfo(code), np.iinfo(a.dtype)
    return np.clip(a, max(info.min, own.min), min(info.max, own.max)).astype(code)


def quotient(a, b):
    """Divide integers, towards zero; by zero, all ones, as GPUs have it (unspecified in the manual, "div")."""
    zero = b == 0
    by = np.where(zero, b.dtype.type(1), b) if np.any(zero) else b
    made = (a - np.fmod(a, by)) // by
    return np.where(zero, np.invert(np.zeros((), made.dtype)), made) if np.any(zero) else made


def remainder(a, b):
    """Return what is left of a division, with the sign of the dividend; by zero, the dividend ("rem")."""
    zero = b == 0
    return np.where(zero, a, np.fmod(a, np.where(zero, b.dtype.type(1), b))) if np.any(zero) else np.fmod(a, b)


def high(a, b, code):
    """Return the upper half of a product ("mul.hi")."""
    bits = 8 * np.dtype(code).itemsize
    if bits < 64:
        wide = f"{code[0]}{bits // 4}"
        return (np.multiply(a, b, dtype=wide) >> bits).astype(code)
    u, v = np.asarray(a).view("u8"), np.asarray(b).view("u8")
    half, mask = np.uint64(32), np.uint64(0xFFFFFFFF)
    (uh, ul), (vh, vl) = (u >> half, u & mask), (v >> half, v & mask)
    middle = uh * vl + (ul * vl >> half)
    other = ul * vh + (middle & mask)
    made = (uh * vh + (middle >> half) + (other >> half)).view(code)
    return made if code == "u8" else made - np.where(a < 0, b, 0) - np.where(b < 0, a, 0)


def carried(op, a, b, carry):
    """Add or subtract unsigned numbers and a carry; return the carry, too ("Extended-Precision Integer Arithmetic")."""
    if op == "sub":
        return a - b - carry, (a < b) | (a - b < carry)
    return a + b + carry, (a + b < a) | (a + b + carry < a + b)


def counted(a):
    """Count the bits that are set ("popc")."""
    return np.bitwise_count(np.asarray(a)).astype("i4")


def top_bit(a):
    """Return the place of the highest bit that is set in unsigned numbers, -1 where none is ("bfind")."""
    place, a = np.full(np.shape(a), -1, "i4"), np.array(a)
    while a.any():
        place += a != 0
        a >>= 1
    return place


def leading_zeros(a):
    """Count the bits above the highest that is set ("clz")."""
    return 8 * a.itemsize - 1 - top_bit(a)


def reversed_bits(a):
    """Turn the order of bits around ("brev")."""
    backwards = np.asarray(a).byteswap().view("u1")
    return np.packbits(np.unpackbits(backwards, bitorder="little")).view(a.dtype)


def field(start, length, bits):
    """Return a place and a mask for fields of bits, of which start and length are bytes ("bfe", "bfi")."""
    start, length = (np.asarray(n).astype("u8") & np.uint64(255) for n in (start, length))
    length = np.where(start < bits, np.minimum(length, bits - np.minimum(start, bits)), 0).astype("u8")
    mask = np.where(length < 64, (np.uint64(1) << np.minimum(length, np.uint64(63))) - np.uint64(1), ~np.uint64(0))
    return start, mask


def extracted(a, start, length):
    """Return a field of bits, filled up with its sign where numbers are signed ("bfe")."""
    bits, wide = 8 * a.itemsize, np.asarray(a).astype("i8")
    start, mask = field(start, length, bits)
    made = np.where(start < bits, wide.view("u8") >> np.minimum(start, np.uint64(63)), 0) & mask
    if a.dtype.kind == "i":
        top = np.minimum(start + (np.asarray(length).astype("u8") & np.uint64(255)) - np.uint64(1), np.uint64(bits - 1))
        negative = (wide >> top.astype("i8") & 1 != 0) & (np.asarray(length).astype("u8") & np.uint64(255) != 0)
        made = np.where(negative, made | ~mask, made)
    return made.astype(f"u{a.itemsize}").view(a.dtype)


def inserted(a, b, start, length):
    """Put the low bits of a number into another ("bfi"); unsigned."""
    start, mask = field(start, length, 8 * a.itemsize)
    by = np.minimum(start, np.uint64(63))
    return (np.asarray(b).astype("u8") & ~(mask << by) | (np.asarray(a).astype("u8") & mask) << by).astype(a.dtype)


def permuted(a, b, selector):
    """Choose bytes of two numbers, or copies of their signs ("prmt", its default mode); uint32."""
    pool = np.asarray(a).astype("u8") | np.asarray(b).astype("u8") << np.uint64(32)
    made, selector = np.zeros(np.broadcast(pool, selector).shape, "u8"), np.asarray(selector).astype("u8")
    for n in range(4):
        choice = selector >> np.uint64(4 * n)
        byte = pool >> (choice & np.uint64(7)) * np.uint64(8) & np.uint64(255)
        sign = (byte >> np.uint64(7)) * np.uint64(255)
        made |= np.where(choice & np.uint64(8), sign, byte) << np.uint64(8 * n)
    return made.astype("u4")


def funnel(a, b, by, way, mode):
    """Shift two numbers as one, and return the upper or the lower half ("shf"); uint32."""
    by = np.asarray(by).astype("u8")
    by = by & np.uint64(31) if mode == "wrap" else np.minimum(by, np.uint64(32))
    pair = np.asarray(b).astype("u8") << np.uint64(32) | np.asarray(a).astype("u8")
    return ((pair << by) >> np.uint64(32) if way == "l" else pair >> by).astype("u4")


def chosen(a, b, c, table):
    """Any logical function of three numbers, by its truth table ("lop3")."""
    terms = [(a if n & 4 else ~a) & (b if n & 2 else ~b) & (c if n & 1 else ~c) for n in range(8) if table >> n & 1]
    return np.bitwise_or.reduce(terms) if terms else 0 * a
