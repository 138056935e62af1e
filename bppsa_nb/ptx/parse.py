"""Reading PTX: text to kernels, a kernel to basic blocks, and which registers live from block to block.

A device function that is called is read in at its call, with registers and labels of its own: so there is no stack, and
recursion is refused. What is not understood is a `ValueError` with the line of the text.
"""

import re
from typing import NamedTuple

import numpy as np

# What a type is as an array of lanes. Registers hold signed integers; an instruction that is unsigned looks at them so.
DTYPES = {"s8": "i1", "u8": "u1", "b8": "u1", "s16": "i2", "u16": "u2", "b16": "u2", "s32": "i4", "u32": "u4",
          "b32": "u4", "s64": "i8", "u64": "u8", "b64": "u8", "f16": "f2", "f16x2": "f2", "f32": "f4", "f64": "f8",
          "pred": "?"}  # fmt: skip
SIZES = {"f16x2": 4} | {kind: np.dtype(code).itemsize for kind, code in DTYPES.items() if kind != "f16x2"}
SPECIAL = {"laneid", "warpid", "nwarpid", "smid", "nsmid", "gridid", "clock", "clock64", "globaltimer"} | {
    *("dynamic_smem_size", "total_smem_size"), *(f"lanemask_{which}" for which in ("eq", "le", "lt", "ge", "gt"))
}  # fmt: skip
ENDS = ("bra", "brx", "ret", "exit", "trap", "bar", "barrier")

_COMMENT = re.compile(r'"[^"\n]*"|//[^\n]*|/\*.*?\*/', re.S)
_STATEMENT = re.compile(
    r"""\s*(?:(?P<line>\.(?:version|target|address_size|file|loc)\b[^\n]*)
    |(?P<section>\.section\b[^{]*\{[^}]*\})
    |(?P<head>(?:\.\w+\s+)*\.(?:entry|func)\b[^{;]*[{;])
    |(?P<label>[\w$]+)\s*:(?!:)
    |(?P<scope>[{}])
    |(?P<statement>[^;{}]+(?:\{[^{}]*\}[^;{}]*)*;))""",
    re.X,
)
_VARIABLE = re.compile(
    r"\.(shared|local|const|global)\s+(?:\.attribute\S*\s+)?(?:\.align\s+(\d+)\s+)?\.(\w+)\s+([\w$]+)((?:\[\d*\])*)"
)
_PARAM = re.compile(
    r"\.param\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+(?:\.ptr\S*\s+(?:\.\w+\s+)*(?:\d+\s+)?)?([\w$]+)(\[\d*\])?"
)
_OPERAND = re.compile(r"\{[^}]*\}|\[[^\]]*\]|\([^)]*\)|[^\s,|]+(?:\|[^\s,]+)?")
_NAME = re.compile(r"(?<![\w$%.])%?[A-Za-z_$][\w$]*")


class Instruction(NamedTuple):
    """An instruction: what it is called, in parts, and where it stands in the text and in the source."""

    kind: str
    mods: tuple
    operands: list
    text: str
    guard: tuple | None  # (register, negated)
    line: int
    source: tuple | None  # file, line

    @property
    def type(self):
        """Its last type, "f32" for one."""
        return self.mods[-1] if self.mods else ""


class Block:
    """A basic block: instructions, and the one that ends it.

    `end` is ("bra", register or None, negated, target), ("brx", register, targets), ("bar",), ("ret",), ("trap",) or ().
    """

    def __init__(self):
        self.body, self.end, self.last = [], (), None
        self.used, self.made, self.live_in, self.live_out = set(), set(), set(), set()


class Function:
    """A kernel or a device function as it stands in the text: its parameters, statements and what it declares."""

    def __init__(self, name, params, results):
        self.name, self.params, self.results = name, params, results
        self.items, self.registers, self.callee_params, self.tables = [], {}, set(), {}


