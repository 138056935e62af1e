"""The dense linear scan compiled for CPUs, whole or in chunks (Equation 3; reduce, then scan: Equation 6)."""

import numpy as np

from bppsa_nb.machine.compiling import njit
from bppsa_nb.machine.memory import require
from bppsa_nb.machine.views import add, copy
from bppsa_nb.machine.workers import PIECES, THREADS, one_blas_thread, share_out
from bppsa_nb.operands.scaled import RangeLost
from bppsa_nb.operands.scaled_cpu import GROUP, SMALL, dot, flat, matmul, matvec, moderate, normalize, plain

_compile = njit(cache=True, nogil=True)


@_compile
def _sweep(links, local_grads, gradients, low, high, first, last):
    """Go from the gradients at x_high of samples ``first ... last - 1`` down to those at x_low."""
    for t in range(high - 1, low - 1, -1):
        for s in range(first, last):
            dot(links[t, s % links.shape[1]], gradients[t + 1, s], gradients[t, s])
            if local_grads.size:
                add(gradients[t, s], local_grads[t, s])


@_compile
def _sweep_samples(links, local_grads, gradients, first, last):
    _sweep(links, local_grads, gradients, 0, links.shape[0], first, last)
    return True


def linear(links, grad_output, local_grads):
    """Go back one link after the other.

    Parameters
    ----------
    links : np.ndarray [shape=(T, B, H, H)] or [shape=(T, 1, H, H)]
        `plain`, like the loss terms.
    grad_output : np.ndarray [shape=(B, H)]
        ``local_grads[T]`` included.
    local_grads : np.ndarray [shape=(T + 1, B, H)] or [shape=(0, B, H)]

    Returns
    -------
    np.ndarray [shape=(T + 1, B, H)]
    """
    T, (batch, hidden) = len(links), grad_output.shape
    gradients = np.empty((T + 1, batch, hidden), grad_output.dtype)
    gradients[T] = grad_output
    share_out(_sweep_samples, batch, links, local_grads, gradients, worth=T * batch * hidden**2 > SMALL)
    return gradients


# Chunk c of the links is those from T - (c + 1) * length to before T - c * length. The gradient above the first is
# known, so it is swept at once; no one needs the product of the last. The state below is (links, local_grads, mats,
# exps, vecs, gradients): ``mats[c - 1, b]`` is the product of chunk c, ``vecs[c - 1, s]`` its affine offset.


@_compile
def _multiply(links, local_grads, steps, batch, products, exps, vecs):
    """Multiply links ``steps[0] ... steps[1] - 1`` of a range of matrices into one each, and take loss terms along."""
    shared, affine = links.shape[1] == 1, local_grads.size > 0
    scratch = np.empty((2, *links.shape[2:]), links.dtype)
    scaled, moved = scratch[0], scratch[1, 0]
    low, high = steps
    kept = True
    for t in range(high - 1, low - 1, -1):
        for b in range(batch[0], batch[1]):
            link, power, product = links[t, b], 0, products[b]
            if not moderate(flat(link)):
                copy(flat(link), flat(scaled))
                link = scaled
                power, narrow = normalize(flat(scaled))
                kept &= narrow
            if affine:
                for s in range(0 if shared else b, vecs.shape[0] if shared else b + 1):
                    if t < high - 1:
                        kept &= matvec(link, power, vecs[s], moved)
                        add(moved, local_grads[t, s])
                        copy(moved, vecs[s])
                    else:
                        copy(local_grads[t, s], vecs[s])
            if t < high - 1:
                exponent, narrow = matmul(link, product, product, scratch[1])
                exps[b] += power + exponent
                kept &= narrow
            else:
                copy(flat(link), flat(product))
                exps[b] = power
    return kept


@_compile
def _reduce(state, length, group, first, last):
    """Phase 1: the products of chunks, and the first chunk's gradients."""
    links, local_grads, mats, exps, vecs, gradients = state
    T, batch = links.shape[:2]
    groups = -(-batch // group)
    kept = True
    for q in range(first, last):
        c, start, stop = q // groups, q % groups * group, min((q % groups + 1) * group, batch)
        high = T - c * length
        if c == 0:
            low = max(T - length, 0)
            _sweep(links, local_grads, gradients, low, T, start, gradients.shape[1] if batch == 1 else stop)
            continue
        found = mats[c - 1], exps[c - 1], vecs[c - 1]
        kept &= _multiply(links, local_grads, (high - length, high), (start, stop), *found)
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
            kept &= matvec(mats[c - 1, b], exps[c - 1, b], gradients[high, s], gradients[high - length, s])
            if local_grads.size:
                add(gradients[high - length, s], vecs[c - 1, s])
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


def chunked(links, grad_output, local_grads, length):
    """Go back chunk by chunk, `length` links each, the one at x_0 with what they leave over; otherwise as `linear`.

    Raises
    ------
    RangeLost
        If a product could not keep its entries in range.
    """
    T, (batch, hidden) = len(links), grad_output.shape
    gradients = np.empty((T + 1, batch, hidden), grad_output.dtype)
    gradients[T] = grad_output
    if T == 0:
        return gradients
    chunks, matrices = -(-T // length), links.shape[1]
    products = max(chunks - 2, 0)
    mats, exps = np.empty((products, *links.shape[1:]), links.dtype), np.empty((products, matrices), np.int64)
    vecs = np.empty((products, batch, hidden), links.dtype)
    group = max(GROUP // links[0, 0].nbytes, 1)  # samples enough to read memory in order
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


@_compile
def _multiply_chunks(links, length, products, exps, first, last):
    nothing = np.empty((0, 1, 1), links.dtype)
    kept = True
    for q in range(first, last):
        c, b = q // links.shape[1], q % links.shape[1]
        steps = (c * length, (c + 1) * length)
        kept &= _multiply(links, nothing, steps, (b, b + 1), products[c], exps[c], nothing[0])
    return kept


def products(jacobians_T, length):
    """Multiply the links of each chunk.

    Parameters
    ----------
    jacobians_T : np.ndarray [shape=(T, B, H, H)]
    length : int
        Links of a chunk; T is a multiple of it, and not 0.

    Returns
    -------
    products : np.ndarray [shape=(chunks, B, H, H)]
    exponents : np.ndarray of int [shape=(chunks, B)]
        Of the power of two that each has to be multiplied by.

    Raises
    ------
    RangeLost
        If one could not keep its entries in range.
    MemoryError
        If they do not fit.
    """
    links, chunks = plain(jacobians_T), len(jacobians_T) // length
    require(chunks * links[0].nbytes, f"multiplying {chunks} chunks of {length} links")
    mats, exps = np.empty((chunks, *links.shape[1:]), links.dtype), np.empty((chunks, links.shape[1]), np.int64)
    with one_blas_thread():
        worth = links.size * links.shape[2] > SMALL
        if not share_out(_multiply_chunks, exps.size, links, length, mats, exps, worth=worth):
            raise RangeLost
    return mats, exps
