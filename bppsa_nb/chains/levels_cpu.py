"""Algorithm 1 over stored Jacobians, compiled for CPUs: its lower levels shared out block by block.

Same algorithm and same index arithmetic as :mod:`bppsa_nb.scan.blelloch` and :mod:`bppsa_nb.scan.truncated`, with
gradients and matrices in two arrays. Position k of Equation 5's array is the gradient at k = 0 and link T - k
otherwise, so neither array is ever reversed in memory:

- ``mats[T - k, b]``  the matrix at position k, once it is a product or had to be scaled (``made[T - k, b]``); links
  are read where they are,
- ``exps[T - k, b]``  its power of two,
- ``vecs[T + 1 - k, b]``  the gradient at position k, or the affine offset while a matrix stands there.

When the scan is through, ``vecs[t]`` is the gradient at x_t; position 0, the identity, is the spare last row.
"""

import numpy as np

from bppsa_nb.machine.compiling import inline, njit
from bppsa_nb.machine.intrinsics import add, copy
from bppsa_nb.machine.memory import contiguous
from bppsa_nb.machine.workers import CHUNKS, THREADS, one_blas_thread, parallel_for
from bppsa_nb.operands.range import DynamicRangeError
from bppsa_nb.operands.scaled_cpu import GROUP, SMALL, flat, matmul, matvec, moderate, normalize
from bppsa_nb.scan import levels as _levels

_compile = njit(cache=True, nogil=True)

BLOCK = 2**19  # bytes of matrices that one core multiplies among each other before it goes on: they stay in its cache

_pair_left, _pair_right, _num_pairs = map(inline, (_levels.pair_left, _levels.pair_right, _levels.num_pairs))
_block_end, _num_blocks = map(inline, (_levels.block_end, _levels.num_blocks))


@inline
def _matrix(links, mats, made, t, b):
    return mats[t, b] if made[t, b] else links[t, b]


# Blocks of 2**high operands do not meet below level `high`, nor do samples ever: that is what the cores share out.
# Piece q is block ``q // groups`` and a group of matrices, or samples, that are neighbors in memory, and take turns at
# every pair. The arrays are described above.