class Kernel:
    """A kernel in basic blocks: `params` are (name, type, offset, bytes); `symbols` (space, place or array) by name."""

    def __init__(self, name):
        self.name, self.params, self.blocks, self.labels = name, [], [Block()], {}
        self.registers, self.symbols, self.shared, self.local, self.arrays = {}, {}, 0, 0, {}

    def code_of(self, register):
        """Return the dtype of a register's lanes."""
        name, _, copy = register.partition("__")
        declared = self.registers.get(copy, {})
        kind = declared.get(name) or declared.get(name.rstrip("0123456789"))
        if kind is None:
            raise ValueError(f"register %{register} of kernel {short_name(self.name)} is not declared")
        return DTYPES[kind].replace("u", "i")


def short_name(name):
    """Return the last of the names that a mangled one is made of."""
    if found := re.search(r"^_ZZ.*E(\d+)(\w+)$", name):  # a variable of a function
        return found[2][: int(found[1])]
    found, rest = name, name.removeprefix("_ZN").removeprefix("_Z")
    while rest != name and (match := re.match(r"\d+", rest)):
        found, rest = rest[match.end() :][: int(match[0])], rest[match.end() + int(match[0]) :]
    return found


def names_of(operand):
    """List the registers that an operand names."""
    return [name for name in re.findall(r"%([\w$]+)(?![\w.$])", operand) if name not in SPECIAL]


