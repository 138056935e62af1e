"""Kernels that multiply the Jacobians of chunks: the first phase of the chunked scan.

The rows of a product are where the unit vectors end that go back along the chunk. Each carries a power of two of its
own (`bppsa_nb.operands.rows`), and is scaled when it went far from one. Exponents of rows of zeros are `NOTHING`.
"""

import math
from functools import cache

import numpy as np

from bppsa_nb.chains.kernels_cuda import NOTHING
from bppsa_nb.machine.cuda import WARP, dot_of, in_registers, inline, row_of
from bppsa_nb.machine.cuda_compiler import cuda
from bppsa_nb.operands import range as rules
from bppsa_nb.operands.scaled_cuda import blurred, half, minexp, nmant, shift, smaller, spread

U, W = np.uint32, np.uint64  # see `dot_of`
_ROOM = 8  # powers of two that a row may grow or shrink by before it is scaled
_TEAM = 56  # threads of a row, at most: beside the numbers that longer rows have on their way, weights would spill
_WRITTEN_OUT = 320  # multiply-adds of a thread that are written out one after the other, at most


@inline
def _sizes_of(line, start, stride, size):
    """Return the sizes of so many numbers of a line: the largest, the smallest, and the smallest that is not zero."""
    peak, bottom = line.dtype.type(0), line.dtype.type(math.inf)
    floor, i = bottom, U(0)
    while i < U(size):
        entry = abs(line[start + i * stride])
        peak, bottom, floor = max(peak, entry), min(bottom, entry), smaller(floor, entry)
        i += U(1)
    return peak, bottom, floor


@inline
def _power_of(peak, floor, shared, lost):
    """Return the power of two that brings a row's largest entry to [1/2, 1); note a row that has too wide a range."""
    one = shared.dtype.type(1)
    if not peak < shared.dtype.type(math.inf) or floor < peak * math.ldexp(one, spread(minexp(shared))):
        lost[0] = 1
    return int(shift(math.frexp(peak)[1], minexp(shared)))


@inline
def _far(peak, shared):
    """Tell whether a row with this largest size went far from one."""
    one, most = shared.dtype.type(1), shared.dtype.type(2**_ROOM)
    return peak > most or peak * most < one


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


