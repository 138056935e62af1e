"""Structured chains compiled for CPUs; counterparts of the NumPy functions, with the same arguments.

Samples never wait for each other, nor do chunks while they are multiplied or replayed: that is what the cores share
out. Going back, numbers below the smallest normal one count as zero: weights, slopes, carries, gradients.
"""

import math

import numpy as np

from bppsa_nb.chains import stored_cpu
from bppsa_nb.chains.structured import carry_of, room_for_gradients
from bppsa_nb.machine.compiling import compiled, inline
from bppsa_nb.machine.memory import require
from bppsa_nb.machine.subnormals import flush, restore
from bppsa_nb.machine.tiles import GROUP, multiply, product
from bppsa_nb.machine.views import clear, copy, pointer
from bppsa_nb.machine.workers import one_blas_thread, parallel_for
from bppsa_nb.operands import range as rules
from bppsa_nb.operands import rows
from bppsa_nb.operands.range import DynamicRangeError

_spread, _shift = inline(rules.spread), inline(rules.shift)
_THRESHOLD = 2**21  # multiply-adds that one core has done before a second one is of any use


def jacobians_T(chain):
    """Write the transposed Jacobians out; see `bppsa_nb.chains.structured.jacobians_T`."""
    T, B, H = chain.shape
    require(T * B * H * H * chain.dtype.itemsize, f"storing {T} x {B} transposed Jacobians of {H} x {H}")
    assembled = np.empty((T, B, H, H), chain.dtype)
    weights, slopes, carry = _arrays(chain)
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


def sweep(chain, grad_output, local_grads=None):
    """Go back one step after the other; see `bppsa_nb.chains.structured.sweep`."""
    gradients = room_for_gradients(chain, grad_output, local_grads)
    _sweep(chain, [0, chain.shape[0]], gradients[-1:], gradients)
    return gradients


def chunked(chain, grad_output, local_grads=None, length=1):
    """Go back chunk by chunk; see `bppsa_nb.chains.structured.chunked`."""
    T, B, H = chain.shape
    count = max(T - 1, 0) // length  # chunks below the one at the loss
    inner = max(count - 1, 0)  # and above the one at x_0: those that need products
    require(inner * B * H * H * chain.dtype.itemsize, f"multiplying {inner} chunks of {length} steps")
    gradients = room_for_gradients(chain, grad_output, local_grads)
    ends = np.empty((count, B, H), chain.dtype)
    products, exponents = np.empty((inner, B, H, H), chain.dtype), np.zeros((inner, B, H), np.int64)
    offsets = np.zeros((inner, B, H), chain.dtype)
    bounds = np.arange(count + 1) * length
    with one_blas_thread():
        # Before gradients hold anything but loss terms: those of each chunk, gone back to its start.
        if inner and local_grads is not None:
            _sweep(chain, bounds[1:], offsets, gradients, keep=False)
        _products(_arrays(chain), length, 1, products, exponents)
        _sweep(chain, [count * length, T], gradients[T:], gradients)
        ends[-1:] = gradients[count * length]
        for c in reversed(range(inner)):
            ends[c] = rows.apply(products[c], exponents[c], ends[c + 1][:, None])[:, 0] + offsets[c]
        _sweep(chain, bounds, ends, gradients)
    return gradients


def levels(chain, grad_output, local_grads=None, levels=None):
    """Write the Jacobians out, and scan them level by level; see `bppsa_nb.chains.structured.levels`."""
    return stored_cpu.levels(jacobians_T(chain), grad_output, local_grads, levels)


def products(chain, length):
    """Multiply the Jacobians of each chunk; see `bppsa_nb.chains.structured.products`."""
    T, B, H = chain.shape
    count = T // length
    require(count * B * H * H * chain.dtype.itemsize, f"multiplying {count} chunks of {length} steps")
    products, exponents = np.empty((count, B, H, H), chain.dtype), np.zeros((count, B, H), np.int64)
    with one_blas_thread():
        _products(_arrays(chain), length, 0, products, exponents)
    return products, exponents


def _products(arrays, length, skip, products, exponents):
    """Multiply the chunks from number `skip` on, as many as there is room for."""
    weights, slopes, carry = arrays
    weights_T, floor = np.ascontiguousarray(weights.transpose(0, 2, 1)), rows.smallest_kept(*arrays)
    (count, B, H), steps = exponents.shape, (len(exponents) + skip) * length
    arrays = product(products.dtype), (weights_T, slopes, carry), length, skip, floor, (products, exponents)
    if not parallel_for(_multiply, count * B, *arrays, parallel=steps * B * H**3 > _THRESHOLD):
        raise DynamicRangeError


