"""Structured chains compiled for CPUs; twins of the NumPy functions, with the same arguments.

Samples never wait for each other, nor do chunks while they are multiplied or replayed: that is what the cores share
out. Gradients below the smallest normal number count as zero.
"""

import math

import numpy as np
from numba import njit

from bppsa_nb.memory import keep_freed_memory, require
from bppsa_nb.operator import RangeLost
from bppsa_nb.structured.chain import apply_rows, smallest_kept
from bppsa_nb.subnormals import flush, restore
from bppsa_nb.tiles import GROUP, multiply
from bppsa_nb.workers import one_blas_thread, share_out

keep_freed_memory()

_compile = njit(cache=True, error_model="numpy", fastmath={"contract"}, nogil=True)
_WORTH = 2**21  # multiply-adds that one core has done before a second one is of any use


def jacobians_T(chain):
    """Write the transposed Jacobians out; see `bppsa_nb.structured.chain.jacobians_T`."""
    T, B, H = chain.shape
    require(T * B * H * H * chain.dtype.itemsize, f"storing {T} x {B} transposed Jacobians of {H} x {H}")
    assembled = np.empty((T, B, H, H), chain.dtype)
    weights, slopes, carry = _arrays(chain)
    by_rows = np.ascontiguousarray(weights.transpose(0, 2, 1))  # transposed once, so that loops run along rows
    share_out(_assemble, T, by_rows, slopes, carry, assembled, worth=assembled.size > _WORTH)
    return assembled


@_compile
def _assemble(weights_T, slopes, carry, assembled, first, last):
    size = assembled.shape[3]
    for t in range(first, last):
        for b in range(assembled.shape[1]):
            matrix = assembled[t, b]
            matrix[:] = 0
            for k in range(len(weights_T)):
                for i in range(size):
                    for j in range(size):
                        matrix[i, j] += weights_T[k, i, j] * slopes[k, t, b, j]
            if carry.size:
                for i in range(size):
                    matrix[i, i] += carry[t, b, i]
    return True


