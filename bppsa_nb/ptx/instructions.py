"""The meaning of each instruction that computes: NumPy source for its result, and the dtype of that.

Each has its page in the PTX manual's section "Instructions"; pages are quoted where they say what is not obvious. An
instruction or a modifier that is not listed here is refused, for a wrong answer is worse than none. Functions take the
instruction and `value(operand, dtype)`, which gives an operand's source.
"""

from bppsa_nb.ptx.parse import DTYPES, SIZES

# Modifiers that change nothing here: how accurate an approximation must be, and that the low half is wanted.
_NOTHING = {"approx", "full", "lo"}
_COMPARE = {
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "lo": "<",
    "ls": "<=",
    "hi": ">",
    "hs": ">=",
}
_COMPARE = {name: f"{{0}} {sign} {{1}}" for name, sign in _COMPARE.items()}
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
    """Register the function for instructions of these names."""

    def register(function):
        MEANINGS.update(dict.fromkeys(kinds, function))
        return function

    return register


def express(i, value):
    """Return source of an instruction's result, and its dtype."""
    if i.kind not in MEANINGS or i.type not in DTYPES:
        raise Unknown
    return MEANINGS[i.kind](i, value)


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
    """Add, multiply, divide and so on, integers and real numbers."""
    code = DTYPES[i.type]
    if code[0] != "f":
        return _integer(i, value, code)
    mods = only(i, "rn", "rz", "rm", "rp", "ftz", "sat")
    mode = next((m for m in mods if m[0] == "r"), "rn")
    args = [value(operand, code) for operand in i.operands[1:]]
    if "ftz" in mods:  # "Floating-Point Instructions": subnormal inputs, and results
        args = [f"flushed({a})" for a in args]
    source = _REAL[i.kind].format(*args, mode="" if mode == "rn" else f", {mode!r}")
    if i.kind in ("rcp", "rsqrt"):
        source = f"({source}).astype({code!r})"
    if mode != "rn" and i.kind not in ("fma", "mad"):
        source = f"directed({i.kind!r}, {mode!r}, {source}, {', '.join(args)})"
    source = f"flushed({source})" if "ftz" in mods else source
    return f"saturated({source})" if "sat" in mods else source, code


def _integer(i, value, code):
    mods = only(i, "wide", "hi", "sat")
    args = [value(operand, code) for operand in i.operands[1:3]]
    if i.kind in ("mul", "mad"):
        if "wide" in mods:
            code = f"{code[0]}{2 * int(code[1])}"
            source = f"multiply({args[0]}, {args[1]}, dtype={code!r})"
        else:
            source = f"high({args[0]}, {args[1]}, {code!r})" if "hi" in mods else f"{args[0]} * {args[1]}"
        return source + (f" + {value(i.operands[3], code)}" if i.kind == "mad" else ""), code
    if "sat" in mods:  # add.sat.s32, sub.sat.s32
        return f"fitted({_WHOLE[i.kind].format(*(f'{a}.astype(int)' for a in args))}, {code!r})", code
    return _WHOLE[i.kind].format(*args), code


@meaning("and", "or", "xor", "not")
def logic(i, value):
    """Combine bits, and predicates."""
    only(i)
    code = signed(DTYPES[i.type])
    args = [value(operand, code) for operand in i.operands[1:]]
    return f"~{args[0]}" if i.kind == "not" else f"{args[0]} {_LOGIC[i.kind]} {args[1]}", code


@meaning("shl", "shr")
def shift(i, value):
    """Shift; by the width or more, everything is shifted out, which is what NumPy does, too."""
    only(i)
    code = DTYPES[i.type] if i.kind == "shr" else signed(DTYPES[i.type])
    by = f"minimum({value(i.operands[2], 'u4')}, {8 * int(code[1])}).astype({code!r})"
    return f"{value(i.operands[1], code)} {'<<' if i.kind == 'shl' else '>>'} {by}", code


@meaning("popc", "clz", "bfind", "brev", "bfe", "bfi", "prmt", "shf", "lop3")
def bits(i, value):
    """Count, find and move bits and bytes."""
    code, kind, mods = DTYPES[i.type], i.kind, only(i, *{"shf": ("l", "r", "wrap", "clamp")}.get(i.kind, ()))
    if kind == "bfind" and code[0] == "i":
        raise Unknown
    counts = {"bfe": 1, "bfi": 2, "prmt": 3, "shf": 3, "lop3": 3}.get(
        kind, 1
    )  # operands of its type; others are numbers
    args = [value(operand, code) for operand in i.operands[1 : 1 + counts]]
    args += [value(operand, "u4") for operand in i.operands[1 + counts :]]
    args += [repr(way) for way in mods] if kind == "shf" else []
    name, made = {"popc": ("counted", "i4"), "clz": ("leading_zeros", "i4"), "bfind": ("top_bit", "i4"),
                  "brev": ("reversed_bits", code), "bfe": ("extracted", code), "bfi": ("inserted", code),
                  "prmt": ("permuted", code), "shf": ("funnel", code), "lop3": ("chosen", code)}[kind]  # fmt: skip
    return f"{name}({', '.join(args)})", made


