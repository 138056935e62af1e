"""Runs of steps compiled for CPUs; counterparts of the NumPy functions of `bppsa_nb.chains.runs`, with their arguments.

Samples never wait for each other, nor do runs: that is what the cores share out. Going back along a structured chain,
numbers below the smallest normal one count as zero: weights, slopes, carries, gradients.
"""

import math

import numpy as np

from bppsa_nb.machine.compiling import compiled, inline
from bppsa_nb.machine.intrinsics import clear, copy, flush, pointer, restore
from bppsa_nb.machine.memory import require
from bppsa_nb.machine.tiles import GROUP, product
from bppsa_nb.machine.tiles import multiply as multiply_tiles
from bppsa_nb.machine.workers import THREADS, parallel_for
from bppsa_nb.operands import range as rules
from bppsa_nb.operands.range import DynamicRangeError
from bppsa_nb.operands.rows import smallest_kept
from bppsa_nb.operands.scaled_cpu import dot, flat, limit, moderate, normalize

_spread, _shift = inline(rules.spread), inline(rules.shift)
_THRESHOLD = 2**21  # multiply-adds that one core has done before a second one is of any use


def pass_back(chain, bounds, ends, gradients, keep=True):
    """Go back along runs of steps; see `bppsa_nb.chains.runs.pass_back`. Runs may differ in length."""
    runs, B, H = ends.shape
    bounds, arrays = np.asarray(bounds), chain.arrays(B)
    work = (bounds[-1] - bounds[0]) * B * H * arrays[0].shape[2] * max(chain.num_weights, 1)
    group = B  # samples that go together
    if work > _THRESHOLD and chain.num_weights == 0:
        group = -(-B // -(-THREADS // runs))
    elif work > _THRESHOLD and runs == 1:
        group = GROUP  # whose products share what they read of the weights
    arrays = product(chain.dtype), arrays, bounds, (ends, gradients), keep, group
    parallel_for(_go_back, runs * -(-B // group), *arrays, parallel=work > _THRESHOLD)


def multiply(chain, first, count, length):
    """Multiply the Jacobians of chunks; see `bppsa_nb.chains.runs.multiply`."""
    _, B, H = chain.shape
    require(count * B * H * H * chain.dtype.itemsize, f"multiplying {count} chunks of {length} steps")
    products, exponents = np.empty((count, B, H, H), chain.dtype), np.zeros((count, B, H), np.int64)
    weights, *diagonals = chain.arrays(B)
    chain_T = np.ascontiguousarray(weights.transpose(0, 2, 1)), *diagonals
    smallest = smallest_kept(weights, *diagonals[:2])
    arrays = product(products.dtype), chain_T, length, first, smallest, (products, exponents)
    if not parallel_for(_multiply, count * B, *arrays, parallel=count * length * B * H**3 > _THRESHOLD):
        raise DynamicRangeError
    return products, exponents


def jacobians_T(chain):
    """Write the transposed Jacobians out; see `bppsa_nb.chains.chain.jacobians_T`."""
    T, B, H = chain.shape
    require(T * B * H * H * chain.dtype.itemsize, f"storing {T} x {B} transposed Jacobians of {H} x {H}")
    assembled = np.empty((T, B, H, H), chain.dtype)
    weights, slopes, carry, _ = chain.arrays(B)
    by_rows = np.ascontiguousarray(weights.transpose(0, 2, 1))  # transposed once, so that loops run along rows
    parallel_for(_assemble, T, by_rows, slopes, carry, assembled, parallel=assembled.size > _THRESHOLD)
    return assembled


@compiled
def _assemble(weights_T, slopes, carry, assembled, first, last):
    size, width = assembled.shape[3], weights_T.shape[2]
    for t in range(first, last):
        for b in range(assembled.shape[1]):
            matrix = assembled[t, b]
            for i in range(size):
                for j in range(size):
                    matrix[i, j] = 0
            for k in range(len(weights_T)):
                for i in range(width):
                    for s in range(0, size, width):
                        for j in range(width):
                            matrix[i, s + j] += weights_T[k, i, j] * slopes[k, t, b, s + j]
            for k in range(len(carry)):
                for j in range(size):
                    matrix[k * width + j % width, j] += carry[k, t, b, j]
    return True


@compiled
def _go_back(product, chain, bounds, grads, keep, group, first, last):
    """Go back: piece ``run * groups + g`` is the g-th group of samples in one run."""
    (weights, slopes, carry, stored), (ends, gradients) = chain, grads
    (count, steps, batch, size), width = slopes.shape, weights.shape[2]
    groups, states = (batch + group - 1) // group, size // width
    scratch, rooms = np.empty((count, group, width), gradients.dtype), np.empty((2, group, size), gradients.dtype)
    grad, by = pointer(rooms, 0), pointer(rooms, group * size)
    before = flush()
    if stored.size:
        restore(before)
    for piece in range(first, last):
        run, b0 = piece // groups, piece % groups * group
        samples = min(b0 + group, batch) - b0
        n, sizes = samples * size, (count, samples, width)
        rows, each = (1, n) if states == 1 else (samples, width)
        end = pointer(ends, (run * batch + b0) * size)
        copy(end, grad, n)
        for t in range(bounds[run + 1] - 1, bounds[run] - 1, -1):
            if stored.size:
                for b in range(samples):
                    dot(stored[t, (b0 + b) % stored.shape[1]], rooms[0, b], rooms[1, b])
            for k in range(count):
                slope = pointer(slopes, ((k * steps + t) * batch + b0) * size)
                _fold(slope, grad, rows, states, each, True, pointer(scratch, k * group * width), each)
            if not stored.size:
                multiply_tiles(product, scratch, weights, rooms, sizes, (0, 0, group * size), 0)
            if states > 1:
                for b in range(samples):
                    clear(pointer(by, b * size + width), size - width)
            for k in range(len(carry)):
                through = pointer(carry, ((k * steps + t) * batch + b0) * size)
                _fold(through, grad, rows, states, each, False, pointer(by, k * width), states * each)
            below = pointer(gradients, (t * batch + b0) * size)
            for i in range(n):
                grad[i] = below[i] + by[i]
            if keep:
                copy(grad, below, n)
        if not keep:
            copy(grad, end, n)
    restore(before)
    return True


@inline
def _fold(factors, grad, rows, states, size, anew, out, apart):
    """Add up factors times gradients, of each of a sample's vectors, to rows which are `apart`, or write them there."""
    for b in range(rows):
        for s in range(states):
            start, total = (b * states + s) * size, pointer(out, b * apart)
            by, at = pointer(factors, start), pointer(grad, start)
            if anew and s == 0:
                for i in range(size):
                    total[i] = by[i] * at[i]
            else:
                for i in range(size):
                    total[i] += by[i] * at[i]


@inline
def _scale(columns, floor, extremes, exponents, scaled):
    """Scale columns by a power of two each, added to its exponent; return False if one is not in range."""
    size, dtype, minexp = len(columns), columns.dtype.type, limit(columns, "minexp")
    high, low, least = extremes[0], extremes[1], extremes[2]
    none, narrow = dtype(np.inf), dtype(math.ldexp(1.0, _spread(minexp)))
    for j in range(size):
        high[j], low[j], least[j] = 0, none, none
    for i in range(size):
        for j in range(size):
            entry = abs(columns[i, j])
            high[j] = entry if entry > high[j] else high[j]
            least[j] = entry if entry < least[j] else least[j]
            entry = entry if entry > 0 else none
            low[j] = entry if entry < low[j] else low[j]
    for j in range(size):
        if not high[j] < none or low[j] < high[j] * narrow or least[j] < floor:
            return False
        shift = _shift(math.frexp(high[j])[1], minexp)
        exponents[j] += shift
        high[j] = dtype(math.ldexp(1.0, -shift))
    for i in range(size):
        for j in range(size):
            scaled[i, j] = columns[i, j] * high[j]
    return True


@compiled
def _multiply(product, chain, length, skip, floor, found, first, last):
    """Multiply the Jacobians of chunks from number `skip` on, those of one sample at a time, as `products` does.

    The unit vectors are the columns of a matrix, so that loops over all of them at once vectorize.
    """
    (weights_T, slopes, carry, stored), (products, exponents) = chain, found
    batch, size, width = products.shape[1], products.shape[2], weights_T.shape[2]
    grad_preacts = np.empty((len(weights_T), width, size), products.dtype)
    both, moved = np.empty((2, size, size), products.dtype), np.empty((size, size), products.dtype)
    columns, link = both[0], both[1]
    extremes = np.empty((3, size), products.dtype)
    for q in range(first, last):
        c, b = q // batch, q % batch
        for i in range(size):
            for j in range(size):
                columns[i, j] = i == j
        for t in range((c + skip + 1) * length - 1, (c + skip) * length - 1, -1):
            for k in range(len(weights_T)):
                for i in range(size):
                    slope = slopes[k, t, b, i]
                    if i < width:
                        for j in range(size):
                            grad_preacts[k, i, j] = slope * columns[i, j]
                    else:
                        for j in range(size):
                            grad_preacts[k, i % width, j] += slope * columns[i, j]
            if stored.size:
                copy(stored[t, b], link, size * size)
                if not moderate(flat(link)):
                    power, kept = normalize(flat(link))
                    if not kept:
                        return False
                    for j in range(size):
                        exponents[c, b, j] += power
                multiply_tiles(product, both, both, moved, (1, size, size), (size * size, 0, 0), 0)
            else:
                multiply_tiles(product, weights_T, grad_preacts, moved, (len(weights_T), width, width), (0, 0, 0), 0)
            clear(pointer(moved, width * size), (size - width) * size)
            for k in range(len(carry)):
                for i in range(size):
                    through = carry[k, t, b, i]
                    for j in range(size):
                        moved[k * width + i % width, j] += through * columns[i, j]
            if not _scale(moved, floor, extremes, exponents[c, b], columns):
                return False
        for i in range(size):
            for j in range(size):
                products[c, b, i, j] = columns[j, i]
    return True