def _arrays(chain):
    # One layout, so that every function is compiled once per dtype.
    arrays = chain.weights, chain.slopes, carry_of(chain)
    return tuple(np.require(array, requirements=("C", "W")) for array in arrays)


def _sweep(chain, bounds, ends, gradients, keep=True):
    """Go back along runs of steps that do not wait for each other, run r from x_bounds[r + 1] to x_bounds[r].

    `ends` [shape=(runs, B, H)] holds the gradients at their ends, and `gradients` [shape=(T + 1, B, H)] loss terms
    where it will hold gradients. Unless these are kept there, those at the runs' starts take the place of `ends`.
    """
    T, B, H = chain.shape
    bounds, (weights, slopes, carry) = np.asarray(bounds), _arrays(chain)
    runs, work = len(ends), (bounds[-1] - bounds[0]) * B * weights.shape[2] ** 2 * max(len(weights), 1)
    group = GROUP if runs == 1 and work > _THRESHOLD else B  # samples that go together
    arrays = product(chain.dtype), (weights, slopes, carry), bounds, (ends, gradients), keep, group
    parallel_for(_go_back, runs * -(-B // group), *arrays, parallel=work > _THRESHOLD)


@compiled
def _go_back(product, chain, bounds, grads, keep, group, first, last):
    """Go back: piece ``run * groups + g`` is the g-th group of samples in one run."""
    (weights, slopes, carry), (ends, gradients) = chain, grads
    (count, steps, batch, size), width = slopes.shape, weights.shape[2]
    groups, states = (batch + group - 1) // group, size // width
    scratch, rooms = np.empty((count, group, width), gradients.dtype), np.empty((2, group, size), gradients.dtype)
    grad, by = pointer(rooms, 0), pointer(rooms, group * size)
    before = flush()
    for piece in range(first, last):
        run, b0 = piece // groups, piece % groups * group
        samples = min(b0 + group, batch) - b0
        n, sizes = samples * size, (count, samples, width)
        rows, each = (1, n) if states == 1 else (samples, width)
        end = pointer(ends, (run * batch + b0) * size)
        copy(end, grad, n)
        for t in range(bounds[run + 1] - 1, bounds[run] - 1, -1):
            for k in range(count):
                slope = pointer(slopes, ((k * steps + t) * batch + b0) * size)
                _fold(slope, grad, rows, states, each, True, pointer(scratch, k * group * width), each)
            multiply(product, scratch, weights, rooms, sizes, (0, 0, group * size), 0)
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


@compiled
def _multiply(product, chain, length, skip, floor, found, first, last):
    """Multiply the Jacobians of chunks from number `skip` on, those of one sample at a time, as `products` does.

    The unit vectors are the columns of a matrix, so that loops over all of them at once vectorize.
    """
    (weights_T, slopes, carry), (products, exponents) = chain, found
    batch, size, width, dtype = products.shape[1], products.shape[2], weights_T.shape[2], products.dtype.type
    info = np.finfo(products.dtype)
    narrow, none = dtype(math.ldexp(1.0, _spread(info.minexp))), dtype(np.inf)
    at_sums = np.empty((len(weights_T), width, size), products.dtype)
    columns, moved = np.empty((size, size), products.dtype), np.empty((size, size), products.dtype)
    high, low, least = np.empty(size, products.dtype), np.empty(size, products.dtype), np.empty(size, products.dtype)
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
                            at_sums[k, i, j] = slope * columns[i, j]
                    else:
                        for j in range(size):
                            at_sums[k, i % width, j] += slope * columns[i, j]
            multiply(product, weights_T, at_sums, moved, (len(weights_T), width, width), (0, 0, 0), 0)
            clear(pointer(moved, width * size), (size - width) * size)
            for k in range(len(carry)):
                for i in range(size):
                    through = carry[k, t, b, i]
                    for j in range(size):
                        moved[k * width + i % width, j] += through * columns[i, j]
            for j in range(size):
                high[j], low[j], least[j] = 0, none, none
            for i in range(size):
                for j in range(size):
                    entry = abs(moved[i, j])
                    high[j] = entry if entry > high[j] else high[j]
                    least[j] = entry if entry < least[j] else least[j]
                    entry = entry if entry > 0 else none
                    low[j] = entry if entry < low[j] else low[j]
            for j in range(size):
                if not high[j] < none or low[j] < high[j] * narrow or least[j] < floor:
                    return False
                shift = _shift(math.frexp(high[j])[1], info.minexp)
                exponents[c, b, j] += shift
                high[j] = dtype(math.ldexp(1.0, -shift))
            for i in range(size):
                for j in range(size):
                    columns[i, j] = moved[i, j] * high[j]
        for i in range(size):
            for j in range(size):
                products[c, b, i, j] = columns[j, i]
    return True