def team_of(size, sums, dtype):
    """Return how many threads share a row of `multiply_chunks_of`, None if they lack the registers."""
    teams = range(1, min(size, _TEAM) + 1)
    return next((team for team in teams if in_registers(-(-size // team) * sums, dtype)), None)


def rows_of(team):
    """Return how many rows a block has: those that a warp has teams for, or one of a larger team."""
    return max(WARP // team, 1)


def _shared_out(size, team):
    """Return rows of a block, columns of a thread, and whether no thread lacks one of either."""
    rows, columns = rows_of(team), -(-size // team)
    return rows, columns, rows * team == max(WARP, team) and columns * team == size


@cache
def _steps_of(size, count, carried, team, real):
    """Make what `multiply_chunks_of` does in a step: read diagonals, put a row where its team reads it, multiply it."""
    (_, columns, even), sums, zero = _shared_out(size, team), count * size, real(0)
    parts = max(1, 4 // columns)  # sums of a column that do not wait for each other
    partial, whole = columns * parts, sums - sums % parts

    @inline
    def read(slope, through, slopes, carry, place, beyond):
        for q in range(columns):
            at = place + W(U(q * team) if even else min(U(q * team), beyond))
            for k in range(count):
                slope[k * columns + q] = slopes[W(k) * W(slopes.size // count) + at]
            through[q] = carry[at] if carried else zero

    @inline
    def put(entries, slope, through, shared, at, own):
        for q in range(columns):
            for k in range(count):
                if q < own:
                    shared[at + U(k * size + q * team)] = entries[q] * slope[k * columns + q]
            entries[q] = through[q] * entries[q] if carried else zero  # what the sums are added to

    @inline
    def multiply(entries, column, shared, at):
        total = cuda.local.array(partial, real)
        for q in range(columns):
            for p in range(parts):
                total[q * parts + p] = zero if p else entries[q]
        for j in range(0, whole, parts):
            for p in range(parts):
                for q in range(columns):
                    total[q * parts + p] += column[q, j + p] * shared[at + U(j + p)]
        for j in range(whole, sums):
            for q in range(columns):
                total[q * parts] += column[q, j] * shared[at + U(j)]
        peak, bottom = zero, real(math.inf)
        for q in range(columns):
            entries[q] = total[q * parts]
            for p in range(1, parts):
                entries[q] += total[q * parts + p]
            peak, bottom = max(peak, abs(entries[q])), min(bottom, abs(entries[q]))
        return peak, bottom

    return read, put, multiply


@cache
def _settle_of(size, count, carried, team, real):
    """Make what scales all rows of a block, and sees what they lost; `first` is where the step's diagonals stand."""
    (_, columns, _), zero, one, infinite = _shared_out(size, team), real(0), real(1), real(math.inf)

    @inline
    def settle(entries, weights, slopes, carry, shared, at, member, own, first, lost):
        for q in range(columns):
            if q < own:
                shared[at + U(q * team) + member] = entries[q]
        cuda.syncthreads()
        peak, bottom, floor = _sizes_of(shared, at, U(1), size)
        if _suspect(bottom, shared):
            (largest, _, smallest), slope = _sizes_of(weights, U(0), U(1), count * size * size), infinite
            for k in range(count):
                slope = min(slope, _sizes_of(slopes, W(k) * W(slopes.size // count) + first, U(1), size)[2])
            through = _sizes_of(carry, first, U(1), size)[2] if carried else infinite
            if bottom < _kept(smallest, largest, slope, through, shared):
                lost[0] = 1
        power = _power_of(peak, floor, shared, lost)
        scale = math.ldexp(one, -power)
        for q in range(columns):
            entries[q] *= scale
        cuda.syncthreads()
        return NOTHING if peak == zero else power

    return settle


@cache
def multiply_chunks_of(size, count, carried, team, real):
    """Make `multiply_chunks` for one H and K, of which a block is one warp: a team of its threads goes back with a row.

    Each has some columns of the weights in registers. The row's entries, times the slopes, pass through shared memory,
    where all of the team read them, four at a time; a number that is read serves a multiply-add of every column.
    A team of more than a warp is a block of its own. Weights, and diagonals, are one line each.
    """
    (rows, columns, even), sums, sizes = _shared_out(size, team), count * size, (size, count, carried, team, real)
    (read, put, multiply), settle = _steps_of(*sizes), _settle_of(*sizes)
    wide, diagonals, one, zero = row_of(sums), count * columns, real(1), real(0)
    most, least = real(2**_ROOM), real(2.0 ** (rules.spread(np.finfo(real).minexp) // 2))  # no closer look in between

    @cuda.jit
    def multiply_chunks(weights, slopes, carry, first, length, products, exponents, lost):
        shared = cuda.shared.array(0, real)  # rows times the step's slopes
        column, entries = cuda.local.array((columns, sums), real), cuda.local.array(columns, real)
        slope, through = cuda.local.array(diagonals, real), cuda.local.array(columns, real)
        lane, batch, many = U(cuda.threadIdx.x), U(products.shape[1]), U(products.shape[0] * products.shape[1] * size)
        row, member, own = lane // U(team), lane % U(team), columns
        beyond = U(size - 1) - member
        if not even:  # some threads lack a column, and those of no team look on
            own = 0 if row >= U(rows) else columns if U((columns - 1) * team) <= beyond else columns - 1
            row = min(row, U(rows - 1))
        number = U(cuda.blockIdx.x) * U(rows) + row
        there, number = number < many, min(number, many - U(1))
        r, b, c = number % U(size), number // U(size) % batch, number // U(size) // batch
        at, step, left, power = row * U(wide), W(batch) * W(size), length, 0
        start = W((first + int(c)) * length)
        place = (start + W(length - 1)) * step + W(b * U(size) + member)
        for q in range(columns):
            i = member + (U(q * team) if even else min(U(q * team), beyond))
            entries[q] = one if i == r else zero
            for j in range(sums):
                column[q, j] = weights[U(j * size) + i]
        read(slope, through, slopes, carry, place, beyond)
        while left > 0:
            left -= 1
            put(entries, slope, through, shared, at + member, own)
            if left > 0:  # read a step ahead
                place -= step
                read(slope, through, slopes, carry, place, beyond)
            cuda.syncthreads()
            peak, bottom = multiply(entries, column, shared, at)
            # This is also what all wait for before they write rows again.
            if not cuda.syncthreads_and(np.int32((left > 0) & (peak <= most) & (bottom >= least))):
                diagonal = (start + W(left)) * step + W(b * U(size))
                power += settle(entries, weights, slopes, carry, shared, at, member, own, diagonal, lost)
        for q in range(columns):
            if q < own and there:
                products[c, b, r, member + U(q * team)] = entries[q]
        if member == U(0) and there:
            exponents[c, b, r] = _power(power)

    return multiply_chunks


@inline
def _power(power):
    """Return a row's power of two, which is `NOTHING` for a row of zeros, whatever went before."""
    return power if power > NOTHING // 2 else NOTHING


@cache
def multiply_stored_of(size, real):
    """Make `multiply_chunks` of stored Jacobians for one H: a thread goes back with a row, in registers.

    All threads of a block read the Jacobian from shared memory at once, one column after the other.
    """
    dot, one, zero, infinite = dot_of(size, real), real(1), real(0), real(math.inf)
    parts = -(-size // max(1, _WRITTEN_OUT // size))  # of the columns, one after the other
    columns = -(-size // parts)
    safe = real(2.0 ** (rules.spread(np.finfo(real).minexp) + 2 * _ROOM))  # no entry from here on needs a closer look

    @inline
    def settle(shared, row, lost):
        peak, bottom, floor = _sizes_of(shared, row, U(size), size)
        if _suspect(bottom, shared):
            largest, _, smallest = _sizes_of(shared, U(0), U(1), size * size)
            if bottom < _kept(smallest, largest, one, infinite, shared):
                lost[0] = 1
        power = _power_of(peak, floor, shared, lost)
        scale = math.ldexp(one, -power)
        for i in range(size):
            shared[row + U(i * size)] *= scale
        return NOTHING if peak == zero else power

    @cuda.jit
    def multiply_stored(stored, first, length, products, exponents, lost):
        shared = cuda.shared.array(0, products.dtype)  # a Jacobian, all rows
        factors, jacobian = cuda.local.array(size, real), cuda.local.array(size, real)
        entries = cuda.local.array(columns, real)
        batch, power = U(products.shape[1]), 0
        c, b, r = U(cuda.blockIdx.x) // batch, U(cuda.blockIdx.x) % batch, U(cuda.threadIdx.x)
        start, row, source = (first + int(c)) * length, U(size * size) + r, b % U(stored.shape[1])
        last = start + length - 1
        for i in range(size):
            shared[row + U(i * size)] = one if U(i) == r else zero
            jacobian[i] = stored[U(last), source, U(i), r]
        for t in range(last, start - 1, -1):
            ahead = U(max(t - 1, start))
            cuda.syncthreads()  # all are done with the step before
            for i in range(size):
                shared[U(i * size) + r] = jacobian[i]
                jacobian[i] = stored[ahead, source, U(i), r]
                factors[i] = shared[row + U(i * size)]
            cuda.syncthreads()
            peak, bottom = zero, infinite
            for part in range(parts):
                for q in range(columns):
                    entries[q] = dot(zero, factors, shared, min(U(columns * part + q), U(size - 1)) * U(size))
                for q in range(columns):
                    shared[row + min(U(columns * part + q), U(size - 1)) * U(size)] = entries[q]
                    peak, bottom = max(peak, abs(entries[q])), min(bottom, abs(entries[q]))
            if t == start or _far(peak, shared) or not bottom >= safe:
                power += settle(shared, row, lost)
        exponents[c, b, r] = _power(power)
        for i in range(size):
            products[c, b, r, U(i)] = shared[row + U(i * size)]

    return multiply_stored


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
    zero, one = products.dtype.type(0), products.dtype.type(1)
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
            peak, bottom, floor = _sizes_of(shared, U(r * wide), U(1), size)
            if _suspect(bottom, shared):
                if bottom < _kept_of_step(stored, dense, weights, slopes, carry, with_carry, t, b, shared):
                    lost[0] = 1
            power, end = _power_of(peak, floor, shared, lost), t == (first + c) * length
            if end or _far(peak, shared):
                scale = math.ldexp(one, -power)
                for i in range(size):
                    shared[r * wide + i] *= scale
                exponents[c, b, top + r] += power
            if end and peak == 0:
                exponents[c, b, top + r] = NOTHING
    cuda.syncthreads()
    for q in range(tid, rows * wide, threads):
        r, i = q // wide, q % wide
        if top + r < size and i < size:
            products[c, b, top + r, i] = shared[q]
