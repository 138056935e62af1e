"""Chunks of a time loop compiled for CPUs; counterpart of `bppsa_nb.cells.chunked`.

What differs is one function: chunks go through time in groups, and write their states where they belong.
"""

import numpy as np

from bppsa_nb.cells import chunked
from bppsa_nb.cells.cell_cpu import step
from bppsa_nb.cells.samples_cpu import THRESHOLD, lay_out
from bppsa_nb.cells.spans import WHOLE
from bppsa_nb.chains.counts import CHECK_EVERY
from bppsa_nb.machine.compiling import compiled, inline
from bppsa_nb.machine.tiles import GROUP, multiply, product
from bppsa_nb.machine.views import clear, copy, copy_rows, pointer
from bppsa_nb.machine.workers import parallel_for


class Chunks(chunked.Chunks):
    """See `bppsa_nb.cells.chunked.Chunks`; of a `cell`, whose `params` are weight_ih, weight_hh, bias_ih, bias_hh."""

    def __init__(self, cell, params, run, x, h0, length, resets=()):
        *weights, added = lay_out(cell, *params)
        self._weights = *weights, np.tile(added.reshape(cell.preacts, -1), GROUP)
        super().__init__(run, x, h0, length, resets)
        self.rest = [np.empty((cell.kept, len(self.x), *self.states.shape[2:]), h0.dtype)]

    def buffer(self, steps, h0):
        """Make arrays for states, each by itself in memory."""
        B, S, H = h0.shape
        self.states = np.empty((S, steps, B, H), h0.dtype)
        return np.moveaxis(self.states, 0, 2)

    def run_chunks(self, indices, tol):
        """Run chunks from where they begin; see `bppsa_nb.cells.chunked.Chunks.run_chunks`."""
        _, weights_x, weights_h, _ = self._weights
        groups, dtype = -(-len(indices) // GROUP), self.hidden.dtype
        found, began = np.zeros((groups, 2)), np.ascontiguousarray(self.began)
        until, steps = dtype.type(-1 if tol is None else tol), self.length if tol is None else CHECK_EVERY
        work = steps * len(indices) * (weights_x.size + weights_h.size)
        resets = (self.resets[0] if self.resets else WHOLE.resets).view(np.uint8)
        arrays = product(dtype), self._weights, (self.states, *self.rest), (self.x, resets, indices, began, found)
        parallel_for(_run_chunks, groups, *arrays, self.length, until, parallel=work > THRESHOLD)
        sizes = np.minimum(GROUP, len(indices) - GROUP * np.arange(groups))
        return int(found[:, 0].max()), int(found[:, 0] @ sizes), float(found[:, 1].max())


@compiled
def _run_chunks(product, weights, saved, chunks, length, tol, first, last):
    """Run groups of chunks, each until all of it met what was there; see `Chunks`."""
    (cell, weights_x, weights_h, bias), (states, kept), (x, resets, indices, began, found) = weights, saved, chunks
    (_, batch, inputs), (num_states, _, _, size), gates = x.shape, states.shape, weights_h.shape[1]
    for group in range(first, last):
        group_of = indices[group * GROUP : (group + 1) * GROUP]
        count, n, most = len(group_of), len(group_of) * size, CHECK_EVERY * len(group_of)
        offsets = np.empty(count, np.int64)  # where chunks begin, among the rows of steps and samples
        for i in range(count):
            offsets[i] = group_of[i] // batch * length * batch + group_of[i] % batch
        rows, from_x = np.empty((1, most, inputs), x.dtype), np.empty((gates, most, size), x.dtype)
        from_h, to_preacts = np.empty((gates, count, size), x.dtype), np.empty((len(bias), n), x.dtype)
        # Of two buffers for states, one is written while the other is read: a loop within one is not vectorized.
        pair, values = np.empty((num_states, 2, count, size), x.dtype), np.empty((len(kept), count, size), x.dtype)
        copy_rows(bias, bias.shape[1], to_preacts, n, n, len(bias))
        for s in range(num_states):
            for i in range(count):
                there = pointer(began, (group_of[i] * num_states + s) * size)
                copy(there, pointer(pair, (s * 2 * count + i) * size), size)
        look, gap, now = length if tol < 0 else min(CHECK_EVERY, length), x.dtype.type(0), 0
        for start in range(0, length, CHECK_EVERY):
            stop = min(start + CHECK_EVERY, length)
            for t in range(start, stop):
                for i in range(count):
                    there = pointer(x, (offsets[i] + t * batch) * inputs)
                    copy(there, pointer(rows, ((t - start) * count + i) * inputs), inputs)
            here = (stop - start) * count
            for k in range(gates):
                places = 0, k * inputs * weights_x.shape[3], k * most * size
                multiply(product, rows, weights_x, from_x, (1, here, inputs), places, 0)
            for t in range(start, stop):
                if resets.size:
                    _begin_anew(pointer(resets, t * batch), offsets, pair, now)
                for k in range(gates):
                    places = now * n, k * size * weights_h.shape[3], k * n
                    multiply(product, pair, weights_h, from_h, (1, count, size), places, 0)
                here, before, after = (t - start) * n, now * n, (1 - now) * n
                step(cell, from_x, here, from_h, 0, to_preacts, 0, pair, before, pair, after, values, 0, n)
                now = 1 - now
                if t + 1 == look and tol >= 0:
                    gap = _distance(pair[:, now], offsets, (t + 1) * batch, states)
                for s in range(num_states):
                    _scatter(pair[s, now], s, offsets, (t + 1) * batch, states)
                for k in range(len(kept)):
                    _scatter(values[k], k, offsets, t * batch, kept)
            if stop == look:
                if gap <= tol:
                    break
                look = min(2 * look + CHECK_EVERY, length)
        found[group, 0], found[group, 1] = stop, gap if gap <= tol else 0
    return True


@inline
def _begin_anew(resets, offsets, pair, now):
    """Set states of chunks in one of two rooms [shape=(S, 2, n, H)] to zeros where they begin anew."""
    num_states, _, count, size = pair.shape
    for i in range(offsets.size):
        if resets[offsets[i]]:
            for s in range(num_states):
                clear(pointer(pair, ((s * 2 + now) * count + i) * size), size)


@inline
def _scatter(rows, k, offsets, further, array):
    """Copy rows side by side back to where they belong, in kind k of states, or of what is kept."""
    width = rows.shape[1]
    first = k * (array.size // len(array) // width) + further
    for i in range(offsets.size):
        copy(pointer(rows, i * width), pointer(array, (first + offsets[i]) * width), width)


@inline
def _distance(states, offsets, further, array):
    """Return how far states of chunks are from what is there, as `chunked.distance` does; infinity for NaN."""
    zero, infinite, width = states.dtype.type(0), states.dtype.type(np.inf), states.shape[2]
    most, apart = zero, array.size // len(array) // width
    for i in range(offsets.size):
        gap = scale = zero
        for s in range(len(states)):
            now, before = states[s, i], pointer(array, (s * apart + further + offsets[i]) * width)
            for j in range(width):
                scale = max(scale, abs(now[j]), abs(before[j]))
                if not abs(now[j] - before[j]) <= gap:
                    gap = abs(now[j] - before[j]) if now[j] - before[j] == now[j] - before[j] else infinite
        if gap > zero:
            most = max(most, gap / scale if gap < infinite else infinite)
    return most
