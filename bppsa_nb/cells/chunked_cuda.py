"""Chunks of a time loop on a GPU, a block for each; counterpart of `bppsa_nb.cells.chunked`.

A pass is one launch, over all chunks of all samples. A block first looks whether its chunk began with what the one
before ended with, and is done if it did; if not, it runs from there, until it meets the states that it had.
"""

import math
from functools import cache

import numpy as np

from bppsa_nb.cells import chunked
from bppsa_nb.cells import layer_cuda as cells
from bppsa_nb.cells.chunked import Solved
from bppsa_nb.chains.counts import CHECK_EVERY, WARM_UP
from bppsa_nb.machine.cuda import inline
from bppsa_nb.machine.cuda_compiler import cuda

ALL = -1  # which chunks run if they are wrong; or one of them, by its number; or none, by the number of all
REPEATS = 3  # repairs of a step that is recorded, which cannot look how many it needs


@inline
def _distance(shared, old, size, infinite):
    """Return how far the first numbers are from those behind `old`, as `chunked.distance` does."""
    zero = shared.dtype.type(0)
    most, scale = zero, zero
    for j in range(size):
        now, before = shared[j], shared[old + j]
        gap = abs(now - before)
        same = now == before or (now != now and before != before)
        if not same and not gap <= most:
            most = gap if gap == gap else infinite
        scale = max(max(scale, abs(now)), abs(before))
    if most > zero:
        most = most / scale if scale < infinite else infinite
    return most


@cache
def run_chunks_of(steps, states_of_unit):
    """Make the kernel of a pass: a chunk of one sample per block, in the order of time.

    `before` and `ended` [shape=(C, B, S H)] are what chunks ended with before and after it, `began` what they began
    with, and `found` [shape=(C, B, 3)] how many steps they ran, how far apart their states were where they met, and
    what they began with before. A negative `tol` is for the first pass: all run to their end, from what chunk 0 ended
    with. Where chunks are wrong that `which` leaves out, ``unconverged[0]`` is 1 then.
    """
    load, run_steps = steps

    @inline
    def read(shared, start, states, t, b):
        size = states.shape[3]
        for s in range(states_of_unit):
            for j in range(cuda.threadIdx.x, size, cuda.blockDim.x):
                shared[start + s * size + j] = states[s, t, b, j]

    @cuda.jit
    def run_chunks(
        products, weight_hh_T, bias_hh, states, kept, old, length, tol, which, before, began, ended, found, unconverged
    ):
        shared = cuda.shared.array(0, states.dtype)  # the states first; from `old` on, what was there
        batch, size, tid, threads = states.shape[2], began.shape[2], cuda.threadIdx.x, cuda.blockDim.x
        chunk, b = cuda.blockIdx.x // batch, np.uint32(cuda.blockIdx.x % batch)
        infinite, mismatch = states.dtype.type(math.inf), states.dtype.type(0)
        start = chunk * length
        last, first_pass = min(start + length, products.shape[0]), tol < mismatch
        weights = load(weight_hh_T, bias_hh)  # here: in the loop below, as many addresses would be kept in registers
        if chunk == 0:
            read(shared, 0, states, 0, b)
        for j in range(tid, size, threads):
            if chunk > 0:
                shared[j] = before[0 if first_pass else chunk - 1, b, j]
            if not first_pass:  # when nothing was there before it
                shared[old + j] = began[chunk, b, j]
        cuda.syncthreads()
        gap = infinite if first_pass else _distance(shared, old, size, infinite)
        runs = first_pass or (gap > tol and (which == ALL or which == chunk))
        cuda.syncthreads()
        if runs:
            for j in range(tid, size, threads):
                began[chunk, b, j] = shared[j]
        elif gap > tol:
            unconverged[0] = 1
        stop, goes_on = start, runs and start < last
        while goes_on:
            begin, stop = stop, last if first_pass else min(start + 2 * (stop - start) + CHECK_EVERY, last)
            if not first_pass:  # which has nothing to meet
                read(shared, old, states, stop, b)
            run_steps(products, weights, shared, states, kept, b, begin, stop)
            cuda.syncthreads()
            mismatch = infinite if first_pass else _distance(shared, old, size, infinite)
            goes_on = stop < last and not mismatch <= tol
            cuda.syncthreads()
        for j in range(tid, size, threads):
            ended[chunk, b, j] = shared[j] if runs and stop == last else before[chunk, b, j]
        if tid == 0:
            found[chunk, b, 0] = stop - start
            found[chunk, b, 1] = mismatch if runs and not first_pass and mismatch <= tol else 0
            found[chunk, b, 2] = gap

    return run_chunks