@_compile
def _up(arrays, affine, low, high, group, first, last):
    """Run up-sweep levels low ... high - 1 in chunks first ... last - 1 (Algorithm 1, lines 3-8)."""
    links, mats, exps, made, vecs = arrays
    T, batch, samples = mats.shape[0], mats.shape[1], vecs.shape[1]
    groups, repeats = -(-batch // group), samples // batch  # every matrix is that of one sample, or of all
    product, moved = np.empty(mats.shape[2:], mats.dtype), np.empty(mats.shape[2], mats.dtype)
    kept = True
    for q in range(first, last):
        block, start = q // groups, q % groups * group
        stop = min(start + group, batch)
        if low == 0:  # links that could not be multiplied as they are
            for t in range(T - _block_end(block, high, T), T + 1 - max(block << high, 1)):
                for b in range(start, stop):
                    exps[t, b] = 0
                    if not moderate(flat(links[t, b])):
                        made[t, b] = True
                        copy(links[t, b], mats[t, b], product.size)
                        exps[t, b], narrow = normalize(flat(mats[t, b]))
                        kept &= narrow
        for d in range(low, high):
            pairs = 1 << (high - 1 - d)  # in a block
            for j in range(block * pairs, min((block + 1) * pairs, _num_pairs(T, d))):
                l, r = _pair_left(j, d), _pair_right(j, d, T)
                for b in range(start, stop):
                    right = _matrix(links, mats, made, T - r, b)
                    if j == 0 or affine:
                        # The first pair meets the gradient itself; with loss terms every pair moves its offset along.
                        for s in range(b * repeats, (b + 1) * repeats):
                            kept &= matvec(right, exps[T - r, b], vecs[T + 1 - l, s], moved)
                            if affine:
                                add(moved, vecs[T + 1 - r, s], moved.size)
                            copy(moved, vecs[T + 1 - r, s], moved.size)
                    if j > 0:
                        left = _matrix(links, mats, made, T - l, b)  # line 6: a[l] ⋄ a[r] = a[r] a[l]
                        exponent, narrow = matmul(right, left, mats[T - r, b], product)
                        made[T - r, b] = True
                        exps[T - r, b] += exps[T - l, b] + exponent
                        kept &= narrow
    return kept


@_compile
def _down(arrays, affine, low, high, across, group, first, last):
    """Run down-sweep levels high - 1 ... low in chunks first ... last - 1 (Algorithm 1, lines 10-17).

    With `across`, a piece is all blocks for a group of samples: first comes a linear scan over the blocks' products.
    Over two blocks this is Algorithm 1's first down-sweep level.
    """
    links, mats, exps, made, vecs = arrays
    T, samples = mats.shape[0], vecs.shape[1]
    groups, together = -(-samples // group), _num_blocks(T, high) if across else 1
    total, moved = np.empty(mats.shape[2], mats.dtype), np.empty(mats.shape[2], mats.dtype)
    kept = True
    for q in range(first, last):
        block, start = q // groups, q % groups * group
        stop = min(start + group, samples)
        if across:
            for s in range(start, stop):
                copy(vecs[T + 1 - _block_end(0, high, T), s], total, moved.size)
                for j in range(1, together):
                    end, b = _block_end(j, high, T), s % mats.shape[1]
                    kept &= matvec(_matrix(links, mats, made, T - end, b), exps[T - end, b], total, moved)
                    if affine:
                        add(moved, vecs[T + 1 - end, s], moved.size)
                    copy(total, vecs[T + 1 - end, s], moved.size)
                    copy(moved, total, moved.size)
                copy(total, vecs[0, s], moved.size)
        for d in range(high - 1, low - 1, -1):
            pairs = 1 << (high - 1 - d)
            for j in range(block * pairs, min((block + together) * pairs, _num_pairs(T, d))):
                l, r = _pair_left(j, d), _pair_right(j, d, T)
                for s in range(start, stop):
                    if j == 0:
                        copy(vecs[T + 1 - l, s], vecs[T + 1 - r, s], moved.size)  # I ⋄ T = T, and a[l] is the identity
                    else:
                        b = s % mats.shape[1]
                        left = _matrix(links, mats, made, T - l, b)
                        kept &= matvec(left, exps[T - l, b], vecs[T + 1 - r, s], moved)  # lines 13, 15
                        if affine:
                            add(moved, vecs[T + 1 - l, s], moved.size)
                        copy(vecs[T + 1 - r, s], vecs[T + 1 - l, s], moved.size)  # line 14
                        copy(moved, vecs[T + 1 - r, s], moved.size)
    return kept


def levels(jacobians_T, grad_output, local_grads=None, levels=None):
    """Scan level by level, on all cores; counterpart of `bppsa_nb.chains.chain.levels`.

    Raises DynamicRangeError if a product could not keep its entries in range.
    """
    T, (batch, hidden) = len(jacobians_T), grad_output.shape
    affine, (links,) = local_grads is not None, contiguous(jacobians_T)
    size = hidden**2 * links.itemsize
    group = max(GROUP // size, 1)  # samples enough to read memory in order
    mats = np.empty(links.shape, links.dtype)
    exps, made = np.empty(mats.shape[:2], np.int64), np.zeros(mats.shape[:2], np.bool_)
    vecs = np.empty((T + 2, batch, hidden), grad_output.dtype)
    if affine:
        vecs[1 : T + 1] = local_grads[:T]
    vecs[T + 1] = grad_output
    k = _levels.up_levels(T) if levels is None else min(levels, _levels.up_levels(T))
    # The largest blocks that stay in a cache and give every core a few.
    matrices, samples, apart = -(-mats.shape[1] // group), -(-batch // group), k  # groups of either
    while apart > 0 and (
        _levels.num_blocks(T, apart) * matrices < CHUNKS * THREADS or size * min(group, mats.shape[1]) << apart > BLOCK
    ):
        apart -= 1
    state, parallel, kept = ((links, mats, exps, made, vecs), affine), mats.size * hidden > SMALL, True
    low, top = _levels.num_blocks(T, apart), _levels.num_blocks(T, k)
    with one_blas_thread():
        if apart:
            kept &= parallel_for(_up, low * matrices, *state, 0, apart, group, parallel=parallel)
        kept &= parallel_for(_up, top * mats.shape[1], *state, apart, k, 1, parallel=parallel)
        kept &= parallel_for(_down, batch, *state, apart, k, True, 1, parallel=parallel)
        if apart:
            kept &= parallel_for(_down, low * samples, *state, 0, apart, False, group, parallel=parallel)
    if not kept:
        raise DynamicRangeError
    return vecs[: T + 1]
