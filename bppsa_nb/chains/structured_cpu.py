"""Structured chains compiled for CPUs; counterparts of the NumPy functions, with the same arguments.

Samples never wait for each other, nor do chunks while they are multiplied or replayed: that is what the cores share
out. Going back, numbers below the smallest normal one count as zero: weights, slopes, carries, gradients.
"""

import math

import numpy as np

from bppsa_nb.chains import stored_cpu
from bppsa_nb.chains.structured import room_for_gradients
from bppsa_nb.machine.compiling import compiled, inline
from bppsa_nb.machine.memory import require
from bppsa_nb.machine.subnormals import flush, restore
from bppsa_nb.machine.tiles import GROUP, multiply, product
from bppsa_nb.machine.views import copy
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
    size = assembled.shape[3]
    for t in range(first, last):
        for b in range(assembled.shape[1]):
            matrix = assembled[t, b]
            for i in range(size):
                for j in range(size):
                    matrix[i, j] = 0
            for k in range(len(weights_T)):
                for i in range(size):
                    for j in range(size):
                        matrix[i, j] += weights_T[k, i, j] * slopes[k, t, b, j]
            if carry.size:
                for i in range(size):
                    matrix[i, i] += carry[t, b, i]
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
    carry = np.empty((0, *chain.shape[1:]), chain.dtype) if chain.carry is None else chain.carry
    # One layout, so that every function is compiled once per dtype.
    return tuple(np.require(array, requirements=("C", "W")) for array in (chain.weights, chain.slopes, carry))


def _sweep(chain, bounds, ends, gradients, keep=True):
    """Go back along runs of steps that do not wait for each other, run r from x_bounds[r + 1] to x_bounds[r].

    `ends` [shape=(runs, B, H)] holds the gradients at their ends, and `gradients` [shape=(T + 1, B, H)] loss terms
    where it will hold gradients. Unless these are kept there, those at the runs' starts take the place of `ends`.
    """
    T, B, H = chain.shape
    bounds, (weights, slopes, carry) = np.asarray(bounds), _arrays(chain)
    runs, work = len(ends), (bounds[-1] - bounds[0]) * B * H * H * max(len(weights), 1)
    group = GROUP if runs == 1 and work > _THRESHOLD else B  # samples that go together
    parts = weights, slopes.reshape(len(slopes), T, B * H), carry.reshape(len(carry), B * H)
    arrays = product(chain.dtype), parts, bounds, (ends, gradients), keep, group
    parallel_for(_go_back, runs * -(-B // group), *arrays, parallel=work > _THRESHOLD)


@compiled
def _go_back(product, chain, bounds, grads, keep, group, first, last):
    """Go back: piece ``run * groups + g`` is the g-th group of samples in one run."""
    (weights, slopes, carry), (ends, gradients) = chain, grads
    count, batch, width = len(weights), gradients.shape[1], gradients.shape[2]
    there, here = ends.reshape(len(ends), batch * width), gradients.reshape(len(gradients), batch * width)
    groups = (batch + group - 1) // group
    scratch = np.empty((count + 2, group, width), gradients.dtype)
    flat = scratch.reshape(count + 2, group * width)
    grad, by = flat[count], flat[count + 1]
    before = flush()
    for piece in range(first, last):
        run, b0 = piece // groups, piece % groups * group
        b1 = min(b0 + group, batch)
        low, high = b0 * width, b1 * width
        at_sums, sums = scratch[:count, : b1 - b0], scratch[count + 1, : b1 - b0]
        end = there[run, low:high]
        copy(end, grad)
        for t in range(bounds[run + 1] - 1, bounds[run] - 1, -1):
            for k in range(count):
                slope, at_sum = slopes[k, t, low:high], flat[k]
                for i in range(slope.size):
                    at_sum[i] = slope[i] * grad[i]
            multiply(product, at_sums, weights, sums)
            if carry.size:
                through = carry[t, low:high]
                for i in range(through.size):
                    by[i] += through[i] * grad[i]
            below = here[t, low:high]
            for i in range(below.size):
                grad[i] = below[i] + by[i]
            if keep:
                copy(grad, below)
        if not keep:
            copy(grad, end)
    restore(before)
    return True


@compiled
def _multiply(product, chain, length, skip, floor, found, first, last):
    """Multiply the Jacobians of chunks from number `skip` on, those of one sample at a time, as `products` does.

    The unit vectors are the columns of a matrix, so that loops over all of them at once vectorize.
    """
    (weights_T, slopes, carry), (products, exponents) = chain, found
    batch, size, dtype = products.shape[1], products.shape[2], products.dtype.type
    info = np.finfo(products.dtype)
    narrow, none = dtype(math.ldexp(1.0, _spread(info.minexp))), dtype(np.inf)
    at_sums = np.empty((len(weights_T), size, size), products.dtype)
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
                    for j in range(size):
                        at_sums[k, i, j] = slope * columns[i, j]
            multiply(product, weights_T, at_sums, moved)
            if carry.size:
                for i in range(size):
                    through = carry[t, b, i]
                    for j in range(size):
                        moved[i, j] += through * columns[i, j]
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
