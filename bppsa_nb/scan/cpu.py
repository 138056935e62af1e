"""The dense scan compiled for CPUs: Algorithm 1, its lower levels shared out block by block.

Same algorithm and same index arithmetic as :mod:`bppsa_nb.scan.blelloch` and :mod:`bppsa_nb.scan.truncated`, with
gradients and matrices in two arrays. Position k of Equation 5's array is the gradient at k = 0 and link T - k
otherwise, so neither array is ever reversed in memory:

- ``mats[T - k, b]``  the matrix at position k, once it is a product or had to be scaled (``made[T - k, b]``); links
  are read where they are,
- ``exps[T - k, b]``  its power of two,
- ``vecs[T + 1 - k, b]``  the gradient at position k, or the affine offset while a matrix stands there.

When the scan is through, ``vecs[t]`` is the gradient at x_t; position 0, the identity, is the spare last row.

The chunked scan (reduce-then-scan, Equation 6) keeps one product per chunk.
"""

import math

import numpy as np
from numba import njit
from numba.extending import overload

from bppsa_nb import plan
from bppsa_nb.memory import keep_freed_memory
from bppsa_nb.operator import RangeLost
from bppsa_nb.scan import levels as _levels
from bppsa_nb.workers import PIECES, THREADS, one_blas_thread, share_out

keep_freed_memory()

_compile = njit(cache=True, nogil=True)
_compile_sums = njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})  # sums in any order, so in vectors

SMALL = 2**22  # multiply-adds that one core has done before a second one is of any use
GROUP = 2**15  # bytes of neighboring matrices that are read in one go
BLOCK = 2**19  # bytes of matrices that one core multiplies among each other before it goes on: they stay in its cache

_pair_left = njit(inline="always")(_levels.pair_left)
_pair_right = njit(inline="always")(_levels.pair_right)
_num_pairs = njit(inline="always")(_levels.num_pairs)
_block_end = njit(inline="always")(_levels.block_end)
_num_blocks = njit(inline="always")(_levels.num_blocks)


def _bits(array):
    """View numbers as unsigned integers: but for the sign bit, they are in the same order."""


@overload(_bits)
def _compile_bits(array):
    unsigned = np.dtype(f"u{array.dtype.bitwidth // 8}")
    return lambda array: array.reshape(array.size).view(unsigned)


@_compile
def _moderate(array):
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
def _normalize(matrix):
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
def _dot(matrix, vector, out):
    # BLAS takes more than twice as long for vectors as short as these.
    for i in range(matrix.shape[0]):
        total = matrix.dtype.type(0)
        for j in range(matrix.shape[1]):
            total += matrix[i, j] * vector[j]
        out[i] = total


@_compile
def _add(out, terms):
    for i in range(out.size):
        out[i] += terms[i]


@_compile
def _matvec(matrix, exponent, vector, out):
    """Set ``out = 2**exponent * matrix @ vector``; return False if an entry may have been lost on the way."""
    dtype = vector.dtype.type
    info = np.finfo(vector.dtype)
    kept = True
    if _moderate(vector):
        _dot(matrix, vector, out)
    else:
        sizes = np.abs(vector)
        peak, low = dtype(0), dtype(np.inf)
        for size in sizes:
            peak = max(peak, size)
            if size > 0:
                low = min(low, size)
        shift = max(math.frexp(peak)[1], info.minexp)
        exponent += shift
        _dot(matrix, vector * dtype(math.ldexp(1.0, -shift)), out)
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
def _copy(matrix, out):
    for i in range(matrix.shape[0]):
        for j in range(matrix.shape[1]):
            out[i, j] = matrix[i, j]


@_compile
def _matmul(right, left, out, product):
    """Set ``out = right @ left``, scaled if need be; return its power of two, and whether all entries were kept.

    `out` may be one of the factors; `product` is scratch.
    """
    np.dot(right, left, product)
    _copy(product, out)
    return (0, True) if _moderate(out) else _normalize(out)


@_compile
def _prepare(state, low, high, first, last):
    """Scale those links ``low ... high - 1`` of matrices ``first ... last - 1`` that could not be multiplied as is."""
    links, mats, exps, made = state[:4]
    kept = True
    for t in range(low, high):
        for b in range(first, last):
            exps[t, b] = 0
            if not _moderate(links[t, b]):
                made[t, b] = True
                _copy(links[t, b], mats[t, b])
                exps[t, b], narrow = _normalize(mats[t, b])
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
                    kept &= _matvec(right, exps[T - r, b], vecs[T + 1 - l, s], moved)
                    if affine:
                        _add(moved, vecs[T + 1 - r, s])
                    vecs[T + 1 - r, s] = moved
            if j > 0:
                left = _matrix(links, mats, made, T - l, b)  # line 6: a[l] ⋄ a[r] = a[r] a[l]
                exponent, narrow = _matmul(right, left, mats[T - r, b], product)
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
        kept &= _matvec(_matrix(links, mats, made, T - end, b), exps[T - end, b], total, moved)
        if affine:
            _add(moved, vecs[T + 1 - end, s])
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
                kept &= _matvec(left, exps[T - l, b], vecs[T + 1 - r, s], moved)  # lines 13, 15
                if affine:
                    _add(moved, vecs[T + 1 - l, s])
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


# Equation 3, whole or in chunks.


@_compile
def _sweep(links, local_grads, gradients, low, high, first, last):
    """Go from the gradients at x_high of samples ``first ... last - 1`` down to those at x_low."""
    for t in range(high - 1, low - 1, -1):
        for s in range(first, last):
            _dot(links[t, s % links.shape[1]], gradients[t + 1, s], gradients[t, s])
            if local_grads.size:
                _add(gradients[t, s], local_grads[t, s])


