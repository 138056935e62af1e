"""Races: who wrote each piece of memory last, and who read it, as stamps.

A stamp is one number: block, time, thread. Barriers let time go on. Two accesses of one place race where they are of
different threads and nothing orders them: between blocks of a launch nothing does; in a block, a barrier of all threads
orders what has another time; where warps wait, or parts of them or of the block, `Order` knows what comes before what.
A piece (`grain`) is as large as the kernel's smallest access of a memory.
"""

import numpy as np

TIME, BLOCK = 10, 40  # the lowest bits: 10 for the thread, 30; 23 for the block
THREAD, TIMES = (1 << TIME) - 1, (1 << BLOCK - TIME) - 1
FLIP = ((1 << 23) - 1) << BLOCK | THREAD
OTHERS = 1 << 22  # blocks from here on stand for other operations, which do not wait for the launch, nor it for them


def thread_of(stamp):
    """Return (block, thread) of a stamp, or of an array of them."""
    return (stamp >> BLOCK) - 1, stamp & THREAD


class Order:
    """What threads of some blocks know of each other, where parts of blocks wait for each other (`parts`).

    Of each lane of a thread's warp, `lanes` (threads, 32), and of each warp of a warp's block, `warps` (warps, warps of
    a block), up to which time all that it did comes before.
    """

    def __init__(self, first, count, threads, parts):
        self.first, self.threads, self.per, self.parts, self.fences = first, threads, -(-threads // 32), parts, None
        self.lanes = np.zeros((count * threads * parts, 32), "i8")
        self.warps = np.zeros((count * self.per * parts, self.per), "i8")
        self.begins = np.flatnonzero(np.arange(count * threads) % threads % 32 == 0)  # where warps do

    def known(self, stamp):
        """Return what threads know, as rows: of each lane of their warps, and of each warp of their blocks."""
        (block, thread), rows = thread_of(stamp), np.arange(len(stamp))
        warps = self.warps[(block - self.first) * self.per + thread // 32]
        lanes = self.lanes[(block - self.first) * self.threads + thread]
        known = np.hstack([np.maximum(lanes, warps[rows, thread // 32][:, None]), warps])
        known[rows, thread % 32] = known[rows, 32 + thread // 32] = TIMES  # itself, and its warp, whose lanes are there
        return known

    def unordered(self, old, mine):
        """Say of stamps of the same block whether nothing orders `old` before what `mine` do now."""
        (block, thread), other = thread_of(mine), old & THREAD
        known = self.warps[(block - self.first) * self.per + thread // 32, other // 32]
        lanes = np.maximum(known, self.lanes[(block - self.first) * self.threads + thread, other % 32])
        known = np.where(thread // 32 == other // 32, lanes, known)
        return (thread != other) & (old >> TIME & TIMES >= known)

    def meet_in_warps(self, stamp, lanes, team, members):
        """Order what lanes of a warp did that waited for each other: a `team` has a number, and `members`, as bits."""
        if not self.parts:
            return
        order = np.argsort(team, kind="stable")
        lanes, starts = lanes[order], np.flatnonzero(np.diff(team[order], prepend=-1))
        warp, sizes = np.searchsorted(self.begins, lanes[starts], "right") - 1, np.diff(starts, append=len(lanes))
        time = np.maximum.reduceat(stamp >> TIME & TIMES, self.begins)[warp] + 1
        inside = members[order][starts][:, None] >> np.arange(32) & 1
        known = np.where(inside, time[:, None], np.maximum.reduceat(self.lanes[lanes], starts, axis=0))
        self.lanes[lanes] = np.repeat(known, sizes, axis=0)
        stamp[lanes] = stamp[lanes] & ~(TIMES << TIME) | np.repeat(time, sizes) << TIME
        for some in np.split(lanes, starts[1:]) if self.fences else ():
            self.fences.meet(some)

    def meet_in_blocks(self, stamp, lanes, counted):
        """Order what blocks did that have waited: of each some warps (`counted`), or all, who returned, too."""
        if not self.parts:
            stamp[lanes] += 1 << TIME
            return
        for some in np.split(lanes, np.flatnonzero(np.diff(lanes // self.threads)) + 1):
            here = int(some[0]) // self.threads
            first, whole = here * self.per, np.arange(here * self.threads, (here + 1) * self.threads)
            warps = first + (np.unique(some % self.threads // 32) if counted else np.arange(self.per))
            known, time = self.warps[warps].max(0), (stamp[whole] >> TIME & TIMES).max() + 1  # who has returned, too
            known[warps - first] = time
            self.warps[warps] = known
            stamp[some] = stamp[some] & ~(TIMES << TIME) | time << TIME
            if self.fences:
                self.fences.meet(*(some,) if counted else (whole, here))


def clashes(old, mine, order=None):
    """Say where two stamps are of threads that nothing orders, or None if nowhere; 0 is nobody's."""
    if not old.any():
        return None
    x = old ^ mine
    if order:
        near = (x < 1 << BLOCK) & order.unordered(old, mine)
    elif np.count_nonzero((x - (1 << TIME)).view("u8") >= (1 << BLOCK) - (1 << TIME)):
        near = (x <= THREAD) & (x != 0)
    else:
        return None  # all of the same block, and a barrier between
    made = (old != 0) & (near | (x >= 1 << BLOCK))
    if order and order.fences and made.any():
        made[made] = ~order.fences.ordered(old[made], mine[made])
    return made if made.any() else None


class Seen:
    """For each grain the highest and the lowest thread, of the highest and the lowest block, that touched it last.

    Of all since the block's last barrier these two are enough: whoever writes there differs from one of them. Where
    parts of a block wait, or fences order, a `table` has of the block that came last who touched it last, of each lane
    of a warp, and each warp of a block; of which warp need not be known: who comes after them comes after all others.
    """

    def __init__(self, grains):
        self.high, self.low = np.zeros((2, grains), "i8")  # in `low` block and thread are flipped: it grows, too
        self.at, self.table, self.by, self.used = np.zeros((2, grains), "i4"), None, None, False  # by which instruction

    def note(self, g, mine, at, order=None):
        """Add what touches grains now."""
        self.used = True
        for most, by, stamp in zip((self.high, self.low), self.at, (mine, mine ^ FLIP), strict=True):
            np.maximum.at(most, g, stamp)
            by[g[most[g] == stamp]] = at
        if order:
            if self.table is None:
                self.table, self.by = (np.zeros((len(self.high), 32 + order.per), kind) for kind in ("i8", "i4"))
            if np.count_nonzero(mine[1:] < mine[:-1]):  # of equal places the last one is kept
                order = np.argsort(mine, kind="stable")
                g, mine = g[order], mine[order]
            thread = mine & THREAD
            for column in (thread % 32, 32 + thread // 32):
                old = self.table[g, column]
                new = (old ^ mine >= 1 << BLOCK) | (mine >= old)
                new = ... if np.count_nonzero(new) == len(new) else new
                self.table[g[new], column[new]], self.by[g[new], column[new]] = mine[new], at

    def clash(self, g, mine, order=None):
        """Return where others touched grains that nothing orders before this, their stamps, and by what; or None."""
        if not self.used or not (high := self.high[g]).any():
            return None
        low = np.where(high == 0, 0, self.low[g] ^ FLIP)
        found = None
        if self.table is not None:
            stamps = self.table[g]
            met = (stamps ^ mine[:, None] >= 1 << BLOCK) | (stamps >> TIME & TIMES >= order.known(mine))
            met &= stamps != 0
            if order.fences and met.any():
                met[met] = ~order.fences.ordered(stamps[met], mine[np.nonzero(met)[0]])
            first = np.arange(len(g)), met.argmax(1)
            found = met.any(1), stamps[first], self.by[g, first[1]]
        for n, stamp in ((1, low), (0, high)):
            if (bad := clashes(stamp, mine, order)) is not None:
                new = bad, stamp, self.at[n, g]
                found = new if found is None else [np.where(bad, *each) for each in zip(new, found, strict=True)]
        return found if found and found[0].any() else None


class Races:
    """The stamps of one memory; `tell(bad, other, by, did, to, equal)` notes a race where `bad` is true.

    `other` are stamps, `by` instructions of theirs; `tell.at` is the instruction that is looked at.
    """

    def __init__(self, size, program, name):
        self.grain, self.near = program.grains[name], program.near
        grains = -(-size // self.grain)
        self.writers, self.wrote = np.zeros(grains, "i8"), np.zeros(grains, "i4")  # by which instructions
        # Askers are readers that may meet updates; those nearby are atomic for their own block only.
        self.readers, self.askers, self.updaters, self.nearby = (Seen(grains) for _ in range(4))
        self.order, self.past = None, None
        self.chains, self.hot = {}, np.zeros(grains, bool)  # of what fences release, and where there is one

    def fresh(self, mark):
        """Tell whether any of the places has not been touched before."""
        g, seen = mark // self.grain, (each for each in (self.readers, self.askers, self.updaters) if each.used)
        return not self.readers.high[g].all() and bool(
            np.bitwise_or.reduce([self.writers[g], *(each.high[g] for each in seen)]).min() == 0)  # fmt: skip

    def claim(self, block, parts):
        """Let a block have read, written and updated parts of memory, each (n, 2) of where runs begin and end."""
        stamp = block + 1 << BLOCK
        for seen, part in zip((self.readers, None, self.updaters), parts, strict=True):
            for first, end in part:
                grains = slice(first // self.grain, -(-end // self.grain))
                if seen is None:
                    self.writers[grains] = stamp
                else:
                    seen.high[grains], seen.low[grains], seen.used = stamp, stamp ^ FLIP, True

    def touched(self, part=slice(None)):
        """Return which grains threads of the launch have read, written and updated, as masks."""
        writers, seen = self.writers[part], lambda seen: seen.low[part] >= OTHERS - 1 << BLOCK
        wrote = (writers > 0) & (writers < OTHERS + 1 << BLOCK)
        now = seen(self.readers) | seen(self.askers), wrote, seen(self.updaters)
        return [new | old[part] for new, old in zip(now, self.past, strict=True)] if self.past else list(now)

    def forget(self):
        """Let all that the launch has done come before what is to come, as after a barrier of its grid."""
        self.past = self.touched()
        self.writers[self.past[1]] = 0
        for seen, of in ((self.readers, 0), (self.askers, 0), (self.updaters, 2)):
            mask = self.past[of]
            seen.high[mask & (seen.high < OTHERS + 1 << BLOCK)], seen.table = 0, None
            seen.low[mask] = np.where(seen.high[mask], seen.high[mask] ^ FLIP, 0)

    def runs(self, start, end):
        """Return which runs of a part of memory threads of the launch have read, written and updated."""
        part = slice(start // self.grain, -(-end // self.grain))
        for mask in self.touched(part):
            edges = np.flatnonzero(np.diff(mask, prepend=False, append=False))
            yield (part.start + edges.reshape(-1, 2)) * self.grain

    def pieces(self, mark, size):
        """Return the grains of accesses, one array for each."""
        first = mark // self.grain
        return [first + n if n else first for n in range(max(size // self.grain, 1))]

    def read(self, mark, size, mine, tell, strong=False):
        """Note reading; a strong one may meet atomic operations."""
        for g in self.pieces(mark, size):
            if (bad := clashes(self.writers[g], mine, self.order)) is not None:
                tell(bad, self.writers[g], self.wrote[g], "reads", "writes")
            if not strong:
                self.meet(self.updaters, g, mine, tell, "reads", "updates atomically")
            (self.askers if strong else self.readers).note(g, mine, tell.at, self.order)
            if strong and self.near:
                self.meet_blocks(g, mine, tell, "reads", self.updaters)

    def write(self, mark, size, mine, tell, view, place, value):
        """Write, and note it; of two that write the same value, that is said."""
        bits = f"i{size}"
        whole, value = view.view(bits), np.ascontiguousarray(value).view(bits)
        differs = whole[place] != value
        whole[place] = value
        twice = whole[place] != value

        def both(g, bad, writer, other):
            if bad is not None:
                tell(bad & other, writer, self.wrote[g], "writes", "writes with another value")
                tell(bad & ~other, writer, self.wrote[g], "writes", "writes with the same value", True)

        for g in self.pieces(mark, size):
            both(g, clashes(self.writers[g], mine, self.order), self.writers[g], differs)
            for seen in (self.readers, self.askers, self.updaters):
                self.meet(seen, g, mine, tell, "writes", "updates atomically" if seen is self.updaters else "reads")
            self.writers[g], self.wrote[g] = mine, tell.at
            both(g, self.writers[g] != mine, self.writers[g], twice)

    def meet(self, seen, g, mine, tell, did, to):
        """Tell of readers, or of who updated, that nothing orders before this."""
        if met := seen.clash(g, mine, self.order):
            if seen is self.updaters and self.chains:  # who has acquired comes after the operations that released, too
                for n in np.flatnonzero(met[0]).tolist():
                    chain = self.chains.get(int(g[n]))
                    met[0][n] = not (chain and self.order.fences.after(chain, int(met[1][n]), int(mine[n])))
            tell(*met, did, to)

    def update(self, mark, size, mine, tell):
        """Note atomic operations, which may meet each other."""
        for g in self.pieces(mark, size):
            if (bad := clashes(self.writers[g], mine, self.order)) is not None:
                tell(bad, self.writers[g], self.wrote[g], "updates", "writes")
            self.meet(self.readers, g, mine, tell, "updates", "reads")
            self.updaters.note(g, mine, tell.at, self.order)
            if self.near:
                if tell.at in self.near:
                    self.nearby.note(g, mine, tell.at, self.order)
                self.meet_blocks(g, mine, tell, "updates", self.updaters, self.askers)

    def meet_blocks(self, g, mine, tell, did, *others):
        """Tell of atomic operations of other blocks, where one of the two is atomic for its own block only."""
        for seen in (self.nearby, *others * (tell.at in self.near)):
            low = np.where(seen.high[g] == 0, 0, seen.low[g] ^ FLIP)
            for n, stamp in enumerate((seen.high[g], low)):
                bad = clashes(np.where(stamp ^ mine < 1 << BLOCK, 0, stamp), mine, self.order)
                if bad is not None:
                    to = "reads" if seen is self.askers else "updates"
                    tell(bad, stamp, seen.at[n, g], did, f"{to}, one of the two for its own block only,")
