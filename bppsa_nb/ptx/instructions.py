"""The meaning of each instruction that computes: NumPy source for its result, and the dtype of that.

Instructions are found by their name in `MEANINGS`; each has its page in the PTX manual's section "Instructions". An
instruction or a modifier that is not listed here is refused, for a wrong answer is worse than none.
"""

from .parse import DTYPES, SIZES

# Modifiers that change nothing here: which unit computes, which cache is used, how accurate an approximation must be.
_NOTHING = {"uni", "approx", "full", "noftz", "lo", "aligned"}
_COMPARE = {"eq": "{0} == {1}", "ne": "{0} != {1}", "lt": "{0} < {1}", "le": "{0} <= {1}", "gt": "{0} > {1}",
            "ge": "{0} >= {1}", "lo": "{0} < {1}", "ls": "{0} <= {1}", "hi": "{0} > {1}", "hs": "{0} >= {1}"}  # fmt: skip
# "Floating Point Comparisons": the ordered ones are false where one is NaN, the unordered ones true.
_REAL_COMPARE = {**{k: _COMPARE[k] for k in ("eq", "lt", "le", "gt", "ge")}, "ne": "({0} < {1}) | ({0} > {1})",
                 "equ": "~(({0} < {1}) | ({0} > {1}))", "neu": "{0} != {1}", "ltu": "~({0} >= {1})",
                 "leu": "~({0} > {1})", "gtu": "~({0} <= {1})", "geu": "~({0} < {1})",
                 "num": "({0} == {0}) & ({1} == {1})", "nan": "({0} != {0}) | ({1} != {1})"}  # fmt: skip
_LOGIC = {"and": "&", "or": "|", "xor": "^"}
_ROUND = {"rni": "rint", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}
MEANINGS = {}


class Unknown(ValueError):
    """An instruction whose meaning is not known here."""


def meaning(*kinds):
    """Register a function of (instruction, value) for instructions; `value(operand, dtype)` is an operand's source."""

    def register(function):
        MEANINGS.update(dict.fromkeys(kinds, function))
        return function

    return register


def express(i, value):
    """Return source of an instruction's result, and its dtype."""
    if i.kind not in MEANINGS or i.type not in DTYPES:
        raise Unknown
    try:
        return MEANINGS[i.kind](i, value)
    except (KeyError, IndexError):
        raise Unknown from None


def only(i, *known):
    """Refuse modifiers that are not known, the type aside; return those that mean something."""
    mods = [m for m in i.mods[:-1] if m not in _NOTHING]
    if not set(mods) <= set(known):
        raise Unknown
    return mods


def signed(code):
    """Return the dtype that registers have."""
    return code.replace("u", "i")


_REAL = {"add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}", "div": "{0} / {1}", "sqrt": "sqrt({0})",
         "rcp": "1 / {0}", "fma": "fma({0}, {1}, {2}{mode})", "mad": "fma({0}, {1}, {2}{mode})",
         "neg": "-{0}", "abs": "abs({0})", "ex2": "exp2({0})", "lg2": "log2({0})", "rsqrt": "1 / sqrt({0})",
         "sin": "sin({0})", "cos": "cos({0})", "tanh": "tanh({0})", "copysign": "copysign({1}, {0})",
         "min": "smaller({0}, {1})", "max": "larger({0}, {1})"}  # fmt: skip
_WHOLE = {"add": "{0} + {1}", "sub": "{0} - {1}", "neg": "-{0}", "abs": "abs({0})", "min": "minimum({0}, {1})",
          "max": "maximum({0}, {1})", "div": "quotient({0}, {1})", "rem": "remainder({0}, {1})"}  # fmt: skip


@meaning(*_REAL, "rem")
def arithmetic(i, value):
    """Integer and floating-point arithmetic."""
    code = DTYPES[i.type]
    if code[0] != "f":
        return _integer(i, value, code)
    mods = only(i, "rn", "rz", "rm", "rp", "ftz", "sat", "NaN")
    mode = next((m for m in mods if m[0] == "r"), "rn")
    args = [value(operand, code) for operand in i.operands[1:]]
    if "ftz" in mods:  # "Floating-Point Instructions": subnormal inputs, and results
        args = [f"flushed({a})" for a in args]
    source = _REAL[i.kind].format(*args, mode="" if mode == "rn" else f", {mode!r}")
    if i.kind in ("rcp", "rsqrt"):
        source = f"({source}).astype({code!r})"
    if mode != "rn" and i.kind not in ("fma", "mad"):
        source = f"directed({i.kind!r}, {mode!r}, {source}, {', '.join(args)})"
    if "NaN" in mods:
        source = f"where(({args[0]} != {args[0]}) | ({args[1]} != {args[1]}), {code}_nan, {source})"
    source = f"flushed({source})" if "ftz" in mods else source
    return f"saturated({source})" if "sat" in mods else source, code


