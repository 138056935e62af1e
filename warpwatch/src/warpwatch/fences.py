"""Order by fences and atomic operations: what threads release at places, and acquire there, as vector clocks.

A fence and then an atomic operation release what a thread knows; an atomic operation on the same place and then a fence
acquire it (PTX manual, "Memory Consistency Model": release and acquire patterns). Barriers hand on all of it: what is
known, what is fenced and may be released, and what was read and waits for a fence. NVIDIA's samples take a barrier of
the block for the second fence where the atomic operation is one that releases, a ticket: that is a note. A clock of a
block has for each of its threads up to which time all that it did comes before; one for the block itself, of fences
that reach no further (near), and one for all others (far).
"""

from bisect import bisect_left
from collections import defaultdict
from typing import NamedTuple

import numpy as np

from warpwatch.races import TIME, TIMES, thread_of

NEAR, FAR, MOST = 0, 1, 1 << 25  # entries of all sets together, about 2 GB


class Release(NamedTuple):
    """What a thread has released: for NEAR and FAR, what its block had fenced, and it, and sets of what it knew."""

    block: int
    thread: int
    clocks: tuple
    fenced: np.ndarray
    known: tuple

    def clock(self, reach):
        """Return for each thread of the block up to which time all comes before."""
        clock, row, first = np.zeros(1024, "i8"), self.fenced[reach], self.thread // 32 * 32
        clock[: 32 * (len(row) - 32)] = np.repeat(row[32:], 32)
        lanes = clock[first : first + 32]
        np.maximum(lanes, row[:32], out=lanes)
        return np.maximum(clock, self.clocks[reach])


class Chain:
    """A release sequence: releases at a place, of atomic operations that read each other; a store begins a new one."""

    def __init__(self):
        self.count, self.far, self.latest = 0, [0], {}
        self.blocks, self.clocks = defaultdict(lambda: ([], [], [0])), {}  # of each block, places, releases, near sets

    def add(self, release, join):
        """Add a release."""
        places, releases, near = self.blocks[release.block]
        places.append(self.count)
        releases.append(release)
        near.append(join(near[-1], release.known[NEAR]))
        self.far.append(join(self.far[-1], release.known[FAR]))
        self.count += 1

    def before(self, block, end):
        """Return a block's releases among the first `end` ones, and what they know, near."""
        places, releases, near = self.blocks[block]
        count = bisect_left(places, end)
        return releases[:count], near[count]

    def clock(self, reach, block, end):
        """Return the clock of a block that its releases among the first `end` ones give together."""
        (releases, _), (count, clock) = self.before(block, end), self.clocks.get((reach, block), (0, None))
        if count > len(releases) or clock is None:
            count, clock = 0, np.zeros(1024, "i8")
        clock = np.maximum.reduce([clock, *(each.clock(reach) for each in releases[count:])])
        self.clocks[reach, block] = len(releases), clock
        return clock


