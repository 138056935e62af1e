"""The meaning of each instruction that computes: NumPy source for its result, and the dtype of that.

Each has its page in the PTX manual's section "Instructions", and a line in `instructions.toml`, or a function here. An
instruction or a modifier that is not listed is refused with a LookupError, for a wrong answer is worse than none.
Functions take the instruction and `value(operand, dtype)`, which gives an operand's source.
"""

import tomllib
from collections import namedtuple
from pathlib import Path

from warpwatch.parse import DTYPES, HALVES, SIZES

TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
WHOLE, REAL = TABLES["any"] | TABLES["whole"], TABLES["any"] | TABLES["real"]
_CLASSES = {kind: name for name, kinds in TABLES["classes"].items() for kind in kinds.split()}
_ROUND = {"rni": "np.rint", "rzi": "np.trunc", "rmi": "np.floor", "rpi": "np.ceil"}
WINDOWS = {"shared": 1 << 56, "local": 1 << 57}  # where generic addresses of these begin
_DIRECTED = ("rz", "rm", "rp")
_RELU = "(np.maximum({}, 0) + 0.0)"  # negative numbers and -0 become +0
_SATURATED = "(np.fmin(np.fmax({}, 0), 1) + 0.0)"  # and NaN becomes +0, too


class _Operand(namedtuple("_Operand", "value text code")):
    """An operand in an expression, which may ask for another dtype than the instruction's."""

    def __format__(self, asked):
        return self.value(self.text, asked or self.code)


def express(i, value):
    """Return source of an instruction's result, and its dtype."""
    if i.kind in _OTHERS:
        return _OTHERS[i.kind](i, value)
    code = DTYPES[i.type]
    if "f" in i.type:
        return _real(i, value, code)
    name, bits = ".".join((i.kind, *i.mods[:-1])), 8 * SIZES[i.type]
    if i.kind in ("and", "or", "xor", "not", "shl", "selp"):  # of which a sign is a bit like others
        code = code.replace("u", "i")
    wide = f"{code[0]}{bits // 4}"
    args = (_Operand(value, operand, code) for operand in i.operands[1:])
    source = WHOLE[name].format(*args, code=code, wide=wide, bits=bits)
    return source, "i4" if i.kind in ("popc", "clz", "bfind") else wide if "wide" in name else code


def _numbers(text, kind, value, flush):
    """Return source of an operand's numbers, halves as doubles; without those that are subnormal, if that is asked."""
    source = value(text, DTYPES[kind])
    if kind in HALVES:
        return f"numbers({source}, {kind!r}, {flush})"
    return f"flushed({source})" if flush else source


def _real(i, value, code):
    """Compute with real numbers; `approx` and `full` ask for less accuracy. Halves are rounded once, from doubles."""
    mods, half = set(i.mods[:-1]), i.type in HALVES
    flush, mode = "ftz" in mods, next((m for m in _DIRECTED if m in mods), "rn")
    directed = not half and i.kind in ("fma", "mad", *TABLES["rounded"])
    known = {"rn", "approx", "full", "ftz", "sat", "NaN", *(_DIRECTED if directed else ())}
    if not mods <= known | ({"relu"} if half and i.kind == "fma" else set()):
        raise LookupError("modifiers")
    source = REAL[i.kind + ".NaN" * ("NaN" in mods)]
    source = TABLES["half" if half else "rounded"].get(i.kind, source) if half or mode != "rn" else source
    # "Floating-Point Instructions": subnormal inputs, and results
    args = [_numbers(o, i.type, value, flush) if half or flush else _Operand(value, o, code) for o in i.operands[1:]]
    source = source.format(*args, mode=mode)
    source = f"flushed({source})" if flush and not half else source
    source = (_SATURATED if "sat" in mods else _RELU if "relu" in mods else "{}").format(source)
    return f"bits_of({source}, {i.type!r}, 'rn', {flush})" if half else source, code


