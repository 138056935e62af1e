"""The time loop in parallel: chunks of it run at once, and each is repaired until it meets what it had.

To the loop, chunks are samples of a batch: it need not know. All but the first start from a guess. What a chunk ends
with is where its successor should have begun; where it did not, a fix-up pass runs the successor again from there, but
only until it meets the states that it had, for from then on nothing changes. After the n-th pass at least n chunks are
exact, so that never more steps wait for each other than in the loop, but for two chunks' more.
"""

from dataclasses import dataclass, field

import numpy as np

from bppsa_nb.chains.counts import CHECK_EVERY, WARM_UP
from bppsa_nb.machine.checks import with_repr


@with_repr("method", "length", "passes", "unconverged", "steps", "work", "mismatch", "corrections", "finished")
@dataclass(eq=False)
class Solved:
    """How a recurrence was solved.

    It `finished` ``"converged"`` where all chunks met, ``"serially"`` where some had to be taken one after the other,
    ``"repaired"`` where Newton's method had to be given up, and chunks were repaired instead.
    """

    method: str  # "chunked" or "newton"
    length: int  # steps of a chunk
    passes: int = 0  # how often chunks ran, the first pass over all of them and the last repair included
    jumps: list[float] = field(default_factory=list)  # by pass: how far chunks began from where others ended, at most
    unconverged: list[int] = field(default_factory=list)  # by pass: how many chunks, each of one sample, began wrong
    steps: int = 0  # that waited for each other; the loop has T
    work: float = 0.0  # steps that were computed, in those of the loop
    mismatch: float = 0.0  # the largest difference that was accepted where chunks met: at most the tolerance
    corrections: int = 0  # Newton's, all that there were
    finished: str = "converged"

    def add(self, other):
        """Go on with another way."""
        for name in ("passes", "steps", "work", "jumps", "unconverged"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.mismatch, self.finished = other.mismatch, "repaired"
        return self


class Chunks:
    """A recurrence cut into chunks, all but the last of one length; its last input is repeated to fill that up.

    ``run(x, h0)``, with inputs (K, n, ...) and states (n, ...), returns a tuple of arrays: the states (K + 1, n, ...),
    `h0` first; then what else is kept of each step (G, K, n, ...), if anything. `x` is [shape=(T, B, ...)], T at least
    1. Chunks go as a batch: chunk c of sample b has the index ``c * B + b`` there. `resets`, if any, are a single
    array [shape=(T, B)], cut like inputs, which `run` is given in the third place.
    """

    def __init__(self, run, x, h0, length, resets=()):
        self.run, self.length, self.h0 = run, length, h0
        self.T, self.B = x.shape[:2]
        self.count = -(-self.T // length)
        self.x, self.resets = self._filled(x), [*map(self._filled, resets)]
        self.hidden = self.buffer(self.count * length + 1, h0)
        self.hidden[0] = h0
        self.ends = self.by_chunks(self.hidden[1:])[:, -1]
        self.rest = None
        self.solved = Solved("chunked", length)

    def _filled(self, array):
        missing = self.count * self.length - self.T
        return np.concatenate([array, np.broadcast_to(array[-1:], (missing, *array.shape[1:]))]) if missing else array

    def buffer(self, steps, h0):
        """Make an array for states."""
        return np.empty((steps, *h0.shape), h0.dtype)

    def by_chunks(self, array):
        """View an array of all steps as (C, length, B, ...)."""
        return array.reshape(self.count, self.length, *array.shape[1:])

    def guess(self):
        """Return states for all chunks to begin with: `h0`, and for the others what some steps from there lead to."""
        steps = min(WARM_UP, self.length)
        reached = self.run(self.x[:steps], self.h0, *(array[:steps] for array in self.resets))[0][-1]
        self._count(steps, steps * self.B)
        began = np.empty((self.count, *self.h0.shape), self.h0.dtype)
        began[0], began[1:] = self.h0, reached
        return began

    def run_all(self, began):
        """Run all chunks from these states, as one batch."""
        self.began = began
        self._count(*self.run_chunks(np.arange(self.count * self.B), None), passes=1)

    def repair(self, tol, most):
        """Take passes until no chunk began wrong: over all at once while that is work for `most` loops.

        From then on one after the other: where a recurrence forgets nothing, what follows a wrong chunk runs in vain.
        """
        before = self.solved.work
        while self.take_pass(tol, serially := self.solved.work - before >= most):
            if serially:
                self.solved.finished = "serially"
        self.solved.mismatch = max(self.solved.mismatch, self.solved.jumps[-1])

    def take_pass(self, tol, serially=False):
        """Run chunks again that did not begin with what the one before ended with; tell whether there were any.

        Each runs until it meets what was there. If this is done `serially`, it is the first of every sample.
        """
        wrong, jump = differ(self.began[1:], self.ends[:-1], tol)
        indices = self.B + np.flatnonzero(wrong)
        self.solved.jumps.append(jump)
        self.solved.unconverged.append(len(indices))
        if not indices.size:
            return False
        if serially:
            indices = indices[np.unique(indices % self.B, return_index=True)[1]]
        c, b = divmod(indices, self.B)
        self.began[c, b] = self.ends[c - 1, b]
        self._count(*self.run_chunks(indices, tol), passes=1)
        return True

    def run_chunks(self, indices, tol):
        """Run chunks from where they begin, each until it meets what was there within `tol`; None: to the end.

        Returns the steps of the chunk that took longest and those of all, and the largest difference where one met.
        """
        c, b = divmod(indices, self.B)
        states, x = self.began[c, b], self.by_chunks(self.x)
        stop = work = mismatch = 0
        while c.size and stop < self.length:
            start, stop = stop, self.length if tol is None else min(2 * stop + CHECK_EVERY, self.length)
            resets = [self.by_chunks(array)[c, start:stop, b].T for array in self.resets]
            new = self.run(x[c, start:stop, b].swapaxes(0, 1), states, *resets)
            if self.rest is None:
                self.rest = [np.empty((len(part), *self.x.shape[:2], *part.shape[3:]), part.dtype) for part in new[1:]]
            states, before = new[0][-1], self.by_chunks(self.hidden[1:])[c, stop - 1, b]
            self.by_chunks(self.hidden[1:])[c, start:stop, b] = new[0][1:].swapaxes(0, 1)
            for array, part in zip(self.rest, new[1:], strict=True):
                for kept, found in zip(array, part, strict=True):
                    self.by_chunks(kept)[c, start:stop, b] = found.swapaxes(0, 1)
            work += (stop - start) * len(c)
            if tol is not None:
                gap = distance(states[None], before[None])[0]
                converged = gap <= tol
                mismatch = max(mismatch, float(gap[converged].max(initial=0)))
                c, b, states = c[~converged], b[~converged], states[~converged]
        return stop, work, mismatch

    def side_by_side(self):
        """Return what began and all states (length + 1, C * B, ...), and what else was kept (G, length, C * B, ...)."""
        began = self.began.reshape(1, -1, *self.h0.shape[1:])
        hidden = np.concatenate([began, self.batched(self.hidden[1:])])
        shapes = ((len(array), self.length, *hidden.shape[1:2], *array.shape[3:]) for array in self.rest)
        return hidden, *map(np.reshape, ([*map(self.batched, array)] for array in self.rest), shapes)

    def batched(self, array):
        """Lay an array of all steps out with chunks side by side, (length, C * B, ...)."""
        return self.by_chunks(array).swapaxes(0, 1).reshape(self.length, self.count * self.B, *array.shape[2:])

    def _count(self, steps, work, mismatch=0.0, passes=0):
        solved = self.solved
        solved.passes, solved.steps = solved.passes + passes, solved.steps + int(steps)
        solved.work += work / (self.T * self.B)
        solved.mismatch = max(solved.mismatch, float(mismatch))

    def result(self):
        """Return the states (T + 1, B, ...), and what else was kept (G, T, B, ...)."""
        return self.hidden[: self.T + 1], *(np.ascontiguousarray(array[:, : self.T]) for array in self.rest)


def differ(began, ended, tol):
    """Tell which states (C, n, ...) are farther apart than `tol`, bools (C, n), and how far any are at the most."""
    jumps = distance(began, ended)
    wrong = ~(jumps <= tol)
    if wrong.any():  # what is not finite is no distance from itself
        same = (began == ended) | ((began != began) & (ended != ended))
        wrong &= ~same.all(axis=tuple(range(2, began.ndim)))
    return wrong, float(jumps.max(initial=0))


def distance(a, b):
    """Return how far states (C, n, ...) are apart at the most (C, n), relative to the largest number of both.

    Within rounding of that size, a repair that ends is as if the loop had rounded otherwise once: no state is taken for
    nothing, not even where states are tiny and grow.
    """
    axes = tuple(range(2, a.ndim))
    with np.errstate(all="ignore"):
        gap, scale = (np.abs(each).max(axis=axes, initial=0) for each in (a - b, np.maximum(np.abs(a), np.abs(b))))
        return np.where(gap == 0, 0, gap / scale)
