"""The time loop compiled for CPUs, of samples or of chunks; counterpart of `bppsa_nb.cells.chunked`.

A step multiplies the states of a few samples tile by tile (`machine.tiles`), then runs the cell's equations once over
all their numbers. The loop is compiled once for all cells, and given the address of those (`cell_cpu`).

Samples never wait for each other, so cores share out groups of them; what waits for no other step is computed for all
steps at once, and shared out by time. Compiled code fills the arrays it is given. Where it returns several, a Ctrl-C
that arrives while Numba wraps them up turns into a SystemError.
"""

from functools import cache

import numpy as np

from bppsa_nb.cells import chunked
from bppsa_nb.cells.cell import WHOLE
from bppsa_nb.cells.cell_cpu import step, table_of
from bppsa_nb.chains.counts import CHECK_EVERY
from bppsa_nb.machine.compiling import compiled, inline
from bppsa_nb.machine.intrinsics import buffer, clear, copy, copy_rows, pointer
from bppsa_nb.machine.second_core import helped
from bppsa_nb.machine.tiles import GROUP, multiply, panels, product
from bppsa_nb.machine.workers import parallel_for

THRESHOLD = 2**21  # multiply-adds that one core has done before a second one is of any use
_AT_HAND = 2**20  # bytes of weights that stay in a core's own cache
_MOST = 4 * GROUP  # samples side by side where they do not
_LEFT = 4  # groups of samples that cores can still share out then
_STEPS = 32  # that a group of samples goes before it writes to memory that others write to as well
_none = cache(lambda dtype: np.zeros((0, 0, 0), dtype))
_BLOCK = 2**15  # numbers of these steps, at the most: the cache keeps so many
_ROWS = 2**8  # of inputs that weights are multiplied with while they are near
_AHEAD = 2**18  # numbers that this makes, at the most


