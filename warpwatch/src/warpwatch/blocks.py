"""From functions to basic blocks, and which registers go from block to block.

A device function that is called is put in at its call, with registers and labels of its own, and needs no stack. For
calls of itself within it, by way of others, too, it has one body, behind all else; there, each lane has a stack.
"""

import re
from functools import lru_cache

from warpwatch.instructions import TABLES
from warpwatch.parse import DTYPES, NAME, SIZES, Reader, names_of, short_name

WARP = "bar", "barrier", "shfl", "vote", "match", "redux"  # for which lanes of a warp wait for each other
_JOINS = "mov", "cvt", "shl", "shr", "or", "and", "bfi", "prmt"  # what puts bits together, of a structure's parts
GRID = "grid"  # the number of the barrier for which all blocks of a launch wait
DEPTH, MOST_LOCAL = 1000, 512 * 1024  # calls within calls that a thread is followed into; bytes of its local memory
GAP = 256  # bytes between shared arrays, a multiple of what the banks hold, so that each keeps its own


class Block:
    """A basic block: instructions, and the one that ends it.

    `end` is ("bra", register or None, negated, target), ("bar", number, threads or None), ("warp", mask, kind of
    instruction), ("call", None, whether from a body, which one), ("leave", which body), ("ret",), ("trap",), or () if
    the next block follows.
    """

    def __init__(self):
        self.body, self.end, self.last = [], (), None
        self.used, self.made = set(), set()  # registers that it reads before it writes them, and that it writes


