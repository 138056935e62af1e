"""Each instruction against Python's integers and rational numbers, at the ends of the range, NaN, -0 and subnormals."""

import math
from fractions import Fraction

import numpy as np
import pytest
from helpers import beside
from hypothesis import given, settings
from hypothesis import strategies as st
from one_instruction import CODES, FORMATS, blocks, check, compute, edges, pairs, rounded, same

import warpwatch

RNG = np.random.default_rng(0)
BEGIN = RNG.bit_generator.state
WHOLE = ["s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64"]


@pytest.fixture(autouse=True)
def the_same_numbers():
    """Let each test draw the same numbers, whichever ran before."""
    RNG.bit_generator.state = BEGIN


def signed_division(a, b):
    q = abs(a) // abs(b) if b else 0
    return -q if (a < 0) != (b < 0) else q


INTEGER = {"add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul.lo": lambda a, b: a * b, "div": signed_division,
           "rem": lambda a, b: a - b * signed_division(a, b), "min": min, "max": max}  # fmt: skip


def integers(kind, function, *arrays):
    """Apply a function of Python's integers, and keep the low bits."""
    bits = 8 * np.dtype(CODES[kind]).itemsize
    made = [function(*(int(x) for x in each)) & (1 << bits) - 1 for each in zip(*arrays, strict=True)]
    return np.array(made, f"u{bits // 8}")


@pytest.mark.parametrize("kind", ["u32", "u64"])
@pytest.mark.parametrize("text, result", beside(__file__)["carries"])
def test_integers_with_a_carry(text, result, kind):
    a, b = pairs(CODES[kind], RNG)
    c, bits = np.roll(b, 5), 8 * a.itemsize
    wanted = integers(kind, eval(f"lambda x, y, z: {result}", {"bits": bits}), a, b, c)
    check(text.replace("K", kind), kind, wanted, (kind, a), (kind, b), (kind, c))


@pytest.mark.parametrize("kind", WHOLE[2:])
def test_integer_arithmetic(kind):
    a, b = pairs(CODES[kind], RNG)
    c, bits = np.roll(b, 5), 8 * a.itemsize
    two, three = ((kind, a), (kind, b)), ((kind, a), (kind, b), (kind, c))
    for name, function in INTEGER.items():
        some = [(kind, v[b != 0][:512] if name in ("div", "rem") else v) for v in (a, b)]
        check(f"{name}.{kind} %d, %a0, %a1;", kind, integers(kind, function, *(v for _, v in some)), *some)
    check(f"mul.hi.{kind} %d, %a0, %a1;", kind, integers(kind, lambda x, y: x * y >> bits, a, b), *two)
    check(f"mad.lo.{kind} %d, %a0, %a1, %a2;", kind, integers(kind, lambda x, y, z: x * y + z, a, b, c), *three)
    wanted = integers(kind, lambda x, y, z: (x * y >> bits) + z, a, b, c)
    check(f"mad.hi.{kind} %d, %a0, %a1, %a2;", kind, wanted, *three)
    check(f"sad.{kind} %d, %a0, %a1, %a2;", kind, integers(kind, lambda x, y, z: abs(x - y) + z, a, b, c), *three)
    if bits < 64:
        wide = f"{kind[0]}{2 * bits}"
        check(f"mul.wide.{kind} %d, %a0, %a1;", wide, integers(wide, lambda x, y: x * y, a, b), *two)
        c = RNG.permutation(np.resize(edges(CODES[wide], RNG), len(a)))
        wanted = integers(wide, lambda x, y, z: x * y + z, a, b, c)
        check(f"mad.wide.{kind} %d, %a0, %a1, %a2;", wide, wanted, *two, (wide, c))
    for name, function in (("abs", abs), ("neg", lambda x: -x)) if kind[0] == "s" else ():
        check(f"{name}.{kind} %d, %a0;", kind, integers(kind, function, a), (kind, a))