def _compare(i, value):
    """Compare ("setp", "set"): numbers by number, where there are two in one."""
    to, pair = [] if i.kind == "setp" else [i.mods[-2]], "x2" in i.type
    which, *combine = [m for m in i.mods[: -1 - len(to)] if m != "ftz"]
    a, b = (_numbers(operand, i.type, value, "ftz" in i.mods) for operand in i.operands[1:3])
    test = (TABLES["compare"] | TABLES["real_compare" if "f" in i.type else "whole_compare"])[which].format(a, b)
    test = f"({test}).reshape(-1, 2).T" if pair and not to else f"({test})"
    join = WHOLE[combine[0]].format("", value(i.operands[3], "?")) if combine else ""
    if not to:  # q of `p|q` is the contrary, each with what is combined with it; of two numbers, their own
        return f"({test}{join}, ~{test}{join})" if "|" in i.operands[0] and not pair else f"{test}{join}", "?"
    made, code = f"np.where({test}{join}, {1.0 if 'f' in to[0] else -1}, 0)", DTYPES[to[0]]
    if to[0] in HALVES:
        return f"bits_of({made}, {to[0]!r})", code
    return f"{made}.astype('i2').view({code!r})" if pair else f"{made}.astype({code!r})", code


def _move(i, value):
    """Copy; `cvta` goes between an address in a space and a generic one, where shared and local memory have windows."""
    code = DTYPES[i.type].replace("u", "i")
    source = value(i.operands[1], code)
    space = next((m for m in i.mods if i.kind == "cvta" and m in WINDOWS), None)
    if space:
        return f"{source} {'-' if 'to' in i.mods else '+'} {WINDOWS[space]}", code
    return f"{source}.copy()" if i.operands[1][0] == "%" else source, code


def _convert(i, value):
    """Convert ("cvt"): to a narrower integer, the low bits; from real numbers, the nearest there is; two to a pair."""
    *how, to, of = i.mods
    code, real, mode = DTYPES[to], "f" in of, next((m for m in how if m in _DIRECTED), "rn")
    if not set(how) <= {*_ROUND, *_DIRECTED, "rn", "ftz", "sat", *({"relu"} if to in HALVES else ())}:
        raise LookupError("modifiers")
    made = [_numbers(text, of, value, real and "ftz" in how) for text in i.operands[1:]]
    source = f"np.stack([{made[1]}, {made[0]}], axis=1).ravel()" if "x2" in to else made[0]  # the first one is above
    if len(made) != 1 + ("x2" in to) or "x2" in of:
        raise LookupError("operands")
    if not real and "f" not in to:
        return (f"fitted({source}, {code!r})" if "sat" in how else f"({source}).astype({code!r})"), code
    source = f"{source}.astype('f4')" if of in HALVES else source
    for name in set(how) & set(_ROUND):
        source = f"{_ROUND[name]}({source})"
    if "f" not in to:
        return f"whole({source}, {code!r})", code
    if to in HALVES:
        source = (_SATURATED if "sat" in how else _RELU if "relu" in how else "{}").format(source)
        return f"bits_of({source}, {to!r}, {mode!r})", code
    source = f"({source}).astype({code!r})" if mode == "rn" else f"rounded({source}, {code!r}, {mode!r})"
    source = f"flushed({source})" if "ftz" in how and to == "f32" else source
    return _SATURATED.format(source) if "sat" in how else source, code


_OTHERS = {"setp": _compare, "set": _compare, "mov": _move, "cvta": _move, "cvt": _convert}


def class_of(i):
    """Return the class of an instruction, for counting."""
    if i.kind in ("ld", "st", "ldu"):
        return f"{i.kind[:2]}.{space_of(i.mods)}"
    number = "float" if "f" in i.type else "integer"
    return _CLASSES.get(".".join((i.kind, *i.mods[:1]))) or _CLASSES.get(i.kind, number)


def space_of(mods):
    """Return the memory that a load or store names, "generic" where it names none."""
    spaces = ("param", "global", "shared", "local", "const")
    return next((m.split("::")[0] for m in mods if m.split("::")[0] in spaces), "generic")
