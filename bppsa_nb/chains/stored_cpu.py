"""Chains of stored Jacobians compiled for CPUs; counterpart of `bppsa_nb.chains.stored`."""

import numpy as np

from bppsa_nb.chains.levels_cpu import levels  # noqa: F401  as the NumPy form has it, too
from bppsa_nb.chains.stored import by_rows
from bppsa_nb.machine.compiling import njit
from bppsa_nb.machine.memory import require
from bppsa_nb.machine.views import add, copy
from bppsa_nb.machine.workers import CHUNKS, THREADS, one_blas_thread, parallel_for
from bppsa_nb.operands.range import DynamicRangeError
from bppsa_nb.operands.scaled_cpu import GROUP, SMALL, dot, flat, matmul, matvec, moderate, normalize, plain

_compile = njit(cache=True, nogil=True)


@_compile
def _sweep(links, local_grads, gradients, low, high, first, last):
    """Go from the gradients at x_high of samples ``first ... last - 1`` down to those at x_low."""
    for t in range(high - 1, low - 1, -1):
        for s in range(first, last):
            dot(links[t, s % links.shape[1]], gradients[t + 1, s], gradients[t, s])
            if local_grads.size:
                add(gradients[t, s], local_grads[t, s], gradients.shape[2])


@_compile
def _sweep_samples(links, local_grads, gradients, first, last):
    _sweep(links, local_grads, gradients, 0, links.shape[0], first, last)
    return True


def sweep(jacobians_T, grad_output, local_grads=None):
    """Go back one link after the other; counterpart of `bppsa_nb.chains.stored.sweep`."""
    links, terms, gradients = _start(jacobians_T, grad_output, local_grads)
    T, batch, hidden = len(links), *grad_output.shape
    parallel_for(_sweep_samples, batch, links, terms, gradients, parallel=T * batch * hidden**2 > SMALL)
    return gradients


def _start(jacobians_T, grad_output, local_grads):
    """Return links and loss terms as compiled code takes them, and room for gradients with that at x_T."""
    nothing = np.empty((0, *grad_output.shape), grad_output.dtype)
    gradients = np.empty((len(jacobians_T) + 1, *grad_output.shape), grad_output.dtype)
    gradients[-1] = grad_output
    links = jacobians_T if jacobians_T.flags.carray else plain(jacobians_T)
    return links, nothing if local_grads is None else plain(local_grads), gradients


# Chunk c of the links is those from c * length to before (c + 1) * length; the one at the loss may be shorter. The
# gradient above that is known, so it is swept at once; no one needs the product of the one at x_0. The state below is
# (links, local_grads, mats, exps, vecs, gradients): ``mats[c - 1, b]`` is the product of chunk c, and its affine offset
# ``vecs[c - 1, s]``.


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
                copy(link, scaled, link.size)
                link = scaled
                power, narrow = normalize(flat(scaled))
                kept &= narrow
            if affine:
                for s in range(0 if shared else b, vecs.shape[0] if shared else b + 1):
                    if t < high - 1:
                        kept &= matvec(link, power, vecs[s], moved)
                        add(moved, local_grads[t, s], moved.size)
                        copy(moved, vecs[s], moved.size)
                    else:
                        copy(local_grads[t, s], vecs[s], moved.size)
            if t < high - 1:
                exponent, narrow = matmul(link, product, product, scratch[1])
                exps[b] += power + exponent
                kept &= narrow
            else:
                copy(link, product, link.size)
                exps[b] = power
    return kept


@_compile
def _reduce(state, length, group, first, last):
    """Phase 1: the products of chunks, and the gradients of the one at the loss."""
    links, local_grads, mats, exps, vecs, gradients = state
    T, batch = links.shape[:2]
    groups = -(-batch // group)
    kept = True
    for q in range(first, last):
        c, start, stop = q // groups, q % groups * group, min((q % groups + 1) * group, batch)
        if c == 0:
            low = (T - 1) // length * length
            _sweep(links, local_grads, gradients, low, T, start, gradients.shape[1] if batch == 1 else stop)
        else:
            steps = (c * length, (c + 1) * length)
            kept &= _multiply(links, local_grads, steps, (start, stop), mats[c - 1], exps[c - 1], vecs[c - 1])
    return kept


@_compile
def _between(state, length, first, last):
    """Phase 2: the gradients at the ends of chunks, by their products."""
    _, local_grads, mats, exps, vecs, gradients = state
    kept = True
    for c in range(mats.shape[0], 0, -1):
        low, high = c * length, (c + 1) * length
        for s in range(first, last):
            b = s % mats.shape[1]
            kept &= matvec(mats[c - 1, b], exps[c - 1, b], gradients[high, s], gradients[low, s])
            if local_grads.size:
                add(gradients[low, s], vecs[c - 1, s], gradients.shape[2])
    return kept


@_compile
def _replay(state, length, group, first, last):
    """Phase 3: the gradients inside of chunks, from those at their ends."""
    links, local_grads, gradients = state[0], state[1], state[5]
    samples = gradients.shape[1]
    groups = -(-samples // group)
    for q in range(first, last):
        c, start, stop = q // groups, q % groups * group, min((q % groups + 1) * group, samples)
        low = c * length + 1 if c > 0 else 0  # what phase 2 found is read by another thread
        _sweep(links, local_grads, gradients, low, (c + 1) * length, start, stop)
    return True


def chunked(jacobians_T, grad_output, local_grads=None, length=1):
    """Go back chunk by chunk, as `stored.chunked`; DynamicRangeError if a product leaves the range."""
    links, terms, gradients = _start(jacobians_T, grad_output, local_grads)
    T, (batch, hidden), matrices = len(links), grad_output.shape, links.shape[1]
    if T == 0:
        return gradients
    below = (T - 1) // length  # chunks below the one at the loss
    inner = max(below - 1, 0)  # and above the one at x_0: those that need products
    mats, exps = np.empty((inner, *links.shape[1:]), links.dtype), np.empty((inner, matrices), np.int64)
    vecs = np.empty((inner, batch, hidden), links.dtype)
    group = max(GROUP // links[0, 0].nbytes, 1)  # samples enough to read memory in order
    while group > 1 and below * -(-matrices // group) < CHUNKS * THREADS:
        group //= 2
    state, parallel = (links, terms, mats, exps, vecs, gradients), T * batch * hidden**2 > SMALL
    with one_blas_thread():
        count = (inner + 1) * -(-matrices // group)
        kept = parallel_for(_reduce, count, state, length, group, parallel=links.size * hidden > SMALL)
        kept &= parallel_for(_between, batch, state, length, parallel=False)
        parallel_for(_replay, below * -(-batch // group), state, length, group, parallel=parallel)
    if not kept:
        raise DynamicRangeError
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
    """Multiply the links of each chunk; counterpart of `bppsa_nb.chains.stored.products`."""
    links, chunks = plain(jacobians_T), len(jacobians_T) // length
    require(chunks * links[0].nbytes, f"multiplying {chunks} chunks of {length} links")
    mats, exps = np.empty((chunks, *links.shape[1:]), links.dtype), np.empty((chunks, links.shape[1]), np.int64)
    with one_blas_thread():
        parallel = links.size * links.shape[2] > SMALL
        if not parallel_for(_multiply_chunks, exps.size, links, length, mats, exps, parallel=parallel):
            raise DynamicRangeError
    return by_rows(mats, exps)
