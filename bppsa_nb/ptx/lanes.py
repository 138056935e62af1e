"""From basic blocks to Python: each becomes two functions, for all lanes and for some; a thread is a lane of an array.

What a register holds in all lanes is a NumPy array; those that live from block to block stand in a table `R`. `m` is
the machine, which knows threads and memory; `idx` are the lanes at hand; `full(value, dtype)` is an array for them.
"""

import re
from collections import Counter
from functools import lru_cache

import numpy as np

from bppsa_nb.ptx import arithmetic
from bppsa_nb.ptx.blocks import effects, parse
from bppsa_nb.ptx.instructions import Unknown, class_of, express, signed, space_of
from bppsa_nb.ptx.parse import DTYPES, SIZES, SPECIAL, names_of, number

SHARED_WINDOW, LOCAL_WINDOW = 1 << 56, 1 << 57  # where generic addresses of shared and local memory begin
_SPECIAL = re.compile(rf"%((?:tid|ntid|ctaid|nctaid)\.[xyz]|{'|'.join(SPECIAL)})$")
_PLACES = re.compile(r"(param|shared)(::\w+)?|global|local|const|v2|v4|nc|c[agsv]|lu|w[bt]|volatile|weak|L[12]::\w+")
_STRONG = {"relaxed", "acquire", "release", "acq_rel", "mmio", "cta", "gpu", "sys", "volatile"}
_ATOMICS = ("add", "min", "max", "exch", "cas", "and", "or", "xor", "inc", "dec")
_NAMES = ("where", "sqrt", "exp2", "log2", "sin", "cos", "tanh", "copysign", "minimum", "maximum", "multiply", "rint",
          "trunc", "floor", "ceil", "stack")  # fmt: skip
HELPERS = {name: getattr(np, name) for name in _NAMES} | {
    **{name: value for name, value in vars(arithmetic).items() if callable(value)},
    **{"shared_window": SHARED_WINDOW, "local_window": LOCAL_WINDOW},
}


