"""Memory as lanes see it: which arrays there are, and loads, stores and atomic operations, each looked up beforehand.

Global memory is the process's own, so a device array is a NumPy array and nothing is copied; that an address lies in an
array that was handed over is checked before it is touched. Shared and local memory are arrays of bytes, with a part for
each block or lane. In a watched launch accesses are counted and compared with those of other threads.
"""

import ctypes
import time
from bisect import bisect_right, insort
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np

from warpwatch.atomics import in_order
from warpwatch.parse import DTYPES, short_name
from warpwatch.races import OTHERS, Races, thread_of

BASE = 1 << 12
ACCESS = 18  # what an access adds to a machine's `idle`
WIDTH = {code: np.dtype(code).itemsize for code in DTYPES.values()}
FULL = {1: 0xFF, 2: 0xFFFF, 4: 0xFFFFFFFF, 8: 0xFFFFFFFFFFFFFFFF}


def bytes_at(address, size, of=None):
    """Return memory of the process as an array of bytes, which keeps alive what it is of."""
    raw = (ctypes.c_uint8 * size).from_address(address)
    raw.of = of
    return np.frombuffer(raw, "u1")


@lru_cache
def everything(code):
    """Return the whole address space as numbers of a dtype, the first of them at `BASE`."""
    return bytes_at(BASE, (1 << 47) - BASE - 4096).view(code)


class Allocation(np.ndarray):
    """Memory of the device; of the whole, `written` has 255 for bytes that were written, `touched` what was done."""

    written, touched = None, None


def allocate(size, raw=None):
    """Return so many bytes of memory, or `raw` ones, none of them written: they are NaN, and -1."""
    made = (np.empty(size, "u1") if raw is None else raw).view(Allocation)
    made[...], made.written, made.touched = 255, np.zeros(size, "u1"), []
    return made


def owner_of(array):
    """Return the allocation that has an array, or None."""
    while isinstance(array, np.ndarray) and getattr(array, "touched", None) is None:
        array = array.base
    return array if isinstance(array, np.ndarray) else None


_starts, _memories = [], {}  # addresses on the device, in order, and the arrays of bytes that begin there


def register(array):
    """Let an array of bytes have an address on the device; return that, and what ends it."""
    start = array.ctypes.data
    if start not in _memories:
        insort(_starts, start)
    _memories[start] = array

    def end():
        if _memories.pop(start, None) is not None:
            del _starts[bisect_right(_starts, start) - 1]

    return start, end


def found_at(address):
    """Return the array of bytes that has an address on the device, or None."""
    n = bisect_right(_starts, address) - 1
    return _memories[_starts[n]] if n >= 0 and address - _starts[n] <= len(_memories[_starts[n]]) else None


