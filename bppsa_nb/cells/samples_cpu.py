"""How cores share out the samples of a batch, and how loops in compiled code come by their numbers.

Samples never wait for each other, so cores share out groups of them; what waits for no other step is computed for all
steps at once, and shared out by time.

Compiled code fills the arrays it is given. Where it returns several, a Ctrl-C that arrives while Numba wraps them up
turns into a SystemError.
"""

import numpy as np

from bppsa_nb.cells.cell_cpu import table_of
from bppsa_nb.machine.compiling import inline
from bppsa_nb.machine.second_core import helped
from bppsa_nb.machine.tiles import GROUP, NARROW, multiply_T, panel_width, panels, product
from bppsa_nb.machine.views import add, copy_rows, pointer, shaped
from bppsa_nb.machine.workers import parallel_for

THRESHOLD = 2**21  # multiply-adds that one core has done before a second one is of any use
_AT_HAND = 2**20  # bytes of weights that stay in a core's own cache
_MOST = 4 * GROUP  # samples side by side where they do not
_LEFT = 4  # groups of samples that cores can still share out then


def in_groups(function, batch, group, work, weights, *arrays):
    """Have compiled code take a batch through time, so many multiply-adds, by groups of samples.

    Cores share the groups, or each product with panels of `weights` if there is one group only.
    """
    groups, table = -(-batch // group), product(weights.dtype)
    if groups > 1 or len(weights) == 1 or work <= THRESHOLD:
        parallel_for(function, groups, group, table, *arrays, parallel=work > THRESHOLD)
    else:
        with helped(table) as shared:
            function(group, shared, *arrays, 0, 1)


def samples_together(batch, weights):
    """Return how many samples a core takes through time side by side, by sizes alone: sums shall not depend on cores.

    Each step reads weights once for all of them: the more, where these come from beyond a core's cache.
    """
    return GROUP if weights.nbytes <= _AT_HAND else max(GROUP, min(_MOST, batch // _LEFT // GROUP * GROUP))


def lay_out(cell, weight_ih, weight_hh, *added):
    """Lay a layer's parameters out for loops over time: the cell's table, weights, and what biases add to each sum.

    Weights are by columns, as `machine.tiles.multiply` takes them: panels of (G, I, H) and (G, H, H).
    """
    size = weight_hh.shape[1]
    by_x = panels(weight_ih.reshape(cell.gates, size, weight_ih.shape[1]).mT)
    by_h = panels(weight_hh.reshape(cell.gates, size, size).mT)
    return table_of(cell, weight_hh.dtype), by_x, by_h, biases(cell, *added)


def biases(cell, bias_ih, bias_hh, *vectors):
    """Return what biases add to each sum, and a cell's own vectors [shape=(P H,)]."""
    if vectors:
        return np.concatenate([biases(cell, bias_ih, bias_hh), *vectors])
    if not cell.split:
        return bias_ih + bias_hh
    apart = cell.split * len(bias_hh) // cell.gates
    found = np.empty(len(bias_hh) + apart, bias_hh.dtype)
    found[:apart], found[apart:] = bias_ih[-apart:], bias_hh
    found[apart:-apart] += bias_ih[:-apart]
    return found


@inline
def longest(lengths, steps, begin, count):
    """Return how many of the steps the longest of some samples has."""
    if not lengths.size:
        return steps
    most = lengths[begin]
    for b in range(begin + 1, begin + count):
        most = max(most, lengths[b])
    return most


@inline
def add_weights(product, grad_preacts, seen, scratch, block, gates, total):
    """Add to the gradients of both weights, which come one after the other: ``at.T @ seen`` for each gate.

    `at` are rows of `grad_preacts` [shape=(P, rows or more, H)], from one on. `seen` are inputs and states, the first
    of `samples` rows, side by side, of some steps, `batch` rows apart. `scratch` holds a product, and rows by panels.
    """
    (start, inputs, batch, samples, steps), (count, split), (_, most, size) = block, gates, grad_preacts.shape
    n = steps * samples
    for which in range(2):
        width, first = size if which else inputs, seen[1] if which else seen[0]
        panel, narrow = panel_width(width, grad_preacts.itemsize), width < NARROW
        found = shaped(scratch, 0, (width, size) if narrow else (size, width))
        rows = shaped(scratch, size * width, ((width + panel - 1) // panel, 1, n, panel))
        for p in range(len(rows)):
            for s in range(steps):
                here, there = s * batch * width + min(p * panel, width - panel), (p * n + s * samples) * panel
                copy_rows(pointer(first, here), width, pointer(rows, there), panel, panel, samples)
        for k in range(count):
            at = ((k + split if which else (k + split) % count) * most + start) * size
            if narrow:  # few columns would leave registers empty
                multiply_T(product, rows, grad_preacts, found, (1, width, n), (0, at, 0), 0)
                for i in range(size):
                    for j in range(width):
                        total[i * width + j] += found[j, i]
            else:
                multiply_T(product, grad_preacts, rows, found, (1, size, n), (at, 0, 0), 0)
                add(total, found, size * width)
            total = pointer(total, size * width)


@inline
def add_biases(grad_preacts, start, count, preacts, gates, biases):
    """Add rows of gradients at some preactivations [shape=(P, rows, H)] to those of both biases, and of vectors."""
    (gates, split), (_, most, size) = gates, grad_preacts.shape
    for k in range(preacts):
        for b in range(start, start + count):
            terms = pointer(grad_preacts, (k * most + b) * size)
            if k < gates:
                add(pointer(biases, (k - split) % gates * size), terms, size)
            if k >= split:
                add(pointer(biases, (gates + k - split) * size), terms, size)