@pytest.mark.parametrize("kind", [*WHOLE[4:], "f32", "f64"])
def test_comparisons(kind):
    a, b = pairs(CODES[kind], RNG)
    wanted = {"eq": a == b, "ne": a != b, "lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b}
    if kind[0] == "u":
        wanted |= {"lo": a < b, "ls": a <= b, "hi": a > b, "hs": a >= b}
    if kind[0] == "f":  # the ordered ones, and the unordered
        none = (a != a) | (b != b)
        wanted = {k: v & ~none for k, v in wanted.items()} | {f"{k}u": v | none for k, v in wanted.items()}
        wanted |= {"num": ~none, "nan": none}
    for name, truth in wanted.items():
        check(f"setp.{name}.{kind} %p1, %a0, %a1;\nselp.b32 %d, 1, 0, %p1;", "u32", truth, (kind, a), (kind, b))


def test_two_predicates_and_what_is_combined_with_them():
    a, b = pairs("i4", RNG)
    code = """setp.gt.s32 %p3, %a1, 0;
setp.lt.and.s32 %p1|%p2, %a0, %a1, !%p3;
selp.b32 %i1, 1, 0, %p1;
selp.b32 %i2, 2, 0, %p2;
add.s32 %d, %i1, %i2;"""
    check(code, "s32", ((a < b) & (b <= 0)) + 2 * (~(a < b) & (b <= 0)), ("s32", a), ("s32", b))


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_logic_and_shifts(bits):
    kind, signed, unsigned = f"b{bits}", f"s{bits}", f"u{bits}"
    a, b = pairs(CODES[kind], RNG)
    for name, function in (("and", lambda x, y: x & y), ("or", lambda x, y: x | y), ("xor", lambda x, y: x ^ y)):
        check(f"{name}.{kind} %d, %a0, %a1;", kind, integers(kind, function, a, b), (kind, a), (kind, b))
    check(f"not.{kind} %d, %a0;", kind, ~a, (kind, a))
    a, by = pairs(CODES[kind], RNG, "u4")  # by the width and more, too
    left = integers(kind, lambda x, n: x << n if n < bits else 0, a, by)
    check(f"shl.{kind} %d, %a0, %a1;", kind, left, (kind, a), ("u32", by))
    for of, numbers in ((unsigned, a), (signed, a.view(CODES[signed]))):
        right = integers(of, lambda x, n: x >> n, numbers, by)
        check(f"shr.{of} %d, %a0, %a1;", of, right, (of, numbers), ("u32", by))


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
    kind = f"b{bits}"
    a, b = (RNG.choice(edges(CODES[kind], RNG, 20), 1024) for _ in range(2))
    start, length = RNG.integers(0, 300, (2, 1024)).astype("u4")
    start[:700] %= bits + 3
    length[:600] %= bits + 3
    fields = ("u32", start), ("u32", length)
    start, length = start & 255, length & 255
    for t in "su":
        wanted = integers(kind, lambda x, s, n: field(x, s, n, bits, t == "s"), a, start, length)  # noqa: B023
        check(f"bfe.{t}{bits} %d, %a0, %a1, %a2;", kind, wanted, (kind, a), *fields)
    wanted = integers(kind, lambda x, y, s, n: put(x, y, s, n, bits), a, b, start, length)
    check(f"bfi.{kind} %d, %a0, %a1, %a2, %a3;", kind, wanted, (kind, a), (kind, b), *fields)
    for mode, most in ("clamp", 1 << 32), ("wrap", 32):
        wanted = integers("b32", lambda s, n: put(-1, 0, s % most, n % most, 32), *(each for _, each in fields))  # noqa: B023
        check(f"bmsk.{mode}.b32 %d, %a0, %a1;", "b32", wanted, *fields)
    sign = lambda x: ~x & (1 << bits) - 1 if x >> bits - 1 else x  # noqa: E731
    counts = {f"bfind.s{bits}": lambda x: sign(x).bit_length() - 1,
              f"bfind.shiftamt.s{bits}": lambda x: bits - sign(x).bit_length() if sign(x) else -1,
              f"popc.{kind}": int.bit_count, f"clz.{kind}": lambda x: bits - x.bit_length(),
              f"bfind.u{bits}": lambda x: x.bit_length() - 1,
              f"bfind.shiftamt.u{bits}": lambda x: bits - x.bit_length() if x else -1}  # fmt: skip
    for name, function in counts.items():
        check(f"{name} %d, %a0;", "u32", integers("u32", function, a), (kind, a))
    check(f"brev.{kind} %d, %a0;", kind, integers(kind, lambda x: int(f"{x:0{bits}b}"[::-1], 2), a), (kind, a))


@pytest.mark.parametrize("space", ["", ".global"])
def test_reductions_in_memory(space):
    a, b = pairs("u4", RNG)
    for how, function in {"add": lambda x, y: x + y, "max": max, "xor": lambda x, y: x ^ y}.items():
        text = f"red{space}.{how}.{'b' if how == 'xor' else 'u'}32 [%rd0], %a1;\nld.global.u32 %d, [%rd0];"
        check(text, "u32", integers("u32", function, a, b), ("u32", a), ("u32", b))


def test_bytes_and_tables():
    a, b, c = (RNG.integers(0, 1 << 32, 512).astype("u4") for _ in range(3))
    two, three = (("b32", a), ("b32", b)), (("b32", a), ("b32", b), ("b32", c))

    def permuted(x, y, selector):
        made = 0
        for n in range(4):
            s = selector >> 4 * n & 15
            byte = (y << 32 | x) >> 8 * (s & 7) & 255
            made |= (255 * (byte >> 7) if s & 8 else byte) << 8 * n
        return made

    check("prmt.b32 %d, %a0, %a1, %a2;", "b32", integers("b32", permuted, a, b, c), *three)
    bit = lambda x, y, z, n: table >> (x >> n & 1) * 4 + (y >> n & 1) * 2 + (z >> n & 1) & 1  # noqa: E731
    for table in (0x00, 0x96, 0xE8, 0xCA, 0x1B, 0xFF):
        wanted = integers("b32", lambda x, y, z: sum(bit(x, y, z, n) << n for n in range(32)), a, b, c)
        check(f"lop3.b32 %d, %a0, %a1, %a2, {table:#x};", "b32", wanted, *three)
    by = RNG.integers(0, 70, 512).astype("u4")
    for mode, cut in (("wrap", by & 31), ("clamp", np.minimum(by, 32))):
        left = integers("b32", lambda x, y, n: (y << 32 | x) << n >> 32, a, b, cut)
        check(f"shf.l.{mode}.b32 %d, %a0, %a1, %a2;", "b32", left, *two, ("u32", by))
        right = integers("b32", lambda x, y, n: (y << 32 | x) >> n, a, b, cut)
        check(f"shf.r.{mode}.b32 %d, %a0, %a1, %a2;", "b32", right, *two, ("u32", by))
    turned = "mov.b64 {%i1, %i2}, %a0;\nmov.b64 %d, {%i2, %i1};"
    wide = a.astype("u8") << np.uint64(7)
    check(turned, "b64", integers("b64", lambda x: x << 32 | x >> 32, wide), ("b64", wide))


OPERATIONS = {"add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
              "div": lambda a, b: a / b, "fma": lambda a, b, c: a * b + c, "rcp": lambda a: 1 / a}  # fmt: skip


def exact(name, code, mode, *arrays):
    """Return what IEEE 754 asks: NumPy where something is no number or a zero counts, rational numbers elsewhere."""
    function = OPERATIONS[name]
    with np.errstate(all="ignore"):
        made = function(*(a.astype("f8") for a in arrays)).astype(code if code != "bf16" else "f8")
    for n, numbers in enumerate(zip(*(a.tolist() for a in arrays), strict=True)):
        if all(map(math.isfinite, numbers)) and (name not in ("div", "rcp") or numbers[-1]):
            value = function(*map(Fraction, numbers))
            if value:
                made[n] = rounded(value, code, mode)
    return made


@pytest.mark.parametrize("kind", ["f16", "f32", "f64"])
@pytest.mark.parametrize("name", list(OPERATIONS))
def test_real_arithmetic_is_rounded_as_ieee_754_asks(kind, name):
    code = CODES[kind]
    if kind == "f16" and name in ("div", "rcp"):
        return
    arrays = pairs(code, RNG)[: OPERATIONS[name].__code__.co_argcount]
    if name == "fma":  # cancellation, which shows whether a product was rounded
        a, b, c = arrays = RNG.choice(edges(code, RNG, 12), (3, 1024))
        with np.errstate(all="ignore"):
            c[::3] = -(a[::3] * b[::3])
    operands = ", ".join(f"%a{n}" for n in range(len(arrays)))
    for mode in ("rn", "rz", "rm", "rp") if kind != "f16" else ("rn",):
        found = compute(f"{name}.{mode}.{kind} %d, {operands};", kind, *((kind, a) for a in arrays))
        wanted = exact(name, code, mode, *arrays)
        ok = same(found, wanted) | (mode != "rn") & (wanted == 0) & (found == 0)  # of whose sign nothing is said
        assert ok.all(), (mode, [a[~ok][:3] for a in arrays], found[~ok][:3], wanted[~ok][:3])


def test_a_product_and_a_sum_are_rounded_once():
    """Half-way cases of single precision, which rounding twice gets wrong."""
    a = np.full(256, 1 + 2.0**-12, "f4")
    c = (2.0 ** -RNG.integers(20, 80, 256)).astype("f4") * RNG.choice([-1, 1], 256).astype("f4")
    check("fma.rn.f32 %d, %a0, %a0, %a1;", "f32", exact("fma", "f4", "rn", a, a, c), ("f32", a), ("f32", c))


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_roots_signs_and_the_smaller_of_two(kind):
    a, b = pairs(CODES[kind], RNG)
    low = np.where(a != a, b, np.where(b != b, a, np.where((a < b) | (a == b) & np.signbit(a), a, b)))
    high = np.where(a != a, b, np.where(b != b, a, np.where((a > b) | (a == b) & ~np.signbit(a), a, b)))
    with np.errstate(all="ignore"):
        alone = {"sqrt.rn": np.sqrt(a), "rcp.rn": 1 / a, "abs": abs(a), "neg": -a}
    for name, wanted in alone.items():
        check(f"{name}.{kind} %d, %a0;", kind, wanted, (kind, a))
    for name, wanted in {"min": low, "max": high, "copysign": np.copysign(b, a)}.items():
        check(f"{name}.{kind} %d, %a0, %a1;", kind, wanted, (kind, a), (kind, b))


FORMAT = {"f16": "f2", "bf16": "bf16", "f32": "f4"}


def halves(kind, bits):
    """Return what the bits of halves stand for."""
    with np.errstate(invalid="ignore"):  # of NaNs that signal
        return bits.view("f2").astype("f8") if kind == "f16" else (bits.astype("u4") << 16).view("f4").astype("f8")


def some_halves(count):
    """Return bits of some: zeros, ones, subnormal, greatest, infinite, NaN, and others, many of like size."""
    ends = [0, 1, 2, 0x3C00, 0x3C01, 0x3F80, 0x3F81, 0x400, 0x3FF, 0x80, 0x7F, 0x7BFF, 0x7F7F, 0x7C00, 0x7F80, 0x7FC0]
    some = np.concatenate([ends, RNG.integers(0x3800, 0x4200, 40), RNG.integers(0, 1 << 15, 20)])
    return RNG.choice(np.concatenate([some, some | 0x8000]).astype("u2"), (count, 1024))


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("name", ["add", "sub", "mul", "fma"])
def test_halves_are_rounded_once_alone_and_in_pairs(kind, name):
    code, arrays = FORMAT[kind], some_halves(OPERATIONS[name].__code__.co_argcount)
    if name == "fma":  # a product that is half-way, and very little
        arrays[:2, :2] = [[0x3C01], [0x3E00]] if kind == "f16" else [[0x3F81], [0x3FC0]]
        arrays[2, :2] = 1, 0x8001
    wanted = exact(name, code, "rn", *(halves(kind, a) for a in arrays)).astype("f8")
    operands = ", ".join(f"%a{n}" for n in range(len(arrays)))
    low, nothing = np.where(wanted > 0, wanted, 0), np.isnan(wanted)
    cases = {"": wanted, ".sat": np.minimum(low, 1), ".relu": np.where(nothing, np.nan, low)}
    for how in [*cases][: 3 if name == "fma" else 2]:
        text = f"{name}{'.rn' * (name == 'fma')}{how}.{kind}"
        found = compute(f"{text} %d, {operands};", "b16", *(("b16", a) for a in arrays))
        assert same(halves(kind, found), cases[how]).all(), (text, found)
        pair = compute(f"{text}x2 %d, {operands};", "b32", *(("b32", a.view("u4")) for a in arrays))
        assert (pair.view("u2") == found).all()


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("text, result", beside(__file__)["halves"])
@np.errstate(all="ignore")
def test_what_else_is_done_with_halves(kind, text, result):
    """The result is bits or numbers, of approximate instructions about these."""
    a, b = some_halves(2)
    x, y = halves(kind, a), halves(kind, b)
    wanted = eval(result, {"np": np, "x": x, "y": y, "none": np.isnan(x) | np.isnan(y), "kind": kind} | globals())
    words = "KINDx2" in text
    given = [("b32", v.view("u4")) if words else ("b16", v) for v in (a, b)]
    found = compute(text.replace("KIND", kind), "b32" if words else "b16", *given).view("u2")
    if wanted.dtype.kind in "bu":
        assert (found == wanted).all()
    elif "approx" in text:
        bound = 2.0 ** (-7 if kind == "bf16" else -10) * abs(wanted)
        assert (abs(halves(kind, found) - wanted) <= bound)[abs(x) < 9].all()
    else:
        assert same(halves(kind, found), wanted).all()


def flush(kind, x):
    """Return numbers without those that are subnormal."""
    return np.where(abs(x) < 2.0 ** FORMATS[FORMAT[kind]][1], np.copysign(0, x), x)


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@np.errstate(all="ignore")
def test_conversions_of_halves(kind):
    (a,) = some_halves(1)
    x = halves(kind, a)
    check(f"cvt.f32.{kind} %d, %a0;", "f32", x, ("b16", a))
    for to in WHOLE:
        info = np.iinfo(CODES[to])
        for mode, function in {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}.items():
            numbers = [min(max(int(v), info.min), info.max) if abs(v) < 1e99 else 0 for v in function(x)]
            found = compute(f"cvt.{mode}.{to}.{kind} %d, %a0;", to, ("b16", a))
            assert (found == np.array(numbers, object).astype(CODES[to]))[np.isfinite(x)].all()
            assert info.bits == 64 or not found[np.isnan(x)].any()
    for of in WHOLE[2:]:
        (v,) = blocks(edges(CODES[of], RNG, 40))
        for mode in ("rn", "rz", "rm", "rp"):
            found = compute(f"cvt.{mode}.{kind}.{of} %d, %a0;", "b16", (of, v))
            assert same(halves(kind, found), [rounded(Fraction(int(n)), FORMAT[kind], mode) for n in v]).all()
    f = (x.astype("f4") * np.float32(1.001)).reshape(2, -1)
    found = compute(f"cvt.rn.{kind}x2.f32 %d, %a0, %a1;", "b32", ("f32", f[0]), ("f32", f[1])).view("u2")
    one = compute(f"cvt.rn.{kind}.f32 %d, %a0;", "b16", ("f32", f[::-1].T.ravel()))
    assert (found == one).all()  # the first is above


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("space", ["global", "shared"])
def test_halves_are_added_in_memory(kind, space):
    a = np.full(64, 0x3C00 if kind == "f16" else 0x3F80, "u2")
    for size, pair in ((2, ""), (4, "x2")):
        begin = "st.shared.b32 [place], 0; bar.sync 0;" * (space == "shared")
        text = f".{space} .b32 place; {begin} atom.{space}.add.noftz.{kind}{pair} %d, [place], %a0;"
        found = compute(text, f"b{8 * size}", (f"b{8 * size}", a.view(f"u{size}")))
        found = np.sort(halves(kind, found.view("u2")).reshape(-1, size // 2), axis=0)
        assert (found == np.arange(len(found))[:, None]).all()


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_roots_are_on_the_side_that_is_asked_for(kind):
    (a,) = blocks(abs(edges(CODES[kind], RNG, 99)))
    a = a[np.isfinite(a)]
    down, up = (compute(f"sqrt.{mode}.{kind} %d, %a0;", kind, (kind, a)) for mode in ("rm", "rp"))
    assert same(compute(f"sqrt.rz.{kind} %d, %a0;", kind, (kind, a)), down).all()
    for x, low, high in zip(a.tolist(), down, up, strict=True):
        exact = Fraction(float(low)) ** 2 == x
        assert Fraction(float(low)) ** 2 <= x <= Fraction(float(high)) ** 2
        assert high == (low if exact else np.nextafter(low, low.dtype.type(np.inf)))


def test_subnormal_numbers_are_flushed_where_that_is_asked():
    a, b = pairs("f4", RNG)
    flush = lambda x: np.where(abs(x) < np.finfo("f4").tiny, np.copysign(np.float32(0), x), x)  # noqa: E731
    x, y = flush(a), flush(b)
    with np.errstate(all="ignore"):
        wanted = {"add.ftz.f32 %d, %a0, %a1;": flush(x + y), "mul.ftz.f32 %d, %a0, %a1;": flush(x * y),
                  "fma.rn.ftz.f32 %d, %a0, %a1, %a1;": flush(exact("fma", "f4", "rn", x, y, y)),
                  "add.sat.f32 %d, %a0, %a1;": np.where(a + b > 0, np.minimum(a + b, 1), np.float32(0))}  # fmt: skip
    for instruction, numbers in wanted.items():
        check(instruction, "f32", numbers, ("f32", a), ("f32", b))


APPROXIMATE = {"ex2": (np.exp2, 2.0**-22), "lg2": (np.log2, 2.0**-22), "rcp": (lambda x: 1 / x, 2.0**-23),
               "rsqrt": (lambda x: 1 / np.sqrt(x), 2.0**-22), "sqrt": (np.sqrt, 2.0**-22),
               "tanh": (np.tanh, 2.0**-11)}  # fmt: skip


@pytest.mark.parametrize("name", list(APPROXIMATE))
def test_approximate_instructions_are_at_least_as_accurate_as_the_manual_says(name):
    function, bound = APPROXIMATE[name]
    (a,) = blocks(np.concatenate([edges("f4", RNG, 100), RNG.uniform(-100, 100, 500).astype("f4")]))
    with np.errstate(all="ignore"):
        wanted = function(a.astype("f8"))
        found = compute(f"{name}.approx.f32 %d, %a0;", "f32", ("f32", a)).astype("f8")
        rough = abs(found - wanted) <= bound * np.maximum(abs(wanted), 1 if name[0] == "l" else 0) + 2.0**-149
        single = wanted.astype("f4").astype("f8")
    assert (rough | np.isnan(found) & np.isnan(wanted) | (found == single)).all()
    for circle in ("sin", "cos"):
        x = RNG.uniform(-np.pi, np.pi, 256).astype("f4")
        found = compute(f"{circle}.approx.f32 %d, %a0;", "f32", ("f32", x))
        assert abs(found - getattr(np, circle)(x.astype("f8"))).max() < 2.0**-20.5


@pytest.mark.parametrize("of", ["f32", "f64"])
def test_conversions_to_integers(of):
    more = [0.5, 1.5, 2.5, -0.5, -1.5, 2.0**31, -(2.0**31), 2.0**63, 2.0**64, 255.5, -128.5]
    (a,) = blocks(np.concatenate([edges(CODES[of], RNG, 20), more]).astype(CODES[of]))
    for to in WHOLE:
        info = np.iinfo(CODES[to])
        lost = 0 if of == "f32" and info.bits < 64 else 1 << (info.bits - 1)
        for mode, function in {"rni": round, "rzi": math.trunc, "rmi": math.floor, "rpi": math.ceil}.items():

            def wanted(x, function=function, info=info, lost=lost):
                if math.isfinite(x):
                    return min(max(function(x), info.min), info.max)
                return lost if math.isnan(x) else info.max if x > 0 else info.min

            numbers = np.array([wanted(x) & (1 << info.bits) - 1 for x in a.tolist()], f"u{info.bits // 8}")
            check(f"cvt.{mode}.{to}.{of} %d, %a0;", to, numbers, (of, a))


@pytest.mark.parametrize("of", WHOLE)
def test_conversions_of_integers(of):
    (a,) = blocks(edges(CODES[of], RNG, 40))
    for to in WHOLE:
        info = np.iinfo(CODES[to])
        check(f"cvt.{to}.{of} %d, %a0;", to, integers(to, lambda x: x, a), (of, a))
        wanted = integers(to, lambda x: min(max(x, info.min), info.max), a)  # noqa: B023
        check(f"cvt.sat.{to}.{of} %d, %a0;", to, wanted, (of, a))
    for to in ("f32", "f64"):
        for mode in ("rn", "rz", "rm", "rp"):
            numbers = np.array([rounded(Fraction(int(x)), CODES[to], mode) for x in a])
            check(f"cvt.{mode}.{to}.{of} %d, %a0;", to, numbers, (of, a))


def test_conversions_between_real_numbers():
    (a,) = blocks(edges("f8", RNG, 200))
    for to, of in (("f32", "f64"), ("f16", "f64"), ("bf16", "f64"), ("f16", "f32"), ("bf16", "f32")):
        with np.errstate(over="ignore"):
            x = a.astype(CODES[of])
        for mode in ("rn", "rz", "rm", "rp"):
            wanted = np.array([rounded(Fraction(v), FORMAT[to], mode) if math.isfinite(v) else v for v in x.tolist()])
            wanted = np.where(wanted == 0, np.copysign(0, x), wanted)
            found = compute(f"cvt.{mode}.{to}.{of} %d, %a0;", to if to == "f32" else "b16", (of, x))
            assert same(found.astype("f8") if to == "f32" else halves(to, found), wanted).all()


@pytest.mark.parametrize("text", beside(__file__)["unknown"])
def test_what_is_not_known_is_refused_by_name(text):
    with pytest.raises(ValueError, match=r"line \d+ of the PTX text: an instruction that is not known: '" + text[:8]):
        compute(text, "s32", ("s32", np.zeros(32)))


def test_the_module_is_public():
    assert set(warpwatch.__all__) >= {"run", "assert_clean", "Report", "Finding"}


@settings(deadline=None)
@given(st.sampled_from(["f32", "f64"]), st.sampled_from(list(OPERATIONS)), st.integers(0, 2**32))
def test_numbers_of_any_bits(kind, name, seed):
    rng = np.random.default_rng(seed)
    code = CODES[kind]
    count = OPERATIONS[name].__code__.co_argcount
    arrays = [rng.integers(0, 2 ** (8 * np.dtype(code).itemsize), 64, f"u{code[1]}").view(code) for _ in range(count)]
    if rng.random() < 0.7:  # of like size, so that the last one counts
        arrays = [(np.frexp(a)[0] * 2.0 ** rng.integers(-3, 4, 64)).astype(code) for a in np.nan_to_num(arrays)]
    for mode in ("rn", "rz", "rm", "rp"):
        instruction = f"{name}.{mode}.{kind} %d, {', '.join(f'%a{n}' for n in range(count))};"
        found, wanted = compute(instruction, kind, *((kind, a) for a in arrays)), exact(name, code, mode, *arrays)
        assert (same(found, wanted) | (mode != "rn") & (wanted == 0) & (found == 0)).all()


@settings(deadline=None)
@given(st.sampled_from(WHOLE[4:]), st.sampled_from(list(INTEGER)), st.data())
def test_integers_of_any_size(kind, name, data):
    info = np.iinfo(CODES[kind])
    numbers = st.lists(st.integers(int(info.min), int(info.max)), min_size=32, max_size=32)
    a, b = (np.array(data.draw(numbers), CODES[kind]) for _ in range(2))
    b[b == 0] = 1
    wanted = integers(kind, INTEGER[name], a, b)
    check(f"{name}.{kind} %d, %a0, %a1;", kind, wanted, (kind, a), (kind, b))
