"""The machine: runs a launch, some blocks at a time, all their threads as lanes.

The lanes that stand lowest in the code go first, one basic block at a time; so lanes that went different ways meet
again where their ways do. Lanes at a barrier wait until no lane can go on; then those barriers open that all threads of
their block have reached, and if there is none, what is wrong is told and all go on.
"""

import re
from functools import partial

import numpy as np

from bppsa_nb.ptx.instructions import WINDOWS
from bppsa_nb.ptx.memory import LOOK, UFUNCS, GlobalSpace, OwnSpace
from bppsa_nb.ptx.races import BLOCK, EPOCH, THREAD, WARP_SYNC
from bppsa_nb.ptx.report import Report

LANES = 1 << 16  # at most about so many run at once
IDLE = 1 << 21  # basic blocks, accesses counting as many, without any of a new place: then a kernel is endless


class Stop(Exception):
    """Ends a launch, after what ended it was told."""


class Launch:
    """What the blocks of a launch share."""

    def __init__(self, program, grid, block, params, dynamic, memory, *, watch=True, form=None):
        self.program, self.grid, self.block, self.params = program, grid, block, params
        self.dynamic, self.memory, self.watch = dynamic, memory, watch
        self.report = Report(program, form or (lambda who: who))
        for name, array in program.kernel.arrays.items():
            memory.add(array.ctypes.data, array.nbytes, name, array=array)
        self.space = GlobalSpace(memory, program, watch)

    def run(self, steps=None):
        """Run all blocks; return the report."""
        threads, blocks = int(np.prod(self.block)), int(np.prod(self.grid))
        each = max(1, LANES // (-(-threads // 32) * 32))
        with np.errstate(all="ignore"):
            try:
                for first in range(0, blocks, each):
                    machine = Machine(self, first, min(each, blocks - first))
                    try:
                        machine.run(steps)
                    finally:
                        vars(machine).clear()  # it knows itself, through its spaces: memory is given back at once
            except Stop:
                pass
            finally:  # after Ctrl-C, too
                self.space.keep()
        return self.report


class Machine:
    """Some blocks of a launch, in flight. `idx` are the lanes at work, None for all of them."""

    def __init__(self, launch, first, count):
        self.program, self.kernel, self.report = launch.program, launch.program.kernel, launch.report
        self.watch, self.params, self.first, self.idx = launch.watch, launch.params, first, None
        self.threads, self.steps, self.idle = int(np.prod(launch.block)), 0, 0
        self.N = self.threads * count
        lanes = np.arange(self.N)
        self.here, self.t = lanes // self.threads, lanes % self.threads  # its block, from `first` on, and thread in it
        self.block = self.here + first
        self.warp = self.here * -(-self.threads // 32) + self.t // 32
        self.warps, self.warp_key = int(self.warp[-1]) + 1, self.warp << 48
        self.stamp = (self.block + 1) << BLOCK | self.t
        self.room = self.kernel.shared + launch.dynamic
        self.specials = self.registers(launch)
        for space in (launch.space, OwnSpace(self, "shared", self.room, self.here, self.kernel.symbols),
                      OwnSpace(self, "local", self.kernel.local, lanes, self.kernel.symbols)):  # fmt: skip
            space.machine = self
            for what in ("load", "store", "atomic"):
                setattr(self, f"{what}_{space.name}", getattr(space, what))
                setattr(self, f"{what}_generic", partial(self.generic, what))

    def registers(self, launch):
        """Return the special registers by name."""
        made = {"warpid": self.t // 32, "nwarpid": -(-self.threads // 32), "laneid": self.t % 32,
                "dynamic_smem_size": launch.dynamic, "total_smem_size": self.room}  # fmt: skip
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
        if name.startswith("clock"):
            return np.full(self.N if self.idx is None else len(self.idx), self.steps, code)
        return self.of(self.specials[name]).astype(code)

    def param(self, name, offset, code, count):
        """Return numbers from a parameter's bytes."""
        values = self.params[name][offset : offset + count * np.dtype(code).itemsize].view(code)
        return [np.full(self.N if self.idx is None else len(self.idx), value) for value in values]

    def of(self, array):
        """Return the part of an array that belongs to the lanes at work."""
        return array if self.idx is None else array[self.idx]

    def lanes(self):
        """Return the numbers of the lanes at work."""
        return np.arange(self.N) if self.idx is None else self.idx

    def at_work(self):
        """Return of how many warps the lanes at work are."""
        if self.idx is None:
            return self.warps
        warp = self.warp[self.idx]
        return 1 + int(np.count_nonzero(warp[1:] != warp[:-1]))

    def mine(self):
        """Return the stamps of the lanes at work."""
        return self.of(self.stamp)

    def who(self, lane):
        """Return block and thread of a lane at work."""
        lane = int(self.lanes()[lane])
        return int(self.block[lane]), int(self.t[lane])

    def partly(self, mask, count, call, at, address, *args):
        """Do a memory operation with `count` results for some of the lanes at work; elsewhere they are 0."""
        saved, made = self.idx, [np.zeros(len(mask), args[0]) for _ in range(count)]
        self.idx = self.lanes()[mask]
        if len(self.idx):
            given = call(at, address[mask], *[a[mask] if isinstance(a, np.ndarray) else a for a in args])
            for whole, part in zip(made, given or (), strict=False):
                whole[mask] = part
        self.idx = saved
        return made

    def generic(self, what, at, address, *args):
        """Do a memory operation at generic addresses, of which shared and local memory have windows."""
        window, made = np.where(address >= WINDOWS["local"], 2, address >= WINDOWS["shared"]), None
        for n, (name, base) in enumerate(({"global": 0} | WINDOWS).items()):
            mask, call = window == n, getattr(self, f"{what}_{name}")
            if mask.all():
                return call(at, address - base, *args)
            if mask.any():
                count = {"load": args[-1], "store": 0, "atomic": 1}[what]
                part = self.partly(mask, count, call, at, address - base, *args)
                made = [np.where(mask, new, old) for new, old in zip(part, made or part, strict=True)]
        return made

    def shuffle(self, at, mode, value, by, clamp, mask):
        """Return another lane's value, and whether there is such a lane in the segment ("shfl.sync")."""
        lane, inner = self.lanes(), self.of(self.t) % 32
        by, end, segment = by & 31, clamp & 31, clamp >> 8 & 31
        last = inner & segment | end & ~segment
        to = {"up": inner - by, "down": inner + by, "bfly": inner ^ by, "idx": inner & segment | by & ~segment}[mode]
        ok = to >= last if mode == "up" else to <= last
        source = np.where(ok, lane + to - inner, lane)
        place = np.minimum(np.searchsorted(lane, source), len(lane) - 1)
        missing = (lane[place] != source) | (self.of(self.warp)[place] != self.of(self.warp))
        if missing.any():
            n = int(np.flatnonzero(missing)[0])
            block, thread = self.who(n)
            other = (block, thread - int(inner[n]) + int(to[n]))
            self.report.add(("shuffle",), f"asks lane {int(to[n])} of its warp for a value, which is not there", at,
                            (block, thread), other=other, count=int(np.count_nonzero(missing)))  # fmt: skip
        busy = (each for pc, each in (*self.groups.items(), *self.waiting.items())
                if self.kernel.blocks[pc].end != ("ret",) or self.kernel.blocks[pc].body)  # fmt: skip
        self.check_mask(at, mask, "shuffles", busy)
        return value[np.where(missing, np.arange(len(lane)), place)], ok

    def check_mask(self, at, mask, did, waits=()):
        """Note where the mask of an operation of warps leaves out its own lane, or names one that it `waits` for."""
        own, there = self.of(self.specials["lanemask_eq"]), np.zeros(self.warps, "u4")
        for lanes in waits:
            np.bitwise_or.at(there, self.warp[lanes], self.specials["lanemask_eq"][lanes].view("u4"))
        absent = mask.view("u4") & there[self.of(self.warp)]
        for bad, what in ((mask & own == 0, "leaves out its own lane"), (absent != 0, "")):
            if bad.any():
                n = int(np.flatnonzero(bad)[0])
                what = what or f"names lane {int(absent[n] & -absent[n]).bit_length() - 1}, which is elsewhere"
                message = f"{did} with a mask, {int(mask[n]) & 0xFFFFFFFF:#x}, that {what}"
                self.report.add(("mask",), message, at, self.who(n), count=int(np.count_nonzero(bad)))

    def together(self, how, key, values):
        """Return what the values of all lanes at work that have the same key make together, in each of them."""
        _, group = np.unique(key, return_inverse=True)
        order = np.argsort(group, kind="stable")
        starts = np.flatnonzero(np.diff(group[order], prepend=-1))
        return UFUNCS[how].reduceat(values[order], starts, dtype=values.dtype)[group]

    def printf(self, at, form, values):
        """Print, lane after lane, and return how many values ("vprintf"); what it reads is not counted."""
        saved, watch, counts = self.idx, self.watch, []
        self.watch = False

        def load(place, code):
            return self.load_generic(at, np.array([place], "i8"), code, False, 1)[0][0]

        def text(place):
            made = bytearray()
            while byte := load(place + len(made), "u1"):
                made.append(byte)
            return made.decode(errors="replace")

        for lane, first, place in zip(self.lanes(), form, values.tolist(), strict=True):
            self.idx, made = np.array([lane]), re.split(r"(%[-+ #0\d.]*(?:hh?|ll?)?[a-zA-Z])", text(first))
            for n in range(1, len(made), 2):
                size = 4 if made[n][-1] in "dioucxX" and "l" not in made[n] else 8
                place = -(-place // size) * size
                code = "f8" if made[n][-1] in "aAeEfFgG" else f"{'i' if made[n][-1] in 'di' else 'u'}{size}"
                value = load(place, code)
                made[n] = re.sub("[hl]+", "", made[n]) % (text(value) if made[n][-1] == "s" else value)
                place += size
            print("".join(made).replace("%%", "%"), end="")
            counts.append(len(made) // 2)
        self.idx, self.watch = saved, watch
        return np.array(counts, "i4")

    def sync_warp(self, at, mask):
        """Order accesses of a warp's lanes ("bar.warp.sync")."""
        self.check_mask(at, mask, "waits for others")
        lanes, field = self.lanes(), THREAD << WARP_SYNC
        stamp = self.stamp[lanes]
        self.stamp[lanes] = stamp & ~field | stamp + (1 << WARP_SYNC) & field

    # Running

    def run(self, steps=None):
        """Run until every lane has returned, or for so many steps."""
        R = {name: np.zeros(self.N, code) for name, code in self.program.registers.items()}
        self.groups, self.waiting = groups, waiting = {0: np.arange(self.N)}, {}
        report, N = self.report, self.N
        blocks, functions = self.kernel.blocks, self.program.functions
        while groups or waiting:
            if not groups:
                self.open(groups, waiting)
                continue
            # The lowest first, so that branches meet again; in turns where one may wait for what others write.
            pc = min(groups) if self.idle <= LOOK else sorted(groups)[self.steps % len(groups)]
            lanes = groups.pop(pc)
            n = len(lanes)
            self.idx = None if n == N else lanes
            report.issued[pc] += self.at_work()
            report.lanes[pc] += n
            if report.work is not None:
                report.work[self.first * self.threads + lanes] += blocks[pc].products
            self.steps += 1
            self.idle += 1
            if self.idle > IDLE or steps is not None and self.steps > steps:
                new = ", and has long since touched no place anew" if self.idle > LOOK else ""
                self.end("endless", f"is here after {self.steps} steps{new}", blocks[pc])
            taken = functions[pc][n < N](self, R, lanes, partial(_full, n))
            self.part(groups, waiting, pc, lanes, taken)

    def part(self, groups, waiting, pc, lanes, taken):
        """Send the lanes that ran a block where they go."""
        end = self.kernel.blocks[pc].end
        if not end:
            join(groups, pc + 1, lanes)
        elif end[0] == "bra" and taken is None:
            join(groups, end[3], lanes)
        elif end[0] == "bra":
            taken = ~taken if end[2] else taken
            count = int(np.count_nonzero(taken))
            if count == len(lanes) or count == 0:
                join(groups, end[3] if count else pc + 1, lanes)
            else:
                join(groups, end[3], lanes[taken])
                join(groups, pc + 1, lanes[~taken])
        elif end[0] == "bar":
            join(waiting, pc, lanes)
        elif end[0] == "trap":
            self.end("trap", "stops the launch (an assertion, or trap)", self.kernel.blocks[pc])

    def end(self, kind, message, block):
        """Tell why the launch ends here, and end it."""
        self.report.add((kind,), message, max(block.at, 0), self.who(0))
        raise Stop

    def open(self, groups, waiting):
        """Let lanes go on from the barriers that all who are counted have reached; of others, tell."""
        blocks, ready = self.kernel.blocks, {}
        if len(waiting) == 1 and len(next(iter(waiting.values()))) == self.N and blocks[min(waiting)].end[2] is None:
            ready = dict(waiting)
        else:
            for pc, lanes in waiting.items():
                arrived = np.bincount(self.here[lanes], minlength=self.N // self.threads)
                full = arrived == (blocks[pc].end[2] or self.threads)
                if full.any():
                    ready[pc] = lanes[full[self.here[lanes]]]
            if not ready:
                self.tell_barrier(waiting)
                ready = dict(waiting)
        for pc, lanes in ready.items():
            left = waiting.pop(pc)
            self.report.barriers += 1 + int(np.count_nonzero(np.diff(self.here[lanes])))
            self.stamp[lanes] += 1 << EPOCH
            if len(lanes) < len(left):
                waiting[pc] = np.setdiff1d(left, lanes)
            join(groups, pc + 1, lanes)

    def tell_barrier(self, waiting):
        """Tell of a barrier that not all threads of a block reach; others follow from the first."""
        if any(finding.kind == "barrier" for finding in self.report.findings):
            return
        where, blocks, pc = np.full(self.N, -1), self.kernel.blocks, min(waiting)
        for other, lanes in waiting.items():
            where[lanes] = other
        self.idx = waiting[pc]
        block, thread = self.who(0)
        at = where[self.block == block]
        parts = [f"waits at a barrier with {np.count_nonzero(at == pc)} of {blocks[pc].end[2] or self.threads} threads"]
        for n in np.unique(at[(at >= 0) & (at != pc)]):
            source = self.program.instructions[blocks[n].at].source or ("", "?")
            parts.append(f"{np.count_nonzero(at == n)} wait at line {source[1]}")
        parts += [f"{np.count_nonzero(at < 0)} have returned"] if (at < 0).any() else []
        missing = np.flatnonzero(at != pc)
        other = (block, int(missing[0])) if len(missing) else None
        self.report.add(("barrier",), ", ".join(parts), blocks[pc].at, (block, thread), other=other)


def join(groups, pc, lanes):
    """Add lanes to those that stand at a block."""
    if pc in groups:
        lanes = np.sort(np.concatenate([groups[pc], lanes]))
    groups[pc] = lanes


def _full(n, value, code):
    return np.full(n, value, code)
