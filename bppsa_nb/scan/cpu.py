"""The dense scan compiled for CPUs: Algorithm 1, its lower levels shared out block by block.

Same algorithm and same index arithmetic as :mod:`bppsa_nb.scan.blelloch` and :mod:`bppsa_nb.scan.truncated`, with
gradients and matrices in two arrays. Position k of Equation 5's array is the gradient at k = 0 and link T - k
otherwise, so neither array is ever reversed in memory:

- ``mats[T - k, b]``  the matrix at position k (its product with others, as the up-sweep goes on),
- ``exps[T - k, b]``  its power of two,
- ``vecs[T + 1 - k, b]``  the gradient at position k, or the affine offset while a matrix stands there.

When the scan is through, ``vecs[t]`` is the gradient at x_t; position 0, the identity, is the spare last row.
"""

import math

import numpy as np
from numba import njit

from bppsa_nb.memory import keep_freed_memory
from bppsa_nb.operator import RangeLost
from bppsa_nb.scan import levels as _levels
from bppsa_nb.workers import PIECES, THREADS, one_blas_thread, share_out

keep_freed_memory()

_compile = njit(cache=True, nogil=True)

SMALL = 2**22  # multiply-adds that one core has done before a second one is of any use

_pair_left = njit(inline="always")(_levels.pair_left)
_pair_right = njit(inline="always")(_levels.pair_right)
_num_pairs = njit(inline="always")(_levels.num_pairs)
_block_end = njit(inline="always")(_levels.block_end)
_num_blocks = njit(inline="always")(_levels.num_blocks)


