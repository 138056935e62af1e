"""What compiled scans multiply by: matrices with a power of two, so that products stay in range (`operands.range`)."""

import math

import numpy as np
from numba import types
from numba.extending import intrinsic

from bppsa_nb.machine.compiling import inline, njit
from bppsa_nb.machine.intrinsics import bits, copy, shaped
from bppsa_nb.operands import range as rules

_compile = njit(cache=True, nogil=True)
_compile_sums = njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})  # sums in any order, so in vectors

half, spread, ample = map(inline, (rules.half, rules.spread, rules.ample))
blurred, shift, part = map(inline, (rules.blurred, rules.shift, rules.part))

SMALL = 2**22  # multiply-adds that one core has done before a second one is of any use
GROUP = 2**15  # bytes of neighboring matrices that are read in one go


@inline
def flat(matrix):
    """View a matrix as its numbers [shape=(n,)]."""
    return shaped(matrix, 0, (matrix.size,))


@intrinsic(prefer_literal=True)
def limit(_, array, name):
    """Give what `numpy.finfo`, which takes long to compile, says of an array's dtype, an integer, as a constant."""
    value = int(getattr(np.finfo(str(array.dtype)), name.literal_value))
    return types.int64(array, name), lambda context, *_: context.get_constant(types.int64, value)


@_compile
def moderate(array):
    """Say whether products of such numbers [shape=(n,)] with others neither overflow nor underflow."""
    minexp, maxexp, nmant, found = limit(array, "minexp"), limit(array, "maxexp"), limit(array, "nmant"), bits(array)
    kind = found.dtype.type
    magnitude = kind((1 << (found.itemsize * 8 - 1)) - 1)
    least, most = kind((half(minexp) + maxexp - 1) << nmant), kind((ample(maxexp) + maxexp - 1) << nmant)
    # The compiler vectorizes extremes of integers; those of floats, which may be NaN, it would not.
    low, high = magnitude, kind(0)
    for i in range(found.size):
        size = kind(found[i] & magnitude)
        less = kind(size - kind(1))  # zero becomes the largest
        high = size if size > high else high
        low = less if less < low else low
    return (low >= least - kind(1)) & (high <= most)


@inline
def scale(array, exponent):
    """Multiply numbers [shape=(n,)] in place by a power of two."""
    factor = array.dtype.type(math.ldexp(1.0, exponent))
    for i in range(array.size):
        array[i] *= factor


@_compile
def normalize(array):
    """Scale numbers [shape=(n,)] in place, the largest into [1/2, 1); return the exponent, and if they are narrow."""
    dtype, minexp = array.dtype.type, limit(array, "minexp")
    peak, low = dtype(0), dtype(np.inf)
    for i in range(array.size):
        size = abs(array[i])
        peak = size if size > peak else peak
        low = size if 0 < size < low else low
    exponent = shift(math.frexp(peak)[1], minexp)
    scale(array, -exponent)
    return exponent, low >= peak * dtype(math.ldexp(1.0, spread(minexp)))


@_compile_sums
def dot(matrix, vector, out):
    """Set ``out = matrix @ vector``."""
    # BLAS takes more than twice as long for vectors as short as these.
    for i in range(matrix.shape[0]):
        total = matrix.dtype.type(0)
        for j in range(matrix.shape[1]):
            total += matrix[i, j] * vector[j]
        out[i] = total


@_compile
def matvec(matrix, exponent, vector, out):
    """Set ``out = 2**exponent * matrix @ vector``; return False if an entry may have been lost on the way."""
    minexp, maxexp, kept = limit(vector, "minexp"), limit(vector, "maxexp"), True
    if moderate(vector):
        dot(matrix, vector, out)
    else:
        scaled = np.empty(vector.size, vector.dtype)
        copy(vector, scaled, vector.size)
        power, narrow = normalize(scaled)
        exponent += power
        dot(matrix, scaled, out)
        if not narrow:
            least = vector.dtype.type(math.ldexp(1.0, blurred(minexp, limit(vector, "nmant"))))
            for i in range(out.size):
                unit = vector.dtype.type(1)
                for j in range(vector.size):
                    unit = max(unit, abs(matrix[i, j]))
                kept &= abs(out[i]) >= unit * least
    # In steps that are normal numbers; beyond three of them the result is 0 or infinite anyway.
    exponent = min(max(exponent, 3 * minexp), 3 * (maxexp - 1))
    while exponent != 0:
        step = part(exponent, minexp, maxexp)
        scale(out, step)
        exponent -= step
    return kept


@_compile
def matmul(right, left, out, product):
    """Set ``out = right @ left``, scaled if need be; return its power of two, and whether all entries were kept.

    `out` may be one of the factors; `product` is scratch.
    """
    np.dot(right, left, product)
    copy(product, out, out.size)
    return (0, True) if moderate(flat(out)) else normalize(flat(out))
