"""Chunks of a time loop compiled for CPUs; counterpart of `bppsa_nb.cells.chunked`.

What differs is one function: chunks go through time in groups, and write their states where they belong.
"""

import numpy as np

from bppsa_nb.cells import chunked
from bppsa_nb.chains.counts import CHECK_EVERY
from bppsa_nb.machine.compiling import inline
from bppsa_nb.machine.tiles import GROUP, product
from bppsa_nb.machine.views import copy, flat_view
from bppsa_nb.machine.workers import parallel_for

_THRESHOLD = 2**21  # multiply-adds that one core has done before a second one is of any use


class Chunks(chunked.Chunks):
    """See `bppsa_nb.cells.chunked.Chunks`.

    `functions` computes the cell, by name: `prepare`, `run_chunks`, and how many `GATES` it keeps. `params` are
    weight_ih, weight_hh, bias_ih and bias_hh.
    """

    def __init__(self, functions, params, run, x, h0, length):
        super().__init__(run, x, h0, length)
        self._loop, self._weights = functions["run_chunks"], functions["prepare"](*params)
        gates = functions["GATES"]
        self.rest = [np.empty((gates, *self.hidden[1:].shape), h0.dtype)] if gates else []

    def run_chunks(self, indices, tol):
        """Run chunks from where they begin; see `bppsa_nb.cells.chunked.Chunks.run_chunks`."""
        weights_x, weights_h, bias = self._weights
        groups, dtype = -(-len(indices) // GROUP), self.hidden.dtype
        found = np.zeros((groups, 2))
        weights = weights_x, weights_h, np.tile(bias, GROUP)
        chunks, until = (self.x, indices, self.began, found), dtype.type(-1 if tol is None else tol)
        steps = self.length if tol is None else CHECK_EVERY
        work = steps * len(indices) * (weights_x.size + weights_h.size)
        arrays = product(dtype), weights, (self.hidden, *self.rest), chunks
        parallel_for(self._loop, groups, *arrays, self.length, until, parallel=work > _THRESHOLD)
        sizes = np.minimum(GROUP, len(indices) - GROUP * np.arange(groups))
        return int(found[:, 0].max()), int(found[:, 0] @ sizes), float(found[:, 1].max())


@inline
def offsets_of(indices, low, count, length, batch):
    """Return where chunks low, low + 1, ... of those with these indices begin, among the rows of steps and samples."""
    found = np.empty(count, np.int64)
    for i in range(count):
        found[i] = indices[low + i] // batch * length * batch + indices[low + i] % batch
    return found


@inline
def gather_rows(array, offsets, further, into):
    """Copy a row of each of several chunks, so many rows after its first, side by side."""
    width = into.shape[1]
    for i in range(offsets.size):
        copy(flat_view(array, (offsets[i] + further) * width, width), flat_view(into, i * width, width))


@inline
def scatter_rows(rows, offsets, further, array):
    """Copy what `gather_rows` copies back to where it belongs."""
    width = rows.shape[1]
    for i in range(offsets.size):
        copy(flat_view(rows, i * width, width), flat_view(array, (offsets[i] + further) * width, width))


@inline
def distance(states, offsets, further, array):
    """Return how far states of chunks are from what is there, as `chunked.distance` does; infinity for NaN."""
    zero, infinite, width = states.dtype.type(0), states.dtype.type(np.inf), states.shape[1]
    most = zero
    for i in range(offsets.size):
        now, before = flat_view(states, i * width, width), flat_view(array, (offsets[i] + further) * width, width)
        gap = scale = zero
        for j in range(width):
            scale = max(scale, abs(now[j]), abs(before[j]))
            if not abs(now[j] - before[j]) <= gap:
                gap = abs(now[j] - before[j]) if now[j] - before[j] == now[j] - before[j] else infinite
        if gap > zero:
            most = max(most, gap / scale if gap < infinite else infinite)
    return most
