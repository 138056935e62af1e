"""Kernels that multiply the Jacobians of chunks: the first phase of the chunked scan.

The rows of a product are where the unit vectors end that go back along the chunk. Each carries a power of two of its
own (`bppsa_nb.operands.rows`), and is scaled when it went far from one. Exponents of rows of zeros are `NOTHING`.
"""

import math
from functools import cache

import numpy as np

from bppsa_nb.chains.kernels_cuda import NOTHING
from bppsa_nb.machine.cuda import dot_of, inline
from bppsa_nb.machine.cuda_compiler import cuda
from bppsa_nb.operands import range as rules
from bppsa_nb.operands.scaled_cuda import blurred, half, minexp, nmant, shift, smaller, spread

U = np.uint32  # see `dot_of`
_WRITTEN_OUT = 320  # multiply-adds of a thread that are written out one after the other, at most
_ROOM = 8  # powers of two that a row may grow or shrink by before it is scaled


@inline
def _rescale_row(shared, start, stride, size, peak, bottom, last, lost):
    """Scale a row of so many numbers, the largest into [1/2, 1), if it went far from there or it is the last time.

    `peak` and `bottom` are the largest and the smallest size of an entry. Returns the power of two that went.
    """
    zero, one, far = shared.dtype.type(0), shared.dtype.type(1), shared.dtype.type(2**_ROOM)
    narrow = peak * math.ldexp(one, spread(minexp(shared)))
    if not peak < shared.dtype.type(math.inf):
        lost[0] = 1
    if bottom < narrow:  # zeros may be
        for i in range(size):
            entry = abs(shared[start + U(i) * stride])
            if entry < narrow and entry > zero:
                lost[0] = 1
    power = 0
    if last or peak > far or peak * far < one:
        power = int(shift(math.frexp(peak)[1], minexp(shared)))
        scale = math.ldexp(one, -power)
        for i in range(size):
            shared[start + U(i) * stride] *= scale
    return power


@inline
def _suspect(bottom, shared):
    """Tell whether an entry of this size may have lost a term, so that `_kept` should be asked."""
    one = shared.dtype.type(1)
    return bottom * shared.dtype.type(2**_ROOM) < math.ldexp(one, spread(minexp(shared)))


@inline
def _kept(smallest, largest, slope, through, shared):
    """Return how small an entry may be after a step without having lost a term; see `operands.rows.smallest_kept`.

    Of the step's numbers that are not zero: the smallest and the largest weight, the smallest slope and carry.
    """
    one, least = shared.dtype.type(1), minexp(shared)
    bound = math.ldexp(one, half(least) + _ROOM)  # entries are 2**(half - _ROOM) at least
    if slope * min(smallest, one) >= bound and through >= bound:
        return shared.dtype.type(0)
    return math.ldexp(max(largest, one), blurred(least, nmant(shared)))


