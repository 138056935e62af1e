"""Races: who wrote each piece of memory last, and who read it, as stamps.

A stamp is one number: block, how many barriers the block has passed, how many barriers of its warp, thread. Two
accesses of one place race where they are of different threads and nothing orders them: no barrier of the block, none of
the warp; between blocks of a launch nothing does. A piece (`grain`) is as large as the kernel's smallest access.
"""

import numpy as np

WARP_SYNC, EPOCH, BLOCK = 10, 20, 40  # the lowest bits: 10 for the thread, 10, 20; 23 for the block
THREAD = (1 << WARP_SYNC) - 1
WARP = THREAD & ~31
FLIP = ((1 << 23) - 1) << BLOCK | THREAD
OTHERS = 1 << 22  # blocks from here on stand for other operations, which do not wait for the launch, nor it for them


def thread_of(stamp):
    """Return (block, thread) of a stamp, or of an array of them."""
    return (stamp >> BLOCK) - 1, stamp & THREAD


def clashes(old, mine):
    """Say where two stamps are of threads that nothing orders, or None if nowhere; 0 is nobody's."""
    x = old ^ mine
    if not np.count_nonzero((x - (1 << EPOCH)).view("u8") >= (1 << BLOCK) - (1 << EPOCH)):
        return None  # all of the same block, and a barrier between
    near = (x < 1 << EPOCH) & (x & THREAD != 0) & ((x <= THREAD) | (x & WARP != 0))
    made = (old != 0) & (near | (x >= 1 << BLOCK))
    return made if made.any() else None


class Seen:
    """For each grain the highest and the lowest thread, of the highest and the lowest block, that touched it last.

    Of all who did since the block's last barrier these two are enough: whoever writes there differs from one of them.
    """

    def __init__(self, grains):
        self.high, self.low = np.zeros((2, grains), "i8")  # in `low` block and thread are flipped: it grows, too
        self.at = np.zeros((2, grains), "i4")  # by which instructions

    def note(self, g, mine, at):
        """Add what touches grains now."""
        for most, by, stamp in zip((self.high, self.low), self.at, (mine, mine ^ FLIP), strict=True):
            np.maximum.at(most, g, stamp)
            by[g[most[g] == stamp]] = at

    def clash(self, g, mine):
        """Return where others touched grains that nothing orders before this, their stamps, and by what; or None."""
        high = self.high[g]
        low = np.where(high == 0, 0, self.low[g] ^ FLIP)
        bad, also = clashes(high, mine), clashes(low, mine)
        if bad is None:
            return None if also is None else (also, low, self.at[1][g])
        return (bad if also is None else bad | also), np.where(bad, high, low), np.where(bad, *self.at[:, g])


class Races:
    """The stamps of one memory; `tell(bad, other, by, did, to, equal)` notes a race where `bad` is true.

    `other` are stamps, `by` instructions of theirs; `tell.at` is the instruction that is looked at.
    """

    def __init__(self, size, grain, atomics):
        grains = -(-size // grain)
        self.grain, self.writers, self.readers = grain, np.zeros(grains, "i8"), Seen(grains)
        self.wrote = np.zeros(grains, "i4")  # by which instructions
        self.updaters = Seen(grains) if atomics else None

    def fresh(self, mark):
        """Tell whether any of the places has not been touched before."""
        g = mark // self.grain
        before = self.writers[g] | self.readers.high[g]
        return bool((before if self.updaters is None else before | self.updaters.high[g]).min() == 0)

    def claim(self, block, parts):
        """Let a block have read, written and updated parts of memory, each (n, 2) of where runs begin and end."""
        stamp = block + 1 << BLOCK
        for seen, part in zip((self.readers, None, self.updaters), parts, strict=True):
            for first, end in part:
                grains = slice(first // self.grain, -(-end // self.grain))
                if seen is None:
                    self.writers[grains] = stamp
                else:
                    seen.high[grains], seen.low[grains] = stamp, stamp ^ FLIP

    def runs(self, start, end):
        """Return which runs of a part of memory threads of the launch have read, written and updated."""
        part = slice(start // self.grain, -(-end // self.grain))
        writers, seen = self.writers[part], lambda seen: seen.low[part] >= OTHERS - 1 << BLOCK
        wrote = (writers > 0) & (writers < OTHERS + 1 << BLOCK)
        for mask in (seen(self.readers), wrote, seen(self.updaters) if self.updaters else wrote[:0]):
            edges = np.flatnonzero(np.diff(mask, prepend=False, append=False))
            yield (part.start + edges.reshape(-1, 2)) * self.grain

    def pieces(self, mark, size):
        """Return the grains of accesses, one array for each."""
        first = mark // self.grain
        return [first + n if n else first for n in range(max(size // self.grain, 1))]

    def read(self, mark, size, mine, tell, strong=False):
        """Note reading; a strong one may meet atomic operations."""
        for g in self.pieces(mark, size):
            writer = self.writers[g]
            bad = clashes(writer, mine)
            if bad is not None:
                tell(bad, writer, self.wrote[g], "reads", "writes")
            if self.updaters is not None and not strong and (met := self.updaters.clash(g, mine)):
                tell(*met, "reads", "updates atomically")
            (self.updaters if strong else self.readers).note(g, mine, tell.at)

    def write(self, mark, size, mine, tell, view, place, value):
        """Write, and note it; of two that write the same value, that is said."""
        bits = f"i{size}"
        whole, value = view.view(bits), np.ascontiguousarray(value).view(bits)
        differs = whole[place] != value
        whole[place] = value
        twice = whole[place] != value
        for g in self.pieces(mark, size):
            writer = self.writers[g]
            bad = clashes(writer, mine)
            if bad is not None:
                tell(bad & differs, writer, self.wrote[g], "writes", "writes with another value")
                tell(bad & ~differs, writer, self.wrote[g], "writes", "writes with the same value", True)
            self.meet(g, mine, tell, "writes")
            if self.updaters is not None and (met := self.updaters.clash(g, mine)):
                tell(*met, "writes", "updates atomically")
            self.writers[g], self.wrote[g] = mine, tell.at
            won = self.writers[g]
            lost = won != mine
            if lost.any():
                tell(lost & twice, won, self.wrote[g], "writes", "writes with another value")
                tell(lost & ~twice, won, self.wrote[g], "writes", "writes with the same value", True)

    def meet(self, g, mine, tell, did):
        """Tell of readers that nothing orders before this."""
        if met := self.readers.clash(g, mine):
            tell(*met, did, "reads")

    def update(self, mark, size, mine, tell):
        """Note atomic operations, which may meet each other."""
        for g in self.pieces(mark, size):
            writer = self.writers[g]
            bad = clashes(writer, mine)
            if bad is not None:
                tell(bad, writer, self.wrote[g], "updates", "writes")
            self.meet(g, mine, tell, "updates")
            self.updaters.note(g, mine, tell.at)
