"""From basic blocks to Python: each becomes two functions, for all lanes and for some; a thread is a lane of an array.

What a register holds in all lanes is a NumPy array; those that go from block to block stand in a table `R`. `m` is
the machine, which knows threads and memory; `idx` are the lanes at hand; `full(value, dtype)` is an array for them.
"""

import re
from collections import Counter
from functools import lru_cache

import numpy as np

from warpwatch import arithmetic, warps
from warpwatch.blocks import WARP, Kernel, copied, parse
from warpwatch.instructions import TABLES, class_of, express, space_of
from warpwatch.parse import DTYPES, HALVES, SIZES, SPECIAL, names_of, number, short_name

_SPECIAL = re.compile(rf"%((?:tid|ntid|ctaid|nctaid)\.[xyz]|{'|'.join(SPECIAL)})$")
_PLACES = re.compile(r"(param|shared)(::\w+)?|global|local|const|v2|v4|nc|c[agsv]|lu|w[bt]|volatile|weak|L[12]::\w+")
_STRONG = {"relaxed", "acquire", "release", "acq_rel", "mmio", "cta", "gpu", "sys", "volatile"}
_ATOMICS = ("add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec")
_MEMORY, _FENCES = ("ld", "ldu", "st", "atom", "red"), ("membar", "fence")
_NOTHING = ("griddepcontrol", "pragma", "nop", "prefetch", "prefetchu", "nanosleep")
_ACQUIRE, _RELEASE = {"acquire", "acq_rel"}, {"release", "acq_rel"}


def seen(source, of, to):
    """Return source of lanes of one dtype as those of another: the same bits, fewer of them, or more of their sign."""
    if of == to:
        return source
    same = of[1:] == to[1:]
    if "?" in (of, to) or not same and "f" in of + to:
        raise LookupError(f"{of} as {to}")
    return f"({source}).{'view' if same else 'astype'}({to!r})"


