"""Reading PTX: text to functions, which are lists of instructions and labels, and to variables.

What is not understood is a `ValueError` with the line of the text.
"""

import re
import tomllib
from pathlib import Path
from typing import NamedTuple

import numpy as np

_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
HALVES = _TABLES["halves"]
DTYPES = _TABLES["types"] | HALVES
SIZES = {kind: np.dtype(code).itemsize for kind, code in DTYPES.items()}
SPECIAL = _TABLES["special"].split()
_PATTERNS = {name: re.compile(text) for name, text in _TABLES["patterns"].items()}
NAME = _PATTERNS["name"]


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

    def unknown(self, why=""):
        """Return the error for an instruction that is not known."""
        where = f"{self.text!r}" + (f" ({self.source[0]}, line {self.source[1]})" if self.source else "")
        return ValueError(f"line {self.line} of the PTX text: an instruction that is not known: {where}{why}")


class Function:
    """A kernel or a device function: `params` and `results` are (name, type, bytes), `items` statements, labels."""

    def __init__(self, name, params, results):
        self.name, self.params, self.results = name, params, results
        self.items, self.registers = [], {}  # by register, its lanes' dtype
        self.head = None  # where Numba says that it begins


def short_name(name) -> str:
    """Return the last of the names that a mangled one is made of."""
    name = name.partition("$")[0] or name  # which a text has for its own
    if found := re.search(r"^_ZZ.*E(\d+)(\w+)$", name):  # a variable of a function
        return found[2][: int(found[1])]
    found, rest = name, name.removeprefix("_ZN").removeprefix("_Z")
    while rest != name and (match := re.match(r"\d+", rest)):
        found, rest = rest[match.end() :][: int(match[0])], rest[match.end() + int(match[0]) :]
        if not name.startswith("_ZN"):
            break  # types of its parameters follow
    return found


def names_of(operand):
    """List the registers that an operand names."""
    return [name for name in re.findall(r"%([\w$]+)(?![\w.$])", operand) if name not in SPECIAL]