def in_groups(function, batch, group, work, weights, *arrays):
    """Have compiled code take a batch through time, so many multiply-adds, by groups of samples.

    Cores share the groups, or each product with panels of `weights` if there is one group only.
    """
    groups, table = -(-batch // group), product(weights.dtype)
    if work <= THRESHOLD:
        function(group, table, *arrays, 0, groups)
    elif groups > 1 or len(weights) == 1:
        parallel_for(function, groups, group, table, *arrays)
    else:
        with helped(table) as shared:
            function(group, shared, *arrays, 0, 1)


def samples_together(batch, weights, left=_LEFT):
    """Return how many samples a core takes through time side by side, by sizes alone: sums shall not depend on cores.

    Each step reads weights once for all of them: the more, where these come from beyond a core's cache. There are to
    be `left` groups; where nothing is summed, as many as there are cores.
    """
    return GROUP if weights.nbytes <= _AT_HAND else max(GROUP, min(_MOST, batch // left // GROUP * GROUP))


def lay_out(cell, weight_ih, weight_hh, *added):
    """Lay a layer's parameters out for loops over time: the cell's table, weights, and what biases add to each sum.

    Weights are by columns, as `machine.tiles.multiply` takes them: panels of (G, I, H) and (G, H, H).
    """
    size = weight_hh.shape[1]
    by_x = panels(weight_ih.reshape(cell.gates, size, weight_ih.shape[1]).mT)
    by_h = panels(weight_hh.reshape(-1, size, size).mT)
    return table_of(cell, weight_hh.dtype), by_x, by_h, biases(cell, *added)


def biases(cell, bias_ih, bias_hh, *vectors):
    """Return what biases add to each sum, and a cell's own vectors [shape=(P H,)]."""
    if vectors:
        return np.concatenate([biases(cell, bias_ih, bias_hh), *vectors])
    if not cell.split:
        return bias_ih if cell.elementwise else bias_ih + bias_hh
    apart = cell.split * len(bias_hh) // cell.gates
    found = np.empty(len(bias_hh) + apart, bias_hh.dtype)
    found[:apart], found[apart:] = bias_ih[-apart:], bias_hh
    found[apart:-apart] += bias_ih[:-apart]
    return found


def with_spans(x, spans):
    """Return inputs, and what loops are given of spans: resets, lengths, and initial states of sequences."""
    return x, spans.resets, spans.lengths, spans.starts if spans.starts.size else _none(x.dtype)


@inline
def longest(lengths, steps, begin, count):
    """Return how many of the steps the longest of some samples has."""
    if not lengths.size:
        return steps
    most = lengths[begin]
    for b in range(begin + 1, begin + count):
        most = max(most, lengths[b])
    return most


class Chunks(chunked.Chunks):
    """See `bppsa_nb.cells.chunked.Chunks`; of a `cell`, whose `params` are weight_ih, weight_hh, bias_ih, bias_hh.

    What differs is one function: chunks go through time in groups, and write their states where they belong.
    """

    def __init__(self, cell, params, spans, run, x, h0, length, resets=()):
        self._weights, self._spans = lay_out(cell, *params), spans
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
        began, runs = np.ascontiguousarray(self.began), np.stack([indices, np.zeros_like(indices)])
        gaps, steps = np.zeros(-(-len(indices) // GROUP), began.dtype), self.length if tol is None else CHECK_EVERY
        work = steps * len(indices) * (weights_x.size + weights_h.size)
        spans = self._spans._replace(resets=self.resets[0] if self.resets else WHOLE.resets)
        arrays = with_spans(self.x, spans), self._weights, (self.states, *self.rest)
        chunks = runs, gaps, began.dtype.type(-1 if tol is None else tol), began, self.length
        in_groups(run_steps, len(indices), GROUP, work, weights_h, *arrays, chunks)
        return int(runs[1].max()), int(runs[1].sum()), float(gaps.max())


@compiled
def run_steps(group, product, given, weights, saved, chunks, first, last):
    """Run groups first ... last - 1 of chunks, each until all of it met what was there.

    `runs` [shape=(2, chunks)] hold the index of each, then its steps; `gaps` [shape=(groups,)], how far they were off.
    Samples are chunks of all steps, of which neither is told: where all are as long, their groups go together.
    """
    cell, weights_x = weights[0], weights[1]  # the compiler unpacks four at once by way of twice the code
    weights_h, bias = weights[2], weights[3]
    states, kept = saved[0], saved[1]
    runs, gaps, tol = chunks[0], chunks[1], chunks[2]
    began, length, soon = chunks[3], chunks[4], gaps.size > 0  # soon: a step is written while the next is computed
    x, resets, lengths, starts = given
    _, batch, inputs = x.shape
    num_states, num_kept, gates, size = states.shape[0], kept.shape[0], weights_x.shape[1], states.shape[3]
    most = group if soon or lengths.size else (last - first) * group
    for begin in range(first * group, min(last * group, runs.shape[1]), most):
        count = min(most, runs.shape[1] - begin)
        n = count * size
        together = max(1, min(_STEPS, _BLOCK // ((num_states + num_kept) * n)))
        ahead = together * max(1, min(_ROWS // (together * count), _AHEAD // (gates * together * n)))
        rows, from_x = buffer(x, (1, ahead * count, inputs)), buffer(x, (gates, ahead * count, size))
        from_h, to_preacts = buffer(x, (gates, count, size)), buffer(x, (bias.size // size, count, size))
        block = buffer(x, (num_states, (together + 2) * count, size))
        values = buffer(x, (num_kept, together * count, size))
        for k in range(bias.size // size):
            copy_rows(pointer(bias, k * size), 0, pointer(to_preacts, k * n), size, size, count)
        clear(from_h, from_h.size)
        places, apart = buffer(runs, (count,)), (together + 2) * n
        wide = _begin(pointer(runs, begin), length, batch, began, places, block)
        end, gap, start, since, known = longest(lengths, length, begin, count), x.dtype.type(0), 0, 0, 0
        look = end if tol < 0 else min(CHECK_EVERY, end)
        while start < end:
            steps = min(together, look - start)
            if start == known:
                since, known = start, min(start + ahead, look)
                _multiply_inputs(product, x, weights_x, rows, from_x, (start, known - start, wide), places)
            for s in range(steps):
                before = _place_of(resets, (start + s) * batch, starts, places, s, block) if resets.size else s
                for i in range(weights_h.shape[1]):
                    k = weights_h.shape[1] - 1 - i if (start + s) & 1 else i
                    at = before * n, k * size * weights_h.shape[3], k * n
                    multiply(product, block, weights_h, from_h, (1, count, size), at, start + s)
                here, after = (start + s - since) * n, (s + 1) * n
                step(cell, from_x, here, from_h, 0, to_preacts, 0, block, before * n, block, after, values, s * n, n)
                if start + s + 1 == look and tol >= 0:
                    gap = _distance(block[:, (s + 1) * count : (s + 2) * count], places, look * batch, states)
                if s + 1 == steps or soon:
                    done = s if soon else 0
                    _write(block, count, done + 1, s + 1 - done, states, start + done + 1, places, wide)
                    _write(values, count, done, s + 1 - done, kept, start + done, places, wide)
            start += steps
            copy_rows(pointer(block, steps * n), apart, block, apart, n, num_states)
            if start == look:
                if gap <= tol:
                    break
                look = min(2 * look + CHECK_EVERY, end)
        for i in range(begin, begin + count if soon else begin):
            runs[1, i], gaps[i // group] = start, gap if gap <= tol else 0
    return True


@inline
def _begin(indices, length, batch, began, places, block):
    """Find where chunks begin, among the rows of steps and samples; return how many always follow one another."""
    (num_states, rows, size), wide = block.shape, places.size
    for i in range(places.size):
        q = indices[i]
        places[i] = q // batch * length * batch + q % batch
        here = pointer(began, q * num_states * size)
        copy_rows(here, size, pointer(block, i * size), rows * size, size, num_states)
        apart = i if i and places[i] != places[i - 1] + 1 else 0
        while apart:  # the greatest common divisor of where they do not
            wide, apart = apart, wide % apart
    return wide


@inline
def _multiply_inputs(product, x, weights_x, rows, from_x, steps, places):
    """Multiply the inputs of some steps, at the places of samples, which follow one another by so many."""
    (start, count, wide), (_, batch, inputs), samples = steps, x.shape, places.size
    for i in range(0, samples, wide):
        here, there = pointer(x, (start * batch + places[i]) * inputs), pointer(rows, i * inputs)
        copy_rows(here, batch * inputs, there, samples * inputs, wide * inputs, count)
    for k in range(len(from_x)):
        at = 0, k * inputs * weights_x.shape[3], k * from_x.shape[1] * from_x.shape[2]
        multiply(product, rows, weights_x, from_x, (1, count * samples, inputs), at, 0)


@inline
def _write(block, count, skipped, steps, array, start, places, wide):
    """Copy rows of some steps, of states or of what is kept, to where they belong in memory."""
    (kinds, rows, size), batch = block.shape, array.shape[2]
    for k in range(kinds):
        for i in range(0, count, wide):
            here = pointer(block, (k * rows + skipped * count + i) * size)
            there = pointer(array, ((k * array.shape[1] + start) * batch + places[i]) * size)
            copy_rows(here, count * size, there, batch * size, wide * size, steps)


@inline
def _place_of(resets, further, starts, places, s, block):
    """Return where the states before a step are: in place s, or, where some begin anew, in the last.

    Their own place keeps what the step before ended with.
    """
    (num_states, rows, size), count, any_anew = block.shape, places.size, False
    numbers = pointer(resets, further)
    for i in range(count):
        any_anew |= numbers[places[i]] != 0
    if not any_anew:
        return s
    for k in range(num_states):
        for i in range(count):
            here = pointer(block, (k * rows + rows - count + i) * size)
            number = numbers[places[i]]
            if number > 0:
                copy(pointer(starts, (k * starts.shape[1] + number - 1) * size), here, size)
            elif number:
                clear(here, size)
            else:
                copy(pointer(block, (k * rows + s * count + i) * size), here, size)
    return rows // count - 1


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
                for size in (abs(now[j]), abs(before[j])):
                    scale = size if size > scale else scale  # `max` would be compiled for itself
                if not abs(now[j] - before[j]) <= gap:
                    gap = abs(now[j] - before[j]) if now[j] - before[j] == now[j] - before[j] else infinite
        if gap > zero:
            gap = gap / scale if gap < infinite else infinite
            most = gap if gap > most else most
    return most