class Program:
    """A kernel that can run, written as Python: functions by block, instructions by number, and what is counted."""

    def __init__(self, kernel):
        self.kernel, self.constants, self.instructions, self.source = kernel, {}, [], []
        self.copied, self.copies = copied(kernel), set()  # registers, and loads to them
        loads = [i for block in kernel.blocks for i in block.body if i.kind == "ld"]
        self.beside = Counter(name for i in loads for name in names_of(i.operands[1]))  # how many by the same register
        self.near = set()  # strong accesses that only their own block need take for such
        self.zeroing = set()  # stores of zeros that Numba makes where a kernel begins, and no line of its source
        for n, block in enumerate(kernel.blocks):
            block.first = len(self.instructions)
            lines = [line for at, i in enumerate(block.body, block.first) for line in self.instruction(i, at)]
            self.instructions += block.body + [block.last] * (block.last is not None)
            block.count, block.at = len(self.instructions) - block.first, len(self.instructions) - 1
            block.classes = Counter(class_of(i) for i in self.instructions[block.first :])
            block.fmas = sum(i.kind == "fma" or i.kind == "mad" and "f" in i.type for i in block.body)
            block.products = block.fmas + sum(i.kind == "mul" and "f" in i.type for i in block.body)
            self.write(n, block, lines)
        self.saved = {n: ["", *(variable(f"%{r}") for r in registers)] for n, registers in kernel.saved.items()}
        spaces = vars(arithmetic) | vars(warps) | self.constants
        exec(compile("\n".join(self.source), f"<{kernel.name}>", "exec"), spaces)
        self.functions = [(spaces[f"all_{n}"], spaces[f"some_{n}"]) for n in range(len(kernel.blocks))]
        self.registers = {"": "i8"} | {variable(f"%{r}"): kernel.registers[r] for r in sorted(kernel.crossing)}
        touched = [i for i in self.instructions if i.kind in _MEMORY and "param" not in i.mods]
        self.grains = {name: min([SIZES[i.type] for i in touched if space_of(i.mods) in (*also, "generic")], default=4)
                       for name, *also in (("global", "global", "const"), ("shared", "shared"))}  # fmt: skip
        waits = [block.end[2] for block in kernel.blocks if block.end and block.end[0] in ("bar", "warp")]
        self.fences = any(i.kind in _FENCES or (_ACQUIRE | _RELEASE) & set(i.mods) for i in self.instructions)
        self.parts = self.fences or any(what and what not in WARP[2:] for what in waits)  # parts wait for each other

    def write(self, n, block, lines):
        """Write a block's two functions."""
        used = [variable(f"%{r}") for r in sorted(block.used)]
        made = [variable(f"%{r}") for r in sorted(self.kernel.crossing & block.made)]
        kind, given = (*block.end, None, None)[:2]
        given = self.full(given, "u4") if kind == "warp" else variable(f"%{given}") if kind == "bra" and given else None
        for name, lanes in (("all", ""), ("some", "[idx]")):
            self.source += [f"def {name}_{n}(m, R, idx, full):", *(f"    {r} = R[{r!r}]{lanes}" for r in used)]
            self.source += [f"    {line}" for line in lines] + [f"    R[{r!r}]{lanes} = {r}" for r in made]
            self.source += [f"    return {given}"]

    def value(self, operand, code):
        """Return source for an operand, read as a dtype."""
        if operand[0] == "!":
            return f"~{self.value(operand[1:], code)}"
        if found := _SPECIAL.match(operand):
            self.kernel.cooperative |= found[1].startswith("envreg")  # where C++ keeps the barrier of a grid
            return f"m.special({found[1]!r}, {code!r})"
        if operand[0] == "%":
            own = self.kernel.registers[operand[1:]]
            if np.dtype(own).itemsize < np.dtype(code).itemsize:
                raise LookupError(f"{own} as {code}")
            return seen(variable(operand), own, code)
        name, _, offset = operand.partition("+")
        if name in self.kernel.symbols:
            operand = str(self.kernel.symbols[name][1] + int(offset or 0))
        if name in self.kernel.framed:
            return f"({self.value(operand, code)} + m.of(m.depth) * {self.kernel.frame}).astype({code!r})"
        name = f"K{len(self.constants)}"
        self.constants[name] = number("32" if operand == "WARP_SZ" else operand, code)
        return name

    def full(self, operand, code):
        """Return source of an array, for a number, too."""
        source = self.value(operand, code)
        return f"full({source}, {code!r})" if source[0] == "K" else source

    def put(self, target, source, code):
        """Assign a value of a dtype to a register, or a pair to two, of which the second is a predicate."""
        if "|" in target:
            first, second = target.split("|")
            return [f"pair_ = {source}", *self.put(first, "pair_[0]", code), *self.put(second, "pair_[1]", "?")]
        if target == "_":
            return [f"_ = {source}"]
        return [f"{variable(target)} = {seen(source, code, self.kernel.registers[target[1:]])}"]

    def put_all(self, operand, source, code):
        """Assign to a register, or to a list of them, what stands in a list."""
        parts = enumerate(operand.strip("{}").split(","))
        return [f"parts_ = {source}", *(line for n, part in parts for line in self.put(part, f"parts_[{n}]", code))]

    def instruction(self, i, at):
        """Return source lines for an instruction; `at` is its number in the kernel."""
        try:
            if i.kind in _NOTHING:
                return []
            if i.kind in _FENCES:  # those of other proxies order what is not watched
                return [f"m.fence({'cta' not in i.mods})"] * (not {"proxy", "mbarrier_init"} & set(i.mods))
            if i.kind in _MEMORY:
                self.near |= {at} if "cta" in i.mods else set()
                made = self.atomic(i, at) if i.kind in ("atom", "red") else self.memory(i, at)
                far, (before, after) = "cta" not in i.mods, (bool(way & set(i.mods)) for way in (_RELEASE, _ACQUIRE))
                if before or after:  # which orders by this place only
                    made = [f"held_ = m.fences and m.fences.hold(m.lanes(), {far}, {before})", *made]
                    made.append(f"held_ and m.fences.free(held_, {far}, {after})")
                return made
            if i.kind in ("shfl", "vote", "activemask", "match", "redux", "bar", "barrier"):
                return self.warp(i, at)
            if i.kind in ("addc", "subc", "madc") or "cc" in i.mods:
                return self.carry(i)
            if function := TABLES["functions"].get(i.kind):
                source = function["source"].format(", ".join(map(variable, i.operands[1:])), at=at)
                return self.put(i.operands[0], source, function["code"])
            if i.kind == "mov" and "{" in i.operands[0] + i.operands[1]:
                return self.pack(i)
            whole = HALVES.keys() & i.mods or not any(map(names_of, i.operands[1:]))
            return self.put(i.operands[0], *express(i, self.full if whole else self.value))
        except (LookupError, ValueError) as error:
            raise i.unknown(f": {error}") from error

    def pack(self, i):
        """Two or four parts to one number, or one number to its parts ("mov")."""
        target, source = i.operands
        code, count = DTYPES[i.type], 1 + (target + source).count(",")
        part = f"i{SIZES[i.type] // count}"
        if source[0] != "{":
            return self.put_all(target, f"{self.full(source, code)}.view({part!r}).reshape(-1, {count}).T.copy()", part)
        made = ", ".join(self.full(p, part) for p in source.strip("{}").split(","))
        return self.put(target, f"np.stack([{made}], axis=1).reshape(-1).view({code!r})", code)

    def carry(self, i):
        """Add, subtract or multiply and add, with a carry from the last such instruction, to the next, or both."""
        code, half = f"u{SIZES[i.type]}", "hi" if "hi" in i.mods else "lo"
        if i.kind not in ("add", "addc", "sub", "subc", "mad", "madc") or half == "hi" and i.type[0] == "s":
            raise LookupError("modifiers")
        a, b, *c = [self.full(operand, code) for operand in i.operands[1:]]
        if c:
            a, b = f"high({a}, {b}, {code!r})" if half == "hi" else f"({a} * {b})", *c
        given = "carry_" if i.kind[-1] == "c" else "False"
        lines = [f"pair_ = carried({i.kind[:3]!r}, {a}, {b}, {given})", *self.put(i.operands[0], "pair_[0]", code)]
        return lines + ["carry_ = pair_[1]"] * ("cc" in i.mods)

    def address(self, operand):
        """Return source of the addresses that an operand in brackets gives, an array of int64."""
        base, _, offset = operand.strip("[]").partition("+")
        if base[0] != "%":
            return self.full(operand.strip("[]"), "i8")
        wide = self.kernel.registers[base[1:]] == "i8"
        source = self.value(base, "i8") if wide else f"{self.value(base, 'u4')}.astype('i8')"
        return f"{source} + {int(offset, 0)}" if offset and int(offset, 0) else source

    def memory(self, i, at):
        """Load or store, several numbers at once, too."""
        if not all(_PLACES.fullmatch(m) or m in _STRONG for m in i.mods[:-1]):
            raise LookupError("modifiers")
        code, space, strong = DTYPES[i.type], space_of(i.mods), None if "nc" in i.mods else bool(_STRONG & set(i.mods))
        target, place = i.operands if i.kind != "st" else i.operands[::-1]
        parts = target.strip("{}").split(",")
        if space == "param":
            name, _, offset = place.strip("[]").partition("+")
            return self.put_all(target, f"m.param({name!r}, {int(offset or 0)}, {code!r}, {len(parts)})", code)
        space = "global" if space == "const" else space
        if i.kind == "st":
            self.zeroing |= {at} if space == "local" and i.source == self.kernel.head is not None else set()
            values = ", ".join(self.full(part, code) for part in parts)
            return [f"m.store_{space}({at}, {self.address(place)}, {code!r}, {strong}, {values})"]
        beside = SIZES[i.type] > 1 or sum(self.beside[name] for name in names_of(place)) > 1  # as in a structure
        self.copies |= {at} if beside and self.copied.issuperset(names_of(target)) else set()
        made = f"m.load_{space}({at}, {self.address(place)}, {code!r}, {strong}, {len(parts)})"
        return self.put_all(target, made, code)

    def atomic(self, i, at):
        """Read, change and write as one ("atom", "red")."""
        target, place, *values = i.operands if i.kind == "atom" else ["_", *i.operands]
        op, *more = [m for m in i.mods[:-1] if m in _ATOMICS]
        if more or not set(i.mods[:-1]) <= {op, *_STRONG, "global", "shared", "noftz", "shared::cta"}:
            raise LookupError("modifiers")
        code = DTYPES[i.type].replace("u", "i" if op in ("cas", "exch") else "u")
        made, needed = ", ".join(self.full(v, code) for v in values), target != "_"
        op += f".{i.type}" * (i.type in HALVES)
        call = f"m.atomic_{space_of(i.mods)}({at}, {self.address(place)}, {code!r}, {op!r}, {needed}, {made})"
        return self.put(target, call + "[0]", code) if needed else [call]

    def warp(self, i, at):
        """Ask other lanes of the warp, or of the block."""
        target, *operands = i.operands
        if i.kind == "shfl":
            asked = ", ".join(self.full(o, "i4") for o in operands[:3])
            return self.put(target, f"shuffled(m, {at}, {i.mods[-2]!r}, {asked}){'' if '|' in target else '[0]'}", "i4")
        name = ".".join(m for m in (i.kind, *i.mods[:-1]) if m not in ("sync", "cta", "aligned"))
        brings, source, code = TABLES["together"][name.replace("barrier", "bar")]
        own = DTYPES[i.type]
        value = self.full(operands[-1 if "red" in i.mods else 0], brings or own) if operands else ""
        one = "[0]" * (name == "match.all" and "|" not in target)
        return self.put(target, source.format(value) + one, code or own)


def variable(register):
    """Return a register's name in Python."""
    return "_" + register[1:].replace("$", "_S")


@lru_cache(1024)
def program_of(text, entry=None):
    """Return the program of one kernel of a PTX text: the one that is named, or the only one there is."""
    found = (reader := parse(text)).kernels
    named = [entry] if entry in found else [name for name in found if entry in (None, short_name(name))]
    if len(named) != 1:
        raise ValueError(f"entry is one of {', '.join(sorted(map(short_name, found)))}, not {entry!r}")
    return Program(Kernel(reader, named[0]))
