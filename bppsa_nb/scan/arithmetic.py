"""What the dense scans compiled for CPUs multiply by: matrices with a power of two, so that products stay in range."""

import math

import numpy as np
from numba.extending import overload

from bppsa_nb.compiling import njit

_inline = njit(inline="always")
_compile = njit(cache=True, nogil=True)
_compile_sums = njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})  # sums in any order, so in vectors

SMALL = 2**22  # multiply-adds that one core has done before a second one is of any use
GROUP = 2**15  # bytes of neighboring matrices that are read in one go


def plain(array):
    """Return an array in the one layout that every function is compiled for, once per dtype."""
    return np.require(array, requirements=["C", "W"])


@_inline
def flat(matrix):
    """View a matrix as its numbers [shape=(n,)]."""
    return matrix.reshape(matrix.size)


def _bits(array):
    """View numbers as unsigned integers: but for the sign bit, they are in the same order."""


@overload(_bits)
def _compile_bits(array):
    unsigned = np.dtype(f"u{array.dtype.bitwidth // 8}")
    return lambda array: array.view(unsigned)


@_compile
def moderate(array):
    """Say whether products of such numbers [shape=(n,)] with others neither overflow nor underflow."""
    info = np.finfo(array.dtype)
    bits = _bits(array)
    kind = bits.dtype.type
    magnitude = kind((1 << (bits.itemsize * 8 - 1)) - 1)
    least = kind((info.minexp // 2 + info.maxexp - 1) << info.nmant)
    most = kind((info.maxexp // 2 - 16 + info.maxexp - 1) << info.nmant)
    # The compiler vectorizes extremes of integers; those of floats, which may be NaN, it would not.
    low, high = magnitude, kind(0)
    for i in range(bits.size):
        size = kind(bits[i] & magnitude)
        less = kind(size - kind(1))  # zero becomes the largest
        high = size if size > high else high
        low = less if less < low else low
    return (low >= least - kind(1)) & (high <= most)


@_compile
def scale(array, exponent):
    """Multiply numbers [shape=(n,)] in place by a power of two."""
    factor = array.dtype.type(math.ldexp(1.0, exponent))
    for i in range(array.size):
        array[i] *= factor


@_compile
def normalize(array):
    """Scale numbers [shape=(n,)] in place by a power of two, the largest into [1/2, 1); see `operator.Scaled`.

    Returns the exponent, and whether all entries lie close enough together for a product to lose none.
    """
    dtype, info = array.dtype.type, np.finfo(array.dtype)
    peak, low = dtype(0), dtype(np.inf)
    for i in range(array.size):
        size = abs(array[i])
        peak = max(peak, size)
        if size > 0:
            low = min(low, size)
    exponent = max(math.frexp(peak)[1], info.minexp)
    scale(array, -exponent)
    return exponent, low >= peak * dtype(math.ldexp(1.0, info.minexp // 2))


@_compile_sums
def dot(matrix, vector, out):
    """Set ``out = matrix @ vector``."""
    # BLAS takes more than twice as long for vectors as short as these.
    for i in range(matrix.shape[0]):
        total = matrix.dtype.type(0)
        for j in range(matrix.shape[1]):
            total += matrix[i, j] * vector[j]
        out[i] = total


@_inline
def add(out, terms):
    """Add terms to a vector in place."""
    for i in range(out.size):
        out[i] += terms[i]


@_inline
def copy(array, out):
    """Copy numbers [shape=(n,)]; an assignment would compile, for seconds, what it says of shapes that do not fit."""
    for i in range(out.size):
        out[i] = array[i]


@_compile
def matvec(matrix, exponent, vector, out):
    """Set ``out = 2**exponent * matrix @ vector``; return False if an entry may have been lost on the way."""
    info, kept = np.finfo(vector.dtype), True
    if moderate(vector):
        dot(matrix, vector, out)
    else:
        scaled = np.empty(vector.size, vector.dtype)
        copy(vector, scaled)
        shift, narrow = normalize(scaled)
        exponent += shift
        dot(matrix, scaled, out)
        if not narrow:
            unit = vector.dtype.type(1)
            for i in range(matrix.shape[0]):
                for j in range(matrix.shape[1]):
                    unit = max(unit, abs(matrix[i, j]))
            unit *= vector.dtype.type(math.ldexp(1.0, info.minexp + info.nmant + 8))
            for i in range(out.size):
                kept &= abs(out[i]) >= unit
    # In steps that are normal numbers; beyond three of them the result is 0 or infinite anyway.
    exponent = min(max(exponent, 3 * info.minexp), 3 * (info.maxexp - 1))
    while exponent != 0:
        step = min(max(exponent, info.minexp), info.maxexp - 1)
        scale(out, step)
        exponent -= step
    return kept


@_compile
def matmul(right, left, out, product):
    """Set ``out = right @ left``, scaled if need be; return its power of two, and whether all entries were kept.

    `out` may be one of the factors; `product` is scratch.
    """
    np.dot(right, left, product)
    copy(flat(product), flat(out))
    return (0, True) if moderate(flat(out)) else normalize(flat(out))