@_compile
def _linear(links, local_grads, gradients, first, last):
    _sweep(links, local_grads, gradients, 0, links.shape[0], first, last)
    return True


# Chunk c of the links is those from T - (c + 1) * length to before T - c * length. The gradient above the first is
# known, so it is swept at once; no one needs the product of the last. The state below is (links, local_grads, mats,
# exps, vecs, gradients): ``mats[c - 1, b]`` is the product of chunk c, ``vecs[c - 1, s]`` its affine offset.


@_compile
def _reduce(state, length, group, first, last):
    """Phase 1: the products of chunks, and the first chunk's gradients."""
    links, local_grads, mats, exps, vecs, gradients = state
    T, batch, hidden = links.shape[:3]
    shared, affine = batch == 1, local_grads.size > 0
    groups = -(-batch // group)
    scratch = np.empty((2, hidden, hidden), links.dtype)
    scaled, moved = scratch[0], scratch[1, 0]
    kept = True
    for q in range(first, last):
        c, start, stop = q // groups, q % groups * group, min((q % groups + 1) * group, batch)
        high = T - c * length
        if c == 0:
            low = max(T - length, 0)
            _sweep(links, local_grads, gradients, low, T, start, gradients.shape[1] if shared else stop)
            continue
        for t in range(high - 1, high - length - 1, -1):
            for b in range(start, stop):
                link, power, product = links[t, b], 0, mats[c - 1, b]
                if not _moderate(link):
                    _copy(link, scaled)
                    link = scaled
                    power, narrow = _normalize(scaled)
                    kept &= narrow
                if affine:
                    for s in range(0 if shared else b, vecs.shape[1] if shared else b + 1):
                        if t < high - 1:
                            kept &= _matvec(link, power, vecs[c - 1, s], moved)
                            _add(moved, local_grads[t, s])
                            vecs[c - 1, s] = moved
                        else:
                            vecs[c - 1, s] = local_grads[t, s]
                if t < high - 1:
                    exponent, narrow = _matmul(link, product, product, scratch[1])
                    exps[c - 1, b] += power + exponent
                    kept &= narrow
                else:
                    _copy(link, product)
                    exps[c - 1, b] = power
    return kept


@_compile
def _between(state, length, first, last):
    """Phase 2: the gradients at the ends of chunks, by their products."""
    links, local_grads, mats, exps, vecs, gradients = state
    kept = True
    for c in range(1, mats.shape[0] + 1):
        high = links.shape[0] - c * length
        for s in range(first, last):
            b = s % mats.shape[1]
            kept &= _matvec(mats[c - 1, b], exps[c - 1, b], gradients[high, s], gradients[high - length, s])
            if local_grads.size:
                _add(gradients[high - length, s], vecs[c - 1, s])
    return kept


@_compile
def _replay(state, length, group, first, last):
    """Phase 3: the gradients inside of chunks, from those at their ends."""
    links, local_grads, gradients = state[0], state[1], state[5]
    samples = gradients.shape[1]
    groups = -(-samples // group)
    for q in range(first, last):
        high = links.shape[0] - (q // groups + 1) * length
        low = high - length + 1 if high > length else 0  # what phase 2 found is read by another thread
        start, stop = q % groups * group, min((q % groups + 1) * group, samples)
        _sweep(links, local_grads, gradients, low, high, start, stop)
    return True


def _chunked(links, grad_output, local_grads, length, group):
    T, (batch, hidden) = len(links), grad_output.shape
    gradients = np.empty((T + 1, batch, hidden), grad_output.dtype)
    gradients[T] = grad_output
    if T == 0:
        return gradients
    chunks, matrices = -(-T // length), links.shape[1]
    products = max(chunks - 2, 0)
    mats, exps = np.empty((products, *links.shape[1:]), links.dtype), np.empty((products, matrices), np.int64)
    vecs = np.empty((products, batch, hidden), links.dtype)
    while group > 1 and (chunks - 1) * -(-matrices // group) < PIECES * THREADS:
        group //= 2
    state, worth = (links, local_grads, mats, exps, vecs, gradients), T * batch * hidden**2 > SMALL
    with one_blas_thread():
        count = (products + 1) * -(-matrices // group)
        kept = share_out(_reduce, count, state, length, group, worth=links.size * hidden > SMALL)
        kept &= share_out(_between, batch, state, length, worth=False)
        share_out(_replay, (chunks - 1) * -(-batch // group), state, length, group, worth=worth)
    if not kept:
        raise RangeLost
    return gradients


def _plain(array):
    # One layout, so that every function above is compiled once per dtype.
    return np.require(array, requirements=["C", "W"])


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
    affine, links = local_grads is not None, _plain(jacobians_T)
    terms = _plain(local_grads) if affine else np.empty((0, batch, hidden), grad_output.dtype)
    size = hidden**2 * links.itemsize
    group = max(GROUP // size, 1)  # samples enough to read memory in order
    if method == "linear":
        gradients = np.empty((T + 1, batch, hidden), grad_output.dtype)
        gradients[T] = grad_output
        share_out(_linear, batch, links, terms, gradients, worth=T * gradients[0].size * hidden > SMALL)
        return gradients
    if method == "chunked":
        if length is None:
            length = plan.chunk_length(T, batch, hidden, links.dtype, "cpu", 0)
        return _chunked(links, grad_output, terms, length, group)
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
