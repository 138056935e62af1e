"""The machine: runs a launch, some blocks at a time, all their threads as lanes.

The lanes that stand lowest in the code go first, one basic block at a time; so lanes that went different ways meet
again where their ways do. Who waits for others, and how long, is in `waiting.py`.
"""

import re
import time
from contextlib import ExitStack, suppress
from functools import partial
from itertools import count, takewhile

import numpy as np

from warpwatch.compilers import FIRST, RAISED
from warpwatch.fences import Fences
from warpwatch.instructions import WINDOWS
from warpwatch.memory import OwnSpace, add, owner_of
from warpwatch.parse import short_name
from warpwatch.races import BLOCK, TIME, Order
from warpwatch.report import Report
from warpwatch.waiting import Waiting, join

LANES = 1 << 16  # at most about so many run at once
LOOK = 1 << 14  # from how much `idle` on it is looked whether places are new, and lanes take turns
# A kernel is endless if instructions and accesses since the last one of a new place come to so much, or where nobody
# watches these to MANY times as much, and have taken seconds.
IDLE, MANY, SECONDS = 5 << 17, 8, 4.0


class Stop(Exception):
    """Ends a launch, after what ended it was told."""


class Launch:
    """What the blocks of a launch share."""

    def __init__(self, program, sizes, params, dynamic, regions, watch, form, space):
        self.program, (self.grid, self.block), self.params = program, sizes, params
        self.dynamic, self.watch, self.report = dynamic, watch, Report(program, form)
        self.together = program.kernel.cooperative  # whether all blocks must be there at once
        self.barrier = np.zeros(2, "u4")  # of the grid, for C++, whose groups find its place by registers
        own, self.place = {"barrier of the grid": self.barrier} if self.together else {}, self.barrier.ctypes.data
        for name, array in (program.kernel.arrays | own).items():
            add(regions, array.ctypes.data, array.nbytes, short_name(name), owner=owner_of(array))
        self.space, self.fences = space(regions, program, watch), Fences() if watch and program.fences else None

    def run(self, steps=None):
        """Run all blocks; return the report."""
        threads, blocks = int(np.prod(self.block)), int(np.prod(self.grid))
        most = LANES >> 4 if self.program.kernel.bodies else LANES  # which have stacks
        each = blocks if self.together else max(1, most // (-(-threads // 32) * 32))
        with np.errstate(all="ignore"), suppress(Stop), ExitStack() as last:
            last.callback(self.space.keep)  # after Ctrl-C, too
            for first in range(0, blocks, each):
                machine = Machine(self, first, min(each, blocks - first))
                try:
                    machine.run(steps)
                finally:
                    vars(machine).clear()  # it knows itself, through its spaces: memory is given back at once
        return self.report


class Machine:
    """Some blocks of a launch, in flight. `idx` are the lanes at work, None for all of them."""

    def __init__(self, launch, first, blocks):
        self.program, self.kernel, self.report = launch.program, launch.program.kernel, launch.report
        self.watch, self.params, self.first, self.idx = launch.watch, launch.params, first, None
        self.threads, self.steps, self.idle, self.look = int(np.prod(launch.block)), 0, 0, LOOK
        self.since = time.monotonic()  # when a place was touched anew
        self.N = self.threads * blocks
        lanes, self.depth, self.stacks = np.arange(self.N), np.zeros(self.N, int), {}
        self.here, self.t = lanes // self.threads, lanes % self.threads  # its block, from `first` on, and thread in it
        self.block = self.here + first
        self.warp = self.here * -(-self.threads // 32) + self.t // 32
        self.warps, self.warp_key = int(self.warp[-1]) + 1, self.warp << 48
        self.stamp = (self.block + 1) << BLOCK | 1 << TIME | self.t
        self.order = Order(first, blocks, self.threads, bool(launch.watch and self.program.parts))
        self.order.fences = self.fences = launch.fences and launch.fences.begin(self)
        self.room = self.kernel.shared + launch.dynamic
        self.specials = self.registers(launch)
        self.waiting, self.races, self.spaces = Waiting(self), [], {}
        for space in (launch.space, OwnSpace(self, "shared", self.room, self.here),
                      OwnSpace(self, "local", self.kernel.local, lanes)):  # fmt: skip
            space.machine, self.spaces[space.name] = self, space
            if space.races:
                space.races.order = self.order if self.order.parts else None
                self.races.append(space.races)
            for what in ("load", "store", "atomic"):
                setattr(self, f"{what}_{space.name}", partial(space.access, what))
                setattr(self, f"{what}_generic", partial(self.generic, what))

    def registers(self, launch):
        """Return the special registers by name."""
        made = {"warpid": self.t // 32, "nwarpid": -(-self.threads // 32), "laneid": self.t % 32,
                "dynamic_smem_size": launch.dynamic, "total_smem_size": self.room,
                "envreg1": launch.place >> 32, "envreg2": launch.place % (1 << 32)}
        for name, numbers, sizes in (("tid", self.t, launch.block), ("ctaid", self.block, launch.grid)):
            for axis, size in zip("xyz", sizes, strict=True):
                made |= {f"{name}.{axis}": numbers % size, f"n{name}.{axis}": size}
                numbers = numbers // size
        own = np.int64(1) << self.t % 32
        made |= {"lanemask_eq": own, "lanemask_lt": own - 1, "lanemask_le": 2 * own - 1, "lanemask_ge": -own,
                 "lanemask_gt": -2 * own}  # fmt: skip
        return {name: np.broadcast_to(np.asarray(value).astype("i4"), self.N) for name, value in made.items()}

    # What instructions ask

    def special(self, name, code):
        """Return a special register."""
        if name.startswith(("clock", "globaltimer")):
            return np.full(self.N if self.idx is None else len(self.idx), self.steps, code)
        return self.of(self.specials[name]).astype(code)

    def param(self, name, offset, code, count):
        """Return numbers from a parameter's bytes."""
        values = self.params[name][offset : offset + count * np.dtype(code).itemsize].view(code)
        return [np.full(self.N if self.idx is None else len(self.idx), value) for value in values]

    def fence(self, far):
        """Order what lanes have done and read before all that they release, and do, after this."""
        if self.fences:
            self.fences.acquire(self.lanes(), far)
            self.fences.release(self.lanes(), far)

    def of(self, array):
        """Return the part of an array that belongs to the lanes at work."""
        return array if self.idx is None else array[self.idx]

    def lanes(self):
        """Return the numbers of the lanes at work."""
        return np.arange(self.N) if self.idx is None else self.idx

    def at_work(self):
        """Return of how many warps the lanes at work are."""
        return self.warps if self.idx is None else 1 + int(np.count_nonzero((w := self.warp[self.idx])[1:] != w[:-1]))

    def who(self, lane):
        """Return block and thread of a lane."""
        return int(self.block[lane]), int(self.t[lane])

    def team(self, lanes=None):
        """Return a number for each lane at work, or some, that lanes of its warp with the same mask have, too."""
        lanes = self.lanes() if lanes is None else lanes
        return self.warp[lanes] << 32 | self.waiting.mask[lanes]

    def partly(self, mask, what, call, at, address, *args):
        """Do a memory operation for some of the lanes at work; elsewhere its results are 0."""
        count = {"load": args[-1], "store": 0, "atomic": 1}[what]
        saved, made = self.idx, [np.zeros(len(mask), args[0]) for _ in range(count)]
        self.idx = self.lanes()[mask]
        if len(self.idx):
            given = call(what, at, address[mask], *[a[mask] if isinstance(a, np.ndarray) else a for a in args])
            for whole, part in zip(made, given or (), strict=False):
                whole[mask] = part
        self.idx = saved
        return made

    def generic(self, what, at, address, *args):
        """Do a memory operation at generic addresses, of which shared and local memory have windows."""
        window, made = np.where(address >= WINDOWS["local"], 2, address >= WINDOWS["shared"]), None
        for n, (name, base) in enumerate(({"global": 0} | WINDOWS).items()):
            mask, call = window == n, self.spaces[name].access
            if mask.all():
                return call(what, at, address - base, *args)
            if mask.any():
                part = self.partly(mask, what, call, at, address - base, *args)
                made = [np.where(mask, new, old) for new, old in zip(part, made or part, strict=True)]
        return made

    def printf(self, at, form, values):
        """Print, lane after lane, and return how many values ("vprintf"); what it reads is not counted."""
        saved, watch, counts = self.idx, self.watch, []
        self.watch = False

        def load(place, code):
            return self.load_generic(at, np.array([place], "i8"), code, False, 1)[0][0]

        def text(place):
            return bytes(takewhile(int, (load(n, "u1") for n in count(place)))).decode(errors="replace")

        def shown(found):
            nonlocal place
            if found[1] == "%":
                return "%"
            size = 4 if found[1] in "dioucxX" and "l" not in found[0] else 8
            place, counts[-1] = -(-place // size) * size + size, counts[-1] + 1
            code = "f8" if found[1] in "aAeEfFgG" else f"{'i' if found[1] in 'di' else 'u'}{size}"
            value = load(place - size, code)
            return re.sub("[hl]+", "", found[0]) % (text(value) if found[1] == "s" else value)

        for lane, first, place in zip(self.lanes(), form, values.tolist(), strict=True):  # noqa: B007
            self.idx = np.array([lane])
            counts.append(0)
            print(re.sub(r"%[-+ #0\d.]*(?:hh?|ll?)?([a-zA-Z%])", shown, text(first)), end="")
        self.idx, self.watch = saved, watch
        return np.array(counts, "i4")

    def raised(self, at, lanes, codes):
        """Note exceptions, by their codes; the first is as that which a launch on a GPU raises."""
        for code in dict.fromkeys(codes.tolist()):
            known = RAISED[code - FIRST] if code >= FIRST else (SystemError, (f"unknown error {code}",), "?", "", 0)
            kind, arguments, *where = known
            own, said = lanes[codes == code], "".join(f": {each}" for each in arguments[:1])
            self.report.add(("exception", code), f"raises {kind.__name__}{said}", at, self.who(own[0]), count=len(own))
            found = self.report.found[("exception", code), at, False]
            found.file, found.line = where[1:]
            if self.report.error is None:
                ids = [[int(self.specials[f"{of}.{axis}"][own[0]]) for axis in "zyx"] for of in ("tid", "ctaid")]
                text = "In function {!r}, file {}, line {}, tid={} ctaid={}{}".format(*where, *ids, said)
                self.report.error = kind(text, *arguments[1:])

    # Running

    def run(self, steps=None):
        """Run until every lane has returned, or for so many steps."""
        R = self.R = {name: np.zeros(self.N, code) for name, code in self.program.registers.items()}
        waiting, report, N, late = self.waiting, self.report, self.N, None
        groups = {0: np.arange(N)}
        if self.fences and N > self.threads:  # a block that comes late shows who does not wait for it
            groups[0], late = np.split(groups[0], [N - self.threads])
        blocks, functions, most = self.kernel.blocks, self.program.functions, IDLE if self.watch else MANY * IDLE
        while groups or waiting.warps or waiting.barriers or late is not None:
            if not groups or self.idle > self.look:  # others may spin until those have gone on
                if late is not None:
                    join(groups, 0, late)
                    late = None
                waiting.open(groups)
            # The lowest first, so that branches meet again; in turns where one may wait for what others write.
            pc = min(groups)
            if self.idle > self.look:
                pc, self.look = sorted(groups)[self.steps % len(groups)], LOOK >> 6
            lanes = groups.pop(pc)
            n = len(lanes)
            self.idx = None if n == N else lanes
            report.issued[pc] += self.at_work()
            report.lanes[pc] += n
            self.spaces["global"].ran(blocks[pc], lanes)
            self.steps += 1
            self.idle += 2 + blocks[pc].count
            if self.steps > steps if steps else self.idle > most and time.monotonic() - self.since > SECONDS:
                why = "" if steps else ", and has long since touched no place anew; `steps` can allow more"
                self.end("endless", f"is here after {self.steps} steps{why}", blocks[pc])
            taken = functions[pc][n < N](self, R, lanes, partial(np.full, n))
            self.part(groups, pc, lanes, taken)

    def part(self, groups, pc, lanes, taken):
        """Send the lanes that ran a block where they go."""
        end = self.kernel.blocks[pc].end or ("bra", None, False, pc + 1)
        if end[0] == "bra":
            taken = np.ones(len(lanes), bool) if taken is None else taken ^ end[2]
            for to, which in ((end[3], taken), (pc + 1, ~taken)):
                if count := np.count_nonzero(which):
                    some, block = lanes if count == len(lanes) else lanes[which], self.kernel.blocks[to]
                    if block.end == ("ret",) and not block.body:  # nothing is left to do there
                        self.waiting.left[some] = pc
                    join(groups, to, some)
        elif end[0] == "bar":
            join(self.waiting.barriers, pc, lanes)
        elif end[0] == "warp":
            self.waiting.arrive(groups, pc, lanes, taken)
        elif end[0] in ("call", "leave"):
            getattr(self, end[0])(groups, pc, lanes)
        elif end[0] == "trap":
            self.end("trap", "stops the launch (an assertion, or trap)", self.kernel.blocks[pc])
        elif self.kernel.blocks[pc].body:
            self.waiting.left[lanes] = pc

    def call(self, groups, pc, lanes):
        """Send lanes into a function's body, in whose local memory nothing is written; keep what they need later."""
        depth, kernel = self.depth[lanes], self.kernel
        if (deep := depth == kernel.depths).any():
            self.idx = lanes[deep]
            self.end("endless", f"is {kernel.depths} calls deep, as deep as can be, and calls on", kernel.blocks[pc])
        for name in self.program.saved[pc]:
            if name not in self.stacks:  # of which memory is taken when it is written to
                self.stacks[name] = np.empty((kernel.depths, self.N), self.R[name].dtype)
            self.stacks[name][depth, lanes] = self.R[name][lanes]
        for n in np.unique(depth) if self.watch and kernel.frame else ():
            first, written = kernel.frames + (n + 1) * kernel.frame, self.spaces["local"].written.reshape(self.N, -1)
            written[lanes[depth == n], first : first + kernel.frame] = 0
        self.depth[lanes], self.R[""][lanes] = depth + 1, pc
        join(groups, kernel.blocks[pc].end[3], lanes)

    def leave(self, groups, pc, lanes):
        """Send lanes back to where they called, with the registers of then."""
        self.depth[lanes] -= 1
        for n in np.unique(origin := self.R[""][lanes]).tolist():
            some = lanes[origin == n]
            for name in self.program.saved[n]:
                self.R[name][some] = self.stacks[name][self.depth[some], some]
            join(groups, n + 1, some)

    def end(self, kind, message, block):
        """Tell why the launch ends here, and end it."""
        self.report.add((kind,), message, max(block.at, 0), self.who(self.lanes()[0]))
        raise Stop