class Writer:
    """Writes the instructions of a kernel as Python."""

    def __init__(self, kernel):
        self.kernel, self.constants, self.names = kernel, {}, {}

    def constant(self, value):
        """Return the name of a NumPy number."""
        key = value.dtype.str, value.tobytes()
        if key not in self.names:
            self.names[key] = f"K{len(self.names)}"
            self.constants[self.names[key]] = value
        return self.names[key]

    def value(self, operand, code):
        """Return source for an operand, read as a dtype."""
        if operand.startswith("!"):
            return f"~{self.value(operand[1:].strip(), code)}"
        if found := _SPECIAL.match(operand):
            return f"m.special({found[1]!r}, {code!r})"
        if operand.startswith("%"):
            own, name = self.kernel.code_of(operand[1:]), variable(operand)
            if own == code:
                return name
            wide, narrow = np.dtype(own).itemsize, np.dtype(code).itemsize
            if "?" in (own, code) or narrow > wide:
                raise Unknown
            return f"{name}.view({code!r})" if wide == narrow or code == "f2" else f"{name}.astype({code!r})"
        name, _, offset = operand.partition("+")
        if name in self.kernel.symbols:
            return self.constant(number(str(self.kernel.symbols[name][1] + int(offset or 0)), code))
        if operand == "WARP_SZ":
            return self.constant(number("32", code))
        try:
            return self.constant(number(operand, code))
        except ValueError:
            raise Unknown from None

    def full(self, operand, code):
        """Return source of an array, for a number, too."""
        source = self.value(operand, code)
        return f"full({source}, {code!r})" if source[0] == "K" else source

    def put(self, target, source, code):
        """Assign a value of a dtype to a register, or a pair to two."""
        if target == "_":
            return [f"_ = {source}"]
        if "|" in target:
            first, second = target.split("|")
            return [f"pair_ = {source}", *self.put(first, "pair_[0]", code), *self.put(second, "pair_[1]", code)]
        own = self.kernel.code_of(target[1:])
        if own == code:
            return [f"{variable(target)} = {source}"]
        same = np.dtype(own).itemsize == np.dtype(code).itemsize or code == "f2"
        if own[0] == "f" and not same or "?" in (own, code):
            raise Unknown
        if same:
            return [f"{variable(target)} = ({source}).view({own!r})"]
        return [f"{variable(target)} = ({source}).astype({own!r})"]

    def instruction(self, i, at):
        """Return source lines for an instruction; `at` is its number in the kernel."""
        try:
            if i.kind in ("membar", "fence", "griddepcontrol", "pragma", "nop", "prefetch", "prefetchu", "nanosleep"):
                return []
            if i.kind in ("ld", "st", "ldu"):
                return self.memory(i, at)
            if i.kind in ("atom", "red"):
                return self.atomic(i, at)
            if i.kind in ("shfl", "vote", "match", "redux", "bar", "barrier"):
                return self.warp(i, at)
            if i.kind in ("addc", "subc", "madc") or "cc" in i.mods:
                return self.carry(i)
            if i.kind == "vprintf":
                return self.put(i.operands[0], f"m.printf({at}, {', '.join(map(variable, i.operands[1:]))})", "i4")
            if i.kind == "mov" and "{" in i.operands[0] + i.operands[1]:
                return self.pack(i)
            source, code = express(i, self.value)
            if not any(names_of(o) for o in i.operands[1:]) and "m." not in source:
                source = f"full({source}, {code!r})"
            return self.put(i.operands[0], source, code)
        except (LookupError, ValueError) as error:
            raise unknown(i, error) from error

    def pack(self, i):
        """Two or four parts to one number, or one number to its parts ("mov")."""
        code, inward = DTYPES[i.type], i.operands[1].startswith("{")
        parts = re.split(r"\s*,\s*", i.operands[inward].strip("{} "))
        part = f"i{SIZES[i.type] // len(parts)}"
        if inward:
            made = ", ".join(self.full(p, part) for p in parts)
            return self.put(i.operands[0], f"stack([{made}], axis=1).reshape(-1).view({code!r})", code)
        lines = [f"whole_ = {self.full(i.operands[1], code)}.view({part!r}).reshape(-1, {len(parts)})"]
        return lines + [line for n, p in enumerate(parts) for line in self.put(p, f"whole_[:, {n}].copy()", part)]

    def carry(self, i):
        """Add, subtract or multiply and add, with a carry from the last such instruction, to the next, or both."""
        code, half = f"u{SIZES[i.type]}", "hi" if "hi" in i.mods else "lo"
        if i.kind not in ("add", "addc", "sub", "subc", "mad", "madc") or half == "hi" and i.type[0] == "s":
            raise Unknown
        a, b, *c = [self.full(operand, code) for operand in i.operands[1:]]
        if c:
            a, b = f"high({a}, {b}, {code!r})" if half == "hi" else f"({a} * {b})", *c
        given = "carry_" if i.kind[-1] == "c" else "False"
        lines = [f"pair_ = carried({i.kind[:3]!r}, {a}, {b}, {given})", *self.put(i.operands[0], "pair_[0]", code)]
        return lines + ["carry_ = pair_[1]"] * ("cc" in i.mods)

    def address(self, operand):
        """Return source of the addresses that an operand in brackets gives, an array of int64."""
        base, _, offset = operand.strip("[] ").partition("+")
        if not base.startswith("%"):
            return f"full({self.value(base, 'i8')} + {int(offset or 0)}, 'i8')"
        wide = self.kernel.code_of(base[1:]) == "i8"
        source = self.value(base, "i8") if wide else f"{self.value(base, 'u4')}.astype('i8')"
        return f"{source} + {int(offset, 0)}" if offset and int(offset, 0) else source

    def memory(self, i, at):
        """Load or store, several numbers at once, too."""
        if not all(_PLACES.fullmatch(m) or m in _STRONG for m in i.mods[:-1]):
            raise Unknown
        code, space = DTYPES[i.type], space_of(i.mods)
        target, place = i.operands[:2] if i.kind != "st" else i.operands[1::-1]
        parts, strong = re.split(r"\s*,\s*", target.strip("{} ")), bool(_STRONG & set(i.mods))
        if space == "param":
            name, _, offset = place.strip("[] ").partition("+")
            offsets = range(int(offset or 0), 1 << 16, SIZES[i.type])
            made = [
                (part, f"full(m.param({name!r}, {n}, {code!r}), {code!r})")
                for part, n in zip(parts, offsets, strict=False)
            ]
            return [line for part, source in made for line in self.put(part, source, code)]
        space = "global" if space == "const" else space
        if i.kind == "st":
            values = ", ".join(self.full(part, code) for part in parts)
            return [f"m.store_{space}({at}, {self.address(place)}, {code!r}, {strong}, {values})"]
        made = f"m.load_{space}({at}, {self.address(place)}, {code!r}, {strong}, {len(parts)})"
        if len(parts) == 1:
            return self.put(parts[0], made + "[0]", code)
        return [f"parts_ = {made}"] + [line for n, p in enumerate(parts) for line in self.put(p, f"parts_[{n}]", code)]

    def atomic(self, i, at):
        """Read, change and write as one ("atom", "red")."""
        target, place, *values = i.operands if i.kind == "atom" else ["_", *i.operands]
        known = {*_ATOMICS, *_STRONG, *("global", "shared", "noftz", "shared::cta")}
        op, *more = [m for m in i.mods[:-1] if m in _ATOMICS]
        if more or not set(i.mods[:-1]) <= known:
            raise Unknown
        code = DTYPES[i.type] if op not in ("cas", "exch") else signed(DTYPES[i.type])
        made = ", ".join(self.full(v, code) for v in values)
        needed = target != "_"
        call = f"m.atomic_{space_of(i.mods)}({at}, {self.address(place)}, {code!r}, {op!r}, {needed}, {made})"
        return self.put(target, call + "[0]", code) if needed else [call]

    def warp(self, i, at):
        """Ask other lanes of the warp."""
        target, *operands = i.operands or [""]
        if i.kind == "shfl":
            source, lane, clamp = (self.full(o, "i4") for o in operands[:3])
            call = f"m.shuffle({at}, {i.mods[-2]!r}, {source}, {lane}, {clamp})"
            first, *second = target.split("|")
            lines = [f"pair_ = {call}", *self.put(first, "pair_[0]", "i4")]
            return lines + [line for other in second for line in self.put(other, "pair_[1]", "?")]
        if i.kind == "vote":
            how = i.mods[-2]
            return self.put(target, f"m.vote({how!r}, {self.full(operands[0], '?')})", "i4" if how == "ballot" else "?")
        if i.kind == "match" and "any" in i.mods:
            return self.put(target, f"m.match({self.full(operands[0], DTYPES[i.type])})", "i4")
        if i.kind == "redux":
            code = DTYPES[i.type]
            return self.put(target, f"m.reduce({i.mods[-2]!r}, {self.full(operands[0], code)})", code)
        if "warp" in i.mods:
            return ["m.sync_warp()"]
        raise Unknown


