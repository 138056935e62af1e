"""From functions to basic blocks, and which registers live from block to block.

A device function that is called is put in at its call, with registers and labels of its own: so there is no stack, and
recursion is refused.
"""

import re

from bppsa_nb.ptx.parse import DTYPES, NAME, SIZES, Reader, names_of, short_name


class Block:
    """A basic block: instructions, and the one that ends it.

    `end` is ("bra", register or None, negated, target), ("bar",), ("ret",), ("trap",), or () if the next block follows.
    """

    def __init__(self):
        self.body, self.end, self.last = [], (), None
        self.used, self.made, self.live_in, self.live_out = set(), set(), set(), set()


class Kernel:
    """A kernel in basic blocks: `params` are (name, type, bytes); `symbols` (space, place) of variables by name."""

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


class Assembler:
    """Makes a kernel of functions: calls replaced by what is called, statements put into blocks."""

    def __init__(self, reader, name):
        self.reader, self.kernel, self.copies = reader, Kernel(name), 0
        for param, kind, count in reader.functions[name].params:
            self.kernel.params.append((param, kind, SIZES[kind] * int(count.strip("[]") or 1)))
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
                operands = [NAME.sub(lambda m: renamed(m[0]), operand) for operand in item.operands]
                guard = item.guard and (item.guard[0] + suffix, item.guard[1])
                item = item._replace(operands=operands, guard=guard)
            if item.kind == "call":
                self.call(item, (*within, function.name))
            elif item.kind == "ret" and after:
                self.add(item._replace(kind="bra", operands=[after]))
            else:
                self.add(item)

    def call(self, item, within):
        """Add what is called, in place of the call."""
        lists = [re.findall(r"[\w$%]+", o) for o in item.operands if o.startswith("(")]
        name = next(o for o in item.operands if not o.startswith("("))
        results = lists.pop(0) if item.operands[0].startswith("(") else []
        params, function = lists[0] if lists else [], self.reader.functions.get(name)
        if name == "vprintf" and len(params) == 2 and len(results) == 1:  # which every GPU has
            made = [f"%{parameter(each)}" for each in results + params]
            self.kernel.registers[""][made[0][1:]] = "b32"
            self.add(item._replace(kind=name, mods=(), operands=made))
            return
        why = "is guarded" if item.guard else "calls itself" if name in within else ""
        if function is None:
            why = "is not in the text"
        elif (len(params), len(results)) != (len(function.params), len(function.results)):
            why = f"has {len(function.params)} arguments and {len(function.results)} results"
        if why:
            raise ValueError(f"line {item.line} of the PTX text: a call of {short_name(name)}, which {why}")
        formal = dict(zip([p[0] for p in function.params] + function.results, params + results, strict=True))
        self.copies += 1
        suffix = f"__{self.copies}"
        self.add_function(function, suffix, formal, "$after" + suffix, within)
        self.label("$after" + suffix)

    def label(self, name):
        """Begin a block."""
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
            register = parameter(name, int(offset or 0) + n * size)
            self.kernel.registers[""][register] = kind
            operands = [f"%{register}", part] if item.kind == "st" else [part, f"%{register}"]
            made.append(item._replace(kind="mov", mods=(kind,), operands=operands))
        return made

    def place_symbols(self):
        """Give the variables that the kernel names their places."""
        kernel, named = self.kernel, set()
        for block in kernel.blocks:
            for item in block.body:
                named |= {name for operand in item.operands for name in NAME.findall(operand)}
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
            if kind == "bra" and isinstance(block.end[3], str):
                if block.end[3] not in self.kernel.labels:
                    raise ValueError(f"line {block.last.line} of the PTX text: no such label: {block.last.text!r}")
                block.end = (*block.end[:3], self.kernel.labels[block.end[3]])
            for reads, writes in map(effects, block.body + [block.last] * (kind == "bar")):
                block.used |= reads - block.made
                block.made |= writes
            if kind == "bra":
                block.used |= {block.end[1]} - {None} - block.made
            block.next = [block.end[3]] if kind == "bra" else []
            if kind in ("", "bar") or kind == "bra" and block.end[1]:
                block.next.append(n + 1)
        changed = True
        while changed:
            changed = False
            for block in reversed(blocks):
                out = set().union(*(blocks[n].live_in for n in block.next))
                into = block.used | (out - block.made)
                changed |= into != block.live_in
                block.live_in, block.live_out = into, out


def parameter(name, offset=0):
    """Return the register in place of a called function's parameter."""
    return f"{name.replace('__', '_c')}_{offset}"


def effects(item):
    """Return the registers that an instruction reads, and those that it writes."""
    first, *others = [set(names_of(operand)) for operand in item.operands] or [set()]
    reads_all = item.kind in ("st", "red") or item.kind in ("bar", "barrier") and "red" not in item.mods
    return set().union(*others, first if reads_all else ()), set() if reads_all else first


def parse(text):
    """Return the kernels of PTX by name; a text that is cut off or not understood is a `ValueError`."""
    reader = Reader(text)
    reader.read()
    return {name: Assembler(reader, name).kernel for name in reader.kernels}
