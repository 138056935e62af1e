"""What the dense scans compiled for CPUs multiply by: matrices with a power of two, so that products stay in range."""

import math

import numpy as np
from numba import njit
from numba.extending import overload

_compile = njit(cache=True, nogil=True)
_compile_sums = njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})  # sums in any order, so in vectors

SMALL = 2**22  # multiply-adds that one core has done before a second one is of any use
GROUP = 2**15  # bytes of neighboring matrices that are read in one go


def plain(array):
    """Return an array in the one layout that every function is compiled for, once per dtype."""
    return np.require(array, requirements=["C", "W"])


def _bits(array):
    """View numbers as unsigned integers: but for the sign bit, they are in the same order."""


@overload(_bits)
def _compile_bits(array):
    unsigned = np.dtype(f"u{array.dtype.bitwidth // 8}")
    return lambda array: array.reshape(array.size).view(unsigned)


@_compile
def moderate(array):
    """Say whether products of such numbers with others neither overflow nor underflow, so need no scaling."""
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
        high = max(high, size)
        low = min(low, kind(size - kind(1)))  # zero becomes the largest
    return (low >= least - kind(1)) & (high <= most)


@_compile
def normalize(matrix):
    """Scale a matrix in place by a power of two, its largest entry into [1/2, 1); see `operator.Scaled`.

    Returns the exponent, and whether all entries lie close enough together for a product to lose none.
    """
    dtype = matrix.dtype.type
    rows, columns = matrix.shape
    peak, low = dtype(0), dtype(np.inf)
    for i in range(rows):
        for j in range(columns):
            size = abs(matrix[i, j])
            peak = max(peak, size)
            if size > 0:
                low = min(low, size)
    info = np.finfo(matrix.dtype)
    exponent = max(math.frexp(peak)[1], info.minexp)
    scale = dtype(math.ldexp(1.0, -exponent))
    for i in range(rows):
        for j in range(columns):
            matrix[i, j] *= scale
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


@_compile
def add(out, terms):
    """Add terms to a vector in place."""
    for i in range(out.size):
        out[i] += terms[i]


@_compile
def matvec(matrix, exponent, vector, out):
    """Set ``out = 2**exponent * matrix @ vector``; return False if an entry may have been lost on the way."""
    dtype = vector.dtype.type
    info = np.finfo(vector.dtype)
    kept = True
    if moderate(vector):
        dot(matrix, vector, out)
    else:
        sizes = np.abs(vector)
        peak, low = dtype(0), dtype(np.inf)
        for size in sizes:
            peak = max(peak, size)
            if size > 0:
                low = min(low, size)
        shift = max(math.frexp(peak)[1], info.minexp)
        exponent += shift
        dot(matrix, vector * dtype(math.ldexp(1.0, -shift)), out)
        if low < peak * dtype(math.ldexp(1.0, info.minexp // 2)):
            unit = max(np.abs(matrix).max(), dtype(1))
            kept = np.abs(out).min() >= unit * dtype(math.ldexp(1.0, info.minexp + info.nmant + 8))
    # In steps that are normal numbers; beyond three of them the result is 0 or infinite anyway.
    exponent = min(max(exponent, 3 * info.minexp), 3 * (info.maxexp - 1))
    while exponent != 0:
        step = min(max(exponent, info.minexp), info.maxexp - 1)
        out *= dtype(math.ldexp(1.0, step))
        exponent -= step
    return kept


@_compile
def copy(matrix, out):
    """Copy a matrix."""
    for i in range(matrix.shape[0]):
        for j in range(matrix.shape[1]):
            out[i, j] = matrix[i, j]


@_compile
def matmul(right, left, out, product):
    """Set ``out = right @ left``, scaled if need be; return its power of two, and whether all entries were kept.

    `out` may be one of the factors; `product` is scratch.
    """
    np.dot(right, left, product)
    copy(product, out)
    return (0, True) if moderate(out) else normalize(out)