@_compile
def _normalize(matrix):
    """Scale a matrix in place by a power of two, its largest entry into [1/2, 1); see `operator.Scaled`.

    Returns the exponent, and whether all entries lie close enough together for a product to lose none.
    """
    dtype = matrix.dtype.type
    rows, columns = matrix.shape
    # Extremes per column first: elementwise code, which the compiler vectorizes; a scalar reduction it would not.
    high = np.zeros(columns, matrix.dtype)
    low = np.full(columns, np.inf, matrix.dtype)
    for i in range(rows):
        for j in range(columns):
            size = abs(matrix[i, j])
            high[j] = size if size > high[j] else high[j]
            size = size if size > 0 else dtype(np.inf)
            low[j] = size if size < low[j] else low[j]
    peak = high.max()
    info = np.finfo(matrix.dtype)
    exponent = max(math.frexp(peak)[1], info.minexp)
    scale = dtype(math.ldexp(1.0, -exponent))
    for i in range(rows):
        for j in range(columns):
            matrix[i, j] *= scale
    return exponent, low.min() >= peak * dtype(math.ldexp(1.0, info.minexp // 2))


@_compile
def _matvec(matrix, exponent, vector, out):
    """Set ``out = 2**exponent * matrix @ vector``; return False if an entry may have been lost on the way."""
    dtype = vector.dtype.type
    info = np.finfo(vector.dtype)
    peak, low = dtype(0), dtype(np.inf)
    for size in np.abs(vector):
        peak = max(peak, size)
        if size > 0:
            low = min(low, size)
    shift = max(math.frexp(peak)[1], info.minexp)
    np.dot(matrix, vector * dtype(math.ldexp(1.0, -shift)), out)
    kept = True
    if low < peak * dtype(math.ldexp(1.0, info.minexp // 2)):
        kept = np.abs(out).min() >= math.ldexp(1.0, info.minexp + info.nmant + 8)
    # In two halves, either of which is a normal number; beyond the clip the result is 0 or infinite anyway.
    total = min(max(exponent + shift, 2 * info.minexp), 2 * info.maxexp - 2)
    first = total // 2
    out *= dtype(math.ldexp(1.0, first))
    out *= dtype(math.ldexp(1.0, total - first))
    return kept


@_compile
def _copy(jacobians_T, mats, exps, first, last, b):
    """Copy the links at positions ``first ... last`` into the working array, scaled."""
    T = mats.shape[0]
    kept = True
    for k in range(max(first, 1), last + 1):
        mats[T - k, b] = jacobians_T[T - k, b]
        exps[T - k, b], narrow = _normalize(mats[T - k, b])
        kept &= narrow
    return kept


@_compile
def _up(mats, exps, vecs, affine, d, first, last, b):
    """Run pairs ``first ... last - 1`` of up-sweep level d for matrices b (Algorithm 1, lines 4-7)."""
    T, shared = mats.shape[0], mats.shape[1] == 1
    kept = True
    for j in range(first, min(last, _num_pairs(T, d))):
        l, r = _pair_left(j, d), _pair_right(j, d, T)
        right = mats[T - r, b]
        if j == 0 or affine:
            # The first pair meets the gradient itself; with loss terms every pair moves its offset along.
            for s in range(0 if shared else b, vecs.shape[1] if shared else b + 1):
                moved = np.empty_like(vecs[0, 0])
                kept &= _matvec(right, exps[T - r, b], vecs[T + 1 - l, s], moved)
                if affine:
                    moved += vecs[T + 1 - r, s]
                vecs[T + 1 - r, s] = moved
        if j > 0:
            mats[T - r, b] = np.dot(right, mats[T - l, b])  # line 6: a[l] ⋄ a[r] = a[r] a[l]
            exponent, narrow = _normalize(mats[T - r, b])
            exps[T - r, b] += exps[T - l, b] + exponent
            kept &= narrow
    return kept


@_compile
def _across(mats, exps, vecs, affine, levels, s):
    """Scan linearly over the blocks' products. Over two blocks this is Algorithm 1's first down-sweep level."""
    T, b = mats.shape[0], s % mats.shape[1]
    kept = True
    total = vecs[T + 1 - _block_end(0, levels, T), s].copy()
    for j in range(1, _num_blocks(T, levels)):
        end = _block_end(j, levels, T)
        moved = np.empty_like(total)
        kept &= _matvec(mats[T - end, b], exps[T - end, b], total, moved)
        if affine:
            moved += vecs[T + 1 - end, s]
        vecs[T + 1 - end, s] = total
        total = moved
    vecs[0, s] = total
    return kept


@_compile
def _down(mats, exps, vecs, affine, d, first, last, s):
    """Run pairs ``first ... last - 1`` of down-sweep level d for sample s (Algorithm 1, lines 11-16)."""
    T, b = mats.shape[0], s % mats.shape[1]
    kept = True
    for j in range(first, min(last, _num_pairs(T, d))):
        l, r = _pair_left(j, d), _pair_right(j, d, T)
        if j == 0:
            vecs[T + 1 - r, s] = vecs[T + 1 - l, s]  # I ⋄ T = T, and a[l] becomes the identity
        else:
            moved = np.empty_like(vecs[0, 0])
            kept &= _matvec(mats[T - l, b], exps[T - l, b], vecs[T + 1 - r, s], moved)  # lines 13, 15
            if affine:
                moved += vecs[T + 1 - l, s]
            vecs[T + 1 - l, s] = vecs[T + 1 - r, s]  # line 14
            vecs[T + 1 - r, s] = moved
    return kept


# What the cores share out. Blocks of 2**apart operands do not meet below that level, nor do samples ever: the lower
# levels go block by block and sample by sample, the upper ones sample by sample.


@_compile
def _lower_up(jacobians_T, mats, exps, vecs, affine, apart, first, last):
    T, batch = mats.shape[0], mats.shape[1]
    kept = True
    for q in range(first, last):
        j, b = q // batch, q % batch
        kept &= _copy(jacobians_T, mats, exps, j << apart, _block_end(j, apart, T), b)
        for d in range(apart):
            width = 1 << (apart - 1 - d)  # pairs of level d in a block
            kept &= _up(mats, exps, vecs, affine, d, j * width, (j + 1) * width, b)
    return kept


@_compile
def _upper_up(mats, exps, vecs, affine, apart, levels, first, last):
    kept = True
    for b in range(first, last):
        for d in range(apart, levels):
            kept &= _up(mats, exps, vecs, affine, d, 0, mats.shape[0], b)
    return kept


@_compile
def _upper_down(mats, exps, vecs, affine, apart, levels, first, last):
    kept = True
    for s in range(first, last):
        kept &= _across(mats, exps, vecs, affine, levels, s)
        for d in range(levels - 1, apart - 1, -1):
            kept &= _down(mats, exps, vecs, affine, d, 0, mats.shape[0], s)
    return kept


@_compile
def _lower_down(mats, exps, vecs, affine, apart, first, last):
    samples = vecs.shape[1]
    kept = True
    for q in range(first, last):
        j, s = q // samples, q % samples
        for d in range(apart - 1, -1, -1):
            width = 1 << (apart - 1 - d)
            kept &= _down(mats, exps, vecs, affine, d, j * width, (j + 1) * width, s)
    return kept


@_compile
def _linear(jacobians_T, local_grads, gradients, first, last):
    for s in range(first, last):
        b = s % jacobians_T.shape[1]
        for t in range(jacobians_T.shape[0] - 1, -1, -1):
            np.dot(jacobians_T[t, b], gradients[t + 1, s], gradients[t, s])  # Equation 3
            if local_grads.size:
                gradients[t, s] += local_grads[t, s]
    return True


def _plain(array):
    # One layout, so that every function above is compiled once per dtype.
    return np.require(array, requirements=["C", "W"])


def backprop(jacobians_T, grad_output, local_grads, method, levels):
    """Run a dense scan on all cores; the checked core of :func:`bppsa_nb.backprop`.

    Parameters
    ----------
    jacobians_T : np.ndarray [shape=(T, B, H, H)] or [shape=(T, 1, H, H)]
    grad_output : np.ndarray [shape=(B, H)]
        ``local_grads[T]`` included.
    local_grads : np.ndarray [shape=(T + 1, B, H)] or None
    method : {"linear", "blelloch", "truncated"}
    levels : int or None

    Returns
    -------
    np.ndarray [shape=(T + 1, B, H)]

    Raises
    ------
    RangeLost
        If a product could not keep its entries in range.
    """
    T, (batch, hidden) = len(jacobians_T), grad_output.shape
    affine = local_grads is not None
    if method == "linear":
        gradients = np.empty((T + 1, batch, hidden), grad_output.dtype)
        gradients[T] = grad_output
        arrays = _plain(jacobians_T), _plain(local_grads) if affine else gradients[:0], gradients
        share_out(_linear, batch, *arrays, worth=T * gradients[0].size * hidden > SMALL)
        return gradients
    mats = np.empty(jacobians_T.shape, jacobians_T.dtype)
    exps = np.empty(mats.shape[:2], np.int64)
    vecs = np.empty((T + 2, batch, hidden), grad_output.dtype)
    if affine:
        vecs[1 : T + 1] = local_grads[:T]
    vecs[T + 1] = grad_output
    k = _levels.up_levels(T) if levels is None else min(levels, _levels.up_levels(T))
    # The largest blocks that still give every core a few.
    apart = k
    while apart > 0 and _levels.num_blocks(T, apart) * mats.shape[1] < PIECES * THREADS:
        apart -= 1
    blocks, state = _levels.num_blocks(T, apart), (mats, exps, vecs, affine, apart)
    worth = mats.size * hidden > SMALL
    with one_blas_thread():
        kept = share_out(_lower_up, blocks * mats.shape[1], _plain(jacobians_T), *state, worth=worth)
        kept &= share_out(_upper_up, mats.shape[1], *state, k, worth=worth)
        kept &= share_out(_upper_down, batch, *state, k, worth=worth)
        kept &= share_out(_lower_down, blocks * batch, *state, worth=worth)
    if not kept:
        raise RangeLost
    return vecs[: T + 1]
