"""What kernels multiply by: matrices with a power of two, so that products stay in range (`bppsa_nb.operands.range`).

A block of threads has one matrix, and entry q, counted row by row, is that of thread q modulo the number of threads; or
teams of a block's threads have one each. All functions are called by every thread of the block.
"""

import math
from functools import cache

import numpy as np

from bppsa_nb.machine.cuda import dot_of, inline, row_of
from bppsa_nb.machine.cuda_compiler import cuda
from bppsa_nb.operands import range as rules

U = np.uint32  # see `machine.cuda.dot_of`
half, spread, ample = map(inline, (rules.half, rules.spread, rules.ample))
blurred, shift, part = map(inline, (rules.blurred, rules.shift, rules.part))


def _finfo(name):
    """Make what returns what ``np.finfo``, which kernels lack, says of an array's dtype.

    Compilers know the answer: beside 1, a float32 does not see 2**-30.
    """
    single, double = (int(getattr(np.finfo(dtype), name)) for dtype in (np.float32, np.float64))

    @inline
    def said(array):
        one = array.dtype.type(1)
        return single if one + array.dtype.type(2.0**-30) == one else double

    return said


minexp, maxexp, nmant = map(_finfo, ("minexp", "maxexp", "nmant"))


@inline
def smaller(smallest, value):
    """Return the smaller of a size and that of a number, if that is not zero."""
    size = abs(value)
    return min(smallest, size) if size > 0 else smallest


@inline
def moderate(matrix, high, low):
    """Say whether numbers of a matrix's dtype, with these largest and smallest sizes, can be multiplied as they are."""
    one = matrix.dtype.type(1)
    most, least = math.ldexp(one, ample(maxexp(matrix))), math.ldexp(one, half(minexp(matrix)))
    return high <= most and low >= least


@inline
def rescale(matrix, high, low, shared, k, first, team, lost):
    """Scale a matrix in place, the largest entry into [1/2, 1), unless it is moderate. Returns the exponent.

    Matrices have a team each of a block's threads, which are `team` from number `first` on; this is number k of them,
    and all threads of the block call this. high, low: the largest and the smallest non-zero size among the entries
    that this thread wrote.
    """
    exponent = 0
    if not cuda.syncthreads_and(np.int32(moderate(matrix, high, low))):  # seldom
        at, team = U(2) * U(first), U(team)
        shared[at + U(k)], shared[at + team + U(k)] = high, low
        cuda.syncthreads()
        one, peak, floor, i = matrix.dtype.type(1), high, low, U(0)
        while i < team:
            peak, floor = max(peak, shared[at + i]), min(floor, shared[at + team + i])
            i += U(1)
        if not moderate(matrix, peak, floor):
            exponent = int(shift(math.frexp(peak)[1], minexp(matrix)))
            if k == 0 and floor < peak * math.ldexp(one, spread(minexp(matrix))):
                lost[0] = 1
            scale = math.ldexp(one, -exponent)
            for i in range(matrix.shape[0]):
                j = U(k)
                while j < U(matrix.shape[0]):
                    matrix[U(i), j] *= scale
                    j += team
    return exponent