class Fences:
    """What the threads of a launch know of each other by fences; `chains` are by block that has released there.

    By thread of the blocks in flight: what it knows and what it has fenced (`known`, `fenced_known`), numbers of
    `sets`, each of how many releases of which chains; of its own block, what it has fenced since the last barrier
    (`fenced`, as rows of `Order`), and by block up to then (`clocks`); `read` are chains and how many releases it has
    read without a fence since then, `tickets` those where it has released, too, and `taken` sets of what is known by
    those and a barrier; `busy`, whether it has any of that, `ready`, whether it has fenced, `version`, how often.
    """

    def __init__(self):
        self.sets, self.joined, self.chains, self.left = [{}], {}, {}, MOST

    def begin(self, machine):
        """Take up other blocks."""
        self.machine, self.order, n = machine, machine.order, machine.N
        self.known, self.fenced_known = np.zeros(n, int), np.zeros((2, n), int)
        self.busy, self.ready, self.read, self.credit = np.zeros(n, bool), np.zeros(n, bool), {}, 16 * n
        self.tickets, self.taken, self.version = {}, np.zeros(n, int), np.zeros(n, int)
        self.fenced = np.zeros((2, n, 32 + self.order.per), "i8")
        self.clocks = [[np.zeros(1024, "i8")] * (n // machine.threads) for _ in (NEAR, FAR)]
        return self

    def join(self, *numbers):
        """Return the number of the set that some make together."""
        a, *others = sorted(set(numbers) - {0}) or [0]
        for b in others:
            if (a, b) not in self.joined:
                one, two = self.sets[a], self.sets[b]
                both = one | {key: max(end, one.get(key, 0)) for key, end in two.items()}
                self.joined[a, b] = a if both == one else b if both == two else self.number(both)
            a = self.joined[a, b]
        return a

    def number(self, known):
        """Return the number of a new set."""
        self.sets.append(known)
        self.left -= len(known)
        if self.left < 0:
            raise MemoryError("threads release and acquire too often to follow all of it; a smaller input may do")
        return len(self.sets) - 1

    def learned(self, chain, end, block, reach):
        """Return the number of what is known by the first `end` releases of a chain."""
        if (chain, end, block, reach) not in self.joined:
            own = self.number({(chain, each): end for each in range(reach + 1)})
            known = self.join(own, chain.before(block, end)[1], chain.far[end] if reach else 0)
            self.joined[chain, end, block, reach] = known
        return self.joined[chain, end, block, reach]

    def acquire(self, lanes, reach):
        """Let lanes know what was released where they have read, as a fence does."""
        for lane in lanes[self.busy[lanes]].tolist():
            read, block = self.read.pop(lane, {}) if reach else self.read.get(lane, {}), int(self.machine.block[lane])
            for chain, end in read.items():
                self.known[lane] = self.join(int(self.known[lane]), self.learned(chain, end, block, reach))

    def release(self, lanes, reach):
        """Let what lanes know be what they release from now on, as a fence does."""
        stamp, rows = self.machine.stamp, np.arange(len(lanes))
        fenced, thread = self.order.known(stamp[lanes]), self.machine.t[lanes]
        fenced[rows, thread % 32], fenced[rows, 32 + thread // 32] = (stamp[lanes] >> TIME & TIMES) + 1, 0
        self.fenced[: reach + 1, lanes], self.fenced_known[: reach + 1, lanes] = fenced, self.known[lanes]
        self.busy[lanes] = self.ready[lanes] = True
        self.version[lanes] += 1
        stamp[lanes] += 1 << TIME  # what comes now is not released by it

    def hold(self, lanes, reach, releases):
        """Let an operation of lanes order by itself, by its own place; return what they have fenced and read before."""
        held = self.fenced[:, lanes], self.fenced_known[:, lanes], self.ready[lanes]
        read = {lane: self.read.pop(lane) for lane in lanes.tolist() if lane in self.read}
        if releases:
            self.release(lanes, reach)
        return lanes, held, read

    def free(self, held, reach, acquires):
        """Let it acquire, and give back what it has held."""
        lanes, (self.fenced[:, lanes], self.fenced_known[:, lanes], self.ready[lanes]), read = held
        if acquires:
            self.acquire(lanes, reach)
        for lane, chains in read.items():
            self.read[lane] = chains | self.read.get(lane, {})

    def touch(self, races, mark, size, *, reads=False, writes=False):
        """Note strong loads and stores of the lanes at work, or atomic operations, which do both.

        Lanes go one after the other, `writes` says which of them write.
        """
        m, g, many = self.machine, mark // races.grain, max(size // races.grain, 1)
        lanes, hot, writes = m.lanes(), races.hot[g], np.broadcast_to(writes, len(g))
        if (releases := self.ready[lanes] & writes).any():
            hot = hot | np.isin(g, g[releases])
        for n in np.flatnonzero(hot).tolist():
            lane, place = int(lanes[n]), int(g[n])
            chain = races.chains.get(place)
            if reads and chain:
                self.read[lane], self.busy[lane] = {**self.read.get(lane, {}), chain: chain.count}, True
            if writes[n] and not (reads and chain):  # a store begins a new chain
                races.chains |= dict.fromkeys(range(place, place + many), chain := Chain())
            if not (writes[n] and self.ready[lane]):
                continue
            block, thread = m.who(lane)
            time, (version, *_) = int(m.stamp[lane]) >> TIME & TIMES, chain.latest.get((block, thread), (None,))
            if version != self.version[lane]:
                races.hot[place : place + many], self.tickets[lane] = True, (chain, chain.count)
                clocks = tuple(each[block - m.first] for each in self.clocks)
                known = tuple(self.fenced_known[:, lane].tolist())
                chain.add(Release(block, thread, clocks, self.fenced[:, lane].copy(), known), self.join)
                m.stamp[lane] += 1 << TIME  # those that release nothing new come later
                if self.credit:  # who waits may go on: this is not endless yet
                    self.credit, m.idle = self.credit - 1, 0
                self.chains.setdefault(block, {})[chain] = None
            chain.latest[block, thread] = self.version[lane], time, chain.count - 1

    def meet(self, lanes, whole=None):
        """Let lanes that have waited for each other know the same, and fence for each other; `whole` is their block."""
        if not self.busy[lanes].any():
            return
        self.known[lanes] = self.join(*np.unique(self.known[lanes]).tolist())
        read = {}
        for each in [self.read[lane] for lane in lanes[self.busy[lanes]].tolist() if lane in self.read]:
            read |= {chain: max(end, read.get(chain, 0)) for chain, end in each.items()}
        self.read |= dict.fromkeys(lanes.tolist() if read else (), read)
        if whole is not None:
            tickets, block = self.tickets.keys() & {*lanes.tolist()}, int(self.machine.block[lanes[0]])
            taken = [self.learned(*self.tickets.pop(lane), block, FAR) for lane in tickets]
            self.taken[lanes] = self.join(int(self.taken[lanes[0]]), *taken)
        self.busy[lanes], self.ready[lanes] = True, self.ready[lanes].any()
        self.version[lanes], warp = self.version[lanes].max() + 1, self.machine.t[lanes] // 32
        starts = np.flatnonzero(np.diff(warp, prepend=-1))
        for reach in (NEAR, FAR):
            self.fenced_known[reach, lanes] = self.join(*np.unique(self.fenced_known[reach, lanes]).tolist())
            rows = self.fenced[reach, lanes]
            own, others = np.maximum.reduceat(rows[:, :32], starts, axis=0), rows[:, 32:].max(0)
            if whole is not None:
                clock = self.clocks[reach][whole].copy()  # releases keep the one that there was
                part = clock[: 32 * len(others)]
                np.maximum(part, np.maximum(np.repeat(others, 32), own.ravel()), out=part)
                self.clocks[reach][whole], self.fenced[reach, lanes] = clock, 0
                continue
            others[warp[starts]] = np.maximum(others[warp[starts]], own.min(1))  # what all lanes of a warp have fenced
            self.fenced[reach, lanes, :32] = np.repeat(own, np.diff(starts, append=len(lanes)), axis=0)
            self.fenced[reach, lanes, 32:] = others

    def after(self, chain, old, mine):
        """Say whether who does something now knows an operation on a chain, by a release that came with it."""
        (block, thread), (other, of) = thread_of(mine), thread_of(old)
        lane = (block - self.machine.first) * self.machine.threads + thread
        known = self.sets[self.join(int(self.known[lane]), int(self.taken[lane]))]
        end, time = known.get((chain, int(other != block)), 0), old >> TIME & TIMES
        end = max(end, self.read.get(lane, {}).get(chain, 0))  # observed at this place, and that suffices there
        _, latest, count = chain.latest.get((other, of), (0, -1, 0))
        return latest >= time and count < end

    def by_tickets(self, old, lanes):
        """Say of stamps whether they come before what lanes do now by tickets and barriers, without a fence."""
        known = [self.join(*each) for each in zip(self.known[lanes].tolist(), self.taken[lanes].tolist(), strict=True)]
        return self.ordered(old, self.machine.stamp[lanes], np.array(known, int))

    def missing(self, old, lane):
        """Say what would have ordered what a stamp stands for before what a lane does now."""
        block, known = int(self.machine.block[lane]), int(self.known[lane])
        read = [self.learned(*each, block, FAR) for each in self.read.get(lane, {}).items()]
        if self.ordered(np.array([old]), self.machine.stamp[[lane]], np.array([self.join(known, *read)]))[0]:
            return "no fence comes after the atomic operation here that read what it has released"
        return "neither a barrier nor a fence with an atomic operation orders the two"

    def ordered(self, old, mine, known=None):
        """Say of stamps whether fences and atomic operations order `old` before what `mine` do now."""
        made, ((block, thread), (other, of)) = np.zeros(len(old), bool), map(thread_of, (mine, old))
        known = self.known[(block - self.machine.first) * self.machine.threads + thread] if known is None else known
        pairs, which = np.unique(known << 24 | other << 1 | (other != block), return_inverse=True)
        order, time = np.argsort(which, kind="stable"), old >> TIME & TIMES
        for pair, some in zip(pairs.tolist(), np.split(order, np.cumsum(np.bincount(which))[:-1]), strict=True):
            known, other, reach = self.sets[pair >> 24], pair >> 1 & (1 << 23) - 1, pair & 1
            for chain in self.chains.get(other, ()) if known else ():
                if end := known.get((chain, reach)):
                    made[some] |= time[some] < chain.clock(reach, other, end)[of[some]]
        return made