def _integer(i, value, code):
    """Integer arithmetic, in two's complement."""
    mods = only(i, "wide", "hi", "sat")
    if i.kind in ("mul", "mad"):
        args = [value(operand, code) for operand in i.operands[1:3]]
        if "wide" in mods:
            code = f"{code[0]}{2 * int(code[1])}"
            source = f"multiply({args[0]}, {args[1]}, dtype={code!r})"
        elif "hi" in mods:
            source = f"high({args[0]}, {args[1]}, {code!r})"
        else:
            source = f"{args[0]} * {args[1]}"
        return source + (f" + {value(i.operands[3], code)}" if i.kind == "mad" else ""), code
    if "sat" in mods:  # add.sat.s32, sub.sat.s32
        wide = _WHOLE[i.kind].format(*(f"{value(o, code)}.astype('i8')" for o in i.operands[1:]))
        return f"fitted({wide}, {code!r})", code
    if i.kind in ("add", "sub", "neg", "abs"):
        code = signed(code)
    return _WHOLE[i.kind].format(*(value(operand, code) for operand in i.operands[1:])), code


@meaning("mul24", "mad24")
def short_product(i, value):
    """The product of the low 24 bits, of which the low 32 or (`.hi`) those from the 16th on are kept."""
    mods, code = only(i, "hi"), DTYPES[i.type]
    cut = [f"({value(o, code)} << 8 >> 8).astype('{code[0]}8')" for o in i.operands[1:3]]
    source = f"({cut[0]} * {cut[1]}{' >> 16' if 'hi' in mods else ''}).astype({code!r})"
    return source + (f" + {value(i.operands[3], code)}" if i.kind == "mad24" else ""), code


@meaning("sad")
def difference(i, value):
    """c + |a - b|."""
    a, b, c = (value(operand, DTYPES[i.type]) for operand in i.operands[1:])
    return f"{c} + (maximum({a}, {b}) - minimum({a}, {b}))", DTYPES[i.type]


@meaning("and", "or", "xor", "not", "cnot")
def logic(i, value):
    """Bits, and predicates."""
    only(i)
    code = signed(DTYPES[i.type])
    args = [value(operand, code) for operand in i.operands[1:]]
    if i.kind == "cnot":
        return f"({args[0]} == 0).astype({code!r})", code
    return (f"~{args[0]}" if i.kind == "not" else f"{args[0]} {_LOGIC[i.kind]} {args[1]}"), code


@meaning("shl", "shr")
def shift(i, value):
    """Shifts; by the width or more, everything is shifted out, which is what NumPy does, too."""
    only(i)
    code = DTYPES[i.type] if i.kind == "shr" else signed(DTYPES[i.type])
    by = value(i.operands[2], "u4")
    by = f"{by}.astype({code!r})" if int(code[1]) >= 4 else f"minimum({by}, 16).astype({code!r})"
    return f"{value(i.operands[1], code)} {'<<' if i.kind == 'shl' else '>>'} {by}", code


@meaning("shf", "lop3", "prmt", "popc", "clz", "bfind", "brev", "bfe", "bfi", "szext", "bmsk", "dp4a")
def bits(i, value):
    """Instructions for bits and bytes."""
    code, kind = DTYPES[i.type], i.kind
    a, *more = [value(operand, code) for operand in i.operands[1:2]]
    b, c, *_ = [value(operand, "u4") for operand in i.operands[2:4]] + ["", ""]
    if kind == "shf":
        way, wrap = only(i, "l", "r", "wrap", "clamp")
        return f"funnel({a}, {b}, {c}, {way == 'l'}, {wrap == 'wrap'})", "u4"
    if kind == "prmt":
        only(i)
        return f"permuted({a}, {b}, {c})", "u4"
    if kind == "lop3":
        only(i)
        args = [value(operand, "i4") for operand in i.operands[1:4]]
        return f"chosen({', '.join(args)}, {int(i.operands[4], 0)})", "i4"
    if kind == "dp4a":
        codes = tuple(DTYPES[m].replace("4", "1") for m in i.mods)
        return f"dot({', '.join(value(o, 'i4') for o in i.operands[1:4])}, {codes})", "i4"
    if kind == "bfe":
        return f"extracted({a}, {b}, {c}, {code!r})", code
    if kind == "bfi":
        place, length = (value(operand, "u4") for operand in i.operands[3:5])
        return f"inserted({a}, {value(i.operands[2], code)}, {place}, {length}, {code!r})", code
    if kind in ("szext", "bmsk"):
        raise Unknown
    if kind == "bfind":
        mods = only(i, "shiftamt")
        value_ = f"where({a} < 0, ~{a}, {a})" if code[0] == "i" else a
        found = f"top_bit({value_}.view('u{code[1]}'))"
        return (f"where({found} < 0, -1, {8 * int(code[1]) - 1} - {found}).astype('i4')" if mods else found), "i4"
    only(i)
    unsigned = code.replace("i", "u")
    return {"popc": f"counted({a})", "clz": f"({8 * int(code[1]) - 1} - top_bit({a})).astype('i4')",
            "brev": f"reversed_bits({a})"}[kind], unsigned if kind == "brev" else "i4"  # fmt: skip


