"""Each instruction against Python's integers and rational numbers, at the ends of the range, NaN, -0 and subnormals."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ptx_one_instruction import CODES, blocks, compute, edges, pairs, rounded, same, triples

from bppsa_nb import ptx

RNG = np.random.default_rng(0)


def signed_division(a, b):
    q = abs(a) // abs(b) if b else 0
    return -q if (a < 0) != (b < 0) else q


INTEGER = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul.lo": lambda a, b: a * b,
    "div": signed_division,
    "rem": lambda a, b: a - b * signed_division(a, b),
    "min": min,
    "max": max,
}


def integers(kind, function, *arrays, bits=None):
    """Apply a function of Python's integers, and keep the low bits."""
    code = CODES[kind]
    bits = bits or 8 * np.dtype(code).itemsize
    made = [function(*(int(x) for x in each)) & (1 << bits) - 1 for each in zip(*arrays, strict=True)]
    return np.array(made, f"u{bits // 8}")


def raw(array):
    return array.view(f"u{array.itemsize}")


CARRIES = [  # of three numbers, each instruction with the carry of the one before
    ("add.cc.K %d, %a0, %a1; addc.K %d, %a2, %a0;", lambda x, y, z, bits: x + z + (x + y >> bits)),
    ("add.cc.K %d, %a0, %a1; addc.cc.K %d, %a2, %a1; addc.K %d, 0, 0;",
     lambda x, y, z, bits: z + y + (x + y >> bits) >> bits),
    ("sub.cc.K %d, %a0, %a1; subc.cc.K %d, %a2, %a1; subc.K %d, 0, 0;", lambda x, y, z, bits: -(z - y - (x < y) < 0)),
    ("sub.cc.K %d, %a0, %a1; subc.K %d, %a2, %a0;", lambda x, y, z, bits: z - x - (x < y)),
    ("mad.lo.cc.K %d, %a0, %a1, %a2; madc.hi.K %d, %a0, %a1, %a2;",
     lambda x, y, z, bits: (x * y + z >> bits) + z),
    ("mad.lo.cc.K %d, %a0, %a1, %a2; madc.hi.cc.K %d, %a0, %a1, %a2; madc.lo.K %d, %a0, %a1, 0;",
     lambda x, y, z, bits: x * y + ((x * y + z >> bits) + z >> bits)),
]  # fmt: skip


@pytest.mark.parametrize("kind", ["u32", "u64"])
@pytest.mark.parametrize("text, function", CARRIES)
def test_integers_with_a_carry(text, function, kind):
    a, b = pairs(CODES[kind], RNG)
    c, bits = np.roll(b, 5), 8 * a.itemsize
    found = compute(text.replace("K", kind), kind, (kind, a), (kind, b), (kind, c), block=256)
    assert (raw(found) == integers(kind, lambda *numbers: function(*numbers, bits), a, b, c)).all()


@pytest.mark.parametrize("kind", ["s16", "u16", "s32", "u32", "s64", "u64"])
def test_integer_arithmetic(kind):
    a, b = pairs(CODES[kind], RNG)
    bits = 8 * a.itemsize
    for name, function in INTEGER.items():
        keep = b != 0 if name in ("div", "rem") else np.ones(len(b), bool)
        found = compute(f"{name}.{kind} %d, %a0, %a1;", kind, (kind, a), (kind, b), block=256)
        assert (raw(found)[keep] == integers(kind, function, a[keep], b[keep])).all(), name
    found = compute(f"mul.hi.{kind} %d, %a0, %a1;", kind, (kind, a), (kind, b), block=256)
    assert (raw(found) == integers(kind, lambda x, y: x * y >> bits, a, b)).all()
    c = np.roll(b, 5)
    found = compute(f"mad.lo.{kind} %d, %a0, %a1, %a2;", kind, (kind, a), (kind, b), (kind, c), block=256)
    assert (raw(found) == integers(kind, lambda x, y, z: x * y + z, a, b, c)).all()
    if bits < 64:
        wide = f"{kind[0]}{2 * bits}"
        found = compute(f"mul.wide.{kind} %d, %a0, %a1;", wide, (kind, a), (kind, b), block=256)
        assert (raw(found) == integers(wide, lambda x, y: x * y, a, b)).all()
    if kind[0] == "s":
        for name, function in (("abs", abs), ("neg", lambda x: -x)):
            assert (
                raw(compute(f"{name}.{kind} %d, %a0;", kind, (kind, a), block=256)) == integers(kind, function, a)
            ).all()