@inline
def _kept_of_step(stored, dense, weights, slopes, carry, with_carry, t, b, shared):
    """Compute `_kept` of step t of sample b."""
    one, infinite = shared.dtype.type(1), shared.dtype.type(math.inf)
    smallest, largest, slope, through = infinite, one, infinite, infinite
    size = stored.shape[2] if dense else weights.shape[1]
    for q in range(size if dense else weights.shape[0]):
        for i in range(size):
            weight = stored[t, b % stored.shape[1], q, i] if dense else weights[q, i]
            smallest, largest = smaller(smallest, weight), max(largest, abs(weight))
        slope = one if dense else smaller(slope, slopes[q // size, t, b, q % size])
    for i in range(size if with_carry else 0):
        through = smaller(through, carry[t, b, i])
    return _kept(smallest, largest, slope, through, shared)


@cache
def _step_of(size, sums, width, carried, each, real):
    """Make a step of a thread's rows, whose entries times the slopes are in registers.

    It multiplies them by one column of the weights after the other, which all threads read from shared memory at once,
    from `weights` on; what is read once is for all its rows. Their entries, and then their power of two, are as many
    `threads` apart as a block has, from `row` on; the numbers of their chunks, `width` slopes, then carries, stand from
    `at` on.
    """
    dot, zero, one, infinite = dot_of(sums, real), real(0), real(1), real(math.inf)
    far, numbers, parts = real(2**_ROOM), size + 1, -(-size // max(1, _WRITTEN_OUT // (each * sums)))
    columns = -(-size // parts)
    written_out = columns * each
    safe = real(2.0 ** (rules.spread(np.finfo(real).minexp) + 2 * _ROOM))  # no entry from here on needs a closer look

    @inline
    def step(factors, shared, threads, weights, row, at, last, lost):
        entries, calm = cuda.local.array(written_out, real), not last
        peak, bottom = cuda.local.array(each, real), cuda.local.array(each, real)
        for p in range(each):
            peak[p], bottom[p] = zero, infinite
        for part in range(parts):  # some columns at a time: the sums of one need not wait for each other
            for q in range(written_out):
                i, p = min(U(columns * part + q // each), U(size - 1)), q % each
                place, through = row + (U(p * numbers) + i) * threads, at + U(p * width + sums) + i
                passed = shared[through] * shared[place] if carried else zero
                entries[q] = dot(passed, factors[p], shared, weights + i * U(sums))
            for q in range(written_out):
                i, p = min(U(columns * part + q // each), U(size - 1)), q % each
                shared[row + (U(p * numbers) + i) * threads] = entries[q]
                peak[p], bottom[p] = max(peak[p], abs(entries[q])), min(bottom[p], abs(entries[q]))
        for p in range(each):
            calm = calm and peak[p] <= far and peak[p] * far >= one and bottom[p] >= safe
        if not calm:
            for p in range(each):
                settle(shared, threads, weights, row + U(p * numbers) * threads, at + U(p * width), last, lost)

    @inline
    def settle(shared, threads, weights, row, at, last, lost):
        peak, bottom = zero, infinite
        for i in range(size):
            entry = abs(shared[row + U(i) * threads])
            peak, bottom = max(peak, entry), min(bottom, entry)
        if _suspect(bottom, shared):
            smallest, largest, slope, through = infinite, one, infinite if width else one, infinite
            for q in range(size * sums):
                weight = shared[weights + U(q)]
                smallest, largest = smaller(smallest, weight), max(largest, abs(weight))
            for q in range(width):
                number = shared[at + U(q)]
                slope = smaller(slope, number) if q < sums else slope
                through = through if q < sums else smaller(through, number)
            if bottom < _kept(smallest, largest, slope, through, shared):
                lost[0] = 1
        power = _rescale_row(shared, row, threads, size, peak, bottom, last, lost)
        shared[row + U(size) * threads] += real(NOTHING if last and peak == zero else power)

    return step


@cache
def multiply_chunks_of(size, count, carried, each, real):
    """Make `multiply_chunks` for one H and K: a thread goes back with a row of `each` chunks, as a sweep does.

    A group of `size` threads has as many chunks; a block is some groups.
    """
    sums, diagonals = count * size, count * size * size
    width, numbers = sums + size if carried else sums, size + 1
    step, one, zero = _step_of(size, sums, width, carried, each, real), real(1), real(0)

    @cuda.jit
    def multiply_chunks(weights, slopes, carry, first, length, products, exponents, lost):
        # Columns of weights, slopes of this step and the next, all rows.
        shared, factors = cuda.shared.array(0, products.dtype), cuda.local.array((each, sums), real)
        slope, through = cuda.local.array((each, count), real), cuda.local.array(each, real)
        start = cuda.local.array(each, np.uint32)
        tid, threads, batch = U(cuda.threadIdx.x), U(cuda.blockDim.x), U(products.shape[1])
        group, r, groups = tid // U(size), tid % U(size), threads // U(size)
        number = (U(cuda.blockIdx.x) * groups + group) * U(each)
        row, here, q = U(diagonals) + U(2 * each * width) * groups + tid, U(0), tid
        while q < U(diagonals):
            shared[q % U(size) * U(sums) + q // U(size)] = weights[q // U(size), q % U(size)]
            q += threads
        for p in range(each):
            c, b = _chunk(number + U(p), products)
            start[p] = U((first + int(c)) * length)
            for i in range(numbers):
                shared[row + U(p * numbers + i) * threads] = one if U(i) == r else zero
            for k in range(count):
                slope[p, k] = slopes[U(k), start[p] + U(length - 1), b, r]
            through[p] = carry[start[p] + U(length - 1), b, r] if carried else zero
        for t in range(length - 1, -1, -1):
            at = U(diagonals) + (here * groups + group) * U(each * width)
            for p in range(each):
                b, ahead = _chunk(number + U(p), products)[1], start[p] + U(max(t - 1, 0))  # read a step ahead
                for k in range(count):
                    shared[at + U(p * width + k * size) + r] = slope[p, k]
                    slope[p, k] = slopes[U(k), ahead, b, r]
                if carried:
                    shared[at + U(p * width + sums) + r] = through[p]
                    through[p] = carry[ahead, b, r]
            cuda.syncthreads()
            for p in range(each):
                for j in range(size):
                    entry = shared[row + U(p * numbers + j) * threads]
                    for k in range(count):
                        factors[p, k * size + j] = entry * shared[at + U(p * width + k * size + j)]
            step(factors, shared, threads, U(0), row, at, t == 0, lost)
            here = U(1) - here
        for p in range(each):
            if number + U(p) < U(products.shape[0]) * batch:
                c, b = _chunk(number + U(p), products)
                exponents[c, b, r] = _power(shared, row + U(p * numbers + size) * threads)
                for i in range(size):
                    products[c, b, r, U(i)] = shared[row + U(p * numbers + i) * threads]

    return multiply_chunks


@inline
def _power(shared, place):
    """Return a row's power of two, which is `NOTHING` for a row of zeros, whatever went before."""
    power = int(shared[place])
    return power if power > NOTHING // 2 else NOTHING


@inline
def _chunk(number, products):
    """Return which chunk of which sample has a number; where there are no more, the last one."""
    batch = U(products.shape[1])
    number = min(number, U(products.shape[0]) * batch - U(1))
    return number // batch, number % batch


@cache
def multiply_stored_of(size, real):
    """Make `multiply_chunks` of stored Jacobians for one H: each takes the place of the weights in turn."""
    step, one, zero, rows = _step_of(size, size, 0, False, 1, real), real(1), real(0), size * size

    @cuda.jit
    def multiply_stored(stored, first, length, products, exponents, lost):
        shared = cuda.shared.array(0, products.dtype)  # a Jacobian, all rows
        factors, jacobian = cuda.local.array((1, size), real), cuda.local.array(size, real)
        batch = U(products.shape[1])
        c, b, r = U(cuda.blockIdx.x) // batch, U(cuda.blockIdx.x) % batch, U(cuda.threadIdx.x)
        start, row, source = (first + int(c)) * length, U(rows) + r, b % U(stored.shape[1])
        last, shared[row + U(size * size)] = start + length - 1, zero
        for i in range(size):
            shared[row + U(i * size)] = one if U(i) == r else zero
            jacobian[i] = stored[U(last), source, U(i), r]
        for t in range(last, start - 1, -1):
            ahead = U(max(t - 1, start))
            cuda.syncthreads()  # all are done with the step before
            for i in range(size):
                shared[U(i * size) + r] = jacobian[i]
                jacobian[i] = stored[ahead, source, U(i), r]
            cuda.syncthreads()
            for j in range(size):
                factors[0, j] = shared[row + U(j * size)]
            step(factors, shared, U(size), U(0), row, U(0), t == start, lost)
        exponents[c, b, r] = _power(shared, row + U(size * size))
        for i in range(size):
            products[c, b, r, U(i)] = shared[row + U(i * size)]

    return multiply_stored


@cuda.jit
def multiply_chunks(stored, dense, weights, slopes, carry, with_carry, first, length, rows, products, exponents, lost):
    """Multiply the Jacobians of chunks ``first``, ``first + 1``, ..., of any H, by going back from the unit vectors.

    The first six arguments are those of `Links`. A block takes `rows` of the vectors through one chunk of one sample.
    Every thread has a square of four rows and columns in registers.
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
    zero, one, infinite = products.dtype.type(0), products.dtype.type(1), products.dtype.type(math.inf)
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
            peak, bottom = zero, infinite
            for i in range(size):
                value = abs(shared[r * wide + i])
                peak, bottom = max(peak, value), min(bottom, value)
            if _suspect(bottom, shared):
                if bottom < _kept_of_step(stored, dense, weights, slopes, carry, with_carry, t, b, shared):
                    lost[0] = 1
            end = t == (first + c) * length
            power = _rescale_row(shared, U(r * wide), U(1), size, peak, bottom, end, lost)
            if power != 0:
                exponents[c, b, top + r] += power
            if end and peak == 0:
                exponents[c, b, top + r] = NOTHING
    cuda.syncthreads()
    for q in range(tid, rows * wide, threads):
        r, i = q // wide, q % wide
        if top + r < size and i < size:
            products[c, b, top + r, i] = shared[q]
