"""Who waits for whom: threads of a block at its barriers, lanes of a warp at what they do together.

What a warp does waits for the lanes that its mask names; a barrier of a block waits for its threads, or for as many as
it says. Nobody waits for threads that have returned, but those that have passed by what they should have reached are
told. Where nobody can go on, what is wrong is told, and all go on.
"""

import numpy as np

from warpwatch.blocks import GRID, WARP
from warpwatch.races import TIME, TIMES
from warpwatch.warps import together

ALL = 0xFFFFFFFF
DID = dict(zip(WARP, ("waits for others", "waits for others", "shuffles", "votes", "matches", "reduces"), strict=True))


class Waiting:
    """The threads that wait, by basic block: at `barriers` of their block, or for lanes of their `warps`.

    `mask` has the lanes that each waits for, as bits, and `left` the block that each has returned from, or -1.
    """

    def __init__(self, machine):
        self.machine, self.blocks, self.barriers, self.warps = machine, machine.kernel.blocks, {}, {}
        self.left, self.mask, self.past = np.full(machine.N, -1), np.full(machine.N, ALL), {}
        self.bit = machine.specials["lanemask_eq"].view("u4").astype("i8")
        self.none = ALL & ~self.bits_of(np.arange(machine.N))  # lanes that a warp never had

    def bits_of(self, lanes):
        """Return which lanes of each warp some are, as bits."""
        bits = np.zeros(self.machine.warps, "i8")
        np.bitwise_or.at(bits, self.machine.warp[lanes], self.bit[lanes])
        return bits

    def after(self, pc):
        """Return the blocks that can come after one."""
        found, more = set(), {pc}
        while more := {n for each in more for n in self.blocks[each].next} - found:
            found |= more
        return found

    def passed(self, pc):
        """Tell which threads have returned from code that can come after a block, and never before it."""
        if pc not in self.past:
            self.past[pc] = [n for n in self.after(pc) if pc not in self.after(n)]
        return np.isin(self.left, self.past[pc])

    def open(self, groups):
        """Let those go on that need not wait any more; if nobody is left who can go on, tell what is wrong."""
        for stuck in (False, True):
            for waiting, meet in ((self.warps, self.meet_in_warps), (self.barriers, self.meet_in_blocks)):
                for pc in sorted(waiting) if not (stuck and groups) else ():
                    if pc in waiting:  # not yet met by others
                        meet(groups, pc, stuck)
            if groups:
                return

    def go(self, groups, waiting, pcs, lanes, ready):
        """Let those lanes go on that are ready, of all that wait at some blocks."""
        at = np.repeat(pcs, [len(waiting[pc]) for pc in pcs])
        for pc in pcs:
            del waiting[pc]
            for which, to, n in ((ready, groups, pc + 1), (~ready, waiting, pc)):
                if (some := which & (at == pc)).any():
                    join(to, n, lanes[some])

    def arrive(self, groups, pc, lanes, mask):
        """Let lanes wait for those of their warps that masks name."""
        self.mask[lanes] = mask
        if len(lanes) == self.machine.N and (mask == ALL).all() and self.blocks[pc].end[2] in WARP[2:]:
            join(groups, pc + 1, lanes)  # all are there
        else:
            join(self.warps, pc, lanes)
            self.meet_in_warps(groups, pc)

    def meet_in_warps(self, groups, pc, stuck=False):
        """Let lanes go on for whom nobody is missing, or all; barriers meet in whatever place, all else in one."""
        m, kind = self.machine, self.blocks[pc].end[2]
        barrier = kind in WARP[:2]
        pcs = [n for n in self.warps if n == pc or barrier and self.blocks[n].end[2] in WARP[:2]]
        lanes = np.concatenate([self.warps[n] for n in pcs])
        mask, team, there = self.mask[lanes], m.team(lanes), self.none
        gone = self.bits_of(np.flatnonzero(self.left >= 0))[m.warp[lanes]]
        if gone.any():
            there = there | self.bits_of(np.flatnonzero((self.left >= 0) & ~self.passed(pc)))
        there = together("or", team, self.bit[lanes]) | there[m.warp[lanes]]
        missing = mask & ~there
        ready = (missing == 0) | stuck
        for n in pcs:
            here = ready & np.isin(lanes, self.warps[n])
            # A barrier waits for lanes that are there ("bar.warp.sync", `__syncwarp`); what is exchanged needs all.
            over = (missing & ~gone == 0) & barrier
            own = mask & self.bit[lanes] == 0
            for bad, note in ((own, False), ((missing != 0) & ~over, False), ((missing != 0) & over, True)):
                for k in np.flatnonzero(bad & here)[:1]:
                    what = f"names lane {int(missing[k] & -missing[k]).bit_length() - 1}, which "
                    what += "has passed by, and returned" if note else "is elsewhere"
                    what = "leaves out its own lane" if bad is own else what
                    text = f"{DID[kind]} with a mask, {mask[k]:#x}, that {what}"
                    at, count = self.blocks[n].at if barrier else self.blocks[n + 1].first, int((bad & here).sum())
                    m.report.add(("mask",), text, at, m.who(lanes[k]), count=count, note=note)
        if barrier and ready.any():
            m.order.meet_in_warps(m.stamp, lanes[ready], team[ready], (mask & there)[ready])
        self.go(groups, self.warps, pcs, lanes, ready)

    def meet_in_grid(self, groups):
        """Open barriers of the grid if all its threads are there that have not returned: all before is over then."""
        m, pcs = self.machine, [pc for pc in self.barriers if self.blocks[pc].end[1] == GRID]
        lanes = np.concatenate([self.barriers[pc] for pc in pcs])
        if len(lanes) + np.count_nonzero(self.left >= 0) < m.N:
            return
        if gone := {*range(m.N // m.threads)}.difference(m.here[lanes].tolist()):
            what = f"waits at a barrier of the grid for block {m.first + min(gone)}, of which no thread comes"
            m.report.add(("barrier",), what, self.blocks[pcs[0]].at, m.who(lanes[0]))
        m.stamp[:] = m.stamp & ~(TIMES << TIME) | (m.stamp >> TIME & TIMES).max() + 1 << TIME
        m.report.barriers += 1
        for races in m.races:
            races.forget()
        self.go(groups, self.barriers, pcs, lanes, np.ones(len(lanes), bool))

    def meet_in_blocks(self, groups, pc, stuck=False):
        """Open a barrier in those blocks where all are there, or all; of those that count threads a number is one."""
        m, end = self.machine, self.blocks[pc].end
        if end[1] == GRID and not stuck:
            self.meet_in_grid(groups)
            return
        pcs = [n for n in self.barriers if n == pc or stuck or end[2] and self.blocks[n].end == end]
        lanes, blocks = np.concatenate([self.barriers[n] for n in pcs]), m.N // m.threads
        arrived, gone = (np.bincount(m.here[some], minlength=blocks) for some in (lanes, self.left >= 0))
        full = arrived >= end[2] if end[2] else (arrived > 0) & (arrived + gone == m.threads)
        if stuck or not end[2] and (full & (gone > 0)).any():
            self.tell_barrier(pc, full & (gone > 0), stuck)
        ready = full[m.here[lanes]] | stuck
        if end[2] and not stuck:  # of more than it counts, the first; the others are the next time's
            order = np.argsort(lanes)
            first = np.searchsorted(m.here[lanes[order]], m.here[lanes[order]])
            ready[order] &= np.arange(len(lanes)) - first < end[2]
        if ready.any():
            now = np.sort(lanes[ready], kind="stable")
            m.report.barriers += 1 + int(np.count_nonzero(np.diff(m.here[now])))
            m.order.meet_in_blocks(m.stamp, now, end[2] and not stuck)
            self.go(groups, self.barriers, pcs, lanes, ready)

    def tell_barrier(self, pc, full, stuck):
        """Tell of a barrier that not all threads of a block reach; others follow from the first.

        Where it opens (in `full` blocks), as others have returned, that is a note, unless they have passed it by.
        """
        m, at = self.machine, self.blocks[pc].at
        bad = full & (np.bincount(m.here[self.passed(pc)], minlength=len(full)) > 0)
        note = not (stuck or bad.any())
        if any(each.kind == "barrier" for each in (m.report.notes if note else m.report.findings)):
            return
        lanes = self.barriers[pc]
        lane = lanes[0] if stuck else lanes[(full if note else bad)[m.here[lanes]]][0]
        where, (block, thread) = np.full(m.N, -1), m.who(lane)
        for other, some in self.barriers.items():
            where[some] = other
        where = where[m.block == block]
        parts = [f"waits at a barrier with {(where == pc).sum()} of {self.blocks[pc].end[2] or m.threads} threads"]
        for n in np.unique(where[(where >= 0) & (where != pc)]):
            source = m.program.instructions[self.blocks[n].at].source or ("", "?")
            parts.append(f"{(where == n).sum()} wait at line {source[1]}")
        if (where < 0).any():
            parts.append(f"{(where < 0).sum()} have returned" + ", for which it does not wait" * note)
        other = (block, int(np.flatnonzero(where != pc)[0])) if (where != pc).any() else None
        m.report.add(("barrier",), ", ".join(parts), at, (block, thread), other=other, note=note)


def join(groups, pc, lanes):
    """Add lanes to those that stand at a block."""
    if pc in groups:
        lanes = np.sort(np.concatenate([groups[pc], lanes]))
    groups[pc] = lanes
