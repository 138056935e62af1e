"""Kernels of linear and chunked scans, over structured chains and over stored Jacobians.

Jacobians of a structured chain are made of weights and diagonals where they are multiplied. Three kernels are the
three phases of the chunked scan: `multiply_chunks` takes the unit vectors back along each chunk; `across_chunks` takes
the gradient back over the products; `sweep_chunks` replays the chunks, one chunk of one sample per block, and is the
linear scan where there is only one. `prepare` writes Jacobians out, for the scan by levels.
"""

import math
from functools import cache

import numpy as np
from numba import cuda

from bppsa_nb.machine.cuda import dot_of, inline
from bppsa_nb.operands.scaled_cuda import blurred, half, minexp, nmant, rescale, shift, smaller, spread

U = np.uint32  # see `dot_of`
_ROOM = 8  # powers of two that a row may grow or shrink by before it is scaled


@inline
def dot(matrix, column, shared, offset):
    """Multiply a column of a matrix by numbers in shared memory, as four sums that do not wait for each other."""
    zero = matrix.dtype.type(0)
    a, b, c, d = zero, zero, zero, zero
    rows = matrix.shape[0]
    whole = rows - rows % 4
    for q in range(0, whole, 4):
        a += matrix[q, column] * shared[offset + q]
        b += matrix[q + 1, column] * shared[offset + q + 1]
        c += matrix[q + 2, column] * shared[offset + q + 2]
        d += matrix[q + 3, column] * shared[offset + q + 3]
    for q in range(whole, rows):
        a += matrix[q, column] * shared[offset + q]
    return (a + b) + (c + d)


@cache
def sweep_chunks_of(size, count, carried, keep, real):
    """Make `sweep_chunks` for one H and K: a thread per state's entry, with its K columns of weights in registers."""
    sums, zero = count * size, real(0)
    dot = dot_of(sums, real)

    @cuda.jit
    def sweep_chunks(weights, slopes, carry, first, length, ends, gradients):
        at_sums = cuda.shared.array(0, ends.dtype)  # of this step, and of the next one meanwhile
        column, slope = cuda.local.array(sums, real), cuda.local.array(count, real)
        batch = U(gradients.shape[1])
        c, b, i = U(cuda.blockIdx.x) // batch, U(cuda.blockIdx.x) % batch, U(cuda.threadIdx.x)
        start = (first + int(c)) * length
        last = min(start + length, gradients.shape[0] - 1) - 1
        for q in range(sums):
            column[q] = weights[q, i]
        for k in range(count):
            slope[k] = slopes[U(k), U(last), b, i]
        term, through = gradients[U(last), b, i], carry[U(last), b, i] if carried else zero
        grad, here = ends[c, b, i] if keep else zero, U(0)
        for t in range(last, start - 1, -1):
            for k in range(count):
                at_sums[here + U(k * size) + i] = slope[k] * grad
            total = term + through * grad if carried else term
            ahead = U(max(t - 1, start))  # read a step ahead, so that none waits for memory
            for k in range(count):
                slope[k] = slopes[U(k), ahead, b, i]
            term = gradients[ahead, b, i]
            if carried:
                through = carry[ahead, b, i]
            cuda.syncthreads()
            grad = dot(total, column, at_sums, here)
            here = U(sums) - here
            if keep:
                gradients[U(t), b, i] = grad
        ends[c, b, i] = grad

    return sweep_chunks