class Kernel:
    """A kernel in basic blocks: calls are replaced by what is called, labels by numbers of blocks.

    `params` are (name, type, bytes); by name, `registers` are dtypes, `symbols` (space, place, bytes) of variables,
    `arrays` those in global memory. So many bytes of shared memory are `gaps` between its arrays. Local ones of
    bodies are `framed`: `depths` calls have theirs, each `frame` bytes further. `saved` are registers that calls keep.
    """

    def __init__(self, reader, name):
        self.name, self.functions, self.blocks, self.labels, self.copies = name, reader.functions, [Block()], {}, 0
        self.cooperative = False  # whether all its blocks must be there at once
        function = self.functions[name]
        self.params, self.head = function.params, function.head
        self.registers, self.symbols, self.shared, self.local, self.arrays, self.gaps = {}, {}, 0, 0, {}, 0
        self.bodies, self.own = [], None
        self.add_function(function, "", {}, (), None)
        self.blocks[-1].end, self.own = self.blocks[-1].end or ("ret",), len(self.blocks)
        for each, call in self.bodies:  # where others may be called
            self.add_body(self.functions[each], f"__{each}", call)
        self.place(reader.variables)
        self.link()

    def add_function(self, function, suffix, formal, within, source):
        """Add a function's statements; of a called one, with a suffix, values of parameters, and the call's line."""
        self.registers |= {name + suffix: code for name, code in function.registers.items()}
        labels = {item for item in function.items if isinstance(item, str)}

        def renamed(found):
            name = found[0]
            return formal.get(name) or (name + suffix if name in labels or names_of(name) else name)

        for item in function.items:
            if isinstance(item, str):
                self.label(item + suffix)
                continue
            if suffix:
                operands = [NAME.sub(renamed, operand) for operand in item.operands]
                guard = item.guard and (item.guard[0] + suffix, item.guard[1])
                item = item._replace(operands=operands, guard=guard, source=item.source or source)
            if item.kind == "call":
                self.call(item, (*within, function.name))
                continue
            try:
                after = {"kind": "bra", "operands": ["$after" + suffix]} if item.kind == "ret" and suffix else {}
                self.add(item._replace(**after))
            except LookupError as error:
                raise item.unknown(f": {error}") from error

    def call(self, item, within):
        """Add what is called, in place of the call: its results, its name and its arguments are the operands."""
        lists = [re.findall(r"[\w$%]+", operand) for operand in item.operands]
        lists = lists if item.operands[:1] and item.operands[0][0] == "(" else [[], *lists]
        results, names, params = [*lists, [], []][:3]
        name = names[0] if names else ""
        if name == "__assertfail":
            self.add(item._replace(kind="trap"))
            return
        if (function := self.functions.get(name)) and not function.results:  # whatever the caller believes
            results = []
        counts = len(results), len(params)
        if (known := TABLES["functions"].get(name)) and counts == tuple(known["counts"]):
            made = [f"{each}_0" for each in results + params]
            self.registers[made[0][1:]] = known["code"]
            self.add(item._replace(kind=name, mods=(), operands=made))
            return
        taken, given = (function.params, function.results) if function else ([], [])
        known = self.registers.keys()
        whys = {"is guarded": item.guard, "is not in the text": not function,
                f"has {len(taken)} arguments and {len(given)} results": counts != (len(given), len(taken)),
                "is given registers": {p[1:] for p in params + results if f"{p[1:]}_0" not in known} & known,
                "passes itself structures": name in within and any(n > SIZES[k] for _, k, n in taken + given)}
        for why in (why for why, so in whys.items() if so):
            raise ValueError(f"line {item.line} of the PTX text: a call of {short_name(name)}, which {why}")
        if name in (*within, *dict(self.bodies)):
            self.bodies += [(name, item)] * (name not in dict(self.bodies))
            self.transfer("ld", item, taken, f"__{name}", params)
            self.blocks[-1].end, self.blocks[-1].last = ("call", None, self.own is not None, f"$enter__{name}"), item
            self.blocks.append(Block())
            self.transfer("st", item, given, f"__{name}", results)
            self.blocks.append(Block())
            return
        self.copies += 1
        suffix, formal = f"__{self.copies}", dict(zip([p[0] for p in taken + given], params + results, strict=True))
        self.add_function(function, suffix, formal, within, item.source)
        self.label("$after" + suffix)

    def add_body(self, function, suffix, item):
        """Add the body of a function that calls itself; to and from it, registers of their own hold what is passed."""
        self.label("$enter" + suffix)
        params, results = ([f"%{p[0]}{suffix}" for p in part] for part in (function.params, function.results))
        self.transfer("st", item, function.params, suffix, params)
        names = [p[0] for p in function.params + function.results]
        self.add_function(function, suffix, dict(zip(names, params + results, strict=True)), (), item.source)
        self.label("$after" + suffix)
        self.transfer("ld", item, function.results, suffix, results)
        self.blocks[-1].end = "leave", "$enter" + suffix

    def transfer(self, way, item, formal, suffix, given):
        """Load ("ld") what is given for parameters to registers, or store it."""
        for (name, kind, size), param in zip(formal, given, strict=True):
            self.registers[name + suffix] = f"i{max(size, 2)}"
            operands = [f"%{name}{suffix}", f"[{param}]"][:: 1 if way == "ld" else -1]
            self.add(item._replace(kind=way, mods=("param", kind), operands=operands))

    def label(self, name):
        """Begin a block."""
        if self.blocks[-1].body or self.blocks[-1].end:
            self.blocks.append(Block())
        self.labels[name] = len(self.blocks) - 1

    def add(self, item):
        """Add an instruction; a guarded one is jumped over."""
        blocks, kind, over = self.blocks, item.kind, f"$over{len(self.blocks)}"
        if kind == "bra":
            blocks[-1].end, blocks[-1].last = ("bra", *(item.guard or (None, False)), item.operands[0]), item
        elif item.guard:
            blocks[-1].end = "bra", item.guard[0], not item.guard[1], over
            blocks.append(Block())
            self.add(item._replace(guard=None))
            self.label(over)
            return
        elif kind in ("ret", "exit", "trap"):
            blocks[-1].end, blocks[-1].last = ("trap" if kind == "trap" else "ret",), item
        elif kind in ("bar", "barrier") and "warp" not in item.mods:
            numbers = item.operands[1:-1] if "red" in item.mods else item.operands
            if not 1 <= len(numbers) <= 2 or not all(n.isdigit() for n in numbers) or "arrive" in item.mods:
                raise item.unknown()
            if int(numbers[0]) > 15 or numbers[1:] and (int(numbers[1]) % 32 or int(numbers[1]) == 0):
                raise item.unknown(": barriers are 0 to 15, their threads a multiple of 32")
            blocks[-1].end, blocks[-1].last = ("bar", *map(int, numbers), None)[:3], item
        elif kind == "cudaCGSynchronize":
            blocks[-1].end, blocks[-1].last, self.cooperative = ("bar", GRID, None), item, True
        elif kind in WARP:
            if "sync" not in item.mods:
                raise item.unknown()
            blocks[-1].end, blocks[-1].last = ("warp", item.operands[-1], kind), None if kind in WARP[2:] else item
        else:
            blocks[-1].body += self.moves(item)
            return
        blocks.append(Block())
        if "red" in item.mods or kind in (*WARP[2:], "cudaCGSynchronize"):  # what is computed when all are there
            blocks[-1].body.append(item)

    def moves(self, item):
        """Return an instruction; for loads and stores of a called function's parameters, moves between registers."""
        place, target = (*item.operands[:: 1 if item.kind == "st" else -1], "", "")[:2]
        name, _, offset = place.strip("[]").partition("+")
        if name[:1] != "%" or not any(m.startswith("param") for m in item.mods):
            return [item]
        made, size = [], SIZES[item.type]
        for n, part in enumerate(target.strip("{}").split(",")):
            register, kind = f"{name}_{int(offset or 0) + n * size}", "b16" if size == 1 else item.type
            self.registers[register[1:]] = DTYPES[kind].replace("u", "i")
            operands = [register, part] if item.kind == "st" else [part, register]
            whole = item.kind == "st" or size > 2  # what is less fills up a register
            new = ("mov", (kind,)) if whole else ("cvt", ("s16" if item.type[0] == "s" else "u16", item.type))
            made.append(item._replace(kind=new[0], mods=new[1], operands=operands))
        return made

    def place(self, variables):
        """Give the variables that are named their places; dynamic shared memory is last."""
        named, bodies = ({name for b in part for i in b.body for text in i.operands for name in NAME.findall(text)}
                         for part in (self.blocks, self.blocks[self.own :]))  # fmt: skip
        self.framed = {name for name in bodies if name in variables and variables[name][0] == "local"}
        for name in sorted((n for n in variables if n in named), key=lambda n: (n in self.framed, not variables[n][2])):
            space, align, size, array = variables[name]
            if array is not None:
                self.symbols[name], self.arrays[name] = (space, int(array.ctypes.data), size), array
                continue
            end = getattr(self, space)
            place = -(-end // align) * align
            if space == "shared" and end:  # far from the one before, so that no index leads from there to here
                place += GAP
                self.gaps += place - end
            self.symbols[name] = space, place, size
            setattr(self, space, place + size)
        self.frames = min((self.symbols[name][1] for name in self.framed), default=self.local)  # where they begin
        self.frame = -(-(self.local - self.frames) // 16) * 16
        self.depths = min(DEPTH, max((MOST_LOCAL - self.local) // self.frame, 1)) if self.frame else DEPTH
        self.local += self.frame * self.depths

    def link(self):
        """Turn labels into numbers of blocks, and find out which registers go from block to block (`crossing`)."""
        blocks = self.blocks
        for n, block in enumerate(blocks):
            (kind, register, negated, target), block.next = (*block.end, *4 * ("",))[:4], [n + 1]
            if kind in ("bra", "call"):
                if target not in self.labels:
                    raise ValueError(f"line {block.last.line} of the PTX text: no such label: {block.last.text!r}")
                target = self.labels[target]
                block.end, block.next = (kind, register, negated, target), [target, n + 1] if register else [target]
            elif kind in ("ret", "trap"):
                block.next = []
            elif kind == "leave":
                body = register, self.labels[register]
                block.next = [k + 1 for k, b in enumerate(blocks) if b.end[:1] == ("call",) and b.end[3] in body]
            guard = {register} - {None} if kind == "bra" else set(names_of(block.end[1])) if kind == "warp" else set()
            for reads, writes in [*map(effects, block.body), (guard, set())]:
                block.used |= reads - block.made
                block.made |= writes
        if lost := set().union(*(block.used | block.made for block in blocks)) - self.registers.keys():
            raise ValueError(f"kernel {short_name(self.name)} of the PTX text declares no register %{min(lost)}")
        self.crossing = set().union(*(block.used for block in blocks))
        calls = [n for n, block in enumerate(blocks) if block.end[:1] == ("call",)]
        after = [[n + 1] if n in calls else b.next * (b.end[:1] != ("leave",)) for n, b in enumerate(blocks)]
        live, before = [block.used for block in blocks], []  # registers that are read from there on
        while calls and live != before:
            before, both = live, zip(blocks, after, strict=True)
            live = [block.used | set().union(*(live[n] for n in to)) - block.made for block, to in both]
        self.saved = {n: live[n + 1] - blocks[n + 1].used if blocks[n].end[2] else () for n in calls}


def effects(item):
    """Return the registers that an instruction reads, and those that it writes."""
    first, *others = [set(names_of(operand)) for operand in item.operands] or [set()]
    stores = item.kind in ("st", "red", "nanosleep", "prefetch", "prefetchu")
    return set().union(*others, first if stores else ()), set() if stores else first


def copied(kernel):
    """Return the registers whose bits go nowhere but to memory, as they are or put together."""
    items = [i for block in kernel.blocks for i in (*block.body, block.last) if i is not None]
    joins = [effects(i) for i in items if i.kind in _JOINS]
    used = {r for block in kernel.blocks for r in names_of(str(block.end))}
    for i in items:
        used |= set(names_of(i.operands[0])) if i.kind == "st" else effects(i)[0] if i.kind not in _JOINS else set()
    while more := {r for reads, writes in joins if writes & used for r in reads} - used:
        used |= more
    return kernel.registers.keys() - used


parse = lru_cache(256)(Reader)  # for a text that is cut off or no PTX, a `ValueError`
