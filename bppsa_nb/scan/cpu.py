"""The dense scan compiled for CPUs: Algorithm 1, its lower levels shared out block by block.

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
from numba import njit

from bppsa_nb import plan
from bppsa_nb.memory import keep_freed_memory
from bppsa_nb.operator import RangeLost
from bppsa_nb.scan import cpu_chunks
from bppsa_nb.scan import levels as _levels
from bppsa_nb.scan.arithmetic import GROUP, SMALL, add, copy, matmul, matvec, moderate, normalize, plain
from bppsa_nb.workers import PIECES, THREADS, one_blas_thread, share_out

keep_freed_memory()

_compile = njit(cache=True, nogil=True)

BLOCK = 2**19  # bytes of matrices that one core multiplies among each other before it goes on: they stay in its cache

_pair_left = njit(inline="always")(_levels.pair_left)
_pair_right = njit(inline="always")(_levels.pair_right)
_num_pairs = njit(inline="always")(_levels.num_pairs)
_block_end = njit(inline="always")(_levels.block_end)
_num_blocks = njit(inline="always")(_levels.num_blocks)


@_compile
def _prepare(state, low, high, first, last):
    """Scale those links ``low ... high - 1`` of matrices ``first ... last - 1`` that could not be multiplied as is."""
    links, mats, exps, made = state[:4]
    kept = True
    for t in range(low, high):
        for b in range(first, last):
            exps[t, b] = 0
            if not moderate(links[t, b]):
                made[t, b] = True
                copy(links[t, b], mats[t, b])
                exps[t, b], narrow = normalize(mats[t, b])
                kept &= narrow
    return kept


@_compile
def _matrix(links, mats, made, t, b):
    return mats[t, b] if made[t, b] else links[t, b]


# The state below is (links, mats, exps, made, vecs, affine), as described above; ranges of pairs, matrices and samples
# are (first, last + 1). Matrices and samples that are neighbors in memory take turns at every pair.


@_compile
def _up(state, d, pairs, batch, product):
    """Run a range of pairs of up-sweep level d for a range of matrices (Algorithm 1, lines 4-7)."""
    links, mats, exps, made, vecs, affine = state
    T, shared, moved = mats.shape[0], mats.shape[1] == 1, product[0]
    kept = True
    for j in range(pairs[0], min(pairs[1], _num_pairs(T, d))):
        l, r = _pair_left(j, d), _pair_right(j, d, T)
        for b in range(batch[0], batch[1]):
            right = _matrix(links, mats, made, T - r, b)
            if j == 0 or affine:
                # The first pair meets the gradient itself; with loss terms every pair moves its offset along.
                for s in range(0 if shared else b, vecs.shape[1] if shared else b + 1):
                    kept &= matvec(right, exps[T - r, b], vecs[T + 1 - l, s], moved)
                    if affine:
                        add(moved, vecs[T + 1 - r, s])
                    vecs[T + 1 - r, s] = moved
            if j > 0:
                left = _matrix(links, mats, made, T - l, b)  # line 6: a[l] ⋄ a[r] = a[r] a[l]
                exponent, narrow = matmul(right, left, mats[T - r, b], product)
                made[T - r, b] = True
                exps[T - r, b] += exps[T - l, b] + exponent
                kept &= narrow
    return kept


@_compile
def _across(state, levels, s):
    """Scan linearly over the blocks' products. Over two blocks this is Algorithm 1's first down-sweep level."""
    links, mats, exps, made, vecs, affine = state
    T, b = mats.shape[0], s % mats.shape[1]
    kept = True
    total, moved = vecs[T + 1 - _block_end(0, levels, T), s].copy(), np.empty_like(vecs[0, 0])
    for j in range(1, _num_blocks(T, levels)):
        end = _block_end(j, levels, T)
        kept &= matvec(_matrix(links, mats, made, T - end, b), exps[T - end, b], total, moved)
        if affine:
            add(moved, vecs[T + 1 - end, s])
        vecs[T + 1 - end, s] = total
        total, moved = moved, total
    vecs[0, s] = total
    return kept


@_compile
def _down(state, d, pairs, samples, moved):
    """Run a range of pairs of down-sweep level d for a range of samples (Algorithm 1, lines 11-16)."""
    links, mats, exps, made, vecs, affine = state
    T = mats.shape[0]
    kept = True
    for j in range(pairs[0], min(pairs[1], _num_pairs(T, d))):
        l, r = _pair_left(j, d), _pair_right(j, d, T)
        for s in range(samples[0], samples[1]):
            if j == 0:
                vecs[T + 1 - r, s] = vecs[T + 1 - l, s]  # I ⋄ T = T, and a[l] becomes the identity
            else:
                b = s % mats.shape[1]
                left = _matrix(links, mats, made, T - l, b)
                kept &= matvec(left, exps[T - l, b], vecs[T + 1 - r, s], moved)  # lines 13, 15
                if affine:
                    add(moved, vecs[T + 1 - l, s])
                vecs[T + 1 - l, s] = vecs[T + 1 - r, s]  # line 14
                vecs[T + 1 - r, s] = moved
    return kept


# What the cores share out. Blocks of 2**apart operands do not meet below that level, nor do samples ever: the lower
# levels go by blocks and groups of samples, the upper ones by samples.


@_compile
def _lower_up(state, apart, group, first, last):
    T, batch = state[1].shape[:2]
    product = np.empty(state[1].shape[2:], state[1].dtype)
    groups = -(-batch // group)
    kept = True
    for q in range(first, last):
        j, members = q // groups, (q % groups * group, min((q % groups + 1) * group, batch))
        kept &= _prepare(state, T - _block_end(j, apart, T), T + 1 - max(j << apart, 1), *members)
        for d in range(apart):
            width = 1 << (apart - 1 - d)  # pairs of level d in a block
            kept &= _up(state, d, (j * width, (j + 1) * width), members, product)
    return kept


@_compile
def _upper_up(state, apart, levels, first, last):
    product = np.empty(state[1].shape[2:], state[1].dtype)
    kept = True
    for d in range(apart, levels):
        kept &= _up(state, d, (0, state[1].shape[0]), (first, last), product)
    return kept


@_compile
def _upper_down(state, apart, levels, first, last):
    moved = np.empty_like(state[4][0, 0])
    kept = True
    for s in range(first, last):
        kept &= _across(state, levels, s)
    for d in range(levels - 1, apart - 1, -1):
        kept &= _down(state, d, (0, state[1].shape[0]), (first, last), moved)
    return kept


@_compile
def _lower_down(state, apart, group, first, last):
    batch, moved = state[4].shape[1], np.empty_like(state[4][0, 0])
    groups = -(-batch // group)
    kept = True
    for q in range(first, last):
        j, members = q // groups, (q % groups * group, min((q % groups + 1) * group, batch))
        for d in range(apart - 1, -1, -1):
            width = 1 << (apart - 1 - d)
            kept &= _down(state, d, (j * width, (j + 1) * width), members, moved)
    return kept


def backprop(jacobians_T, grad_output, local_grads, method, levels, length=None):
    """Run a dense scan on all cores; the checked core of :func:`bppsa_nb.backprop`.

    Parameters
    ----------
    jacobians_T : np.ndarray [shape=(T, B, H, H)] or [shape=(T, 1, H, H)]
    grad_output : np.ndarray [shape=(B, H)]
        ``local_grads[T]`` included.
    local_grads : np.ndarray [shape=(T + 1, B, H)] or None
    method : {"linear", "blelloch", "truncated", "chunked"}
    levels : int or None
    length : int, optional
        Links in a chunk of ``"chunked"``, at least 1; what `bppsa_nb.plan.chunk_length` says if not given.

    Returns
    -------
    np.ndarray [shape=(T + 1, B, H)]

    Raises
    ------
    RangeLost
        If a product could not keep its entries in range.
    """
    T, (batch, hidden) = len(jacobians_T), grad_output.shape
    affine, links = local_grads is not None, plain(jacobians_T)
    terms = plain(local_grads) if affine else np.empty((0, batch, hidden), grad_output.dtype)
    if method == "linear":
        return cpu_chunks.linear(links, grad_output, terms)
    if method == "chunked":
        if length is None:
            length = plan.chunk_length(T, batch, hidden, links.dtype, "cpu", 0)
        return cpu_chunks.chunked(links, grad_output, terms, length)
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
    groups, apart = -(-mats.shape[1] // group), k
    while apart > 0 and (
        _levels.num_blocks(T, apart) * groups < PIECES * THREADS or size * min(group, mats.shape[1]) << apart > BLOCK
    ):
        apart -= 1
    blocks, state = _levels.num_blocks(T, apart), (links, mats, exps, made, vecs, affine)
    worth = mats.size * hidden > SMALL
    with one_blas_thread():
        kept = share_out(_lower_up, blocks * groups, state, apart, group, worth=worth)
        kept &= share_out(_upper_up, mats.shape[1], state, apart, k, worth=worth)
        kept &= share_out(_upper_down, batch, state, apart, k, worth=worth)
        kept &= share_out(_lower_down, blocks * -(-batch // group), state, apart, group, worth=worth)
    if not kept:
        raise RangeLost
    return vecs[: T + 1]