class Chunks(chunked.Chunks):
    """A layer's time loop in chunks: what is worked on, and its launches.

    The loop reads and writes device arrays: input products (T, B, G H), weight_hh.T, bias_hh, states (S, T + 1, B, H),
    whose first are given, and what the cell keeps. `unconverged` [shape=(1,), dtype=int32], if given, is where
    `launch_fixed` says that some chunks did not meet.
    """

    def __init__(self, cell, loop, length, unconverged=None):
        products, *_, states, _ = loop
        self.cell, self.loop, self.length, self.solved = cell, loop, length, Solved("chunked", length)
        (self.T, self.B, _), dtype = products.shape, states.dtype
        self.count = -(-self.T // length)
        shape = self.count, self.B, cell.states * states.shape[3]
        self.ends = [cuda.device_array(shape, dtype) for _ in range(2)]
        self.began, self.found = cuda.device_array(shape, dtype), cuda.device_array((*shape[:2], 3), dtype)
        self.unconverged = cuda.to_device(np.zeros(1, np.int32)) if unconverged is None else unconverged
        self.first = 1  # that may be wrong

    def launch(self, tol, which=ALL, count=None, length=None, stream=0):
        """Launch a pass, over so many chunks of a length, all of the chunks' if nothing is said."""
        size, dtype = self.loop[3].shape[3], self.began.dtype.type
        old = cells.numbers_of(self.cell) * size
        before, ended = self.ends
        more = old, self.length if length is None else length, dtype(tol), which
        more = *more, before, self.began, ended, self.found, self.unconverged
        blocks = (self.count if count is None else count) * self.B
        cells.launch_loop(self.cell, run_chunks_of, blocks, self.loop, more, self.cell.states, stream)
        self.ends.reverse()

    def start(self, stream=0):
        """Launch the guess and the first pass."""
        seed = min(WARM_UP, self.length)
        self.launch(-1, count=1, length=seed, stream=stream)
        self.launch(-1, stream=stream)
        self._count(seed + self.length, (seed + self.T) * self.B, passes=1)

    def launch_fixed(self, tol, stream):
        """Launch all passes of a step that is recorded; where they were too few, `unconverged` says so."""
        self.start(stream)
        for _ in range(REPEATS):
            self.launch(tol, stream=stream)
        self.launch(tol, which=self.count, stream=stream)

    def take_pass(self, tol, serially=False):
        """Launch a pass; see `bppsa_nb.cells.chunked.Chunks.take_pass`. If it is `serially`, it is for one chunk."""
        which = self.first if serially else ALL
        self.launch(tol, which)
        ran, mismatch, gap = np.moveaxis(self.found.copy_to_host(), 2, 0)
        wrong = gap > tol
        self.solved.jumps.append(float(gap.max()))
        self.solved.unconverged.append(int(np.count_nonzero(wrong)))
        if not wrong.any():
            return False
        if ran.any():
            self._count(ran.max(), ran.sum(), mismatch.max(), passes=1)
        self.first = int(np.argmax(wrong.any(axis=1)))
        self.first += which in (ALL, self.first)  # it has been repaired
        return True