class Reader:
    """Reads a text: functions by name, and the variables that stand outside of them or in them."""

    def __init__(self, text):
        self.text = _COMMENT.sub(lambda m: m[0] if m[0][0] == '"' else "\n" * m[0].count("\n"), text)
        self.files = {int(n): name for n, name in re.findall(r'\.file\s+(\d+)\s+"([^"]*)"', self.text)}
        self.functions, self.kernels, self.variables = {}, [], {}
        self.function, self.source, self.line, self.scopes, self.label = None, None, 1, [], ""

    def wrong(self, what, statement):
        """Return an error that names the line and what stands there."""
        return ValueError(f"line {self.line} of the PTX text: {what}: {' '.join(statement.split())[:120]!r}")

    def read(self):
        """Go through the text once."""
        place, end = 0, len(self.text.rstrip())
        if ".version" not in self.text[:10_000]:
            raise ValueError(f"PTX begins with .version, this text with {self.text.strip()[:40]!r}")
        while place < end:
            found = _STATEMENT.match(self.text, place)
            begin = len(self.text) - len(self.text[place : place + 4000].lstrip()) if not found else found.start()
            if not found:
                begin = place + len(self.text[place:]) - len(self.text[place:].lstrip())
                self.line += self.text.count("\n", place, begin)
                raise self.wrong("the text ends within a statement, or it is no PTX", self.text[begin : begin + 200])
            begin = found.start(found.lastgroup)
            self.line += self.text.count("\n", place, begin)
            self.statement(found.lastgroup, found[found.lastgroup])
            self.line += self.text.count("\n", begin, found.end())
            place = found.end()
        if self.function is not None:
            raise self.wrong("the text ends within a function", self.function.name)
        if not self.kernels:
            raise ValueError("there is no kernel (.entry) in the PTX text")

    def statement(self, kind, text):
        """Take in one statement."""
        if kind == "line":
            if found := re.match(r"\.loc\s+(\d+)\s+(\d+)(?:.*inlined_at\s+(\d+)\s+(\d+))?", text):
                own, called = (found[1], found[2]), (found[3], found[4])
                file, line = called if found[3] not in (None, found[1]) else own  # the caller, not a library's header
                self.source = self.files.get(int(file), "?"), int(line)
        elif kind == "head":
            self.head(text)
        elif kind == "scope" and text == "{":
            self.scopes.append({})
        elif kind == "scope":
            if not self.scopes:
                raise self.wrong("a brace too many", text)
            self.scopes.pop()
            self.function = self.function if self.scopes else None
        elif kind == "label":
            self.label = text
            if self.function is not None:
                self.function.items.append(text)
        elif kind == "statement" and text.startswith("."):
            self.directive(text.rstrip(" ;\n"))
        elif kind == "statement":
            if self.function is None:
                raise self.wrong("an instruction outside of a function", text)
            self.function.items.append(self.instruction(" ".join(text.rstrip(";").split())))

    def head(self, text):
        """Begin a function."""
        if text.endswith(";"):  # declared here, not written here
            return
        found = re.search(r"\.(entry|func)\s*(\([^)]*\))?\s*([\w$]+)\s*(\(.*?\))?[^)]*$", text, re.S)
        if not found:
            raise self.wrong("not understood", text)
        params = [(name, kind, int(align or 0), count) for align, kind, name, count in _PARAM.findall(found[4] or "")]
        results = [name for _, _, name, _ in _PARAM.findall(found[2] or "")]
        self.function, self.scopes, self.source = Function(found[3], params, results), [{}], None
        self.functions[found[3]] = self.function
        if found[1] == "entry":
            self.kernels.append(found[3])

    def directive(self, text):
        """Take in a declaration."""
        if found := re.match(r"\.reg\s+\.(\w+)\s+(.*)", text, re.S):
            if found[1] not in DTYPES:
                raise self.wrong("an unknown type", text)
            for name in re.split(r"\s*,\s*", found[2].strip()):
                given = plain = name.split("<")[0]
                plain = plain.lstrip("%")
                if len(self.scopes) > 1:  # its own in these braces
                    plain = f"{plain}_s{self.line}_{len(self.function.registers)}"
                if plain != given.lstrip("%") or not given.startswith("%"):
                    self.scopes[-1][given] = "%" + plain
                self.function.registers[plain] = found[1]
        elif found := re.match(r"\.param\b", text):
            self.function.callee_params |= {name for _, _, name, _ in _PARAM.findall(text)}
        elif found := re.match(r"\.branchtargets\s+(.*)", text, re.S):
            self.function.tables[self.label] = re.split(r"\s*,\s*", found[1].strip())
        elif found := _VARIABLE.search(text):
            self.variable(text, *found.groups())
        elif not text.startswith((".pragma", ".noreturn")):
            raise self.wrong("an unknown directive", text)

    def variable(self, text, space, align, kind, name, counts):
        """Take in a variable of shared, local, constant or global memory."""
        if kind not in DTYPES:
            raise self.wrong("an unknown type", text)
        count = int(np.prod([int(n or 0) for n in re.findall(r"\[(\d*)\]", counts)], dtype=int))
        size, array = SIZES[kind] * count, None
        if space in ("const", "global"):
            array = np.zeros(max(-(-size // 16) * 16, 16) + 16, "u1")
            array = array[-array.ctypes.data % 16 :][: max(size, 1)]
            if "=" in text:
                values = re.split(r"[\s,{}]+", text.partition("=")[2].strip(" {}\n"))
                try:
                    made = np.array([number(v, DTYPES[kind]) for v in values if v], DTYPES[kind]).view("u1")
                except ValueError as error:
                    raise self.wrong(f"an unknown value ({error})", text) from None
                array[: len(made)] = made
        self.variables[name] = space, int(align or SIZES[kind]), size, array

    def instruction(self, text):
        """Take an instruction apart."""
        guard = re.match(r"@(!?)(%?[\w$]+)\s+", text)
        name, _, rest = (text[guard.end() :] if guard else text).partition(" ")
        operands = _OPERAND.findall(rest)
        names = {k: v for scope in self.scopes for k, v in scope.items()}
        register = names.get(guard[2], guard[2]).lstrip("%") if guard else ""
        if names:
            operands = [_NAME.sub(lambda m: names.get(m[0], m[0]), operand) for operand in operands]
        kind, *mods = name.split(".")
        if not re.fullmatch(r"[a-z][a-z0-9]*", kind):
            raise self.wrong("no instruction", text)
        return Instruction(
            kind, tuple(mods), operands, text, (register, guard[1] == "!") if guard else None, self.line, self.source
        )


def number(text, code):
    """Return an immediate operand as a NumPy number of a dtype."""
    if found := re.match(r"0[fF]([0-9A-Fa-f]{8})$", text):
        value = np.uint32(int(found[1], 16)).view("f4")
        return value if code == "f4" else np.dtype(code).type(value) if code[0] == "f" else value.view(code)
    if found := re.match(r"0[dD]([0-9A-Fa-f]{16})$", text):
        value = np.uint64(int(found[1], 16)).view("f8")
        return value if code == "f8" else np.dtype(code).type(value) if code[0] == "f" else value.view(code)
    value = int(re.sub(r"U$", "", re.sub(r"^(-?)0([0-7]+)(U?)$", r"\g<1>0o\2", text)), 0)
    if code == "?":
        return np.bool_(value)
    if code[0] == "f":
        return np.dtype(code).type(value)
    bits = 8 * np.dtype(code).itemsize
    return np.array(value & ((1 << bits) - 1), f"u{bits // 8}").view(code)[()]


class Assembler:
    """Makes a kernel of functions: calls replaced by what is called, statements put into blocks."""

    def __init__(self, reader, name):
        self.reader, self.kernel, self.copies = reader, Kernel(name), 0
        place = 0
        for param, kind, align, count in reader.functions[name].params:
            size = SIZES[kind] * int(count.strip("[]") or 1)
            place = -(-place // (align or SIZES[kind])) * (align or SIZES[kind])
            self.kernel.params.append((param, kind, place, size))
            place += size
        self.kernel_params = {param[0] for param in self.kernel.params}
        self.add_function(reader.functions[name], "", {}, None, ())
        self.place_symbols()
        self.link()

    def add_function(self, function, suffix, formal, after, within):
        """Add a function's statements; a copy of a called one has a suffix, and what its parameters stand for."""
        copy = suffix.removeprefix("__")
        self.kernel.registers[copy] = dict(function.registers)
        labels = {item for item in function.items if isinstance(item, str)}

        def renamed(name):
            if name in formal:
                return formal[name]
            if name in labels or name in function.callee_params or name[0] == "%" and names_of(name):
                return name + suffix
            return name

        for item in function.items:
            if isinstance(item, str):
                self.label(item + suffix)
                continue
            if suffix:
                operands = [_NAME.sub(lambda m: renamed(m[0]), operand) for operand in item.operands]
                guard = item.guard and (item.guard[0] + suffix, item.guard[1])
                item = item._replace(operands=operands, guard=guard)  # noqa: PLW2901
            if item.kind == "call":
                self.call(item, (*within, function.name))
            elif item.kind == "ret" and after:
                self.add(item._replace(kind="bra", operands=[after]))
            elif item.kind == "brx":
                targets = [label + suffix for label in function.tables[item.operands[1].removesuffix(suffix)]]
                self.add(item._replace(operands=[item.operands[0], targets]))
            else:
                self.add(item)

    def call(self, item, within):
        """Add what is called, in place of the call."""
        lists = [re.split(r"\s*,\s*", o.strip("() ")) for o in item.operands if o.startswith("(")]
        name = next(o for o in item.operands if not o.startswith("("))
        results = lists.pop(0) if item.operands[0].startswith("(") else []
        function = self.reader.functions.get(name)
        if function is None or name in within or item.guard:
            why = "calls itself" if name in within else "is not in the text" if function is None else "is guarded"
            raise ValueError(f"line {item.line} of the PTX text: a call of {name}, which {why}: {item.text!r}")
        params = [p for p in (lists[0] if lists else []) if p]
        if len(params) != len(function.params) or len(results) != len(function.results):
            raise ValueError(f"line {item.line} of the PTX text: {len(params)} arguments and {len(results)} results for "
                             f"{name}, which has {len(function.params)} and {len(function.results)}")  # fmt: skip
        formal = dict(zip([p[0] for p in function.params] + function.results, params + results, strict=True))
        self.copies += 1
        suffix = f"__{self.copies}"
        self.add_function(function, suffix, formal, "$after" + suffix, within)
        self.label("$after" + suffix)

    def label(self, name):
        if self.kernel.blocks[-1].body or self.kernel.blocks[-1].end:
            self.kernel.blocks.append(Block())
        self.kernel.labels[name] = len(self.kernel.blocks) - 1

    def add(self, item):
        """Add an instruction to the last block; a guarded one is jumped around."""
        blocks = self.kernel.blocks
        if item.guard and item.kind != "bra":
            register, negated = item.guard
            blocks[-1].end, blocks[-1].last = ("bra", register, not negated, len(blocks) + 1), item
            blocks.append(Block())
        block, kind = blocks[-1], item.kind
        if kind == "bra":
            block.end, block.last = ("bra", *(item.guard or (None, False)), item.operands[0]), item
        elif kind == "brx":
            block.end, block.last = ("brx", names_of(item.operands[0])[0], item.operands[1]), item
        elif kind in ("ret", "exit", "trap"):
            block.end, block.last = ("trap" if kind == "trap" else "ret",), item
        elif kind in ("bar", "barrier") and "warp" not in item.mods:
            block.end, block.last = ("bar",), item
        else:
            block.body += self.moves(item) or [item]
            if not item.guard:
                return
        blocks.append(Block())

    def moves(self, item):
        """Return moves to and from registers for loads and stores of a called function's parameters."""
        if item.kind not in ("ld", "st") or not any(m.startswith("param") for m in item.mods):
            return None
        place, target = item.operands if item.kind == "st" else item.operands[::-1]
        name, _, offset = place.strip("[] ").partition("+")
        if name in self.kernel_params:
            return None
        made, size = [], SIZES[item.type]
        for n, part in enumerate(re.split(r"\s*,\s*", target.strip("{} "))):
            kind = "b16" if size == 1 else item.type
            register = f"{name.replace('__', '_c')}_{int(offset or 0) + n * size}"
            self.kernel.registers[""][register] = kind
            operands = [f"%{register}", part] if item.kind == "st" else [part, f"%{register}"]
            made.append(item._replace(kind="mov", mods=(kind,), operands=operands))
        return made

    def place_symbols(self):
        """Give the variables that the kernel names their places."""
        kernel, named = self.kernel, set()
        for block in kernel.blocks:
            for item in block.body:
                named |= {name for operand in item.operands for name in _NAME.findall(operand)}
        found = [(name, v) for name, v in self.reader.variables.items() if name in named]
        for name, (space, align, size, array) in sorted(found, key=lambda entry: entry[1][2] == 0):  # dynamic: last
            if array is not None:
                kernel.symbols[name] = space, int(array.ctypes.data)
                kernel.arrays[name] = array
                continue
            place = -(-getattr(kernel, space) // align) * align
            kernel.symbols[name] = space, place
            setattr(kernel, space, place + size)

    def link(self):
        """Turn labels into numbers of blocks, and find out which registers live where."""
        blocks = self.kernel.blocks
        if not blocks[-1].body and not blocks[-1].end:
            blocks[-1].end = ("ret",)
        for n, block in enumerate(blocks):
            kind = block.end[0] if block.end else ""
            try:
                if kind == "bra" and isinstance(block.end[3], str):
                    block.end = (*block.end[:3], self.kernel.labels[block.end[3]])
                elif kind == "brx":
                    block.end = ("brx", block.end[1], [self.kernel.labels[label] for label in block.end[2]])
            except KeyError as error:
                raise ValueError(
                    f"line {block.last.line} of the PTX text: no label {error}: {block.last.text!r}"
                ) from None
            for item in block.body:
                reads, writes = effects(item)
                block.used |= reads - block.made
                block.made |= writes
            if kind in ("bra", "brx", "bar"):
                reads, writes = effects(block.last) if kind == "bar" else ({block.end[1]} - {None}, set())
                block.used |= reads - block.made
                block.made |= writes
            block.next = {"bra": lambda e: [e[3]], "brx": lambda e: e[2]}.get(kind, lambda e: [])(block.end)
            if kind in ("", "bar") or kind == "bra" and block.end[1]:
                block.next = [*block.next, n + 1]
        changed = True
        while changed:
            changed = False
            for block in reversed(blocks):
                out = set().union(*(blocks[n].live_in for n in block.next))
                into = block.used | (out - block.made)
                changed |= into != block.live_in
                block.live_in, block.live_out = into, out


def effects(item):
    """Return the registers that an instruction reads, and those that it writes."""
    operands = [names_of(operand) for operand in item.operands]
    if (
        item.kind in ("st", "red", "membar", "fence", "prefetch")
        or item.kind in ("bar", "barrier")
        and "red" not in item.mods
    ):
        return set().union(*operands), set()
    first, *others = operands or [[]]
    if item.operands and item.operands[0].startswith("["):
        return set().union(first, *others), set()
    return set().union(*others), set(first)


def parse(text):
    """Return the kernels of PTX by name; a text that is cut off or not understood is a `ValueError`."""
    reader = Reader(text)
    reader.read()
    return {name: Assembler(reader, name).kernel for name in reader.kernels}
