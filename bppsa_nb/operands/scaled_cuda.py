"""What kernels multiply by: matrices with a power of two, so that products stay in range (`bppsa_nb.operands.range`).

Teams of a block's threads have a matrix each. All functions are called by every thread of the block.
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
    """Make what returns what ``np.finfo``, which kernels lack, says of an array's dtype."""
    single, double = (int(getattr(np.finfo(dtype), name)) for dtype in (np.float32, np.float64))

    @inline
    def said(array):
        one = array.dtype.type(1)  # beside which a float32 does not see 2**-30, as compilers know
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


@cache
def matvec_of(size, real):
    """Make ``2**exponent * matrix @ vector`` for one H: thread k of a team has an entry, and returns the result's.

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