class Reader:
    """Reads texts, one behind the other: functions by name, kernels of the first, variables, in memory of `room`."""

    def __init__(self, text, room=None):
        self.room = room
        self.text = _PATTERNS["comment"].sub(lambda m: m[0] if m[0][0] == '"' else "\n" * m[0].count("\n"), text)
        texts = re.split(r"(?m)^\s*\.version\b", self.text)
        self.files = [{int(n): name for n, name in re.findall(r'\.file\s+(\d+)\s+"([^"]*)"', each)} for each in texts]
        self.functions, self.kernels, self.variables, self.inlined, self.part = {}, [], {}, {}, 0
        self.function, self.source, self.line, self.scopes = None, None, 1, [{}]
        if not self.text.lstrip().startswith(".version"):
            raise ValueError(f"PTX begins with .version, this text with {self.text.strip()[:40]!r}")
        place = 0
        for found in _PATTERNS["statement"].finditer(self.text):
            begin = found.start(found.lastgroup)
            self.line, place = self.line + self.text.count("\n", place, begin), begin
            try:
                self.statement(found.lastgroup, found[found.lastgroup])
            except (AttributeError, LookupError) as error:  # an unknown type, for one
                raise self.wrong(f"not understood ({error!r})", found[0]) from error
        if self.function is not None or not self.kernels:
            raise self.wrong("the text ends within a function, or has no kernel", self.text[-100:])

    def wrong(self, what, statement):
        """Return an error that names the line and what stands there."""
        return ValueError(f"line {self.line} of the PTX text: {what}: {' '.join(statement.split())[:120]!r}")

    def statement(self, kind, text):
        """Take in one statement."""
        if kind == "rest":
            raise self.wrong("the text ends within a statement, or is no PTX", text)
        if kind == "line":
            if text.startswith(".version"):
                self.part, self.scopes, self.inlined = self.part + 1, [{}], {}
            if found := _PATTERNS["loc"].match(text):
                self.place(*((int(file), int(line)) for file, line in (found.groups()[:2], found.groups()[2:]) if file))
                if self.function and not self.function.items and "NumbaEnv" in self.text:
                    self.function.head = self.source
        elif kind == "head":
            self.head(text)
        elif kind == "statement" and text[0] == ".":
            self.directive(text.rstrip(" ;\n"))
        elif self.function is None and kind != "section":
            raise self.wrong("outside of a function", text)
        elif text == "{":
            self.scopes.append({})
        elif text == "}":
            self.scopes.pop()
            self.function = self.function if self.scopes[1:] else None
        elif kind != "section":
            self.function.items.append(text if kind == "label" else self.instruction(text))

    def place(self, own, at=None):
        """Note where what follows stands; inlined from another file, the caller's line counts, not a library's."""
        at = self.inlined.get(at, at)
        self.inlined[own] = own if at is None or at[0] == own[0] else at
        file, line = self.inlined[own]
        name = self.files[self.part].get(file, "?")
        self.source = None if "<unnamed" in name else (name, line)

    def head(self, text):
        """Begin a function."""
        if not (found := _PATTERNS["head"].search(text)):
            raise self.wrong("not understood", text)
        name = self.known(text, found[3])
        if text[-1] == ";":  # declared here, not written here
            return
        given = [_PATTERNS["param"].findall(part or "") for part in (found[4], found[2])]
        params, results = ([(name, kind, SIZES[kind] * int(n or 1)) for kind, name, n in part] for part in given)
        self.function, self.source = Function(name, params, results), None
        self.scopes.append({})
        self.functions.setdefault(name, self.function)
        if found[1] == "entry" and self.part == 1:
            self.kernels.append(name)

    def directive(self, text):
        """Take in a declaration. A name that is no register's, or is known in these braces only, gets one's."""
        if found := re.match(r"\.reg\s*\.(\w+)\s+(.*)", text, re.S):
            for given, count in re.findall(r"(%?[\w$]+)(?:<(\d+)>)?", found[2]):
                for name in [f"{given}{n}" for n in range(int(count))] if count else [given]:
                    self.function.registers[self.own(name)] = DTYPES[found[1]].replace("u", "i")
        elif text.startswith(".param"):
            for _, name, _ in _PATTERNS["param"].findall(text):
                self.own(name)
        elif found := _PATTERNS["variable"].search(text):
            self.variable(text, *found.groups())
        elif not text.startswith(".pragma"):
            raise self.wrong("an unknown directive", text)

    def known(self, text, name):
        """Return the name of what a statement declares, another than in other texts if it is its text's own."""
        if self.part > 1 and not _PATTERNS["shared"].search(text):
            self.scopes[0][name] = f"{name}${self.part}"
        return self.scopes[0].get(name, name)

    def own(self, given):
        """Return a register's name for one that is declared in braces."""
        name = given.lstrip("%") + (f"_s{self.line}" if len(self.scopes) > 2 else "")
        if "%" + name != given:
            self.scopes[-1][given] = "%" + name
        return name

    def variable(self, text, space, align, kind, name, counts):
        """Take in a variable of shared, local, constant or global memory; of the last two, memory is there at once."""
        if text.startswith(".extern") and space != "shared":
            return  # it is in another text
        code = DTYPES[kind]
        size = SIZES[kind] * int(np.prod([int(n or 0) for n in re.findall(r"\[(\d*)\]", counts)], dtype=int))
        array = None
        if space in ("const", "global"):
            array = np.zeros(size + 32, "u1")
            array = self.room(name, size) if self.room else array[-array.ctypes.data % 16 :][: max(size, 1)]
            try:
                values = [number(v, code) for v in re.split(r"[\s,{}]+", text.partition("=")[2]) if v]
            except ValueError:
                raise self.wrong("an unknown value", text) from None
            made = np.array(values, code).view("u1")
            array[: len(made)] = made
        self.variables.setdefault(self.known(text, name), (space, int(align or SIZES[kind]), size, array))

    def instruction(self, text):
        """Take an instruction apart."""
        text = " ".join(text.rstrip(";").split())
        found = re.fullmatch(r"(?:@(!?)(%?[\w$]+) )?([a-z][a-z0-9]*)((?:\.[\w:]+)*)(?: (.*))?", text)
        if not found:
            raise self.wrong("no instruction", text)
        names = {k: v for scope in self.scopes for k, v in scope.items()}
        operands = [operand.replace(" ", "") for operand in _PATTERNS["operand"].findall(found[5] or "")]
        if names:
            operands = [NAME.sub(lambda m: names.get(m[0], m[0]), operand) for operand in operands]
        guard = (names.get(found[2], found[2]).lstrip("%"), found[1] == "!") if found[2] else None
        return Instruction(found[3], tuple(found[4].split(".")[1:]), operands, text, guard, self.line, self.source)


def number(text, code):
    """Return an immediate operand as a NumPy number of a dtype."""
    if found := re.fullmatch(r"0[fFdD]((?:[0-9A-Fa-f]{8}){1,2})", text):
        size = len(found[1]) // 2
        value = np.array(int(found[1], 16), f"u{size}").view(f"f{size}")[()]
        return value.astype(code) if code[0] == "f" else value.view(code)
    value = int(re.sub(r"^(-?)0([0-7]+)$", r"\g<1>0o\2", text.removesuffix("U")), 0)
    if code[0] in "?f":
        return np.dtype(code).type(value)
    size = np.dtype(code).itemsize
    return np.array(value & (1 << 8 * size) - 1, f"u{size}").view(code)[()]
