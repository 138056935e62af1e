"""Chunks of a time loop compiled for CPUs; counterpart of `bppsa_nb.cells.repair`.

What differs is one function: lanes go through time in groups, and write their states where they belong.
"""

import numpy as np

from bppsa_nb.cells import repair
from bppsa_nb.chains.counts import REPAIR
from bppsa_nb.machine.compiling import inline
from bppsa_nb.machine.tiles import GROUP, product
from bppsa_nb.machine.views import copy, flat_view
from bppsa_nb.machine.workers import parallel_for

_WORTH = 2**21  # multiply-adds that one core has done before a second one is of any use


class Chunks(repair.Chunks):
    """See `bppsa_nb.cells.repair.Chunks`.

    `functions` computes the cell, by name: `prepare`, `run_lanes`, and how many `GATES` it keeps. `params` are
    weight_ih, weight_hh, bias_ih and bias_hh.
    """

    def __init__(self, functions, params, run, x, h0, length):
        super().__init__(run, x, h0, length)
        self._loop, self._weights = functions["run_lanes"], functions["prepare"](*params)
        gates = functions["GATES"]
        self.rest = [np.empty((gates, *self.hidden[1:].shape), h0.dtype)] if gates else []

    def run_lanes(self, lanes, tol):
        """Run lanes from where they begin; see `bppsa_nb.cells.repair.Chunks.run_lanes`."""
        weights_x, weights_h, bias = self._weights
        groups, dtype = -(-len(lanes) // GROUP), self.hidden.dtype
        found = np.zeros((groups, 2))
        until = dtype.type(-1 if tol is None else tol)
        loop = self.length, until, lanes, self.began, found
        arrays = product(dtype), self.x, weights_x, weights_h, np.tile(bias, GROUP), self.hidden, *self.rest
        steps = self.length if tol is None else REPAIR
        work = steps * len(lanes) * (weights_x.size + weights_h.size)
        parallel_for(self._loop, groups, *arrays, *loop, worth=work > _WORTH)
        sizes = np.minimum(GROUP, len(lanes) - GROUP * np.arange(groups))
        return int(found[:, 0].max()), int(found[:, 0] @ sizes), float(found[:, 1].max())


@inline
def places(lanes, low, count, length, batch):
    """Return where lanes low, low + 1, ... begin, among the rows of all steps and samples."""
    found = np.empty(count, np.int64)
    for i in range(count):
        found[i] = lanes[low + i] // batch * length * batch + lanes[low + i] % batch
    return found


@inline
def take(array, first, further, into):
    """Gather rows of several lanes, each so many rows after its first."""
    width = into.shape[1]
    for i in range(first.size):
        copy(flat_view(array, (first[i] + further) * width, width), flat_view(into, i * width, width))


@inline
def put(what, first, further, array):
    """Write rows of several lanes where they belong."""
    width = what.shape[1]
    for i in range(first.size):
        copy(flat_view(what, i * width, width), flat_view(array, (first[i] + further) * width, width))


@inline
def apart(states, first, further, array):
    """Return how far states of lanes are from what is there, as `repair.distance` does; infinity for NaN."""
    zero, infinite, width = states.dtype.type(0), states.dtype.type(np.inf), states.shape[1]
    most = zero
    for i in range(first.size):
        now, before = flat_view(states, i * width, width), flat_view(array, (first[i] + further) * width, width)
        gap = scale = zero
        for j in range(width):
            scale = max(scale, abs(now[j]), abs(before[j]))
            if not abs(now[j] - before[j]) <= gap:
                gap = abs(now[j] - before[j]) if now[j] - before[j] == now[j] - before[j] else infinite
        if gap > zero:
            most = max(most, gap / scale if gap < infinite else infinite)
    return most