@cuda.jit
def sweep_chunks(stored, dense, weights, slopes, carry, with_carry, first, length, ends, gradients, keep):
    """Go back along chunks (Equation 3) of any H, one chunk of one sample per block.

    The first six arguments are those of `Links`. ``ends[c]`` is the gradient at the end of chunk ``first + c`` and
    becomes that at its start. `gradients` holds loss terms and becomes what is found; if `keep` is false, it stays as
    it is, and every chunk begins with a gradient of zero.
    """
    shared = cuda.shared.array(0, gradients.dtype)  # the gradient, then what it is at the K sums
    batch, size = gradients.shape[1], gradients.shape[2]
    sums = size if dense else weights.shape[0]
    c, b = cuda.blockIdx.x // batch, cuda.blockIdx.x % batch
    tid, threads = cuda.threadIdx.x, cuda.blockDim.x
    start = (first + c) * length
    last = min(start + length, gradients.shape[0] - 1) - 1
    for i in range(tid, size, threads):
        shared[i] = ends[c, b, i] if keep else gradients.dtype.type(0)
    k, column = tid // size, tid % size
    slope = gradients.dtype.type(1)
    if tid < sums and not dense:
        slope = slopes[k, last, b, column]
    for t in range(last, start - 1, -1):
        now = slope
        if tid < sums and not dense:
            slope = slopes[k, max(t - 1, start), b, column]  # read ahead, so that no step waits for memory
        cuda.syncthreads()
        if tid < sums:
            shared[size + tid] = now * shared[column]
        for q in range(tid + threads, sums, threads):
            shared[size + q] = shared[q % size] if dense else slopes[q // size, t, b, q % size] * shared[q % size]
        cuda.syncthreads()
        for i in range(tid, size, threads):
            total = gradients[t, b, i]
            if dense:
                for j in range(size):
                    total += stored[t, b % stored.shape[1], i, j] * shared[size + j]
            else:
                total += dot(weights, i, shared, size)
            if with_carry:
                total += carry[t, b, i] * shared[i]
            shared[i] = total
            if keep:
                gradients[t, b, i] = total
    for i in range(tid, size, threads):
        ends[c, b, i] = shared[i]


@inline
def _smallest_kept(stored, dense, weights, slopes, carry, with_carry, t, b):
    """Return how small an entry may be after a step without having lost a term; see `operands.rows`."""
    one, least = stored.dtype.type(1), minexp(stored.itemsize)
    smallest, largest = stored.dtype.type(math.inf), one
    slope, through = smallest, smallest
    size = stored.shape[2] if dense else weights.shape[1]
    for q in range(size if dense else weights.shape[0]):
        for i in range(size):
            weight = stored[t, b % stored.shape[1], q, i] if dense else weights[q, i]
            smallest, largest = smaller(smallest, weight), max(largest, abs(weight))
        slope = one if dense else smaller(slope, slopes[q // size, t, b, q % size])
    if with_carry:
        for i in range(size):
            through = smaller(through, carry[t, b, i])
    bound = math.ldexp(one, half(least) + _ROOM)  # entries are 2**(half - _ROOM) at least
    if slope * min(smallest, one) >= bound and through >= bound:
        return stored.dtype.type(0)
    return math.ldexp(largest, blurred(least, nmant(stored.itemsize)))


@inline
def _settle(shared, start, size, last, narrow, lost):
    """Scale a row of so many numbers, the largest into [1/2, 1), if it went far from there or it is the last time.

    Returns the power of two that went, and the smallest size of an entry before; `narrow` is 2**spread.
    """
    one, far, infinite = shared.dtype.type(1), shared.dtype.type(2**_ROOM), shared.dtype.type(math.inf)
    peak, low, bottom, power = shared.dtype.type(0), infinite, infinite, 0
    for i in range(start, start + size):
        value = abs(shared[i])
        peak, low, bottom = max(peak, value), smaller(low, value), min(bottom, value)
    if not peak < infinite or low < peak * narrow:
        lost[0] = 1
    if last or peak > far or peak * far < one:
        power = int(shift(math.frexp(peak)[1], minexp(shared.itemsize)))
        scale = math.ldexp(one, -power)
        for i in range(start, start + size):
            shared[i] *= scale
    return power, bottom


@cuda.jit
def multiply_chunks(stored, dense, weights, slopes, carry, with_carry, first, length, rows, products, exponents, lost):
    """Multiply the Jacobians of chunks ``first``, ``first + 1``, ..., by going back from the unit vectors.

    The first six arguments are those of `Links`. A block takes `rows` of the vectors through one chunk of one sample;
    each row carries a power of two of its own. Every thread has a square of four rows and columns in registers.
    """
    shared = cuda.shared.array(0, products.dtype)
    square = cuda.local.array(16, products.dtype)
    batch, size, count = products.shape[1], products.shape[2], 1 if dense else slopes.shape[0]
    groups = (size + rows - 1) // rows
    c, b = cuda.blockIdx.x // (batch * groups), cuda.blockIdx.x // groups % batch
    top = cuda.blockIdx.x % groups * rows  # the first row
    tid, threads = cuda.threadIdx.x, cuda.blockDim.x
    squares = (size + 3) // 4
    wide = 4 * squares
    row, column = tid // squares * 4, tid % squares * 4
    zero, one = products.dtype.type(0), products.dtype.type(1)
    narrow = math.ldexp(one, spread(minexp(products.itemsize)))
    diagonals = rows * wide  # where the step's slopes stand
    for q in range(tid, rows * wide, threads):
        shared[q] = one if q % wide == top + q // wide else zero
    for r in range(tid, min(rows, size - top), threads):
        exponents[c, b, top + r] = 0
    for t in range((first + c + 1) * length - 1, (first + c) * length - 1, -1):
        for k in range(count):  # no division here: it would take as long as the rest of the step
            for j in range(tid, size, threads):
                shared[diagonals + k * size + j] = one if dense else slopes[k, t, b, j]
        cuda.syncthreads()
        for i in range(4):
            through = carry[t, b, min(column + i, size - 1)] if with_carry else zero
            for r in range(4):
                square[4 * r + i] = through * shared[(row + r) * wide + column + i]
        for k in range(count):
            for j in range(size):
                slope = shared[diagonals + k * size + j]
                for i in range(4):
                    if dense:
                        weight = stored[t, b % stored.shape[1], min(column + i, size - 1), j]
                    else:
                        weight = weights[k * size + j, min(column + i, size - 1)] * slope
                    for r in range(4):
                        square[4 * r + i] += weight * shared[(row + r) * wide + j]
        cuda.syncthreads()
        for i in range(4):
            for r in range(4):
                shared[(row + r) * wide + column + i] = square[4 * r + i]
        cuda.syncthreads()
        for r in range(tid, min(rows, size - top), threads):
            power, bottom = _settle(shared, r * wide, size, t == (first + c) * length, narrow, lost)
            if power != 0:
                exponents[c, b, top + r] += power
            small = bottom * products.dtype.type(2**_ROOM) < narrow  # so that it may have lost a term
            if small and bottom < _smallest_kept(stored, dense, weights, slopes, carry, with_carry, t, b):
                lost[0] = 1
    cuda.syncthreads()
    for q in range(tid, rows * wide, threads):
        r, i = q // wide, q % wide
        if top + r < size and i < size:
            products[c, b, top + r, i] = shared[q]


@cuda.jit
def across_chunks(products, exponents, offsets, affine, ends, lost):
    """Take the gradient over the chunks' products, one sample per block; see `operands.rows.apply`.

    ``ends[-1]`` is the gradient at the start of the chunk at the loss; the others become those at the ends of theirs.
    """
    shared = cuda.shared.array(0, ends.dtype)  # fractions of the gradient, powers of two, and both: the rows' factors
    b, size = cuda.blockIdx.x, ends.shape[2]
    tid, threads = cuda.threadIdx.x, cuda.blockDim.x
    zero, one = ends.dtype.type(0), ends.dtype.type(1)
    least = minexp(ends.itemsize)
    smallest, narrow = math.ldexp(one, blurred(least, nmant(ends.itemsize))), ends.dtype.type(spread(least))
    nothing = ends.dtype.type(-(1 << 20))
    above = ends.shape[0] - 2
    for i in range(tid, size, threads):
        ends[above, b, i] = ends[above + 1, b, i]
    for c in range(above - 1, -1, -1):
        for j in range(tid, size, threads):
            fraction, power = math.frexp(ends[c + 1, b, j])
            i = 0
            while i < size and products[c, b, j, i] == 0:
                i += 1
            if i == size:  # the power of a row of zeros says nothing
                fraction = zero
            shared[j] = fraction
            shared[size + j] = nothing if fraction == 0 else ends.dtype.type(power + exponents[c, b, j])
        cuda.syncthreads()
        top, bottom = nothing, -nothing
        for j in range(size):
            power = shared[size + j]
            top = max(top, power)
            if power > nothing:
                bottom = min(bottom, power)
        for j in range(tid, size, threads):
            shared[2 * size + j] = math.ldexp(shared[j], int(shared[size + j] - top))
        cuda.syncthreads()
        # What overflows does so in factors; beyond three of them the result is infinite anyway. The simulator's ldexp,
        # Python's own, refuses to.
        down, up = int(min(top, zero)), int(min(max(top, zero), ends.dtype.type(-3 * least)))
        third = math.ldexp(one, up // 3)
        rest = math.ldexp(one, up - 2 * (up // 3))
        for i in range(tid, size, threads):
            total = zero
            for j in range(size):
                total += shared[2 * size + j] * products[c, b, j, i]
            if bottom - top < narrow and abs(total) < smallest:
                lost[0] = 1
            total = math.ldexp(total, down) * third * third * rest
            if affine:
                total += offsets[c, b, i]
            ends[c, b, i] = total
        cuda.syncthreads()


@cuda.jit
def prepare(weights, slopes, carry, with_carry, mats, exps, lost):
    """Write a structured chain's Jacobians out, scaled: one step of one sample per block."""
    shared = cuda.shared.array(0, mats.dtype)
    t, b = cuda.blockIdx.x // mats.shape[1], cuda.blockIdx.x % mats.shape[1]
    size = mats.shape[2]
    high = mats.dtype.type(0)
    low = mats.dtype.type(math.inf)
    for q in range(cuda.threadIdx.x, size * size, cuda.blockDim.x):
        i, j = q // size, q % size
        value = mats.dtype.type(0)
        for k in range(slopes.shape[0]):
            value += weights[k * size + j, i] * slopes[k, t, b, j]
        if with_carry and i == j:
            value += carry[t, b, i]
        mats[t, b, i, j] = value
        high, low = max(high, abs(value)), smaller(low, value)
    exponent = rescale(mats[t, b], high, low, shared, lost)
    if cuda.threadIdx.x == 0:
        exps[t, b] = exponent
