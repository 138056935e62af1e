"""How cores share out the samples of a batch, and how loops in compiled code come by their numbers.

Samples never wait for each other, so cores share out groups of them; what waits for no other step is computed for all
steps at once, and shared out by time.

Compiled code fills the arrays it is given. Where it returns several, a Ctrl-C that arrives while Numba wraps them up
turns into a SystemError.
"""

import numpy as np

from bppsa_nb.cells.spans import WHOLE
from bppsa_nb.machine.compiling import inline
from bppsa_nb.machine.second_core import helped
from bppsa_nb.machine.tiles import GROUP, NARROW, multiply_T, panel_width, panels, product
from bppsa_nb.machine.views import add, copy, flat_view
from bppsa_nb.machine.workers import parallel_for

_THRESHOLD = 2**21  # multiply-adds that one core has done before a second one is of any use
_AT_HAND = 2**20  # bytes of weights that stay in a core's own cache
_MOST = 4 * GROUP  # samples side by side where they do not
_LEFT = 4  # groups of samples that cores can still share out then
_STEPS = 32  # that a group of samples goes before it writes to memory that others write to as well
_BLOCK = 2**15  # numbers of these steps, at the most: the cache keeps so many
_WHOLE = tuple(WHOLE)  # a plain tuple, which calls of compiled code know sooner


def share_samples(function, x, weights, saved, spans=_WHOLE):
    """Have a compiled forward pass go through time, by groups of samples where that pays.

    `weights` are the cell's table, both weights by columns, and what biases add to each sum; `saved` is filled.
    """
    (steps, batch, _), (_, by_x, by_h, _) = x.shape, weights
    group, work = samples_together(batch, by_h), steps * batch * (by_x.size + by_h.size)
    in_groups(function, batch, group, work, by_h, x, weights, saved, spans)


def in_groups(function, batch, group, work, weights, *arrays):
    """Have compiled code take a batch through time, so many multiply-adds, by groups of samples.

    Cores share the groups, or each product with panels of `weights` if there is one group only.
    """
    groups, table = -(-batch // group), product(weights.dtype)
    if groups > 1 or len(weights) == 1 or work <= _THRESHOLD:
        parallel_for(function, groups, group, table, *arrays, parallel=work > _THRESHOLD)
    else:
        with helped(table) as shared:
            function(group, shared, *arrays, 0, 1)


def samples_together(batch, weights):
    """Return how many samples a core takes through time side by side, by sizes alone: sums shall not depend on cores.

    Each step reads weights once for all of them: the more, where these come from beyond a core's cache.
    """
    return GROUP if weights.nbytes <= _AT_HAND else max(GROUP, min(_MOST, batch // _LEFT // GROUP * GROUP))


def by_columns(cell, weight):
    """Lay a cell's weights [shape=(G H, J)] out as `machine.tiles.multiply` takes them: panels of (G, J, H)."""
    return panels(weight.reshape(cell.gates, len(weight) // cell.gates, -1).transpose(0, 2, 1))


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
def longest(spans, steps, begin, count):
    """Return how many of the steps the longest of some samples has."""
    _, lengths = spans
    if not lengths.size:
        return steps
    most = lengths[begin]
    for b in range(begin + 1, begin + count):
        most = max(most, lengths[b])
    return most


@inline
def steps_of_block(numbers, kinds):
    """Return how many steps a group of samples goes at once, whose states and gates have so many numbers each."""
    return max(1, min(_STEPS, _BLOCK // (kinds * numbers)))


@inline
def repeated(bias, size, count):
    """Repeat what biases add to each of K sums [shape=(K * size,)] for every sample [shape=(K, count * size)]."""
    added = np.empty((bias.size // size, count * size), bias.dtype)
    for k in range(len(added)):
        for b in range(count):
            copy(flat_view(bias, k * size, size), flat_view(added, (k * count + b) * size, size))
    return added


@inline
def gather(array, begin, count, start, steps, block):
    """Copy `count` samples of some steps of an array [shape=(T, B, J)] side by side, into a block of their own."""
    n = count * array.shape[2]
    for s in range(steps):
        there = flat_view(array, ((start + s) * array.shape[1] + begin) * array.shape[2], n)
        copy(there, flat_view(block, s * n, n))


@inline
def scatter(block, begin, count, start, steps, array):
    """Copy what `gather` copies back to where it belongs.

    Cores that wrote to neighboring memory at every single step would keep taking it away from each other.
    """
    n = count * array.shape[2]
    for s in range(steps):
        there = flat_view(array, ((start + s) * array.shape[1] + begin) * array.shape[2], n)
        copy(flat_view(block, s * n, n), there)


@inline
def room_for_panels(rows, array):
    """Make room for so many rows of an array's last dimension, by panels [shape=(P, 1, rows, W)]."""
    columns = array.shape[2]
    width = panel_width(columns, array.itemsize)
    return np.empty(((columns + width - 1) // width, 1, rows, width), array.dtype)


@inline
def gather_panels(array, begin, count, start, steps, room):
    """Copy what `gather` copies, but by panels [shape=(P, 1, rows, W)], where there is room for no fewer rows."""
    (_, batch, columns), (number, _, rows, width) = array.shape, room.shape
    if number == 1:
        gather(array, begin, count, start, steps, room)
        return
    for p in range(number):
        first = min(p * width, columns - width)
        for s in range(steps):
            for b in range(count):
                there = flat_view(array, ((start + s) * batch + begin + b) * columns + first, width)
                copy(there, flat_view(room, (p * rows + s * count + b) * width, width))


@inline
def add_products(product, at, seen, found, total):
    """Add ``at.T @ seen``, a weight's gradient, to numbers [shape=(H * I,)]; `found` [shape=(H, I)] is for the product.

    `at` [shape=(1, rows, H)] and `seen` [shape=(P, 1, rows, W)], by panels, have as many rows.
    """
    height, width = found.shape
    if width >= NARROW:
        multiply_T(product, at, seen, found)
        add(total, flat_view(found, 0, found.size))
    else:  # few columns would leave registers empty
        transposed = found.reshape(width, height)
        multiply_T(product, seen[0], at, transposed)
        for i in range(height):
            for j in range(width):
                total[i * width + j] += transposed[j, i]