@inline
def multiply(right, left, tile, shared, lost):
    """Set ``right = right @ left``, scaled if need be, in place: ⋄ of two matrices. Returns the exponent.

    Matrices pass through shared memory `tile` rows at a time: of the left, of the right, and of their product.
    """
    tid, threads, hidden = cuda.threadIdx.x, cuda.blockDim.x, right.shape[0]
    columns, product = tile * hidden, 2 * tile * hidden  # offsets of the second and the third tile
    zero = right.dtype.type(0)
    high, low = zero, right.dtype.type(math.inf)
    for top in range(0, hidden, tile):
        entries = min(tile, hidden - top) * hidden
        for q in range(tid, entries, threads):
            shared[q] = right[top + q // hidden, q % hidden]
            shared[product + q] = zero
        for first in range(0, hidden, tile):
            depth = min(tile, hidden - first)
            cuda.syncthreads()
            for q in range(tid, depth * hidden, threads):
                shared[columns + q] = left[first + q // hidden, q % hidden]
            cuda.syncthreads()
            for q in range(tid, entries, threads):
                row, column = U(q // hidden * hidden + first), U(columns + q % hidden)
                total, end = shared[product + q], row + U(depth)
                while row < end:  # which takes fewer instructions than a loop over a range
                    total += shared[row] * shared[column]
                    row += U(1)
                    column += U(hidden)
                shared[product + q] = total
        for q in range(tid, entries, threads):
            value = shared[product + q]
            right[top + q // hidden, q % hidden] = value
            high, low = max(high, abs(value)), smaller(low, value)
        cuda.syncthreads()
    return rescale(right, high, low, shared, tid, 0, threads, lost)


@inline
def matvec(matrix, exponent, vector, offset, affine, out, shared, lost):
    """Set ``out = 2**exponent * matrix @ vector + offset``; `out` may be `offset`, but not overlap `vector`."""
    tid, threads, hidden = cuda.threadIdx.x, cuda.blockDim.x, matrix.shape[0]
    cuda.syncthreads()
    for i in range(tid, hidden, threads):
        shared[i] = vector[i]
    cuda.syncthreads()
    zero, one, least, most = matrix.dtype.type(0), matrix.dtype.type(1), minexp(matrix), maxexp(matrix)
    peak, low = zero, matrix.dtype.type(math.inf)
    for i in range(hidden):
        peak, low = max(peak, abs(shared[i])), smaller(low, shared[i])
    scale, wide = one, False
    if not moderate(matrix, peak, low):
        power = int(shift(math.frexp(peak)[1], least))
        scale, wide = math.ldexp(one, -power), low < peak * math.ldexp(one, spread(least))
        exponent += power
    # In parts that are normal numbers; beyond three of them the result is 0 or infinite anyway.
    exponent = int(min(max(exponent, 3 * least), 3 * (most - 1)))
    for i in range(tid, hidden, threads):
        total, j = zero, U(0)
        while j < U(hidden):  # which takes half the instructions of a loop over a range
            total += matrix[U(i), j] * (shared[j] * scale)
            j += U(1)
        if wide:
            unit = one
            for j in range(hidden):
                unit = max(unit, abs(matrix[i, j]))
            if abs(total) < unit * math.ldexp(one, blurred(least, nmant(matrix))):
                lost[0] = 1
        rest = exponent
        while rest != 0:
            step = int(part(rest, least, most))
            total *= math.ldexp(one, step)
            rest -= step
        if affine:
            total += offset[i]
        out[i] = total
    cuda.syncthreads()


@cache
def matvec_of(size, real):
    """Make `matvec` for one H: thread k of a team has entry k of the vector, and returns that of the result.

    The matrix stands at `at` in shared memory, its rows `row_of(size)` apart, and the vector's place is behind it; the
    barrier that tells whether all numbers are moderate is also the one after which others read what a thread put there.
    """
    wide, dot, zero, one, infinite = row_of(size), dot_of(size, real), real(0), real(1), real(math.inf)
    info = np.finfo(real)
    least, most, digits = int(info.minexp), int(info.maxexp), int(info.nmant)

    @inline
    def matvec(entry, exponent, shared, at, k, row, lost):
        vector, start = at + U(size * wide), at + k * U(wide)
        shared[vector + k] = entry
        blurs, j = False, U(0)
        if not cuda.syncthreads_and(np.int32(moderate(shared, abs(entry), smaller(infinite, entry)))):  # seldom
            peak, low, scale = zero, infinite, one
            while j < U(size):
                peak, low = max(peak, abs(shared[vector + j])), smaller(low, shared[vector + j])
                j += U(1)
            if not moderate(shared, peak, low):
                power = int(shift(math.frexp(peak)[1], least))
                scale, blurs = math.ldexp(one, -power), low < peak * math.ldexp(one, spread(least))
                exponent += power
            cuda.syncthreads()
            shared[vector + k] = entry * scale
            cuda.syncthreads()
        for q in range(size):
            row[q] = shared[start + U(q)]
        total = dot(zero, row, shared, vector)
        if blurs:
            unit, j = one, U(0)
            while j < U(size):
                unit = max(unit, abs(shared[start + j]))
                j += U(1)
            if abs(total) < unit * math.ldexp(one, blurred(least, digits)):
                lost[0] = 1
        # In parts that are normal numbers; beyond three of them the result is 0 or infinite anyway.
        rest = int(min(max(exponent, 3 * least), 3 * (most - 1)))
        while rest != 0:
            step = int(part(rest, least, most))
            total *= math.ldexp(one, step)
            rest -= step
        return total

    return matvec