@meaning("setp")
def compare(i, value):
    """Compare; `setp p|q` gives q the contrary, each with what is combined with it."""
    which, *combine = [m for m in i.mods[:-1] if m != "ftz"]
    code = DTYPES[i.type]
    a, b = (f"flushed({value(o, code)})" if "ftz" in i.mods else value(o, code) for o in i.operands[1:3])
    test = (_REAL_COMPARE if code[0] == "f" else _COMPARE)[which].format(a, b)
    join = f" {_LOGIC[combine[0]]} {value(i.operands[3], '?')}" if combine else ""
    return f"(({test}){join}, ~({test}){join})" if "|" in i.operands[0] else f"({test}){join}", "?"


@meaning("selp")
def select(i, value):
    """Choose one or the other."""
    code = signed(DTYPES[i.type])
    return f"where({value(i.operands[3], '?')}, {value(i.operands[1], code)}, {value(i.operands[2], code)})", code


@meaning("mov", "cvta")
def move(i, value):
    """Copy; `cvta` goes between an address in a space and a generic one, where shared and local memory have windows."""
    code = signed(DTYPES[i.type])
    source = value(i.operands[1], code)
    space = next((m for m in i.mods if i.kind == "cvta" and m in ("shared", "local")), "")
    if space:
        return f"{source} {'-' if 'to' in i.mods else '+'} {space}_window", code
    return f"{source}.copy()" if i.operands[1].startswith("%") else source, code


@meaning("activemask")
def active(i, value):
    """Return which lanes of the warp are at work."""
    return "m.vote('ballot', full(True, '?'))", "i4"


@meaning("cvt")
def convert(i, value):
    """Convert: to a narrower integer, the low bits; from real numbers, the nearest there is."""
    *how, to, of = i.mods
    if not set(how) <= {*_ROUND, "rn", "rz", "rm", "rp", "ftz", "sat"}:
        raise Unknown
    code, of_code = DTYPES[to], DTYPES[of]
    source, mode = value(i.operands[1], of_code), next((m for m in how if m in ("rz", "rm", "rp")), "rn")
    if of_code[0] != "f" and code[0] != "f":
        return (f"fitted({source}, {code!r})" if "sat" in how else f"({source}).astype({code!r})"), code
    if of_code[0] != "f":
        source = f"from_whole({source}, {code!r}, {mode!r})"
    source = f"flushed({source})" if "ftz" in how and of == "f32" else source
    for name in set(how) & set(_ROUND):
        source = f"{_ROUND[name]}({source})"
    if code[0] != "f":
        return f"whole({source}, {code!r})", code
    if of_code[0] == "f":
        narrows = SIZES[to] < SIZES[of] and mode != "rn"
        source = f"rounded({source}, {code!r}, {mode!r})" if narrows else f"({source}).astype({code!r})"
    source = f"flushed({source})" if "ftz" in how and to == "f32" else source
    return f"saturated({source})" if "sat" in how else source, code


def class_of(i):
    """Return the class of an instruction, for counting."""
    if i.kind in ("ld", "st", "ldu"):
        return f"{i.kind[:2]}.{space_of(i.mods)}"
    if i.kind in ("bar", "barrier"):
        return "warp" if "warp" in i.mods else "barrier"
    if i.kind == "div" and i.type[0] != "f":
        return "integer"
    return _CLASSES.get(i.kind) or ("float" if i.type[:1] == "f" else "integer")


_CLASSES = {kind: name for name, kinds in {
    "atomic": "atom red", "branch": "bra brx ret exit trap", "warp": "shfl vote match redux activemask",
    "special": "ex2 lg2 rcp rsqrt sqrt sin cos tanh div vprintf", "setp": "setp", "selp": "selp", "mov": "mov",
    "cvt": "cvt", "cvta": "cvta", "fma": "fma"}.items() for kind in kinds.split()}  # fmt: skip


def space_of(mods):
    """Return the memory that a load or store names, "generic" where it names none."""
    spaces = ("param", "global", "shared", "local", "const")
    return next((m.split("::")[0] for m in mods if m.split("::")[0] in spaces), "generic")