@meaning("setp", "set")
def compare(i, value):
    """Comparisons; `setp p|q` gives q the contrary, each with what is combined with it."""
    mods = [m for m in i.mods[:-1] if m != "ftz"]
    to = mods.pop() if i.kind == "set" else "pred"
    compare_, *combine = mods
    code = DTYPES[i.type]
    a, b = (value(operand, code) for operand in i.operands[1:3])
    if "ftz" in i.mods:
        a, b = f"flushed({a})", f"flushed({b})"
    test = (_REAL_COMPARE if code[0] == "f" else _COMPARE)[compare_].format(a, b)
    join = f" {_LOGIC[combine[0]]} {value(i.operands[3], '?')}" if combine else ""
    if i.kind == "set":
        true = DTYPES[to]
        return f"where(({test}){join}, {'1' if true[0] == 'f' else '-1'}, 0).astype({signed(true)!r})", signed(true)
    if "|" in i.operands[0]:
        return f"(({test}){join}, ~({test}){join})", "?"
    return f"({test}){join}", "?"


@meaning("selp", "slct")
def select(i, value):
    """One or the other."""
    code = signed(DTYPES[i.mods[0] if i.kind == "slct" else i.type])
    a, b = value(i.operands[1], code), value(i.operands[2], code)
    if i.kind == "selp":
        return f"where({value(i.operands[3], '?')}, {a}, {b})", code
    return f"where({value(i.operands[3], DTYPES[i.type])} >= 0, {a}, {b})", code


@meaning("testp")
def kind_of_number(i, value):
    """What a number is."""
    return f"testp({value(i.operands[1], DTYPES[i.type])}, {i.mods[0]!r})", "?"


@meaning("mov", "cvta", "activemask")
def move(i, value):
    """A copy; `cvta` goes between an address in a space and a generic one, where shared and local have windows."""
    code = signed(DTYPES[i.type])
    if i.kind == "activemask":
        return "m.votes('ballot', full(True, '?'), None)", "i4"
    source = value(i.operands[1], code)
    space = next((m for m in i.mods if m in ("shared", "local")), "")
    if i.kind == "cvta" and space:
        return f"{source} {'-' if 'to' in i.mods else '+'} {space}_window", code
    return (f"{source}.copy()" if i.operands[1].startswith("%") and i.operands[1][1:] else source), code


@meaning("isspacep")
def in_space(i, value):
    """Whether a generic address lies in a space."""
    raise Unknown


@meaning("cvt")
def convert(i, value):
    """Conversions; to a narrower integer, the low bits; from floating point, the nearest there is."""
    *how, to, of = i.mods
    if not set(how) <= {*_ROUND, "rn", "rz", "rm", "rp", "ftz", "sat"}:
        raise Unknown
    to_code, of_code = DTYPES[to], DTYPES[of]
    source, mode = value(i.operands[1], of_code), next((m for m in how if m in ("rz", "rm", "rp")), "rn")
    if of_code[0] != "f":
        if to_code[0] == "f":
            source = f"from_whole({source}, {to_code!r}, {mode!r})"
            return f"saturated({source})" if "sat" in how else source, to_code
        return (f"fitted({source}, {to_code!r})" if "sat" in how else f"({source}).astype({to_code!r})"), to_code
    if "ftz" in how and of == "f32":
        source = f"flushed({source})"
    for name in how:
        source = f"{_ROUND[name]}({source})" if name in _ROUND else source
    if to_code[0] != "f":
        return f"whole({source}, {to_code!r})", to_code
    if to == of:
        source = f"({source}).copy()"
    else:
        source = (
            f"rounded({source}, {to_code!r}, {mode!r})" if SIZES[to] < SIZES[of] else f"({source}).astype({to_code!r})"
        )
    source = f"flushed({source})" if "ftz" in how and to == "f32" else source
    return f"saturated({source})" if "sat" in how else source, to_code


def class_of(i):
    """Return the class of an instruction, for counting."""
    if i.kind in ("ld", "st", "ldu"):
        space = next(
            (m.split("::")[0] for m in i.mods if m.split("::")[0] in ("param", "global", "shared", "local", "const")),
            "generic",
        )  # noqa: E501
        return f"{'st' if i.kind == 'st' else 'ld'}.{space}"
    if i.kind in ("atom", "red"):
        return "atomic"
    if i.kind in ("bra", "brx", "ret", "exit", "trap"):
        return "branch"
    if i.kind in ("bar", "barrier") and "warp" not in i.mods:
        return "barrier"
    if i.kind in ("bar", "shfl", "vote", "match", "redux"):
        return "warp"
    if i.kind in ("ex2", "lg2", "rcp", "rsqrt", "sqrt", "sin", "cos", "tanh") or i.kind == "div" and i.type[0] == "f":
        return "special"
    if i.kind in ("setp", "set", "selp", "mov", "cvt", "cvta", "fma"):
        return i.kind
    return "float" if i.type[:1] == "f" else "integer"