def sweep(chain, grad_output, local_grads=None):
    """Go back one step after the other; see `bppsa_nb.structured.chain.sweep`."""
    T, B, H = chain.shape
    gradients = _start(chain, grad_output, local_grads)
    worth = T * B * H * H * max(len(chain.weights), 1) > _WORTH
    share_out(_sweep_samples, -(-B // GROUP), *_arrays(chain), gradients, worth=worth)
    return gradients


def chunked(chain, grad_output, local_grads=None, length=1):
    """Go back chunk by chunk; see `bppsa_nb.structured.chain.chunked`."""
    T, B, H = chain.shape
    count = max(T - 1, 0) // length  # chunks below the one at the loss
    inner = max(count - 1, 0)  # and above the one at x_0: those that need products
    require(inner * B * H * H * chain.dtype.itemsize, f"multiplying {inner} chunks of {length} steps")
    gradients, arrays = _start(chain, grad_output, local_grads), _arrays(chain)
    ends = np.empty((count, B, H), chain.dtype)
    products, exponents = np.empty((inner, B, H, H), chain.dtype), np.zeros((inner, B, H), np.int64)
    offsets = np.zeros((inner, B, H), chain.dtype)
    with one_blas_thread():
        # Before gradients hold anything but loss terms: those of each chunk, gone back to its start.
        if local_grads is not None:
            share_out(_go_back, inner, *arrays, length, offsets, gradients, worth=T * B * H * H > _WORTH)
        _products(arrays, length, 1, products, exponents)
        _sweep(*arrays, count * length, T, gradients[T], gradients[count * length : T], 0, B)
        ends[-1:] = gradients[count * length]
        for c in reversed(range(inner)):
            ends[c] = apply_rows(products[c], exponents[c], ends[c + 1][:, None])[:, 0] + offsets[c]
        share_out(_replay, count, *arrays, length, ends, gradients, worth=T * B * H * H > _WORTH)
    return gradients


def products(chain, length):
    """Multiply the Jacobians of each chunk; see `bppsa_nb.structured.chain.products`."""
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
    weights_T, floor = np.ascontiguousarray(weights.transpose(0, 2, 1)), smallest_kept(*arrays)
    (count, B, H), steps = exponents.shape, (len(exponents) + skip) * length
    arrays = weights_T, slopes, carry, length, skip, floor, products, exponents
    if not share_out(_multiply, count * B, *arrays, worth=steps * B * H**3 > _WORTH):
        raise RangeLost


def _arrays(chain):
    carry = np.empty((0, *chain.shape[1:]), chain.dtype) if chain.carry is None else chain.carry
    # One layout, so that every function is compiled once per dtype.
    return tuple(np.require(array, requirements=("C", "W")) for array in (chain.weights, chain.slopes, carry))


def _start(chain, grad_output, local_grads):
    T, B, H = chain.shape
    gradients = np.zeros((T + 1, B, H), chain.dtype)
    if local_grads is not None:
        gradients[:T] = local_grads[:T]
    gradients[T] = grad_output
    return gradients


@_compile
def _sweep(weights, slopes, carry, start, end, grads, gradients, b0, b1):
    """Go back from x_end to x_start for samples b0 ... b1 - 1.

    `grads` holds the gradients at x_end; `gradients` [shape=(end - start, B, H)] the loss terms at x_start and above,
    where it will hold gradients.
    """
    count, size = len(weights), (b1 - b0) * gradients.shape[2]
    at_sums, product = np.empty((count, b1 - b0, gradients.shape[2]), grads.dtype), np.empty_like(grads[b0:b1])
    at, by, grad = at_sums.reshape(count, size), product.reshape(size), grads[b0:b1].copy().reshape(size)
    before = flush()
    for t in range(end - 1, start - 1, -1):
        for k in range(count):
            at_sum, slope = at[k], slopes[k, t, b0:b1].reshape(size)
            for i in range(size):
                at_sum[i] = slope[i] * grad[i]
        multiply(at_sums, weights, product)
        below = gradients[t - start, b0:b1].reshape(size)
        if carry.size:
            through = carry[t, b0:b1].reshape(size)
            for i in range(size):
                by[i] += through[i] * grad[i]
        for i in range(size):
            grad[i] = below[i] + by[i]
            below[i] = grad[i]
    restore(before)


@_compile
def _sweep_samples(weights, slopes, carry, gradients, first, last):
    """Go back all steps for groups first ... last - 1 of samples."""
    steps, b0, b1 = len(gradients) - 1, first * GROUP, min(last * GROUP, gradients.shape[1])
    _sweep(weights, slopes, carry, 0, steps, gradients[steps], gradients[:steps], b0, b1)
    return True


@_compile
def _replay(weights, slopes, carry, length, ends, gradients, first, last):
    """Go back along chunks first ... last - 1, each from the gradient at its end."""
    batch = gradients.shape[1]
    for c in range(first, last):
        start, end = c * length, (c + 1) * length
        _sweep(weights, slopes, carry, start, end, ends[c], gradients[start:end], 0, batch)
    return True


@_compile
def _go_back(weights, slopes, carry, length, offsets, local_grads, first, last):
    """Take the loss terms of chunks first + 1 ... last back to each one's start."""
    for c in range(first, last):
        start, end = (c + 1) * length, (c + 2) * length
        terms = local_grads[start:end].copy()
        _sweep(weights, slopes, carry, start, end, offsets[c], terms, 0, terms.shape[1])
        offsets[c] = terms[0]
    return True


@_compile
def _multiply(weights_T, slopes, carry, length, skip, floor, products, exponents, first, last):
    """Multiply the Jacobians of chunks from number `skip` on, those of one sample at a time, as `products` does.

    The unit vectors are the columns of a matrix, so that loops over all of them at once vectorize.
    """
    batch, size, dtype = products.shape[1], products.shape[2], products.dtype.type
    info = np.finfo(products.dtype)
    half, none = dtype(math.ldexp(1.0, info.minexp // 2)), dtype(np.inf)
    at_sums = np.empty((len(weights_T), size, size), products.dtype)
    columns, moved = np.empty((size, size), products.dtype), np.empty((size, size), products.dtype)
    high, low, least = np.empty(size, products.dtype), np.empty(size, products.dtype), np.empty(size, products.dtype)
    for q in range(first, last):
        c, b = q // batch, q % batch
        columns[:] = 0
        for j in range(size):
            columns[j, j] = 1
        for t in range((c + skip + 1) * length - 1, (c + skip) * length - 1, -1):
            for k in range(len(weights_T)):
                for i in range(size):
                    slope = slopes[k, t, b, i]
                    for j in range(size):
                        at_sums[k, i, j] = slope * columns[i, j]
            multiply(weights_T, at_sums, moved)
            if carry.size:
                for i in range(size):
                    through = carry[t, b, i]
                    for j in range(size):
                        moved[i, j] += through * columns[i, j]
            high[:], low[:], least[:] = 0, none, none
            for i in range(size):
                for j in range(size):
                    entry = abs(moved[i, j])
                    high[j] = entry if entry > high[j] else high[j]
                    least[j] = entry if entry < least[j] else least[j]
                    entry = entry if entry > 0 else none
                    low[j] = entry if entry < low[j] else low[j]
            for j in range(size):
                if not high[j] < none or low[j] < high[j] * half or least[j] < floor:
                    return False
                shift = max(math.frexp(high[j])[1], info.minexp)
                exponents[c, b, j] += shift
                high[j] = dtype(math.ldexp(1.0, -shift))
            for i in range(size):
                for j in range(size):
                    columns[i, j] = moved[i, j] * high[j]
        products[c, b] = columns.T
    return True