@dataclass
class Region:
    """A part of a memory: from `start` up to `end`; `array` is a NumPy array that has it, `owner` its allocation.

    An address less `shift` is that of the process: arrays are far apart, so that no index leads from one to another.
    """

    start: int
    end: int
    name: str
    array: np.ndarray | None = None
    writable: bool = True
    owner: Allocation | None = None
    shift: int = 0

    def place(self, address, size):
        """Return the index of the element at an address, or its number where there is no such index."""
        a = self.array
        if a is None:
            return (address - self.start) // size
        flat = (address - self.shift - a.ctypes.data) // max(a.itemsize, 1)
        if a.flags.c_contiguous and a.size and a.ndim > 1:  # what lies outside has a first index that there is not
            first, rest = divmod(flat, a.size // len(a))
            return first, *map(int, np.unravel_index(rest, a.shape[1:]))
        return flat // (a.strides[0] // a.itemsize) if a.ndim == 1 and a.strides[0] >= a.itemsize > 0 else flat


def add(regions, start, size, name, **known):
    """Add a part of memory to regions, which are in order; parts that overlap become one."""
    new = Region(start, start + size, name, **known)
    for old in [r for r in regions if r.start < new.end and new.start < r.end]:
        regions.remove(old)
        names = old.name if old.name == new.name else f"{old.name} and {new.name}"
        first, writable = min(old, new, key=lambda r: (r.start, -r.end)), old.writable or new.writable
        new = replace(first, end=max(old.end, new.end), name=names, writable=writable)
    insort(regions, new, key=lambda r: (r.start, r.end))  # an empty one before another that begins there


class Space:
    """One memory of a machine, which has some regions. A subclass's `places` says where what is addressed lies."""

    races, written, errors = None, None, ()

    def __init__(self, regions):
        self.regions = regions or [Region(0, 0, "nothing")]
        self.starts = np.array([r.start for r in self.regions])
        self.ends = np.array([r.end for r in self.regions])
        self.read_only = np.array([not r.writable for r in self.regions])

    def access(self, what, at, address, code, *args):
        """Load, store or update atomically where addresses are right; elsewhere results are 0."""
        size, m = WIDTH[code], self.machine
        count = args[-1] if what == "load" else len(args) - 1 if what == "store" else 1
        bad, place, mark = self.locate(at, address, size * count, what != "load")
        if bad is not None:
            return m.partly(~bad, what, self.access, at, address, code, *args)
        if m.watch:
            self.count(at, mark, size * count)
            m.idle += ACCESS
            if m.idle > m.look and self.races is not None and self.races.fresh(mark):  # it touches something new
                m.idle, m.since = 0, time.monotonic()
            if self.written is not None and what != "store":
                self.check_written(at, address, mark, size, count)
        tell = partial(self.tell_race, at, address, size)
        tell.at = at
        return getattr(self, what)(tell, address, place // size, mark, self.view(code), *args)

    def load(self, tell, address, place, mark, view, strong, count):
        """Return what is at addresses: a list of `count` arrays, of numbers that stand beside each other."""
        if self.races is not None and self.machine.watch:
            if strong is None and (written := np.bitwise_or(*self.races.touched(mark // self.races.grain)[1:])).any():
                text = "reads {what} as read-only memory (`__ldg`, `const __restrict__`), though this launch writes it"
                self.tell("race", text, tell.at, written, address, view.itemsize)
            self.races.read(mark, view.itemsize * count, self.machine.of(self.machine.stamp), tell, strong)
            if strong and self.machine.fences:
                self.machine.fences.touch(self.races, mark, view.itemsize, reads=True)
        return [view.take(place + n if n else place) for n in range(count)]

    def store(self, tell, address, place, mark, view, strong, *values):
        """Write values to addresses, several beside each other if there are several arrays of them."""
        size, stamp = view.itemsize, self.machine.of(self.machine.stamp)
        for n, value in enumerate(values):
            here = place + n if n else place
            if self.races is not None and not strong:
                self.races.write(mark + n * size, size, stamp, tell, view, here, value)
            else:
                if self.races is not None:
                    self.races.update(mark + n * size, size, stamp, tell)
                    if self.machine.fences:
                        self.machine.fences.touch(self.races, mark + n * size, size, writes=True)
                view[here] = value
            if self.written is not None:
                full = 0 if tell.at in self.machine.program.zeroing else FULL[size]
                self.written.view(f"u{size}")[mark // size + n] = full

    def atomic(self, tell, address, place, mark, view, op, needed, *values):
        """Do an atomic operation, and note it; return a list of what was there before, if that is needed."""
        if self.races is not None:
            self.races.update(mark, view.itemsize, self.machine.of(self.machine.stamp), tell)
        self.machine.report.atomics += len(address)
        if op == "cas" and (raised := np.isin(address, self.errors)).any():  # with debug=True, for the first exception
            self.machine.raised(tell.at, self.machine.lanes()[raised], values[1][raised])
        found = in_order(op, view, place, values)
        if self.races is not None and self.machine.fences:
            writes = found == values[0] if op == "cas" else True
            self.machine.fences.touch(self.races, mark, view.itemsize, reads=True, writes=writes)
        return [found] if needed else None

    def check_written(self, at, address, mark, size, count):
        """Note what is read and was never written, all of it where it is copied only, for that takes padding along."""
        known, text = self.written.view(f"u{size}"), "reads {what}, which nothing has written"
        copied = at in self.machine.program.copies
        for n in range(count if size > copied else 0):
            fresh = known[mark // size + n if n else mark // size]
            fresh = fresh == 0 if copied else fresh != FULL[size]
            if fresh.any():
                self.tell("uninitialized", text, at, fresh, address + n * size, size)

    def tell_race(self, at, address, size, bad, other, by, did, to, equal=False):
        """Note a race at lanes where `bad` is true, if there are any."""
        parts, fences = [(bad, equal)], self.machine.fences
        if fences and fences.taken.any() and bad.any():
            (taken := bad.copy())[bad] = fences.by_tickets(other[bad], self.machine.lanes()[bad])
            parts = (taken, True), (bad & ~taken, equal)
        for some, note in parts:
            if some.any():
                self.tell("race", f"{did} {{what}}, which {{other}} {to}", at, some, address, size, (other, by), note)

    def tell(self, kind, message, at, bad, address, size, other=None, note=False):
        """Note what is wrong at lanes where `bad` is true; names of the array and the other thread are filled in."""
        lane, report = int(np.flatnonzero(bad)[0]), self.machine.report
        self.machine.idle += ACCESS
        who, named = self.machine.who(self.machine.lanes()[lane]), ""
        array = self.nearest(int(address[lane]))
        place = array.place(int(address[lane]), size)
        shown = ", ".join(map(str, place)) if isinstance(place, tuple) else place
        what = f"{array.name}[{shown}]" + f" in {self.name} memory" * (self.name != "global")
        key, why = (kind,), ""
        if other is not None:
            stamp, by = int(other[0][lane]), report.program.instructions[other[1][lane]]
            other, fences = thread_of(stamp), self.machine.fences
            if other[0] >= OTHERS:
                named, other = self.met[other[0] - OTHERS].title, None
                key, why = (kind, message, named), f"; {self.operation.title} does not wait for that"
            else:
                (block, thread), key = report.form(other), (kind, message)
                named, why = f"thread {thread} of block {block}", f" in line {by.source[1]}" if by.source else ""
                near = other[0] == who[0]
                missing = "no barrier orders the two" if near else "blocks of a launch do not wait for each other"
                why += f"; {fences.missing(stamp, self.machine.lanes()[lane]) if fences else missing}"
        text = message.format(what=what, other=named) + why
        report.add(key, text, at, who, other=other, where=(array.name, place), count=int(bad.sum()), note=note)

    def locate(self, at, address, size, writing):
        """Return where addresses are wrong or None, places in what `view` gives, and marks."""
        n = np.searchsorted(self.starts, int(address.min()), "right") - 1
        one = n >= 0 and int(address.max()) + size <= self.ends[n] and not (writing and self.read_only[n])
        if not one or size > 1 and np.bitwise_or.reduce(address) & size - 1:
            n = np.searchsorted(self.starts, address, "right") - 1
            bad = (n < 0) | (address > self.ends[n] - size) | writing & self.read_only[n]
            if bad.any():
                self.tell_wrong(at, address, size, bad, "writes" if writing else "reads")
            if (odd := address & (size - 1) != 0).any():
                text = f"touches {{what}} with {size} bytes at once, at no multiple of {size}"
                self.tell("misaligned", text, at, odd, address, size)
            if (bad | odd).any():
                return bad | odd, None, None
        return None, *self.places(address, n)

    def nearest(self, address):
        """Return the region that an address lies in or is nearest to; one that it is behind rather than before."""
        return min(self.regions, key=lambda r: max(4 * (r.start - address), address - r.end + 1, 0))

    def tell_wrong(self, at, address, size, bad, did):
        """Note accesses of what is not there, or may not be written."""
        a = int(address[np.argmax(bad)])
        region = self.nearest(a)
        if region.start <= a and a + size <= region.end:
            kind, text = "read-only", ", which may only be read"
        else:
            text = "across the end" if a < region.end else f"{a - region.end} bytes behind the end"
            text = text if region.start <= a else f"{region.start - a} bytes before the start"
            kind, text = "out of bounds", f": {size} bytes, {text} of its {region.end - region.start} bytes"
        self.tell(kind, did + " {what}" + text, at, bad, address, size)


class GlobalSpace(Space):
    """Global and constant memory, of one launch."""

    name, view, operation = "global", staticmethod(everything), None
    ran = staticmethod(lambda block, lanes: None)  # what hears of each basic block that lanes have run

    def __init__(self, regions, program, watch):
        super().__init__(regions)
        self.bases = np.array([BASE + r.shift for r in self.regions])
        self.offsets, size = np.zeros(len(self.regions), int), 0  # from addresses to marks, which stand close together
        for n, r in enumerate(self.regions):
            size = -(-size // 256) * 256 + r.start % 256
            self.offsets[n] = size - r.start
            size += r.end - r.start
        self.owned = [(r, int(by), r.owner.written[r.start - r.shift - r.owner.ctypes.data :][: r.end - r.start])
                      for r, by in zip(self.regions, self.offsets, strict=True) if r.owner is not None]  # fmt: skip
        arrays = program.kernel.arrays.items()
        self.errors = [a.ctypes.data for name, a in arrays if name.endswith("__errcode__")]
        if watch:
            self.races = Races(size + 16, program, self.name)
            self.written = np.full(size + 16 & ~7, 255, "u1") if self.owned else None
            for r, by, written in self.owned:
                self.written[r.start + by : r.end + by] = written

    def begin(self, operation):
        """Let what nothing orders before this operation stand in the shadows, as done by blocks that there are not."""
        self.operation, self.met = operation, []
        for r, by, _ in self.owned:
            for other, runs in operation.unordered(r.owner):
                parts = [np.clip(part + r.shift, r.start, r.end) + by for part in runs]
                self.races.claim(OTHERS + len(self.met), parts)
                self.met.append(other)

    def keep(self):
        """Remember, for what is to come, what was written, and who did what."""
        for address in self.errors:
            bytes_at(address, 4)[:] = 0
        for r, by, written in self.owned if self.written is not None else ():
            written[:] = self.written[r.start + by : r.end + by]
        if self.operation:
            self.operation.note((r.owner, [run - by - r.shift for run in self.races.runs(r.start + by, r.end + by)])
                                for r, by, _ in self.owned)  # fmt: skip

    def places(self, address, region):
        """Return places in the process's memory, and marks."""
        return address - self.bases[region], address + self.offsets[region]

    def count(self, at, mark, size):
        """Count requests of warps, and the sectors of 32 bytes that they touch."""
        machine = self.machine
        keys = np.sort(machine.of(machine.warp_key) | mark >> 5)
        machine.report.sectors[at] += 1 + np.count_nonzero(keys[1:] != keys[:-1])
        machine.report.requests[at] += machine.at_work()


class OwnSpace(Space):
    """Shared memory, a part for each block; or local memory, a part for each lane."""

    def __init__(self, machine, name, room, owner):
        symbols, end, regions = machine.kernel.symbols.items(), getattr(machine.kernel, name), []
        frame, more = machine.kernel.frame, machine.kernel.frame * machine.kernel.depths * (name == "local")
        own = [(place, size or room - place, key) for key, (space, place, size) in symbols if space == name]
        for n, (place, size, key) in enumerate(own, 1):
            numbas = key.startswith(("_cudapy", "__"))  # which keeps no names: the n-th that was declared
            title = f"{name} array" + f" {n}" * (len(own) > 1) if numbas else short_name(key)
            places = range(place, place + more + 1, frame) if key in machine.kernel.framed else (place,)
            regions += [Region(place, place + size, title) for place in places]
        if room > max((r.end for r in regions), default=0):  # dynamic, without a name
            regions.append(Region(end, room, f"dynamic {name} array"))
        super().__init__(sorted(regions, key=lambda region: region.start))
        self.name, self.machine, step = name, machine, -(-max(room, 1) // 16) * 16
        self.begin = owner * step
        self.bytes = np.zeros(self.begin[-1] + step if room else 16, "u1")
        self.bytes.reshape(-1, step)[:, : room - more] = 0xAB
        self.view = self.bytes.view
        if machine.watch:
            self.written = np.zeros(len(self.bytes), "u1")
            if name == "shared":
                self.races = Races(len(self.bytes), machine.program, name)

    def places(self, address, _):
        """Return places and marks, which are the same."""
        place = self.machine.of(self.begin) + address
        return place, place

    def count(self, at, mark, size):
        """Count requests of warps, and how often the bank with most words of four bytes is asked."""
        if self.name != "shared":
            return
        machine, report = self.machine, self.machine.report
        words = machine.of(machine.warp_key) | mark >> 2
        words = words if size <= 4 else (words[:, None] + np.arange(size // 4)).ravel()
        words.sort()
        keys = np.append(words[np.flatnonzero(words[1:] != words[:-1])], words[-1])
        counts = np.bincount(((keys >> 48) - (keys[0] >> 48)) * 32 + (keys & 31))
        report.passes[at] += int(np.maximum.reduceat(counts, np.arange(0, len(counts), 32)).sum())
        report.shared_requests[at] += machine.at_work()
