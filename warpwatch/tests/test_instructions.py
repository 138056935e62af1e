"""Each instruction against Python's integers and rational numbers, at the ends of the range, NaN, -0 and subnormals."""

import math
from fractions import Fraction

import numpy as np
import pytest
from helpers import beside
from hypothesis import given
from hypothesis import strategies as st
from one_instruction import CODES, blocks, check, compute, edges, pairs, rounded, same

import warpwatch

RNG = np.random.default_rng(0)
WHOLE = ["s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64"]


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
        made = function(*(a.astype("f8") for a in arrays)).astype(code)
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
    for to in ("f16", "f32"):
        for mode in ("rn", "rz", "rm", "rp"):
            wanted = np.array([rounded(Fraction(x), CODES[to], mode) if math.isfinite(x) else x for x in a.tolist()])
            wanted = np.where(wanted == 0, np.copysign(0, a), wanted)
            check(f"cvt.{mode}.{to}.f64 %d, %a0;", to, wanted, ("f64", a))
    (h,) = blocks(edges("f2", RNG, 200))
    check("cvt.f32.f16 %d, %a0;", "f32", h, ("f16", h))


@pytest.mark.parametrize("text", beside(__file__)["unknown"])
def test_what_is_not_known_is_refused_by_name(text):
    with pytest.raises(ValueError, match=r"line \d+ of the PTX text: an instruction that is not known: '" + text[:8]):
        compute(text, "s32", ("s32", np.zeros(32)))


def test_the_module_is_public():
    assert set(warpwatch.__all__) >= {"run", "assert_clean", "Report", "Finding"}


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


@given(st.sampled_from(WHOLE[4:]), st.sampled_from(list(INTEGER)), st.data())
def test_integers_of_any_size(kind, name, data):
    info = np.iinfo(CODES[kind])
    numbers = st.lists(st.integers(int(info.min), int(info.max)), min_size=32, max_size=32)
    a, b = (np.array(data.draw(numbers), CODES[kind]) for _ in range(2))
    b[b == 0] = 1
    wanted = integers(kind, INTEGER[name], a, b)
    check(f"{name}.{kind} %d, %a0, %a1;", kind, wanted, (kind, a), (kind, b))