@pytest.mark.parametrize("kind", ["s32", "u32", "s64", "u64"])
def test_comparisons_of_integers(kind):
    a, b = pairs(CODES[kind], RNG)
    names = {"eq": a == b, "ne": a != b, "lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b}
    if kind[0] == "u":
        names |= {"lo": a < b, "ls": a <= b, "hi": a > b, "hs": a >= b}
    for name, wanted in names.items():
        code = f"setp.{name}.{kind} %p1, %a0, %a1;\nselp.b32 %d, 1, 0, %p1;"
        assert (compute(code, "u32", (kind, a), (kind, b), block=256) == wanted).all(), name


def test_comparisons_of_real_numbers():
    for kind in ("f32", "f64"):
        a, b = pairs(CODES[kind], RNG)
        ordered, none = (
            {"eq": a == b, "ne": a != b, "lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b},
            (a != a) | (b != b),
        )
        wanted = (
            {k: v & ~none for k, v in ordered.items()}
            | {f"{k}u": v | none for k, v in ordered.items()}
            | {"num": ~none, "nan": none}
        )
        for name, truth in wanted.items():
            code = f"setp.{name}.{kind} %p1, %a0, %a1;\nselp.b32 %d, 1, 0, %p1;"
            assert (compute(code, "u32", (kind, a), (kind, b), block=256) == truth).all(), name


def test_two_predicates_and_what_is_combined_with_them():
    a, b = pairs("i4", RNG)
    code = """setp.gt.s32 %p3, %a1, 0;
setp.lt.and.s32 %p1|%p2, %a0, %a1, !%p3;
selp.b32 %i1, 1, 0, %p1;
selp.b32 %i2, 2, 0, %p2;
add.s32 %d, %i1, %i2;"""
    found = compute(code, "s32", ("s32", a), ("s32", b), block=256)
    assert (found == ((a < b) & (b <= 0)) + 2 * (~(a < b) & (b <= 0))).all()


@pytest.mark.parametrize("kind", ["b16", "b32", "b64"])
def test_logic_and_shifts(kind):
    a, b = pairs(CODES[kind], RNG)
    bits = 8 * a.itemsize
    for name, function in (("and", lambda x, y: x & y), ("or", lambda x, y: x | y), ("xor", lambda x, y: x ^ y)):
        assert (
            compute(f"{name}.{kind} %d, %a0, %a1;", kind, (kind, a), (kind, b), block=256)
            == integers(kind, function, a, b)
        ).all()
    assert (compute(f"not.{kind} %d, %a0;", kind, (kind, a), block=256) == ~a).all()
    a, by = pairs(CODES[kind], RNG, "u4")  # by the width and more, too
    signed, unsigned = f"s{bits}", f"u{bits}"
    assert (
        compute(f"shl.{kind} %d, %a0, %a1;", kind, (kind, a), ("u32", by), block=256)
        == integers(kind, lambda x, n: x << n if n < bits else 0, a, by)
    ).all()
    assert (
        compute(f"shr.{unsigned} %d, %a0, %a1;", kind, (kind, a), ("u32", by), block=256)
        == integers(kind, lambda x, n: x >> n, a, by)
    ).all()
    arithmetic = a.view(f"i{bits // 8}")
    found = compute(f"shr.{signed} %d, %a0, %a1;", signed, (signed, arithmetic), ("u32", by), block=256)
    assert (raw(found) == integers(signed, lambda x, n: x >> n, arithmetic, by)).all()


def field(x, start, length, bits, signed):
    """`bfe` as the manual's pseudo-code has it."""
    msb = bits - 1
    sign = 0 if not signed or length == 0 else x >> min(start + length - 1, msb) & 1
    made = 0
    for n in range(bits):
        made |= (x >> n + start & 1 if n < length and n + start <= msb else sign) << n
    return made


def put(a, b, start, length, bits):
    """`bfi` as the manual's pseudo-code has it."""
    for n in range(length):
        if start + n < bits:
            b = b & ~(1 << start + n) | (a >> n & 1) << start + n
    return b


@pytest.mark.parametrize("bits", [32, 64])
def test_fields_and_counts_of_bits(bits):
    code, kind = f"u{bits // 8}", f"b{bits}"
    a = RNG.choice(edges(code, RNG, 20), 1024)
    b = RNG.choice(edges(code, RNG, 20), 1024)
    start, length = RNG.integers(0, 300, (2, 1024)).astype("u4")
    start[:700] %= bits + 3
    length[:600] %= bits + 3
    start, length = start & 255, length & 255
    for signed in (True, False):
        t = f"{'s' if signed else 'u'}{bits}"
        found = compute(f"bfe.{t} %d, %a0, %a1, %a2;", kind, (kind, a), ("u32", start), ("u32", length))
        assert (found == integers(kind, lambda x, s, n: field(x, s, n, bits, signed), a, start, length)).all()  # noqa: B023
    found = compute(f"bfi.{kind} %d, %a0, %a1, %a2, %a3;", kind, (kind, a), (kind, b), ("u32", start), ("u32", length))
    assert (found == integers(kind, lambda x, y, s, n: put(x, y, s, n, bits), a, b, start, length)).all()
    for name, function in (("popc", int.bit_count), ("clz", lambda x: bits - x.bit_length())):
        assert (compute(f"{name}.{kind} %d, %a0;", "u32", (kind, a)) == integers("u32", function, a)).all()
    found = compute(f"bfind.u{bits} %d, %a0;", "s32", (kind, a))
    assert (raw(found) == integers("u32", lambda x: x.bit_length() - 1, a)).all()
    turned = [int(f"{int(x):0{bits}b}"[::-1], 2) for x in a]
    assert (compute(f"brev.{kind} %d, %a0;", kind, (kind, a)) == np.array(turned, code)).all()


def test_bytes_and_tables():
    a, b, c = (RNG.integers(0, 1 << 32, 512).astype("u4") for _ in range(3))

    def permuted(x, y, selector):
        made = 0
        for n in range(4):
            s = selector >> 4 * n & 15
            byte = (y << 32 | x) >> 8 * (s & 7) & 255
            made |= (255 * (byte >> 7) if s & 8 else byte) << 8 * n
        return made

    found = compute("prmt.b32 %d, %a0, %a1, %a2;", "b32", ("b32", a), ("b32", b), ("b32", c))
    assert (found == integers("b32", permuted, a, b, c)).all()
    bit = lambda x, y, z, n: table >> (x >> n & 1) * 4 + (y >> n & 1) * 2 + (z >> n & 1) & 1  # noqa: E731
    for table in (0x00, 0x96, 0xE8, 0xCA, 0x1B, 0xFF):
        rule = lambda x, y, z: sum(bit(x, y, z, n) << n for n in range(32))  # noqa: E731
        found = compute(f"lop3.b32 %d, %a0, %a1, %a2, {table:#x};", "b32", ("b32", a), ("b32", b), ("b32", c))
        assert (found == integers("b32", rule, a, b, c)).all()
    by = RNG.integers(0, 70, 512).astype("u4")
    for way in "lr":
        for mode, cut in (("wrap", lambda n: n & 31), ("clamp", lambda n: min(n, 32))):
            rule = lambda x, y, n: (y << 32 | x) << cut(n) >> 32 if way == "l" else (y << 32 | x) >> cut(n)  # noqa: B023, E731
            found = compute(f"shf.{way}.{mode}.b32 %d, %a0, %a1, %a2;", "b32", ("b32", a), ("b32", b), ("u32", by))
            assert (found == integers("b32", rule, a, b, by)).all()
    assert (
        compute(
            "mov.b32 {%i1, %i2}, %a0;\nmov.b64 %d, {%i2, %i1};".replace("b32 {", "b64 {"),
            "b64",
            ("b64", a.astype("u8") << np.uint64(7)),
        )
        == integers("b64", lambda x: (x << 7 & 0xFFFFFFFF) << 32 | x << 7 >> 32, a)
    ).all()


OPERATIONS = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "fma": lambda a, b, c: a * b + c,
}


def exact(name, code, mode, *arrays):
    """Return what IEEE 754 asks: NumPy where something is no number or a zero counts, rational numbers elsewhere."""
    function = OPERATIONS[name]
    with np.errstate(all="ignore"):
        made = function(*(a.astype("f8") for a in arrays)).astype(code)
    for n, numbers in enumerate(zip(*(a.tolist() for a in arrays), strict=True)):
        if all(map(math.isfinite, numbers)) and (name != "div" or numbers[1]):
            value = function(*map(Fraction, numbers))
            if value:
                made[n] = rounded(value, code, mode)
    return made


@pytest.mark.parametrize("kind", ["f16", "f32", "f64"])
@pytest.mark.parametrize("name", list(OPERATIONS))
def test_real_arithmetic_is_rounded_as_ieee_754_asks(kind, name):
    code = CODES[kind]
    if kind == "f16" and name == "div":
        return
    arrays = triples(code, RNG, 1024) if name == "fma" else pairs(code, RNG)
    if name == "fma":  # cancellation, which shows whether a product was rounded
        a, b, c = arrays
        with np.errstate(all="ignore"):
            c[::3] = -(a[::3] * b[::3])
    operands = ", ".join(f"%a{n}" for n in range(len(arrays)))
    for mode in ("rn", "rz", "rm", "rp") if kind != "f16" else ("rn",):
        found = compute(f"{name}.{mode}.{kind} %d, {operands};", kind, *((kind, a) for a in arrays), block=256)
        wanted = exact(name, code, mode, *arrays)
        zero = wanted == 0 if mode != "rn" else np.zeros(len(wanted), bool)  # of a zero's sign nothing is said there
        ok = same(found, wanted) | zero & (found == 0)
        assert ok.all(), (mode, [a[~ok][:3] for a in arrays], found[~ok][:3], wanted[~ok][:3])


def test_a_product_and_a_sum_are_rounded_once():
    """Half-way cases of single precision, which rounding twice gets wrong."""
    a = np.full(256, 1 + 2.0**-12, "f4")
    c = (2.0 ** -RNG.integers(20, 80, 256)).astype("f4") * RNG.choice([-1, 1], 256).astype("f4")
    found = compute("fma.rn.f32 %d, %a0, %a0, %a1;", "f32", ("f32", a), ("f32", c))
    assert same(found, exact("fma", "f4", "rn", a, a, c)).all()


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_roots_and_reciprocals(kind):
    code = CODES[kind]
    (a,) = blocks(edges(code, RNG, 200))
    with np.errstate(all="ignore"):
        wanted = {"sqrt": np.sqrt(a), "rcp": (1 / a).astype(code)}
    for name, values in wanted.items():
        assert same(compute(f"{name}.rn.{kind} %d, %a0;", kind, (kind, a), block=256), values).all()
    positive = abs(a[np.isfinite(a) & (a != 0)][:256])
    for mode in ("rz", "rm", "rp"):
        found = compute(f"rcp.{mode}.{kind} %d, %a0;", kind, (kind, positive), block=len(positive))
        assert same(found, np.array([rounded(1 / Fraction(float(x)), code, mode) for x in positive])).all()
        root = compute(f"sqrt.{mode}.{kind} %d, %a0;", kind, (kind, positive), block=len(positive))
        for r, x in zip(root, positive, strict=True):
            down, up = (
                Fraction(float(v)) ** 2
                for v in (np.nextafter(r, r.dtype.type(0)), np.nextafter(r, r.dtype.type(np.inf)))
            )
            x, r = Fraction(float(x)), Fraction(float(r)) ** 2
            assert down < x <= r if mode == "rp" else r <= x < up


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_signs_and_the_smaller_of_two(kind):
    code = CODES[kind]
    a, b = pairs(code, RNG)
    found = compute(f"min.{kind} %d, %a0, %a1;", kind, (kind, a), (kind, b), block=256)
    order = np.where(a != a, b, np.where(b != b, a, np.where((a < b) | (a == b) & np.signbit(a), a, b)))
    assert same(found, order).all()
    found = compute(f"max.{kind} %d, %a0, %a1;", kind, (kind, a), (kind, b), block=256)
    order = np.where(a != a, b, np.where(b != b, a, np.where((a > b) | (a == b) & ~np.signbit(a), a, b)))
    assert same(found, order).all()
    assert same(compute(f"abs.{kind} %d, %a0;", kind, (kind, a), block=256), abs(a)).all()
    assert same(compute(f"neg.{kind} %d, %a0;", kind, (kind, a), block=256), -a).all()
    assert same(
        compute(f"copysign.{kind} %d, %a0, %a1;", kind, (kind, a), (kind, b), block=256), np.copysign(b, a)
    ).all()


def test_subnormal_numbers_are_flushed_where_that_is_asked():
    a, b = pairs("f4", RNG)
    tiny = np.finfo("f4").tiny
    flush = lambda x: np.where(abs(x) < tiny, np.copysign(np.float32(0), x), x)  # noqa: E731
    with np.errstate(all="ignore"):
        for name, wanted in (("add", flush(a) + flush(b)), ("mul", flush(a) * flush(b))):
            assert same(
                compute(f"{name}.ftz.f32 %d, %a0, %a1;", "f32", ("f32", a), ("f32", b), block=256), flush(wanted)
            ).all()
        found = compute("fma.rn.ftz.f32 %d, %a0, %a1, %a1;", "f32", ("f32", a), ("f32", b), block=256)
        assert same(found, flush(exact("fma", "f4", "rn", flush(a), flush(b), flush(b)))).all()
        assert same(
            compute("add.sat.f32 %d, %a0, %a1;", "f32", ("f32", a), ("f32", b), block=256),
            np.where(a + b > 0, np.minimum(a + b, 1), np.float32(0)),
        ).all()


APPROXIMATE = {"ex2.approx.f32": (np.exp2, 2.0**-22), "lg2.approx.f32": (np.log2, 2.0**-22),
               "rcp.approx.f32": (lambda x: 1 / x, 2.0**-23),
               "rsqrt.approx.f32": (lambda x: 1 / np.sqrt(x), 2.0**-22), "sqrt.approx.f32": (np.sqrt,
               2.0**-22), "tanh.approx.f32": (np.tanh, 2.0**-11)}  # fmt: skip


@pytest.mark.parametrize("name", list(APPROXIMATE))
def test_approximate_instructions_are_at_least_as_accurate_as_the_manual_says(name):
    function, bound = APPROXIMATE[name]
    (a,) = blocks(np.concatenate([edges("f4", RNG, 100), RNG.uniform(-100, 100, 500).astype("f4")]))
    with np.errstate(all="ignore"):
        wanted = function(a.astype("f8"))
        found = compute(f"{name} %d, %a0;", "f32", ("f32", a), block=256).astype("f8")
        rough = abs(found - wanted) <= bound * np.maximum(abs(wanted), 1 if name[0] == "l" else 0) + 2.0**-149
        single = wanted.astype("f4").astype("f8")
    assert (rough | np.isnan(found) & np.isnan(wanted) | (found == single)).all()
    for circle in ("sin", "cos"):
        x = RNG.uniform(-np.pi, np.pi, 256).astype("f4")
        found = compute(f"{circle}.approx.f32 %d, %a0;", "f32", ("f32", x))
        assert abs(found - getattr(np, circle)(x.astype("f8"))).max() < 2.0**-20.5


REAL_TO_WHOLE = {"rni": round, "rzi": math.trunc, "rmi": math.floor, "rpi": math.ceil}


@pytest.mark.parametrize("of", ["f32", "f64"])
def test_conversions_to_integers(of):
    values = edges(CODES[of], RNG, 20)
    (a,) = blocks(
        np.concatenate(
            [values, np.array([0.5, 1.5, 2.5, -0.5, -1.5, 2.0**31, -(2.0**31), 2.0**63, 2.0**64, 255.5, -128.5])]
        ).astype(CODES[of])
    )
    for to in ("s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64"):
        info = np.iinfo(CODES[to])
        lost = 0 if of == "f32" and info.bits < 64 else 1 << (info.bits - 1)
        for mode, function in REAL_TO_WHOLE.items():

            def wanted(x, function=function, info=info, lost=lost):
                if math.isnan(x):
                    return lost
                return (
                    info.min
                    if x <= info.min
                    else info.max
                    if x >= info.max
                    else min(max(function(x), info.min), info.max)
                )

            found = compute(f"cvt.{mode}.{to}.{of} %d, %a0;", to, (of, a), block=256)
            made = np.array([wanted(float(x)) & (1 << info.bits) - 1 for x in a], f"u{info.bits // 8}")
            assert (raw(found) == made).all(), (to, mode)


def test_conversions_between_integers():
    for of in ("s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64"):
        (a,) = blocks(edges(CODES[of], RNG, 40))
        for to in ("s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64"):
            info = np.iinfo(CODES[to])
            found = compute(f"cvt.{to}.{of} %d, %a0;", to, (of, a), block=256)
            assert (raw(found) == integers(to, lambda x: x, a)).all(), (to, of)
            found = compute(f"cvt.sat.{to}.{of} %d, %a0;", to, (of, a), block=256)
            assert (raw(found) == integers(to, lambda x: min(max(x, info.min), info.max), a)).all(), (to, of)  # noqa: B023


def test_conversions_to_real_numbers():
    for of in ("s32", "u32", "s64", "u64"):
        (a,) = blocks(edges(CODES[of], RNG, 100))
        for to in ("f32", "f64"):
            for mode in ("rn", "rz", "rm", "rp"):
                found = compute(f"cvt.{mode}.{to}.{of} %d, %a0;", to, (of, a), block=256)
                assert same(found, np.array([rounded(Fraction(int(x)), CODES[to], mode) for x in a])).all(), (
                    to,
                    of,
                    mode,
                )
    (a,) = blocks(edges("f8", RNG, 200))
    for to in ("f16", "f32"):
        for mode in ("rn", "rz", "rm", "rp"):
            found = compute(f"cvt.{mode}.{to}.f64 %d, %a0;", to, ("f64", a), block=256)
            wanted = np.array([rounded(Fraction(float(x)), CODES[to], mode) if math.isfinite(x) else x for x in a])
            wanted = np.where(wanted == 0, np.copysign(0, a), wanted)
            assert same(found, wanted.astype(CODES[to])).all(), (to, mode)
    (h,) = blocks(edges("f2", RNG, 200))
    assert same(compute("cvt.f32.f16 %d, %a0;", "f32", ("f16", h), block=256), h.astype("f4")).all()


@pytest.mark.parametrize(
    "text",
    [
        "frobnicate.s32 %d, %a0;",
        "add.strange.s32 %d, %a0, %a0;",
        "ld.global.v3.s32 %d, [%rd0];",
        "mul.lo.q32 %d, %a0, %a0;",
        "cvt.rn.bf16.f32 %d, %a0;",
        "setp.xx.s32 %p1, %a0, %a0;",
        "atom.global.mul.s32 %d, [%rd0], %a0;",
        "cp.async.ca.shared.global [%rd0], [%rd0], 4;",
    ],
)
def test_what_is_not_known_is_refused_by_name(text):
    with pytest.raises(ValueError, match=r"line \d+ of the PTX text: an instruction that is not known: '" + text[:8]):
        compute(text, "s32", ("s32", np.zeros(32)))


def test_the_module_is_public():
    assert set(ptx.__all__) >= {"run", "assert_clean", "Report", "Finding"}


@given(st.sampled_from(["f32", "f64"]), st.sampled_from(list(OPERATIONS)), st.integers(0, 2**32))
@settings(max_examples=25, deadline=None)
def test_numbers_of_any_bits(kind, name, seed):
    rng = np.random.default_rng(seed)
    code = CODES[kind]
    count = 3 if name == "fma" else 2
    arrays = [rng.integers(0, 2 ** (8 * np.dtype(code).itemsize), 64, f"u{code[1]}").view(code) for _ in range(count)]
    if rng.random() < 0.7:  # of like size, so that the last one counts
        arrays = [(np.frexp(a)[0] * 2.0 ** rng.integers(-3, 4, 64)).astype(code) for a in np.nan_to_num(arrays)]
    found = compute(
        f"{name}.rn.{kind} %d, {', '.join(f'%a{n}' for n in range(count))};", kind, *((kind, a) for a in arrays)
    )
    assert same(found, exact(name, code, "rn", *arrays)).all()


@given(st.sampled_from(["s32", "u32", "s64", "u64"]), st.sampled_from(list(INTEGER)), st.data())
@settings(max_examples=25, deadline=None)
def test_integers_of_any_size(kind, name, data):
    info = np.iinfo(CODES[kind])
    numbers = st.lists(st.integers(int(info.min), int(info.max)), min_size=32, max_size=32)
    a, b = (np.array(data.draw(numbers), CODES[kind]) for _ in range(2))
    keep = b != 0
    found = compute(f"{name}.{kind} %d, %a0, %a1;", kind, (kind, a), (kind, b))
    assert (raw(found)[keep] == integers(kind, INTEGER[name], a[keep], b[keep])).all()
