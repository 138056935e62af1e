"""Memory as lanes see it: which arrays there are, and loads, stores and atomic operations, each looked up beforehand.

Global memory is the process's own, so a device array is a NumPy array and nothing is copied; that an address lies in an
array that was handed over is checked before it is touched. Shared and local memory are arrays of bytes, with a part for
each block or lane. In a watched launch accesses are counted and compared with those of other threads.
"""

import bisect
import ctypes
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from .parse import DTYPES, short_name
from .races import Races, thread_of

BASE = 1 << 12
WIDTH = {code: np.dtype(code).itemsize for code in DTYPES.values()}
FULL = {1: 0xFF, 2: 0xFFFF, 4: 0xFFFFFFFF, 8: 0xFFFFFFFFFFFFFFFF}


@lru_cache
def everything(code):
    """Return the whole address space as numbers of a dtype, the first of them at `BASE`."""
    size = np.dtype(code).itemsize
    return np.frombuffer((ctypes.c_uint8 * (((1 << 47) - BASE - 4096) // size * size)).from_address(BASE), code)


@dataclass
class Region:
    """A part of global memory: from `start` up to `end`, and what is known of it.

    `array` is a NumPy array that has it, for places in it; `written` a byte for each byte, 255 once it was written. An
    address less `shift` is that of the process: arrays can be told to lie far apart, so that no index leads from one to
    another, and at multiples of 256, as on a GPU.
    """

    start: int
    end: int
    name: str
    array: np.ndarray | None = None
    writable: bool = True
    written: np.ndarray | None = None
    shift: int = 0
    alive: bool = True

    def place(self, address, size):
        """Return the index of the element at an address, or its number where there is no such index."""
        a = self.array
        if a is None:
            return (address - self.start) // size
        flat = (address - self.shift - a.ctypes.data) // max(a.itemsize, 1)
        if a.flags.c_contiguous and 0 <= flat < a.size and a.ndim > 1:
            return tuple(int(n) for n in np.unravel_index(flat, a.shape))
        return flat // (a.strides[0] // a.itemsize) if a.ndim == 1 and a.strides[0] >= a.itemsize > 0 else flat


class Memory:
    """The arrays of a device: those that are there, and those that were."""

    def __init__(self):
        self.regions = []

    def add(self, start, size, name, **known):
        """Register a part of memory; parts that overlap become one, and what was freed there is forgotten."""
        region = Region(start, start + size, name, **known)
        kept = []
        for old in self.regions:
            if old.start < region.end and region.start < old.end:
                if old.alive:
                    first = min(old, region, key=lambda r: (r.start, -r.end))
                    names = old.name if old.name == region.name else f"{old.name} and {region.name}"
                    region = Region(min(old.start, region.start), max(old.end, region.end), names, first.array,
                                    old.writable or region.writable, first.written, region.shift)  # fmt: skip
            else:
                kept.append(old)
        self.regions = sorted([*kept, region], key=lambda r: r.start)

    def free(self, start):
        """Note that an array is no more."""
        for region in self.regions:
            region.alive &= region.start != start


class Space:
    """One memory of a machine. A subclass's `locate` says where addresses lie, and which of them are wrong."""

    name, races, written = "", None, None

    def __init__(self, machine):
        self.machine = machine

    def load(self, at, address, code, strong=False, count=1):
        """Return what is at addresses, a list of arrays if `count` is more than 1."""
        size = WIDTH[code]
        bad, place, mark = self.locate(at, address, size * count, False)
        if bad is not None:
            return self.machine.partly(~bad, self.load, at, address, code, strong, count)
        if self.machine.watch:
            self.count(at, mark, size * count)
            if self.written is not None:
                self.check_written(at, address, mark, size, count)
            if self.races is not None:
                self.races.read(mark, size * count, self.machine.mine(), self.teller(at, address, size), strong)
        view, place = self.view(code), place // size
        return view.take(place) if count == 1 else [view.take(place + n) for n in range(count)]

    def store(self, at, address, code, strong, *values):
        """Write values to addresses, several beside each other if there are several arrays of them."""
        size = WIDTH[code]
        bad, place, mark = self.locate(at, address, size * len(values), True)
        if bad is not None:
            self.machine.partly(~bad, self.store, at, address, code, strong, *values)
            return
        view, place = self.view(code), place // size
        if self.machine.watch:
            self.count(at, mark, size * len(values))
        for n, value in enumerate(values):
            here = place + n if n else place
            if not self.machine.watch or self.races is None:
                view[here] = value
            elif strong:
                self.races.update(mark + n * size, size, self.machine.mine(), self.teller(at, address, size))
                view[here] = value
            else:
                mine = self.machine.mine()
                self.races.write(mark + n * size, size, mine, self.teller(at, address, size), view, here, value)
            if self.written is not None:
                self.written.view(f"u{size}")[mark // size + n] = FULL[size]

    def atomic(self, at, address, code, op, needed, *values):
        """Do an atomic operation, lane after lane; return what was there before."""
        size = WIDTH[code]
        bad, place, mark = self.locate(at, address, size, True)
        if bad is not None:
            return self.machine.partly(~bad, self.atomic, at, address, code, op, needed, *values)
        if self.machine.watch:
            self.count(at, mark, size)
            if self.written is not None:
                self.check_written(at, address, mark, size, 1)
            if self.races is not None:
                self.races.update(mark, size, self.machine.mine(), self.teller(at, address, size))
        self.machine.report.atomics += len(address)
        view, place = self.view(code), place // size
        if not needed and op in UFUNCS:
            UFUNCS[op].at(view, place, values[0])
            return None
        old = np.empty(len(place), code)
        for n, (p, v) in enumerate(zip(place.tolist(), values[0], strict=True)):
            old[n] = a = view[p]
            if op == "cas":
                view[p] = values[1][n] if a == v else a
            else:
                view[p] = UFUNCS[op](a, v) if op in UFUNCS else ATOMICS[op](a, v)
        return old

    def check_written(self, at, address, mark, size, count):
        """Note what is read and was never written."""
        known = self.written.view(f"u{size}")
        for n in range(count):
            fresh = known[mark // size + n if n else mark // size] != FULL[size]
            if fresh.any():
                self.tell(
                    "uninitialized", "reads {what}, which nothing has written", at, fresh, address + n * size, size
                )

    def teller(self, at, address, size):
        """Return the function that notes a race."""

        def tell(bad, other, did, to, equal=False):
            if bad.any():
                self.tell("race", f"{did} {{what}}, which {{other}} {to}", at, bad, address, size, other, equal)

        return tell

    def tell(self, kind, message, at, bad, address, size, other=None, note=False):
        """Note what is wrong at lanes where `bad` is true; names of the array and the other thread are filled in."""
        lane = int(np.flatnonzero(bad)[0])
        who = self.machine.who(lane)
        array, place = self.describe(int(address[lane]), size, lane)
        with_ = None if other is None else thread_of(other[lane])
        shown = ", ".join(map(str, place)) if isinstance(place, tuple) else place
        what = f"{array}[{shown}]" + (f" in {self.name} memory" if self.name != "global" else "")
        named = self.machine.report.form(with_) if with_ else ("", "")
        text = message.format(what=what, other=f"thread {named[1]} of block {named[0]}")
        if with_:
            text += (
                "; no barrier stands between"
                if with_[0] == who[0]
                else "; blocks of a launch do not wait for each other"
            )
        key = (kind, message) if kind == "race" else (kind,)
        self.machine.report.add(key, text, at, who, other=with_, array=array, place=place,
                                count=int(np.count_nonzero(bad)), note=note)  # fmt: skip

    def misaligned(self, at, address, size):
        """Return where addresses are no multiples of the access's size; note it."""
        bad = address & (size - 1) != 0
        if bad.any():
            self.tell(
                "misaligned",
                f"touches {{what}} with {size} bytes at once, at no multiple of {size}",
                at,
                bad,
                address,
                size,
            )
        return bad

    def count(self, at, mark, size):
        """Count what a request costs; nothing for local memory."""


UFUNCS = {"add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or,
          "xor": np.bitwise_xor}  # fmt: skip
ATOMICS = {"exch": lambda a, v: v, "inc": lambda a, v: 0 if a >= v else a + 1,
           "dec": lambda a, v: v if a == 0 or a > v else a - 1}  # fmt: skip


class GlobalSpace(Space):
    """Global and constant memory, of one launch."""

    name = "global"

    def __init__(self, memory, program, watch):
        self.regions = memory.regions
        self.starts = [r.start for r in self.regions]
        self.start_array = np.array(self.starts, "i8")
        self.ends = np.array([r.end if r.alive else 0 for r in self.regions], "i8")
        self.read_only = np.array([not r.writable for r in self.regions], bool)
        self.offsets, size = [], 0
        for r in self.regions:  # where a region's marks are, aligned as its addresses
            size = -(-size // 256) * 256 + r.start % 256
            self.offsets.append(size - r.start)
            size += r.end - r.start
        self.offset_array = np.array(self.offsets, "i8")
        self.bases = [BASE + r.shift for r in self.regions]
        self.base_array = np.array(self.bases, "i8")
        if watch:
            self.races = Races(size + 16, program.grain, program.atomics)
            if any(r.written is not None for r in self.regions):
                self.written = np.full(size + 16 & ~7, 255, "u1")
                for r, offset in self.fresh():
                    self.written[r.start + offset : r.end + offset] = r.written

    def fresh(self):
        return [(r, offset) for r, offset in zip(self.regions, self.offsets, strict=True) if r.written is not None]

    def keep(self):
        """Remember, for the launches to come, what was written."""
        for r, offset in self.fresh() if self.written is not None else ():
            r.written[:] = self.written[r.start + offset : r.end + offset]

    def view(self, code):
        return everything(code)

    def locate(self, at, address, size, writing):
        low, high = int(address.min()), int(address.max())
        n = bisect.bisect_right(self.starts, low) - 1
        if n >= 0 and high + size <= self.ends[n] and not (writing and self.read_only[n]):
            if size == 1 or not np.bitwise_or.reduce(address) & size - 1:
                return None, address - self.bases[n], address + self.offsets[n]
        n = np.searchsorted(self.start_array, address, "right") - 1
        outside = (n < 0) | (address > self.ends[n] - size) if self.starts else np.ones(len(address), bool)
        for lane in np.flatnonzero(outside):
            self.tell_outside(at, address, size, lane, writing)
        fixed = ~outside & self.read_only[n] if writing and self.starts else np.zeros(len(address), bool)
        if fixed.any():
            self.tell("read-only", "writes {what}, which may only be read", at, fixed, address, size)
        wrong = outside | fixed | self.misaligned(at, address, size)
        return (
            (wrong, None, None) if wrong.any() else (None, address - self.base_array[n], address + self.offset_array[n])
        )

    def nearest(self, address):
        """Return the region that an address lies in or is nearest to."""
        return min(self.regions, key=lambda r: max(r.start - address, address - r.end + 1, 0), default=None)

    def tell_outside(self, at, address, size, lane, writing):
        a, did = int(address[lane]), "writes" if writing else "reads"
        region, bad = self.nearest(a), np.arange(len(address)) == lane
        if region is None:
            text = f"{did} {size} bytes at {a:#x}; no array was handed over"
            self.machine.report.add(("out of bounds",), text, at, self.machine.who(lane))
        elif not region.alive and region.start <= a < region.end:
            self.tell("freed", f"{did} {{what}}, which was freed", at, bad, address, size)
        else:
            off = (
                f"{a - region.end} bytes behind the end"
                if a >= region.end
                else f"{region.start - a} bytes before the start"
            )
            off = "across the end" if region.start <= a < region.end else off
            text = f"{did} {{what}}: {size} bytes {off} of its {region.end - region.start} bytes"
            self.tell("out of bounds", text, at, bad, address, size)

    def describe(self, address, size, lane):
        region = self.nearest(address)
        return region.name, region.place(address, size)

    def count(self, at, mark, size):
        """Count requests of warps, and the sectors of 32 bytes that they touch."""
        machine = self.machine
        keys = np.sort(machine.of(machine.warp_key) | mark >> 5)
        machine.report.sectors[at] += 1 + np.count_nonzero(keys[1:] != keys[:-1])
        machine.report.requests[at] += machine.at_work()


class OwnSpace(Space):
    """Shared memory, a part for each block; or local memory, a part for each lane."""

    def __init__(self, machine, name, room, owner, symbols):
        super().__init__(machine)
        self.name, self.room, self.owner, self.symbols = name, room, owner, symbols
        self.step = -(-max(room, 1) // 16) * 16
        self.owner_step = owner * self.step
        size = self.step * (int(owner[-1]) + 1) if room else 16
        self.bytes = np.full(size, 0xAB, "u1")
        if machine.watch:
            self.written = np.zeros(size, "u1")
            if name == "shared":
                self.races = Races(size, machine.program.grain, machine.program.atomics)

    def view(self, code):
        return self.bytes.view(code)

    def locate(self, at, address, size, writing):
        joined = int(np.bitwise_or.reduce(address))  # at least the greatest of them, and negative if one is
        if joined < 0 or joined & size - 1 or joined + size > self.room:
            outside = (address < 0) | (address > self.room - size)
            if outside.any():
                text = f"{'writes' if writing else 'reads'} {{what}}: {size} bytes outside of its {self.room} bytes"
                self.tell("out of bounds", text, at, outside, address, size)
            bad = outside | self.misaligned(at, address, size)
            if bad.any():
                return bad, None, None
        place = self.machine.of(self.owner_step) + address
        return None, place, place

    def describe(self, address, size, lane):
        inside = [
            (place, name) for name, (space, place) in self.symbols.items() if space == self.name and place <= address
        ]
        place, name = max(inside, default=(0, ""))
        name = short_name(name) if name and not name.startswith(("_cudapy", "__local")) else f"{self.name} array"
        return name, (address - place) // size

    def count(self, at, mark, size):
        """Count requests of warps, and how often the bank with most words of four bytes is asked."""
        if self.name != "shared":
            return
        machine, report = self.machine, self.machine.report
        words = machine.of(machine.warp_key) | mark >> 2
        words = words if size <= 4 else (words[:, None] + np.arange(size // 4)).ravel()
        words.sort()
        keys = words[np.flatnonzero(words[1:] != words[:-1])] if len(words) > 1 else words[:0]
        keys = np.append(keys, words[-1])
        counts = np.bincount(((keys >> 48) - (keys[0] >> 48)) * 32 + (keys & 31))
        report.passes[at] += int(np.maximum.reduceat(counts, np.arange(0, len(counts), 32)).sum())
        report.shared_requests[at] += machine.at_work()