def unknown(i, error=""):
    """Return the error for an instruction that is not known."""
    where = f" ({i.source[0]}, line {i.source[1]})" if i.source else ""
    why = f": {error}" if "register" in str(error) else ""
    return ValueError(f"line {i.line} of the PTX text: an instruction that is not known: {i.text!r}{where}{why}")


def variable(register):
    """Return a register's name in Python."""
    return "_" + register[1:].replace("$", "_S")


class Program:
    """A kernel that can run: functions by block, instructions by number, and what is counted of each block."""

    def __init__(self, kernel):
        self.kernel, self.writer, self.instructions, self.source = kernel, Writer(kernel), [], []
        for n, block in enumerate(kernel.blocks):
            block.first = len(self.instructions)
            lines = [line for i in block.body for line in self.writer.instruction(i, self.numbered(i))]
            if block.last is not None and block.last.kind in ("bra", "ret", "exit", "trap", "bar", "barrier"):
                block.at = self.numbered(block.last)
                if block.end[0] == "bar":
                    block.end = self.barrier(block.last)
            block.count = len(self.instructions) - block.first
            block.classes = Counter(class_of(i) for i in self.instructions[block.first :])
            block.fmas = sum(i.kind == "fma" or i.kind == "mad" and i.type[0] == "f" for i in block.body)
            self.write(n, block, lines)
        spaces = dict(HELPERS, **self.writer.constants)
        exec(compile("\n".join(self.source), f"<{kernel.name}>", "exec"), spaces)
        self.functions = [(spaces[f"all_{n}"], spaces[f"some_{n}"]) for n in range(len(kernel.blocks))]
        crossing = {r for b in kernel.blocks for r in b.live_in | b.live_out}
        self.registers = {variable(f"%{r}"): kernel.code_of(r) for r in sorted(crossing)}
        touched = [
            i for i in self.instructions if i.kind in ("ld", "ldu", "st", "atom", "red") and "param" not in i.mods
        ]
        self.grain = min([SIZES[i.type] for i in touched], default=4)
        self.atomics = any(i.kind in ("atom", "red") or _STRONG & set(i.mods) for i in touched)

    def numbered(self, i):
        """Return an instruction's number in the kernel."""
        self.instructions.append(i)
        return len(self.instructions) - 1

    def write(self, n, block, lines):
        """Write a block's two functions."""
        used = [variable(f"%{r}") for r in sorted(block.used)]
        reads, writes = effects(block.last) if block.end and block.end[0] == "bar" else (set(), set())
        block.live_out |= reads | writes  # the machine deals with them
        made = [variable(f"%{r}") for r in sorted(block.live_out & block.made - writes)]
        given = block.end[1] if block.end and block.end[0] == "bra" else None
        give = f"    return {variable('%' + given) if given else None}"
        body = [f"    {line}" for line in lines]
        for name, get, put in (("all", "R[{0!r}]", "R[{0!r}]"), ("some", "R[{0!r}][idx]", "R[{0!r}][idx]")):
            self.source += [f"def {name}_{n}(m, R, idx, full):", *(f"    {r} = {get.format(r)}" for r in used)]
            self.source += [*body, *(f"    {put.format(r)} = {r}" for r in made), give]

    def barrier(self, i):
        """Return ("bar", number, threads or None, register to be given the result, how, predicate, negated)."""
        if i.mods and not set(i.mods) <= {"sync", "cta", "aligned", "red", "popc", "and", "or", "pred", "u32"}:
            raise unknown(i)
        operands = list(i.operands)
        if "red" not in i.mods:
            if not operands or any(not re.fullmatch(r"\d+", o) for o in operands):
                raise unknown(i)
            return ("bar", int(operands[0]), int(operands[1]) if len(operands) > 1 else None, None, "", "", False)
        target, which, *count, predicate = operands
        how = next(m for m in i.mods if m in ("popc", "and", "or"))
        count = int(count[0]) if count else None
        name = variable(predicate.lstrip("!"))
        return ("bar", int(which), count, target, how, name, predicate.startswith("!"))


@lru_cache(256)
def kernels_of(text):
    """Return the kernels of a PTX text by name."""
    return parse(text)


@lru_cache(1024)
def program_of(text, entry=None):
    """Return the program of one kernel of a PTX text: the one that is named, or the only one there is."""
    found = kernels_of(text)
    if entry is None and len(found) == 1:
        entry = next(iter(found))
    if entry not in found:
        raise ValueError(f"entry is one of {', '.join(sorted(found))}, not {entry!r}")
    return Program(found[entry])
