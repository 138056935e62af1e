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
from contextlib import contextmanager

import numpy as np
import scipy.linalg.cython_blas  # noqa: F401  the BLAS that compiled np.dot calls, loaded before it is looked for
from numba import get_num_threads, njit, prange, set_num_threads
from threadpoolctl import ThreadpoolController

from bppsa_nb.memory import keep_freed_memory
from bppsa_nb.operator import RangeLost
from bppsa_nb.scan import levels as _levels

keep_freed_memory()

# The loops below keep every core busy; BLAS threads of its own would only get in their way.
_blas = ThreadpoolController()

_pair_left = njit(inline="always")(_levels.pair_left)
_pair_right = njit(inline="always")(_levels.pair_right)
_num_pairs = njit(inline="always")(_levels.num_pairs)
_block_end = njit(inline="always")(_levels.block_end)
_num_blocks = njit(inline="always")(_levels.num_blocks)


@njit(cache=True)
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


@njit(cache=True)
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


@njit(cache=True)
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


@njit(cache=True)
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


@njit(cache=True)
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


@njit(parallel=True, cache=True)
def _scan(jacobians_T, mats, exps, vecs, affine, levels, apart):
    """Run a truncated scan of `levels` levels, the lowest `apart` of them block by block.

    Blocks of ``2**apart`` operands do not meet below that level, nor do samples ever. So the cores share out blocks and
    samples, not the pairs of one level: they wait for each other three times, not twice per level.
    """
    T, batch, samples = mats.shape[0], mats.shape[1], vecs.shape[1]
    blocks = _num_blocks(T, apart)
    lost = np.zeros(1, np.bool_)  # every core that writes here writes the same
    for q in prange(blocks * batch):
        j, b = q // batch, q % batch
        for k in range(j << apart, _block_end(j, apart, T) + 1):
            if k > 0:
                mats[T - k, b] = jacobians_T[T - k, b]
                exps[T - k, b], kept = _normalize(mats[T - k, b])
                if not kept:
                    lost[0] = True
        for d in range(apart):
            width = 1 << (apart - 1 - d)  # pairs of level d in a block
            if not _up(mats, exps, vecs, affine, d, j * width, (j + 1) * width, b):
                lost[0] = True
    for b in prange(batch):
        for d in range(apart, levels):
            if not _up(mats, exps, vecs, affine, d, 0, T, b):
                lost[0] = True
    for s in prange(samples):
        if not _across(mats, exps, vecs, affine, levels, s):
            lost[0] = True
        for d in range(levels - 1, apart - 1, -1):
            if not _down(mats, exps, vecs, affine, d, 0, T, s):
                lost[0] = True
    for q in prange(blocks * samples):
        j, s = q // samples, q % samples
        for d in range(apart - 1, -1, -1):
            width = 1 << (apart - 1 - d)
            if not _down(mats, exps, vecs, affine, d, j * width, (j + 1) * width, s):
                lost[0] = True
    return lost[0]


@njit(parallel=True, cache=True)
def _linear(jacobians_T, local_grads, gradients):
    T = jacobians_T.shape[0]
    for s in prange(gradients.shape[1]):
        b = s % jacobians_T.shape[1]
        for t in range(T - 1, -1, -1):
            np.dot(jacobians_T[t, b], gradients[t + 1, s], gradients[t, s])  # Equation 3
            if local_grads.size:
                gradients[t, s] += local_grads[t, s]


@contextmanager
def _numba_threads(count):
    before = get_num_threads()
    set_num_threads(count)
    try:
        yield
    finally:
        set_num_threads(before)


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
        _linear(_plain(jacobians_T), _plain(local_grads) if affine else gradients[:0], gradients)
        return gradients
    mats = np.empty(jacobians_T.shape, jacobians_T.dtype)
    k = _levels.up_levels(T) if levels is None else min(levels, _levels.up_levels(T))
    # A second core takes longer to wake than this many multiply-adds take on the first.
    threads = get_num_threads() if mats.size * hidden > 2**22 else 1
    # The largest blocks that still give every core a few.
    apart = k
    while apart > 0 and _levels.num_blocks(T, apart) * mats.shape[1] < 4 * threads:
        apart -= 1
    exps = np.empty(mats.shape[:2], np.int64)
    vecs = np.empty((T + 2, batch, hidden), grad_output.dtype)
    if affine:
        vecs[1 : T + 1] = local_grads[:T]
    vecs[T + 1] = grad_output
    with _blas.limit(limits=1, user_api="blas"), _numba_threads(threads):
        lost = _scan(_plain(jacobians_T), mats, exps, vecs, affine, k, apart)
    if lost:
        raise RangeLost
    return vecs[: T + 1]
