"""The meaning of each instruction that computes: NumPy source for its result, and the dtype of that.

Each has its page in the PTX manual's section "Instructions", and a line in `instructions.toml`, or a function here. An
instruction or a modifier that is not listed is refused with a LookupError, for a wrong answer is worse than none.
Functions take the instruction and `value(operand, dtype)`, which gives an operand's source.
"""

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from warpwatch.parse import DTYPES, SIZES

TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
WHOLE, REAL = TABLES["any"] | TABLES["whole"], TABLES["any"] | TABLES["real"]
_WHOLE_COMPARE = TABLES["compare"] | TABLES["whole_compare"]
_REAL_COMPARE = TABLES["compare"] | TABLES["real_compare"]
_CLASSES = {kind: name for name, kinds in TABLES["classes"].items() for kind in kinds.split()}
_ROUND = {"rni": "np.rint", "rzi": "np.trunc", "rmi": "np.floor", "rpi": "np.ceil"}
WINDOWS = {"shared": 1 << 56, "local": 1 << 57}  # where generic addresses of these begin
_DIRECTED = ("rz", "rm", "rp")


class _Operand(NamedTuple):
    """An operand in an expression, which may ask for another dtype than the instruction's."""

    value: Callable
    text: str
    code: str

    def __format__(self, asked):
        return self.value(self.text, asked or self.code)


def express(i, value):
    """Return source of an instruction's result, and its dtype."""
    if i.kind in _OTHERS:
        return _OTHERS[i.kind](i, value)
    code = DTYPES[i.type]
    if code[0] == "f":
        return _real(i, value, code)
    name, bits = ".".join((i.kind, *i.mods[:-1])), 8 * SIZES[i.type]
    if i.kind in ("and", "or", "xor", "not", "shl", "selp"):  # of which a sign is a bit like others
        code = code.replace("u", "i")
    wide = f"{code[0]}{bits // 4}"
    args = (_Operand(value, operand, code) for operand in i.operands[1:])
    source = WHOLE[name].format(*args, code=code, wide=wide, bits=bits)
    return source, "i4" if i.kind in ("popc", "clz", "bfind") else wide if "wide" in name else code


def _real(i, value, code):
    """Compute with real numbers; `approx` and `full` ask for less accuracy."""
    mods = set(i.mods[:-1])
    mode = next((m for m in _DIRECTED if m in mods), "rn")
    directed = code != "f2" and i.kind in ("fma", "mad", *TABLES["rounded"])
    known = {"rn", "approx", "full", "ftz", "sat", *(_DIRECTED if directed else ())}
    if not mods <= known:
        raise LookupError("modifiers")
    args, source = [_Operand(value, operand, code) for operand in i.operands[1:]], REAL[i.kind]
    source = TABLES["rounded"].get(i.kind, source) if mode != "rn" else source
    if "ftz" in mods:  # "Floating-Point Instructions": subnormal inputs, and results
        args, source = [f"flushed({a})" for a in args], f"flushed({source})"
    source = source.format(*args, mode=mode)
    return f"saturated({source})" if "sat" in mods else source, code


def _compare(i, value):
    """Compare ("setp"); `setp p|q` gives q the contrary, each with what is combined with it."""
    which, *combine = [m for m in i.mods[:-1] if m != "ftz"]
    code = DTYPES[i.type]
    a, b = (f"flushed({value(o, code)})" if "ftz" in i.mods else value(o, code) for o in i.operands[1:3])
    test = (_REAL_COMPARE if code[0] == "f" else _WHOLE_COMPARE)[which].format(a, b)
    join = WHOLE[combine[0]].format("", value(i.operands[3], "?")) if combine else ""
    return f"(({test}){join}, ~({test}){join})" if "|" in i.operands[0] else f"({test}){join}", "?"


def _move(i, value):
    """Copy; `cvta` goes between an address in a space and a generic one, where shared and local memory have windows."""
    code = DTYPES[i.type].replace("u", "i")
    source = value(i.operands[1], code)
    space = next((m for m in i.mods if i.kind == "cvta" and m in WINDOWS), None)
    if space:
        return f"{source} {'-' if 'to' in i.mods else '+'} {WINDOWS[space]}", code
    return f"{source}.copy()" if i.operands[1][0] == "%" else source, code


def _convert(i, value):
    """Convert ("cvt"): to a narrower integer, the low bits; from real numbers, the nearest there is."""
    *how, to, of = i.mods
    code, of_code = DTYPES[to], DTYPES[of]
    source, mode = value(i.operands[1], of_code), next((m for m in how if m in _DIRECTED), "rn")
    if not set(how) <= {*_ROUND, *_DIRECTED, "rn", "ftz", "sat"}:
        raise LookupError("modifiers")
    if of_code[0] != "f" and code[0] != "f":
        return (f"fitted({source}, {code!r})" if "sat" in how else f"({source}).astype({code!r})"), code
    source = f"flushed({source})" if "ftz" in how and of == "f32" else source
    for name in set(how) & set(_ROUND):
        source = f"{_ROUND[name]}({source})"
    if code[0] != "f":
        return f"whole({source}, {code!r})", code
    source = f"({source}).astype({code!r})" if mode == "rn" else f"rounded({source}, {code!r}, {mode!r})"
    source = f"flushed({source})" if "ftz" in how and to == "f32" else source
    return f"saturated({source})" if "sat" in how else source, code


_OTHERS = {"setp": _compare, "mov": _move, "cvta": _move, "cvt": _convert}


def class_of(i):
    """Return the class of an instruction, for counting."""
    if i.kind in ("ld", "st", "ldu"):
        return f"{i.kind[:2]}.{space_of(i.mods)}"
    if i.kind in ("bar", "barrier"):
        return "warp" if "warp" in i.mods else "barrier"
    number = "float" if i.type[:1] == "f" else "integer"
    return number if (i.kind, number) == ("div", "integer") else _CLASSES.get(i.kind, number)


def space_of(mods):
    """Return the memory that a load or store names, "generic" where it names none."""
    spaces = ("param", "global", "shared", "local", "const")
    return next((m.split("::")[0] for m in mods if m.split("::")[0] in spaces), "generic")
